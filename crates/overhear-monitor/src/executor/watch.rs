// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watches evaluations: how long each takes, how late each element is, whether sensors keep to their
//! streams. An [`Update`] that hands every item on to the updates it watches.
//!
//! The clock is read before the first update and after each one, so a step's length is that of one
//! evaluation, or of one evaluation and whatever preempted it. A length beyond the WCET is therefore
//! compared with the CPU time that passed, which is dear to read and is read only then: CPU time since
//! the last reading, less all time outside the step, is CPU time that the step surely took.

use std::cell::Cell;
use std::rc::Rc;

use overhear_admission::{AfterViolation, ConformanceCheck};
use overhear_event::{
    ElementView, EventSet, Gap, GapCause, Nanos, StreamDescriptor, StreamId, Timestamp, Update,
};

use super::guarantee::{Breach, BreachCause, Failure, FailureKind, Guarantee};
use super::terms::{SensorIndex, Terms, UpdateIndex};
use crate::clock::Clock;
use crate::sentinel::Watchfulness;

/// An update that is watched.
pub struct Watched<'a> {
    /// The evaluation.
    pub update: &'a mut dyn Update,
    /// The sensors whose elements it takes; `None` for all.
    pub sensors: Option<Vec<SensorIndex>>,
}

impl Watched<'_> {
    fn takes(&self, sensor: Option<SensorIndex>) -> bool {
        match (&self.sensors, sensor) {
            (None, _) => true,
            (Some(taken), Some(sensor)) => taken.contains(&sensor),
            (Some(_), None) => false,
        }
    }
}

/// The largest execution time of an update so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// How long it took.
    pub took: Nanos,
    /// For which element of its stream.
    pub element: u64,
    /// Whose element.
    pub sensor: Option<SensorIndex>,
    /// Elements that it has evaluated.
    pub elements: u64,
}

/// What was seen of one sensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SensorFigures {
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed, for whatever cause.
    pub missed: u64,
    /// The largest latency.
    pub latency: Nanos,
    /// Elements that were faster than the sensor's stream.
    pub exceeding: u64,
}

/// One sensor, live.
#[derive(Debug)]
struct Account {
    check: ConformanceCheck,
    // The first stream of the sensor that is evaluated under this term.
    stream: Option<StreamId>,
    // The time of its last element: until then it kept to its stream.
    last: Timestamp,
    // Elements that existed and were not seen since then.
    lost: u64,
    figures: SensorFigures,
}

type SensorOf<'a> = dyn Fn(&StreamDescriptor) -> Option<SensorIndex> + 'a;

/// Times updates and judges elements. See the module's text.
pub struct Watch<'a, C> {
    terms: &'a Terms,
    updates: Vec<(Watched<'a>, Longest)>,
    clock: C,
    sensor_of: Box<SensorOf<'a>>,
    accounts: Vec<Account>,
    // By first stream, ascending.
    streams: Vec<(StreamId, Option<SensorIndex>)>,
    guarantee: Guarantee,
    judging: bool,
    measuring: bool,
    // A reading of both clocks.
    reading: (Timestamp, Nanos),
    // The WCETs of all evaluations since the period began.
    spent: Rc<Cell<Nanos>>,
}

impl<'a, C: Clock> Watch<'a, C> {
    /// Watches `updates`, one for each of `terms.updates`. `sensor_of` says which sensor of the terms a
    /// stream belongs to.
    pub fn new(
        terms: &'a Terms,
        updates: Vec<Watched<'a>>,
        clock: C,
        sensor_of: impl Fn(&StreamDescriptor) -> Option<SensorIndex> + 'a,
    ) -> Self {
        let accounts = terms.sensors.iter().map(|sensor| Account {
            check: ConformanceCheck::new(sensor.constraint, AfterViolation::Ignore),
            stream: None,
            last: Timestamp::ZERO,
            lost: 0,
            figures: SensorFigures::default(),
        });
        let reading = (clock.now(), clock.cpu_time());
        Self {
            terms,
            updates: updates
                .into_iter()
                .map(|update| (update, Longest::default()))
                .collect(),
            clock,
            sensor_of: Box::new(sensor_of),
            accounts: accounts.collect(),
            streams: Vec::new(),
            guarantee: Guarantee::default(),
            judging: false,
            measuring: false,
            reading,
            spent: Rc::default(),
        }
    }

    /// Reads the CPU clock at every step: dearer, but what preempts an evaluation is never counted.
    #[must_use]
    pub fn measuring(mut self) -> Self {
        self.measuring = true;
        self
    }

    /// Judges from the first element on, for an executor that guarantees nothing: its latencies and what
    /// sensors exceed are of interest all the same.
    #[must_use]
    pub fn judging(mut self) -> Self {
        self.judging = true;
        self
    }

    /// Gets to know a stream. The first sensor that a term describes is evaluated under it; others were
    /// not counted by admission.
    fn admit(&mut self, stream: &StreamDescriptor) {
        let id = stream.first_stream();
        let Err(place) = self.streams.binary_search_by_key(&id, |(id, _)| *id) else {
            return;
        };
        let sensor = (self.sensor_of)(stream).filter(|sensor| {
            let account = self.accounts.get_mut(sensor.0);
            account.is_some_and(|account| *account.stream.get_or_insert(id) == id)
        });
        if self.judging && sensor.is_none() {
            let now = self.clock.now();
            self.guarantee.breach(Breach {
                from: now,
                at: now,
                cause: BreachCause::Unadmitted { stream: id },
            });
        }
        self.streams.insert(place, (id, sensor));
    }

    /// The sensor of the terms that a stream belongs to.
    pub(crate) fn sensor(&self, stream: &StreamDescriptor) -> Option<SensorIndex> {
        let id = stream.first_stream();
        let place = self.streams.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.streams[place].1
    }

    /// Whether each sensor of the terms has appeared.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.accounts.iter().all(|account| account.stream.is_some())
    }

    /// The terms of the sensors that have not appeared.
    pub fn absent(&self) -> impl Iterator<Item = SensorIndex> + '_ {
        let accounts = self.accounts.iter().enumerate();
        accounts.filter_map(|(i, account)| account.stream.is_none().then_some(SensorIndex(i)))
    }

    /// From now on elements are judged: the guarantee begins.
    pub(crate) fn begin_judging(&mut self) {
        // A sensor that nobody described is evaluated already.
        let now = self.clock.now();
        for (stream, sensor) in &self.streams {
            if sensor.is_none() {
                self.guarantee.breach(Breach {
                    from: now,
                    at: now,
                    cause: BreachCause::Unadmitted { stream: *stream },
                });
            }
        }
        self.judging = true;
        self.mark();
    }

    /// The guarantee has ended: what comes now is evaluated and not judged.
    pub(crate) fn end_judging(&mut self) {
        self.judging = false;
    }

    /// Reads both clocks, at the begin of a period's work, which has spent nothing yet.
    pub(crate) fn mark(&mut self) -> (Timestamp, Nanos) {
        self.spent.set(Nanos::ZERO);
        self.reading = (self.clock.now(), self.clock.cpu_time());
        self.reading
    }

    /// The sum of the WCETs of all evaluations that have begun since [`Watch::mark`].
    pub(crate) fn spent(&self) -> Rc<Cell<Nanos>> {
        Rc::clone(&self.spent)
    }

    /// The clock.
    pub(crate) const fn clock(&self) -> &C {
        &self.clock
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> &'a Terms {
        self.terms
    }

    /// Learns what a sentinel saw: where the machine was later than allowed, an assumption is broken.
    pub fn hear(&mut self, seen: &Watchfulness) {
        for &breach in &seen.breaches {
            self.guarantee.breach(breach);
        }
    }

    /// What is known of the guarantee.
    #[must_use]
    pub const fn guarantee(&self) -> &Guarantee {
        &self.guarantee
    }

    pub(crate) const fn guarantee_mut(&mut self) -> &mut Guarantee {
        &mut self.guarantee
    }

    /// What was seen of each sensor, in the order of the terms.
    pub fn figures(&self) -> impl Iterator<Item = SensorFigures> + '_ {
        self.accounts.iter().map(|account| account.figures)
    }

    /// The largest execution time of each update, in the order of the terms.
    #[must_use]
    pub fn longest(&self) -> Vec<Longest> {
        self.updates.iter().map(|(_, longest)| *longest).collect()
    }

    /// How long the step from `begin` to `end` took at least, if it may have exceeded `wcet`.
    fn cpu_time_of_step(&mut self, begin: Timestamp, end: Timestamp) -> Nanos {
        let cpu = self.clock.cpu_time();
        let (read_at, read) = self.reading;
        let passed = cpu.as_ns().saturating_sub(read.as_ns());
        let outside = begin.since(read_at).as_ns();
        self.reading = (end, cpu);
        // Never more than the time that passed: the reading itself takes time as well.
        Nanos::from_ns(passed.saturating_sub(outside).min(end.since(begin).as_ns()))
    }

    fn judge_step(
        &mut self,
        index: usize,
        sensor: Option<SensorIndex>,
        element: u64,
        (begin, end): (Timestamp, Timestamp),
    ) {
        let mut took = end.since(begin);
        let wcet = self
            .terms
            .updates
            .get(index)
            .map_or(Nanos::ZERO, |u| u.wcet);
        if self.measuring || (self.judging && took > wcet) {
            took = self.cpu_time_of_step(begin, end);
        }
        let longest = &mut self.updates[index].1;
        longest.elements += 1;
        if took > longest.took {
            *longest = Longest {
                took,
                element,
                sensor,
                ..*longest
            };
        }
        if self.judging && took > wcet {
            let cause = BreachCause::UpdateOverrun {
                update: UpdateIndex(index),
                sensor: sensor.unwrap_or(SensorIndex(usize::MAX)),
                element,
                took,
            };
            self.guarantee.breach(Breach {
                from: begin,
                at: end,
                cause,
            });
        }
    }

    fn judge_conformance(&mut self, sensor: SensorIndex, at: Timestamp) {
        let account = &mut self.accounts[sensor.0];
        let lost = std::mem::take(&mut account.lost);
        let last = std::mem::replace(&mut account.last, at);
        let Some(violation) = account.check.push_after_loss(at, lost) else {
            return;
        };
        account.figures.exceeding += 1;
        if self.judging {
            self.guarantee.breach(Breach {
                from: last.min(at),
                at,
                cause: BreachCause::SensorExceeds { sensor, violation },
            });
        }
    }
}

impl<C: Clock> Update for Watch<'_, C> {
    fn requires(&self) -> EventSet {
        let updates = self.updates.iter();
        updates
            .flat_map(|(watched, _)| watched.update.requires())
            .collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.admit(stream);
        let sensor = self.sensor(stream);
        for (watched, _) in &mut self.updates {
            if watched.takes(sensor) {
                watched.update.open(stream);
            }
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let sensor = self.sensor(element.stream);
        if let Some(sensor) = sensor {
            self.judge_conformance(sensor, element.time);
            let wcet = self.terms.sensors[sensor.0].wcet;
            self.spent.set(self.spent.get().plus(wcet));
        }
        let mut begin = self.clock.now();
        for index in 0..self.updates.len() {
            let watched = &mut self.updates[index].0;
            if !watched.takes(sensor) {
                continue;
            }
            watched.update.element(element);
            let end = self.clock.now();
            self.judge_step(index, sensor, element.sequence, (begin, end));
            begin = end;
        }
        let Some(sensor) = sensor else { return };
        let latency = begin.since(element.time);
        let figures = &mut self.accounts[sensor.0].figures;
        figures.elements += 1;
        if !self.judging {
            return;
        }
        figures.latency = figures.latency.max(latency);
        if latency > self.terms.latency {
            self.guarantee.fail(Failure {
                at: begin,
                sensor,
                what: FailureKind::Late {
                    element: element.sequence,
                    latency,
                },
            });
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let sensor = self.sensor(stream);
        for (watched, _) in &mut self.updates {
            if watched.takes(sensor) {
                watched.update.gap(stream, gap);
            }
        }
        let Some(sensor) = sensor else { return };
        let account = &mut self.accounts[sensor.0];
        account.figures.missed = account.figures.missed.saturating_add(gap.missed);
        // These were written; what was refused was not.
        if matches!(
            gap.cause,
            GapCause::Overwritten | GapCause::Late | GapCause::Corrupt
        ) {
            account.lost = account.lost.saturating_add(gap.missed);
        }
        if !self.judging {
            return;
        }
        if gap.cause == GapCause::Overwritten {
            self.guarantee.fail(Failure {
                at: gap.to,
                sensor,
                what: FailureKind::Missed {
                    first: gap.first,
                    missed: gap.missed,
                },
            });
        } else {
            self.guarantee.breach(Breach {
                from: gap.from,
                at: gap.to,
                cause: BreachCause::Lost {
                    sensor,
                    missed: gap.missed,
                    cause: gap.cause,
                },
            });
        }
    }

    fn advance(&mut self, now: Timestamp) {
        for (watched, _) in &mut self.updates {
            watched.update.advance(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use overhear_admission::{Constraint, DeadlineReservation, Lateness, Level};
    use overhear_event::{
        ElementView, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
        TypeSchema, Update,
    };

    use super::{Watch, Watched};
    use crate::clock::Clock;
    use crate::executor::guarantee::{BreachCause, Verdict};
    use crate::executor::terms::{SensorIndex, SensorTerms, Terms, UpdateIndex, UpdateTerms};

    /// Time that the test makes: (now, CPU time).
    #[derive(Default)]
    struct Made {
        now: Cell<u64>,
        cpu: Cell<u64>,
    }

    impl Made {
        fn pass(&self, now: u64, cpu: u64) {
            self.now.set(self.now.get() + now);
            self.cpu.set(self.cpu.get() + cpu);
        }
    }

    impl Clock for &Made {
        fn now(&self) -> Timestamp {
            at(self.now.get())
        }

        fn cpu_time(&self) -> Nanos {
            Nanos::from_ns(self.cpu.get())
        }
    }

    /// Takes (time, CPU time) for each element.
    struct Takes<'a>(&'a Made, &'a Cell<(u64, u64)>);

    impl Update for Takes<'_> {
        fn element(&mut self, _: &ElementView<'_>) {
            let (now, cpu) = self.1.get();
            self.0.pass(now, cpu);
        }
        fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
        fn advance(&mut self, _: Timestamp) {}
    }

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn stream(raw: u32, sensor: &str) -> StreamDescriptor {
        StreamDescriptor {
            id: StreamId::from_raw(raw),
            origin: Origin::Kernel { cpu: 0 },
            sensor: sensor.to_string(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(TypeSchema::builder("empty").build().unwrap()),
            rate: None,
            capacity: 64,
        }
    }

    fn terms() -> Terms {
        let ns = Nanos::from_ns;
        Terms {
            reservation: DeadlineReservation {
                runtime: ns(500),
                deadline: ns(1_000),
                period: ns(1_000),
            },
            lateness: Lateness::default(),
            latency: ns(5_000),
            evaluations: ns(300),
            level: Level::Shared,
            cpus: 2,
            sensors: vec![SensorTerms {
                name: "a".to_string(),
                constraint: Constraint::new(ns(100), ns(100), ns(0), ns(0)).unwrap(),
                wcet: ns(50),
            }],
            updates: vec![UpdateTerms {
                name: "u".to_string(),
                wcet: ns(50),
            }],
        }
    }

    fn element(stream: &StreamDescriptor, sequence: u64, time: u64) -> ElementView<'_> {
        ElementView {
            stream,
            sequence,
            time: at(time),
            payload: &[],
        }
    }

    /// A watch over sensor `a`, stream 1, and what its update takes for the next elements.
    fn watched(test: impl FnOnce(&Made, &Cell<(u64, u64)>, &mut Watch<'_, &Made>)) {
        let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
        made.pass(10_000, 0);
        let mut update = Takes(&made, &takes);
        let watched = Watched {
            update: &mut update,
            sensors: None,
        };
        let mut watch = Watch::new(&terms, vec![watched], &made, |stream| {
            (stream.sensor == "a").then_some(SensorIndex(0))
        });
        watch.open(&stream(1, "a"));
        assert!(watch.is_complete());
        watch.begin_judging();
        test(&made, &takes, &mut watch);
    }

    #[test]
    fn cpu_time_overruns_and_preemption_does_not() {
        watched(|made, takes, watch| {
            let a = stream(1, "a");
            watch.element(&element(&a, 0, 9_000));
            // Preempted in the middle: 200 ns passed, 40 were used.
            takes.set((200, 40));
            watch.element(&element(&a, 1, 9_100));
            assert_eq!(watch.guarantee().verdict(), Verdict::Held);
            takes.set((60, 60));
            watch.element(&element(&a, 2, 9_200));
            let first = watch.guarantee().first_breach().unwrap();
            let cause = BreachCause::UpdateOverrun {
                update: UpdateIndex(0),
                sensor: SensorIndex(0),
                element: 2,
                took: Nanos::from_ns(60),
            };
            assert_eq!((first.cause, first.at), (cause, at(made.now.get())));
            let sentence = first.sentence(watch.terms());
            assert!(
                sentence.contains("update `u` took 60 ns for element 2 of sensor `a`"),
                "{sentence}"
            );
            let longest = watch.longest()[0];
            assert_eq!((longest.took, longest.element), (Nanos::from_ns(60), 2));
            assert_eq!(longest.elements, 3);
        });
    }

    #[test]
    fn a_sensor_that_is_too_fast_is_named_with_its_element() {
        watched(|_, _, watch| {
            let a = stream(1, "a");
            for (sequence, time) in [(0, 9_000), (1, 9_100), (2, 9_199), (3, 9_300)] {
                watch.element(&element(&a, sequence, time));
            }
            let first = watch.guarantee().first_breach().unwrap();
            assert_eq!((first.from, first.at), (at(9_100), at(9_199)));
            let sentence = first.sentence(watch.terms());
            assert!(
                sentence.starts_with("sensor `a` exceeds its stream: element 2 at "),
                "{sentence}"
            );
            assert_eq!(watch.figures().next().unwrap().exceeding, 1);
            assert_eq!(watch.guarantee().verdict(), Verdict::Inconclusive);
        });
    }

    #[test]
    fn missed_and_late_elements_violate_unless_their_sensor_was_too_fast() {
        let gap = |missed, cause| Gap {
            stream: StreamId::from_raw(1),
            first: 1,
            missed,
            from: at(9_000),
            to: at(9_500),
            cause,
        };
        // Four elements fit between 9,000 and 9,500, five do not.
        for (missed, verdict) in [(4, Verdict::Violated), (5, Verdict::Inconclusive)] {
            watched(|_, _, watch| {
                let a = stream(1, "a");
                watch.element(&element(&a, 0, 9_000));
                watch.gap(&a, &gap(missed, GapCause::Overwritten));
                assert_eq!(watch.guarantee().verdict(), Verdict::Violated);
                watch.element(&element(&a, 1 + missed, 9_500));
                assert_eq!(watch.guarantee().verdict(), verdict);
                assert_eq!(watch.figures().next().unwrap().missed, missed);
            });
        }
        watched(|_, _, watch| {
            watch.gap(&stream(1, "a"), &gap(1, GapCause::Late));
            assert_eq!(watch.guarantee().verdict(), Verdict::Inconclusive);
        });
        watched(|made, _, watch| {
            let a = stream(1, "a");
            made.pass(4_000, 0);
            watch.element(&element(&a, 0, 9_011));
            assert_eq!(watch.guarantee().verdict(), Verdict::Held);
            assert_eq!(watch.figures().next().unwrap().latency.as_ns(), 4_999);
            made.pass(1_000, 0);
            watch.element(&element(&a, 1, 9_111));
            assert_eq!(watch.guarantee().verdict(), Verdict::Violated);
            let sentence = watch.guarantee().sentences(watch.terms()).join("; ");
            assert!(sentence.contains("element 1 of sensor `a`"), "{sentence}");
        });
    }

    #[test]
    fn what_was_not_counted_makes_it_inconclusive_from_its_appearance() {
        watched(|_, _, watch| {
            watch.open(&stream(1, "a"));
            assert_eq!(watch.guarantee().verdict(), Verdict::Held);
            watch.open(&stream(2, "a"));
            assert_eq!(watch.guarantee().verdict(), Verdict::Inconclusive);
            // It is evaluated all the same.
            watch.element(&element(&stream(2, "a"), 0, 9_000));
            assert_eq!(watch.longest()[0].elements, 1);
            assert_eq!(watch.figures().next().unwrap().elements, 0);
        });
    }
}
