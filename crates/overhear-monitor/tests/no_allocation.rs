// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of a monitor with reserved memory allocate nothing and free nothing: with elements of
//! several streams, missed and late ones, updates that end and updates that are removed.

#[path = "support/counting.rs"]
mod counting;
mod support;

use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
use overhear_event::{
    Analysis, ElementView, EventName, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
    Timestamp, TypeSchema,
};
use overhear_metrics::automaton::{
    system_metric, Catalogue, LateGap, Measurement, Metric, Metrics, Sink,
};
use overhear_monitor::executor::SensorIndex;
use overhear_monitor::reaction::{decider, Condition, Measure, Occurrence, ReactionIndex, Trigger};
use overhear_monitor::{
    Binding, Merge, MissedPolicy, Monitor, QueueMemory, Subscription, UpdateSet, UpdateState,
};

use counting::calls;
use support::{at, descriptor, ring};

/// Adds up its calls.
#[derive(Default)]
struct Sum {
    elements: u64,
    values: u64,
    missed: u64,
    late: u64,
}

impl Analysis for Sum {
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
    let mut monitor = Monitor::with_memory(Nanos::from_ns(100), QueueMemory::Reserved);
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
            // Sometimes more than the capacity of the ring.
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

/// Deciding allocates nothing either, even if the other thread is far behind. Called by the test of
/// rounds, in whose thread calls are counted.
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
        let measure = Measure::of_lengths(Some(Nanos::from_ns(element)), None);
        let occurrence = Occurrence::Exceeded {
            sensor,
            element,
            measure,
        };
        decider.occurred(at(element), &occurrence);
    }
    assert_eq!(calls() - before, 0);
    let mut taken = 0;
    decisions.take(|_| taken += 1);
    assert_eq!((taken, decisions.lost()), (63, 999 - 63));
}

/// Adds measurements up.
struct Lengths {
    counts: bool,
    total: u64,
    doubts: u64,
}

impl Sink for Lengths {
    fn counts_intermediate(&self, _: &Metric) -> bool {
        self.counts
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.total += measurement.length.as_ns();
    }

    fn late_gap(&mut self, _: &LateGap<'_>) {
        self.doubts += 1;
    }
}

fn of_kernel(id: u32, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        capacity: 8,
        ..StreamDescriptor::new(
            StreamId::from_raw(id),
            Origin::Kernel { cpu: 0 },
            sensor,
            schema,
        )
    }
}

/// Elements of threads that begin, run, are woken and end, and gaps between them.
fn live(metrics: &mut Metrics<Lengths>, streams: &[StreamDescriptor; 2]) {
    let mut chance = 1_u64;
    let mut below = |limit: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % limit
    };
    for sequence in 0..20_000_u64 {
        // Others begin and end, some more than the capacity.
        let first = 1 + sequence / 500 * 10;
        let mut thread = || (first + below(60)) as u32;
        let (prev_tid, next_tid) = (thread(), thread());
        let prev_state = [0, 1, 0x80][below(3) as usize];
        let switch = Switch {
            prev_tid,
            next_tid,
            prev_pid: 1,
            next_pid: 1,
            prev_state,
            flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
            prev_run_ns: Switch::UNKNOWN,
        };
        let wake = Wake {
            tid: next_tid,
            pid: 1,
            waker_tid: prev_tid,
            waker_pid: 1,
            target_cpu: 0,
            kind: 1 + below(2) as u32,
        };
        let time = at(sequence * 10);
        let (switch, wake) = (switch.to_payload(), wake.to_payload());
        let which = below(2) as usize;
        metrics.element(&ElementView {
            stream: &streams[which],
            sequence,
            time,
            payload: [&switch[..], &wake[..]][which],
        });
        if below(50) == 0 {
            let gap = Gap {
                stream: streams[which].id,
                first: sequence,
                missed: 1,
                from: at(sequence * 10 - 5.min(sequence * 10)),
                to: time,
                cause: GapCause::Overwritten,
            };
            metrics.gap(&streams[which], &gap);
        }
    }
}

#[test]
fn metrics_with_reserved_memory_neither_allocate_nor_free() {
    let heeds_others = "metric pause \"between two runs, whoever wakes whom\"
        event wakeup = kernel:sched_wake task tid
        event ran    = kernel:sched_switch task prev_tid
        state idle    out
        state started begin
        state asked   cond
        state away    in
        state over    end
        idle -> started: ran, i
        started -> away: lambda
        away -> asked: wakeup, not i
        asked -> away: *
        away -> over: wakeup, i
        over -> idle: lambda";
    let streams = [
        of_kernel(1, SCHED_SWITCH, Switch::schema()),
        of_kernel(2, SCHED_WAKE, Wake::schema()),
    ];
    for counts in [false, true] {
        let heeding = Metric::parse(heeds_others, &Catalogue::linux()).unwrap();
        for metric in [
            system_metric("run_delay").unwrap(),
            system_metric("time_slice").unwrap(),
            heeding,
        ] {
            let name = metric.name().to_owned();
            let sink = Lengths {
                counts,
                total: 0,
                doubts: 0,
            };
            let mut metrics = Metrics::new(sink).with_instances(48);
            metrics.add(metric);
            for stream in &streams {
                metrics.open(stream);
            }
            metrics.reserve();
            let before = calls();
            live(&mut metrics, &streams);
            let after = calls();
            let (_, statistics) = metrics.statistics().next().unwrap();
            assert_eq!(after, before, "{name}, {counts}: {statistics:?}");
            // It has used every function that could allocate memory.
            assert!(statistics.completed > 100, "{name}: {statistics:?}");
            assert!(statistics.refused > 0, "{name}: {statistics:?}");
            assert!(statistics.incomplete > 0, "{name}: {statistics:?}");
            assert!(metrics.sink().doubts > 0, "{name}");
        }
    }
}
