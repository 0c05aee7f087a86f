// SPDX-License-Identifier: MIT OR Apache-2.0
#include "Variables.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/BinaryFormat/Dwarf.h"
#include "llvm/IR/DebugProgramInstruction.h"
#include "llvm/IR/GetElementPtrTypeIterator.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Operator.h"
#include "llvm/IR/PatternMatch.h"
#include "llvm/Support/Path.h"

using namespace llvm;

namespace overhear {
namespace {

/// Metadata of marked updates: variable and shift.
constexpr const char *UPDATE_MARK = "overhear.update";

/// The type under typedefs and qualifiers. The first name on the way is the one that the source
/// uses; it is stored in `name`.
const DIType *underlying(const DIType *type, std::string &name) {
  while (auto *derived = dyn_cast_or_null<DIDerivedType>(type)) {
    switch (derived->getTag()) {
    case dwarf::DW_TAG_typedef:
      if (name.empty())
        name = derived->getName().str();
      break;
    case dwarf::DW_TAG_const_type:
    case dwarf::DW_TAG_volatile_type:
    case dwarf::DW_TAG_atomic_type:
      break;
    default:
      return type;
    }
    type = derived->getBaseType();
  }
  if (type && name.empty())
    name = type->getName().str();
  return type;
}

std::optional<IntegerType> integerType(const DIType *declared) {
  IntegerType result;
  const DIType *type = underlying(declared, result.name);
  if (auto *composite = dyn_cast_or_null<DICompositeType>(type)) {
    if (composite->getTag() != dwarf::DW_TAG_enumeration_type)
      return std::nullopt;
    result.bits = composite->getSizeInBits();
    if (result.name.empty())
      result.name = "enum";
    std::string ignored;
    if (auto *base = dyn_cast_or_null<DIBasicType>(underlying(composite->getBaseType(), ignored)))
      result.isUnsigned = base->getSignedness() == DIBasicType::Signedness::Unsigned;
    return result.bits && result.bits <= 64 ? std::optional(result) : std::nullopt;
  }
  auto *basic = dyn_cast_or_null<DIBasicType>(type);
  if (!basic)
    return std::nullopt;
  switch (basic->getEncoding()) {
  case dwarf::DW_ATE_signed:
  case dwarf::DW_ATE_signed_char:
    break;
  case dwarf::DW_ATE_unsigned:
  case dwarf::DW_ATE_unsigned_char:
  case dwarf::DW_ATE_UTF:
    result.isUnsigned = true;
    break;
  default:
    return std::nullopt;
  }
  result.bits = basic->getSizeInBits();
  return result.bits && result.bits <= 64 ? std::optional(result) : std::nullopt;
}

std::string pathOf(const DIFile *file) {
  if (!file)
    return "";
  if (sys::path::is_absolute(file->getFilename()) || file->getDirectory().empty())
    return file->getFilename().str();
  SmallString<128> path(file->getDirectory());
  sys::path::append(path, file->getFilename());
  sys::path::remove_dots(path, /*remove_dot_dot=*/true);
  return path.str().str();
}

std::string functionOf(const DIScope *scope) {
  auto *local = dyn_cast_or_null<DILocalScope>(scope);
  const DISubprogram *subprogram = local ? local->getSubprogram() : nullptr;
  if (!subprogram)
    return "";
  StringRef linkage = subprogram->getLinkageName();
  return (linkage.empty() ? subprogram->getName() : linkage).str();
}

/// The name with its namespaces and classes, as clang writes it for an LLVM type: without
/// arguments of templates.
std::string qualified(const DIType *type, StringRef name) {
  std::string result = name.split('<').first.str();
  for (const DIScope *scope = type->getScope(); scope; scope = scope->getScope()) {
    if (isa<DISubprogram>(scope))
      break;
    if (isa<DINamespace>(scope) || isa<DICompositeType>(scope)) {
      StringRef outer = scope->getName();
      result = (outer.empty() ? "(anonymous namespace)" : outer.split('<').first.str()) +
               "::" + result;
    }
  }
  return result;
}

bool hasFields(const DIType *type) {
  auto *composite = dyn_cast_or_null<DICompositeType>(type);
  if (!composite)
    return false;
  switch (composite->getTag()) {
  case dwarf::DW_TAG_structure_type:
  case dwarf::DW_TAG_class_type:
  case dwarf::DW_TAG_union_type:
    return true;
  default:
    return false;
  }
}

/// An integer field that was found.
struct Field {
  const DIDerivedType *member;
  /// `owner.member`, where members of anonymous types carry the name of the type around them.
  std::string name;
};

/// Collects the integer fields of exactly this position and width. A bit-field matches by its own
/// position and width. A union contributes every member that matches.
void fieldsAt(const DICompositeType *type, const std::string &owner, uint64_t offset,
              uint64_t bits, bool bitField, unsigned depth, std::vector<Field> &found) {
  if (depth > 16)
    return;
  for (const DINode *node : type->getElements()) {
    auto *member = dyn_cast_or_null<DIDerivedType>(node);
    if (!member || member->isStaticMember())
      continue;
    if (member->getTag() != dwarf::DW_TAG_member && member->getTag() != dwarf::DW_TAG_inheritance)
      continue;
    uint64_t start = member->getOffsetInBits();
    std::string name;
    const DIType *base = underlying(member->getBaseType(), name);
    if (hasFields(base) && !member->isBitField()) {
      uint64_t size = base->getSizeInBits();
      if (offset < start || offset >= start + size)
        continue;
      std::string inner = name;
      if (inner.empty())
        inner = member->getName().empty() ? owner : owner + "." + member->getName().str();
      fieldsAt(cast<DICompositeType>(base), inner, offset - start, bits, bitField, depth + 1,
               found);
      continue;
    }
    if (member->isBitField() != bitField || start != offset || member->getName().empty())
      continue;
    if (!integerType(member->getBaseType()))
      continue;
    uint64_t size = bitField ? member->getSizeInBits() : base->getSizeInBits();
    if (size == bits)
      found.push_back({member, owner + "." + member->getName().str()});
  }
}

/// The bits that a store replaces in a unit of bit-fields: clang stores
/// `(old & ~mask) | (value << shift)`.
std::optional<std::pair<unsigned, unsigned>> replacedBits(Value *stored) {
  using namespace PatternMatch;
  Value *cleared = stored, *left, *right;
  if (match(stored, m_Or(m_Value(left), m_Value(right))))
    cleared = match(left, m_And(m_Load(m_Value()), m_ConstantInt())) ? left : right;
  ConstantInt *kept;
  if (!match(cleared, m_And(m_Load(m_Value()), m_ConstantInt(kept))))
    return std::nullopt;
  APInt mask = ~kept->getValue();
  unsigned shift, length;
  if (!mask.isShiftedMask(shift, length))
    return std::nullopt;
  return std::pair(shift, length);
}

/// The name of a struct: its tag with its arguments of templates, or else its typedef.
std::string nameOf(const StructType *type, const DICompositeType *composite) {
  if (!composite->getName().empty())
    return composite->getName().str();
  StringRef name = type->getName().split('.').second;
  return name.split('.').first.str();
}

} // namespace

Variables::Variables(Module &M) : M(M) {
  DebugInfoFinder finder;
  finder.processModule(M);
  for (const DIType *type : finder.types()) {
    std::string name;
    const DIType *base = type;
    if (auto *derived = dyn_cast<DIDerivedType>(type)) {
      // A struct without a tag is known by its typedef.
      if (derived->getTag() != dwarf::DW_TAG_typedef)
        continue;
      base = underlying(type, name);
      if (!base || !base->getName().empty())
        continue;
    }
    if (!hasFields(base))
      continue;
    StringRef own = base->getName().empty() ? type->getName() : base->getName();
    composites[qualified(type, own)].push_back(cast<DICompositeType>(base));
  }
}

unsigned Variables::numberOf(const Metadata *key, Variable variable) {
  auto [place, isNew] = numbers.try_emplace(key, all.size());
  if (isNew)
    all.push_back(std::move(variable));
  return place->second;
}

void Variables::forgetFrom(size_t first) {
  if (all.size() == first)
    return;
  SmallVector<const Metadata *, 8> forgotten;
  for (auto [key, number] : numbers)
    if (number >= first)
      forgotten.push_back(key);
  for (const Metadata *key : forgotten)
    numbers.erase(key);
  all.resize(first);
}

void Variables::readLocals(Function &F) {
  locals.clear();
  auto declare = [&](Value *address, DILocalVariable *variable, DIExpression *expression) {
    if (address && expression && expression->getNumElements() == 0)
      locals[address] = variable;
  };
  for (Instruction &I : instructions(F)) {
    for (DbgVariableRecord &record : filterDbgVars(I.getDbgRecordRange())) {
      if (record.isDbgDeclare())
        declare(record.getAddress(), record.getVariable(), record.getExpression());
      else if (record.isDbgAssign() && !record.isKillAddress() &&
               !record.getExpression()->getFragmentInfo())
        declare(record.getAddress(), record.getVariable(), record.getAddressExpression());
    }
    if (auto *assign = dyn_cast<DbgAssignIntrinsic>(&I)) {
      if (!assign->isKillAddress())
        declare(assign->getAddress(), assign->getVariable(), assign->getAddressExpression());
    } else if (auto *intrinsic = dyn_cast<DbgDeclareInst>(&I)) {
      declare(intrinsic->getAddress(), intrinsic->getVariable(), intrinsic->getExpression());
    }
  }
}

std::vector<Update> Variables::updatesOf(Function &F) {
  readLocals(F);
  std::vector<Update> updates;
  for (Instruction &I : instructions(F))
    if (auto update = updateOf(I))
      updates.push_back(*update);
  return updates;
}

bool isPassedValue(const Update &update) {
  auto *store = dyn_cast<StoreInst>(update.at);
  return store && isa<Argument>(store->getValueOperand());
}

void Variables::mark(const Update &update) {
  LLVMContext &X = update.at->getContext();
  auto number = [&](unsigned value) {
    return ConstantAsMetadata::get(ConstantInt::get(Type::getInt32Ty(X), value));
  };
  update.at->setMetadata(UPDATE_MARK,
                         MDNode::get(X, {number(update.variable), number(update.shift)}));
}

std::vector<Update> Variables::markedIn(Function &F) {
  std::vector<Update> updates;
  for (Instruction &I : instructions(F)) {
    MDNode *mark = I.getMetadata(UPDATE_MARK);
    if (!mark)
      continue;
    auto number = [&](unsigned operand) {
      auto *value = mdconst::extract<ConstantInt>(mark->getOperand(operand));
      return unsigned(value->getZExtValue());
    };
    updates.push_back({&I, number(0), number(1)});
    I.setMetadata(UPDATE_MARK, nullptr);
  }
  return updates;
}

std::optional<unsigned> Variables::wholeVariable(Value *pointer, unsigned bits) {
  if (auto *global = dyn_cast<GlobalVariable>(pointer)) {
    SmallVector<DIGlobalVariableExpression *, 1> expressions;
    global->getDebugInfo(expressions);
    for (auto *expression : expressions) {
      const DIGlobalVariable *variable = expression->getVariable();
      auto type = integerType(variable->getType());
      if (!type || type->bits != bits || expression->getExpression()->getNumElements() != 0)
        continue;
      std::string function = functionOf(variable->getScope());
      std::string name = variable->getName().str();
      return numberOf(variable, {function.empty() ? 'g' : 's', name, function,
                                 pathOf(variable->getFile()), variable->getLine(), *type});
    }
    return std::nullopt;
  }
  const DILocalVariable *variable = locals.lookup(pointer);
  if (!variable || !isa<AllocaInst>(pointer))
    return std::nullopt;
  auto type = integerType(variable->getType());
  if (!type || type->bits != bits)
    return std::nullopt;
  return numberOf(variable, {variable->isParameter() ? 'p' : 'l', variable->getName().str(),
                             functionOf(variable->getScope()), pathOf(variable->getFile()),
                             variable->getLine(), *type});
}

const DICompositeType *Variables::compositeOf(StructType *type) const {
  if (type->isLiteral() || !type->hasName() || !type->isSized())
    return nullptr;
  StringRef name = type->getName();
  for (StringRef prefix : {"struct.", "class.", "union."})
    if (name.consume_front(prefix))
      break;
  // `.base` marks a class without the padding of its end; digits tell types of one name apart.
  name.consume_back(".base");
  auto find = [&](StringRef key) -> const DICompositeType * {
    auto place = composites.find(key);
    if (place == composites.end())
      return nullptr;
    const DICompositeType *match = nullptr;
    uint64_t size = M.getDataLayout().getTypeAllocSizeInBits(type);
    for (const DICompositeType *candidate : place->second) {
      if (candidate->isForwardDecl() || candidate->getSizeInBits() != size || candidate == match)
        continue;
      if (match)
        return nullptr;
      match = candidate;
    }
    return match;
  };
  if (auto *exact = find(name))
    return exact;
  auto [stem, digits] = name.rsplit('.');
  if (!digits.empty() && digits.find_first_not_of("0123456789") == StringRef::npos)
    return find(stem);
  return nullptr;
}

std::optional<Variables::Place> Variables::placeOf(Value *pointer) const {
  const DataLayout &layout = M.getDataLayout();
  if (auto *gep = dyn_cast<GEPOperator>(pointer)) {
    StructType *last = nullptr;
    unsigned field = 0;
    for (auto step = gep_type_begin(gep), end = gep_type_end(gep); step != end; ++step) {
      last = step.getStructTypeOrNull();
      if (last)
        field = cast<ConstantInt>(step.getOperand())->getZExtValue();
    }
    // An index after the last field designates an element of an array.
    if (!last)
      return std::nullopt;
    if (auto *composite = compositeOf(last)) {
      uint64_t offset = layout.getStructLayout(last)->getElementOffsetInBits(field);
      return Place{composite, nameOf(last, composite), offset};
    }
    // A struct without a name is a field itself: the type around it is known.
    auto outer = placeOf(gep->getPointerOperand());
    APInt inner(layout.getIndexTypeSizeInBits(gep->getType()), 0);
    if (!outer || !gep->accumulateConstantOffset(layout, inner))
      return std::nullopt;
    outer->bits += inner.getZExtValue() * 8;
    return outer;
  }
  // The first field of a global is the global itself.
  if (auto *global = dyn_cast<GlobalVariable>(pointer))
    if (auto *type = dyn_cast<StructType>(global->getValueType()))
      if (auto *composite = compositeOf(type))
        return Place{composite, nameOf(type, composite), 0};
  return std::nullopt;
}

std::optional<Update> Variables::updateOf(Instruction &I) {
  Value *pointer, *stored;
  if (auto *store = dyn_cast<StoreInst>(&I)) {
    pointer = store->getPointerOperand();
    stored = store->getValueOperand();
  } else if (auto *rmw = dyn_cast<AtomicRMWInst>(&I)) {
    pointer = rmw->getPointerOperand();
    stored = rmw->getValOperand();
    switch (rmw->getOperation()) {
    case AtomicRMWInst::Xchg:
    case AtomicRMWInst::Add:
    case AtomicRMWInst::Sub:
    case AtomicRMWInst::And:
    case AtomicRMWInst::Or:
    case AtomicRMWInst::Xor:
      break;
    default:
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  auto *type = dyn_cast<llvm::IntegerType>(stored->getType());
  if (!type || type->getBitWidth() > 64)
    return std::nullopt;
  unsigned bits = type->getBitWidth();
  if (auto *intrinsic = dyn_cast<IntrinsicInst>(pointer))
    if (intrinsic->getIntrinsicID() == Intrinsic::threadlocal_address)
      pointer = intrinsic->getArgOperand(0);
  if (auto number = wholeVariable(pointer, bits))
    return Update{&I, *number};
  auto place = placeOf(pointer);
  if (!place)
    return std::nullopt;
  std::vector<Field> found;
  unsigned shift = 0;
  const std::string &owner = place->name;
  fieldsAt(place->type, owner, place->bits, bits, false, 0, found);
  if (found.empty() && isa<StoreInst>(I)) {
    if (auto replaced = replacedBits(stored)) {
      shift = replaced->first;
      bits = replaced->second;
    }
    fieldsAt(place->type, owner, place->bits + shift, bits, true, 0, found);
  }
  // Members of a union that share place and width cannot be told apart.
  if (found.size() != 1)
    return std::nullopt;
  const DIDerivedType *member = found.front().member;
  auto integer = integerType(member->getBaseType());
  integer->bits = bits;
  unsigned number = numberOf(member, {'m', found.front().name, "", pathOf(member->getFile()),
                                      member->getLine(), *integer});
  return Update{&I, number, shift};
}

} // namespace overhear
