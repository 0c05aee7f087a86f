// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run times of the BPF programs of a process at context switches, by the kernel's statistics: the
//! mean for a switch, and an estimate of the standard deviation.
//!
//! The kernel keeps a sum and a count for each program, and no distribution. Read in windows, with
//! `n` runs of the mean `m` in a window, the variance of a single run is the mean of
//! `n (m - M)^2` over all windows, where `M` is the mean of all runs: the mean of `n` independent
//! values has the variance of one of them over `n`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use overhear_kernel::ProgStatsGuard;

const WINDOW: Duration = Duration::from_millis(100);

/// All programs of a process at context switches together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProgTimes {
    pub(crate) runs: u64,
    pub(crate) mean_ns: f64,
    pub(crate) deviation_ns: f64,
}

/// Reads the statistics while a process runs.
pub(crate) struct Watch {
    end: Sender<()>,
    reader: JoinHandle<Vec<(u64, u64)>>,
    /// The kernel measures as long as it exists.
    _statistics: ProgStatsGuard,
}

impl Watch {
    /// Starts the measurement, which takes root like the task set.
    pub(crate) fn start(pid: u32) -> Self {
        let statistics = ProgStatsGuard::start().expect("the kernel measures BPF programs");
        let (end, ended) = channel();
        let reader = thread::spawn(move || {
            let mut read = Vec::new();
            loop {
                read.extend(at_switches(pid));
                if ended.recv_timeout(WINDOW) != Err(RecvTimeoutError::Timeout) {
                    return read;
                }
            }
        });
        Self {
            end,
            reader,
            _statistics: statistics,
        }
    }

    /// `None` if no program ran at switches.
    pub(crate) fn finish(self) -> Option<ProgTimes> {
        drop(self.end);
        estimate(&self.reader.join().ok()?)
    }
}

/// From counts of runs and their time at the ends of windows.
fn estimate(counts: &[(u64, u64)]) -> Option<ProgTimes> {
    let (first, last) = (counts.first()?, counts.last()?);
    let runs = last.0 - first.0;
    if runs == 0 {
        return None;
    }
    let mean_ns = (last.1 - first.1) as f64 / runs as f64;
    let windows = counts.windows(2).filter(|pair| pair[1].0 > pair[0].0);
    let terms = windows.map(|pair| {
        let n = (pair[1].0 - pair[0].0) as f64;
        let mean = (pair[1].1 - pair[0].1) as f64 / n;
        n * (mean - mean_ns).powi(2)
    });
    let terms: Vec<f64> = terms.collect();
    let variance = terms.iter().sum::<f64>() / (terms.len().max(2) - 1) as f64;
    Some(ProgTimes {
        runs,
        mean_ns,
        deviation_ns: variance.sqrt(),
    })
}

/// Number of context switches, and nanoseconds of all programs at them. `None` while the process
/// has no such programs.
fn at_switches(pid: u32) -> Option<(u64, u64)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    sum_at_switches(&texts.collect::<Vec<_>>())
}

/// From the descriptions of open files: links name the tracepoint and the program, programs have
/// the statistics.
fn sum_at_switches(texts: &[String]) -> Option<(u64, u64)> {
    let word = |text: &str, name: &str| -> Option<String> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let switches = |text: &&String| word(text, "tp_name:").is_some_and(|it| it == "sched_switch");
    let linked = texts.iter().filter(switches);
    let linked: BTreeSet<String> = linked.filter_map(|text| word(text, "prog_id:")).collect();
    let mut programs = BTreeMap::new();
    for text in texts {
        let number = |name: &str| word(text, name)?.parse::<u64>().ok();
        let counts = number("run_cnt:").zip(number("run_time_ns:"));
        if let (Some(id), Some(counts)) = (word(text, "prog_id:"), counts) {
            programs.insert(id, counts);
        }
    }
    programs.retain(|id, _| linked.contains(id));
    let runs = programs.values().map(|(runs, _)| *runs).max()?;
    Some((runs, programs.values().map(|(_, time)| time).sum()))
}

#[test]
fn programs_at_switches_are_found_by_their_links() {
    let link = |program, tracepoint| {
        format!("link_type:\traw_tracepoint\nprog_id:\t{program}\ntp_name:\t{tracepoint}\n")
    };
    let program =
        |id, runs, time| format!("prog_id:\t{id}\nrun_time_ns:\t{time}\nrun_cnt:\t{runs}\n");
    let texts = [
        link(7, "sched_switch"),
        program(7, 10, 1000),
        // A second descriptor of the same program.
        program(7, 10, 1000),
        link(8, "sys_enter"),
        program(8, 900, 90_000),
        link(9, "sched_switch"),
        program(9, 9, 500),
        "pos:\t0\n".to_owned(),
    ];
    assert_eq!(sum_at_switches(&texts), Some((10, 1500)));
    assert_eq!(sum_at_switches(&texts[3..5]), None);
}

#[test]
fn deviation_of_single_runs_is_estimated_from_windows() {
    // Windows of four runs each with means 90, 110, 90, 110: single runs deviate by 20 or so.
    let mut counts = vec![(0, 0)];
    for mean in [90, 110, 90, 110] {
        let (runs, time) = counts[counts.len() - 1];
        counts.push((runs + 4, time + 4 * mean));
    }
    let times = estimate(&counts).unwrap();
    assert_eq!((times.runs, times.mean_ns), (16, 100.0));
    assert!((times.deviation_ns - (1600.0_f64 / 3.0).sqrt()).abs() < 1e-9);
    assert_eq!(estimate(&[(5, 5), (5, 5)]), None);
    assert_eq!(estimate(&[]), None);
}
