// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffered executor: a thread with reserved CPU time copies elements from the sensors' rings
//! into private rings, and a best-effort thread evaluates them.
//!
//! It is for updates without a known WCET, of sensors with small rings: no element is missed
//! while the evaluation lags, as long as the private rings hold the backlog. Copying has a WCET, so
//! the copying thread is admitted like a monitor whose only update is a copy. No latency of the
//! evaluation is promised.
//!
//! Each stream has a private ring with the protocol of `overhear-stream`: the copying thread never
//! waits for the other one, it laps it, and the reader counts the missed elements by their
//! sequences. A gap is an entry of the ring, at its position. A separate word has the time up to
//! which all elements have been copied. The evaluating monitor uses it as its current time, so that
//! elements that are stamped and not copied yet are not late.

use std::sync::{Arc, Mutex, PoisonError};

use overhear_admission::DeadlineReservation;
use overhear_event::{
    ClockId, GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, Ticks, Timestamp,
    WriterKind,
};
use overhear_stream::{Geometry, Header, OwnedWords, ReadItem, Reader, SimpleWriter};

use super::deadline::DeadlineRefusal;
use super::periods::Periods;
use crate::clock::{sleep_until, Clock, SystemClock};
use crate::memory;
use crate::scheduler::ReservedThread;

/// Bytes before the payload: kind of the entry, its sequence, number of missed elements.
const LEAD_BYTES: usize = 24;
/// Kind of an entry: an element. A gap has the index of its cause in [`GapCause::ALL`], plus one.
const ELEMENT: u64 = 0;

/// Changes that the copying thread passes to the other one: opened and closed streams, and
/// complaints. The lock is taken for these, never for elements.
#[derive(Debug, Default)]
struct StreamChanges {
    opened: Vec<(Arc<StreamDescriptor>, OwnedWords, Geometry)>,
    closed: Vec<StreamId>,
    complaints: Vec<SourceError>,
}

/// The copying half: an [`Inbox`] for any source.
#[derive(Debug)]
pub struct Copier {
    capacity: u64,
    rings: Vec<(StreamId, SimpleWriter<OwnedWords>, Vec<u8>)>,
    changes: Arc<Mutex<StreamChanges>>,
    horizon: Horizon,
}

/// The evaluating half: a [`Source`] of what was copied.
#[derive(Debug)]
pub struct Copies {
    rings: Vec<Copied>,
    changes: Arc<Mutex<StreamChanges>>,
    horizon: Horizon,
}

/// One stream, read.
#[derive(Debug)]
struct Copied {
    id: StreamId,
    reader: Reader<OwnedWords>,
    // The sequence that follows what was delivered; `None` before the first.
    next: Option<u64>,
    // Entries that were overwritten before they could be read.
    lapped: u64,
    closed: bool,
}

/// Both halves of a buffer with private rings of `capacity` elements, a power of two.
#[must_use]
pub fn buffer(capacity: u64) -> (Copier, Copies) {
    let changes: Arc<Mutex<StreamChanges>> = Arc::default();
    let horizon = Horizon::default();
    let copier = Copier {
        capacity,
        rings: Vec::new(),
        changes: Arc::clone(&changes),
        horizon: horizon.clone(),
    };
    let copies = Copies {
        rings: Vec::new(),
        changes,
        horizon,
    };
    (copier, copies)
}

/// Copies the elements of `source` in the calling thread, with this reservation, once per period,
/// until `go_on` returns false; then once more.
///
/// # Errors
/// [`DeadlineRefusal`] if memory cannot be locked or CPU time is refused; then nothing was copied.
pub fn copy_reserved(
    source: &mut dyn Source,
    copier: &mut Copier,
    reservation: DeadlineReservation,
    mut go_on: impl FnMut() -> bool,
) -> Result<(), DeadlineRefusal> {
    memory::lock().map_err(DeadlineRefusal::Memory)?;
    let reserved = ReservedThread::reserve(reservation, false).map_err(DeadlineRefusal::of)?;
    let mut periods = Periods::new(SystemClock.now(), reservation.period);
    loop {
        sleep_until(periods.due());
        let last = !go_on();
        copier.copy(source, SystemClock.now());
        if last {
            break;
        }
        periods.advance(SystemClock.now());
    }
    drop(reserved);
    Ok(())
}

impl Copier {
    /// Copies all readable elements. `now` is the time just before the call.
    pub fn copy(&mut self, source: &mut dyn Source, now: Timestamp) {
        if let Err(error) = source.poll(self) {
            self.complain(error);
        }
        // Set after the copies: all elements published before this time are in the rings. If the
        // other thread holds the lock, the next round sets it.
        if let Ok(mut far) = self.horizon.0.try_lock() {
            far.copied = now;
        }
    }

    fn record(&self, change: impl FnOnce(&mut StreamChanges)) {
        change(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn write(
        &mut self,
        stream: StreamId,
        time: Timestamp,
        (what, sequence, missed): (u64, u64, u64),
        payload: &[u8],
    ) {
        let found = self.rings.binary_search_by_key(&stream, |(id, ..)| *id);
        let Ok(index) = found else { return };
        let (_, writer, entry) = &mut self.rings[index];
        for (at, word) in [what, sequence, missed].into_iter().enumerate() {
            entry[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        let room = entry.len() - LEAD_BYTES;
        let length = payload.len().min(room);
        entry[LEAD_BYTES..LEAD_BYTES + length].copy_from_slice(&payload[..length]);
        writer.write(entry, || Ticks::from_raw(time.as_monotonic_ns()));
    }
}

impl Inbox for Copier {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        let bytes = LEAD_BYTES as u32 + stream.schema.size();
        let built = Geometry::new(bytes, self.capacity).and_then(|geometry| {
            let words = OwnedWords::zeroed(geometry.words());
            let id = u64::from(stream.id.as_raw());
            Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, id).store(&words);
            Ok((geometry, SimpleWriter::new(words.share(), geometry)?, words))
        });
        let (geometry, writer, words) = match built {
            Ok(built) => built,
            Err(error) => {
                let label = stream.label();
                return self.complain(SourceError(format!("{label} is not copied: {error}")));
            }
        };
        let ring = (stream.id, writer, vec![0; bytes as usize]);
        match self.rings.binary_search_by_key(&stream.id, |(id, ..)| *id) {
            Ok(index) => self.rings[index] = ring,
            Err(index) => self.rings.insert(index, ring),
        }
        self.record(|changes| changes.opened.push((stream, words, geometry)));
    }

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.write(stream, time, (ELEMENT, sequence, 0), payload);
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        let index = GapCause::ALL.iter().position(|known| *known == cause);
        let what = 1 + index.unwrap_or(0) as u64;
        self.write(stream, Timestamp::ZERO, (what, first, missed), &[]);
    }

    fn close(&mut self, stream: StreamId) {
        self.rings.retain(|(id, ..)| *id != stream);
        self.record(|changes| changes.closed.push(stream));
    }

    fn complain(&mut self, complaint: SourceError) {
        self.record(|changes| changes.complaints.push(complaint));
    }
}

impl Copies {
    /// All elements published before this time have been copied. The evaluating monitor uses it as
    /// the time of its rounds. Elements are delivered only after the first non-zero value was read.
    #[must_use]
    pub fn horizon(&self) -> Horizon {
        self.horizon.clone()
    }
}

/// The time up to which elements have been copied.
#[derive(Clone, Debug, Default)]
pub struct Horizon(Arc<Mutex<CopyProgress>>);

#[derive(Debug, Default)]
struct CopyProgress {
    copied: Timestamp,
    // Whether a time was read: before that, elements would be in the reader's future.
    has_copied: bool,
}

impl Horizon {
    /// The begin of the last complete round of copying; [`Timestamp::ZERO`] before the first.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let mut far = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        far.has_copied |= far.copied > Timestamp::ZERO;
        far.copied
    }

    fn has_progress(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .has_copied
    }
}

impl Source for Copies {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if !self.horizon.has_progress() {
            return Ok(());
        }
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = std::mem::take(&mut *changes);
        for (stream, words, geometry) in changes.opened {
            let reader = Reader::from_start(words, geometry);
            let reader = reader.map_err(|error| SourceError(error.to_string()))?;
            self.rings.push(Copied {
                id: stream.id,
                reader,
                next: None,
                lapped: 0,
                closed: false,
            });
            inbox.open(stream);
        }
        for complaint in changes.complaints {
            inbox.complain(complaint);
        }
        for ring in &mut self.rings {
            // Nothing is written after the news of the end.
            ring.closed |= changes.closed.contains(&ring.id);
            ring.deliver(inbox)?;
            if ring.closed {
                inbox.close(ring.id);
            }
        }
        self.rings.retain(|ring| !ring.closed);
        Ok(())
    }
}

impl Copied {
    fn deliver(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let (id, next, lapped) = (self.id, &mut self.next, &mut self.lapped);
        let end = self.reader.published();
        let delivered = self.reader.poll_until(end, |found| match found {
            ReadItem::Missed { count, .. } => *lapped += count,
            ReadItem::Element(entry) => {
                let (head, payload) = entry.payload.split_at(LEAD_BYTES);
                let word = |at: usize| {
                    let bytes = head[8 * at..8 * at + 8].try_into();
                    u64::from_ne_bytes(bytes.unwrap_or_default())
                };
                let (what, sequence, missed) = (word(0), word(1), word(2));
                // Of a stream that began lapped, the entries themselves are all that is known.
                let lost = std::mem::take(lapped);
                let expected = next.unwrap_or(sequence.saturating_sub(lost));
                if lost > 0 {
                    let count = sequence.saturating_sub(expected);
                    inbox.gap(id, expected, count, GapCause::Overwritten);
                }
                if what == ELEMENT {
                    let time = Timestamp::from_monotonic_ns(entry.stamp.as_raw());
                    inbox.element(id, sequence, time, payload);
                    *next = Some(sequence + 1);
                } else {
                    let cause = GapCause::ALL[(what as usize - 1) % GapCause::ALL.len()];
                    inbox.gap(id, sequence, missed, cause);
                    // Refused writes have no place in the stream.
                    let placed =
                        !matches!(cause, GapCause::Nested | GapCause::Full | GapCause::Budget);
                    *next = Some(sequence + if placed { missed } else { 0 });
                }
            }
        });
        let _ = delivered.map_err(|error| SourceError(error.to_string()))?;
        Ok(())
    }
}
