// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of the names of user event types, one for all processes of an area.
//!
//! So a name has one number in all processes that are traced into a stream, as the standard
//! demands.

use overhear_stream::sync::Ordering;
use overhear_stream::Words as _;

use super::{Area, AreaLock, NAME_TABLE};
use crate::{EventId, TraceError, EVENT_NAME_MAX, USER_EVENT_MAX};

/// Words of an entry: the length plus one, which is zero until the name is there, and the name.
pub(super) const WORDS: usize = 16;
const NAME_WORDS: usize = EVENT_NAME_MAX / 8;

const _: () = assert!(NAME_WORDS < WORDS);

impl Area {
    pub(super) fn define_unnamed(&self) {
        self.write_name(0, EventId::UNNAMED_NAME.as_bytes());
    }

    /// The name of a user event type that is defined.
    pub(crate) fn user_name(&self, event: EventId) -> Option<Vec<u8>> {
        let index = event.index().checked_sub(EventId::UNNAMED.index())?;
        let entry = self.words.range(NAME_TABLE + index * WORDS, WORDS);
        // SYNC(name)
        let length_untrusted = entry[0].load(Ordering::Acquire).checked_sub(1)?;
        let length = usize::try_from(length_untrusted).ok()?;
        if length > EVENT_NAME_MAX {
            return None;
        }
        let words = entry[1..].iter().take(NAME_WORDS);
        // Relaxed: published by the length, and not changed after.
        let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        Some(bytes.take(length).collect())
    }

    /// The name of any event type: of the standard, of Linux, or of the users.
    pub(crate) fn event_name(&self, event: EventId) -> Option<Vec<u8>> {
        let fixed = event.standard_name().or_else(|| event.kernel_name());
        match fixed {
            Some(name) => Some(name.as_bytes().to_vec()),
            None => self.user_name(event),
        }
    }

    /// The user event type of a name. A new name gets the next free type; when there is none left,
    /// the result is [`EventId::UNNAMED`].
    ///
    /// # Errors
    /// [`TraceError`] `ENAMETOOLONG`.
    pub(crate) fn open_name(&self, name: &[u8]) -> Result<EventId, TraceError> {
        if name.len() > EVENT_NAME_MAX {
            return Err(TraceError::new(
                libc::ENAMETOOLONG,
                format!("the name of an event type has at most {EVENT_NAME_MAX} characters"),
            ));
        }
        if let Some(known) = self.find_name(name) {
            return Ok(known);
        }
        let lock = self.lock()?;
        Ok(self.define(name, &lock))
    }

    fn define(&self, name: &[u8], _lock: &AreaLock<'_>) -> EventId {
        if let Some(known) = self.find_name(name) {
            return known;
        }
        let mut events = (1..USER_EVENT_MAX).filter_map(EventId::user);
        let Some(free) = events.find(|event| self.user_name(*event).is_none()) else {
            return EventId::UNNAMED;
        };
        self.write_name(free.index() - EventId::UNNAMED.index(), name);
        free
    }

    /// Whether a user event type has the name.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        self.find_name(name).is_some()
    }

    fn find_name(&self, name: &[u8]) -> Option<EventId> {
        let mut events = (0..USER_EVENT_MAX).filter_map(EventId::user);
        events.find(|event| self.user_name(*event).is_some_and(|known| known == name))
    }

    fn write_name(&self, index: usize, name: &[u8]) {
        let entry = self.words.range(NAME_TABLE + index * WORDS, WORDS);
        for (word, part) in entry[1..].iter().zip(name.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            // Relaxed: SYNC(name) publishes it.
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        // SYNC(name): a process that loads a length also sees the name stored before it.
        entry[0].store(name.len() as u64 + 1, Ordering::Release);
    }
}
