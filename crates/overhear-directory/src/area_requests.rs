// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests about trace areas: announce, list, open.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

use crate::connection::{Connection, Next, Work};
use crate::packet::MAX_REQUEST;
use crate::peer::{is_alive, process_of, user_of_process};
use crate::protocol::{Areas, NoArea, OpenArea, Reply};
use crate::registry::{descriptor_of, lock, Registry};
use crate::task;
use crate::trace_area::{AreaAccess, AreaFiles, AreaId, AreaListProgress, AreaRecord, AREA_SENSOR};

/// Maximum work of a slice: the number of compared parts of patterns.
const WORK_PER_SLICE: u32 = 4096;
/// Maximum number of ancestors of a process that are searched for an area.
const MAX_ANCESTORS: u32 = 16;

impl Connection {
    /// Announces the peer's trace area.
    pub(crate) fn publish_area(
        &self,
        version: u32,
        files: Vec<OwnedFd>,
        registry: &Mutex<Registry>,
    ) -> Next {
        let peer = self.peer();
        let files = AreaFiles::checked(files, peer.uid).map_err(|(message, files)| {
            let closer = lock(registry).file_closer.clone();
            closer.close(files);
            message
        });
        let published = Self::check_version(version).and(files).and_then(|files| {
            let mut registry = lock(registry);
            let published = registry.publish_area(peer, files, &self.may_register);
            published.map_err(crate::registry::Refusal::into_message)
        });
        match published {
            Ok(()) => {
                self.reply(&Reply::Published, &[]);
                Next::Close
            }
            Err(message) => self.refuse(registry, AREA_SENSOR, &message),
        }
    }

    /// Starts a list of areas, unless the peer has the current one.
    pub(crate) fn list_areas(
        &mut self,
        version: u32,
        known: Option<u64>,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut locked = lock(registry);
        let admitted = Self::check_version(version).and_then(|()| self.become_monitor(&mut locked));
        let generation = locked.area_generation();
        let directory = locked.identity;
        drop(locked);
        if let Err(message) = admitted {
            return self.deny(&message);
        }
        if known != Some(generation) {
            return self.continue_with(Work::ListAreas(AreaListProgress {
                generation,
                next: AreaId::default(),
            }));
        }
        let reply = Reply::Areas(Areas {
            directory,
            generation,
            is_known: true,
            areas: Vec::new(),
            more: false,
        });
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    /// Sends the next packet of a list.
    pub(crate) fn area_list_slice(
        &mut self,
        listing: AreaListProgress,
        registry: &Mutex<Registry>,
    ) -> Next {
        let AreaListProgress { generation, next } = listing;
        let locked = lock(registry);
        let (areas, following) = self.readable_areas(next, &locked);
        let directory = locked.identity;
        drop(locked);
        let more = following.is_some();
        let reply = Reply::Areas(Areas {
            directory,
            generation,
            is_known: false,
            areas,
            more,
        });
        let unsent = match self.try_reply(&reply, &[]) {
            Ok(()) => following,
            Err(errno) if self.must_wait(errno) => Some(next),
            Err(_) => return Next::Close,
        };
        match unsent {
            Some(next) => {
                self.continue_with(Work::ListAreas(AreaListProgress { generation, next }))
            }
            None => Next::Again,
        }
    }

    fn readable_areas(
        &self,
        first: AreaId,
        registry: &Registry,
    ) -> (Vec<AreaRecord>, Option<AreaId>) {
        let (mut areas, mut bytes, mut work) = (Vec::new(), 0, 0);
        for (id, area) in registry.areas_from(first) {
            if bytes > MAX_REQUEST / 2 || work > WORK_PER_SLICE {
                return (areas, Some(id));
            }
            let rules = &registry.rules;
            work += 16 + rules.cost();
            let may_read = rules.may_attach(self.peer(), area.uid, &area.descriptor());
            if may_read.is_err() {
                continue;
            }
            let record = area.record(id);
            bytes += serde_json::to_vec(&record).map_or(0, |packet| packet.len());
            work += 16;
            areas.push(record);
        }
        (areas, None)
    }

    /// Opens an area.
    pub(crate) fn open_area(&mut self, wanted: &OpenArea, registry: &Mutex<Registry>) -> Next {
        let mut locked = lock(registry);
        let admitted =
            Self::check_version(wanted.version).and_then(|()| self.become_monitor(&mut locked));
        if let Err(message) = admitted {
            return self.deny(&message);
        }
        let found = match (wanted.area, wanted.pid) {
            (Some(area), _) => self.area_by_number(area, wanted.access, &locked),
            (None, Some(pid)) => self.area_of_process(pid, wanted.access, &locked),
            (None, None) => Err(NotOpened::None(NoArea::NotAnnounced)),
        };
        let sent = match found {
            Ok(id) => match locked.area(id) {
                Some(area) => {
                    let reply = Reply::Area(area.record(id));
                    self.try_reply(&reply, &[area.files.with(wanted.access)])
                }
                None => self.try_reply(&Reply::NoArea(NoArea::NotAnnounced), &[]),
            },
            Err(NotOpened::None(reason)) => self.try_reply(&Reply::NoArea(reason), &[]),
            Err(NotOpened::Refused(message)) => {
                let again = false;
                self.try_reply(&Reply::Refused { message, again }, &[])
            }
        };
        // A peer that does not receive its replies or descriptors is disconnected.
        match sent {
            Ok(()) => Next::Again,
            Err(_) => Next::Close,
        }
    }

    fn may_open(
        &self,
        access: AreaAccess,
        owner: u32,
        descriptor: &overhear_event::StreamDescriptor,
        registry: &Registry,
    ) -> Result<(), NotOpened> {
        let rules = &registry.rules;
        let permitted = match access {
            AreaAccess::Read => rules.may_attach(self.peer(), owner, descriptor),
            AreaAccess::Control => rules.may_trace(self.peer(), owner, descriptor),
        };
        permitted.map_err(NotOpened::Refused)
    }

    /// An area that this peer found in a list. Others do not exist for it.
    fn area_by_number(
        &self,
        area: u64,
        access: AreaAccess,
        registry: &Registry,
    ) -> Result<AreaId, NotOpened> {
        let none = NotOpened::None(NoArea::NotAnnounced);
        let id = AreaId::from_raw(area);
        let Some(area) = registry.area(id) else {
            return Err(none);
        };
        let descriptor = area.descriptor();
        let sees = registry
            .rules
            .may_attach(self.peer(), area.uid, &descriptor);
        if sees.is_err() {
            return Err(none);
        }
        if access == AreaAccess::Control && area.has_ended() {
            return Err(NotOpened::None(NoArea::NoProcess));
        }
        self.may_open(access, area.uid, &descriptor, registry)?;
        Ok(id)
    }

    /// The area of a living process. A refusal by the rules does not depend on whether the process
    /// has an area, so that it does not show this.
    fn area_of_process(
        &self,
        pid: u32,
        access: AreaAccess,
        registry: &Registry,
    ) -> Result<AreaId, NotOpened> {
        let no_process = || NotOpened::None(NoArea::NoProcess);
        let process = process_of(pid).ok_or_else(no_process)?;
        let owner = user_of_process(pid).ok_or_else(no_process)?;
        let task = task::of_pid(pid);
        // Data read by the process id is valid only if the process is alive afterwards.
        if !is_alive(&process) {
            return Err(no_process());
        }
        let id = family_area(pid, owner, registry);
        let area = id.and_then(|id| registry.area(id));
        let owner = match registry.area_of(pid) {
            Some(_) => area.map_or(owner, |area| area.uid),
            None => owner,
        };
        self.may_open(access, owner, &descriptor_of(task), registry)?;
        let area = area.ok_or(NotOpened::None(NoArea::NotAnnounced))?;
        // An ancestor's area may have a rule of its own.
        self.may_open(access, area.uid, &area.descriptor(), registry)?;
        id.ok_or(NotOpened::None(NoArea::NotAnnounced))
    }
}

/// The area of a process, or that of its nearest ancestor which has one and is of the same user: a
/// child of `fork` shares its parent's area, and need not announce it. The receiver finds in the
/// area whether the process records into it.
fn family_area(pid: u32, uid: u32, registry: &Registry) -> Option<AreaId> {
    let mut next = Some(pid);
    for _ in 0..MAX_ANCESTORS {
        let pid = next.filter(|pid| *pid > 1)?;
        if let Some(id) = registry.area_of(pid) {
            return registry.area(id).filter(|it| it.uid == uid).map(|_| id);
        }
        next = task::parent_of(pid);
    }
    None
}

/// The reason for which an area is not opened.
enum NotOpened {
    None(NoArea),
    Refused(String),
}
