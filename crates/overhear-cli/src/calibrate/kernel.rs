// SPDX-License-Identifier: MIT OR Apache-2.0
//! What kernel sensors cost: loops without a monitor, beside one, and under one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{GapCause, Inbox, StreamDescriptor, StreamId, Timestamp};
use overhear_kernel::{Choice, KernelMonitor, Sensor, StartError};

use super::loops::{Loop, Loops};
use super::{lower_quartile, undisturbed, Cost, KernelCost, REPEATS};
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
}

/// The values of all rounds.
#[derive(Default)]
struct Values {
    firing: Vec<f64>,
    constant: Vec<f64>,
}

/// Measures what the kernel's sensors cost, and what reading them does.
pub(super) fn measure(
    rounds: u64,
    notes: &mut Vec<String>,
    tell: &mut dyn FnMut(u64),
) -> Result<(Vec<KernelCost>, Option<Cost>), Failure> {
    if let Err(error) = monitor(Loop::Yield) {
        notes.push(format!("kernel sensors are not calibrated: {error}"));
        return Ok((Vec::new(), None));
    }
    let mut loops = loops()?;
    let mut values: BTreeMap<Loop, Values> = BTreeMap::new();
    let mut reading = Vec::new();
    let mut silent: BTreeMap<Loop, String> = BTreeMap::new();
    for round in 0..rounds {
        // What a round has found out so far, per element.
        let mut known: BTreeMap<&str, f64> = BTreeMap::new();
        for which in Loop::ALL {
            if let Some(reason) = loops.lacks(which) {
                silent.insert(which, reason.to_string());
            }
            if silent.contains_key(&which) {
                continue;
            }
            let found = self::round(&mut loops, which, round % 2 == 1);
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
            let values = values.entry(which).or_default();
            values.firing.push(firing);
            values.constant.push(found.constant / own);
            reading.push(found.reading);
        }
        tell(round + 1);
    }
    notes.extend(
        silent.iter().map(|(which, reason)| {
            format!("kernel:{} is not calibrated: {reason}", which.sensor())
        }),
    );
    Ok((costs(&values), Cost::of(&reading)))
}

fn loops() -> Result<Loops, Failure> {
    Loops::new().map_err(|error| {
        let sentence = format!("the loops of the calibration cannot run: {error}");
        Failure::new(UNAVAILABLE, sentence)
    })
}

/// Measures what a switch costs per element where perf records are heard: departures and arrivals apart.
/// `None` where they cannot be.
pub(super) fn measure_perf(rounds: u64) -> Result<Option<Cost>, Failure> {
    let mut loops = loops()?;
    let rounds = (0..rounds).map_while(|_| perf_round(&mut loops).ok());
    Ok(Cost::of(&rounds.collect::<Vec<_>>()))
}

fn perf_round(loops: &mut Loops) -> Result<f64, Box<dyn std::error::Error>> {
    let turns = Loop::Yield.turns();
    loops.run(Loop::Yield, turns / 10);
    let out = undisturbed(|| loops.run(Loop::Yield, turns));
    let mut monitor = KernelMonitor::builder().choice(Choice::Perf).create()?;
    for tid in loops.players(Loop::Yield) {
        monitor.thread_monitor(tid, tid)?;
    }
    monitor.resume()?;
    let mut tally = Tally::default();
    let mut on = Vec::new();
    for _ in 0..REPEATS {
        monitor.read(&mut tally)?;
        tally.clear();
        on.push(loops.run(Loop::Yield, turns));
        monitor.read(&mut tally)?;
    }
    let on = lower_quartile(&on);
    let elements = tally.elements.get(SCHED_SWITCH).copied().unwrap_or(0) + tally.missed;
    match elements as f64 / turns as f64 {
        own if own >= FIRES => Ok((on - out) / own),
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
    loops: &mut Loops,
    which: Loop,
    backwards: bool,
) -> Result<Round, Box<dyn std::error::Error>> {
    let turns = which.turns();
    let measure = |loops: &mut Loops| {
        loops.run(which, turns / 10);
        undisturbed(|| loops.run(which, turns))
    };
    let mut out = 0.0;
    if !backwards {
        out = measure(loops);
    }
    let mut monitor = monitor(which)?;
    monitor.resume()?;
    let within = measure(loops);
    for tid in loops.players(which) {
        monitor.thread_monitor(tid, tid)?;
    }
    loops.run(which, turns / 10);
    let mut tally = Tally::default();
    let (mut on, mut reading) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        monitor.read(&mut tally)?;
        tally.clear();
        on.push(loops.run(which, turns));
        let begun = Instant::now();
        monitor.read(&mut tally)?;
        reading.push(begun.elapsed().as_nanos() as f64 / tally.all.max(1) as f64);
        if tally.missed > 0 {
            return Err(format!("{} elements of the loop were missed", tally.missed).into());
        }
    }
    drop(monitor);
    if backwards {
        out = measure(loops);
    }
    let per_turn =
        |(sensor, count): (&String, &u64)| (sensor.clone(), *count as f64 / turns as f64);
    Ok(Round {
        constant: within - out,
        firing: lower_quartile(&on) - out,
        elements: tally.elements.iter().map(per_turn).collect(),
        reading: lower_quartile(&reading),
    })
}

/// What was measured, and for the sensors that nothing fires in a loop the dearest of it that is known
/// to cost anything.
fn costs(values: &BTreeMap<Loop, Values>) -> Vec<KernelCost> {
    let mut costs: Vec<KernelCost> = values
        .iter()
        .filter_map(|(which, values)| {
            Some(KernelCost {
                sensor: which.sensor().to_string(),
                by: Some(which.about().to_string()),
                firing: Cost::of(&values.firing)?,
                constant: Cost::of(&values.constant),
                assumed: false,
            })
        })
        .collect();
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
