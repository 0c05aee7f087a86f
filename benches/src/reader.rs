// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader: the cost of copies with validation, and the cost of a reader for the writer.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Result};
use overhear_directory::Mapping;
use overhear_event::ClockId;
use overhear_stream::sync::{AtomicU64, Ordering};
use overhear_stream::{
    hardware_clock, read_hardware_ticks, Geometry, Header, ReadItem, Reader, SharedWords,
    SimpleWriter, Words as _, WriterKind, HEADER_SIZE,
};

use crate::machine::occupy;
use crate::race::{race, time, Contender, Outcome};

const COPIES: &str = "Reading a full ring of 65,536 elements of 16 bytes";
pub(crate) const DRAIN: &str = "A writer that is read from the other CPU every millisecond";
/// The ring of a sensor that declares no rate.
const SLOTS: u64 = 1 << 16;
const PERIOD: Duration = Duration::from_millis(1);
/// About 15 ms of writing.
const PHASE_ELEMENTS: u64 = 1_500_000;

/// A stream of 8-byte payloads in memory that is never freed.
struct Stream {
    memory: &'static Mapping,
    geometry: Geometry,
}

impl Stream {
    fn new() -> Result<Self> {
        let geometry = Geometry::new(8, SLOTS)?;
        let memory: &Mapping = Box::leak(Box::new(Mapping::private(geometry.bytes())?));
        let stream = Self { memory, geometry };
        let clock = hardware_clock().unwrap_or(ClockId::Monotonic);
        Header::new(&geometry, WriterKind::Simple, clock, 0).store(&stream.words());
        Ok(stream)
    }

    fn words(&self) -> SharedWords {
        // SAFETY: the map is leaked, so it outlives the words.
        unsafe { self.memory.words() }
    }

    fn writer(&self) -> Result<SimpleWriter<SharedWords>> {
        Ok(SimpleWriter::new(self.words(), self.geometry)?)
    }
}

#[inline(never)]
fn write(writer: &mut SimpleWriter<SharedWords>, elements: u64) {
    for element in 0..elements {
        writer.write(&element.to_ne_bytes(), read_hardware_ticks);
    }
}

/// Validated copies compared with a plain copy of the same bytes.
pub(crate) fn copies(rounds: usize) -> Result<Vec<Outcome>> {
    let stream = Stream::new()?;
    write(&mut stream.writer()?, SLOTS * 2);
    let words = stream.words();
    let elements = SLOTS - 1;
    let ring = words.range(HEADER_SIZE / 8, 2 * elements as usize);
    let mut plain = vec![0_u64; ring.len()];

    let memcpy = || {
        time(elements, &mut |_| {
            // SAFETY: the ring is mapped and nobody writes it now; the buffer is as long and apart
            // from it.
            unsafe {
                std::ptr::copy_nonoverlapping(ring.as_ptr().cast(), plain.as_mut_ptr(), ring.len());
            }
            black_box(&mut plain);
        })
    };
    let poll = || {
        time(elements, &mut |_| {
            let mut sum = 0_u64;
            let mut reader =
                Reader::from_start(stream.words(), stream.geometry).expect("the ring is whole");
            let end = reader.published();
            let report = reader.poll_until(end, |found| {
                if let ReadItem::Element(element) = found {
                    let payload = element.payload.try_into().unwrap_or_default();
                    // One addition that depends on the previous one: two would take longer than the
                    // copy.
                    sum = sum.wrapping_add(u64::from_ne_bytes(payload) ^ element.stamp.as_raw());
                }
            });
            assert_eq!(report.map_or(0, |report| report.delivered), elements);
            black_box(sum);
        })
    };
    let atomics = || {
        time(elements, &mut |_| {
            let sum = ring.iter().fold(0_u64, |sum, word| {
                // Relaxed: nobody writes.
                sum.wrapping_add(word.load(Ordering::Relaxed))
            });
            black_box(sum);
        })
    };
    Ok(race(
        rounds,
        vec![
            Contender::new(COPIES, "memcpy of the ring", memcpy),
            Contender::new(COPIES, "validated copies, each summed up", poll)
                .against("memcpy of the ring")
                // At least half its speed.
                .at_most(2.0),
            Contender::new(COPIES, "every word loaded once, nothing checked", atomics)
                .against("memcpy of the ring"),
        ],
    ))
}

/// Commands for the thread of the reader.
#[derive(Clone, Copy)]
enum Order {
    Drain,
    Rest,
}

/// Drains the stream every millisecond if enabled, and counts the drains.
fn reader(stream: &Stream, cpu: usize, drains: &'static AtomicU64) -> Result<Sender<Order>> {
    let (sender, orders) = mpsc::channel();
    let mut reader = Reader::from_start(stream.words(), stream.geometry)?;
    thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || {
            // With real-time priority, so that it wakes every millisecond on a busy machine, too.
            let _ = occupy(cpu);
            let mut order = Order::Rest;
            let mut sum = 0_u64;
            loop {
                let next = match order {
                    Order::Rest => orders.recv().ok(),
                    Order::Drain => match orders.recv_timeout(PERIOD) {
                        Ok(next) => Some(next),
                        Err(mpsc::RecvTimeoutError::Timeout) => Some(Order::Drain),
                        Err(mpsc::RecvTimeoutError::Disconnected) => None,
                    },
                };
                order = match next {
                    Some(next) => next,
                    None => break,
                };
                if matches!(order, Order::Drain) {
                    let _ = reader.poll(usize::MAX, |element| {
                        sum = sum.wrapping_add(element.stamp.as_raw());
                    });
                    // Relaxed: a statistic.
                    drains.fetch_add(1, Ordering::Relaxed);
                }
            }
            black_box(sum);
        })?;
    Ok(sender)
}

/// The writer with and without a reader on the other CPU. The complete phase counts, not its median
/// batch: the reader is at work for a part of each millisecond only.
pub(crate) fn drain(rounds: usize, others: usize) -> Result<Vec<Outcome>> {
    static DRAINS: AtomicU64 = AtomicU64::new(0);
    let stream = Stream::new()?;
    let writer = RefCell::new(stream.writer()?);
    let orders = reader(&stream, others, &DRAINS)?;
    let phase = |order: Order| {
        let (writer, orders) = (&writer, orders.clone());
        move || {
            // The ring belongs to the writer alone again.
            write(&mut writer.borrow_mut(), 2 * SLOTS);
            let _ = orders.send(order);
            let span = time(PHASE_ELEMENTS, &mut |elements| {
                write(&mut writer.borrow_mut(), elements);
            });
            let _ = orders.send(Order::Rest);
            span
        }
    };
    let read = RefCell::new((0, 0.0));
    let with_reader = phase(Order::Drain);
    let with_reader = || {
        let before = DRAINS.load(Ordering::Relaxed);
        let span = with_reader();
        let mut read = read.borrow_mut();
        read.0 += DRAINS.load(Ordering::Relaxed) - before;
        read.1 += span * PHASE_ELEMENTS as f64 / PERIOD.as_nanos() as f64;
        span
    };
    let outcomes = race(
        rounds,
        vec![
            Contender::new(DRAIN, "writer alone", phase(Order::Rest)),
            Contender::new(DRAIN, "writer with the reader", with_reader)
                .against("writer alone")
                .at_most(1.05),
            Contender::new(DRAIN, "writer alone, again", phase(Order::Rest))
                .against("writer alone"),
        ],
    );
    let (drains, periods) = *read.borrow();
    ensure!(
        drains as f64 >= periods / 2.0,
        "the reader has drained {drains} times in {periods:.0} ms: too seldom to measure the cost"
    );
    Ok(outcomes)
}
