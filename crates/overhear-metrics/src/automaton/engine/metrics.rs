// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several metrics in one pass over the elements.

use overhear_event::kernel::Life;
use overhear_event::{Analysis, ElementView, EventSet, Gap, StreamDescriptor, Timestamp};

use super::group::{EventInput, Group, MetricStatistics, SharedState, NO_SLOTS};
use super::input::{
    push_all_parts, push_parts, InputBuffer, PartRef, TaskInput, INLINE_PARTS, MAX_INLINE_PARTS,
};
use super::input_map::InputMap;
use super::instance::Moment;
use super::intermediate::Totals;
use super::measurement::{Position, Sink};
use super::routes::Routes;
use super::tasks::{Tasks, SLOT_NONE};
use crate::automaton::compile::decoded::MetricSet;
use crate::automaton::compile::metric::Metric;
use crate::automaton::compile::route::{Lifecycle, MetricEvents, Route};
use crate::automaton::compile::rule::{collect_events, EventRead};
use crate::automaton::compile::task_source::{is_task, sole_task};
use crate::automaton::spec::check::SYMBOLS;

/// Largest number of automata per metric, unless [`Metrics::with_instances`] sets another one.
const DEFAULT_MAX_INSTANCES: usize = 16_384;
/// Largest number of complaints about streams that are kept.
const MAX_COMPLAINTS: usize = 32;
/// Elements per batch: few enough that their inputs stay in the first-level cache.
const BATCH_ELEMENTS: usize = 128;

/// Evaluates metrics: an [`Analysis`] whose results go to a [`Sink`].
///
/// Elements come in the order of their times, as from everything that calls updates.
///
/// An element is decoded once for all metrics; a metric that does not need its stream costs
/// nothing. Where a sink counts intermediate events ([`Sink::counts_intermediate`]), these are
/// elements of all streams that the update is called for, required or not.
///
/// Evaluation is fastest with many elements at once ([`Analysis::elements`]). The measurements of
/// one metric are reported in the order in which they are completed; between metrics the order
/// within such a call is not defined.
#[derive(Debug)]
pub struct Metrics<S> {
    /// Indexed by metric.
    groups: Vec<Group>,
    routes: Routes,
    tasks: Tasks,
    /// Whether a metric counts intermediate events.
    counts: bool,
    /// Totals of intermediate events, if `counts`.
    totals: Totals,
    /// Scratch: the events of one element for one metric.
    events: Vec<EventRead>,
    /// Scratch: the parts of the elements that were decoded, followed by spare entries.
    part_refs: Vec<PartRef>,
    /// Whether an element has had more than [`INLINE_PARTS`] parts.
    has_many_parts: bool,
    inputs: InputBuffer,
    /// The metrics that the buffered inputs concern.
    affected: MetricSet,
    sink: S,
    /// Number of elements so far, the current batch included.
    counted: u64,
    /// Number of elements before the current batch.
    ordinal: u64,
    /// Largest number of automata of a metric that is added.
    instances: usize,
    complaints: Vec<String>,
}

impl<S: Sink> Metrics<S> {
    /// An engine without metrics.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self {
            groups: Vec::new(),
            routes: Routes::default(),
            tasks: Tasks::default(),
            counts: false,
            totals: Totals::new(0),
            events: Vec::with_capacity(SYMBOLS),
            part_refs: Vec::new(),
            has_many_parts: false,
            inputs: InputBuffer::default(),
            affected: MetricSet::default(),
            sink,
            counted: 0,
            ordinal: 0,
            instances: DEFAULT_MAX_INSTANCES,
            complaints: Vec::new(),
        }
    }

    /// Sets the largest number of automata per metric, for metrics that are added afterwards. An
    /// automaton takes about 100 bytes, and twice that where the sink counts intermediate events
    /// ([`Sink::counts_intermediate`]).
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
            group.input_map = InputMap::default();
        }
    }

    /// Takes the memory for the largest number of automata. From here on, elements and gaps of
    /// streams that were opened allocate nothing, unless the sink does.
    pub fn reserve(&mut self) {
        let limits = self.groups.iter().map(|group| group.limit);
        // A task without room for an automaton has a slot until the current inputs are applied.
        let slots = limits.sum::<usize>() + 1 + self.inputs.capacity().max(BATCH_ELEMENTS);
        self.tasks.reserve(slots);
        if self.counts {
            self.totals.reserve(slots);
        }
        for group in &mut self.groups {
            group.reserve(slots);
        }
    }

    /// The sink.
    #[must_use]
    pub const fn sink(&self) -> &S {
        &self.sink
    }

    /// The sink, to take results out of it.
    pub const fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Ends the evaluation and returns the sink.
    #[must_use]
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// The metrics with the statistics of their automata, in the order in which they were added.
    pub fn statistics(&self) -> impl Iterator<Item = (&Metric, MetricStatistics)> {
        self.groups
            .iter()
            .map(|group| (group.metric(), group.statistics()))
    }

    /// Complaints about streams that have the name of a required event but lack a field of it.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Ends the observation: measurements that are running count as unfinished.
    pub fn finish(&mut self) {
        for group in &mut self.groups {
            group.finish(&mut self.tasks);
        }
    }
}

/// Applies forks and execs, before the element's symbols are input: a new thread gets no automaton
/// from the past of its id, and an id that an exec takes over ends.
#[inline(never)]
fn apply_births(
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
            end_task(groups, tasks, life.tid, false);
            totals.forget(life.tid);
        }
        Life::EXEC if life.parent_tid != 0 => {
            rename_task(groups, tasks, life.parent_tid, life.tid);
            totals.rename(life.parent_tid, life.tid);
        }
        _ => {}
    }
    // Slots that are found from here on are valid.
    tasks.sweep();
}

/// Applies exits, after the element's symbols were input.
#[inline(never)]
fn apply_exits(groups: &mut [Group], tasks: &mut Tasks, element: &ElementView<'_>) {
    if let Some(life) = Life::parse(element.payload).filter(|life| life.kind == Life::EXIT) {
        end_task(groups, tasks, life.tid, true);
    }
}

/// The thread has ended. With `departs_later`, its last switch is still to come for the metrics
/// that see context switches.
#[inline(never)]
fn end_task(groups: &mut [Group], tasks: &mut Tasks, thread: u32, departs_later: bool) {
    if let Some(slot) = tasks.find(thread) {
        for group in groups {
            let departs_later = departs_later && group.sees_switches;
            group.end(slot, departs_later, tasks);
        }
    }
}

/// The thread gets another id; the thread that had this id has ended.
fn rename_task(groups: &mut [Group], tasks: &mut Tasks, old: u32, new: u32) {
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
    /// Decodes elements from index `from` on, as long as they only move automata of plain metrics,
    /// and buffers their inputs. Returns the index of the first element that does more.
    ///
    /// Decoding and the resolution of tasks are two short loops over the batch: so the processor
    /// works on several elements at a time. In one long loop it would wait for each load of the
    /// chain from the stream to the automaton.
    #[inline(never)]
    fn decode_batch<const PARTS: usize>(
        &mut self,
        elements: &[ElementView<'_>],
        from: usize,
    ) -> usize {
        let (mut till, mut count, mut affected) = (from, 0, self.affected);
        loop {
            let (caches, part_refs) = (self.routes.caches(), &mut self.part_refs[..]);
            for element in &elements[till..] {
                let Some(decoded) = caches.lookup(element) else {
                    break;
                };
                if push_parts::<PARTS>(decoded, till, part_refs, count) {
                    break;
                }
                affected = affected.with(decoded.metrics);
                count += decoded.count();
                till += 1;
            }
            // A cache miss or an element of many parts: rare.
            let Some(element) = elements.get(till) else {
                break;
            };
            let decoded = self.routes.decode(element);
            if !decoded.is_fast() {
                break;
            }
            self.has_many_parts |= decoded.count() > INLINE_PARTS;
            push_all_parts(&decoded, till, &mut self.part_refs, count);
            affected = affected.with(decoded.metrics);
            count += decoded.count();
            till += 1;
        }
        self.affected = affected;
        match affected.all_direct() {
            true => self.resolve_tasks::<true>(elements, count),
            false => self.resolve_tasks::<false>(elements, count),
        }
        till
    }

    /// Resolves the task and the time of the first `count` parts, and buffers them as inputs.
    /// `DIRECT`: all parts are [direct](MetricSet::all_direct).
    #[inline(never)]
    fn resolve_tasks<const DIRECT: bool>(&mut self, elements: &[ElementView<'_>], count: usize) {
        let (routes, tasks) = (&self.routes, &mut self.tasks);
        let parts = routes.parts.hot();
        let mut inputs = self.inputs.writer();
        for part_ref in &self.part_refs[..count] {
            let element = &elements[part_ref.element as usize];
            let part = &parts[part_ref.part as usize];
            let found = match DIRECT {
                true => part.task(element.payload).map(|task| (task, element.time)),
                false => part
                    .task_and_backdate(element.payload)
                    .map(|(task, by)| (task, element.time.minus(by))),
            };
            let (task, time) = match found {
                Some(found) => found,
                None => routes.parts.info(part_ref.part).read(element),
            };
            if !DIRECT {
                inputs.mark_backdated(time != element.time);
            }
            // 0 and `u32::MAX` are not task ids. They get no slot, or a temporary one that
            // `Tasks::sweep` frees.
            let is_task = is_task(task);
            let slot = match DIRECT || is_task {
                true => tasks.slot(task),
                false => SLOT_NONE,
            };
            let input = TaskInput {
                time,
                slot,
                part: part_ref.part,
                element: part_ref.element,
            };
            inputs.push(input, is_task);
        }
        inputs.commit();
    }

    /// Moves the automata by the buffered inputs, metric by metric.
    fn apply_batch(&mut self, elements: &[ElementView<'_>]) {
        let affected = std::mem::take(&mut self.affected);
        // Emptied first, so that a sink that panics does not see this batch twice.
        let batch = self.inputs.finish(elements, self.ordinal + 1, affected);
        if batch.inputs.is_empty() {
            return self.tasks.sweep();
        }
        for (index, group) in self.groups.iter_mut().enumerate() {
            if !affected.contains(index) {
                continue;
            }
            group.grow(self.tasks.slots());
            group.filter(batch);
            let mut from = 0;
            while let Some((next, at)) = group.step_batch(batch, from, &mut self.sink) {
                let task_input = &batch.inputs[at];
                let part = self.routes.parts.info(task_input.part);
                let route = &self.routes.all[part.route as usize];
                let rules = part.rules.iter();
                let rules = rules.filter(|rule| rule.metric as usize == index);
                self.events.clear();
                collect_events(rules, &mut self.events);
                let element = (batch.element(task_input), batch.ordinal(task_input));
                let mut shared = SharedState {
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
                from = next + 1;
            }
        }
        self.tasks.sweep();
    }

    /// The ordinal of an element of the current batch: its number among all elements, from 1 on.
    #[inline(always)]
    const fn ordinal_of(&self, at: usize) -> u64 {
        self.ordinal + at as u64 + 1
    }

    /// The slow path: evaluates an element that [`Metrics::decode_batch`] does not handle.
    #[inline(never)]
    fn evaluate(&mut self, elements: &[ElementView<'_>], at: usize) {
        let (element, ordinal) = (&elements[at], self.ordinal_of(at));
        let number = self.route_number(element.stream);
        let route = &self.routes.all[number];
        if !route.wants(element) {
            return;
        }
        if route.lifecycle == Lifecycle::Life {
            apply_births(&mut self.groups, &mut self.tasks, &mut self.totals, element);
        }
        if self.counts {
            let task = route.context.thread(element.payload).unwrap_or(0);
            self.totals.count(ordinal, task, route.cost_ps, &self.tasks);
        }
        let held = route.held_conditions(element);
        let decoded = route.symbol_set(held).decoded;
        push_all_parts(&decoded, at, &mut self.part_refs, 0);
        self.resolve_tasks::<false>(elements, decoded.count());
        self.affected = decoded.metrics;
        self.apply_batch(elements);
        let route = &self.routes.all[number];
        let (groups, tasks) = (&mut self.groups, &mut self.tasks);
        let symbol_set = route.symbol_set(held);
        let mut shared = SharedState {
            tasks,
            totals: &self.totals,
            slots: NO_SLOTS,
        };
        let (element, sink) = ((element, ordinal), &mut self.sink);
        if route.is_untabled {
            for rules in symbol_set.rules.chunk_by(|a, b| a.metric == b.metric) {
                let Some(first) = rules.first() else { continue };
                let rules = rules.iter();
                let rules = rules.filter(|rule| route.matches(rule, held, element.0));
                self.events.clear();
                collect_events(rules, &mut self.events);
                let group = &mut groups[first.metric as usize];
                input(group, route, &self.events, element, &mut shared, sink);
            }
        } else {
            for MetricEvents { metric, events } in &symbol_set.events {
                let group = &mut groups[*metric as usize];
                input(group, route, events, element, &mut shared, sink);
            }
        }
        let element = element.0;
        match route.lifecycle {
            Lifecycle::None => {}
            Lifecycle::Life => {
                apply_exits(groups, tasks, element);
            }
            Lifecycle::Switch(thread, alive) => {
                if held & alive == 0 {
                    let thread = thread.bits(element.payload).unwrap_or(0) as u32;
                    end_task(groups, tasks, thread, false);
                    self.totals.forget(thread);
                }
            }
        }
        tasks.sweep();
    }

    /// The route number of the stream, which is registered if it is new.
    fn route_number(&mut self, stream: &StreamDescriptor) -> usize {
        let known = self.routes.number(stream.id);
        known.unwrap_or_else(|| self.register_stream(stream))
    }

    /// Builds the route of a new stream and maps its parts for each metric. Returns the route
    /// number.
    #[inline(never)]
    fn register_stream(&mut self, stream: &StreamDescriptor) -> usize {
        let complaints = &mut self.complaints;
        let mut complain = |message| {
            // One per sensor, which has a stream per lane or CPU.
            if complaints.len() < MAX_COMPLAINTS && !complaints.contains(&message) {
                complaints.push(message);
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
        for part in self.routes.parts.info_from(known) {
            for group in &mut self.groups {
                group.bind_part(part, &route);
            }
        }
        // The most inputs that a batch can have.
        let inputs = route.max_parts() * BATCH_ELEMENTS;
        if self.part_refs.len() < inputs + MAX_INLINE_PARTS {
            self.part_refs
                .resize(inputs + MAX_INLINE_PARTS, PartRef::default());
            self.inputs.reserve(inputs);
        }
        for group in &mut self.groups {
            group.prepare(self.inputs.capacity());
        }
        self.routes.add(stream.id, route)
    }
}

/// Hands the events of one element to the automata of one metric, one event after the other.
#[inline(never)]
fn input<S: Sink>(
    group: &mut Group,
    route: &Route,
    events: &[EventRead],
    (element, ordinal): (&ElementView<'_>, u64),
    shared: &mut SharedState<'_>,
    sink: &mut S,
) {
    if group.counts() && group.watches_others() && events.len() > 1 {
        // Before one of the events opens a segment of another event's task.
        for event in events {
            let slot = shared.slot(route, event, element);
            group.assign(slot, shared);
        }
    }
    for event in events {
        let input = EventInput {
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

impl<S: Sink> Analysis for Metrics<S> {
    fn requires(&self) -> EventSet {
        let each = self.groups.iter().map(|group| group.metric().requires());
        each.flatten().collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.route_number(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.elements(std::slice::from_ref(element));
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for elements in elements.chunks(BATCH_ELEMENTS) {
            self.ordinal = self.counted;
            // Before the sink is called: an ordinal is used once, even if the sink panics.
            self.counted += elements.len() as u64;
            let mut from = 0;
            while from < elements.len() {
                let till = match self.has_many_parts {
                    false => self.decode_batch::<INLINE_PARTS>(elements, from),
                    true => self.decode_batch::<MAX_INLINE_PARTS>(elements, from),
                };
                self.apply_batch(elements);
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
        let number = self.route_number(stream);
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

    use overhear_event::kernel::{Switch, SCHED_SWITCH};
    use overhear_event::{Analysis, ElementView, Origin, StreamDescriptor, StreamId, Timestamp};

    use super::Metrics;
    use crate::automaton::{system_metric, Measurement, Metric, Sink};

    /// Panics at measurement number `at`, from 1 on.
    #[derive(Default)]
    struct PanickingSink {
        measured: Vec<u64>,
        at: usize,
    }

    impl Sink for PanickingSink {
        fn counts_intermediate(&self, _: &Metric) -> bool {
            false
        }

        fn measurement(&mut self, measurement: &Measurement<'_>) {
            self.measured.push(measurement.begin.as_monotonic_ns());
            if self.measured.len() == self.at {
                // A panic without a message.
                resume_unwind(Box::new(()));
            }
        }
    }

    #[test]
    fn panicking_sink_sees_no_measurement_twice() {
        let stream = StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::Kernel { cpu: 0 },
            SCHED_SWITCH,
            Switch::schema(),
        );
        // Two threads switch to each other.
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
        let mut metrics = Metrics::new(PanickingSink {
            at: 5,
            ..PanickingSink::default()
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
