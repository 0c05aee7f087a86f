// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes that follow each other, as in the microbenchmark of [GRTMon, section 5.2]; the same in
//! bursts after a sleep; and single ones into cold memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::cold::Lines;
use crate::figures::AGAIN;
use crate::floor::{floor, UntouchedFloor};
use crate::native::{crowds, units};
use crate::peers::Peer;
use crate::race::{race, time, Contender, Outcome};
use crate::sensors::{self, Bytes0, Bytes4, Bytes64, Bytes8, Numbered};

/// As in GRTMon.
const BATCH: u64 = 1000;
const BURST: u64 = 20;
const PAUSE: Duration = Duration::from_micros(500);

/// The sizes of [GRTMon, tables 1 and 2]: payload, slots, and the names of the tables. The rings
/// are the least that a directory hands out, and the next powers of two.
const SIZES: [(u32, u64, &str); 8] = [
    (0, 64, "Simple: no payload, ring for 20 elements (64)"),
    (4, 64, "Simple: 4 bytes, ring for 20 elements (64)"),
    (8, 64, "Simple: 8 bytes, ring for 20 elements (64)"),
    (
        8,
        32768,
        "Simple: 8 bytes, ring for 20,000 elements (32,768)",
    ),
    (64, 64, "Simple: 64 bytes, ring for 20 elements (64)"),
    (0, 256, "Simple: no payload, ring for 150 elements (256)"),
    (
        0,
        32768,
        "Simple: no payload, ring for 20,000 elements (32,768)",
    ),
    (8, 256, "Simple: 8 bytes, ring for 150 elements (256)"),
];
/// The payload size of the other comparisons.
pub(crate) const USUAL: (u32, u64) = (8, 64);

const PEERS: &str = "Other tools: one event with a number of 8 bytes";
const LANED: &str = "Laned: 8 bytes, one thread";
const CONCURRENT: &str = "Concurrent: one thread alone";
pub(crate) const AFTER_SLEEP: &str = "20 writes of 8 bytes after 500 us of sleep";
const FLUSHED: &str = "One write of 8 bytes with its memory flushed from the caches";
const FIRST: &str = "The first write ever, 8 bytes";
const FLOOR: &str = "floor in Rust";

/// A method to write elements, and the memory that a write touches.
#[derive(Clone)]
struct Way {
    name: String,
    against: Option<String>,
    target: Option<f64>,
    run: Rc<RefCell<dyn FnMut(u64)>>,
    lines: Option<Lines>,
}

impl Way {
    fn new(name: impl Into<String>, run: impl FnMut(u64) + 'static) -> Self {
        Self {
            name: name.into(),
            against: None,
            target: None,
            run: Rc::new(RefCell::new(run)),
            lines: None,
        }
    }

    fn against(mut self, name: impl Into<String>, target: Option<f64>) -> Self {
        self.against = Some(name.into());
        self.target = target;
        self
    }

    fn touching(mut self, lines: Lines) -> Self {
        self.lines = Some(lines);
        self
    }

    /// Takes part in a race with batches of this number of elements; `before` runs before each
    /// batch.
    fn contender(
        &self,
        section: &'static str,
        elements: u64,
        target: Option<f64>,
        mut before: impl FnMut(&mut dyn FnMut(u64)) + 'static,
    ) -> Contender<'static> {
        let run = Rc::clone(&self.run);
        let mut contender = Contender::new(section, self.name.clone(), move || {
            let run = &mut *run.borrow_mut();
            before(run);
            time(elements, run)
        });
        contender.against.clone_from(&self.against);
        contender.target = target;
        contender
    }

    /// Writes shortly before the batch, so that code and lines are where they are in a program that
    /// writes often.
    fn hot(&self, section: &'static str, elements: u64) -> Contender<'static> {
        self.contender(section, elements, self.target, |run| run(64))
    }
}

/// Every method to write this payload with a simple sensor, each after its floor.
fn simple(bytes: u32, slots: u64) -> Result<Vec<Way>> {
    // The targets are for 8 bytes; the other sizes are shown.
    let judged = |target: f64| (bytes == 8).then_some(target);
    let mut ways = Vec::new();
    for unit in units() {
        let row = unit.row(bytes, slots);
        let name = format!("floor in {}", unit.compiler);
        ways.push(
            Way::new(name.clone(), |elements| row.floor(elements)).touching(row.floor_lines()),
        );
        let put = row.enlist()?;
        let put_name = format!("{} {}", unit.compiler, unit.put);
        let put_way = Way::new(put_name, move |elements| row.put(put, elements))
            .against(&name, judged(unit.target))
            .touching(row.sensor_lines(put));
        let fill = row.enlist()?;
        let fill_name = format!("{} {}", unit.compiler, unit.fill);
        let fill_way = Way::new(fill_name, move |elements| row.fill(fill, elements))
            .against(&name, judged(unit.target))
            .touching(row.sensor_lines(fill));
        ways.extend([put_way, fill_way]);
    }
    let named = floor(bytes, slots);
    ways.push(Way::new(FLOOR, named.write).touching((named.lines)()));
    ways.push(writer(bytes, slots)?.against(FLOOR, judged(1.10)));
    ways.push(sensor(bytes, slots)?.against(FLOOR, judged(1.30)));
    let again = format!("{FLOOR}{AGAIN}");
    ways.push(Way::new(again, named.twin).against(FLOOR, None));
    Ok(ways)
}

fn writer(bytes: u32, slots: u64) -> Result<Way> {
    let (mut writer, lines) = sensors::writer(bytes, slots)?;
    let way = match bytes {
        0 => Way::new("", move |elements| {
            sensors::write::<0>(&mut writer, elements)
        }),
        4 => Way::new("", move |elements| {
            sensors::write::<4>(&mut writer, elements)
        }),
        8 => Way::new("", move |elements| {
            sensors::write::<8>(&mut writer, elements)
        }),
        _ => Way::new("", move |elements| {
            sensors::write::<64>(&mut writer, elements)
        }),
    };
    let name = "Rust SimpleWriter::write".to_owned();
    Ok(Way { name, ..way }.touching(lines))
}

fn sensor(bytes: u32, slots: u64) -> Result<Way> {
    fn way<E: Numbered>(slots: u64) -> Result<Way> {
        let mut sensor = sensors::sensor::<E>(slots)?;
        let run = move |elements| sensors::sense::<_, 0>(&mut sensor, elements);
        Ok(Way::new("Rust Sensor<E>::write", run))
    }
    match bytes {
        0 => way::<Bytes0>(slots),
        4 => way::<Bytes4>(slots),
        8 => way::<Bytes8>(slots),
        _ => way::<Bytes64>(slots),
    }
}

/// Elements that follow each other: sensors of every size, and the peers.
pub(crate) fn steady(rounds: usize, peers: &[Peer]) -> Result<Vec<Outcome>> {
    let mut contenders = Vec::new();
    for (bytes, slots, section) in SIZES {
        let ways = simple(bytes, slots)?;
        contenders.extend(ways.iter().map(|way| way.hot(section, BATCH)));
    }
    let (bytes, slots) = USUAL;
    contenders.push(Way::new(FLOOR, floor(bytes, slots).write).hot(PEERS, BATCH));
    for (peer, way) in peers.iter().zip(ways_of(peers)) {
        contenders.push(way.hot(PEERS, peer.elements));
    }
    contenders.extend(laned()?.iter().map(|way| way.hot(LANED, BATCH)));
    contenders.extend(concurrent()?.iter().map(|way| way.hot(CONCURRENT, BATCH)));
    Ok(race(rounds, contenders))
}

/// The price of a laned sensor follows from that of a simple one.
fn laned() -> Result<Vec<Way>> {
    let (bytes, slots) = USUAL;
    let plain = sensor(bytes, slots)?;
    let mut ways = vec![Way::new(FLOOR, floor(bytes, slots).write)];
    let judged = |way: Way, of: &str| way.against(of, Some(1.25));
    let laned = sensors::laned(slots)?;
    let name = "Rust LanedSensor<E>::write";
    let run = move |elements| sensors::sense_laned::<0>(&laned, elements);
    ways.push(judged(Way::new(name, run), &plain.name));
    for ((compiler, laned, _), unit) in crowds().into_iter().zip(units()) {
        let put = laned.enlist(slots)?;
        let row = unit.row(bytes, slots);
        let simple = row.enlist()?;
        let of = format!("{} {}", unit.compiler, unit.put);
        let name = format!("{compiler} oh_laned_put");
        ways.push(judged(
            Way::new(name, move |elements| put.put(elements)),
            &of,
        ));
        ways.push(Way::new(of, move |elements| row.put(simple, elements)));
    }
    ways.push(plain);
    Ok(ways)
}

fn concurrent() -> Result<Vec<Way>> {
    fn way<E: Numbered>(name: &str, slots: u64) -> Result<Way> {
        let sensor = sensors::concurrent::<E>(slots)?;
        let run = move |elements| sensors::sense_concurrent::<_, 0>(&sensor, elements);
        Ok(Way::new(name, run).against(FLOOR, Some(5.0)))
    }
    let mut ways = vec![
        Way::new(FLOOR, floor(8, 256).write),
        way::<Bytes0>(
            "Rust ConcurrentSensor<E>::write, no payload, 150 elements",
            150,
        )?,
        way::<Bytes0>(
            "Rust ConcurrentSensor<E>::write, no payload, 20,000 elements",
            20_000,
        )?,
        way::<Bytes8>(
            "Rust ConcurrentSensor<E>::write, 8 bytes, 150 elements",
            150,
        )?,
    ];
    for (compiler, _, concurrent) in crowds() {
        let put = concurrent.enlist(150)?;
        let name = format!("{compiler} oh_concurrent_put, 8 bytes, 150 elements");
        ways.push(Way::new(name, move |elements| put.put(elements)).against(FLOOR, Some(5.0)));
    }
    Ok(ways)
}

fn ways_of(peers: &[Peer]) -> Vec<Way> {
    let way = |peer: &Peer| {
        let run = Rc::clone(&peer.run);
        Way::new(peer.name, move |elements| run.borrow_mut()(elements)).against(FLOOR, None)
    };
    peers.iter().map(way).collect()
}

/// A few elements after each pause: the cost for a program that mostly waits.
pub(crate) fn after_sleep(rounds: usize, peers: &[Peer]) -> Result<Vec<Outcome>> {
    let ways = [simple(USUAL.0, USUAL.1)?, ways_of(peers)].concat();
    let contender = |way: &Way| {
        let judged = way.target.map(|_| 1.25);
        way.contender(AFTER_SLEEP, BURST, judged, |_| thread::sleep(PAUSE))
    };
    Ok(race(rounds, ways.iter().map(contender).collect()))
}

/// The first element after all its memory has left the caches.
pub(crate) fn flushed(rounds: usize) -> Result<Vec<Outcome>> {
    let ways = simple(USUAL.0, USUAL.1)?;
    let contenders = ways.iter().filter_map(|way| {
        let lines = way.lines.clone()?;
        Some(way.contender(FLUSHED, 1, None, move |run| {
            // The code stays in the cache: the memory is measured.
            run(1);
            lines.flush();
        }))
    });
    Ok(race(rounds, contenders.collect()))
}

/// The first element of a sensor, in a ring whose pages are untouched.
pub(crate) fn first(rounds: usize) -> Result<Vec<Outcome>> {
    let slots = USUAL.1;
    // If it fails, it fails before the race.
    drop((sensors::sensor::<Bytes8>(slots)?, sensors::laned(slots)?));
    let floor = || {
        let memory = UntouchedFloor::new();
        time(1, &mut |_| memory.write())
    };
    let simple = || {
        let sensor = sensors::sensor::<Bytes8>(slots);
        sensor.map_or(f64::NAN, |mut sensor| {
            time(1, &mut |elements| {
                sensors::sense::<_, 0>(&mut sensor, elements)
            })
        })
    };
    let laned = |prepared: bool| {
        move || {
            let sensor = sensors::laned(slots);
            sensor.map_or(f64::NAN, |sensor| {
                if prepared {
                    let _ = sensor.prepare_thread();
                }
                time(1, &mut |elements| {
                    sensors::sense_laned::<0>(&sensor, elements)
                })
            })
        }
    };
    let name = "floor in Rust, its pages not touched";
    Ok(race(
        rounds,
        vec![
            Contender::new(FIRST, name, floor),
            Contender::new(FIRST, "Rust Sensor<E>::write", simple).against(name),
            Contender::new(FIRST, "Rust LanedSensor<E>::write", laned(false)).against(name),
            Contender::new(FIRST, "the same after prepare_thread", laned(true)).against(name),
        ],
    ))
}
