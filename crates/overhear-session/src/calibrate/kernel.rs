// SPDX-License-Identifier: MIT OR Apache-2.0
//! The costs of kernel sensors, by the time of loops in four states; for loops of uneven duration,
//! by the kernel's statistics of the run time of BPF programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use overhear_event::kernel::SCHED_SWITCH;
use overhear_event::{GapCause, Inbox, StreamDescriptor, StreamId, Timestamp};
use overhear_kernel::{Backend, BudgetState, KernelMonitor, ProgStatsGuard, Sensor, StartError};
use overhear_metrics::price_name;
use overhear_monitor::interference::median;

use super::loops::{Loop, Loops};
use super::prices::{PriceTable, RoundPrices, RunTime};
use super::stopwatch::{Patience, Stopwatch, Value};
use super::{CalibratedSensor, Cost, KernelCost};
use crate::error::{ErrorKind, SessionError};

/// A loop with fewer elements of its sensor per turn does not measure that sensor.
const MIN_ELEMENTS_PER_TURN: f64 = 0.9;

/// Counts elements by the name of their price.
#[derive(Default)]
struct Tally {
    streams: BTreeMap<StreamId, Arc<StreamDescriptor>>,
    elements: BTreeMap<String, u64>,
    all: u64,
    missed: u64,
}

impl Inbox for Tally {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        self.streams.insert(stream.id, stream);
    }

    fn element(&mut self, id: StreamId, _: u64, _: Timestamp, _: &[u8]) {
        self.all += 1;
        if let Some(stream) = self.streams.get(&id) {
            let name = price_name(&stream.sensor);
            match self.elements.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(self.elements.insert(name.to_string(), 1)),
            }
        }
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn close(&mut self, _: StreamId) {}
}

impl Tally {
    /// Resets the counts, and keeps the streams.
    fn clear(&mut self) {
        self.elements.clear();
        self.all = 0;
        self.missed = 0;
    }
}

/// Run times of a loop's BPF programs, by the kernel's statistics.
struct Statistics {
    within: RunTime,
    on: RunTime,
    /// Number of elements of the loop's sensor, per turn.
    elements: f64,
}

impl Statistics {
    /// Elements without run times are from before the kernel's measurement.
    fn has_both(&self) -> bool {
        self.elements > 0.0 && self.on.count > 0.0
    }
}

/// Times of a loop, in nanoseconds per turn.
struct Timed {
    /// *in* less *out*.
    constant: f64,
    /// *on* less *out*.
    cost_per_event: f64,
    elements: BTreeMap<String, f64>,
    /// *counted* less *out*, and whether the core was undisturbed; `None` without this state.
    skipped: Option<(f64, bool)>,
    /// Time to read an element.
    reading: f64,
    /// Whether the core was undisturbed in the first three states.
    is_calm: bool,
}

/// One round of one loop.
struct Round {
    timed: Option<Timed>,
    statistics: Option<Statistics>,
}

/// The reason that a loop that ran does not measure its sensor.
fn without_elements(which: Loop) -> String {
    format!("{} did not fire it", which.about())
}

/// The costs of kernel sensors.
#[derive(Default)]
pub(super) struct KernelCosts {
    pub(super) costs: Vec<KernelCost>,
    /// See [`super::Calibration::entry`].
    pub(super) entry: Option<Cost>,
    /// Cost of reading an element.
    pub(super) reading: Option<Cost>,
}

/// Measures the costs of kernel sensors, and the cost of reading them.
pub(super) fn measure(
    rounds: u64,
    bench: &mut Bench,
    only: &[CalibratedSensor],
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(u64),
) -> KernelCosts {
    if let Err(error) = monitor(Loop::Yield) {
        notes.push(format!("kernel sensors are not calibrated: {error}"));
        return KernelCosts::default();
    }
    let no_statistics = ProgStatsGuard::start().err().map(|error| error.to_string());
    let mut table = PriceTable::default();
    let mut reading = Vec::new();
    let mut unmeasured: BTreeMap<Loop, String> = BTreeMap::new();
    for which in Loop::for_sensors(only) {
        let uneven = || no_statistics.clone().filter(|_| !which.is_even());
        if let Some(reason) = bench.loops.obstacle(which).or_else(uneven) {
            unmeasured.insert(which, reason);
        }
    }
    for round in 0..rounds {
        // The prices of this round so far.
        let mut known = RoundPrices::default();
        for which in Loop::for_sensors(only) {
            if unmeasured.contains_key(&which) {
                continue;
            }
            let result = match self::round(bench, which, round % 2 == 1) {
                Ok(result) => result,
                Err(error) => {
                    unmeasured.insert(which, error.to_string());
                    continue;
                }
            };
            if let Some(timed) = &result.timed {
                let own = timed.elements.get(which.sensor()).copied().unwrap_or(0.0);
                if own < MIN_ELEMENTS_PER_TURN {
                    unmeasured.insert(which, without_elements(which));
                    continue;
                }
                let cost_per_event = (timed.cost_per_event
                    - known.cost_of_others(which.sensor(), &timed.elements))
                    / own;
                known.set_price(which.sensor(), cost_per_event);
                table.add_times(which, cost_per_event, timed.constant / own, timed.is_calm);
                if let Some((skipped, is_calm)) = timed.skipped {
                    let others = known.cost_of_others(which.sensor(), &timed.elements);
                    table.add_skipped(which, (skipped - others) / own, is_calm);
                }
                reading.push(timed.reading);
                if let (true, Some(of)) = (which.is_reference(), &result.statistics) {
                    known.add_entry_cost(
                        cost_per_event * of.elements - of.on.total_ns,
                        of.on.count,
                        timed.is_calm,
                    );
                }
            }
            if let Some(of) = result.statistics.filter(Statistics::has_both) {
                let per_element = |ran: RunTime| RunTime {
                    count: ran.count / of.elements,
                    total_ns: ran.total_ns / of.elements,
                };
                table.add_run_times(which, per_element(of.on), per_element(of.within));
            }
        }
        table.end_round(&known);
        progress(round + 1);
    }
    let unpriced = Loop::for_sensors(only).filter(|which| !table.has(*which));
    let reasons: BTreeMap<&str, String> = unpriced
        .map(|which| {
            let reason = unmeasured.remove(&which);
            (
                which.sensor(),
                reason.unwrap_or_else(|| without_elements(which)),
            )
        })
        .collect();
    let costs = table.costs(only.is_empty(), &reasons);
    notes.extend(super::prices::notes(&costs, &reasons));
    KernelCosts {
        costs,
        entry: table.entry(),
        reading: Cost::of(&reading),
    }
}

/// The loops and the stopwatch, bound to one CPU. There is one for all measurements: a thread that
/// is bound to a CPU cannot find a second one.
pub(super) struct Bench {
    loops: Loops,
    stopwatch: Stopwatch,
}

impl Bench {
    pub(super) fn new() -> Result<Self, SessionError> {
        let loops = Loops::new().map_err(|error| {
            let message = format!("the loops of the calibration cannot run: {error}");
            SessionError::new(ErrorKind::Unavailable, message)
        })?;
        let stopwatch = Stopwatch::new(Patience::CALIBRATION);
        Ok(Self { loops, stopwatch })
    }

    /// The value of a loop in the present state, after some turns to warm up.
    fn value(&mut self, which: Loop) -> Value {
        let turns = which.turns();
        self.loops.run(which, turns);
        self.stopwatch.value_of(|| self.loops.run(which, turns))
    }
}

/// Measures the cost per element of a context switch with perf records. `None` if they are not
/// permitted.
pub(super) fn measure_perf(rounds: u64, bench: &mut Bench) -> Option<Cost> {
    let rounds = (0..rounds).map_while(|_| perf_round(bench).ok());
    Cost::of(&rounds.collect::<Vec<_>>())
}

fn perf_round(bench: &mut Bench) -> Result<f64, Box<dyn std::error::Error>> {
    bench.stopwatch.update_speed();
    let out = bench.value(Loop::Yield);
    let turns = Loop::Yield.turns();
    let Bench { loops, stopwatch } = bench;
    let mut monitor = KernelMonitor::builder().backend(Backend::Perf).create()?;
    for tid in loops.threads(Loop::Yield) {
        monitor.thread_monitor(tid, tid)?;
    }
    monitor.resume()?;
    let mut tally = Tally::default();
    let on = stopwatch.value(|stopwatch| {
        monitor.read(&mut tally)?;
        tally.clear();
        let measured = stopwatch.probed(|| loops.run(Loop::Yield, turns));
        monitor.read(&mut tally).map(|()| measured)
    })?;
    let elements = tally.elements.get(SCHED_SWITCH).copied().unwrap_or(0) + tally.missed;
    match elements as f64 / turns as f64 {
        own if own >= MIN_ELEMENTS_PER_TURN => Ok((on.ns - out.ns) / own),
        _ => Err("there are no perf records of switches".into()),
    }
}

fn monitor(which: Loop) -> Result<KernelMonitor, StartError> {
    let sensors = Sensor::all().filter(|sensor| sensor.name() == which.sensor());
    KernelMonitor::builder()
        .backend(Backend::Bpf)
        .sensors(sensors)
        .probes(which.probe())
        .create()
}

/// Tracks the threads of the loop.
fn track(
    monitor: &mut KernelMonitor,
    loops: &Loops,
    which: Loop,
) -> Result<(), overhear_kernel::SelectError> {
    if which.has_children() {
        return monitor.process_monitor(std::process::id());
    }
    for tid in loops.threads(which) {
        monitor.thread_monitor(tid, tid)?;
    }
    Ok(())
}

/// Number of runs of a loop for the kernel's statistics.
const STATISTICS_RUNS: u64 = 9;

/// The run time of the programs in a loop; `None` without statistics.
fn run_time(bench: &mut Bench, monitor: &KernelMonitor, which: Loop) -> Option<RunTime> {
    let _clock = ProgStatsGuard::start().ok()?;
    let before = monitor.prog_stats(which.sensor())?;
    for _ in 0..STATISTICS_RUNS {
        bench.loops.run(which, which.turns());
    }
    let after = monitor.prog_stats(which.sensor())?;
    Some(RunTime::per_turn(
        after - before,
        STATISTICS_RUNS * which.turns(),
    ))
}

/// Lets the programs count the events of the loop's sensor, as for a budget. False if that sensor
/// is always on.
fn set_counted(
    monitor: &mut KernelMonitor,
    which: Loop,
) -> Result<bool, Box<dyn std::error::Error>> {
    let mut is_switched = false;
    for sensor in monitor.writes()? {
        if price_name(&sensor.descriptor.sensor) == which.sensor() {
            monitor.switch_for_budget(sensor.descriptor.id, BudgetState::Counted)??;
            is_switched = true;
        }
    }
    Ok(is_switched)
}

/// One round of a loop in the states out, in, on and counted. Every other round has the reverse
/// order, so that a drift of the machine cancels.
fn round(
    bench: &mut Bench,
    which: Loop,
    is_reversed: bool,
) -> Result<Round, Box<dyn std::error::Error>> {
    bench.stopwatch.update_speed();
    let turns = which.turns();
    let is_timed = which.is_even();
    let mut out = Value::default();
    if is_timed && !is_reversed {
        out = bench.value(which);
    }
    let mut monitor = monitor(which)?;
    monitor.resume()?;
    let mut within = Value::default();
    if is_timed {
        within = bench.value(which);
    }
    let ran_within = run_time(bench, &monitor, which);
    track(&mut monitor, &bench.loops, which)?;
    bench.loops.run(which, turns);
    let mut tally = Tally::default();
    let mut timed = None;
    if is_timed {
        let Bench { loops, stopwatch } = bench;
        let mut reading = Vec::new();
        let on = stopwatch.value(|stopwatch| {
            monitor.read(&mut tally)?;
            tally.clear();
            let measured = stopwatch.probed(|| loops.run(which, turns));
            let begun = Instant::now();
            monitor.read(&mut tally)?;
            reading.push(begun.elapsed().as_nanos() as f64 / tally.all.max(1) as f64);
            match tally.missed {
                0 => Ok(measured),
                missed => Err(Box::<dyn std::error::Error>::from(format!(
                    "{missed} elements of the loop were missed"
                ))),
            }
        })?;
        let per_turn =
            |(sensor, count): (&String, &u64)| (sensor.clone(), *count as f64 / turns as f64);
        timed = Some((
            on,
            tally.elements.iter().map(per_turn).collect(),
            median(&reading),
        ));
    }
    monitor.read(&mut tally)?;
    tally.clear();
    let ran_on = run_time(bench, &monitor, which);
    monitor.read(&mut tally)?;
    let own = tally.elements.get(which.sensor()).copied().unwrap_or(0);
    let counted = match is_timed && set_counted(&mut monitor, which)? {
        true => Some(bench.value(which)),
        false => None,
    };
    drop(monitor);
    if is_timed && is_reversed {
        out = bench.value(which);
    }
    Ok(Round {
        timed: timed.map(|(on, elements, reading)| Timed {
            constant: within.ns - out.ns,
            skipped: counted.map(|it| (it.ns - out.ns, it.is_calm && out.is_calm)),
            cost_per_event: on.ns - out.ns,
            is_calm: [out, within, on].iter().all(|value| value.is_calm),
            elements,
            reading,
        }),
        statistics: ran_within.zip(ran_on).map(|(within, on)| Statistics {
            within,
            on,
            elements: own as f64 / (STATISTICS_RUNS * turns) as f64,
        }),
    })
}
