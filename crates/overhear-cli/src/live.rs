// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs that connect to a running directory.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;

use crate::attach::{self, Attachment, Csv, Json, Layout, Summary, Text};
use crate::exit::{COMPLETE, INCONCLUSIVE};
use crate::format::{colours_wanted, Format};
use crate::text::width::Width;
use crate::{text, top};
use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::Nanos;
use overhear_session::budget::{BudgetSettings, Overhead};
use overhear_session::config::budget;
use overhear_session::connect;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::listing::{self, Listing};
use overhear_session::not_connected::NotConnectedListing;
use overhear_session::posix;
use overhear_session::sampling::DataSourceListing;

use crate::args::{
    execution, AttachArguments, DirectoryArguments, ListArguments, Start, SwitchArguments,
    TopArguments,
};
use crate::output::{print, print_stderr};

fn query(names: &str, directory: &DirectoryArguments) -> Result<Query, SessionError> {
    connect::query(names, directory.type_id.as_deref())
}

pub(crate) fn list(arguments: ListArguments) -> Result<u8, SessionError> {
    if arguments.not_connected {
        return list_not_connected(arguments);
    }
    if arguments.data_sources {
        let listing = DataSourceListing::of_machine();
        let width = Width::of(io::stdout());
        print(&text::data_sources::render(
            &listing,
            arguments.form.format(),
            width,
        ))?;
        return Ok(COMPLETE);
    }
    let query = query(&arguments.names, &arguments.directory)?;
    let socket = connect::socket(arguments.directory.socket)?;
    let mut connection = connect::connect(&socket)?;
    let records = connection.list(&query)?;
    let listing = Listing {
        overhear_version: env!("CARGO_PKG_VERSION").to_string(),
        socket: socket.display().to_string(),
        sensors: records.iter().map(listing::listed_of).collect(),
    };
    let width = Width::of(io::stdout());
    if let Some(text) = text::listing::render(&listing, arguments.form.format(), width) {
        print(&text)?;
    }
    if arguments.form.format() == Format::Text {
        note_trace_streams(&socket);
    }
    if !listing.sensors.is_empty() {
        return Ok(COMPLETE);
    }
    Err(nothing(&mut connection, &query, &listing.socket)?)
}

/// Names the verb that lists trace streams, if there are any: they are no sensors.
fn note_trace_streams(socket: &Path) {
    let streams = posix::list(socket).map_or(0, |listing| listing.streams.len());
    let streams = match streams {
        0 => return,
        1 => "1 POSIX trace stream".to_string(),
        more => format!("{more} POSIX trace streams"),
    };
    print_stderr(&format!("overhear: and {streams} (`overhear posix`)\n"));
}

/// The sensors that are not connected.
fn list_not_connected(arguments: ListArguments) -> Result<u8, SessionError> {
    let socket = connect::socket(arguments.directory.socket)?;
    let sensors = connect::connect(&socket)?.not_connected()?;
    let listing = NotConnectedListing {
        overhear_version: env!("CARGO_PKG_VERSION").to_string(),
        socket: socket.display().to_string(),
        sensors,
    };
    let width = Width::of(io::stdout());
    match text::not_connected::render(&listing, arguments.form.format(), width) {
        Some(text) => print(&text)?,
        None => {
            print_stderr("overhear: this directory has connected every sensor that registered\n")
        }
    }
    Ok(COMPLETE)
}

/// Connects to a directory whose sensors this user may read.
///
/// # Errors
/// [`SessionError`] if it has sensors, and this user may read none of them: others that appear
/// later are probably not readable either.
fn connect(socket: &Path) -> Result<MonitorConnection, SessionError> {
    let mut connection = connect::connect(socket)?;
    let all = Query::all();
    let known = connection.status()?.sensors;
    if known > 0 && connection.list(&all)?.is_empty() {
        let socket = socket.display().to_string();
        return Err(nothing(&mut connection, &all, &socket)?);
    }
    Ok(connection)
}

/// The error of a verb without matching sensors. It names the reason, which an empty table would
/// not.
fn nothing(
    connection: &mut MonitorConnection,
    query: &Query,
    socket: &str,
) -> Result<SessionError, SessionError> {
    let readable = connection.list(&Query::all())?;
    let all = connection.status()?.sensors;
    let (kind, message) = match (readable.len(), all) {
        (0, 0) => (
            ErrorKind::Incomplete,
            format!(
                "the directory at {socket} has no sensor; programs register theirs when they \
                 start, and must find this directory"
            ),
        ),
        (0, all) => (
            ErrorKind::Unavailable,
            format!(
                "the directory at {socket} permits you none of its {}; those of other users need \
                 a rule in its directory.toml",
                sensors(all)
            ),
        ),
        (1, _) => (
            ErrorKind::Incomplete,
            format!("no sensor matches `{query}`; the directory has one other (`overhear list`)"),
        ),
        (more, _) => (
            ErrorKind::Incomplete,
            format!(
                "no sensor matches `{query}`; the directory has {more} others (`overhear list`)"
            ),
        ),
    };
    Ok(SessionError::new(kind, message))
}

fn sensors(number: u64) -> String {
    match number {
        1 => "1 sensor".to_string(),
        more => format!("{more} sensors"),
    }
}

pub(crate) fn attach(arguments: AttachArguments) -> Result<u8, SessionError> {
    let query = query(&arguments.names, &arguments.directory)?;
    if arguments.fields.is_some() && arguments.form.format() != Format::Csv {
        let message = "--fields chooses the columns of CSV; give --format csv as well";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let budget = requested_budget(arguments.budget, arguments.config.as_deref())?;
    let socket = connect::socket(arguments.directory.socket)?;
    let options = attach::AttachOptions {
        query,
        begin: match arguments.start {
            Start::Now => Begin::Now,
            Start::Oldest => Begin::Buffer,
        },
        count: arguments.count,
        duration: arguments.duration,
        until_ended: arguments.until_ended,
        disable_unused: arguments.disable_unused,
        budget,
        limits: arguments.disk.limits(),
        out: arguments.out,
        command: vec!["overhear".into(), "attach".into(), arguments.names.clone()],
        traces: attach::TraceOptions::Matching,
    };
    let attachment = Attachment::begin(connect(&socket)?, &socket, &options)?;
    if !arguments.quiet {
        let sensors = match (attachment.sensors(), attachment.trace_streams()) {
            (0, 0) => "no sensor yet; those that appear are attached".to_string(),
            (0, 1) => "1 trace stream, and those that appear".to_string(),
            (0, streams) => format!("{streams} trace streams, and those that appear"),
            (some, _) => {
                let off = match attachment.switched_off() {
                    0 => String::new(),
                    off => format!(", {off} of them switched off"),
                };
                format!("{}{off}, and those that appear", sensors(some as u64))
            }
        };
        print_stderr(&format!(
            "overhear: attached to `{}`: {sensors}\n",
            options.query
        ));
    }
    let stdout = io::stdout();
    let layout: Box<dyn Layout> = match arguments.form.format() {
        Format::Text => Box::new(Text::new(stdout.is_terminal() && colours_wanted())),
        Format::Json => Box::new(Json::default()),
        Format::Csv => Box::new(Csv::new(arguments.fields)),
    };
    let print_note = |message: &str| print_stderr(&format!("overhear: {message}\n"));
    let summary = attachment.run(layout, stdout.as_fd(), print_note)?;
    if let (Some(budget), false) = (&summary.budget, arguments.quiet) {
        print_stderr(&text::budget::render(budget, Width::of(io::stderr())));
    }
    if !arguments.quiet || !summary.complete {
        print_stderr(&format!(
            "overhear: {}\n",
            end_message(&summary, &arguments.names)
        ));
    }
    Ok(if summary.complete {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

/// The budget of a verb whose `--config` is for the budget alone.
pub(crate) fn requested_budget(
    target: Option<Overhead>,
    config: Option<&Path>,
) -> Result<Option<BudgetSettings>, SessionError> {
    match (budget::requested(target, config)?, config) {
        (None, Some(config)) => {
            let message = format!(
                "{} has no [budget]; add one with a `target`, or give --budget as well",
                config.display()
            );
            Err(SessionError::new(ErrorKind::Usage, message))
        }
        (requested, _) => Ok(requested),
    }
}

fn end_message(summary: &Summary, names: &str) -> String {
    if summary.sensors.is_empty() {
        return format!("no sensor matched `{names}`");
    }
    let elements = match summary.elements {
        1 => "1 element".to_string(),
        more => format!("{more} elements"),
    };
    let sensors = sensors(summary.sensors.len() as u64);
    let duration = Nanos::from_ns(summary.duration_ns);
    if summary.ended_by == "closed" {
        let until = match (summary.missed, summary.gaps) {
            (0, 0) => "nothing missed until then".to_string(),
            (0, _) => "INCOMPLETE: how much is missing is not known".to_string(),
            (missed, _) => format!("INCOMPLETE: {missed} elements missed"),
        };
        return format!(
            "the reader closed the output after {elements} of {sensors} in {duration}; {until}"
        );
    }
    let completeness = match (summary.missed, summary.complete) {
        _ if summary.unwritten > 0 => format!(
            "INCOMPLETE: {} more were not written, because the reader of the output paused",
            summary.unwritten
        ),
        (0, true) => "complete: nothing missed".to_string(),
        (0, false) => "INCOMPLETE: how much is missing is not known".to_string(),
        (1, _) => "INCOMPLETE: 1 element missed".to_string(),
        (missed, _) => format!("INCOMPLETE: {missed} elements missed"),
    };
    format!("{elements} of {sensors} in {duration}; {completeness}")
}

pub(crate) fn top(arguments: TopArguments) -> Result<u8, SessionError> {
    let names = arguments.names.as_deref().unwrap_or("*");
    let query = query(names, &arguments.directory)?;
    if let Some(config) = &arguments.config {
        execution(arguments.no_exec).check(config)?;
    }
    let format = arguments.format();
    let wants_sensors = arguments.wants_sensors();
    let options = top::TopOptions {
        socket: match connect::socket(arguments.directory.socket) {
            Err(_) if !wants_sensors => None,
            found => Some(found?),
        },
        wants_sensors,
        query,
        interval: arguments.interval,
        window: arguments.window.max(arguments.interval),
        pid: arguments.pid,
        budget: budget::requested(arguments.budget, arguments.config.as_deref())?,
        config: arguments.config,
    };
    if let (Some(socket), true) = (&options.socket, wants_sensors) {
        drop(connect(socket)?);
    }
    if !arguments.once {
        if !io::stdout().is_terminal() {
            let message =
                "standard output is no terminal; `overhear top --once` prints one snapshot";
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
        let snapshot = top::watch(&options, colours_wanted())?;
        if snapshot.missed > 0 {
            print_stderr(&format!("overhear: {} elements missed\n", snapshot.missed));
        }
        return Ok(COMPLETE);
    }
    let options = top::TopOptions {
        window: arguments.window,
        ..options
    };
    let snapshot = top::once(&options)?;
    print(&top::render(&snapshot, format, Width::of(io::stdout())))?;
    for note in &snapshot.notes {
        print_stderr(&format!("overhear: {note}\n"));
    }
    let is_lacking = wants_sensors && snapshot.sensors.is_empty();
    if is_lacking {
        print_stderr(&format!(
            "overhear: no sensor matches `{}`\n",
            options.query
        ));
    }
    if let (Some(pid), true) = (options.pid, snapshot.threads.is_empty()) {
        print_stderr(&format!(
            "overhear: no thread of process {pid} came to a CPU or left one in this time\n"
        ));
    }
    Ok(if snapshot.complete && !is_lacking {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

/// Switches sensors on or off.
pub(crate) fn switch(arguments: SwitchArguments, on: bool) -> Result<u8, SessionError> {
    let query = query(&arguments.names, &arguments.directory)?;
    let socket = connect::socket(arguments.directory.socket)?;
    let mut connection = connect::connect(&socket)?;
    let matching = connection.list(&query)?.len();
    if matching == 0 {
        return Err(nothing(
            &mut connection,
            &query,
            &socket.display().to_string(),
        )?);
    }
    let word = if on { "enabled" } else { "disabled" };
    let changed = connection.set_enabled(&query, on)?;
    let matching = sensors(matching as u64);
    print(&format!("{changed} of {matching} {word}\n"))?;
    Ok(COMPLETE)
}
