// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sink between the automata and the constraints: measurements on their way to the trials.

use overhear_event::{Gap, Nanos, Timestamp};

use super::constraint::Each;
use super::groups::Hit;
use super::tally::Excuse;
use super::trial::Trial;
use super::values::Valued;
use super::verdict::Names;
use crate::automaton::{LateGap, Measurement, Metric, Position, Sink};

/// Collects the measurements of judged metrics.
#[derive(Debug, Default)]
pub(super) struct MeasurementQueue {
    pub(super) metrics: Vec<String>,
    pub(super) results: Vec<QueuedResult>,
}

#[derive(Debug)]
pub(super) enum QueuedResult {
    Measured(Measured),
    LateGap {
        metric: usize,
        number: u64,
        gap: Gap,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) metric: usize,
    number: u64,
    task: u32,
    begin: (Timestamp, Position),
    end: (Timestamp, Position),
    length: Nanos,
    is_complete: bool,
}

impl MeasurementQueue {
    pub(super) fn index(&self, metric: &Metric) -> Option<usize> {
        self.metrics.iter().position(|name| name == metric.name())
    }
}

impl Sink for MeasurementQueue {
    fn counts_intermediate(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let Some(metric) = self.index(measurement.metric) else {
            return;
        };
        self.results.push(QueuedResult::Measured(Measured {
            metric,
            number: measurement.number,
            task: measurement.task,
            begin: (measurement.begin, measurement.begin_at),
            end: (measurement.end, measurement.end_at),
            length: measurement.length,
            is_complete: measurement.is_complete(),
        }));
    }

    fn late_gap(&mut self, late: &LateGap<'_>) {
        if let Some(metric) = self.index(late.metric) {
            self.results.push(QueuedResult::LateGap {
                metric,
                number: late.number,
                gap: *late.gap,
            });
        }
    }
}

impl Trial {
    pub(super) fn measured(&mut self, measured: &Measured, names: &Names) {
        if !self.takes(Some(measured.task), measured.end.1.stream, names) {
            return;
        }
        if !measured.is_complete || self.is_cut_before(measured.end.0) {
            self.excuse();
            return;
        }
        let group = match self.constraint().grouping() {
            Each::Task => u64::from(measured.task),
            _ => 0,
        };
        let hit = |(time, position)| Hit {
            time,
            error: Nanos::ZERO,
            margin: Nanos::ZERO,
            position,
            task: Some(measured.task),
            group,
            owner: None,
        };
        self.value(&Valued {
            value: measured.length.as_ns() as f64,
            begin: hit(measured.begin),
            end: hit(measured.end),
            excuse: Excuse::Measurement(measured.number),
        });
    }
}
