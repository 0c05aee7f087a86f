// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SampleRing`]: the buffer between a sampler's thread and a monitor.
//!
//! The ring has the layout of every stream, in memory of this process that is allocated and locked
//! before the first sample. Each entry is the sample with its position in the stream, which counts
//! the samples that were not taken as well. So the reader reports those, and entries that were
//! overwritten, as gaps with their exact numbers.

use std::sync::Arc;

use overhear_event::{
    GapCause, Inbox, Nanos, Source, SourceError, StreamDescriptor, StreamId, Ticks, Timestamp,
};
use overhear_stream::{Geometry, LayoutError, OwnedWords, ReadItem, Reader, SimpleWriter, Words};

/// Bytes of an entry before its sample: the position in the stream.
const POSITION_BYTES: usize = 8;

/// Time for which a ring has room, if its reader sleeps.
const HELD: Nanos = Nanos::from_ns(2_000_000_000);

/// Why a ring could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SampleRingError {
    /// The samples are too large.
    #[error(
        "a sample of {bytes} bytes is too large for a stream; name fewer quantities ({cause})"
    )]
    Layout {
        /// Bytes of a sample.
        bytes: usize,
        /// The limit.
        cause: LayoutError,
    },
}

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize {
    geometry: Geometry,
}

impl RingSize {
    /// The ring of a sampler that takes so many samples in each period, of so many bytes: room for
    /// the samples of 2 s, and for 64.
    ///
    /// # Errors
    /// [`SampleRingError`] if a sample is too large.
    pub fn of(
        payload_bytes: usize,
        period: Nanos,
        samples: usize,
    ) -> Result<Self, SampleRingError> {
        let error = |cause| SampleRingError::Layout {
            bytes: payload_bytes,
            cause,
        };
        let bytes = u32::try_from(payload_bytes + POSITION_BYTES).unwrap_or(u32::MAX);
        let held = HELD.as_ns() / period.as_ns().max(1);
        let held = held.saturating_mul(samples as u64);
        let geometry = Geometry::new(bytes, held.max(64).next_power_of_two());
        Ok(Self {
            geometry: geometry.map_err(error)?,
        })
    }

    /// Bytes that the ring takes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        8 * self.geometry.words() as u64
    }

    /// Samples that it holds.
    #[must_use]
    pub fn samples(self) -> u64 {
        self.geometry.capacity()
    }
}

/// Makes both ends of a ring.
///
/// The memory is touched and, as far as the limit of locked memory permits, locked.
///
/// # Errors
/// [`SampleRingError`] if a sample is too large.
pub fn sample_ring(
    stream: Arc<StreamDescriptor>,
    size: RingSize,
) -> Result<(SampleWriter, SampleSource), SampleRingError> {
    let geometry = size.geometry;
    let words = OwnedWords::zeroed(geometry.words());
    let is_locked = crate::locked::lock(&words);
    let error = |cause| SampleRingError::Layout {
        bytes: geometry.payload_bytes(),
        cause,
    };
    let writer = SimpleWriter::new(words.share(), geometry).map_err(error)?;
    let reader = Reader::from_start(words, geometry).map_err(error)?;
    let entry = vec![0; geometry.payload_bytes()];
    let writer = SampleWriter {
        writer,
        entry,
        next: 0,
        missed: 0,
        is_locked,
    };
    let source = SampleSource {
        reader,
        stream,
        is_open: false,
        sequence: 0,
        lapped: 0,
    };
    Ok((writer, source))
}

/// The sampler's end of a ring.
#[derive(Debug)]
pub struct SampleWriter {
    writer: SimpleWriter<OwnedWords>,
    entry: Vec<u8>,
    // The position of the next sample.
    next: u64,
    // Samples that were not taken since the last write.
    missed: u64,
    is_locked: bool,
}

impl SampleWriter {
    /// Counts samples that were not taken.
    pub fn miss(&mut self, count: u64) {
        self.missed += count;
        self.next += count;
    }

    /// Samples that were not taken since the last write.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Writes a sample.
    ///
    /// # Panics
    /// If it has another size than the ring's entries.
    pub fn write(&mut self, sample: &[u8], now: Timestamp) {
        let (position, payload) = self.entry.split_at_mut(POSITION_BYTES);
        position.copy_from_slice(&self.next.to_ne_bytes());
        payload.copy_from_slice(sample);
        let stamp = Ticks::from_raw(now.as_monotonic_ns());
        self.writer.write(&self.entry, || stamp);
        self.next += 1;
        self.missed = 0;
    }

    /// Bytes of its memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        8 * self.writer.words().len() as u64
    }

    /// Whether the memory is locked, so that no sample waits for a page.
    #[must_use]
    pub const fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// The monitor's end of a ring.
#[derive(Debug)]
pub struct SampleSource {
    reader: Reader<OwnedWords>,
    stream: Arc<StreamDescriptor>,
    is_open: bool,
    // The position of the next sample in the stream, which counts those that were not taken.
    sequence: u64,
    // Samples that were overwritten before they were read, and are not reported yet.
    lapped: u64,
}

impl SampleSource {
    /// The number of the stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream.id
    }

    /// Reports samples that the sampler has not taken after its last one.
    pub fn end(&mut self, missed: u64, inbox: &mut dyn Inbox) {
        self.open(inbox);
        Self::gap(
            self.stream.id,
            &mut self.sequence,
            missed,
            GapCause::Unsampled,
            inbox,
        );
    }

    fn open(&mut self, inbox: &mut dyn Inbox) {
        if !self.is_open {
            inbox.open(Arc::clone(&self.stream));
            self.is_open = true;
        }
    }

    fn gap(id: StreamId, sequence: &mut u64, missed: u64, cause: GapCause, inbox: &mut dyn Inbox) {
        if missed > 0 {
            inbox.gap(id, *sequence, missed, cause);
            *sequence += missed;
        }
    }
}

impl Source for SampleSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        self.open(inbox);
        let id = self.stream.id;
        let (sequence, lapped) = (&mut self.sequence, &mut self.lapped);
        let end = self.reader.published();
        let read = self.reader.poll_until(end, |item| match item {
            ReadItem::Missed { count, .. } => *lapped += count,
            ReadItem::Element(entry) => {
                let (position, payload) = entry.payload.split_at(POSITION_BYTES);
                let position = position.try_into().map_or(0, u64::from_ne_bytes);
                let missed = position.saturating_sub(*sequence);
                let lapped = std::mem::take(lapped).min(missed);
                Self::gap(id, sequence, lapped, GapCause::Overwritten, inbox);
                Self::gap(id, sequence, missed - lapped, GapCause::Unsampled, inbox);
                let time = Timestamp::from_monotonic_ns(entry.stamp.as_raw());
                inbox.element(id, *sequence, time, payload);
                *sequence += 1;
            }
        });
        read.map(drop).map_err(|error| {
            SourceError(format!(
                "the samples of {} cannot be read: {error}",
                self.stream.label()
            ))
        })
    }
}
