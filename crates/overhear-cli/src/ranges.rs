// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verb `ranges`.

use overhear_session::error::SessionError;
use overhear_session::ranges;

use crate::args::ranges::{DiffArguments, RangesArguments, RangesCommand};
use crate::args::JsonTarget;
use crate::output::{print_json, print_stderr, show, ClaimedFile};
use crate::text::width::Width;
use crate::{exit, text};

pub(crate) fn ranges(arguments: &RangesArguments) -> Result<u8, SessionError> {
    if let Some(RangesCommand::Diff(arguments)) = &arguments.verb {
        return diff(arguments);
    }
    let json = arguments.json.as_ref().map(JsonTarget::parse);
    let file = ClaimedFile::of(json.as_ref())?;
    let to_stderr = matches!(json, Some(JsonTarget::Stdout));
    let report = ranges::run(
        &arguments.command,
        arguments.budget,
        arguments.libraries,
        to_stderr,
    )?;
    let width = Width::of(std::io::stderr());
    match &json {
        Some(target) => {
            if let Err(error) = print_json(&report, target) {
                // The run cannot be repeated, so its report is printed in any case.
                print_stderr(&text::ranges::render(&report, arguments.all, width));
                return Err(error);
            }
        }
        None => print_stderr(&text::ranges::render(&report, arguments.all, width)),
    }
    if let Some(file) = file {
        file.keep();
    }
    Ok(exit::of_program(report.exit, report.conclusion()))
}

fn diff(arguments: &DiffArguments) -> Result<u8, SessionError> {
    let first = ranges::read_report(&arguments.first)?;
    let second = ranges::read_report(&arguments.second)?;
    let difference = ranges::diff(&first, &second);
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&difference, &target)?,
        None => show(|width| text::ranges::render_difference(&difference, width))?,
    }
    Ok(exit::COMPLETE)
}
