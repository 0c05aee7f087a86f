// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compensation: the times at which everything would have happened without the cost of observing.
//!
//! Elements come with their recorded times and their costs ([`Costs`]). [`Delays`] computes the
//! delay of each, [`Compensation`] moves it and hands it on in the order of the new times. Like all
//! evaluations it has no clock; it works live and over a trace.
//!
//! # The rule
//!
//! On one CPU that never rests, the rule is that of [MKM, section 5.2]: "subtracting from each time
//! stamp a quantity corresponding to the sum of all the sensor firing times of previous
//! context-switch events", here of all previous elements. With several CPUs, and with idle time,
//! each thread has a *delay* of its own, and passes it on.
//!
//! Let t be a recorded time, t' the compensated one, D = t - t' >= 0 the delay of the running
//! thread, and c the cost of an element.
//!
//! 1. **Work.** An element of the thread on a CPU has t' = t - D; after it D grows by c. The stamp
//!    of an element is taken before its cost is paid.
//! 2. **Waking.** A thread that wakes another passes its time on: the other is *ready* at r' =
//!    max(t' of the waking, t' of its own departure). A waking on an idle CPU (by a timer, a
//!    device) has its own time, D = 0. So idle time absorbs delays.
//! 3. **Entering.** A thread that enters directly after another has t' = max(t' of that departure,
//!    r'). If r' is later, the CPU would have been idle until then.
//! 4. **Entering an idle CPU.** Let f be the time at which it became idle. Then t' = max(r', f') +
//!    (t - max(r, f)): the time from the wake-up to the run stays the same, less the cost of the
//!    elements of the wake-up.
//! 5. **Displacement.** A displaced thread leaves when the other one enters. If that is later than
//!    t - D, the displaced thread would have worked until then; it is *ahead* by the difference,
//!    and its delay when it comes back is greater by it.
//! 6. **Order.** No element is placed before another one of its CPU, its thread or its stream, no
//!    run before its wake-up, no wake-up before the sleep, and nothing later than it was recorded.
//!
//! These are the equations of a max-plus system [Baccelli-1992]: an event happens when the last
//! event that it waits for has happened. The order in which threads get a CPU is taken from the
//! recording, as in [MKM, section 5.2]: the number of switches stays, except for the idle times of
//! rule 3.
//!
//! `docs/compensation.md` states where this is exact, and how large its error is elsewhere, with
//! measurements.

mod delays;
mod thread;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use overhear_event::kernel::{Life, SchedStat, Switch, SCHEDSTAT, SCHED_SWITCH, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, EventSet, Gap, Origin, StreamDescriptor, StreamId, Timestamp,
};

pub use delays::{Delays, Moved};

use crate::overhead::Costs;

/// Moves every item to its compensated time and hands it on, as an [`Analysis`] before another one.
///
/// Items are held back until no item can come that belongs before them, at most for the greatest
/// delay. [`Compensation::finish`] hands on the rest.
///
/// If more than 100,000 items would be held back, the oldest are handed on early. An item that
/// belongs before one of them is then placed at the same time: later than it should be.
/// [`Delays::hurried`] counts these.
#[derive(Debug)]
pub struct Compensation<U> {
    delays: Delays,
    update: U,
    streams: HashMap<StreamId, Arc<StreamDescriptor>>,
    held: BinaryHeap<Reverse<Held>>,
    /// Largest number of items that are held back.
    most_held: usize,
    order: u64,
    now: Timestamp,
}

/// Default of the largest number of items that are held back: about 20 MB.
const MOST_HELD: usize = 100_000;

/// An item that is held back. Items of one time keep their recorded order.
#[derive(Debug)]
struct Held {
    time: Timestamp,
    order: u64,
    stream: Arc<StreamDescriptor>,
    what: What,
}

#[derive(Debug)]
enum What {
    Element { sequence: u64, payload: Box<[u8]> },
    Gap(Gap),
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

impl<U: Analysis> Compensation<U> {
    /// Hands items on to `update`, with these costs per element.
    #[must_use]
    pub fn new(costs: Costs, update: U) -> Self {
        Self {
            delays: Delays::new(costs),
            update,
            streams: HashMap::new(),
            held: BinaryHeap::new(),
            most_held: MOST_HELD,
            order: 0,
            now: Timestamp::ZERO,
        }
    }

    /// The delays so far.
    pub const fn delays(&self) -> &Delays {
        &self.delays
    }

    /// The update that the items are handed on to.
    pub const fn update(&self) -> &U {
        &self.update
    }

    /// Hands on all items that are held back: no more come. Returns the delays.
    pub fn finish(self) -> Delays {
        self.into_parts().0
    }

    /// As [`Compensation::finish`]; returns the update, too.
    pub fn into_parts(mut self) -> (Delays, U) {
        self.release(Timestamp::MAX);
        self.update.advance(self.now);
        (self.delays, self.update)
    }

    fn hold(&mut self, time: Timestamp, stream: &StreamDescriptor, what: What) {
        let known = self.streams.entry(stream.id);
        let stream = known.or_insert_with(|| Arc::new(stream.clone()));
        self.order += 1;
        self.held.push(Reverse(Held {
            time,
            order: self.order,
            stream: Arc::clone(stream),
            what,
        }));
        if self.held.len() > self.most_held {
            self.hurry();
        }
    }

    /// Hands on the oldest items, although others may belong before them.
    #[cold]
    fn hurry(&mut self) {
        let held = self.held.len();
        if let Some(Reverse(oldest)) = self.held.peek() {
            self.delays.released = self.delays.released.max(oldest.time);
            self.release(self.delays.released);
        }
        self.delays.hurried += (held - self.held.len()) as u64;
    }

    /// Hands on all items up to `until`.
    fn release(&mut self, until: Timestamp) {
        while let Some(Reverse(held)) = self.held.peek() {
            if held.time > until {
                break;
            }
            let Some(Reverse(held)) = self.held.pop() else {
                break;
            };
            match held.what {
                What::Element { sequence, payload } => self.update.element(&ElementView {
                    stream: &held.stream,
                    sequence,
                    time: held.time,
                    payload: &payload,
                }),
                What::Gap(gap) => self.update.gap(&held.stream, &gap),
            }
        }
    }
}

impl<U: Analysis> Analysis for Compensation<U> {
    fn requires(&self) -> EventSet {
        self.update.requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.update.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let moved = self.delays.element(element);
        let sequence = element.sequence;
        let (first, second) = payloads(element, &moved);
        if let (Some(rests_from), Some(first)) = (moved.rests_from, first) {
            let what = What::Element {
                sequence,
                payload: first,
            };
            self.hold(rests_from, element.stream, what);
        }
        let what = What::Element {
            sequence,
            payload: second,
        };
        self.hold(moved.time, element.stream, what);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let (from, to) = self.delays.gap(stream, gap);
        let moved = Gap { from, to, ..*gap };
        self.hold(to, stream, What::Gap(moved));
    }

    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        let certain = now.minus(self.delays.greatest());
        self.delays.released = self.delays.released.max(certain);
        self.release(self.delays.released);
        self.update.advance(self.delays.released);
    }
}

/// The payload at the element's new time, with its accounts of CPU time corrected; before it, if
/// the CPU is idle in between, the departure alone.
fn payloads(element: &ElementView<'_>, moved: &Moved) -> (Option<Box<[u8]>>, Box<[u8]>) {
    let less = |account: u64| {
        let less = i128::from(account) - i128::from(moved.less_ns);
        u64::try_from(less).unwrap_or(0)
    };
    let payload = element.payload;
    let unchanged = (None, Box::from(payload));
    match (&element.stream.origin, element.stream.sensor.as_str()) {
        (Origin::Kernel { .. }, SCHED_SWITCH) => {
            let Some(mut switch) = Switch::parse(payload) else {
                return unchanged;
            };
            if switch.prev_run_ns != Switch::UNKNOWN {
                let run = less(switch.prev_run_ns.into());
                switch.prev_run_ns = u32::try_from(run).unwrap_or(Switch::UNKNOWN);
            }
            if moved.rests_from.is_none() || switch.flags & Switch::PREV_TRACKED == 0 {
                return (None, Box::new(switch.to_payload()));
            }
            let of_next = Switch::NEXT_TRACKED;
            let leaves = Switch {
                next_tid: 0,
                next_pid: 0,
                flags: switch.flags & !of_next,
                ..switch
            };
            let enters = Switch {
                prev_tid: 0,
                prev_pid: 0,
                prev_state: 0,
                flags: switch.flags & of_next,
                prev_run_ns: Switch::UNKNOWN,
                ..switch
            };
            (
                Some(Box::new(leaves.to_payload())),
                Box::new(enters.to_payload()),
            )
        }
        (Origin::Kernel { .. }, TASK_LIFE) => match Life::parse(payload) {
            Some(life) if life.cpu_ns > 0 => {
                let life = Life {
                    cpu_ns: less(life.cpu_ns).max(1),
                    ..life
                };
                (None, Box::new(life.to_payload()))
            }
            _ => unchanged,
        },
        (Origin::Sampler, SCHEDSTAT) => match SchedStat::parse(payload) {
            Some(sample) => {
                let sample = SchedStat {
                    run_ns: less(sample.run_ns),
                    ..sample
                };
                (None, Box::new(sample.to_payload()))
            }
            None => unchanged,
        },
        _ => unchanged,
    }
}

#[cfg(test)]
mod tests;
