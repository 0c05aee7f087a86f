// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload: two processes on one CPU pass a byte to and fro, and work for some microseconds
//! each time they get it.
//!
//! Both are this test's own program, started again with a variable, so that nothing else must be
//! built. Their work is an interference probe, so it shows for each lap whether the core was
//! undisturbed. Observation does not change the time of this work, and it is not the measured time.

use std::io::{stderr, stdin, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::time::Duration;

use overhear_directory::monotonic_now;
use overhear_monitor::interference::InterferenceProbe;
use overhear_monitor::scheduler::{allowed_cpus, run_on, take_precedence};

/// Steps of work before each byte, and the CPU.
const VARIABLE: &str = "OVERHEAR_TEST_PING_PONG";
/// Steps of work before each returned byte, for the other process.
const ANSWER: &str = "OVERHEAR_TEST_PONG";
/// Pause between laps, so that the monitor catches up.
const PAUSE: Duration = Duration::from_millis(1);
/// End of each line of numbers, which distinguishes it from lines of the test harness.
const MARK: &str = "of the workload";

/// One lap: a number of round trips of the byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    /// Length by the monotonic clock.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    /// Work of the asking process in the lap: the sum of its interference probes.
    pub(crate) work_ns: u64,
}

/// The CPU of the workload, and one for all other processes; `None` if there is only one CPU.
pub(crate) fn cpus() -> Option<(u32, u32)> {
    let cpus = allowed_cpus();
    let (first, last) = (*cpus.first()?, *cpus.last()?);
    (first != last).then_some((last, first))
}

/// The command of one of the two processes.
fn player() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "workload::ping_pong", "--nocapture"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// The two processes, which wait for requests of laps.
pub(crate) struct Workload {
    caller: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStderr>,
    answering: u32,
}

impl Workload {
    /// Starts them with this number of steps of work before each byte.
    pub(crate) fn start(cpu: u32, steps: u64) -> Self {
        let mut caller = player()
            .env(VARIABLE, format!("{steps} {cpu}"))
            .spawn()
            .unwrap();
        let requests = caller.stdin.take().unwrap();
        let answers = BufReader::new(caller.stderr.take().unwrap());
        let mut workload = Self {
            caller,
            requests,
            answers,
            answering: 0,
        };
        workload.answering = workload.numbers()[0] as u32;
        workload
    }

    pub(crate) fn pids(&self) -> [u32; 2] {
        [self.caller.id(), self.answering]
    }

    /// Runs `laps` laps of `trips` trips.
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
        // The other process ends with its pipe.
        let _ = self.caller.kill();
        let _ = self.caller.wait();
    }
}

/// Returns each byte of standard input on standard error: standard output is that of the test
/// harness.
fn answer(work: InterferenceProbe) {
    let mut byte = [0];
    while stdin().read_exact(&mut byte).is_ok() {
        work.work();
        if stderr().write_all(&byte).is_err() {
            return;
        }
    }
}

/// Not a test: one of the two processes, if a variable requests it.
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
    let mut responder = player().env(ANSWER, steps.to_string()).spawn().unwrap();
    let mut out = responder.stdin.take().unwrap();
    let mut back = responder.stderr.take().unwrap();
    let send = |numbers: &[u64]| {
        let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        eprintln!("\n{} {MARK}", words.join(" "));
    };
    send(&[u64::from(responder.id())]);
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
    // The other process ends with its input.
    drop((out, back));
    responder.wait().unwrap();
}
