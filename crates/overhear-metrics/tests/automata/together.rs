// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics that share one engine, many elements at once, without intermediate events, with
//! positions or without: this is the fast path of the engine. The slow path evaluates each metric
//! separately, element by element, with intermediate events. The results are equal.

use overhear_event::{Analysis, ElementView, Gap, Item, StreamDescriptor, StreamId, Timestamp};
use overhear_metrics::automaton::{
    system_metric, Catalogue, LateGap, Measurement, Metric, MetricStatistics, Metrics, Position,
    Sink, Specification,
};
use proptest::prelude::{prop, prop_oneof, proptest, ProptestConfig, Strategy};
use proptest::prop_assert_eq;

use crate::arbitrary::{metric, own_metric};
use crate::scene::{catalogue, each, Line};

/// The values of a measurement, without its intermediate elements.
#[derive(Clone, Debug, PartialEq)]
struct Reported {
    number: u64,
    task: u32,
    begin: (Timestamp, Position),
    end: (Timestamp, Position),
    length: u64,
    key: Option<u64>,
    missed: u64,
    doubts: u64,
}

/// The parts of measurements that the sink requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wants {
    Values,
    Positions,
    Intermediate,
}

#[derive(Debug)]
struct All {
    wants: Wants,
    /// By metric.
    metrics: Vec<Vec<Reported>>,
}

impl Sink for All {
    fn counts_intermediate(&self, _: &Metric) -> bool {
        self.wants == Wants::Intermediate
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        self.wants != Wants::Values
    }

    fn measurement(&mut self, it: &Measurement<'_>) {
        assert_eq!(it.intermediate.is_some(), self.wants == Wants::Intermediate);
        self.metrics[it.metric_index].push(Reported {
            number: it.number,
            task: it.task,
            begin: (it.begin, it.begin_at),
            end: (it.end, it.end_at),
            length: it.length.as_ns(),
            key: it.key,
            missed: it.missed.elements,
            doubts: 0,
        });
    }

    fn late_gap(&mut self, doubt: &LateGap<'_>) {
        self.metrics[doubt.metric_index][doubt.number as usize].doubts += 1;
    }
}

/// An item that outlives its scene.
enum Kept {
    Element(StreamDescriptor, u64, Timestamp, Vec<u8>),
    Gap(StreamDescriptor, Gap),
}

/// The items of a scene with the ids of its streams raised by this number.
fn kept(lines: &[Line], catalogue: &Catalogue, by: u32) -> Vec<Kept> {
    let mut all = Vec::new();
    each(lines, catalogue, |stream, _, item| {
        let stream = &StreamDescriptor {
            id: StreamId::from_raw(stream.id.as_raw() + by),
            ..stream.clone()
        };
        all.push(match item {
            Item::Element(it) => {
                Kept::Element(stream.clone(), it.sequence, it.time, it.payload.to_vec())
            }
            Item::Gap(_, gap) => Kept::Gap(stream.clone(), gap),
            _ => panic!("scenes have nothing else"),
        });
    });
    all
}

fn play(
    metrics: &[Metric],
    items: &[Kept],
    limit: usize,
    batch: usize,
    wants: Wants,
) -> Vec<(Vec<Reported>, MetricStatistics)> {
    let sink = All {
        wants,
        metrics: vec![Vec::new(); metrics.len()],
    };
    let mut engine = Metrics::new(sink).with_instances(limit);
    for metric in metrics {
        engine.add(metric.clone());
    }
    let mut waiting = Vec::new();
    for item in items {
        match item {
            Kept::Element(stream, sequence, time, payload) => waiting.push(ElementView {
                stream,
                sequence: *sequence,
                time: *time,
                payload,
            }),
            Kept::Gap(stream, gap) => {
                engine.elements(&waiting);
                waiting.clear();
                engine.gap(stream, gap);
            }
        }
        if waiting.len() == batch {
            engine.elements(&waiting);
            waiting.clear();
        }
    }
    engine.elements(&waiting);
    engine.finish();
    let statistics: Vec<_> = engine.statistics().map(|(_, it)| it).collect();
    let reported = engine.into_sink().metrics;
    reported.into_iter().zip(statistics).collect()
}

/// Threads that run, sleep, wake, begin and end, in any order, and unknown events.
fn line() -> impl Strategy<Value = (u64, String)> {
    let thread = || 1..6_u32;
    prop_oneof![
        4 => (thread(), thread(), 0..9_u8, 0..8_u8, 0..9_u32).prop_map(|(prev, next, state, flags, ran)| {
            let state = [0, 0, 1, 1, 1, 2, 2, 1, 0x80][usize::from(state)];
            let ran = if ran > 6 { u32::MAX } else { ran };
            format!("kernel:sched_switch prev_tid={prev} next_tid={next} prev_state={state} flags={flags} prev_run_ns={ran}")
        }),
        4 => (thread(), 1..4_u8).prop_map(|(tid, kind)| format!("kernel:sched_wake tid={tid} kind={kind}")),
        1 => (thread(), thread(), 1..5_u8).prop_map(|(tid, parent, kind)| {
            format!("kernel:task_life tid={tid} parent_tid={parent} kind={kind}")
        }),
        4 => (0..4_usize, 0..5_u32, 0..5_u32).prop_map(|(event, task, value)| {
            let event = ["w", "x", "y", "z"][event];
            format!("kernel:{event} task={task} value={value}")
        }),
        1 => (0..2_usize).prop_map(|event| {
            let event = ["y", "sched_switch"][event];
            format!("gap kernel:{event} from=103 missed=2")
        }),
    ]
    .prop_flat_map(|line| (0..5_u64).prop_map(move |step| (step, line.clone())))
}

/// Each element ends one measurement by a backdated symbol, and another one at its own time.
const TWO_BY_EACH: &str = "
metric two
event seen = kernel:w task task
event late = kernel:y task task ago value
event now  = kernel:y task task
state idle   out
state first  begin
state runs   in
state ends   end
state second begin
state waits  in
state done   end
idle   -> first: now, i
first  -> runs: lambda
runs   -> ends: seen, i
runs   -> ends: late, i
ends   -> second: lambda
second -> waits: lambda
waits  -> done: now, i
done   -> first: lambda
";

#[test]
fn batch_completes_more_measurements_than_elements() {
    let specification: Specification = TWO_BY_EACH.parse().unwrap();
    let catalogue = catalogue(Some(&specification));
    let metric = [Metric::new(specification, &catalogue).unwrap()];
    for seen in [1_000, 2, 3] {
        let lines = (0..1_000_u64).map(|number| {
            let line = match number % seen {
                1 => format!("{} kernel:w task=1 value=0", 10 * number),
                _ => format!("{} kernel:y task=1 value={}", 10 * number, number % 7),
            };
            Line::parse(&line).unwrap()
        });
        let lines: Vec<Line> = lines.collect();
        let items = kept(&lines, &catalogue, 0);
        let expected = play(&metric, &items, 8, 1, Wants::Intermediate);
        let count = expected[0].0.len() as u64;
        assert!(count >= 2 * (1_000 - 1_000 / seen) - 9, "{count}");
        for batch in [1, 2, 127, 128, 1_000] {
            let found = play(&metric, &items, 8, batch, Wants::Positions);
            assert_eq!(found, expected, "{batch}");
        }
    }
}

/// Segments with an `out` state between them, and an event that changes nothing.
const TWO_SEGMENTS: &str = "
metric segments
event step = kernel:y task task
event idle = kernel:w task task
state start  out
state first  begin
state one    in
state rests  out
state two    in
state ends   end
start -> first: step, i
first -> one: lambda
one   -> rests: step, i
rests -> two: step, i
two   -> ends: step, i
ends  -> start: lambda
";

#[test]
fn elements_that_end_no_segment_add_no_length() {
    let specification: Specification = TWO_SEGMENTS.parse().unwrap();
    let catalogue = catalogue(Some(&specification));
    let metric = [Metric::new(specification, &catalogue).unwrap()];
    let times = [
        "10 y", "12 w", "14 w", "30 y", "31 w", "50 y", "53 w", "60 y",
    ];
    let lines = times.map(|line| {
        let (time, event) = line.split_once(' ').unwrap();
        Line::parse(&format!("{time} kernel:{event} task=1 value=0")).unwrap()
    });
    let items = kept(&lines, &catalogue, 0);
    for wants in [Wants::Values, Wants::Positions, Wants::Intermediate] {
        let found = play(&metric, &items, 8, 100, wants);
        let [reported] = &found[0].0[..] else {
            panic!("{found:?}");
        };
        assert_eq!(reported.length, (30 - 10) + (60 - 50), "{wants:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn metrics_together_match_each_alone(
        arbitrary in prop::collection::vec(metric(), 2..5),
        own in prop::collection::vec(own_metric(), 1..4),
        steps in prop::collection::vec(line(), 0..120),
        limit in prop_oneof![1..5_usize, 100..101_usize],
        batch in 1..40_usize,
        // Small numbers of streams, and large ones.
        by in prop_oneof![0..1_u32, 65_530..65_537_u32],
        // More metrics than the number of bits.
        copies in prop_oneof![20 => 1..2_usize, 1 => 12..13_usize],
    ) {
        let mut time = 110;
        let lines = steps.iter().map(|(step, line)| {
            time += step;
            Line::parse(&format!("{time} {line}")).unwrap()
        });
        let lines: Vec<Line> = lines.collect();
        let names = ["wakeup_latency", "run_delay", "time_slice", "off_cpu", "preemption"];
        let mut metrics: Vec<Metric> = arbitrary.into_iter().chain(own).flatten().collect();
        let names = names.iter().cycle().take(names.len() * copies);
        metrics.extend(names.map(|name| system_metric(name).unwrap()));
        // All names of unknown events that arbitrary metrics contain.
        let specification = metrics[0].specification();
        let items = kept(&lines, &catalogue(Some(specification)), by);
        let values = play(&metrics, &items, limit, batch, Wants::Values);
        let together = play(&metrics, &items, limit, batch, Wants::Positions);
        for (metric, (values, together)) in metrics.iter().zip(values.iter().zip(together)) {
            let mut alone = play(std::slice::from_ref(metric), &items, limit, 1, Wants::Intermediate);
            prop_assert_eq!(&together, &alone[0], "{}", metric);
            for reported in &mut alone[0].0 {
                (reported.begin.1, reported.end.1) = (Position::NONE, Position::NONE);
            }
            prop_assert_eq!(values, &alone[0], "{} without positions", metric);
        }
    }
}
