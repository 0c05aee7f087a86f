// SPDX-License-Identifier: MIT OR Apache-2.0
//! Collects elements in an array: the result of a read in C.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use overhear_event::{GapCause, Inbox, SourceError, StreamDescriptor, StreamId, Timestamp};
use overhear_ffi::{CStream, RawKernelEvent, KERNEL_PAYLOAD_WORDS};

/// Maximum number of gaps that one read can report of a stream, in addition to gaps that replace
/// elements of its ring.
const GAPS_PER_STREAM: u64 = 4;

/// A stream as C sees it.
struct Stream {
    c: CStream,
    last: Timestamp,
    max_events: u64,
    label: String,
}

impl Stream {
    fn new(descriptor: &StreamDescriptor) -> Box<Self> {
        Box::new(Self {
            c: CStream::new(descriptor, 0, 0),
            last: Timestamp::ZERO,
            max_events: descriptor.capacity + GAPS_PER_STREAM,
            label: descriptor.label(),
        })
    }
}

/// Collects the items that a monitor delivers, and returns them in total order.
///
/// Its memory is reserved beforehand. It accepts no more items before all collected ones were
/// taken. So a read does not allocate.
#[derive(Default)]
pub(crate) struct Events {
    streams: BTreeMap<StreamId, Box<Stream>>,
    waiting: Vec<RawKernelEvent>,
    /// Number of events in `waiting` that were taken.
    taken: usize,
    /// The first complaint since the last `take_complaint`.
    complaint: Option<String>,
}

impl Events {
    /// Maximum number of events that one read can return, for the open streams.
    pub(crate) fn max_events(&self) -> u64 {
        self.streams.values().map(|stream| stream.max_events).sum()
    }

    /// Reserves memory for `events` events.
    pub(crate) fn reserve(&mut self, events: u64) {
        let events = usize::try_from(events).unwrap_or(usize::MAX);
        self.waiting
            .reserve_exact(events.saturating_sub(self.waiting.len()));
    }

    /// Whether everything was taken, so that more may be delivered.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.waiting.len()
    }

    /// Discards the events that were taken.
    pub(crate) fn begin(&mut self) {
        self.waiting.clear();
        self.taken = 0;
    }

    /// Sorts the collected events into total order. Within a stream that is the order of delivery:
    /// its times do not decrease.
    pub(crate) fn order(&mut self) {
        let key = |event: &RawKernelEvent| {
            // SAFETY: events point to streams of this value, which keeps them.
            let id = unsafe { (*event.stream).id };
            // A gap comes before the element that has its place in the sequence.
            (event.time_ns, id, event.sequence, event.cause == 0)
        };
        self.waiting.sort_unstable_by_key(key);
    }

    /// The next events, at most `most`.
    pub(crate) fn take(&mut self, most: u64) -> &[RawKernelEvent] {
        let left = self.waiting.len() - self.taken;
        let count = usize::try_from(most).unwrap_or(usize::MAX).min(left);
        let first = self.taken;
        self.taken += count;
        &self.waiting[first..self.taken]
    }

    /// A message if a stream's elements are larger than an event. Static probes with many
    /// arguments have such elements.
    pub(crate) fn too_large(&self) -> Option<String> {
        let room = KERNEL_PAYLOAD_WORDS * 8;
        let mut streams = self.streams.values();
        let stream = streams.find(|stream| stream.c.raw().payload_size as usize > room)?;
        let label = &stream.label;
        Some(format!(
            "the elements of {label} have {} bytes, and an event of C has room for {room}; read this monitor in Rust \
             or Python",
            stream.c.raw().payload_size
        ))
    }

    /// Returns the complaint and removes it.
    pub(crate) fn take_complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }
}

impl Inbox for Events {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        self.streams
            .entry(descriptor.id)
            .or_insert_with(|| Stream::new(&descriptor));
    }

    fn element(&mut self, id: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.last = time;
        let mut words = [0; KERNEL_PAYLOAD_WORDS];
        for (word, bytes) in words.iter_mut().zip(payload.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        self.waiting.push(RawKernelEvent {
            stream: ptr::from_ref(stream.c.raw()),
            sequence,
            time_ns: time.as_monotonic_ns(),
            missed: 0,
            cause: 0,
            reserved: 0,
            payload: words,
        });
    }

    fn gap(&mut self, id: StreamId, first: u64, missed: u64, cause: GapCause) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        self.waiting.push(RawKernelEvent {
            stream: ptr::from_ref(stream.c.raw()),
            sequence: first,
            time_ns: stream.last.as_monotonic_ns(),
            missed,
            cause: cause.number(),
            reserved: 0,
            payload: [0; KERNEL_PAYLOAD_WORDS],
        });
    }

    fn close(&mut self, _: StreamId) {}

    fn complain(&mut self, error: SourceError) {
        self.complaint.get_or_insert(error.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Events, GapCause, Inbox, StreamId, Timestamp, KERNEL_PAYLOAD_WORDS};
    use crate::streams::{Hook, Numbering};

    #[test]
    fn every_kernel_payload_fits_an_event() {
        for hook in Hook::SCHED.into_iter().chain(Hook::OPTIONAL) {
            let bytes = hook.schema().size() as usize;
            assert!(bytes <= KERNEL_PAYLOAD_WORDS * 8, "{}", hook.sensor());
        }
        assert!(Hook::Probe.schema().size() as usize <= KERNEL_PAYLOAD_WORDS * 8);
    }

    #[test]
    fn events_without_room_wait_and_gaps_keep_their_place() {
        let numbering = Numbering::new(StreamId::from_raw(3), 2, 1);
        let mut events = Events::default();
        for cpu in 0..2 {
            events.open(numbering.describe(0, &Hook::Wake.feed(8), cpu, 8));
        }
        assert_eq!(events.max_events(), 2 * (8 + 4));
        events.reserve(events.max_events());
        let [one, two] = [3, 4].map(StreamId::from_raw);
        let at = Timestamp::from_monotonic_ns;
        events.element(two, 0, at(50), &[2; 24]);
        events.gap(two, 1, 7, GapCause::Overwritten);
        events.element(two, 8, at(80), &[]);
        events.element(one, 0, at(60), &[1; 24]);
        events.order();
        let story: Vec<_> = [2, 0, 9]
            .into_iter()
            .flat_map(|most| {
                let taken = events.take(most).to_vec();
                taken.into_iter().map(|e| (e.time_ns, e.sequence, e.missed))
            })
            .collect();
        assert_eq!(story, [(50, 0, 0), (50, 1, 7), (60, 0, 0), (80, 8, 0)]);
        assert!(events.is_empty());
    }
}
