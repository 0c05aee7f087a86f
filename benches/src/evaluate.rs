// SPDX-License-Identifier: MIT OR Apache-2.0
//! The framework: what it costs to evaluate an element, from its ring to the histogram.
//!
//! The distance of two elements goes into a histogram. By hand that is a loop over the ring, with
//! the counter checked once per 256 elements; through the framework the elements are copied,
//! validated, converted to nanoseconds, held back, merged into the total order and handed to an
//! update. Both use the same rings and the same kind of histogram.
//!
//! [GRTMon, section 5.3], measures another analysis: it reads the CPU time of the monitoring
//! thread at each element, records the difference to the time before, and does not look at the
//! element. GRTMon reports 380 to 420 cycles for 98 % of the differences. A section of its own runs
//! that analysis. On Linux a thread's CPU time is a system call, whose price is shown by the same
//! loop without framework.
//!
//! Large elements are evaluated in place as well as from copies.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use anyhow::{ensure, Result};
use overhear_directory::client::{self, Registration, SensorRequest};
use overhear_directory::{monotonic_now, Begin, Mapping, MonitorConnection, Query};
use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, FieldKind, Gap, Nanos, StreamDescriptor,
    Timestamp, TypeSchema, WriterKind,
};
use overhear_metrics::Histogram;
use overhear_monitor::{Binding, Clock as _, Monitor, QueueMemory, SystemClock, UpdateSet};
use overhear_stream::sync::{fence, Ordering};
use overhear_stream::{
    read_hardware_ticks, Geometry, Shape, SharedWords, SimpleWriter, Words as _, COUNTER_OFFSET,
    HEADER_SIZE,
};

use crate::machine::ticks_per_ns;
use crate::race::{race, time, Contender, Outcome};
use crate::sensors::rate;

const ONE: &str = "Evaluating one sensor: 20,000 elements, their distances into a histogram";
const MANY: &str =
    "Evaluating 64 sensors merged: 20,000 elements, their distances into a histogram";
const THESIS: &str =
    "Evaluating as [GRTMon, section 5.3]: 20,000 elements, the thread's CPU time between them into a histogram";
const CPU_TIME: &str = "loop that reads the CPU time, without elements";
const HAND: &str = "loop by hand over the same rings";
const LARGE: &str = "Evaluating elements of 4,008 bytes: 500 of them, one field of each";
const COPIED: &str = "copied";
/// Number of large elements: they fit into a buffer of 1,024.
const LARGE_ELEMENTS: u64 = 500;
const PIXELS: u16 = 4000;

/// Number of elements, as in [GRTMon, section 5.3].
const ELEMENTS: u64 = 20_000;
/// Number of elements that the manual loop reads between two checks of the counter.
const BATCH: u64 = 256;

/// A sensor of this process, with its writer and its reader.
struct Ring {
    // Keeps the registration alive, and the memory with it.
    _registration: Arc<Mapping>,
    writer: SimpleWriter<SharedWords>,
    words: SharedWords,
    geometry: Geometry,
    position: u64,
}

impl Ring {
    fn register(sensor: &str, instance: usize) -> Result<Self> {
        let schema = TypeSchema::builder("number").field("number", FieldKind::U64, "");
        Self::register_type(sensor, instance, schema.build()?, ELEMENTS)
    }

    fn register_type(
        sensor: &str,
        instance: usize,
        schema: TypeSchema,
        capacity: u64,
    ) -> Result<Self> {
        let request = SensorRequest {
            sensor: sensor.to_string(),
            instance: instance.to_string(),
            schema,
            rate: Some(rate()),
            capacity,
            kind: WriterKind::Simple,
            lanes: 0,
        };
        let registration: Registration = client::register(request)?;
        let Shape::Simple(geometry) = registration.shape else {
            anyhow::bail!("a simple sensor has a ring");
        };
        let mapping = Arc::clone(&registration.mapping);
        // The sensor lives until the process ends.
        std::mem::forget(registration);
        // SAFETY: the map is kept together with the words.
        let words = || unsafe { mapping.words() };
        Ok(Self {
            writer: SimpleWriter::new(words(), geometry)?,
            words: words(),
            geometry,
            position: 0,
            _registration: mapping,
        })
    }

    /// The manual loop over one ring: every element since the last call.
    #[inline(always)]
    fn read(&mut self, mut evaluate: impl FnMut(u64, u64)) {
        let counter = self.words.word(COUNTER_OFFSET / 8);
        let end = counter.load(Ordering::Acquire);
        let mask = self.geometry.capacity() - 1;
        while self.position < end {
            let batch = BATCH.min(end - self.position);
            for position in self.position..self.position + batch {
                let slot = (position & mask) as usize * 2 + HEADER_SIZE / 8;
                let slot = self.words.range(slot, 2);
                // Relaxed: checked below.
                evaluate(
                    slot[0].load(Ordering::Relaxed),
                    slot[1].load(Ordering::Relaxed),
                );
            }
            fence(Ordering::Acquire);
            let now = counter.load(Ordering::Relaxed);
            assert!(now - self.position < self.geometry.capacity(), "lapped");
            self.position += batch;
        }
    }
}

/// The analysis.
#[derive(Default)]
struct Distances {
    last: Timestamp,
    histogram: Histogram,
    elements: u64,
}

impl Analysis for Distances {
    fn element(&mut self, element: &ElementView<'_>) {
        self.histogram.record(element.time.since(self.last).as_ns());
        self.last = element.time;
        self.elements += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// The analysis of [GRTMon, section 5.3].
#[derive(Default)]
struct CpuTimes {
    last_ns: u64,
    histogram: Histogram,
}

impl CpuTimes {
    fn record(&mut self) {
        let now_ns = SystemClock.cpu_time().as_ns();
        self.histogram.record(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns;
    }
}

impl Analysis for CpuTimes {
    fn element(&mut self, _: &ElementView<'_>) {
        self.record();
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// The analysis of [GRTMon, section 5.3], with the framework and without it.
fn thesis(rounds: usize, socket: &Path) -> Result<Vec<Outcome>> {
    let sensor = "evaluated_thesis";
    let mut rings = [Ring::register(sensor, 0)?];
    let count = elements(&rings);
    let mut monitor = monitor(socket, sensor)?;
    let through = || {
        monitor.round(monotonic_now(), &mut Distances::default());
        fill(&mut rings);
        let until = monotonic_now().plus(Nanos::from_us(2));
        while monotonic_now() <= until {}
        let mut update = CpuTimes::default();
        let span = time(count, &mut |_| monitor.round(until, &mut update));
        assert_eq!(update.histogram.count(), count);
        span
    };
    let alone = || {
        let mut update = CpuTimes::default();
        time(count, &mut |_| (0..count).for_each(|_| update.record()))
    };
    Ok(race(
        rounds,
        vec![
            Contender::new(THESIS, CPU_TIME, alone),
            Contender::new(THESIS, "monitor with one update", through).against(CPU_TIME),
        ],
    ))
}

/// Adds up the numbers of large elements, in place or from copies.
#[derive(Default)]
struct Numbers {
    in_place: bool,
    prepared: u64,
    sum: u64,
    elements: u64,
}

impl Analysis for Numbers {
    fn reads_in_place(&self, _: &StreamDescriptor) -> bool {
        self.in_place
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let mut number = [0];
        element.load_words(0, &mut number);
        self.prepared = number[0];
        true
    }

    fn commit(&mut self, _: &ElementKey<'_>, valid: bool) {
        self.sum += if valid { self.prepared } else { 0 };
        self.elements += u64::from(valid);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let number = element.payload.first_chunk().copied();
        self.sum += u64::from_ne_bytes(number.unwrap_or_default());
        self.elements += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// Large elements: by copies, and in place.
fn large(rounds: usize, socket: &Path) -> Result<Vec<Outcome>> {
    let sensor = "evaluated_large";
    let schema = TypeSchema::builder("frame")
        .field("number", FieldKind::U64, "")
        .field("pixels", FieldKind::Text(PIXELS), "");
    let ring = Ring::register_type(sensor, 0, schema.build()?, 2 * LARGE_ELEMENTS)?;
    let ring = std::cell::RefCell::new(ring);
    let payload = vec![7; 8 + usize::from(PIXELS)];
    let contender = |in_place: bool| -> Result<_> {
        let mut update = Numbers {
            in_place,
            ..Numbers::default()
        };
        let mut monitor = monitor_with(socket, sensor, &mut update)?;
        let (ring, payload) = (&ring, &payload);
        Ok(move || {
            monitor.round(monotonic_now(), &mut update);
            for _ in 0..LARGE_ELEMENTS {
                ring.borrow_mut().writer.write(payload, read_hardware_ticks);
            }
            let until = monotonic_now().plus(Nanos::from_us(2));
            while monotonic_now() <= until {}
            let before = update.elements;
            let span = time(LARGE_ELEMENTS, &mut |_| monitor.round(until, &mut update));
            assert_eq!(update.elements - before, LARGE_ELEMENTS);
            span
        })
    };
    Ok(race(
        rounds,
        vec![
            Contender::new(LARGE, COPIED, contender(false)?),
            Contender::new(LARGE, "in place", contender(true)?).against(COPIED),
        ],
    ))
}

/// Writes one batch; the sensors alternate. The merge must restore this order.
fn fill(rings: &mut [Ring]) {
    let turns = ELEMENTS / rings.len() as u64;
    for number in 0..turns {
        for ring in &mut *rings {
            ring.writer
                .write(&number.to_ne_bytes(), read_hardware_ticks);
        }
    }
}

fn elements(rings: &[Ring]) -> u64 {
    ELEMENTS / rings.len() as u64 * rings.len() as u64
}

fn monitor(socket: &Path, sensor: &str) -> Result<Monitor> {
    monitor_with(socket, sensor, &mut Distances::default())
}

fn monitor_with(socket: &Path, sensor: &str, update: &mut dyn Analysis) -> Result<Monitor> {
    let query = Query::parse(sensor)?;
    let source = MonitorConnection::connect(socket)?.attach(query, Begin::Now)?;
    let mut monitor = Monitor::with_memory(Nanos::from_ns(0), QueueMemory::Reserved);
    monitor.add_source(Box::new(source));
    // Opens the streams.
    monitor.round(monotonic_now(), update);
    Ok(monitor)
}

/// One section: the manual loop, an update, and an update in a set.
fn section(
    rounds: usize,
    socket: &Path,
    section: &'static str,
    sensors: usize,
    target: f64,
) -> Result<Vec<Outcome>> {
    let name = format!("evaluated_{sensors}");
    let registered: Result<Vec<Ring>> = (0..sensors).map(|at| Ring::register(&name, at)).collect();
    let rings = std::cell::RefCell::new(registered?);
    let count = elements(&rings.borrow());
    let (mut direct, mut in_set) = (monitor(socket, &name)?, monitor(socket, &name)?);
    let by_hand = || {
        let rings = &mut *rings.borrow_mut();
        fill(rings);
        let mut histogram = Histogram::new();
        let mut last = 0;
        let span = time(count, &mut |_| {
            for ring in &mut *rings {
                ring.read(|stamp, number| {
                    histogram.record(stamp.saturating_sub(last));
                    last = stamp;
                    black_box(number);
                });
            }
        });
        assert_eq!(histogram.count(), count);
        span
    };
    // Every contender reads the elements of all contenders; only its own batch is measured.
    let framework = |monitor: &mut Monitor, update: &mut dyn Analysis| {
        monitor.round(monotonic_now(), &mut Distances::default());
        fill(&mut rings.borrow_mut());
        // All elements were written before this time, by more than the clock's error.
        let written = monotonic_now();
        let until = written.plus(Nanos::from_us(2));
        while monotonic_now() <= until {}
        time(count, &mut |_| monitor.round(until, update))
    };
    let one_update = || {
        let mut update = Distances::default();
        let span = framework(&mut direct, &mut update);
        assert_eq!(update.elements, count);
        span
    };
    let in_a_set = || {
        let mut set = UpdateSet::new();
        let added = set.add(Distances::default(), Binding::new("distances"));
        let update = added.expect("an empty set has room");
        let span = framework(&mut in_set, &mut set);
        drop(set);
        assert_eq!(update.take().map(|it| it.elements), Some(count));
        span
    };
    let skip = |contender: &mut dyn FnMut() -> f64| {
        // The manual loop has a position of its own and catches up outside the measurement.
        for ring in &mut *rings.borrow_mut() {
            ring.position = ring.writer.count();
        }
        contender()
    };
    let mut by_hand = by_hand;
    Ok(race(
        rounds,
        vec![
            Contender::new(section, HAND, move || skip(&mut by_hand)),
            Contender::new(section, "monitor with one update", one_update)
                .against(HAND)
                .at_most(target),
            Contender::new(section, "monitor with an update in a set", in_a_set)
                .against(HAND)
                .at_most(target),
        ],
    ))
}

/// The cost of the framework per evaluated element.
pub(crate) fn evaluate(rounds: usize, socket: &Path) -> Result<Vec<Outcome>> {
    let mut outcomes = section(rounds, socket, ONE, 1, 4.0)?;
    outcomes.extend(section(rounds, socket, MANY, 64, 8.0)?);
    outcomes.extend(thesis(rounds, socket)?);
    for outcome in &outcomes {
        let cycles = ticks_per_ns() * outcome.median();
        println!(
            "{}: {}: {cycles:.0} cycles of the counter per element",
            outcome.section, outcome.name
        );
    }
    ensure!(!outcomes.is_empty(), "nothing was measured");
    outcomes.extend(large(rounds, socket)?);
    Ok(outcomes)
}
