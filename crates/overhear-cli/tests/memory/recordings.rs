// SPDX-License-Identifier: MIT OR Apache-2.0
//! Synthetic recordings that are too large for memory.

use std::path::Path;

use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    ElementView, FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceWriter};
use serde_json::json;

/// Id of the first thread; the others follow.
const FIRST_TID: u32 = 10_000;
/// CPUs of the recorded machine.
const CPUS: u32 = 2;
/// The process of every thread.
const PID: u32 = FIRST_TID;

/// Contents of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recording {
    /// Threads that alternate on the CPUs.
    pub(crate) threads: u32,
    /// Runs of all threads together: each has two wake-up elements and a switch, and is three
    /// intervals of a thread.
    pub(crate) runs: u64,
    /// Elements of one fast sensor of a program.
    pub(crate) ticks: u64,
    /// Elements of one slow sensor, spread over the run.
    pub(crate) slow_ticks: u64,
    /// Gaps of the fast sensor.
    pub(crate) gaps: u64,
    /// Further sensors, each with a few thousand elements.
    pub(crate) sensors: u32,
    /// Metrics of the run, each with as many tasks as a metric has at most.
    pub(crate) metrics: u32,
}

/// Tasks of each metric.
pub(crate) const TASKS: u32 = 16_384;
/// Names of threads that are not tracked, where there are metrics.
pub(crate) const OTHER_THREADS: u32 = 65_536;

/// A sequence of pseudo-random numbers, the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 1 to 2^`bits`, each power of two as often as the others.
    fn spread(&mut self, bits: u32) -> u64 {
        let number = self.next();
        let power = (number >> 32) % u64::from(bits);
        (1 << power) + (number & ((1 << power) - 1))
    }
}

fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        capacity: 1024,
        ..StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
    }
}

/// A stream, and the sequence of its next element.
struct Writing {
    stream: StreamDescriptor,
    sequence: u64,
}

impl Writing {
    fn write(&mut self, writer: &mut TraceWriter, ns: u64, payload: &[u8]) {
        let element = ElementView {
            stream: &self.stream,
            sequence: self.sequence,
            time: Timestamp::from_monotonic_ns(ns),
            payload,
        };
        writer.element(&element).unwrap();
        self.sequence += 1;
    }
}

/// One CPU of the recorded machine.
struct Cpu {
    number: u32,
    switches: Writing,
    wakes: Writing,
    now_ns: u64,
    running: u32,
    since_ns: u64,
}

impl Cpu {
    /// A thread is woken, waits for the CPU, and runs there until the next switch.
    fn run(&mut self, writer: &mut TraceWriter, tid: u32, latency_ns: u64, run_ns: u64) {
        for (kind, offset_ns) in [(Wake::WAKING, 0), (Wake::WAKEUP, 1)] {
            let wake = Wake {
                tid,
                pid: PID,
                waker_tid: 0,
                waker_pid: 0,
                target_cpu: self.number,
                kind,
            };
            let ns = self.now_ns + offset_ns;
            self.wakes.write(writer, ns, &wake.to_payload());
        }
        let ns = self.now_ns + 1 + latency_ns;
        let ran_ns = ns - self.since_ns;
        let switch = Switch {
            prev_tid: self.running,
            next_tid: tid,
            prev_pid: PID,
            next_pid: PID,
            prev_state: 1,
            flags: Switch::NEXT_TRACKED
                | Switch::VOLUNTARY
                | (u16::from(self.running != 0) * Switch::PREV_TRACKED),
            prev_run_ns: u32::try_from(ran_ns).unwrap_or(Switch::UNKNOWN),
        };
        self.switches.write(writer, ns, &switch.to_payload());
        (self.running, self.since_ns, self.now_ns) = (tid, ns, ns + run_ns);
    }
}

impl Recording {
    /// Elements of the recording.
    pub(crate) fn elements(&self) -> u64 {
        let threads = u64::from(self.threads) + 3 * self.runs;
        threads + self.ticks + self.slow_ticks + u64::from(self.sensors) * OF_EACH_SENSOR
    }

    /// Writes it into the folder `dir`.
    pub(crate) fn write(&self, dir: &Path) {
        let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
        let begin_ns = 1_000_000_000;
        let end_ns = self
            .write_threads(&mut writer, begin_ns)
            .max(self.write_sensors(&mut writer, begin_ns));
        let sensors = [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE];
        let kernel = json!({
            "name": "kernel", "active": "bpf", "message": "synthetic", "sensors": sensors,
        });
        let run = json!({
            "overhear_version": env!("CARGO_PKG_VERSION"), "command": ["synthetic"],
            "sources": [kernel], "start_ns": begin_ns,
            "end": { "end_ns": end_ns, "exit": { "code": 0 } },
        });
        writer.attach_document("run", &run).unwrap();
        if self.metrics > 0 {
            self.write_documents(&mut writer);
        }
        writer.finish().unwrap();
    }

    /// Documents that a run keeps.
    fn write_documents(&self, writer: &mut TraceWriter) {
        let tasks = (0..TASKS).map(|task| {
            json!({
                "task": FIRST_TID + task, "comm": format!("worker/{task}"), "key": task, "key_name": null,
                "count": 1_000_000, "incomplete": 0, "total_ns": 1_000_000_000_u64, "min_ns": 1_000,
                "median_ns": 10_000, "p99_ns": 100_000, "max_ns": 1_000_000,
            })
        });
        let metric = json!({
            "name": "system_call", "description": "synthetic", "unheard": [], "completed": TASKS,
            "incomplete": 0, "unfinished": 0, "missed": 0, "refused": 0, "tasks": tasks.collect::<Vec<_>>(),
        });
        let metrics = vec![metric; self.metrics as usize];
        let metrics = json!({ "metrics": metrics, "notes": [], "quantile_error": 0.001 });
        writer.attach_document("metrics", &metrics).unwrap();
        let verdict = json!({
            "name": "short", "verdict": "held", "judged": 1, "offences": 0, "first": null, "reasons": [],
        });
        let check = json!({ "verdict": "held", "constraints": vec![verdict; 1_000] });
        writer.attach_document("check", &check).unwrap();
        let others = (0..OTHER_THREADS)
            .map(|tid| json!({ "tid": 1_000_000 + tid, "comm": "kworker/0:1-events" }));
        let others: Vec<_> = others.collect();
        writer.attach_document("other_threads", &others).unwrap();
    }

    fn write_threads(&self, writer: &mut TraceWriter, begin_ns: u64) -> u64 {
        if self.threads == 0 {
            return begin_ns;
        }
        let kernel = |cpu| Origin::Kernel { cpu };
        let writing = |id, cpu, sensor, schema| Writing {
            stream: stream(id, kernel(cpu), sensor, schema),
            sequence: 0,
        };
        let mut lives = writing(1, 0, TASK_LIFE, Life::schema());
        for number in 0..self.threads {
            let mut comm = [0; 16];
            let name = format!("worker/{number}");
            comm[..name.len()].copy_from_slice(name.as_bytes());
            let life = Life {
                tid: FIRST_TID + number,
                pid: PID,
                parent_tid: 1,
                parent_pid: 0,
                kind: Life::TRACKED,
                code: 0,
                cpu_ns: 0,
                comm,
            };
            lives.write(writer, begin_ns + u64::from(number), &life.to_payload());
        }
        let mut cpus: Vec<Cpu> = (0..CPUS)
            .map(|cpu| Cpu {
                number: cpu,
                switches: writing(2 + cpu, cpu, SCHED_SWITCH, Switch::schema()),
                wakes: writing(2 + CPUS + cpu, cpu, SCHED_WAKE, Wake::schema()),
                now_ns: begin_ns + u64::from(self.threads),
                running: 0,
                since_ns: begin_ns,
            })
            .collect();
        let mut numbers = Numbers(88_172_645_463_325_252);
        for run in 0..self.runs {
            let (place, cpu) = (run / u64::from(CPUS), run % u64::from(CPUS));
            // The threads of a CPU alternate there.
            let turns = u64::from(self.threads / CPUS).max(1);
            let tid = FIRST_TID + (place % turns) as u32 * CPUS + cpu as u32;
            let tid = tid.min(FIRST_TID + self.threads - 1);
            let cpu = &mut cpus[cpu as usize];
            cpu.run(writer, tid, numbers.spread(24), numbers.spread(16));
        }
        cpus.iter().map(|cpu| cpu.now_ns).max().unwrap_or(begin_ns)
    }

    fn write_sensors(&self, writer: &mut TraceWriter, begin_ns: u64) -> u64 {
        let writing = |id, name: &str| {
            let schema = TypeSchema::builder("tick")
                .field("value", FieldKind::U64, "ns")
                .field("load", FieldKind::F32, "%")
                .build()
                .unwrap();
            Writing {
                stream: stream(id, Origin::program(42, "ticker"), name, schema),
                sequence: 0,
            }
        };
        let mut numbers = Numbers(1_234_567);
        let mut tick = |writing: &mut Writing, writer: &mut TraceWriter, ns: u64| {
            let mut payload = [0; 12];
            payload[..8].copy_from_slice(&numbers.spread(30).to_ne_bytes());
            payload[8..].copy_from_slice(&((ns % 100) as f32).to_ne_bytes());
            writing.write(writer, ns, &payload);
        };
        let mut fast = writing(1_000, "fast");
        let every = self.ticks.checked_div(self.gaps).unwrap_or(u64::MAX);
        let distance_ns = 1_000;
        let mut now_ns = begin_ns;
        for number in 0..self.ticks {
            now_ns = begin_ns + number * distance_ns;
            if number > 0 && number % every == 0 {
                let gap = Gap {
                    stream: fast.stream.id,
                    first: fast.sequence,
                    missed: 7,
                    from: Timestamp::from_monotonic_ns(now_ns - distance_ns),
                    to: Timestamp::from_monotonic_ns(now_ns),
                    cause: GapCause::Overwritten,
                };
                writer.gap(&fast.stream, &gap).unwrap();
                fast.sequence += 7;
            }
            tick(&mut fast, writer, now_ns);
        }
        let mut slow = writing(1_001, "slow");
        let distance_ns = (now_ns - begin_ns) / self.slow_ticks.max(1);
        for number in 0..self.slow_ticks {
            tick(&mut slow, writer, begin_ns + number * distance_ns);
        }
        for sensor in 0..self.sensors {
            let mut further = writing(2_000 + sensor, &format!("sensor/{sensor}"));
            for number in 0..OF_EACH_SENSOR {
                // Distances and values of any size, so that every histogram grows.
                let ns = begin_ns + number * 4_000_000 + (number * 7_919) % 3_999_999;
                tick(&mut further, writer, ns);
                now_ns = now_ns.max(ns);
            }
        }
        now_ns + 1
    }
}

/// Elements of each of the further sensors.
const OF_EACH_SENSOR: u64 = 3_000;
