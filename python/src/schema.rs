// SPDX-License-Identifier: MIT OR Apache-2.0
//! Schemas and descriptors as plain Python values.

use overhear_event::{Field, FieldKind, Origin, Rate, StreamDescriptor, TypeSchema};
use pyo3::prelude::{Bound, PyDictMethods, PyErr, PyResult, Python};
use pyo3::types::PyDict;

use crate::error::SchemaError;

/// A field as Python gives it: name, kind, offset in bytes, unit.
pub(crate) type PlainField = (String, String, u32, String);

/// The kinds that are numbers, by the names they have in JSON.
const NUMBERS: [(&str, FieldKind); 10] = [
    ("u8", FieldKind::U8),
    ("u16", FieldKind::U16),
    ("u32", FieldKind::U32),
    ("u64", FieldKind::U64),
    ("i8", FieldKind::I8),
    ("i16", FieldKind::I16),
    ("i32", FieldKind::I32),
    ("i64", FieldKind::I64),
    ("f32", FieldKind::F32),
    ("f64", FieldKind::F64),
];

/// `u8` to `f64`, or `text[BYTES]`.
fn kind_from_name(name: &str) -> Option<FieldKind> {
    if let Some((_, kind)) = NUMBERS.iter().find(|(number, _)| *number == name) {
        return Some(*kind);
    }
    let bytes = name.strip_prefix("text[")?.strip_suffix(']')?;
    bytes.parse().ok().map(FieldKind::Text)
}

/// The reverse of [`kind_from_name`].
pub(crate) fn kind_name(kind: FieldKind) -> String {
    match kind {
        FieldKind::Text(bytes) => format!("text[{bytes}]"),
        number => NUMBERS
            .iter()
            .find(|(_, kind)| *kind == number)
            .map_or_else(String::new, |(name, _)| (*name).to_owned()),
    }
}

/// Checks and builds a schema; the fields may come in any order.
pub(crate) fn schema(id: String, size: u32, fields: &[PlainField]) -> PyResult<TypeSchema> {
    let field = |(name, kind, offset, unit): &PlainField| {
        let kind = kind_from_name(kind).ok_or_else(|| {
            SchemaError::new_err(format!(
                "type `{id}`: field `{name}` has the unknown kind `{kind}`; use u8 to u64, i8 to \
                 i64, f32, f64 or text[BYTES]"
            ))
        })?;
        Ok::<_, PyErr>(Field {
            name: name.clone(),
            kind,
            offset: *offset,
            unit: unit.clone(),
        })
    };
    let mut fields = fields.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    fields.sort_by_key(|field| field.offset);
    TypeSchema::new(id, size, fields).map_err(|error| SchemaError::new_err(error.to_string()))
}

/// A descriptor as a dictionary: the arguments of the Python class `Stream`.
pub(crate) fn descriptor<'py>(
    py: Python<'py>,
    stream: &StreamDescriptor,
) -> PyResult<Bound<'py, PyDict>> {
    let plain = PyDict::new(py);
    plain.set_item("id", stream.id.as_raw())?;
    plain.set_item("sensor", &stream.sensor)?;
    plain.set_item("instance", &stream.instance)?;
    plain.set_item("label", stream.label())?;
    plain.set_item("type", stream.schema.id())?;
    plain.set_item("capacity", stream.capacity)?;
    plain.set_item("rate", stream.rate.map(rate))?;
    let (origin, pid, comm, cpu) = match &stream.origin {
        Origin::Program(task) => ("program", Some(task.pid), Some(&task.comm), None),
        Origin::Kernel { cpu } => ("kernel", None, None, Some(*cpu)),
        Origin::Sampler => ("sampler", None, None, None),
    };
    plain.set_item("origin", origin)?;
    plain.set_item("pid", pid)?;
    plain.set_item("comm", comm)?;
    plain.set_item("cpu", cpu)?;
    let fields: Vec<PlainField> = stream
        .schema
        .fields()
        .iter()
        .map(|field| {
            let kind = kind_name(field.kind);
            (field.name.clone(), kind, field.offset, field.unit.clone())
        })
        .collect();
    plain.set_item("fields", fields)?;
    Ok(plain)
}

/// (T, D, tau) in nanoseconds.
fn rate(rate: Rate) -> (u64, u64, u64) {
    let Rate {
        period,
        distance,
        jitter,
    } = rate;
    (period.as_ns(), distance.as_ns(), jitter.as_ns())
}
