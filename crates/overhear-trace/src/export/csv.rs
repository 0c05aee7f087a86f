// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comma-separated values (RFC 4180): one row for each element and each gap, for whatever reads
//! tables.
//!
//! A schema's fields differ from stream to stream, so a row names its own:
//!
//! ```text
//! time_ns,stream_name,event,sequence,missed,cause,values
//! 1000,robot(42)/arm,user:arm,0,,,torque=1.5 name=left
//! 1000,robot(42)/arm,,1,7,overwritten,
//! ```
//!
//! If one sensor is chosen ([`CsvExport::of_sensor`]), its fields have columns of their own.

use std::io::Write;

use overhear_event::{
    csv_line, Analysis, ElementView, Gap, StreamDescriptor, Timestamp, Value, HEXADECIMAL,
};

use super::output::Output;
use super::{ExportError, Exported};

/// Writes a trace as comma-separated values: an analysis of everything that is replayed.
#[derive(Debug)]
pub struct CsvExport<W: Write> {
    out: Output<W>,
    exported: Exported,
    /// A stream of the sensor, if the fields of one sensor are columns.
    only: Option<StreamDescriptor>,
    began: bool,
}

impl<W: Write> CsvExport<W> {
    /// The columns of each row, before those of fields.
    pub const COLUMNS: [&'static str; 6] = [
        "time_ns",
        "stream_name",
        "event",
        "sequence",
        "missed",
        "cause",
    ];
    /// The column of all fields, where they have no columns of their own.
    pub const VALUES: &'static str = "values";

    /// An export of all streams.
    pub fn new(out: W) -> Self {
        Self {
            out: Output::new(out),
            exported: Exported::default(),
            only: None,
            began: false,
        }
    }

    /// An export of the sensor of this stream: with all its lanes, or all CPUs of a kernel sensor.
    pub fn of_sensor(out: W, stream: &StreamDescriptor) -> Self {
        Self {
            only: Some(stream.clone()),
            ..Self::new(out)
        }
    }

    /// Writes the rest, and returns the totals.
    ///
    /// # Errors
    /// [`ExportError`] with the first error of the output; output that was written before remains.
    pub fn finish(mut self) -> Result<Exported, ExportError> {
        self.begin();
        self.out.finish()?;
        Ok(self.exported)
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.began, true) {
            return;
        }
        let mut heads = Self::COLUMNS.map(str::to_string).to_vec();
        match &self.only {
            None => heads.push(Self::VALUES.to_string()),
            Some(stream) => {
                heads.extend(stream.schema.fields().iter().map(
                    |field| match field.unit.as_str() {
                        // Its values contain the unit.
                        "" | HEXADECIMAL => field.name.clone(),
                        unit => format!("{} [{unit}]", field.name),
                    },
                ));
            }
        }
        self.row(&heads);
    }

    fn row(&mut self, cells: &[String]) {
        self.out.push(csv_line(cells).as_bytes());
    }

    fn wants(&self, stream: &StreamDescriptor) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| only.is_same_sensor(stream))
    }
}

impl<W: Write> Analysis for CsvExport<W> {
    fn element(&mut self, element: &ElementView<'_>) {
        if !self.wants(element.stream) {
            return;
        }
        self.begin();
        self.exported.elements += 1;
        let schema = &element.stream.schema;
        let values = schema.fields().iter().enumerate().map(|(index, field)| {
            let value = schema.read(index, element.payload);
            let value = field.shown(value.unwrap_or(Value::Text("")));
            (field.name.as_str(), value)
        });
        let mut cells = vec![
            element.time.as_monotonic_ns().to_string(),
            element.stream.label(),
            element.stream.event().to_string(),
            element.sequence.to_string(),
            String::new(),
            String::new(),
        ];
        if self.only.is_some() {
            cells.extend(values.map(|(_, value)| value.to_string()));
        } else {
            let named: Vec<String> = values
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            cells.push(named.join(" "));
        }
        self.row(&cells);
        self.out.complete(1);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if !self.wants(stream) {
            return;
        }
        self.begin();
        self.exported.gaps += 1;
        self.exported.missed = self.exported.missed.saturating_add(gap.missed);
        let mut cells = vec![
            gap.from.as_monotonic_ns().to_string(),
            stream.label(),
            String::new(),
            gap.first.to_string(),
            gap.missed.to_string(),
            gap.cause.to_string(),
        ];
        let more = match &self.only {
            Some(stream) => stream.schema.fields().len(),
            None => 1,
        };
        cells.resize(cells.len() + more, String::new());
        self.row(&cells);
    }

    fn advance(&mut self, _: Timestamp) {}
}
