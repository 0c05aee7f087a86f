// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of streams, and the ranges that they are taken from.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The number of a stream, unique within one monitor and its recordings.
///
/// It is the second key of the total order: two elements with the same time are ordered by it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StreamId(u32);

impl StreamId {
    /// The stream with this number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The number.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Consecutive stream numbers. All sources take the numbers of their streams from such a range.
///
/// The numbers are divided once, here, so that one monitor can read the streams of a directory and
/// streams that it numbers itself, and no two have the same number:
///
/// - [`Self::SESSION`], 1 to 2^30 - 1: a directory's sensors; and before them, in the process that
///   starts the directory, the kernel's streams.
/// - [`Self::LOCAL`], 2^30 to 2^32 - 2: streams of a monitor's own sources, which no directory has.
///
/// ```
/// use overhear_event::StreamIdRange;
///
/// let mut free = StreamIdRange::LOCAL;
/// let kernel = free.take(3).expect("2^30 numbers and more are free");
/// assert_eq!(kernel.first(), StreamIdRange::LOCAL.first());
/// assert_eq!(free.first(), kernel.end());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamIdRange {
    first: u32,
    // The number after the last one.
    end: u32,
}

impl StreamIdRange {
    /// Numbers of a session: the streams of its kernel sensors, then those of its directory.
    pub const SESSION: Self = Self {
        first: 1,
        end: 1 << 30,
    };

    /// Numbers of streams that a monitor adds to those of a directory: no directory gives them out.
    pub const LOCAL: Self = Self {
        first: Self::SESSION.end,
        end: u32::MAX,
    };

    /// The least number.
    #[must_use]
    pub const fn first(self) -> StreamId {
        StreamId(self.first)
    }

    /// The number after the greatest one.
    #[must_use]
    pub const fn end(self) -> StreamId {
        StreamId(self.end)
    }

    /// The numbers of this range from `first` on.
    #[must_use]
    pub const fn starting_at(self, first: StreamId) -> Self {
        let end = self.end;
        let first = match first.0 {
            before if before < self.first => self.first,
            after if after > end => end,
            within => within,
        };
        Self { first, end }
    }

    /// Takes the first `count` numbers out of the range; `None`, and no change, if it has fewer.
    #[must_use]
    pub const fn take(&mut self, count: u32) -> Option<Self> {
        if count > self.end - self.first {
            return None;
        }
        let end = self.first + count;
        let taken = Self {
            first: self.first,
            end,
        };
        self.first = end;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::{StreamId, StreamIdRange};

    #[test]
    fn session_and_local_numbers_are_disjoint() {
        let (session, local) = (StreamIdRange::SESSION, StreamIdRange::LOCAL);
        assert_eq!(session.first(), StreamId::from_raw(1));
        assert!(session.end() <= local.first());
        assert!(local.first() < local.end());
    }

    #[test]
    fn taken_numbers_leave_the_range() {
        let mut free = StreamIdRange { first: 5, end: 9 };
        assert_eq!(free.take(3), Some(StreamIdRange { first: 5, end: 8 }));
        assert_eq!(free.take(2), None);
        assert_eq!(free.take(1), Some(StreamIdRange { first: 8, end: 9 }));
        assert_eq!(free.take(1), None);
        assert_eq!(free.take(u32::MAX), None);
    }

    #[test]
    fn start_is_clamped_to_the_range() {
        let range = StreamIdRange { first: 5, end: 9 };
        let from = |raw| range.starting_at(StreamId::from_raw(raw));
        assert_eq!(from(0), range);
        assert_eq!(from(7), StreamIdRange { first: 7, end: 9 });
        assert_eq!(from(u32::MAX), StreamIdRange { first: 9, end: 9 });
    }
}
