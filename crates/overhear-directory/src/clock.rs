// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads both clocks, and maintains the clock page.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use overhear_event::{ClockId, Nanos, Ticks, Timestamp};
use overhear_stream::{
    hardware_clock, read_hardware_ticks, ClockFit, ClockPair, Geometry, Header, HeaderUntrusted,
    Reader, Segment, SharedWords, SimpleWriter, WriterKind, CLOCK_PAGE_CAPACITY,
};
use rustix::time::{clock_gettime, ClockId as SystemClock};

use crate::memory::{MapError, Mapping, MemoryFile};

/// Brackets tried for a pair: the narrowest one wins, so an interruption does no harm.
const BRACKETS: usize = 50;
/// Time between the first two pairs.
const FIRST_DISTANCE: Duration = Duration::from_millis(20);

/// The current time.
#[must_use]
pub fn monotonic_now() -> Timestamp {
    let now = clock_gettime(SystemClock::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::from_monotonic_ns(seconds * 1_000_000_000 + nanos)
}

/// The clock that sensors of this machine stamp with: the hardware counter if the CPU calls it
/// invariant and the kernel trusts it as its own clock, else `CLOCK_MONOTONIC`.
#[must_use]
pub fn sensor_clock() -> ClockId {
    let Some(clock) = hardware_clock() else {
        return ClockId::Monotonic;
    };
    if clock == ClockId::ArmCntvct {
        return clock; // The architecture guarantees it.
    }
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(path).unwrap_or_default();
    match source.trim() {
        "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" => clock,
        _ => ClockId::Monotonic,
    }
}

/// Reads both clocks at once, as well as that is possible.
#[must_use]
pub fn best_pair() -> ClockPair {
    let mut best: Option<(u64, Ticks, Timestamp)> = None;
    let mut before = read_hardware_ticks();
    for _ in 0..BRACKETS {
        let time = monotonic_now();
        let after = read_hardware_ticks();
        let width = after.as_raw().wrapping_sub(before.as_raw());
        if best.is_none_or(|(narrowest, ..)| width < narrowest) {
            let middle = Ticks::from_raw(before.as_raw().wrapping_add(width / 2));
            best = Some((width, middle, time));
        }
        before = after;
    }
    let (width, ticks, time) = best.unwrap_or((0, before, monotonic_now()));
    // Counters run at 10 MHz to 5 GHz; without the slope, half the width in ticks is an upper
    // bound of half the width in nanoseconds for every counter above 1 GHz, and for slower ones
    // the bracket is a few ticks wide.
    ClockPair {
        ticks,
        time,
        error: Nanos::from_ns(width / 2 + 1),
    }
}

/// Writes the clock page.
#[derive(Debug)]
pub struct ClockKeeper {
    fit: ClockFit,
    writer: SimpleWriter<SharedWords>,
    file: MemoryFile,
    // Declared last: `writer` points into it and is dropped before it.
    _mapping: Mapping,
}

impl ClockKeeper {
    /// The period at which [`ClockKeeper::tick`] is to be called.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// Measures for 20 ms and publishes the first segment. `None` if sensors stamp with
    /// `CLOCK_MONOTONIC` on this machine: there is nothing to convert.
    ///
    /// # Errors
    /// [`MapError`] if there is no memory for the page.
    pub fn start() -> Result<Option<Self>, MapError> {
        let clock = sensor_clock();
        if clock == ClockId::Monotonic {
            return Ok(None);
        }
        let first = best_pair();
        std::thread::sleep(FIRST_DISTANCE);
        let Some(fit) = ClockFit::begin(first, best_pair()) else {
            return Ok(None);
        };
        let geometry = page_geometry();
        let header = Header::new(&geometry, WriterKind::Simple, clock, 0);
        let initial = [(0, header.to_words().to_vec())];
        let file = MemoryFile::create("overhear-clock", geometry.bytes(), &initial)?;
        let mut keeper = Self::with(fit, file)?;
        let segment = *keeper.fit.current();
        keeper.publish(&segment);
        Ok(Some(keeper))
    }

    /// Continues the page of an earlier directory: its readers see a longer segment, and no other
    /// change. A page without segments, or of another clock, is not continued: a new one is made.
    ///
    /// # Errors
    /// [`MapError`] if the page cannot be mapped.
    pub(crate) fn resume(file: MemoryFile) -> Result<Option<Self>, MapError> {
        let geometry = page_geometry();
        if file.bytes() < geometry.bytes() || sensor_clock() == ClockId::Monotonic {
            return Self::start();
        }
        let page = Arc::new(Mapping::read_only(&file, file.bytes())?);
        let words = page.part(0, page.bytes());
        let header = Header::new(&geometry, WriterKind::Simple, sensor_clock(), 0);
        let known = HeaderUntrusted::load(&words).and_then(|found| found.check(&header));
        let mut published = Vec::new();
        if let (Ok(()), Ok(mut reader)) = (known, Reader::from_oldest(words, geometry)) {
            // After an error the segments read so far are used.
            let _ = reader.poll(usize::MAX, |element| {
                published.extend(Segment::parse(element.stamp, element.payload));
            });
        }
        let Some(fit) = ClockFit::resume(&published) else {
            return Self::start();
        };
        let mut keeper = Self::with(fit, file)?;
        // At once: the process may be killed again soon.
        keeper.tick();
        Ok(Some(keeper))
    }

    fn with(fit: ClockFit, file: MemoryFile) -> Result<Self, MapError> {
        let mapping = Mapping::writable(&file, file.bytes())?;
        // SAFETY: the mapping is a field of the same value, dropped after the writer.
        let words = unsafe { mapping.words() };
        let writer = SimpleWriter::new(words, page_geometry())
            .expect("the page is as large as its own geometry");
        Ok(Self {
            fit,
            writer,
            file,
            _mapping: mapping,
        })
    }

    /// Seals the page against all further writers, also a later directory. For a directory that is
    /// not kept over a restart.
    pub(crate) fn seal(&self) -> Result<(), MapError> {
        self.file.seal()
    }

    /// The page's file, to be stored over a restart: its size is sealed, its contents are not.
    ///
    /// # Errors
    /// [`MapError`] if it cannot be sealed.
    pub(crate) fn keep(&self) -> Result<&MemoryFile, MapError> {
        self.file.seal_size().map(|()| &self.file)
    }

    /// Measures again and publishes the next segment.
    pub fn tick(&mut self) {
        // A segment must be published before it begins. After a stall it is measured again.
        for _ in 0..3 {
            let mut fit = self.fit.clone();
            let segments = fit.observe(best_pair());
            let first = segments[0];
            let new_epoch = first.epoch != self.fit.current().epoch;
            if new_epoch || read_hardware_ticks() < first.from {
                self.fit = fit;
                segments.iter().for_each(|segment| self.publish(segment));
                return;
            }
        }
    }

    fn publish(&mut self, segment: &Segment) {
        self.writer.write(&segment.to_payload(), || segment.from);
    }

    /// The page, for monitors: it can only be read through this descriptor.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub(crate) fn reader(&self) -> Result<OwnedFd, MapError> {
        self.file.reader()
    }

    /// A read-only map of the page.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub(crate) fn map(&self) -> Result<Mapping, MapError> {
        Mapping::read_only(&self.file, self.file.bytes())
    }
}

/// The geometry of every clock page.
pub(crate) fn page_geometry() -> Geometry {
    Geometry::new(Segment::PAYLOAD_BYTES, CLOCK_PAGE_CAPACITY)
        .expect("the constants make a valid geometry")
}
