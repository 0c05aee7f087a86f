// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload: two processes on one CPU pass a byte to and fro, a fixed number of times, and work for some
//! microseconds whenever they get it.
//!
//! Both are this test's own program, run again with a variable that asks for it, so that nothing else has to be
//! built. It writes an element of a sensor of its own at the begin and the end of each lap, and prints how
//! long the laps took by its own clock.

use std::io::{stderr, stdin, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overhear::{Element, Sensor};
use overhear_monitor::scheduler::{allowed_cpus, run_on, take_precedence};

/// How much is to be done: laps, trips of the byte in each, and the CPU.
const VARIABLE: &str = "OVERHEAR_TEST_PING_PONG";
/// So many steps of work before each byte that is answered, for the other process.
const ANSWER: &str = "OVERHEAR_TEST_PONG";
/// Between laps, for the monitor to catch up.
const PAUSE: Duration = Duration::from_millis(20);
/// The sensor's id.
pub(crate) const SENSOR: &str = "lap";
/// What each line about a lap begins with.
const LAP: &str = "lap_ns=";

/// How much the workload does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    pub(crate) laps: usize,
    pub(crate) trips: usize,
    /// Steps of work of each thread in each trip.
    pub(crate) steps: usize,
    /// Where. It binds itself: it inherits another CPU.
    pub(crate) cpu: u32,
}

#[derive(Element)]
#[repr(C)]
struct Edge {
    lap: u64,
}

impl Work {
    /// The program that does it, with its arguments.
    pub(crate) fn program(self) -> (PathBuf, [&'static str; 4]) {
        let program = std::env::current_exe().unwrap();
        let arguments = [
            "--exact",
            "workload::ping_pong",
            "--nocapture",
            "--test-threads=1",
        ];
        (program, arguments)
    }

    pub(crate) fn ask(self, command: &mut Command) {
        command.env(
            VARIABLE,
            format!("{} {} {} {}", self.laps, self.trips, self.steps, self.cpu),
        );
    }
}

/// How long each lap took, as the workload has said.
pub(crate) fn laps_in(output: &str) -> Vec<u64> {
    let lines = output.lines().filter_map(|line| line.split_once(LAP));
    lines.map(|(_, ns)| ns.parse().unwrap()).collect()
}

/// The CPU on which the byte is passed, and one for everybody else; `None` if there is one CPU only.
pub(crate) fn cpus() -> Option<(u32, u32)> {
    let cpus = allowed_cpus();
    let (first, last) = (*cpus.first()?, *cpus.last()?);
    (first != last).then_some((last, first))
}

/// Work that stays in registers, so that it takes as long each time.
fn toil(steps: usize) {
    let mut state = 1_u64;
    for _ in 0..steps {
        state = std::hint::black_box(state ^ state << 13);
    }
}

/// So many steps take about this long.
pub(crate) fn steps_in(time: Duration) -> usize {
    const MANY: usize = 100_000;
    let measure = || {
        let begun = Instant::now();
        toil(MANY);
        begun.elapsed()
    };
    let shortest = (0..5).map(|_| measure()).min().unwrap_or(time);
    (MANY as u128 * time.as_nanos() / shortest.as_nanos().max(1)) as usize
}

/// Answers each byte of standard input on standard error: the test's harness talks on standard output.
fn answer(steps: usize) {
    let mut byte = [0];
    while stdin().read_exact(&mut byte).is_ok() {
        toil(steps);
        if stderr().write_all(&byte).is_err() {
            return;
        }
    }
}

/// Not a test: the workload, if it is asked for.
#[test]
fn ping_pong() {
    if let Ok(steps) = std::env::var(ANSWER) {
        return answer(steps.parse().unwrap());
    }
    let Some(work) = std::env::var(VARIABLE).ok() else {
        return;
    };
    let mut numbers = work
        .split(' ')
        .map(|number| number.parse::<usize>().unwrap());
    let mut next = || numbers.next().unwrap();
    let (laps, trips, steps) = (next(), next(), next());
    run_on(u32::try_from(next()).unwrap()).unwrap();
    let _ = take_precedence();
    let mut sensor = Sensor::<Edge>::builder(SENSOR).register().unwrap();
    // It inherits the CPU and the priority.
    let (program, arguments) = Work::default().program();
    let mut answerer = Command::new(program)
        .args(arguments)
        .env(ANSWER, steps.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = answerer.stdin.take().unwrap();
    let mut back = answerer.stderr.take().unwrap();
    let mut trip = || {
        let mut byte = [0];
        toil(steps);
        out.write_all(&byte).unwrap();
        back.read_exact(&mut byte).unwrap();
    };
    for _ in 0..trips {
        trip();
    }
    let mut lengths = Vec::with_capacity(laps);
    for lap in 0..laps {
        // The monitor's rings hold what a lap fires; between laps it may catch up.
        std::thread::sleep(PAUSE);
        for _ in 0..trips / 10 {
            trip();
        }
        sensor.write(&Edge { lap: lap as u64 });
        let begun = Instant::now();
        for _ in 0..trips {
            trip();
        }
        lengths.push(begun.elapsed().as_nanos());
        sensor.write(&Edge { lap: lap as u64 });
    }
    drop(out);
    answerer.wait().unwrap();
    for length in lengths {
        println!("\n{LAP}{length}");
    }
}
