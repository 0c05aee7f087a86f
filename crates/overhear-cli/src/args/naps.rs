// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `overhear naps`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use overhear_event::Nanos;
use overhear_session::naps::{MachineRequest, NapsBackend, NapsRequest};

use super::{positive, JsonTarget};

#[derive(Debug, Args)]
pub(crate) struct NapsArguments {
    /// Least length of a non-accessed period: 500ms, 10s, 2m; at least 10ms.
    #[arg(long, value_name = "LENGTH", value_parser = positive, default_value = "10s")]
    pub(crate) threshold: Nanos,
    /// Budget: cost of the observation as a share of the program's CPU time.
    #[arg(long, value_name = "PER CENT", value_parser = share, default_value = "5%")]
    pub(crate) budget: f64,
    /// Smallest allocation that is watched, in bytes, or with k or M. It gets pages of its own.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16k")]
    pub(crate) min_size: u64,
    /// How accesses are found. If a named one does not work, no NAP is found.
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    pub(crate) backend: BackendName,
    /// Number of allocations and of sites in the table.
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub(crate) rows: usize,
    /// The preload library, instead of that of this installation.
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
    /// Estimates the idle memory of the whole machine by DAMON, as root, without a program.
    #[arg(long, conflicts_with = "command")]
    pub(crate) machine: bool,
    /// Length of the observation with --machine; twice the threshold by default.
    #[arg(long, value_name = "LENGTH", value_parser = positive, requires = "machine")]
    pub(crate) duration: Option<Nanos>,
    /// Prints the report as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// Writes the report as a page to this file. A link to a file is not followed.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(
        last = true,
        required_unless_present = "machine",
        value_name = "PROGRAM"
    )]
    pub(crate) command: Vec<OsString>,
}

/// How accesses are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// The best one that works.
    Auto,
    /// Pages are protected in place by userfaultfd, which reports accesses: as move, and cheaper;
    /// needs Linux 7.3.
    Rwp,
    /// Pages move aside, userfaultfd reports accesses: exact, needs root or a permission.
    Move,
    /// Accessed bits of page tables: without a permission, coarser times, no place of an access.
    Accessed,
}

impl NapsArguments {
    pub(crate) fn request(&self) -> NapsRequest {
        let json = self.json.as_ref().map(JsonTarget::parse);
        NapsRequest {
            command: self.command.clone(),
            threshold: self.threshold,
            budget: self.budget,
            min_size_bytes: self.min_size,
            backend: match self.backend {
                BackendName::Auto => NapsBackend::Auto,
                BackendName::Rwp => NapsBackend::Rwp,
                BackendName::Move => NapsBackend::Move,
                BackendName::Accessed => NapsBackend::Accessed,
            },
            library: self.library.clone(),
            stdout_to_stderr: matches!(json, Some(JsonTarget::Stdout)),
        }
    }

    pub(crate) fn machine_request(&self) -> MachineRequest {
        MachineRequest {
            threshold: self.threshold,
            duration: self.duration.unwrap_or(self.threshold.plus(self.threshold)),
        }
    }
}

/// A share in per cent: `5%` or `5`.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let share: f64 = number
        .parse()
        .map_err(|_| "write per cent, for example 5%".to_owned())?;
    if share > 0.0 && share <= 1000.0 {
        return Ok(share / 100.0);
    }
    Err("it must be more than 0% and at most 1000%".to_owned())
}

/// A number of bytes: `16384`, `16k`, `1M`.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let size = number.parse::<u64>().ok();
    match size.and_then(|size| size.checked_mul(unit)) {
        Some(size) if size >= 4096 => Ok(size),
        Some(_) => Err("it must be at least 4096 bytes, a page".to_owned()),
        None => Err("write bytes, for example 16k".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{share, size};

    #[test]
    fn budget_is_a_share() {
        assert_eq!(share("5%"), Ok(0.05));
        assert_eq!(share("0.5"), Ok(0.005));
        for bad in ["0%", "-1%", "1001%", "much", "", "NaN", "inf"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn size_has_a_unit() {
        assert_eq!(size("16k"), Ok(16_384));
        assert_eq!(size("2M"), Ok(2 << 20));
        assert_eq!(size("4096"), Ok(4096));
        for bad in ["4095", "k", "", "-1", "99999999999999999999M"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
