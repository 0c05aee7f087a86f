// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes with sensors: that they end, and what the directory tells them by their control pages.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use overhear_event::StreamId;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use super::{Registered, Registry};
use crate::control::{ControlPage, ControlPages, MappedLine, Place};
use crate::journal::Entry;
use crate::poller::Token;
use crate::record::SensorState;
use crate::task;

/// A process with sensors.
#[derive(Debug)]
pub(super) struct TaskEntry {
    // Readable once the process has ended.
    _process: OwnedFd,
    pub(super) sensors: BTreeSet<StreamId>,
    // Places given to sensors that are not open yet.
    pub(super) granted: u32,
    pub(super) control: ControlPages,
}

impl Registry {
    /// Watches a process and gives a sensor of it a line in a control page.
    ///
    /// # Errors
    /// What the kernel said if the process cannot be watched.
    pub(crate) fn place(&mut self, pid: u32, lanes: u32, enabled: bool) -> Result<Place, String> {
        let task = self.task(pid)?;
        let placed = task.control.place(lanes, enabled);
        task.granted += u32::from(placed.is_ok());
        if let (Ok((place, true)), Some(journal)) = (&placed, &mut self.journal) {
            if let Some(page) = self.tasks.get_mut(&pid).map(|task| &mut task.control) {
                let index = place.page;
                let name = page.page(index).map(|page| journal.keep_page(page.file()));
                let name = name.unwrap_or_default();
                page.set_name(index, name.clone());
                journal.write(&Entry::Page { pid, index, name });
            }
        }
        self.forget_if_idle(pid);
        placed
            .map(|(place, _)| place)
            .map_err(|error| error.to_string())
    }

    /// What a task gets to map its control page with.
    pub(crate) fn control_reader(&self, pid: u32, place: Place) -> Option<OwnedFd> {
        self.tasks.get(&pid)?.control.reader(place)
    }

    /// A sensor that was to have this place does not come to exist.
    pub(crate) fn give_back(&mut self, pid: u32, place: Place, lanes: u32) {
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.control.give_back(place, lanes);
            task.granted = task.granted.saturating_sub(1);
        }
        self.forget_if_idle(pid);
    }

    pub(super) fn task(&mut self, pid: u32) -> Result<&mut TaskEntry, String> {
        use std::collections::btree_map::Entry as Slot;
        match self.tasks.entry(pid) {
            Slot::Occupied(known) => Ok(known.into_mut()),
            Slot::Vacant(unwatched) => {
                let raw = Pid::from_raw(pid.cast_signed()).ok_or("it has no process id here")?;
                let cannot = |errno| format!("its process cannot be watched: {errno}");
                let process = pidfd_open(raw, PidfdFlags::empty()).map_err(cannot)?;
                self.poller
                    .add(&process, Token::Process(pid))
                    .map_err(cannot)?;
                Ok(unwatched.insert(TaskEntry {
                    _process: process,
                    sensors: BTreeSet::new(),
                    granted: 0,
                    control: ControlPages::default(),
                }))
            }
        }
    }

    /// A task without sensors is nobody to watch, and its control pages serve nobody.
    pub(super) fn forget_if_idle(&mut self, pid: u32) {
        let idle = |task: &TaskEntry| task.granted == 0 && task.sensors.is_empty();
        if self.tasks.get(&pid).is_some_and(idle) {
            self.forget_task(pid);
        }
    }

    pub(super) fn forget_task(&mut self, pid: u32) -> BTreeSet<StreamId> {
        let Some(task) = self.tasks.remove(&pid) else {
            return BTreeSet::new();
        };
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::TaskGone { pid });
            for (_, name) in task.control.names() {
                journal.forget(name);
            }
        }
        task.sensors
    }

    /// Tasks that were restored, and none of whose sensors were.
    pub(crate) fn forget_idle_tasks(&mut self) {
        let all: Vec<u32> = self.tasks.keys().copied().collect();
        all.into_iter().for_each(|pid| self.forget_if_idle(pid));
    }

    /// Puts a control page back that was kept; false if its process cannot be watched any more.
    pub(crate) fn restore_page(
        &mut self,
        pid: u32,
        index: usize,
        page: ControlPage,
        name: &str,
    ) -> bool {
        let task = self.task(pid);
        task.map(|task| task.control.restore(index, page, name))
            .is_ok()
    }

    pub(crate) fn watches(&self, pid: u32) -> bool {
        self.tasks.contains_key(&pid)
    }

    /// The control pages that are kept: whose, which, and under which names.
    pub(crate) fn page_names(&self) -> impl Iterator<Item = (u32, usize, &str)> {
        self.tasks.iter().flat_map(|(pid, task)| {
            let names = task.control.names();
            names.map(|(index, name)| (*pid, index, name))
        })
    }

    /// A process has ended, and with it its sensors.
    pub(crate) fn process_ended(&mut self, pid: u32) {
        for stream in self.forget_task(pid) {
            self.end(stream, SensorState::Retained);
        }
    }

    /// Lanes that belong to somebody, out of `most` that are looked at from a lane on, and the lane to
    /// go on with; none at the end.
    pub(crate) fn owned_lanes(
        &self,
        (first, lane): (StreamId, u32),
        most: usize,
    ) -> (Vec<OwnedLane>, Option<(StreamId, u32)>) {
        let (mut owned, mut looked) = (Vec::new(), 0);
        for &stream in self.laned.range(first..) {
            let Some((sensor, line)) = self.laned_sensor(stream) else {
                continue;
            };
            let Registered { shape, mapping, .. } = &sensor.registered;
            let words = mapping.part(0, mapping.bytes());
            let begin = if stream == first { lane } else { 0 };
            for lane in begin..shape.lanes() {
                if looked == most {
                    return (owned, Some((stream, lane)));
                }
                looked += 1;
                let owner = overhear_stream::lane_owner(&words, shape, lane);
                if owner != 0 && line.reclaimed(lane) != owner {
                    let pid = sensor.pid;
                    owned.push(OwnedLane {
                        stream,
                        lane,
                        owner,
                        pid,
                    });
                }
            }
        }
        (owned, None)
    }

    /// Gives lanes back whose threads have ended.
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
        Some((sensor, task.control.line(sensor.place?, lanes)?))
    }
}

/// A lane and the claim on it: a thread that claims it later leaves another owner word, so what is
/// found out of this one may be told late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnedLane {
    stream: StreamId,
    lane: u32,
    owner: u64,
    pid: u32,
}

impl OwnedLane {
    /// Asks the kernel whether the thread that claimed it has ended.
    pub(crate) fn is_left(&self) -> bool {
        task::thread_has_ended(self.pid, self.owner as u32)
    }
}
