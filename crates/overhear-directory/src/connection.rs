// SPDX-License-Identifier: MIT OR Apache-2.0
//! Somebody who talks to the directory: a program that registers a sensor, or a monitor. What comes of
//! their packets is in `registration` and `audience`.
//!
//! A connection is served in turns. A turn takes one packet, or does a slice of what a packet asked for,
//! or sends a slice of what is new: so its work is bounded whatever the packet says.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::StreamId;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::audience::{Listing, Switching};
use crate::packet::{receive, send, MAX_REQUEST};
use crate::peer::Peer;
use crate::protocol::{Reply, Request};
use crate::quota::{Amounts, Resource};
use crate::registration::Grant;
use crate::registry::{lock, MonitorId, Registry};
use crate::worker::WorkQueue;

/// How long a program may take for a registration, all its packets together, and a monitor for its first.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a connection takes until a monitor has made itself known, and afterwards.
pub(crate) const CONNECTION: Amounts = Amounts::of(Resource::Connections, 1);
const MONITOR: Amounts = Amounts::of(Resource::Monitors, 1);

/// One conversation.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    number: u32,
    peer: Peer,
    // Whether the peer may register sensors; it may always ask.
    pub(crate) may_register: Result<(), String>,
    // None for a monitor: it may be silent as long as it likes. It is never put off.
    deadline: Option<Instant>,
    pub(crate) grant: Option<Grant>,
    // What to hand to monitors to read times with.
    clock: Option<Arc<OwnedFd>>,
    work: Option<Work>,
    /// There is something to read.
    pub(crate) is_readable: bool,
    /// The peer has to read before anything can be sent.
    pub(crate) is_full: bool,
    /// What could not be sent can be sent at the next tick.
    pub(crate) is_later: bool,
    pub(crate) is_attached: bool,
}

/// A request that takes several turns.
#[derive(Debug)]
pub(crate) enum Work {
    List(Listing),
    /// The number of the sensor to go on with.
    Attach(StreamId),
    Switch(Switching),
    Finished(VecDeque<u32>),
    /// The worker prepares the buffer.
    Prepare,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What to do with a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It gets another turn.
    Again,
    /// It gets one when its socket is ready, or something is new.
    Idle,
    /// It gets one when the worker has done its part.
    Wait,
    Close,
}

impl Connection {
    pub(crate) fn new(
        fd: OwnedFd,
        number: u32,
        peer: Peer,
        may_register: Result<(), String>,
        clock: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            fd,
            number,
            peer,
            may_register,
            deadline: Some(Instant::now() + PATIENCE),
            grant: None,
            clock,
            work: None,
            is_readable: false,
            is_full: false,
            is_later: false,
            is_attached: false,
        }
    }

    /// Whether its time is over. Time that the directory itself takes does not count.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let waits = matches!(self.work, Some(Work::Prepare));
        !waits && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether it is a monitor's.
    pub(crate) const fn is_monitor(&self) -> bool {
        self.deadline.is_none()
    }

    pub(crate) const fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) const fn monitor(&self) -> MonitorId {
        MonitorId::Connection(self.number)
    }

    pub(crate) fn clock(&self) -> Option<BorrowedFd<'_>> {
        self.clock.as_ref().map(|clock| clock.as_fd())
    }

    /// From now on it may be silent as long as it likes, if there is room for another monitor.
    pub(crate) fn become_monitor(&mut self, registry: &mut Registry) -> Result<(), String> {
        if self.deadline.is_some() {
            let charged = registry.charge(self.peer.uid, MONITOR);
            charged.map_err(|shortage| shortage.sentence)?;
            registry.release(self.peer.uid, CONNECTION);
            self.deadline = None;
        }
        Ok(())
    }

    /// What it is charged.
    pub(crate) const fn amounts(&self) -> Amounts {
        match self.is_monitor() {
            true => MONITOR,
            false => CONNECTION,
        }
    }

    /// Whether somebody should be asked to read, or to write, before its next turn.
    pub(crate) const fn interest(&self) -> (bool, bool) {
        (self.work.is_none(), self.is_full)
    }

    pub(crate) fn go_on_with(&mut self, work: Work) -> Next {
        let next = match work {
            Work::Prepare => Next::Wait,
            _ if self.is_full || self.is_later => Next::Idle,
            _ => Next::Again,
        };
        self.work = Some(work);
        next
    }

    /// The worker has done its part.
    pub(crate) fn is_prepared(&mut self) {
        self.work = None;
    }

    /// A turn.
    pub(crate) fn serve(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        match self.work.take() {
            Some(Work::List(listing)) => self.list_some(listing, registry),
            Some(Work::Attach(next)) => self.attach_some(next, registry),
            Some(Work::Switch(switching)) => self.switch_some(switching, registry),
            Some(Work::Finished(streams)) => self.finish_some(streams, registry),
            Some(Work::Prepare) => self.go_on_with(Work::Prepare),
            None if std::mem::take(&mut self.is_readable) => self.take_packet(registry, queue),
            None if self.is_attached => self.send_events(registry),
            None => Next::Idle,
        }
    }

    fn take_packet(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        let packet = match receive(&self.fd, MAX_REQUEST, RecvFlags::empty()) {
            Ok((packet, _)) if packet.is_empty() => return Next::Close,
            Ok((packet, _)) => packet,
            Err(Errno::AGAIN) => return Next::Again,
            Err(Errno::MSGSIZE) => {
                let sentence = format!(
                    "its request exceeds {MAX_REQUEST} bytes; use fewer fields or shorter names"
                );
                return self.refuse(registry, "?", &sentence);
            }
            Err(_) => return Next::Close,
        };
        match serde_json::from_slice(&packet) {
            Ok(Request::Register(request)) => self.register(request, registry),
            Ok(Request::Mapped) => self.mapped(registry, queue),
            Ok(Request::Unregister(request)) => self.unregister(&request, registry),
            Ok(Request::List(about)) => self.list(&about, registry),
            Ok(Request::Attach(about)) => self.attach(&about, registry),
            Ok(Request::Switch(switch)) => self.switch(&switch, registry),
            Ok(Request::Finished { streams }) => self.finished(streams),
            Ok(Request::Status { version }) => self.status(version, registry),
            Ok(Request::Unheard { version }) => self.list_unheard(version, registry),
            Err(error) => {
                let sentence = format!("the request is not understood: {error}");
                self.refuse(registry, "?", &sentence)
            }
        }
    }

    /// Says no to a sensor, and remembers it: first in the registry, so that whoever has heard the
    /// refusal finds it counted.
    pub(crate) fn refuse(&self, registry: &Mutex<Registry>, sensor: &str, sentence: &str) -> Next {
        let who = (self.peer.pid, self.peer.uid);
        lock(registry).unheard(who, sensor, sentence);
        self.deny(sentence)
    }

    /// Says no to a monitor.
    pub(crate) fn deny(&self, sentence: &str) -> Next {
        let sentence = sentence.to_string();
        let again = false;
        self.reply(&Reply::Refused { sentence, again }, &[]);
        Next::Close
    }

    /// Sends a reply; false if the other side is gone, or does not read.
    pub(crate) fn reply(&self, reply: &Reply, files: &[BorrowedFd<'_>]) -> bool {
        self.try_reply(reply, files).is_ok()
    }

    pub(crate) fn try_reply(
        &self,
        reply: &Reply,
        files: &[BorrowedFd<'_>],
    ) -> rustix::io::Result<()> {
        let packet = serde_json::to_vec(reply).map_err(|_| Errno::INVAL)?;
        send(&self.fd, &packet, files)
    }
}
