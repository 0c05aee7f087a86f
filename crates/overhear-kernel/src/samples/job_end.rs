// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`JobEndPoint`]: where a job of a thread ends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::SamplerError;
use crate::probe::{self, ResolvedProbe};
use crate::{machine, Probe};

/// Where a job of a thread ends ([EPOS, section III-C]); the next job begins there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEndPoint {
    /// The thread calls `sched_yield`.
    Yield,
    /// A thread of the policy SCHED_DEADLINE calls `sched_yield`.
    DeadlineYield,
    /// The thread calls `nanosleep` or `clock_nanosleep`.
    Sleep,
    /// The thread waits in the kernel for the futex at this address. A lock that is free is taken
    /// without the kernel, and ends no job.
    Futex(u64),
    /// As [`Self::Futex`], for a global variable of a program.
    FutexVariable {
        /// The program's file, as for [`Probe::function`].
        program: String,
        /// The variable.
        variable: String,
    },
    /// The thread reads or receives from this file descriptor.
    Descriptor(u32),
    /// The thread reads or receives from this file.
    File(PathBuf),
    /// The thread passes this function: its entry, or its return.
    Function(Probe),
}

/// Rules that system calls show, as a set (`enum job_end` in `samples.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobEndSet(u64);

impl JobEndSet {
    const YIELD: Self = Self(1);
    const DEADLINE_YIELD: Self = Self(2);
    const SLEEP: Self = Self(4);
    const FUTEX: Self = Self(8);
    const DESCRIPTOR: Self = Self(16);
    const FILE: Self = Self(32);

    pub(crate) const fn as_raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Finds files, variables and functions.
    pub(super) fn resolve(
        ends: &[JobEndPoint],
        function: impl Fn(&Probe) -> Result<ResolvedProbe, SamplerError>,
    ) -> Result<ResolvedJobEnds, SamplerError> {
        let mut found = ResolvedJobEnds::default();
        for end in ends {
            let kind = match end {
                JobEndPoint::Yield => Self::YIELD,
                JobEndPoint::DeadlineYield => Self::DEADLINE_YIELD,
                JobEndPoint::Sleep => Self::SLEEP,
                JobEndPoint::Futex(_) | JobEndPoint::FutexVariable { .. } => Self::FUTEX,
                JobEndPoint::Descriptor(_) => Self::DESCRIPTOR,
                JobEndPoint::File(_) => Self::FILE,
                JobEndPoint::Function(probe) => {
                    found.functions.push(function(probe)?);
                    continue;
                }
            };
            // The program of a relative futex and the file use the same settings.
            let files = Self(Self::FUTEX.0 | Self::FILE.0);
            let is_used = found.kinds.has(kind) || files.has(kind) && found.kinds.has(files);
            if is_used && !Self(Self::YIELD.0 | Self::DEADLINE_YIELD.0 | Self::SLEEP.0).has(kind) {
                return Err(SamplerError::TwoEnds);
            }
            found.kinds.0 |= kind.0;
            match end {
                JobEndPoint::Futex(address) => found.futex = *address,
                JobEndPoint::FutexVariable { program, variable } => {
                    let what = format!("futex={variable}");
                    let program = probe::find(program).map_err(SamplerError::Probe)?;
                    let place = probe::variable(&program, variable);
                    found.futex = place.map_err(|why| SamplerError::JobEnd {
                        what: what.clone(),
                        why,
                    })?;
                    found.is_futex_relative = true;
                    found.file = file(&program, &what)?;
                }
                JobEndPoint::Descriptor(descriptor) => found.descriptor = *descriptor,
                JobEndPoint::File(path) => {
                    found.file = file(path, &format!("read={}", path.display()))?;
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The ends of jobs, with everything that the programs compare.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvedJobEnds {
    pub(crate) kinds: JobEndSet,
    /// An address, or the distance of a variable from the program's code.
    pub(crate) futex: u64,
    pub(crate) is_futex_relative: bool,
    /// Inode and device of a file.
    pub(crate) file: (u64, u64),
    pub(crate) descriptor: u32,
    pub(crate) functions: Vec<ResolvedProbe>,
}

/// The inode and the device of a file, as the kernel numbers them inside.
fn file(path: &Path, what: &str) -> Result<(u64, u64), SamplerError> {
    let metadata = fs::metadata(path).map_err(|error| SamplerError::JobEnd {
        what: what.to_owned(),
        why: format!("{}: {}", path.display(), machine::error_text(error)),
    })?;
    let device = metadata.dev();
    let numbers = (libc::major(device), libc::minor(device));
    Ok((
        metadata.ino(),
        u64::from(numbers.0) << 20 | u64::from(numbers.1),
    ))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::path::PathBuf;

    use super::{JobEndPoint, JobEndSet, ResolvedJobEnds};
    use crate::samples::SamplerError;

    fn resolve(ends: &[JobEndPoint]) -> Result<ResolvedJobEnds, SamplerError> {
        JobEndSet::resolve(ends, |_| unreachable!("no function is named"))
    }

    #[test]
    fn rules_of_system_calls_are_a_set() {
        let found = resolve(&[
            JobEndPoint::Sleep,
            JobEndPoint::DeadlineYield,
            JobEndPoint::Sleep,
        ])
        .unwrap();
        assert_eq!(found.kinds.as_raw(), 4 | 2);
        let found = resolve(&[JobEndPoint::Descriptor(7), JobEndPoint::Futex(64)]).unwrap();
        assert_eq!(
            (found.kinds.as_raw(), found.descriptor, found.futex),
            (8 | 16, 7, 64)
        );
        let two = resolve(&[JobEndPoint::Descriptor(7), JobEndPoint::Descriptor(8)]);
        assert_eq!(two.unwrap_err(), SamplerError::TwoEnds);
    }

    #[test]
    fn files_and_variables_are_found_or_named() {
        let own = env::current_exe().unwrap();
        let found = resolve(&[JobEndPoint::File(own.clone())]).unwrap();
        assert!(found.file.0 > 0);
        let missing = resolve(&[JobEndPoint::File(PathBuf::from("/no/such"))]).unwrap_err();
        assert!(missing.to_string().contains("read=/no/such"), "{missing}");
        let variable = "no_such_variable".to_owned();
        let program = own.to_str().unwrap().to_owned();
        let missing = resolve(&[JobEndPoint::FutexVariable { program, variable }]).unwrap_err();
        assert!(
            missing.to_string().contains("no_such_variable"),
            "{missing}"
        );
    }
}
