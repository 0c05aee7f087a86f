// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear naps`: the verb, from arguments to text, JSON or a page.

use overhear_page::naps::{write_machine, write_program};
use overhear_session::conclusion::Conclusion;
use overhear_session::error::SessionError;
use overhear_session::naps::{self, NapsReport};

use crate::args::{JsonTarget, NapsArguments};
use crate::output::{print, print_json, print_stderr, ClaimedFile};
use crate::text::width::Width;
use crate::{exit, text};

pub(crate) fn naps(arguments: &NapsArguments) -> Result<u8, SessionError> {
    let json = arguments.json.as_ref().map(JsonTarget::parse);
    let html = arguments.html.clone().map(JsonTarget::File);
    let claimed = [
        ClaimedFile::of(json.as_ref())?,
        ClaimedFile::of(html.as_ref())?,
    ];
    let keep = || claimed.into_iter().flatten().for_each(ClaimedFile::keep);
    if arguments.machine {
        let report = naps::machine(&arguments.machine_request())?;
        keep();
        if let Some(file) = &arguments.html {
            write_machine(file, &report)?;
            print_stderr(&format!("report: {}\n", file.display()));
        }
        match &json {
            Some(target) => print_json(&report, target)?,
            None => print(&text::naps::render_machine(&report))?,
        }
        return Ok(exit::COMPLETE);
    }
    let report = naps::run(&arguments.request())?;
    keep();
    let table = || text::naps::render(&report, arguments.rows, Width::of(std::io::stderr()));
    let written = match &json {
        Some(target) => print_json(&report, target),
        None => {
            print_stderr(&table());
            Ok(())
        }
    };
    let page = arguments.html.as_ref().map(|file| {
        write_program(file, &report)?;
        print_stderr(&format!("report: {}\n", file.display()));
        Ok(())
    });
    if let Err(error) = written.and(page.unwrap_or(Ok(()))) {
        // The run cannot be repeated, so its report is printed in any case.
        print_stderr(&format!("overhear: {error}\n"));
        if json.is_some() {
            print_stderr(&table());
        }
        return Ok(exit::of_program(report.exit, Conclusion::Inconclusive));
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
