// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on the anomalies of samples.

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

use overhear_event::ElementView;

use super::groups::Hit;
use super::offence::{Offence, OffenceKind};
use super::tally::{Excuse, Tally};
use crate::samples::{AnomalyDetector, SampleReader};

/// Counts the anomalies of all samplers of a constraint. Each sampler has a detector.
#[derive(Debug, Default)]
pub(super) struct Anomalies {
    /// By group of streams.
    samplers: BTreeMap<u64, (SampleReader, AnomalyDetector)>,
    found: u64,
}

impl Anomalies {
    /// Judges a sample; `sampler` is the group of its stream. Anomalies above the bound offend.
    pub(super) fn take(
        &mut self,
        sampler: u64,
        element: &ElementView<'_>,
        bound: u64,
        hit: &Hit,
        tally: &mut Tally,
    ) {
        let (reader, detector) = match self.samplers.entry(sampler) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let Some(reader) = SampleReader::of(element.stream) else {
                    return;
                };
                let detector = AnomalyDetector::new(reader.quantities());
                new.insert((reader, detector))
            }
        };
        let judged = detector.judged();
        let sample = reader.read(element);
        let found = sample.and_then(|sample| detector.judge(sample, element.time));
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
        for (_, detector) in self.samplers.values_mut() {
            detector.interrupt();
        }
    }
}
