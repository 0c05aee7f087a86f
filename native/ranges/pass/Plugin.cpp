// SPDX-License-Identifier: MIT OR Apache-2.0
// The plug-in for clang 19 that instruments integer variables.
//
// It runs first in the pipeline, at every level of optimisation, while each variable of the source
// still has memory of its own. Out come two copies of each function with updates, and a table of
// its variables for the runtime. Only inlining comes before: see Inlining.h.
#include "Copies.h"
#include "Inlining.h"
#include "Table.h"
#include "Variables.h"

#include "llvm/IR/InstIterator.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;

namespace overhear {
namespace {

/// Functions that must stay as they are.
bool isExcluded(const Function &F, const SmallPtrSetImpl<const Function *> &resolvers) {
  return F.isDeclaration() || F.hasAvailableExternallyLinkage() ||
         F.hasFnAttribute(Attribute::Naked) || F.hasFnAttribute(Attribute::NoProfile) ||
         resolvers.contains(&F);
}

/// A note on standard error: no diagnostic, because builds that take warnings for errors go on.
void note(const Twine &message) { errs() << "overhear ranges: " << message << "\n"; }

/// Keeps functions that also exist in a library out of line, if they lead to instrumented ones: the
/// optimiser could inline one into one copy of its caller only, and then the copies would differ in
/// what they record.
void keepCopiesAlike(Module &M, const SmallPtrSetImpl<const Function *> &instrumented) {
  SmallPtrSet<const Function *, 16> leading(instrumented.begin(), instrumented.end());
  bool isNew = true;
  while (isNew) {
    isNew = false;
    for (Function &F : M) {
      if (!F.hasAvailableExternallyLinkage() || F.hasFnAttribute(Attribute::AlwaysInline) ||
          leading.contains(&F))
        continue;
      for (const Instruction &I : instructions(F)) {
        auto *call = dyn_cast<CallBase>(&I);
        if (!call || !leading.contains(call->getCalledFunction()))
          continue;
        leading.insert(&F);
        F.addFnAttr(Attribute::NoInline);
        isNew = true;
        break;
      }
    }
  }
}

/// Finds and marks the updates of all functions that are not excluded.
void markUpdates(Module &M, const SmallPtrSetImpl<const Function *> &resolvers,
                 Variables &variables) {
  // Small functions that write nothing themselves are called most often; a check at each call would
  // be most of what the plain copies cost.
  const char *arguments = getenv("OVERHEAR_RANGES_ARGUMENTS");
  bool allArguments = arguments && StringRef(arguments) == "all";
  for (Function &F : M) {
    if (isExcluded(F, resolvers))
      continue;
    size_t known = variables.all.size();
    auto updates = variables.updatesOf(F);
    bool hasOwn = any_of(updates, [](const Update &update) { return !isPassedValue(update); });
    if (hasOwn || allArguments)
      for (const Update &update : updates)
        Variables::mark(update);
    else
      variables.forgetFrom(known);
  }
}

bool instrument(Module &M, ModuleAnalysisManager &analyses, ModulePassManager *optimiser) {
  // A second run of the plug-in finds the table of the first one.
  if (M.getGlobalVariable("overhear.ranges.object", /*AllowInternal=*/true))
    return false;
  // The dynamic linker calls resolvers of indirect functions before threads have memory.
  SmallPtrSet<const Function *, 4> resolvers;
  for (const GlobalIFunc &indirect : M.ifuncs())
    if (auto *resolver = indirect.getResolverFunction())
      resolvers.insert(resolver);

  Variables variables(M);
  markUpdates(M, resolvers, variables);
  if (optimiser && !variables.all.empty())
    inlineAsOptimiser(M, analyses, *optimiser);
  std::vector<std::pair<Function *, std::vector<Update>>> work;
  for (Function &F : M)
    if (auto updates = Variables::markedIn(F); !updates.empty() && !isExcluded(F, resolvers))
      work.emplace_back(&F, std::move(updates));
  if (work.empty()) {
    bool hasCode = any_of(M, [](const Function &F) { return !F.isDeclaration(); });
    if (hasCode && M.debug_compile_units_begin() == M.debug_compile_units_end())
      note(M.getSourceFileName() +
           " has no debug information, so none of its variables is observed; compile it "
           "with -g");
    return false;
  }

  SmallPtrSet<const Function *, 16> instrumented;
  for (auto &[F, updates] : work)
    instrumented.insert(F);
  keepCopiesAlike(M, instrumented);

  Table table(M, work.size(), variables.all);
  for (auto &[F, updates] : work) {
    bool isDuplicated = !obstacle(*F);
    unsigned function = table.addFunction(*F, isDuplicated);
    if (isDuplicated)
      duplicate(*F, function, updates, variables.all, table);
    else
      guard(*F, function, updates, variables.all, table);
    std::string error;
    raw_string_ostream stream(error);
    if (verifyFunction(*F, &stream))
      report_fatal_error(Twine("overhear ranges: function ") + F->getName() +
                             " is broken after instrumentation: " + stream.str(),
                         /*gen_crash_diag=*/false);
  }
  table.finish();
  return true;
}

struct RangesPass : PassInfoMixin<RangesPass> {
  /// The passes of this level up to inlining; none without optimisation.
  std::shared_ptr<ModulePassManager> optimiser;

  PreservedAnalyses run(Module &M, ModuleAnalysisManager &analyses) {
    bool isChanged = instrument(M, analyses, optimiser.get());
    return isChanged ? PreservedAnalyses::none() : PreservedAnalyses::all();
  }
  static bool isRequired() { return true; }
};

} // namespace
} // namespace overhear

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "overhear-ranges", "1", [](PassBuilder &builder) {
            builder.registerPipelineStartEPCallback(
                [&builder](ModulePassManager &passes, OptimizationLevel level) {
                  overhear::RangesPass pass;
                  if (level != OptimizationLevel::O0)
                    pass.optimiser = std::make_shared<ModulePassManager>(
                        builder.buildModuleSimplificationPipeline(level,
                                                                  ThinOrFullLTOPhase::None));
                  passes.addPass(std::move(pass));
                });
            builder.registerPipelineParsingCallback(
                [](StringRef name, ModulePassManager &passes,
                   ArrayRef<PassBuilder::PipelineElement>) {
                  if (name != "overhear-ranges")
                    return false;
                  passes.addPass(overhear::RangesPass());
                  return true;
                });
          }};
}
