// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that are switched off, compared with LTTng's disabled tracepoint.
//!
//! An iteration of such a loop takes one cycle, so the address of the loop matters: a loop that
//! crosses a line of 64 bytes takes two. Every contender is therefore compiled at eight offsets in
//! a line ([`PLACES`]), and the best of each is compared.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use anyhow::{ensure, Result};
use overhear_directory::{MonitorConnection, Query};

use crate::figures::AGAIN;
use crate::hot::USUAL;
use crate::native::{crowds, units, PLACES};
use crate::peers::Peer;
use crate::race::{race, time, Contender, Outcome};
use crate::sensors::{self, Bytes8};

const OFF: &str = "Switched off, the best of eight places in the code";
/// Long compared with the call: an iteration takes one cycle.
const BATCH: u64 = 10_000;

/// One contender: runs the code at this offset for this number of elements.
pub(crate) struct Placed {
    name: String,
    run: Rc<RefCell<dyn FnMut(usize, u64)>>,
}

impl Placed {
    fn new(name: impl Into<String>, run: impl FnMut(usize, u64) + 'static) -> Self {
        Self {
            name: name.into(),
            run: Rc::new(RefCell::new(run)),
        }
    }

    fn contenders(&self, against: Option<&str>) -> impl Iterator<Item = Contender<'static>> + '_ {
        let against = against.map(str::to_owned);
        (0..PLACES).map(move |place| {
            let run = Rc::clone(&self.run);
            let contender = Contender::new(OFF, self.name.clone(), move || {
                let run = &mut *run.borrow_mut();
                run(place, 64);
                time(BATCH, &mut |elements| run(place, elements))
            });
            match &against {
                Some(name) => contender.against(name.clone()).at_most(1.0),
                None => contender,
            }
        })
    }
}

/// Sensors of every kind, switched off by the directory. This must run before other registrations,
/// because it switches off all registered sensors.
pub(crate) fn switched_off(socket: &Path) -> Result<Vec<Placed>> {
    let (bytes, slots) = USUAL;
    let mut placed = Vec::new();
    for unit in units() {
        let row = unit.row(bytes, slots);
        let put = row.enlist()?;
        placed.push(Placed::new(
            format!("{} {}", unit.compiler, unit.put),
            move |place, elements| row.put_from(place, put, elements),
        ));
    }
    for (compiler, laned, concurrent) in crowds() {
        let (laned, concurrent) = (laned.enlist(slots)?, concurrent.enlist(slots)?);
        placed.push(Placed::new(
            format!("{compiler} oh_laned_put"),
            move |place, elements| laned.put_from(place, elements),
        ));
        placed.push(Placed::new(
            format!("{compiler} oh_concurrent_put"),
            move |place, elements| concurrent.put_from(place, elements),
        ));
    }
    let mut simple = sensors::sensor::<Bytes8>(slots)?;
    let code: [fn(&mut _, _); PLACES] = [
        sensors::sense::<Bytes8, 0>,
        sensors::sense::<Bytes8, 8>,
        sensors::sense::<Bytes8, 16>,
        sensors::sense::<Bytes8, 24>,
        sensors::sense::<Bytes8, 32>,
        sensors::sense::<Bytes8, 40>,
        sensors::sense::<Bytes8, 48>,
        sensors::sense::<Bytes8, 56>,
    ];
    placed.push(Placed::new(
        "Rust Sensor<E>::write",
        move |place, elements| {
            code[place](&mut simple, elements);
        },
    ));
    let laned = sensors::laned(slots)?;
    let code: [fn(&_, _); PLACES] = [
        sensors::sense_laned::<0>,
        sensors::sense_laned::<8>,
        sensors::sense_laned::<16>,
        sensors::sense_laned::<24>,
        sensors::sense_laned::<32>,
        sensors::sense_laned::<40>,
        sensors::sense_laned::<48>,
        sensors::sense_laned::<56>,
    ];
    placed.push(Placed::new(
        "Rust LanedSensor<E>::write",
        move |place, elements| code[place](&laned, elements),
    ));
    let concurrent = sensors::concurrent::<Bytes8>(slots)?;
    let code: [fn(&_, _); PLACES] = [
        sensors::sense_concurrent::<Bytes8, 0>,
        sensors::sense_concurrent::<Bytes8, 8>,
        sensors::sense_concurrent::<Bytes8, 16>,
        sensors::sense_concurrent::<Bytes8, 24>,
        sensors::sense_concurrent::<Bytes8, 32>,
        sensors::sense_concurrent::<Bytes8, 40>,
        sensors::sense_concurrent::<Bytes8, 48>,
        sensors::sense_concurrent::<Bytes8, 56>,
    ];
    placed.push(Placed::new(
        "Rust ConcurrentSensor<E>::write",
        move |place, elements| code[place](&concurrent, elements),
    ));
    let changed = MonitorConnection::connect(socket)?.set_enabled(&Query::all(), false)?;
    ensure!(
        changed as usize == placed.len(),
        "{changed} of {} sensors were switched off",
        placed.len()
    );
    Ok(placed)
}

/// They alternate with the disabled tracepoint, if there is one.
pub(crate) fn off(rounds: usize, peers: &[Peer], sensors: &[Placed]) -> Vec<Outcome> {
    let mut contenders = Vec::new();
    let peer = peers.iter().find_map(|peer| Some((peer.name, peer.off?)));
    if let Some((name, run)) = peer {
        contenders.extend(Placed::new(name, run).contenders(None));
        let again = Placed::new(format!("{name}{AGAIN}"), run);
        contenders.extend(again.contenders(None).map(|again| again.against(name)));
    }
    let name = peer.map(|(name, _)| name);
    contenders.extend(sensors.iter().flat_map(|sensor| sensor.contenders(name)));
    best(race(rounds, contenders))
}

/// Keeps the fastest outcome of each name, at the position of the first.
pub(crate) fn best(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let mut kept: Vec<Outcome> = Vec::new();
    for outcome in outcomes {
        match kept.iter_mut().find(|other| other.name == outcome.name) {
            Some(other) if other.median() <= outcome.median() => {}
            Some(other) => *other = outcome,
            None => kept.push(outcome),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::best;
    use crate::race::{Batches, Outcome};

    #[test]
    fn fastest_offset_of_each_is_kept() {
        let outcome = |name: &str, median: f64| Outcome {
            section: "one",
            name: name.to_owned(),
            quartiles: [median, median, median],
            least: 0.0,
            against: None,
            ratio: None,
            target: None,
            batches: Batches::default(),
        };
        let kept = best(vec![
            outcome("a", 2.0),
            outcome("b", 1.0),
            outcome("a", 1.5),
            outcome("b", 3.0),
        ]);
        let kept: Vec<_> = kept
            .iter()
            .map(|kept| (&*kept.name, kept.median()))
            .collect();
        assert_eq!(kept, [("a", 1.5), ("b", 1.0)]);
    }
}
