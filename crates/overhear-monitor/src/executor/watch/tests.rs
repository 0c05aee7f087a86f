// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps, latencies and gaps, with synthetic time.

use std::cell::Cell;
use std::sync::Arc;

use overhear_admission::{ArrivalBound, DeadlineReservation, Lateness, Level};
use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, FieldKind, Gap, GapCause, InPlaceMemory,
    Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};

use super::{Watch, Watched};
use crate::clock::Clock;
use crate::executor::guarantee::{BreachCause, GuaranteeVerdict};
use crate::executor::terms::{SensorIndex, SensorTerms, Terms, UpdateIndex, UpdateTerms};
use crate::reaction::{decider, Condition, Measure, Occurrence, ReactionIndex, Trigger};
use crate::updates::MissedPolicy;

/// Synthetic time: (now, CPU time).
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

impl Analysis for Takes<'_> {
    fn reads_in_place(&self, _: &StreamDescriptor) -> bool {
        true
    }
    fn prepare(&mut self, _: &ElementInPlace<'_>) -> bool {
        let (now, cpu) = self.1.get();
        self.0.pass(now, cpu);
        true
    }
    // Longer by a half.
    fn commit(&mut self, _: &ElementKey<'_>, _: bool) {
        let (now, cpu) = self.1.get();
        self.0.pass(now / 2, cpu / 2);
    }
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
        capacity: 64,
        ..StreamDescriptor::new(
            StreamId::from_raw(raw),
            Origin::Sampler,
            sensor,
            TypeSchema::builder("empty").build().unwrap(),
        )
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
            constraint: ArrivalBound::new(ns(100), ns(100), ns(0), ns(0)).unwrap(),
            wcet: ns(50),
            count: 1,
            buffer: 7,
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

/// A watch over sensor `a`, stream 1, and the times of its update for the next elements.
fn watched(test: impl FnOnce(&Made, &Cell<(u64, u64)>, &mut Watch<'_, &Made>)) {
    let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    made.pass(10_000, 0);
    let mut update = Takes(&made, &takes);
    let watched = Watched {
        update: &mut update,
        sensors: None,
        in_place: None,
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
fn smaller_buffer_than_assumed_is_inconclusive() {
    let (made, mut terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    // Of 64 slots the writer may be in one.
    for (assumed, verdict) in [
        (63, GuaranteeVerdict::Held),
        (64, GuaranteeVerdict::Inconclusive),
    ] {
        terms.sensors[0].buffer = assumed;
        let mut update = Takes(&made, &takes);
        let watched = Watched {
            update: &mut update,
            sensors: None,
            in_place: None,
        };
        let mut watch = Watch::new(&terms, vec![watched], &made, |_| Some(SensorIndex(0)));
        watch.open(&stream(1, "a"));
        watch.begin_judging();
        assert_eq!(watch.guarantee().verdict(), verdict);
        let messages = watch.guarantee().messages(&terms, at(0));
        let small = |it: &String| it.contains("holds 63 elements, admission assumed 64");
        assert_eq!(
            messages.iter().any(small),
            verdict != GuaranteeVerdict::Held
        );
    }
}

/// Zeros, in complete and incomplete measurements.
#[derive(Debug)]
struct Zeros(bool);

impl InPlaceMemory for Zeros {
    fn load(&self, _: u64, _: usize, to: &mut [u64]) {
        to.fill(0);
    }
    fn is_whole(&self, _: u64) -> bool {
        self.0
    }
}

#[test]
fn prepare_and_commit_are_one_step_except_for_overwritten_elements() {
    watched(|made, takes, watch| {
        let schema = TypeSchema::builder("large").field("text", FieldKind::Text(300), "");
        let a = StreamDescriptor {
            schema: Arc::new(schema.build().unwrap()),
            ..stream(1, "a")
        };
        assert!(watch.reads_in_place(&a));
        watch.open(&a);
        let evaluate = |watch: &mut Watch<'_, &Made>, sequence, whole| {
            let key = ElementKey {
                stream: &a,
                sequence,
                time: at(9_000 + 100 * sequence),
            };
            ElementInPlace::new(key, &Zeros(whole)).evaluate(watch);
        };
        // 15 of 50; preempted; 60 of 50, but never published whole; 60 of 50.
        evaluate(watch, 0, true);
        takes.set((200, 20));
        evaluate(watch, 1, true);
        takes.set((40, 40));
        evaluate(watch, 2, false);
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
        let figures = watch.figures().next().unwrap();
        assert_eq!((figures.elements, figures.latency.as_ns()), (2, 1_215));
        evaluate(watch, 2, true);
        let first = watch.guarantee().first_breach().unwrap();
        let cause = BreachCause::UpdateOverrun {
            update: UpdateIndex(0),
            sensor: SensorIndex(0),
            element: 2,
            took: Nanos::from_ns(60),
        };
        assert_eq!((first.cause, first.at), (cause, at(made.now.get())));
        assert_eq!(watch.longest()[0].elements, 3);
    });
}

#[test]
fn only_admitted_sensors_are_read_in_place() {
    let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    let schema = TypeSchema::builder("large").field("text", FieldKind::Text(300), "");
    let a = StreamDescriptor {
        schema: Arc::new(schema.build().unwrap()),
        ..stream(1, "a")
    };
    let sensor = SensorIndex(0);
    for (in_place, expected) in [
        (None, true),
        (Some(vec![sensor]), true),
        (Some(vec![]), false),
    ] {
        let mut update = Takes(&made, &takes);
        let watched = Watched {
            update: &mut update,
            sensors: None,
            in_place,
        };
        let watch = Watch::new(&terms, vec![watched], &made, |_| Some(sensor));
        assert_eq!(watch.reads_in_place(&a), expected);
    }
}

#[test]
fn cpu_time_overruns_and_preemption_does_not() {
    watched(|made, takes, watch| {
        let a = stream(1, "a");
        watch.element(&element(&a, 0, 9_000));
        // Preempted in the middle: 200 ns passed, 40 were used.
        takes.set((200, 40));
        watch.element(&element(&a, 1, 9_100));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
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
        let message = first.message(watch.terms(), Timestamp::ZERO);
        assert!(
            message.contains("update `u` took 60 ns for element 2 of sensor `a`"),
            "{message}"
        );
        let longest = watch.longest()[0];
        assert_eq!((longest.took, longest.element), (Nanos::from_ns(60), 2));
        assert_eq!(longest.elements, 3);
    });
}

#[test]
fn sensor_that_is_too_fast_is_named_with_its_element() {
    watched(|_, _, watch| {
        let a = stream(1, "a");
        for (sequence, time) in [(0, 9_000), (1, 9_100), (2, 9_199), (3, 9_300)] {
            watch.element(&element(&a, sequence, time));
        }
        let first = watch.guarantee().first_breach().unwrap();
        assert_eq!((first.from, first.at), (at(9_100), at(9_199)));
        let message = first.message(watch.terms(), Timestamp::ZERO);
        assert!(
            message.starts_with("sensor `a` exceeds its stream: element 2 at "),
            "{message}"
        );
        assert_eq!(watch.figures().next().unwrap().exceeding, 1);
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Inconclusive);
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
    for (missed, verdict) in [
        (4, GuaranteeVerdict::Violated),
        (5, GuaranteeVerdict::Inconclusive),
    ] {
        watched(|_, _, watch| {
            let a = stream(1, "a");
            watch.element(&element(&a, 0, 9_000));
            watch.gap(&a, &gap(missed, GapCause::Overwritten));
            assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Violated);
            watch.element(&element(&a, 1 + missed, 9_500));
            assert_eq!(watch.guarantee().verdict(), verdict);
            assert_eq!(watch.figures().next().unwrap().missed, missed);
        });
    }
    watched(|_, _, watch| {
        watch.gap(&stream(1, "a"), &gap(1, GapCause::Late));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Inconclusive);
    });
    watched(|made, _, watch| {
        let a = stream(1, "a");
        made.pass(4_000, 0);
        watch.element(&element(&a, 0, 9_011));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
        assert_eq!(watch.figures().next().unwrap().latency.as_ns(), 4_999);
        made.pass(1_000, 0);
        watch.element(&element(&a, 1, 9_111));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Violated);
        let message = watch
            .guarantee()
            .messages(watch.terms(), Timestamp::ZERO)
            .join("; ");
        assert!(message.contains("element 1 of sensor `a`"), "{message}");
    });
}

#[test]
fn judgements_trigger_reactions_with_the_element() {
    let condition = |trigger| Condition {
        reaction: ReactionIndex(0),
        trigger,
        of: Some(vec![0]),
        after: 1,
        once: false,
    };
    let conditions = [Trigger::Overrun, Trigger::Stream, Trigger::Missed].map(condition);
    let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    made.pass(10_000, 0);
    let mut update = Takes(&made, &takes);
    let watched = Watched {
        update: &mut update,
        sensors: None,
        in_place: None,
    };
    let (decider, mut decisions) = decider(conditions.to_vec(), 8);
    let sensor_of = |_: &StreamDescriptor| Some(SensorIndex(0));
    let mut watch = Watch::new(&terms, vec![watched], &made, sensor_of).reacting(decider);
    let a = stream(1, "a");
    watch.open(&a);
    // Nothing is judged yet.
    takes.set((60, 60));
    watch.element(&element(&a, 0, 8_000));
    watch.begin_judging();
    watch.element(&element(&a, 1, 9_000));
    takes.set((10, 10));
    watch.element(&element(&a, 2, 9_099));
    watch.gap(
        &a,
        &Gap {
            stream: a.id,
            first: 3,
            missed: 7,
            from: at(9_099),
            to: at(9_900),
            cause: GapCause::Overwritten,
        },
    );
    // The thread sleeps between rounds; a step after that is measured nevertheless.
    watch.advance(at(9_900));
    made.pass(1_000_000, 100);
    takes.set((70, 70));
    watch.element(&element(&a, 10, 9_900));
    let mut found = Vec::new();
    decisions.take(|decision| found.push(decision.occurrence));
    let overrun = |element, took| Occurrence::Overrun {
        update: UpdateIndex(0),
        sensor: Some(SensorIndex(0)),
        element,
        took: Nanos::from_ns(took),
        wcet: Nanos::from_ns(50),
    };
    let sensor = SensorIndex(0);
    // Element 2 comes 99 ns after element 1, and D is 100 ns.
    let measure = Measure {
        observed: Some(99.0),
        bound: Some(100.0),
        in_nanoseconds: true,
    };
    let exceeded = Occurrence::Exceeded {
        sensor,
        element: 2,
        measure,
    };
    let expected = [
        overrun(1, 60),
        exceeded,
        Occurrence::Missed {
            sensor,
            first: 3,
            missed: 7,
        },
        overrun(10, 70),
    ];
    assert_eq!(found, expected);
    let fate = watch.outcomes()[0];
    assert_eq!((fate.overruns, fate.missed, fate.stopped), (2, 7, None));
}

#[test]
fn stopping_update_gets_the_gap_and_nothing_more() {
    let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    made.pass(10_000, 0);
    let (mut one, mut other) = (Takes(&made, &takes), Takes(&made, &takes));
    let watched = [&mut one, &mut other].map(|update| Watched {
        update,
        sensors: None,
        in_place: None,
    });
    let sensor_of = |_: &StreamDescriptor| Some(SensorIndex(0));
    let mut watch = Watch::new(&terms, watched.into(), &made, sensor_of)
        .on_missed([MissedPolicy::Stop, MissedPolicy::Continue]);
    let a = stream(1, "a");
    watch.open(&a);
    let gap = |first, missed| Gap {
        stream: a.id,
        first,
        missed,
        from: at(9_000),
        to: at(9_500),
        cause: GapCause::Overwritten,
    };
    // Before the guarantee it receives a gap, and continues.
    watch.gap(&a, &gap(0, 2));
    watch.begin_judging();
    watch.element(&element(&a, 0, 9_000));
    watch.gap(&a, &gap(1, 4));
    watch.element(&element(&a, 5, 9_500));
    watch.gap(&a, &gap(6, 3));
    let elements: Vec<u64> = watch.longest().iter().map(|it| it.elements).collect();
    assert_eq!(elements, [1, 2]);
    let outcomes: Vec<_> = watch
        .outcomes()
        .iter()
        .map(|it| (it.missed, it.stopped))
        .collect();
    assert_eq!(outcomes, [(6, Some(gap(1, 4))), (9, None)]);
}

#[test]
fn unadmitted_sensor_makes_guarantee_inconclusive_from_its_appearance() {
    watched(|_, _, watch| {
        watch.open(&stream(1, "a"));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
        watch.open(&stream(2, "a"));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Inconclusive);
        // It is evaluated nevertheless.
        watch.element(&element(&stream(2, "a"), 0, 9_000));
        assert_eq!(watch.longest()[0].elements, 1);
        assert_eq!(watch.figures().next().unwrap().elements, 0);
    });
}

#[test]
fn only_admitted_number_of_sensors_is_evaluated() {
    let (made, mut terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    terms.sensors[0].count = 2;
    made.pass(10_000, 0);
    let mut update = Takes(&made, &takes);
    let watched = Watched {
        update: &mut update,
        sensors: Some(vec![SensorIndex(0)]),
        in_place: None,
    };
    let sensor_of = |stream: &StreamDescriptor| {
        let is_meant = stream.sensor.starts_with('a');
        is_meant.then_some(SensorIndex(0))
    };
    let mut watch = Watch::new(&terms, vec![watched], &made, sensor_of);
    let [one, other, third] = [(1, "a1"), (2, "a2"), (3, "a3")].map(|(id, name)| stream(id, name));
    watch.open(&one);
    assert!(!watch.is_complete());
    assert_eq!(watch.absent(), [(SensorIndex(0), 1)]);
    watch.open(&other);
    assert!(watch.is_complete());
    watch.begin_judging();
    // Each at the maximum rate of both: one in its own stream each.
    for sequence in 0..3 {
        for stream in [&one, &other] {
            watch.element(&element(stream, sequence, 9_000 + 100 * sequence));
        }
    }
    assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
    let figures = watch.figures().next().unwrap();
    assert_eq!((figures.elements, figures.exceeding), (6, 0));
    let labels: Vec<&str> = watch.labels(SensorIndex(0)).collect();
    assert_eq!(labels, ["sampler/a1", "sampler/a2"]);
    // A third one was not counted.
    watch.open(&third);
    assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Inconclusive);
    watch.element(&element(&third, 0, 9_900));
    assert_eq!(watch.figures().next().unwrap().elements, 6);
}

/// Refuses one sensor, and fails at the third element.
#[derive(Default)]
struct Choosy(u64, Option<String>);

impl Analysis for Choosy {
    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        (stream.sensor == "b").then(|| "not b".to_string())
    }
    fn failure(&self) -> Option<&str> {
        self.1.as_deref()
    }
    fn element(&mut self, _: &ElementView<'_>) {
        self.0 += 1;
        self.1 = (self.0 == 3).then(|| "three".to_string());
    }
    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn element_not_delivered_to_an_update_is_not_counted_for_it() {
    let (made, terms) = (Made::default(), terms());
    let mut choosy = Choosy::default();
    let watched = Watched {
        update: &mut choosy,
        sensors: None,
        in_place: None,
    };
    let sensor_of = |_: &StreamDescriptor| Some(SensorIndex(0));
    let mut watch = Watch::new(&terms, vec![watched], &made, sensor_of).judging();
    let (a, b) = (stream(1, "a"), stream(2, "b"));
    watch.open(&a);
    watch.open(&b);
    for sequence in 0..5 {
        watch.element(&element(&b, sequence, 9_000));
        watch.element(&element(&a, sequence, 9_000));
    }
    assert_eq!(watch.longest()[0].elements, 3);
    assert!(watch.outcomes()[0].failed);
    assert_eq!(watch.complaints(), [["not b"]]);
    drop(watch);
    assert_eq!(choosy.0, 3);
}

/// Sensor `a` of the kernel, on two CPUs.
fn rings() -> [StreamDescriptor; 2] {
    [0, 1].map(|cpu| StreamDescriptor {
        origin: Origin::Kernel { cpu },
        ..stream(7 + cpu, "a")
    })
}

/// A watch over sensor `a` of the kernel.
fn watched_rings(test: impl FnOnce([StreamDescriptor; 2], &mut Watch<'_, &Made>)) {
    let (made, terms, takes) = (Made::default(), terms(), Cell::new((10, 10)));
    made.pass(10_000, 0);
    let mut update = Takes(&made, &takes);
    let watched = Watched {
        update: &mut update,
        sensors: None,
        in_place: None,
    };
    let mut watch = Watch::new(&terms, vec![watched], &made, |_| Some(SensorIndex(0)));
    let rings = rings();
    rings.iter().for_each(|ring| watch.open(ring));
    assert!(watch.is_complete());
    watch.begin_judging();
    test(rings, &mut watch);
}

#[test]
fn rings_of_a_kernel_sensor_are_one_sensor_and_bounded_together() {
    watched_rings(|[first, second], watch| {
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
        let labels: Vec<&str> = watch.labels(SensorIndex(0)).collect();
        assert_eq!(labels, ["kernel/a"]);
        // Each keeps its distance separately, and both together as well.
        watch.element(&element(&first, 0, 9_000));
        watch.element(&element(&second, 0, 9_100));
        watch.element(&element(&first, 1, 9_200));
        assert_eq!(watch.guarantee().verdict(), GuaranteeVerdict::Held);
        // Together they do not.
        watch.element(&element(&second, 1, 9_299));
        let breach = watch.guarantee().first_breach().unwrap();
        assert_eq!((breach.from, breach.at), (at(9_200), at(9_299)));
        assert_eq!(watch.figures().next().unwrap().exceeding, 1);
        assert_eq!(watch.figures().next().unwrap().elements, 4);
    });
    // An element of the same term from another source was not counted.
    watched_rings(|_, watch| {
        watch.open(&stream(3, "a"));
        let message = watch
            .guarantee()
            .messages(watch.terms(), Timestamp::ZERO)
            .join("; ");
        assert!(message.contains("admission did not count"), "{message}");
    });
}

#[test]
fn loss_of_a_ring_lies_between_two_of_its_elements() {
    let gap = |ring: &StreamDescriptor, missed| Gap {
        stream: ring.id,
        first: 1,
        missed,
        from: at(9_000),
        to: at(9_500),
        cause: GapCause::Overwritten,
    };
    // Four elements fit between 9,000 and 9,500, five do not. Their order relative to the element
    // of the other ring is unknown, so four may be around it.
    for (missed, verdict) in [
        (4, GuaranteeVerdict::Violated),
        (5, GuaranteeVerdict::Inconclusive),
    ] {
        watched_rings(|[first, second], watch| {
            watch.element(&element(&first, 0, 9_000));
            watch.element(&element(&second, 0, 9_400));
            watch.gap(&first, &gap(&first, missed));
            watch.element(&element(&first, 1 + missed, 9_500));
            assert_eq!(watch.guarantee().verdict(), verdict);
            assert_eq!(watch.figures().next().unwrap().missed, missed);
        });
    }
}
