// SPDX-License-Identifier: MIT OR Apache-2.0
//! Foreign events of the kernel other than scheduling, as elements of kernel sensors. Where an
//! element needs the fields of several events, the earlier ones are kept here.

use std::collections::{HashMap, VecDeque};

use super::hook::Hook;
use crate::foreign::{ForeignEvent, ForeignValue};
use overhear_event::kernel::events::{
    block_io_schema, cpu_frequency_schema, cpu_idle_schema, futex_schema, irq_schema, lock_schema,
    page_fault_schema, sched_migrate_schema, signal_schema, softirq_schema, syscall_schema,
    timer_schema, BLOCK_IO, CPU_FREQUENCY, CPU_IDLE, FUTEX, IRQ, KIND_BEGIN, KIND_END, LOCK,
    PAGE_FAULT, SCHED_MIGRATE, SIGNAL, SOFTIRQ, SYSCALL, TIMER, UNKNOWN,
};
use overhear_event::{Timestamp, TypeSchema};
use syscalls::Sysno;

/// Limit of block requests that are open at one time, the same as in our own sensor.
const MAX_OPEN_REQUESTS: usize = 8192;
/// Futex operations that wait: WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2.
const FUTEX_WAITS: [u32; 5] = [0, 6, 9, 11, 13];

/// An element of a kernel sensor: name of the sensor, schema, payload.
pub(super) type KernelElement = (&'static str, fn() -> TypeSchema, Vec<u8>);

/// A thread and its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) tid: u32,
    pub(super) pid: u32,
}

/// Limit of nested timer handlers on a CPU: a hard one interrupts a soft one. Beyond it the end of
/// another was not recorded.
const MAX_NESTED_HANDLERS: usize = 2;

/// Threads that each timer expiry wakes. They are needed at the begin of the handler, but known
/// only at its end: the first pass collects them, in the order of the expiries.
#[derive(Debug, Default)]
pub(super) struct TimerWakeUps {
    expiries: u64,
    // Per CPU: indices of the expiries whose handlers run, the innermost last.
    handled: HashMap<u32, Vec<u64>>,
    found: Vec<(u64, u32)>,
}

impl TimerWakeUps {
    pub(super) fn push(&mut self, hook: Hook, event: &ForeignEvent, cpu: u32) {
        match hook {
            Hook::Timer(KIND_BEGIN) | Hook::Hrtimer(KIND_BEGIN) => {
                nest(self.handled.entry(cpu).or_default(), self.expiries);
                self.expiries += 1;
            }
            Hook::Timer(_) | Hook::Hrtimer(_) => {
                self.handled.entry(cpu).or_default().pop();
            }
            Hook::Wake(overhear_event::kernel::Wake::WAKING) => {
                let expiry = self
                    .handled
                    .get(&cpu)
                    .and_then(|handled| handled.last().copied());
                self.found
                    .extend(expiry.map(|expiry| (expiry, number(event, &["tid", "pid"]))));
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct Request {
    issued: Timestamp,
    by: Thread,
    number: u32,
}

#[derive(Debug)]
struct Wait {
    since: Timestamp,
    operation: u32,
    address: u64,
}

/// Converts kernel events; keeps the fields that later elements need.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    woken: VecDeque<(u64, u32)>,
    expiries: u64,
    // Per CPU: functions of the timers whose handlers run, and the threads that they wake.
    handled: HashMap<u32, Vec<(u64, Vec<u32>)>>,
    // Expiry time by timer.
    due: HashMap<i128, i128>,
    interrupts: HashMap<u32, String>,
    requests: HashMap<(u32, u64), Request>,
    request: u32,
    waits: HashMap<u32, Wait>,
    locks: HashMap<u32, (u64, u32)>,
}

impl Kernel {
    pub(super) fn new(woken: TimerWakeUps) -> Self {
        let mut found = woken.found;
        found.sort_by_key(|(expiry, _)| *expiry);
        Self {
            woken: found.into(),
            ..Self::default()
        }
    }

    /// The elements of an event in the context of `thread`. `process` returns the process of a
    /// thread.
    pub(super) fn convert(
        &mut self,
        hook: Hook,
        event: &ForeignEvent,
        cpu: u32,
        thread: Thread,
        process: impl Fn(u32) -> u32,
    ) -> Vec<KernelElement> {
        let here = Payload::of(thread);
        match hook {
            Hook::Migrate => {
                let tid = number(event, &["tid", "pid"]);
                let payload = Payload::of(Thread {
                    tid,
                    pid: process(tid),
                })
                .u32(number(event, &["orig_cpu"]))
                .u32(number(event, &["dest_cpu"]))
                .u32(thread.tid)
                .u32(thread.pid);
                vec![(SCHED_MIGRATE, sched_migrate_schema, payload.0)]
            }
            Hook::Syscall(known, kind) => self.syscall(event, thread, known, kind),
            Hook::Irq(kind) => {
                let irq = number(event, &["irq"]);
                if let Some(name) = event.text("name") {
                    self.interrupts.insert(irq, name.to_owned());
                }
                let name = self.interrupts.get(&irq).map_or("", String::as_str);
                vec![(IRQ, irq_schema, here.u32(irq).u32(kind).name(name).0)]
            }
            Hook::Vector(name, kind) => {
                let vector = number(event, &["vector"]);
                vec![(IRQ, irq_schema, here.u32(vector).u32(kind).name(name).0)]
            }
            Hook::Softirq(kind) => {
                let vector = number(event, &["vec"]);
                vec![(SOFTIRQ, softirq_schema, here.u32(vector).u32(kind).0)]
            }
            Hook::Timer(KIND_BEGIN) => self.expires(event, cpu, thread, KIND_BEGIN, process),
            Hook::Timer(_) => self.expired(cpu, thread, KIND_END, process),
            Hook::HrtimerStart => {
                if let (Some(timer), Some(expires)) =
                    (event.whole("hrtimer"), event.whole("expires"))
                {
                    self.due.insert(timer, expires);
                }
                Vec::new()
            }
            Hook::Hrtimer(KIND_BEGIN) => self.expires(event, cpu, thread, 3, process),
            Hook::Hrtimer(_) => self.expired(cpu, thread, 4, process),
            Hook::PageFault(kind) => {
                let payload = here
                    .u64(long(event, "address"))
                    .u32(number(event, &["error_code"]))
                    .u32(kind);
                vec![(PAGE_FAULT, page_fault_schema, payload.0)]
            }
            Hook::BlockIssue => self.issue(event, thread),
            Hook::BlockComplete => self.complete(event),
            Hook::Idle => {
                let payload = Payload(Vec::new())
                    .u32(number(event, &["cpu_id"]))
                    .u32(number(event, &["state"]));
                vec![(CPU_IDLE, cpu_idle_schema, payload.0)]
            }
            Hook::Frequency => {
                let payload = Payload(Vec::new())
                    .u32(number(event, &["cpu_id"]))
                    .u32(number(event, &["state"]));
                vec![(CPU_FREQUENCY, cpu_frequency_schema, payload.0)]
            }
            Hook::SignalGenerate => {
                let tid = number(event, &["tid", "pid"]);
                let payload = Payload::of(Thread {
                    tid,
                    pid: process(tid),
                })
                .u32(thread.tid)
                .u32(thread.pid)
                .u32(number(event, &["sig"]))
                .u32(KIND_BEGIN);
                vec![(SIGNAL, signal_schema, payload.0)]
            }
            Hook::SignalDeliver => {
                let payload = here
                    .u32(0)
                    .u32(0)
                    .u32(number(event, &["sig"]))
                    .u32(KIND_END);
                vec![(SIGNAL, signal_schema, payload.0)]
            }
            Hook::Lock(kind) => self.lock(event, thread, kind),
            Hook::Switch
            | Hook::Wake(_)
            | Hook::Fork
            | Hook::Exec
            | Hook::Exit
            | Hook::StateDump => Vec::new(),
        }
    }

    /// The begin or end of a wait for a lock; the end lacks the lock's address.
    fn lock(&mut self, event: &ForeignEvent, thread: Thread, kind: u32) -> Vec<KernelElement> {
        let begun = match kind {
            KIND_BEGIN => {
                let begun = (long(event, "lock_addr"), number(event, &["flags"]));
                self.locks.insert(thread.tid, begun);
                Some(begun)
            }
            _ => self.locks.remove(&thread.tid),
        };
        let (address, flags) = begun.unwrap_or((long(event, "lock_addr"), 0));
        let payload = Payload::of(thread)
            .u32(kind)
            .u32(flags)
            .u64(address)
            .u32(0)
            .u32(0);
        vec![(LOCK, lock_schema, payload.0)]
    }

    fn syscall(
        &mut self,
        event: &ForeignEvent,
        thread: Thread,
        known: u32,
        kind: u32,
    ) -> Vec<KernelElement> {
        let call = match known {
            // In perf's events the number is signed, and -1 while a debugger is attached.
            UNKNOWN => match event.whole("id").map(u32::try_from) {
                Some(Ok(id)) => id,
                _ => UNKNOWN,
            },
            known => known,
        };
        let value = match kind {
            KIND_BEGIN => {
                let mut arguments = event.payload.iter();
                arguments.find_map(|(name, value)| match value {
                    ForeignValue::Whole(value) if !matches!(&**name, "__syscall_nr" | "id") => {
                        Some(*value)
                    }
                    _ => None,
                })
            }
            _ => event.whole("ret"),
        };
        let value = value.unwrap_or(0) as i64;
        let payload = Payload::of(thread).u32(call).u32(kind).i64(value);
        let mut elements: Vec<KernelElement> = vec![(SYSCALL, syscall_schema, payload.0)];
        if i64::from(call) == i64::from(Sysno::futex.id()) {
            elements.extend(self.futex(event, thread, kind, value));
        }
        elements
    }

    fn futex(
        &mut self,
        event: &ForeignEvent,
        thread: Thread,
        kind: u32,
        value: i64,
    ) -> Option<KernelElement> {
        let (wait, waited, result) = match kind {
            KIND_BEGIN => {
                let operation = number(event, &["op"]) & 0x7f;
                event.whole("op")?;
                if !FUTEX_WAITS.contains(&operation) {
                    return None;
                }
                let wait = Wait {
                    since: event.time,
                    operation,
                    address: long(event, "uaddr"),
                };
                (
                    self.waits.entry(thread.tid).insert_entry(wait).into_mut(),
                    0,
                    0,
                )
            }
            _ => {
                let wait = self.waits.get_mut(&thread.tid)?;
                let waited = event.time.since(wait.since).as_ns();
                (wait, waited, value)
            }
        };
        let payload = Payload::of(thread)
            .u32(kind)
            .u32(wait.operation)
            .u64(wait.address)
            .u64(waited)
            .i64(result)
            .u32(0)
            .u32(0);
        if kind == KIND_END {
            self.waits.remove(&thread.tid);
        }
        Some((FUTEX, futex_schema, payload.0))
    }

    /// A timer expires: an element of this kind for the interrupted thread, one of kind 5 for each
    /// thread that it wakes.
    fn expires(
        &mut self,
        event: &ForeignEvent,
        cpu: u32,
        thread: Thread,
        kind: u32,
        process: impl Fn(u32) -> u32,
    ) -> Vec<KernelElement> {
        let due = event
            .whole("hrtimer")
            .and_then(|timer| self.due.remove(&timer));
        let late = event
            .whole("now")
            .zip(due)
            .map_or(0, |(now, due)| now - due);
        let late = u32::try_from(late.max(0)).unwrap_or(UNKNOWN);
        let function = long(event, "function");
        let until = self
            .woken
            .partition_point(|(expiry, _)| *expiry <= self.expiries);
        let woken: Vec<u32> = self.woken.drain(..until).map(|(_, tid)| tid).collect();
        self.expiries += 1;
        let mut elements = vec![timer(thread, function, kind, late)];
        elements.extend(woken.iter().map(|&tid| {
            let woken = Thread {
                tid,
                pid: process(tid),
            };
            timer(woken, function, 5, late)
        }));
        nest(self.handled.entry(cpu).or_default(), (function, woken));
        elements
    }

    /// A timer's handler ends: an element of kind 6 for each thread that it has woken, and one of
    /// this kind.
    fn expired(
        &mut self,
        cpu: u32,
        thread: Thread,
        kind: u32,
        process: impl Fn(u32) -> u32,
    ) -> Vec<KernelElement> {
        let handled = self.handled.entry(cpu).or_default().pop();
        let (function, woken) = handled.unwrap_or_default();
        let ends = woken.into_iter().map(|tid| {
            let woken = Thread {
                tid,
                pid: process(tid),
            };
            timer(woken, function, 6, 0)
        });
        ends.chain([timer(thread, 0, kind, 0)]).collect()
    }

    fn issue(&mut self, event: &ForeignEvent, thread: Thread) -> Vec<KernelElement> {
        let at = (number(event, &["dev"]), long(event, "sector"));
        if self.requests.len() >= MAX_OPEN_REQUESTS {
            // Its completion was not recorded: the oldest one is dropped.
            let oldest = self
                .requests
                .iter()
                .min_by_key(|(_, request)| request.issued);
            let oldest = oldest.map(|(at, _)| *at);
            oldest.and_then(|at| self.requests.remove(&at));
        }
        self.request = self.request.wrapping_add(1);
        let request = Request {
            issued: event.time,
            by: thread,
            number: self.request,
        };
        let element = block(event, &request, KIND_BEGIN);
        self.requests.insert(at, request);
        vec![element]
    }

    /// A completion without a known issue yields no element.
    fn complete(&mut self, event: &ForeignEvent) -> Vec<KernelElement> {
        let at = (number(event, &["dev"]), long(event, "sector"));
        let request = self.requests.remove(&at);
        let element = request.map(|request| block(event, &request, KIND_END));
        element.into_iter().collect()
    }
}

/// Pushes a handler onto those that run on a CPU.
fn nest<T>(handlers: &mut Vec<T>, handler: T) {
    if handlers.len() == MAX_NESTED_HANDLERS {
        handlers.pop();
    }
    handlers.push(handler);
}

fn timer(thread: Thread, function: u64, kind: u32, late: u32) -> KernelElement {
    let payload = Payload::of(thread).u64(function).u32(kind).u32(late);
    (TIMER, timer_schema, payload.0)
}

fn block(event: &ForeignEvent, request: &Request, kind: u32) -> KernelElement {
    let bytes = match event.whole("bytes") {
        Some(bytes) if bytes > 0 => u32::try_from(bytes).unwrap_or(UNKNOWN),
        _ => number(event, &["nr_sector"]).saturating_mul(512),
    };
    let (latency, error) = match kind {
        KIND_BEGIN => (0, 0),
        _ => (
            event.time.since(request.issued).as_ns(),
            event
                .whole("error")
                .or_else(|| event.whole("errors"))
                .unwrap_or(0) as i32,
        ),
    };
    let payload = Payload::of(request.by)
        .u32(kind)
        .u32(operation(event.value("rwbs")))
        .u64(long(event, "sector"))
        .u32(number(event, &["dev"]))
        .u32(bytes)
        .u64(latency)
        .u32(error.cast_unsigned())
        .u32(request.number);
    (BLOCK_IO, block_io_schema, payload.0)
}

/// Operation of a request, as the block layer numbers it: 0 read, 1 write, 2 flush, 3 discard.
/// LTTng records a set of bits, perf letters.
fn operation(rwbs: Option<&ForeignValue>) -> u32 {
    match rwbs {
        Some(ForeignValue::Whole(bits)) => match bits {
            bits if bits & 1 != 0 => 1,
            bits if bits & 2 != 0 => 3,
            bits if bits & 4 != 0 => 0,
            _ => 2,
        },
        Some(ForeignValue::Text(letters)) => match letters.trim_start_matches('F').chars().next() {
            Some('W') => 1,
            Some('D') => 3,
            None => 2,
            Some(_) => 0,
        },
        _ => 0,
    }
}

/// A payload, built field by field in the order of its schema.
struct Payload(Vec<u8>);

impl Payload {
    fn of(thread: Thread) -> Self {
        Self(Vec::with_capacity(64)).u32(thread.tid).u32(thread.pid)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Appends a text of 16 bytes.
    fn name(mut self, name: &str) -> Self {
        let mut end = name.len().min(16);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let filled = self.0.len() + 16;
        self.0.extend(&name.as_bytes()[..end]);
        self.0.resize(filled, 0);
        self
    }
}

/// Value of the first of these fields that exists; 0 if none does, or the value does not fit.
pub(super) fn number(event: &ForeignEvent, names: &[&str]) -> u32 {
    let found = names.iter().find_map(|name| event.whole(name));
    found
        .and_then(|value| u32::try_from(value).ok())
        .unwrap_or(0)
}

/// Value of a field of 64 bits; 0 if it does not exist. Addresses may be recorded as signed
/// numbers.
fn long(event: &ForeignEvent, name: &str) -> u64 {
    event.whole(name).unwrap_or(0) as u64
}
