// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several metrics in one pass over the elements.

use overhear_event::kernel::Life;
use overhear_event::{ElementView, EventSet, Gap, StreamDescriptor, StreamId, Timestamp, Update};
use rustc_hash::FxHashMap;

use super::group::{Group, Input, MetricStatistics, Moment};
use super::joint::{Joint, State, Told};
use super::measurement::{Position, Sink};
use super::metric::Metric;
use super::program::Effects;
use super::route::{sole_task, Letter, Lives, Meaning, Parts, Route, Rule};
use super::tasks::{Tasks, NOBODY};

/// How many automata a metric may have at once, unless it is told otherwise.
const INSTANCES: usize = 16_384;
/// How many sentences about unfit streams are kept.
const COMPLAINTS: usize = 32;

/// Evaluates metrics: an [`Update`] whose results go to a [`Sink`].
///
/// The elements of a stream are looked at once for all metrics; a metric that does not need the
/// stream costs nothing. It is fastest with many elements at once ([`Update::elements`]).
#[derive(Debug)]
pub struct Metrics<S> {
    groups: Vec<Group>,
    routes: Routes,
    tasks: Tasks,
    joint: Joint,
    told: Vec<Told>,
    sink: S,
    ordinal: u64,
    instances: usize,
    complaints: Vec<String>,
}

impl<S: Sink> Metrics<S> {
    /// No metric yet.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self {
            groups: Vec::new(),
            routes: Routes::default(),
            tasks: Tasks::default(),
            joint: Joint::default(),
            told: Vec::new(),
            sink,
            ordinal: 0,
            instances: INSTANCES,
            complaints: Vec::new(),
        }
    }

    /// How many automata each metric may have at once; for those that are added afterwards. An
    /// automaton takes some 100 bytes, and where the sink has intermediate elements counted
    /// ([`Sink::counts_intermediate`]) 40 more per event type.
    #[must_use]
    pub const fn with_instances(mut self, limit: usize) -> Self {
        self.instances = limit;
        self
    }

    /// Adds a metric. It starts with the next element.
    pub fn add(&mut self, metric: Metric) {
        let index = self.groups.len();
        let tallies = self.sink.counts_intermediate(&metric);
        let group = Group::new(metric, index, self.instances, tallies);
        self.tasks.widen(group.program().start());
        self.groups.push(group);
        self.routes = Routes::default();
        self.joint = Joint::default();
    }

    /// What takes the results.
    #[must_use]
    pub const fn sink(&self) -> &S {
        &self.sink
    }

    /// What takes the results, to take them out.
    pub const fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Gives back what takes the results.
    #[must_use]
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// The metrics and what their automata have done so far, in the order in which they were
    /// added.
    pub fn statistics(&self) -> impl Iterator<Item = (&Metric, MetricStatistics)> {
        self.groups
            .iter()
            .map(|group| (group.metric(), group.statistics()))
    }

    /// Sentences about streams that bear the name of a required event but lack a field.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Ends the observation: what is still being measured counts as unfinished.
    pub fn finish(&mut self) {
        for group in &mut self.groups {
            group.finish(&mut self.tasks);
        }
    }
}

/// Places for streams whose routes are found without asking the index.
const NEAR: usize = 32;

/// The routes of the streams.
#[derive(Debug)]
struct Routes {
    all: Vec<Route>,
    /// What their letters say to plain metrics.
    parts: Parts,
    by_stream: FxHashMap<StreamId, u32>,
    /// The streams of recent elements and the numbers of their routes, by the low bits of the streams'.
    near: [(StreamId, u32); NEAR],
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            parts: Parts::default(),
            by_stream: FxHashMap::default(),
            // There are never so many routes.
            near: [(StreamId::from_raw(0), u32::MAX); NEAR],
        }
    }
}

impl Routes {
    /// The stream's route, if it is known and one of a recent element.
    #[inline(always)]
    fn near(&self, stream: StreamId) -> Option<&Route> {
        let (known, number) = self.near[stream.as_raw() as usize % NEAR];
        let route = self.all.get(number as usize);
        route.filter(|_| known == stream)
    }

    /// The number of the stream's route, `None` if it is new.
    #[inline(never)]
    fn number(&mut self, stream: StreamId) -> Option<usize> {
        let number = *self.by_stream.get(&stream)?;
        self.near[stream.as_raw() as usize % NEAR] = (stream, number);
        Some(number as usize)
    }

    fn add(&mut self, stream: StreamId, route: Route) -> usize {
        self.by_stream.insert(stream, self.all.len() as u32);
        self.all.push(route);
        self.all.len() - 1
    }

    fn meaning(&self, told: &Told) -> &Meaning {
        self.parts.meaning(told.meaning)
    }
}

/// What an element says about the lives of threads, before its symbols are input: the id of a new
/// thread has no past, and an id that is taken over ends.
#[inline(never)]
fn begin_lives(groups: &mut [Group], tasks: &mut Tasks, element: &ElementView<'_>) {
    let Some(life) = Life::parse(element.payload) else {
        return;
    };
    match life.kind {
        Life::FORK => end(groups, tasks, life.tid, false),
        Life::EXEC if life.parent_tid != 0 => rename(groups, tasks, life.parent_tid, life.tid),
        _ => {}
    }
    // What is looked up from here on is looked up anew.
    tasks.sweep();
}

/// What it says about ends, after its symbols were input.
#[inline(never)]
fn end_lives(groups: &mut [Group], tasks: &mut Tasks, element: &ElementView<'_>) {
    if let Some(life) = Life::parse(element.payload).filter(|life| life.kind == Life::EXIT) {
        end(groups, tasks, life.tid, true);
    }
}

/// The thread has ended. `departs`: who hears of departures hears of its last one later.
#[inline(never)]
fn end(groups: &mut [Group], tasks: &mut Tasks, thread: u32, departs: bool) {
    if let Some(slot) = tasks.find(thread) {
        for group in groups {
            let departs = departs && group.hears_departures;
            group.end(slot, departs, tasks);
        }
    }
}

/// The thread goes on under another id, and who had that one has ended.
fn rename(groups: &mut [Group], tasks: &mut Tasks, old: u32, new: u32) {
    if let Some(slot) = tasks.find(new) {
        for group in groups.iter_mut() {
            group.remove(slot, tasks);
        }
        tasks.sweep();
    }
    if let Some(slot) = tasks.find(old) {
        tasks.rename(slot, new);
    }
}

impl<S: Sink> Metrics<S> {
    /// Finds out what an element says, if that concerns automata of plain metrics alone.
    ///
    /// Elements are looked at some at once, first what they mean and then what follows from it: two short
    /// loops, in which a processor works on several elements at a time, where one long loop makes it wait
    /// for each load of the chain from the stream to the automaton.
    #[inline(always)]
    fn hear(&mut self, element: &ElementView<'_>, ordinal: u64) -> bool {
        let Some(route) = self.routes.near(element.stream.id) else {
            return false;
        };
        if !route.wants(element) {
            return true;
        }
        let letter = route.letter(route.held(element));
        if letter.is_simple {
            let told = &mut self.told;
            tell(
                route,
                letter,
                element,
                ordinal,
                &self.routes.parts,
                &mut self.tasks,
                told,
            );
        }
        letter.is_simple
    }

    /// Moves the automata by what was told of these elements.
    #[inline(never)]
    fn carry_out(&mut self, elements: &[ElementView<'_>]) {
        let first = self.ordinal_of(0);
        let mut all = std::mem::take(&mut self.told);
        for told in &all {
            let (state, mut own) = self.tasks.at(told.slot);
            let mut step = self.joint.get(*state, told.part);
            *state = step.to();
            if step.to() == State::UNKNOWN {
                let (groups, tasks) = (&self.groups, &mut self.tasks);
                match self.joint.learn(groups, tasks, told.slot, told.part) {
                    Some(learned) => step = learned,
                    None => {
                        self.input_part(told, elements);
                        continue;
                    }
                }
                (_, own) = self.tasks.at(told.slot);
            }
            if told.has_keys {
                let element = &elements[(told.ordinal - first) as usize];
                give_keys(&mut self.groups, &self.routes, told, element);
            }
            for stride in self.joint.strides(step) {
                let instance = &mut own[usize::from(stride.metric)];
                instance.go(stride.to, stride.effects, told.time);
                // Most only go on.
                if stride.effects.has(Effects::MEASURING) {
                    let group = &mut self.groups[usize::from(stride.metric)];
                    group.measure(stride.effects, instance, told, &mut self.sink);
                }
            }
        }
        all.clear();
        self.told = all;
        self.tasks.sweep();
    }

    /// What names an element: how many came up to it, from 1 on.
    #[inline(always)]
    const fn ordinal_of(&self, at: usize) -> u64 {
        self.ordinal + at as u64 + 1
    }

    /// Hands the symbols of a part to the automata step by step.
    #[inline(never)]
    fn input_part(&mut self, told: &Told, elements: &[ElementView<'_>]) {
        let element = &elements[(told.ordinal - self.ordinal_of(0)) as usize];
        let meaning = self.routes.meaning(told);
        let route = &self.routes.all[meaning.route as usize];
        for rule in &meaning.rules {
            let (groups, tasks) = (&mut self.groups, &mut self.tasks);
            input(
                groups,
                tasks,
                &mut self.sink,
                route,
                rule,
                element,
                told.ordinal,
            );
        }
    }

    /// Evaluates an element that is more than [`Metrics::hear`] provides for.
    #[inline(never)]
    fn evaluate(&mut self, elements: &[ElementView<'_>], at: usize) {
        let (element, ordinal) = (&elements[at], self.ordinal_of(at));
        let number = match self.routes.number(element.stream.id) {
            Some(number) => number,
            None => self.get_to_know(element),
        };
        let route = &self.routes.all[number];
        if !route.wants(element) {
            return;
        }
        if route.lives == Lives::Life {
            begin_lives(&mut self.groups, &mut self.tasks, element);
        }
        let held = route.held(element);
        let (letter, told) = (route.letter(held), &mut self.told);
        tell(
            route,
            letter,
            element,
            ordinal,
            &self.routes.parts,
            &mut self.tasks,
            told,
        );
        self.carry_out(elements);
        let route = &self.routes.all[number];
        let (groups, tasks) = (&mut self.groups, &mut self.tasks);
        let mut seen = None;
        for rule in &route.letter(held).rules {
            if !route.is_long || route.matches(rule, held, element) {
                if seen != Some(rule.metric) {
                    groups[rule.metric as usize].see(usize::from(rule.source));
                    seen = Some(rule.metric);
                }
                let sink = &mut self.sink;
                input(groups, tasks, sink, route, rule, element, ordinal);
            }
        }
        match route.lives {
            Lives::Silent => {}
            Lives::Life => end_lives(groups, tasks, element),
            Lives::Switch(thread, alive) => {
                if held & alive == 0 {
                    let thread = thread.bits(element.payload).unwrap_or(0);
                    end(groups, tasks, thread as u32, false);
                }
            }
        }
        tasks.sweep();
    }

    /// Finds out what the elements of a stream mean, by its first one. Returns the number of its route.
    #[inline(never)]
    fn get_to_know(&mut self, element: &ElementView<'_>) -> usize {
        let complaints = &mut self.complaints;
        let mut complain = |sentence| {
            if complaints.len() < COMPLAINTS {
                complaints.push(sentence);
            }
        };
        let metrics = self.groups.iter();
        let metrics = metrics.map(|group| (group.metric(), group.is_plain()));
        let number = self.routes.all.len() as u32;
        let parts = (number, &mut self.routes.parts);
        let route = Route::new(
            element.stream,
            metrics,
            &mut self.joint,
            parts,
            &mut complain,
        );
        // There may be parts that were not known.
        self.joint.forget(&mut self.tasks);
        self.routes.add(element.stream.id, route)
    }
}

/// Keeps the keys that an element gives to what it is told of.
#[inline(never)]
fn give_keys(groups: &mut [Group], routes: &Routes, told: &Told, element: &ElementView<'_>) {
    for &(metric, field) in &routes.meaning(told).keys {
        let key = field.bits(element.payload);
        groups[metric as usize].set_key(told.slot, key, told.ordinal);
    }
}

/// Keeps what the element says to plain metrics.
#[inline(always)]
fn tell(
    route: &Route,
    letter: &Letter,
    element: &ElementView<'_>,
    ordinal: u64,
    parts: &Parts,
    tasks: &mut Tasks,
    told: &mut Vec<Told>,
) {
    let (first, behind) = letter.parts;
    for number in first..behind {
        if let Some((part, task)) = parts.heard(number, element.payload) {
            told.push(Told {
                time: route.time_of_part(part, element),
                element: Position::of(element),
                ordinal,
                slot: tasks.slot(task),
                part: part.part,
                meaning: number,
                has_keys: part.has_keys,
            });
        }
    }
}

/// Hands a symbol to whoever heeds it, step by step.
#[inline(never)]
fn input<S: Sink>(
    groups: &mut [Group],
    tasks: &mut Tasks,
    sink: &mut S,
    route: &Route,
    rule: &Rule,
    element: &ElementView<'_>,
    ordinal: u64,
) {
    let task = route.task(rule, element);
    let slot = task.map_or(NOBODY, |task| tasks.slot(task));
    let input = Input {
        symbol: usize::from(rule.symbol),
        slot,
        moment: Moment {
            time: route.time_of(rule, element),
            ordinal,
            element: Position::of(element),
        },
        key: route.key(rule, element),
    };
    groups[rule.metric as usize].input(&input, tasks, sink);
    if rule.is_plain {
        tasks.forget_state(slot);
    }
}

impl<S: Sink> Update for Metrics<S> {
    fn requires(&self) -> EventSet {
        let each = self.groups.iter().map(|group| group.metric().requires());
        each.flatten().collect()
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements(std::slice::from_ref(element));
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for (at, element) in elements.iter().enumerate() {
            if !self.hear(element, self.ordinal_of(at)) {
                self.carry_out(elements);
                self.evaluate(elements, at);
            }
        }
        self.carry_out(elements);
        self.ordinal += elements.len() as u64;
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if gap.missed == 0 {
            return;
        }
        let event = stream.event();
        for group in &mut self.groups {
            if let Some(source) = group.metric().source(&event) {
                self.tasks.forget_states();
                let sole = sole_task(stream).filter(|_| group.metric().is_private(source));
                group.gap(gap, sole, &mut self.tasks, &mut self.sink);
            }
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}
