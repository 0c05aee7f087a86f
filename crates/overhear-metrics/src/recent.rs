// SPDX-License-Identifier: MIT OR Apache-2.0
//! The newest activity of sensors: rate, intervals and values in the last few seconds.
//!
//! Time is divided into *steps* of equal length. A step is complete once the watermark has passed
//! its end. The displayed window moves by whole steps, so that numbers do not flicker while a step
//! fills.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use overhear_admission::{AfterViolation, ArrivalBound, ConformanceCheck};
use overhear_event::{
    Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, Value,
};

use crate::histogram::Histogram;

/// Number of complete steps that are kept: the columns of a wide chart.
pub const KEPT_STEPS: usize = 120;

/// One complete step of one sensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Whether the sensor was observed during the whole step; in its first step it usually was not.
    pub whole: bool,
    /// Number of evaluated elements.
    pub elements: u64,
    /// Number of missed elements whose gap ended in this step.
    pub missed: u64,
    /// The newest value of each field at the end of the step; `None` for text, and before the first
    /// element.
    pub values: Vec<Option<f64>>,
}

/// The activity of one sensor, since the observation began and recently.
#[derive(Clone, Debug)]
pub struct RecentSensor {
    /// The sensor's stream; of a laned sensor, that of the first lane.
    pub stream: Arc<StreamDescriptor>,
    /// Number of evaluated elements since the observation began.
    pub elements: u64,
    /// Number of missed elements since then.
    pub missed: u64,
    /// Number of gaps since then. A gap without missed elements is damage of unknown extent.
    pub gaps: u64,
    /// Time of the newest element.
    pub last: Option<Timestamp>,
    payload: Vec<u8>,
    check: Option<ConformanceCheck>,
    // Whether elements were missed since the last element.
    lost: u64,
    interrupted: bool,
    // Begin of the first step that counts: a new sensor has no long past.
    since: Timestamp,
    steps: VecDeque<Step>,
    filling: Step,
    // Intervals in the window: those of its newer and of its older half.
    newer: Histogram,
    older: Histogram,
}

impl RecentSensor {
    fn new(stream: Arc<StreamDescriptor>, since: Timestamp) -> Self {
        // A rate that was not built by its constructor has no bounds that could be checked.
        let constraint = stream
            .rate
            .as_ref()
            .and_then(|rate| ArrivalBound::from_rate(rate).ok());
        Self {
            check: constraint.map(|s| ConformanceCheck::new(s, AfterViolation::Restart)),
            stream,
            elements: 0,
            missed: 0,
            gaps: 0,
            last: None,
            payload: Vec::new(),
            lost: 0,
            interrupted: false,
            since,
            steps: VecDeque::new(),
            filling: Step::default(),
            newer: Histogram::new(),
            older: Histogram::new(),
        }
    }

    /// Number of elements earlier than the declared (T, D, tau) permits; `None` without a declared
    /// rate.
    #[must_use]
    pub fn too_early(&self) -> Option<u64> {
        self.check.as_ref().map(ConformanceCheck::violations)
    }

    /// The complete steps that are kept, oldest first.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.steps.iter()
    }

    /// Distances of neighbouring elements in the last window or slightly less, in nanoseconds; not
    /// across gaps.
    #[must_use]
    pub fn intervals(&self) -> Histogram {
        let mut both = self.older.clone();
        both.add(&self.newer);
        both
    }

    /// The value of field `index` in the newest element.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<Value<'_>> {
        self.last?;
        self.stream.schema.read(index, &self.payload)
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        self.filling.elements += 1;
        if let Some(last) = self.last.filter(|_| !self.interrupted) {
            self.newer.record(element.time.since(last).as_ns());
        }
        let lost = std::mem::take(&mut self.lost);
        self.interrupted = false;
        if let Some(check) = &mut self.check {
            let _ = check.push_after_loss(element.time, lost);
        }
        self.last = Some(element.time);
        self.payload.clear();
        self.payload.extend_from_slice(element.payload);
    }

    fn gap(&mut self, gap: &Gap) {
        self.missed = self.missed.saturating_add(gap.missed);
        self.filling.missed = self.filling.missed.saturating_add(gap.missed);
        self.lost = self.lost.saturating_add(gap.missed);
        self.gaps += 1;
        self.interrupted = true;
    }

    fn end_step(&mut self, begin: Timestamp) {
        let fields = self.stream.schema.fields().len();
        let mut step = std::mem::take(&mut self.filling);
        step.whole = self.since <= begin;
        step.values = (0..fields)
            .map(|index| self.value(index)?.as_f64())
            .collect();
        if self.steps.len() == KEPT_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }
}

/// Follows every sensor of every program in steps. The lanes of a sensor are one sensor.
#[derive(Clone, Debug)]
pub struct RecentSensors {
    step: Nanos,
    window: usize,
    // Number of the current step; `None` before the first item.
    filling: Option<u64>,
    sensors: BTreeMap<StreamId, RecentSensor>,
}

impl RecentSensors {
    /// Steps of length `step`, and a window of `window` steps for rates and intervals. Both are at
    /// least one (nanosecond, step); the window is at most [`KEPT_STEPS`].
    #[must_use]
    pub fn new(step: Nanos, window: usize) -> Self {
        Self {
            step: Nanos::from_ns(step.as_ns().max(1)),
            window: window.clamp(1, KEPT_STEPS),
            filling: None,
            sensors: BTreeMap::new(),
        }
    }

    /// The sensors in the order of registration, each with the number of its first stream.
    pub fn sensors(&self) -> impl Iterator<Item = (StreamId, &RecentSensor)> {
        self.sensors.iter().map(|(id, sensor)| (*id, sensor))
    }

    /// Announces a sensor, so that it is listed even if it never writes.
    pub fn announce(&mut self, stream: &Arc<StreamDescriptor>, now: Timestamp) {
        if matches!(stream.origin, Origin::Program(_)) {
            self.roll_to(now);
            self.sensors
                .entry(stream.first_stream())
                .or_insert_with(|| RecentSensor::new(Arc::clone(stream), now));
        }
    }

    /// Removes a sensor; if it writes again, it starts anew.
    pub fn forget(&mut self, id: StreamId) {
        self.sensors.remove(&id);
    }

    /// Elements per second over the complete steps of the window, missed ones included; `None`
    /// before the first step is complete.
    #[must_use]
    pub fn rate_hz(&self, sensor: &RecentSensor) -> Option<f64> {
        let end = Timestamp::from_monotonic_ns(self.filling?.saturating_mul(self.step.as_ns()));
        let steps = sensor.steps.len().min(self.window);
        let length = self.step.as_ns().saturating_mul(steps as u64);
        let begin = end.minus(Nanos::from_ns(length)).max(sensor.since);
        let span = end.since(begin).as_ns();
        let elements = sensor.steps.iter().rev().take(steps).fold(0, |sum, step| {
            step.elements
                .saturating_add(step.missed)
                .saturating_add(sum)
        });
        (span > 0).then(|| elements as f64 * 1e9 / span as f64)
    }

    /// The length of a step.
    #[must_use]
    pub const fn step(&self) -> Nanos {
        self.step
    }

    /// Completes all steps that end at `now` or before.
    fn roll_to(&mut self, now: Timestamp) {
        let number = now.as_monotonic_ns() / self.step.as_ns();
        let Some(filling) = self.filling else {
            self.filling = Some(number);
            return;
        };
        if number <= filling {
            return;
        }
        self.filling = Some(number);
        // After a pause that is longer than the kept steps, all of them are empty.
        let steps = (number - filling).min(KEPT_STEPS as u64 + 1);
        let half = (self.window as u64).div_ceil(2);
        // Halves change if the number of the step is a multiple of half the window.
        let turns = number / half - filling / half;
        for sensor in self.sensors.values_mut() {
            for ended in number - steps..number {
                let begin = ended.saturating_mul(self.step.as_ns());
                sensor.end_step(Timestamp::from_monotonic_ns(begin));
            }
            if turns > 0 {
                sensor.older = std::mem::take(&mut sensor.newer);
            }
            if turns > 1 {
                sensor.older = Histogram::new();
            }
        }
    }

    fn sensor(&mut self, stream: &StreamDescriptor, now: Timestamp) -> Option<&mut RecentSensor> {
        if !matches!(stream.origin, Origin::Program(_)) {
            return None;
        }
        self.roll_to(now);
        Some(
            self.sensors
                .entry(stream.first_stream())
                .or_insert_with(|| RecentSensor::new(Arc::new(stream.clone()), now)),
        )
    }
}

impl Analysis for RecentSensors {
    fn element(&mut self, element: &ElementView<'_>) {
        if let Some(sensor) = self.sensor(element.stream, element.time) {
            sensor.element(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some(sensor) = self.sensor(stream, gap.to) {
            sensor.gap(gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        // The last advance of an observation means that no item comes any more; no time passes.
        if now != Timestamp::MAX {
            self.roll_to(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, Rate, StreamDescriptor,
        StreamId, Timestamp, TypeSchema, Value,
    };

    use super::{RecentSensors, Step, KEPT_STEPS};

    const STEP: Nanos = Nanos::from_ms(500);

    fn stream(id: u32, lane: Option<u32>) -> StreamDescriptor {
        let schema = TypeSchema::builder("t")
            .field("value", FieldKind::I32, "m")
            .field("name", FieldKind::Text(4), "")
            .build()
            .unwrap();
        let ms = Nanos::from_ms;
        StreamDescriptor {
            id: StreamId::from_raw(id),
            origin: Origin::program(1, "p"),
            sensor: "s".to_string(),
            instance: String::new(),
            lane,
            schema: Arc::new(schema),
            rate: Some(Rate::new(ms(100), ms(50), ms(20)).unwrap()),
            capacity: 64,
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ms * 1_000_000)
    }

    fn write(recent: &mut RecentSensors, stream: &StreamDescriptor, ms: u64, value: i32) {
        let mut payload = value.to_ne_bytes().to_vec();
        payload.extend(b"abc\0");
        recent.element(&ElementView {
            stream,
            sequence: 0,
            time: at(ms),
            payload: &payload,
        });
    }

    fn miss(recent: &mut RecentSensors, stream: &StreamDescriptor, ms: u64, missed: u64) {
        let gap = Gap {
            stream: stream.id,
            first: 0,
            missed,
            from: at(0),
            to: at(ms),
            cause: GapCause::Overwritten,
        };
        recent.gap(stream, &gap);
    }

    #[test]
    fn rates_cover_complete_steps_and_missed_elements() {
        let mut recent = RecentSensors::new(STEP, 4);
        let s = stream(7, None);
        recent.announce(&Arc::new(s.clone()), at(10_000));
        for i in 0..5 {
            write(&mut recent, &s, 10_000 + 100 * i, i as i32);
        }
        let rate = |recent: &RecentSensors| {
            let (_, sensor) = recent.sensors().next().unwrap();
            recent.rate_hz(sensor)
        };
        assert_eq!(rate(&recent), None, "the first step is not complete");
        recent.advance(at(10_500));
        assert_eq!(rate(&recent), Some(10.0));
        miss(&mut recent, &s, 10_600, 3);
        write(&mut recent, &s, 10_600, 9);
        recent.advance(at(11_000));
        assert_eq!(rate(&recent), Some(9.0));
        // Silence: the window moves on.
        recent.advance(at(13_000));
        assert_eq!(rate(&recent), Some(0.0));
        let (id, sensor) = recent.sensors().next().unwrap();
        assert_eq!(id, s.id);
        assert_eq!((sensor.elements, sensor.missed, sensor.gaps), (6, 3, 1));
        let steps: Vec<_> = sensor.steps().take(3).cloned().collect();
        let step = |elements, missed, value| Step {
            whole: true,
            elements,
            missed,
            values: vec![Some(value), None],
        };
        assert_eq!(steps, [step(5, 0, 4.0), step(1, 3, 9.0), step(0, 0, 9.0)]);
        assert_eq!(sensor.value(0), Some(Value::Signed(9)));
        assert_eq!(sensor.value(1), Some(Value::Text("abc")));
    }

    #[test]
    fn sensor_from_the_middle_of_a_step_has_its_full_rate() {
        let mut recent = RecentSensors::new(STEP, 10);
        let s = stream(7, None);
        recent.announce(&Arc::new(s.clone()), at(10_400));
        write(&mut recent, &s, 10_450, 1);
        recent.advance(at(10_501));
        let (_, sensor) = recent.sensors().next().unwrap();
        assert_eq!(recent.rate_hz(sensor), Some(10.0));
        recent.advance(at(11_000));
        let (_, sensor) = recent.sensors().next().unwrap();
        let whole: Vec<bool> = sensor.steps().map(|step| step.whole).collect();
        assert_eq!(whole, [false, true]);
    }

    #[test]
    fn intervals_are_recent_and_do_not_span_gaps() {
        let mut recent = RecentSensors::new(STEP, 4);
        let s = stream(7, None);
        let count = |recent: &RecentSensors| {
            let intervals = recent.sensors().next().unwrap().1.intervals();
            (intervals.count(), intervals.max())
        };
        write(&mut recent, &s, 1_000, 0);
        write(&mut recent, &s, 1_100, 0);
        miss(&mut recent, &s, 1_300, 1);
        write(&mut recent, &s, 1_300, 0);
        write(&mut recent, &s, 1_450, 0);
        assert_eq!(count(&recent), (2, Some(150_000_000)));
        // After half a window they are old, after a whole one they are removed.
        recent.advance(at(2_000));
        assert_eq!(count(&recent), (2, Some(150_000_000)));
        recent.advance(at(3_000));
        assert_eq!(count(&recent), (0, None));
        write(&mut recent, &s, 3_010, 0);
        recent.advance(at(30_000));
        assert_eq!(count(&recent), (0, None));
    }

    #[test]
    fn elements_before_their_declared_time_are_counted() {
        // T = 100 ms, D = 50 ms, tau = 20 ms.
        let mut recent = RecentSensors::new(STEP, 4);
        let s = stream(7, None);
        for ms in [1_000, 1_100, 1_180, 1_220] {
            write(&mut recent, &s, ms, 0);
        }
        let early = |recent: &RecentSensors| recent.sensors().next().unwrap().1.too_early();
        assert_eq!(
            early(&recent),
            Some(1),
            "1220 is 40 ms after the one before"
        );
        // Three were missed: four periods may lie before the next one.
        miss(&mut recent, &s, 1_700, 3);
        write(&mut recent, &s, 1_620, 0);
        assert_eq!(early(&recent), Some(1));
        let undeclared = StreamDescriptor {
            rate: None,
            ..stream(2, None)
        };
        write(&mut recent, &undeclared, 1_800, 0);
        assert_eq!(early(&recent), None);
    }

    #[test]
    fn lanes_are_one_sensor_and_pauses_take_no_memory() {
        let mut recent = RecentSensors::new(STEP, 4);
        write(&mut recent, &stream(20, Some(0)), 1_000, 0);
        write(&mut recent, &stream(22, Some(2)), 1_040, 5);
        assert_eq!(recent.sensors().count(), 1);
        recent.advance(Timestamp::from_monotonic_ns(u64::MAX - 1));
        recent.advance(Timestamp::MAX);
        let (id, sensor) = recent.sensors().next().unwrap();
        assert_eq!((id.as_raw(), sensor.elements), (20, 2));
        assert_eq!(sensor.steps().count(), KEPT_STEPS);
        recent.forget(id);
        assert_eq!(recent.sensors().count(), 0);
    }
}
