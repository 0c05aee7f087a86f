// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several metrics in one pass over the elements.

use overhear_event::kernel::Life;
use overhear_event::{ElementView, EventSet, Gap, StreamDescriptor, StreamId, Timestamp, Update};
use rustc_hash::FxHashMap;

use super::group::{Group, Input, MetricStatistics, Moment};
use super::measurement::{Position, Sink};
use super::metric::Metric;
use super::route::{sole_task, Lives, Route, Slots};
use super::tasks::{Tasks, NOBODY};

/// How many automata a metric may have at once, unless it is told otherwise.
const INSTANCES: usize = 16_384;
/// How many sentences about unfit streams are kept.
const COMPLAINTS: usize = 32;

/// Evaluates metrics: an [`Update`] whose results go to a [`Sink`].
///
/// The elements of a stream are looked at once for all metrics; a metric that does not need the
/// stream costs nothing.
#[derive(Debug)]
pub struct Metrics<S> {
    groups: Vec<Group>,
    routes: Routes,
    tasks: Tasks,
    /// The slots of the tasks that the present element names.
    slots: Box<Slots>,
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
            slots: Box::new([NOBODY; 1 << u8::BITS]),
            sink,
            ordinal: 0,
            instances: INSTANCES,
            complaints: Vec::new(),
        }
    }

    /// How many automata each metric may have at once; for those that are added afterwards. An
    /// automaton takes some 200 bytes and 64 more per event type.
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
        self.groups.push(group);
        self.routes = Routes::default();
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
    by_stream: FxHashMap<StreamId, usize>,
    /// Where the routes of recent elements are, by the low bits of their streams' numbers.
    near: [Option<(StreamId, usize)>; NEAR],
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            by_stream: FxHashMap::default(),
            near: [None; NEAR],
        }
    }
}

impl Routes {
    /// The route of the stream, made if it is new.
    #[inline]
    fn of(&mut self, stream: &StreamDescriptor, make: impl FnOnce() -> Route) -> &Route {
        let near = &mut self.near[stream.id.as_raw() as usize % NEAR];
        let place = match *near {
            Some((known, place)) if known == stream.id => place,
            _ => {
                let all = &mut self.all;
                let place = *self.by_stream.entry(stream.id).or_insert_with(|| {
                    all.push(make());
                    all.len() - 1
                });
                *near = Some((stream.id, place));
                place
            }
        };
        &self.all[place]
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
        for group in groups {
            group.rename(slot, new);
        }
        tasks.rename(slot, new);
    }
}

impl<S: Sink> Metrics<S> {
    #[inline(always)]
    fn evaluate(&mut self, element: &ElementView<'_>) {
        let Self {
            groups,
            routes,
            tasks,
            slots,
            sink,
            complaints,
            ..
        } = self;
        let route = routes.of(element.stream, || {
            let mut complain = |sentence| {
                if complaints.len() < COMPLAINTS {
                    complaints.push(sentence);
                }
            };
            let metrics = groups.iter();
            let metrics = metrics.map(|group| (group.metric(), group.is_plain()));
            Route::new(element.stream, metrics, &mut complain)
        });
        if route.is_idle || !route.fits(element) {
            return;
        }
        self.ordinal += 1;
        if route.lives == Lives::Life {
            begin_lives(groups, tasks, element);
        }
        let held = route.held(element);
        let mut counted = None;
        for rule in route.rules(held, element, tasks, slots) {
            if route.is_long && !route.matches(rule, held, element) {
                continue;
            }
            let group = &mut groups[rule.metric as usize];
            let input = Input {
                symbol: usize::from(rule.symbol),
                slot: slots[usize::from(rule.task)],
                moment: Moment {
                    time: element.time.minus(route.ago(rule, element)),
                    ordinal: self.ordinal,
                    element: Position::of(element),
                },
                key: route.key(rule, element),
            };
            if rule.is_plain {
                if input.slot != NOBODY {
                    group.input_plain(&input, tasks, sink);
                }
                continue;
            }
            if counted != Some(rule.metric) {
                group.see(usize::from(rule.source));
                counted = Some(rule.metric);
            }
            group.input(&input, tasks, sink);
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
        for element in elements {
            self.evaluate(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if gap.missed == 0 {
            return;
        }
        let event = stream.event();
        for group in &mut self.groups {
            if let Some(source) = group.metric().source(&event) {
                let sole = sole_task(stream).filter(|_| group.metric().is_private(source));
                group.gap(gap, sole, &mut self.sink);
            }
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}
