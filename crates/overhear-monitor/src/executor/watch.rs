// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures evaluations: the execution time of each, the latency of each element, and whether
//! sensors keep their declared rates. An [`Analysis`] that passes every item on to the watched
//! updates.
//!
//! The clock is read before the first update and after each one: the length of a step is that of
//! one evaluation, plus any preemption. A length above the WCET is therefore checked against CPU
//! time, which is expensive to read and is read only then: the CPU time since the last reading,
//! less the whole time outside the step, is a lower bound of the step's CPU time.
//!
//! Its findings also trigger reactions ([`Watch::reacting`]): decided here, carried out elsewhere.

mod accounts;
mod judge;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;

use overhear_admission::{AfterViolation, ConformanceCheck};
use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, EventSet, Gap, GapCause, Nanos,
    StreamDescriptor, StreamId, Timestamp, IN_PLACE_BYTES,
};

use super::guarantee::{Breach, BreachCause, Guarantee, GuaranteeViolation, ViolationKind};
use super::terms::{SensorIndex, SensorTerms, Terms};
use crate::clock::Clock;
use crate::in_place::{bit, InPlaceDispatch, NextCall};
use crate::reaction::{Decider, Occurrence};
use crate::updates::MissedPolicy;
use crate::watchdog::WatchdogStats;

use accounts::{is_of_kernel, Account, CpuRing, Known, Step};
pub use accounts::{LongestStep, SensorFigures, UpdateOutcome, Watched};

type SensorOf<'a> = dyn Fn(&StreamDescriptor) -> Option<SensorIndex> + 'a;

/// Times updates and judges elements. See the module's documentation.
pub struct Watch<'a, C> {
    terms: &'a Terms,
    updates: Vec<Step<'a>>,
    clock: C,
    sensor_of: Box<SensorOf<'a>>,
    accounts: Vec<Account>,
    rings: Vec<CpuRing>,
    // By first stream, ascending.
    streams: Vec<(StreamId, Known)>,
    guarantee: Guarantee,
    judging: bool,
    // True before the guarantee begins: elements missed then do not violate it.
    settling: bool,
    measuring: bool,
    // A reading of both clocks, and whether the thread may have slept since then.
    reading: (Timestamp, Nanos),
    slept: bool,
    // Decides about reactions.
    decider: Option<Decider>,
    // The WCETs of all evaluations since the period began.
    spent: Rc<Cell<Nanos>>,
    // State of elements in place: the updates that read them, and the time of each `prepare`.
    in_place: InPlaceDispatch,
    prepared: Vec<Nanos>,
}

impl<'a, C: Clock> Watch<'a, C> {
    /// Watches `updates`, one for each of `terms.updates`. `sensor_of` returns the sensor of the
    /// terms a stream belongs to.
    pub fn new(
        terms: &'a Terms,
        updates: Vec<Watched<'a>>,
        clock: C,
        sensor_of: impl Fn(&StreamDescriptor) -> Option<SensorIndex> + 'a,
    ) -> Self {
        let account = |(index, sensor): (usize, &SensorTerms)| Account {
            sensor: SensorIndex(index),
            check: ConformanceCheck::new(sensor.constraint, AfterViolation::Ignore),
            stream: None,
            label: String::new(),
            of_kernel: false,
            holds: None,
            last: Timestamp::ZERO,
            lost: 0,
            figures: SensorFigures::default(),
        };
        let accounts = terms
            .sensors
            .iter()
            .enumerate()
            .flat_map(|(index, sensor)| (0..sensor.count).map(move |_| account((index, sensor))));
        let reading = (clock.now(), clock.cpu_time());
        let prepared = vec![Nanos::ZERO; updates.len()];
        Self {
            terms,
            updates: updates
                .into_iter()
                .map(|watched| Step {
                    watched,
                    longest: LongestStep::default(),
                    policy: MissedPolicy::Continue,
                    fate: UpdateOutcome::default(),
                    complaints: Vec::new(),
                })
                .collect(),
            clock,
            sensor_of: Box::new(sensor_of),
            accounts: accounts.collect(),
            rings: Vec::new(),
            streams: Vec::new(),
            guarantee: Guarantee::default(),
            judging: false,
            settling: true,
            measuring: false,
            reading,
            slept: false,
            decider: None,
            spent: Rc::default(),
            in_place: InPlaceDispatch::default(),
            prepared,
        }
    }

    /// Sets the policy of each update for missed elements; the default is to continue. Elements
    /// missed before the guarantee begins stop no update: they are reported as a gap, and counted.
    #[must_use]
    pub fn on_missed(mut self, policies: impl IntoIterator<Item = MissedPolicy>) -> Self {
        for (step, policy) in self.updates.iter_mut().zip(policies) {
            step.policy = policy;
        }
        self
    }

    /// Sets the decider of reactions to overruns, sensors that are too fast, and missed elements.
    #[must_use]
    pub fn reacting(mut self, decider: Decider) -> Self {
        self.decider = Some(decider);
        self
    }

    /// Reads the CPU clock at every step: slower, but preemptions are never counted.
    #[must_use]
    pub fn measuring(mut self) -> Self {
        self.measuring = true;
        self
    }

    /// Judges from the first element on, for executors without a guarantee: latencies and violated
    /// rates are of interest for them, too.
    #[must_use]
    pub fn judging(mut self) -> Self {
        self.judging = true;
        self.settling = false;
        self
    }

    /// Assigns a stream to a term. A term has the admitted number of sensors; further ones were not
    /// counted by admission.
    fn admit(&mut self, stream: &StreamDescriptor) {
        let id = stream.first_stream();
        let Err(place) = self.streams.binary_search_by_key(&id, |(id, _)| *id) else {
            return;
        };
        let term = (self.sensor_of)(stream);
        let mut accounts = self.accounts.iter();
        let account = accounts.position(|account| account.takes(term, stream));
        if let Some(account) = account {
            self.accounts[account].admit(stream);
        }
        let ring = account.filter(|_| is_of_kernel(stream)).map(|account| {
            let bound = self.accounts[account].check.stream();
            self.rings.push(CpuRing {
                check: ConformanceCheck::new(bound, AfterViolation::Ignore),
                last: Timestamp::ZERO,
                lost: 0,
            });
            self.rings.len() - 1
        });
        if self.judging && account.is_none() {
            let now = self.clock.now();
            self.guarantee.breach(Breach {
                from: now,
                at: now,
                cause: BreachCause::Unadmitted { stream: id },
            });
        }
        let known = Known {
            sensor: term.filter(|_| account.is_some()),
            account,
            ring,
            refused: 0,
        };
        self.streams.insert(place, (id, known));
    }

    /// The assignment of a stream.
    fn known(&self, stream: &StreamDescriptor) -> Known {
        let id = stream.first_stream();
        let place = self.streams.binary_search_by_key(&id, |(id, _)| *id);
        place.map_or_else(|_| Known::default(), |place| self.streams[place].1)
    }

    /// Whether all sensors of the terms have appeared.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.accounts.iter().all(|account| account.stream.is_some())
    }

    /// The terms with missing sensors, each with the number of sensors that have appeared.
    #[must_use]
    pub fn absent(&self) -> Vec<(SensorIndex, u32)> {
        let sensors = self.terms.sensors.iter().enumerate();
        let absent = sensors.filter_map(|(index, terms)| {
            let index = SensorIndex(index);
            let present = self.labels(index).count() as u32;
            (present < terms.count).then_some((index, present))
        });
        absent.collect()
    }

    /// The labels of a term's sensors.
    pub fn labels(&self, sensor: SensorIndex) -> impl Iterator<Item = &str> + '_ {
        let accounts = self.accounts.iter();
        let present = accounts.filter(move |it| it.sensor == sensor && it.stream.is_some());
        present.map(|account| account.label.as_str())
    }

    /// Starts to judge elements: a guarantee begins, or an executor without one takes over.
    pub fn begin_judging(&mut self) {
        // A sensor without a term may have been evaluated already.
        let now = self.clock.now();
        for (stream, known) in &self.streams {
            if known.account.is_none() {
                self.guarantee.breach(Breach {
                    from: now,
                    at: now,
                    cause: BreachCause::Unadmitted { stream: *stream },
                });
            }
        }
        for account in &self.accounts {
            let assumed = self.terms.sensors[account.sensor.0].buffer;
            if let Some(holds) = account.holds.filter(|holds| *holds < assumed) {
                self.guarantee.breach(Breach {
                    from: now,
                    at: now,
                    cause: BreachCause::SmallBuffer {
                        sensor: account.sensor,
                        holds,
                    },
                });
            }
        }
        self.judging = true;
        self.settling = false;
        self.mark();
    }

    /// Ends the guarantee: further elements are evaluated and not judged.
    pub(crate) fn end_judging(&mut self) {
        self.judging = false;
    }

    /// Reads both clocks at the begin of a period, and resets the spent time.
    pub(crate) fn mark(&mut self) -> (Timestamp, Nanos) {
        self.spent.set(Nanos::ZERO);
        self.reading = (self.clock.now(), self.clock.cpu_time());
        self.slept = false;
        self.reading
    }

    /// The sum of the WCETs of all evaluations that have begun since [`Watch::mark`].
    pub(crate) fn spent(&self) -> Rc<Cell<Nanos>> {
        Rc::clone(&self.spent)
    }

    /// The clock.
    pub(crate) const fn clock(&self) -> &C {
        &self.clock
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> &'a Terms {
        self.terms
    }

    /// Adds the results of a latency watchdog: if the machine was later than allowed, an assumption
    /// is broken.
    pub fn note_watchdog(&mut self, seen: &WatchdogStats) {
        for &breach in &seen.breaches {
            self.guarantee.breach(breach);
        }
    }

    /// The guarantee so far.
    #[must_use]
    pub const fn guarantee(&self) -> &Guarantee {
        &self.guarantee
    }

    pub(crate) const fn guarantee_mut(&mut self) -> &mut Guarantee {
        &mut self.guarantee
    }

    /// The figures of the sensors of each term, in the order of the terms.
    pub fn figures(&self) -> impl Iterator<Item = SensorFigures> + '_ {
        let accounts = self.accounts.as_slice();
        (0..self.terms.sensors.len()).map(move |index| {
            let own = accounts.iter().filter(|it| it.sensor.0 == index);
            own.fold(SensorFigures::default(), |sum, account| {
                sum.and(account.figures)
            })
        })
    }

    /// Streams that each update refused, in the order of the terms: a message for each.
    #[must_use]
    pub fn complaints(&self) -> Vec<Vec<String>> {
        self.updates
            .iter()
            .map(|it| it.complaints.clone())
            .collect()
    }

    /// The largest execution time of each update, in the order of the terms.
    #[must_use]
    pub fn longest(&self) -> Vec<LongestStep> {
        self.updates.iter().map(|step| step.longest).collect()
    }

    /// The outcome of each update, in the order of the terms.
    #[must_use]
    pub fn outcomes(&self) -> Vec<UpdateOutcome> {
        self.updates.iter().map(|step| step.fate).collect()
    }
}

impl<C: Clock> Analysis for Watch<'_, C> {
    fn requires(&self) -> EventSet {
        let updates = self.updates.iter();
        updates
            .flat_map(|step| step.watched.update.requires())
            .collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.admit(stream);
        let sensor = self.known(stream).sensor;
        let mut refused = 0;
        for (index, step) in self.updates.iter_mut().enumerate() {
            if !step.takes(sensor) {
                continue;
            }
            if let Some(message) = step.watched.update.refuses(stream) {
                refused |= bit(index);
                if !step.complaints.contains(&message) {
                    step.complaints.push(message);
                }
                continue;
            }
            if stream.schema.size() > IN_PLACE_BYTES {
                let reads = step.watched.reads_in_place(sensor, stream);
                self.in_place.note(stream, index, reads);
            }
            step.call(|update| update.open(stream));
        }
        let id = stream.first_stream();
        if let Ok(place) = self.streams.binary_search_by_key(&id, |(id, _)| *id) {
            self.streams[place].1.refused = refused;
        }
    }

    fn warm_up(&mut self) {
        for step in &mut self.updates {
            if step.is_called() {
                step.call(|update| update.warm_up());
            }
        }
        // The time of the warm-up belongs to no evaluation.
        self.slept = true;
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let known = self.known(element.stream);
        let sensor = known.sensor;
        if let (Some(sensor), Some(account)) = (sensor, known.account) {
            self.judge_conformance((account, known.ring), element.sequence, element.time);
            let wcet = self.terms.sensors[sensor.0].wcet;
            self.spent.set(self.spent.get().plus(wcet));
        }
        let mut begin = self.clock.now();
        self.wake(begin);
        for index in 0..self.updates.len() {
            let step = &mut self.updates[index];
            if !known.is_for(index, step) {
                continue;
            }
            step.call(|update| update.element(element));
            let end = self.clock.now();
            self.judge_step(index, sensor, element.sequence, Nanos::ZERO, (begin, end));
            begin = end;
        }
        self.judge_latency(known, element.sequence, element.time, begin);
    }

    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        let sensor = (self.sensor_of)(stream);
        let mut updates = self.updates.iter();
        updates.any(|step| step.takes(sensor) && step.watched.reads_in_place(sensor, stream))
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let key = element.key();
        let known = self.known(key.stream);
        if let Some(sensor) = known.sensor {
            let wcet = self.terms.sensors[sensor.0].wcet;
            self.spent.set(self.spent.get().plus(wcet));
        }
        let wanted = self.in_place.readers(key.stream.id);
        let copies = |(index, step): (usize, &Step<'_>)| {
            known.is_for(index, step) && wanted & bit(index) == 0
        };
        let copies = self.updates.iter().enumerate().any(copies);
        self.in_place.begin(element, copies);
        let mut begin = self.clock.now();
        self.wake(begin);
        for index in 0..self.updates.len() {
            let step = &mut self.updates[index];
            self.prepared[index] = Nanos::ZERO;
            if !known.is_for(index, step) || wanted & bit(index) == 0 {
                continue;
            }
            let mut ready = false;
            step.call(|update| ready = update.prepare(element));
            self.in_place.prepared(index, ready);
            let end = self.clock.now();
            self.prepared[index] = self.length_of_step((begin, end));
            begin = end;
        }
        true
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let known = self.known(element.stream);
        let sensor = known.sensor;
        // An overwritten element is judged by the gap that follows.
        if let Some(account) = known.account.filter(|_| valid) {
            self.judge_conformance((account, known.ring), element.sequence, element.time);
        }
        let mut begin = self.clock.now();
        self.wake(begin);
        for index in 0..self.updates.len() {
            let step = &mut self.updates[index];
            if !known.is_for(index, step) {
                continue;
            }
            match self.in_place.next_call(element.stream.id, index) {
                NextCall::Commit(ready) => {
                    step.call(|update| update.commit(element, valid && ready))
                }
                NextCall::Copy if valid => {
                    let view = self.in_place.view(element);
                    step.call(|update| update.element(&view));
                }
                NextCall::Copy | NextCall::None => continue,
            }
            let end = self.clock.now();
            if valid {
                let prepared = self.prepared[index];
                self.judge_step(index, sensor, element.sequence, prepared, (begin, end));
            }
            begin = end;
        }
        if valid {
            self.judge_latency(known, element.sequence, element.time, begin);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let known = self.known(stream);
        let settling = self.settling;
        for (index, step) in self.updates.iter_mut().enumerate() {
            if known.is_for(index, step) {
                step.call(|update| update.gap(stream, gap));
                step.fate.missed = step.fate.missed.saturating_add(gap.missed);
                if step.policy == MissedPolicy::Stop && !settling {
                    step.fate.stopped = Some(*gap);
                }
            }
        }
        let Some(account) = known.account else { return };
        let account = &mut self.accounts[account];
        let sensor = account.sensor;
        account.figures.missed = account.figures.missed.saturating_add(gap.missed);
        // These elements were written; refused writes were not.
        if matches!(
            gap.cause,
            GapCause::Overwritten | GapCause::Late | GapCause::Corrupt
        ) {
            let lost = match known.ring {
                Some(ring) => &mut self.rings[ring].lost,
                None => &mut account.lost,
            };
            *lost = lost.saturating_add(gap.missed);
        }
        if !self.judging {
            return;
        }
        let occurrence = Occurrence::Missed {
            sensor,
            first: gap.first,
            missed: gap.missed,
        };
        self.occurred(gap.to, &occurrence);
        if gap.cause == GapCause::Overwritten {
            self.guarantee.fail(GuaranteeViolation {
                at: gap.to,
                sensor,
                what: ViolationKind::Missed {
                    first: gap.first,
                    missed: gap.missed,
                },
            });
        } else {
            self.guarantee.breach(Breach {
                from: gap.from,
                at: gap.to,
                cause: BreachCause::Lost {
                    sensor,
                    missed: gap.missed,
                    cause: gap.cause,
                },
            });
        }
    }

    fn advance(&mut self, now: Timestamp) {
        for step in &mut self.updates {
            if step.is_called() {
                step.call(|update| update.advance(now));
            }
        }
        self.slept = true;
    }
}
