// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of Perfetto's trace format that an export uses: messages, fields and numbers as in
//! `protos/perfetto/trace/perfetto_trace.proto` of Perfetto.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(super) packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Packet {
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    /// All packets are of one sequence.
    #[prost(uint32, tag = "10")]
    pub(super) trusted_packet_sequence_id: u32,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(oneof = "Data", tags = "1, 2, 6, 11, 60")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "1")]
    Ftrace(FtraceBundle),
    #[prost(message, tag = "2")]
    Processes(ProcessTree),
    #[prost(message, tag = "6")]
    Clocks(ClockSnapshot),
    #[prost(message, tag = "11")]
    Event(TrackEvent),
    #[prost(message, tag = "60")]
    Track(TrackDescriptor),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
    /// The clock that the tool shows.
    #[prost(int32, tag = "2")]
    pub(super) primary_trace_clock: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    /// 1 real time, 3 monotonic, 6 boot time.
    #[prost(uint32, tag = "1")]
    pub(super) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(super) timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub(super) threads: Vec<Thread>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(string, repeated, tag = "3")]
    pub(super) cmdline: Vec<String>,
    #[prost(bool, tag = "9")]
    pub(super) cmdline_is_comm: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Thread {
    #[prost(int32, tag = "1")]
    pub(super) tid: i32,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(int32, tag = "3")]
    pub(super) tgid: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceBundle {
    #[prost(uint32, tag = "1")]
    pub(super) cpu: u32,
    #[prost(message, repeated, tag = "2")]
    pub(super) event: Vec<FtraceEvent>,
    #[prost(bool, optional, tag = "3")]
    pub(super) lost_events: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEvent {
    #[prost(uint64, tag = "1")]
    pub(super) timestamp: u64,
    /// The thread that ran.
    #[prost(uint32, tag = "2")]
    pub(super) pid: u32,
    #[prost(oneof = "Ftrace", tags = "4, 17, 20, 114, 238")]
    pub(super) event: Option<Ftrace>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Ftrace {
    #[prost(message, tag = "4")]
    Switch(SchedSwitch),
    #[prost(message, tag = "17")]
    Wakeup(SchedWake),
    #[prost(message, tag = "20")]
    Waking(SchedWake),
    #[prost(message, tag = "114")]
    WakeupNew(SchedWake),
    #[prost(message, tag = "238")]
    ProcessExit(SchedProcessExit),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedSwitch {
    #[prost(string, tag = "1")]
    pub(super) prev_comm: String,
    #[prost(int32, tag = "2")]
    pub(super) prev_pid: i32,
    #[prost(int32, tag = "3")]
    pub(super) prev_prio: i32,
    #[prost(int64, tag = "4")]
    pub(super) prev_state: i64,
    #[prost(string, tag = "5")]
    pub(super) next_comm: String,
    #[prost(int32, tag = "6")]
    pub(super) next_pid: i32,
    #[prost(int32, tag = "7")]
    pub(super) next_prio: i32,
}

/// `sched_waking`, `sched_wakeup` and `sched_wakeup_new` have the same fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedWake {
    #[prost(string, tag = "1")]
    pub(super) comm: String,
    #[prost(int32, tag = "2")]
    pub(super) pid: i32,
    #[prost(int32, tag = "3")]
    pub(super) prio: i32,
    #[prost(int32, tag = "4")]
    pub(super) success: i32,
    #[prost(int32, tag = "5")]
    pub(super) target_cpu: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedProcessExit {
    #[prost(string, tag = "1")]
    pub(super) comm: String,
    #[prost(int32, tag = "2")]
    pub(super) pid: i32,
    #[prost(int32, tag = "3")]
    pub(super) tgid: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(super) uuid: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(string, tag = "6")]
    pub(super) process_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pub(super) pid: i32,
    #[prost(int32, tag = "2")]
    pub(super) tid: i32,
    #[prost(string, tag = "5")]
    pub(super) thread_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(string, tag = "6")]
    pub(super) unit_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<Annotation>,
    /// 1 begin of a slice, 2 its end, 3 instant, 4 counter.
    #[prost(int32, tag = "9")]
    pub(super) kind: i32,
    #[prost(uint64, tag = "11")]
    pub(super) track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(oneof = "Counter", tags = "30, 44")]
    pub(super) counter: Option<Counter>,
    /// Flows that begin here: arrows lead on from here.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
    /// Flows that end here.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Counter {
    #[prost(int64, tag = "30")]
    Integer(i64),
    #[prost(double, tag = "44")]
    Float(f64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(oneof = "Value", tags = "3, 4, 5, 6")]
    pub(super) value: Option<Value>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    #[prost(int64, tag = "4")]
    Signed(i64),
    #[prost(double, tag = "5")]
    Float(f64),
    #[prost(string, tag = "6")]
    Text(String),
}
