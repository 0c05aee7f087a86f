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
pub(crate) fn settings(mask_interrupts: bool) -> [u8; 4] {
    u32::from(mask_interrupts).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{Life, Switch, Wake};

    use overhear_stream::{COUNTER_OFFSET, HEADER_SIZE};

    use super::{ENDED_OFFSET, LOST_INHERIT_OFFSET, LOST_NESTED_OFFSET};

    #[test]
    fn the_c_header_page_has_our_offsets() {
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

    /// `elements.h` asserts the same names and offsets (behind the stamp of 8 bytes).
    #[test]
    fn the_c_elements_have_the_fields_of_the_schemas() {
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
}
