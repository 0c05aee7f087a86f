// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory's own memory for a sensor, apart from its buffer. Pure.

use overhear_event::{Field, Origin, StreamDescriptor};

/// Bytes that an allocator adds to an allocation, with rounding.
const ALLOCATION_OVERHEAD_BYTES: u64 = 32;
/// Bytes of a sensor's records and table entries, without the text of its names.
const FIXED_BYTES: u64 = 2048;
/// Bytes of the journal's entries about a sensor, without its names and fields.
const FIXED_ENTRY_BYTES: u64 = 768;
/// Copies of an entry in memory, at most: two in a journal that has doubled, one in its
/// replacement.
const MAX_ENTRY_COPIES: u64 = 3;
const PAGE: u64 = 4096;

/// Upper bound of the directory's own memory for a sensor, in bytes: heap and journal entries. It
/// includes the unused rest of the last page of its buffer.
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
    let texts: u64 = pieces
        .map(|text| ALLOCATION_OVERHEAD_BYTES + text.len() as u64)
        .sum();
    // Names are in the record, and in a key.
    let heap = FIXED_BYTES + 2 * names + size_of_val(fields) as u64 + texts;
    // `{"name":"","kind":"","offset":0,"unit":""},` and the longest kind and offset.
    let each: u64 = fields.iter().map(|field| 64 + 2 * field_text(field)).sum();
    let entry = FIXED_ENTRY_BYTES + 2 * names + each;
    let padding = buffer_bytes.next_multiple_of(PAGE) - buffer_bytes;
    heap + MAX_ENTRY_COPIES * entry + padding
}

/// Bytes of a field's name and unit. A byte takes at most two in JSON: control characters are
/// refused.
fn field_text(field: &Field) -> u64 {
    (field.name.len() + field.unit.len()) as u64
}

#[cfg(test)]
mod tests {
    use overhear_event::{
        FieldKind, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema,
    };

    use super::{record_bytes, MAX_ENTRY_COPIES, PAGE};

    fn descriptor(fields: u32, name: &str, unit: &str) -> StreamDescriptor {
        let mut schema = TypeSchema::builder(&"t".repeat(64));
        for number in 0..fields {
            schema = schema.field(&format!("{name}{number}"), FieldKind::U8, unit);
        }
        StreamDescriptor {
            instance: "\\".repeat(128),
            capacity: 1 << 32,
            ..StreamDescriptor::new(
                StreamId::from_raw(u32::MAX),
                Origin::Program(Task {
                    pid: u32::MAX,
                    start: Timestamp::from_monotonic_ns(u64::MAX),
                    comm: "\"".repeat(15),
                }),
                "\"".repeat(128),
                schema.build().unwrap(),
            )
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
            assert!(
                bytes > MAX_ENTRY_COPIES * entry,
                "{fields}: {bytes} {entry}"
            );
            // And not much more than is needed.
            assert!(bytes < 8 * entry + 16_384, "{fields}: {bytes} {entry}");
        }
    }

    #[test]
    fn rest_of_a_page_counts() {
        let descriptor = descriptor(1, "n", "");
        let whole = record_bytes(&descriptor, 2 * PAGE);
        assert_eq!(record_bytes(&descriptor, PAGE + 1), whole + PAGE - 1);
    }
}
