// SPDX-License-Identifier: MIT OR Apache-2.0
//! An account per program sensor.

use std::collections::BTreeMap;
use std::sync::Arc;

use overhear_event::{
    ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Update, Value,
};

use crate::histogram::Histogram;

/// Statistics of one numeric field.
#[derive(Clone, Debug)]
pub struct FieldStatistics {
    /// Smallest value, not counting NaN.
    pub min: f64,
    /// Largest value, not counting NaN.
    pub max: f64,
    /// Sum of the values, for the mean.
    pub sum: f64,
    /// How many values.
    pub count: u64,
    /// The values of an unsigned field; empty for others.
    pub values: Histogram,
}

impl FieldStatistics {
    fn new() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self {
            min,
            max,
            sum: 0.0,
            count: 0,
            values: Histogram::new(),
        }
    }

    /// The mean, `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    fn record(&mut self, value: Value<'_>) {
        if let Value::Unsigned(value) = value {
            self.values.record(value);
        }
        if let Some(value) = value.as_f64().filter(|value| !value.is_nan()) {
            self.min = self.min.min(value);
            self.max = self.max.max(value);
            self.sum += value;
            self.count += 1;
        }
    }
}

/// What one sensor did.
#[derive(Clone, Debug)]
pub struct SensorAccount {
    /// Whose elements.
    pub stream: Arc<StreamDescriptor>,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// The first element's time; `None` without elements.
    pub first: Option<Timestamp>,
    /// The last element's time.
    pub last: Option<Timestamp>,
    /// Distances of neighbouring elements, in nanoseconds; not across gaps.
    pub intervals: Histogram,
    /// One per field of the schema; those of text fields stay empty.
    pub fields: Vec<FieldStatistics>,
    // Something was missed since the last element: a distance counts only between neighbours.
    interrupted: bool,
}

impl SensorAccount {
    fn new(stream: Arc<StreamDescriptor>) -> Self {
        let fields = stream
            .schema
            .fields()
            .iter()
            .map(|_| FieldStatistics::new())
            .collect();
        Self {
            stream,
            elements: 0,
            missed: 0,
            first: None,
            last: None,
            intervals: Histogram::new(),
            fields,
            interrupted: false,
        }
    }

    /// Elements per second between the first and the last, missed ones included; `None` for fewer
    /// than two elements.
    #[must_use]
    pub fn rate_hz(&self) -> Option<f64> {
        let span = self.last?.since(self.first?).as_ns();
        let steps = self.elements.saturating_add(self.missed).saturating_sub(1);
        (span > 0 && steps > 0).then(|| steps as f64 * 1e9 / span as f64)
    }
}

/// Keeps an account of every sensor of every program. The lanes of a sensor share one.
#[derive(Clone, Debug, Default)]
pub struct SensorStatistics {
    accounts: BTreeMap<StreamId, SensorAccount>,
}

impl SensorStatistics {
    /// The accounts in the order of registration.
    pub fn accounts(&self) -> impl Iterator<Item = &SensorAccount> {
        self.accounts.values()
    }

    /// Announces a sensor, so that it is listed even if it never writes.
    pub fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        if matches!(stream.origin, Origin::Program(_)) {
            self.accounts
                .entry(stream.first_stream())
                .or_insert_with(|| SensorAccount::new(Arc::clone(stream)));
        }
    }

    fn account(&mut self, stream: &StreamDescriptor) -> Option<&mut SensorAccount> {
        if !matches!(stream.origin, Origin::Program(_)) {
            return None;
        }
        Some(
            self.accounts
                .entry(stream.first_stream())
                .or_insert_with(|| SensorAccount::new(Arc::new(stream.clone()))),
        )
    }
}

impl Update for SensorStatistics {
    fn element(&mut self, element: &ElementView<'_>) {
        let Some(account) = self.account(element.stream) else {
            return;
        };
        account.elements += 1;
        account.first.get_or_insert(element.time);
        let interrupted = std::mem::take(&mut account.interrupted);
        if let Some(last) = account.last.filter(|_| !interrupted) {
            account.intervals.record(element.time.since(last).as_ns());
        }
        account.last = Some(element.time);
        for (index, field) in account.fields.iter_mut().enumerate() {
            if let Some(value) = element.stream.schema.read(index, element.payload) {
                field.record(value);
            }
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some(account) = self.account(stream) {
            account.missed = account.missed.saturating_add(gap.missed);
            account.interrupted = true;
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        ElementView, FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Task, Timestamp,
        TypeSchema, Update,
    };

    use super::SensorStatistics;

    #[test]
    fn intervals_do_not_span_gaps_and_rates_include_what_was_missed() {
        let schema = TypeSchema::builder("t")
            .field("value", FieldKind::I32, "m")
            .build()
            .unwrap();
        let task = Task {
            pid: 1,
            start: Timestamp::ZERO,
            comm: "p".to_string(),
        };
        let stream = StreamDescriptor {
            id: StreamId::from_raw(4),
            origin: Origin::Program(task),
            sensor: "s".to_string(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(schema),
            rate: None,
            capacity: 64,
        };
        let mut statistics = SensorStatistics::default();
        statistics.announce(&Arc::new(stream.clone()));
        assert_eq!(statistics.accounts().next().unwrap().rate_hz(), None);
        let at = Timestamp::from_monotonic_ns;
        for (sequence, ns, value) in [(0, 100, -5_i32), (1, 110, 7), (4, 140, 1)] {
            if sequence == 4 {
                let gap = Gap {
                    stream: stream.id,
                    first: 2,
                    missed: 2,
                    from: at(110),
                    to: at(140),
                    cause: GapCause::Overwritten,
                };
                statistics.gap(&stream, &gap);
            }
            let payload = &value.to_ne_bytes();
            let element = ElementView {
                stream: &stream,
                sequence,
                time: at(ns),
                payload,
            };
            statistics.element(&element);
        }
        let account = statistics.accounts().next().unwrap();
        assert_eq!((account.elements, account.missed), (3, 2));
        assert_eq!(account.intervals.count(), 1);
        assert_eq!(account.rate_hz(), Some(1e8));
        let field = &account.fields[0];
        assert_eq!((field.min, field.max, field.mean()), (-5.0, 7.0, Some(1.0)));

        // Two lanes of a second sensor: one account, intervals in the order of time.
        let lanes = [0, 1].map(|lane| StreamDescriptor {
            id: StreamId::from_raw(10 + lane),
            lane: Some(lane),
            ..stream.clone()
        });
        for (lane, ns) in [(1, 200), (0, 210), (1, 230)] {
            let element = ElementView {
                stream: &lanes[lane],
                sequence: 0,
                time: at(ns),
                payload: &1_i32.to_ne_bytes(),
            };
            statistics.element(&element);
        }
        assert_eq!(statistics.accounts().count(), 2);
        let account = statistics.accounts().last().unwrap();
        assert_eq!((account.elements, account.intervals.count()), (3, 2));
        assert_eq!(account.intervals.max(), Some(20));
    }
}
