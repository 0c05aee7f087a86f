// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run evaluates besides its report, because the user asked for it: constraints and metrics.

use std::collections::BTreeMap;
use std::io::Write;

use overhear_event::{Analysis, ElementView, EventSet, Gap, Origin, StreamDescriptor, Timestamp};
use overhear_metrics::automaton::{Metric, Metrics, Summaries};
use overhear_metrics::verdict::{Case, Constraint, Judge, Verdicts};
use overhear_monitor::reaction::{ConstraintIndex, Decider, Measure, Occurrence};
use overhear_stream::Segment;

use crate::check::{self, CheckReport};
use crate::error::{ErrorKind, SessionError};
use crate::format::printable;
use crate::metrics::{self, MetricsReport};

/// Says on standard error when a constraint is violated for the first time, and when a gap takes
/// that back, and has reactions decided.
#[derive(Debug)]
pub(crate) struct Announcer {
    decider: Option<Decider>,
    // By their places.
    constraints: Vec<String>,
}

impl Announcer {
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
        if let Some(place) = self.constraints.iter().position(|known| known == name) {
            decider.occurred(at, &occurrence(ConstraintIndex(place)));
        }
    }
}

impl Judge for Announcer {
    fn offence(&mut self, case: &Case<'_>, offences: u64) {
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
            say(&format!("violated: {name}: {case}"));
        }
    }

    fn retracted(&mut self, constraint: &Constraint) {
        let name = constraint.name();
        say(&format!(
            "not violated after all: {name}: what was missed may excuse it"
        ));
    }

    fn inconclusive(&mut self, constraint: &Constraint, at: Timestamp) {
        self.occurred(constraint, at, |constraint| Occurrence::Inconclusive {
            constraint,
        });
    }
}

/// Where standard error is closed there is nobody to tell; the verdicts at the end are the same.
fn say(message: &str) {
    let line = format!("overhear: {}\n", printable(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The constraints and metrics of a run.
#[derive(Debug)]
pub(crate) struct Evaluations {
    verdicts: Verdicts<Announcer>,
    metrics: Metrics<Summaries>,
    measures: bool,
    heard: EventSet,
    // The names of programs; those of threads come with the end.
    comms: BTreeMap<u32, String>,
    segments: usize,
}

impl Evaluations {
    pub(crate) fn new(
        constraints: Vec<Constraint>,
        metrics: Vec<Metric>,
        decider: Option<Decider>,
    ) -> Result<Self, SessionError> {
        let names = constraints.iter().map(|it| it.name().to_string());
        let announcer = Announcer {
            decider,
            constraints: names.collect(),
        };
        let verdicts = check::prepare(constraints, announcer)
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
            heard: EventSet::new(),
            comms: BTreeMap::new(),
            segments: 0,
        })
    }

    /// Messages about streams that lack what is evaluated of them.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut all = self.verdicts.complaints();
        all.extend(self.metrics.complaints().iter().cloned());
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.verdicts.is_empty() && !self.measures
    }

    /// The program is released: messages count times from here on.
    pub(crate) fn count_from(&mut self, start: Timestamp) {
        self.verdicts.count_from(start);
    }

    /// How the stamps of sensors were converted so far.
    pub(crate) fn clock(&mut self, segments: &[Segment]) {
        for segment in segments.iter().skip(self.segments) {
            let error = overhear_event::Nanos::from_ns(segment.error_ns.into());
            self.verdicts.clock_error(segment.time, error);
        }
        self.segments = segments.len();
    }

    /// Ends the observation.
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
            metrics::report_of(&self.metrics, self.metrics.sink(), &self.comms, &self.heard)
        });
        (check, measured)
    }
}

impl Analysis for Evaluations {
    fn requires(&self) -> EventSet {
        let (verdicts, metrics) = (self.verdicts.requires(), self.metrics.requires());
        verdicts.into_iter().chain(metrics).collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.heard.insert(stream.event());
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
        // Verdicts one by one, as ever; whoever is told of them does not look at metrics before the
        // end.
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
