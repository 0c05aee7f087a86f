// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of a monitor with reserved memory allocate nothing and free nothing, whatever they find:
//! elements of several streams, missed ones, late ones, updates that end and updates that go.

#[path = "support/counting.rs"]
mod counting;
mod support;

use overhear_event::{
    ElementView, EventName, Gap, GapCause, Nanos, StreamDescriptor, Timestamp, Update,
};
use overhear_monitor::executor::SensorIndex;
use overhear_monitor::reaction::{decider, Condition, Occurrence, ReactionIndex, Trigger};
use overhear_monitor::{
    Binding, Merge, MissedPolicy, Monitor, Room, Subscription, UpdateSet, UpdateState,
};

use counting::calls;
use support::{at, descriptor, ring};

/// Sums up what it is called with.
#[derive(Default)]
struct Sum {
    elements: u64,
    values: u64,
    missed: u64,
    late: u64,
}

impl Update for Sum {
    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        let value = element.field("value").and_then(|value| value.as_u64());
        self.values = self.values.wrapping_add(value.unwrap_or_default());
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.missed += gap.missed;
        self.late += u64::from(gap.cause == GapCause::Late);
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn rounds_neither_allocate_nor_free() {
    const STREAMS: u32 = 5;
    const CAPACITY: u64 = 256;
    let mut monitor = Monitor::with_room(Nanos::from_ns(100), Room::Reserved);
    let mut writers = Vec::new();
    let mut stated = 0;
    for id in 1..=STREAMS {
        let descriptor = descriptor(id, if id == 1 { "first" } else { "other" }, CAPACITY);
        stated += Merge::bytes_for(descriptor.schema.size(), descriptor.capacity);
        let (writer, source) = ring(descriptor);
        writers.push(writer);
        monitor.add_source(Box::new(source));
    }
    let mut set = UpdateSet::new();
    let supervisor = set.supervisor();
    let all = set.add(Sum::default(), Binding::new("all")).unwrap();
    let first = Subscription::all().events([EventName::user("first")].into());
    let first = Binding::new("first").subscribe(first);
    let first = set.add(Sum::default(), first).unwrap();
    let strict = Binding::new("strict").on_missed(MissedPolicy::Stop);
    let strict = set.add(Sum::default(), strict).unwrap();
    let leaving = supervisor
        .add(Sum::default(), Binding::new("leaving"))
        .unwrap();

    // The round that opens the streams is the last one that allocates.
    let before = calls();
    monitor.round(at(0), &mut set);
    assert!(calls() > before, "the allocator is not counted");
    assert_eq!(monitor.memory_bytes(), stated);

    let mut now = 1_000;
    let mut written = 0;
    for round in 0..400_u64 {
        now += 1_000;
        for (index, writer) in (0..).zip(&mut writers) {
            // Now and then more than the ring holds.
            let elements = match round % 50 {
                49 => CAPACITY + 40,
                _ => (round * 7 + index * 13) % 100,
            };
            for element in 0..elements {
                // In every tenth round one is stamped long before it is published.
                let is_late = round % 10 == 3 && element == 0;
                let time = if is_late { now - 1_500 } else { now + element };
                writer.write(time, element);
            }
            written += elements;
        }
        now += 1_000;
        if round == 200 {
            leaving.remove();
        }
        let before = calls();
        monitor.round(at(now), &mut set);
        assert_eq!(calls() - before, 0, "in round {round}");
        assert_eq!(monitor.memory_bytes(), stated);
    }
    let before = calls();
    monitor.finish(at(now), &mut set);
    assert_eq!(calls() - before, 0);
    reactions_are_decided();

    assert!(matches!(strict.status().state, UpdateState::Stopped(_)));
    assert_eq!(leaving.status().state, UpdateState::Removed);
    assert!(leaving.status().elements > 0);
    assert_eq!(all.status().missed, monitor.losses().missed());
    drop(set);
    let (all, first) = (all.take().unwrap(), first.take().unwrap());
    assert_eq!(all.elements + all.missed, written);
    assert!(all.late > 0 && all.missed > all.late, "{} late", all.late);
    assert!(first.elements > 0 && first.elements < all.elements);
}

/// Deciding allocates nothing either, however far the other end lags behind. Called by the only test of
/// this binary, because others would be counted with it.
fn reactions_are_decided() {
    let condition = Condition {
        reaction: ReactionIndex(0),
        trigger: Trigger::Stream,
        of: Some(vec![0]),
        after: 2,
        once: false,
    };
    let (mut decider, mut decisions) = decider(vec![condition], 63);
    let before = calls();
    for element in 0..1_000 {
        let sensor = SensorIndex(0);
        decider.occurred(at(element), &Occurrence::Exceeded { sensor, element });
    }
    assert_eq!(calls() - before, 0);
    let mut taken = 0;
    decisions.take(|_| taken += 1);
    assert_eq!((taken, decisions.lost()), (63, 999 - 63));
}
