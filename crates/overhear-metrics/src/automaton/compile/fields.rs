// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields and conditions whose offsets in the payload are known.
//!
//! Names are resolved once per stream. Per element, a field is a load, and a condition is a mask
//! and a comparison.

use overhear_event::{ElementView, FieldKind, TypeSchema, Value};

use crate::automaton::spec::specification::{Condition, Constant, Relation};

/// A whole number in the elements of a stream.
///
/// It is read as a part of a word of eight bytes, if the payload has eight bytes: for every kind of
/// field that is a load, a shift and a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberField {
    /// Offset of the word.
    word: usize,
    /// Bytes of the word: eight unless the whole payload has fewer.
    bytes: usize,
    shift: u32,
    mask: u64,
    /// The sign bit, 0 for an unsigned field.
    sign: u64,
}

impl NumberField {
    /// The field with this name; `None` if there is none, or if it is a text or a fraction.
    pub(crate) fn of(schema: &TypeSchema, name: &str) -> Option<Self> {
        const WORD: usize = size_of::<u64>();
        let field = schema.fields().get(schema.index_of(name)?)?;
        let is_signed = match field.kind {
            FieldKind::Text(_) | FieldKind::F32 | FieldKind::F64 => return None,
            FieldKind::U8 | FieldKind::U16 | FieldKind::U32 | FieldKind::U64 => false,
            FieldKind::I8 | FieldKind::I16 | FieldKind::I32 | FieldKind::I64 => true,
        };
        let (offset, size) = (field.offset as usize, field.kind.size() as usize);
        let bytes = WORD.min(schema.size() as usize);
        let word = offset.min(schema.size() as usize - bytes);
        let before = if cfg!(target_endian = "little") {
            offset - word
        } else {
            word + bytes - offset - size
        };
        let bits = u64::BITS - 8 * size as u32;
        Some(Self {
            word,
            bytes,
            shift: 8 * before as u32,
            mask: u64::MAX >> bits,
            sign: if is_signed { 1 << (63 - bits) } else { 0 },
        })
    }

    /// The offset of its four bytes, if it is unsigned and has four.
    fn four_bytes(self) -> Option<usize> {
        let before = self.shift as usize / 8;
        let begin = if cfg!(target_endian = "little") {
            self.word + before
        } else {
            (self.word + self.bytes).checked_sub(before + 4)?
        };
        (self.mask == u64::from(u32::MAX) && self.sign == 0).then_some(begin)
    }

    const fn is_signed(self) -> bool {
        self.sign != 0
    }

    /// The value; a negative number as its two's complement. `None` if the payload is too short.
    #[inline]
    pub(crate) fn bits(self, payload: &[u8]) -> Option<u64> {
        let rest = payload.get(self.word..)?;
        let word = match rest.first_chunk() {
            Some(word) => u64::from_ne_bytes(*word),
            None => short_word(rest.get(..self.bytes)?),
        };
        let value = word >> self.shift & self.mask;
        Some((value ^ self.sign).wrapping_sub(self.sign))
    }
}

/// A field with the id of a task: nearly always four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskField {
    /// Four bytes at this offset.
    Four(u32),
    Other(NumberField),
}

impl From<NumberField> for TaskField {
    fn from(number: NumberField) -> Self {
        let begin = number
            .four_bytes()
            .and_then(|begin| u32::try_from(begin).ok());
        begin.map_or(Self::Other(number), Self::Four)
    }
}

impl TaskField {
    /// The id; `None` if the payload is too short, or if the number is too large for an id.
    #[inline(always)]
    pub(crate) fn read(self, payload: &[u8]) -> Option<u32> {
        match self {
            Self::Four(begin) => {
                let begin = begin as usize;
                let bytes = payload.get(begin..begin + size_of::<u32>())?;
                let bytes = bytes.first_chunk()?;
                Some(u32::from_ne_bytes(*bytes))
            }
            Self::Other(number) => u32::try_from(number.bits(payload)?).ok(),
        }
    }
}

/// A word of less than eight bytes.
#[cold]
fn short_word(bytes: &[u8]) -> u64 {
    let byte = |word: u64, byte: &u8| word << 8 | u64::from(*byte);
    if cfg!(target_endian = "little") {
        bytes.iter().rev().fold(0, byte)
    } else {
        bytes.iter().fold(0, byte)
    }
}

/// A condition on the elements of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Under this mask the number is equal to the value, or is not.
    Number {
        number: NumberField,
        mask: u64,
        value: u64,
        equal: bool,
    },
    /// The text is equal to the constant, or is not.
    Text {
        field: usize,
        constant: String,
        equal: bool,
    },
    /// No element meets the condition: the compared values can never be equal.
    Never,
}

impl Test {
    /// `None` if the elements have no such field.
    pub(crate) fn of(schema: &TypeSchema, condition: &Condition) -> Option<Self> {
        let (name, relation) = (&condition.field.text, condition.relation);
        let equal = relation != Relation::Unequal;
        let constant = match &condition.constant {
            Constant::Text(constant) => {
                return Some(Self::Text {
                    field: schema.index_of(name)?,
                    constant: constant.clone(),
                    equal,
                })
            }
            Constant::Number(constant) => *constant,
        };
        let Some(number) = NumberField::of(schema, name) else {
            return schema.index_of(name).map(|_| Self::Never);
        };
        // A negative number has the bits of its two's complement, but is equal to no constant.
        let beyond = number.is_signed() && i64::try_from(constant).is_err();
        let (mask, value) = match relation {
            Relation::Equal if beyond => return Some(Self::Never),
            // Always true: under an empty mask the number is not 1.
            Relation::Unequal if beyond => (0, 1),
            Relation::Equal | Relation::Unequal => (u64::MAX, constant),
            Relation::Has => (constant, constant),
            Relation::Lacks => (constant, 0),
        };
        Some(Self::Number {
            number,
            mask,
            value,
            equal,
        })
    }

    #[inline]
    pub(crate) fn holds(&self, element: &ElementView<'_>) -> bool {
        match self {
            Self::Number {
                number,
                mask,
                value,
                equal,
            } => number
                .bits(element.payload)
                .is_some_and(|bits| (bits & mask == *value) == *equal),
            Self::Text {
                field,
                constant,
                equal,
            } => {
                let value = element.stream.schema.read(*field, element.payload);
                matches!(value, Some(Value::Text(text)) if (text == constant) == *equal)
            }
            Self::Never => false,
        }
    }
}

/// A condition on a number as a mask and a comparison of a word in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaskTest {
    /// Offset of the word.
    word: u32,
    mask: u64,
    value: u64,
}

impl MaskTest {
    /// The mask test of a test, and whether the test holds where the mask test holds (true), or
    /// where it does not (false). `None` if a mask and a comparison do not suffice.
    pub(crate) fn of(test: &Test) -> Option<(Self, bool)> {
        let Test::Number {
            number,
            mask,
            value,
            equal,
        } = test
        else {
            return None;
        };
        if number.bytes != size_of::<u64>() {
            return None;
        }
        // Bits above the field are copies of the sign bit: the sign bit is tested in their place.
        let above = mask & !number.mask;
        let wanted = value & !number.mask;
        let (mask, value) = if above == 0 || number.sign == 0 {
            if wanted != 0 {
                return None;
            }
            (mask & number.mask, *value)
        } else {
            let is_negative = match wanted {
                0 => 0,
                all if all == above => number.sign,
                _ => return None,
            };
            let low = mask & number.mask;
            let value = value & low;
            if low & number.sign != 0 && value & number.sign != is_negative {
                return None;
            }
            (low | number.sign, value | is_negative)
        };
        let mask_test = Self {
            word: u32::try_from(number.word).ok()?,
            mask: mask << number.shift,
            value: value << number.shift,
        };
        Some((mask_test, *equal))
    }

    /// Tests for zeros under a mask in the word at this offset.
    #[cfg(test)]
    pub(crate) const fn at(word: u32, mask: u64) -> Self {
        Self::with(word, mask, 0)
    }

    /// Tests for a value.
    #[cfg(test)]
    pub(crate) const fn with(word: u32, mask: u64, value: u64) -> Self {
        Self { word, mask, value }
    }

    /// The bytes that it tests: offset, mask and required value of each.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = (usize, u8, u8)> {
        let bits = self.mask.to_ne_bytes().into_iter();
        let bytes = (self.word as usize..).zip(bits.zip(self.value.to_ne_bytes()));
        let bytes = bytes.filter(|(_, (bits, _))| *bits != 0);
        bytes.map(|(offset, (bits, wanted))| (offset, bits, wanted))
    }

    /// Whether the test holds; false if the payload is too short.
    #[inline(always)]
    pub(crate) fn holds(&self, payload: &[u8]) -> bool {
        let begin = self.word as usize;
        let word = payload.get(begin..begin + size_of::<u64>());
        let word = word.and_then(<[u8]>::first_chunk);
        word.is_some_and(|word| u64::from_ne_bytes(*word) & self.mask == self.value)
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{
        ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::{MaskTest, NumberField, Test};
    use crate::automaton::{Condition, Constant, Relation, TextPosition, Word};

    fn stream() -> StreamDescriptor {
        let schema = TypeSchema::builder("t")
            .field("word", FieldKind::U64, "")
            .field("signed", FieldKind::I64, "")
            .field("short", FieldKind::I16, "")
            .field("byte", FieldKind::U8, "")
            .field("name", FieldKind::Text(5), "")
            .field("part", FieldKind::F64, "");
        StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::Kernel { cpu: 0 },
            "t",
            schema.build().unwrap(),
        )
    }

    fn payload(word: u64, signed: i64, short: i16, byte: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(word.to_ne_bytes());
        bytes.extend(signed.to_ne_bytes());
        bytes.extend(short.to_ne_bytes());
        bytes.push(byte);
        bytes.extend(b"ab\0\0\0");
        bytes.extend(1.0_f64.to_ne_bytes());
        bytes
    }

    fn holds(field: &str, relation: Relation, constant: Constant, payload: &[u8]) -> bool {
        let stream = stream();
        let condition = Condition {
            field: Word::new(field),
            relation,
            constant,
            constant_at: TextPosition::default(),
        };
        let test = Test::of(&stream.schema, &condition).unwrap();
        test.holds(&ElementView {
            stream: &stream,
            sequence: 0,
            time: Timestamp::ZERO,
            payload,
        })
    }

    #[test]
    fn numbers_are_compared_by_value_and_masked_by_bits() {
        use Relation::{Equal, Has, Lacks, Unequal};
        let number = Constant::Number;
        let all = payload(u64::MAX, -1, -2, 0x85);
        for (field, relation, constant, expected) in [
            ("word", Equal, u64::MAX, true),
            ("word", Unequal, u64::MAX, false),
            ("word", Has, 1 << 63, true),
            // A negative number is equal to no constant, not even to that with its bits.
            ("signed", Equal, u64::MAX, false),
            ("signed", Unequal, u64::MAX, true),
            ("signed", Has, u64::MAX, true),
            ("signed", Lacks, 1, false),
            ("short", Equal, 0xfffe, false),
            ("short", Has, 0xfffe, true),
            ("short", Lacks, 1, true),
            ("byte", Equal, 0x85, true),
            ("byte", Has, 0x81, true),
            ("byte", Has, 0x82, false),
            ("byte", Lacks, 0x0a, true),
            ("part", Equal, 1, false),
        ] {
            let found = holds(field, relation, number(constant), &all);
            assert_eq!(found, expected, "{field} {relation:?} {constant:#x}");
        }
        assert!(!holds("byte", Unequal, number(1), &all[..10]));
    }

    #[test]
    fn mask_tests_agree_with_their_tests() {
        let constants = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xfffe, 1 << 40]
            .into_iter()
            .flat_map(|low| [low, low | 0xffff << 48, !low, u64::MAX >> 1, u64::MAX]);
        let relations = [
            Relation::Equal,
            Relation::Unequal,
            Relation::Has,
            Relation::Lacks,
        ];
        let stream = stream();
        let mut mask_tests = 0;
        for constant in constants {
            let payloads = [
                payload(
                    constant,
                    constant.cast_signed(),
                    constant as i16,
                    constant as u8,
                ),
                payload(0, -1, -2, 0x85),
                payload(u64::MAX, i64::MIN, i16::MIN, 0),
            ];
            for (field, relation) in ["word", "signed", "short", "byte"]
                .into_iter()
                .flat_map(|field| relations.map(|relation| (field, relation)))
            {
                let condition = Condition {
                    field: Word::new(field),
                    relation,
                    constant: Constant::Number(constant),
                    constant_at: TextPosition::default(),
                };
                let test = Test::of(&stream.schema, &condition).unwrap();
                let Some((mask_test, where_it_holds)) = MaskTest::of(&test) else {
                    continue;
                };
                mask_tests += 1;
                for payload in &payloads {
                    let expected = holds(field, relation, Constant::Number(constant), payload);
                    assert_eq!(
                        mask_test.holds(payload) == where_it_holds,
                        expected,
                        "{field} {relation:?} {constant:#x}"
                    );
                }
            }
        }
        assert!(mask_tests > 400, "{mask_tests}");
    }

    #[test]
    fn text_ends_at_its_zero() {
        let all = payload(0, 0, 0, 0);
        let text = |text: &str| Constant::Text(text.to_owned());
        assert!(holds("name", Relation::Equal, text("ab"), &all));
        assert!(!holds("name", Relation::Unequal, text("ab"), &all));
        assert!(holds("name", Relation::Unequal, text("a"), &all));
    }

    #[test]
    fn only_whole_numbers_are_number_fields() {
        let schema = stream().schema;
        assert_eq!(NumberField::of(&schema, "name"), None);
        assert_eq!(NumberField::of(&schema, "part"), None);
        assert_eq!(NumberField::of(&schema, "absent"), None);
        let byte = NumberField::of(&schema, "byte").unwrap();
        assert_eq!(byte.bits(&payload(0, 0, 0, 9)), Some(9));
    }

    #[test]
    fn payload_shorter_than_a_word_is_read() {
        let schema = TypeSchema::builder("t")
            .field("a", FieldKind::U16, "")
            .field("b", FieldKind::I16, "");
        let schema = schema.build().unwrap();
        let payload = [5_i16.to_ne_bytes(), (-3_i16).to_ne_bytes()].concat();
        let bits = |name| NumberField::of(&schema, name).unwrap().bits(&payload);
        assert_eq!(bits("a"), Some(5));
        assert_eq!(bits("b"), Some((-3_i64).cast_unsigned()));
        let short = NumberField::of(&schema, "b").unwrap().bits(&payload[..3]);
        assert_eq!(short, None);
    }
}
