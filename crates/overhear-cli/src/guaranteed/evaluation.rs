// SPDX-License-Identifier: MIT OR Apache-2.0
//! The evaluation that `overhear.toml` can name without a plug-in: values of a field, counted.

use overhear_event::{ElementView, Gap, StreamDescriptor, StreamId, Timestamp, Update};
use overhear_metrics::Histogram;

use crate::report::HistogramReport;

/// Counts elements, and the values of one field in a histogram. It allocates only when it gets to know
/// a stream.
pub(crate) struct Counting {
    field: Option<String>,
    unit: String,
    /// Sensors that have no such number.
    pub(super) complaints: Vec<String>,
    // Where the field stands in the elements of each stream, ascending.
    places: Vec<(StreamId, Option<usize>)>,
    pub(super) values: Histogram,
}

impl Counting {
    pub(crate) fn new(field: Option<String>) -> Self {
        Self {
            field,
            unit: String::new(),
            complaints: Vec::new(),
            places: Vec::new(),
            values: Histogram::preallocated(),
        }
    }

    /// The values of the field, as the update of this name; none without a field.
    pub(crate) fn histogram(&self, name: &str) -> Option<HistogramReport> {
        let field = self.field.as_ref()?;
        let title = format!("{name}: {field}");
        Some(HistogramReport::new(&title, &self.unit, &self.values))
    }
}

impl Update for Counting {
    fn open(&mut self, stream: &StreamDescriptor) {
        let field = self.field.as_deref();
        let index = field.and_then(|field| stream.schema.index_of(field));
        if let Some(index) = index {
            self.unit.clone_from(&stream.schema.fields()[index].unit);
        }
        let fields = stream.schema.fields();
        let counted = index.filter(|&index| fields[index].kind.is_number());
        if let (Some(field), None) = (field, counted) {
            let numbers = fields.iter().filter(|field| field.kind.is_number());
            let numbers: Vec<String> = numbers.map(|it| format!("`{}`", it.name)).collect();
            self.complaints.push(format!(
                "{} has no number `{field}`; it has {}",
                stream.label(),
                numbers.join(", ")
            ));
        }
        if let Err(place) = self.places.binary_search_by_key(&stream.id, |(id, _)| *id) {
            self.places.insert(place, (stream.id, index));
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let id = element.stream.id;
        let Ok(place) = self.places.binary_search_by_key(&id, |(id, _)| *id) else {
            return;
        };
        let Some(index) = self.places[place].1 else {
            return;
        };
        let value = element.stream.schema.read(index, element.payload);
        let value = value.and_then(|value| value.as_f64());
        // Negative values and fractions have no place in the histogram: they count as the next whole
        // number from zero on.
        if let Some(value) = value.filter(|value| !value.is_nan()) {
            self.values.record(value.max(0.0).round() as u64);
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}
