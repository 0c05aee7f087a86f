// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pre-recorded stream: a log that was opened.

use std::os::fd::BorrowedFd;

use crate::log::{LogItem, LogReader};
use crate::{Attributes, EventId, StreamStatus, TraceError, TraceEvent};

/// A log, at its next event.
#[derive(Debug)]
pub(crate) struct Prerecorded {
    reader: LogReader,
    /// The event type that `eventtypelist_getnext_id` gives next.
    listed: u32,
}

impl Prerecorded {
    /// Opens the log of a file descriptor.
    ///
    /// # Errors
    /// [`TraceError`]: `EBADF`, `EINVAL` if it is no log, `EINTR`.
    pub(crate) fn open(file: BorrowedFd<'_>) -> Result<Self, TraceError> {
        let file = file.try_clone_to_owned();
        let file = file.map_err(|error| TraceError::new(libc::EBADF, error))?;
        Ok(Self {
            reader: LogReader::open(file)?,
            listed: 1,
        })
    }

    /// The log.
    pub(crate) const fn log(&mut self) -> &mut LogReader {
        &mut self.reader
    }

    /// The attributes of the stream.
    pub(crate) fn attributes(&self) -> &Attributes {
        &self.reader.header().attributes
    }

    /// The status of the completed stream.
    pub(crate) fn status(&self) -> StreamStatus {
        let status = self.reader.status();
        StreamStatus {
            running: status.running,
            full: status.full,
            overrun: status.overrun,
            flushing: false,
            flush_error: status.flush_error,
            log_full: status.log_full,
            log_overrun: status.log_overrun,
        }
    }

    /// Calls `read` with the next event and the offset of its time to `CLOCK_REALTIME`. Losses are
    /// in the log as events, too. `None` at the end.
    ///
    /// # Errors
    /// [`TraceError`]: errors of the descriptor, `EINTR`.
    pub(crate) fn next_event<R>(
        &mut self,
        read: impl FnOnce(TraceEvent<'_>, i64) -> R,
    ) -> Result<Option<R>, TraceError> {
        let offset = self.reader.header().realtime_offset_ns;
        loop {
            match self.reader.next()? {
                Some(LogItem::Event(event)) => return Ok(Some(read(event, offset))),
                Some(LogItem::Lost(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// Goes to the first event.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the descriptor is of no regular file.
    pub(crate) fn rewind(&mut self) -> Result<(), TraceError> {
        Ok(self.reader.rewind()?)
    }

    /// The name of an event type.
    pub(crate) fn event_name(&self, event: EventId) -> Option<Vec<u8>> {
        let names = self.reader.names();
        let recorded = names.iter().find(|(known, _)| *known == event);
        // A log that was not completed may not have the names that are always the same.
        let standard = || event.standard_name().map(|name| name.as_bytes().to_vec());
        recorded.map(|(_, name)| name.clone()).or_else(standard)
    }

    /// The next event type of the list of those that have a name.
    pub(crate) fn next_event_type(&mut self) -> Option<EventId> {
        let mut rest = (self.listed..EventId::COUNT as u32).filter_map(EventId::from_raw);
        let next = rest.find(|event| self.event_name(*event).is_some())?;
        self.listed = next.as_raw() + 1;
        Some(next)
    }

    /// Begins the list of event types again.
    pub(crate) fn rewind_event_types(&mut self) {
        self.listed = 1;
    }
}
