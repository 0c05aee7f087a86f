// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace areas: announced by processes, opened for monitors and controllers, retained for a while.
//!
//! An area has *members*: the process that made it, and the children that record into it and have
//! announced it as well. When the last member has ended the area is retained for the retention
//! time, so that the last events of a process can still be read. A receiver has a descriptor of its
//! own, so nothing waits for it.
//!
//! The memory is the program's: it allocates the pages, in its own control group. But the directory
//! keeps a descriptor, and so keeps the pages after the end of the process. So the pages that exist
//! are charged to the user as memory of buffers. They are counted regularly, because they appear
//! while the area is in use; if the user's share does not suffice, the directory closes the
//! area. The program is not affected.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use overhear_event::{Origin, StreamDescriptor, StreamId, Task, TypeSchema};

use super::{Refusal, Registry};
use crate::journal::{area_names, Entry};
use crate::peer::Peer;
use crate::quota::{Amounts, Resource};
use crate::task;
use crate::trace_area::{AreaFiles, AreaId, AreaRecord, FileIdentity, AREA_SENSOR};

/// Maximum number of areas whose pages are counted at a tick.
const MAX_MEASURED: usize = 256;
/// Maximum number of members in a record.
const MAX_LISTED_MEMBERS: usize = 256;
/// The charge of an area, without its pages.
const AREA: Amounts = Amounts::of(Resource::Descriptors, 2)
    .and(Resource::RecordBytes, 1024)
    .and(Resource::Sensors, 1);
/// The charge of a member.
const MEMBER: Amounts = Amounts::of(Resource::RecordBytes, 512);

/// An area that a process has announced.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) files: AreaFiles,
    pub(crate) uid: u32,
    members: BTreeMap<u32, Task>,
    // The member that ended last.
    last: Option<Task>,
    // When it is closed; `None` while it has members.
    closed_at: Option<Instant>,
    // The charge of its pages.
    charged_bytes: u64,
}

impl Area {
    /// A process that stands for the area in rules and lists.
    fn task(&self) -> Option<&Task> {
        self.members.values().next().or(self.last.as_ref())
    }

    /// The descriptor that rules are compared with.
    pub(crate) fn descriptor(&self) -> StreamDescriptor {
        let task = self.task().cloned();
        // Every area has a member or had one.
        descriptor_of(task.unwrap_or_else(|| task::of_pid(0)))
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.closed_at.is_some()
    }

    pub(crate) fn record(&self, area: AreaId) -> AreaRecord {
        let members = self.members.values().take(MAX_LISTED_MEMBERS).cloned();
        let mut members: Vec<Task> = members.collect();
        if members.is_empty() {
            members.extend(self.last.clone());
        }
        AreaRecord {
            area: area.as_raw(),
            uid: self.uid,
            bytes: self.files.bytes(),
            members,
            ended: self.has_ended(),
        }
    }
}

/// The descriptor that rules are compared with: an area counts as the sensor `posix-trace` of its
/// process.
pub(crate) fn descriptor_of(task: Task) -> StreamDescriptor {
    let schema = TypeSchema::builder("posix_trace").build();
    let schema = schema.expect("the name is valid, and there are no fields");
    StreamDescriptor::new(
        StreamId::default(),
        Origin::Program(task),
        AREA_SENSOR,
        schema,
    )
}

/// The areas of a directory.
#[derive(Debug)]
pub(super) struct TraceAreas {
    areas: BTreeMap<AreaId, Area>,
    of_file: HashMap<FileIdentity, AreaId>,
    retained: BTreeSet<(Instant, AreaId)>,
    // Processes that ended, whose areas are still to be updated.
    ended: VecDeque<(AreaId, u32)>,
    next: AreaId,
    generation: u64,
    measured: AreaId,
}

impl Default for TraceAreas {
    fn default() -> Self {
        Self {
            areas: BTreeMap::new(),
            of_file: HashMap::new(),
            retained: BTreeSet::new(),
            ended: VecDeque::new(),
            next: AreaId::from_raw(1),
            // A list of an earlier directory is not that of this one.
            generation: super::random() >> 1,
            measured: AreaId::default(),
        }
    }
}

impl Registry {
    /// Announces the area of a process: a new one, or one that it shares with others. It replaces
    /// an earlier area of the process.
    ///
    /// # Errors
    /// A message; nothing has changed then, except that its earlier area may be gone.
    pub(crate) fn publish_area(
        &mut self,
        peer: &Peer,
        files: AreaFiles,
        by_default: &Result<(), String>,
    ) -> Result<(), Refusal> {
        let process = peer.process().ok_or("its process has ended")?;
        let task = task::of_pid(peer.pid);
        // Data read by the process id is valid only if the process is alive afterwards.
        peer.process().ok_or("its process has ended")?;
        let descriptor = descriptor_of(task.clone());
        self.rules.register(peer, &descriptor, by_default)?;
        self.watch_process(peer.pid, peer.uid, process)?;
        let known = self.areas.of_file.get(&files.identity()).copied();
        if let Some(earlier) = self.area_of(peer.pid) {
            if Some(earlier) == known {
                // The same again: its name may have changed.
                self.name_member(earlier, task);
                return Ok(());
            }
            self.set_area_of(peer.pid, None);
            self.leave_area(earlier, peer.pid, true);
        }
        let joined = match known {
            Some(area) => self.join_area(area, task),
            None => self.add_area(peer.uid, files, task),
        };
        match joined {
            Ok(area) => {
                self.set_area_of(peer.pid, Some(area));
                Ok(())
            }
            Err(refusal) => {
                self.forget_if_idle(peer.pid);
                Err(refusal)
            }
        }
    }

    fn add_area(&mut self, uid: u32, files: AreaFiles, task: Task) -> Result<AreaId, Refusal> {
        let bytes = files.allocated_bytes();
        self.charge(uid, AREA)?;
        let charged = self.charge(uid, Amounts::of(Resource::BufferBytes, bytes));
        let charged = charged.and_then(|()| {
            let member = self.charge(uid, MEMBER);
            member.inspect_err(|_| self.release(uid, Amounts::of(Resource::BufferBytes, bytes)))
        });
        if let Err(shortage) = charged {
            self.release(uid, AREA);
            return Err(shortage.into());
        }
        let id = self.areas.next;
        let area = Area {
            files,
            uid,
            members: BTreeMap::from([(task.pid, task.clone())]),
            last: None,
            closed_at: None,
            charged_bytes: bytes,
        };
        let [writer, reader] = area_names(id.as_raw());
        self.keep_file(uid, writer, area.files.with(crate::AreaAccess::Control));
        self.keep_file(uid, reader, area.files.with(crate::AreaAccess::Read));
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Area {
                area: id.as_raw(),
                uid,
            });
            journal.write(&Entry::AreaMember {
                area: id.as_raw(),
                task,
            });
        }
        self.insert_area(id, area);
        Ok(id)
    }

    fn insert_area(&mut self, id: AreaId, area: Area) {
        self.areas.of_file.insert(area.files.identity(), id);
        self.areas.areas.insert(id, area);
        self.areas.next = self.areas.next.max(id.following());
        self.areas.generation += 1;
    }

    fn join_area(&mut self, id: AreaId, task: Task) -> Result<AreaId, Refusal> {
        let area = self.areas.areas.get(&id).ok_or("its trace area is gone")?;
        self.charge(area.uid, MEMBER)?;
        // The charge may have closed retained areas, among them this one.
        let Some(area) = self.areas.areas.get_mut(&id) else {
            return Err("there is no memory left for its trace area".into());
        };
        // A child announces itself after the last other member has ended.
        if let Some(closed_at) = area.closed_at.take() {
            self.areas.retained.remove(&(closed_at, id));
        }
        if let Some(journal) = &mut self.journal {
            let task = task.clone();
            journal.write(&Entry::AreaMember {
                area: id.as_raw(),
                task,
            });
        }
        area.members.insert(task.pid, task);
        self.areas.generation += 1;
        Ok(id)
    }

    fn name_member(&mut self, id: AreaId, task: Task) {
        let area = self.areas.areas.get_mut(&id);
        let member = area.and_then(|area| area.members.get_mut(&task.pid));
        if let Some(member) = member.filter(|member| **member != task) {
            *member = task;
            self.areas.generation += 1;
        }
    }

    /// A process of an area has ended, or has another one now.
    pub(super) fn leave_area_later(&mut self, area: AreaId, pid: u32) {
        self.areas.ended.push_back((area, pid));
    }

    /// Updates the areas of some processes that have ended; returns whether there are more.
    pub(super) fn leave_areas(&mut self, most: u32) -> bool {
        for _ in 0..most {
            match self.areas.ended.pop_front() {
                Some((area, pid)) => self.leave_area(area, pid, false),
                None => return false,
            }
        }
        !self.areas.ended.is_empty()
    }

    /// A replaced area is not retained: its process lives on, and could replace it endlessly.
    fn leave_area(&mut self, id: AreaId, pid: u32, is_replaced: bool) {
        let Some(area) = self.areas.areas.get_mut(&id) else {
            return;
        };
        let Some(member) = area.members.remove(&pid) else {
            return;
        };
        area.last = Some(member);
        let (uid, is_empty) = (area.uid, area.members.is_empty());
        if is_empty && !is_replaced {
            let closed_at = Instant::now() + self.retention;
            area.closed_at = Some(closed_at);
            self.areas.retained.insert((closed_at, id));
        }
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::AreaLeft {
                area: id.as_raw(),
                pid,
            });
        }
        self.areas.generation += 1;
        self.release(uid, MEMBER);
        if is_empty && is_replaced {
            self.close_area(id);
        } else if is_empty {
            self.measure_area(id);
        }
    }

    /// Closes the directory's files of an area.
    pub(super) fn close_area(&mut self, id: AreaId) {
        let Some(area) = self.areas.areas.remove(&id) else {
            return;
        };
        self.areas.of_file.remove(&area.files.identity());
        self.areas.generation += 1;
        if let Some(closed_at) = area.closed_at {
            self.areas.retained.remove(&(closed_at, id));
        }
        for pid in area.members.keys() {
            self.set_area_of(*pid, None);
            self.forget_if_idle(*pid);
        }
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::AreaClosed { area: id.as_raw() });
        }
        for name in area_names(id.as_raw()) {
            self.forget_file(&name);
        }
        let uid = area.uid;
        for _ in &area.members {
            self.release(uid, MEMBER);
        }
        self.release(uid, AREA);
        self.release(uid, Amounts::of(Resource::BufferBytes, area.charged_bytes));
        match &self.work_queue {
            // Freeing its pages takes the kernel long.
            Some(queue) => queue.close_area(uid, area.files),
            None => drop(area.files),
        }
    }

    /// Closes an area that is retained: the oldest one of a user, or of all users if it is
    /// privileged. False if there is none.
    pub(super) fn close_oldest_area(&mut self, uid: u32) -> bool {
        let all = self.quotas.is_privileged(uid);
        let is_theirs = |id: &AreaId| {
            let area = self.areas.areas.get(id);
            area.is_some_and(|area| all || area.uid == uid)
        };
        let retained = self.areas.retained.iter().map(|(_, id)| *id);
        let oldest = retained.take(MAX_MEASURED).find(is_theirs);
        if let Some(id) = oldest {
            self.close_area(id);
        }
        oldest.is_some()
    }

    /// Closes areas that have been retained long enough; true if there may be more.
    pub(super) fn close_outdated_areas(&mut self, now: Instant, most: u32) -> bool {
        for _ in 0..most {
            match self.areas.retained.first() {
                Some(&(closed_at, id)) if closed_at <= now => self.close_area(id),
                _ => return false,
            }
        }
        true
    }

    /// Charges the pages that some of the areas have now.
    pub(super) fn measure_areas(&mut self) {
        let from = self.areas.areas.range(self.areas.measured..);
        let some: Vec<AreaId> = from.take(MAX_MEASURED).map(|(id, _)| *id).collect();
        let last = some.last().filter(|_| some.len() == MAX_MEASURED);
        self.areas.measured = last.map_or(AreaId::default(), |last| last.following());
        for id in some {
            self.measure_area(id);
        }
    }

    fn measure_area(&mut self, id: AreaId) {
        let Some(area) = self.areas.areas.get_mut(&id) else {
            return;
        };
        let (uid, before, now) = (area.uid, area.charged_bytes, area.files.allocated_bytes());
        if now <= before {
            area.charged_bytes = now;
            let less = Amounts::of(Resource::BufferBytes, before - now);
            return match before - now {
                0 => {}
                _ => self.release(uid, less),
            };
        }
        let charged = self.charge(uid, Amounts::of(Resource::BufferBytes, now - before));
        match (charged, self.areas.areas.get_mut(&id)) {
            (Ok(()), Some(area)) => area.charged_bytes = now,
            // The charge has closed this area.
            (Ok(()), None) => {
                self.release(uid, Amounts::of(Resource::BufferBytes, now - before));
            }
            (Err(shortage), area) => {
                let pid = area.and_then(|area| area.members.keys().next().copied());
                if let Some(pid) = pid {
                    self.note_not_connected((pid, uid), AREA_SENSOR, &shortage.message);
                }
                self.close_area(id);
            }
        }
    }

    pub(crate) fn area(&self, id: AreaId) -> Option<&Area> {
        self.areas.areas.get(&id)
    }

    /// The areas from a number on, in order.
    pub(crate) fn areas_from(&self, first: AreaId) -> impl Iterator<Item = (AreaId, &Area)> {
        self.areas
            .areas
            .range(first..)
            .map(|(id, area)| (*id, area))
    }

    /// Changes whenever an area appears, ends or changes its members.
    pub(crate) const fn area_generation(&self) -> u64 {
        self.areas.generation
    }

    /// Restores an area from before a restart; false if its files are not those of an area.
    pub(crate) fn restore_area(&mut self, id: u64, uid: u32, files: AreaFiles, members: Vec<Task>) {
        let id = AreaId::from_raw(id);
        let mut area = Area {
            charged_bytes: files.allocated_bytes(),
            files,
            uid,
            members: BTreeMap::new(),
            last: None,
            closed_at: None,
        };
        let bytes = Amounts::of(Resource::BufferBytes, area.charged_bytes);
        self.quotas.count(uid, AREA);
        self.quotas.count(uid, bytes);
        for task in members {
            let is_alive = self.restored_task(task.pid, uid).is_some()
                && task::start_of(task.pid) == Some(task.start);
            if is_alive {
                self.set_area_of(task.pid, Some(id));
                self.quotas.count(uid, MEMBER);
                area.members.insert(task.pid, task);
            } else {
                area.last = Some(task);
            }
        }
        if area.members.is_empty() {
            let closed_at = Instant::now() + self.retention;
            area.closed_at = Some(closed_at);
            self.areas.retained.insert((closed_at, id));
        }
        self.insert_area(id, area);
    }

    /// The areas from a number on, for a journal.
    pub(crate) fn area_entries_from(
        &self,
        first: AreaId,
    ) -> impl Iterator<Item = (AreaId, Vec<Entry>)> + '_ {
        self.areas_from(first).map(|(id, area)| {
            let whole = Entry::Area {
                area: id.as_raw(),
                uid: area.uid,
            };
            let tasks = area.members.values().chain(&area.last).cloned();
            let members = tasks.map(|task| Entry::AreaMember {
                area: id.as_raw(),
                task,
            });
            (id, [whole].into_iter().chain(members).collect())
        })
    }
}
