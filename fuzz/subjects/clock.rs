// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments from a clock page: any bytes convert any stamp without a panic, and parsed segments are
//! written again unchanged.

use overhear_event::Ticks;
use overhear_stream::{ClockMap, Segment};

/// Segments, where each begins, and stamps.
pub(crate) type Input = (Vec<(u64, [u8; 28])>, Vec<u64>);

/// Runs one input.
pub(crate) fn run((segments, stamps): Input) {
    let mut map = ClockMap::new();
    for (from, bytes) in segments {
        // The last four bytes are reserved and zero when written.
        let mut payload = [0; Segment::PAYLOAD_BYTES as usize];
        payload[..28].copy_from_slice(&bytes);
        let segment = Segment::parse(Ticks::from_raw(from), &payload).expect("the right size");
        assert_eq!(segment.to_payload(), payload);
        map.push(segment);
    }
    for stamp in stamps {
        let time = map.convert(Ticks::from_raw(stamp));
        assert_eq!(time.is_none(), map.segments().is_empty());
        if let Some(time) = time {
            map.forget_before(time);
            assert!(map.last().is_some());
        }
    }
}
