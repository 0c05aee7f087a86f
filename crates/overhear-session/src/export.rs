// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear export`: a recording in the formats of other tools.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use overhear_event::{Origin, StreamDescriptor};
use overhear_trace::{CsvExport, Exported, PerfettoExport, TraceReader};

use crate::compensation;
use crate::conclusion::Conclusion;
use crate::error::{ErrorKind, SessionError};
use crate::{fit, other_threads, recording};

/// The format of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's protobuf.
    Perfetto,
    /// Comma-separated values: of all streams, or of one sensor with its fields as columns.
    Csv {
        /// A sensor of a program as for [`fit`](crate::fit::fit()), or a kernel sensor or probe,
        /// `NAME` or `NAME#FILE`.
        sensor: Option<String>,
    },
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The complete recording was written.
    Complete {
        /// Numbers of elements and gaps.
        exported: Exported,
        /// Messages about damaged parts of the recording, which are not written.
        damage: Vec<String>,
    },
    /// The reader of the output closed it after this number of elements.
    Closed(u64),
}

/// The destination of an export. `Display` is its name in messages.
pub enum Destination<'a> {
    /// A file, which is created or replaced.
    File(&'a Path),
    /// An open output, and its name.
    Output(Box<dyn Write + 'a>, &'a str),
}

impl fmt::Display for Destination<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Output(_, name) => f.write_str(name),
        }
    }
}

impl<'a> Destination<'a> {
    #[expect(clippy::disallowed_methods, reason = "a file that the user names")]
    fn open(self) -> Result<Box<dyn Write + 'a>, SessionError> {
        match self {
            Self::Output(output, _) => Ok(output),
            Self::File(path) => match File::create(path) {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => {
                    let message = format!("cannot write {}: {error}", path.display());
                    Err(SessionError::new(ErrorKind::Usage, message))
                }
            },
        }
    }
}

/// An output that sets a flag when it fails, so that the replay stops.
struct WatchedOutput<'a> {
    out: Box<dyn Write + 'a>,
    has_failed: &'a Cell<bool>,
}

impl Write for WatchedOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.has_failed.set(written.is_err());
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the recording `dir`, with `compensate` in compensated time.
///
/// # Errors
/// [`SessionError`] if there is no such recording or sensor, or the output cannot be written. It is
/// no error if the reader of the output closes it early (`| head`).
pub fn export(
    dir: &Path,
    format: &Format,
    destination: Destination<'_>,
    compensate: bool,
) -> Result<Written, SessionError> {
    let usage = |message: String| SessionError::new(ErrorKind::Usage, message);
    let reader = TraceReader::open(dir).map_err(|error| usage(error.to_string()))?;
    let costs = compensate.then(|| compensation::costs_of(&reader));
    let costs = costs.transpose()?;
    let sensor = match format {
        Format::Csv { sensor: Some(name) } => {
            let found = find(&reader, name);
            Some(found.map_err(|error| usage(format!("{}: {error}", dir.display())))?)
        }
        _ => None,
    };
    let name = destination.to_string();
    let out = destination.open()?;
    let has_failed = &Cell::new(false);
    let out = WatchedOutput { out, has_failed };
    let goes_on = || !has_failed.get();
    let replayed;
    let exported = match (format, sensor) {
        (Format::Perfetto, _) => {
            let mut export = PerfettoExport::new(out, reader.identity().realtime_offset);
            reader.streams().for_each(|stream| export.announce(stream));
            for (tid, comm) in other_threads::by_tid(&other_threads::read(&reader)?) {
                export.name_thread(tid, &comm);
            }
            replayed = compensation::replay_while(&reader, costs, vec![&mut export], goes_on);
            export.finish()
        }
        (Format::Csv { .. }, sensor) => {
            let mut export = match sensor {
                Some(stream) => CsvExport::of_sensor(out, stream),
                None => CsvExport::new(out),
            };
            replayed = compensation::replay_while(&reader, costs, vec![&mut export], goes_on);
            export.finish()
        }
    };
    match exported {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(Written::Closed(error.elements()))
        }
        Err(error) => Err(SessionError::new(
            ErrorKind::Incomplete,
            format!("{name}: {error}"),
        )),
        Ok(exported) => Ok(Written::Complete {
            exported,
            damage: recording::corrupt(&reader, &replayed).collect(),
        }),
    }
}

/// The sensor of this name: of a program, or else of the kernel, by its stream on the first CPU.
fn find<'a>(reader: &'a TraceReader, name: &str) -> Result<&'a StreamDescriptor, String> {
    let names = |stream: &StreamDescriptor| {
        let of_file = match stream.instance.as_str() {
            "" => stream.sensor.clone(),
            file => format!("{}#{file}", stream.sensor),
        };
        [of_file, stream.sensor.clone()]
    };
    let of_program = fit::find(reader, name);
    let Err(of_program) = of_program else {
        return of_program;
    };
    let mut all: Vec<&StreamDescriptor> = Vec::new();
    for stream in reader.streams().map(AsRef::as_ref) {
        let is_known = all.iter().any(|known| known.is_same_sensor(stream));
        if matches!(stream.origin, Origin::Kernel { .. }) && !is_known {
            all.push(stream);
        }
    }
    let list = |streams: &[&StreamDescriptor]| {
        let full = streams.iter().map(|stream| names(stream)[0].clone());
        full.collect::<Vec<_>>().join(", ")
    };
    let bare = name.strip_prefix("kernel:").unwrap_or(name);
    let mut found = all.clone();
    found.retain(|stream| names(stream).iter().any(|known| known == bare));
    match found.as_slice() {
        [one] => Ok(one),
        [] if all.is_empty() => Err(of_program),
        [] => Err(format!("{of_program}; of the kernel {}", list(&all))),
        several => Err(format!(
            "`{name}` stands for several probes; name one of {}",
            list(several)
        )),
    }
}

impl Written {
    /// Inconclusive if something is missing in the recording. An output that its reader closed is
    /// complete.
    #[must_use]
    pub const fn conclusion(&self) -> Conclusion {
        match self {
            Self::Complete { exported, damage } if exported.gaps > 0 || !damage.is_empty() => {
                Conclusion::Inconclusive
            }
            _ => Conclusion::Complete,
        }
    }
}

/// A message about an export to the destination of this name.
#[must_use]
pub fn message(written: &Written, destination: &str) -> String {
    let (exported, damage) = match written {
        Written::Complete { exported, damage } => (exported, damage),
        Written::Closed(elements) => {
            return format!(
                "{elements} elements written to {destination} until its reader closed it\n"
            );
        }
    };
    let Exported {
        elements,
        gaps,
        missed,
    } = exported;
    let losses = match (gaps, damage.len()) {
        (0, 0) => "complete".to_string(),
        (0, _) => "INCOMPLETE".to_string(),
        _ => format!("INCOMPLETE: {missed} elements are missing in {gaps} gaps, which are marked"),
    };
    let mut text = format!("{elements} elements written to {destination}, {losses}\n");
    for message in damage {
        text.push_str(message);
        text.push('\n');
    }
    text
}
