// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: the messages and the exit status of an import, and the document that makes a
//! recording of it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use overhear_event::Nanos;
use overhear_trace::{ForeignError, ForeignReader, ForeignTrace, ImportError, Imported};

use overhear_session::conclusion::Exit;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::format::printable;
use overhear_session::quantities::SourceReport;
use overhear_session::recording::{Ending, Recording};
use overhear_session::session::create_error;
use overhear_session::trace_log::ImportedLog;

use crate::exit::{COMPLETE, INCONCLUSIVE};

/// Limit of trace names in a message.
const MAX_LISTED_NAMES: usize = 20;

/// Names of the traces in `foreign`, relative to it: `.` for the folder itself.
fn names(foreign: &Path) -> Vec<String> {
    let traces = ForeignTrace::traces(foreign);
    let names = traces
        .iter()
        .map(|trace| match trace.strip_prefix(foreign) {
            Ok(below) if below.as_os_str().is_empty() => ".".to_owned(),
            Ok(below) => below.display().to_string(),
            Err(_) => trace.display().to_string(),
        });
    names.collect()
}

/// The first names, and the number of the others.
fn listed(names: &[String]) -> String {
    let first = &names[..names.len().min(MAX_LISTED_NAMES)];
    let more = match names.len() - first.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{}{more}", printable(&first.join(", ")))
}

/// A message that lists the traces in `foreign`, if it has more than one: they may be of several
/// sessions.
#[must_use]
pub(crate) fn several(foreign: &Path) -> Option<String> {
    let names = names(foreign);
    (names.len() > 1).then(|| {
        format!(
            "{} traces in {} become one recording: {}; name one of these folders to import it alone",
            names.len(),
            foreign.display(),
            listed(&names)
        )
    })
}

/// Time that the process which reads a trace may take until the next event, by default.
const PATIENCE: Duration = Duration::from_secs(60);

/// Imports the trace in `foreign` as a recording in `out`. Another process of this program reads
/// the trace; it may take `timeout` until the next event.
///
/// # Errors [`SessionError`] if libbabeltrace2 is not installed or cannot read the trace, or if the
/// recording cannot be written.
pub(crate) fn import(
    foreign: &Path,
    out: &Path,
    timeout: Option<Nanos>,
) -> Result<Imported, SessionError> {
    let command = || {
        // The file of this process, even if another file has its name by now.
        let mut command = Command::new("/proc/self/exe");
        command.args(["import", "--send"]).arg("--").arg(foreign);
        command
    };
    let reader = ForeignReader::Isolated {
        command: &command,
        patience: timeout.map_or(PATIENCE, |it| Duration::from_nanos(it.as_ns())),
    };
    let (imported, mut writer) =
        overhear_trace::import_trace(foreign, out, &reader).map_err(|error| failure(&error))?;
    let document = document(foreign, &imported);
    let attached = writer.attach_document("run", &document.to_json());
    attached.map_err(|error| SessionError::new(ErrorKind::Incomplete, error.to_string()))?;
    Ok(imported)
}

fn failure(error: &ImportError) -> SessionError {
    let kind = match error {
        ImportError::Create(error) => return create_error(error),
        ImportError::Foreign(ForeignError::Library { .. }) => ErrorKind::Unavailable,
        ImportError::Foreign(_) | ImportError::NoEvents { .. } => ErrorKind::Usage,
        ImportError::Write(_) => ErrorKind::Incomplete,
    };
    SessionError::new(kind, error.to_string())
}

/// The document with the source and the end of the recording, for reports and verdicts.
fn document(foreign: &Path, imported: &Imported) -> Recording {
    let source = SourceReport {
        name: "import".to_owned(),
        active: "libbabeltrace2".to_owned(),
        message: match names(foreign).as_slice() {
            [] => format!("imported from {}", foreign.display()),
            [one] if one == "." => format!("imported from {}", foreign.display()),
            several => format!("imported from {}: {}", foreign.display(), listed(several)),
        },
        sensors: Vec::new(),
    };
    let command = ["import".into(), foreign.as_os_str().to_os_string()];
    let (first, last) = imported.times;
    let mut recording = Recording::begin(&command, vec![source], first);
    recording.notes.clone_from(&imported.notes);
    recording.notes.extend(damage(imported));
    recording.end = Some(Ending {
        end_ns: last.as_monotonic_ns(),
        exit: Exit::Code(0),
    });
    recording
}

/// The part of the trace that could not be read, as a message.
fn damage(imported: &Imported) -> Option<String> {
    let damage = imported.damage.as_ref()?;
    let at_least = if damage.at_least { "at least " } else { "" };
    let events = if damage.missed == 1 {
        "event"
    } else {
        "events"
    };
    Some(format!(
        "{}; {at_least}{} {events} after the last imported one {} missing",
        damage.message,
        damage.missed,
        if damage.missed == 1 { "is" } else { "are" }
    ))
}

/// The exit status: 0, or 3 if something is missing.
#[must_use]
pub(crate) fn status(imported: &Imported) -> u8 {
    let is_complete = imported.discarded == 0
        && imported.unrecorded == 0
        && imported.damage.is_none()
        && imported.notes.is_empty();
    if is_complete {
        COMPLETE
    } else {
        INCONCLUSIVE
    }
}

/// The result of an import, as text.
#[must_use]
pub(crate) fn render(imported: &Imported, out: &Path) -> String {
    let mut text = format!(
        "{}: {} elements in {} streams, from {} events\n",
        out.display(),
        imported.elements,
        imported.streams,
        imported.events
    );
    if imported.discarded > 0 {
        text.push_str(&format!(
            "inconclusive: the tracer had discarded {}{} events\n",
            if imported.at_least { "at least " } else { "" },
            imported.discarded
        ));
    }
    if imported.unrecorded > 0 {
        text.push_str(&format!(
            "inconclusive: at least {} context switches were never recorded: without them the others contradict each \
             other\n",
            imported.unrecorded
        ));
    }
    if let Some(damage) = damage(imported) {
        text.push_str(&format!("inconclusive: {}\n", printable(&damage)));
    }
    for note in &imported.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}

/// The exit status of the import of a trace log: 0, or 3 if something is missing.
#[must_use]
pub(crate) fn log_status(imported: &ImportedLog) -> u8 {
    match imported.missed == 0 && imported.notes.is_empty() {
        true => COMPLETE,
        false => INCONCLUSIVE,
    }
}

/// The result of the import of a trace log, as text.
#[must_use]
pub(crate) fn render_log(imported: &ImportedLog, out: &Path) -> String {
    let mut text = format!(
        "{}: {} events in {} streams\n",
        out.display(),
        imported.events,
        imported.streams
    );
    if imported.missed > 0 {
        text.push_str(&format!(
            "inconclusive: {} events are not in the log\n",
            imported.missed
        ));
    }
    for note in &imported.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}
