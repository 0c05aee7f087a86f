// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelPoint`]: a tracepoint or function of the kernel, and what its program fetches there.
//!
//! Other modules find the values and their names (`tracepoint.rs`, `signature.rs`). This one lays
//! them out: as fields of a schema without holes, and as the offsets to which `points.bpf.c` copies
//! them.

use overhear_event::{FieldKind, TypeSchema, HEXADECIMAL};

/// `MAX_FIELDS` of the program.
const MAX_FIELDS: usize = 24;
/// `MAX_WORDS` of the program, including the stamp.
const MAX_BYTES: u32 = 32 * 8;
/// Size of the stamp. Then come tid and pid.
const STAMP_BYTES: u32 = 8;
const THREAD_BYTES: u32 = 8;
/// Bounds of texts without a bound of their own: the largest one that fits is used.
const TEXT_BYTES: [u16; 3] = [64, 32, 16];
/// Possible sizes of a slot in bytes; the program gets them as a shift.
const STRIDES: std::ops::RangeInclusive<u32> = 16..=MAX_BYTES;

/// Where a value comes from (`enum point_source`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointSource {
    Record = 0,
    RecordLocated = 1,
    RecordRelative = 2,
    RecordPointed = 3,
    Argument = 4,
    ArgumentPointed = 5,
    Result = 6,
    ResultPointed = 7,
}

/// A value at a point: its name, its source, and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointValue {
    pub(crate) name: String,
    pub(crate) source: PointSource,
    pub(crate) from: u16,
    pub(crate) kind: ValueKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Number(FieldKind),
    /// An address, or bytes that are not a number; shown in hexadecimal.
    Bits(FieldKind),
    /// A text of at most this size in bytes; `None` for the largest size that fits.
    Text(Option<u16>),
}

/// The place that a program is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PointProgram {
    /// A tracepoint with an event, by its id.
    Tracepoint { id: u64 },
    /// A tracepoint without an event, and the number of its arguments.
    RawTracepoint { name: String, arguments: u32 },
    /// The entry of a function.
    Entry { function: String },
    /// The return of a function.
    Return { function: String },
}

impl PointProgram {
    /// The name of its program in `points.bpf.c`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Tracepoint { .. } => "on_tracepoint",
            Self::RawTracepoint { .. } => "on_raw_tracepoint",
            Self::Entry { .. } => "on_function",
            Self::Return { .. } => "on_function_return",
        }
    }
}

impl PointProgram {
    /// Whether the place is at a function, not at a tracepoint.
    pub(crate) const fn is_of_function(&self) -> bool {
        matches!(self, Self::Entry { .. } | Self::Return { .. })
    }
}

/// A place in the kernel and the values that are fetched there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelPoint {
    pub(crate) program: PointProgram,
    fields: Vec<PointField>,
    element_bytes: u32,
    pub(crate) stride_bytes: u32,
}

/// `struct point_field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PointField {
    source: PointSource,
    from: u16,
    to: u16,
    size: u16,
}

/// A point whose values are laid out.
#[derive(Debug)]
pub(crate) struct PointLayout {
    pub(crate) point: KernelPoint,
    pub(crate) schema: TypeSchema,
    /// Values for which an element has no room.
    pub(crate) left_out: Vec<String>,
}

/// Lays values out. The elements are of the type `id`, without the characters that a name of a type
/// cannot have.
pub(crate) fn lay_out(program: PointProgram, id: &str, values: Vec<PointValue>) -> PointLayout {
    let mut values = renamed(values);
    let mut left_out: Vec<String> = Vec::new();
    let spare = values.split_off(values.len().min(MAX_FIELDS));
    left_out.extend(spare.into_iter().map(|value| value.name));
    // Shorter texts first, then fewer values.
    let text_bytes = loop {
        let fits = |text: &u16| sum(&values, *text) <= MAX_BYTES - STAMP_BYTES - THREAD_BYTES;
        match TEXT_BYTES.into_iter().find(fits) {
            Some(text) => break text,
            None => left_out.extend(values.pop().map(|value| value.name)),
        }
    };
    // Larger values first: so each one is aligned without holes. Texts need no alignment.
    values.sort_by_key(|value| match value.kind {
        ValueKind::Number(kind) | ValueKind::Bits(kind) => 8 - kind.align(),
        ValueKind::Text(_) => 8,
    });
    let mut schema = TypeSchema::builder(&identifier(id))
        .field("tid", FieldKind::U32, "")
        .field("pid", FieldKind::U32, "");
    let (mut fields, mut at) = (Vec::new(), STAMP_BYTES + THREAD_BYTES);
    for value in &values {
        let (kind, unit) = field(value.kind, text_bytes);
        schema = schema.field(&value.name, kind, unit);
        fields.push(PointField {
            source: value.source,
            from: value.from,
            to: at as u16,
            size: kind.size() as u16,
        });
        at += kind.size();
    }
    let schema = schema
        .build()
        .expect("names are distinct identifiers, and fields lie without holes");
    let stride_bytes = at.next_power_of_two().max(*STRIDES.start());
    let point = KernelPoint {
        program,
        fields,
        element_bytes: at,
        stride_bytes,
    };
    PointLayout {
        point,
        schema,
        left_out,
    }
}

fn field(kind: ValueKind, text_bytes: u16) -> (FieldKind, &'static str) {
    match kind {
        ValueKind::Number(kind) => (kind, ""),
        ValueKind::Bits(kind) => (kind, HEXADECIMAL),
        ValueKind::Text(bytes) => (FieldKind::Text(bytes.unwrap_or(text_bytes)), ""),
    }
}

fn sum(values: &[PointValue], text_bytes: u16) -> u32 {
    let sizes = values
        .iter()
        .map(|value| field(value.kind, text_bytes).0.size());
    sizes.sum()
}

/// Gives each value a valid and unique name. The names of the thread's fields are taken first.
fn renamed(values: Vec<PointValue>) -> Vec<PointValue> {
    let mut taken = vec!["tid".to_owned(), "pid".to_owned()];
    let rename = |mut value: PointValue| {
        let mut name = identifier(&value.name);
        while taken.contains(&name) {
            name = identifier(&format!("arg_{name}"));
        }
        taken.push(name.clone());
        value.name = name;
        value
    };
    values.into_iter().map(rename).collect()
}

/// The text as a C identifier of at most 64 characters.
fn identifier(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = text.chars().map(plain).take(60).collect();
    match name.chars().next() {
        Some(first) if !first.is_ascii_digit() => name,
        _ => format!("_{name}"),
    }
}

impl KernelPoint {
    /// `struct point` for the program, as bytes; the program then writes into these rings of this
    /// monitor.
    pub(crate) fn settings(&self, monitor: u32, slot: u32) -> Vec<u8> {
        let arguments = match &self.program {
            PointProgram::RawTracepoint { arguments, .. } => *arguments,
            _ => 0,
        };
        let head = [
            self.fields.len() as u32,
            self.element_bytes.div_ceil(8),
            self.stride_bytes.trailing_zeros(),
            monitor,
            slot,
            arguments,
        ];
        let mut bytes: Vec<u8> = head.into_iter().flat_map(u32::to_ne_bytes).collect();
        for field in &self.fields {
            let words = [field.source as u16, field.from, field.to, field.size];
            bytes.extend(words.into_iter().flat_map(u16::to_ne_bytes));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{FieldKind, HEXADECIMAL};

    use super::{lay_out, PointProgram, PointSource, PointValue, ValueKind, MAX_BYTES, MAX_FIELDS};

    fn value(name: &str, kind: ValueKind) -> PointValue {
        PointValue {
            name: name.to_owned(),
            source: PointSource::Record,
            from: 8,
            kind,
        }
    }

    const PROGRAM: PointProgram = PointProgram::Tracepoint { id: 1 };

    #[test]
    fn values_lie_without_holes_and_have_names_of_their_own() {
        let values = vec![
            value("flag", ValueKind::Number(FieldKind::U8)),
            value("comm", ValueKind::Text(Some(16))),
            value("pid", ValueKind::Number(FieldKind::I32)),
            value("call site", ValueKind::Bits(FieldKind::U64)),
            value("3rd", ValueKind::Number(FieldKind::I16)),
            value("pid", ValueKind::Number(FieldKind::U32)),
        ];
        let laid = lay_out(PROGRAM, "tracepoint/sched/a b", values);
        let fields: Vec<_> = laid
            .schema
            .fields()
            .iter()
            .map(|field| (field.name.as_str(), field.offset, field.unit.as_str()))
            .collect();
        let expected = [
            ("tid", 0, ""),
            ("pid", 4, ""),
            ("call_site", 8, HEXADECIMAL),
            ("arg_pid", 16, ""),
            ("arg_arg_pid", 20, ""),
            ("_3rd", 24, ""),
            ("flag", 26, ""),
            ("comm", 27, ""),
        ];
        assert_eq!(fields, expected);
        assert_eq!(laid.schema.id(), "tracepoint_sched_a_b");
        assert_eq!(
            (laid.point.element_bytes, laid.point.stride_bytes),
            (51, 64)
        );
        assert!(laid.left_out.is_empty());
        // The head and the fields; the first field is at the word after the thread.
        let settings = laid.point.settings(3, 20);
        assert_eq!(settings.len(), 24 + 6 * 8);
        assert_eq!(settings[4..8], 7_u32.to_ne_bytes());
        assert_eq!(settings[28..30], 16_u16.to_ne_bytes());
    }

    #[test]
    fn texts_shrink_and_values_without_room_are_left_out() {
        let texts = |count: usize| -> Vec<_> {
            let name = |number| value(&format!("text{number}"), ValueKind::Text(None));
            (0..count).map(name).collect()
        };
        let bytes = |count| {
            let laid = lay_out(PROGRAM, "t", texts(count));
            assert!(laid.point.element_bytes <= MAX_BYTES);
            (
                laid.schema.fields().last().unwrap().kind,
                laid.left_out.len(),
            )
        };
        assert_eq!(bytes(1), (FieldKind::Text(64), 0));
        assert_eq!(bytes(5), (FieldKind::Text(32), 0));
        assert_eq!(bytes(10), (FieldKind::Text(16), 0));
        assert_eq!(bytes(17), (FieldKind::Text(16), 2));
        let many = (0..MAX_FIELDS + 3).map(|number| {
            let name = format!("number{number}");
            value(&name, ValueKind::Number(FieldKind::U8))
        });
        let laid = lay_out(PROGRAM, "t", many.collect());
        assert_eq!(laid.left_out, ["number24", "number25", "number26"]);
        let laid = lay_out(PROGRAM, "t", Vec::new());
        assert_eq!((laid.schema.size(), laid.point.stride_bytes), (8, 16));
    }

    /// The C side has the same numbers.
    #[test]
    fn c_constants_are_equal() {
        let program = include_str!("../bpf/points.bpf.c");
        let fields = format!("MAX_FIELDS = {MAX_FIELDS},");
        let words = format!("MAX_WORDS = {},", MAX_BYTES / 8);
        assert!(program.contains(&fields) && program.contains(&words));
        for (name, source) in [
            ("RECORD", PointSource::Record),
            ("RECORD_LOCATED", PointSource::RecordLocated),
            ("RECORD_RELATIVE", PointSource::RecordRelative),
            ("RECORD_POINTED", PointSource::RecordPointed),
            ("ARGUMENT", PointSource::Argument),
            ("ARGUMENT_POINTED", PointSource::ArgumentPointed),
            ("RESULT", PointSource::Result),
            ("RESULT_POINTED", PointSource::ResultPointed),
        ] {
            let line = format!("\t{name} = {},", source as u16);
            assert!(program.contains(&line), "points.bpf.c lacks `{line}`");
        }
    }
}
