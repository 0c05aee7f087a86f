// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on the anomalies of samples.

use std::collections::BTreeMap;

use overhear_event::{ElementView, SampleLayout};

use super::groups::Hit;
use super::offence::{Offence, OffenceKind};
use super::tally::{Excuse, Tally};
use crate::samples::AnomalyDetector;

/// Counts the anomalies of all samplers of a constraint. Each sampler has a detector.
#[derive(Debug, Default)]
pub(super) struct Anomalies {
    /// By group of streams.
    detectors: BTreeMap<u64, AnomalyDetector>,
    found: u64,
}

impl Anomalies {
    /// Judges a sample; `sampler` is the group of its stream. Anomalies above the bound offend.
    pub(super) fn take(
        &mut self,
        sampler: u64,
        (layout, element): (&SampleLayout, &ElementView<'_>),
        bound: u64,
        hit: &Hit,
        tally: &mut Tally,
    ) {
        let schema = &element.stream.schema;
        let Some(header) = layout.header(schema, element.payload) else {
            return;
        };
        let detector = self.detectors.entry(sampler);
        let detector = detector.or_insert_with(|| AnomalyDetector::new(layout.quantities()));
        let judged = detector.judged();
        let found = detector.sample(layout, &header, element);
        tally.judged += detector.judged() - judged;
        let Some(anomaly) = found else {
            return;
        };
        self.found += 1;
        if self.found <= bound {
            return;
        }
        let score = anomaly
            .deviations
            .first()
            .map_or(0.0, |it| it.times().abs());
        let offence = Offence {
            kind: OffenceKind::Anomalous {
                job: anomaly.job,
                score,
                count: self.found,
                bound,
            },
            begin: hit.time,
            end: hit.time,
            task: hit.task,
            elements: [Some(hit.position), None],
        };
        tally.offend(offence, Excuse::None);
    }

    /// Elements were missed: no anomaly goes on.
    pub(super) fn gap(&mut self) {
        for detector in self.detectors.values_mut() {
            detector.interrupt();
        }
    }
}
