// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording in small packets, which the suites of damage change.

use overhear_event::{GapCause, Origin, StreamDescriptor};
use overhear_trace::TraceWriter;

use super::plan::gap;
use super::{at, descriptor, pair, pair_payload, program, Owned};

/// Bytes of the parts of a packet with pairs.
pub const HEAD: usize = 68;
pub const TRAILER: usize = 44;
pub const RECORD: usize = 24;

/// Elements of stream 1, and the number of missed elements of its gap.
pub const WRITTEN: u64 = 40 + 2;

pub fn streams() -> [StreamDescriptor; 2] {
    [
        descriptor(1, "a", Origin::Sampler, pair()),
        descriptor(2, "b", program(), pair()),
    ]
}

/// Writes both streams, from the sequence `first` on. Stream 1 has an empty packet, ten packets
/// with four elements each, and a gap after five of these. Its elements begin at 1,000 ns, and come
/// every 10 ns.
pub fn record_in_packets(writer: TraceWriter, first: u64) -> TraceWriter {
    let streams = streams();
    let mut writer = writer.with_packet_bytes(HEAD + 4 * RECORD + TRAILER);
    for number in 0..40 {
        if number == 20 {
            let missed = gap(streams[0].id, first + 20, 2, 1_191, 1_199, GapCause::Late);
            writer.gap(&streams[0], &missed).unwrap();
        }
        for stream in 1..=2 {
            let item = Owned::Element {
                stream,
                sequence: first + number + 2 * u64::from(number >= 20),
                time: at(1_000 + number * 10),
                payload: pair_payload(number).to_vec(),
            };
            item.give(&mut writer, &streams);
        }
    }
    writer
}
