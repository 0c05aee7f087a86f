// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptions of types and streams: `oh_field` of `fields.h` and `oh_stream` of `update.h`. The
//! assertions below hold both sides to the same bytes.

use std::ffi::{c_char, CString};
use std::mem::{offset_of, size_of};

use overhear_event::{Field, FieldKind, Origin, StreamDescriptor};

use crate::{c_text, text};

/// `oh_field`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "fields.h describes the members")]
pub struct RawField {
    pub name: *const c_char,
    pub kind: u32,
    pub offset: u32,
    pub size: u32,
    pub unit: *const c_char,
}

/// `oh_stream`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "update.h describes the members")]
pub struct RawStream {
    pub size: u32,
    pub id: u32,
    pub sensor: *const c_char,
    pub instance: *const c_char,
    pub label: *const c_char,
    pub type_id: *const c_char,
    pub fields: *const RawField,
    pub field_count: u32,
    pub payload_size: u32,
    pub origin: u32,
    pub pid: u32,
    pub cpu: u32,
    pub names_writers: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<RawField>() == 32);
    assert!(offset_of!(RawField, unit) == 24);
    assert!(offset_of!(RawStream, fields) == 40);
    assert!(offset_of!(RawStream, field_count) == 48);
    assert!(offset_of!(RawStream, names_writers) == 68);
    assert!(size_of::<RawStream>() == 72);
};

/// The fields of a payload, in the order of their offsets.
///
/// # Errors
/// A message if `raw` is NULL but `count` is not 0, or if a field has an unknown kind or a size
/// that is not its kind's.
///
/// # Safety
/// `raw` is NULL, or has `count` entries whose strings are NULL or end with a zero byte.
pub unsafe fn read_fields(raw: *const RawField, count: u32) -> Result<Vec<Field>, String> {
    if raw.is_null() && count > 0 {
        return Err("`fields` is NULL".to_owned());
    }
    let mut fields = Vec::new();
    for index in 0..count as usize {
        // SAFETY: by contract.
        let (field, name, unit) = unsafe {
            let field = raw.add(index).read();
            (field, text(field.name), text(field.unit))
        };
        let name = name.unwrap_or_default();
        let kind = FieldKind::from_raw(field.kind, field.size).ok_or_else(|| {
            format!(
                "field `{name}` has the unknown kind {} or the wrong size {}; use the OH_FIELD macros",
                field.kind, field.size
            )
        })?;
        fields.push(Field {
            name,
            kind,
            offset: field.offset,
            unit: unit.unwrap_or_default(),
        });
    }
    fields.sort_by_key(|field| field.offset);
    Ok(fields)
}

/// A stream as C sees it, with the memory that its pointers point to.
#[derive(Debug)]
pub struct CStream {
    raw: RawStream,
    _texts: Vec<CString>,
    _fields: Vec<RawField>,
}

// SAFETY: all pointers point into memory of the value itself, which is never changed.
unsafe impl Send for CStream {}

impl CStream {
    /// The description of a stream, without the first `lead_fields` fields of its elements, which
    /// have `lead_bytes` bytes and name the writer.
    #[must_use]
    pub fn new(descriptor: &StreamDescriptor, lead_fields: usize, lead_bytes: u32) -> Self {
        let mut texts = Vec::new();
        let mut keep = |text: &str| {
            let text = c_text(text);
            // A CString's bytes stay where they are when the CString is moved.
            let pointer = text.as_ptr();
            texts.push(text);
            pointer
        };
        let schema = &descriptor.schema;
        let fields = schema.fields().iter().skip(lead_fields);
        let fields = fields.map(|field| RawField {
            name: keep(&field.name),
            kind: field.kind.as_raw(),
            offset: field.offset - lead_bytes,
            size: field.kind.size(),
            unit: keep(&field.unit),
        });
        let fields: Vec<RawField> = fields.collect();
        let (origin, pid, cpu) = match &descriptor.origin {
            Origin::Program(task) => (1, task.pid, 0),
            Origin::Kernel { cpu } => (2, 0, *cpu),
            Origin::Sampler => (3, 0, 0),
        };
        let raw = RawStream {
            size: size_of::<RawStream>() as u32,
            id: descriptor.id.as_raw(),
            sensor: keep(&descriptor.sensor),
            instance: keep(&descriptor.instance),
            label: keep(&descriptor.label()),
            type_id: keep(schema.id()),
            fields: fields.as_ptr(),
            field_count: fields.len() as u32,
            payload_size: schema.size() - lead_bytes,
            origin,
            pid,
            cpu,
            names_writers: (lead_fields > 0).into(),
        };
        Self {
            raw,
            _texts: texts,
            _fields: fields,
        }
    }

    /// The struct of C. Its pointers are valid as long as this value; moving the value moves the
    /// struct.
    #[must_use]
    pub const fn raw(&self) -> &RawStream {
        &self.raw
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{FieldKind, Origin, StreamDescriptor, StreamId, TypeSchema};

    use super::{read_fields, CStream, RawField};
    use crate::text;

    #[test]
    fn stream_of_c_has_the_fields_of_its_descriptor() {
        let schema = TypeSchema::builder("load").field("writer_tid", FieldKind::U32, "");
        let schema = schema.field("writer_flags", FieldKind::U32, "");
        let schema = schema.field("percent", FieldKind::F64, "%");
        let descriptor = StreamDescriptor {
            capacity: 8,
            ..StreamDescriptor::new(
                StreamId::from_raw(9),
                Origin::Kernel { cpu: 3 },
                "load",
                schema.build().unwrap(),
            )
        };
        let stream = CStream::new(&descriptor, 2, 8);
        let raw = *stream.raw();
        assert_eq!((raw.id, raw.origin, raw.cpu, raw.pid), (9, 2, 3, 0));
        assert_eq!((raw.payload_size, raw.names_writers), (8, 1));
        // SAFETY: the stream lives.
        let (type_id, fields) =
            unsafe { (text(raw.type_id), read_fields(raw.fields, raw.field_count)) };
        let fields = fields.unwrap();
        assert_eq!(type_id.as_deref(), Some("load"));
        let [field] = &fields[..] else {
            panic!("{fields:?}");
        };
        assert_eq!((field.name.as_str(), field.offset), ("percent", 0));
        assert_eq!((field.kind, field.unit.as_str()), (FieldKind::F64, "%"));
    }

    #[test]
    fn field_of_another_size_is_rejected_with_its_name() {
        let field = RawField {
            name: c"depth".as_ptr(),
            kind: FieldKind::U64.as_raw(),
            offset: 0,
            size: 4,
            unit: std::ptr::null(),
        };
        // SAFETY: one field whose strings are NULL or end with a zero byte.
        let (error, none) = unsafe {
            (
                read_fields(&raw const field, 1).unwrap_err(),
                read_fields(std::ptr::null(), 0),
            )
        };
        assert!(error.contains("field `depth`"), "{error}");
        assert_eq!(none, Ok(Vec::new()));
    }
}
