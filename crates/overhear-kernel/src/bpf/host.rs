// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of this process and the monitors that they serve.
//!
//! A process loads its programs once, with its first monitor, and they go with its last one. All
//! that keeps them is descriptors of this process: when it dies, however it dies, the kernel
//! detaches the programs and frees the maps.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{fs, mem};

use libbpf_rs::Object;

use super::hand_over::{Files, Parcel};
use super::load::{self, Attached, Loaded, Maps};
use super::map::Map;
use super::rings::Rings;
use super::select::{visit, Target};
use super::shared::{Member, Operation, SharedPage, MONITORS, SHARED_BYTES, SLOTS};
use crate::machine;
use crate::mapping::{Access, Mapping};
use crate::probe::{ProbeTarget, ResolvedProbe};
use crate::streams::Hook;
use crate::{ProbeError, Runs};

/// Calls of programs that the kernel did not enter, by the number of the rings that they write to.
pub(crate) type NotEntered = BTreeMap<u32, u64>;

/// How a selected thread is tracked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// What it creates is tracked as well.
    pub(crate) inherit: bool,
    /// The monitor's streams say so, with this id.
    pub(crate) announce: Option<u32>,
    /// It is held before its execve; until then nothing but scheduling is recorded of it.
    pub(crate) held: bool,
}

/// What a run of `select` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Living threads that were visited.
    pub(crate) seen: u64,
    /// Those whose tracking changed.
    pub(crate) changed: u64,
    /// Those for which the kernel had no memory.
    pub(crate) failed: u64,
}

/// Loaded programs. See the module's text.
pub(crate) struct Host {
    state: Mutex<State>,
}

struct State {
    /// The last monitor has gone; nobody can join any more.
    retired: bool,
    /// Numbers in use.
    taken: u64,
    /// Which monitors have selected a cgroup, by its id: what the map holds.
    cgroups: BTreeMap<u64, u64>,
    shared: SharedPage,
    sched: Loaded,
    /// The program that looks for threads.
    select: OwnedFd,
    /// The hooks that not everybody hears, and how many do. Nobody yet where they were loaded for a monitor
    /// that is about to begin.
    more: BTreeMap<Hook, (Loaded, u32)>,
    /// Loaded with the first probe.
    probes: Option<Object>,
    maps: Maps,
    mask_interrupts: bool,
}

/// The host that new monitors join, if there is one.
static HOST: Mutex<Weak<Host>> = Mutex::new(Weak::new());

/// A place in a host, given back when dropped.
pub(crate) struct Seat {
    host: Arc<Host>,
    pub(crate) number: u32,
    /// What the programs had not entered when the monitor began.
    before: NotEntered,
    /// The hooks that it hears beyond those that are always heard.
    hooks: Vec<Hook>,
    /// Its probes. libbpf keeps what a static probe needs with the programs, which outlive it.
    probes: Vec<Attached>,
    left: bool,
}

impl Seat {
    /// Joins the programs of this process, or loads them, with those of wake-ups if they will be needed; the
    /// phrase in the error follows "because". Apart, and without masked interrupts, for tests, the host is
    /// one's own.
    pub(crate) fn take(mask_interrupts: bool, apart: bool, wakeups: bool) -> Result<Self, String> {
        if !mask_interrupts || apart {
            let host = Arc::new(Host::load(mask_interrupts, wakeups)?);
            return Self::join(&host).unwrap_or_else(|| Err(full()));
        }
        // Loading takes a while, and nobody may load beside.
        let mut shared = HOST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = shared.upgrade() {
            if let Some(seat) = Self::join(&host) {
                return seat;
            }
        }
        let host = Arc::new(Host::load(true, wakeups)?);
        *shared = Arc::downgrade(&host);
        Self::join(&host).unwrap_or_else(|| Err(full()))
    }

    /// `None` if the host takes nobody any more.
    fn join(host: &Arc<Host>) -> Option<Result<Self, String>> {
        let mut state = host.locked();
        if state.retired {
            return None;
        }
        let number = (!state.taken).trailing_zeros();
        if number >= MONITORS {
            return Some(Err(full()));
        }
        state.taken |= 1 << number;
        state.shared.set(Member::Live, number, true);
        let before = state.not_entered();
        drop(state);
        Some(Ok(Self {
            host: Arc::clone(host),
            number,
            before,
            hooks: Vec::new(),
            probes: Vec::new(),
            left: false,
        }))
    }

    /// Has everybody else keep out, so that the programs can be handed over; an error is how many
    /// share them.
    pub(crate) fn close(&self) -> Result<(), u32> {
        let mut state = self.host.locked();
        let others = (state.taken & !(1 << self.number)).count_ones();
        if others > 0 {
            return Err(others);
        }
        state.retired = true;
        Ok(())
    }

    /// Takes back [`Self::close`]: the programs stay.
    pub(crate) fn open_again(&self) {
        self.host.locked().retired = false;
    }

    /// Whether it has probes that cannot be handed over.
    pub(crate) fn has_bound_probes(&self) -> bool {
        self.probes.iter().any(Attached::is_bound)
    }

    /// What was not entered when the monitor began.
    pub(crate) fn before(&self) -> &NotEntered {
        &self.before
    }

    /// Calls with all descriptors, of which those of the rings are given, and with whose rings each
    /// program writes.
    pub(crate) fn with_files<T>(
        &self,
        buffers: Vec<BorrowedFd<'_>>,
        call: impl FnOnce(Files<BorrowedFd<'_>>, Vec<Hook>, Vec<u32>) -> T,
    ) -> T {
        let state = self.host.locked();
        let more = || state.more.values().map(|(loaded, _)| loaded);
        let all = || [&state.sched].into_iter().chain(more());
        let points = || self.probes.iter().filter_map(|probe| probe.point.as_ref());
        let files = Files {
            shared: state.maps.shared.as_fd(),
            rings: state.maps.rings.as_fd(),
            tracked: state.maps.tracked.as_fd(),
            cgroups: state.maps.cgroups.as_fd(),
            select: state.select.as_fd(),
            buffers,
            links: all()
                .flat_map(|it| it.links.iter().map(|(_, link)| link))
                .chain(self.probes.iter().flat_map(|probe| &probe.links))
                .map(AsFd::as_fd)
                .collect(),
            writers: all()
                .flat_map(|it| &it.writers)
                .map(|(_, program)| program.as_fd())
                .collect(),
            points: points().map(|(_, program)| program.as_fd()).collect(),
        };
        let hooks = all()
            .flat_map(|it| &it.writers)
            .map(|(hook, _)| *hook)
            .collect();
        call(files, hooks, points().map(|(slot, _)| *slot).collect())
    }

    /// The monitor is another process' now: its programs and maps are not touched any more. What keeps its
    /// probes here is closed, and the receiver has it, too.
    pub(crate) fn forget(mut self) {
        self.left = true;
    }

    /// A place in programs that another process has loaded.
    pub(crate) fn received(parcel: &Parcel, files: Files<OwnedFd>) -> io::Result<Self> {
        let page = Mapping::new(files.shared.as_fd(), SHARED_BYTES, Access::Write)?;
        let points = parcel.points.iter().copied().zip(files.points);
        let probes = points.map(Attached::received).collect();
        let writers = parcel.writers.iter().copied().zip(files.writers);
        let host = Host {
            state: Mutex::new(State {
                // Nobody joins: who loads more would need what the giver had.
                retired: true,
                taken: 1 << parcel.number,
                cgroups: BTreeMap::new(),
                shared: SharedPage(page.part(0, SHARED_BYTES)),
                sched: Loaded {
                    // They end together.
                    links: files.links.into_iter().map(|link| (None, link)).collect(),
                    writers: writers.collect(),
                    lacking: Vec::new(),
                },
                select: files.select,
                more: BTreeMap::new(),
                probes: None,
                maps: Maps {
                    shared: Map(files.shared),
                    rings: Map(files.rings),
                    tracked: Map(files.tracked),
                    cgroups: Map(files.cgroups),
                },
                mask_interrupts: true,
            }),
        };
        Ok(Self {
            host: Arc::new(host),
            number: parcel.number,
            before: parcel.before.clone(),
            hooks: Vec::new(),
            probes,
            left: false,
        })
    }

    /// What this kernel lacks of scheduling, as phrases.
    pub(crate) fn notes(&self) -> Vec<&'static str> {
        self.host.locked().sched.notes()
    }

    /// Has the programs of a hook that is not always heard at work, and returns what this kernel lacks
    /// of it, as phrases.
    pub(crate) fn need(&mut self, hook: Hook) -> Result<Vec<&'static str>, String> {
        let mut state = self.host.locked();
        if let Some((loaded, users)) = state.more.get_mut(&hook) {
            *users += 1;
            self.hooks.push(hook);
            return Ok(loaded.notes());
        }
        let loaded = load::load_hook(hook, state.mask_interrupts, &state.maps)?;
        let notes = loaded.notes();
        state.more.insert(hook, (loaded, 1));
        self.hooks.push(hook);
        Ok(notes)
    }

    /// Attaches a probe that writes into the rings of a slot.
    pub(crate) fn probe(&mut self, probe: &ResolvedProbe, slot: u32) -> Result<(), ProbeError> {
        let mut state = self.host.locked();
        let state = &mut *state;
        if let ProbeTarget::Point(point) = &probe.target {
            let settings = point.settings(self.number, slot);
            let attached =
                load::attach_point(point, &settings, slot, state.mask_interrupts, &state.maps);
            self.probes
                .push(attached.map_err(|why| ProbeError::NotTraceable {
                    what: probe.probe.what(),
                    why,
                })?);
            return Ok(());
        }
        let object = match &mut state.probes {
            Some(object) => object,
            None => {
                let object = load::load_probes(state.mask_interrupts, &state.maps);
                let object = object.map_err(|why| ProbeError::NeedsBpf { why })?;
                state.probes.insert(object)
            }
        };
        let cookie = u64::from(probe.slot_shift() << 16 | self.number << 8 | slot);
        self.probes.push(load::attach(object, probe, cookie)?);
        Ok(())
    }

    /// Has a hook's programs write into these rings for this monitor.
    pub(crate) fn hear(&self, slot: u32, rings: &Rings) -> io::Result<()> {
        let state = self.host.locked();
        let index = self.number * SLOTS + slot;
        // The shape first: a program that finds the rings must know how they are laid out.
        let capacity = rings.geometry().capacity();
        state.shared.shape(index, rings.pages, capacity);
        let fd = rings.map.as_raw_fd().to_ne_bytes();
        state.maps.rings.update(index.to_ne_bytes(), fd)
    }

    /// Resumes or suspends the monitor.
    pub(crate) fn set_active(&self, active: bool) {
        let state = self.host.locked();
        state.shared.set(Member::Active, self.number, active);
    }

    /// Whether the monitor hears the CPUs themselves.
    pub(crate) fn set_everything(&self, everything: bool) {
        let state = self.host.locked();
        state
            .shared
            .set(Member::Everything, self.number, everything);
    }

    /// Runs `select` for this monitor.
    pub(crate) fn select(
        &self,
        operation: Operation,
        target: Target,
        manner: Manner,
    ) -> io::Result<Selected> {
        self.host
            .locked()
            .select(self.number, operation, target, manner)
    }

    /// Selects a cgroup. The threads in it are tracked by the next [`Operation::Regroup`].
    pub(crate) fn add_cgroup(&self, id: u64) -> io::Result<()> {
        let mut state = self.host.locked();
        let monitors = state.cgroups.get(&id).copied().unwrap_or(0) | 1 << self.number;
        let (key, value) = (id.to_ne_bytes(), monitors.to_ne_bytes());
        state.maps.cgroups.update(key, value)?;
        state.cgroups.insert(id, monitors);
        state.shared.set(Member::ByCgroup, self.number, true);
        Ok(())
    }

    /// How many processes have changed their cgroup since the programs were loaded.
    pub(crate) fn cgroup_moves(&self) -> u64 {
        self.host.locked().shared.load(Member::CgroupMoves)
    }

    /// How often and how long the programs of a hook have run, for whomever.
    pub(crate) fn runs(&self, hook: Hook) -> Runs {
        let state = self.host.locked();
        let more = state.more.values().map(|(loaded, _)| loaded);
        let writers = [&state.sched].into_iter().chain(more);
        let writers = writers.flat_map(|loaded| &loaded.writers);
        writers
            .filter(|(of, _)| *of == hook)
            .map(|(_, program)| Runs::parse(&about(program.as_fd())))
            .sum()
    }

    /// Ends the monitor: when this returns, no program writes for it any more. Returns what was
    /// not entered in its time.
    pub(crate) fn leave(&mut self) -> NotEntered {
        if mem::replace(&mut self.left, true) {
            return NotEntered::new();
        }
        let mut state = self.host.locked();
        let points = mem::take(&mut self.probes);
        let points: Vec<_> = points.into_iter().filter_map(Attached::detach).collect();
        state.remove(self.number);
        let mut counts = state.not_entered();
        for hook in mem::take(&mut self.hooks) {
            if let Some((_, users)) = state.more.get_mut(&hook) {
                *users -= 1;
                if *users == 0 {
                    state.more.remove(&hook);
                }
            }
        }
        for (slot, count) in &mut counts {
            *count -= self.before.get(slot).copied().unwrap_or(0).min(*count);
        }
        // Their programs were loaded for this monitor.
        for (slot, program) in &points {
            *counts.entry(*slot).or_default() += not_entered(program.as_fd());
        }
        counts
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.leave();
    }
}

fn full() -> String {
    format!("this process has {MONITORS} kernel monitors already, which is as many as there can be")
}

impl Host {
    fn load(mask_interrupts: bool, wakeups: bool) -> Result<Self, String> {
        let (mut sched, select, maps) = load::load_sched(mask_interrupts, wakeups)?;
        let mut more = BTreeMap::new();
        let of_wakeups = sched.split_off(Hook::Wake);
        // Where they were refused together with others, who needs them tries them alone.
        if !of_wakeups.links.is_empty() {
            more.insert(Hook::Wake, (of_wakeups, 0));
        }
        let page = Mapping::new(maps.shared.as_fd(), SHARED_BYTES, Access::Write);
        let page = page.map_err(|error| {
            let why = machine::error_text(error);
            format!("the words shared with the BPF programs cannot be mapped ({why})")
        })?;
        Ok(Self {
            state: Mutex::new(State {
                retired: false,
                taken: 0,
                cgroups: BTreeMap::new(),
                shared: SharedPage(page.part(0, SHARED_BYTES)),
                sched,
                select,
                more,
                probes: None,
                maps,
                mask_interrupts,
            }),
        })
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        // A panic leaves no call of `State` half done: each changes one thing after another.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn select(
        &self,
        number: u32,
        operation: Operation,
        target: Target,
        manner: Manner,
    ) -> io::Result<Selected> {
        let store = |member, value: u64| self.shared.store(member, value);
        store(Member::Operation, operation as u64);
        store(Member::Monitor, number.into());
        store(Member::Inherit, manner.inherit.into());
        store(Member::UniqueId, manner.announce.unwrap_or(0).into());
        store(Member::Announce, manner.announce.is_some().into());
        store(Member::Held, manner.held.into());
        for answer in [Member::Seen, Member::Changed, Member::Failed] {
            store(answer, 0);
        }
        visit(self.select.as_fd(), target)?;
        Ok(Selected {
            seen: self.shared.load(Member::Seen),
            changed: self.shared.load(Member::Changed),
            failed: self.shared.load(Member::Failed),
        })
    }

    /// See rule 4 in `monitors.h`.
    fn remove(&mut self, number: u32) {
        let bit = 1 << number;
        for set in [
            Member::Active,
            Member::Live,
            Member::Everything,
            Member::ByCgroup,
        ] {
            self.shared.set(set, number, false);
        }
        self.taken &= !bit;
        if self.taken == 0 {
            // Nobody is left to write for: detached, the counts are final.
            self.retired = true;
            self.sched.links.clear();
            for (loaded, _) in self.more.values_mut() {
                loaded.links.clear();
            }
            return;
        }
        let cgroups: Vec<u64> = self.cgroups.keys().copied().collect();
        for id in cgroups {
            let rest = self.cgroups.get(&id).copied().unwrap_or(0) & !bit;
            let key = id.to_ne_bytes();
            // Neither call can fail for a key that is there, and at worst a fork asks in vain.
            if rest == 0 {
                let _ = self.maps.cgroups.delete(key);
                self.cgroups.remove(&id);
            } else {
                let _ = self.maps.cgroups.update(key, rest.to_ne_bytes());
                self.cgroups.insert(id, rest);
            }
        }
        for slot in 0..SLOTS {
            // The kernel returns when no program holds the old value any more; most slots are
            // empty and answer at once.
            let index = number * SLOTS + slot;
            let _ = self.maps.rings.delete(index.to_ne_bytes());
        }
        // A thread that was being created escapes one pass, but not the next.
        let forget = || {
            let result = self.select(number, Operation::Forget, Target::All, Manner::default());
            result.is_ok_and(|selected| selected.changed > 0)
        };
        while forget() {}
    }

    /// Sums over the programs of each hook.
    fn not_entered(&self) -> NotEntered {
        let mut counts = NotEntered::new();
        let more = self.more.values().map(|(loaded, _)| loaded);
        for loaded in [&self.sched].into_iter().chain(more) {
            for (hook, program) in &loaded.writers {
                *counts.entry(*hook as u32).or_default() += not_entered(program.as_fd());
            }
        }
        counts
    }
}

/// How often the kernel did not enter a program because its CPU was in it already; 0 before
/// Linux 5.12, which counts it first. The descriptor's file tells what `bpf_prog_info` has as
/// `recursion_misses`.
fn not_entered(program: BorrowedFd<'_>) -> u64 {
    machine::field(&about(program), "recursion_misses:")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

/// What the file of a program's descriptor tells; nothing if it cannot be read.
fn about(program: BorrowedFd<'_>) -> String {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{fs, AsRawFd, Host};

    #[test]
    fn the_kernel_says_what_it_did_not_enter() {
        let host = match Host::load(true, true) {
            Ok(host) => host,
            Err(why) => return println!("skipped: {why}"),
        };
        let state = host.locked();
        assert!(!state.sched.writers.is_empty());
        for (_, program) in &state.sched.writers {
            let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
            let info = fs::read_to_string(path).unwrap();
            assert!(info.contains("\nrecursion_misses:\t"), "{info}");
        }
    }
}
