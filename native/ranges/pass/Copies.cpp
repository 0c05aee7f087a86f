// SPDX-License-Identifier: MIT OR Apache-2.0
#include "Copies.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/InlineAsm.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Support/Regex.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/Cloning.h"
#include "llvm/Transforms/Utils/Local.h"

#include <map>

using namespace llvm;

namespace overhear {
namespace {

/// An edge back to the header of a loop.
struct BackEdge {
  BasicBlock *latch;
  BasicBlock *header;
  /// Whether a round of the loop is a pass.
  bool isPass;
};

MDNode *unlikely(LLVMContext &X) { return MDBuilder(X).createBranchWeights(1, 2000); }
MDNode *likely(LLVMContext &X) { return MDBuilder(X).createBranchWeights(2000, 1); }

BasicBlock *newBlock(Function &F, const char *name, BasicBlock *before = nullptr) {
  auto *block = BasicBlock::Create(F.getContext(), name, &F, before);
  block->setIsNewDbgInfoFormat(F.IsNewDbgInfoFormat);
  return block;
}

/// The place that instructions of our own have in the source: calls in a function with debug
/// information must have one.
DebugLoc locationIn(Function &F, const Instruction *near) {
  if (near && near->getDebugLoc())
    return near->getDebugLoc();
  if (auto *subprogram = F.getSubprogram())
    return DILocation::get(F.getContext(), subprogram->getLine(), 0, subprogram);
  return {};
}

bool isStaticAlloca(const Instruction &I) {
  auto *alloca = dyn_cast<AllocaInst>(&I);
  return alloca && alloca->isStaticAlloca();
}

/// Moves the variables of the frame to the end of a new entry.
void moveFrame(BasicBlock &from, BasicBlock &entry) {
  for (Instruction &I : make_early_inc_range(from))
    if (auto *alloca = dyn_cast<AllocaInst>(&I); alloca && isa<ConstantInt>(alloca->getArraySize()))
      I.moveBefore(entry, entry.end());
}

/// A call of a function, as opposed to an intrinsic.
bool isRealCall(const Instruction &I) {
  auto *call = dyn_cast<CallBase>(&I);
  return call && !isa<IntrinsicInst>(call) && !call->isInlineAsm();
}

/// Instructions of an inner loop from which on a check is a small part of a round.
constexpr unsigned LONG_ROUND = 300;

/// Whether a round of the loop is long enough to bear a check: it contains a loop, or a call,
/// inlined or not, where an inner loop must also contain much code. A loop without an exit must be
/// a pass, or nothing could switch it on.
bool roundsArePasses(const Loop &loop) {
  if (!loop.isInnermost())
    return true;
  bool isOutermost = loop.getLoopDepth() == 1;
  SmallVector<BasicBlock *, 4> exits;
  loop.getExitBlocks(exits);
  if (isOutermost && exits.empty())
    return true;
  auto inlinedAt = [](const Instruction &I) {
    const DILocation *location = I.getDebugLoc();
    return location ? location->getInlinedAt() : nullptr;
  };
  const DILocation *own = inlinedAt(*loop.getHeader()->getTerminator());
  unsigned instructions = 0;
  bool hasCall = false;
  for (const BasicBlock *block : loop.blocks())
    for (const Instruction &I : block->instructionsWithoutDebug()) {
      hasCall |= isRealCall(I) || (I.getDebugLoc() && inlinedAt(I) != own);
      instructions++;
    }
  return hasCall && (isOutermost || instructions >= LONG_ROUND);
}

std::vector<BackEdge> backEdges(Function &F) {
  DominatorTree dominators(F);
  LoopInfo loops(dominators);
  std::vector<BackEdge> edges;
  for (Loop *loop : loops.getLoopsInPreorder()) {
    if (loop->getHeader()->isEHPad())
      continue;
    SmallVector<BasicBlock *, 4> latches;
    loop->getLoopLatches(latches);
    for (BasicBlock *latch : latches)
      if (isa<BranchInst>(latch->getTerminator()) || isa<SwitchInst>(latch->getTerminator()))
        edges.push_back({latch, loop->getHeader(), roundsArePasses(*loop)});
  }
  return edges;
}

/// Puts every value that crosses blocks into memory, so that either copy may continue what the
/// other one began. The optimiser takes them out again.
void demote(Function &F) {
  BasicBlock &entry = F.getEntryBlock();
  Instruction *place = &*entry.getFirstNonPHIOrDbgOrAlloca();
  std::vector<Instruction *> crossing;
  for (Instruction &I : instructions(F)) {
    if (isStaticAlloca(I))
      continue;
    for (const User *user : I.users())
      if (cast<Instruction>(user)->getParent() != I.getParent() || isa<PHINode>(user)) {
        crossing.push_back(&I);
        break;
      }
  }
  for (Instruction *I : crossing)
    DemoteRegToStack(*I, false, place->getIterator());
  std::vector<PHINode *> phis;
  for (Instruction &I : instructions(F))
    if (auto *phi = dyn_cast<PHINode>(&I))
      phis.push_back(phi);
  for (PHINode *phi : phis)
    DemotePHIToStack(phi, place->getIterator());
}

bool tokensCross(const Function &F) {
  for (const Instruction &I : instructions(F))
    if (I.getType()->isTokenTy())
      return true;
  return false;
}

/// Updates of one block that are executed all or none.
struct Segment {
  /// Where they are all done.
  Instruction *end;
  std::vector<Update> updates;
};

std::vector<Segment> segmentsOf(Function &F, const DenseMap<Instruction *, Update> &updates) {
  std::vector<Segment> segments;
  for (BasicBlock &block : F) {
    Segment open{nullptr, {}};
    for (Instruction &I : block) {
      // A call may leave the block for good: by an exception, longjmp or exit.
      if ((isRealCall(I) || I.isTerminator()) && !open.updates.empty()) {
        open.end = &I;
        segments.push_back(std::move(open));
        open = {nullptr, {}};
      }
      if (auto found = updates.find(&I); found != updates.end())
        open.updates.push_back(found->second);
    }
  }
  return segments;
}

/// Emits the code of updates for one function.
class Recorder {
public:
  Recorder(unsigned function, const std::vector<Variable> &variables, Table &table)
      : function(function), variables(variables), table(table) {}

  /// Records a segment at its end.
  void record(const Segment &segment, Instruction *before) {
    IRBuilder<> B(before);
    MapVector<unsigned, unsigned> counts;
    for (const Update &update : segment.updates)
      counts[update.variable]++;
    std::vector<Count> list;
    for (auto [variable, updates] : counts)
      list.push_back({variable, updates});
    unsigned number = table.addSegment(function, std::move(list));
    Value *recorded = table.load(B, function, Recorded);
    table.store(B, function, Recorded, B.CreateAdd(recorded, B.getInt64(segment.updates.size())));
    Value *counter = table.addressOf(B, table.segmentOffset(number));
    Value *count = table.tagCounter(B.CreateLoad(B.getInt64Ty(), counter));
    table.tagCounter(B.CreateStore(B.CreateAdd(count, B.getInt64(1)), counter));
    for (const Update &update : segment.updates)
      widen(update, before);
  }

private:
  Value *valueOf(const Update &update, IRBuilder<> &B) {
    const IntegerType &type = variables[update.variable].type;
    Value *value;
    if (auto *rmw = dyn_cast<AtomicRMWInst>(update.at)) {
      Value *operand = rmw->getValOperand();
      switch (rmw->getOperation()) {
      case AtomicRMWInst::Add:
        value = B.CreateAdd(rmw, operand);
        break;
      case AtomicRMWInst::Sub:
        value = B.CreateSub(rmw, operand);
        break;
      case AtomicRMWInst::And:
        value = B.CreateAnd(rmw, operand);
        break;
      case AtomicRMWInst::Or:
        value = B.CreateOr(rmw, operand);
        break;
      case AtomicRMWInst::Xor:
        value = B.CreateXor(rmw, operand);
        break;
      default:
        value = operand;
      }
    } else {
      value = cast<StoreInst>(update.at)->getValueOperand();
    }
    if (value->getType()->getIntegerBitWidth() > type.bits)
      value = B.CreateTrunc(update.shift ? B.CreateLShr(value, update.shift) : value,
                            B.getIntNTy(type.bits));
    return type.isUnsigned ? B.CreateZExtOrTrunc(value, B.getInt64Ty())
                           : B.CreateSExtOrTrunc(value, B.getInt64Ty());
  }

  void widen(const Update &update, Instruction *before) {
    IRBuilder<> B(before);
    const Variable &variable = variables[update.variable];
    auto *word = B.getInt64Ty();
    Value *value = valueOf(update, B);
    Value *low = table.addressOf(B, table.rangeOffset(update.variable));
    Value *high = table.addressOf(B, table.rangeOffset(update.variable) + 8);
    Value *minimum = table.tagRange(B.CreateLoad(word, low));
    Value *second = table.tagRange(B.CreateLoad(word, high));
    if (storedAsWidth(variable)) {
      Value *outside = B.CreateICmpUGT(B.CreateSub(value, minimum), second);
      Instruction *then =
          SplitBlockAndInsertIfThen(outside, before->getIterator(), false, rarely(B));
      IRBuilder<> T(then);
      // An empty range has a minimum that no variable of less than 64 bits can have, and width 0.
      Value *isEmpty = T.CreateICmpEQ(minimum, T.getInt64(INT64_MAX));
      Value *maximum = T.CreateAdd(minimum, second);
      Value *newMinimum = T.CreateBinaryIntrinsic(Intrinsic::smin, minimum, value);
      Value *larger = T.CreateBinaryIntrinsic(Intrinsic::smax, maximum, value);
      Value *newMaximum = T.CreateSelect(isEmpty, value, larger);
      table.tagRange(T.CreateStore(newMinimum, low));
      table.tagRange(T.CreateStore(T.CreateSub(newMaximum, newMinimum), high));
      return;
    }
    bool isUnsigned = variable.type.isUnsigned;
    Value *below =
        isUnsigned ? B.CreateICmpULT(value, minimum) : B.CreateICmpSLT(value, minimum);
    Value *above = isUnsigned ? B.CreateICmpUGT(value, second) : B.CreateICmpSGT(value, second);
    Instruction *then = SplitBlockAndInsertIfThen(below, before->getIterator(), false, rarely(B));
    table.tagRange(IRBuilder<>(then).CreateStore(value, low));
    then = SplitBlockAndInsertIfThen(above, before->getIterator(), false, rarely(B));
    table.tagRange(IRBuilder<>(then).CreateStore(value, high));
  }

  static MDNode *rarely(IRBuilder<> &B) { return unlikely(B.getContext()); }

  unsigned function;
  const std::vector<Variable> &variables;
  Table &table;
};

/// Emits the decisions at entries and back edges of one function.
class Decisions {
public:
  Decisions(Function &F, unsigned function, Table &table)
      : F(F), X(F.getContext()), function(function), table(table) {}

  /// A pass in the plain copy. Ends the block of the builder.
  void plainPass(IRBuilder<> &B, BasicBlock *monitored, BasicBlock *plain, bool withTokens) {
    BasicBlock *used = newBlock(F, "overhear.used");
    DebugLoc location = B.getCurrentDebugLocation();
    BasicBlock *stay = withTokens ? tokenEntry(monitored, plain, location) : plain;
    passTo(B, used, stay);
    IRBuilder<> U(used);
    U.SetCurrentDebugLocation(location);
    withoutCredit(U, monitored, plain);
  }

  /// Takes one from the credit, and goes to the first block if none was left. Ends the block of the
  /// builder.
  void passTo(IRBuilder<> &B, BasicBlock *used, BasicBlock *stay) {
    Value *credit = takeCredit(B);
    B.CreateCondBr(B.CreateICmpSLT(credit, B.getInt64(0)), used, stay, unlikely(X));
  }

  /// How the function goes on after a pass of the plain copy for which no credit was left. Ends the
  /// block of the builder.
  void withoutCredit(IRBuilder<> &U, BasicBlock *monitored, BasicBlock *plain) {
    BasicBlock *armed = newBlock(F, "overhear.armed"), *slow = newBlock(F, "overhear.slow");
    DebugLoc location = U.getCurrentDebugLocation();
    // Loading the credit again keeps it out of registers on the way that is always taken.
    LoadInst *again = table.load(U, function, Credit);
    again->setVolatile(true);
    Value *limit = table.load(U, function, CreditLimit);
    U.CreateCondBr(U.CreateICmpSGT(again, limit), armed, slow);
    IRBuilder<> A(armed);
    A.SetCurrentDebugLocation(location);
    A.CreateCondBr(mayRecord(A), monitored, capped(plain, location));
    runtime(slow, location, monitored, plain);
  }

  /// A pass in the monitored copy. Ends the block of the builder.
  void monitoredPass(IRBuilder<> &B, BasicBlock *monitored, BasicBlock *plain) {
    BasicBlock *armed = newBlock(F, "overhear.armed"), *slow = newBlock(F, "overhear.slow");
    DebugLoc location = B.getCurrentDebugLocation();
    Value *credit = takeCredit(B);
    Value *limit = table.load(B, function, CreditLimit);
    B.CreateCondBr(B.CreateICmpSGT(credit, limit), armed, slow, likely(X));
    IRBuilder<> A(armed);
    A.SetCurrentDebugLocation(location);
    A.CreateCondBr(mayRecord(A), monitored, capped(plain, location), likely(X));
    runtime(slow, location, monitored, plain);
  }

  /// A back edge of an inner loop in the monitored copy. Ends the block of the builder.
  void innerEdge(IRBuilder<> &B, BasicBlock *monitored, BasicBlock *plain) {
    B.CreateCondBr(mayRecord(B), monitored, plain, likely(X));
  }

  /// A pass of a function with guards in place, before an instruction.
  void guardedPass(Instruction *before) {
    IRBuilder<> B(before);
    DebugLoc location = locationIn(F, before);
    B.SetCurrentDebugLocation(location);
    Value *credit = takeCredit(B);
    Value *limit = table.load(B, function, CreditLimit);
    Value *isUsed = B.CreateAnd(B.CreateICmpSLT(credit, B.getInt64(0)),
                                B.CreateICmpSLE(credit, limit));
    Instruction *then =
        SplitBlockAndInsertIfThen(isUsed, before->getIterator(), false, unlikely(X));
    IRBuilder<> T(then);
    T.SetCurrentDebugLocation(location);
    table.callRuntime(T, function);
  }

  Value *mayRecord(IRBuilder<> &B) {
    Value *recorded = table.load(B, function, Recorded);
    return B.CreateICmpSLT(recorded, table.load(B, function, Stop));
  }

private:
  Value *takeCredit(IRBuilder<> &B) {
    Value *credit = B.CreateSub(table.load(B, function, Credit), B.getInt64(1));
    table.store(B, function, Credit, credit);
    return credit;
  }

  /// Counts a pass of a monitored stretch that goes on in the plain copy. A pass of a plain stretch
  /// that ends a token comes here, too: it has a credit.
  BasicBlock *capped(BasicBlock *plain, const DebugLoc &location) {
    BasicBlock *count = newBlock(F, "overhear.capped");
    IRBuilder<> B(count);
    B.SetCurrentDebugLocation(location);
    Value *isMonitored =
        B.CreateICmpSLT(table.load(B, function, Credit), B.getInt64(0));
    Value *passes = table.load(B, function, Capped);
    Value *more = B.CreateZExt(isMonitored, B.getInt64Ty());
    table.store(B, function, Capped, B.CreateAdd(passes, more));
    B.CreateBr(plain);
    return count;
  }

  /// If the function has a token, spends it on an entry of the monitored copy.
  BasicBlock *tokenEntry(BasicBlock *monitored, BasicBlock *plain, const DebugLoc &location) {
    BasicBlock *check = newBlock(F, "overhear.token"), *spend = newBlock(F, "overhear.spend");
    IRBuilder<> B(check);
    B.SetCurrentDebugLocation(location);
    Value *tokens = table.load(B, function, Tokens);
    B.CreateCondBr(B.CreateICmpSGT(tokens, B.getInt64(0)), spend, plain, unlikely(X));
    IRBuilder<> S(spend);
    S.SetCurrentDebugLocation(location);
    table.store(S, function, Tokens, S.CreateSub(tokens, S.getInt64(1)));
    Value *recorded = table.load(S, function, Recorded);
    Value *allowed = S.CreateAdd(recorded, table.load(S, function, TokenUpdates));
    table.store(S, function, Stop, allowed);
    S.CreateBr(monitored);
    return check;
  }

  void runtime(BasicBlock *slow, const DebugLoc &location, BasicBlock *monitored,
               BasicBlock *plain) {
    IRBuilder<> B(slow);
    B.SetCurrentDebugLocation(location);
    Value *decision = table.callRuntime(B, function);
    B.CreateCondBr(B.CreateICmpNE(decision, B.getInt32(0)), monitored, plain);
  }

  Function &F;
  LLVMContext &X;
  unsigned function;
  Table &table;
};

} // namespace

const char *obstacle(const Function &F) {
  static const Regex label("(^|[\n;\t ])[A-Za-z_.][A-Za-z0-9_.$]*:");
  if (F.isPresplitCoroutine())
    return "it is a coroutine";
  if (tokensCross(F))
    return "it has values that cannot be stored";
  for (const BasicBlock &block : F) {
    if (block.hasAddressTaken())
      return "it takes the address of a label";
    if (isa<IndirectBrInst>(block.getTerminator()))
      return "it has computed jumps";
    for (const Instruction &I : block) {
      auto *call = dyn_cast<CallBase>(&I);
      if (!call)
        continue;
      if (call->cannotDuplicate())
        return "it has a call that must not be duplicated";
      if (auto *assembly = dyn_cast<InlineAsm>(call->getCalledOperand())) {
        StringRef text = assembly->getAsmString();
        if (!text.contains("${:uid}") && label.match(text))
          return "it has inline assembly with a label";
      }
      if (auto *intrinsic = dyn_cast<IntrinsicInst>(call))
        if (intrinsic->getIntrinsicID() == Intrinsic::localescape)
          return "its frame escapes";
    }
  }
  return nullptr;
}

namespace {

using Updates = std::vector<Update>;

/// The part of `duplicate` that makes both copies in one function. `isSplit` means that the pass of
/// an entry is taken by the function's other part.
void duplicateInside(Function &F, unsigned function, const Updates &updates,
                     const std::vector<Variable> &variables, Table &table, bool isSplit) {
  // Without a loop no code switches between the copies, and values may stay where they are.
  if (!backEdges(F).empty())
    demote(F);
  std::vector<BackEdge> edges = backEdges(F);
  bool isLong = any_of(edges, [](const BackEdge &edge) { return edge.isPass; });

  // Both copies use the same frame: its variables move in front of them.
  BasicBlock *plainEntry = &F.getEntryBlock();
  BasicBlock *distributor = newBlock(F, "overhear.entry", plainEntry);
  moveFrame(*plainEntry, *distributor);

  ValueToValueMapTy map;
  std::vector<BasicBlock *> originals;
  SmallVector<BasicBlock *, 32> clones;
  for (BasicBlock &block : F)
    if (&block != distributor)
      originals.push_back(&block);
  for (BasicBlock *block : originals) {
    BasicBlock *clone = CloneBasicBlock(block, map, ".monitored", &F);
    map[block] = clone;
    clones.push_back(clone);
  }
  remapInstructionsInBlocks(clones, map);

  Decisions decisions(F, function, table);
  auto cloneOf = [&](BasicBlock *block) { return cast<BasicBlock>(map[block]); };
  {
    IRBuilder<> B(distributor);
    B.SetCurrentDebugLocation(locationIn(F, nullptr));
    if (isSplit)
      decisions.withoutCredit(B, cloneOf(plainEntry), plainEntry);
    else
      decisions.plainPass(B, cloneOf(plainEntry), plainEntry, isLong);
  }
  for (const BackEdge &edge : edges) {
    BasicBlock *monitoredHeader = cloneOf(edge.header);
    BasicBlock *monitoredLatch = cloneOf(edge.latch);
    DebugLoc location = locationIn(F, edge.latch->getTerminator());
    BasicBlock *turn = newBlock(F, "overhear.turn");
    IRBuilder<> T(turn);
    T.SetCurrentDebugLocation(location);
    if (edge.isPass)
      decisions.monitoredPass(T, monitoredHeader, edge.header);
    else
      decisions.innerEdge(T, monitoredHeader, edge.header);
    monitoredLatch->getTerminator()->replaceSuccessorWith(monitoredHeader, turn);
    if (!edge.isPass)
      continue;
    BasicBlock *again = newBlock(F, "overhear.again");
    IRBuilder<> A(again);
    A.SetCurrentDebugLocation(location);
    decisions.plainPass(A, monitoredHeader, edge.header, false);
    edge.latch->getTerminator()->replaceSuccessorWith(edge.header, again);
  }

  DenseMap<Instruction *, Update> cloned;
  for (const Update &update : updates) {
    auto *at = cast<Instruction>(map[update.at]);
    cloned[at] = {at, update.variable, update.shift};
  }
  Recorder recorder(function, variables, table);
  for (const Segment &segment : segmentsOf(F, cloned))
    recorder.record(segment, segment.end);
}

/// Whether entries are the only passes of the function, and another function can continue it.
bool canSplit(Function &F) {
  if (F.isVarArg() || F.hasFnAttribute(Attribute::OptimizeNone) ||
      F.hasFnAttribute(Attribute::MinSize))
    return false;
  for (const Argument &argument : F.args())
    if (argument.hasInAllocaAttr() || argument.hasPreallocatedAttr())
      return false;
  return none_of(backEdges(F), [](const BackEdge &edge) { return edge.isPass; });
}

/// A function for the passes of another one for which no credit was left. It has the same body.
Function *rareFunction(Function &F, const Updates &updates, Updates &moved) {
  ValueToValueMapTy map;
  Function *rare = CloneFunction(&F, map);
  rare->setName(F.getName() + ".overhear");
  rare->setLinkage(GlobalValue::InternalLinkage);
  rare->setVisibility(GlobalValue::DefaultVisibility);
  rare->setDSOLocal(true);
  rare->setComdat(nullptr);
  rare->removeFnAttr(Attribute::AlwaysInline);
  rare->removeFnAttr(Attribute::InlineHint);
  rare->addFnAttr(Attribute::NoInline);
  rare->addFnAttr(Attribute::Cold);
  for (const Update &update : updates)
    moved.push_back({cast<Instruction>(map[update.at]), update.variable, update.shift});
  return rare;
}

/// Begins a function with its pass; without credit it ends in the call of its other part.
void enterPlain(Function &F, Function &rare, unsigned function, Table &table) {
  BasicBlock *plainEntry = &F.getEntryBlock();
  BasicBlock *entry = newBlock(F, "overhear.entry", plainEntry);
  moveFrame(*plainEntry, *entry);
  BasicBlock *other = newBlock(F, "overhear.other");
  IRBuilder<> B(entry);
  B.SetCurrentDebugLocation(locationIn(F, nullptr));
  Decisions(F, function, table).passTo(B, other, plainEntry);
  IRBuilder<> O(other);
  O.SetCurrentDebugLocation(locationIn(F, nullptr));
  SmallVector<Value *, 8> arguments;
  for (Argument &argument : F.args())
    arguments.push_back(&argument);
  CallInst *call = O.CreateCall(&rare, arguments);
  call->setCallingConv(F.getCallingConv());
  // The attributes of parameters that belong to the convention, such as `byval`.
  AttributeList own = F.getAttributes();
  SmallVector<AttributeSet, 8> parameters;
  for (unsigned index = 0; index < F.arg_size(); index++)
    parameters.push_back(own.getParamAttrs(index));
  call->setAttributes(
      AttributeList::get(F.getContext(), AttributeSet(), own.getRetAttrs(), parameters));
  // A promise that the callee uses no memory of this frame. `byval` arguments are such memory.
  bool usesFrame = any_of(F.args(), [](const Argument &it) { return it.hasByValAttr(); });
  call->setTailCallKind(usesFrame ? CallInst::TCK_None : CallInst::TCK_Tail);
  if (F.getReturnType()->isVoidTy())
    O.CreateRetVoid();
  else
    O.CreateRet(call);
}

} // namespace

void duplicate(Function &F, unsigned function, const Updates &updates,
               const std::vector<Variable> &variables, Table &table) {
  if (!canSplit(F)) {
    duplicateInside(F, function, updates, variables, table, /*isSplit=*/false);
    return;
  }
  // The plain code of a short function keeps its registers and its frame.
  Updates moved;
  Function *rare = rareFunction(F, updates, moved);
  duplicateInside(*rare, function, moved, variables, table, /*isSplit=*/true);
  enterPlain(F, *rare, function, table);
}

void guard(Function &F, unsigned function, const std::vector<Update> &updates,
           const std::vector<Variable> &variables, Table &table) {
  std::vector<BackEdge> edges = backEdges(F);
  DenseMap<Instruction *, Update> places;
  for (const Update &update : updates)
    places[update.at] = update;
  std::vector<Segment> segments = segmentsOf(F, places);
  Decisions decisions(F, function, table);
  Recorder recorder(function, variables, table);
  for (const Segment &segment : segments) {
    IRBuilder<> B(segment.end);
    B.SetCurrentDebugLocation(locationIn(F, segment.end));
    Value *isMonitored = decisions.mayRecord(B);
    Instruction *then = SplitBlockAndInsertIfThen(isMonitored, segment.end->getIterator(), false,
                                                  unlikely(F.getContext()));
    recorder.record(segment, then);
  }
  SmallPtrSet<Instruction *, 8> passes;
  for (const BackEdge &edge : edges)
    if (edge.isPass)
      passes.insert(edge.latch->getTerminator());
  // Recording has split blocks, and a terminator stays the end of its round.
  for (Instruction *end : passes)
    decisions.guardedPass(end);
  Instruction *first = &*F.getEntryBlock().getFirstNonPHIOrDbgOrAlloca();
  decisions.guardedPass(first);
}

} // namespace overhear
