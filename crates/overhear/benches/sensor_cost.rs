// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an element costs the instrumented thread, against a hand-written floor.
//!
//! The floor is what cannot be left out: read the hardware counter, store stamp and payload into a
//! ring whose address, capacity and stride are constants, store the counter with release.
//! A [`Sensor`], and the [`SimpleWriter`] inside it, find these at run time and check every index;
//! the ratio is the price of that. All three take turns in short rounds, so that what disturbs the
//! machine disturbs them alike, and the medians of many rounds are compared. The rings have as many
//! slots as that of a sensor that nobody hears, so that the caches treat them alike. The target is a ratio of at most
//! 1.25; `native/benches/sensor_cost.c` is the same for C.
#![allow(
    clippy::disallowed_types,
    reason = "the floor writes shared words by hand"
)]

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

use overhear::zerocopy::{Immutable, IntoBytes};
use overhear::{Element, FieldKind, Sensor, TypeSchema};
use overhear_event::ClockId;
use overhear_stream::sync::{fence, AtomicU64, Ordering};
use overhear_stream::{
    hardware_clock, read_hardware_ticks, Geometry, Header, SharedWords, SimpleWriter, WriterKind,
    HEADER_SIZE,
};

const CAPACITY: usize = 64;
const ELEMENTS: u64 = 20_000;
const ROUNDS: usize = 301;
const WARM_UP: usize = 20;

/// A ring with everything known at compile time: `STRIDE` words per element.
#[repr(C, align(4096))]
struct Floor<const STRIDE: usize> {
    slots: [[AtomicU64; STRIDE]; CAPACITY],
    counter: AtomicU64,
}

static FLOOR_0: Floor<1> = Floor::new();
static FLOOR_8: Floor<2> = Floor::new();
static FLOOR_64: Floor<9> = Floor::new();

impl<const STRIDE: usize> Floor<STRIDE> {
    const fn new() -> Self {
        Self {
            slots: [const { [const { AtomicU64::new(0) }; STRIDE] }; CAPACITY],
            counter: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn write_all(&self) {
        // Relaxed: this thread alone stores the counter.
        let mut count = self.counter.load(Ordering::Relaxed);
        for _ in 0..ELEMENTS {
            let slot = &self.slots[count as usize % CAPACITY];
            for (word, at) in slot[1..].iter().zip(0..) {
                word.store(count + at, Ordering::Relaxed);
            }
            slot[0].store(read_hardware_ticks().as_raw(), Ordering::Relaxed);
            count += 1;
            self.counter.store(count, Ordering::Release);
            fence(Ordering::Release);
        }
    }
}

// One function each, so that the addresses are constants, as in the floor of PEERS.
#[inline(never)]
fn floor_0() {
    FLOOR_0.write_all();
}

#[inline(never)]
fn floor_8() {
    FLOOR_8.write_all();
}

#[inline(never)]
fn floor_64() {
    FLOOR_64.write_all();
}

/// A payload of so many words.
#[derive(IntoBytes, Immutable)]
#[repr(transparent)]
struct Payload<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Element for Payload<WORDS> {
    fn schema() -> TypeSchema {
        (0..WORDS)
            .fold(TypeSchema::builder("payload"), |schema, word| {
                schema.field(&format!("word{word}"), FieldKind::U64, "")
            })
            .build()
            .expect("the schema is well-formed")
    }

    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        IntoBytes::as_bytes(self)
    }
}

/// A sensor as programs use it.
#[inline(never)]
fn sense<const WORDS: usize>(sensor: &mut Sensor<Payload<WORDS>>) {
    for element in 0..ELEMENTS {
        sensor.write(&Payload(std::array::from_fn(|word| element + word as u64)));
    }
}

/// The library's writer with payloads of `BYTES`.
#[inline(never)]
fn write<const BYTES: usize>(writer: &mut SimpleWriter<SharedWords>) {
    for element in 0..ELEMENTS {
        let mut payload = [0; BYTES];
        for (chunk, at) in payload.chunks_exact_mut(8).zip(0..) {
            chunk.copy_from_slice(&(element + at).to_ne_bytes());
        }
        writer.write(&payload, read_hardware_ticks);
    }
}

fn compare<const BYTES: usize, const WORDS: usize>(clock: ClockId, floor: fn()) {
    let geometry = Geometry::new(BYTES as u32, CAPACITY as u64).expect("a valid geometry");
    // Leaked, because the writer is gone before the process ends; cut to begin at a page, as a
    // mapping does.
    let memory = vec![0_u64; geometry.words() + HEADER_SIZE / 8].leak();
    let skip = memory.as_ptr().align_offset(HEADER_SIZE);
    let memory = &mut memory[skip..];
    assert!(
        memory.len() >= geometry.words(),
        "the cut takes less than a page"
    );
    let base = NonNull::from(memory).cast();
    // SAFETY: the memory is leaked, aligned, at least `words` long by the assertion, and reached
    // through these words alone.
    let words = unsafe { SharedWords::new(base, geometry.words()) };
    Header::new(&geometry, WriterKind::Simple, clock, 1).store(&words);
    let mut writer = SimpleWriter::new(words, geometry).expect("enough memory");

    let mut sensor = Sensor::<Payload<WORDS>>::builder("cost")
        .register()
        .expect("memory for a sensor");

    let mut spans = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        black_box(floor)();
        let between = Instant::now();
        write::<BYTES>(black_box(&mut writer));
        let written = Instant::now();
        sense(black_box(&mut sensor));
        let end = Instant::now();
        if round >= WARM_UP {
            for (spans, span) in
                spans
                    .iter_mut()
                    .zip([between - start, written - between, end - written])
            {
                spans.push(span.as_nanos() as f64 / ELEMENTS as f64);
            }
        }
    }
    let [floor_ns, write_ns, sense_ns] = spans.map(median);
    let (write, sense) = (write_ns / floor_ns, sense_ns / floor_ns);
    println!("{BYTES:7} B {floor_ns:8.2} {write_ns:8.2} {sense_ns:8.2} {write:12.2} {sense:13.2}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Stays on the CPU it is on, so that rounds compare.
fn pin() {
    // SAFETY: the set is a plain value; both calls only read it or the calling thread's state.
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let cpu = usize::try_from(libc::sched_getcpu()).unwrap_or(0);
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    if pinned != 0 {
        println!("not pinned to a CPU: {}", std::io::Error::last_os_error());
    }
}

fn main() {
    let Some(clock) = hardware_clock() else {
        println!("skipped: this CPU has no counter to stamp with, so there is nothing to compare");
        return;
    };
    pin();
    println!("Medians of {ROUNDS} rounds of {ELEMENTS} elements, in ns per element; target: ratios up to 1.25.");
    println!("payload      floor   writer   sensor writer/floor  sensor/floor");
    compare::<0, 0>(clock, floor_0);
    compare::<8, 1>(clock, floor_8);
    compare::<64, 8>(clock, floor_64);
}
