// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages in parts: sensor output of variable size, rejoined.

use std::collections::BTreeMap;

use overhear_event::parts::{PartLayout, Rejoined, Rejoiner, WRITER_BYTES};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, StreamId, Timestamp};

/// Largest number of threads of a stream whose messages are incomplete at a time: the numbers of
/// threads come from another process.
const MOST_WRITERS: usize = 1024;

/// Rejoins the messages of all streams whose elements are parts, and hands each to a closure: the
/// stream, the time of the last part (of a lost message: when the loss was known), and the message
/// or the number of lost messages.
///
/// In streams of laned and concurrent sensors the parts of several threads mix. Each thread numbers
/// its own messages, and the writer in each element separates the parts.
#[derive(Debug)]
pub struct Messages<F> {
    found: F,
    /// `None` for streams whose elements are no parts.
    streams: BTreeMap<StreamId, Option<Parts>>,
}

/// The messages of one stream.
#[derive(Debug)]
struct Parts {
    layout: PartLayout,
    /// Offset of the part in the payload.
    lead: usize,
    from_start: bool,
    /// By writing thread; 0 if elements do not name it.
    writers: BTreeMap<u32, Rejoiner>,
    /// Counters of writers that were removed to make room.
    lost: u64,
    rejected_corrupt: u64,
}

impl Parts {
    /// `first` is the first known position of the stream.
    fn of(stream: &StreamDescriptor, first: u64) -> Option<Self> {
        let alone = PartLayout::of(&stream.schema).map(|layout| (layout, 0));
        let among = || {
            Some((
                PartLayout::of_writers(&stream.schema)?,
                WRITER_BYTES as usize,
            ))
        };
        let (layout, lead) = alone.or_else(among)?;
        Some(Self {
            layout,
            lead,
            from_start: first == 0,
            writers: BTreeMap::new(),
            lost: 0,
            rejected_corrupt: 0,
        })
    }

    fn part(&mut self, payload: &[u8], mut found: impl FnMut(Rejoined<'_>)) {
        let Some((lead, part)) = payload.split_at_checked(self.lead) else {
            self.rejected_corrupt += 1;
            return;
        };
        let writer = lead.first_chunk().map_or(0, |tid| u32::from_ne_bytes(*tid));
        if !self.writers.contains_key(&writer) && self.writers.len() >= MOST_WRITERS {
            if let Some((_, mut gone)) = self.writers.pop_first() {
                gone.interrupted(&mut found);
                self.lost = self.lost.saturating_add(gone.lost());
                self.rejected_corrupt += gone.rejected_corrupt();
            }
        }
        let (layout, from_start) = (self.layout, self.from_start);
        let rejoiner = self
            .writers
            .entry(writer)
            .or_insert_with(|| match from_start {
                true => Rejoiner::from_start(layout),
                false => Rejoiner::from_now(layout),
            });
        rejoiner.part(part, found);
    }

    fn interrupted(&mut self, mut found: impl FnMut(Rejoined<'_>)) {
        for rejoiner in self.writers.values_mut() {
            rejoiner.interrupted(&mut found);
        }
    }

    fn lost(&self) -> u64 {
        let lost = self.writers.values().map(Rejoiner::lost);
        lost.fold(self.lost, u64::saturating_add)
    }

    fn rejected_corrupt(&self) -> u64 {
        let rejected = self.writers.values().map(Rejoiner::rejected_corrupt);
        rejected.fold(self.rejected_corrupt, u64::saturating_add)
    }
}

impl<F: FnMut(&StreamDescriptor, Timestamp, Rejoined<'_>)> Messages<F> {
    /// Hands every finding to `found`.
    pub const fn new(found: F) -> Self {
        Self {
            found,
            streams: BTreeMap::new(),
        }
    }

    /// Messages of all streams of which a part was missed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let streams = self.streams.values().flatten();
        streams.map(Parts::lost).fold(0, u64::saturating_add)
    }

    /// Parts that contradict themselves or the parts before them.
    #[must_use]
    pub fn rejected_corrupt(&self) -> u64 {
        let streams = self.streams.values().flatten();
        streams
            .map(Parts::rejected_corrupt)
            .fold(0, u64::saturating_add)
    }

    /// The observation ends: an incomplete message is lost.
    pub fn finish(&mut self, streams: &[&StreamDescriptor], now: Timestamp) {
        for stream in streams {
            if let Some(Some(parts)) = self.streams.get_mut(&stream.id) {
                parts.interrupted(|what| (self.found)(stream, now, what));
            }
        }
    }
}

impl<F: FnMut(&StreamDescriptor, Timestamp, Rejoined<'_>)> Analysis for Messages<F> {
    fn element(&mut self, element: &ElementView<'_>) {
        let (stream, time) = (element.stream, element.time);
        let known = self.streams.entry(stream.id);
        if let Some(parts) = known.or_insert_with(|| Parts::of(stream, element.sequence)) {
            parts.part(element.payload, |what| (self.found)(stream, time, what));
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let known = self.streams.entry(stream.id);
        if let Some(parts) = known.or_insert_with(|| Parts::of(stream, gap.first)) {
            parts.interrupted(|what| (self.found)(stream, gap.to, what));
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use overhear_event::parts::{PartLayout, Rejoined};
    use overhear_event::{Analysis, ElementView, Origin, StreamDescriptor, StreamId, Timestamp};

    use super::{Messages, MOST_WRITERS};

    fn stream(layout: PartLayout) -> StreamDescriptor {
        let schema = layout.schema("log").unwrap().with_writer().unwrap();
        StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::Kernel { cpu: 0 },
            "log",
            schema,
        )
    }

    /// The parts of a message as elements of a thread.
    fn elements(layout: PartLayout, tid: u32, message: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        let (mut all, mut payload) = (Vec::new(), vec![0; layout.payload_bytes()]);
        let written = layout.split(message, bytes, &mut payload, |part| {
            all.push([&tid.to_ne_bytes()[..], &[0; 4], part].concat());
        });
        written.unwrap();
        all
    }

    /// Messages, or numbers of lost ones.
    type Found = (Vec<(u64, Vec<u8>)>, Vec<u64>);

    /// Hands these elements to `Messages`; returns its findings and its counters.
    fn found(layout: PartLayout, elements: &[Vec<u8>]) -> (Found, u64, u64) {
        let stream = stream(layout);
        let mut found = Found::default();
        let mut messages = Messages::new(|_: &_, _, what: Rejoined<'_>| match what {
            Rejoined::Message { number, bytes } => found.0.push((number, bytes.to_vec())),
            Rejoined::Lost { first, count } => found.1.extend(first..first + count),
        });
        for (sequence, payload) in (0..).zip(elements) {
            messages.element(&ElementView {
                stream: &stream,
                sequence,
                time: Timestamp::from_monotonic_ns(sequence),
                payload,
            });
        }
        messages.finish(&[&stream], Timestamp::from_monotonic_ns(1_000_000));
        let counts = (messages.lost(), messages.rejected_corrupt());
        drop(messages);
        (found, counts.0, counts.1)
    }

    #[test]
    fn messages_of_several_threads_are_separated() {
        let layout = PartLayout::new(4).unwrap();
        let one = elements(layout, 7, 0, b"of thread seven");
        let other = elements(layout, 8, 0, b"and of eight");
        let mut mixed = Vec::new();
        for index in 0..4 {
            mixed.extend(one.get(index).cloned());
            mixed.extend(other.get(index).cloned());
        }
        mixed.extend(elements(layout, 8, 1, b"on"));
        let (all, lost, corrupt) = found(layout, &mixed);
        let expected = [
            (0, &b"and of eight"[..]),
            (0, b"of thread seven"),
            (1, b"on"),
        ];
        let expected = expected.map(|(number, bytes)| (number, bytes.to_vec()));
        let mut whole = all.0.clone();
        whole.sort_unstable();
        assert_eq!(whole, expected);
        assert_eq!((all.1.len(), lost, corrupt), (0, 0, 0));
        // A missing part loses only the message of its thread.
        mixed.remove(2);
        let (all, lost, corrupt) = found(layout, &mixed);
        assert_eq!(all.0.len(), 2);
        assert_eq!((all.1, lost, corrupt), (vec![0], 1, 0));
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_writers() {
        let layout = PartLayout::new(4).unwrap();
        let most = u32::try_from(MOST_WRITERS).unwrap();
        let begun: Vec<_> = (1..=most + 5)
            .map(|tid| elements(layout, tid, 0, b"never whole").remove(0))
            .collect();
        let (all, lost, corrupt) = found(layout, &begun);
        assert_eq!((all.0.len(), corrupt), (0, 0));
        assert_eq!((lost, all.1.len() as u64), (u64::from(most) + 5, lost));
    }
}
