// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload: two processes on one CPU pass a byte to and fro, and work for some microseconds
//! whenever they get it.
//!
//! Both are this test's own program, run again with a variable that asks for it, so that nothing
//! else has to be built. What they work with is the yardstick, so that of each lap it is known
//! whether the core was undisturbed: by the work, which nobody's observation changes, and not by
//! what is measured.

use std::io::{stderr, stdin, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::Duration;

use overhear_directory::monotonic_now;
use overhear_monitor::interference::InterferenceProbe;
use overhear_monitor::scheduler::{allowed_cpus, run_on, take_precedence};

/// Steps of work before each byte, and the CPU.
const VARIABLE: &str = "OVERHEAR_TEST_PING_PONG";
/// So many steps of work before each byte that is answered, for the other process.
const ANSWER: &str = "OVERHEAR_TEST_PONG";
/// Between laps, for the monitor to catch up.
const PAUSE: Duration = Duration::from_millis(1);
/// What ends a line of numbers, and tells it from what the harness says.
const MARK: &str = "of the workload";

/// One lap: so many trips of the byte to and fro.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    /// By the monotonic clock.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    /// Of this, the work of the one who asks: as long as the yardsticks that it consists of.
    pub(crate) work_ns: u64,
}

/// The CPU on which the byte is passed, and one for everybody else; `None` if there is one CPU
/// only.
pub(crate) fn cpus() -> Option<(u32, u32)> {
    let cpus = allowed_cpus();
    let (first, last) = (*cpus.first()?, *cpus.last()?);
    (first != last).then_some((last, first))
}

/// This test's program, to be one of the two.
fn player() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "workload::ping_pong", "--nocapture"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// The two processes, which wait to be asked for laps.
pub(crate) struct Workload {
    asking: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStderr>,
    answering: u32,
}

impl Workload {
    /// With so many steps of work before each byte.
    pub(crate) fn start(cpu: u32, steps: u64) -> Self {
        let mut asking = player()
            .env(VARIABLE, format!("{steps} {cpu}"))
            .spawn()
            .unwrap();
        let requests = asking.stdin.take().unwrap();
        let answers = BufReader::new(asking.stderr.take().unwrap());
        let mut workload = Self {
            asking,
            requests,
            answers,
            answering: 0,
        };
        workload.answering = workload.numbers()[0] as u32;
        workload
    }

    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.asking.id(), self.answering]
    }

    /// So many laps of so many trips.
    pub(crate) fn run(&mut self, laps: usize, trips: usize) -> Vec<Lap> {
        writeln!(self.requests, "{laps} {trips}").unwrap();
        let laps = (0..laps).map(|_| {
            let numbers = self.numbers();
            Lap {
                begin_ns: numbers[0],
                end_ns: numbers[1],
                work_ns: numbers[2],
            }
        });
        laps.collect()
    }

    /// The next line of numbers.
    fn numbers(&mut self) -> Vec<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.answers.read_line(&mut line).unwrap(),
                0,
                "it has ended"
            );
            if let Some(numbers) = line.trim_end().strip_suffix(MARK) {
                let numbers = numbers.split_whitespace();
                return numbers.map(|number| number.parse().unwrap()).collect();
            }
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // The other one ends with its pipe.
        let _ = self.asking.kill();
        let _ = self.asking.wait();
    }
}

/// Answers each byte of standard input on standard error: the test's harness talks on standard
/// output.
fn answer(work: InterferenceProbe) {
    let mut byte = [0];
    while stdin().read_exact(&mut byte).is_ok() {
        work.work();
        if stderr().write_all(&byte).is_err() {
            return;
        }
    }
}

/// Not a test: one of the two, if it is asked for.
#[test]
fn ping_pong() {
    if let Ok(steps) = std::env::var(ANSWER) {
        return answer(InterferenceProbe::new(steps.parse().unwrap()));
    }
    let Some(request) = std::env::var(VARIABLE).ok() else {
        return;
    };
    let mut numbers = request
        .split(' ')
        .map(|number| number.parse::<u64>().unwrap());
    let mut next = || numbers.next().unwrap();
    let (steps, cpu) = (next(), next());
    run_on(u32::try_from(cpu).unwrap()).unwrap();
    let _ = take_precedence();
    // It inherits the CPU and the priority.
    let mut answerer = player().env(ANSWER, steps.to_string()).spawn().unwrap();
    let mut out = answerer.stdin.take().unwrap();
    let mut back = answerer.stderr.take().unwrap();
    let send = |numbers: &[u64]| {
        let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        eprintln!("\n{} {MARK}", words.join(" "));
    };
    send(&[u64::from(answerer.id())]);
    let work = InterferenceProbe::new(steps);
    let mut trip = || {
        let mut byte = [0];
        let spent = work.time();
        out.write_all(&byte).unwrap();
        back.read_exact(&mut byte).unwrap();
        spent
    };
    for request in stdin().lines() {
        let request = request.unwrap();
        let mut numbers = request
            .split(' ')
            .map(|number| number.parse::<usize>().unwrap());
        let (laps, trips) = (numbers.next().unwrap(), numbers.next().unwrap());
        let mut done = Vec::with_capacity(laps);
        for _ in 0..laps {
            std::thread::sleep(PAUSE);
            for _ in 0..trips / 4 {
                trip();
            }
            let begin_ns = monotonic_now().as_monotonic_ns();
            let work_ns = (0..trips).map(|_| trip()).sum();
            let end_ns = monotonic_now().as_monotonic_ns();
            done.push([begin_ns, end_ns, work_ns]);
        }
        for lap in done {
            send(&lap);
        }
    }
    // The other one ends with its input.
    drop((out, back));
    answerer.wait().unwrap();
}
