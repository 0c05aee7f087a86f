// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long BPF programs run, by the kernel's own statistics.

use std::io;
use std::iter::Sum;
use std::ops::Sub;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

use crate::machine;

/// The kernel measures how long each run of each BPF program takes, for as long as this lives or somebody else
/// wants it to (`BPF_ENABLE_STATS`).
///
/// It reads its clock before and after a run: so the way to the program and back is not contained, one reading
/// of the clock is, and all programs of the machine take somewhat longer meanwhile.
#[derive(Debug)]
pub struct RunClock {
    _descriptor: OwnedFd,
}

/// Why the kernel does not measure how long BPF programs run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel does not measure how long BPF programs run, because {why}; it takes Linux 5.8 and CAP_SYS_ADMIN")]
pub struct RunClockError {
    /// The phrase after "because".
    pub why: String,
}

impl RunClock {
    /// Begins.
    ///
    /// # Errors
    /// [`RunClockError`] if the kernel refuses.
    pub fn start() -> Result<Self, RunClockError> {
        // SAFETY: it takes a number, and returns a descriptor or an error.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            let error = io::Error::from_raw_os_error(-descriptor);
            let why = machine::error_text(error);
            return Err(RunClockError { why });
        }
        // SAFETY: the call succeeded, so this is a new descriptor that nobody else owns.
        let _descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { _descriptor })
    }
}

/// How often programs have run while a [`RunClock`] was there, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// How often.
    pub count: u64,
    /// How long together, in nanoseconds.
    pub total_ns: u64,
}

impl Runs {
    /// From what the file of a program's descriptor tells.
    pub(crate) fn parse(info: &str) -> Self {
        let number = |key| machine::field(info, key).and_then(|number| number.parse().ok());
        Self {
            count: number("run_cnt:").unwrap_or(0),
            total_ns: number("run_time_ns:").unwrap_or(0),
        }
    }
}

impl Sum for Runs {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            count: sum.count + one.count,
            total_ns: sum.total_ns + one.total_ns,
        })
    }
}

/// What came between two looks, the earlier one behind.
impl Sub for Runs {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;

    #[test]
    fn the_file_of_a_program_tells_its_runs() {
        let info = "prog_id:\t7\nrun_time_ns:\t1200\nrun_cnt:\t10\nrecursion_misses:\t0\n";
        let runs = Runs::parse(info);
        assert_eq!((runs.count, runs.total_ns), (10, 1_200));
        // Before Linux 5.1 it did not.
        assert_eq!(Runs::parse("prog_id:\t7\n"), Runs::default());
        let later = Runs {
            count: 15,
            total_ns: 2_000,
        };
        let between = later - runs;
        assert_eq!((between.count, between.total_ns), (5, 800));
        assert_eq!([runs, between].into_iter().sum::<Runs>(), later);
    }
}
