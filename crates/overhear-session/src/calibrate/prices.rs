// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the values of rounds to prices: by which method, and what is taken where none has led to
//! one.

use std::collections::BTreeMap;

use overhear_event::kernel::{events, SCHED_SWITCH};
use overhear_kernel::{ProgStats, Sensor};
use overhear_metrics::{price_name, ENTRIES, RETURNS, STATIC_PROBES};
use overhear_monitor::interference::median;

use super::loops::Loop;
use super::{Cost, KernelCost, Method};

/// With fewer undisturbed rounds than this part of all, or than two, the others count as well.
const CALM_PART: usize = 4;

/// A loop shows a price if half the confidence interval is at most this part of it; else the
/// kernel's statistics may know better.
const TIGHT: f64 = 0.25;

/// What the programs of a sensor have run: per turn of a loop, or per element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    pub(super) count: f64,
    pub(super) total_ns: f64,
}

impl Ran {
    pub(super) fn per_turn(runs: ProgStats, turns: u64) -> Self {
        Self {
            count: runs.run_count as f64 / turns as f64,
            total_ns: runs.run_time_ns as f64 / turns as f64,
        }
    }
}

/// What a round has found out so far.
#[derive(Default)]
pub(super) struct Known {
    /// Per element.
    prices: BTreeMap<&'static str, f64>,
    /// The way to a program and back, less what the statistics contain of their own clock; and
    /// whether the core was undisturbed.
    entries: Vec<(f64, bool)>,
}

impl Known {
    pub(super) fn learn(&mut self, sensor: &'static str, ns: f64) {
        self.prices.insert(sensor, ns);
    }

    /// What a turn of a loop has cost for the elements of other sensors.
    pub(super) fn of_others(&self, own: &str, elements: &BTreeMap<String, f64>) -> f64 {
        let others = elements.iter().filter(|(sensor, _)| *sensor != own);
        let price = |sensor: &String| self.prices.get(&**sensor).copied().unwrap_or(0.0);
        others.map(|(sensor, count)| price(sensor) * count).sum()
    }

    /// By so much a turn costs more than its programs run, which are so many.
    pub(super) fn refer(&mut self, more_ns: f64, runs: f64, is_calm: bool) {
        if runs > 0.0 {
            self.entries.push((more_ns / runs, is_calm));
        }
    }

    /// What each run of a program costs besides what the statistics say; and whether that is known
    /// from an undisturbed core. `None` if nothing is known.
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

/// Those of undisturbed rounds, if there are enough of them, else all.
fn counted<T>(values: &[T], is_calm: impl Fn(&T) -> bool) -> Vec<&T> {
    let calm: Vec<&T> = values.iter().filter(|value| is_calm(value)).collect();
    match calm.len() >= (values.len() / CALM_PART).max(2) {
        true => calm,
        false => values.iter().collect(),
    }
}

fn cost_of<T>(values: &[&T], which: impl Fn(&T) -> f64) -> Option<Cost> {
    Cost::of(&values.iter().map(|value| which(value)).collect::<Vec<_>>())
}

/// What all rounds have found.
#[derive(Default)]
pub(super) struct Table {
    timed: BTreeMap<Loop, Vec<RoundValue>>,
    /// Per element, when it is on and when it is in.
    ran: BTreeMap<Loop, Vec<(Ran, Ran)>>,
    /// What the statistics leave out of each run, and whether the core was undisturbed.
    entries: Vec<(f64, bool)>,
}

impl Table {
    pub(super) fn timed(&mut self, which: Loop, cost_per_event: f64, constant: f64, is_calm: bool) {
        self.timed.entry(which).or_default().push(RoundValue {
            cost_per_event,
            constant,
            is_calm,
        });
    }

    /// What programs have run per element, when the sensor is on, and for as much when it is in.
    pub(super) fn ran(&mut self, which: Loop, on: Ran, within: Ran) {
        self.ran.entry(which).or_default().push((on, within));
    }

    /// A round has ended.
    pub(super) fn enter(&mut self, known: &Known) {
        self.entries.extend(known.entry());
    }

    /// What the statistics leave out of each run.
    pub(super) fn entry(&self) -> Option<Cost> {
        cost_of(&counted(&self.entries, |entry| entry.1), |entry| entry.0)
    }

    /// By the loop's own time.
    fn by_loop(&self, which: Loop) -> Option<(Cost, Option<Cost>)> {
        let counted = counted(self.timed.get(&which)?, |value| value.is_calm);
        let constant = cost_of(&counted, |value| value.constant);
        Some((cost_of(&counted, |value| value.cost_per_event)?, constant))
    }

    /// By the kernel's statistics, if it is known what they leave out. How well that is known
    /// widens the interval.
    fn by_statistics(&self, which: Loop) -> Option<(Cost, Option<Cost>)> {
        let all: Vec<_> = self.ran.get(&which)?.iter().collect();
        let entry = self.entry()?;
        let of = |ran: fn(&(Ran, Ran)) -> Ran| {
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

    /// Whether something was found out.
    pub(super) fn has(&self, which: Loop) -> bool {
        self.price(which).is_some()
    }

    /// The price, by the loop's own time if that shows it, or if nothing shows it better.
    fn price(&self, which: Loop) -> Option<(Method, Cost, Option<Cost>)> {
        let (timed, ran) = (self.by_loop(which), self.by_statistics(which));
        let is_tight = |cost: &Cost| cost.within_ns <= TIGHT * cost.mean_ns;
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

    /// What was measured; and where all sensors are sought, for those that could not be, a price
    /// that stands in, with the reason.
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
                program: ran.and_then(|ran| cost_of(&ran, |ran| ran.0.total_ns)),
                assumed: false,
                because: None,
                instead: None,
            })
        });
        let mut costs: Vec<KernelCost> = measured.collect();
        if all {
            stand_in(&mut costs, reasons);
        }
        costs
    }
}

/// Sensors whose programs do about the same, the likest first.
fn relatives(sensor: &str) -> &'static [&'static str] {
    match sensor {
        events::CPU_FREQUENCY => &[events::CPU_IDLE, events::SCHEDULE, SCHED_SWITCH],
        events::CPU_IDLE => &[events::CPU_FREQUENCY, events::SCHEDULE, SCHED_SWITCH],
        RETURNS | STATIC_PROBES => &[ENTRIES],
        _ => &[],
    }
}

/// Gives those without a price that of their relative, or of the dearest that is known to cost
/// anything. Probes have none but that of each other: they interrupt the program, which tracepoints
/// do not.
fn stand_in(costs: &mut Vec<KernelCost>, reasons: &BTreeMap<&str, String>) {
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
        let same = relatives(sensor).iter().find_map(of);
        let dearest = dearest.filter(|_| !is_probe(sensor));
        if let Some(other) = same.or(dearest) {
            let reason = reasons.get(sensor).cloned();
            costs.push(KernelCost {
                sensor: sensor.to_string(),
                by: None,
                method: None,
                cost_per_event: other.cost_per_event,
                constant: None,
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

/// What could not be measured, why, and what is taken instead.
pub(super) fn notes(costs: &[KernelCost], reasons: &BTreeMap<&str, String>) -> Vec<String> {
    let note = |(sensor, reason): (&&str, &String)| {
        let stands_in = costs.iter().find(|cost| cost.sensor == **sensor);
        let instead = stands_in.and_then(|cost| cost.instead.as_deref());
        let taken = match instead {
            Some(other) => format!("it is taken to cost as much as {other}"),
            None => "its price is not known".to_string(),
        };
        format!("kernel:{sensor} is not calibrated, because {reason}; {taken}")
    };
    reasons.iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::{notes, Known, Loop, Method, Ran, Table};

    /// What a table says of a loop whose own time varies by so much, and whose programs run 100 ns
    /// twice per element.
    fn price(varies_ns: f64) -> (Method, f64) {
        let mut table = Table::default();
        for round in 0..8 {
            let cost_per_event = 300.0 + f64::from(round % 3 - 1) * varies_ns;
            table.timed(Loop::Birth, cost_per_event, 40.0, true);
            let ran = |total_ns| Ran {
                count: 2.0,
                total_ns,
            };
            table.ran(Loop::Birth, ran(200.0), ran(30.0));
            let mut known = Known::default();
            known.refer(20.0, 1.0, true);
            known.refer(1_000.0, 2.0, false);
            table.enter(&known);
        }
        let (method, cost_per_event, constant) = table.price(Loop::Birth).unwrap();
        if method == Method::Statistics {
            // Two runs, and the way to each.
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
        let mut table = Table::default();
        for _ in 0..3 {
            table.ran(Loop::Disk, Ran::default(), Ran::default());
        }
        // Nobody knows what they leave out.
        assert!(!table.has(Loop::Disk));
    }

    #[test]
    fn unmeasured_cost_has_a_note_and_a_substitute() {
        let mut table = Table::default();
        for value in [200.0, 202.0] {
            table.timed(Loop::Schedule, value, 50.0, true);
            table.timed(Loop::Fault, 2.0 * value, 50.0, true);
            table.timed(Loop::Entry, 4.0 * value, 50.0, true);
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
            // The dearest, but a probe is not like it.
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
        // Where single sensors are sought, nobody asks for the others.
        assert_eq!(table.costs(false, &reasons).len(), 3);
    }
}
