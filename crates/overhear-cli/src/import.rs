// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: the messages and the exit status of an import, and the document that makes a recording of it.

use std::path::Path;

use overhear_trace::{ForeignError, ForeignTrace, ImportError, Imported};

use overhear_session::conclusion::Exit;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::format::printable;
use overhear_session::quantities::SourceReport;
use overhear_session::recording::{Ending, Recording};
use overhear_session::session::uncreated;

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

/// A message that lists the traces in `foreign`, if it has more than one: they may be of several sessions.
#[must_use]
pub(crate) fn several(foreign: &Path) -> Option<String> {
    let names = names(foreign);
    (names.len() > 1).then(|| {
        format!(
            "{} traces in {} become one recording: {}; name a folder in it to import what is there alone",
            names.len(),
            foreign.display(),
            listed(&names)
        )
    })
}

/// Imports the trace in `foreign` as a recording in `out`.
///
/// # Errors
/// [`SessionError`] if libbabeltrace2 is not installed or cannot read the trace, or if the recording cannot be written.
pub(crate) fn import(foreign: &Path, out: &Path) -> Result<Imported, SessionError> {
    let (imported, mut writer) =
        overhear_trace::import_trace(foreign, out).map_err(|error| failure(&error))?;
    let document = document(foreign, &imported);
    let attached = writer.attach_document("run", &document.to_json());
    attached.map_err(|error| SessionError::new(ErrorKind::Incomplete, error.to_string()))?;
    Ok(imported)
}

fn failure(error: &ImportError) -> SessionError {
    let kind = match error {
        ImportError::Create(error) => return uncreated(error),
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
        sentence: match names(foreign).as_slice() {
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
    recording.end = Some(Ending {
        end_ns: last.as_monotonic_ns(),
        exit: Exit::Code(0),
    });
    recording
}

/// The exit status: 0, or 3 if something is missing.
#[must_use]
pub(crate) fn status(imported: &Imported) -> u8 {
    match imported.discarded == 0 && imported.unrecorded == 0 && imported.notes.is_empty() {
        true => COMPLETE,
        false => INCONCLUSIVE,
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
    for note in &imported.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
    text
}
