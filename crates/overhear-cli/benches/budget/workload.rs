// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workloads, as child processes that run a number of steps on demand.
//!
//! A child reads lines from its standard input, each with a number of steps, runs them, and prints
//! its CPU time so far. So several processes can run the same work in turns.

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use overhear::{Element, LanedSensor, Sensor};
use rustix::thread::CpuSet;

/// Names the workload; set in children.
pub(crate) const ROLE: &str = "OVERHEAR_BENCH_BUDGET";
/// Set for a child that writes nothing.
pub(crate) const PLAIN: &str = "OVERHEAR_BENCH_PLAIN";
/// Rounds of work between two writes.
pub(crate) const ROUNDS: &str = "OVERHEAR_BENCH_ROUNDS";
/// The CPU of a child with one thread.
pub(crate) const CPU: &str = "OVERHEAR_BENCH_CPU";

const THREADS: usize = 4;
const SENSORS: usize = 400;
/// Bursts of one demand of the bursty workload, and the time without load before each.
const BURSTS: u64 = 2;
const IDLE: Duration = Duration::from_millis(50);

/// A frame of two kilobytes. Elements of a few words cost so little that a program with nothing
/// else between them would be necessary for large targets.
#[derive(Element)]
#[repr(C)]
struct Frame {
    step: u64,
    text: [u8; TEXT],
}

const TEXT: usize = 2_040;
/// The rings stay in the cache of the second level: its misses would be most of the noise.
const CAPACITY: u64 = 64;
const CAPACITY_OF_MANY: u64 = 8;

impl Frame {
    const fn new() -> Self {
        Self {
            step: 0,
            text: [b'x'; TEXT],
        }
    }
}

/// Work of several kinds at once, as in ordinary code: about 2 ns for each round. No two lanes do
/// the same, so that no compiler makes vectors of them.
struct Work {
    state: [u64; 5],
    table: [u64; 256],
    rounds: u64,
}

impl Work {
    fn new() -> Self {
        let rounds = std::env::var(ROUNDS).ok().and_then(|it| it.parse().ok());
        Self {
            state: [1, 2, 3, 4, 5],
            table: std::array::from_fn(|at| (at as u64).wrapping_mul(MULTIPLIER)),
            rounds: rounds.expect("the number of rounds"),
        }
    }

    /// One piece of code for observed and plain children: its place in the program changes its
    /// speed by some per cent.
    #[inline(never)]
    fn step(&mut self) {
        let [mut a, mut b, mut c, mut d, mut e] = self.state;
        for _ in 0..self.rounds {
            a = a.wrapping_mul(MULTIPLIER).wrapping_add(1);
            b = b.rotate_left(13) ^ b.wrapping_add(a);
            c ^= c << 7;
            c ^= c >> 9;
            d = d.wrapping_add(d >> 3) ^ b;
            e = self.table[((e ^ c) & 255) as usize] ^ (e >> 8);
        }
        self.state = [a, b, c, d, e];
    }
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Runs the child.
pub(crate) fn run(role: &str) {
    match std::env::var_os(PLAIN) {
        Some(_) => run_with::<false>(role),
        None => run_with::<true>(role),
    }
}

fn run_with<const OBSERVED: bool>(role: &str) {
    match role {
        "steady" => one_sensor::<OBSERVED>(1),
        "bursty" => one_sensor::<OBSERVED>(BURSTS),
        "threads" => threads::<OBSERVED>(),
        "sensors" => many_sensors::<OBSERVED>(),
        other => panic!("no workload `{other}`"),
    }
}

fn one_sensor<const OBSERVED: bool>(bursts: u64) {
    let (mut work, mut frame) = (Work::new(), Frame::new());
    let mut sensor = Sensor::<Frame>::builder("steps")
        .capacity(CAPACITY)
        .register()
        .expect("a sensor");
    on_demand(|steps| {
        for _ in 0..bursts {
            if bursts > 1 {
                std::thread::sleep(IDLE);
            }
            for step in 0..steps / bursts {
                work.step();
                if OBSERVED {
                    frame.step = step;
                    sensor.write(&frame);
                }
            }
        }
        black_box(work.state);
    });
}

/// Eight sensors have half of the writes, the next eight half of the rest, and so on.
fn many_sensors<const OBSERVED: bool>() {
    let (mut work, mut frame) = (Work::new(), Frame::new());
    let count = if OBSERVED { SENSORS } else { 0 };
    let mut sensors: Vec<_> = (0..count)
        .map(|number| {
            Sensor::<Frame>::builder("source")
                .instance(&number.to_string())
                .capacity(CAPACITY_OF_MANY)
                .register()
                .expect("a sensor")
        })
        .collect();
    on_demand(|steps| {
        for step in 1..=steps {
            work.step();
            let number = (step >> 3).trailing_zeros() as usize * 8 + (step & 7) as usize;
            let number = black_box(number % SENSORS);
            if OBSERVED {
                frame.step = step;
                sensors[number].write(&frame);
            }
        }
        black_box(work.state);
    });
}

fn threads<const OBSERVED: bool>() {
    let sensor = LanedSensor::<Frame>::builder("threads")
        .capacity(CAPACITY)
        .register()
        .expect("a sensor");
    let (sensor, demanded) = (Arc::new(sensor), Arc::new(Mutex::new(0)));
    let barrier = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let (sensor, demanded) = (Arc::clone(&sensor), Arc::clone(&demanded));
        let barrier = Arc::clone(&barrier);
        // They end with the process.
        std::thread::spawn(move || {
            let (mut work, mut frame) = (Work::new(), Frame::new());
            loop {
                barrier.wait();
                let steps: u64 = *demanded.lock().expect("no panic");
                for step in 0..steps / THREADS as u64 {
                    work.step();
                    if OBSERVED {
                        frame.step = step;
                        let _ = sensor.write(&frame);
                    }
                }
                black_box(work.state);
                barrier.wait();
            }
        });
    }
    on_demand(|steps| {
        *demanded.lock().expect("no panic") = steps;
        barrier.wait();
        barrier.wait();
    });
}

fn on_demand(mut run: impl FnMut(u64)) {
    if let Some(cpu) = std::env::var(CPU).ok().and_then(|it| it.parse().ok()) {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        // Without it the figures are noisier, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &cpus);
    }
    let mut stdout = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        run(line.parse().expect("a number of steps"));
        writeln!(stdout, "{}", own_cpu_ns()).expect("standard output");
    }
}

/// User and system time of this process.
fn own_cpu_ns() -> u128 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as u128 * 1_000_000_000 + used.tv_nsec as u128
}
