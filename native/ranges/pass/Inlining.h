// SPDX-License-Identifier: MIT OR Apache-2.0
// Inlines the calls that the optimiser inlines in a build without the pass.
//
// Instrumented functions are several times as large as before, so the optimiser would no longer
// inline them, and the plain copies would cost the calls. A trial run of the optimiser on a copy of
// the module shows its choice; the same calls are then inlined before the instrumentation.
//
// A call is known by its caller, callee, line and column. Calls that share all of them, such as
// those of one macro, are treated alike.
#pragma once

#include "llvm/IR/PassManager.h"

namespace overhear {

/// Runs `optimiser` on a copy of the module, and inlines what it has inlined there.
void inlineAsOptimiser(llvm::Module &M, llvm::ModuleAnalysisManager &analyses,
                       llvm::ModulePassManager &optimiser);

} // namespace overhear
