// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of a stream's stamps to times.

use overhear_event::{Nanos, Ticks, Timestamp};
use overhear_stream::{ClockMap, Segment};

/// Stamp and time of the last element.
pub(super) type Last = (Ticks, Timestamp);

/// Converts the stamps of one stream, one after the other.
///
/// Stamps that ascend become times that do not descend: where two segments meet, or a stamp was
/// converted before the segment that covers it was published, rounding could otherwise turn the
/// order of two neighbours by a nanosecond.
pub(super) struct Conversion<'a> {
    // None if stamps are times already.
    map: Option<&'a ClockMap>,
    // The newest segment, which covers nearly all stamps.
    newest: Option<Segment>,
    last: &'a mut Last,
}

impl<'a> Conversion<'a> {
    pub(super) fn new(map: Option<&'a ClockMap>, last: &'a mut Last) -> Self {
        let newest = map.and_then(ClockMap::last).copied();
        Self { map, newest, last }
    }

    /// The time of the next stamp.
    #[inline(always)]
    pub(super) fn time_of(&mut self, stamp: Ticks) -> Timestamp {
        if let Some(newest) = self.newest.filter(|newest| newest.from <= stamp) {
            let time = newest.convert(stamp);
            // Then rounding did not reverse the order.
            if time >= self.last.1 {
                *self.last = (stamp, time);
                return time;
            }
        }
        self.look_up(stamp)
    }

    #[inline(never)]
    fn look_up(&mut self, stamp: Ticks) -> Timestamp {
        let time = match self.map {
            None => Timestamp::from_monotonic_ns(stamp.as_raw()),
            Some(map) => {
                let time = map.convert(stamp).unwrap_or(Timestamp::ZERO);
                let (last_stamp, last_time) = *self.last;
                // The error of a converted time.
                let error = map.last().map_or(0, |segment| segment.error_ns);
                let was_rounded =
                    stamp >= last_stamp && last_time.since(time) <= Nanos::from_ns(error.into());
                if was_rounded {
                    time.max(last_time)
                } else {
                    time
                }
            }
        };
        *self.last = (stamp, time);
        time
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Ticks, Timestamp};
    use overhear_stream::{ClockMap, Segment};
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    use super::Conversion;

    proptest! {
        /// Segments that meet, overlap in rounding, and begin new epochs; stamps of any order
        /// around them.
        #[test]
        fn newest_segment_changes_no_time(
            segments in prop::collection::vec((0_u64..200, 0_u64..600, 1_u64..2_000, 0_u32..5, 0_u32..2), 0..5),
            stamps in prop::collection::vec(0_u64..1_000, 0..50),
        ) {
            let (mut from, mut epoch) = (0, 0);
            let mut map = ClockMap::new();
            for (step, time, mult, error_ns, jump) in segments {
                (from, epoch) = (from + step, epoch + jump);
                map.push(Segment {
                    from: Ticks::from_raw(from),
                    time: Timestamp::from_monotonic_ns(time),
                    mult,
                    shift: 10,
                    error_ns,
                    epoch,
                });
            }
            for map in [Some(&map), None] {
                let (mut quick, mut slow) = Default::default();
                let mut quick = Conversion::new(map, &mut quick);
                let mut slow = Conversion::new(map, &mut slow);
                for &stamp in &stamps {
                    let stamp = Ticks::from_raw(stamp);
                    prop_assert_eq!(quick.time_of(stamp), slow.look_up(stamp));
                    prop_assert_eq!(&quick.last, &slow.last);
                }
            }
        }
    }
}
