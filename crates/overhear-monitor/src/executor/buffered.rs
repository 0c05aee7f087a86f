// SPDX-License-Identifier: MIT OR Apache-2.0
//! The buffered executor: a thread with reserved CPU time copies elements out of the sensors' rings into
//! private ones, and a thread of best effort evaluates them from there.
//!
//! For evaluations without a known WCET, of sensors whose rings are small: nothing is missed while the
//! evaluation lags behind, as long as the private rings hold what it lags by. Copying has a WCET, so the
//! copying thread can be admitted like any monitor whose only update costs a copy; no latency of the
//! evaluation is promised.
//!
//! Each stream has a private ring of its own, written and read by the protocol of `overhear-stream`, so
//! that the copying thread never waits for the other one: it laps it, and the reader counts exactly what
//! it missed, by the sequences. A gap travels as an element, at its place. How far the copies go stands
//! beside the rings: the reader's monitor takes it for the time, because what was stamped before and is
//! not copied yet is not late.

use std::sync::{Arc, Mutex, PoisonError};

use overhear_admission::DeadlineReservation;
use overhear_event::{
    ClockId, GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, Ticks, Timestamp,
    WriterKind,
};
use overhear_stream::{Found, Geometry, Header, OwnedWords, Reader, SimpleWriter};

use super::deadline::DeadlineRefusal;
use super::periods::Periods;
use crate::clock::{sleep_until, Clock, SystemClock};
use crate::memory;
use crate::scheduler::ReservedThread;

/// Bytes before the payload: what it is, its sequence, and how many were missed.
const HEAD_BYTES: usize = 24;
/// What it is: an element, or one more than the place of a cause in [`GapCause::ALL`].
const ELEMENT: u64 = 0;

/// What the copying thread tells the other one: streams that were opened and closed, and complaints.
/// The lock is taken for these alone, never for elements.
#[derive(Debug, Default)]
struct News {
    opened: Vec<(Arc<StreamDescriptor>, OwnedWords, Geometry)>,
    closed: Vec<StreamId>,
    complaints: Vec<SourceError>,
}

/// The copying half: an [`Inbox`] for any source.
#[derive(Debug)]
pub struct Copier {
    capacity: u64,
    rings: Vec<(StreamId, SimpleWriter<OwnedWords>, Vec<u8>)>,
    news: Arc<Mutex<News>>,
    horizon: Horizon,
}

/// The evaluating half: a [`Source`] of what was copied.
#[derive(Debug)]
pub struct Copies {
    rings: Vec<Copied>,
    news: Arc<Mutex<News>>,
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
    let news: Arc<Mutex<News>> = Arc::default();
    let horizon = Horizon::default();
    let copier = Copier {
        capacity,
        rings: Vec::new(),
        news: Arc::clone(&news),
        horizon: horizon.clone(),
    };
    let copies = Copies {
        rings: Vec::new(),
        news,
        horizon,
    };
    (copier, copies)
}

/// Copies what `source` delivers, in the calling thread, on this reservation, once per period, until
/// `go_on` says no; then for the last time.
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
    /// Copies what can be read now. `now` is the time just before the call.
    pub fn copy(&mut self, source: &mut dyn Source, now: Timestamp) {
        if let Err(error) = source.poll(self) {
            self.complain(error);
        }
        // Whoever sees this time finds in the rings what was published before it. Where the other thread
        // is just looking, the next round tells it.
        if let Ok(mut far) = self.horizon.0.try_lock() {
            far.copied = now;
        }
    }

    fn tell(&self, tell: impl FnOnce(&mut News)) {
        tell(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn write(
        &mut self,
        stream: StreamId,
        time: Timestamp,
        (what, sequence, missed): (u64, u64, u64),
        payload: &[u8],
    ) {
        let found = self.rings.binary_search_by_key(&stream, |(id, ..)| *id);
        let Ok(place) = found else { return };
        let (_, writer, entry) = &mut self.rings[place];
        for (at, word) in [what, sequence, missed].into_iter().enumerate() {
            entry[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        let room = entry.len() - HEAD_BYTES;
        let length = payload.len().min(room);
        entry[HEAD_BYTES..HEAD_BYTES + length].copy_from_slice(&payload[..length]);
        writer.write(entry, || Ticks::from_raw(time.as_monotonic_ns()));
    }
}

impl Inbox for Copier {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        let bytes = HEAD_BYTES as u32 + stream.schema.size();
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
            Ok(place) => self.rings[place] = ring,
            Err(place) => self.rings.insert(place, ring),
        }
        self.tell(|news| news.opened.push((stream, words, geometry)));
    }

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.write(stream, time, (ELEMENT, sequence, 0), payload);
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        let place = GapCause::ALL.iter().position(|known| *known == cause);
        let what = 1 + place.unwrap_or(0) as u64;
        self.write(stream, Timestamp::ZERO, (what, first, missed), &[]);
    }

    fn close(&mut self, stream: StreamId) {
        self.rings.retain(|(id, ..)| *id != stream);
        self.tell(|news| news.closed.push(stream));
    }

    fn complain(&mut self, complaint: SourceError) {
        self.tell(|news| news.complaints.push(complaint));
    }
}

impl Copies {
    /// Everything published before this time has been copied: what the reading monitor takes for the
    /// time of its rounds. Before it has been asked, and there is an answer, nothing is delivered.
    #[must_use]
    pub fn horizon(&self) -> Horizon {
        self.horizon.clone()
    }
}

/// How far the copies go.
#[derive(Clone, Debug, Default)]
pub struct Horizon(Arc<Mutex<Far>>);

#[derive(Debug, Default)]
struct Far {
    copied: Timestamp,
    // Whether anybody was told: before that, elements would lie in the future of who reads them.
    told: bool,
}

impl Horizon {
    /// The begin of the last complete round of copying; [`Timestamp::ZERO`] before the first.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let mut far = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        far.told |= far.copied > Timestamp::ZERO;
        far.copied
    }

    fn was_told(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).told
    }
}

impl Source for Copies {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if !self.horizon.was_told() {
            return Ok(());
        }
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        let news = std::mem::take(&mut *news);
        for (stream, words, geometry) in news.opened {
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
        for complaint in news.complaints {
            inbox.complain(complaint);
        }
        for ring in &mut self.rings {
            // Nothing is written after the news of the end.
            ring.closed |= news.closed.contains(&ring.id);
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
            Found::Missed { count, .. } => *lapped += count,
            Found::Element(entry) => {
                let (head, payload) = entry.payload.split_at(HEAD_BYTES);
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
                    let placed = !matches!(cause, GapCause::Nested | GapCause::Full);
                    *next = Some(sequence + if placed { missed } else { 0 });
                }
            }
        });
        let _ = delivered.map_err(|error| SourceError(error.to_string()))?;
        Ok(())
    }
}
