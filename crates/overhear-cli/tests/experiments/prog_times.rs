// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run times of the BPF programs of a process, by the kernel's statistics: their mean, and an
//! estimate of their standard deviation.
//!
//! The kernel keeps a sum and a count for each program, and no distribution. Read in windows, with
//! `n` runs of the mean `m` in a window, the variance of a single run is the mean of
//! `n (m - M)^2` over all windows, where `M` is the mean of all runs: the mean of `n` independent
//! values has the variance of one of them over `n`.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use overhear_kernel::ProgStatsGuard;

const WINDOW: Duration = Duration::from_millis(100);

/// The program of a process that took most of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ProgTimes {
    pub(crate) runs: u64,
    pub(crate) mean_ns: f64,
    pub(crate) deviation_ns: f64,
}

/// Reads the statistics while a process runs.
pub(crate) struct Watch {
    end: Sender<()>,
    reader: JoinHandle<BTreeMap<u32, Vec<(u64, u64)>>>,
    /// The kernel measures as long as it exists.
    _statistics: ProgStatsGuard,
}

impl Watch {
    /// `None` if the statistics are refused is not needed: the experiment runs as root.
    pub(crate) fn start(pid: u32) -> Self {
        let statistics = ProgStatsGuard::start().expect("the kernel measures BPF programs");
        let (end, ended) = channel();
        let reader = thread::spawn(move || {
            let mut read = BTreeMap::<u32, Vec<(u64, u64)>>::new();
            loop {
                for (program, counts) in programs_of(pid) {
                    read.entry(program).or_default().push(counts);
                }
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

    /// The program with the most time; `None` if no program ran.
    pub(crate) fn finish(self) -> Option<ProgTimes> {
        drop(self.end);
        let read = self.reader.join().ok()?;
        let time = |counts: &Vec<(u64, u64)>| counts.last().map_or(0, |it| it.1);
        let busiest = read.into_values().max_by_key(time)?;
        estimate(&busiest)
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

/// Runs and nanoseconds of each BPF program that a process has open, by the program's id.
fn programs_of(pid: u32) -> Vec<(u32, (u64, u64))> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let of = |text: &str| {
        let number = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        let id = u32::try_from(number("prog_id:")?).ok()?;
        Some((id, (number("run_cnt:")?, number("run_time_ns:")?)))
    };
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.filter_map(|text| of(&text)).collect()
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
