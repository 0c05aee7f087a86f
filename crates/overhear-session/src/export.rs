// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear export`: a recording in the formats of other tools.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use overhear_event::{Origin, StreamDescriptor};
use overhear_trace::{CsvExport, Exported, PerfettoExport, TraceReader};

use crate::compensation;
use crate::conclusion::Conclusion;
use crate::error::{ErrorKind, SessionError};
use crate::{fit, other_threads, recording};

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's protobuf.
    Perfetto,
    /// Comma-separated values: of all streams, or of one sensor with its fields as columns.
    Csv {
        /// As for `overhear fit-rate`, or a kernel sensor or probe, `NAME` or `NAME#FILE`.
        sensor: Option<String>,
    },
}

/// What came of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of the recording was written.
    Whole {
        /// How much it was.
        exported: Exported,
        /// Messages about damaged parts of the recording, which are left out.
        damage: Vec<String>,
    },
    /// The reader of the output closed it after so many elements.
    Closed(u64),
}

/// An output that tells when it has failed, so that no more is replayed for it.
struct Watched<'a> {
    out: Box<dyn Write>,
    has_failed: &'a Cell<bool>,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        self.has_failed.set(written.is_err());
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes the recording `dir`, with `compensate` in compensated time, to `output`, or to standard
/// output if that is `-`.
///
/// # Errors [`SessionError`] if there is no such recording or sensor, or the output cannot be
/// written. Whoever closes standard output early (`| head`) has seen enough.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub fn export(
    dir: &Path,
    format: &Format,
    output: &Path,
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
    let out: Box<dyn Write> = if output == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        let file = File::create(output)
            .map_err(|error| usage(format!("cannot write {}: {error}", output.display())))?;
        Box::new(file)
    };
    let has_failed = &Cell::new(false);
    let out = Watched { out, has_failed };
    let goes_on = || !has_failed.get();
    let replayed;
    let exported = match (format, sensor) {
        (Format::Perfetto, _) => {
            let mut export = PerfettoExport::new(out, reader.identity().realtime_offset);
            reader.streams().for_each(|stream| export.announce(stream));
            for (tid, comm) in other_threads::by_tid(&other_threads::kept(&reader)?) {
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
            format!("{}: {error}", output.display()),
        )),
        Ok(exported) => Ok(Written::Whole {
            exported,
            damage: recording::corrupt(&reader, &replayed).collect(),
        }),
    }
}

/// The sensor of this name: of a program, else of the kernel, whose first CPU stands for it.
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
            Self::Whole { exported, damage } if exported.gaps > 0 || !damage.is_empty() => {
                Conclusion::Inconclusive
            }
            _ => Conclusion::Complete,
        }
    }
}

/// What was written, for people.
#[must_use]
pub fn message(written: &Written, output: &Path) -> String {
    let place = match output == Path::new("-") {
        true => "standard output".to_string(),
        false => output.display().to_string(),
    };
    let (exported, damage) = match written {
        Written::Whole { exported, damage } => (exported, damage),
        Written::Closed(elements) => {
            return format!("{elements} elements written to {place} until its reader closed it\n");
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
    let mut text = format!("{elements} elements written to {place}, {losses}\n");
    for message in damage {
        text.push_str(message);
        text.push('\n');
    }
    text
}
