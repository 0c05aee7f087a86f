// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controller of a run: writes and CPU times go into the budget, switches come out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use overhear_budget::{
    Budget, EventPrice, PriceRegime, SourceCount, SourceId, ThreadKey, TickInput, UnitCount,
};
use overhear_directory::{BudgetSwitch, ProgramSource, SensorWrites};
use overhear_event::{Nanos, Origin, StreamId, Timestamp};

use super::cpu_time::ProcessTimes;
use super::learning::{Interval, LearnedPrice, Work};
use super::prices::WritePrices;
use super::report::BudgetOutcome;
use super::settings::BudgetSettings;
use crate::error::{ErrorKind, SessionError};

/// Sources whose work explains the time of an interval, at most.
const HOTTEST: usize = 8;

/// While a price is too inexact to decide whether the source may always be on, it is off
/// for one of this number of ticks.
const EXPLORED_TICKS: u64 = 4;

/// A sensor in the budget.
struct Source {
    id: SourceId,
    stream: StreamId,
    written: u64,
    skipped: u64,
    is_on: bool,
    price: LearnedPrice,
}

/// Keeps the monitoring overhead of the observed processes at a target, by switching their sensors.
///
/// It decides when [`BudgetController::tick`] is called, once per round of the monitor: often
/// enough, because a tick is due after a hundredth of the window of the programs' CPU time.
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

    /// Decides, if a tick is due at this time.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        let cpu = self.times.total();
        if cpu < self.next {
            return;
        }
        let interval = self.take(cpu);
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
            let is_on = setting.is_on && !(is_due && is_open && source.price.is_open());
            if source.is_on != is_on {
                source.is_on = is_on;
                if is_on { &mut on } else { &mut off }.push(source.stream);
            }
        }
        self.carry_out(&off, &on);
        // The next interval begins here: what was done since the first reading belongs to none.
        let cpu = self.times.total();
        let _ = self.take(cpu);
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
        Interval { cpu_ns, work }
    }

    fn admit(&mut self, sensor: &SensorWrites) -> Option<usize> {
        let descriptor = &*sensor.descriptor;
        let Origin::Program(task) = &descriptor.origin else {
            return None;
        };
        self.times.add(task.pid);
        let price = LearnedPrice::new(self.prices.written(descriptor));
        let label = descriptor.sensor_label();
        let spec = self.settings.spec(&label, descriptor, price.price());
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
        if let Err(problem) = self.switch.switch(off, on) {
            note(&mut self.problems, problem);
        }
    }

    /// Switches everything on again. Returns the report, and messages about what went wrong.
    pub(crate) fn finish(mut self, now: Timestamp) -> (BudgetOutcome, Vec<String>) {
        self.next = Nanos::ZERO;
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
