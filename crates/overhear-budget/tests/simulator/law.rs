// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program under the default law.

use overhear_budget::{
    Actuator, Budget, EventPrice, Overhead, SourceCount, SourceId, SourceSpec, ThreadKey,
    TickInput, UnavoidableOverhead, UnitCount,
};
use overhear_event::{Nanos, Timestamp};

use super::{Piece, Program, Random, Truth};

/// The kinds of simulated actuators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// They draw units themselves and stop at the burst cap, as instrumented functions do.
    Units,
    /// They are switched from tick to tick.
    Ticks,
    /// They are switched from tick to tick and count their units, as sensors do.
    Counted,
    /// They are switched, and stay for 50 ms at least, as probes do.
    Dwell,
}

pub(crate) struct Simulation {
    pub(crate) budget: Budget,
    pub(crate) program: Program,
    pub(crate) truth: Truth,
    style: Style,
    random: Random,
    ids: Vec<Option<SourceId>>,
    /// Source by index of its handle.
    by_index: Vec<usize>,
    /// The settings of each source in the budget.
    spec: Box<dyn Fn(usize, SourceSpec) -> SourceSpec>,
    /// The known price at a time, if it differs from the one before; see [`Self::run`].
    knows_changes: bool,
    known_price: Vec<f64>,
    events: Vec<u64>,
    units: Vec<UnitCount>,
    share: Vec<f64>,
    is_on: Vec<bool>,
    cap: Vec<f64>,
    capped: Vec<bool>,
    at: f64,
    cpu_ns: f64,
    /// Ticks in which a source was on although a required source was off, or had a smaller share.
    pub(crate) useless: u64,
    requires: Vec<Option<usize>>,
    /// CPU time of control per CPU time of the program. It is part of the cost.
    pub(crate) own: f64,
    own_ns: f64,
    /// Ticks are late by chance, on average by this multiple of their period.
    pub(crate) lateness: f64,
    /// Of the last tick.
    pub(crate) unavoidable: Option<UnavoidableOverhead>,
}

/// Time between ticks in seconds.
const TICK: f64 = 0.01;

impl Simulation {
    pub(crate) fn new(target: f64, program: Program, style: Style, seed: u64) -> Self {
        let target = Overhead::from_overhead(target).unwrap();
        let mut budget = Budget::new(target, Nanos::from_ms(1_000)).unwrap();
        budget.set_base(Overhead::from_overhead(program.base).unwrap());
        let n = program.sources;
        Self {
            budget,
            truth: Truth::new(n),
            style,
            random: Random::new(seed),
            ids: vec![None; n],
            by_index: Vec::new(),
            spec: Box::new(|_, spec| spec),
            knows_changes: true,
            known_price: (0..n).map(|i| (program.price_ns)(0.0, i)).collect(),
            events: vec![0; n],
            units: vec![UnitCount::default(); n],
            share: vec![0.0; n],
            is_on: vec![false; n],
            cap: vec![f64::INFINITY; n],
            capped: vec![false; n],
            at: 0.0,
            cpu_ns: 0.0,
            useless: 0,
            requires: vec![None; n],
            own: 0.0,
            own_ns: 0.0,
            lateness: 0.0,
            unavoidable: None,
            program,
        }
    }

    /// Changes the settings of the sources in the budget.
    pub(crate) fn with_spec(
        mut self,
        spec: impl Fn(usize, SourceSpec) -> SourceSpec + 'static,
    ) -> Self {
        self.spec = Box::new(spec);
        self
    }

    /// Source `i` requires source `on` (or none), which has a lower index.
    pub(crate) fn with_requirements(mut self, on: impl Fn(usize) -> Option<usize>) -> Self {
        self.requires = (0..self.program.sources).map(on).collect();
        self
    }

    pub(crate) fn id(&self, i: usize) -> SourceId {
        self.ids[i].unwrap()
    }

    /// Runs until a time in seconds.
    pub(crate) fn run(&mut self, until: f64) -> &Truth {
        // The first decision, before the program starts.
        if self.at == 0.0 {
            self.come_and_go();
            self.tick();
        }
        while self.at < until - 1e-9 {
            self.come_and_go();
            self.step();
            self.tick();
        }
        &self.truth
    }

    /// Adds sources that appear and removes those that end; a price that changed is known at once.
    fn come_and_go(&mut self) {
        for i in 0..self.program.sources {
            let exists = (self.program.cost)(self.at, i) >= 0.0;
            let true_price = (self.program.price_ns)(self.at, i);
            match (exists, self.ids[i]) {
                (true, None) => {
                    let price = EventPrice::from_ns(true_price, 0.05 * true_price).unwrap();
                    let actuator = match self.style {
                        Style::Units | Style::Ticks => Actuator::Share,
                        Style::Counted => Actuator::Switch { dwell: Nanos::ZERO },
                        Style::Dwell => Actuator::Switch {
                            dwell: Nanos::from_ms(50),
                        },
                    };
                    let mut spec = SourceSpec::new(&format!("s{i}"), price).actuator(actuator);
                    if let Some(on) = self.requires[i] {
                        spec = spec.requires(self.id(on));
                    }
                    let spec = (self.spec)(i, spec);
                    let id = self.budget.add(spec).unwrap();
                    self.ids[i] = Some(id);
                    self.by_index
                        .resize(self.by_index.len().max(id.index() + 1), 0);
                    self.by_index[id.index()] = i;
                    self.known_price[i] = true_price;
                    (self.events[i], self.units[i]) = (0, UnitCount::default());
                }
                (false, Some(id)) => {
                    self.budget.remove(id).unwrap();
                    self.ids[i] = None;
                    self.is_on[i] = false;
                    self.share[i] = 0.0;
                }
                (true, Some(id)) if true_price != self.known_price[i] && self.knows_changes => {
                    let price = EventPrice::from_ns(true_price, 0.05 * true_price).unwrap();
                    assert!(self.budget.change_price(id, price));
                    self.known_price[i] = true_price;
                }
                _ => {}
            }
        }
    }

    fn fraction(&self, i: usize) -> f64 {
        match self.style {
            Style::Units => self.share[i],
            Style::Ticks | Style::Counted | Style::Dwell => f64::from(u8::from(self.is_on[i])),
        }
    }

    /// One tick of wall time: the program uses its CPUs, and enabled sources cost their price.
    fn step(&mut self) {
        let n = self.program.sources;
        let tick = TICK * (1.0 + self.random.exponential(self.lateness));
        let all = (self.program.cpus)(self.at) * tick * 1e9;
        let own = self.own * all;
        let cpu = all - own;
        let costs: Vec<f64> = (0..n)
            .map(|i| (self.program.cost)(self.at, i).max(0.0))
            .collect();
        let prices: Vec<f64> = (0..n)
            .map(|i| (self.program.price_ns)(self.at, i))
            .collect();
        let mut is_capped = vec![false; n];
        let mut plain = 0.0;
        // A source that reaches its cap costs a fixed amount, which leaves more plain time.
        for _ in 0..4 {
            let (mut fixed, mut slope) = (0.0, 1.0 + self.program.base);
            for i in 0..n {
                if is_capped[i] {
                    fixed += self.cap[i] * prices[i];
                } else {
                    slope += self.fraction(i) * costs[i];
                }
            }
            plain = ((cpu - fixed) / slope).max(0.0);
            for i in 0..n {
                let events = self.fraction(i) * costs[i] / prices[i] * plain;
                is_capped[i] |= self.style == Style::Units && events > self.cap[i];
            }
        }
        let mut piece = Piece {
            at: self.at + tick,
            plain,
            cost: self.program.base * plain,
            full: self.program.base * plain,
            recorded: 0.0,
        };
        for i in 0..n {
            let per_event = prices[i];
            let happened = costs[i] / per_event * plain;
            let fraction = self.fraction(i);
            let mut recorded = self.random.count(fraction * happened) as f64;
            let limit = self.cap[i];
            self.capped[i] = self.style == Style::Units && recorded >= limit;
            if self.capped[i] {
                recorded = limit;
            }
            self.events[i] += recorded as u64;
            // A unit is a microsecond of the program's own time.
            let all = (plain / 1000.0) as u64;
            let on = match happened > 0.0 && self.capped[i] {
                true => recorded / happened,
                false => fraction,
            };
            self.units[i].all += all;
            self.units[i].on += ((all as f64 * on) as u64).min(all);
            self.truth.happened[i] += happened;
            self.truth.recorded[i] += recorded;
            self.truth.cost[i] += recorded * per_event;
            piece.cost += recorded * per_event;
            piece.full += happened * per_event;
            piece.recorded += recorded;
            let is_useless = self.requires[i].is_some_and(|on| !self.is_on[on] && self.is_on[i]);
            self.useless += u64::from(is_useless);
        }
        self.at += tick;
        piece.cost += own;
        self.own_ns += own;
        // Noise of the counts makes the sum of plain time and cost differ a little from `cpu`.
        self.cpu_ns += piece.plain + piece.cost;
        self.truth.pieces.push(piece);
    }

    fn tick(&mut self) {
        let units = matches!(self.style, Style::Units | Style::Counted).then_some(());
        let counts: Vec<SourceCount> = (0..self.program.sources)
            .filter_map(|i| {
                Some(SourceCount {
                    source: self.ids[i]?,
                    thread: ThreadKey::PROCESS,
                    events: self.events[i],
                    units: units.map(|()| self.units[i]),
                    is_capped: self.capped[i],
                })
            })
            .collect();
        let input = TickInput {
            now: Timestamp::from_monotonic_ns((self.at * 1e9) as u64),
            cpu: Nanos::from_ns(self.cpu_ns as u64),
            own_cpu: Nanos::from_ns(self.own_ns as u64),
            counts: &counts,
        };
        let outcome = self.budget.tick(&input).unwrap();
        self.unavoidable = outcome.unavoidable;
        for setting in outcome.settings {
            let i = self.by_index[setting.source.index()];
            self.share[i] = setting.share;
            self.is_on[i] = setting.is_on;
            self.cap[i] = setting.burst_cap.map_or(f64::INFINITY, |it| it as f64);
        }
        for i in 0..self.program.sources {
            let is_useless = self.requires[i].is_some_and(|on| self.share[i] > self.share[on]);
            self.useless += u64::from(is_useless);
        }
    }
}
