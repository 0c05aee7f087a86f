// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several metrics in one pass over the elements.

use overhear_event::kernel::Life;
use overhear_event::{ElementView, EventSet, Gap, StreamDescriptor, Timestamp, Update};

use super::check::SYMBOLS;
use super::glance::Concerns;
use super::group::{Group, Input, MetricStatistics, Moment, Shared, NO_SLOTS};
use super::hearing::Hearing;
use super::intermediate::Totals;
use super::measurement::{Position, Sink};
use super::metric::Metric;
use super::part::{is_task, sole_task};
use super::route::{gather, EventRead, Lives, MetricEvents, Route};
use super::routes::Routes;
use super::tasks::{Tasks, NOBODY};
use super::told::{say, say_all, Said, Tale, Told, FEW, SOME};

/// How many automata a metric may have at once, unless it is told otherwise.
const INSTANCES: usize = 16_384;
/// How many sentences about unfit streams are kept.
const COMPLAINTS: usize = 32;
/// As many elements are looked at together: few enough to stay in the nearest cache.
const TOGETHER: usize = 128;

/// Evaluates metrics: an [`Update`] whose results go to a [`Sink`].
///
/// Elements come in the order of their times, as from everything that calls updates.
///
/// The elements of a stream are looked at once for all metrics; a metric that does not need the
/// stream costs nothing. Where a sink counts intermediate events ([`Sink::counts_intermediate`]) these are of all streams that it is called
/// for, required or not. It is fastest with many elements at once ([`Update::elements`]): of these, the
/// measurements of one metric come in the order in which they are completed, but those of one metric may come
/// before those of another.
#[derive(Debug)]
pub struct Metrics<S> {
    groups: Vec<Group>,
    routes: Routes,
    tasks: Tasks,
    /// Whether a metric counts intermediate events.
    counts: bool,
    /// If so.
    totals: Totals,
    /// The events that an element is to one metric, while they are input.
    events: Vec<EventRead>,
    /// Which parts of elements that are looked at together say something, and behind them places to spare.
    said: Vec<Said>,
    /// Whether an element has had more than a few.
    say_much: bool,
    told: Tale,
    /// The metrics that this concerns.
    concerned: Concerns,
    sink: S,
    /// Elements so far, and those of them before the ones that are looked at together.
    counted: u64,
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
            counts: false,
            totals: Totals::new(0),
            events: Vec::with_capacity(SYMBOLS),
            said: Vec::new(),
            say_much: false,
            told: Tale::default(),
            concerned: Concerns::default(),
            sink,
            counted: 0,
            ordinal: 0,
            instances: INSTANCES,
            complaints: Vec::new(),
        }
    }

    /// How many automata each metric may have at once; for those that are added afterwards. An
    /// automaton takes some 100 bytes, and where the sink has intermediate events counted
    /// ([`Sink::counts_intermediate`]) as many more.
    #[must_use]
    pub const fn with_instances(mut self, limit: usize) -> Self {
        self.instances = limit;
        self
    }

    /// Adds a metric. It starts with the next element.
    pub fn add(&mut self, metric: Metric) {
        let index = self.groups.len();
        let group = Group::new(metric, index, self.instances, &self.sink);
        self.groups.push(group);
        let counting = self.groups.iter().filter(|group| group.counts());
        let automata: usize = counting.map(|group| group.limit).sum();
        self.counts = automata > 0;
        self.totals = Totals::new(2 * automata);
        self.routes = Routes::default();
        for group in &mut self.groups {
            group.hearing = Hearing::default();
        }
    }

    /// Takes the memory for as many automata as are permitted: from here on, elements and gaps of streams that were
    /// opened allocate nothing, as far as the sink does not.
    pub fn reserve(&mut self) {
        let limits = self.groups.iter().map(|group| group.limit);
        // Tasks that find no room have slots until the elements are evaluated that name them.
        let slots = limits.sum::<usize>() + 1 + self.told.places().max(TOGETHER);
        self.tasks.reserve(slots);
        if self.counts {
            self.totals.reserve(slots);
        }
        for group in &mut self.groups {
            group.reserve(slots);
        }
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

/// What an element says about the lives of threads, before its symbols are input: the id of a new
/// thread has no past, and an id that is taken over ends.
#[inline(never)]
fn begin_lives(
    groups: &mut [Group],
    tasks: &mut Tasks,
    totals: &mut Totals,
    element: &ElementView<'_>,
) {
    let Some(life) = Life::parse(element.payload) else {
        return;
    };
    match life.kind {
        Life::FORK => {
            end(groups, tasks, life.tid, false);
            totals.forget(life.tid);
        }
        Life::EXEC if life.parent_tid != 0 => {
            rename(groups, tasks, life.parent_tid, life.tid);
            totals.rename(life.parent_tid, life.tid);
        }
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
        for group in groups {
            group.rename(slot, new);
        }
    }
}

impl<S: Sink> Metrics<S> {
    /// Finds out what elements say from a place on, as long as they concern automata of plain metrics alone.
    /// Returns the place of the first one that does not.
    ///
    /// Elements are looked at some at once: first what they say, and then what follows from it. In short loops
    /// a processor works on several elements at a time, where one long loop makes it wait for each load of the
    /// chain from the stream to the automaton.
    #[inline(never)]
    fn listen<const PARTS: usize>(&mut self, elements: &[ElementView<'_>], from: usize) -> usize {
        let (mut till, mut count, mut concerned) = (from, 0, self.concerned);
        loop {
            let (seen, said) = (self.routes.seen(), &mut self.said[..]);
            for element in &elements[till..] {
                let Some(sight) = seen.glance(element) else {
                    break;
                };
                if say::<PARTS>(sight, till, said, count) {
                    break;
                }
                concerned = concerned.with(sight.concerns);
                count += sight.count();
                till += 1;
            }
            // What cannot be seen at a glance is rare, or what has many parts.
            let Some(element) = elements.get(till) else {
                break;
            };
            let sight = self.routes.sight(element);
            if !sight.is_all() {
                break;
            }
            self.say_much |= sight.count() > FEW;
            say_all(&sight, till, &mut self.said, count);
            concerned = concerned.with(sight.concerns);
            count += sight.count();
            till += 1;
        }
        self.concerned = concerned;
        match concerned.are_plain() {
            true => self.tell::<true>(elements, count),
            false => self.tell::<false>(elements, count),
        }
        till
    }

    /// Keeps what elements say to plain metrics by so many parts, which are plain or not.
    #[inline(never)]
    fn tell<const PLAIN: bool>(&mut self, elements: &[ElementView<'_>], said: usize) {
        let (routes, tasks) = (&self.routes, &mut self.tasks);
        let parts = routes.parts.all();
        let mut told = self.told.go_on();
        for said in &self.said[..said] {
            let element = &elements[said.at as usize];
            let part = &parts[said.part as usize];
            let found = match PLAIN {
                true => part.task(element.payload).map(|task| (task, element.time)),
                false => part
                    .task_and_ago(element.payload)
                    .map(|(task, ago)| (task, element.time.minus(ago))),
            };
            let (task, time) = match found {
                Some(found) => found,
                None => routes.parts.meaning(said.part).read(element),
            };
            if !PLAIN {
                told.may_be_late(time != element.time);
            }
            // Neither 0 nor the largest number is a task: who is none has no slot, or one for as long as this lasts.
            let is_task = is_task(task);
            let slot = match PLAIN || is_task {
                true => tasks.slot(task),
                false => NOBODY,
            };
            let this = Told {
                time,
                slot,
                meaning: said.part,
                at: said.at,
            };
            told.put(this, is_task);
        }
        told.keep();
    }

    /// Moves the automata by what was told of these elements.
    fn carry_out(&mut self, elements: &[ElementView<'_>]) {
        let concerned = std::mem::take(&mut self.concerned);
        // If the sink fails, it is not told again.
        let passage = self.told.end(elements, self.ordinal + 1, concerned);
        if passage.told.is_empty() {
            return self.tasks.sweep();
        }
        for (index, group) in self.groups.iter_mut().enumerate() {
            if !concerned.have(index) {
                continue;
            }
            group.reach(self.tasks.slots());
            group.choose(passage);
            let mut from = 0;
            while let Some((place, at)) = group.hear(passage, from, &mut self.sink) {
                let told = &passage.told[at];
                let meaning = self.routes.parts.meaning(told.meaning);
                let route = &self.routes.all[meaning.route as usize];
                let rules = meaning.rules.iter();
                let rules = rules.filter(|rule| rule.metric as usize == index);
                self.events.clear();
                gather(rules, &mut self.events);
                let element = (passage.element(told), passage.ordinal(told));
                let mut shared = Shared {
                    tasks: &mut self.tasks,
                    totals: &self.totals,
                    slots: NO_SLOTS,
                };
                input(
                    group,
                    route,
                    &self.events,
                    element,
                    &mut shared,
                    &mut self.sink,
                );
                from = place + 1;
            }
        }
        self.tasks.sweep();
    }

    /// What names an element: how many came up to it, from 1 on.
    #[inline(always)]
    const fn ordinal_of(&self, at: usize) -> u64 {
        self.ordinal + at as u64 + 1
    }

    /// Evaluates an element that is more than [`Metrics::listen`] provides for.
    #[inline(never)]
    fn evaluate(&mut self, elements: &[ElementView<'_>], at: usize) {
        let (element, ordinal) = (&elements[at], self.ordinal_of(at));
        let number = self.number_of(element.stream);
        let route = &self.routes.all[number];
        if !route.wants(element) {
            return;
        }
        if route.lives == Lives::Life {
            begin_lives(&mut self.groups, &mut self.tasks, &mut self.totals, element);
        }
        if self.counts {
            let task = route.context.thread(element.payload).unwrap_or(0);
            self.totals.count(ordinal, task, route.cost_ps, &self.tasks);
        }
        let held = route.held(element);
        let sight = route.letter(held).sight;
        say_all(&sight, at, &mut self.said, 0);
        self.tell::<false>(elements, sight.count());
        self.concerned = sight.concerns;
        self.carry_out(elements);
        let route = &self.routes.all[number];
        let (groups, tasks) = (&mut self.groups, &mut self.tasks);
        let letter = route.letter(held);
        let mut shared = Shared {
            tasks,
            totals: &self.totals,
            slots: NO_SLOTS,
        };
        let (element, sink) = ((element, ordinal), &mut self.sink);
        if route.is_long {
            for rules in letter.rules.chunk_by(|a, b| a.metric == b.metric) {
                let Some(first) = rules.first() else { continue };
                let rules = rules.iter();
                let rules = rules.filter(|rule| route.matches(rule, held, element.0));
                self.events.clear();
                gather(rules, &mut self.events);
                let group = &mut groups[first.metric as usize];
                input(group, route, &self.events, element, &mut shared, sink);
            }
        } else {
            for MetricEvents { metric, events } in &letter.events {
                let group = &mut groups[*metric as usize];
                input(group, route, events, element, &mut shared, sink);
            }
        }
        let element = element.0;
        match route.lives {
            Lives::Silent => {}
            Lives::Life => {
                end_lives(groups, tasks, element);
            }
            Lives::Switch(thread, alive) => {
                if held & alive == 0 {
                    let thread = thread.bits(element.payload).unwrap_or(0) as u32;
                    end(groups, tasks, thread, false);
                    self.totals.forget(thread);
                }
            }
        }
        tasks.sweep();
    }

    /// The number of the stream's route, which is found out if it is new.
    fn number_of(&mut self, stream: &StreamDescriptor) -> usize {
        let known = self.routes.number(stream.id);
        known.unwrap_or_else(|| self.get_to_know(stream))
    }

    /// Finds out what the elements of a stream mean. Returns the number of its route.
    #[inline(never)]
    fn get_to_know(&mut self, stream: &StreamDescriptor) -> usize {
        let complaints = &mut self.complaints;
        let mut complain = |sentence| {
            // One per sensor, which has a stream per lane or CPU.
            if complaints.len() < COMPLAINTS && !complaints.contains(&sentence) {
                complaints.push(sentence);
            }
        };
        let metrics = self.groups.iter();
        let metrics = metrics.map(|group| {
            let program = group.is_plain().then_some(&group.program);
            (group.metric(), program)
        });
        let (number, known) = (self.routes.all.len() as u32, self.routes.parts.count());
        let parts = (number, &mut self.routes.parts);
        let sink = &self.sink;
        let cost_ns = self.counts.then(|| sink.element_cost_ns(stream));
        let route = Route::new(stream, metrics, parts, cost_ns, &mut complain);
        for part in self.routes.parts.from(known) {
            for group in &mut self.groups {
                group.learn(part, &route);
            }
        }
        // As much as the elements that are looked at together can tell.
        let told = route.parts_at_most() * TOGETHER;
        if self.said.len() < told + SOME {
            self.said.resize(told + SOME, Said::default());
            self.told.reach(told);
        }
        for group in &mut self.groups {
            group.make_ready(self.told.places());
        }
        self.routes.add(stream.id, route)
    }
}

/// Hands the events that an element is to a metric to whoever heeds them, step by step.
#[inline(never)]
fn input<S: Sink>(
    group: &mut Group,
    route: &Route,
    events: &[EventRead],
    (element, ordinal): (&ElementView<'_>, u64),
    shared: &mut Shared<'_>,
    sink: &mut S,
) {
    if group.counts() && group.heeds_others() && events.len() > 1 {
        // Before one of them opens a segment of another one's task.
        for event in events {
            let slot = shared.slot(route, event, element);
            group.assign(slot, shared);
        }
    }
    for event in events {
        let input = Input {
            event: event.event,
            slot: shared.slot(route, event, element),
            moment: Moment {
                time: route.time_of(event, element),
                ordinal,
                element: Position::of(element),
            },
            key: route.key(event, element),
        };
        group.input(&input, shared, sink);
    }
}

impl<S: Sink> Update for Metrics<S> {
    fn requires(&self) -> EventSet {
        let each = self.groups.iter().map(|group| group.metric().requires());
        each.flatten().collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.number_of(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements(std::slice::from_ref(element));
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for elements in elements.chunks(TOGETHER) {
            self.ordinal = self.counted;
            // Whether or not the sink fails: a name is given once.
            self.counted += elements.len() as u64;
            let mut from = 0;
            while from < elements.len() {
                let till = match self.say_much {
                    false => self.listen::<FEW>(elements, from),
                    true => self.listen::<SOME>(elements, from),
                };
                self.carry_out(elements);
                if till < elements.len() {
                    self.evaluate(elements, till);
                }
                from = till + 1;
            }
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if gap.missed == 0 {
            return;
        }
        let number = self.number_of(stream);
        for &(metric, source) in &self.routes.all[number].required {
            let group = &mut self.groups[metric as usize];
            let is_private = group.metric().is_private(usize::from(source));
            let sole = sole_task(stream).filter(|_| is_private);
            group.gap(gap, sole, &self.tasks, &mut self.sink);
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
    use std::sync::Arc;

    use overhear_event::kernel::{Switch, SCHED_SWITCH};
    use overhear_event::{ElementView, Origin, StreamDescriptor, StreamId, Timestamp, Update};

    use super::Metrics;
    use crate::automaton::{system_metric, Measurement, Metric, Sink};

    /// Fails at its so-manyth measurement.
    #[derive(Default)]
    struct Failing {
        measured: Vec<u64>,
        at: usize,
    }

    impl Sink for Failing {
        fn counts_intermediate(&self, _: &Metric) -> bool {
            false
        }

        fn measurement(&mut self, measurement: &Measurement<'_>) {
            self.measured.push(measurement.begin.as_monotonic_ns());
            if self.measured.len() == self.at {
                // A panic that says nothing.
                resume_unwind(Box::new(()));
            }
        }
    }

    #[test]
    fn after_a_sink_has_failed_nothing_is_told_again() {
        let stream = StreamDescriptor {
            id: StreamId::from_raw(1),
            origin: Origin::Kernel { cpu: 0 },
            sensor: SCHED_SWITCH.to_owned(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(Switch::schema()),
            rate: None,
            capacity: 8,
        };
        // Two threads give way to each other.
        let payloads = [(7, 8), (8, 7)].map(|(prev_tid, next_tid)| {
            let switch = Switch {
                prev_tid,
                next_tid,
                prev_pid: 7,
                next_pid: 7,
                prev_state: 1,
                flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
                prev_run_ns: Switch::UNKNOWN,
            };
            switch.to_payload()
        });
        let element = |sequence: u64| ElementView {
            stream: &stream,
            sequence,
            time: Timestamp::from_monotonic_ns(100 + sequence),
            payload: &payloads[sequence as usize % 2],
        };
        let elements: Vec<_> = (0..20).map(element).collect();
        let mut metrics = Metrics::new(Failing {
            at: 5,
            ..Failing::default()
        });
        metrics.add(system_metric("time_slice").unwrap());
        let failed = catch_unwind(AssertUnwindSafe(|| metrics.elements(&elements[..10])));
        assert!(failed.is_err());
        metrics.elements(&elements[10..12]);
        metrics.elements(&elements[12..]);
        let mut begins = metrics.sink().measured.clone();
        let count = begins.len();
        begins.dedup();
        assert!(begins.is_sorted() && begins.len() == count, "{begins:?}");
        assert!(count > 10, "{begins:?}");
    }
}
