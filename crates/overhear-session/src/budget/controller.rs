// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller of a budget: writes and CPU times go into the budget, switches come out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use overhear_budget::{
    Actuator, Budget, EventPrice, PriceRegime, SourceCount, SourceId, SourceSpec, ThreadKey,
    TickInput, UnitCount,
};
use overhear_directory::{monotonic_now, SensorWrites};
use overhear_event::{Nanos, Origin, StreamDescriptor, StreamId, Timestamp};
use overhear_kernel::{possible_cpus, BudgetState, KernelWrites};

use super::counts::Counts;
use super::cpu_time::ProcessTimes;
use super::ended::EndedSensors;
use super::kernel::{entry_of, KernelPrices, KernelSource, DETACHABLE_DWELL};
use super::learning::{GroupPrice, Interval, LearnedPrice, Neighbours, Work};
use super::mode_times::{CostFactor, ModeTimes};
use super::new_processes::NewProcesses;
use super::prices::{SensorKind, WritePrices};
use super::problems::Problems;
use super::report::{BudgetOutcome, BudgetSensor, Counted};
use super::sensors::{BudgetedKernel, BudgetedSensors};
use super::settings::BudgetSettings;
use super::timer_tick::TimerTick;
use crate::error::{ErrorKind, SessionError};

/// Sources whose work explains the time of an interval, at most.
const HOTTEST: usize = 8;

/// While prices are too inexact to decide whether all sources may always be on, all of one kind are
/// off for one of this number of ticks: at first, and later.
const EXPLORED_TICKS: [u64; 2] = [4, 16];

/// A sensor with fewer than this part of all writes stays on in such a tick.
const EXPLORED_PART: f64 = 0.001;

/// Most of the target that skipped writes of programs are charged with.
const SKIPPED_PART: f64 = 0.5;

/// Longest time that a tick waits for current CPU times. Reading elements may take so long that
/// they never are.
const LONGEST_DELAY: Nanos = Nanos::from_ms(10);

/// Time after which a tick is due in any case: a program that appears is not in any CPU time yet,
/// and ended sensors of idle programs must not gather.
const LONGEST_TICK: Nanos = Nanos::from_ms(50);

/// Longest time for which sensors are detached to learn what their events cost.
const LONGEST_EXPLORATION: Nanos = Nanos::from_ms(1_000);

/// Sources that have about one price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PriceGroup {
    Program(SensorKind),
    /// A kernel sensor or a probe alone.
    Kernel(StreamId),
}

/// A sensor in the budget.
struct Source {
    id: SourceId,
    stream: StreamId,
    sensor: String,
    counts: Counts,
    is_on: bool,
    /// Never switched off, not even to learn its price.
    is_always_on: bool,
    has_ended: bool,
    group: PriceGroup,
    /// The price of an element less that of a skipped event.
    price: LearnedPrice,
    /// What a skipped write of a program's sensor costs, in ns.
    skipped_ns: f64,
    /// `None` for sensors of programs.
    kernel: Option<KernelSource>,
}

/// Keeps the monitoring overhead of the observed processes at a target, by switching their sensors.
///
/// It decides in [`BudgetController::wait`], between two rounds of the monitor: often enough,
/// because a tick is due after a hundredth of the window of the programs' CPU time. Its memory
/// grows with the number of sensors that live.
pub struct BudgetController {
    settings: BudgetSettings,
    budget: Budget,
    prices: WritePrices,
    sensors: Box<dyn BudgetedSensors>,
    kernel: Option<(Rc<RefCell<dyn BudgetedKernel>>, KernelPrices)>,
    /// Cost of checking and counting events of sensors that are off, in ns.
    counting_ns: f64,
    /// Corrects the prices of kernel sensors that are detached when they are off.
    factor: CostFactor,
    modes: ModeTimes,
    /// Since when they are switched off to learn that, and since when no event has come.
    exploring_since: Option<Timestamp>,
    plain_since: Option<Timestamp>,
    explore_from: Timestamp,
    sources: Vec<Source>,
    ended: EndedSensors,
    /// Index in `sources`.
    by_stream: BTreeMap<StreamId, usize>,
    by_id: BTreeMap<SourceId, usize>,
    groups: BTreeMap<PriceGroup, GroupPrice>,
    timer: TimerTick,
    /// When the next tick became due; the CPU times were not current since then.
    due: Option<Timestamp>,
    /// Whether CPU times were current at the begin of this interval.
    began_current: bool,
    times: ProcessTimes,
    new_processes: Rc<RefCell<NewProcesses>>,
    cpu: Nanos,
    next: Nanos,
    latest: Option<Timestamp>,
    /// Time of all CPUs between the last two ticks, in ns.
    most_ns: f64,
    cpus: f64,
    before: Interval,
    ticks: u64,
    problems: Problems,
}

impl BudgetController {
    /// A controller of all these sensors. The CPU time of their processes counts from now on, or
    /// from their first sensor on.
    ///
    /// # Errors
    /// [`SessionError`] if the settings cannot be kept.
    pub fn new(
        settings: BudgetSettings,
        prices: WritePrices,
        mut sensors: Box<dyn BudgetedSensors>,
    ) -> Result<Self, SessionError> {
        let budget = Budget::new(settings.target, settings.window);
        let budget =
            budget.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
        // From now on the last writes of sensors are kept.
        let living = sensors.writes();
        let mut controller = Self {
            settings,
            budget,
            prices,
            sensors,
            kernel: None,
            counting_ns: 0.0,
            factor: CostFactor::default(),
            modes: ModeTimes::default(),
            exploring_since: None,
            plain_since: None,
            explore_from: Timestamp::from_monotonic_ns(0),
            sources: Vec::new(),
            ended: EndedSensors::default(),
            by_stream: BTreeMap::new(),
            by_id: BTreeMap::new(),
            groups: BTreeMap::new(),
            timer: TimerTick::new(),
            due: None,
            began_current: false,
            times: ProcessTimes::default(),
            new_processes: Rc::default(),
            cpu: Nanos::ZERO,
            next: Nanos::ZERO,
            latest: None,
            most_ns: 0.0,
            cpus: f64::from(possible_cpus()),
            before: Interval::default(),
            ticks: 0,
            problems: Problems::default(),
        };
        for sensor in &living {
            controller.add_process_of(sensor);
        }
        Ok(controller)
    }

    /// Adds kernel sensors and probes that it can switch.
    pub(crate) fn add_kernel(
        &mut self,
        kernel: Rc<RefCell<impl BudgetedKernel + 'static>>,
        prices: KernelPrices,
    ) {
        if kernel.borrow().is_of_perf() {
            self.problems.note(
                "the budget does not contain the cost of kernel events, because they come from perf \
                 records, which cannot be switched",
            );
        }
        self.kernel = Some((kernel, prices));
    }

    /// Takes the last totals of the kernel sensors, which are about to end.
    pub(crate) fn end_kernel(&mut self, now: Timestamp) {
        self.next = Nanos::ZERO;
        self.due = Some(Timestamp::from_monotonic_ns(0));
        self.tick(now);
        self.kernel = None;
    }

    /// Adds a process whose CPU time counts, besides those that own sensors.
    pub(crate) fn add_process(&mut self, pid: u32) {
        self.times.add(pid);
    }

    /// The analysis that finds the processes that these create.
    pub(crate) fn new_processes(&self) -> Rc<RefCell<NewProcesses>> {
        Rc::clone(&self.new_processes)
    }

    /// Waits by `wait` for at most `pause`, until CPU times are current, and then decides if a tick
    /// is due. Reading elements first would make them late again, and later the more there are: the
    /// sensors would look cheaper than they are.
    pub fn wait(&mut self, pause: Duration, wait: impl FnOnce(Duration)) {
        wait(self.aligned(pause));
        self.tick(monotonic_now());
    }

    /// A pause of about this length after which CPU times are current. Loops that wait by
    /// themselves call [`BudgetController::tick`] after it, before they read elements.
    #[must_use]
    pub fn aligned(&mut self, pause: Duration) -> Duration {
        self.timer.aligned(pause, TimerTick::lateness_ns())
    }

    /// Decides, if a tick is due at this time.
    pub fn tick(&mut self, now: Timestamp) {
        let is_current = self.timer.is_fresh(TimerTick::lateness_ns());
        for pid in self.new_processes.borrow_mut().take() {
            self.times.add(pid);
        }
        let cpu = self.times.total();
        let latest = *self.latest.get_or_insert(now);
        if cpu < self.next && now.since(latest) < LONGEST_TICK {
            return;
        }
        let due = *self.due.get_or_insert(now);
        if !is_current && now.since(due) < LONGEST_DELAY {
            return;
        }
        self.due = None;
        self.latest = Some(now);
        self.most_ns = now.since(latest).as_ns() as f64 * self.cpus;
        let mut interval = self.take(cpu);
        interval.is_current = is_current && self.began_current;
        if interval.cpu_ns > 0.0 {
            self.learn(&interval);
        }
        self.before = interval;
        let target_share = self.settings.target.monitoring_share();
        self.explore_detached(target_share, now);
        let explores_detached = self.exploring_since.is_some();
        let counts: Vec<SourceCount> = self.sources.iter().map(Source::count).collect();
        let input = TickInput {
            now,
            cpu,
            own_cpu: Nanos::from_ns(self.counting_ns as u64),
            counts: &counts,
        };
        let outcome = match self.budget.tick(&input) {
            Ok(outcome) => outcome,
            Err(error) => {
                self.problems
                    .note(format!("the budget is not kept: {error}"));
                return;
            }
        };
        self.problems.exceed(outcome.unavoidable);
        self.next = cpu.plus(outcome.next_tick);
        self.ticks += 1;
        let kernel_sensors = self.sources.iter().filter(|it| it.kernel.is_some()).count();
        let switched: Vec<(SourceId, bool)> = outcome
            .settings
            .iter()
            .map(|setting| (setting.source, setting.is_on))
            .collect();
        let explored = self.explored();
        // Sensors that are written rarely cost too little to be explored.
        let all: f64 = self.before.work.iter().map(|work| work.all()).sum();
        let least = EXPLORED_PART * all;
        let (mut off, mut on, mut of_kernel) = (Vec::new(), Vec::new(), Vec::new());
        for (source, is_on) in switched {
            let Some(&index) = self.by_id.get(&source) else {
                continue;
            };
            let is_frequent = self.before.of(index).all() >= least;
            let source = &mut self.sources[index];
            let is_explored = !source.is_always_on
                && match source.counts_skipped() {
                    true => is_frequent && explored.contains(&source.group),
                    // All of them together, so that there is time without their events.
                    false => explores_detached,
                };
            let is_on = is_on && !is_explored;
            let is_changed = std::mem::replace(&mut source.is_on, is_on) != is_on;
            if let Some(kernel) = &mut source.kernel {
                let is_detached_now = !is_on && kernel.decide(target_share, kernel_sensors);
                if is_detached_now || is_changed {
                    of_kernel.push((source.stream, kernel.state(is_on)));
                }
            } else if is_changed {
                if is_on { &mut on } else { &mut off }.push(source.stream);
            }
        }
        self.carry_out(&off, &on);
        self.switch_kernel(&of_kernel);
        self.remove_ended();
        // The next interval begins here: what was done since the first reading belongs to none.
        self.began_current = self.timer.is_fresh(TimerTick::lateness_ns());
        let cpu = self.times.total();
        let _ = self.take(cpu);
    }

    /// Groups whose sources are off until the next tick, to learn what they cost. Without intervals
    /// that are off there are no pairs. Nothing is explored if everything may be on even at the
    /// highest prices that are possible.
    fn explored(&self) -> Vec<PriceGroup> {
        let could_cost = |(index, source): (usize, &Source)| {
            let highest_ns = source.price.highest_ns(&self.groups[&source.group]);
            self.before.of(index).all() * highest_ns
        };
        let could_cost: f64 = self.sources.iter().enumerate().map(could_cost).sum();
        if could_cost <= self.settings.target.monitoring_share() * self.before.cpu_ns {
            return Vec::new();
        }
        let kinds = self.groups.iter().zip(self.ticks..);
        let explored = kinds.filter(|((_, group), ticks)| {
            ticks.is_multiple_of(EXPLORED_TICKS[usize::from(!group.is_new())])
        });
        explored.map(|((kind, _), _)| *kind).collect()
    }

    /// Takes new totals, and the sensors that are named for the first time. Returns what was done
    /// since the last call.
    fn take(&mut self, cpu: Nanos) -> Interval {
        let cpu_ns = cpu.as_ns().saturating_sub(self.cpu.as_ns()) as f64;
        let writes = self.sensors.writes();
        let mut work = vec![Work::default(); self.sources.len()];
        let mut skipped_ns = 0.0;
        for sensor in &writes {
            let stream = sensor.descriptor.id;
            let index = match self.by_stream.get(&stream) {
                Some(index) => *index,
                None => match self.admit(sensor) {
                    Some(index) => index,
                    None => continue,
                },
            };
            work.resize(self.sources.len(), Work::default());
            let source = &mut self.sources[index];
            work[index] = source
                .counts
                .take(sensor.written, sensor.skipped, self.most_ns);
            if source.counts.are_damaged() {
                // Who knows how many writes it skipped.
                source.skipped_ns = 0.0;
                let label = sensor.descriptor.sensor_label();
                self.problems.note(format!(
                    "the counts of {label} are damaged: its budget is not exact"
                ));
            }
            skipped_ns += work[index].skipped * source.skipped_ns;
            if sensor.has_ended {
                source.has_ended = true;
                // The number may be that of another sensor now.
                self.by_stream.remove(&stream);
            }
        }
        self.cpu = cpu;
        // No switch can avoid it. If it is most of the target, half of the target is left for
        // elements: a budget that is exceeded anyway must not end the observation.
        let target_ns = self.settings.target.monitoring_share() * cpu_ns;
        self.counting_ns += skipped_ns.min(SKIPPED_PART * target_ns);
        self.take_kernel(cpu_ns, &mut work);
        Interval {
            cpu_ns,
            is_current: false,
            work,
        }
    }

    /// As [`Self::take`], for kernel sensors.
    fn take_kernel(&mut self, cpu_ns: f64, work: &mut Vec<Work>) {
        let Some((kernel, prices)) = &self.kernel else {
            return;
        };
        let (mut writes, prices) = (kernel.borrow().writes(), prices.clone());
        let mut detachable_ns = 0.0;
        // An entry probe comes before the return probe that requires it.
        writes.sort_by_key(|it| entry_of(&it.descriptor.sensor).is_some());
        for sensor in &writes {
            let known = self.by_stream.get(&sensor.descriptor.id).copied();
            let Some(index) = known.or_else(|| self.admit_kernel(sensor, &prices)) else {
                continue;
            };
            work.resize(self.sources.len(), Work::default());
            let source = &mut self.sources[index];
            work[index] = source
                .counts
                .take(sensor.written, sensor.skipped, self.most_ns);
            if let Some(kernel) = &mut source.kernel {
                let cost = kernel.book(work[index], cpu_ns);
                self.counting_ns += cost.counting_ns;
                detachable_ns += cost.detachable_ns;
                if !kernel.counts_skipped() {
                    // The rest of them was not counted, so they measure nothing.
                    work[index].skipped = 0.0;
                }
            }
        }
        let modes = self.times.by_mode();
        let since = modes.since(std::mem::replace(&mut self.modes, modes));
        self.factor.push(since, detachable_ns);
        if detachable_ns > 0.0 {
            self.plain_since = None;
        }
    }

    fn admit_kernel(&mut self, sensor: &KernelWrites, prices: &KernelPrices) -> Option<usize> {
        let descriptor = &*sensor.descriptor;
        let kernel = KernelSource::new(sensor, prices);
        let group = PriceGroup::Kernel(descriptor.id);
        let price = self.first_price(group, kernel.first_difference());
        let label = descriptor.schema_label();
        let mut spec = self.settings.spec(
            &label,
            descriptor,
            kernel.price(price.price(), self.factor.get()),
        );
        if kernel.is_detachable() {
            let dwell = DETACHABLE_DWELL;
            spec = spec.actuator(Actuator::Switch { dwell });
        }
        let entry = entry_of(&descriptor.sensor);
        let entry = entry.and_then(|entry| self.sources.iter().find(|it| it.sensor == entry));
        if let Some(entry) = entry {
            spec = spec.requires(entry.id);
        }
        self.insert(spec, descriptor, (group, price), Some(kernel))
    }

    /// Adds the process of a sensor; false if it is not of a program.
    fn add_process_of(&mut self, sensor: &SensorWrites) -> bool {
        let Origin::Program(task) = &sensor.descriptor.origin else {
            return false;
        };
        self.times.add(task.pid);
        true
    }

    /// Moves the accounts of sensors that have ended out of the budget.
    fn remove_ended(&mut self) {
        if !self.sources.iter().any(|source| source.has_ended) {
            return;
        }
        let (budget, ended) = (&mut self.budget, &mut self.ended);
        let mut work = std::mem::take(&mut self.before.work).into_iter();
        let before = &mut self.before.work;
        self.sources.retain(|source| {
            let work = work.next();
            if source.has_ended {
                let account = budget.remove(source.id);
                let account = account.map(|it| BudgetSensor::of(&it, source.counted()));
                account.into_iter().for_each(|it| ended.add(it));
            } else {
                before.extend(work);
            }
            !source.has_ended
        });
        self.by_id.clear();
        self.by_stream.clear();
        for (index, source) in self.sources.iter().enumerate() {
            self.by_id.insert(source.id, index);
            self.by_stream.insert(source.stream, index);
        }
    }

    fn admit(&mut self, sensor: &SensorWrites) -> Option<usize> {
        let descriptor = &*sensor.descriptor;
        if !self.add_process_of(sensor) {
            return None;
        }
        let kind = SensorKind::of(descriptor);
        let group = PriceGroup::Program(kind);
        let skipped_ns = self.prices.skipped_ns(kind);
        let price = self.first_price(group, self.prices.written(kind));
        let label = descriptor.sensor_label();
        let spec = self.settings.spec(&label, descriptor, price.price());
        let index = self.insert(spec, descriptor, (group, price), None)?;
        self.sources[index].skipped_ns = skipped_ns;
        Some(index)
    }

    /// The price of a source that begins, by what is known about its group.
    fn first_price(&mut self, group: PriceGroup, calibrated: EventPrice) -> LearnedPrice {
        let group = self.groups.entry(group);
        LearnedPrice::new(group.or_insert_with(|| GroupPrice::new(calibrated)))
    }

    fn insert(
        &mut self,
        spec: SourceSpec,
        descriptor: &StreamDescriptor,
        (group, price): (PriceGroup, LearnedPrice),
        kernel: Option<KernelSource>,
    ) -> Option<usize> {
        let is_always_on = spec.is_always_on();
        match self.budget.add(spec) {
            Ok(id) => {
                self.problems
                    .add_sensor(self.budget.check_switchable().is_ok());
                let index = self.sources.len();
                self.by_stream.insert(descriptor.id, index);
                self.by_id.insert(id, index);
                self.sources.push(Source {
                    id,
                    stream: descriptor.id,
                    sensor: descriptor.sensor.clone(),
                    counts: Counts::default(),
                    is_on: true,
                    is_always_on,
                    has_ended: false,
                    group,
                    price,
                    skipped_ns: 0.0,
                    kernel,
                });
                Some(index)
            }
            Err(error) => {
                self.problems.note(error);
                None
            }
        }
    }

    /// Learns prices from the last two intervals.
    fn learn(&mut self, interval: &Interval) {
        let mut hottest: Vec<usize> = (0..self.sources.len()).collect();
        let heat = |index: &usize| interval.of(*index).all();
        hottest.sort_by(|one, other| heat(other).total_cmp(&heat(one)));
        hottest.truncate(HOTTEST);
        let factor = self.factor.get();
        let prices: Vec<EventPrice> = self.sources.iter().map(|it| it.price.price()).collect();
        let neighbours = Neighbours::new([&self.before, interval], &prices, &hottest);
        for (key, group) in &mut self.groups {
            let of_group = |index: &usize| self.sources[*index].group == *key;
            let sources: Vec<usize> = (0..self.sources.len()).filter(of_group).collect();
            group.learn(&sources, &neighbours);
        }
        for (index, source) in self.sources.iter_mut().enumerate() {
            let before = source.price.price();
            let regime = source
                .price
                .learn(index, &neighbours, &self.groups[&source.group]);
            // The factor of detached sensors is learned elsewhere.
            let is_same = source.price.price() == before && source.counts_skipped();
            let price = source.whole_price(factor);
            match regime {
                PriceRegime::Same if is_same => {}
                PriceRegime::Same => drop(self.budget.refine_price(source.id, price)),
                PriceRegime::Changed => drop(self.budget.change_price(source.id, price)),
            }
        }
    }

    fn carry_out(&mut self, off: &[StreamId], on: &[StreamId]) {
        if off.is_empty() && on.is_empty() {
            return;
        }
        match self.sensors.switch(off, on) {
            Ok(kept_on) => self.problems.keep_on(kept_on),
            Err(problem) => self.problems.note(problem),
        }
    }

    /// The state of the budget now.
    #[must_use]
    pub fn outcome(&self) -> BudgetOutcome {
        let counted = |id| Some(self.sources[*self.by_id.get(&id)?].counted());
        BudgetOutcome::of(&self.budget.report(), counted, self.ended.accounts())
    }

    /// Begins or ends a time in which all sensors that can be detached are, to learn what their
    /// events cost.
    fn explore_detached(&mut self, target_share: f64, now: Timestamp) {
        if let Some(begun) = self.exploring_since {
            // The kernel may take long to detach them.
            let plain_since = *self.plain_since.get_or_insert(now);
            let is_enough = now.since(plain_since) >= DETACHABLE_DWELL && self.factor.has_plain();
            if is_enough || now.since(begun) >= LONGEST_EXPLORATION {
                self.exploring_since = None;
                self.explore_from = now.plus(now.since(begun));
            }
        }
        let before = &self.before;
        let cost = |(index, source): (usize, &Source)| {
            let written = before.work.get(index)?.written;
            let price = source.kernel.as_ref()?.detached_ns()?;
            Some(written * price)
        };
        let cost_ns: f64 = self.sources.iter().enumerate().filter_map(cost).sum();
        let highest_ns = (cost_ns * self.factor.highest()).min(before.cpu_ns);
        let is_open = highest_ns > target_share * before.cpu_ns;
        let is_due = self.exploring_since.is_none() && now >= self.explore_from;
        if is_due && is_open && self.factor.needs_plain() {
            self.exploring_since = Some(now);
            self.plain_since = None;
        }
    }

    fn switch_kernel(&mut self, changes: &[(StreamId, BudgetState)]) {
        let Some((kernel, _)) = &self.kernel else {
            return;
        };
        let mut kernel = kernel.borrow_mut();
        for (stream, to) in changes {
            if let Err(problem) = kernel.switch_for_budget(*stream, *to) {
                self.problems.note(problem);
            }
        }
    }

    /// Switches everything on again. Returns the report, and messages about what went wrong.
    pub fn finish(mut self, now: Timestamp) -> (BudgetOutcome, Vec<String>) {
        self.next = Nanos::ZERO;
        self.due = Some(Timestamp::from_monotonic_ns(0));
        self.tick(now);
        let is_off = |source: &&Source| !source.is_on && source.kernel.is_none();
        let off = self.sources.iter().filter(is_off);
        let off: Vec<StreamId> = off.map(|source| source.stream).collect();
        self.carry_out(&[], &off);
        let outcome = self.outcome();
        let target = self.settings.target;
        // An idle program writes nothing.
        let has_written = outcome.sensors.iter().any(|sensor| sensor.written > 0);
        let has_cpu_time = self.cpu > Nanos::ZERO || !has_written;
        let problems = self.problems.finish(target, has_cpu_time);
        (outcome, problems)
    }
}

/// A price with this many ns more.
fn dearer(price: EventPrice, ns: f64) -> EventPrice {
    EventPrice::from_ns(price.as_ns() + ns, price.error_ns()).unwrap_or(price)
}

impl Source {
    /// Whether its events are counted from now on when it is off.
    fn counts_skipped(&self) -> bool {
        let kernel = self.kernel.as_ref();
        kernel.is_none_or(KernelSource::counts_skipped)
    }

    /// Elements that were written, and skipped events if all are counted.
    fn counted(&self) -> Counted {
        let kernel = self.kernel.as_ref();
        let was_detached = kernel.is_some_and(KernelSource::was_detached);
        Counted {
            written: self.counts.written,
            skipped: (!was_detached).then_some(self.counts.skipped),
        }
    }

    /// The price of an element; `factor` is that of detached sensors.
    fn whole_price(&self, factor: (f64, f64)) -> EventPrice {
        let learned = self.price.price();
        match &self.kernel {
            Some(kernel) => kernel.price(learned, factor),
            None => {
                let more_ns = self.price.most_ns() - learned.as_ns();
                dearer(learned, self.skipped_ns.min(more_ns.max(0.0)))
            }
        }
    }

    fn count(&self) -> SourceCount {
        let kernel = self.kernel.as_ref();
        let equivalents = kernel.map_or(0, KernelSource::equivalents);
        let units = UnitCount {
            on: self.counts.written,
            all: self.counts.all(),
        };
        SourceCount {
            source: self.id,
            thread: ThreadKey::PROCESS,
            events: self.counts.written + equivalents,
            // A sensor that may be detached is on for a share of the CPU time.
            units: kernel.is_none_or(|it| !it.is_detachable()).then_some(units),
            is_capped: false,
        }
    }
}
