// SPDX-License-Identifier: MIT OR Apache-2.0
#include "Inlining.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/DebugProgramInstruction.h"
#include "llvm/IR/DiagnosticHandler.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Module.h"
#include "llvm/Transforms/Utils/Cloning.h"

using namespace llvm;

namespace overhear {
namespace {

/// Keeps the diagnostics of the trial from the user: the real run has them, too.
class Silence {
public:
  explicit Silence(LLVMContext &X) : X(X), before(X.getDiagnosticHandler()) {
    X.setDiagnosticHandler(std::make_unique<Silent>());
  }
  ~Silence() { X.setDiagnosticHandler(std::move(before)); }

private:
  struct Silent : DiagnosticHandler {
    bool handleDiagnostics(const DiagnosticInfo &) override { return true; }
  };
  LLVMContext &X;
  std::unique_ptr<DiagnosticHandler> before;
};

StringRef nameOf(const DISubprogram *function) {
  StringRef linkage = function->getLinkageName();
  return linkage.empty() ? function->getName() : linkage;
}

std::string keyOf(const DILocation *call, const DISubprogram *callee) {
  std::string key = nameOf(call->getScope()->getSubprogram()).str();
  key += '\0' + std::to_string(call->getLine()) + ':' + std::to_string(call->getColumn()) + '\0';
  return key + nameOf(callee).str();
}

/// The calls whose callee has left code in their caller.
class InlinedCalls {
public:
  explicit InlinedCalls(Module &M) {
    for (Function &F : M)
      for (Instruction &I : instructions(F)) {
        collect(I.getDebugLoc());
        for (DbgRecord &record : I.getDbgRecordRange())
          collect(record.getDebugLoc());
      }
  }

  bool contains(const CallBase &call, const Function &callee) const {
    const DILocation *location = call.getDebugLoc();
    const DISubprogram *subprogram = callee.getSubprogram();
    return location && subprogram && keys.contains(keyOf(location, subprogram));
  }

private:
  void collect(const DILocation *location) {
    for (; location && location->getInlinedAt(); location = location->getInlinedAt()) {
      if (!seen.insert(location).second)
        return;
      keys.insert(keyOf(location->getInlinedAt(), location->getScope()->getSubprogram()));
    }
  }

  DenseSet<const DILocation *> seen;
  StringSet<> keys;
};

/// Inlines callees first, so that each caller gets them as they are in the end.
class Inliner {
public:
  explicit Inliner(const InlinedCalls &chosen) : chosen(chosen) {}

  void inlineInto(Function &F) {
    if (F.isDeclaration() || !visited.insert(&F).second)
      return;
    underWay.insert(&F);
    SetVector<CallBase *> calls;
    for (Instruction &I : instructions(F)) {
      auto *call = dyn_cast<CallBase>(&I);
      Function *callee = call ? call->getCalledFunction() : nullptr;
      if (!callee || callee->isDeclaration())
        continue;
      inlineInto(*callee);
      // The body of a function that is on the way to itself is not final.
      if (!underWay.contains(callee) && chosen.contains(*call, *callee))
        calls.insert(call);
    }
    // A coroutine is split first, and the optimiser inlines into its parts.
    if (!F.isPresplitCoroutine())
      for (CallBase *call : calls) {
        InlineFunctionInfo info;
        InlineFunction(*call, info, /*MergeAttributes=*/true);
      }
    underWay.erase(&F);
  }

private:
  const InlinedCalls &chosen;
  DenseSet<const Function *> visited, underWay;
};

InlinedCalls callsInlinedIn(Module &M, ModuleAnalysisManager &analyses,
                            ModulePassManager &optimiser) {
  Silence silence(M.getContext());
  std::unique_ptr<Module> trial = CloneModule(M);
  optimiser.run(*trial, analyses);
  InlinedCalls calls(*trial);
  analyses.clear(*trial, trial->getName());
  return calls;
}

} // namespace

void inlineAsOptimiser(Module &M, ModuleAnalysisManager &analyses,
                       ModulePassManager &optimiser) {
  InlinedCalls calls = callsInlinedIn(M, analyses, optimiser);
  Inliner inliner(calls);
  for (Function &F : M)
    inliner.inlineInto(F);
  // Nothing refers to a function any more that no other module needs.
  bool isAny = true;
  while (isAny) {
    isAny = false;
    for (Function &F : make_early_inc_range(M)) {
      F.removeDeadConstantUsers();
      if (F.isDeclaration() || !F.isDiscardableIfUnused() || !F.use_empty())
        continue;
      F.eraseFromParent();
      isAny = true;
    }
  }
}

} // namespace overhear
