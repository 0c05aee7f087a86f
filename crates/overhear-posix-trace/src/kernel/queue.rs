// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of a kernel monitor in the order of their times, as events of a trace stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
use overhear_event::{
    GapCause, Inbox, Nanos, Origin, SourceError, StreamDescriptor, StreamId, Timestamp,
};

use super::merged::MergedItem;
use crate::{EventId, EventTypeSet, LostEvents, TraceEvent, Truncation};

/// Time for which an event of the kernel is held back, so that an event of another CPU with an
/// earlier time can still come. The monitor of `overhear-monitor` uses the same time.
pub(crate) const HOLD_BACK: Nanos = Nanos::from_ms(2);

/// Bytes after the payload of a kernel sensor in the data of an event: the number of the CPU.
pub const CPU_BYTES: usize = 4;
/// Maximum bytes of data of an event of the kernel.
const DATA_BYTES: usize = overhear_ffi::KERNEL_PAYLOAD_WORDS * 8 + CPU_BYTES;

/// A stream of the kernel monitor.
struct KernelStream {
    event: EventId,
    cpu: u32,
    last: Timestamp,
    /// Offsets of the fields `tid` and `pid` in the payload.
    thread: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
enum Queued {
    Event {
        event: EventId,
        pid: u32,
        tid: u32,
        data: [u8; DATA_BYTES],
        length: usize,
    },
    Lost {
        to: Timestamp,
        missed: u64,
        cause: GapCause,
    },
}

/// Orders events of all CPUs. It takes no time and reads no clock: the caller passes both.
pub(crate) struct KernelQueue {
    streams: BTreeMap<StreamId, KernelStream>,
    selected: EventTypeSet,
    /// Events of this process only; `None` if its children are traced, too.
    process: Option<u32>,
    /// In the order of their times up to `sorted`.
    waiting: VecDeque<(Timestamp, Queued)>,
    is_sorted: bool,
    /// Items up to here may be taken.
    horizon: Timestamp,
    taken: Option<(Timestamp, Queued)>,
    complaint: Option<String>,
}

impl KernelQueue {
    pub(crate) fn new(process: Option<u32>) -> Self {
        Self {
            streams: BTreeMap::new(),
            selected: EventTypeSet::EMPTY,
            process,
            waiting: VecDeque::new(),
            is_sorted: true,
            horizon: Timestamp::ZERO,
            taken: None,
            complaint: None,
        }
    }

    /// Sets the types whose events are kept from now on.
    pub(crate) fn select(&mut self, events: EventTypeSet) {
        self.selected = events;
    }

    /// Removes the streams of a monitor that has ended. Its events stay.
    pub(crate) fn close_streams(&mut self) {
        self.streams.clear();
    }

    /// Discards all events until `now`.
    pub(crate) fn clear(&mut self, now: Timestamp) {
        self.waiting.clear();
        self.release_until(now);
    }

    pub(crate) fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Ends a poll that began at `now`: items that are older than the hold-back may be taken.
    pub(crate) fn advance(&mut self, now: Timestamp) -> Timestamp {
        self.release_until(now.minus(HOLD_BACK))
    }

    /// Items up to this time may be taken.
    pub(crate) fn release_until(&mut self, horizon: Timestamp) -> Timestamp {
        if !self.is_sorted {
            // Stable: items of one stream have their order.
            self.waiting
                .make_contiguous()
                .sort_by_key(|(time, _)| *time);
            self.is_sorted = true;
        }
        self.horizon = self.horizon.max(horizon);
        self.horizon
    }

    pub(crate) fn next_time(&self) -> Option<Timestamp> {
        let (time, _) = self.waiting.front()?;
        (*time <= self.horizon).then_some(*time)
    }

    pub(crate) fn take(&mut self) -> Option<MergedItem<'_>> {
        self.next_time()?;
        self.taken = self.waiting.pop_front();
        let (time, item) = self.taken.as_ref()?;
        Some(match item {
            Queued::Event {
                event,
                pid,
                tid,
                data,
                length,
            } => MergedItem::Event(TraceEvent {
                time: *time,
                event: *event,
                pid: *pid,
                tid: *tid,
                thread: 0,
                address: 0,
                truncation: Truncation::None,
                data: &data[..*length],
            }),
            Queued::Lost { to, missed, cause } => MergedItem::Lost(LostEvents {
                from: *time,
                to: *to,
                missed: *missed,
                cause: *cause,
            }),
        })
    }

    fn push(&mut self, time: Timestamp, item: Queued) {
        let last = self.waiting.back();
        self.is_sorted &= last.is_none_or(|(last, _)| *last <= time);
        self.waiting.push_back((time, item));
    }

    fn push_lost(&mut self, from: Timestamp, to: Timestamp, missed: u64, cause: GapCause) {
        // A loss that is found late is reported at the reader's position.
        let from = from.max(self.horizon);
        let lost = Queued::Lost {
            to: to.max(from),
            missed,
            cause,
        };
        self.push(from, lost);
    }
}

fn word(payload: &[u8], offset: usize) -> u32 {
    let bytes = payload.get(offset..offset + 4);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

impl KernelStream {
    fn new(descriptor: &StreamDescriptor, event: EventId) -> Self {
        let schema = &descriptor.schema;
        let offset = |name| {
            let index = schema.index_of(name)?;
            schema
                .fields()
                .get(index)
                .map(|field| field.offset as usize)
        };
        Self {
            event,
            cpu: match descriptor.origin {
                Origin::Kernel { cpu } => cpu,
                _ => 0,
            },
            last: Timestamp::ZERO,
            thread: offset("tid").zip(offset("pid")),
        }
    }

    /// The process and thread of an element, 0 if it is of no thread. `process` is preferred where
    /// an element is of two.
    fn writer(&self, payload: &[u8], process: Option<u32>) -> (u32, u32) {
        if let Some((tid, pid)) = self.thread {
            return (word(payload, pid), word(payload, tid));
        }
        match Switch::parse(payload) {
            Some(switch) if self.event.kernel_name() == Some(SCHED_SWITCH) => {
                let left = switch.flags & Switch::PREV_TRACKED != 0
                    && process.is_none_or(|process| process == switch.prev_pid);
                match left {
                    true => (switch.prev_pid, switch.prev_tid),
                    false => (switch.next_pid, switch.next_tid),
                }
            }
            _ => (0, 0),
        }
    }

    /// Whether an element with this writer is about the process.
    fn is_of(&self, process: u32, pid: u32, payload: &[u8]) -> bool {
        let is_of_waker = || {
            self.event.kernel_name() == Some(SCHED_WAKE)
                && Wake::parse(payload).is_some_and(|wake| wake.waker_pid == process)
        };
        pid == process || pid == 0 || is_of_waker()
    }
}

impl Inbox for KernelQueue {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        let Some(event) = EventId::kernel(&stream.sensor) else {
            return;
        };
        self.streams
            .insert(stream.id, KernelStream::new(&stream, event));
    }

    fn element(&mut self, stream: StreamId, _: u64, time: Timestamp, payload: &[u8]) {
        let (process, horizon) = (self.process, self.horizon);
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        stream.last = time;
        let (pid, tid) = stream.writer(payload, process);
        let is_wanted = self.selected.contains(stream.event)
            && process.is_none_or(|process| stream.is_of(process, pid, payload))
            && payload.len() + CPU_BYTES <= DATA_BYTES;
        if !is_wanted {
            return;
        }
        let mut data = [0; DATA_BYTES];
        data[..payload.len()].copy_from_slice(payload);
        data[payload.len()..][..CPU_BYTES].copy_from_slice(&stream.cpu.to_ne_bytes());
        let item = Queued::Event {
            event: stream.event,
            pid,
            tid,
            data,
            length: payload.len() + CPU_BYTES,
        };
        // Its writer was preempted between stamp and publication for longer than the hold-back.
        match time < horizon {
            true => self.push_lost(time, horizon, 1, GapCause::Late),
            false => self.push(time, item),
        }
    }

    fn gap(&mut self, stream: StreamId, _: u64, missed: u64, cause: GapCause) {
        let Some(stream) = self.streams.get(&stream) else {
            return;
        };
        if self.selected.contains(stream.event) {
            let last = stream.last;
            self.push_lost(last, last, missed, cause);
        }
    }

    fn close(&mut self, _: StreamId) {}

    fn complain(&mut self, complaint: SourceError) {
        self.complaint.get_or_insert(complaint.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::kernel::{events, Switch};
    use overhear_event::{
        GapCause, Inbox, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::{KernelQueue, HOLD_BACK};
    use crate::kernel::merged::MergedItem;
    use crate::{EventId, EventTypeSet, LostEvents};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn queue(process: Option<u32>) -> KernelQueue {
        let mut queue = KernelQueue::new(process);
        queue.select(EventTypeSet::KERNEL);
        let open = |queue: &mut KernelQueue, id, cpu, sensor: &str, schema: TypeSchema| {
            let descriptor = StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::Kernel { cpu },
                sensor,
                schema,
            );
            queue.open(Arc::new(descriptor));
        };
        open(&mut queue, 1, 0, "syscall", events::syscall_schema());
        open(&mut queue, 2, 1, "syscall", events::syscall_schema());
        open(&mut queue, 3, 0, "sched_switch", Switch::schema());
        queue
    }

    /// A payload of the sensor syscall.
    fn call(tid: u32, pid: u32) -> Vec<u8> {
        let mut payload = [tid, pid, 39, 1].map(u32::to_ne_bytes).concat();
        payload.resize(24, 0);
        payload
    }

    /// Takes everything: time, process and thread of events; the number and 0 of losses.
    fn taken(queue: &mut KernelQueue) -> Vec<(u64, u32, u32)> {
        let mut all = Vec::new();
        while let Some(item) = queue.take() {
            all.push(match item {
                MergedItem::Event(event) => (event.time.as_monotonic_ns(), event.pid, event.tid),
                MergedItem::Lost(LostEvents { from, missed, .. }) => {
                    (from.as_monotonic_ns(), missed as u32, 0)
                }
            });
        }
        all
    }

    #[test]
    fn events_of_all_cpus_are_in_the_order_of_time_up_to_the_hold_back() {
        let mut queue = queue(None);
        let [first, second] = [1, 2].map(StreamId::from_raw);
        queue.element(first, 0, at(100), &call(7, 7));
        queue.element(first, 1, at(300), &call(8, 7));
        queue.element(second, 0, at(200), &call(9, 9));
        assert_eq!(queue.next_time(), None);
        let horizon = queue.advance(at(200).plus(HOLD_BACK));
        assert_eq!(horizon, at(200));
        assert_eq!(taken(&mut queue), [(100, 7, 7), (200, 9, 9)]);
        queue.element(second, 1, at(250), &call(9, 9));
        queue.advance(at(400).plus(HOLD_BACK));
        assert_eq!(taken(&mut queue), [(250, 9, 9), (300, 7, 8)]);
    }

    #[test]
    fn data_is_the_payload_and_then_the_cpu() {
        let mut queue = queue(None);
        queue.element(StreamId::from_raw(2), 0, at(1), &call(7, 7));
        queue.release_until(at(1));
        let Some(MergedItem::Event(event)) = queue.take() else {
            panic!("no event");
        };
        assert_eq!(event.event, EventId::kernel("syscall").unwrap());
        let expected = [call(7, 7), 1_u32.to_ne_bytes().to_vec()].concat();
        assert_eq!(event.data, expected);
    }

    #[test]
    fn late_events_and_gaps_are_losses() {
        let mut queue = queue(None);
        let [first, second] = [1, 2].map(StreamId::from_raw);
        queue.element(first, 0, at(100), &call(7, 7));
        queue.release_until(at(150));
        queue.element(second, 0, at(140), &call(9, 9));
        queue.gap(first, 1, 5, GapCause::Overwritten);
        queue.element(first, 6, at(160), &call(7, 7));
        queue.release_until(at(200));
        // Both losses are reported at the reader's position, and in order.
        let expected = [(100, 7, 7), (150, 1, 0), (150, 5, 0), (160, 7, 7)];
        assert_eq!(taken(&mut queue), expected);
    }

    #[test]
    fn events_of_children_are_left_out_unless_they_are_traced() {
        for (process, expected) in [(None, 3), (Some(7), 2)] {
            let mut queue = queue(process);
            queue.element(StreamId::from_raw(1), 0, at(1), &call(7, 7));
            queue.element(StreamId::from_raw(1), 1, at(2), &call(8, 8));
            let switch = Switch {
                prev_tid: 8,
                next_tid: 7,
                prev_pid: 8,
                next_pid: 7,
                prev_state: 0,
                flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
                prev_run_ns: 0,
            };
            queue.element(StreamId::from_raw(3), 0, at(3), &switch.to_payload());
            queue.release_until(at(9));
            assert_eq!(taken(&mut queue).len(), expected, "{process:?}");
        }
    }

    #[test]
    fn cleared_queue_has_only_later_events() {
        let mut queue = queue(None);
        queue.element(StreamId::from_raw(1), 0, at(1), &call(7, 7));
        queue.clear(at(5));
        queue.element(StreamId::from_raw(1), 1, at(6), &call(7, 7));
        queue.release_until(at(9));
        assert_eq!(taken(&mut queue), [(6, 7, 7)]);
    }

    #[test]
    fn events_of_types_that_are_not_selected_are_left_out() {
        let mut queue = queue(None);
        let [call_type, futex] = ["syscall", "futex"].map(|name| EventId::kernel(name).unwrap());
        let mut selected = EventTypeSet::EMPTY;
        selected.insert(futex);
        queue.select(selected);
        queue.element(StreamId::from_raw(1), 0, at(1), &call(7, 7));
        queue.gap(StreamId::from_raw(1), 1, 1, GapCause::Kernel);
        queue.release_until(at(9));
        assert_eq!(taken(&mut queue), []);
        selected.insert(call_type);
        queue.select(selected);
        queue.element(StreamId::from_raw(1), 2, at(10), &call(7, 7));
        queue.release_until(at(10).plus(Nanos::from_ns(1)));
        assert_eq!(taken(&mut queue), [(10, 7, 7)]);
    }
}
