// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernel sensors cost: loops without a monitor, beside one, and under one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{GapCause, Inbox, StreamDescriptor, StreamId, Timestamp};
use overhear_kernel::{Choice, KernelMonitor, Sensor, StartError};
use overhear_monitor::yardstick::median;

use super::loops::{Loop, Loops};
use super::stopwatch::{Stopwatch, Value};
use super::{Cost, KernelCost, Sought};
use crate::exit::{Failure, UNAVAILABLE};

/// Fewer elements of its own sensor than this per turn, and a loop does not fire it.
const FIRES: f64 = 0.9;

/// Counts elements by sensor.
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
            match self.elements.get_mut(&stream.sensor) {
                Some(count) => *count += 1,
                None => drop(self.elements.insert(stream.sensor.clone(), 1)),
            }
        }
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn close(&mut self, _: StreamId) {}
}

impl Tally {
    /// Forgets what was counted, and keeps the streams.
    fn clear(&mut self) {
        self.elements.clear();
        self.all = 0;
        self.missed = 0;
    }
}

/// One round of one loop, per turn.
struct Round {
    /// *in* less *out*.
    constant: f64,
    /// *on* less *out*.
    firing: f64,
    elements: BTreeMap<String, f64>,
    /// Reading, per element.
    reading: f64,
    /// Whether the core was undisturbed in all three states.
    is_calm: bool,
}

/// The values of a loop's rounds.
#[derive(Default)]
struct Values(Vec<RoundValue>);

#[derive(Clone, Copy)]
struct RoundValue {
    firing: f64,
    constant: f64,
    is_calm: bool,
}

/// With fewer undisturbed rounds the others count as well.
const CALM_ROUNDS: usize = 2;

impl Values {
    /// The costs of firing and of nobody listening: of undisturbed rounds if there are enough of them.
    fn costs(&self) -> Option<(Cost, Option<Cost>)> {
        let calm = self.0.iter().filter(|value| value.is_calm);
        let is_enough = calm.clone().count() >= CALM_ROUNDS;
        let counted = self.0.iter().filter(|value| value.is_calm || !is_enough);
        let of = |which: fn(&RoundValue) -> f64| {
            Cost::of(&counted.clone().map(which).collect::<Vec<_>>())
        };
        Some((of(|value| value.firing)?, of(|value| value.constant)))
    }
}

/// Measures what the kernel's sensors cost, and what reading them does.
pub(super) fn measure(
    rounds: u64,
    bench: &mut Bench,
    only: &[Sought],
    notes: &mut Vec<String>,
    tell: &mut dyn FnMut(u64),
) -> Result<(Vec<KernelCost>, Option<Cost>), Failure> {
    if let Err(error) = monitor(Loop::Yield) {
        notes.push(format!("kernel sensors are not calibrated: {error}"));
        return Ok((Vec::new(), None));
    }
    let mut values: BTreeMap<Loop, Values> = BTreeMap::new();
    let mut reading = Vec::new();
    let mut silent: BTreeMap<Loop, String> = BTreeMap::new();
    for round in 0..rounds {
        // What a round has found out so far, per element.
        let mut known: BTreeMap<&str, f64> = BTreeMap::new();
        for which in Loop::sought(only) {
            if let Some(reason) = bench.loops.lacks(which) {
                silent.insert(which, reason.to_string());
            }
            if silent.contains_key(&which) {
                continue;
            }
            let found = self::round(bench, which, round % 2 == 1);
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    silent.insert(which, error.to_string());
                    continue;
                }
            };
            let own = found.elements.get(which.sensor()).copied().unwrap_or(0.0);
            if own < FIRES {
                let reason = format!("{} did not fire it", which.about());
                silent.insert(which, reason);
                continue;
            }
            let others: f64 = found
                .elements
                .iter()
                .filter(|(sensor, _)| *sensor != which.sensor())
                .map(|(sensor, count)| known.get(&**sensor).copied().unwrap_or(0.0) * count)
                .sum();
            let firing = (found.firing - others) / own;
            known.insert(which.sensor(), firing);
            values.entry(which).or_default().0.push(RoundValue {
                firing,
                constant: found.constant / own,
                is_calm: found.is_calm,
            });
            reading.push(found.reading);
        }
        tell(round + 1);
    }
    notes.extend(
        silent.iter().map(|(which, reason)| {
            format!("kernel:{} is not calibrated: {reason}", which.sensor())
        }),
    );
    Ok((costs(&values, only.is_empty()), Cost::of(&reading)))
}

/// The loops and the stopwatch, on the same CPU. It is for all measurements: who is bound to a CPU already does not see that
/// there are others.
pub(super) struct Bench {
    loops: Loops,
    stopwatch: Stopwatch,
}

impl Bench {
    pub(super) fn new() -> Result<Self, Failure> {
        let loops = Loops::new().map_err(|error| {
            let sentence = format!("the loops of the calibration cannot run: {error}");
            Failure::new(UNAVAILABLE, sentence)
        })?;
        let stopwatch = Stopwatch::new();
        Ok(Self { loops, stopwatch })
    }

    /// The value of a loop as things are now, after some turns that do not count.
    fn value(&mut self, which: Loop) -> Value {
        let turns = which.turns();
        self.loops.run(which, turns);
        self.stopwatch.value_of(|| self.loops.run(which, turns))
    }
}

/// Measures what a switch costs per element where perf records are heard: departures and arrivals apart.
/// `None` where they cannot be.
pub(super) fn measure_perf(rounds: u64, bench: &mut Bench) -> Option<Cost> {
    let rounds = (0..rounds).map_while(|_| perf_round(bench).ok());
    Cost::of(&rounds.collect::<Vec<_>>())
}

fn perf_round(bench: &mut Bench) -> Result<f64, Box<dyn std::error::Error>> {
    let out = bench.value(Loop::Yield);
    let turns = Loop::Yield.turns();
    let Bench { loops, stopwatch } = bench;
    let mut monitor = KernelMonitor::builder().choice(Choice::Perf).create()?;
    for tid in loops.players(Loop::Yield) {
        monitor.thread_monitor(tid, tid)?;
    }
    monitor.resume()?;
    let mut tally = Tally::default();
    let on = stopwatch.value(|stopwatch| {
        monitor.read(&mut tally)?;
        tally.clear();
        let measured = stopwatch.beside(|| loops.run(Loop::Yield, turns));
        monitor.read(&mut tally).map(|()| measured)
    })?;
    let elements = tally.elements.get(SCHED_SWITCH).copied().unwrap_or(0) + tally.missed;
    match elements as f64 / turns as f64 {
        own if own >= FIRES => Ok((on.ns - out.ns) / own),
        _ => Err("perf records tell of no switches".into()),
    }
}

fn monitor(which: Loop) -> Result<KernelMonitor, StartError> {
    let sensors = Sensor::all().filter(|sensor| sensor.name() == which.sensor());
    KernelMonitor::builder()
        .choice(Choice::Bpf)
        .sensors(sensors)
        .create()
}

/// Out, in and on; the other way round in every other round, so that a drift of the machine cancels.
fn round(
    bench: &mut Bench,
    which: Loop,
    backwards: bool,
) -> Result<Round, Box<dyn std::error::Error>> {
    let turns = which.turns();
    let mut out = Value::default();
    if !backwards {
        out = bench.value(which);
    }
    let mut monitor = monitor(which)?;
    monitor.resume()?;
    let within = bench.value(which);
    for tid in bench.loops.players(which) {
        monitor.thread_monitor(tid, tid)?;
    }
    bench.loops.run(which, turns);
    let Bench { loops, stopwatch } = bench;
    let mut tally = Tally::default();
    let mut reading = Vec::new();
    let on = stopwatch.value(|stopwatch| {
        monitor.read(&mut tally)?;
        tally.clear();
        let measured = stopwatch.beside(|| loops.run(which, turns));
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
    drop(monitor);
    if backwards {
        out = bench.value(which);
    }
    let per_turn =
        |(sensor, count): (&String, &u64)| (sensor.clone(), *count as f64 / turns as f64);
    Ok(Round {
        constant: within.ns - out.ns,
        firing: on.ns - out.ns,
        is_calm: [out, within, on].iter().all(|value| value.is_calm),
        elements: tally.elements.iter().map(per_turn).collect(),
        reading: median(&reading),
    })
}

/// What was measured; and where all sensors are sought, for those that nothing fires in a loop, the dearest of it that is
/// known to cost anything.
fn costs(values: &BTreeMap<Loop, Values>, all: bool) -> Vec<KernelCost> {
    let mut costs: Vec<KernelCost> = values
        .iter()
        .filter_map(|(which, values)| {
            let (firing, constant) = values.costs()?;
            Some(KernelCost {
                sensor: which.sensor().to_string(),
                by: Some(which.about().to_string()),
                firing,
                constant,
                assumed: false,
            })
        })
        .collect();
    if !all {
        return costs;
    }
    let dearest = costs
        .iter()
        .map(|cost| cost.firing)
        .filter(|firing| firing.mean_ns > firing.within_ns)
        .max_by(|one, other| one.mean_ns.total_cmp(&other.mean_ns));
    let names = Sensor::all().map(Sensor::name);
    for sensor in std::iter::once(TASK_LIFE).chain(names) {
        let is_known = costs.iter().any(|cost| cost.sensor == sensor);
        if let (Some(firing), false) = (dearest, is_known) {
            costs.push(KernelCost {
                sensor: sensor.to_string(),
                by: None,
                firing,
                constant: None,
                assumed: true,
            });
        }
    }
    costs
}
