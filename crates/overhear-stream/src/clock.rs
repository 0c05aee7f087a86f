// SPDX-License-Identifier: MIT OR Apache-2.0
//! From stamps to time: segments, how they are fitted, how they are applied.
//!
//! Sensors stamp with a hardware counter because that is nearly all of their cost; everything
//! above works in nanoseconds of `CLOCK_MONOTONIC`. The directory measures pairs of both clocks
//! every 100 ms and publishes straight *segments* that connect them. Three properties make the
//! conversion usable while it is being refined:
//!
//! - *Never revised*: a segment begins a little in the future, so no stamp that it covers has
//!   been converted by its predecessor. Live evaluation and replay see the same times.
//! - *Continuous and monotone*: a segment begins where its predecessor ends there, and its slope
//!   is positive. An error that was found is not jumped over but worked off along the next
//!   segment, so elements never change their order.
//! - *Valid while no directory continues it*: a segment whose slope differs from the measured one,
//!   because it works off an error, is followed by one with the measured slope. A keeper may die
//!   behind every segment, and the next may come seconds later: the line has not overshot
//!   meanwhile.
//! - *Honest*: each segment states its error.
//!
//! When the two clocks have parted by more than a millisecond (suspend, a restored virtual
//! machine) a new *epoch* begins, with a jump. That is a gap in every stream.

use alloc::vec::Vec;

use overhear_event::{Nanos, Ticks, Timestamp};

/// Segments that the clock page holds: at one per 100 ms, 12.8 s of the past.
pub const CLOCK_PAGE_CAPACITY: u64 = 128;

/// Slopes are fractions of 2^SHIFT nanoseconds per tick: at 100 ms a rounding error of 0.1 fs per
/// tick makes less than a nanosecond.
const SHIFT: u32 = 40;
/// Clocks that part by more than this have begun a new epoch.
const EPOCH: Nanos = Nanos::from_ms(1);
/// The same for a keeper that continues the page of another: no measurement was made for a while.
const EPOCH_OF_SUCCESSOR: Nanos = Nanos::from_ms(2);
/// How far in the future a segment begins.
const LEAD: Nanos = Nanos::from_ms(5);
/// How often pairs are taken.
const INTERVAL: Nanos = Nanos::from_ms(100);
/// Within which time a segment works off the error found: it is over before the next one begins.
const CORRECTION: Nanos = Nanos::from_ms(80);
/// A slope that differs from the measured one by more than this part of it is not gone on with:
/// left alone for ten seconds, it would be 200 us off.
const TOLERATED: u64 = 50_000;
/// Distance of two pairs from which on a slope is measured.
const BASE: Nanos = Nanos::from_ms(20);
/// Pairs over which the slope is measured: at one per 100 ms, the last second.
const WINDOW: usize = 11;

/// A simultaneous reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// The hardware counter, in the middle of the bracket around the reading of the time.
    pub ticks: Ticks,
    /// `CLOCK_MONOTONIC`.
    pub time: Timestamp,
    /// Half of the bracket's width: by how much the pair can be wrong.
    pub error: Nanos,
}

/// A straight line from ticks to time, valid from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first stamp it covers.
    pub from: Ticks,
    /// The time of that stamp.
    pub time: Timestamp,
    /// Nanoseconds per tick, times 2^`shift`.
    pub mult: u64,
    /// See `mult`.
    pub shift: u32,
    /// By how much a converted time can be wrong, in nanoseconds.
    pub error_ns: u32,
    /// Counts the jumps of the clock since the directory started.
    pub epoch: u32,
}

impl Segment {
    /// Bytes of a segment in the clock page behind its stamp, which is `from`.
    pub const PAYLOAD_BYTES: u32 = 32;

    /// The time of a stamp. Stamps before `from` are extrapolated backwards.
    #[must_use]
    #[inline]
    pub fn convert(&self, stamp: Ticks) -> Timestamp {
        let (stamp, from) = (stamp.as_raw(), self.from.as_raw());
        // At most 2^64 * 2^64 >> shift: fits u128 before, is cut to u64 after the shift.
        let scale = |ticks: u64| {
            let span = (u128::from(ticks) * u128::from(self.mult)) >> self.shift.min(127);
            Nanos::from_ns(u64::try_from(span).unwrap_or(u64::MAX))
        };
        if stamp >= from {
            self.time.plus(scale(stamp - from))
        } else {
            self.time.minus(scale(from - stamp))
        }
    }

    /// The segment as the payload of an element of the clock page (`stream-layout.md`, section 7).
    #[must_use]
    pub fn to_payload(&self) -> [u8; Self::PAYLOAD_BYTES as usize] {
        let mut payload = [0; Self::PAYLOAD_BYTES as usize];
        payload[..8].copy_from_slice(&self.time.as_monotonic_ns().to_ne_bytes());
        payload[8..16].copy_from_slice(&self.mult.to_ne_bytes());
        payload[16..20].copy_from_slice(&self.shift.to_ne_bytes());
        payload[20..24].copy_from_slice(&self.error_ns.to_ne_bytes());
        payload[24..28].copy_from_slice(&self.epoch.to_ne_bytes());
        payload
    }

    /// A segment from an element of the clock page; `None` if the payload has another size.
    #[must_use]
    pub fn parse(from: Ticks, payload: &[u8]) -> Option<Self> {
        if payload.len() != Self::PAYLOAD_BYTES as usize {
            return None;
        }
        let long = |at: usize| payload[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
        let short = |at: usize| payload[at..at + 4].try_into().map(u32::from_ne_bytes).ok();
        Some(Self {
            from,
            time: Timestamp::from_monotonic_ns(long(0)?),
            mult: long(8)?,
            shift: short(16)?,
            error_ns: short(20)?,
            epoch: short(24)?,
        })
    }
}

/// The segments known so far, to convert with.
#[derive(Clone, Debug, Default)]
pub struct ClockMap {
    // Ascending by `from` within an epoch, by epoch first.
    segments: Vec<Segment>,
}

impl ClockMap {
    /// A map without segments; it converts nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            segments: Vec::new(),
        }
    }

    /// A map without segments, with room for `capacity` of them.
    #[must_use]
    pub fn with_room(segments: usize) -> Self {
        Self {
            segments: Vec::with_capacity(segments),
        }
    }

    /// Adds the segment that was published next.
    pub fn push(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    /// Forgets segments that end before `time`, so that a long run needs bounded memory.
    pub fn forget_before(&mut self, time: Timestamp) {
        let keep = self
            .segments
            .iter()
            .rposition(|segment| segment.time <= time)
            .unwrap_or(0);
        self.segments.drain(..keep);
    }

    /// The newest segment.
    #[must_use]
    pub fn last(&self) -> Option<&Segment> {
        self.segments.last()
    }

    /// All segments known, oldest first.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The time of a stamp, `None` without segments. Stamps older than all segments are
    /// extrapolated from the oldest of the current epoch.
    #[must_use]
    #[inline]
    pub fn convert(&self, stamp: Ticks) -> Option<Timestamp> {
        let newest = self.segments.last()?;
        if newest.from <= stamp {
            return Some(newest.convert(stamp)); // Nearly always.
        }
        let begin = self
            .segments
            .partition_point(|segment| segment.epoch != newest.epoch);
        let current = &self.segments[begin..];
        let covering = current.partition_point(|segment| segment.from <= stamp);
        current
            .get(covering.saturating_sub(1))
            .map(|segment| segment.convert(stamp))
    }
}

/// Fits segments to pairs. Pure: pairs come in, segments go out.
#[derive(Clone, Debug)]
pub struct ClockFit {
    pairs: Vec<ClockPair>,
    // The segment before `current`, in force until that begins.
    before: Segment,
    // The segment that was published last.
    current: Segment,
    // The slope that was measured last.
    mult: u64,
    // From which difference on the clocks have parted.
    tolerance: Nanos,
}

impl ClockFit {
    /// Begins with the slope between two pairs. The further apart they are, the smaller the
    /// error: 20 ms suffice for a millionth.
    ///
    /// `None` if the counter did not advance between them: it cannot be used as a clock.
    #[must_use]
    pub fn begin(first: ClockPair, second: ClockPair) -> Option<Self> {
        let mult = slope(&first, &second)?;
        let error_ns = drift(&first, &second).saturating_add(bound(second.error));
        let current = Segment {
            from: first.ticks,
            time: first.time,
            mult,
            shift: SHIFT,
            error_ns,
            epoch: 0,
        };
        Some(Self {
            pairs: alloc::vec![first, second],
            before: current,
            current,
            mult,
            tolerance: EPOCH,
        })
    }

    /// Continues after the segments of a keeper that has ended, oldest first;
    /// `None` without any. The oldest one of their epoch is a pair, too, and a distant one: the
    /// slope is known at once. If the clocks have parted meanwhile, the first observation begins a
    /// new epoch.
    #[must_use]
    pub fn resume(published: &[Segment]) -> Option<Self> {
        let current = *published.last()?;
        let same = |segment: &&Segment| segment.epoch == current.epoch;
        let oldest = published.iter().find(same)?;
        let before = published.iter().rev().filter(same).nth(1);
        let oldest = ClockPair {
            ticks: oldest.from,
            time: oldest.time,
            error: Nanos::from_ns(oldest.error_ns.into()),
        };
        Some(Self {
            pairs: alloc::vec![oldest],
            before: before.copied().unwrap_or(current),
            current,
            mult: current.mult,
            tolerance: EPOCH_OF_SUCCESSOR,
        })
    }

    /// The segment that was published last; it may not have begun yet.
    #[must_use]
    pub const fn current(&self) -> &Segment {
        &self.current
    }

    /// The time of a stamp by what is published.
    fn convert(&self, stamp: Ticks) -> Timestamp {
        match self.current.from <= stamp {
            true => self.current.convert(stamp),
            false => self.before.convert(stamp),
        }
    }

    /// Takes the next pair and returns the segments to publish, one or two, in their order. The
    /// first begins 5 ms after the pair; a caller that comes later than that must throw them away
    /// and measure again.
    pub fn observe(&mut self, pair: ClockPair) -> Vec<Segment> {
        let predicted = self.convert(pair.ticks);
        let off = pair
            .time
            .since(predicted)
            .as_ns()
            .max(predicted.since(pair.time).as_ns());
        let newest = self.pairs.last().copied().unwrap_or(pair);
        let stepped_back = pair.ticks < newest.ticks || pair.time < newest.time;
        let tolerance = core::mem::replace(&mut self.tolerance, EPOCH);
        if off > tolerance.as_ns() || stepped_back {
            return alloc::vec![self.begin_epoch(pair)];
        }
        self.pairs.push(pair);
        if self.pairs.len() > WINDOW {
            self.pairs.remove(0);
        }
        let oldest = self.pairs[0];
        if pair.time.since(oldest.time) >= BASE {
            let Some(mult) = slope(&oldest, &pair) else {
                return alloc::vec![self.begin_epoch(pair)];
            };
            self.mult = mult;
        }
        let mult = self.mult;
        // The line through the newest pair with the measured slope is the best guess; the segment
        // starts on the old line and meets the guess a while later.
        let guess = Segment {
            from: pair.ticks,
            time: pair.time,
            mult,
            ..self.current
        };
        let ticks_in = |span: Nanos| {
            let ticks = (u128::from(span.as_ns()) << SHIFT) / u128::from(mult.max(1));
            u64::try_from(ticks).unwrap_or(u64::MAX)
        };
        let ahead = Ticks::from_raw(pair.ticks.as_raw().saturating_add(ticks_in(LEAD)));
        // One that has not begun yet is not gone behind: it is replaced where it begins.
        let from = ahead.max(self.current.from);
        let goal = Ticks::from_raw(from.as_raw().saturating_add(ticks_in(CORRECTION)));
        let time = self.convert(from);
        let rise = guess.convert(goal).since(time).as_ns();
        let run = (goal.as_raw() - from.as_raw()).max(1);
        let meeting = ((u128::from(rise) << SHIFT) / u128::from(run)) as u64;
        // The tolerance bounds the error to a few per cent of the time; the clamp guards the
        // arithmetic.
        let meeting = meeting.clamp(mult - mult / 50, mult + mult / 50);
        let error_ns = bound(Nanos::from_ns(off))
            .saturating_add(bound(pair.error))
            .saturating_add(drift(&oldest, &pair));
        let correction = Segment {
            from,
            time,
            mult: meeting,
            error_ns,
            ..self.current
        };
        self.before = self.convert_from(correction);
        self.current = correction;
        let mut published = alloc::vec![correction];
        if meeting.abs_diff(mult) > mult / TOLERATED {
            let plain = Segment {
                from: goal,
                time: correction.convert(goal),
                mult,
                ..correction
            };
            self.before = correction;
            self.current = plain;
            published.push(plain);
        }
        published
    }

    /// The segment that is in force until this one begins.
    fn convert_from(&self, next: Segment) -> Segment {
        match self.current.from < next.from {
            true => self.current,
            false => self.before,
        }
    }

    fn begin_epoch(&mut self, pair: ClockPair) -> Segment {
        self.pairs.clear();
        self.pairs.push(pair);
        let error_ns = bound(pair.error).saturating_add(u32::from(u16::MAX));
        let epoch = self.current.epoch.wrapping_add(1);
        self.current = Segment {
            from: pair.ticks,
            time: pair.time,
            mult: self.mult,
            error_ns,
            epoch,
            ..self.current
        };
        self.before = self.current;
        self.current
    }
}

/// Nanoseconds per tick between two pairs, times 2^SHIFT.
fn slope(first: &ClockPair, second: &ClockPair) -> Option<u64> {
    let ticks = second.ticks.as_raw().checked_sub(first.ticks.as_raw())?;
    let time = second.time.since(first.time).as_ns();
    if ticks == 0 || time == 0 {
        return None;
    }
    u64::try_from((u128::from(time) << SHIFT) / u128::from(ticks))
        .ok()
        .filter(|&mult| mult > 0)
}

/// By how much a line through two uncertain pairs can have moved after another LEAD + INTERVAL.
fn drift(first: &ClockPair, second: &ClockPair) -> u32 {
    let base = second.time.since(first.time).max(BASE).as_ns();
    let ahead = LEAD.plus(INTERVAL).as_ns();
    let error = first.error.plus(second.error).as_ns();
    bound(Nanos::from_ns(error.saturating_mul(ahead) / base))
}

fn bound(span: Nanos) -> u32 {
    u32::try_from(span.as_ns())
        .unwrap_or(u32::MAX)
        .saturating_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use overhear_event::{Nanos, Ticks, Timestamp};
    use proptest::prelude::{prop, prop_assert, proptest, ProptestConfig};

    use super::{ClockFit, ClockMap, ClockPair, Segment};

    /// A counter at 2.5 GHz (plus `ppm`) that began at 1,000,000 when the time was 5 s.
    fn pair(at_ns: u64, ppm: i64, noise: i64) -> ClockPair {
        let ticks = (at_ns as i128 * 5 / 2) * (1_000_000 + i128::from(ppm)) / 1_000_000;
        ClockPair {
            ticks: Ticks::from_raw(1_000_000 + ticks as u64),
            time: Timestamp::from_monotonic_ns((5_000_000_000 + at_ns as i64 + noise) as u64),
            error: Nanos::from_ns(20),
        }
    }

    const MS: u64 = 1_000_000;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn segments_are_monotone_continuous_and_as_exact_as_they_say(
            noises in prop::collection::vec(-20_i64..=20, 3..60),
            ppm in -200_i64..200,
            wander in -20_i64..20,
        ) {
            let mut fit = ClockFit::begin(pair(0, ppm, 0), pair(20 * MS, ppm, noises[0])).unwrap();
            let mut map = ClockMap::new();
            map.push(*fit.current());
            let mut at = 20 * MS;
            let mut last = Timestamp::ZERO;
            for (step, noise) in noises.into_iter().enumerate() {
                at += 100 * MS;
                // The counter's rate wanders after a second, as it does when it is slewed.
                let slew = if step > 10 { wander * (at - 1_000 * MS) as i64 / 1_000_000_000 } else { 0 };
                let observed = pair(at, ppm, noise + slew);
                let before = *fit.current();
                let segments = fit.observe(observed);
                let segment = segments[0];
                assert_eq!(segment.epoch, 0);
                assert_eq!(segment.convert(segment.from), before.convert(segment.from));
                segments.into_iter().for_each(|segment| map.push(segment));
                for step in 0..20 {
                    let truth = pair(at + 5 * MS + step * 5 * MS, ppm, slew);
                    let time = map.convert(truth.ticks).unwrap();
                    assert!(time >= last, "time went back");
                    last = time;
                    let off = time.since(truth.time).as_ns().max(truth.time.since(time).as_ns());
                    let allowed = u64::from(segment.error_ns) + 40;
                    assert!(off <= allowed, "{off} ns off, {allowed} allowed");
                }
            }
        }
    }

    /// Keepers that are killed at any moment, and others that go on: what each of them publishes,
    /// and how far it is off at most, in nanoseconds, at any time from the first publication on.
    fn killed_again_and_again(lives: &[(u64, u64, i64)], ppm: i64) -> (ClockMap, u64) {
        let mut fit = ClockFit::begin(pair(0, ppm, 0), pair(20 * MS, ppm, 0)).unwrap();
        let mut map = ClockMap::new();
        map.push(*fit.current());
        let (mut at, mut worst, mut last) = (21 * MS, 0, Timestamp::ZERO);
        let mut look = |map: &ClockMap, from: u64, until: u64| {
            for step in 0..20 {
                let truth = pair(from + (until - from) * step / 20, ppm, 0);
                let time = map.convert(truth.ticks).unwrap();
                assert!(time >= last, "time went back");
                last = time;
                let off = time
                    .since(truth.time)
                    .as_ns()
                    .max(truth.time.since(time).as_ns());
                worst = worst.max(off);
            }
        };
        for &(life, pause, noise) in lives {
            let end = at + life * MS;
            loop {
                for segment in fit.observe(pair(at, ppm, noise)) {
                    map.push(segment);
                }
                if at + 100 * MS > end {
                    break;
                }
                look(&map, at, at + 100 * MS);
                at += 100 * MS;
            }
            look(&map, at, end + pause * MS);
            at = end + pause * MS;
            fit = ClockFit::resume(map.segments()).unwrap();
        }
        (map, worst)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// However often and when keepers are killed, the clock has no break and is not off by more
        /// than its readings are.
        #[test]
        fn keepers_may_be_killed_at_any_moment(
            lives in prop::collection::vec((0_u64..400, 1_u64..3_000, -300_i64..300), 1..200),
            ppm in -50_i64..50,
        ) {
            let (map, worst) = killed_again_and_again(&lives, ppm);
            prop_assert!(map.segments().iter().all(|segment| segment.epoch == 0));
            prop_assert!(worst < 100_000, "{worst} ns off");
        }
    }

    #[test]
    fn jump_begins_an_epoch() {
        let mut fit = ClockFit::begin(pair(0, 0, 0), pair(20 * MS, 0, 0)).unwrap();
        let after = pair(100 * MS, 0, 2_000_000_000);
        let segments = fit.observe(after);
        let [segment] = segments[..] else {
            panic!("{segments:?}");
        };
        assert_eq!((segment.epoch, segment.time), (1, after.time));
        // A counter that restarted from zero, as after suspend.
        let reset = ClockPair {
            ticks: Ticks::from_raw(5),
            ..pair(200 * MS, 0, 2_000_000_000)
        };
        assert_eq!(fit.observe(reset)[0].epoch, 2);
        let mut map = ClockMap::new();
        map.push(segment);
        map.push(*fit.current());
        assert_eq!(map.convert(Ticks::from_raw(5)), Some(reset.time));
    }

    #[test]
    fn another_keeper_goes_on_with_the_line() {
        let mut fit = ClockFit::begin(pair(0, 0, 0), pair(20 * MS, 0, 0)).unwrap();
        let published = fit.observe(pair(120 * MS, 0, 5));
        let before = published[0];
        let mut next = ClockFit::resume(&published).unwrap();
        let after = next.observe(pair(700 * MS, 0, 0))[0];
        assert_eq!(after.epoch, before.epoch);
        assert_eq!(after.convert(after.from), before.convert(after.from));
        let truth = pair(1_000 * MS, 0, 0);
        let off = after.convert(truth.ticks).since(truth.time).as_ns();
        assert!(off <= u64::from(after.error_ns) + 40, "{off}");
        // The machine slept in between.
        let mut next = ClockFit::resume(&published).unwrap();
        assert_eq!(
            next.observe(pair(700 * MS, 0, 2_000_000_000))[0].epoch,
            before.epoch + 1
        );
        assert!(ClockFit::resume(&[]).is_none());
    }

    #[test]
    fn standing_counter_is_no_clock() {
        let standing = ClockPair {
            ticks: pair(0, 0, 0).ticks,
            ..pair(MS, 0, 0)
        };
        assert!(ClockFit::begin(pair(0, 0, 0), standing).is_none());
    }

    #[test]
    fn segments_travel_as_elements() {
        let fit = ClockFit::begin(pair(0, 3, 0), pair(20 * MS, 3, 0)).unwrap();
        let segment = *fit.current();
        assert_eq!(
            Segment::parse(segment.from, &segment.to_payload()),
            Some(segment)
        );
        assert_eq!(Segment::parse(segment.from, &[0; 31]), None);
    }

    #[test]
    fn old_segments_are_forgotten_but_the_one_in_force_is_kept() {
        let mut fit = ClockFit::begin(pair(0, 0, 0), pair(20 * MS, 0, 0)).unwrap();
        let mut map = ClockMap::new();
        map.push(*fit.current());
        for step in 1..50 {
            for segment in fit.observe(pair(20 * MS + step * 100 * MS, 0, 0)) {
                map.push(segment);
            }
        }
        let stamp = pair(4_000 * MS, 0, 0);
        let before = map.convert(stamp.ticks);
        map.forget_before(stamp.time);
        assert!(map.segments().len() < 12);
        assert_eq!(map.convert(stamp.ticks), before);
    }
}
