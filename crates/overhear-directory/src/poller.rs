// SPDX-License-Identifier: MIT OR Apache-2.0
//! The epoll instance of the service, and the meaning of its events.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::Timespec;

/// The object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The directory is being dropped.
    Stop,
    /// The listening socket with this index has a connection to accept.
    Listener(u32),
    /// The connection with this number is ready.
    Connection(u32),
    /// The process with this id has ended.
    Process(u32),
    /// The kernel has freed files.
    Freed,
    /// The worker has results.
    Worker,
}

impl Token {
    const fn to_raw(self) -> u64 {
        let (kind, number) = match self {
            Self::Stop => (0, 0),
            Self::Listener(index) => (1, index),
            Self::Connection(number) => (2, number),
            Self::Process(pid) => (3, pid),
            Self::Freed => (4, 0),
            Self::Worker => (5, 0),
        };
        kind << 32 | number as u64
    }

    const fn from_raw(raw: u64) -> Self {
        let number = raw as u32;
        match raw >> 32 {
            1 => Self::Listener(number),
            2 => Self::Connection(number),
            3 => Self::Process(number),
            4 => Self::Freed,
            5 => Self::Worker,
            _ => Self::Stop,
        }
    }
}

/// An epoll instance. A closed descriptor leaves it by itself.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self)
    }

    /// Adds a descriptor that is waited for until it is readable.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> rustix::io::Result<()> {
        let data = EventData::new_u64(token.to_raw());
        epoll::add(&self.0, fd, data, EventFlags::IN)
    }

    /// Removes a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // An error means that it was not in the instance.
        let _ = epoll::delete(&self.0, fd);
    }

    /// Adds a descriptor for one event: readable.
    pub(crate) fn add_once(&self, fd: impl AsFd, token: Token) -> rustix::io::Result<()> {
        let data = EventData::new_u64(token.to_raw());
        epoll::add(&self.0, fd, data, EventFlags::IN | EventFlags::ONESHOT)
    }

    /// Enables one more event: readable, writable, or the end of the peer alone.
    pub(crate) fn rearm(&self, fd: impl AsFd, token: Token, reads: bool, writes: bool) {
        let data = EventData::new_u64(token.to_raw());
        let mut flags = EventFlags::ONESHOT;
        flags.set(EventFlags::IN, reads);
        flags.set(EventFlags::OUT, writes);
        // An error means that it is not in the instance: then its connection is about to be closed.
        let _ = epoll::modify(&self.0, fd, data, flags);
    }

    /// Waits for events until the timeout and returns them.
    pub(crate) fn wait(&self, timeout: Duration) -> Vec<(Token, Ready)> {
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut events = [MaybeUninit::<Event>::uninit(); 1024];
        match epoll::wait(&self.0, &mut events, Some(&timeout)) {
            Ok((found, _)) => found.iter().map(|event| meaning(*event)).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Readiness of a descriptor. The end of the peer makes it readable and writable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) to_read: bool,
    pub(crate) to_write: bool,
}

fn meaning(event: Event) -> (Token, Ready) {
    let Event { flags, data } = event;
    let ends = EventFlags::HUP | EventFlags::ERR;
    let ready = Ready {
        to_read: flags.intersects(EventFlags::IN | ends),
        to_write: flags.intersects(EventFlags::OUT | ends),
    };
    (Token::from_raw(data.u64()), ready)
}
