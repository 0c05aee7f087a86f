// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the directory knows: streams that can be written, and what is not heard.

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overhear_event::{ClockId, StreamDescriptor, StreamId};
use overhear_stream::{Geometry, Header};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::memory::Mapping;
use crate::task;

/// How many unheard sensors are told one by one; a program that asks for ever must not fill the
/// memory.
const MAX_SENTENCES: usize = 100;

/// A stream that monitors may read.
#[derive(Debug)]
pub struct Registered {
    /// Who writes it, and what.
    pub descriptor: Arc<StreamDescriptor>,
    /// Its memory, read-only.
    pub mapping: Mapping,
    /// Where things lie in it.
    pub geometry: Geometry,
    /// What its stamps count.
    pub clock: ClockId,
    /// What its header said when it was made.
    pub header: Header,
}

/// What is not heard although it wanted to be: nobody can say what was missed of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unheard {
    /// How many requests.
    pub count: u64,
    /// A sentence for each of the first hundred.
    pub sentences: Vec<String>,
}

/// What the service's thread and the monitor's source share.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) next_stream: u32,
    /// Bytes of all buffers that exist, granted or reserved for a grant.
    pub(crate) bytes: u64,
    pub(crate) quota_bytes: u64,
    pub(crate) clock: ClockId,
    /// The program that this directory was made for: its descendants are served whoever they are.
    pub(crate) program: Option<u32>,
    granted: BTreeMap<StreamId, Live>,
    /// One descriptor for each process with streams, readable once the process has ended.
    processes: BTreeMap<u32, OwnedFd>,
    fresh: Vec<Registered>,
    unheard: Unheard,
}

/// The record of a stream that somebody can write.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) token: u64,
    pub(crate) bytes: u64,
    /// Of the memory file, as it stands in the process' list of maps.
    pub(crate) inode: u64,
    pub(crate) sensor: String,
    pub(crate) instance: String,
    pub(crate) pid: u32,
    /// Its writer has unregistered or ended: nothing more is published.
    pub(crate) ended: bool,
}

impl Registry {
    pub(crate) fn new(first_stream: u32, quota_bytes: u64, clock: ClockId) -> Self {
        Self {
            next_stream: first_stream,
            bytes: 0,
            quota_bytes,
            clock,
            program: None,
            granted: BTreeMap::new(),
            processes: BTreeMap::new(),
            fresh: Vec::new(),
            unheard: Unheard::default(),
        }
    }

    /// Opens a stream for monitors and watches its process.
    ///
    /// # Errors
    /// What the kernel said if the process cannot be watched; then nothing is opened. A process
    /// that is gone already is no error: its stream has ended.
    pub(crate) fn open(&mut self, mut live: Live, stream: Registered) -> Result<(), String> {
        if let Entry::Vacant(unwatched) = self.processes.entry(live.pid) {
            let pid = Pid::from_raw(live.pid.cast_signed()).ok_or("it has no process id here")?;
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(process) => {
                    unwatched.insert(process);
                }
                Err(rustix::io::Errno::SRCH) => live.ended = true,
                Err(errno) => return Err(format!("its process cannot be watched: {errno}")),
            }
        }
        self.granted.insert(stream.descriptor.id, live);
        self.fresh.push(stream);
        Ok(())
    }

    /// Streams that no monitor has taken yet.
    pub(crate) fn take_fresh(&mut self) -> Vec<Registered> {
        std::mem::take(&mut self.fresh)
    }

    /// The live stream of this process with these names.
    pub(crate) fn twin(&mut self, pid: u32, sensor: &str, instance: &str) -> Option<&mut Live> {
        self.granted.values_mut().find(|live| {
            live.pid == pid && !live.ended && (&*live.sensor, &*live.instance) == (sensor, instance)
        })
    }

    /// Ends the stream if the token fits; says whether it did.
    pub(crate) fn end(&mut self, stream: StreamId, token: u64) -> bool {
        let live = self
            .granted
            .get_mut(&stream)
            .filter(|live| live.token == token);
        live.map(|live| live.ended = true).is_some()
    }

    /// Whether the writer of this stream has unregistered or ended.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        self.granted.get(&stream).is_none_or(|live| live.ended)
    }

    /// The monitor has read the stream to its end: its memory may go.
    pub(crate) fn release(&mut self, stream: StreamId) {
        if let Some(live) = self.granted.remove(&stream) {
            self.bytes -= live.bytes;
            if !self.granted.values().any(|other| other.pid == live.pid) {
                self.processes.remove(&live.pid);
            }
        }
    }

    /// Ends the streams of processes that have ended.
    pub(crate) fn notice_ended_processes(&mut self) {
        let mut polled: Vec<PollFd<'_>> = self
            .processes
            .values()
            .map(|process| PollFd::new(process, PollFlags::IN))
            .collect();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut polled, Some(&no_wait)).unwrap_or(0) == 0 {
            return;
        }
        let ended: Vec<u32> = self
            .processes
            .keys()
            .zip(&polled)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(pid, _)| *pid)
            .collect();
        for pid in ended {
            self.processes.remove(&pid);
            for live in self.granted.values_mut().filter(|live| live.pid == pid) {
                live.ended = true;
            }
        }
    }

    /// Remembers that somebody who wanted to be heard is not.
    pub(crate) fn unheard(&mut self, pid: u32, sensor: &str, sentence: &str) {
        self.unheard.count += 1;
        if self.unheard.sentences.len() == MAX_SENTENCES {
            return;
        }
        // Both names come from the program and have not been checked.
        let comm = task::of_pid(pid).comm;
        let sensor: String = sensor.chars().take(128).collect();
        let (sensor, comm) = (sensor.escape_debug(), comm.escape_debug());
        let whole = format!("sensor `{sensor}` of {comm} ({pid}) is not heard: {sentence}");
        self.unheard.sentences.push(whole);
    }

    /// What has not been heard since the last call.
    pub(crate) fn take_unheard(&mut self) -> Unheard {
        std::mem::take(&mut self.unheard)
    }
}

pub(crate) fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    // A panic while the lock was held is a bug of the directory, but every change of the registry
    // is a single step, so its contents are still good.
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}
