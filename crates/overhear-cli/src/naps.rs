// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear naps`: the verb, from arguments to text or JSON.

use overhear_session::conclusion::Conclusion;
use overhear_session::error::SessionError;
use overhear_session::naps::{self, NapsReport};

use crate::args::{JsonTarget, NapsArguments};
use crate::output::{print, print_json, print_stderr, ClaimedFile};
use crate::text::width::Width;
use crate::{exit, text};

pub(crate) fn naps(arguments: &NapsArguments) -> Result<u8, SessionError> {
    let json = arguments.json.as_ref().map(JsonTarget::parse);
    let claimed = ClaimedFile::of(json.as_ref())?;
    if arguments.machine {
        let report = naps::machine(&arguments.machine_request())?;
        if let Some(claimed) = claimed {
            claimed.keep();
        }
        match &json {
            Some(target) => print_json(&report, target)?,
            None => print(&text::naps::render_machine(&report))?,
        }
        return Ok(exit::COMPLETE);
    }
    let report = naps::run(&arguments.request())?;
    if let Some(claimed) = claimed {
        claimed.keep();
    }
    let table = || text::naps::render(&report, arguments.rows, Width::of(std::io::stderr()));
    match &json {
        Some(target) => {
            if let Err(error) = print_json(&report, target) {
                // The run cannot be repeated, so its report is printed in any case.
                print_stderr(&format!("overhear: {error}\n{}", table()));
                return Ok(exit::of_program(report.exit, Conclusion::Inconclusive));
            }
        }
        None => print_stderr(&table()),
    }
    Ok(exit::of_program(report.exit, conclusion(&report)))
}

/// Inconclusive if a process was not observed to its end.
fn conclusion(report: &NapsReport) -> Conclusion {
    let observed = |process: &overhear_session::naps::ProcessReport| {
        process.complete && process.backend != "none" && process.stopped.is_empty()
    };
    match report.processes.iter().all(observed) {
        true => Conclusion::Complete,
        false => Conclusion::Inconclusive,
    }
}
