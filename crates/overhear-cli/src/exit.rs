// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses of errors, of conclusions and of ended programs.

use overhear_session::conclusion::{Conclusion, Exit};
use overhear_session::error::ErrorKind;
use overhear_session::session::Outcome;

/// Held and complete.
pub(crate) const COMPLETE: u8 = 0;
/// A constraint is violated.
pub(crate) const VIOLATED: u8 = 1;
/// The command line, or a file that it names, is invalid.
pub(crate) const USAGE: u8 = 2;
/// Inconclusive: elements were missed, so the results may be incomplete.
pub(crate) const INCONCLUSIVE: u8 = 3;
/// A guarantee was demanded and cannot be given.
pub(crate) const REFUSED: u8 = 4;
/// A permission or a feature of the kernel is missing.
pub(crate) const UNAVAILABLE: u8 = 5;
/// The program was found but cannot be run.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// The program was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The status of an error.
pub(crate) const fn of_error(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Usage => USAGE,
        ErrorKind::Refused => REFUSED,
        ErrorKind::Unavailable => UNAVAILABLE,
        ErrorKind::Incomplete => INCONCLUSIVE,
        ErrorKind::NotRunnable => NOT_RUNNABLE,
        ErrorKind::NotFound => NOT_FOUND,
    }
}

/// The status of a result.
pub(crate) const fn of_conclusion(conclusion: Conclusion) -> u8 {
    match conclusion {
        Conclusion::Complete => COMPLETE,
        Conclusion::Violated => VIOLATED,
        Conclusion::Inconclusive => INCONCLUSIVE,
    }
}

/// The status of a session: the program's own, as shells pass it on; if that is zero, the status of
/// the report.
pub(crate) fn of_outcome(outcome: &Outcome) -> u8 {
    of_program(outcome.exit, outcome.report.conclusion())
}

/// The status of a program and of the conclusion about it.
pub(crate) fn of_program(exit: Exit, conclusion: Conclusion) -> u8 {
    match exit {
        Exit::Code(0) => of_conclusion(conclusion),
        Exit::Code(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}

#[cfg(test)]
mod tests {
    use overhear_session::conclusion::{Conclusion, Exit};

    use super::of_program;

    #[test]
    fn own_status_of_the_program_wins() {
        let (complete, inconclusive) = (Conclusion::Complete, Conclusion::Inconclusive);
        assert_eq!(of_program(Exit::Code(0), complete), 0);
        assert_eq!(of_program(Exit::Code(0), inconclusive), 3);
        assert_eq!(of_program(Exit::Code(0), Conclusion::Violated), 1);
        assert_eq!(of_program(Exit::Code(7), inconclusive), 7);
        assert_eq!(of_program(Exit::Signal(9), complete), 137);
    }
}
