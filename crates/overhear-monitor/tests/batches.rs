// SPDX-License-Identifier: MIT OR Apache-2.0
//! The evaluation of a batch equals that of its elements one by one.

mod support;

use std::sync::{Arc, Mutex};

use overhear_event::{Analysis, ElementView, EventName, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::{Binding, Fanout, Monitor, Start, Subscription, UpdateSet, UpdateStatus};
use proptest::prelude::{any, prop, prop_assert_eq, proptest, ProptestConfig};

use support::{at, descriptor, ring};

const SENSORS: [&str; 3] = ["a", "b", "c"];

/// The calls of all members of a set, in their order.
type Log = Arc<Mutex<Vec<(usize, String)>>>;

/// Records its calls, until it ends.
struct Scribe {
    member: usize,
    log: Log,
    // The number of elements until it ends, and the kind of its end.
    left: u32,
    panics: bool,
    failure: Option<String>,
}

impl Scribe {
    fn write(&self, what: String) {
        self.log.lock().unwrap().push((self.member, what));
    }
}

impl Analysis for Scribe {
    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let (time, sensor) = (element.time, &element.stream.sensor);
        let (sequence, payload) = (element.sequence, element.payload);
        self.write(format!("{time}: {sequence} of {sensor}, {payload:?}"));
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.panics {
            // Without a message.
            std::panic::resume_unwind(Box::new("too much"));
        }
        self.failure = (self.left == 0).then(|| "enough".to_string());
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.write(format!("{} of {}", gap.missed, stream.sensor));
    }

    fn advance(&mut self, now: Timestamp) {
        self.write(format!("now {now}"));
    }
}

/// Delivers elements only one by one.
struct OneByOne<'a>(&'a mut UpdateSet);

impl Analysis for OneByOne<'_> {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.0.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.0.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.0.advance(now);
    }
}

/// An update: bits of its sensors, time of its start, elements until it fails, and whether it
/// then panics.
type UpdateSpec = (u8, u64, u32, bool);

/// The result of a set: all calls of its members, their states, and the number of counted elements.
type Outcome = (Vec<(usize, String)>, Vec<UpdateStatus>, u64, u64);

/// Writes to the sensors and evaluates after each step.
fn evaluate(
    updates: &[UpdateSpec],
    steps: &[Vec<(usize, u64)>],
    round: impl Fn(&mut Monitor, Timestamp, &mut UpdateSet),
) -> Outcome {
    let mut monitor = Monitor::new(Nanos::from_ns(20));
    let mut writers = Vec::new();
    for (id, sensor) in (1..).zip(SENSORS) {
        // Small: some elements are overwritten.
        let (writer, source) = ring(descriptor(id, sensor, 16));
        writers.push((writer, 0));
        monitor.add_source(Box::new(source));
    }
    let (log, mut set) = (Log::default(), UpdateSet::new());
    let members = (0..)
        .zip(updates)
        .map(|(member, &(wanted, start, left, panics))| {
            let wanted = SENSORS
                .iter()
                .enumerate()
                .filter(|(at, _)| wanted & 1 << at != 0);
            let wanted = wanted.map(|(_, sensor)| EventName::user(sensor)).collect();
            let binding = Binding::new("scribe")
                .subscribe(Subscription::all().events(wanted))
                .start(Start::At(at(start)));
            let scribe = Scribe {
                member,
                log: Arc::clone(&log),
                left,
                panics,
                failure: None,
            };
            set.add(scribe, binding).unwrap()
        });
    let members: Vec<_> = members.collect();
    let mut now = 0;
    for writes in steps {
        for &(sensor, pause) in writes {
            let (writer, last) = &mut writers[sensor];
            now += pause;
            *last = now;
            writer.write(*last, now * 7);
        }
        round(&mut monitor, at(now), &mut set);
    }
    monitor.finish(at(now), &mut set);
    let elements = (set.elements(), monitor.elements());
    drop(set);
    let statuses = members.iter().map(|member| member.status()).collect();
    let log = std::mem::take(&mut *log.lock().unwrap());
    (log, statuses, elements.0, elements.1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn batched_and_single_delivery_are_equivalent(
        updates in prop::collection::vec((1_u8..8, 0_u64..60, 1_u32..90, any::<bool>()), 0..4),
        steps in prop::collection::vec(prop::collection::vec((0_usize..3, 0_u64..4), 0..40), 0..9),
    ) {
        let together = evaluate(&updates, &steps, |monitor, now, set| monitor.round(now, set));
        let one_by_one = evaluate(&updates, &steps, |monitor, now, set| {
            monitor.round_within(now, &|| false, &mut OneByOne(set));
        });
        prop_assert_eq!(together, one_by_one);
    }
}

/// Records each call, with all its elements.
#[derive(Default)]
struct Calls(Vec<String>);

impl Analysis for Calls {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0.push(format!("alone: {element:?}"));
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        let each = elements
            .iter()
            .map(|it| format!(" {} of {} at {}", it.sequence, it.stream.sensor, it.time));
        self.0
            .push(format!("{}:{}", elements.len(), each.collect::<String>()));
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.push(format!("{} of {}", gap.missed, stream.sensor));
    }

    fn advance(&mut self, now: Timestamp) {
        self.0.push(format!("now {now}"));
    }
}

/// Calls the update like a monitor of two sensors; the second one is written too fast.
fn observe(update: &mut dyn Analysis) {
    let mut monitor = Monitor::new(Nanos::ZERO);
    let (mut slow, source) = ring(descriptor(1, "slow", 16));
    monitor.add_source(Box::new(source));
    let (mut fast, source) = ring(descriptor(2, "fast", 16));
    monitor.add_source(Box::new(source));
    for round in 1..4 {
        for step in 0..30 {
            let now = 100 * round + step;
            fast.write(now, now);
            if step % 3 == 0 {
                slow.write(now, now);
            }
        }
        monitor.round(at(100 * round + 50), update);
    }
    monitor.finish(at(400), update);
}

#[test]
fn all_updates_get_the_same_batches() {
    let mut one = Calls::default();
    observe(&mut one);
    let has = |what: &str| one.0.iter().any(|call| call.starts_with(what));
    assert!(
        has("19: ") && has("now ") && has("15 of fast"),
        "{:#?}",
        one.0
    );
    let (mut first, mut second) = (Calls::default(), Calls::default());
    observe(&mut Fanout(vec![&mut first, &mut second]));
    assert_eq!(first.0, one.0);
    assert_eq!(second.0, one.0);
}
