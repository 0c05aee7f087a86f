// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear export`: a recording in the formats of other tools.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use overhear_trace::{CsvExport, Exported, PerfettoExport, TraceReader};

use crate::compensation;
use crate::exit::{Failure, INCONCLUSIVE, USAGE};
use crate::fit;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's protobuf.
    Perfetto,
    /// Comma-separated values: of all streams, or of one sensor with its fields as columns.
    Csv {
        /// As for `overhear fit`.
        sensor: Option<String>,
    },
}

/// Writes the recording `dir`, with `compensate` in compensated time, to `output`, or to standard output if that is `-`.
///
/// # Errors
/// [`Failure`] if there is no such recording or sensor, or the output cannot be written. Whoever
/// closes standard output early (`| head`) has seen enough.
pub fn export(
    dir: &Path,
    format: &Format,
    output: &Path,
    compensate: bool,
) -> Result<Exported, Failure> {
    let usage = |sentence: String| Failure::new(USAGE, sentence);
    let reader = TraceReader::open(dir).map_err(|error| usage(error.to_string()))?;
    let costs = compensate.then(|| compensation::costs_of(&reader));
    let costs = costs.transpose()?;
    let sensor = match format {
        Format::Csv { sensor: Some(name) } => {
            let found = fit::find(&reader, name);
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
    let out = BufWriter::new(out);
    let exported = match (format, sensor) {
        (Format::Perfetto, _) => {
            let mut export = PerfettoExport::new(out, reader.identity().realtime_offset);
            let _ = compensation::replay(&reader, costs, vec![&mut export]);
            export.finish()
        }
        (Format::Csv { .. }, sensor) => {
            let mut export = match sensor {
                Some(stream) => CsvExport::of_sensor(out, stream),
                None => CsvExport::new(out),
            };
            let _ = compensation::replay(&reader, costs, vec![&mut export]);
            export.finish()
        }
    };
    match exported {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exported::default()),
        Err(error) => Err(Failure::new(
            INCONCLUSIVE,
            format!("{}: {error}", output.display()),
        )),
        Ok(exported) => Ok(exported),
    }
}

/// What was written, for people.
#[must_use]
pub fn sentence(exported: &Exported, output: &Path) -> String {
    let Exported {
        elements,
        gaps,
        missed,
    } = exported;
    let losses = match gaps {
        0 => "complete".to_string(),
        _ => format!("INCOMPLETE: {missed} elements are missing in {gaps} gaps, which are marked"),
    };
    let place = match output == Path::new("-") {
        true => "standard output".to_string(),
        false => output.display().to_string(),
    };
    format!("{elements} elements written to {place}, {losses}\n")
}
