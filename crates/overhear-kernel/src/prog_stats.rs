// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run time of BPF programs, by the statistics of the kernel.

use std::io;
use std::iter::Sum;
use std::ops::Sub;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use crate::machine;

/// While a value exists, the kernel measures the time of each run of each BPF program
/// (`BPF_ENABLE_STATS`).
///
/// It reads its clock before and after a run. So the time does not include the entry to the program
/// and the return, but does include one reading of the clock. All programs of the machine take
/// somewhat longer meanwhile.
#[derive(Debug)]
pub struct ProgStatsGuard {
    _descriptor: OwnedFd,
}

/// Reason why the kernel does not measure the run time of BPF programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel does not measure how long BPF programs run, because {why}; it takes Linux 5.8 and CAP_SYS_ADMIN")]
pub struct ProgStatsError {
    /// The phrase after "because".
    pub why: String,
}

impl ProgStatsGuard {
    /// Starts the measurement.
    ///
    /// # Errors
    /// [`ProgStatsError`] if the kernel refuses.
    pub fn start() -> Result<Self, ProgStatsError> {
        // SAFETY: it takes a number, and returns a descriptor or an error.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let error = io::Error::from_raw_os_error(-descriptor);
            let why = machine::error_text(error);
            return Err(ProgStatsError { why });
        }
        // SAFETY: the call succeeded, so this is a new descriptor without another owner.
        let _descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { _descriptor })
    }
}

/// Run count and run time of BPF programs while a [`ProgStatsGuard`] existed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgStats {
    /// Number of runs.
    pub run_count: u64,
    /// Sum of run times in nanoseconds.
    pub run_time_ns: u64,
}

impl ProgStats {
    /// Parses the fdinfo file of a program.
    pub(crate) fn parse(info: &str) -> Self {
        let number = |key| machine::field(info, key).and_then(|number| number.parse().ok());
        Self {
            run_count: number("run_cnt:").unwrap_or(0),
            run_time_ns: number("run_time_ns:").unwrap_or(0),
        }
    }
}

impl Sum for ProgStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            run_count: sum.run_count + one.run_count,
            run_time_ns: sum.run_time_ns + one.run_time_ns,
        })
    }
}

/// The difference of two readings, newer minus older.
impl Sub for ProgStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            run_count: self.run_count.saturating_sub(earlier.run_count),
            run_time_ns: self.run_time_ns.saturating_sub(earlier.run_time_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ProgStats;

    #[test]
    fn fdinfo_has_run_statistics() {
        let info = "prog_id:\t7\nrun_time_ns:\t1200\nrun_cnt:\t10\nrecursion_misses:\t0\n";
        let runs = ProgStats::parse(info);
        assert_eq!((runs.run_count, runs.run_time_ns), (10, 1_200));
        // Before Linux 5.1 fdinfo had no statistics.
        assert_eq!(ProgStats::parse("prog_id:\t7\n"), ProgStats::default());
        let later = ProgStats {
            run_count: 15,
            run_time_ns: 2_000,
        };
        let between = later - runs;
        assert_eq!((between.run_count, between.run_time_ns), (5, 800));
        assert_eq!([runs, between].into_iter().sum::<ProgStats>(), later);
    }
}
