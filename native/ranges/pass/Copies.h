// SPDX-License-Identifier: MIT OR Apache-2.0
// The two copies of a function: the plain one, and the monitored one that records updates.
//
// A pass is an entry of the function or a round of one of its outer loops. Each pass takes one from
// the function's credit, in both copies; when the credit is used up, the runtime decides how the
// function goes on. The monitored copy also returns to the plain one at back edges of inner loops,
// as soon as it has recorded all that it may.
//
// A function without passes other than its entries is split: it consists of its pass and plain
// code, and calls a second function with both copies when no credit is left. So its plain code
// saves no registers for the monitored copy.
//
// A function that cannot be duplicated has guards in place instead: each segment is recorded if the
// function is monitored at that moment.
#pragma once

#include "Table.h"

namespace overhear {

/// The reason why a function cannot be duplicated, or null.
const char *obstacle(const llvm::Function &F);

/// Instruments a function that can be duplicated.
void duplicate(llvm::Function &F, unsigned function, const std::vector<Update> &updates,
               const std::vector<Variable> &variables, Table &table);

/// Instruments a function in place.
void guard(llvm::Function &F, unsigned function, const std::vector<Update> &updates,
           const std::vector<Variable> &variables, Table &table);

} // namespace overhear
