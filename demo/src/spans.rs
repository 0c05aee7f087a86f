// SPDX-License-Identifier: MIT OR Apache-2.0
//! The analysis: a state machine that follows each call along its path.
//!
//! ```text
//!  client              kernel                server
//!  C before
//!    |  send           server awakes  -----> receive      2
//!    | 1                                     P before
//!  blocked                                     | 3        parse
//!    |                                       F before
//!    |                                         | 4        the called function
//!    |                                       F after
//!    |                                         | 3        set up the reply
//!    |                                       P after
//!    | 1             client awakes  <-----   send         2
//!  C after           server blocks  <-----   wait         2
//! ```
//!
//! GRTMon's machine has one CPU, and its IPC switches from the client to the server and back.
//! Here both may run at the same time on two CPUs, and a socket wakes but does not switch. So the
//! context switches that belong to a call are defined by the server alone:
//!
//! - The IPC before parsing begins when the server *awakes*: with the first switch to it after it
//!   blocked, as the most recent one before P. That it is preempted before P does not end the span,
//!   which adds up the time on a CPU only.
//! - The IPC after parsing ends when the server next *blocks*. A preemption, which often comes
//!   right here because the reply wakes the client, does not end it. Only now all stays on a CPU
//!   are known, so both parts are computed here.
//! - If the server was awake already when the call began, or has served another call since it
//!   awoke, then no switch belongs to this call's request. If it serves another call before it
//!   blocks, then none belongs to this call's reply. Its time would be that of several calls, so
//!   the span is discarded for this call and counted; the other three spans do not suffer.
//!
//! A call of which elements were missed, or came in an unexpected order, is discarded as a whole.

use std::collections::BTreeMap;
use std::fmt;

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{
    Analysis, ElementView, EventName, EventSet, Gap, Origin, StreamDescriptor, Timestamp,
};
use overhear_metrics::Histogram;

use crate::running::{Blocked, Threads};

/// GRTMon's four time spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Thread time in the client between the two invocations of C.
    Client,
    /// Running time of the server from awaking to P, and from P to blocking.
    Ipc,
    /// Thread time between the two invocations of P, less the called function's.
    Parsing,
    /// Thread time between the two invocations of F.
    Function,
}

impl Span {
    /// In the order of GRTMon.
    pub const ALL: [Self; 4] = [Self::Client, Self::Ipc, Self::Parsing, Self::Function];

    /// The span's name.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Client => "client: call and IPC",
            Self::Ipc => "server: IPC",
            Self::Parsing => "server: parsing",
            Self::Function => "server: called function",
        }
    }
}

/// Why a call, or the IPC of a call, was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Elements were missed.
    Missed,
    /// Elements came in an order that no call has.
    Unexpected,
    /// The run ended first.
    Unfinished,
    /// The server was awake when the call began: no switch to it belongs to the call.
    AlreadyAwake,
    /// The server served another call before it blocked: no switch from it belongs to the call.
    StayedAwake,
    /// No switch of the server was recorded although there must be one.
    NoSwitch,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missed => "elements were missed",
            Self::Unexpected => "elements came in an unexpected order",
            Self::Unfinished => "the run ended first",
            Self::AlreadyAwake => "the server was awake before the call",
            Self::StayedAwake => "the server did not wait after the call",
            Self::NoSwitch => "no context switch was recorded",
        })
    }
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Called,
    Parsing,
    InFunction,
    Returned,
    Replied,
}

/// A moment in a thread's life.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time: Timestamp,
    cpu_ns: u64,
}

/// The call of the test client that is under way. It makes one at a time.
#[derive(Clone, Copy, Debug)]
struct Call {
    number: u32,
    step: Step,
    begin: Moment,
    /// Known from P on.
    server: Option<u32>,
    parser: Moment,
    /// CPU time of the server's thread when the function began.
    function_begin_ns: u64,
    function_ns: u64,
    /// From P to P: CPU time and time.
    service_ns: u64,
    service_wall_ns: u64,
}

/// The IPC of one call in the server. It outlives the call: the client may have its reply before
/// the server blocks, and only then are the server's stays on a CPU known.
#[derive(Clone, Copy, Debug)]
struct Ipc {
    server: u32,
    /// When the call began, or the server last began to serve another one, whatever came later.
    /// A server that was awake by then was not woken by this call's request.
    not_before: Timestamp,
    /// The time of P before.
    parse: Timestamp,
    /// The time of P after.
    parsed: Option<Timestamp>,
    /// The part before P.
    receive: Option<Result<u64, Reason>>,
    /// The part after P.
    send: Option<Result<u64, Reason>>,
    /// Whether the call was measured. The IPC of a discarded call is discarded with it.
    measured: bool,
}

/// The common fields of C, P and F.
#[derive(Clone, Copy, Debug)]
struct Sample {
    task: u32,
    call: u32,
    after: bool,
    moment: Moment,
}

impl Sample {
    fn read(element: &ElementView<'_>) -> Option<Self> {
        let Origin::Program(task) = &element.stream.origin else {
            return None;
        };
        let number = |name: &str| element.field(name)?.as_u64();
        Some(Self {
            task: task.pid,
            call: u32::try_from(number("call")?).ok()?,
            after: number("after")? != 0,
            moment: Moment {
                time: element.time,
                cpu_ns: number("cpu_ns")?,
            },
        })
    }
}

/// The analysis of the demonstration: one update for the sensors C, P, F and the kernel's
/// context switches, with the state they share.
///
/// The test client is the first process that invokes C; calls of other clients are recognised by
/// the caller's id in P and not measured. Every call of the test client is counted once: as
/// measured or as discarded, and every measured call's IPC again.
#[derive(Debug, Default)]
pub struct Spans {
    client: Option<u32>,
    // The number of the test client's next call.
    next: u32,
    call: Option<Call>,
    ipc: Option<Ipc>,
    threads: Threads,
    // When each server last began to serve a call: a switch before that belongs to that call.
    served: BTreeMap<u32, Timestamp>,
    switches: u64,
    // Switches were missed, and no wake-up has been recorded since.
    lost: bool,
    histograms: [Histogram; 4],
    round_trip: Histogram,
    service: Histogram,
    discarded: BTreeMap<Reason, u64>,
    ipc_discarded: BTreeMap<Reason, u64>,
}

impl Spans {
    /// What was measured of this span, in nanoseconds.
    #[must_use]
    pub fn histogram(&self, span: Span) -> &Histogram {
        &self.histograms[span as usize]
    }

    /// Time, not CPU time, from C to C, in nanoseconds.
    #[must_use]
    pub fn round_trip(&self) -> &Histogram {
        &self.round_trip
    }

    /// Time, not CPU time, from P to P, in nanoseconds.
    #[must_use]
    pub fn service(&self) -> &Histogram {
        &self.service
    }

    /// How many calls were discarded, and why.
    #[must_use]
    pub fn discarded(&self) -> &BTreeMap<Reason, u64> {
        &self.discarded
    }

    /// Of how many measured calls the IPC was discarded, and why.
    #[must_use]
    pub fn ipc_discarded(&self) -> &BTreeMap<Reason, u64> {
        &self.ipc_discarded
    }

    /// Number of recorded context switches. Without any there is no IPC to measure.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// The run has ended: what is under way stays unfinished.
    pub fn finish(&mut self) {
        self.discard(Reason::Unfinished);
        self.end_of_reply(Err(Reason::Unfinished));
    }

    fn record(&mut self, span: Span, ns: u64) {
        self.histograms[span as usize].record(ns);
    }

    /// Discards the call under way, if there is one, and its IPC with it.
    fn discard(&mut self, reason: Reason) {
        if self.call.take().is_some() {
            *self.discarded.entry(reason).or_default() += 1;
            self.ipc = self.ipc.filter(|ipc| ipc.measured);
        }
    }

    /// The client invoked C.
    fn client(&mut self, sample: Sample) {
        if *self.client.get_or_insert(sample.task) != sample.task {
            return;
        }
        if !sample.after {
            // The last call has not ended in order.
            self.discard(Reason::Unexpected);
            // Calls of which not even the beginning was seen.
            if let Some(missed) = sample.call.checked_sub(self.next).filter(|&n| n > 0) {
                *self.discarded.entry(Reason::Missed).or_default() += u64::from(missed);
            }
            self.next = sample.call.saturating_add(1);
            self.call = Some(Call {
                number: sample.call,
                step: Step::Called,
                begin: sample.moment,
                server: None,
                parser: sample.moment,
                function_begin_ns: 0,
                function_ns: 0,
                service_ns: 0,
                service_wall_ns: 0,
            });
            return;
        }
        let Some(call) = self.call else { return };
        let client_ns = sample.moment.cpu_ns.checked_sub(call.begin.cpu_ns);
        // F lies inside P, so its thread time cannot be the larger one.
        let parsing_ns = call.service_ns.checked_sub(call.function_ns);
        let (Some(client_ns), Some(parsing_ns)) = (client_ns, parsing_ns) else {
            return self.discard(Reason::Unexpected);
        };
        if call.number != sample.call || call.step != Step::Replied {
            return self.discard(Reason::Unexpected);
        }
        self.call = None;
        self.record(Span::Client, client_ns);
        self.record(Span::Parsing, parsing_ns);
        self.record(Span::Function, call.function_ns);
        self.round_trip
            .record(sample.moment.time.since(call.begin.time).as_ns());
        self.service.record(call.service_wall_ns);
        if let Some(ipc) = &mut self.ipc {
            ipc.measured = true;
        }
        self.settle_ipc();
    }

    /// A server invoked P for this client.
    fn parser(&mut self, sample: Sample, client: u32) {
        let (server, now) = (sample.task, sample.moment.time);
        let mut served = None;
        if !sample.after {
            // Had the server blocked after its last call, that one's IPC would be complete.
            if self.ipc.is_some_and(|ipc| ipc.server == server) {
                self.end_of_reply(Err(Reason::StayedAwake));
            }
            served = self.served.insert(server, now);
        }
        // Calls of others cost the server time, but it is not measured here.
        if self.client != Some(client) {
            return;
        }
        let Some(mut call) = self.call else { return };
        match (call.step, sample.after) {
            (Step::Called, false) if call.number == sample.call => {
                call.step = Step::Parsing;
                call.server = Some(server);
                call.parser = sample.moment;
                self.call = Some(call);
                let begin = call.begin.time;
                self.ipc = Some(Ipc {
                    server,
                    not_before: served.map_or(begin, |served| served.max(begin)),
                    parse: now,
                    parsed: None,
                    receive: None,
                    send: None,
                    measured: false,
                });
            }
            (Step::Returned, true) if call.number == sample.call && call.server == Some(server) => {
                let Some(service) = sample.moment.cpu_ns.checked_sub(call.parser.cpu_ns) else {
                    return self.discard(Reason::Unexpected);
                };
                call.step = Step::Replied;
                call.service_ns = service;
                call.service_wall_ns = now.since(call.parser.time).as_ns();
                self.call = Some(call);
                if let Some(ipc) = &mut self.ipc {
                    ipc.parsed = Some(now);
                }
            }
            _ => self.discard(Reason::Unexpected),
        }
    }

    /// A server invoked F. It has one thread, so between the two P of a call F belongs to the call.
    fn function(&mut self, sample: Sample) {
        let Some(mut call) = self.call else { return };
        if call.server != Some(sample.task) || call.step == Step::Replied {
            return;
        }
        let cpu_ns = sample.moment.cpu_ns;
        match (call.step, sample.after) {
            (Step::Parsing, false) if call.number == sample.call => {
                call.step = Step::InFunction;
                call.function_begin_ns = cpu_ns;
            }
            (Step::InFunction, true) if call.number == sample.call => {
                let Some(function) = cpu_ns.checked_sub(call.function_begin_ns) else {
                    return self.discard(Reason::Unexpected);
                };
                call.step = Step::Returned;
                call.function_ns = function;
            }
            _ => return self.discard(Reason::Unexpected),
        }
        self.call = Some(call);
    }

    /// A monitored thread went to wait.
    fn blocked(&mut self, now: Timestamp, blocked: &Blocked) {
        let Some(ipc) = self.ipc.as_mut().filter(|ipc| ipc.server == blocked.tid) else {
            return;
        };
        let stays = blocked.stays.as_ref();
        let Some((stays, awake)) = stays.and_then(|stays| Some((stays, stays.awake()?))) else {
            let reason = match self.lost {
                true => Reason::Missed,
                false => Reason::NoSwitch,
            };
            return self.end_of_reply(Err(reason));
        };
        self.lost = false;
        // A server that waits for something else inside P has received, but not yet replied.
        ipc.receive.get_or_insert(match awake < ipc.not_before {
            true => Err(Reason::AlreadyAwake),
            false => Ok(stays.active_ns(awake, ipc.parse)),
        });
        if let Some(parsed) = ipc.parsed {
            let send = stays.active_ns(parsed, now);
            self.end_of_reply(Ok(send));
        }
    }

    /// The IPC after parsing is known, or why it will not be.
    fn end_of_reply(&mut self, send: Result<u64, Reason>) {
        if let Some(ipc) = &mut self.ipc {
            // Without any switch of a server it is unknown whether it blocked: there
            // is no kernel sensor, or it counts threads in another PID namespace.
            let is_switched_to = self.lost || self.threads.has_seen(ipc.server);
            let send = if is_switched_to {
                send
            } else {
                Err(Reason::NoSwitch)
            };
            ipc.send.get_or_insert(send);
            self.settle_ipc();
        }
    }

    /// Counts the IPC of a measured call as soon as both its parts are known.
    fn settle_ipc(&mut self) {
        let Some(ipc) = self.ipc.filter(|ipc| ipc.measured) else {
            return;
        };
        let result = match (ipc.receive, ipc.send) {
            (_, Some(Err(reason))) => Err(reason),
            (Some(receive), Some(Ok(send))) => receive.map(|receive| receive + send),
            _ => return,
        };
        self.ipc = None;
        match result {
            Ok(ns) => self.record(Span::Ipc, ns),
            Err(reason) => *self.ipc_discarded.entry(reason).or_default() += 1,
        }
    }

    /// Context switches, or a server's elements, were missed: of the IPC that is under way nothing
    /// is certain, nor of the next until the server has blocked and awoken.
    fn lose_ipc(&mut self) {
        self.threads.forget();
        self.lost = true;
        self.end_of_reply(Err(Reason::Missed));
    }
}

impl Analysis for Spans {
    fn requires(&self) -> EventSet {
        let sensors = ["C", "P", "F"].map(EventName::user);
        let switches = EventName::kernel(SCHED_SWITCH);
        sensors.into_iter().chain([switches]).collect()
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if matches!(element.stream.origin, Origin::Kernel { .. }) {
            if element.stream.sensor == SCHED_SWITCH {
                if let Some(switch) = Switch::parse(element.payload) {
                    self.switches += 1;
                    if let Some(blocked) = self.threads.switch(element.time, &switch) {
                        self.blocked(element.time, &blocked);
                    }
                }
            }
            return;
        }
        let Some(sample) = Sample::read(element) else {
            return;
        };
        match element.stream.sensor.as_str() {
            "C" => self.client(sample),
            "F" => self.function(sample),
            "P" => {
                let client = element.field("client").and_then(|value| value.as_u64());
                if let Some(client) = client.and_then(|client| u32::try_from(client).ok()) {
                    self.parser(sample, client);
                }
            }
            _ => {}
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, _: &Gap) {
        match (&stream.origin, stream.sensor.as_str()) {
            (Origin::Kernel { .. }, SCHED_SWITCH) => self.lose_ipc(),
            (Origin::Program(task), "C") if self.client.is_none_or(|pid| pid == task.pid) => {
                self.discard(Reason::Missed);
            }
            // Among what is missing may be another call that the server has served meanwhile.
            (Origin::Program(_), "P") => {
                self.discard(Reason::Missed);
                self.lose_ipc();
            }
            (Origin::Program(_), "F") => self.discard(Reason::Missed),
            _ => {}
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests;
