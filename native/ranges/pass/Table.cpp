// SPDX-License-Identifier: MIT OR Apache-2.0
#include "Table.h"

#include "llvm/IR/InstIterator.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"

using namespace llvm;

namespace overhear {
namespace {

/// Version of block, descriptor and text; `layout.rs` has the same number.
constexpr uint64_t LAYOUT_VERSION = 1;
constexpr const char *BLOCK_SECTION = "overhear_ranges_block";
constexpr const char *DESCRIPTOR_SECTION = "overhear_ranges_object";

std::string clean(StringRef text) {
  std::string result = text.str();
  for (char &c : result)
    if (c == '\t' || c == '\n')
      c = ' ';
  return result;
}

} // namespace

Table::Table(Module &M, unsigned functions, const std::vector<Variable> &variables)
    : M(M), X(M.getContext()), variables(variables), functions(functions) {
  auto *bytes = ArrayType::get(Type::getInt8Ty(X), 1);
  block = new GlobalVariable(M, bytes, false, GlobalValue::InternalLinkage,
                             Constant::getNullValue(bytes), "overhear.ranges.placeholder");
  auto *pointer = PointerType::getUnqual(X);
  auto *word = Type::getInt64Ty(X);
  delta = new GlobalVariable(M, word, false, GlobalValue::ExternalLinkage, nullptr,
                             "__overhear_ranges_delta", nullptr,
                             GlobalValue::InitialExecTLSModel);
  delta->setVisibility(GlobalValue::HiddenVisibility);
  delta->setDSOLocal(true);
  auto *type = StructType::get(X, {word, pointer, word, word, word, word, pointer, word});
  descriptor = new GlobalVariable(M, type, false, GlobalValue::InternalLinkage,
                                  Constant::getNullValue(type), "overhear.ranges.object");
  runtime = M.getOrInsertFunction("__overhear_ranges_pass", Type::getInt32Ty(X), pointer,
                                  Type::getInt32Ty(X));
  auto *function = cast<Function>(runtime.getCallee());
  function->setVisibility(GlobalValue::HiddenVisibility);
  function->setDSOLocal(true);
  function->setDoesNotThrow();
  function->addFnAttr(Attribute::Cold);
  function->setCallingConv(CallingConv::PreserveMost);
  makeTags();
}

void Table::makeTags() {
  MDNode *root = nullptr;
  for (Function &F : M)
    for (Instruction &I : instructions(F))
      if (MDNode *tag = I.getMetadata(LLVMContext::MD_tbaa); tag && !root) {
        root = dyn_cast<MDNode>(tag->getOperand(0));
        // A type node names its parent in its second operand; the root has none.
        while (root && root->getNumOperands() > 1) {
          auto *parent = dyn_cast<MDNode>(root->getOperand(1));
          if (!parent)
            break;
          root = parent;
        }
      }
  if (!root)
    return;
  MDBuilder builder(X);
  auto make = [&](const char *name) {
    MDNode *type = builder.createTBAAScalarTypeNode(name, root);
    return builder.createTBAAStructTagNode(type, type, 0);
  };
  wordTag = make("overhear word");
  rangeTag = make("overhear range");
  counterTag = make("overhear counter");
  deltaTag = make("overhear delta");
}

unsigned Table::addFunction(const Function &F, bool duplicated) {
  const DISubprogram *subprogram = F.getSubprogram();
  StringRef name = subprogram ? subprogram->getName() : F.getName();
  functionLines += "F\t" + clean(name) + "\t" + clean(F.getName()) + "\t" +
                   (subprogram ? std::to_string(subprogram->getLine()) : "0") + "\t" +
                   (duplicated ? "d" : "g") + "\n";
  return added++;
}

unsigned Table::addSegment(unsigned function, std::vector<Count> counts) {
  segmentLines += "C\t" + std::to_string(function);
  for (const Count &count : counts)
    segmentLines += "\t" + std::to_string(count.variable) + "*" + std::to_string(count.updates);
  segmentLines += "\n";
  return segments++;
}

uint64_t Table::rangeOffset(unsigned variable) const {
  return uint64_t(functions) * WordsPerFunction * 8 + uint64_t(variable) * 16;
}

uint64_t Table::segmentOffset(unsigned segment) const {
  return rangeOffset(variables.size()) + uint64_t(segment) * 8;
}

Value *Table::addressOf(IRBuilder<> &B, uint64_t offset) {
  auto *word = B.getInt64Ty();
  Value *distance = tag(B.CreateLoad(word, B.CreateThreadLocalAddress(delta)), deltaTag);
  Value *image = ConstantExpr::getPtrToInt(block, word);
  Value *address = B.CreateAdd(B.CreateAdd(image, distance), B.getInt64(offset));
  return B.CreateIntToPtr(address, B.getPtrTy());
}

LoadInst *Table::load(IRBuilder<> &B, unsigned function, Word word) {
  Value *address = addressOf(B, (uint64_t(function) * WordsPerFunction + word) * 8);
  return tagWord(B.CreateLoad(B.getInt64Ty(), address));
}

void Table::store(IRBuilder<> &B, unsigned function, Word word, Value *value) {
  Value *address = addressOf(B, (uint64_t(function) * WordsPerFunction + word) * 8);
  tagWord(B.CreateStore(value, address));
}

CallInst *Table::callRuntime(IRBuilder<> &B, unsigned function) {
  auto *call = B.CreateCall(runtime, {descriptor, B.getInt32(function)});
  call->setCallingConv(CallingConv::PreserveMost);
  return call;
}

void Table::finish() {
  auto *word = Type::getInt64Ty(X);
  auto constant = [&](uint64_t value) { return ConstantInt::get(word, value); };
  SmallVector<Constant *, 0> words(functions * WordsPerFunction, constant(0));
  for (const Variable &variable : variables) {
    bool fullUnsigned = !storedAsWidth(variable) && variable.type.isUnsigned;
    words.push_back(constant(fullUnsigned ? UINT64_MAX : uint64_t(INT64_MAX)));
    words.push_back(constant(storedAsWidth(variable) || fullUnsigned ? 0 : uint64_t(INT64_MIN)));
  }
  words.resize(words.size() + segments, constant(0));
  // The block of the next object file starts at a cache line of its own.
  while (words.size() % 8)
    words.push_back(constant(0));
  auto *type = ArrayType::get(word, words.size());
  auto *final = new GlobalVariable(M, type, false, GlobalValue::InternalLinkage,
                                   ConstantArray::get(type, words), "overhear.ranges.block");
  final->setAlignment(Align(64));
  final->setSection(BLOCK_SECTION);
  block->replaceAllUsesWith(final);
  block->eraseFromParent();

  std::string lines = "M\t" + clean(M.getSourceFileName()) + "\n" + functionLines;
  for (const Variable &variable : variables)
    lines += std::string("V\t") + variable.kind + "\t" + clean(variable.name) + "\t" +
             clean(variable.function) + "\t" + clean(variable.file) + "\t" +
             std::to_string(variable.line) + "\t" + clean(variable.type.name) + "\t" +
             std::to_string(variable.type.bits) + "\t" +
             (variable.type.isUnsigned ? "u" : "s") + "\n";
  lines += segmentLines;
  auto *text = ConstantDataArray::getString(X, lines, /*AddNull=*/false);
  auto *names = new GlobalVariable(M, text->getType(), true, GlobalValue::PrivateLinkage, text,
                                   "overhear.ranges.text");
  descriptor->setInitializer(ConstantStruct::get(
      cast<StructType>(descriptor->getValueType()),
      {constant(LAYOUT_VERSION), final, constant(words.size() * 8), constant(functions),
       constant(variables.size()), constant(segments), names, constant(lines.size())}));
  descriptor->setSection(DESCRIPTOR_SECTION);
  descriptor->setAlignment(Align(64));
  appendToUsed(M, {descriptor});
}

} // namespace overhear
