// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of unused memory as a file.

use std::path::Path;

use overhear_session::error::SessionError;
use overhear_session::naps::{MachineReport, NapsReport};
use overhear_session::output;

use crate::html::naps;

/// Writes the page of a program's unused memory to a file.
///
/// # Errors
/// [`SessionError`] if the file cannot be written.
pub fn write_program(file: &Path, report: &NapsReport) -> Result<(), SessionError> {
    let program = report.command.first().map_or("", String::as_str);
    output::write(file, |out| naps::write(out, report, program))
}

/// Writes the page of the machine's estimated idle memory to a file.
///
/// # Errors
/// [`SessionError`] if the file cannot be written.
pub fn write_machine(file: &Path, report: &MachineReport) -> Result<(), SessionError> {
    output::write(file, |out| naps::write(out, report, ""))
}
