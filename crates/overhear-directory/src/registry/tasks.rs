// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes with sensors or a trace area: their control pages, and their end.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use overhear_event::StreamId;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use super::{ReadableSensor, Refusal, Registry};
use crate::control::{ControlPage, ControlPages, ControlSlot, MappedLine};
use crate::journal::Entry;
use crate::peer::{is_alive, Peer};
use crate::poller::Token;
use crate::quota::{Amounts, Resource};
use crate::trace_area::AreaId;

/// A process with sensors or a trace area.
#[derive(Debug)]
pub(super) struct TaskEntry {
    // A pidfd: readable once the process has ended.
    process: Arc<OwnedFd>,
    // The user that is charged for the descriptors of the process and of its pages.
    uid: u32,
    pub(super) sensors: BTreeSet<StreamId>,
    // Number of control slots of sensors that are not open yet.
    pub(super) granted: u32,
    // The deferred sensors among them.
    deferred: BTreeSet<StreamId>,
    pub(super) control: ControlPages,
    // Its trace area, if it has announced one.
    area: Option<AreaId>,
}

/// The descriptors of a task or of a control page.
const ONE_DESCRIPTOR: Amounts = Amounts::of(Resource::Descriptors, 1);

impl Registry {
    /// Watches a process and allocates a line in a control page for a sensor of it.
    ///
    /// # Errors
    /// If the process cannot be watched, or its pages exceed a quota.
    pub(crate) fn allocate_slot(
        &mut self,
        peer: &Peer,
        lanes: u32,
        enabled: bool,
    ) -> Result<ControlSlot, Refusal> {
        let process = peer.process().ok_or("its process has ended")?;
        self.watch_process(peer.pid, peer.uid, process)?;
        let placed = match self.allocate_in_pages(peer.pid, lanes, enabled) {
            Some(slot) => Ok(slot),
            None => self.add_page(peer, lanes).and_then(|()| {
                let placed = self.allocate_in_pages(peer.pid, lanes, enabled);
                placed.ok_or_else(|| Refusal::from("its control page has no line left"))
            }),
        };
        match (&placed, self.tasks.get_mut(&peer.pid)) {
            (Ok(_), Some(task)) => task.granted += 1,
            _ => self.forget_if_idle(peer.pid),
        }
        placed
    }

    fn allocate_in_pages(&mut self, pid: u32, lanes: u32, enabled: bool) -> Option<ControlSlot> {
        let task = self.tasks.get_mut(&pid)?;
        task.control.allocate(lanes, enabled)
    }

    /// Makes a further control page for a task, and charges it to its user.
    fn add_page(&mut self, peer: &Peer, lanes: u32) -> Result<(), Refusal> {
        let pages = self.tasks.get(&peer.pid).map(|task| &task.control);
        let bytes = pages.map_or(0, |pages| pages.next_page_bytes(lanes));
        let memory = Amounts::of(Resource::RecordBytes, bytes);
        self.charge(peer.uid, ONE_DESCRIPTOR)?;
        if let Err(shortage) = self.charge(peer.uid, memory) {
            self.release(peer.uid, ONE_DESCRIPTOR);
            return Err(shortage.into());
        }
        let pages = self.tasks.get(&peer.pid).map(|task| &task.control);
        let page = pages.map(|pages| pages.next_page(lanes));
        let added = match page {
            Some(Ok(page)) => self.adopt_page(peer, page, memory),
            Some(Err(error)) => Err(error.to_string().into()),
            None => Err("its process has ended".into()),
        };
        if added.is_err() {
            self.release(peer.uid, ONE_DESCRIPTOR);
            self.release(peer.uid, memory);
        }
        added
    }

    fn adopt_page(
        &mut self,
        peer: &Peer,
        mut page: ControlPage,
        memory: Amounts,
    ) -> Result<(), Refusal> {
        let charge = self.charge_file(page.file(), peer.uid, memory)?;
        page.set_charge(charge);
        let name = match &mut self.journal {
            Some(journal) => journal.next_page_name(),
            None => String::new(),
        };
        self.keep_file(peer.uid, name.clone(), page.file());
        let Some(task) = self.tasks.get_mut(&peer.pid) else {
            return Ok(());
        };
        let index = task.control.add(page);
        task.control.set_name(index, name.clone());
        if let Some(journal) = &mut self.journal {
            let &Peer { pid, uid, .. } = peer;
            journal.write(&Entry::Page {
                pid,
                uid,
                index,
                name,
            });
        }
        Ok(())
    }

    /// A read-only descriptor of a control page, for its task.
    pub(crate) fn control_reader(&self, pid: u32, slot: ControlSlot) -> Option<OwnedFd> {
        self.tasks.get(&pid)?.control.reader(slot)
    }

    /// Returns the control slot of a sensor that will not exist.
    pub(crate) fn give_back(&mut self, pid: u32, slot: ControlSlot, lanes: u32) {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.control.give_back(slot, lanes);
            task.granted = task.granted.saturating_sub(1);
        }
        self.forget_if_idle(pid);
    }

    /// Watches a process, if it is not watched yet.
    pub(super) fn watch_process(
        &mut self,
        pid: u32,
        uid: u32,
        process: &Arc<OwnedFd>,
    ) -> Result<(), Refusal> {
        if self.tasks.contains_key(&pid) {
            // The id may have been reused before the end of its earlier process was handled.
            self.process_ended(pid);
        }
        if self.tasks.contains_key(&pid) {
            return Ok(());
        }
        self.charge(uid, ONE_DESCRIPTOR)?;
        if let Err(errno) = self.poller.add(process, Token::Process(pid)) {
            self.release(uid, ONE_DESCRIPTOR);
            return Err(format!("its process cannot be watched: {errno}").into());
        }
        let task = TaskEntry {
            process: Arc::clone(process),
            uid,
            sensors: BTreeSet::new(),
            granted: 0,
            deferred: BTreeSet::new(),
            control: ControlPages::default(),
            area: None,
        };
        self.tasks.insert(pid, task);
        Ok(())
    }

    /// Watches the process of a sensor that outlived a restart, if it is alive.
    pub(super) fn restored_task(&mut self, pid: u32, uid: u32) -> Option<&mut TaskEntry> {
        if !self.tasks.contains_key(&pid) {
            let raw = Pid::from_raw(pid.cast_signed())?;
            let process = pidfd_open(raw, PidfdFlags::empty()).ok()?;
            self.watch_process(pid, uid, &Arc::new(process)).ok()?;
        }
        self.tasks.get_mut(&pid)
    }

    /// Notes a deferred sensor of a process; false if the process has ended.
    pub(super) fn defer_in_task(&mut self, pid: u32, stream: StreamId) -> bool {
        let task = self.tasks.get_mut(&pid);
        task.map(|task| task.deferred.insert(stream)).is_some()
    }

    /// Removes a deferred sensor of a process.
    pub(super) fn undefer_in_task(&mut self, pid: u32, stream: StreamId) {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.deferred.remove(&stream);
        }
    }

    /// Writes into a sensor's line whether it is deferred.
    pub(crate) fn set_deferred(&self, pid: u32, slot: ControlSlot, lanes: u32, deferred: bool) {
        let task = self.tasks.get(&pid);
        if let Some(line) = task.and_then(|task| task.control.line(slot, lanes)) {
            line.set_deferred(deferred);
        }
    }

    /// Marks the control slot of a restored deferred sensor as in use.
    pub(super) fn claim_slot(&mut self, pid: u32, slot: ControlSlot, lanes: u32) {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.control.claim(slot, lanes);
            task.granted += 1;
        }
    }

    /// The trace area of a process.
    pub(crate) fn area_of(&self, pid: u32) -> Option<AreaId> {
        self.tasks.get(&pid)?.area
    }

    pub(super) fn set_area_of(&mut self, pid: u32, area: Option<AreaId>) {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.area = area;
        }
    }

    /// Forgets a task without sensors and trace area, and its control pages.
    pub(super) fn forget_if_idle(&mut self, pid: u32) {
        let idle =
            |task: &TaskEntry| task.granted == 0 && task.sensors.is_empty() && task.area.is_none();
        if self.tasks.get(&pid).is_some_and(idle) {
            self.forget_task(pid);
        }
    }

    pub(super) fn forget_task(&mut self, pid: u32) -> BTreeSet<StreamId> {
        let Some(task) = self.tasks.remove(&pid) else {
            return BTreeSet::new();
        };
        // A connection of the process may share the descriptor.
        self.poller.remove(&task.process);
        if let Some(area) = task.area {
            self.leave_area_later(area, pid);
        }
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::TaskGone { pid });
        }
        let pages = task.control.count() as u64;
        let descriptors = Amounts::of(Resource::Descriptors, 1 + pages);
        self.release(task.uid, descriptors);
        for page in task.control.into_pages() {
            let (name, charge) = page.close();
            self.forget_file(&name);
            self.file_closed(charge);
        }
        task.sensors
    }

    /// Forgets restored tasks without restored sensors.
    pub(crate) fn forget_tasks_without_sensors(&mut self) {
        let all: Vec<u32> = self.tasks.keys().copied().collect();
        all.into_iter().for_each(|pid| self.forget_if_idle(pid));
    }

    /// Restores a stored control page; false if its process has ended.
    pub(crate) fn restore_page(
        &mut self,
        (pid, uid): (u32, u32),
        index: usize,
        page: ControlPage,
        name: &str,
    ) -> bool {
        let Some(task) = self.restored_task(pid, uid) else {
            return false;
        };
        task.control.restore(index, page, name);
        self.quotas.count(uid, ONE_DESCRIPTOR);
        true
    }

    pub(crate) fn watches(&self, pid: u32) -> bool {
        self.tasks.contains_key(&pid)
    }

    /// The control pages from a process on, for a journal.
    pub(crate) fn pages_from(&self, first: u32) -> impl Iterator<Item = (u32, Vec<Entry>)> + '_ {
        self.tasks.range(first..).map(|(&pid, task)| {
            let uid = task.uid;
            let names = task.control.names();
            let pages = names.map(|(index, name)| Entry::Page {
                pid,
                uid,
                index,
                name: name.to_string(),
            });
            (pid, pages.collect())
        })
    }

    /// Ends the sensors of a process, if it has ended.
    pub(crate) fn process_ended(&mut self, pid: u32) {
        let lives = |task: &TaskEntry| is_alive(&task.process);
        if self.tasks.get(&pid).is_none_or(lives) {
            return;
        }
        let deferred = self
            .tasks
            .get_mut(&pid)
            .map(|task| std::mem::take(&mut task.deferred));
        let sensors = self.forget_task(pid);
        self.end_later(sensors);
        for stream in deferred.into_iter().flatten() {
            self.forget_deferred(stream);
        }
    }

    /// The claimed lanes among the next `most` lanes, and the lane to continue at; `None` at the
    /// end. Lanes of users for which `rests` is true are skipped.
    pub(crate) fn owned_lanes(
        &self,
        (first, lane): (StreamId, u32),
        most: usize,
        rests: impl Fn(u32) -> bool,
    ) -> (Vec<OwnedLane>, Option<(StreamId, u32)>) {
        let (mut owned, mut looked) = (Vec::new(), 0);
        for &stream in self.laned.range(first..) {
            if looked >= most {
                return (owned, Some((stream, 0)));
            }
            // A skipped sensor counts as one lane.
            looked += 1;
            let Some((sensor, line)) = self.laned_sensor(stream) else {
                continue;
            };
            let (pid, uid) = (sensor.pid, sensor.uid);
            if rests(uid) {
                continue;
            }
            let ReadableSensor { shape, mapping, .. } = &sensor.registered;
            let words = mapping.part(0, mapping.bytes());
            let begin = if stream == first { lane } else { 0 };
            for lane in begin..shape.lanes() {
                if looked >= most {
                    return (owned, Some((stream, lane)));
                }
                looked += 1;
                let owner = overhear_stream::lane_owner(&words, shape, lane);
                if owner != 0 && line.reclaimed(lane) != owner {
                    owned.push(OwnedLane {
                        stream,
                        lane,
                        owner,
                        pid,
                        uid,
                    });
                }
            }
        }
        (owned, None)
    }

    /// Reclaims lanes whose threads have ended.
    pub(crate) fn reclaim(&self, ended: &[OwnedLane]) {
        for lane in ended {
            if let Some((_, line)) = self.laned_sensor(lane.stream) {
                line.reclaim(lane.lane, lane.owner);
            }
        }
    }

    fn laned_sensor(&self, stream: StreamId) -> Option<(&super::Sensor, MappedLine)> {
        let sensor = self.sensors.get(&stream)?;
        let task = self.tasks.get(&sensor.pid)?;
        let lanes = sensor.registered.shape.lanes();
        Some((sensor, task.control.line(sensor.slot?, lanes)?))
    }
}

/// A lane and its owner word. A later claim changes the word, so a late reclaim of this owner does
/// no harm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnedLane {
    stream: StreamId,
    lane: u32,
    owner: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl OwnedLane {
    /// The thread that claimed it, by the number that it knows itself by.
    pub(crate) const fn tid(&self) -> u32 {
        self.owner as u32
    }
}
