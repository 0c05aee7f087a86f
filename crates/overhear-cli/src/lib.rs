// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `overhear`: arguments, verbs, text, terminal screens and exit statuses.
//!
//! ```text
//! arguments (args) --> verb --> overhear-session, overhear-page --> result
//!                                                                     |
//!       exit status (exit) <-- text (text) or JSON <------------------+
//! ```
//!
//! The crate computes nothing itself: what a verb does is in `overhear-session`, the page in
//! `overhear-page`. The terminal screens `top` and `attach` run a monitor of their own. The library
//! exists for the binary, and for tests of the text of a report.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::too_many_lines))]

mod args;
mod attach;
mod directory_link;
mod doctor;
mod exit;
mod format;
mod import;
mod live;
mod naps;
mod options;
mod output;
mod posix;
mod progress;
mod ranges;
mod readiness;
#[cfg(test)]
mod testing;
mod text;
mod top;

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use overhear_event::{printable_lines, Analysis};
use overhear_page::recorded::{write_page as write_page_of, Page, PageRequest};
use overhear_page::serve::{self, Shown};
use overhear_session::conclusion::Conclusion;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::export::Destination;
use overhear_session::notices::Notices;
use overhear_session::report::Report;
use overhear_session::session::Outcome;
use overhear_session::updates::Updates;
use overhear_session::{
    admit, calibrate, check, config, export, fit, junit, metrics, record, repair, replay,
    response_times, signals, trace_log,
};

use args::{
    execution, AdmitArguments, Arguments, CalibrateArguments, CheckArguments, Command,
    CompletionsArguments, DoctorArguments, ExportArguments, ExportFormat, FitRateArguments,
    ImportArguments, JsonTarget, ManArguments, MetricsArguments, RecordArguments, RepairArguments,
    ReportArguments, ResponseTimesArguments, RunArguments, ViewArguments,
};
use exit::{COMPLETE, INCONCLUSIVE, UNAVAILABLE};
use format::json_text;
use output::{print, print_json, print_notice, print_stderr, printed, show, ClaimedFile};
use text::width::Width;

/// Runs the command of this process; returns its exit status.
#[must_use]
pub fn main() -> ExitCode {
    signals::ignore_file_size_signal();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => match args::renamed::message(&error) {
            Some(message) => {
                print_stderr(&format!("overhear: {message}\n"));
                return ExitCode::from(exit::of_error(ErrorKind::Usage));
            }
            None => error.exit(),
        },
    };
    let result = match arguments.command {
        Command::Run(arguments) => run(arguments),
        Command::Record(arguments) => record(&arguments),
        Command::Report(arguments) => report(&arguments),
        Command::Repair(arguments) => repair(&arguments),
        Command::View(arguments) => view(&arguments),
        Command::Metrics(arguments) => metrics(&arguments),
        Command::Check(arguments) => check(&arguments),
        Command::Export(arguments) => export(&arguments),
        Command::Import(arguments) => import(&arguments),
        Command::Admit(arguments) => admit(&arguments),
        Command::FitRate(arguments) => fit_rate(&arguments),
        Command::ResponseTimes(arguments) => response_times(&arguments),
        Command::Naps(arguments) => naps::naps(&arguments),
        Command::Ranges(arguments) => ranges::ranges(&arguments),
        Command::List(arguments) => live::list(arguments),
        Command::Attach(arguments) => live::attach(arguments),
        Command::Top(arguments) => live::top(arguments),
        Command::Posix(arguments) => posix::posix(arguments),
        Command::Enable(arguments) => live::switch(arguments, true),
        Command::Disable(arguments) => live::switch(arguments, false),
        Command::Calibrate(arguments) => calibrate(&arguments),
        Command::Doctor(arguments) => doctor(&arguments),
        Command::Completions(arguments) => completions(&arguments),
        Command::Man(arguments) => man(&arguments),
    };
    result.map_or_else(
        |error| {
            print_stderr(&format!("overhear: {}\n", options::message(&error)));
            ExitCode::from(exit::of_error(error.kind))
        },
        ExitCode::from,
    )
}

/// The text of a report, for lines of this many characters, or of any length.
#[must_use]
pub fn report_text(report: &Report, columns: Option<usize>) -> String {
    text::report::render(report, columns.map_or(Width::UNLIMITED, Width::columns))
}

fn run(arguments: RunArguments) -> Result<u8, SessionError> {
    let json = arguments.json.as_ref().map(JsonTarget::parse);
    let claimed = ClaimedFile::of(json.as_ref())?;
    let run = arguments
        .request()?
        .resolve(|warning| print_stderr(&format!("overhear: {warning}\n")))?;
    if arguments.junit.is_some() && !run.has_constraints {
        let message = "--junit writes verdicts; name constraints by --check or --config";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let shown = (arguments.view).then(|| Shown::start(&arguments.command, run.calibration.clone()));
    let mut shown = shown.transpose()?;
    if let Some(shown) = &shown {
        print_stderr(&format!("view: {}\n", shown.url()));
    }
    let mut update = shown.as_ref().map(|shown| shown.update());
    let mut updates: Vec<&mut dyn Analysis> = Vec::new();
    updates.extend(update.as_mut().map(|update| update as &mut dyn Analysis));
    let mut outcome = run
        .session
        .progress(progress::unless(arguments.quiet))
        .notices(Notices::new(print_notice))
        .stdout_to_stderr(matches!(json, Some(JsonTarget::Stdout)))
        .run(&mut updates)?;
    if let Some(shown) = &mut shown {
        shown.end(&mut outcome);
    }
    if let Some(claimed) = claimed {
        claimed.keep();
    }
    if let (Some(file), Some(check)) = (&arguments.junit, &outcome.report.check) {
        let of = outcome.report.command.join(" ");
        if let Err(error) = junit::write(check, &of, file) {
            print_stderr(&format!("overhear: {error}\n"));
        }
    }
    let status = print_outcome(&outcome, json.as_ref());
    if !arguments.no_page {
        write_page(&mut outcome, arguments.quiet);
    }
    if let Some(shown) = shown.filter(Shown::stays) {
        print_stderr(&format!(
            "the run is shown at {} until you interrupt (Ctrl-C)\n",
            shown.url()
        ));
        shown.stay();
    }
    Ok(status)
}

fn record(arguments: &RecordArguments) -> Result<u8, SessionError> {
    let metrics = metrics::selected(&arguments.metrics, None)?;
    let json = arguments.json.as_ref().map(JsonTarget::parse);
    let claimed = ClaimedFile::of(json.as_ref())?;
    let calibration = calibrate::load_calibration(arguments.calibration.as_deref())?;
    let budget = live::requested_budget(arguments.budget, arguments.config.as_deref())?;
    let mut options = arguments.options(calibration, metrics, budget)?;
    let config = arguments.config.as_deref();
    options.samplers = config::samplers::requested(options.samplers, config)?;
    let mut outcome = record::record(&options)?;
    if let Some(claimed) = claimed {
        claimed.keep();
    }
    let status = print_outcome(&outcome, json.as_ref());
    if !arguments.no_page {
        write_page(&mut outcome, arguments.quiet);
    }
    Ok(status)
}

/// Prints the report and returns the exit status.
fn print_outcome(outcome: &Outcome, json: Option<&JsonTarget>) -> u8 {
    match json {
        Some(target) => {
            if let Err(error) = print_json(&outcome.report, target) {
                // The run cannot be repeated, so its report is printed in any case.
                let table = text::report::render(&outcome.report, Width::of(std::io::stderr()));
                print_stderr(&format!("overhear: {error}\n{table}"));
                return exit::of_program(outcome.exit, Conclusion::Inconclusive);
            }
        }
        None => print_stderr(&text::report::render(
            &outcome.report,
            Width::of(std::io::stderr()),
        )),
    }
    exit::of_outcome(outcome)
}

/// Writes the page. This is the last step: an error of the page changes neither the report nor the
/// exit status.
fn write_page(outcome: &mut Outcome, quiet: bool) {
    match write_page_of(outcome) {
        Ok(Some(page)) if !quiet => print_page_path(&page.file, &page.left_out),
        Ok(_) => {}
        Err(error) => print_stderr(&format!("overhear: {error}\n")),
    }
}

/// Prints the path of a page, and what the page leaves out.
fn print_page_path(file: &Path, left_out: &[String]) {
    print_stderr(&format!("report: {}\n", file.display()));
    print_left_out(left_out);
}

fn print_left_out(messages: &[String]) {
    for message in messages {
        print_stderr(&format!("overhear: {message}\n"));
    }
}

fn calibrate(arguments: &CalibrateArguments) -> Result<u8, SessionError> {
    if arguments.answer {
        return calibrate::echo().map(|()| COMPLETE);
    }
    let file = arguments.output.clone().or_else(calibrate::default_file);
    let Some(file) = file else {
        let message = "the calibration has no default file: neither XDG_CACHE_HOME nor HOME is set; name a file by --output";
        return Err(SessionError::new(ErrorKind::Usage, message));
    };
    let claimed = calibrate::CalibrationFile::claim(&file)?;
    let shows = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let rounds = arguments.rounds;
    let calibration = calibrate::calibrate(rounds, &arguments.sensors, |round| {
        if shows {
            let end = if round == rounds { "\r\x1b[K" } else { "" };
            let line = format!("\r\x1b[Koverhear: round {round} of {rounds}{end}");
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    })?;
    claimed.save(&calibration)?;
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&calibration, &target)?,
        None => show(|width| text::calibration::render(&calibration, width))?,
    }
    print_stderr(&format!("calibration: {}\n", file.display()));
    Ok(COMPLETE)
}

fn view(arguments: &ViewArguments) -> Result<u8, SessionError> {
    let other = arguments.compare.as_deref();
    let range = arguments.shown.range()?;
    let other = other.map(trace_log::RecordingInput::open).transpose()?;
    trace_log::with_recording(&arguments.directory, |directory| {
        let other = other.as_ref().map(trace_log::RecordingInput::folder);
        serve::view(directory, other, range, |url, left_out| {
            print_left_out(left_out);
            // A reader that is gone does not need the address.
            let _ = print(&format!("{url}\n"));
        })
    })?;
    Ok(COMPLETE)
}

fn report(arguments: &ReportArguments) -> Result<u8, SessionError> {
    let other = arguments.compare.as_deref();
    let other = other.map(trace_log::RecordingInput::open).transpose()?;
    trace_log::with_recording(&arguments.directory, |directory| {
        let other = other.as_ref().map(trace_log::RecordingInput::folder);
        report_of(arguments, directory, other)
    })
}

/// Reports the recording in `directory`, and compares it with another one.
fn report_of(
    arguments: &ReportArguments,
    directory: &Path,
    other: Option<&Path>,
) -> Result<u8, SessionError> {
    let range = arguments.shown.range()?;
    if arguments.shown.is_named() && arguments.html.is_none() {
        let message = "--from and --to choose what the page shows; name its file by --html";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    if let Some(message) = repair::advice(directory)? {
        print_stderr(&format!("overhear: {message}\n"));
    }
    let updates = Updates::load(&arguments.updates)?;
    let calibration = match &arguments.calibration {
        Some(file) => calibrate::load_calibration(Some(file))?,
        None => None,
    };
    let options = replay::ReplayOptions {
        updates,
        calibration: calibration.clone(),
        compensate: arguments.compensate,
    };
    let mut report = replay::read_report_with(directory, options)?;
    if directory != arguments.directory {
        // The log, and not the temporary folder with its events.
        report.trace.directory = Some(arguments.directory.display().to_string());
    }
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => show(|width| text::report::render(&report, width))?,
    }
    let status = exit::of_conclusion(report.conclusion());
    if let Some(html) = &arguments.html {
        report.take_long_metrics();
        let mut compared = other.map(replay::read_report).transpose()?;
        compared.as_mut().map(Report::take_long_metrics);
        if let (Some(compared), Some(named)) = (&mut compared, &arguments.compare) {
            compared.trace.directory = Some(named.display().to_string());
        }
        let compared = other.zip(compared.as_ref());
        let mut requests = vec![PageRequest {
            calibration,
            range,
            ..PageRequest::of(directory, &report)
        }];
        requests.extend(compared.map(|(dir, report)| PageRequest {
            range,
            ..PageRequest::of(dir, report)
        }));
        let page = Page::of(&requests)?;
        page.write_to(html)?;
        print_page_path(html, &page.left_out());
    }
    Ok(status)
}

fn repair(arguments: &RepairArguments) -> Result<u8, SessionError> {
    if trace_log::is_log(&arguments.directory) {
        let file = arguments.directory.display();
        let message = format!(
            "{file} is a trace log, which needs no repair: every command reads its whole frames"
        );
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let repaired = repair::repair(&arguments.directory)?;
    for message in &repaired.damage {
        print_stderr(&format!("overhear: {message}\n"));
    }
    print(&format!("{}\n", repaired.message))?;
    Ok(exit::of_conclusion(repaired.conclusion()))
}

fn export(arguments: &ExportArguments) -> Result<u8, SessionError> {
    let format = match (arguments.to, &arguments.sensor) {
        (ExportFormat::Csv, sensor) => export::Format::Csv {
            sensor: sensor.clone(),
        },
        (ExportFormat::Perfetto, None) => export::Format::Perfetto,
        (ExportFormat::Perfetto, Some(_)) => {
            let message =
                "--sensor chooses columns of csv; an export to Perfetto has the complete recording";
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
    };
    let destination = match arguments.output == Path::new("-") {
        true => Destination::Output(Box::new(std::io::stdout().lock()), "standard output"),
        false => Destination::File(&arguments.output),
    };
    let name = destination.to_string();
    let written = trace_log::with_recording(&arguments.directory, |directory| {
        export::export(directory, &format, destination, arguments.compensate)
    })?;
    print_stderr(&export::message(&written, &name));
    Ok(exit::of_conclusion(written.conclusion()))
}

fn admit(arguments: &AdmitArguments) -> Result<u8, SessionError> {
    let report = admit::admit(&arguments.config, execution(arguments.no_exec))?;
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => show(|width| text::admission::render(&report, width))?,
    }
    Ok(report.obstacle().map_or(COMPLETE, exit::of_error))
}

fn fit_rate(arguments: &FitRateArguments) -> Result<u8, SessionError> {
    let report = trace_log::with_recording(&arguments.directory, |directory| {
        fit::fit(directory, &arguments.sensor, arguments.period)
    })?;
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => show(|width| text::fit::render(&report, width))?,
    }
    Ok(if report.is_complete() {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

fn metrics(arguments: &MetricsArguments) -> Result<u8, SessionError> {
    let selected = metrics::selected(&arguments.metrics, arguments.config.as_deref())?;
    let Some(directory) = &arguments.directory else {
        // Lines are not broken, because a program reads them.
        print(&printable_lines(&metrics::to_dot(&selected)?))?;
        return Ok(COMPLETE);
    };
    let report = trace_log::with_recording(directory, |directory| {
        metrics::metrics(
            directory,
            selected,
            arguments.element_cost,
            arguments.compensate,
            arguments.measurements,
        )
    })?;
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let written = text::metrics::write(&report, Width::of(std::io::stdout()), &mut out);
            printed(written.and_then(|()| out.flush()))?;
        }
    }
    Ok(if report.is_complete() {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

fn check(arguments: &CheckArguments) -> Result<u8, SessionError> {
    let Some(directory) = &arguments.directory else {
        return run(RunArguments::to_check(arguments));
    };
    let report = trace_log::with_recording(directory, |directory| {
        check::check(directory, &arguments.config)
    })?;
    if let Some(junit) = &arguments.junit {
        let of = directory.display().to_string();
        junit::write(&report, &of, junit)?;
    }
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => show(|width| text::verdicts::render(&report, width))?,
    }
    Ok(exit::of_conclusion(report.conclusion()))
}

fn response_times(arguments: &ResponseTimesArguments) -> Result<u8, SessionError> {
    let (cost, compensate) = (arguments.element_cost, arguments.compensate);
    let of = |directory: Option<&Path>| {
        response_times::response_times(&arguments.config, directory, cost, compensate)
    };
    let report = match &arguments.directory {
        Some(directory) => trace_log::with_recording(directory, |directory| of(Some(directory))),
        None => of(None),
    }?;
    match arguments.json.as_ref().map(JsonTarget::parse) {
        Some(target) => print_json(&report, &target)?,
        None => show(|width| text::response_times::render(&report, width))?,
    }
    Ok(exit::of_conclusion(report.conclusion()))
}

fn import(arguments: &ImportArguments) -> Result<u8, SessionError> {
    let (Some(out), false) = (&arguments.out, arguments.send) else {
        let pipe = rustix::stdio::stdout().try_clone_to_owned();
        // An error means that the receiver has ended.
        let _ = pipe.and_then(|pipe| {
            overhear_trace::send_foreign_trace(&arguments.foreign, std::fs::File::from(pipe))
        });
        return Ok(COMPLETE);
    };
    if let Some(imported) = trace_log::import_log(&arguments.foreign, out)? {
        print_stderr(&import::render_log(&imported, out));
        return Ok(import::log_status(&imported));
    }
    if let Some(message) = import::several(&arguments.foreign) {
        print_stderr(&format!("overhear: {message}\n"));
    }
    let imported = import::import(&arguments.foreign, out, arguments.timeout)?;
    print_stderr(&import::render(&imported, out));
    Ok(import::status(&imported))
}

fn doctor(arguments: &DoctorArguments) -> Result<u8, SessionError> {
    let findings = match arguments.counters {
        true => doctor::examine_counters(),
        false => doctor::examine(),
    };
    if arguments.json {
        print(&json_text(&findings))?;
    } else {
        show(|width| text::doctor::render(&findings, width))?;
    }
    Ok(if doctor::is_usable(&findings) {
        COMPLETE
    } else {
        UNAVAILABLE
    })
}

fn completions(arguments: &CompletionsArguments) -> Result<u8, SessionError> {
    let mut script = Vec::new();
    let mut command = Arguments::command();
    clap_complete::generate(arguments.shell, &mut command, "overhear", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(COMPLETE)
}

fn man(arguments: &ManArguments) -> Result<u8, SessionError> {
    let command = Arguments::command();
    let fail = |error| {
        SessionError::new(
            ErrorKind::Usage,
            format!("cannot write the manual: {error}"),
        )
    };
    match &arguments.out {
        Some(folder) => clap_mangen::generate_to(command, folder).map_err(fail)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(fail)?;
            print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(COMPLETE)
}
