// SPDX-License-Identifier: MIT OR Apache-2.0
// The memory of one object file that instrumented code and the runtime share.
//
// Each object file has one block of writable memory: the words of its functions, the ranges of its
// variables, and the counters of its segments. The linker puts the blocks of all object files of a
// program or library into one section. The block in the file is the initial image only: each thread
// works on a copy of the whole section, whose distance from the image is the thread's `delta`.
// crates/overhear-ranges/src/layout.rs is the other side.
#pragma once

#include "Variables.h"

#include "llvm/IR/IRBuilder.h"

namespace overhear {

/// The words of a function, 8 bytes each: one cache line.
enum Word : unsigned {
  /// Counts passes down, in both copies.
  Credit = 0,
  /// The runtime is called at the pass that takes the credit to this limit.
  CreditLimit = 1,
  /// Updates recorded.
  Recorded = 2,
  /// Monitored code runs while `Recorded` is below this word.
  Stop = 3,
  /// Entries that may turn to the monitored copy out of turn.
  Tokens = 4,
  /// Updates that one token allows.
  TokenUpdates = 5,
  /// Passes of monitored stretches that ran plain, because `Stop` was reached.
  Capped = 7,
  WordsPerFunction = 8,
};

/// A variable and the number of its updates in a segment.
struct Count {
  unsigned variable;
  unsigned updates;
};

class Table {
public:
  Table(llvm::Module &M, unsigned functions, const std::vector<Variable> &variables);

  /// Adds a function; returns its index.
  unsigned addFunction(const llvm::Function &F, bool duplicated);
  /// Adds a segment: a piece of a function whose updates are executed all or none.
  unsigned addSegment(unsigned function, std::vector<Count> counts);

  llvm::LoadInst *load(llvm::IRBuilder<> &B, unsigned function, Word word);
  void store(llvm::IRBuilder<> &B, unsigned function, Word word, llvm::Value *value);
  llvm::Value *addressOf(llvm::IRBuilder<> &B, uint64_t offset);
  uint64_t rangeOffset(unsigned variable) const;
  uint64_t segmentOffset(unsigned segment) const;
  /// Marks an access to the shared memory, so that the optimiser keeps it apart from the accesses
  /// of the program.
  template <typename T> T *tagWord(T *access) { return tag(access, wordTag); }
  template <typename T> T *tagRange(T *access) { return tag(access, rangeTag); }
  template <typename T> T *tagCounter(T *access) { return tag(access, counterTag); }

  /// The call that a pass makes when its credit is used up.
  llvm::CallInst *callRuntime(llvm::IRBuilder<> &B, unsigned function);

  /// Creates block and descriptor. Nothing may be added afterwards.
  void finish();

private:
  template <typename T> T *tag(T *access, llvm::MDNode *node) {
    if (node)
      access->setMetadata(llvm::LLVMContext::MD_tbaa, node);
    return access;
  }
  void makeTags();

  llvm::Module &M;
  llvm::LLVMContext &X;
  const std::vector<Variable> &variables;
  unsigned functions;
  unsigned added = 0;
  unsigned segments = 0;
  std::string functionLines, segmentLines;
  llvm::GlobalVariable *block;
  llvm::GlobalVariable *delta;
  llvm::GlobalVariable *descriptor;
  llvm::FunctionCallee runtime;
  llvm::MDNode *wordTag = nullptr, *rangeTag = nullptr, *counterTag = nullptr, *deltaTag = nullptr;
};

/// Whether the range of a variable is stored as minimum and width, so that one comparison finds a
/// value inside. Only 64-bit variables need minimum and maximum: every value can be theirs, so none
/// is left to mark an empty range.
inline bool storedAsWidth(const Variable &variable) { return variable.type.bits < 64; }

} // namespace overhear
