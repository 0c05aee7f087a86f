// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the values of rounds to prices: the choice of the method, and assumed prices for sensors
//! that could not be measured.

use std::collections::BTreeMap;

use overhear_event::kernel::{events, SCHED_SWITCH};
use overhear_kernel::{ProgStats, Sensor};
use overhear_metrics::{price_name, ENTRIES, RETURNS, STATIC_PROBES};
use overhear_monitor::interference::median;

use super::loops::Loop;
use super::{Cost, KernelCost, Method};

/// Divisor of the number of rounds: with fewer undisturbed rounds than this part, or than two, the
/// disturbed ones count as well.
const MIN_CALM_DIVISOR: usize = 4;

/// Largest ratio of half the confidence interval to the price for which the time of a loop is
/// preferred to the kernel's statistics.
const MAX_INTERVAL_RATIO: f64 = 0.25;

/// Runs and run time of a sensor's BPF programs, per turn of a loop or per element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunTime {
    pub(super) count: f64,
    pub(super) total_ns: f64,
}

impl RunTime {
    pub(super) fn per_turn(runs: ProgStats, turns: u64) -> Self {
        Self {
            count: runs.run_count as f64 / turns as f64,
            total_ns: runs.run_time_ns as f64 / turns as f64,
        }
    }
}

/// The prices of a round so far.
#[derive(Default)]
pub(super) struct RoundPrices {
    /// Price of an element, by sensor.
    prices: BTreeMap<&'static str, f64>,
    /// Cost of entering a program, less the part of its run time that reading the clock takes; and
    /// whether the core was undisturbed.
    entries: Vec<(f64, bool)>,
}

impl RoundPrices {
    pub(super) fn set_price(&mut self, sensor: &'static str, ns: f64) {
        self.prices.insert(sensor, ns);
    }

    /// The cost of the elements of other sensors in a turn of a loop.
    pub(super) fn cost_of_others(&self, own: &str, elements: &BTreeMap<String, f64>) -> f64 {
        let others = elements.iter().filter(|(sensor, _)| *sensor != own);
        let price = |sensor: &String| self.prices.get(&**sensor).copied().unwrap_or(0.0);
        others.map(|(sensor, count)| price(sensor) * count).sum()
    }

    /// Adds a turn of a reference loop: its cost besides the run time of its programs, and the
    /// number of program runs.
    pub(super) fn add_entry_cost(&mut self, excess_ns: f64, runs: f64, is_calm: bool) {
        if runs > 0.0 {
            self.entries.push((excess_ns / runs, is_calm));
        }
    }

    /// The cost of a program run besides the run time in the statistics, and whether the core was
    /// undisturbed. `None` if it is not known.
    fn entry(&self) -> Option<(f64, bool)> {
        let calm = self.entries.iter().filter(|(_, is_calm)| *is_calm);
        let calm: Vec<f64> = calm.map(|(ns, _)| *ns).collect();
        if !calm.is_empty() {
            return Some((median(&calm), true));
        }
        let all: Vec<f64> = self.entries.iter().map(|(ns, _)| *ns).collect();
        (!all.is_empty()).then(|| (median(&all), false))
    }
}

#[derive(Clone, Copy)]
struct RoundValue {
    cost_per_event: f64,
    constant: f64,
    is_calm: bool,
}

/// The values of undisturbed rounds if there are enough, else all values.
fn calm_or_all<T>(values: &[T], is_calm: impl Fn(&T) -> bool) -> Vec<&T> {
    let calm: Vec<&T> = values.iter().filter(|value| is_calm(value)).collect();
    match calm.len() >= (values.len() / MIN_CALM_DIVISOR).max(2) {
        true => calm,
        false => values.iter().collect(),
    }
}

fn cost_of<T>(values: &[&T], which: impl Fn(&T) -> f64) -> Option<Cost> {
    Cost::of(&values.iter().map(|value| which(value)).collect::<Vec<_>>())
}

/// The values of all rounds.
#[derive(Default)]
pub(super) struct PriceTable {
    timed: BTreeMap<Loop, Vec<RoundValue>>,
    /// Run times per element in the states on and in.
    ran: BTreeMap<Loop, Vec<(RunTime, RunTime)>>,
    /// Cost of an event that is counted for a budget, and whether the core was undisturbed.
    skipped: BTreeMap<Loop, Vec<(f64, bool)>>,
    /// Cost of entering a program, and whether the core was undisturbed.
    entries: Vec<(f64, bool)>,
}

impl PriceTable {
    /// Adds the times of a loop.
    pub(super) fn add_times(
        &mut self,
        which: Loop,
        cost_per_event: f64,
        constant: f64,
        is_calm: bool,
    ) {
        self.timed.entry(which).or_default().push(RoundValue {
            cost_per_event,
            constant,
            is_calm,
        });
    }

    /// Adds the cost of an event that is counted for a budget.
    pub(super) fn add_skipped(&mut self, which: Loop, ns: f64, is_calm: bool) {
        self.skipped.entry(which).or_default().push((ns, is_calm));
    }

    fn skipped(&self, which: Loop) -> Option<Cost> {
        let counted = calm_or_all(self.skipped.get(&which)?, |value| value.1);
        cost_of(&counted, |value| value.0)
    }

    /// Adds the run times per element in the states on and in.
    pub(super) fn add_run_times(&mut self, which: Loop, on: RunTime, within: RunTime) {
        self.ran.entry(which).or_default().push((on, within));
    }

    /// Ends a round.
    pub(super) fn end_round(&mut self, known: &RoundPrices) {
        self.entries.extend(known.entry());
    }

    /// The cost of entering a program.
    pub(super) fn entry(&self) -> Option<Cost> {
        cost_of(&calm_or_all(&self.entries, |entry| entry.1), |entry| {
            entry.0
        })
    }

    /// Cost per event and constant cost by the time of the loop.
    fn by_loop(&self, which: Loop) -> Option<(Cost, Option<Cost>)> {
        let counted = calm_or_all(self.timed.get(&which)?, |value| value.is_calm);
        let constant = cost_of(&counted, |value| value.constant);
        Some((cost_of(&counted, |value| value.cost_per_event)?, constant))
    }

    /// Cost per event and constant cost by the kernel's statistics, if the cost of entering a
    /// program is known. Its uncertainty widens the interval.
    fn by_statistics(&self, which: Loop) -> Option<(Cost, Option<Cost>)> {
        let all: Vec<_> = self.ran.get(&which)?.iter().collect();
        let entry = self.entry()?;
        let of = |ran: fn(&(RunTime, RunTime)) -> RunTime| {
            let time = cost_of(&all, |value| ran(value).total_ns)?;
            let counts: Vec<f64> = all.iter().map(|value| ran(value).count).collect();
            let count = median(&counts);
            Some(Cost {
                mean_ns: time.mean_ns + count * entry.mean_ns,
                deviation_ns: time.deviation_ns.hypot(count * entry.deviation_ns),
                within_ns: time.within_ns.hypot(count * entry.within_ns),
                samples: time.samples,
            })
        };
        Some((of(|value| value.0)?, of(|value| value.1)))
    }

    /// Whether the loop has a price.
    pub(super) fn has(&self, which: Loop) -> bool {
        self.price(which).is_some()
    }

    /// The price: by the time of the loop, unless that is uncertain and the statistics are better.
    fn price(&self, which: Loop) -> Option<(Method, Cost, Option<Cost>)> {
        let (timed, ran) = (self.by_loop(which), self.by_statistics(which));
        let is_tight = |cost: &Cost| cost.within_ns <= MAX_INTERVAL_RATIO * cost.mean_ns;
        match (timed, ran) {
            (Some((timed, _)), Some((ran, constant)))
                if !is_tight(&timed) && ran.within_ns < timed.within_ns =>
            {
                Some((Method::Statistics, ran, constant))
            }
            (Some((cost_per_event, constant)), _) => Some((Method::Loop, cost_per_event, constant)),
            (None, Some((cost_per_event, constant))) => {
                Some((Method::Statistics, cost_per_event, constant))
            }
            (None, None) => None,
        }
    }

    /// The measured costs. With `all`, also assumed costs of the sensors that could not be
    /// measured, with the reasons.
    pub(super) fn costs(&self, all: bool, reasons: &BTreeMap<&str, String>) -> Vec<KernelCost> {
        let measured = Loop::ALL.into_iter().filter_map(|which| {
            let (method, cost_per_event, constant) = self.price(which)?;
            let ran: Option<Vec<_>> = self.ran.get(&which).map(|ran| ran.iter().collect());
            Some(KernelCost {
                sensor: which.sensor().to_string(),
                by: Some(which.about().to_string()),
                method: Some(method),
                cost_per_event,
                constant: constant.filter(|_| !which.is_of_cpus()),
                skipped: self.skipped(which),
                program: ran.and_then(|ran| cost_of(&ran, |ran| ran.0.total_ns)),
                assumed: false,
                because: None,
                instead: None,
            })
        });
        let mut costs: Vec<KernelCost> = measured.collect();
        if all {
            add_assumed_costs(&mut costs, reasons);
        }
        costs
    }
}

/// Sensors with similar programs, the most similar first.
fn substitutes(sensor: &str) -> &'static [&'static str] {
    match sensor {
        events::CPU_FREQUENCY => &[events::CPU_IDLE, events::SCHEDULE, SCHED_SWITCH],
        events::CPU_IDLE => &[events::CPU_FREQUENCY, events::SCHEDULE, SCHED_SWITCH],
        RETURNS | STATIC_PROBES => &[ENTRIES],
        _ => &[],
    }
}

/// Adds assumed costs of sensors without a price: the price of a similar sensor, or the highest
/// price that is significantly above 0. A probe only has the price of another probe: probes
/// interrupt the program, tracepoints do not.
fn add_assumed_costs(costs: &mut Vec<KernelCost>, reasons: &BTreeMap<&str, String>) {
    let measured: Vec<KernelCost> = costs.clone();
    let dearest = (measured.iter())
        .filter(|cost| {
            cost.cost_per_event.mean_ns > cost.cost_per_event.within_ns && !is_probe(&cost.sensor)
        })
        .max_by(|one, other| {
            one.cost_per_event
                .mean_ns
                .total_cmp(&other.cost_per_event.mean_ns)
        });
    let sensors = Sensor::all().map(Sensor::name);
    for sensor in sensors.chain([ENTRIES, RETURNS, STATIC_PROBES]) {
        if measured.iter().any(|cost| cost.sensor == sensor) {
            continue;
        }
        let of = |relative: &&str| measured.iter().find(|cost| cost.sensor == **relative);
        let same = substitutes(sensor).iter().find_map(of);
        let dearest = dearest.filter(|_| !is_probe(sensor));
        if let Some(other) = same.or(dearest) {
            let reason = reasons.get(sensor).cloned();
            costs.push(KernelCost {
                sensor: sensor.to_string(),
                by: None,
                method: None,
                cost_per_event: other.cost_per_event,
                constant: None,
                skipped: other.skipped,
                program: None,
                assumed: true,
                because: Some(reason.unwrap_or_else(|| "no loop fires it".to_string())),
                instead: Some(other.sensor.clone()),
            });
        }
    }
}

fn is_probe(sensor: &str) -> bool {
    [ENTRIES, RETURNS, STATIC_PROBES].contains(&price_name(sensor))
}

/// Messages about sensors that could not be measured, with the reason and the assumed price.
pub(super) fn notes(costs: &[KernelCost], reasons: &BTreeMap<&str, String>) -> Vec<String> {
    let note = |(sensor, reason): (&&str, &String)| {
        let stands_in = costs.iter().find(|cost| cost.sensor == **sensor);
        let instead = stands_in.and_then(|cost| cost.instead.as_deref());
        let assumption = match instead {
            Some(other) => format!("it is taken to cost as much as {other}"),
            None => "its price is not known".to_string(),
        };
        format!("kernel:{sensor} is not calibrated, because {reason}; {assumption}")
    };
    reasons.iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::{notes, Loop, Method, PriceTable, RoundPrices, RunTime};

    /// The price of a loop whose time varies by `varies_ns`, and whose programs run twice per
    /// element for 100 ns.
    fn price(varies_ns: f64) -> (Method, f64) {
        let mut table = PriceTable::default();
        for round in 0..8 {
            let cost_per_event = 300.0 + f64::from(round % 3 - 1) * varies_ns;
            table.add_times(Loop::Birth, cost_per_event, 40.0, true);
            let ran = |total_ns| RunTime {
                count: 2.0,
                total_ns,
            };
            table.add_run_times(Loop::Birth, ran(200.0), ran(30.0));
            let mut known = RoundPrices::default();
            known.add_entry_cost(20.0, 1.0, true);
            known.add_entry_cost(1_000.0, 2.0, false);
            table.end_round(&known);
        }
        let (method, cost_per_event, constant) = table.price(Loop::Birth).unwrap();
        if method == Method::Statistics {
            // Two runs, and the cost of entering the programs.
            assert_eq!(constant.unwrap().mean_ns, 30.0 + 2.0 * 20.0);
        }
        (method, cost_per_event.mean_ns)
    }

    #[test]
    fn uneven_loops_are_priced_by_run_time() {
        let (method, cost_per_event) = price(10.0);
        assert_eq!(method, Method::Loop);
        assert!((cost_per_event - 300.0).abs() < 10.0, "{cost_per_event}");
        assert_eq!(price(400.0), (Method::Statistics, 200.0 + 2.0 * 20.0));
    }

    #[test]
    fn statistics_alone_are_no_price() {
        let mut table = PriceTable::default();
        for _ in 0..3 {
            table.add_run_times(Loop::Disk, RunTime::default(), RunTime::default());
        }
        // The cost of entering a program is not known.
        assert!(!table.has(Loop::Disk));
    }

    #[test]
    fn unmeasured_cost_has_a_note_and_a_substitute() {
        let mut table = PriceTable::default();
        for value in [200.0, 202.0] {
            table.add_times(Loop::Schedule, value, 50.0, true);
            table.add_times(Loop::Fault, 2.0 * value, 50.0, true);
            table.add_times(Loop::Entry, 4.0 * value, 50.0, true);
        }
        let reasons = [
            ("cpu_frequency", "this machine has no cpufreq".to_string()),
            ("lock", "there is one CPU".to_string()),
        ];
        let reasons = reasons.into_iter().collect();
        let costs = table.costs(true, &reasons);
        let of = |sensor: &str| costs.iter().find(|cost| cost.sensor == sensor).unwrap();
        assert!(!of("schedule").assumed);
        for (sensor, instead, ns) in [
            ("cpu_frequency", "schedule", 201.0),
            // The highest price except those of probes.
            ("lock", "page_fault", 402.0),
            ("probe/return", "probe", 804.0),
            ("usdt", "probe", 804.0),
        ] {
            let cost = of(sensor);
            assert!(cost.assumed && cost.by.is_none(), "{cost:?}");
            assert_eq!(cost.instead.as_deref(), Some(instead));
            assert_eq!(cost.cost_per_event.mean_ns, ns, "{sensor}");
            assert!(cost.because.is_some());
        }
        let notes = notes(&costs, &reasons);
        assert_eq!(
            notes[0],
            "kernel:cpu_frequency is not calibrated, because this machine has no cpufreq; it is taken to cost as much as schedule"
        );
        // Without `all`, there are no assumed costs.
        assert_eq!(table.costs(false, &reasons).len(), 3);
    }
}
