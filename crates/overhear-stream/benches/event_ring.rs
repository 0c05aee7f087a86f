// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a write of 8 bytes into an event ring, beside the writers of streams, and the speed
//! of its readers.
//!
//! `cargo bench -p overhear-stream --bench event_ring -- [WRITES [ROUNDS]]`
//!
//! The writers take turns in every round, so that a slow moment of the machine meets all of them.
//! The median and the least of the rounds are printed, with their ratios to the
//! simple writer.
#![allow(missing_docs)]

use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    read_hardware_ticks, read_hardware_ticks_ordered, EventRecord, EventRing, Geometry, Header,
    Next, OwnedWords, QueueGeometry, QueueWriter, RingConsumer, RingGeometry, Shape, SharedWords,
    SimpleWriter, WhenFull, Words, WriterKind,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CAPACITY: u64 = 1 << 12;
/// The default of `posix_trace_attr_getmaxdatasize`: a slot has two cache lines.
const DATA_BYTES: u32 = 80;

/// The owner keeps the words; the writers see them as they see mapped memory.
fn shared(words: &OwnedWords) -> SharedWords {
    let all = words.range(0, words.len());
    // SAFETY: the owner lives to the end of `main`, and the words are reached by atomic operations
    // alone.
    unsafe { SharedWords::new(std::ptr::NonNull::from(all).cast(), all.len()) }
}

fn simple() -> Outcome<(OwnedWords, Geometry)> {
    let geometry = Geometry::new(8, CAPACITY)?;
    let memory = OwnedWords::zeroed(geometry.words());
    Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, 1).store(&memory);
    Ok((memory, geometry))
}

fn queue() -> Outcome<(OwnedWords, QueueGeometry)> {
    let queue = QueueGeometry::new(8, CAPACITY)?;
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    Ok((memory, queue))
}

fn event(data: &[u8]) -> EventRecord<'_> {
    EventRecord {
        stamp: Ticks::from_raw(0),
        address: 1,
        thread: 2,
        pid: 3,
        tid: 4,
        event: 5,
        flags: 0,
        data,
    }
}

/// Nanoseconds of one of `count` calls.
fn time(count: u64, mut call: impl FnMut(u64)) -> f64 {
    let begun = Instant::now();
    for number in 0..count {
        call(black_box(number));
    }
    begun.elapsed().as_nanos() as f64 / count as f64
}

fn main() -> Outcome<()> {
    // Cargo passes `--bench`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |it| it.parse());
    let (writes, rounds) = (number(0, 200_000)?, number(1, 41)?.max(1) as usize);

    let (simple_memory, geometry) = simple()?;
    let mut simple = SimpleWriter::new(shared(&simple_memory), geometry)?;
    let (queue_memory, queue) = queue()?;
    let queue = QueueWriter::new(shared(&queue_memory), queue)?;
    let geometry = RingGeometry::new(CAPACITY, DATA_BYTES)?;
    let [overwritten, refused, read] = [(); 3].map(|()| OwnedWords::zeroed(geometry.words()));
    let overwrite = EventRing::new(shared(&overwritten), geometry)?;
    let refuse = EventRing::new(shared(&refused), geometry)?;
    let mut consumer = RingConsumer::new(shared(&refused), geometry, WhenFull::Refuse)?;
    let read_ring = EventRing::new(shared(&read), geometry)?;
    let mut reader = RingConsumer::new(shared(&read), geometry, WhenFull::Overwrite)?;
    let mut copy = [0; DATA_BYTES as usize];

    let names = [
        "simple writer (the unit)",
        "queue writer",
        "event ring, overwriting",
        "event ring, refusing",
        "event ring, ordered clock",
        "reading the clock",
        "event ring, reading",
    ];
    let mut times: [Vec<f64>; 7] = Default::default();
    for _ in 0..rounds {
        let round = [
            time(writes, |it| {
                simple.write(&it.to_ne_bytes(), read_hardware_ticks)
            }),
            time(writes, |it| {
                let _ = black_box(queue.write(7, &it.to_ne_bytes(), read_hardware_ticks_ordered));
            }),
            time(writes, |it| {
                let data = it.to_ne_bytes();
                let written =
                    overwrite.write(&event(&data), WhenFull::Overwrite, read_hardware_ticks);
                let _ = black_box(written);
            }),
            time(writes, |it| {
                if it % CAPACITY == 0 {
                    consumer.clear();
                }
                let data = it.to_ne_bytes();
                let written = refuse.write(&event(&data), WhenFull::Refuse, read_hardware_ticks);
                assert!(black_box(written).is_ok());
            }),
            time(writes, |it| {
                let data = it.to_ne_bytes();
                let written = overwrite.write(
                    &event(&data),
                    WhenFull::Overwrite,
                    read_hardware_ticks_ordered,
                );
                let _ = black_box(written);
            }),
            time(writes, |_| {
                black_box(read_hardware_ticks());
            }),
            {
                let mut spent = 0.0;
                for _ in 0..writes / CAPACITY {
                    for it in 0..CAPACITY {
                        let data = it.to_ne_bytes();
                        let _ = read_ring.write(
                            &event(&data),
                            WhenFull::Overwrite,
                            read_hardware_ticks,
                        );
                    }
                    spent += time(CAPACITY, |_| {
                        let next = reader.next(&mut copy);
                        assert!(matches!(black_box(next), Next::Event { .. }));
                    });
                }
                spent / (writes / CAPACITY).max(1) as f64
            },
        ];
        for (all, one) in times.iter_mut().zip(round) {
            all.push(one);
        }
    }
    for all in &mut times {
        all.sort_by(f64::total_cmp);
    }
    println!("{:28} {:>10}  ratio {:>10}  ratio", "", "median", "least");
    for (name, all) in names.iter().zip(&times) {
        print!("{name:28}");
        for at in [rounds / 2, 0] {
            print!(" {:7.2} ns  {:5.2}", all[at], all[at] / times[0][at]);
        }
        println!();
    }
    let reading = times.map(|all| all[rounds / 2])[names.len() - 1];
    println!("reading: {:.1} M events/s of one core", 1e3 / reading);
    contended(&overwrite, writes)
}

/// Two threads at once.
fn contended(ring: &EventRing<SharedWords>, writes: u64) -> Outcome<()> {
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for it in 0..writes {
                    let data = it.to_ne_bytes();
                    let written =
                        ring.write(&event(&data), WhenFull::Overwrite, read_hardware_ticks);
                    let _ = black_box(written);
                }
            });
        }
    });
    let ns = begun.elapsed().as_nanos() as f64 / (2 * writes) as f64;
    println!("two threads in full swing: {ns:.1} ns of wall time per event");
    Ok(())
}
