// SPDX-License-Identifier: MIT OR Apache-2.0
//! Schemas of payloads. Their forms in TSDL, JSON and C are in the modules of these formats.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

/// The largest payload of an element, in bytes: an element must fit into one page with its stamp.
pub const MAX_PAYLOAD_BYTES: u32 = 4088;

/// The field with the writing thread, of sensors with several writers; see
/// [`TypeSchema::with_writer`].
pub const WRITER_TID: &str = "writer_tid";
/// The field after [`WRITER_TID`]: flags of the element.
pub const WRITER_FLAGS: &str = "writer_flags";

/// The unit of a number that is an address, or bits without a value: it is shown in hexadecimal.
pub const HEXADECIMAL: &str = "hex";

/// The kind of a field. Numbers are in the byte order of the machine that wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// IEEE 754, 32 bits.
    F32,
    /// IEEE 754, 64 bits.
    F64,
    /// UTF-8 text in this many bytes, ended by a zero byte where it is shorter.
    Text(u16),
}

impl FieldKind {
    /// Bytes that a field of this kind takes.
    #[must_use]
    pub const fn size(self) -> u32 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text(bytes) => bytes as u32,
        }
    }

    /// The alignment C gives to a field of this kind.
    #[must_use]
    pub const fn align(self) -> u32 {
        match self {
            Self::Text(_) => 1,
            number => number.size(),
        }
    }

    /// The number of this kind in the C headers (`OH_U8` to `OH_TEXT`).
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 3,
            Self::U64 => 4,
            Self::I8 => 5,
            Self::I16 => 6,
            Self::I32 => 7,
            Self::I64 => 8,
            Self::F32 => 9,
            Self::F64 => 10,
            Self::Text(_) => 11,
        }
    }

    /// The kind with this number in the C headers, if its size fits.
    #[must_use]
    pub fn from_raw(raw: u32, size: u32) -> Option<Self> {
        let kind = match raw {
            1 => Self::U8,
            2 => Self::U16,
            3 => Self::U32,
            4 => Self::U64,
            5 => Self::I8,
            6 => Self::I16,
            7 => Self::I32,
            8 => Self::I64,
            9 => Self::F32,
            10 => Self::F64,
            11 => Self::Text(u16::try_from(size).ok()?),
            _ => return None,
        };
        (kind.size() == size).then_some(kind)
    }

    /// The number in these bytes; `None` for text, and if the length does not match.
    pub(crate) fn number(self, bytes: &[u8]) -> Option<Value<'static>> {
        Some(match self {
            Self::U8 => Value::Unsigned(u64::from(u8::from_ne_bytes(array(bytes)?))),
            Self::U16 => Value::Unsigned(u64::from(u16::from_ne_bytes(array(bytes)?))),
            Self::U32 => Value::Unsigned(u64::from(u32::from_ne_bytes(array(bytes)?))),
            Self::U64 => Value::Unsigned(u64::from_ne_bytes(array(bytes)?)),
            Self::I8 => Value::Signed(i64::from(i8::from_ne_bytes(array(bytes)?))),
            Self::I16 => Value::Signed(i64::from(i16::from_ne_bytes(array(bytes)?))),
            Self::I32 => Value::Signed(i64::from(i32::from_ne_bytes(array(bytes)?))),
            Self::I64 => Value::Signed(i64::from_ne_bytes(array(bytes)?)),
            Self::F32 => Value::Float(f64::from(f32::from_ne_bytes(array(bytes)?))),
            Self::F64 => Value::Float(f64::from_ne_bytes(array(bytes)?)),
            Self::Text(_) => return None,
        })
    }

    /// Whether values of this kind can be averaged and plotted.
    #[must_use]
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Text(_))
    }
}

/// The value of a field, for generic tools.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value<'a> {
    /// From an unsigned field.
    Unsigned(u64),
    /// From a signed field.
    Signed(i64),
    /// From a floating-point field.
    Float(f64),
    /// From a text field, up to the first zero byte or the first byte that is not UTF-8.
    Text(&'a str),
}

impl Value<'_> {
    /// The value as a floating-point number, `None` for text.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Unsigned(value) => Some(value as f64),
            Self::Signed(value) => Some(value as f64),
            Self::Float(value) => Some(value),
            Self::Text(_) => None,
        }
    }

    /// The value of an unsigned field.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(value) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// A value as its field shows it; see [`Field::shown`].
#[derive(Clone, Copy, Debug)]
pub struct ShownValue<'a> {
    value: Value<'a>,
    is_hexadecimal: bool,
}

impl fmt::Display for ShownValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Value::Unsigned(value) if self.is_hexadecimal => write!(f, "{value:#x}"),
            value => value.fmt(f),
        }
    }
}

/// One field of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// The field's name: a C identifier.
    pub name: String,
    /// The kind of its value.
    pub kind: FieldKind,
    /// Offset in the payload, in bytes.
    pub offset: u32,
    /// The unit of its values (`ns`, `B`, `1/s`), empty for a plain number.
    pub unit: String,
}

impl Field {
    /// A value of this field for display: addresses in hexadecimal.
    ///
    /// ```
    /// use overhear_event::{FieldKind, TypeSchema, Value, HEXADECIMAL};
    ///
    /// let schema = TypeSchema::builder("call").field("site", FieldKind::U64, HEXADECIMAL);
    /// let schema = schema.build()?;
    /// let shown = schema.fields()[0].shown(Value::Unsigned(4096));
    /// assert_eq!(shown.to_string(), "0x1000");
    /// # Ok::<(), overhear_event::SchemaError>(())
    /// ```
    #[must_use]
    pub fn shown<'a>(&self, value: Value<'a>) -> ShownValue<'a> {
        ShownValue {
            value,
            is_hexadecimal: self.unit == HEXADECIMAL,
        }
    }
}

/// The description of a payload: a type id, and fields that cover every byte.
///
/// Holding one proves that the fields are named by distinct C identifiers, lie at their natural
/// alignment, do not overlap and leave no padding; it says nothing about the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedSchema")]
pub struct TypeSchema {
    id: String,
    size: u32,
    fields: Vec<Field>,
}

/// A schema as it comes from another process.
#[derive(Deserialize)]
struct UncheckedSchema {
    id: String,
    size: u32,
    fields: Vec<Field>,
}

impl TryFrom<UncheckedSchema> for TypeSchema {
    type Error = SchemaError;

    fn try_from(mut unchecked: UncheckedSchema) -> Result<Self, SchemaError> {
        // Shrunk, because many schemas may be kept for long.
        unchecked.fields.shrink_to_fit();
        Self::new(unchecked.id, unchecked.size, unchecked.fields)
    }
}

/// Why a schema was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A name is empty, too long, or not a C identifier.
    #[error(
        "`{0}` is not a valid name; use letters, digits and `_`, at most 64, not a digit first"
    )]
    BadName(String),
    /// Two fields share a name.
    #[error("type `{id}` has two fields `{field}`; give each its own name")]
    DuplicateField {
        /// The type.
        id: String,
        /// The name that occurs twice.
        field: String,
    },
    /// The fields do not follow one another without holes.
    #[error(
        "type `{id}`: bytes {from} to {to} belong to no field or to two; reorder the fields or \
         name the padding, so that no stack bytes leak"
    )]
    Padding {
        /// The type.
        id: String,
        /// First byte in question.
        from: u32,
        /// The byte after the last one in question.
        to: u32,
    },
    /// A field is not at a multiple of its size.
    #[error("type `{id}`: field `{field}` at byte {offset} is not aligned to its size; reorder the fields")]
    Misaligned {
        /// The type.
        id: String,
        /// The field.
        field: String,
        /// Its offset in bytes.
        offset: u32,
    },
    /// The payload does not fit into a page.
    #[error("type `{id}` has {size} bytes, more than {MAX_PAYLOAD_BYTES}; split it over several elements")]
    TooLarge {
        /// The type.
        id: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A text field of no bytes, or a unit that cannot be printed.
    #[error("type `{id}`: field `{field}` is empty or its unit has control characters or more than 32 bytes")]
    BadField {
        /// The type.
        id: String,
        /// The field.
        field: String,
    },
}

fn check_name(name: &str) -> Result<(), SchemaError> {
    let mut bytes = name.bytes();
    let first = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if first && name.len() <= 64 && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        Ok(())
    } else {
        Err(SchemaError::BadName(name.to_string()))
    }
}

impl TypeSchema {
    /// Starts a schema whose fields follow one another in the order given.
    #[must_use]
    pub fn builder(id: &str) -> TypeSchemaBuilder {
        TypeSchemaBuilder {
            id: id.to_string(),
            size: 0,
            fields: Vec::new(),
        }
    }

    /// Checks and builds a schema from fields with given offsets.
    ///
    /// # Errors
    /// [`SchemaError`] if a name is bad or the fields do not cover `size` bytes exactly, aligned
    /// and in ascending order.
    pub fn new(id: String, size: u32, fields: Vec<Field>) -> Result<Self, SchemaError> {
        check_name(&id)?;
        let mut end: u32 = 0;
        // A schema from another process may have any number of fields.
        let mut names = BTreeSet::new();
        for field in &fields {
            check_name(&field.name)?;
            if !names.insert(field.name.as_str()) {
                return Err(SchemaError::DuplicateField {
                    id,
                    field: field.name.clone(),
                });
            }
            if field.kind.size() == 0
                || field.unit.len() > 32
                || field.unit.chars().any(char::is_control)
            {
                return Err(SchemaError::BadField {
                    id,
                    field: field.name.clone(),
                });
            }
            if field.offset != end {
                let (from, to) = (end.min(field.offset), end.max(field.offset));
                return Err(SchemaError::Padding { id, from, to });
            }
            if field.offset % field.kind.align() != 0 {
                let field = field.name.clone();
                return Err(SchemaError::Misaligned {
                    id,
                    field,
                    offset: end,
                });
            }
            // No overflow: `end` is at most MAX_PAYLOAD_BYTES here and a field has < 64 KiB.
            end += field.kind.size();
            if end > MAX_PAYLOAD_BYTES {
                return Err(SchemaError::TooLarge {
                    id,
                    size: u64::from(end),
                });
            }
        }
        if end != size {
            return Err(SchemaError::Padding {
                id,
                from: end.min(size),
                to: end.max(size),
            });
        }
        Ok(Self { id, size, fields })
    }

    /// The payload of a laned or concurrent sensor as monitors see it: the thread that wrote the
    /// element ([`WRITER_TID`]) and the element's flags ([`WRITER_FLAGS`]), then the sensor's own
    /// fields. The two lie before the payload in memory (`docs/abi/stream-layout.md`, section 4).
    ///
    /// # Errors
    /// [`SchemaError::DuplicateField`] if the sensor uses one of the names itself,
    /// [`SchemaError::TooLarge`] if the payload leaves no room for them.
    pub fn with_writer(&self) -> Result<Self, SchemaError> {
        let head = Self::builder(&self.id)
            .field(WRITER_TID, FieldKind::U32, "")
            .field(WRITER_FLAGS, FieldKind::U32, "");
        let lead = head.size;
        let mut fields = head.fields;
        fields.extend(self.fields.iter().cloned().map(|mut field| {
            field.offset += lead;
            field
        }));
        Self::new(self.id.clone(), lead + self.size, fields)
    }

    /// The type id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Bytes of a payload.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The fields, in the order of their offsets.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The index of the field with this name.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// Reads field `index` from a payload; `None` if there is no such field or the payload is
    /// too short.
    #[must_use]
    pub fn read<'a>(&self, index: usize, payload: &'a [u8]) -> Option<Value<'a>> {
        let field = self.fields.get(index)?;
        let start = field.offset as usize;
        let bytes = payload.get(start..start + field.kind.size() as usize)?;
        match field.kind {
            FieldKind::Text(_) => Some(Value::Text(text(bytes))),
            number => number.number(bytes),
        }
    }
}

pub(crate) fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

/// The text before the first zero byte, cut at the first byte that is not UTF-8.
pub(crate) fn text(bytes: &[u8]) -> &str {
    let bytes = bytes.split(|&b| b == 0).next().unwrap_or_default();
    match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

/// Collects fields; see [`TypeSchema::builder`].
#[derive(Clone, Debug)]
pub struct TypeSchemaBuilder {
    id: String,
    size: u32,
    fields: Vec<Field>,
}

impl TypeSchemaBuilder {
    /// Appends a field right behind the last one.
    #[must_use]
    pub fn field(mut self, name: &str, kind: FieldKind, unit: &str) -> Self {
        let offset = self.size;
        self.size = self.size.saturating_add(kind.size());
        self.fields.push(Field {
            name: name.to_string(),
            kind,
            offset,
            unit: unit.to_string(),
        });
        self
    }

    /// Checks and builds the schema.
    ///
    /// # Errors
    /// [`SchemaError`], see [`TypeSchema::new`].
    pub fn build(self) -> Result<TypeSchema, SchemaError> {
        TypeSchema::new(self.id, self.size, self.fields)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::{Field, FieldKind, SchemaError, TypeSchema, Value};

    fn field(name: &str, kind: FieldKind, offset: u32) -> Field {
        Field {
            name: name.to_string(),
            kind,
            offset,
            unit: "".to_string(),
        }
    }

    #[test]
    fn padding_is_refused_with_its_place() {
        let fields = vec![field("a", FieldKind::U32, 0), field("b", FieldKind::U64, 8)];
        let error = TypeSchema::new("t".to_string(), 16, fields).unwrap_err();
        assert_eq!(
            error,
            SchemaError::Padding {
                id: "t".to_string(),
                from: 4,
                to: 8
            }
        );
        let fields = vec![field("a", FieldKind::U64, 0)];
        let error = TypeSchema::new("t".to_string(), 16, fields).unwrap_err();
        assert_eq!(
            error,
            SchemaError::Padding {
                id: "t".to_string(),
                from: 8,
                to: 16
            }
        );
    }

    #[test]
    fn misaligned_duplicate_and_oversized_fields_are_refused() {
        let built = TypeSchema::builder("t")
            .field("a", FieldKind::U8, "")
            .field("b", FieldKind::U16, "");
        assert!(matches!(
            built.build(),
            Err(SchemaError::Misaligned { offset: 1, .. })
        ));
        let built = TypeSchema::builder("t")
            .field("a", FieldKind::U8, "")
            .field("a", FieldKind::U8, "");
        assert!(matches!(
            built.build(),
            Err(SchemaError::DuplicateField { .. })
        ));
        let built = TypeSchema::builder("t").field("a", FieldKind::Text(5000), "");
        assert!(matches!(
            built.build(),
            Err(SchemaError::TooLarge { size: 5000, .. })
        ));
        assert!(TypeSchema::builder("9t").build().is_err());
    }

    #[test]
    fn writer_precedes_the_payload() {
        let own = TypeSchema::builder("t").field("a", FieldKind::U64, "ns");
        let own = own.build().unwrap();
        let seen = own.with_writer().unwrap();
        assert_eq!(
            (seen.id(), seen.size(), seen.index_of("a")),
            ("t", 16, Some(2))
        );
        let mut payload = vec![];
        payload.extend(7_u32.to_ne_bytes());
        payload.extend(1_u32.to_ne_bytes());
        payload.extend(9_u64.to_ne_bytes());
        assert_eq!(seen.read(0, &payload), Some(Value::Unsigned(7)));
        assert_eq!(seen.read(2, &payload), Some(Value::Unsigned(9)));
        let twice = seen.with_writer();
        assert!(matches!(twice, Err(SchemaError::DuplicateField { .. })));
        let large = TypeSchema::builder("t").field("a", FieldKind::Text(4084), "");
        let large = large.build().unwrap().with_writer();
        assert!(matches!(
            large,
            Err(SchemaError::TooLarge { size: 4092, .. })
        ));
    }

    #[test]
    fn every_kind_reads_back() {
        let schema = TypeSchema::builder("all")
            .field("a", FieldKind::I64, "")
            .field("b", FieldKind::F64, "m/s")
            .field("c", FieldKind::F32, "")
            .field("d", FieldKind::I16, "")
            .field("e", FieldKind::U8, "")
            .field("f", FieldKind::I8, "")
            .field("g", FieldKind::Text(4), "")
            .build()
            .unwrap();
        let mut payload = vec![];
        payload.extend((-5_i64).to_ne_bytes());
        payload.extend(1.5_f64.to_ne_bytes());
        payload.extend(0.25_f32.to_ne_bytes());
        payload.extend((-2_i16).to_ne_bytes());
        payload.push(200);
        payload.extend((-1_i8).to_ne_bytes());
        payload.extend(*b"ok\0x");
        assert_eq!(payload.len(), schema.size() as usize);
        let values: vec::Vec<_> = (0..7).filter_map(|i| schema.read(i, &payload)).collect();
        assert_eq!(
            values,
            [
                Value::Signed(-5),
                Value::Float(1.5),
                Value::Float(0.25),
                Value::Signed(-2),
                Value::Unsigned(200),
                Value::Signed(-1),
                Value::Text("ok"),
            ]
        );
        assert_eq!(schema.read(0, &payload[..7]), None);
    }
}
