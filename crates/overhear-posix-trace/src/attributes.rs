// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a stream.

/// What happens when a stream is full: the attribute stream-full-policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFullPolicy {
    /// The oldest events are replaced. The default without a log.
    Loop,
    /// The stream stops, and starts again when it has been read.
    UntilFull,
    /// As `UntilFull`, and the stream is flushed to its log regularly. The default with a log.
    Flush,
}

/// What happens when a log is full: the attribute log-full-policy.
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
    /// Most bytes of data of a user event.
    pub max_data_size: usize,
    /// Bytes for the events of the stream, at least: stream-min-size.
    pub stream_size: usize,
    /// The policy of a full stream; `None` chooses by whether there is a log.
    pub stream_full: Option<StreamFullPolicy>,
    /// Whether children are traced.
    pub inheritance: Inheritance,
    /// Most bytes of events in the log: log-max-size.
    pub log_size: usize,
    /// The policy of a full log.
    pub log_full: LogFullPolicy,
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
