// SPDX-License-Identifier: MIT OR Apache-2.0
// The integer variables of a module, and the instructions that write them.
//
// The debug information names the variables: globals, function statics, locals, parameters, and
// fields of structs and classes. An update is an instruction that stores a value to one of them by
// name. A store through a pointer to an integer belongs to no variable and is no update.
#pragma once

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/IR/DebugInfo.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/Instructions.h"
#include "llvm/IR/Module.h"

#include <optional>
#include <string>
#include <vector>

namespace overhear {

/// An integer type of the source: at most 64 bits wide.
struct IntegerType {
  std::string name;
  unsigned bits = 0;
  bool isUnsigned = false;
};

/// A variable with at least one update in this module.
struct Variable {
  /// `g` global, `s` function static, `l` local, `p` parameter, `m` member of a struct.
  char kind;
  std::string name;
  /// The function that declares it, by its linkage name; empty for globals and members.
  std::string function;
  std::string file;
  unsigned line;
  IntegerType type;
};

/// One instruction that writes a variable.
struct Update {
  /// A store or an atomic read-modify-write.
  llvm::Instruction *at;
  /// Index into `Variables::all`.
  unsigned variable;
  /// Position of the lowest bit in the stored unit: not 0 for bit-fields only.
  unsigned shift = 0;
};

/// Whether the update is the value that a caller passes.
bool isPassedValue(const Update &update);

class Variables {
public:
  explicit Variables(llvm::Module &M);

  /// Finds the updates of a function in the order of its instructions, as the front end has
  /// written them.
  std::vector<Update> updatesOf(llvm::Function &F);

  /// Forgets the variables that were found last: only the first ones stay.
  void forgetFrom(size_t first);

  /// Marks an update, so that `markedIn` finds it after inlining. There it is no longer visible
  /// whose store it was, and constant folding turns the pointer to the first field of a struct into
  /// one to the struct.
  static void mark(const Update &update);

  /// The marked updates of a function, in the order of its instructions.
  static std::vector<Update> markedIn(llvm::Function &F);

  std::vector<Variable> all;

private:
  /// What a pointer designates: a place in a value of a type with fields.
  struct Place {
    const llvm::DICompositeType *type;
    std::string name;
    uint64_t bits;
  };

  unsigned numberOf(const llvm::Metadata *key, Variable variable);
  std::optional<Update> updateOf(llvm::Instruction &I);
  std::optional<unsigned> wholeVariable(llvm::Value *pointer, unsigned bits);
  std::optional<Place> placeOf(llvm::Value *pointer) const;
  const llvm::DICompositeType *compositeOf(llvm::StructType *type) const;
  void readLocals(llvm::Function &F);

  llvm::Module &M;
  llvm::DenseMap<const llvm::Metadata *, unsigned> numbers;
  llvm::DenseMap<const llvm::Value *, const llvm::DILocalVariable *> locals;
  /// Composite types by the name that clang gives to the corresponding LLVM type.
  llvm::StringMap<std::vector<const llvm::DICompositeType *>> composites;
};

} // namespace overhear
