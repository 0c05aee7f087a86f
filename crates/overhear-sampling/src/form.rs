// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`SampleForm`]: from the totals that sources deliver to the payload of a sample.

use std::sync::Arc;

use overhear_event::{SamplePoint, SampleSchema, SchemaError, Timestamp, TypeSchema};

use crate::{Quantity, QuantityKind};

/// Bytes of a sample before its first quantity.
const HEADER_BYTES: usize = 24;

/// The thread, process and CPU of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleSubject {
    /// The thread, 0 for a sample of no single thread.
    pub tid: u32,
    /// The process, 0 for a sample of no single process.
    pub pid: u32,
}

/// Forms the payloads of one sampler's samples: differences of counts, levels as they are. It
/// allocates nothing after it is made.
#[derive(Clone, Debug)]
pub struct SampleForm {
    schema: Arc<TypeSchema>,
    kinds: Vec<QuantityKind>,
    // The totals at the previous sample, and its time.
    previous: Vec<u64>,
    since: Option<Timestamp>,
    payload: Vec<u8>,
}

impl SampleForm {
    /// The form of samples of these quantities.
    ///
    /// # Errors
    /// [`SchemaError`] if two have the same name, or there are too many.
    pub fn new<'a>(quantities: impl Iterator<Item = &'a Quantity>) -> Result<Self, SchemaError> {
        let mut schema = SampleSchema::new();
        let mut kinds = Vec::new();
        for quantity in quantities {
            schema = quantity.append_to(schema);
            kinds.push(quantity.kind);
        }
        Ok(Self {
            schema: Arc::new(schema.build()?),
            previous: vec![0; kinds.len()],
            payload: vec![0; HEADER_BYTES + 8 * kinds.len()],
            since: None,
            kinds,
        })
    }

    /// The schema of the samples.
    #[must_use]
    pub fn schema(&self) -> Arc<TypeSchema> {
        Arc::clone(&self.schema)
    }

    /// Number of quantities.
    #[must_use]
    pub fn quantities(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of a sample's payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Sets the totals from which the next sample counts, without a sample.
    pub fn begin(&mut self, values: &[u64], now: Timestamp) {
        self.previous.copy_from_slice(values);
        self.since = Some(now);
    }

    /// The payload of a sample of these totals and levels. A total that is less than before has
    /// begun again at zero.
    pub fn sample(
        &mut self,
        subject: SampleSubject,
        (point, cpu): (SamplePoint, u32),
        values: &[u64],
        now: Timestamp,
    ) -> &[u8] {
        let duration = self.since.map_or(0, |since| now.since(since).as_ns());
        let is_first = self.since.is_none();
        let header = [subject.tid, subject.pid, point.as_raw(), cpu];
        for (place, number) in self.payload.chunks_exact_mut(4).zip(header) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        let (header, fields) = self.payload.split_at_mut(HEADER_BYTES);
        header[16..].copy_from_slice(&duration.to_ne_bytes());
        let quantities = self.kinds.iter().zip(&mut self.previous).zip(values);
        for (place, ((kind, previous), &value)) in fields.chunks_exact_mut(8).zip(quantities) {
            let field = match kind {
                QuantityKind::Count if is_first => 0,
                QuantityKind::Count => value.checked_sub(*previous).unwrap_or(value),
                QuantityKind::Level | QuantityKind::RealLevel => value,
            };
            *previous = value;
            place.copy_from_slice(&field.to_ne_bytes());
        }
        self.since = Some(now);
        &self.payload
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{SampleLayout, SamplePoint, Timestamp};

    use super::{SampleForm, SampleSubject};
    use crate::{Quantity, QuantityKind};

    #[test]
    fn counts_are_differences_and_levels_are_values() {
        let quantities = [
            Quantity::new("faults", "", QuantityKind::Count),
            Quantity::new("rss", "B", QuantityKind::Level),
            Quantity::new("load", "%", QuantityKind::RealLevel),
        ];
        let mut form = SampleForm::new(quantities.iter()).unwrap();
        let at = Timestamp::from_monotonic_ns;
        let subject = SampleSubject { tid: 0, pid: 7 };
        let level = |value: i64| value.cast_unsigned();
        let schema = form.schema();
        let layout = SampleLayout::of(&schema).unwrap();
        let mut take = |faults, rss, load: f64, now| {
            let values = [faults, level(rss), load.to_bits()];
            let point = (SamplePoint::Period, 3);
            let payload = form.sample(subject, point, &values, at(now)).to_vec();
            let header = layout.header(&schema, &payload).unwrap();
            assert_eq!((header.pid, header.cpu), (7, 3));
            let field = |index: usize| schema.read(layout.quantities()[index].field, &payload);
            let real = field(2).unwrap().as_f64().unwrap();
            let level = match field(1).unwrap() {
                overhear_event::Value::Signed(level) => level,
                other => panic!("{other:?}"),
            };
            (
                header.duration_ns,
                field(0).unwrap().as_u64().unwrap(),
                level,
                real,
            )
        };
        // Without a begin, the first sample counts nothing.
        assert_eq!(take(100, -5, 0.5, 1_000), (0, 0, -5, 0.5));
        assert_eq!(take(103, 8, 1.5, 1_500), (500, 3, 8, 1.5));
        // It has begun again.
        assert_eq!(take(2, 8, 1.5, 1_600), (100, 2, 8, 1.5));
        form.begin(&[10, 0, 0], at(2_000));
        let payload = form.sample(subject, (SamplePoint::Period, 0), &[11, 0, 0], at(2_001));
        assert_eq!(
            payload[16..32],
            [1_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat()
        );
    }
}
