// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synthetic reports and time-lines of any size, the same in each run.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use serde_json::{json, Value};

/// States as in the page's data model.
pub(crate) const RUNNING: u8 = 1;
pub(crate) const RUNNABLE: u8 = 2;
pub(crate) const BLOCKED: u8 = 3;
pub(crate) const PREEMPTED: u8 = 4;
pub(crate) const UNKNOWN: u8 = 5;

const NO_CPU: u16 = u16::MAX;

/// One interval: length in ns, state, CPU.
pub(crate) type Interval = (u32, u8, u16);

/// A thread of the time-line with the given intervals.
pub(crate) fn thread(
    pid: u32,
    tid: u32,
    comm: &str,
    first_ns: u64,
    intervals: &[Interval],
) -> Value {
    let lengths = intervals.iter().flat_map(|i| i.0.to_le_bytes());
    let states = intervals.iter().map(|i| i.1);
    let cpus = intervals.iter().flat_map(|i| i.2.to_le_bytes());
    json!({
        "pid": pid, "tid": tid, "comm": comm, "first_ns": first_ns,
        "lengths": STANDARD.encode(lengths.collect::<Vec<u8>>()),
        "states": STANDARD.encode(states.collect::<Vec<u8>>()),
        "cpus": STANDARD.encode(cpus.collect::<Vec<u8>>()),
    })
}

/// Gives a thread reasons: `(index of the interval, kind, value)`.
pub(crate) fn with_reasons(mut thread: Value, reasons: &[(usize, &str, u32)]) -> Value {
    let states = STANDARD.decode(thread["states"].as_str().unwrap()).unwrap();
    let mut column = vec![u16::MAX; states.len()];
    let mut table: Vec<Value> = Vec::new();
    for &(index, kind, value) in reasons {
        let reason = json!([kind, value]);
        let place = table.iter().position(|known| *known == reason);
        let place = place.unwrap_or_else(|| {
            table.push(reason);
            table.len() - 1
        });
        column[index] = u16::try_from(place).unwrap();
    }
    thread["reasons"] = json!(STANDARD.encode(
        column
            .iter()
            .flat_map(|place| place.to_le_bytes())
            .collect::<Vec<u8>>()
    ));
    thread["reason_table"] = json!(table);
    thread
}

/// A sensor with elements at the given times and one number in each.
pub(crate) fn sensor(
    pid: u32,
    id: &str,
    times_ns: &[u64],
    name: &str,
    unit: &str,
    values: &[f64],
) -> Value {
    let deltas = times_ns
        .windows(2)
        .flat_map(|pair| u32::try_from(pair[1] - pair[0]).unwrap().to_le_bytes());
    json!({
        "pid": pid, "comm": "", "id": id, "instance": "", "type": "test.sample",
        "first_ns": times_ns[0], "first_sequence": 100,
        "deltas": STANDARD.encode(deltas.collect::<Vec<u8>>()),
        "fields": [{"name": name, "unit": unit, "kind": "number", "values": numbers(values)}],
    })
}

/// Sets by how much a thread's intervals shrink in compensated time and how much earlier the first
/// begins, or by how much more than its predecessor each element of a sensor is moved.
pub(crate) fn with_shrinks(mut of: Value, delay_ns: u64, shrinks: &[i64]) -> Value {
    let mut bytes = Vec::new();
    for shrink in shrinks {
        let mut rest = ((shrink << 1) ^ (shrink >> 63)).cast_unsigned();
        while rest >= 0x80 {
            bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    of["shrinks"] = json!(STANDARD.encode(bytes));
    of["delay_ns"] = json!(delay_ns);
    of
}

/// The number of intervals of a thread.
pub(crate) fn intervals_of(thread: &Value) -> usize {
    let states = STANDARD.decode(thread["states"].as_str().unwrap());
    states.unwrap().len()
}

/// A column of numbers.
pub(crate) fn numbers(values: &[f64]) -> String {
    STANDARD.encode(
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>(),
    )
}

/// A time-line of threads and sensors that lasts for `duration_ns`.
pub(crate) fn timeline(duration_ns: u64, threads: Vec<Value>, sensors: Vec<Value>) -> Value {
    json!({
        "origin_ns": 1_000_000_000_u64, "end_ns": 1_000_000_000 + duration_ns, "cpus": 4,
        "processes": [], "threads": threads, "sensors": sensors, "gaps": [],
    })
}

/// The numbers of a linear congruential generator, without another crate.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }

    /// `mean` more or less a half.
    fn around(&mut self, mean: u64) -> u32 {
        u32::try_from(mean / 2 + self.below(mean + 1))
            .unwrap()
            .max(1)
    }
}

/// The program of the pictures: the actions of its threads, as (comm, period, run time, percentage
/// of displacements).
const PLAN: [(u32, &str, u64, u64, u64); 9] = [
    (4210, "planner", 20, 4, 5),
    (4210, "worker/0", 9, 7, 30),
    (4210, "worker/1", 9, 7, 30),
    (4210, "worker/2", 9, 6, 45),
    (4210, "logger", 160, 3, 2),
    (4210, "control-loop", 10, 2, 0),
    (4388, "camera", 33, 2, 5),
    (4388, "grabber", 33, 9, 10),
    (4388, "encoder", 33, 21, 60),
];

/// A run of ten seconds with about `intervals` intervals in nine threads of two processes,
/// three sensors, and losses.
pub(crate) fn run(intervals: usize) -> Value {
    const DURATION: u64 = 10_000_000_000;
    let per_thread = intervals / PLAN.len();
    let threads = PLAN
        .iter()
        .zip(0_u32..)
        .map(|(&(pid, comm, period, run, displaced), index)| {
            let mut dice = Dice::new(u64::from(index) + 7);
            // A cycle is blocked, runnable, running, and at times preempted and running again:
            // its length is chosen so that the cycles fill the run.
            let per_cycle = 300 + 2 * displaced;
            let cycle = DURATION * per_cycle / (per_thread as u64 * 100).max(1);
            let mut columns = Vec::with_capacity(per_thread);
            let first = u64::from(index) * 3_000_000;
            let mut end = first;
            while columns.len() < per_thread && end < DURATION {
                let cpu = u16::try_from(dice.below(4)).unwrap();
                let busy = cycle * run / period;
                let mut push = |length: u32, state: u8, cpu: u16| {
                    let length = length
                        .min(u32::try_from((DURATION - end).min(u64::from(u32::MAX))).unwrap());
                    if length > 0 {
                        columns.push((length, state, cpu));
                        end += u64::from(length);
                    }
                };
                push(dice.around((cycle - busy).max(2)), BLOCKED, NO_CPU);
                push(dice.around((cycle / 50).max(2)), RUNNABLE, NO_CPU);
                if dice.below(100) < displaced {
                    push(dice.around(busy / 2), RUNNING, cpu);
                    push(dice.around((cycle / 6).max(2)), PREEMPTED, NO_CPU);
                    push(dice.around(busy / 2), RUNNING, (cpu + 1) % 4);
                } else {
                    push(dice.around(busy), RUNNING, cpu);
                }
                if dice.below(4000) == 0 {
                    push(dice.around(cycle * 3), UNKNOWN, NO_CPU);
                }
            }
            // Every wake-up comes from the next thread, so that the number of arrows is maximal.
            let waker = PLAN[(index as usize + 1) % PLAN.len()].0 + (index + 1) % PLAN.len() as u32;
            let reasons: Vec<_> = columns
                .iter()
                .enumerate()
                .filter_map(|(at, interval)| match interval.1 {
                    RUNNABLE => Some((at, "woken", waker)),
                    BLOCKED => Some((at, "asleep", 1)),
                    PREEMPTED => Some((at, "displaced", waker)),
                    _ => None,
                })
                .collect();
            with_reasons(thread(pid, pid + index, comm, first, &columns), &reasons)
        })
        .collect();

    let mut dice = Dice::new(3);
    let mut every = |period: u64, count: u64| -> Vec<u64> {
        (0..count)
            .map(|i| 12_000_000 + i * period + dice.below(period / 8))
            .collect()
    };
    let elements = (intervals as u64 / 4).clamp(4, 250_000);
    let cycles = every(9_900_000_000 / elements, elements);
    let temperature = every(100_000_000, 99);
    let frames = every(33_366_000, 290);
    let latency: Vec<f64> = cycles
        .iter()
        .map(|t| 40.0 + (t % 977) as f64 / 10.0)
        .collect();
    let celsius: Vec<f64> = (0..99).map(|i| 48.0 + f64::from(i % 17) / 4.0).collect();
    let exposure: Vec<f64> = (0..290).map(|i| f64::from(i % 40) * 0.25 + 2.0).collect();

    let mut line = timeline(
        DURATION,
        threads,
        vec![
            sensor(4210, "control.cycle", &cycles, "latency", "µs", &latency),
            sensor(
                4210,
                "cpu.temperature",
                &temperature,
                "temperature",
                "°C",
                &celsius,
            ),
            sensor(4388, "camera.frame", &frames, "exposure", "ms", &exposure),
        ],
    );
    line["processes"] = json!([{"pid": 4210, "comm": "planner"}, {"pid": 4388, "comm": "camera"}]);
    line["sensors"][2]["fields"].as_array_mut().unwrap().push(json!({
        "name": "mode", "unit": "", "kind": "text",
        "values": (0..290).map(|i| if i % 3 == 0 { "hdr" } else { "plain" }).collect::<Vec<_>>(),
    }));
    line["gaps"] = json!([
        {"label": "planner/control.cycle", "pid": 4210, "from_ns": 3_120_000_000_u64, "to_ns": 3_410_000_000_u64, "missed": 1204, "cause": "overwritten", "sensor": 0},
        {"label": "planner/control.cycle", "pid": 4210, "from_ns": 7_000_000_000_u64, "to_ns": 7_000_900_000_u64, "missed": 3, "cause": "overwritten", "sensor": 0},
    ]);
    line
}

/// The report of [`run`].
pub(crate) fn report() -> Value {
    let threads: Vec<Value> = PLAN
        .iter()
        .zip(0_u64..)
        .map(|(&(pid, comm, period, run, displaced), i)| {
            json!({
                "pid": pid, "tid": u64::from(pid) + i, "comm": comm,
                "run_ns": 10_000_000_000 / period * run - i * 13_777_123,
                "runnable_ns": 210_000_000 + i * 31_400_511, "blocked_ns": 10_000_000_000 / period * (period - run),
                "switches_voluntary": 9000 / period * 7, "switches_involuntary": displaced * 41, "migrations": displaced * 3 + i,
                "wakeup_latency_ns": if i == 4 { Value::Null } else {
                    json!({"median": 4_812 + i * 377, "p99": 61_400 + i * 9_100, "max": 1_204_118 + i * 201_044, "count": 9000 / period})
                },
            })
        })
        .collect();
    let buckets: Vec<Value> = (0..22_u32)
        .map(|i| {
            let low = 500.0 * 1.5_f64.powi(i as i32);
            let height = (-(f64::from(i) - 6.0).powi(2) / 8.0).exp() * 5200.0;
            let tail = if i == 19 { 2 } else { 0 };
            json!({"low": low.round(), "high": (low * 1.5).round(), "count": height.round() as u64 + tail})
        })
        .collect();
    let linear: Vec<Value> = (0..30_u64)
        .map(|i| json!({"low": i * 250_000, "high": (i + 1) * 250_000, "count": (i * 7919) % 190 + 260 / (1 + i.abs_diff(14))}))
        .collect();
    json!({
        "overhear_version": "0.1.0",
        "command": ["./planner", "--route", "harbour loop", "--rate=100"],
        "exit": {"code": 0},
        "duration_ns": 10_000_000_000_u64,
        "sources": [
            {"name": "kernel", "active": "bpf", "message": "The BPF sensor heard every context switch and wake-up of the program's threads, because this user may load BPF programs."},
            {"name": "sensors", "active": "embedded", "message": "No directory was running, so the command brought its own for the time of the run."},
        ],
        "trace": {"events": 1_204_511, "bytes": 48_120_331, "directory": "out/trace"},
        "threads": threads,
        "sensors": [
            {"task": "planner", "id": "control.cycle", "instance": "", "type": "control.Cycle", "elements": 250_000, "missed": 1207, "rate_hz": 24_998.2,
             "declared": {"period_ns": 40_000, "distance_ns": 20_000, "jitter_ns": 10_000},
             "interval_ns": {"median": 39_998, "p99": 48_112, "max": 290_000_000, "min": 20_114},
             "fields": [{"name": "latency", "unit": "µs", "min": 40.0, "mean": 88.8121, "max": 137.6, "median": 88.7, "p99": 136.6}]},
            {"task": "planner", "id": "cpu.temperature", "instance": "0", "type": "hwmon.Temperature", "elements": 99, "missed": 0, "rate_hz": 10.0,
             "declared": null, "interval_ns": {"median": 100_000_112, "p99": 111_800_000, "max": 112_011_400, "min": 88_211_000},
             "fields": [{"name": "temperature", "unit": "°C", "min": 48.0, "mean": 49.9, "max": 52.0, "median": 49.75, "p99": 52.0}]},
            {"task": "camera", "id": "camera.frame", "instance": "", "type": "camera.Frame", "elements": 290, "missed": 0, "rate_hz": 29.97,
             "declared": {"period_ns": 33_366_000, "distance_ns": 0, "jitter_ns": 4_000_000},
             "interval_ns": {"median": 33_366_000, "p99": 37_000_000, "max": 37_400_000, "min": 29_300_000},
             "fields": [{"name": "exposure", "unit": "ms", "min": 2.0, "mean": 6.875, "max": 11.75, "median": 6.75, "p99": 11.75}]},
        ],
        "losses": [{"stream": "planner/control.cycle", "cause": "overwritten", "missed": 1207, "gaps": 2}],
        "missed_total": 1207,
        "histograms": [
            {"title": "Wake-up latency, all threads", "unit": "ns", "buckets": buckets},
            {"title": "Time slice of worker/0", "unit": "ns", "buckets": linear},
            {"title": "Nothing was counted here", "unit": "ns", "buckets": []},
        ],
    })
}
