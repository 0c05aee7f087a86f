// SPDX-License-Identifier: MIT OR Apache-2.0
//! Perfetto's protobuf format, for `ui.perfetto.dev` and `trace_processor`.
//!
//! Perfetto gets these from a trace:
//!
//! - Kernel elements become ftrace events. From them Perfetto draws CPUs and the states of threads
//!   itself.
//! - Elements of program sensors become instants with their fields as arguments, on a track of the
//!   sensor below its process. Each number becomes a counter, too.
//! - Samples become counters below their threads, one for each quantity: counts are per second.
//!   Jobs become slices.
//! - Gaps become instants on the track of the sensor, or on one of the host, with the number of
//!   missed elements and the cause.
//! - Pairs of begin and end become slices on tracks of their own.
//! - A wake-up becomes an instant on the track of the waker, and one on that of the woken thread
//!   when it runs, with a flow from one to the other: the arrow of our own page.
//!
//! Times are those of the trace, `CLOCK_MONOTONIC`. Perfetto keeps time since boot, which differs
//! by the time that the machine was suspended. A clock snapshot equates the two, and contains the
//! wall time.

mod samples;
mod tracks;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, Value,
};
use prost::Message;

use super::output::Output;
use super::schema;
use super::{ExportError, Exported};
use samples::Samplers;
use tracks::{annotation, SpanTracks, SpansOf, Tracks};

/// Number of events of one CPU in one packet.
const BUNDLE: usize = 512;
/// The number of the packet sequence; all our packets belong to it.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: the sequence begins here.
const BEGIN: u32 = 1;
/// The kernel's priority of ordinary threads; the actual priority is not recorded.
const PRIORITY: i32 = 120;

const MONOTONIC: u32 = 3;

/// Writes a trace for Perfetto: an analysis of everything that is replayed.
#[derive(Debug)]
pub struct PerfettoExport<W: Write> {
    out: Output<W>,
    exported: Exported,
    threads: BTreeMap<u32, Known>,
    /// Names of threads that are not tracked.
    others: BTreeMap<u32, String>,
    processes: BTreeMap<u32, String>,
    cpus: BTreeMap<u32, Cpu>,
    tracks: BTreeMap<StreamId, Tracks>,
    spans: BTreeMap<SpansOf, SpanTracks>,
    /// Functions with streams of their returns.
    returning: BTreeSet<SpansOf>,
    process_tracks: BTreeSet<u32>,
    thread_tracks: BTreeSet<u32>,
    samplers: Samplers,
    /// The tracks of jobs, by sampler, process and thread.
    job_tracks: BTreeMap<(StreamId, u32, u32), u64>,
    /// Woken threads that have not run since: number of the flow, and the waker.
    woken: BTreeMap<u32, (u64, u32)>,
    next_flow: u64,
    next_track: u64,
    lost_track: Option<u64>,
    offset: Nanos,
    began: bool,
}

/// A thread as it was last written.
#[derive(Clone, Debug, Default)]
struct Known {
    pid: u32,
    comm: String,
}

/// A CPU's events that have not been written yet, and the thread that runs there.
#[derive(Debug, Default)]
struct Cpu {
    events: Vec<schema::FtraceEvent>,
    /// Number of elements from which these events were made.
    elements: u64,
    running: u32,
    last: Timestamp,
    lost: bool,
}

impl<W: Write> PerfettoExport<W> {
    /// An export to `out`; `offset` is `CLOCK_REALTIME` minus `CLOCK_MONOTONIC`.
    pub fn new(out: W, offset: Nanos) -> Self {
        Self {
            out: Output::new(out),
            exported: Exported::default(),
            threads: BTreeMap::new(),
            others: BTreeMap::new(),
            processes: BTreeMap::new(),
            cpus: BTreeMap::new(),
            tracks: BTreeMap::new(),
            spans: BTreeMap::new(),
            returning: BTreeSet::new(),
            process_tracks: BTreeSet::new(),
            thread_tracks: BTreeSet::new(),
            samplers: Samplers::default(),
            job_tracks: BTreeMap::new(),
            woken: BTreeMap::new(),
            next_flow: 1,
            next_track: 1,
            lost_track: None,
            offset,
            began: false,
        }
    }

    /// Sets the name of a thread that is not tracked: the trace has no life events of it.
    pub fn name_thread(&mut self, tid: u32, comm: &str) {
        self.others.insert(tid, comm.to_string());
    }

    /// Writes the rest, and returns the totals.
    ///
    /// # Errors
    /// [`ExportError`] with the first error of the output; output that was written before remains.
    pub fn finish(mut self) -> Result<Exported, ExportError> {
        let cpus: Vec<u32> = self.cpus.keys().copied().collect();
        for cpu in cpus {
            self.flush(cpu);
        }
        self.out.finish()?;
        Ok(self.exported)
    }

    /// Packets are the repeated field 1 of the file, so they can be written one by one.
    fn packet(&mut self, timestamp: Option<Timestamp>, data: schema::Data) {
        let first = !std::mem::replace(&mut self.began, true);
        if first {
            let now = timestamp.map_or(0, Timestamp::as_monotonic_ns);
            let clock = |clock_id, timestamp| schema::Clock {
                clock_id,
                timestamp,
            };
            let real = now.saturating_add(self.offset.as_ns());
            let clocks = schema::ClockSnapshot {
                clocks: vec![clock(6, now), clock(MONOTONIC, now), clock(1, real)],
                primary_trace_clock: 6,
            };
            self.write(schema::Packet {
                timestamp: timestamp.map(Timestamp::as_monotonic_ns),
                trusted_packet_sequence_id: SEQUENCE,
                sequence_flags: Some(BEGIN),
                data: Some(schema::Data::Clocks(clocks)),
            });
        }
        self.write(schema::Packet {
            timestamp: timestamp.map(Timestamp::as_monotonic_ns),
            trusted_packet_sequence_id: SEQUENCE,
            sequence_flags: None,
            data: Some(data),
        });
    }

    fn write(&mut self, packet: schema::Packet) {
        let trace = schema::Trace {
            packet: vec![packet],
        };
        self.out.push(&trace.encode_to_vec());
    }

    fn flush(&mut self, number: u32) {
        let Some(cpu) = self.cpus.get_mut(&number) else {
            return;
        };
        let elements = std::mem::take(&mut cpu.elements);
        if cpu.events.is_empty() && !cpu.lost {
            return self.out.complete(elements);
        }
        let event = std::mem::take(&mut cpu.events);
        let lost = std::mem::take(&mut cpu.lost);
        let begin = event.first().map(|event| event.timestamp);
        let bundle = schema::FtraceBundle {
            cpu: number,
            event,
            lost_events: lost.then_some(true),
        };
        let begin = begin.map(Timestamp::from_monotonic_ns);
        self.packet(begin, schema::Data::Ftrace(bundle));
        self.out.complete(elements);
    }

    fn ftrace(&mut self, cpu: u32, time: Timestamp, tid: u32, event: schema::Ftrace) {
        let events = &mut self.cpus.entry(cpu).or_default().events;
        events.push(schema::FtraceEvent {
            timestamp: time.as_monotonic_ns(),
            pid: tid,
            event: Some(event),
        });
        if events.len() >= BUNDLE {
            self.flush(cpu);
        }
    }

    /// Writes the process and name of a thread, if they are new.
    fn note_thread(&mut self, tid: u32, pid: u32, comm: Option<&str>) {
        if tid == 0 || tid == Switch::UNKNOWN || pid == Switch::UNKNOWN {
            return;
        }
        let known = self.threads.get(&tid);
        let same_pid = known.is_some_and(|known| known.pid == pid);
        let same_comm = known.is_some_and(|known| comm.is_none_or(|comm| known.comm == comm));
        if same_pid && same_comm {
            return;
        }
        let before = known.map_or("", |known| known.comm.as_str());
        let comm = comm.unwrap_or(before).to_string();
        let leader = (tid == pid).then(|| schema::Process {
            pid: signed(pid),
            cmdline: vec![comm.clone()],
            cmdline_is_comm: true,
        });
        let thread = (tid != pid).then(|| schema::Thread {
            tid: signed(tid),
            name: comm.clone(),
            tgid: signed(pid),
        });
        if tid == pid {
            self.processes.insert(pid, comm.clone());
        }
        self.threads.insert(tid, Known { pid, comm });
        let tree = schema::ProcessTree {
            processes: leader.into_iter().collect(),
            threads: thread.into_iter().collect(),
        };
        self.packet(None, schema::Data::Processes(tree));
    }

    fn comm(&self, tid: u32) -> String {
        match self.threads.get(&tid) {
            Some(known) if !known.comm.is_empty() => known.comm.clone(),
            None if tid == 0 => "swapper".to_string(),
            _ => self.others.get(&tid).cloned().unwrap_or_default(),
        }
    }

    fn switch(&mut self, cpu: u32, time: Timestamp, switch: &Switch) {
        self.note_thread(switch.prev_tid, switch.prev_pid, None);
        self.note_thread(switch.next_tid, switch.next_pid, None);
        let state = self.cpus.entry(cpu).or_default();
        let running = state.running;
        // A perf record has one side of a switch only: the running thread stays, or no thread runs.
        let prev = match switch.prev_tid {
            Switch::UNKNOWN => running,
            prev => prev,
        };
        let next = match switch.next_tid {
            Switch::UNKNOWN => 0,
            next => next,
        };
        if prev != running {
            // Its arrival was not recorded; the time of it comes from the kernel's account.
            let since = match switch.prev_run_ns {
                Switch::UNKNOWN => state.last,
                run => time.minus(Nanos::from_ns(run.into())).max(state.last),
            };
            self.switch_event(cpu, since, running, 1, prev);
        }
        let bits = prev_state(switch);
        self.switch_event(cpu, time, prev, bits, next);
    }

    fn switch_event(&mut self, cpu: u32, time: Timestamp, prev: u32, state: i64, next: u32) {
        let event = schema::SchedSwitch {
            prev_comm: self.comm(prev),
            prev_pid: signed(prev),
            prev_prio: PRIORITY,
            prev_state: state,
            next_comm: self.comm(next),
            next_pid: signed(next),
            next_prio: PRIORITY,
        };
        if let Some((flow, waker)) = self.woken.remove(&next) {
            let name = format!("woken by {}", self.name_of(waker));
            self.flow(time, next, &name, (vec![], vec![flow]));
        }
        let of = self.cpus.entry(cpu).or_default();
        (of.running, of.last) = (next, time);
        self.ftrace(cpu, time, prev, schema::Ftrace::Switch(event));
    }

    fn wake(&mut self, cpu: u32, time: Timestamp, wake: &Wake) {
        self.note_thread(wake.tid, wake.pid, None);
        self.note_thread(wake.waker_tid, wake.waker_pid, None);
        let event = schema::SchedWake {
            comm: self.comm(wake.tid),
            pid: signed(wake.tid),
            prio: PRIORITY,
            success: 1,
            target_cpu: signed(wake.target_cpu),
        };
        // An idle CPU is not a thread that could have woken another.
        if wake.kind != Wake::WAKEUP && wake.waker_tid != 0 {
            let flow = self.next_flow;
            self.next_flow += 1;
            let name = format!("wakes {}", self.name_of(wake.tid));
            self.flow(time, wake.waker_tid, &name, (vec![flow], vec![]));
            self.woken.insert(wake.tid, (flow, wake.waker_tid));
        }
        let event = match wake.kind {
            Wake::WAKING => schema::Ftrace::Waking(event),
            Wake::NEW => schema::Ftrace::WakeupNew(event),
            _ => schema::Ftrace::Wakeup(event),
        };
        self.ftrace(cpu, time, wake.waker_tid, event);
    }

    fn life(&mut self, cpu: u32, time: Timestamp, life: &Life) {
        self.note_thread(life.tid, life.pid, Some(life.comm()));
        if life.kind == Life::EXIT {
            let event = schema::SchedProcessExit {
                comm: life.comm().to_string(),
                pid: signed(life.tid),
                tgid: signed(life.pid),
            };
            self.ftrace(cpu, time, life.tid, schema::Ftrace::ProcessExit(event));
            self.end_slices_of(life.tid, time);
        }
    }

    fn name_of(&self, tid: u32) -> String {
        format!("{} {tid}", self.comm(tid)).trim_start().to_string()
    }

    /// The tracks of threads are numbered by their ids, as those of processes are.
    fn thread_track(&mut self, tid: u32, pid: u32) -> u64 {
        let uuid = 2 << 40 | u64::from(tid);
        if self.thread_tracks.insert(tid) {
            let known = self.threads.get(&tid);
            let thread = schema::ThreadDescriptor {
                pid: signed(known.map_or(pid, |known| known.pid)),
                tid: signed(tid),
                thread_name: known.map_or(String::new(), |known| known.comm.clone()),
            };
            let track = schema::TrackDescriptor {
                uuid,
                thread: Some(thread),
                ..schema::TrackDescriptor::default()
            };
            self.packet(None, schema::Data::Track(track));
        }
        uuid
    }

    /// An instant on the track of a thread at which flows begin and end.
    fn flow(&mut self, time: Timestamp, tid: u32, name: &str, flows: (Vec<u64>, Vec<u64>)) {
        let Some(pid) = self.threads.get(&tid).map(|known| known.pid) else {
            return;
        };
        let uuid = self.thread_track(tid, pid);
        let event = schema::TrackEvent {
            kind: 3,
            track_uuid: uuid,
            name: Some(name.to_string()),
            categories: vec!["wakeup".to_string()],
            flow_ids: flows.0,
            terminating_flow_ids: flows.1,
            ..schema::TrackEvent::default()
        };
        self.packet(Some(time), schema::Data::Event(event));
    }
}

impl<W: Write> Analysis for PerfettoExport<W> {
    fn element(&mut self, element: &ElementView<'_>) {
        self.exported.elements += 1;
        let cpu = match (&element.stream.origin, element.stream.sensor.as_str()) {
            (Origin::Kernel { cpu }, SCHED_SWITCH | SCHED_WAKE | TASK_LIFE) => *cpu,
            _ => {
                self.sensor(element);
                return self.out.complete(1);
            }
        };
        self.cpus.entry(cpu).or_default().elements += 1;
        match element.stream.sensor.as_str() {
            SCHED_SWITCH => {
                if let Some(switch) = Switch::parse(element.payload) {
                    self.switch(cpu, element.time, &switch);
                }
            }
            SCHED_WAKE => {
                if let Some(wake) = Wake::parse(element.payload) {
                    self.wake(cpu, element.time, &wake);
                }
            }
            _ => {
                if let Some(life) = Life::parse(element.payload) {
                    self.life(cpu, element.time, &life);
                }
            }
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.exported.gaps += 1;
        self.exported.missed = self.exported.missed.saturating_add(gap.missed);
        let track = match stream.origin {
            Origin::Kernel { cpu } => {
                self.cpus.entry(cpu).or_default().lost = true;
                match self.lost_track {
                    Some(track) => track,
                    None => {
                        let track = self.track("missed kernel elements", None, None);
                        *self.lost_track.insert(track)
                    }
                }
            }
            Origin::Program(_) | Origin::Sampler => self.tracks(stream),
        };
        let fields = vec![
            annotation("stream", Value::Text(&stream.label())),
            annotation("missed", Value::Unsigned(gap.missed)),
            annotation("cause", Value::Text(gap.cause.name())),
            annotation("from_ns", Value::Unsigned(gap.from.as_monotonic_ns())),
            annotation("to_ns", Value::Unsigned(gap.to.as_monotonic_ns())),
        ];
        let name = format!("{} missed", gap.missed);
        self.instant(gap.from, track, &name, fields);
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// Ids of threads and CPUs are small; a larger one means no thread and no CPU.
fn signed(id: u32) -> i32 {
    i32::try_from(id).unwrap_or(-1)
}

/// The state as ftrace prints it: `R` 0, `S` 1, `D` 2, `T` 4, `t` 8, `X` 16, `Z` 32, `P` 64, `I`
/// 128, and 256 for a thread that was preempted (`R+`).
fn prev_state(switch: &Switch) -> i64 {
    const DEAD: u16 = 0x80;
    const NO_LOAD: u16 = 0x400;
    let state = switch.prev_state;
    if switch.flags & Switch::PREEMPTED != 0 {
        256
    } else if state & DEAD != 0 {
        16
    } else if state & NO_LOAD != 0 && state & 2 != 0 {
        128
    } else {
        i64::from(state & 0x7f)
    }
}

#[cfg(test)]
mod tests;
