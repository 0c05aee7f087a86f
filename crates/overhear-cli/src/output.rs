// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of the verbs: text and JSON on standard output, messages on standard error, and files
//! that are claimed before a run.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use overhear_event::{printable, printable_lines};
use overhear_session::error::{ErrorKind, SessionError};
use serde::Serialize;

use crate::args::JsonTarget;
use crate::format::PrintableJson;
use crate::text::width::Width;

/// Prints a text in one write.
pub(crate) fn print(text: &str) -> Result<(), SessionError> {
    let mut out = std::io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The result of a write to standard output. A closed pipe (`overhear report ... | head`) is no
/// error.
pub(crate) fn printed(result: std::io::Result<()>) -> Result<(), SessionError> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(SessionError::new(
            ErrorKind::Usage,
            format!("cannot write to standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Prints a table or a message on standard output, with lines as wide as its terminal. Characters
/// that act on a terminal are escaped.
pub(crate) fn show(render: impl FnOnce(Width) -> String) -> Result<(), SessionError> {
    let width = Width::of(std::io::stdout());
    print(&width.wrap(&printable_lines(&render(width))))
}

/// Prints text on standard error. An error is ignored, as of a closed or full output: the exit
/// status still has the result.
///
/// Messages quote names of programs, files and recordings. Characters that act on a terminal are
/// escaped.
pub(crate) fn print_stderr(text: &str) {
    let text = printable_lines(text);
    let text = Width::of(std::io::stderr()).wrap(&text);
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints a message of a running session on standard error. Its line is not wrapped.
pub(crate) fn print_notice(message: &str) {
    let line = format!("overhear: {}\n", printable(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a JSON document piece by piece, so that its text is never in memory as one string.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub(crate) fn print_json(report: &impl Serialize, target: &JsonTarget) -> Result<(), SessionError> {
    fn write(report: &impl Serialize, out: impl Write) -> std::io::Result<()> {
        let mut out = PrintableJson(BufWriter::new(out));
        serde_json::to_writer_pretty(&mut out, report)?;
        out.write_all(b"\n")?;
        out.flush()
    }
    match target {
        JsonTarget::Stdout => printed(write(report, std::io::stdout().lock())),
        JsonTarget::File(path) => {
            let file = std::fs::File::create(path);
            let written = file.and_then(|file| write(report, file));
            written.map_err(|error| cannot_write(path, &error))
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> SessionError {
    SessionError::new(
        ErrorKind::Usage,
        format!("cannot write {}: {error}", path.display()),
    )
}

/// A file for the report of a run. It is opened before the program runs, because an error after the
/// run would come too late. Its content stays until the report is written.
pub(crate) struct ClaimedFile {
    /// The path, if the claim has created the file. It is removed if the program cannot be run.
    created: Option<PathBuf>,
}

impl ClaimedFile {
    /// Claims the file of a target; `None` for standard output.
    ///
    /// # Errors
    /// [`SessionError`] if the file cannot be written.
    pub(crate) fn of(target: Option<&JsonTarget>) -> Result<Option<Self>, SessionError> {
        match target {
            Some(JsonTarget::File(path)) => Self::claim(path).map(Some),
            _ => Ok(None),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a file that the user names")]
    fn claim(path: &Path) -> Result<Self, SessionError> {
        let created = (!path.exists()).then(|| path.to_path_buf());
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|error| cannot_write(path, &error))?;
        Ok(Self { created })
    }

    /// Keeps the file: the program has run.
    pub(crate) fn keep(mut self) {
        self.created = None;
    }
}

impl Drop for ClaimedFile {
    #[expect(clippy::disallowed_methods, reason = "a file that the user names")]
    fn drop(&mut self) {
        if let Some(path) = &self.created {
            let _ = std::fs::remove_file(path);
        }
    }
}
