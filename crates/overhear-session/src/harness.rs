// SPDX-License-Identifier: MIT OR Apache-2.0
//! For tests: a program or a recording must keep its constraints. An inconclusive verdict fails as
//! well, because the test may have missed the fault.
//!
//! ```no_run
//! use overhear_session::harness::assert_held;
//!
//! // In a test:
//! assert_held(&["./server", "--once"], "overhear.toml".as_ref());
//! ```

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use crate::check::{self, CheckReport};
use crate::conclusion::{Conclusion, Exit};
use crate::config::constraints;
use crate::error::SessionError;
use crate::format::printable;
use crate::session::{KernelBackend, Session};

/// The reason that a program or a recording has not kept its constraints.
#[derive(Debug)]
pub enum NotHeld {
    /// It could not be run or judged.
    Failed(SessionError),
    /// The program did not end with status 0.
    Ended(Exit),
    /// A constraint is violated, or inconclusive.
    Verdicts(CheckReport),
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Ended(Exit::Code(code)) => write!(f, "the program ended with status {code}"),
            Self::Ended(Exit::Signal(signal)) => {
                write!(f, "the program was ended by signal {signal}")
            }
            Self::Verdicts(report) => verdicts(f, report),
        }
    }
}

/// A line for each constraint that does not hold.
fn verdicts(f: &mut fmt::Formatter<'_>, report: &CheckReport) -> fmt::Result {
    let failed = report.constraints.iter().filter(|it| it.verdict != "held");
    for (index, constraint) in failed.enumerate() {
        let line_break = if index == 0 { "" } else { "\n" };
        let (name, verdict) = (printable(&constraint.name), &constraint.verdict);
        write!(f, "{line_break}{name}: {verdict}")?;
        let first = constraint.first.iter().map(|first| &first.message);
        for reason in first.chain(&constraint.reasons) {
            write!(f, "; {}", printable(reason))?;
        }
    }
    Ok(())
}

impl std::error::Error for NotHeld {}

/// Runs a program and judges it by the constraints in the file `config`, with this source of kernel
/// events. Returns the verdicts if all held.
///
/// # Errors
/// [`NotHeld`] if a constraint did not hold, or the program could not be judged.
pub fn run(command: &[&str], config: &Path, kernel: KernelBackend) -> Result<CheckReport, NotHeld> {
    let constraints = constraints::read(config).map_err(NotHeld::Failed)?;
    let command = command.iter().map(OsString::from).collect();
    let outcome = Session::builder(command)
        .constraints(constraints)
        .kernel(kernel)
        .run(&mut [])
        .map_err(NotHeld::Failed)?;
    if outcome.exit != Exit::Code(0) {
        return Err(NotHeld::Ended(outcome.exit));
    }
    let check = outcome.report.check;
    judge(check.expect("a session with constraints has verdicts"))
}

/// Judges the recording `dir` by the constraints in the file `config`. Returns the verdicts if all
/// held.
///
/// # Errors
/// [`NotHeld`] if a constraint did not hold, or the recording could not be judged.
pub fn check(dir: &Path, config: &Path) -> Result<CheckReport, NotHeld> {
    judge(check::check(dir, config).map_err(NotHeld::Failed)?)
}

fn judge(report: CheckReport) -> Result<CheckReport, NotHeld> {
    match report.conclusion() {
        Conclusion::Complete => Ok(report),
        _ => Err(NotHeld::Verdicts(report)),
    }
}

/// [`run()`] with the kernel events that this user may record.
///
/// # Panics
/// Unless every constraint held.
#[track_caller]
pub fn assert_held(command: &[&str], config: &Path) {
    if let Err(error) = run(command, config, KernelBackend::Auto) {
        panic!("{error}");
    }
}

/// [`check()`].
///
/// # Panics
/// Unless every constraint held.
#[track_caller]
pub fn assert_recording_held(dir: &Path, config: &Path) {
    if let Err(error) = check(dir, config) {
        panic!("{error}");
    }
}
