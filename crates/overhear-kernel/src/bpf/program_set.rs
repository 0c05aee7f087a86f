// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ProgramSet`]: loaded programs, and the monitors of this process that they serve.
//!
//! A process loads its programs with its first monitor; they end with its last one. Only
//! descriptors of this process keep them: when it dies, in whatever way, the kernel detaches the
//! programs and frees the maps.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{fs, mem};

use libbpf_rs::Object;

use super::load::{self, Loaded, Maps};
use super::map::Map;
use super::placed_probe::PlacedProbe;
use super::rings::Rings;
use super::select::{visit, Target};
use super::shared::{Operation, SharedPage, SharedWord, MONITORS, SHARED_BYTES, SLOTS};
use super::switcher::{Site, Switcher};
use super::types::{Files, HandoverMessage, RecursionMisses};
use crate::machine;
use crate::mapping::{Access, Mapping};
use crate::probe::{ProbeTarget, ResolvedProbe};
use crate::streams::Hook;
use crate::{ProbeError, ProgStats};

/// Options of tracking a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrackOptions {
    /// Children are tracked as well.
    pub(crate) inherit: bool,
    /// Unique id in the TRACKED element; `None` writes no such element.
    pub(crate) announce: Option<u32>,
    /// The thread is held before its execve; until then only scheduling is recorded.
    pub(crate) held: bool,
}

/// Result of a run of `select`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    /// Number of living threads that were visited.
    pub(crate) seen: u64,
    /// Number of threads whose tracking changed.
    pub(crate) changed: u64,
    /// Number of threads for which the kernel had no memory.
    pub(crate) failed: u64,
}

/// Loaded programs; see the module.
pub(crate) struct ProgramSet {
    state: Mutex<State>,
    /// Programs of probes, loaded with the first probe. They have a lock of their own, because
    /// attaching waits for the kernel. It is taken before that of the state.
    probes: Mutex<Option<Object>>,
}

struct State {
    /// True after the last monitor has left: no monitor can join.
    retired: bool,
    /// Bit set of used monitor numbers.
    used_slots: u64,
    /// Content of the map of cgroups: sets of monitors by cgroup id.
    cgroups: BTreeMap<u64, u64>,
    shared: SharedPage,
    sched: Loaded,
    /// The program `select`.
    select: OwnedFd,
    /// Programs of optional hooks, with the number of monitors that use them. It is 0 if they were
    /// loaded for a monitor that is being created.
    optional: BTreeMap<Hook, (Loaded, u32)>,
    maps: Maps,
    mask_interrupts: bool,
}

/// Programs that new monitors of this process join, if any.
static SHARED_PROGRAMS: Mutex<Weak<ProgramSet>> = Mutex::new(Weak::new());

/// Slot of a monitor in a program set; released on drop.
pub(crate) struct MonitorSlot {
    programs: Arc<ProgramSet>,
    pub(crate) number: u32,
    /// Recursion misses when the monitor began.
    baseline: RecursionMisses,
    /// Optional hooks of the monitor.
    hooks: Vec<Hook>,
    /// Probes. libbpf keeps data of static probes with the programs, which live longer.
    probes: Arc<Mutex<Vec<PlacedProbe>>>,
    /// Ring slots of those that can be detached. The others are not locked while one is attached.
    detachable_probes: Vec<u32>,
    /// Started with the first detachment.
    switcher: Option<Switcher>,
    is_released: bool,
}

impl MonitorSlot {
    /// Joins the programs of this process, or loads them, with those of wake-ups if `wakeups`. The
    /// phrase in the error follows "because". With `dedicated_programs`, or without masked
    /// interrupts (for tests), the monitor gets a program set of its own.
    pub(crate) fn acquire(
        mask_interrupts: bool,
        dedicated_programs: bool,
        wakeups: bool,
    ) -> Result<Self, String> {
        if !mask_interrupts || dedicated_programs {
            let programs = Arc::new(ProgramSet::load(mask_interrupts, wakeups)?);
            return Self::join(&programs).unwrap_or_else(|| Err(no_free_slot()));
        }
        // Loading takes time; the lock prevents a second, concurrent load.
        let mut shared = SHARED_PROGRAMS
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(programs) = shared.upgrade() {
            if let Some(slot) = Self::join(&programs) {
                return slot;
            }
        }
        let programs = Arc::new(ProgramSet::load(true, wakeups)?);
        *shared = Arc::downgrade(&programs);
        Self::join(&programs).unwrap_or_else(|| Err(no_free_slot()))
    }

    /// `None` if the program set is retired.
    fn join(programs: &Arc<ProgramSet>) -> Option<Result<Self, String>> {
        let mut state = programs.locked();
        if state.retired {
            return None;
        }
        let number = (!state.used_slots).trailing_zeros();
        if number >= MONITORS {
            return Some(Err(no_free_slot()));
        }
        state.used_slots |= 1 << number;
        state.shared.set(SharedWord::Live, number, true);
        let baseline = state.recursion_misses();
        drop(state);
        Some(Ok(Self {
            programs: Arc::clone(programs),
            number,
            baseline,
            hooks: Vec::new(),
            probes: Arc::default(),
            detachable_probes: Vec::new(),
            switcher: None,
            is_released: false,
        }))
    }

    /// Keeps other monitors from joining, so that the programs can be handed over; the error is the
    /// number of other monitors.
    pub(crate) fn close_to_others(&self) -> Result<(), u32> {
        let mut state = self.programs.locked();
        let others = (state.used_slots & !(1 << self.number)).count_ones();
        if others > 0 {
            return Err(others);
        }
        state.retired = true;
        Ok(())
    }

    /// Takes back [`Self::close_to_others`]: the programs stay.
    pub(crate) fn reopen(&self) {
        self.programs.locked().retired = false;
    }

    /// Whether it has probes that cannot be handed over.
    pub(crate) fn has_bound_probes(&self) -> bool {
        lock(&self.probes).iter().any(PlacedProbe::is_bound)
    }

    /// Recursion misses when the monitor began.
    pub(crate) fn baseline(&self) -> &RecursionMisses {
        &self.baseline
    }

    /// Calls `call` with all descriptors, the hook of each program, and the ring slot of each
    /// point. `buffers` are those of the rings.
    pub(crate) fn with_files<T>(
        &self,
        buffers: Vec<BorrowedFd<'_>>,
        call: impl FnOnce(Files<BorrowedFd<'_>>, Vec<Hook>, Vec<u32>) -> T,
    ) -> T {
        let state = self.programs.locked();
        let optional = || state.optional.values().map(|(loaded, _)| loaded);
        let all = || [&state.sched].into_iter().chain(optional());
        let probes = lock(&self.probes);
        let attached = || probes.iter().filter_map(PlacedProbe::attached);
        let points = || attached().filter_map(|probe| probe.point.as_ref());
        let files = Files {
            shared: state.maps.shared.as_fd(),
            rings: state.maps.rings.as_fd(),
            tracked: state.maps.tracked.as_fd(),
            cgroups: state.maps.cgroups.as_fd(),
            select: state.select.as_fd(),
            buffers,
            links: all()
                .flat_map(|it| it.links.iter().map(|(_, link)| link))
                .chain(attached().flat_map(|probe| &probe.links))
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

    /// Gives up the monitor after its hand-over: its programs and maps are not changed any more.
    /// Links of its probes are closed here; the receiver has them as well.
    pub(crate) fn disown(mut self) {
        self.is_released = true;
    }

    /// A slot in programs that another process has loaded.
    pub(crate) fn received(message: &HandoverMessage, files: Files<OwnedFd>) -> io::Result<Self> {
        let page = Mapping::new(files.shared.as_fd(), SHARED_BYTES, Access::Write)?;
        let points = message.points.iter().copied().zip(files.points);
        let probes = points.map(PlacedProbe::received).collect();
        let writers = message.writers.iter().copied().zip(files.writers);
        let programs = ProgramSet {
            state: Mutex::new(State {
                // No monitor can join: loading further programs would need privileges of the giver.
                retired: true,
                used_slots: 1 << message.number,
                cgroups: BTreeMap::new(),
                shared: SharedPage(page.part(0, SHARED_BYTES)),
                sched: Loaded {
                    // They end together.
                    links: files.links.into_iter().map(|link| (None, link)).collect(),
                    writers: writers.collect(),
                    missing: Vec::new(),
                },
                select: files.select,
                optional: BTreeMap::new(),
                maps: Maps {
                    shared: Map(files.shared),
                    rings: Map(files.rings),
                    tracked: Map(files.tracked),
                    cgroups: Map(files.cgroups),
                },
                mask_interrupts: true,
            }),
            probes: Mutex::new(None),
        };
        Ok(Self {
            programs: Arc::new(programs),
            number: message.number,
            baseline: message.baseline.clone(),
            hooks: Vec::new(),
            probes: Arc::new(Mutex::new(probes)),
            detachable_probes: Vec::new(),
            switcher: None,
            is_released: false,
        })
    }

    /// Programs of scheduling that this kernel lacks, as phrases.
    pub(crate) fn notes(&self) -> Vec<&'static str> {
        self.programs.locked().sched.notes()
    }

    /// Loads the programs of an optional hook if needed; returns what this kernel lacks of it, as
    /// phrases.
    pub(crate) fn acquire_hook(&mut self, hook: Hook) -> Result<Vec<&'static str>, String> {
        let mut state = self.programs.locked();
        if let Some((loaded, users)) = state.optional.get_mut(&hook) {
            // A budget of another monitor may have detached them.
            if loaded.links.is_empty() {
                let programs = loaded.programs();
                let links = programs.and_then(|them| load::attach_again_to_tracepoints(&them));
                loaded.links = links.map_err(machine::error_text)?;
            }
            *users += 1;
            self.hooks.push(hook);
            return Ok(loaded.notes());
        }
        let loaded = load::load_hook(hook, state.mask_interrupts, &state.maps)?;
        let notes = loaded.notes();
        state.optional.insert(hook, (loaded, 1));
        self.hooks.push(hook);
        Ok(notes)
    }

    /// Attaches a probe that writes into the rings of a slot.
    pub(crate) fn probe(&mut self, probe: &ResolvedProbe, slot: u32) -> Result<(), ProbeError> {
        let mut object = self.programs.locked_probes();
        let state = self.programs.locked();
        if let ProbeTarget::Point(point) = &probe.target {
            let settings = point.settings(self.number, slot);
            let attached =
                load::attach_point(point, &settings, slot, state.mask_interrupts, &state.maps);
            let attached = attached.map_err(|why| ProbeError::NotTraceable {
                what: probe.probe.what(),
                why,
            })?;
            lock(&self.probes).push(PlacedProbe::of_kernel(slot, attached));
            return Ok(());
        }
        let object = match &mut *object {
            Some(object) => object,
            none => {
                let object = load::load_probes(state.mask_interrupts, &state.maps);
                let object = object.map_err(|why| ProbeError::NeedsBpf { why })?;
                none.insert(object)
            }
        };
        let cookie = u64::from(probe.slot_shift() << 16 | self.number << 8 | slot);
        let placed = PlacedProbe::of_program(object, probe, slot, cookie)?;
        lock(&self.probes).push(placed);
        self.detachable_probes.push(slot);
        Ok(())
    }

    /// Whether a budget can detach what writes into the rings of a slot: probes of programs, and
    /// the programs of a hook that keep no state and that no other monitor uses.
    pub(crate) fn is_detachable(&self, slot: u32, hook: Hook) -> bool {
        if hook == Hook::Probe {
            return self.detachable_probes.contains(&slot);
        }
        let state = self.programs.locked();
        let users = state.optional.get(&hook).map(|(_, users)| *users);
        hook.is_stateless() && users == Some(1)
    }

    /// Switches what the monitor writes into the rings of a slot off for a budget, and detaches the
    /// programs. That, and attaching them again, waits for the kernel, so a thread does it later.
    pub(crate) fn detach(&mut self, slot: u32, hook: Hook) -> io::Result<()> {
        self.switcher()?.detach(slot, hook);
        Ok(())
    }

    /// Switches what the monitor writes into the rings of a slot off for a budget, or on again,
    /// after its programs are attached if they were detached.
    pub(crate) fn set_off(&self, slot: u32, is_off: bool) {
        match &self.switcher {
            Some(switcher) => switcher.set_off(slot, is_off),
            None => self
                .programs
                .locked()
                .shared
                .set_off(slot, self.number, is_off),
        }
    }

    /// Whether the programs that write into the rings of a slot are attached.
    pub(crate) fn is_attached(&self, slot: u32) -> bool {
        let switcher = self.switcher.as_ref();
        switcher.is_none_or(|switcher| switcher.is_attached(slot))
    }

    /// What went wrong in the thread since the last call.
    pub(crate) fn take_problems(&self) -> Vec<String> {
        let switcher = self.switcher.as_ref();
        switcher.map_or_else(Vec::new, Switcher::take_problems)
    }

    fn switcher(&mut self) -> io::Result<&Switcher> {
        if self.switcher.is_none() {
            let site = SwitchSite {
                programs: Arc::clone(&self.programs),
                number: self.number,
                probes: Arc::clone(&self.probes),
            };
            self.switcher = Some(Switcher::start(site)?);
        }
        self.switcher
            .as_ref()
            .ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Sets the rings into which the programs of a hook write for this monitor.
    pub(crate) fn set_rings(&self, slot: u32, rings: &Rings) -> io::Result<()> {
        let state = self.programs.locked();
        let index = self.number * SLOTS + slot;
        // The shape first: a program that finds the rings must know how they are laid out.
        let capacity = rings.geometry().capacity();
        state.shared.shape(index, rings.pages, capacity);
        let fd = rings.map.as_raw_fd().to_ne_bytes();
        state.maps.rings.update(index.to_ne_bytes(), fd)
    }

    /// Resumes or suspends the monitor.
    pub(crate) fn set_active(&self, active: bool) {
        let state = self.programs.locked();
        state.shared.set(SharedWord::Active, self.number, active);
    }

    /// Sets whether the monitor records idle CPUs.
    pub(crate) fn set_everything(&self, everything: bool) {
        let state = self.programs.locked();
        state
            .shared
            .set(SharedWord::Everything, self.number, everything);
    }

    /// Runs `select` for this monitor.
    pub(crate) fn select(
        &self,
        operation: Operation,
        target: Target,
        options: TrackOptions,
    ) -> io::Result<Selected> {
        self.programs
            .locked()
            .select(self.number, operation, target, options)
    }

    /// Selects a cgroup. The threads in it are tracked by the next [`Operation::Regroup`].
    pub(crate) fn add_cgroup(&self, id: u64) -> io::Result<()> {
        let mut state = self.programs.locked();
        let monitors = state.cgroups.get(&id).copied().unwrap_or(0) | 1 << self.number;
        let (key, value) = (id.to_ne_bytes(), monitors.to_ne_bytes());
        state.maps.cgroups.update(key, value)?;
        state.cgroups.insert(id, monitors);
        state.shared.set(SharedWord::ByCgroup, self.number, true);
        Ok(())
    }

    /// Number of processes that changed their cgroup since the programs were loaded.
    pub(crate) fn cgroup_moves(&self) -> u64 {
        self.programs.locked().shared.load(SharedWord::CgroupMoves)
    }

    /// Run count and run time of the programs of a hook, for all monitors.
    pub(crate) fn prog_stats(&self, hook: Hook) -> ProgStats {
        let state = self.programs.locked();
        let optional = state.optional.values().map(|(loaded, _)| loaded);
        let writers = [&state.sched].into_iter().chain(optional);
        let writers = writers.flat_map(|loaded| &loaded.writers);
        writers
            .filter(|(of, _)| *of == hook)
            .map(|(_, program)| ProgStats::parse(&fdinfo(program.as_fd())))
            .sum()
    }

    /// Ends the monitor: after the return no program writes for it. Returns the recursion misses of
    /// its lifetime.
    pub(crate) fn release(&mut self) -> RecursionMisses {
        if mem::replace(&mut self.is_released, true) {
            return RecursionMisses::new();
        }
        // Its thread ends before the monitor does.
        self.switcher = None;
        let points = mem::take(&mut *lock(&self.probes));
        let mut state = self.programs.locked();
        let points: Vec<_> = points.into_iter().filter_map(PlacedProbe::end).collect();
        state.remove(self.number);
        let mut counts = state.recursion_misses();
        for hook in mem::take(&mut self.hooks) {
            if let Some((_, users)) = state.optional.get_mut(&hook) {
                *users -= 1;
                if *users == 0 {
                    state.optional.remove(&hook);
                }
            }
        }
        for (slot, count) in &mut counts {
            *count -= self.baseline.get(slot).copied().unwrap_or(0).min(*count);
        }
        // Their programs were loaded for this monitor.
        for (slot, program) in &points {
            *counts.entry(*slot).or_default() += recursion_misses(program.as_fd());
        }
        counts
    }
}

impl Drop for MonitorSlot {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// A panic leaves no method half done: each one makes its changes one after the other.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread of a [`Switcher`] works on.
struct SwitchSite {
    programs: Arc<ProgramSet>,
    number: u32,
    probes: Arc<Mutex<Vec<PlacedProbe>>>,
}

impl Site for SwitchSite {
    fn detach(&self, slot: u32, hook: Hook) {
        if hook == Hook::Probe {
            let mut probes = lock(&self.probes);
            let probe = probes.iter_mut().find(|probe| probe.slot == slot);
            let attached = probe.and_then(PlacedProbe::detach);
            // The links are closed without a lock.
            drop(probes);
            return drop(attached);
        }
        let mut state = self.programs.locked();
        let links = match state.optional.get_mut(&hook) {
            Some((loaded, 1)) => mem::take(&mut loaded.links),
            _ => Vec::new(),
        };
        drop(state);
        drop(links);
    }

    fn attach(&self, slot: u32, hook: Hook) -> Result<(), String> {
        if hook == Hook::Probe {
            let mut object = self.programs.locked_probes();
            let mut probes = lock(&self.probes);
            let probe = probes.iter_mut().find(|probe| probe.slot == slot);
            let (Some(object), Some(probe)) = (&mut *object, probe) else {
                return Ok(());
            };
            return probe.attach(object).map_err(|error| error.to_string());
        }
        let state = self.programs.locked();
        let Some((loaded, _)) = state.optional.get(&hook) else {
            return Ok(());
        };
        let programs = match loaded.links.is_empty() {
            true => loaded.programs(),
            false => return Ok(()),
        };
        if hook == Hook::Call {
            let before = state.shared.load(SharedWord::CallAttachments);
            state.shared.store(SharedWord::CallAttachments, before + 1);
        }
        // Without the lock: it waits for the kernel.
        drop(state);
        let links = programs.and_then(|programs| load::attach_again_to_tracepoints(&programs));
        let links = links.map_err(|error| {
            let why = machine::error_text(error);
            format!(
                "the programs of {} cannot be attached again ({why})",
                hook.sensor()
            )
        })?;
        if let Some((loaded, _)) = self.programs.locked().optional.get_mut(&hook) {
            // Another monitor may have attached them meanwhile.
            if loaded.links.is_empty() {
                loaded.links = links;
            }
        }
        Ok(())
    }

    fn set_off(&self, slot: u32, is_off: bool) {
        let state = self.programs.locked();
        state.shared.set_off(slot, self.number, is_off);
    }
}

fn no_free_slot() -> String {
    format!("this process has {MONITORS} kernel monitors already, which is the maximum")
}

impl ProgramSet {
    fn load(mask_interrupts: bool, wakeups: bool) -> Result<Self, String> {
        let (mut sched, select, maps) = load::load_sched(mask_interrupts, wakeups)?;
        let mut optional = BTreeMap::new();
        let wakeup_programs = sched.split_off(Hook::Wake);
        // If they were refused together with other programs, a monitor that needs them loads them
        // alone.
        if !wakeup_programs.links.is_empty() {
            optional.insert(Hook::Wake, (wakeup_programs, 0));
        }
        let page = Mapping::new(maps.shared.as_fd(), SHARED_BYTES, Access::Write);
        let page = page.map_err(|error| {
            let why = machine::error_text(error);
            format!("the words shared with the BPF programs cannot be mapped ({why})")
        })?;
        Ok(Self {
            state: Mutex::new(State {
                retired: false,
                used_slots: 0,
                cgroups: BTreeMap::new(),
                shared: SharedPage(page.part(0, SHARED_BYTES)),
                sched,
                select,
                optional,
                maps,
                mask_interrupts,
            }),
            probes: Mutex::new(None),
        })
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn locked_probes(&self) -> MutexGuard<'_, Option<Object>> {
        lock(&self.probes)
    }
}

impl State {
    fn select(
        &self,
        number: u32,
        operation: Operation,
        target: Target,
        options: TrackOptions,
    ) -> io::Result<Selected> {
        let store = |member, value: u64| self.shared.store(member, value);
        store(SharedWord::Operation, operation as u64);
        store(SharedWord::Monitor, number.into());
        store(SharedWord::Inherit, options.inherit.into());
        store(SharedWord::UniqueId, options.announce.unwrap_or(0).into());
        store(SharedWord::Announce, options.announce.is_some().into());
        store(SharedWord::Held, options.held.into());
        for answer in [SharedWord::Seen, SharedWord::Changed, SharedWord::Failed] {
            store(answer, 0);
        }
        visit(self.select.as_fd(), target)?;
        Ok(Selected {
            seen: self.shared.load(SharedWord::Seen),
            changed: self.shared.load(SharedWord::Changed),
            failed: self.shared.load(SharedWord::Failed),
        })
    }

    /// See rule 4 in `monitors.h`.
    fn remove(&mut self, number: u32) {
        let bit = 1 << number;
        for set in [
            SharedWord::Active,
            SharedWord::Live,
            SharedWord::Everything,
            SharedWord::ByCgroup,
        ] {
            self.shared.set(set, number, false);
        }
        for slot in 0..SLOTS {
            self.shared.set_off(slot, number, false);
        }
        self.used_slots &= !bit;
        if self.used_slots == 0 {
            // No monitor is left: after the programs are detached, the counts are final.
            self.retired = true;
            self.sched.links.clear();
            for (loaded, _) in self.optional.values_mut() {
                loaded.links.clear();
            }
            return;
        }
        let cgroups: Vec<u64> = self.cgroups.keys().copied().collect();
        for id in cgroups {
            let rest = self.cgroups.get(&id).copied().unwrap_or(0) & !bit;
            let key = id.to_ne_bytes();
            // Neither call can fail for a key that exists. At worst a fork finds an entry without
            // monitors.
            if rest == 0 {
                let _ = self.maps.cgroups.delete(key);
                self.cgroups.remove(&id);
            } else {
                let _ = self.maps.cgroups.update(key, rest.to_ne_bytes());
                self.cgroups.insert(id, rest);
            }
        }
        for slot in 0..SLOTS {
            // The kernel returns when no program uses the old value any more; most slots are empty,
            // and the call returns at once.
            let index = number * SLOTS + slot;
            let _ = self.maps.rings.delete(index.to_ne_bytes());
        }
        // A thread that is being created escapes one pass, but not the next.
        let forget = || {
            let result = self.select(
                number,
                Operation::Forget,
                Target::All,
                TrackOptions::default(),
            );
            result.is_ok_and(|selected| selected.changed > 0)
        };
        while forget() {}
    }

    /// Sums over the programs of each hook.
    fn recursion_misses(&self) -> RecursionMisses {
        let mut counts = RecursionMisses::new();
        let optional = self.optional.values().map(|(loaded, _)| loaded);
        for loaded in [&self.sched].into_iter().chain(optional) {
            for (hook, program) in &loaded.writers {
                *counts.entry(*hook as u32).or_default() += recursion_misses(program.as_fd());
            }
        }
        counts
    }
}

/// Number of calls that the kernel skipped because the program was already running on that CPU; 0
/// before Linux 5.12. The fdinfo file of the descriptor has it, as `recursion_misses` of
/// `bpf_prog_info`.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> u64 {
    machine::field(&fdinfo(program), "recursion_misses:")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

/// Content of the fdinfo file of a program; empty if it cannot be read.
fn fdinfo(program: BorrowedFd<'_>) -> String {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{fs, AsRawFd, ProgramSet};

    #[test]
    fn fdinfo_has_recursion_misses() {
        let programs = match ProgramSet::load(true, true) {
            Ok(programs) => programs,
            Err(why) => return println!("skipped: {why}"),
        };
        let state = programs.locked();
        assert!(!state.sched.writers.is_empty());
        for (_, program) in &state.sched.writers {
            let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
            let info = fs::read_to_string(path).unwrap();
            assert!(info.contains("\nrecursion_misses:\t"), "{info}");
        }
    }
}
