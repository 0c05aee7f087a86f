// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget: the default control law.

use overhear_event::{Nanos, Timestamp};

use crate::account::{Account, Reported, ThreadKey};
use crate::balance::Balance;
use crate::decay::decay;
use crate::demand::{Demand, DemandStep};
use crate::duty_cycle::{DutyCycle, Elapsed, Thresholds};
use crate::report::{BudgetCosts, BudgetReport, BudgetSource, ThreadCost};
use crate::series::{overhead, OverheadSeries};
use crate::source::{Actuator, AddSourceError, SourceId, SourceSpec};
use crate::tick::{
    ShareLimit, SourceCount, SourceSetting, TickError, TickInput, TickOutcome, UnavoidableOverhead,
};
use crate::water_level::{level, Basin, FLAT};
use crate::{EventPrice, Overhead};

/// Part of the target that is spent even in debt, so that demands and prices stay known.
const EXPLORATION: f64 = 0.05;
/// Share of units in which a source of unknown demand is on while the budget is in debt.
const EXPLORED_SHARE: f64 = 0.05;
/// The division of the budget ignores surprises below this factor: they are noise.
const SURPRISE_FROM: f64 = 1.25;
/// Surprises age faster than demands by this factor.
const SURPRISE_AGING: i32 = 4;
/// A source may record this multiple of its plan until the next tick.
const BURST: f64 = 2.0;
/// Shortest window.
const MIN_WINDOW: Nanos = Nanos::from_ms(1);
/// CPU time until the second tick; each later one is due 1.5 times later than the one before, up to
/// a hundredth of the window.
const FIRST_TICK_NS: u64 = 1_000_000;
const TICKS_PER_WINDOW: u64 = 100;

/// The reason why a budget cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The window is too short for ticks.
    #[error("the window of the budget is {} ns; give at least 1 ms of CPU time", window.as_ns())]
    WindowTooShort {
        /// The window as given.
        window: Nanos,
    },
    /// No source can be switched off.
    #[error("the budget has no source that can be switched; add one that is not always on")]
    NothingToSwitch,
}

/// A source in the budget.
#[derive(Clone, Debug)]
struct Entry {
    spec: SourceSpec,
    account: Account,
    demand: Demand,
    duty: DutyCycle,
    /// Units of the last tick: those that are counted, or CPU time in ns.
    elapsed: Elapsed,
    /// Growth of the totals in the tick under way.
    grown: Reported,
    is_capped: bool,
    counts_units: bool,
    /// Share of units in force since the last tick.
    share: f64,
    /// Whether the source was on since the last tick.
    is_on: bool,
    /// CPU time in ns that the source was on, and that it was in the budget.
    on_ns: f64,
    seen_ns: f64,
    units_on: u64,
    units_all: u64,
    /// Cost of the tick under way in ns.
    spent_ns: f64,
    /// Cost in ns that a source of a program with phases has saved for the one in which it works.
    saved_ns: f64,
}

impl Entry {
    /// Cost per CPU time while the source is on.
    fn demand(&self) -> Option<f64> {
        Some(self.demand.rate()? * self.account.price().as_ns())
    }

    /// Share of units until the next tick. A source that does not draw its units is on or off.
    fn share_in_force(&self) -> f64 {
        match (self.counts_units, self.spec.actuator) {
            (true, Actuator::Share) => self.share,
            _ => f64::from(u8::from(self.is_on)),
        }
    }
}

/// A place for a source.
#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

/// Decayed costs per CPU time. They age as demands do.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    cpu_ns: f64,
    always_on_ns: f64,
    base_ns: f64,
    own_ns: f64,
    /// Cost that demands predicted for the sources that were on, and their cost. These age
    /// [`SURPRISE_AGING`] times faster.
    predicted_ns: f64,
    switched_ns: f64,
}

impl Rates {
    fn age(&mut self, decay: f64, cpu_ns: f64) {
        for it in [
            &mut self.cpu_ns,
            &mut self.always_on_ns,
            &mut self.base_ns,
            &mut self.own_ns,
        ] {
            *it *= decay;
        }
        self.cpu_ns += cpu_ns;
        let decay = decay.powi(SURPRISE_AGING);
        self.predicted_ns *= decay;
        self.switched_ns *= decay;
    }

    /// How many times more than predicted the sources cost that were on, at least 1. Those that
    /// were off are likely to surprise as much when they are switched on.
    fn surprise(&self) -> f64 {
        if self.predicted_ns > 0.0 && self.switched_ns > SURPRISE_FROM * self.predicted_ns {
            self.switched_ns / self.predicted_ns
        } else {
            1.0
        }
    }

    /// A cost as share of CPU time. A price that was refined downwards may make it negative.
    fn share(&self, cost_ns: f64) -> f64 {
        if self.cpu_ns > 0.0 {
            (cost_ns / self.cpu_ns).max(0.0)
        } else {
            0.0
        }
    }
}

/// Totals at the last tick.
#[derive(Clone, Copy, Debug)]
struct Totals {
    now: Timestamp,
    cpu: Nanos,
    own: Nanos,
    base_ns: f64,
}

/// Keeps the overhead of a set of sources at its target: the crate's page describes the law.
///
/// The budget has no clock and does nothing between calls. Its memory grows with the number of
/// sources and live threads, not with the length of the run.
#[derive(Clone, Debug)]
pub struct Budget {
    target: Overhead,
    window: Nanos,
    base: Overhead,
    slots: Vec<Slot>,
    /// Indices of sources in the order in which they were added: a required source comes first.
    order: Vec<u32>,
    settings: Vec<SourceSetting>,
    balance: Balance,
    rates: Rates,
    series: OverheadSeries,
    last: Option<Totals>,
    /// CPU time until the next tick in ns.
    next_tick_ns: u64,
    removed_sources: u64,
    removed_ns: f64,
    removed_variance: f64,
    thresholds: Thresholds,
    basins: Vec<Basin>,
    levels: Vec<(f64, f64)>,
}

impl Budget {
    /// The window where the user names none. At a hundred ticks per second a tick is a hundredth of
    /// it, so one tick with everything on is a small part of the window's budget for targets of a
    /// few per cent and above.
    pub const DEFAULT_WINDOW: Nanos = Nanos::from_ms(1_000);

    /// A budget of `target`, whose windows are `window` of CPU time of the observed program: the
    /// overhead is evened out over about one window. A shorter window reacts faster and bounds
    /// shorter bursts; a longer one lets expensive pieces be observed.
    ///
    /// # Errors
    /// [`BudgetError::WindowTooShort`] below 1 ms.
    pub fn new(target: Overhead, window: Nanos) -> Result<Self, BudgetError> {
        check_window(window)?;
        Ok(Self {
            target,
            window,
            base: Overhead::from_overhead(0.0).expect("zero is an overhead"),
            slots: Vec::new(),
            order: Vec::new(),
            settings: Vec::new(),
            balance: Balance::new(target.monitoring_share(), window.as_ns() as f64),
            rates: Rates::default(),
            series: OverheadSeries::new(window),
            last: None,
            next_tick_ns: FIRST_TICK_NS.min(window.as_ns() / TICKS_PER_WINDOW),
            removed_sources: 0,
            removed_ns: 0.0,
            removed_variance: 0.0,
            thresholds: Thresholds::new(1),
            basins: Vec::new(),
            levels: Vec::new(),
        })
    }

    /// Sets the base overhead b0: what the instrumentation costs when everything is off, as a
    /// fraction of the program's own time. It must be measured beforehand: nothing inside the
    /// program can see it. It is charged to the whole run.
    pub fn set_base(&mut self, base: Overhead) {
        self.base = base;
    }

    /// Adds a source. It is switched by the next tick.
    ///
    /// # Errors
    /// [`AddSourceError`]; the budget is as it was before.
    pub fn add(&mut self, spec: SourceSpec) -> Result<SourceId, AddSourceError> {
        self.check(&spec)?;
        let index = self.slots.iter().position(|slot| slot.entry.is_none());
        let index = index.unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.entry = Some(Entry {
            account: Account::new(spec.price),
            demand: Demand::default(),
            duty: DutyCycle::new(),
            elapsed: Elapsed::default(),
            grown: Reported::default(),
            is_capped: false,
            counts_units: false,
            share: 0.0,
            is_on: false,
            on_ns: 0.0,
            seen_ns: 0.0,
            units_on: 0,
            units_all: 0,
            spent_ns: 0.0,
            saved_ns: 0.0,
            spec,
        });
        let index = u32::try_from(index).expect("sources are counted in 32 bits");
        self.order.push(index);
        Ok(self.id(index))
    }

    fn check(&self, spec: &SourceSpec) -> Result<(), AddSourceError> {
        let name = || spec.name.clone();
        if !(spec.weight.is_finite() && spec.weight > 0.0) {
            return Err(AddSourceError::Weight {
                name: name(),
                weight: spec.weight,
            });
        }
        for &required in &spec.requires {
            let Some(other) = self.entry(required) else {
                return Err(AddSourceError::UnknownRequirement {
                    name: name(),
                    required,
                });
            };
            if spec.is_always_on && !other.spec.is_always_on {
                return Err(AddSourceError::AlwaysOnRequiresSwitched {
                    name: name(),
                    required: other.spec.name.clone(),
                });
            }
        }
        let floors: f64 = self.entries().map(|it| it.spec.floor.overhead()).sum();
        let floors = floors + spec.floor.overhead();
        // The tolerance is for sums of decimal fractions: 1 % + 2 % is not 3 %.
        if spec.floor.overhead() > 0.0 && floors > self.target.overhead() * (1.0 + 1e-9) {
            return Err(AddSourceError::FloorsAboveTarget {
                name: name(),
                floors_percent: floors * 100.0,
                target_percent: self.target.overhead() * 100.0,
            });
        }
        Ok(())
    }

    /// Removes a source that has ended, and returns its last account; `None` for a source that is
    /// not in the budget. Its cost stays spent. Sources that require it are off from the next tick
    /// on.
    pub fn remove(&mut self, source: SourceId) -> Option<BudgetSource> {
        self.entry(source)?;
        let entry = self.slots[source.index()].entry.take()?;
        self.order.retain(|&index| index != source.index);
        self.settings.retain(|it| it.source != source);
        self.removed_sources += 1;
        self.removed_ns += entry.account.cost_ns();
        self.removed_variance += entry.account.error_ns().powi(2);
        Some(row(source, &entry))
    }

    /// Ends a thread: its counts stay in the accounts, and its key is free for another one.
    pub fn end_thread(&mut self, thread: ThreadKey) {
        for slot in &mut self.slots {
            if let Some(entry) = &mut slot.entry {
                entry.account.end_thread(thread);
            }
        }
    }

    /// Gives a source a better measurement of its price: everything it spent since the price last
    /// changed is evaluated anew. Returns false if the source is not in the budget.
    pub fn refine_price(&mut self, source: SourceId, price: EventPrice) -> bool {
        let Some(entry) = self.entry_mut(source) else {
            return false;
        };
        let before = entry.account.cost_ns();
        entry.account.refine(price);
        let by = entry.account.cost_ns() - before;
        self.balance.revalue(by);
        true
    }

    /// Gives a source another price from now on, for example because the clock frequency of the
    /// CPU changed. What it spent before stays as it is. Returns false if the source is not in the
    /// budget.
    pub fn change_price(&mut self, source: SourceId, price: EventPrice) -> bool {
        let entry = self.entry_mut(source);
        entry.is_some_and(|entry| {
            entry.account.change(price);
            true
        })
    }

    /// Fails unless at least one source can be switched off: a target has no effect without.
    ///
    /// # Errors
    /// [`BudgetError::NothingToSwitch`].
    pub fn check_switchable(&self) -> Result<(), BudgetError> {
        if self.entries().any(|it| !it.spec.is_always_on) {
            Ok(())
        } else {
            Err(BudgetError::NothingToSwitch)
        }
    }

    /// One step of control: books what was recorded since the last tick, and decides what is on
    /// until the next one. O(n log n) for n sources.
    ///
    /// The first tick is due before the program starts: it decides what is on from the start.
    ///
    /// # Errors
    /// [`TickError`]; the budget is as it was before.
    pub fn tick(&mut self, input: &TickInput<'_>) -> Result<TickOutcome<'_>, TickError> {
        self.check_input(input)?;
        let last = self.last.unwrap_or(Totals {
            now: input.now,
            cpu: Nanos::ZERO,
            own: Nanos::ZERO,
            base_ns: 0.0,
        });
        let cpu_ns = (input.cpu.as_ns() - last.cpu.as_ns()) as f64;
        for count in input.counts {
            self.book(count);
        }
        let (unavoidable, want) = self.settle(input, last, cpu_ns);
        self.share_out(want, cpu_ns);
        if cpu_ns > 0.0 {
            let longest = (self.window.as_ns() / TICKS_PER_WINDOW).max(1);
            self.next_tick_ns = (self.next_tick_ns + self.next_tick_ns.div_ceil(2)).min(longest);
        }
        self.switch(input.now, cpu_ns, want);
        Ok(TickOutcome {
            settings: &self.settings,
            unavoidable,
            next_tick: Nanos::from_ns(self.next_tick_ns),
        })
    }

    /// Checks everything before anything is changed.
    fn check_input(&self, input: &TickInput<'_>) -> Result<(), TickError> {
        if let Some(last) = &self.last {
            let [now, before] = [input.now, last.now].map(Timestamp::as_monotonic_ns);
            for (clock, now, before) in [
                ("the time", now, before),
                ("the CPU time", input.cpu.as_ns(), last.cpu.as_ns()),
                (
                    "the CPU time of control",
                    input.own_cpu.as_ns(),
                    last.own.as_ns(),
                ),
            ] {
                if now < before {
                    let by_ns = before - now;
                    return Err(TickError::TimeWentBack { clock, by_ns });
                }
            }
        }
        for count in input.counts {
            let source_id = count.source;
            let Some(entry) = self.entry(source_id) else {
                return Err(TickError::UnknownSource { source_id });
            };
            let before = entry.account.reported(count.thread);
            let units = count.units.unwrap_or_default();
            if units.on > units.all {
                return Err(TickError::MoreUnitsOnThanAll { source_id });
            }
            let fell = count.events < before.count
                || (count.units.is_some()
                    && (units.on < before.units_on || units.all < before.units_all));
            if fell {
                let thread = count.thread.as_raw();
                return Err(TickError::CountWentBack { source_id, thread });
            }
        }
        Ok(())
    }

    fn book(&mut self, count: &SourceCount) {
        let Some(entry) = self.entry_mut(count.source) else {
            return;
        };
        let before = entry.account.reported(count.thread);
        let (units_on, units_all) = count
            .units
            .map_or((before.units_on, before.units_all), |it| (it.on, it.all));
        // The same thread twice in one tick: the totals were checked against the last tick only.
        let total = Reported {
            count: count.events.max(before.count),
            units_on: units_on.max(before.units_on),
            units_all: units_all.max(before.units_all),
        };
        let grown = entry.account.report(count.thread, total);
        entry.counts_units |= count.units.is_some();
        entry.is_capped |= count.is_capped;
        let add = |sum: &mut u64, by: u64| *sum = sum.saturating_add(by);
        add(&mut entry.grown.count, grown.count);
        add(&mut entry.grown.units_on, grown.units_on);
        add(&mut entry.grown.units_all, grown.units_all);
        add(&mut entry.units_on, grown.units_on);
        add(&mut entry.units_all, grown.units_all);
    }

    /// Updates demands and the balance; returns the share of CPU time that switched sources may
    /// cost.
    fn settle(
        &mut self,
        input: &TickInput<'_>,
        last: Totals,
        cpu_ns: f64,
    ) -> (Option<UnavoidableOverhead>, f64) {
        let m = self.target.monitoring_share();
        let window = self.window.as_ns() as f64;
        let horizon = Balance::HORIZON * window;
        let decay = decay(cpu_ns / horizon);
        self.rates.age(decay, cpu_ns);
        let (mut spent, mut quantum) = (self.removed_ns, 0.0_f64);
        for slot in &mut self.slots {
            let Some(entry) = &mut slot.entry else {
                continue;
            };
            let price = entry.account.price().as_ns();
            if entry.spec.is_always_on {
                self.rates.always_on_ns += entry.grown.count as f64 * price;
            }
            entry.seen_ns += cpu_ns;
            entry.on_ns += if entry.is_on { cpu_ns } else { 0.0 };
            if let (Some(demand), false) = (entry.demand(), entry.spec.is_always_on) {
                let share = entry.share_in_force();
                self.rates.predicted_ns += share * demand * cpu_ns;
                self.rates.switched_ns += entry.grown.count as f64 * price;
            }
            let (units_on, units_all) = if entry.counts_units {
                (entry.grown.units_on as f64, entry.grown.units_all as f64)
            } else {
                (if entry.is_on { cpu_ns } else { 0.0 }, cpu_ns)
            };
            entry.elapsed = Elapsed {
                on: units_on,
                all: units_all,
            };
            entry.demand.update(DemandStep {
                events: entry.grown.count as f64,
                units_on,
                units_all,
                cpu_ns,
                decay,
                is_capped: entry.is_capped,
            });
            entry.spent_ns = entry.grown.count as f64 * price;
            (entry.grown, entry.is_capped) = (Reported::default(), false);
            spent += entry.account.cost_ns();
            if entry.share > 0.0 && entry.share < 1.0 && !entry.counts_units {
                quantum = quantum.max(entry.demand().unwrap_or(0.0) * entry.duty.quantum());
            }
        }
        let (cpu, own) = (input.cpu.as_ns() as f64, input.own_cpu.as_ns() as f64);
        let base = self.base_ns(cpu, spent, own);
        self.rates.base_ns += base - last.base_ns;
        self.rates.own_ns += own - last.own.as_ns() as f64;
        self.last = Some(Totals {
            now: input.now,
            cpu: input.cpu,
            own: input.own_cpu,
            base_ns: base,
        });
        let cost = spent + own + base;
        self.series.push(input.now, input.cpu, cost);
        let e = self.balance.settle(cpu, cost, quantum);
        let rates = self.rates;
        let [always_on, base, own] =
            [rates.always_on_ns, rates.base_ns, rates.own_ns].map(|it| rates.share(it));
        // A tick longer than half of the horizon cannot even the balance out faster.
        let correction = (e / horizon.max(2.0 * cpu_ns)).min(m);
        let rest = m - always_on - base - own;
        let unavoidable = (rest < 0.0).then(|| {
            let plain = (1.0 - always_on - base - own).max(f64::MIN_POSITIVE);
            UnavoidableOverhead {
                always_on: always_on / plain,
                base: base / plain,
                own: own / plain,
            }
        });
        let want = (rest + correction).max(EXPLORATION * m);
        (unavoidable, want / rates.surprise())
    }

    /// b0 is a fraction of the *plain* time, which is what remains of C without all costs.
    fn base_ns(&self, cpu_ns: f64, spent_ns: f64, own_ns: f64) -> f64 {
        let b0 = self.base.overhead();
        b0 * (cpu_ns - spent_ns - own_ns).max(0.0) / (1.0 + b0)
    }

    /// Divides `want` among the switched sources.
    fn share_out(&mut self, want: f64, cpu_ns: f64) {
        let mut basins = std::mem::take(&mut self.basins);
        self.fill_basins(&mut basins);
        let is_off = self.target.overhead() == 0.0;
        let level = if is_off {
            0.0
        } else {
            level(&basins, want, &mut self.levels)
        };
        let horizon_ns = Balance::HORIZON * self.window.as_ns() as f64;
        for &index in &self.order {
            let basin = basins[index as usize];
            if let Some(entry) = &mut self.slots[index as usize].entry {
                let part = level.min(want) * entry.spec.weight;
                let saved_ns = entry.saved_ns + BURST * part * cpu_ns - entry.spent_ns;
                entry.saved_ns = saved_ns.clamp(0.0, horizon_ns * part);
                let is_free = entry.spec.is_always_on;
                entry.share = match (is_free, is_off) {
                    (true, _) => 1.0,
                    (false, true) => 0.0,
                    (false, false) => basin.share(level),
                };
            }
        }
        self.basins = basins;
    }

    /// A basin for each slot. Requirements: a required source has at least the floor of those that
    /// require it, and those have at most its floor and slope, so at every level their share is at
    /// most its share.
    fn fill_basins(&self, basins: &mut Vec<Basin>) {
        let blocked = Basin {
            demand: 0.0,
            floor: 0.0,
            slope: FLAT,
        };
        basins.clear();
        basins.resize(self.slots.len(), blocked);
        for &index in &self.order {
            if let Some(entry) = &self.slots[index as usize].entry {
                basins[index as usize] = self.basin(entry);
            }
        }
        for &index in self.order.iter().rev() {
            let floor = basins[index as usize].floor;
            for required in self.required(index) {
                let other = &mut basins[required.index()];
                other.floor = other.floor.max(floor);
            }
        }
        self.limit_floors(basins);
        for &index in &self.order {
            let mut basin = basins[index as usize];
            for &required in self.required(index) {
                let other = match self.entry(required) {
                    Some(_) => basins[required.index()],
                    None => Basin {
                        slope: 0.0,
                        ..blocked
                    },
                };
                basin.floor = basin.floor.min(other.floor);
                basin.slope = basin.slope.min(other.slope);
            }
            basins[index as usize] = basin;
        }
    }

    fn basin(&self, entry: &Entry) -> Basin {
        let full = Basin {
            demand: 0.0,
            floor: 1.0,
            slope: f64::INFINITY,
        };
        if entry.spec.is_always_on {
            return full;
        }
        match entry.demand() {
            // It costs nothing now, so it waits for its first event switched on.
            Some(demand) if demand <= 0.0 => full,
            Some(demand) => Basin {
                demand,
                floor: (self.floor_share(entry) / demand).min(1.0),
                slope: entry.spec.weight / demand,
            },
            None if self.balance.balance_ns() >= 0.0 => full,
            None => Basin {
                demand: 0.0,
                floor: EXPLORED_SHARE,
                slope: FLAT,
            },
        }
    }

    /// The floor of a source as share of CPU time. The floors of all are at most m together.
    fn floor_share(&self, entry: &Entry) -> f64 {
        entry.spec.floor.overhead() / (1.0 + self.target.overhead())
    }

    /// A required source that inherits the floor of a cheaper one may cost more than all floors
    /// promise. Then all floors are lowered by one factor.
    fn limit_floors(&self, basins: &mut [Basin]) {
        let floors: f64 = basins.iter().map(|it| it.demand * it.floor).sum();
        let most = self.target.monitoring_share();
        if floors > most {
            for basin in basins.iter_mut().filter(|it| it.demand > 0.0) {
                basin.floor *= most / floors;
            }
        }
    }

    fn required(&self, index: u32) -> &[SourceId] {
        let entry = self.slots[index as usize].entry.as_ref();
        entry.map_or(&[], |entry| &entry.spec.requires)
    }

    /// Decides on and off until the next tick, and writes the settings.
    fn switch(&mut self, now: Timestamp, cpu_ns: f64, want: f64) {
        let ahead_ns = (self.next_tick_ns as f64).max(cpu_ns);
        let weights: f64 = self.entries().map(|it| it.spec.weight).sum();
        let free_ns = (self.balance.balance_ns().max(0.0) + want * ahead_ns) / weights;
        let threshold = self.thresholds.draw();
        self.settings.clear();
        for at in 0..self.order.len() {
            let index = self.order[at];
            let permitted = self.required(index).iter().all(|&required| {
                let other = self.entry(required);
                other.is_some_and(|other| other.is_on)
            });
            let is_capped_share = self.required(index).iter().any(|&required| {
                let other = self.entry(required);
                other.is_none_or(|other| other.share < 1.0)
            });
            let source = self.id(index);
            let Some(entry) = &mut self.slots[index as usize].entry else {
                continue;
            };
            let dwell = entry.spec.actuator.dwell();
            entry.is_on =
                entry
                    .duty
                    .decide(entry.share, entry.elapsed, now, dwell, permitted, threshold);
            let limit = match (entry.share < 1.0, is_capped_share) {
                (false, _) => ShareLimit::None,
                (true, true) => ShareLimit::Requirement,
                (true, false) => ShareLimit::Budget,
            };
            self.settings.push(SourceSetting {
                source,
                share: entry.share,
                is_on: entry.is_on,
                burst_cap: burst_cap(entry, ahead_ns, free_ns),
                limit,
            });
        }
        self.settings.sort_unstable_by_key(|it| it.source.index);
    }

    /// The state of the budget over the whole run.
    #[must_use]
    pub fn report(&self) -> BudgetReport {
        let sources: Vec<BudgetSource> = (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| Some(row(self.id(index), slot.entry.as_ref()?)))
            .collect();
        let events_ns = self.removed_ns + sources.iter().map(|it| it.cost_ns).sum::<f64>();
        let variance: f64 = sources.iter().map(|it| it.cost_error_ns.powi(2)).sum();
        let (cpu, own) = self
            .last
            .map_or((Nanos::ZERO, Nanos::ZERO), |it| (it.cpu, it.own));
        let (cpu_ns, own_ns) = (cpu.as_ns() as f64, own.as_ns() as f64);
        let base_ns = self.base_ns(cpu_ns, events_ns, own_ns);
        let cost = events_ns + own_ns + base_ns;
        let error = (variance + self.removed_variance).sqrt();
        // d(M/R)/dM = C / R^2.
        let plain = (cpu_ns - cost).max(f64::MIN_POSITIVE);
        BudgetReport {
            target: self.target.overhead(),
            observed: overhead(cost, cpu_ns),
            observed_error: error * cpu_ns / (plain * plain),
            cpu,
            events_ns,
            own,
            base_ns,
            expired_ns: self.balance.expired_ns(),
            debt_ns: -self.balance.balance_ns(),
            window: self.window,
            series: self.series.points().to_vec(),
            sources,
            removed_sources: self.removed_sources,
            removed_ns: self.removed_ns,
        }
    }

    /// Nanoseconds of CPU time that the target permits beyond what was spent, as of the last tick;
    /// below 0: debt. At most a quarter of a window's budget, and a quantum.
    #[must_use]
    pub fn surplus_ns(&self) -> f64 {
        self.balance.balance_ns()
    }

    /// The costs of the whole run, without the rows of [`Self::report`]: cheap enough for a tick.
    #[must_use]
    pub fn costs(&self) -> BudgetCosts {
        let events: f64 = self.entries().map(|it| it.account.cost_ns()).sum();
        let events_ns = self.removed_ns + events;
        let (cpu, own) = self
            .last
            .map_or((Nanos::ZERO, Nanos::ZERO), |it| (it.cpu, it.own));
        BudgetCosts {
            events_ns,
            own,
            base_ns: self.base_ns(cpu.as_ns() as f64, events_ns, own.as_ns() as f64),
            debt_ns: -self.balance.balance_ns(),
        }
    }

    /// Share of CPU time that a source would cost if it were always on; `None` until it was on, and
    /// for a source that is not in the budget.
    #[must_use]
    pub fn demand(&self, source: SourceId) -> Option<f64> {
        self.entry(source)?.demand()
    }

    fn id(&self, index: u32) -> SourceId {
        SourceId {
            index,
            generation: self.slots[index as usize].generation,
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref())
    }

    fn entry(&self, source: SourceId) -> Option<&Entry> {
        let slot = self.slots.get(source.index())?;
        let is_current = slot.generation == source.generation;
        slot.entry.as_ref().filter(|_| is_current)
    }

    fn entry_mut(&mut self, source: SourceId) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(source.index())?;
        let is_current = slot.generation == source.generation;
        slot.entry.as_mut().filter(|_| is_current)
    }
}

/// Checks that a window is long enough for ticks.
pub(crate) fn check_window(window: Nanos) -> Result<(), BudgetError> {
    match window < MIN_WINDOW {
        true => Err(BudgetError::WindowTooShort { window }),
        false => Ok(()),
    }
}

/// Events until the next tick: twice the plan, and a part of what is free by weight. All caps
/// together are at most twice what is wanted, and the surplus. A source that reaches its cap
/// doubles its demand, so the cap of a burst grows from tick to tick.
fn burst_cap(entry: &Entry, ahead_ns: f64, free_ns: f64) -> Option<u64> {
    let price = entry.account.price().as_ns();
    if entry.spec.is_always_on || entry.spec.actuator != Actuator::Share || price <= 0.0 {
        return None;
    }
    let demand = entry.demand().unwrap_or(0.0);
    let allowed_ns =
        BURST * entry.share_in_force() * demand * ahead_ns + free_ns * entry.spec.weight;
    let saved_ns = match entry.spec.saves_for_phases {
        true => entry.saved_ns,
        false => 0.0,
    };
    Some(((allowed_ns.max(saved_ns) / price) as u64).max(1))
}

fn row(source: SourceId, entry: &Entry) -> BudgetSource {
    let share = |on: f64, all: f64| (all > 0.0).then(|| on / all);
    BudgetSource {
        source,
        name: entry.spec.name.clone(),
        events: entry.account.count(),
        cost_ns: entry.account.cost_ns(),
        cost_error_ns: entry.account.error_ns(),
        price: entry.account.price(),
        share_on: if entry.counts_units {
            share(entry.units_on as f64, entry.units_all as f64)
        } else {
            share(entry.on_ns, entry.seen_ns)
        },
        demand: entry.demand(),
        threads: entry
            .account
            .threads()
            .map(|(thread, events, cost_ns)| ThreadCost {
                thread,
                events,
                cost_ns,
            })
            .collect(),
    }
}
