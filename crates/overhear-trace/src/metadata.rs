// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metadata of a trace: TSDL, rendered from the streams' schemas.
//!
//! One stream class per sensor, origin and schema: the sensors of a program's instances and a
//! kernel hook on all CPUs share a class, and the one event class in it bears the sensor's name.
//! An event class per *type* would print all sensors of one type under one name.

use std::fmt::Write;
use std::sync::Arc;

use overhear_event::{FieldKind, StreamDescriptor, TypeSchema, HEXADECIMAL};

use crate::catalogue::TraceIdentity;
use crate::checksum::{checksum, DocumentCheck};
use crate::format::{FIRST_FORMAT_WITH_CHECKSUMS, FIRST_FORMAT_WITH_NUMBERS};
use crate::packet::{cause_numbers, ContextKind, COMM_BYTES};

/// The common properties of the streams of one CTF stream class. Its id is its index in the list of
/// classes.
#[derive(Clone, Debug)]
pub(crate) struct StreamClass {
    sensor: String,
    context: ContextKind,
    schema: Arc<TypeSchema>,
}

impl StreamClass {
    pub(crate) fn of(descriptor: &StreamDescriptor) -> Self {
        Self {
            sensor: descriptor.sensor.clone(),
            context: ContextKind::of(&descriptor.origin),
            schema: Arc::clone(&descriptor.schema),
        }
    }

    pub(crate) fn fits(&self, descriptor: &StreamDescriptor) -> bool {
        self.sensor == descriptor.sensor
            && self.context == ContextKind::of(&descriptor.origin)
            && self.schema == descriptor.schema
    }
}

/// Begin of the last line of the metadata. The checksum of all bytes that precede the line follows.
const CHECKSUM_LINE: &str = "\n// Checksum: crc32c:";

/// Compares the checksum of the metadata with its bytes.
pub(crate) fn check_metadata(text_untrusted: &[u8]) -> DocumentCheck {
    let stored = || {
        let text = text_untrusted.strip_suffix(b"\n")?;
        let (rest, digits) = text.split_at_checked(text.len().checked_sub(8)?)?;
        let stored = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        Some((rest.strip_suffix(CHECKSUM_LINE.as_bytes())?, stored))
    };
    let Some((covered, stored)) = stored() else {
        return DocumentCheck::Absent;
    };
    match checksum(covered) {
        computed if computed == stored => DocumentCheck::Correct,
        computed => DocumentCheck::Wrong { stored, computed },
    }
}

/// Renders the whole file.
pub(crate) fn render(identity: &TraceIdentity, classes: &[StreamClass], format: u32) -> String {
    let mut text = String::new();
    let has_checksums = format >= FIRST_FORMAT_WITH_CHECKSUMS;
    trace(&mut text, identity, has_checksums);
    for (id, class) in classes.iter().enumerate() {
        stream(&mut text, id, class, format >= FIRST_FORMAT_WITH_NUMBERS);
    }
    if has_checksums {
        let digits = checksum(text.as_bytes());
        let _ = writeln!(text, "{CHECKSUM_LINE}{digits:08x}");
    }
    text
}

fn trace(text: &mut String, identity: &TraceIdentity, has_checksums: bool) {
    let (trailer_bytes, checksum) = match has_checksums {
        true => (
            44,
            ", u32 checksum\n// (CRC-32C of all bytes of the packet that precede it)",
        ),
        false => (40, ""),
    };
    let order = if cfg!(target_endian = "little") {
        "le"
    } else {
        "be"
    };
    let uuid = match &identity.uuid {
        Some(uuid) => format!("    uuid = \"{}\";\n", uuid_text(uuid)),
        None => String::new(),
    };
    let causes: Vec<_> = cause_numbers()
        .map(|(number, name)| format!("{number} {name}"))
        .collect();
    let (offset_s, offset_ns) = (
        identity.realtime_offset.as_ns() / 1_000_000_000,
        identity.realtime_offset.as_ns() % 1_000_000_000,
    );
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        r#"/* CTF 1.8 */

// Recorded by Overhear. Units, origins and rates of the streams are in overhear/streams.json. The
// last {trailer_bytes} bytes of each packet, behind its content, say where it stands in its stream:
// u64 first sequence, u64 missed, u64 from, u64 to, u32 cause of the gap, u32 bytes of a
// record{checksum}.
// Causes: 0 no gap, {causes}.

typealias integer {{ size = 8; align = 8; signed = false; base = 10; }} := uint8_t;
typealias integer {{ size = 16; align = 8; signed = false; base = 10; }} := uint16_t;
typealias integer {{ size = 32; align = 8; signed = false; base = 10; }} := uint32_t;
typealias integer {{ size = 64; align = 8; signed = false; base = 10; }} := uint64_t;
typealias integer {{ size = 8; align = 8; signed = true; base = 10; }} := int8_t;
typealias integer {{ size = 16; align = 8; signed = true; base = 10; }} := int16_t;
typealias integer {{ size = 32; align = 8; signed = true; base = 10; }} := int32_t;
typealias integer {{ size = 64; align = 8; signed = true; base = 10; }} := int64_t;
typealias floating_point {{ exp_dig = 8; mant_dig = 24; align = 8; }} := float32_t;
typealias floating_point {{ exp_dig = 11; mant_dig = 53; align = 8; }} := float64_t;
typealias integer {{ size = 8; align = 8; signed = false; encoding = UTF8; base = 10; }} := utf8_t;

trace {{
    major = 1;
    minor = 8;
    byte_order = {order};
{uuid}    packet.header := struct {{
        uint32_t magic;
        uint32_t stream_id;
        uint64_t stream_instance_id;
    }};
}};

env {{
    tracer_name = "overhear";
    tracer_major = {major};
    tracer_minor = {minor};
    tracer_patch = {patch};
    hostname = "{hostname}";
}};

clock {{
    name = monotonic;
    description = "CLOCK_MONOTONIC";
    freq = 1000000000;
    offset_s = {offset_s};
    offset = {offset_ns};
    absolute = true;
}};

typealias integer {{
    size = 64; align = 8; signed = false; base = 10;
    map = clock.monotonic.value;
}} := monotonic_t;
"#,
        causes = causes.join(", "),
        major = env!("CARGO_PKG_VERSION_MAJOR"),
        minor = env!("CARGO_PKG_VERSION_MINOR"),
        patch = env!("CARGO_PKG_VERSION_PATCH"),
        hostname = literal(&identity.hostname),
    );
}

fn stream(text: &mut String, id: usize, class: &StreamClass, has_number: bool) {
    let number = match has_number {
        true => "        uint64_t packet_seq_num;\n",
        false => "",
    };
    let origin = match class.context {
        ContextKind::Program => {
            format!("        uint32_t _pid;\n        utf8_t _comm[{COMM_BYTES}];\n")
        }
        ContextKind::Kernel => "        uint32_t cpu_id;\n".to_owned(),
        ContextKind::Sampler => String::new(),
    };
    let _ = write!(
        text,
        r#"
stream {{
    id = {id};
    packet.context := struct {{
        monotonic_t timestamp_begin;
        monotonic_t timestamp_end;
        uint64_t content_size;
        uint64_t packet_size;
        uint64_t events_discarded;
{number}        uint32_t _stream;
{origin}    }};
    event.header := struct {{
        monotonic_t timestamp;
    }};
}};

event {{
    name = "{name}"; // of type {type_id}
    id = 0;
    stream_id = {id};
    fields := struct {{
"#,
        name = literal(&class.sensor),
        type_id = class.schema.id(),
    );
    for field in class.schema.fields() {
        let (kind, length) = match field.kind {
            FieldKind::U8 => ("uint8_t", None),
            FieldKind::U16 => ("uint16_t", None),
            FieldKind::U32 => ("uint32_t", None),
            FieldKind::U64 => ("uint64_t", None),
            FieldKind::I8 => ("int8_t", None),
            FieldKind::I16 => ("int16_t", None),
            FieldKind::I32 => ("int32_t", None),
            FieldKind::I64 => ("int64_t", None),
            FieldKind::F32 => ("float32_t", None),
            FieldKind::F64 => ("float64_t", None),
            FieldKind::Text(bytes) => ("utf8_t", Some(bytes)),
        };
        let hexadecimal = format!(
            "integer {{ size = {}; align = 8; signed = false; base = 16; }}",
            8 * field.kind.size()
        );
        let kind = match field.unit.as_str() {
            HEXADECIMAL if length.is_none() => &hexadecimal,
            _ => kind,
        };
        // The underscore keeps names apart from TSDL's keywords; readers strip exactly one.
        let _ = write!(text, "        {kind} _{}", field.name);
        if let Some(length) = length {
            let _ = write!(text, "[{length}]");
        }
        text.push(';');
        if !["", HEXADECIMAL].contains(&field.unit.as_str()) {
            let _ = write!(text, " // {}", comment(&field.unit));
        }
        text.push('\n');
    }
    text.push_str("    };\n};\n");
}

/// The inside of a string literal.
fn literal(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                escaped.push('\\');
                escaped.push(character);
            }
            _ if character.is_control() => escaped.push('?'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The inside of a comment that ends with the line. For readers whose lexers follow C, a backslash
/// at its end would join the next line.
fn comment(text: &str) -> String {
    text.replace('\\', "/")
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{literal, uuid_text};

    #[test]
    fn literals_cannot_be_left() {
        assert_eq!(literal("a\"b\\c\nd"), "a\\\"b\\\\c?d");
    }

    #[test]
    fn uuids_have_four_dashes() {
        assert_eq!(
            uuid_text(&[0xAB; 16]),
            "abababab-abab-abab-abab-abababababab"
        );
    }
}
