// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several metrics in one pass over the elements.

use overhear_event::kernel::{Life, Switch, SCHED_SWITCH};
use overhear_event::{
    ElementView, EventName, EventSet, Gap, StreamDescriptor, StreamId, Timestamp, Update,
};
use rustc_hash::FxHashMap;

use super::group::{Group, MetricStatistics, Moment};
use super::measurement::{Position, Sink};
use super::metric::Metric;
use super::route::{sole_task, Lives, Route};

/// How many automata a metric may have at once, unless it is told otherwise.
const INSTANCES: usize = 16_384;
/// How many sentences about unfit streams are kept.
const COMPLAINTS: usize = 32;
/// The kernel's state bits of a thread that will never run again: EXIT_DEAD, EXIT_ZOMBIE and
/// TASK_DEAD.
const DEAD: u16 = 0x10 | 0x20 | 0x80;

/// Evaluates metrics: an [`Update`] whose results go to a [`Sink`].
///
/// The elements of a stream are looked at once for all metrics; a metric that does not need the
/// stream costs nothing.
#[derive(Debug)]
pub struct Metrics<S> {
    groups: Vec<Group>,
    routes: Routes,
    /// The tasks that the present element names.
    named: Vec<Option<u32>>,
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
            named: Vec::new(),
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
        self.groups.push(Group::new(metric, index, self.instances));
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
            group.finish();
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
fn begin_lives(groups: &mut [Group], life: &Life) {
    for group in groups {
        match life.kind {
            Life::FORK => group.end(life.tid, false),
            Life::EXEC if life.parent_tid != 0 => group.rename(life.parent_tid, life.tid),
            _ => {}
        }
    }
}

/// What it says about ends, after its symbols were input.
#[inline]
fn end_lives(groups: &mut [Group], lives: Lives, element: &ElementView<'_>) {
    match lives {
        Lives::Silent => {}
        Lives::Life => {
            let life = Life::parse(element.payload).filter(|life| life.kind == Life::EXIT);
            for group in groups.iter_mut().filter(|_| life.is_some()) {
                let departs = group
                    .metric()
                    .source(&EventName::kernel(SCHED_SWITCH))
                    .is_some();
                group.end(life.map_or(0, |life| life.tid), departs);
            }
        }
        Lives::Switch => {
            let switch = Switch::parse(element.payload);
            if let Some(switch) = switch.filter(|switch| switch.prev_state & DEAD != 0) {
                for group in groups {
                    group.end(switch.prev_tid, false);
                }
            }
        }
    }
}

impl<S: Sink> Update for Metrics<S> {
    fn requires(&self) -> EventSet {
        let each = self.groups.iter().map(|group| group.metric().requires());
        each.flatten().collect()
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let groups = &mut self.groups;
        let complaints = &mut self.complaints;
        let route = self.routes.of(element.stream, || {
            let mut complain = |sentence| {
                if complaints.len() < COMPLAINTS {
                    complaints.push(sentence);
                }
            };
            Route::new(
                element.stream,
                groups.iter().map(Group::metric),
                &mut complain,
            )
        });
        if route.is_idle() {
            return;
        }
        self.ordinal += 1;
        if route.lives == Lives::Life {
            if let Some(life) = Life::parse(element.payload) {
                begin_lives(groups, &life);
            }
        }
        let held = route.held(element);
        route.name_tasks(element, &mut self.named);
        let mut counted = None;
        for rule in route.rules(held) {
            if !rule.matches(held, element) {
                continue;
            }
            let group = &mut groups[rule.metric];
            if counted != Some(rule.metric) {
                group.count(rule.source);
                counted = Some(rule.metric);
            }
            group.input(
                rule.symbol,
                self.named[rule.task],
                Moment {
                    time: element.time.minus(rule.ago(element)),
                    ordinal: self.ordinal,
                    element: Position::of(element),
                },
                rule.key(element),
                &mut self.sink,
            );
        }
        end_lives(groups, route.lives, element);
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
