// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller of a run: writes and CPU times go into the budget, switches come out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use overhear_budget::{
    Budget, EventPrice, PriceRegime, SourceCount, SourceId, ThreadKey, TickInput, UnitCount,
};
use overhear_directory::{monotonic_now, BudgetSwitch, ProgramSource, SensorWrites};
use overhear_event::{Nanos, Origin, StreamId, Timestamp};

use super::cpu_time::ProcessTimes;
use super::learning::{GroupPrice, Interval, LearnedPrice, Neighbours, Work};
use super::prices::{SensorKind, WritePrices};
use super::report::BudgetOutcome;
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

/// Longest time that a tick waits for current CPU times. Reading elements may take so long that
/// they never are.
const LONGEST_DELAY: Nanos = Nanos::from_ms(10);

/// A sensor in the budget.
struct Source {
    id: SourceId,
    stream: StreamId,
    written: u64,
    skipped: u64,
    is_on: bool,
    is_always_on: bool,
    kind: SensorKind,
    price: LearnedPrice,
}

/// Keeps the monitoring overhead of the observed processes at a target, by switching their sensors.
///
/// It decides in [`BudgetController::wait`], between two rounds of the monitor: often enough,
/// because a tick is due after a hundredth of the window of the programs' CPU time.
pub(crate) struct BudgetController {
    settings: BudgetSettings,
    budget: Budget,
    prices: WritePrices,
    programs: Rc<RefCell<ProgramSource>>,
    switch: BudgetSwitch,
    sources: Vec<Source>,
    /// Index in `sources`.
    by_stream: BTreeMap<StreamId, usize>,
    by_id: BTreeMap<SourceId, usize>,
    groups: BTreeMap<SensorKind, GroupPrice>,
    timer: TimerTick,
    /// When the next tick became due; the CPU times were not current since then.
    due: Option<Timestamp>,
    /// Whether CPU times were current at the begin of this interval.
    began_current: bool,
    times: ProcessTimes,
    cpu: Nanos,
    next: Nanos,
    before: Interval,
    ticks: u64,
    problems: Vec<String>,
}

impl BudgetController {
    /// A controller of all sensors of these programs.
    ///
    /// # Errors
    /// [`SessionError`] if the settings cannot be kept.
    pub(crate) fn new(
        settings: BudgetSettings,
        prices: WritePrices,
        programs: Rc<RefCell<ProgramSource>>,
        switch: BudgetSwitch,
    ) -> Result<Self, SessionError> {
        let budget = Budget::new(settings.target, settings.window);
        let budget =
            budget.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
        // From now on the last writes of sensors are kept.
        let _ = programs.borrow_mut().writes();
        Ok(Self {
            settings,
            budget,
            prices,
            programs,
            switch,
            sources: Vec::new(),
            by_stream: BTreeMap::new(),
            by_id: BTreeMap::new(),
            groups: BTreeMap::new(),
            timer: TimerTick::new(),
            due: None,
            began_current: false,
            times: ProcessTimes::default(),
            cpu: Nanos::ZERO,
            next: Nanos::ZERO,
            before: Interval::default(),
            ticks: 0,
            problems: Vec::new(),
        })
    }

    /// Adds a process whose CPU time counts, besides those that own sensors.
    pub(crate) fn add_process(&mut self, pid: u32) {
        self.times.add(pid);
    }

    /// Waits by `wait` for at most `pause`, until CPU times are current, and then decides if a tick
    /// is due. Reading elements first would make them late again, and later the more there are: the
    /// sensors would look cheaper than they are.
    pub(crate) fn wait(&mut self, pause: Duration, wait: impl FnOnce(Duration)) {
        wait(self.timer.aligned(pause, TimerTick::lateness_ns()));
        self.tick(monotonic_now());
    }

    /// Decides, if a tick is due at this time.
    fn tick(&mut self, now: Timestamp) {
        let is_current = self.timer.is_fresh(TimerTick::lateness_ns());
        let cpu = self.times.total();
        if cpu < self.next {
            return;
        }
        let due = *self.due.get_or_insert(now);
        if !is_current && now.since(due) < LONGEST_DELAY {
            return;
        }
        self.due = None;
        let mut interval = self.take(cpu);
        interval.is_current = is_current && self.began_current;
        self.learn(&interval);
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
                note(
                    &mut self.problems,
                    format!("the budget is not kept: {error}"),
                );
                return;
            }
        };
        self.next = cpu.plus(outcome.next_tick);
        self.ticks += 1;
        let switched: Vec<(SourceId, bool)> = outcome
            .settings
            .iter()
            .map(|setting| (setting.source, setting.is_on))
            .collect();
        let explored = self.explored();
        // Sensors that are written rarely cost too little to be explored.
        let all: f64 = self.before.work.iter().map(|work| work.all()).sum();
        let least = EXPLORED_PART * all;
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for (source, is_on) in switched {
            let Some(&index) = self.by_id.get(&source) else {
                continue;
            };
            let is_explored =
                self.before.of(index).all() >= least && !self.sources[index].is_always_on;
            let source = &mut self.sources[index];
            let is_on = is_on && !(is_explored && explored.contains(&source.kind));
            if source.is_on != is_on {
                source.is_on = is_on;
                if is_on { &mut on } else { &mut off }.push(source.stream);
            }
        }
        self.carry_out(&off, &on);
        // The next interval begins here: what was done since the first reading belongs to none.
        self.began_current = self.timer.is_fresh(TimerTick::lateness_ns());
        let cpu = self.times.total();
        let _ = self.take(cpu);
    }

    /// Kinds whose sources are off until the next tick, to learn what they cost. Without intervals
    /// that are off there are no pairs. Nothing is explored if everything may be on even at the
    /// highest prices that are possible.
    fn explored(&self) -> Vec<SensorKind> {
        let could_cost = |(index, source): (usize, &Source)| {
            let highest_ns = source.price.highest_ns(&self.groups[&source.kind]);
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
        let writes = self.programs.borrow_mut().writes();
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
            // A process can damage its own counts; they never fall here.
            let written = sensor.written.max(source.written);
            let skipped = sensor.skipped.max(source.skipped);
            work[index].written += (written - source.written) as f64;
            work[index].skipped += (skipped - source.skipped) as f64;
            (source.written, source.skipped) = (written, skipped);
        }
        let cpu_ns = cpu.as_ns().saturating_sub(self.cpu.as_ns()) as f64;
        self.cpu = cpu;
        Interval {
            cpu_ns,
            is_current: false,
            work,
        }
    }

    fn admit(&mut self, sensor: &SensorWrites) -> Option<usize> {
        let descriptor = &*sensor.descriptor;
        let Origin::Program(task) = &descriptor.origin else {
            return None;
        };
        self.times.add(task.pid);
        let kind = SensorKind::of(descriptor);
        let first = self.prices.written(kind);
        let group = self.groups.entry(kind);
        let price = LearnedPrice::new(group.or_insert_with(|| GroupPrice::new(first)));
        let label = descriptor.sensor_label();
        let spec = self.settings.spec(&label, descriptor, price.price());
        let is_always_on = spec.is_always_on();
        match self.budget.add(spec) {
            Ok(id) => {
                let index = self.sources.len();
                self.by_stream.insert(descriptor.id, index);
                self.by_id.insert(id, index);
                self.sources.push(Source {
                    id,
                    stream: descriptor.id,
                    written: 0,
                    skipped: 0,
                    is_on: true,
                    is_always_on,
                    kind,
                    price,
                });
                Some(index)
            }
            Err(error) => {
                note(&mut self.problems, error.to_string());
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
        let prices: Vec<EventPrice> = self.sources.iter().map(|it| it.price.price()).collect();
        let neighbours = Neighbours::new([&self.before, interval], &prices, &hottest);
        for (kind, group) in &mut self.groups {
            let of_kind = |index: &usize| self.sources[*index].kind == *kind;
            let sources: Vec<usize> = (0..self.sources.len()).filter(of_kind).collect();
            group.learn(&sources, &neighbours);
        }
        for (index, source) in self.sources.iter_mut().enumerate() {
            let before = source.price.price();
            let regime = source
                .price
                .learn(index, &neighbours, &self.groups[&source.kind]);
            let price = source.price.price();
            match regime {
                PriceRegime::Same if price == before => {}
                PriceRegime::Same => drop(self.budget.refine_price(source.id, price)),
                PriceRegime::Changed => drop(self.budget.change_price(source.id, price)),
            }
        }
    }

    fn carry_out(&mut self, off: &[StreamId], on: &[StreamId]) {
        if off.is_empty() && on.is_empty() {
            return;
        }
        if let Err(problem) = self.switch.switch(off, on) {
            note(&mut self.problems, problem);
        }
    }

    /// Switches everything on again. Returns the report, and messages about what went wrong.
    pub(crate) fn finish(mut self, now: Timestamp) -> (BudgetOutcome, Vec<String>) {
        self.next = Nanos::ZERO;
        self.due = Some(Timestamp::from_monotonic_ns(0));
        self.tick(now);
        let off = self.sources.iter().filter(|source| !source.is_on);
        let off: Vec<StreamId> = off.map(|source| source.stream).collect();
        self.carry_out(&[], &off);
        let report = BudgetOutcome::of(&self.budget.report(), |id| {
            Some(self.sources[*self.by_id.get(&id)?].skipped)
        });
        (report, self.problems)
    }
}

impl Source {
    fn count(&self) -> SourceCount {
        SourceCount {
            source: self.id,
            thread: ThreadKey::PROCESS,
            events: self.written,
            units: Some(UnitCount {
                on: self.written,
                all: self.written + self.skipped,
            }),
            is_capped: false,
        }
    }
}

/// Adds a message that is not there yet.
fn note(problems: &mut Vec<String>, problem: String) {
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}
