// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts elements, or the values of a field.

use overhear_event::{
    Analysis, ElementView, Gap, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_metrics::Distribution;

use crate::quantities::HistogramReport;

/// Counts elements, and the values of one field in a distribution. It allocates only when a stream
/// is opened.
pub struct CountingUpdate {
    field: Option<String>,
    unit: String,
    // One message for each sensor without this field.
    complaints: Vec<String>,
    // Index of the field in the elements of each stream, by ascending stream id.
    fields: Vec<(StreamId, Option<usize>)>,
    pub(crate) values: Distribution,
    /// Number of evaluated elements; elements of sensors without the field are not evaluated.
    pub(crate) elements: u64,
    // Number of evaluated elements whose field was infinite or not a number.
    not_numbers: u64,
}

impl CountingUpdate {
    /// Counts elements, and the values of this field.
    #[must_use]
    pub fn new(field: Option<String>) -> Self {
        Self {
            field,
            unit: String::new(),
            complaints: Vec::new(),
            fields: Vec::new(),
            values: Distribution::preallocated(),
            elements: 0,
            not_numbers: 0,
        }
    }

    /// Messages: sensors without the field, values that are not in the distribution.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.complaints.clone();
        let field = self.field.as_deref().unwrap_or_default();
        match self.not_numbers {
            0 => {}
            1 => all.push(format!(
                "1 element has NaN or infinity in `{field}`, which is not in the distribution"
            )),
            more => all.push(format!(
                "{more} elements have NaN or infinity in `{field}`, which are not in the distribution"
            )),
        }
        all
    }

    /// Bytes of an update with or without a field.
    pub fn bytes_for(has_field: bool) -> u64 {
        let counting = Self::new(has_field.then(String::new));
        counting.memory_bytes() as u64
    }

    /// Bytes of its distribution.
    pub fn memory_bytes(&self) -> usize {
        match &self.field {
            Some(_) => self.values.memory_bytes(),
            None => 0,
        }
    }

    /// The distribution of the field, titled with the name of the update; `None` without a field.
    pub fn histogram(&self, name: &str) -> Option<HistogramReport> {
        let field = self.field.as_ref()?;
        let title = format!("{name}: {field}");
        Some(HistogramReport::of_values(&title, &self.unit, &self.values))
    }
}

/// The index of a numeric field.
///
/// # Errors
/// A message without its subject, if the schema has no numeric field of this name.
pub(crate) fn numeric_field(schema: &TypeSchema, field: &str) -> Result<usize, String> {
    let fields = schema.fields();
    let index = schema.index_of(field);
    index
        .filter(|&index| fields[index].kind.is_number())
        .ok_or_else(|| {
            let numbers = fields.iter().filter(|field| field.kind.is_number());
            let numbers: Vec<String> = numbers.map(|it| format!("`{}`", it.name)).collect();
            format!("has no number `{field}`; it has {}", numbers.join(", "))
        })
}

impl Analysis for CountingUpdate {
    fn open(&mut self, stream: &StreamDescriptor) {
        let counted = match self
            .field
            .as_deref()
            .map(|field| numeric_field(&stream.schema, field))
        {
            Some(Ok(index)) => {
                self.unit.clone_from(&stream.schema.fields()[index].unit);
                Some(index)
            }
            Some(Err(message)) => {
                let message = format!("{} {message}", stream.schema_label());
                // One message per sensor, which has a stream per lane or CPU.
                if !self.complaints.contains(&message) {
                    self.complaints.push(message);
                }
                None
            }
            None => None,
        };
        match self.fields.binary_search_by_key(&stream.id, |(id, _)| *id) {
            // A directory that was restarted reuses its stream ids.
            Ok(at) => self.fields[at].1 = counted,
            Err(at) => self.fields.insert(at, (stream.id, counted)),
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if self.field.is_none() {
            self.elements += 1;
            return;
        }
        let id = element.stream.id;
        let Ok(at) = self.fields.binary_search_by_key(&id, |(id, _)| *id) else {
            return;
        };
        let Some(index) = self.fields[at].1 else {
            return;
        };
        let value = element.stream.schema.read(index, element.payload);
        let value = value.and_then(|value| value.as_f64());
        self.elements += 1;
        let is_recorded = value.is_some_and(|value| self.values.record(value));
        self.not_numbers += u64::from(!is_recorded);
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        Analysis, ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::CountingUpdate;
    use crate::quantities::ValueQuantiles;

    fn stream(id: u32, field: &str, kind: FieldKind) -> StreamDescriptor {
        let schema = TypeSchema::builder("sample").field(field, kind, "V");
        StreamDescriptor {
            id: StreamId::from_raw(id),
            origin: Origin::Sampler,
            sensor: format!("s{id}"),
            instance: String::new(),
            lane: None,
            schema: Arc::new(schema.build().unwrap()),
            rate: None,
            capacity: 8,
        }
    }

    #[test]
    fn values_outside_the_histogram_are_counted_and_reported() {
        let streams = [
            stream(1, "voltage", FieldKind::F64),
            stream(2, "current", FieldKind::F64),
            stream(3, "voltage", FieldKind::Text(8)),
        ];
        let mut counting = CountingUpdate::new(Some("voltage".to_string()));
        streams.iter().for_each(|stream| counting.open(stream));
        let values = [-1.75, f64::NAN, -2.5, f64::INFINITY, -1.5];
        for (sequence, value) in values.into_iter().enumerate() {
            for stream in &streams {
                counting.element(&ElementView {
                    stream,
                    sequence: sequence as u64,
                    time: Timestamp::ZERO,
                    payload: &value.to_ne_bytes(),
                });
            }
        }
        assert_eq!((counting.elements, counting.values.count()), (5, 3));
        let values = ValueQuantiles::of(&counting.values).unwrap();
        assert_eq!((values.min, values.median, values.max), (-2.5, -1.75, -1.5));
        let histogram = counting.histogram("it").unwrap();
        assert!(histogram.fractions);
        let [first, .., last] = histogram.buckets.as_slice() else {
            panic!("{histogram:?}");
        };
        assert_eq!((first.low, first.count), (-2.5, 1));
        assert_eq!((last.low, last.high, last.count), (-1.6, -1.4, 1));
        let json = serde_json::to_value(&histogram).unwrap();
        assert_eq!(json["buckets"][0]["low"], -2.5);
        assert_eq!(json["buckets"][2]["low"].to_string(), "-2");
        let complaints = counting.complaints();
        let [other, text, nan] = complaints.as_slice() else {
            panic!("{complaints:?}");
        };
        assert!(
            other.ends_with("s2 has no number `voltage`; it has `current`"),
            "{other}"
        );
        assert!(text.contains("s3 has no number `voltage`"), "{text}");
        assert_eq!(
            nan,
            "2 elements have NaN or infinity in `voltage`, which are not in the distribution"
        );
    }
}
