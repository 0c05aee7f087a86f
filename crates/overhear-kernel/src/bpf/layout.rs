// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a ring's header page that are the kernel writer's own (`stream-layout.md`,
//! sections 2 and 5.4), and the settings the programs are loaded with.

/// Elements refused because the ring was busy.
pub(crate) const LOST_NESTED_OFFSET: usize = 136;
/// Children that could not be tracked.
pub(crate) const LOST_INHERIT_OFFSET: usize = 144;
/// EXITs (life ring) or last departures (switch ring).
pub(crate) const ENDED_OFFSET: usize = 152;

/// `struct settings` of the programs, as bytes.
pub(crate) fn settings(mask_interrupts: bool) -> [u8; 48] {
    let calls = [
        libc::SYS_futex,
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
    ];
    let mut bytes = [0; 48];
    let words = [u32::from(mask_interrupts)]
        .into_iter()
        .chain(calls.map(|call| u32::try_from(call).unwrap_or(u32::MAX)));
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{Life, Switch, Wake};

    use overhear_stream::{COUNTER_OFFSET, HEADER_SIZE};

    use crate::streams::Hook;

    use super::{ENDED_OFFSET, LOST_INHERIT_OFFSET, LOST_NESTED_OFFSET};

    #[test]
    fn c_header_page_has_the_same_offsets() {
        let header = include_str!("elements.h");
        assert!(header.contains(&format!("HEADER_BYTES = {HEADER_SIZE},")));
        for (field, offset) in [
            ("counter", COUNTER_OFFSET),
            ("lost_nested", LOST_NESTED_OFFSET),
            ("lost_inherit", LOST_INHERIT_OFFSET),
            ("ended", ENDED_OFFSET),
        ] {
            let line = format!("AT(ring_header, {field}, {offset});");
            assert!(header.contains(&line), "elements.h lacks `{line}`");
        }
    }

    /// The table of `monitor_index`, computed by its own rule.
    #[test]
    fn c_table_has_the_number_of_each_monitor() {
        const SEQUENCE: u64 = 0x03f7_9d71_b4cb_0a89;
        let header = include_str!("monitors.h");
        assert!(header.contains("0x03f79d71b4cb0a89ull >> 58"));
        let (_, table) = header.split_once(".numbers = {").unwrap();
        let (table, _) = table.split_once('}').unwrap();
        let numbers: Vec<u64> = table
            .split(',')
            .filter_map(|number| number.trim().parse().ok())
            .collect();
        assert_eq!(numbers.len(), 64);
        for number in 0..64 {
            let place = (1_u64 << number).wrapping_mul(SEQUENCE) >> 58;
            assert_eq!(numbers[place as usize], number);
        }
    }

    /// `elements.h` asserts the same names and offsets; the stamp of 8 bytes comes first.
    #[test]
    fn c_elements_have_the_fields_of_the_schemas() {
        let header = include_str!("elements.h");
        for (name, schema) in [
            ("switch_element", Switch::schema()),
            ("wake_element", Wake::schema()),
            ("life_element", Life::schema()),
        ] {
            for field in schema.fields() {
                let line = format!("AT({name}, {}, 8 + {});", field.name, field.offset);
                assert!(header.contains(&line), "elements.h lacks `{line}`");
            }
            let size = schema.size() + 8;
            let line = format!("_Static_assert(sizeof(struct {name}) == {size},");
            assert!(header.contains(&line), "elements.h lacks `{line}`");
        }
    }

    /// The structs of `sensors.h`, in the order of the hooks. C has no padding there, because the
    /// sizes are asserted and all members have the sizes of their schemas.
    #[test]
    fn other_c_elements_have_the_fields_of_the_schemas() {
        let header = include_str!("sensors.h");
        let bodies = header.split("_element {\n").skip(1);
        let bodies: Vec<&str> = bodies
            .map(|text| text.split_once("};").unwrap().0)
            .collect();
        assert_eq!(bodies.len(), Hook::OPTIONAL.len());
        for (body, hook) in bodies.into_iter().zip(Hook::OPTIONAL) {
            let members = body.lines().map(|line| {
                let member = line.split_once(';').unwrap().0.trim();
                let (kind, name) = member.rsplit_once(' ').unwrap();
                match name.strip_suffix("[16]") {
                    Some(name) => (name.to_owned(), 16),
                    None => (
                        name.to_owned(),
                        if matches!(kind, "u32" | "int") { 4 } else { 8 },
                    ),
                }
            });
            let schema = hook.schema();
            let mut offset = 8;
            let mut found = members.skip(1);
            for field in schema.fields() {
                let (name, bytes) = found.next().unwrap();
                assert_eq!(
                    (name.as_str(), offset),
                    (field.name.as_str(), 8 + field.offset)
                );
                offset += bytes;
            }
            assert!(found.next().is_none(), "{}", hook.sensor());
            assert_eq!(offset, 8 + schema.size(), "{}", hook.sensor());
        }
    }
}
