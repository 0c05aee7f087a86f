// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state machine, call by call: scripted elements as input, spans and counts as output.

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};

use super::{Reason, Span, Spans};

const CLIENT: u32 = 100;
const SERVER: u32 = 200;
const OTHER: u32 = 300;
const BEFORE: u32 = 0;
const AFTER: u32 = 1;

/// Feeds one `Spans`; each method is one element, its time first.
struct Script {
    spans: Spans,
    client: StreamDescriptor,
    other: StreamDescriptor,
    parser: StreamDescriptor,
    function: StreamDescriptor,
    switch: StreamDescriptor,
    /// Whether switches have the form of perf records: one element for each side.
    perf: bool,
}

fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
}

fn program(pid: u32) -> Origin {
    Origin::program(pid, "demo")
}

impl Script {
    fn new(perf: bool) -> Self {
        let sample = |client: bool| {
            let schema = TypeSchema::builder("sample")
                .field("cpu_ns", FieldKind::U64, "ns")
                .field("call", FieldKind::U32, "")
                .field("after", FieldKind::U32, "");
            let schema = match client {
                true => schema.field("client", FieldKind::U32, ""),
                false => schema,
            };
            schema.build().unwrap()
        };
        let kernel = Origin::Kernel { cpu: 0 };
        let mut script = Self {
            spans: Spans::default(),
            client: stream(1, program(CLIENT), "C", sample(false)),
            other: stream(2, program(OTHER), "C", sample(false)),
            parser: stream(3, program(SERVER), "P", sample(true)),
            function: stream(4, program(SERVER), "F", sample(false)),
            switch: stream(5, kernel, SCHED_SWITCH, Switch::schema()),
            perf,
        };
        // The server has started and waits.
        script.enters(1);
        script.leaves(2, true);
        script
    }

    fn put(&mut self, stream: &StreamDescriptor, time: u64, payload: &[u8]) {
        assert_eq!(payload.len(), stream.schema.size() as usize);
        self.spans.element(&ElementView {
            stream,
            sequence: 0,
            time: Timestamp::from_monotonic_ns(time),
            payload,
        });
    }

    fn sample(cpu: u64, numbers: &[u32]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| number.to_ne_bytes());
        cpu.to_ne_bytes().into_iter().chain(numbers).collect()
    }

    fn c(&mut self, time: u64, cpu: u64, call: u32, after: u32) {
        let stream = self.client.clone();
        self.put(&stream, time, &Self::sample(cpu, &[call, after]));
    }

    fn other_c(&mut self, time: u64, cpu: u64, call: u32, after: u32) {
        let stream = self.other.clone();
        self.put(&stream, time, &Self::sample(cpu, &[call, after]));
    }

    fn p(&mut self, time: u64, cpu: u64, call: u32, after: u32, client: u32) {
        let stream = self.parser.clone();
        self.put(&stream, time, &Self::sample(cpu, &[call, after, client]));
    }

    fn f(&mut self, time: u64, cpu: u64, call: u32, after: u32) {
        let stream = self.function.clone();
        self.put(&stream, time, &Self::sample(cpu, &[call, after]));
    }

    fn switch(&mut self, time: u64, prev: u32, next: u32, flags: u16) {
        self.switch_after(time, prev, next, flags, Switch::UNKNOWN);
    }

    fn switch_after(&mut self, time: u64, prev: u32, next: u32, flags: u16, prev_run_ns: u32) {
        let switch = Switch {
            prev_tid: prev,
            next_tid: next,
            prev_pid: prev,
            next_pid: next,
            prev_state: 0,
            flags,
            prev_run_ns,
        };
        let stream = self.switch.clone();
        self.put(&stream, time, &switch.to_payload());
    }

    /// A switch to the server.
    fn enters(&mut self, time: u64) {
        let from = if self.perf { Switch::UNKNOWN } else { 0 };
        self.switch(time, from, SERVER, Switch::NEXT_TRACKED);
    }

    /// A switch from the server.
    fn leaves(&mut self, time: u64, voluntary: bool) {
        let flags = Switch::PREV_TRACKED | if voluntary { Switch::VOLUNTARY } else { 0 };
        let to = if self.perf { Switch::UNKNOWN } else { 0 };
        self.switch(time, SERVER, to, flags);
    }

    /// The server begins to wait, and the kernel states its running time.
    fn leaves_after(&mut self, time: u64, run_ns: u32) {
        let flags = Switch::PREV_TRACKED | Switch::VOLUNTARY;
        self.switch_after(time, SERVER, 0, flags, run_ns);
    }

    fn gap(&mut self, stream: &StreamDescriptor) {
        let gap = Gap {
            stream: stream.id,
            first: 0,
            missed: 1,
            from: Timestamp::ZERO,
            to: Timestamp::MAX,
            cause: GapCause::Overwritten,
        };
        self.spans.gap(stream, &gap);
    }

    /// From P to P, beginning at `time`: parsing 40 + 20, function 30.
    fn served(&mut self, time: u64, call: u32) {
        self.p(time, 1_000, call, BEFORE, CLIENT);
        self.f(time + 40, 1_040, call, BEFORE);
        self.f(time + 70, 1_070, call, AFTER);
        self.p(time + 90, 1_090, call, AFTER, CLIENT);
    }

    /// A whole call at `time`: client 15, IPC 10 + 25, parsing 60, function 30.
    fn call(&mut self, time: u64, call: u32) {
        self.c(time, 500, call, BEFORE);
        self.enters(time + 10);
        self.served(time + 20, call);
        self.c(time + 120, 515, call, AFTER);
        self.leaves(time + 135, true);
    }

    /// The values of the four spans; `None` unless there is exactly one.
    fn values(&self) -> [Option<u64>; 4] {
        Span::ALL.map(|span| {
            let histogram = self.spans.histogram(span);
            histogram.min().filter(|_| histogram.count() == 1)
        })
    }

    fn counts(&self) -> [u64; 4] {
        Span::ALL.map(|span| self.spans.histogram(span).count())
    }

    fn discarded(&self) -> Vec<(Reason, u64)> {
        self.spans.discarded().clone().into_iter().collect()
    }

    fn ipc_discarded(&self) -> Vec<(Reason, u64)> {
        self.spans.ipc_discarded().clone().into_iter().collect()
    }
}

const WHOLE: [Option<u64>; 4] = [Some(15), Some(35), Some(60), Some(30)];
const WITHOUT_IPC: [Option<u64>; 4] = [Some(15), None, Some(60), Some(30)];

#[test]
fn call_yields_its_four_spans_with_either_kernel_sensor() {
    for perf in [false, true] {
        let mut script = Script::new(perf);
        script.call(1_000, 0);
        script.spans.finish();
        assert_eq!(script.values(), WHOLE);
        assert_eq!(script.spans.round_trip().max(), Some(120));
        assert_eq!(script.spans.service().max(), Some(90));
        assert!(script.discarded().is_empty() && script.ipc_discarded().is_empty());
        script.call(2_000, 1);
        assert_eq!(script.counts(), [2; 4]);
    }
}

#[test]
fn server_may_block_before_the_client_has_its_reply() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.served(1_020, 0);
    script.leaves(1_135, true);
    assert_eq!(script.values()[1], None);
    script.c(1_200, 515, 0, AFTER);
    assert_eq!(script.values(), WHOLE);
}

#[test]
fn server_may_block_after_the_next_call_has_begun() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    script.c(1_130, 520, 1, BEFORE);
    script.leaves(1_135, true);
    assert_eq!(script.values(), WHOLE);
}

#[test]
fn preemptions_neither_end_nor_lengthen_the_ipc() {
    let mut script = Script::new(true);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.leaves(1_014, false);
    script.enters(1_300);
    script.served(1_306, 0);
    // The reply wakes the client, which takes the CPU.
    script.leaves(1_401, false);
    script.c(1_420, 515, 0, AFTER);
    script.enters(1_500);
    script.leaves(1_520, true);
    assert_eq!(script.values(), WHOLE);
}

#[test]
fn server_that_blocks_inside_the_function_is_measured() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.p(1_020, 1_000, 0, BEFORE, CLIENT);
    script.f(1_060, 1_040, 0, BEFORE);
    script.leaves(1_070, true);
    script.enters(1_900);
    script.f(1_920, 1_070, 0, AFTER);
    script.p(1_940, 1_090, 0, AFTER, CLIENT);
    script.leaves(1_965, true);
    script.c(1_970, 515, 0, AFTER);
    assert_eq!(script.values(), WHOLE);
}

#[test]
fn missed_arrival_is_reconstructed() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    // Woken at 1_010.
    script.leaves_after(1_135, 125);
    assert_eq!(script.values(), WHOLE);
}

#[test]
fn awake_server_costs_only_the_ipc() {
    let mut script = Script::new(false);
    script.enters(900);
    script.c(1_000, 500, 0, BEFORE);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    script.leaves(1_135, true);
    assert_eq!(script.values(), WITHOUT_IPC);
    assert_eq!(script.ipc_discarded(), [(Reason::AlreadyAwake, 1)]);
}

#[test]
fn calls_of_others_are_not_measured_and_take_the_switches_with_them() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    // It was awake for this call, but first served another client.
    script.other_c(1_005, 900, 0, BEFORE);
    script.enters(1_010);
    script.p(1_012, 700, 0, BEFORE, OTHER);
    script.f(1_013, 710, 0, BEFORE);
    script.f(1_014, 720, 0, AFTER);
    script.p(1_015, 730, 0, AFTER, OTHER);
    script.other_c(1_016, 905, 0, AFTER);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    script.leaves(1_135, true);
    assert_eq!(script.values(), WITHOUT_IPC);
    assert_eq!(script.ipc_discarded(), [(Reason::AlreadyAwake, 1)]);
    assert!(script.discarded().is_empty());
}

#[test]
fn server_that_serves_on_without_blocking_costs_only_the_ipc() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.served(1_020, 0);
    script.p(1_115, 1_100, 0, BEFORE, OTHER);
    script.p(1_118, 1_103, 0, AFTER, OTHER);
    script.c(1_120, 515, 0, AFTER);
    script.leaves(1_135, true);
    assert_eq!(script.values(), WITHOUT_IPC);
    assert_eq!(script.ipc_discarded(), [(Reason::StayedAwake, 1)]);
}

#[test]
fn call_without_kernel_sensor_has_three_spans() {
    let mut script = Script::new(false);
    script.spans = Spans::default();
    script.c(1_000, 500, 0, BEFORE);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    script.spans.finish();
    assert_eq!(script.values(), WITHOUT_IPC);
    assert_eq!(script.spans.switches(), 0);
    assert_eq!(script.ipc_discarded(), [(Reason::NoSwitch, 1)]);
}

#[test]
fn unexpected_order_discards_the_call() {
    let mut script = Script::new(false);
    // No function between P and P: the server refused the command.
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.p(1_020, 1_000, 0, BEFORE, CLIENT);
    script.p(1_110, 1_090, 0, AFTER, CLIENT);
    script.c(1_120, 515, 0, AFTER);
    script.leaves(1_135, true);
    // No server between C and C.
    script.c(2_000, 500, 1, BEFORE);
    script.c(2_120, 515, 1, AFTER);
    // No end.
    script.c(3_000, 500, 2, BEFORE);
    script.call(4_000, 3);
    assert_eq!(script.values(), WHOLE);
    assert_eq!(script.discarded(), [(Reason::Unexpected, 3)]);
    assert!(script.ipc_discarded().is_empty());
}

#[test]
fn each_missed_call_is_counted_once() {
    let mut script = Script::new(false);
    script.call(1_000, 0);
    // The end of call 1, calls 2 and 3, and the beginning of call 4 are missed.
    script.c(2_000, 500, 1, BEFORE);
    let client = script.client.clone();
    script.gap(&client);
    script.served(5_020, 4);
    script.c(5_120, 515, 4, AFTER);
    script.call(6_000, 5);
    assert_eq!(script.counts(), [2; 4]);
    assert_eq!(script.discarded(), [(Reason::Missed, 4)]);
}

#[test]
fn missed_elements_of_the_server_discard_the_call() {
    for parser in [false, true] {
        let mut script = Script::new(false);
        script.c(1_000, 500, 0, BEFORE);
        script.enters(1_010);
        script.p(1_020, 1_000, 0, BEFORE, CLIENT);
        let stream = if parser {
            script.parser.clone()
        } else {
            script.function.clone()
        };
        script.gap(&stream);
        script.c(1_120, 515, 0, AFTER);
        script.leaves(1_135, true);
        script.call(2_000, 1);
        assert_eq!(script.values(), WHOLE);
        assert_eq!(script.discarded(), [(Reason::Missed, 1)]);
    }
}

#[test]
fn missed_switches_cost_only_the_ipc_of_one_call() {
    // Before P, and between P and blocking.
    for late in [false, true] {
        let mut script = Script::new(false);
        let switch = script.switch.clone();
        script.c(1_000, 500, 0, BEFORE);
        script.enters(1_010);
        if !late {
            script.gap(&switch);
        }
        script.served(1_020, 0);
        if late {
            script.gap(&switch);
        }
        script.c(1_120, 515, 0, AFTER);
        script.leaves(1_135, true);
        assert_eq!(script.values(), WITHOUT_IPC);
        assert_eq!(script.ipc_discarded(), [(Reason::Missed, 1)]);
        assert!(script.discarded().is_empty());
        script.call(2_000, 1);
        assert_eq!(script.counts(), [2, 1, 2, 2]);
    }
}

#[test]
fn calls_cut_off_by_the_end_are_counted() {
    let mut script = Script::new(false);
    script.c(1_000, 500, 0, BEFORE);
    script.enters(1_010);
    script.served(1_020, 0);
    script.c(1_120, 515, 0, AFTER);
    script.c(2_000, 500, 1, BEFORE);
    script.spans.finish();
    assert_eq!(script.values(), WITHOUT_IPC);
    assert_eq!(script.ipc_discarded(), [(Reason::Unfinished, 1)]);
    assert_eq!(script.discarded(), [(Reason::Unfinished, 1)]);
}
