// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's connection: a program that registers a sensor, or a monitor. Their requests are
//! processed in `program_requests` and `monitor_requests`.
//!
//! A connection is served in turns. A turn takes one packet, or processes a slice of a request, or
//! sends a slice of the pending events: so its work is bounded, whatever the packet contains.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::StreamId;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::monitor_requests::{BudgetProgress, ListProgress, SwitchProgress};
use crate::packet::{discard, peek, receive, send, MAX_REQUEST};
use crate::peer::Peer;
use crate::program_requests::Grant;
use crate::protocol::{Reply, Request, VERSION};
use crate::quota::{Amounts, Resource};
use crate::registry::{lock, MonitorId, Registry};
use crate::trace_area::AreaListProgress;
use crate::worker::WorkQueue;

/// Time that a program has for all packets of a registration, and a monitor for its first packet.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The charge of a connection until its first request as a monitor. Then [`MONITOR`] replaces it.
pub(crate) const CONNECTION: Amounts = Amounts::of(Resource::Connections, 1);
const MONITOR: Amounts = Amounts::of(Resource::Monitors, 1);

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    number: u32,
    peer: Peer,
    // Whether the peer may register sensors, or the refusal. Requests of monitors need no
    // permission.
    pub(crate) may_register: Result<(), String>,
    // When the connection is closed; never extended. None for a monitor.
    deadline: Option<Instant>,
    pub(crate) grant: Option<Grant>,
    // The clock page, which monitors get to convert stamps.
    clock: Option<Arc<OwnedFd>>,
    work: Option<Work>,
    /// The socket is readable.
    pub(crate) is_readable: bool,
    /// The socket is full: the peer has to read first.
    pub(crate) is_full: bool,
    /// A packet could not be sent and is retried at the next tick.
    pub(crate) is_later: bool,
    pub(crate) is_attached: bool,
}

/// A request that needs several turns.
#[derive(Debug)]
pub(crate) enum Work {
    List(ListProgress),
    ListAreas(AreaListProgress),
    /// The number of the next sensor.
    Attach(StreamId),
    Switch(SwitchProgress),
    Budget(BudgetProgress),
    Finished(VecDeque<u32>),
    /// The worker is preparing the buffer.
    Prepare,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How a connection is scheduled after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It gets another turn at once.
    Again,
    /// It gets a turn when its socket is ready, or an event is pending.
    Idle,
    /// It gets a turn when the worker is done.
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
            deadline: Some(Instant::now() + HANDSHAKE_TIMEOUT),
            grant: None,
            clock,
            work: None,
            is_readable: false,
            is_full: false,
            is_later: false,
            is_attached: false,
        }
    }

    /// Whether its deadline has passed. While the worker prepares its buffer it has no deadline.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let waits = matches!(self.work, Some(Work::Prepare));
        !waits && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether it belongs to a monitor.
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

    /// Makes it a monitor's connection, without a deadline, if the quotas permit another monitor.
    pub(crate) fn become_monitor(&mut self, registry: &mut Registry) -> Result<(), String> {
        if self.deadline.is_some() {
            let charged = registry.charge(self.peer.uid, MONITOR);
            charged.map_err(|shortage| shortage.message)?;
            registry.release(self.peer.uid, CONNECTION);
            self.deadline = None;
        }
        Ok(())
    }

    /// The amounts that its user is charged for it.
    pub(crate) const fn amounts(&self) -> Amounts {
        match self.is_monitor() {
            true => MONITOR,
            false => CONNECTION,
        }
    }

    /// Whether its next turn waits for the socket to become readable, or writable.
    pub(crate) const fn interest(&self) -> (bool, bool) {
        (self.work.is_none(), self.is_full)
    }

    pub(crate) fn continue_with(&mut self, work: Work) -> Next {
        let next = match work {
            Work::Prepare => Next::Wait,
            _ if self.is_full || self.is_later => Next::Idle,
            _ => Next::Again,
        };
        self.work = Some(work);
        next
    }

    /// The worker has prepared the buffer.
    pub(crate) fn is_prepared(&mut self) {
        self.work = None;
    }

    /// Serves one turn.
    pub(crate) fn serve(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        match self.work.take() {
            Some(Work::List(listing)) => self.list_slice(listing, registry),
            Some(Work::ListAreas(listing)) => self.area_list_slice(listing, registry),
            Some(Work::Attach(next)) => self.attach_slice(next, registry),
            Some(Work::Switch(switching)) => self.switch_slice(switching, registry),
            Some(Work::Finished(streams)) => self.finish_slice(streams, registry),
            Some(Work::Budget(budget)) => self.budget_slice(budget, registry),
            Some(Work::Prepare) => self.continue_with(Work::Prepare),
            None if std::mem::take(&mut self.is_readable) => self.take_packet(registry, queue),
            None if self.is_attached => self.send_events(registry),
            None => Next::Idle,
        }
    }

    /// Whether the peer speaks this version of the protocol.
    pub(crate) fn check_version(version: u32) -> Result<(), String> {
        match version {
            VERSION => Ok(()),
            _ => Err(format!(
                "the peer speaks version {version} of the protocol, this directory version \
                 {VERSION}"
            )),
        }
    }

    fn take_packet(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        let packet = match peek(&self.fd, MAX_REQUEST) {
            Ok(packet) if packet.is_empty() => return Next::Close,
            Ok(packet) => packet,
            Err(Errno::AGAIN) => return Next::Again,
            Err(Errno::MSGSIZE) => {
                let message = format!(
                    "its request exceeds {MAX_REQUEST} bytes; use fewer fields or shorter names"
                );
                return self.refuse(registry, "?", &message);
            }
            Err(_) => return Next::Close,
        };
        let request = serde_json::from_slice(&packet);
        // Files are accepted with this request alone. With all others the kernel drops them.
        let files = match &request {
            Ok(Request::PublishArea { .. }) if lock(registry).file_closer.is_available() => {
                match receive(&self.fd, MAX_REQUEST, RecvFlags::empty()) {
                    Ok((_, files)) => files,
                    Err(_) => return Next::Close,
                }
            }
            Ok(Request::PublishArea { .. }) => return self.turn_away(),
            _ => match discard(&self.fd) {
                Ok(()) => Vec::new(),
                Err(_) => return Next::Close,
            },
        };
        match request {
            Ok(Request::Register(request)) => self.register(request, registry),
            Ok(Request::Mapped) => self.mapped(registry, queue),
            Ok(Request::Unregister(request)) => self.unregister(&request, registry),
            Ok(Request::List(about)) => self.list(&about, registry),
            Ok(Request::Attach(about)) => self.attach(&about, registry),
            Ok(Request::Switch(switch)) => self.switch(&switch, registry),
            Ok(Request::Budget(budget)) => self.budget(budget, registry),
            Ok(Request::Finished { streams }) => self.finished(streams),
            Ok(Request::Status { version }) => self.status(version, registry),
            Ok(Request::NotConnected { version }) => self.list_not_connected(version, registry),
            Ok(Request::PublishArea { version }) => self.publish_area(version, files, registry),
            Ok(Request::ListAreas { version, known }) => self.list_areas(version, known, registry),
            Ok(Request::OpenArea(wanted)) => self.open_area(&wanted, registry),
            Err(error) => {
                let message = format!("the request is not understood: {error}");
                self.refuse(registry, "?", &message)
            }
        }
    }

    /// Refuses a sensor and counts it. It is counted first, so that a client that has received the
    /// refusal finds it in the directory's status.
    pub(crate) fn refuse(&self, registry: &Mutex<Registry>, sensor: &str, message: &str) -> Next {
        let owner = (self.peer.pid, self.peer.uid);
        lock(registry).note_not_connected(owner, sensor, message);
        self.deny(message)
    }

    /// Refuses a request unread; it may be repeated.
    fn turn_away(&self) -> Next {
        let message = "the directory closes other files; try again later".to_string();
        let again = true;
        // The peer does not get an answer from a socket that is closed with an unread packet.
        if discard(&self.fd).is_ok() {
            self.reply(&Reply::Refused { message, again }, &[]);
        }
        Next::Close
    }

    /// Refuses a monitor's request.
    pub(crate) fn deny(&self, message: &str) -> Next {
        let message = message.to_string();
        let again = false;
        self.reply(&Reply::Refused { message, again }, &[]);
        Next::Close
    }

    /// Sends a reply; false if the peer is gone, or does not read.
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
