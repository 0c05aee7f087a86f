// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller of a budget: writes and CPU times go into the budget, switches come out.

use std::collections::BTreeMap;

use overhear_budget::{
    Budget, EventPrice, PriceRegime, SourceCount, SourceId, ThreadKey, TickInput, UnitCount,
};
use overhear_directory::SensorWrites;
use overhear_event::{Nanos, Origin, StreamId, Timestamp};
use overhear_kernel::possible_cpus;

use super::counts::Counts;
use super::cpu_time::ProcessTimes;
use super::ended::EndedSensors;
use super::learning::{Interval, LearnedPrice, Work};
use super::prices::WritePrices;
use super::problems::Problems;
use super::report::{BudgetOutcome, BudgetSensor};
use super::sensors::BudgetedSensors;
use super::settings::BudgetSettings;
use crate::error::{ErrorKind, SessionError};

/// Sources whose work explains the time of an interval, at most.
const HOTTEST: usize = 8;

/// While a price is too inexact to decide whether the source may always be on, it is off
/// for one of this number of ticks.
const EXPLORED_TICKS: u64 = 4;

/// Time after which a tick is due in any case: a program that appears is not in any CPU time yet,
/// and ended sensors of idle programs must not gather.
const LONGEST_TICK: Nanos = Nanos::from_ms(50);

/// A sensor in the budget.
struct Source {
    id: SourceId,
    stream: StreamId,
    counts: Counts,
    is_on: bool,
    /// Never switched off, not even to learn its price.
    is_always_on: bool,
    has_ended: bool,
    price: LearnedPrice,
}

/// Keeps the monitoring overhead of the observed processes at a target, by switching their sensors.
///
/// It decides when [`BudgetController::tick`] is called, once per round of the monitor: often
/// enough, because a tick is due after a hundredth of the window of the programs' CPU time. Its
/// memory grows with the number of sensors that live.
pub struct BudgetController {
    settings: BudgetSettings,
    budget: Budget,
    prices: WritePrices,
    sensors: Box<dyn BudgetedSensors>,
    sources: Vec<Source>,
    ended: EndedSensors,
    /// Index in `sources`.
    by_stream: BTreeMap<StreamId, usize>,
    by_id: BTreeMap<SourceId, usize>,
    times: ProcessTimes,
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
            sources: Vec::new(),
            ended: EndedSensors::default(),
            by_stream: BTreeMap::new(),
            by_id: BTreeMap::new(),
            times: ProcessTimes::default(),
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

    /// Adds a process whose CPU time counts, besides those that own sensors.
    pub(crate) fn add_process(&mut self, pid: u32) {
        self.times.add(pid);
    }

    /// Decides, if a tick is due at this time.
    pub fn tick(&mut self, now: Timestamp) {
        let cpu = self.times.total();
        let latest = *self.latest.get_or_insert(now);
        if cpu < self.next && now.since(latest) < LONGEST_TICK {
            return;
        }
        self.latest = Some(now);
        self.most_ns = now.since(latest).as_ns() as f64 * self.cpus;
        let interval = self.take(cpu);
        if interval.cpu_ns > 0.0 {
            self.learn(&interval);
        }
        self.before = interval;
        let counts: Vec<SourceCount> = self.sources.iter().map(Source::count).collect();
        let input = TickInput {
            now,
            cpu,
            own_cpu: Nanos::ZERO,
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
        if let Some(unavoidable) = outcome.unavoidable {
            self.problems.exceed(unavoidable.total());
        }
        self.next = cpu.plus(outcome.next_tick);
        self.ticks += 1;
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for setting in outcome.settings {
            let Some(&index) = self.by_id.get(&setting.source) else {
                continue;
            };
            let source = &mut self.sources[index];
            // Without an interval that is off, nobody learns what the others cost.
            let is_due = (self.ticks + index as u64).is_multiple_of(EXPLORED_TICKS);
            let is_open = source.could_cost(self.before.cpu_ns, &self.before, index)
                > self.settings.target.monitoring_share();
            let is_explored = is_due && is_open && source.price.is_open() && !source.is_always_on;
            let is_on = setting.is_on && !is_explored;
            if source.is_on != is_on {
                source.is_on = is_on;
                if is_on { &mut on } else { &mut off }.push(source.stream);
            }
        }
        self.carry_out(&off, &on);
        self.remove_ended();
        // The next interval begins here: what was done since the first reading belongs to none.
        let cpu = self.times.total();
        let _ = self.take(cpu);
    }

    /// Takes new totals, and the sensors that are named for the first time. Returns what was done
    /// since the last call.
    fn take(&mut self, cpu: Nanos) -> Interval {
        let cpu_ns = cpu.as_ns().saturating_sub(self.cpu.as_ns()) as f64;
        let writes = self.sensors.writes();
        let mut work = vec![Work::default(); self.sources.len()];
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
                let label = sensor.descriptor.sensor_label();
                self.problems.note(format!(
                    "the counts of {label} are damaged: its budget is not exact"
                ));
            }
            if sensor.has_ended {
                source.has_ended = true;
                // The number may be that of another sensor now.
                self.by_stream.remove(&stream);
            }
        }
        self.cpu = cpu;
        Interval { cpu_ns, work }
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
                let account = account.map(|it| BudgetSensor::of(&it, Some(source.counts.skipped)));
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
        let price = LearnedPrice::new(self.prices.written(descriptor));
        let label = descriptor.sensor_label();
        let spec = self.settings.spec(&label, descriptor, price.price());
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
                    counts: Counts::default(),
                    is_on: true,
                    is_always_on: self.settings.is_always_on(descriptor),
                    has_ended: false,
                    price,
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
        let heat = |index: &usize| {
            interval
                .work
                .get(*index)
                .map_or(0.0, |work| work.written + work.skipped)
        };
        hottest.sort_by(|one, other| heat(other).total_cmp(&heat(one)));
        hottest.truncate(HOTTEST);
        for (index, source) in self.sources.iter_mut().enumerate() {
            if source.price.bound(index, interval) {
                self.budget.refine_price(source.id, source.price.price());
            }
        }
        let prices: Vec<EventPrice> = self.sources.iter().map(|it| it.price.price()).collect();
        for &index in &hottest {
            let source = &mut self.sources[index];
            let pair = [&self.before, interval];
            let learned = source.price.learn(index, pair, &prices, &hottest);
            let price = source.price.price();
            match learned {
                Some(PriceRegime::Same) => drop(self.budget.refine_price(source.id, price)),
                Some(PriceRegime::Changed) => drop(self.budget.change_price(source.id, price)),
                None => {}
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
        let skipped = |id| Some(self.sources[*self.by_id.get(&id)?].counts.skipped);
        BudgetOutcome::of(&self.budget.report(), skipped, self.ended.accounts())
    }

    /// Switches everything on again. Returns the report, and messages about what went wrong.
    pub fn finish(mut self, now: Timestamp) -> (BudgetOutcome, Vec<String>) {
        self.next = Nanos::ZERO;
        self.tick(now);
        let off = self.sources.iter().filter(|source| !source.is_on);
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

impl Source {
    /// The share of CPU time that it would have cost in this interval at the highest price that is
    /// possible, if it had been on.
    fn could_cost(&self, cpu_ns: f64, interval: &Interval, index: usize) -> f64 {
        let writes = interval.work.get(index).copied().unwrap_or_default().all();
        if cpu_ns > 0.0 {
            writes * self.price.highest_ns() / cpu_ns
        } else {
            0.0
        }
    }

    fn count(&self) -> SourceCount {
        SourceCount {
            source: self.id,
            thread: ThreadKey::PROCESS,
            events: self.counts.written,
            units: Some(UnitCount {
                on: self.counts.written,
                all: self.counts.all(),
            }),
            is_capped: false,
        }
    }
}
