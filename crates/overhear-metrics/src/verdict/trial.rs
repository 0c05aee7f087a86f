// SPDX-License-Identifier: MIT OR Apache-2.0
//! A constraint with everything that is known of it.

use std::collections::BTreeSet;

use overhear_event::{ElementView, EventName, Gap, Nanos, StreamDescriptor, StreamId, Timestamp};

use super::anomalies::Anomalies;
use super::constraint::{Constraint, Demand, Each, TaskFilter};
use super::groups::Hit;
use super::offence::{Offence, OffenceKind};
use super::rhythm::{Distances, Rates};
use super::sequence::{Deadlines, Orders};
use super::tally::{Excuse, Tally};
use super::values::{judge_bounds, Quantiles, Spreads, Valued};
use super::verdict::{Names, OffenceView, Outcome, Reason, Verdict};
use crate::automaton::process;

/// State of a trial, by the kind of its demand.
#[derive(Debug)]
enum State {
    Bounds,
    Quantiles(Quantiles),
    Spreads(Spreads),
    Rates(Rates),
    Distances(Distances),
    Never,
    Anomalies(Anomalies),
    Orders(Orders),
    Deadlines(Deadlines),
}

#[derive(Debug)]
pub(super) struct Trial {
    constraint: Constraint,
    state: State,
    tally: Tally,
    /// Unit of its values, once it is known.
    unit: String,
    present: BTreeSet<EventName>,
    unfit: Vec<String>,
    /// Whether a task that its filter accepts was seen.
    has_met: bool,
    /// Whether elements are missing that the tally does not count.
    lacks: bool,
    /// Whether the judge got a report that it is inconclusive.
    reported: bool,
}

impl Trial {
    pub(super) fn new(constraint: Constraint) -> Self {
        let state = match constraint.demand() {
            Demand::Bounds { .. } => State::Bounds,
            Demand::Quantile { .. } => State::Quantiles(Quantiles::default()),
            Demand::Spread { .. } => State::Spreads(Spreads::default()),
            Demand::Rate {
                window,
                at_least,
                at_most,
                ..
            } => State::Rates(Rates::new(*window, *at_least, *at_most)),
            Demand::Period { period, jitter, .. } => {
                let least = period.as_ns().saturating_sub(jitter.as_ns());
                State::Distances(Distances::new(Nanos::from_ns(least), period.plus(*jitter)))
            }
            Demand::Absence { at_most, .. } => {
                State::Distances(Distances::new(Nanos::ZERO, *at_most))
            }
            Demand::Never { .. } => State::Never,
            Demand::Anomalies { .. } => State::Anomalies(Anomalies::default()),
            Demand::Order { of } => State::Orders(Orders::new(of.len())),
            Demand::Deadline { within, .. } => State::Deadlines(Deadlines::new(*within)),
        };
        let unit = match constraint.demand().metric() {
            Some(_) => "ns",
            None => "",
        };
        Self {
            constraint,
            state,
            tally: Tally::default(),
            unit: unit.to_owned(),
            present: BTreeSet::new(),
            unfit: Vec::new(),
            has_met: false,
            lacks: false,
            reported: false,
        }
    }

    pub(super) const fn constraint(&self) -> &Constraint {
        &self.constraint
    }

    /// A stream with the required fields exists. `unit` is that of the judged field.
    pub(super) fn note_stream(&mut self, event: EventName, unit: Option<&str>) {
        let patterns = self.constraint.demand().patterns();
        for (role, pattern) in patterns.into_iter().enumerate() {
            if *pattern.source() == event {
                self.tally.note_stream(role);
            }
        }
        self.exists(event);
        if let Some(unit) = unit {
            unit.clone_into(&mut self.unit);
        }
    }

    fn exists(&mut self, event: EventName) {
        if self.constraint.sources().any(|source| *source == event) {
            self.present.insert(event);
        }
    }

    /// A stream exists that lacks a required field.
    pub(super) fn complain(&mut self, event: EventName, message: String) {
        self.exists(event);
        // A program that registers the same sensor again and again causes one complaint.
        if self.unfit.len() < 8 && !self.unfit.contains(&message) {
            self.unfit.push(message);
        }
    }

    /// Complaints about streams that lack a required field.
    pub(super) fn unfit(&self) -> &[String] {
        &self.unfit
    }

    /// A task with this name exists.
    pub(super) fn meet(&mut self, task: u32, name: &str) {
        let filter = self.constraint.task_filter();
        self.has_met |= filter.is_some_and(|filter| filter.takes(Some(task), Some(name)));
    }

    /// Whether an element of this stream is judged for the task.
    pub(super) fn takes(&self, task: Option<u32>, stream: StreamId, names: &Names) -> bool {
        self.constraint.task_filter().is_none_or(|filter| {
            let name = task.and_then(|task| names.judged(task, stream));
            filter.takes(task, name)
        })
    }

    /// Whether the events of this program are judged; those of the kernel have a task in their
    /// fields.
    fn concerns(&self, stream: &StreamDescriptor) -> bool {
        match (self.constraint.task_filter(), process(stream)) {
            // The tasks of a laned sensor are threads of this process, whose names differ.
            (Some(_), Some(_)) if stream.lane.is_some() => true,
            (Some(filter @ TaskFilter::Name(_)), Some((pid, name))) => {
                filter.takes(Some(pid), Some(name))
            }
            _ => true,
        }
    }

    /// Judges a number.
    pub(super) fn value(&mut self, valued: &Valued) {
        match (self.constraint.demand(), &mut self.state) {
            (Demand::Bounds { min, max, .. }, _) => {
                judge_bounds(*min, *max, valued, &mut self.tally);
            }
            (Demand::Quantile { at_most, .. }, State::Quantiles(quantiles)) => {
                quantiles.take(*at_most, valued, &mut self.tally);
            }
            (Demand::Spread { at_most, .. }, State::Spreads(spreads)) => {
                spreads.take(*at_most, valued, &mut self.tally);
            }
            _ => {}
        }
    }

    /// A measurement with missed elements cannot be judged.
    pub(super) fn excuse(&mut self) {
        self.tally.excused += 1;
    }

    /// An event happened. `role` is the index of the demand's pattern.
    pub(super) fn event(&mut self, role: usize, hit: &Hit) {
        let tally = &mut self.tally;
        match &mut self.state {
            State::Rates(rates) => rates.take(hit, tally),
            State::Distances(distances) => distances.take(hit, tally),
            State::Never => {
                tally.judged += 1;
                let offence = Offence {
                    kind: OffenceKind::Happened,
                    begin: hit.time,
                    end: hit.time,
                    task: hit.task,
                    elements: [Some(hit.position), None],
                };
                tally.offend(offence, Excuse::None);
            }
            State::Orders(orders) => orders.take(role, hit, tally),
            State::Deadlines(deadlines) if role == 0 => deadlines.begin_wait(hit, tally),
            State::Deadlines(deadlines) => deadlines.answer(hit, tally),
            State::Bounds | State::Quantiles(_) | State::Spreads(_) | State::Anomalies(_) => {}
        }
    }

    /// Judges a sample; `sampler` is the group of its stream.
    pub(super) fn sample(&mut self, sampler: u64, element: &ElementView<'_>, hit: &Hit) {
        if let (Demand::Anomalies { at_most, .. }, State::Anomalies(anomalies)) =
            (self.constraint.demand(), &mut self.state)
        {
            anomalies.take(sampler, element, *at_most, hit, &mut self.tally);
        }
    }

    /// Nothing older than this can still come.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let tally = &mut self.tally;
        match &mut self.state {
            State::Rates(rates) => rates.expire(now, tally),
            State::Distances(distances) => distances.expire(now, tally),
            State::Orders(orders) => orders.expire(now, tally),
            State::Deadlines(deadlines) => deadlines.expire(now, tally),
            State::Bounds
            | State::Quantiles(_)
            | State::Spreads(_)
            | State::Never
            | State::Anomalies(_) => {}
        }
    }

    /// Whether it waits for an event or a time.
    pub(super) const fn is_timed(&self) -> bool {
        matches!(
            self.state,
            State::Rates(_) | State::Distances(_) | State::Orders(_) | State::Deadlines(_)
        )
    }

    /// Elements of this stream were missed. Returns whether it is no longer violated.
    pub(super) fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) -> bool {
        if self.constraint.demand().metric().is_some() || !self.concerns(stream) {
            return false;
        }
        let event = stream.event();
        let patterns = self.constraint.demand().patterns();
        if !patterns.iter().any(|pattern| *pattern.source() == event) {
            return false;
        }
        let answers = self.answers(&event);
        let is_sample = self.is_sample(gap);
        let tally = &mut self.tally;
        let count = match is_sample {
            true => &mut tally.sampled_out,
            false => &mut tally.missed,
        };
        *count = count.saturating_add(gap.missed);
        if gap.cause.is_deliberate() && !is_sample {
            tally.left_out = tally.left_out.saturating_add(gap.missed);
        }
        let only = match self.constraint.grouping() {
            Each::Sensor if process(stream).is_some() => Some(sensor_group(stream)),
            _ => None,
        };
        let owner = process(stream).map(|(pid, _)| pid);
        match &mut self.state {
            State::Rates(rates) => rates.gap(only, tally),
            State::Distances(distances) => distances.gap(only, tally),
            State::Orders(orders) => orders.gap(only, owner, tally),
            State::Deadlines(deadlines) if answers => deadlines.gap(only),
            // A missed question excuses no answer.
            State::Deadlines(_) => return false,
            State::Anomalies(anomalies) => anomalies.gap(),
            State::Bounds | State::Quantiles(_) | State::Spreads(_) | State::Never => {}
        }
        let retracted = tally.retracted;
        let is_acquitted = tally.retract(gap);
        if is_sample {
            // For a sample, these count only as not judged.
            tally.retracted = retracted;
        }
        is_acquitted
    }

    /// Whether a budget left these elements out, of the observation or of the recording, and the
    /// constraint judges the rest as a sample.
    pub(super) fn is_sample(&self, gap: &Gap) -> bool {
        self.constraint.is_sampled() && gap.cause.is_deliberate()
    }

    /// Whether elements of this event can be answers to a deadline.
    fn answers(&self, event: &EventName) -> bool {
        let patterns = self.constraint.demand().patterns();
        matches!(patterns.last(), Some(last) if last.source() == event)
    }

    /// This stream is unreadable after a time. Returns whether it is no longer violated.
    pub(super) fn cut(&mut self, stream: &StreamDescriptor, at: Timestamp) -> bool {
        let event = stream.event();
        let speaks = match self.state {
            // As for a gap: an unreadable question excuses no answer.
            State::Deadlines(_) => self.answers(&event),
            _ => self.constraint.sources().any(|source| *source == event),
        };
        speaks && self.concerns(stream) && self.tally.cut(at)
    }

    /// Whether something before this time is unknown.
    pub(super) fn is_cut_before(&self, time: Timestamp) -> bool {
        self.tally.is_cut_before(time)
    }

    /// Elements were missed in a measurement that was judged already.
    pub(super) fn retract(&mut self, number: u64, gap: &Gap) -> bool {
        if let State::Spreads(spreads) = &mut self.state {
            spreads.retract(number);
        }
        let retracted = self.tally.retracted;
        let is_acquitted = self.tally.retract_measurement(number, gap);
        if self.is_sample(gap) {
            self.tally.retracted = retracted;
        }
        is_acquitted
    }

    /// A task or process has ended.
    pub(super) fn end(&mut self, task: u32) {
        match &mut self.state {
            State::Rates(rates) => rates.end(task),
            State::Distances(distances) => distances.end(task),
            State::Orders(orders) => orders.end(task),
            State::Deadlines(deadlines) => deadlines.end(task),
            State::Bounds
            | State::Quantiles(_)
            | State::Spreads(_)
            | State::Never
            | State::Anomalies(_) => {}
        }
    }

    /// The observation ends. The second argument is the number of missed elements of its metric's
    /// events.
    pub(super) fn finish(&mut self, metric_missed: u64) {
        if let (
            Demand::Quantile {
                fraction, at_most, ..
            },
            State::Quantiles(quantiles),
        ) = (self.constraint.demand(), &mut self.state)
        {
            // A missed element is at most one value of a field, but any number of measurements.
            let unknown = match self.constraint.demand().metric() {
                _ if self.tally.is_cut_before(Timestamp::MAX) => None,
                Some(_) if metric_missed > 0 => None,
                Some(_) if self.tally.excused > 0 && !self.constraint.is_sampled() => None,
                _ => Some(self.tally.missed),
            };
            quantiles.decide(*fraction, *at_most, unknown, &mut self.tally);
        }
    }

    /// The offences that the judge has not got yet, and whether the first of them is the first of
    /// all.
    pub(super) fn take_fresh(&mut self) -> Vec<Offence> {
        std::mem::take(&mut self.tally.fresh)
    }

    pub(super) fn has_fresh(&self) -> bool {
        !self.tally.fresh.is_empty()
    }

    /// Elements of its events are missing: the verdict cannot be *held* any more.
    pub(super) fn lack(&mut self) {
        self.lacks = true;
    }

    /// Whether it can no longer be *held*, is not violated, and this was not reported to the judge.
    pub(super) fn turns_inconclusive(&mut self) -> bool {
        let tally = &self.tally;
        let counted = [
            tally.missed,
            tally.retracted,
            tally.uncertain,
            tally.refused,
        ];
        let lacks = self.lacks || counted.iter().any(|&count| count > 0) || !self.unfit.is_empty();
        let turns = !self.reported && lacks && !tally.is_violated();
        self.reported |= turns;
        turns
    }

    pub(super) fn offences(&self) -> u64 {
        self.tally.offences()
    }

    pub(super) fn view<'a>(&'a self, offence: &'a Offence, names: &'a Names) -> OffenceView<'a> {
        OffenceView {
            constraint: &self.constraint,
            offence,
            unit: &self.unit,
            names,
        }
    }

    pub(super) fn verdict<'a>(
        &'a self,
        names: &'a Names,
        metric: MetricLosses,
        observation: &[String],
    ) -> Verdict<'a> {
        let tally = &self.tally;
        let mut reasons = Vec::new();
        let left_out = tally.left_out.saturating_add(metric.left_out);
        let missed = tally.missed.saturating_add(metric.missed);
        if missed > left_out {
            reasons.push(Reason::Missed(missed - left_out));
        }
        if left_out > 0 {
            reasons.push(Reason::LeftOut(left_out));
        }
        let sampled_out = tally.sampled_out.saturating_add(metric.sampled_out);
        if tally.retracted > 0 {
            reasons.push(Reason::Doubted(tally.retracted));
        }
        if tally.uncertain > 0 {
            reasons.push(Reason::ClockError(tally.uncertain));
        }
        let absent = self.constraint.sources().collect::<BTreeSet<_>>();
        let absent = absent
            .into_iter()
            .filter(|event| !self.present.contains(*event))
            .cloned();
        reasons.extend(absent.map(Reason::NoStream));
        let refused = tally.refused.saturating_add(metric.refused);
        if refused > 0 {
            reasons.push(Reason::NoRoom(refused));
        }
        reasons.extend(self.unfit.iter().cloned().map(Reason::Unfit));
        reasons.extend(observation.iter().cloned().map(Reason::Observation));
        let filter = self.constraint.task_filter();
        if let Some(filter) = filter.filter(|_| tally.judged == 0 && !self.has_met) {
            reasons.push(Reason::NoTask(filter.to_string()));
        }
        let may_be_empty = matches!(self.state, State::Never);
        if reasons.is_empty() && tally.judged == 0 && !may_be_empty {
            reasons.push(Reason::NothingJudged);
        }
        let outcome = match (tally.is_violated(), reasons.is_empty()) {
            (true, _) => Outcome::Violated,
            (false, true) => Outcome::Held,
            (false, false) => Outcome::Inconclusive,
        };
        if sampled_out > 0 {
            reasons.push(Reason::Sampled(sampled_out));
        }
        Verdict {
            constraint: &self.constraint,
            outcome,
            judged: tally.judged,
            offences: tally.offences(),
            first: tally.first().map(|offence| self.view(offence, names)),
            reasons,
        }
    }
}

/// Elements that the metric of a constraint did not get.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MetricLosses {
    pub(super) missed: u64,
    /// Those of them that a budget left out.
    pub(super) left_out: u64,
    /// Left out by a budget, if the constraint judges a sample.
    pub(super) sampled_out: u64,
    pub(super) refused: u64,
}

/// The group of all elements of one sensor.
pub(super) fn sensor_group(stream: &StreamDescriptor) -> u64 {
    // Zero is the group of kernel elements.
    u64::from(stream.first_stream().as_raw()) + 1
}
