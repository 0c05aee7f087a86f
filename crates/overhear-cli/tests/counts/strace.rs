// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls: those of `strace -T` in the same run, one by one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use overhear_event::Nanos;
use overhear_metrics::automaton::{system_metric, MetricResult, Metrics, Results};
use overhear_monitor::scheduler::allowed_cpus;
use overhear_trace::TraceReader;

use crate::harness::{cpu_lock, has_tool, workload, Backend, Overhear};
use crate::witness::{keeps, Doubt, Excuse, Witness, LATE};

/// As strace prints lengths.
const STEP: Nanos = Nanos::from_us(1);
/// A call with almost no work: its length in strace is the time of strace itself.
const NOTHING: u64 = libc::SYS_getppid as u64;
/// The first call of the program.
const BEGIN: u64 = libc::SYS_execve as u64;

/// A call with number and length by strace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: u64,
    length: Nanos,
}

impl Call {
    /// From `[ NUMBER] NAME(ARGUMENTS) = RESULT <SECONDS.MICROS>`; `None` for other lines, and for
    /// a call that does not return.
    fn parse(line: &str) -> Option<Self> {
        let (number, _) = line.strip_prefix('[')?.split_once(']')?;
        let (_, length) = line.strip_suffix('>')?.rsplit_once('<')?;
        let (seconds, micros) = length.split_once('.')?;
        let us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
        Some(Self {
            number: number.trim().parse().ok()?,
            length: Nanos::from_us(us),
        })
    }
}

/// The calls from the begin of the program on that both tools have completely.
fn ours(trace: &Path, tid: u32) -> Vec<MetricResult> {
    let mut engine = Metrics::new(Results::default());
    engine.add(system_metric("system_call").unwrap());
    TraceReader::open(trace).unwrap().replay(&mut [&mut engine]);
    let results = engine.sink().of(0).iter();
    let results = results.filter(|result| result.task == tid);
    results
        .skip_while(|result| result.key != Some(BEGIN))
        .copied()
        .collect()
}

/// Time that strace adds: its stops lie around the kernel's own points, so its lengths are longer.
fn excess(ours: &MetricResult, theirs: Call) -> Nanos {
    let ns = theirs.length.plus(STEP).as_ns() - ours.length.as_ns();
    Nanos::from_ns(ns)
}

fn quantile(sorted: &[Nanos], percent: usize) -> Nanos {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The count is the same, call by call. The length by strace is not shorter than ours but for the
/// digits that strace cuts off, and longer by at most its own overhead: what it adds, in the same
/// run, to 99 of 100 calls that do nothing, whatever the digits that it cuts off.
#[test]
fn system_calls_are_those_of_strace() {
    let _cpus = cpu_lock();
    if !has_tool("strace") || !has_tool("taskset") || !Backend::Bpf.works() {
        return;
    }
    // Strace and the program share a CPU. On two its own time depends on which two they are, and
    // the scheduler may change that between the calls that do nothing and the others.
    let Some(cpu) = allowed_cpus().last().map(u32::to_string) else {
        return;
    };
    keeps(|| {
        let witness = Witness::start();
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let overhear = Overhear::new(&folder)
            .backend(Backend::Bpf)
            .sensors("syscall");
        let on_cpu = ["taskset", "-c", &cpu];
        let words = ["strace", "-ff", "-n", "-T", "-e", "signal=none", "-o"];
        let words = on_cpu.iter().chain(&words);
        let mut command: Vec<&OsStr> = words.map(|word| word.as_ref()).collect();
        command.extend([log.as_os_str(), workload().as_os_str(), "calls".as_ref()]);
        let mut overhear_run = overhear.command(&command);
        let output = overhear_run.output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr);
        if messages.contains("ptrace") || messages.contains("PTRACE") {
            println!(
                "skipped: strace may trace nothing here ({})",
                messages.trim()
            );
            return Ok(());
        }
        assert_eq!(output.status.code(), Some(0), "{messages}");
        let machine = witness.stop();

        // One thread, so one file, whose name ends with its id.
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let mut names = files.filter_map(|file| file.file_name().into_string().ok());
        let tid = names
            .find_map(|name| name.strip_prefix("log.")?.parse().ok())
            .unwrap();
        let text = std::fs::read_to_string(log.with_extension(format!("{tid}"))).unwrap();
        let theirs: Vec<Call> = text.lines().filter_map(Call::parse).collect();
        let ours = ours(overhear.trace(), tid);

        let numbers = |calls: &mut dyn Iterator<Item = u64>| {
            let mut counts = BTreeMap::new();
            for number in calls {
                *counts.entry(number).or_insert(0) += 1;
            }
            counts
        };
        let our_counts = numbers(&mut ours.iter().filter_map(|result| result.key));
        let their_counts = numbers(&mut theirs.iter().map(|call| call.number));
        assert_eq!(our_counts, their_counts);
        assert!(our_counts[&NOTHING] >= 300, "{our_counts:?}");

        let (mut of_nothing, mut of_others) = (Vec::new(), Vec::new());
        for (result, call) in ours.iter().zip(&theirs) {
            assert_eq!(result.key, Some(call.number));
            let whole = call.length.plus(STEP);
            assert!(result.length <= whole, "{result:?} {call:?}");
            let excess = excess(result, *call);
            match call.number == NOTHING {
                true => of_nothing.push(excess),
                false => of_others.push(excess),
            }
        }
        of_nothing.sort_unstable();
        of_others.sort_unstable();
        // Microseconds have no fraction: it may be 0 in one tool and nearly 1 in the other.
        let overhead = quantile(&of_nothing, 99).plus(STEP);
        let within = of_others
            .iter()
            .filter(|&&excess| excess <= overhead)
            .count();
        println!(
            "{} calls; strace adds {} to one that does nothing, up to {overhead}; to others {}, {within} of {} within that",
            ours.len(),
            quantile(&of_nothing, 50),
            quantile(&of_others, 50),
            of_others.len(),
        );
        // A systematic difference is not caused by the machine.
        assert!(quantile(&of_others, 50) <= overhead);
        if within * 100 >= of_others.len() * 95 {
            return Ok(());
        }
        // Strace must get a CPU at each stop, and other programs may use it: at some stops for less
        // time than a witness measures.
        let is_seen = machine.was_crowded() || machine.was_late(LATE);
        Err(Doubt {
            excuse: if is_seen {
                Excuse::Seen
            } else {
                Excuse::Unseen
            },
            reasons: format!("{within} of {} within {overhead}", of_others.len()),
        })
    });
}

#[test]
fn lines_of_strace_are_understood() {
    let call = |number, us| Call {
        number,
        length: Nanos::from_us(us),
    };
    let line = "[ 110] getppid()                      = 4711 <0.000012>";
    assert_eq!(Call::parse(line), Some(call(110, 12)));
    let line = "[   1] write(3, \"<0.5>\", 4)  = 4 <1.000002>";
    assert_eq!(Call::parse(line), Some(call(1, 1_000_002)));
    assert_eq!(Call::parse("[ 231] exit_group(0)  = ?"), None);
    assert_eq!(Call::parse("+++ exited with 0 +++"), None);
}
