// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a stream.

use crate::EventTypeSet;

/// The policy of a full stream: the attribute stream-full-policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFullPolicy {
    /// The oldest events are replaced. The default without a log.
    Loop,
    /// The stream stops, and starts again when it has been read.
    UntilFull,
    /// As `UntilFull`, and the stream is flushed to its log regularly. The default with a log.
    Flush,
}

/// The policy of a full log: the attribute log-full-policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogFullPolicy {
    /// The oldest events are replaced.
    #[default]
    Loop,
    /// The log and its stream stop.
    UntilFull,
    /// The log has no limit.
    Append,
}

/// Whether children of a traced process are traced: the attribute inheritance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Inheritance {
    /// They are not.
    #[default]
    CloseForChild,
    /// They are traced into the same stream.
    Inherited,
}

/// The attributes with which a stream is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The name, less than `TRACE_NAME_MAX` bytes without a zero byte.
    pub name: Vec<u8>,
    /// Time of creation in nanoseconds of `CLOCK_REALTIME`; 0 before the creation.
    pub creation_ns: u64,
    /// Resolution of time stamps in nanoseconds.
    pub clock_resolution_ns: u64,
    /// Maximum bytes of data of a user event: max-data-size.
    pub max_data_size: usize,
    /// Bytes for the events of the stream, at least: stream-min-size.
    pub stream_size: usize,
    /// The policy of a full stream; `None` is the default, which depends on whether there is a log.
    pub stream_full: Option<StreamFullPolicy>,
    /// Whether children are traced.
    pub inheritance: Inheritance,
    /// Maximum bytes of events in the log: log-max-size.
    pub log_size: usize,
    /// The policy of a full log.
    pub log_full: LogFullPolicy,
}

/// Maximum number of characters of the name of a stream and of the version, with the end:
/// `TRACE_NAME_MAX`.
pub const NAME_MAX: usize = 64;
/// The attribute generation-version.
pub const GENERATION_VERSION: &str = concat!("Overhear ", env!("CARGO_PKG_VERSION"));

/// Bytes of an event in a ring, without its data.
const EVENT_HEADER_BYTES: usize = 48;
/// Bytes of the longest data of a system event of the standard: the two filters of
/// `POSIX_TRACE_FILTER`.
const SYSTEM_DATA_BYTES: usize = 2 * size_of::<EventTypeSet>();

const _: () = assert!(GENERATION_VERSION.len() < NAME_MAX);

impl Attributes {
    /// Maximum bytes of data of any event of the stream.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        Self::data_bytes_of(self.max_data_size)
    }

    /// Maximum bytes of data of any event of a stream with this max-data-size.
    #[inline(always)]
    pub(crate) const fn data_bytes_of(max_data_size: usize) -> usize {
        if max_data_size > SYSTEM_DATA_BYTES {
            max_data_size
        } else {
            SYSTEM_DATA_BYTES
        }
    }

    /// Bytes that an event takes of the stream size, whatever the length of its data: a slot of the
    /// ring. `None` if that is more than the memory.
    #[must_use]
    pub fn event_bytes(&self) -> Option<usize> {
        let bytes = self.data_bytes().checked_add(EVENT_HEADER_BYTES)?;
        bytes.checked_next_multiple_of(8)
    }

    /// The name as a stream keeps it: up to a zero byte, cut to fit [`NAME_MAX`].
    #[must_use]
    pub fn fitting_name(name: &[u8]) -> &[u8] {
        let end = name.iter().position(|byte| *byte == 0);
        let name = &name[..end.unwrap_or(name.len())];
        &name[..name.len().min(NAME_MAX - 1)]
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            name: Vec::new(),
            creation_ns: 0,
            clock_resolution_ns: 1,
            max_data_size: 80,
            stream_size: 1 << 20,
            stream_full: None,
            inheritance: Inheritance::default(),
            log_size: 64 << 20,
            log_full: LogFullPolicy::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_little_data_leave_room_for_both_filters() {
        let sized = |max_data_size| {
            let attributes = Attributes {
                max_data_size,
                ..Attributes::default()
            };
            attributes.event_bytes()
        };
        assert_eq!(sized(0), Some(48 + 80));
        assert_eq!(sized(80), Some(48 + 80));
        assert_eq!(sized(81), Some(48 + 88));
        assert_eq!(sized(usize::MAX), None);
        assert_eq!(sized(usize::MAX - 50), None);
    }

    #[test]
    fn names_are_cut_to_fit() {
        assert_eq!(Attributes::fitting_name(b"a\0b"), b"a");
        assert_eq!(Attributes::fitting_name(&[b'x'; 63]).len(), 63);
        assert_eq!(Attributes::fitting_name(&[b'x'; 64]).len(), 63);
    }
}
