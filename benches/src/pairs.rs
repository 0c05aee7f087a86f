// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two threads that write at the same time, each on a CPU of its own.

use std::hint::spin_loop;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use overhear_stream::sync::{AtomicU64, Ordering};

use crate::floor::floor;
use crate::machine::{occupy, PROBE};
use crate::native::crowds;
use crate::race::{race, time, Contender, Outcome};
use crate::sensors::{self, Bytes8};

const PAIRS: &str = "Two threads at once on two CPUs, 8 bytes";
const FLOOR: &str = "floor in Rust, a ring for each thread";
/// Long compared with the time between the two starts.
const BATCH: u64 = 2000;
const SLOTS: u64 = 64;

/// The work of a thread: writes this number of elements.
type Work = Arc<dyn Fn(u64) + Send + Sync>;

/// The thread on the other CPU. It sleeps between batches, so that drains and daemons can run.
struct Partner {
    work: Sender<Work>,
    spans: Receiver<f64>,
    start: Arc<Start>,
}

/// A barrier for two threads.
#[derive(Default)]
struct Start(AtomicU64);

impl Start {
    /// Returns when both have arrived.
    fn line_up(&self) {
        // SYNC(start): the work of both threads before the barrier happens before their work after
        // it.
        let arrived = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        let both = arrived.next_multiple_of(2);
        // SYNC(start): as above.
        while self.0.load(Ordering::Acquire) < both {
            spin_loop();
        }
    }

    /// Writes a little, waits for the other, and measures.
    fn run(&self, work: &Work) -> f64 {
        work(64);
        self.line_up();
        time(BATCH, &mut |elements| work(elements))
    }
}

impl Partner {
    fn new(cpu: usize) -> Result<Self> {
        let (work, orders) = mpsc::channel::<Work>();
        let (results, spans) = mpsc::channel();
        let start = Arc::new(Start::default());
        let line = Arc::clone(&start);
        thread::Builder::new()
            .name("partner".to_owned())
            .spawn(move || {
                let _ = occupy(cpu);
                for work in orders {
                    if results.send(line.run(&work)).is_err() {
                        break;
                    }
                }
            })?;
        Ok(Self { work, spans, start })
    }

    /// Starts the work of both threads and returns the mean of their times per element.
    fn together(&self, here: &Work, there: &Work) -> f64 {
        let Ok(()) = self.work.send(Arc::clone(there)) else {
            return f64::NAN;
        };
        let span = self.start.run(here);
        self.spans
            .recv()
            .map_or(f64::NAN, |other| (span + other) / 2.0)
    }
}

/// Laned and concurrent sensors against floors that share nothing.
pub(crate) fn pairs(rounds: usize, others: usize) -> Result<Vec<Outcome>> {
    let partner = Partner::new(others)?;
    let partner = &partner;
    // On both CPUs at once, as the batches are. A round of the probe counts as an element.
    let probe: Work = Arc::new(|_| PROBE.work());
    let contender = |name: String, here: Work, there: Work| {
        let probe = Arc::clone(&probe);
        Contender::new(PAIRS, name, move || partner.together(&here, &there))
            .with_probe(move || partner.together(&probe, &probe))
    };
    let both = |name: String, work: Work| contender(name, Arc::clone(&work), work);

    let (named, wide) = (floor(8, SLOTS), floor(8, 256));
    let mut contenders = vec![
        contender(
            FLOOR.to_owned(),
            Arc::new(named.write),
            Arc::new(named.twin),
        ),
        contender(
            format!("{FLOOR}, again"),
            Arc::new(wide.write),
            Arc::new(wide.twin),
        )
        .against(FLOOR),
    ];
    let laned = sensors::laned(SLOTS)?;
    let run = move |elements| sensors::sense_laned::<0>(&laned, elements);
    let name = "Rust LanedSensor<E>::write".to_owned();
    contenders.push(both(name, Arc::new(run)).against(FLOOR).at_most(1.15));
    let concurrent = sensors::concurrent::<Bytes8>(150)?;
    let run = move |elements| sensors::sense_concurrent::<_, 0>(&concurrent, elements);
    let name = "Rust ConcurrentSensor<E>::write, 150 elements".to_owned();
    contenders.push(both(name, Arc::new(run)).against(FLOOR).at_most(25.0));
    for (compiler, laned, concurrent) in crowds() {
        let (laned, concurrent) = (laned.enlist(SLOTS)?, concurrent.enlist(150)?);
        let run = move |elements| laned.put(elements);
        let name = format!("{compiler} oh_laned_put");
        contenders.push(both(name, Arc::new(run)).against(FLOOR).at_most(1.15));
        let run = move |elements| concurrent.put(elements);
        let name = format!("{compiler} oh_concurrent_put, 150 elements");
        contenders.push(both(name, Arc::new(run)).against(FLOOR).at_most(25.0));
    }
    Ok(race(rounds, contenders))
}
