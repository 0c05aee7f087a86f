// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a guaranteed monitor, said before it runs.

use overhear_event::StreamDescriptor;
use overhear_monitor::Merge;
use overhear_stream::Geometry;

use super::Entry;
use crate::config::selection::Selection;
use crate::config::Config;
use crate::guaranteed::Counting;

/// Sensors of several threads name the writer of each element in front of its payload.
const WRITER_BYTES: u32 = 8;

/// What the monitor of this selection takes at most, if its sensors are as the file says.
pub(super) fn stated(config: &Config, entries: &[Entry<'_>], selection: &Selection) -> u64 {
    let streams = entries.iter().map(|entry| {
        let sensor = entry.config;
        let payload = sensor.payload.saturating_add(WRITER_BYTES);
        // One slot may be in the making, and capacities are powers of two.
        let capacity = entry.buffer.saturating_add(1).next_power_of_two();
        let own = ring_bytes(payload, capacity) + Merge::bytes_for(payload, capacity) as u64;
        own.saturating_mul(u64::from(sensor.lanes) * u64::from(entry.count))
    });
    let updates = config.updates.iter().enumerate();
    let counting =
        updates.filter(|(index, it)| selection.has_update(*index) && it.plugin.is_none());
    let counting = counting.map(|(_, update)| Counting::bytes_for(update.field.is_some()));
    streams.chain(counting).fold(0, u64::saturating_add)
}

/// The map of a stream's buffer.
pub(crate) fn mapped_bytes(stream: &StreamDescriptor) -> u64 {
    ring_bytes(stream.schema.size(), stream.capacity)
}

fn ring_bytes(payload: u32, capacity: u64) -> u64 {
    let geometry = Geometry::new(payload, capacity);
    // What is larger than a buffer can be does not come to exist.
    geometry.map_or(0, |geometry| geometry.bytes() as u64)
}
