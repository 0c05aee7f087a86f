// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exports that are read back.

use overhear_event::kernel::{events, Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, SamplePoint, SampleSchema,
    StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use prost::Message;

use super::PerfettoExport;
use crate::export::schema::{Counter, Data, Ftrace, Trace};

fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        capacity: 64,
        ..StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
    }
}

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

/// Writes an export and reads its packets.
fn exported(feed: impl FnOnce(&mut PerfettoExport<&mut Vec<u8>>)) -> Vec<Data> {
    let mut bytes = Vec::new();
    let mut export = PerfettoExport::new(&mut bytes, Nanos::from_ns(1_000));
    feed(&mut export);
    export.finish().unwrap();
    let trace = Trace::decode(bytes.as_slice()).unwrap();
    trace
        .packet
        .into_iter()
        .filter_map(|packet| packet.data)
        .collect()
}

#[test]
fn missed_arrivals_follow_from_the_account() {
    let cpu = stream(1, Origin::Kernel { cpu: 3 }, SCHED_SWITCH, Switch::schema());
    let switch = |prev_tid, next_tid, prev_state, flags, prev_run_ns| Switch {
        prev_tid,
        next_tid,
        prev_pid: 10,
        next_pid: 10,
        prev_state,
        flags,
        prev_run_ns,
    };
    let packets = exported(|export| {
        for (sequence, (ns, switch)) in [
            (100, switch(0, 11, 0, 0, Switch::UNKNOWN)),
            (300, switch(11, 0, 1, 0, 200)),
            // 12 arrived 50 ns before it left, unrecorded, and was preempted.
            (500, switch(12, 13, 0, Switch::PREEMPTED, 50)),
            (600, switch(13, 0, 0x80, 0, 100)),
        ]
        .into_iter()
        .enumerate()
        {
            export.element(&ElementView {
                stream: &cpu,
                sequence: sequence as u64,
                time: at(ns),
                payload: &switch.to_payload(),
            });
        }
    });
    let bundles: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Ftrace(bundle) => Some(bundle),
            _ => None,
        })
        .collect();
    assert_eq!((bundles.len(), bundles[0].cpu), (1, 3));
    let seen: Vec<_> = bundles[0]
        .event
        .iter()
        .filter_map(|event| match &event.event {
            Some(Ftrace::Switch(s)) => {
                Some((event.timestamp, s.prev_pid, s.prev_state, s.next_pid))
            }
            _ => None,
        })
        .collect();
    let expected = [
        (100, 0, 0, 11),
        (300, 11, 1, 0),
        (450, 0, 1, 12),
        (500, 12, 256, 13),
        (600, 13, 16, 0),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn elements_have_arguments_and_counters_and_gaps_are_exported() {
    let schema = TypeSchema::builder("load")
        .field("torque", FieldKind::F64, "Nm")
        .field("name", FieldKind::Text(8), "");
    let robot = Origin::program(42, "robot");
    let sensor = stream(5, robot, "arm", schema.build().unwrap());
    let packets = exported(|export| {
        let mut payload = 1.5_f64.to_ne_bytes().to_vec();
        payload.extend(*b"left\0\0\0\0");
        export.element(&ElementView {
            stream: &sensor,
            sequence: 0,
            time: at(1_000),
            payload: &payload,
        });
        let gap = Gap {
            stream: sensor.id,
            first: 1,
            missed: 7,
            from: at(1_000),
            to: at(2_000),
            cause: GapCause::Overwritten,
        };
        export.gap(&sensor, &gap);
    });
    let tracks: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Track(track) => Some((track.name.as_str(), track.parent_uuid.is_some())),
            _ => None,
        })
        .collect();
    assert_eq!(tracks, [("", false), ("arm", true), ("arm.torque", true)]);
    let events: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Event(event) => Some(event),
            _ => None,
        })
        .collect();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [3, 4, 3]);
    assert_eq!(events[0].debug_annotations.len(), 3);
    assert_eq!(events[1].counter, Some(Counter::Float(1.5)));
    assert_eq!(events[2].name.as_deref(), Some("7 missed"));
}

#[test]
fn wake_up_is_a_flow_from_waker_to_woken() {
    let cpu = stream(1, Origin::Kernel { cpu: 0 }, SCHED_SWITCH, Switch::schema());
    let wakes = stream(2, Origin::Kernel { cpu: 0 }, SCHED_WAKE, Wake::schema());
    let switch = |prev_tid, next_tid| Switch {
        prev_tid,
        next_tid,
        prev_pid: 10,
        next_pid: 10,
        prev_state: 1,
        flags: 0,
        prev_run_ns: Switch::UNKNOWN,
    };
    let wake = |kind, waker_tid| Wake {
        tid: 12,
        pid: 10,
        waker_tid,
        waker_pid: 10,
        target_cpu: 0,
        kind,
    };
    let packets = exported(|export| {
        let mut feed = |stream: &StreamDescriptor, ns, payload: &[u8]| {
            export.element(&ElementView {
                stream,
                sequence: 0,
                time: at(ns),
                payload,
            });
        };
        feed(&cpu, 100, &switch(0, 11).to_payload());
        feed(&wakes, 150, &wake(Wake::WAKING, 11).to_payload());
        feed(&wakes, 151, &wake(Wake::WAKEUP, 11).to_payload());
        feed(&cpu, 200, &switch(11, 12).to_payload());
        feed(&cpu, 300, &switch(12, 0).to_payload());
        // An interrupt on an idle CPU is not a thread.
        feed(&wakes, 400, &wake(Wake::WAKING, 0).to_payload());
        feed(&cpu, 450, &switch(0, 12).to_payload());
    });
    let threads: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Track(track) => Some((track.uuid, track.thread.as_ref()?.tid)),
            _ => None,
        })
        .collect();
    let flows: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Event(event) => {
                let (_, tid) = threads.iter().find(|(uuid, _)| *uuid == event.track_uuid)?;
                let flows = (event.flow_ids.clone(), event.terminating_flow_ids.clone());
                Some((*tid, event.name.clone()?, flows))
            }
            _ => None,
        })
        .collect();
    let expected = [
        (11, "wakes 12".to_string(), (vec![1], vec![])),
        (12, "woken by 11".to_string(), (vec![], vec![1])),
    ];
    assert_eq!(flows, expected);
}

#[test]
fn begin_and_end_make_a_slice_also_across_cpus() {
    let of = |id, cpu| {
        let schema = events::syscall_schema();
        stream(id, Origin::Kernel { cpu }, events::SYSCALL, schema)
    };
    let (one, other) = (of(1, 0), of(2, 1));
    let payload = |tid: u32, kind: u32| {
        let mut payload = Vec::new();
        for word in [tid, 10, 202, kind] {
            payload.extend(word.to_ne_bytes());
        }
        payload.extend(0_i64.to_ne_bytes());
        payload
    };
    let packets = exported(|export| {
        let steps = [
            (&one, 7, 1),
            (&one, 8, 1),
            (&other, 7, 2),
            (&one, 9, 1),
            (&one, 8, 2),
            (&one, 5, 2),
        ];
        for (ns, (stream, tid, kind)) in steps.into_iter().enumerate() {
            export.element(&ElementView {
                stream,
                sequence: 0,
                time: at(100 * ns as u64),
                payload: &payload(tid, kind),
            });
        }
    });
    let slices: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Event(event) if event.kind < 3 => Some((event.kind, event.track_uuid)),
            _ => None,
        })
        .collect();
    let (first, second) = (slices[0].1, slices[1].1);
    assert_ne!(first, second, "two at once need two lanes");
    let expected = [(1, first), (1, second), (2, first), (1, first), (2, second)];
    assert_eq!(slices, expected);
}

#[test]
fn interrupts_have_names_and_the_tracks_of_their_cpus() {
    let of = |id, cpu, sensor, schema| stream(id, Origin::Kernel { cpu }, sensor, schema);
    let one = of(1, 0, events::IRQ, events::irq_schema());
    let other = of(2, 1, events::IRQ, events::irq_schema());
    let soft = of(3, 1, events::SOFTIRQ, events::softirq_schema());
    let head = |number: u32, kind: u32| {
        let words = [7_u32, 7, number, kind];
        words
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect::<Vec<u8>>()
    };
    let hard = |number, kind, name: &str| {
        let mut payload = head(number, kind);
        payload.extend(name.bytes());
        payload.resize(32, 0);
        payload
    };
    let packets = exported(|export| {
        let steps = [
            (&one, hard(11, 1, "disk")),
            (&other, hard(11, 1, "disk")),
            (&one, hard(11, 2, "disk")),
            (&soft, head(4, 1)),
            (&soft, head(4, 2)),
            (&other, hard(11, 2, "disk")),
            (&soft, head(99, 1)),
        ];
        for (ns, (stream, payload)) in steps.iter().enumerate() {
            export.element(&ElementView {
                stream,
                sequence: 0,
                time: at(100 * ns as u64),
                payload,
            });
        }
    });
    let tracks: std::collections::BTreeMap<u64, String> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Track(track) => Some((track.uuid, track.name.clone())),
            _ => None,
        })
        .collect();
    let slices: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Event(event) if event.kind < 3 => {
                let track = tracks[&event.track_uuid].as_str();
                Some((track, event.kind, event.name.as_deref().unwrap_or_default()))
            }
            _ => None,
        })
        .collect();
    let expected = [
        ("irq CPU 0", 1, "disk"),
        ("irq CPU 1", 1, "disk"),
        ("irq CPU 0", 2, ""),
        ("softirq CPU 1", 1, "block"),
        ("softirq CPU 1", 2, ""),
        ("irq CPU 1", 2, ""),
        // For a number without a name, the name of the sensor is used.
        ("softirq CPU 1", 1, "softirq"),
    ];
    assert_eq!(slices, expected);
}

#[test]
fn calls_have_names_and_end_with_their_threads() {
    let calls = stream(
        1,
        Origin::Kernel { cpu: 0 },
        events::SYSCALL,
        events::syscall_schema(),
    );
    let lives = stream(2, Origin::Kernel { cpu: 0 }, TASK_LIFE, Life::schema());
    let call = |tid: u32, number: i64| {
        let words = [tid, 10, number as u32, events::KIND_BEGIN];
        let mut payload: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        payload.extend(0_i64.to_ne_bytes());
        payload
    };
    let exit = Life {
        tid: 7,
        pid: 10,
        parent_tid: 0,
        parent_pid: 0,
        kind: Life::EXIT,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    };
    let packets = exported(|export| {
        let steps = [
            (&calls, call(7, libc::SYS_exit)),
            (&calls, call(8, libc::SYS_read)),
            (&lives, exit.to_payload().to_vec()),
        ];
        for (ns, (stream, payload)) in steps.iter().enumerate() {
            export.element(&ElementView {
                stream,
                sequence: 0,
                time: at(100 * ns as u64),
                payload,
            });
        }
    });
    let slices = slices(&packets);
    let track = slices[0].1;
    assert_ne!(slices[1].1, track);
    let expected = [(1, track, "exit"), (1, slices[1].1, "read"), (2, track, "")];
    assert_eq!(slices, expected);
}

/// Begins and ends: kind, track, and name.
fn slices(packets: &[Data]) -> Vec<(i32, u64, &str)> {
    let slices = packets.iter().filter_map(|data| match data {
        Data::Event(event) if event.kind < 3 => Some((
            event.kind,
            event.track_uuid,
            event.name.as_deref().unwrap_or_default(),
        )),
        _ => None,
    });
    slices.collect()
}

#[test]
fn handlers_of_timers_are_slices_although_their_ends_name_no_function() {
    let timers = stream(
        1,
        Origin::Kernel { cpu: 0 },
        events::TIMER,
        events::timer_schema(),
    );
    let packets = exported(|export| {
        // A hard interrupt interrupts a soft one and wakes a thread; its element is for that thread
        // as well.
        let steps = [
            (7, 70, 1),
            (7, 80, 3),
            (9, 80, 5),
            (9, 80, 6),
            (7, 0, 4),
            (7, 0, 2),
        ];
        for (ns, (tid, function, kind)) in steps.into_iter().enumerate() {
            let words = [tid, tid, function, 0, kind, 0_u32];
            let payload: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
            export.element(&ElementView {
                stream: &timers,
                sequence: 0,
                time: at(100 * ns as u64),
                payload: &payload,
            });
        }
    });
    let slices = slices(&packets);
    let (soft, hard) = (slices[0].1, slices[1].1);
    assert_ne!(soft, hard);
    let expected = [
        (1, soft, "timer"),
        (1, hard, "timer"),
        (2, hard, ""),
        (2, soft, ""),
    ];
    assert_eq!(slices, expected);
}

#[test]
fn calls_with_recorded_returns_are_slices() {
    let of = |id, cpu, sensor, schema| stream(id, Origin::Kernel { cpu }, sensor, schema);
    let calls = of(1, 0, "probe/sum", events::probe_schema());
    let returns = of(2, 1, "probe/sum/return", events::probe_return_schema());
    let alone = of(3, 0, "probe/other", events::probe_schema());
    let lives = of(4, 0, TASK_LIFE, Life::schema());
    let payload = |tid: u32, bytes: usize| {
        let mut payload = tid.to_ne_bytes().to_vec();
        payload.resize(bytes, 0);
        payload
    };
    let exit = Life {
        tid: 8,
        pid: 8,
        parent_tid: 0,
        parent_pid: 0,
        kind: Life::EXIT,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    };
    let packets = exported(|export| {
        export.announce(&calls);
        export.announce(&returns);
        let steps = [
            (&calls, payload(7, 56)),
            (&calls, payload(7, 56)),
            (&calls, payload(8, 56)),
            (&alone, payload(7, 56)),
            (&returns, payload(7, 16)),
            (&lives, exit.to_payload().to_vec()),
            (&returns, payload(7, 16)),
            (&returns, payload(9, 16)),
        ];
        for (ns, (stream, payload)) in steps.iter().enumerate() {
            export.element(&ElementView {
                stream,
                sequence: 0,
                time: at(100 * ns as u64),
                payload,
            });
        }
    });
    let slices = slices(&packets);
    let [outer, inner, other] = [0, 1, 2].map(|at: usize| slices[at].1);
    // Ids are no counters, arguments are.
    let counters = packets.iter().filter_map(|data| match data {
        Data::Track(track) if track.counter.is_some() => Some(track.name.as_str()),
        _ => None,
    });
    let counters: Vec<_> = counters.collect();
    assert!(counters.contains(&"probe/sum.argument_1"), "{counters:?}");
    assert!(!counters.iter().any(|name| name.ends_with("id")));
    let expected = [
        (1, outer, "sum"),
        (1, inner, "sum"),
        (1, other, "sum"),
        (2, inner, ""),
        (2, other, ""),
        (2, outer, ""),
    ];
    assert_eq!(slices, expected);
    assert!(outer != inner && inner != other);
}

#[test]
fn samples_have_counters_per_thread_and_jobs_are_slices() {
    let schema = SampleSchema::new().count("cycles", "");
    let schema = schema.count("cpu_time", "ns").level("resident", "B");
    let sampler = stream(
        5,
        Origin::program(42, "robot"),
        "work",
        schema.build().unwrap(),
    );
    let packets = exported(|export| {
        for (sequence, (tid, point, ns)) in [
            (43, SamplePoint::JobEnd, 3_000),
            (44, SamplePoint::Switch, 3_500),
            (43, SamplePoint::JobEnd, 5_000),
            (43, SamplePoint::ThreadEnd, 6_000),
            (0, SamplePoint::Period, 7_000),
            // The first sample has no duration: its counts are no rates.
            (44, SamplePoint::Switch, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let words = [tid, 42, point.as_raw(), 1_u32];
            let mut payload: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
            let duration = if ns == 0 { 0_u64 } else { 2_000 };
            for word in [duration, 6, 500] {
                payload.extend(word.to_ne_bytes());
            }
            payload.extend((-7_i64).to_ne_bytes());
            export.element(&ElementView {
                stream: &sampler,
                sequence: sequence as u64,
                time: at(ns),
                payload: &payload,
            });
        }
    });
    let tracks: Vec<_> = packets
        .iter()
        .filter_map(|data| match data {
            Data::Track(track) => Some(track),
            _ => None,
        })
        .collect();
    let thread = |tid: u64| 2 << 40 | tid;
    let counters: Vec<_> = tracks
        .iter()
        .filter_map(|track| {
            let counter = track.counter.as_ref()?;
            Some((
                track.uuid,
                track.parent_uuid?,
                &*track.name,
                &*counter.unit_name,
            ))
        })
        .collect();
    let named: Vec<_> = counters.iter().map(|it| (it.1, it.2, it.3)).collect();
    let mut expected = Vec::new();
    for parent in [thread(43), thread(44), 1 << 40 | 42] {
        expected.push((parent, "work.cycles", "/s"));
        expected.push((parent, "work.cpu_time", "%"));
        expected.push((parent, "work.resident", "B"));
    }
    assert_eq!(named, expected);
    let values = |place: usize| -> Vec<_> {
        let events = packets.iter().filter_map(|data| match data {
            Data::Event(event) if event.track_uuid == counters[place].0 => event.counter.clone(),
            _ => None,
        });
        events.collect()
    };
    assert_eq!(values(0), [Counter::Float(3e6), Counter::Float(3e6)]);
    assert_eq!(values(1), [Counter::Float(25.0), Counter::Float(25.0)]);
    assert_eq!(values(3), [Counter::Float(3e6)]);
    assert_eq!(values(5), [Counter::Integer(-7), Counter::Integer(-7)]);
    let jobs = tracks
        .iter()
        .find(|track| track.name == "work jobs")
        .unwrap();
    assert_eq!(jobs.parent_uuid, Some(thread(43)));
    let edges = packets.iter().filter_map(|data| match data {
        Data::Event(event) if event.track_uuid == jobs.uuid => Some(event.kind),
        _ => None,
    });
    assert_eq!(edges.collect::<Vec<_>>(), [1, 2, 1, 2]);
}
