// SPDX-License-Identifier: MIT OR Apache-2.0
//! What it costs a directory to know a sensor, apart from its buffer. Pure.

use overhear_event::{Field, Origin, StreamDescriptor};

/// What an allocator adds to a piece of memory, and what it may round up.
const PIECE: u64 = 32;
/// Records, table entries, names and sets of a sensor, whatever it is called.
const FIXED_BYTES: u64 = 2048;
/// Entries of the journal about a sensor, without its names and fields.
const FIXED_ENTRY_BYTES: u64 = 768;
/// How often an entry may stand in memory: in a journal of twice its least length, and in the next one
/// while that is being written.
const COPIES_OF_ENTRY: u64 = 3;
const PAGE: u64 = 4096;

/// Upper bound of the directory's own memory for a sensor, in bytes: heap, and entries in the journal. The
/// last page of its buffer counts here as far as the sensor has no use for it.
pub(crate) fn record_bytes(descriptor: &StreamDescriptor, buffer_bytes: u64) -> u64 {
    let comm = match &descriptor.origin {
        Origin::Program(task) => task.comm.len(),
        _ => 0,
    };
    let names = descriptor.sensor.len() + descriptor.instance.len() + comm;
    let names = names as u64 + descriptor.schema.id().len() as u64;
    let fields = descriptor.schema.fields();
    let pieces = fields.iter().flat_map(|field| [&field.name, &field.unit]);
    let pieces = pieces.filter(|text| !text.is_empty());
    let texts: u64 = pieces.map(|text| PIECE + text.len() as u64).sum();
    // Names stand in the record and as a key.
    let heap = FIXED_BYTES + 2 * names + size_of_val(fields) as u64 + texts;
    // `{"name":"","kind":"","offset":0,"unit":""},` and the longest kind and offset.
    let each: u64 = fields.iter().map(|field| 64 + 2 * field_text(field)).sum();
    let entry = FIXED_ENTRY_BYTES + 2 * names + each;
    let padding = buffer_bytes.next_multiple_of(PAGE) - buffer_bytes;
    heap + COPIES_OF_ENTRY * entry + padding
}

/// Bytes of a field's name and unit. A byte takes at most two in JSON: control characters are refused.
fn field_text(field: &Field) -> u64 {
    (field.name.len() + field.unit.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        FieldKind, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema,
    };

    use super::{record_bytes, COPIES_OF_ENTRY, PAGE};

    fn descriptor(fields: u32, name: &str, unit: &str) -> StreamDescriptor {
        let mut schema = TypeSchema::builder(&"t".repeat(64));
        for number in 0..fields {
            schema = schema.field(&format!("{name}{number}"), FieldKind::U8, unit);
        }
        StreamDescriptor {
            id: StreamId::from_raw(u32::MAX),
            origin: Origin::Program(Task {
                pid: u32::MAX,
                start: Timestamp::from_monotonic_ns(u64::MAX),
                comm: "\"".repeat(15),
            }),
            sensor: "\"".repeat(128),
            instance: "\\".repeat(128),
            lane: None,
            schema: Arc::new(schema.build().unwrap()),
            rate: None,
            capacity: 1 << 32,
        }
    }

    #[test]
    fn entries_of_a_journal_are_covered() {
        for (fields, name, unit) in [
            (0, "", ""),
            (1, "n", ""),
            (700, "f", ""),
            (300, "abcdefghij", "\"\""),
        ] {
            let descriptor = descriptor(fields, name, unit);
            let entry = serde_json::to_vec(&descriptor).unwrap().len() as u64;
            let bytes = record_bytes(&descriptor, PAGE);
            assert!(bytes > COPIES_OF_ENTRY * entry, "{fields}: {bytes} {entry}");
            // And not much more than is needed.
            assert!(bytes < 8 * entry + 16_384, "{fields}: {bytes} {entry}");
        }
    }

    #[test]
    fn the_rest_of_a_page_counts() {
        let descriptor = descriptor(1, "n", "");
        let whole = record_bytes(&descriptor, 2 * PAGE);
        assert_eq!(record_bytes(&descriptor, PAGE + 1), whole + PAGE - 1);
    }
}
