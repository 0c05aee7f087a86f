// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verb `posix`: lists the active POSIX trace streams of a directory, and reads them.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;

use overhear_directory::areas::{open_of_process_at, OpenAreaError};
use overhear_directory::{AreaAccess, Begin, Query};
use overhear_event::StreamId;
use overhear_posixtrace::StreamSelection;
use overhear_session::connect;
use overhear_session::disk_limits::DiskLimits;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::posix;

use crate::args::PosixArguments;
use crate::attach::{AttachOptions, Attachment, Csv, Json, Layout, Summary, Text, TraceOptions};
use crate::exit::{COMPLETE, INCONCLUSIVE};
use crate::format::{colours_wanted, json_text, Format};
use crate::output::{print, print_stderr};
use crate::text;
use crate::text::width::Width;

pub(crate) fn posix(arguments: PosixArguments) -> Result<u8, SessionError> {
    let socket = connect::socket(arguments.socket.clone())?;
    match arguments.streams.is_some() || arguments.follow {
        true => follow(arguments, &socket),
        false => list(&arguments, &socket),
    }
}

fn list(arguments: &PosixArguments, socket: &Path) -> Result<u8, SessionError> {
    let format = arguments.form.format();
    if format == Format::Csv {
        let message =
            "the list of trace streams cannot be CSV; use text or JSON, or name a PID for \
                       its events as CSV";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    if arguments.count.is_some() || arguments.duration.is_some() {
        let message = "--count and --duration end the output of events; name a PID, or --follow";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let listing = posix::list(socket)?;
    match format {
        Format::Json => print(&json_text(&listing))?,
        _ if listing.streams.is_empty() => {}
        _ => print(&text::posix::render(&listing, Width::of(io::stdout())))?,
    }
    for note in &listing.notes {
        print_stderr(&format!("overhear: {note}\n"));
    }
    if listing.streams.is_empty() {
        let processes = match listing.processes {
            0 => "no process that uses the POSIX trace interface has found".to_string(),
            1 => "1 process, without a trace stream, has found".to_string(),
            more => format!("{more} processes, without trace streams, have found"),
        };
        let message = format!("{processes} the directory at {}", listing.socket);
        return Err(SessionError::new(ErrorKind::Incomplete, message));
    }
    Ok(if listing.notes.is_empty() {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

fn follow(arguments: PosixArguments, socket: &Path) -> Result<u8, SessionError> {
    if let Some(selection) = &arguments.streams {
        is_traceable(selection, socket)?;
    }
    let what = match &arguments.streams {
        Some(selection) => selection.to_string(),
        None => "all processes".to_string(),
    };
    let options = AttachOptions {
        // No directory has a stream with this number: no sensor is read.
        query: Query::stream(StreamId::from_raw(0)),
        begin: Begin::Buffer,
        count: arguments.count,
        duration: arguments.duration,
        until_ended: false,
        disable_unused: false,
        budget: None,
        out: None,
        limits: DiskLimits::default(),
        command: vec!["overhear".into(), "posix".into(), what.clone()],
        traces: TraceOptions::Selected {
            selection: arguments.streams.clone(),
            follow: arguments.follow,
        },
    };
    let attachment = Attachment::begin(connect::connect(socket)?, socket, &options)?;
    if let (0, false, Some(selection)) = (
        attachment.trace_streams(),
        arguments.follow,
        &arguments.streams,
    ) {
        return Err(no_stream(selection));
    }
    if !arguments.quiet {
        let streams = match attachment.trace_streams() {
            1 => "1 trace stream".to_string(),
            more => format!("{more} trace streams"),
        };
        let later = if arguments.follow {
            ", and those that appear"
        } else {
            ""
        };
        print_stderr(&format!("overhear: attached to {what}: {streams}{later}\n"));
    }
    let stdout = io::stdout();
    let layout: Box<dyn Layout> = match arguments.form.format() {
        Format::Text => Box::new(Text::new(stdout.is_terminal() && colours_wanted())),
        Format::Json => Box::new(Json::default()),
        Format::Csv => Box::new(Csv::new(None)),
    };
    let print_note = |message: &str| print_stderr(&format!("overhear: {message}\n"));
    let mut summary = attachment.run(layout, stdout.as_fd(), print_note)?;
    // A stream without events is complete.
    summary.complete |= summary.sensors.is_empty() && summary.missed == 0;
    if !arguments.quiet || !summary.complete {
        print_stderr(&format!("overhear: {}\n", end_message(&summary)));
    }
    Ok(if summary.complete {
        COMPLETE
    } else {
        INCONCLUSIVE
    })
}

/// Whether there is a process with a trace area that this user may read.
fn is_traceable(selection: &StreamSelection, socket: &Path) -> Result<(), SessionError> {
    let opened = open_of_process_at(socket, selection.pid, AreaAccess::Read);
    match opened {
        Ok(_) => Ok(()),
        // Its last events may still be readable.
        Err(OpenAreaError::NoProcess(pid)) => {
            let streams = posix::list(socket)?.streams;
            match streams.iter().any(|stream| stream.pid == pid) {
                true => Ok(()),
                false => Err(OpenAreaError::NoProcess(pid)),
            }
        }
        Err(error) => Err(error),
    }
    .map_err(|error| {
        let kind = match &error {
            OpenAreaError::NoProcess(_) | OpenAreaError::NoArea(_) => ErrorKind::Incomplete,
            _ => ErrorKind::Unavailable,
        };
        SessionError::new(kind, error.to_string())
    })
}

fn no_stream(selection: &StreamSelection) -> SessionError {
    let StreamSelection { pid, name } = selection;
    let named = match name {
        Some(name) => format!(" with the name `{name}`"),
        None => String::new(),
    };
    let message = format!(
        "process {pid} has no trace stream{named}; `overhear posix` lists all streams, \
         and --follow waits for one"
    );
    SessionError::new(ErrorKind::Incomplete, message)
}

fn end_message(summary: &Summary) -> String {
    let events = match summary.elements {
        1 => "1 event".to_string(),
        more => format!("{more} events"),
    };
    let losses = match (summary.missed, summary.complete) {
        (0, true) => "complete: nothing lost".to_string(),
        (0, false) => "INCOMPLETE: an unknown number of events lost".to_string(),
        // A loss is counted for every event type: the greatest number is the number of events.
        _ => {
            let most = summary.sensors.iter().map(|sensor| sensor.missed).max();
            format!("INCOMPLETE: {} events lost", most.unwrap_or_default())
        }
    };
    format!("{events}; {losses}")
}
