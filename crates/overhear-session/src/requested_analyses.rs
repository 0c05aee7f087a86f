// SPDX-License-Identifier: MIT OR Apache-2.0
//! The analyses that a user requests for a run: constraints and metrics.

use std::collections::BTreeMap;

use overhear_event::{Analysis, ElementView, EventSet, Gap, Origin, StreamDescriptor, Timestamp};
use overhear_metrics::automaton::{Metric, Metrics, Summaries};
use overhear_metrics::verdict::{Constraint, Judge, OffenceView, Verdicts};
use overhear_monitor::reaction::{ConstraintIndex, Decider, Measure, Occurrence};
use overhear_stream::Segment;

use crate::check::{self, CheckReport};
use crate::error::{ErrorKind, SessionError};
use crate::metrics::{self, MetricsReport};
use crate::notices::Notices;

/// Shows a message at the first offence against a constraint and at its retraction, and passes
/// offences to the decider of reactions.
#[derive(Debug)]
pub(crate) struct VerdictJudge {
    decider: Option<Decider>,
    notices: Notices,
    // Names, by constraint index.
    constraints: Vec<String>,
}

impl VerdictJudge {
    fn occurred(
        &mut self,
        constraint: &Constraint,
        at: Timestamp,
        occurrence: impl FnOnce(ConstraintIndex) -> Occurrence,
    ) {
        let Some(decider) = &mut self.decider else {
            return;
        };
        let name = constraint.name();
        if let Some(index) = self.constraints.iter().position(|known| known == name) {
            decider.occurred(at, &occurrence(ConstraintIndex(index)));
        }
    }
}

impl Judge for VerdictJudge {
    fn offence(&mut self, case: &OffenceView<'_>, offences: u64) {
        let element = case.offence.elements.iter().flatten().next();
        let element = element.map(|position| position.sequence);
        self.occurred(case.constraint, case.offence.end, |constraint| {
            Occurrence::Violated {
                constraint,
                offences,
                element,
                measure: Measure {
                    observed: case.offence.kind.observed(),
                    bound: case.offence.kind.bound(),
                    in_nanoseconds: case.is_in_nanoseconds(),
                },
            }
        });
        if offences == 1 {
            let name = case.constraint.name();
            self.notices.show(&format!("violated: {name}: {case}"));
        }
    }

    fn retracted(&mut self, constraint: &Constraint) {
        let name = constraint.name();
        self.notices.show(&format!(
            "not violated after all: {name}: what was missed may excuse it"
        ));
    }

    fn inconclusive(&mut self, constraint: &Constraint, at: Timestamp) {
        self.occurred(constraint, at, |constraint| Occurrence::Inconclusive {
            constraint,
        });
    }
}

/// The constraints and metrics of a run.
#[derive(Debug)]
pub(crate) struct RequestedAnalyses {
    verdicts: Verdicts<VerdictJudge>,
    metrics: Metrics<Summaries>,
    measures: bool,
    // Events of the streams that were opened.
    events: EventSet,
    // Names of processes; those of threads are added at the end.
    comms: BTreeMap<u32, String>,
    // Number of clock segments that the verdicts have.
    segments: usize,
}

impl RequestedAnalyses {
    pub(crate) fn new(
        constraints: Vec<Constraint>,
        metrics: Vec<Metric>,
        decider: Option<Decider>,
        notices: Notices,
    ) -> Result<Self, SessionError> {
        let names = constraints.iter().map(|it| it.name().to_string());
        let judge = VerdictJudge {
            decider,
            notices,
            constraints: names.collect(),
        };
        let verdicts = check::prepare(constraints, judge)
            .map_err(|message| SessionError::new(ErrorKind::Usage, message))?;
        let mut engine = Metrics::new(Summaries::default());
        let measures = !metrics.is_empty();
        for metric in metrics {
            engine.add(metric);
        }
        Ok(Self {
            verdicts,
            metrics: engine,
            measures,
            events: EventSet::new(),
            comms: BTreeMap::new(),
            segments: 0,
        })
    }

    /// Messages about streams without a field that a constraint or metric needs.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = self.verdicts.complaints();
        all.extend(self.metrics.complaints().iter().cloned());
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.verdicts.is_empty() && !self.measures
    }

    /// Sets the origin of times in messages.
    pub(crate) fn count_from(&mut self, start: Timestamp) {
        self.verdicts.count_from(start);
    }

    /// Adds the clock segments that are new since the last call.
    pub(crate) fn add_clock_segments(&mut self, segments: &[Segment]) {
        for segment in segments.iter().skip(self.segments) {
            let error = overhear_event::Nanos::from_ns(segment.error_ns.into());
            self.verdicts.clock_error(segment.time, error);
        }
        self.segments = segments.len();
    }

    /// Ends the observation. Returns the reports of constraints and of metrics, if there are any.
    /// `threads` are the names of threads.
    pub(crate) fn finish(
        &mut self,
        end: Timestamp,
        not_connected: u64,
        threads: impl Iterator<Item = (u32, String)>,
    ) -> (Option<CheckReport>, Option<MetricsReport>) {
        if let Some(message) = check::not_connected(not_connected) {
            self.verdicts.distrust(message);
        }
        self.comms.extend(threads);
        self.verdicts.finish(end);
        self.metrics.finish();
        let check = (!self.verdicts.is_empty()).then(|| check::report(&self.verdicts));
        let measured = self.measures.then(|| {
            metrics::report_of(
                &self.metrics,
                self.metrics.sink(),
                &self.comms,
                &self.events,
            )
        });
        (check, measured)
    }
}

impl Analysis for RequestedAnalyses {
    fn requires(&self) -> EventSet {
        let (verdicts, metrics) = (self.verdicts.requires(), self.metrics.requires());
        verdicts.into_iter().chain(metrics).collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.events.insert(stream.event());
        if let Origin::Program(task) = &stream.origin {
            self.comms.insert(task.pid, task.comm.clone());
        }
        self.verdicts.open(stream);
        self.metrics.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.verdicts.element(element);
        self.metrics.element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        // The order between the two does not matter: metrics are read at the end only.
        self.verdicts.elements(elements);
        self.metrics.elements(elements);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.verdicts.gap(stream, gap);
        self.metrics.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.verdicts.advance(now);
        self.metrics.advance(now);
    }
}
