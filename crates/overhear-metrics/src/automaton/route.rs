// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the elements of one stream mean to the metrics: names of fields become their places once,
//! when the stream appears.
//!
//! The metrics ask for much the same: a condition that several symbols have is looked at once per
//! element, a task that several name is read once. The conditions that hold, a bit each, choose a
//! [`Letter`]: all symbols of all metrics that the element is.

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Nanos, Origin, StreamDescriptor, Timestamp};

use super::check::whole_number;
use super::glance::{Concerns, Glance, Sight};
use super::metric::Metric;
use super::part::{Meaning, Part, Parts, TaskSource};
use super::pattern::BoundPattern;
use super::program::{Event, Program};
use super::reading::{Number, Probe, Test};
use super::specification::{Condition, Constant, Place, Relation, Symbol, Word};
use crate::context::WriterContext;

/// As many conditions as there may be for a table of all their combinations.
const FEW_TESTS: usize = 8;
/// The kernel's state bits of a thread that will never run again: EXIT_DEAD, EXIT_ZOMBIE and
/// TASK_DEAD.
const DEAD: u64 = 0x10 | 0x20 | 0x80;

/// The lives of threads that a stream tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lives {
    /// None.
    Silent,
    /// Their forks, execs and exits.
    Life,
    /// Their last departures. What is read is the thread; the bit that says that it will run again.
    Switch(Number, u64),
}

/// What the elements of a stream mean.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) lives: Lives,
    /// The metrics that require the stream, and as which of their sources.
    pub(super) required: Vec<(u32, u16)>,
    /// Bytes of an element; there are no shorter ones. If nobody wants to know of the elements, more than any
    /// has.
    bytes: usize,
    /// Distinct conditions, as many as a word has bits: those that are a mask and a comparison.
    probes: Vec<Probe>,
    /// And those that are more, at the bits behind them.
    tests: Vec<Test>,
    /// Distinct places where tasks are named.
    tasks: Vec<TaskSource>,
    /// Distinct fields that hold a key, or say how long ago the event was.
    numbers: Vec<Number>,
    /// By the conditions that hold, where there are few; else one, of all rules.
    letters: Vec<Letter>,
    /// The conditions that choose a letter.
    choosing: u64,
    /// Whether [`Route::matches`] has to be asked: the table of letters would be too long.
    pub(super) is_long: bool,
    /// Conditions for which the word had no bit, and the rules' places in `every`.
    further: Vec<(usize, Test)>,
    /// In whose context the elements are written, and what that costs, if intermediate events are counted.
    pub(super) context: WriterContext,
    pub(super) cost_ps: u64,
    /// Whether elements are to be seen one by one, since they are counted.
    is_counted: bool,
    /// Each rule once, in the order of the metrics, and within one in that of its symbols.
    every: Vec<Rule>,
}

/// Which rules apply to an element, by its conditions.
#[derive(Clone, Debug)]
pub(super) struct Letter {
    /// Those of plain metrics, by tasks and times.
    pub(super) sight: Sight,
    /// Whether the element only says something to plain metrics.
    pub(super) is_simple: bool,
    /// Those of others, by events.
    pub(super) events: Box<[MetricEvents]>,
    /// All if the route is long: which events these are shows by the element.
    pub(super) rules: Box<[Rule]>,
}

/// The events that an element is to one metric.
#[derive(Clone, Debug)]
pub(super) struct MetricEvents {
    pub(super) metric: u32,
    pub(super) events: Box<[EventRead]>,
}

/// No number.
const NONE: u16 = u16::MAX;

/// When an element of the stream is a certain symbol of a certain metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) metric: u32,
    pub(super) symbol: u16,
    /// Which of the route's tasks is the symbol's.
    pub(super) task: u16,
    /// Whether it is one.
    is_tasked: bool,
    /// Whether the metric is.
    pub(super) is_plain: bool,
    /// Whether the symbol [stands in](Program::stands_in) for another one of the metric.
    pub(super) stands_in: bool,
    ago: u16,
    key: u16,
    /// Its place among all rules.
    number: u16,
    /// The conditions of the route on which it depends, and which of them must hold.
    cares: u64,
    needs: u64,
}

impl Rule {
    /// Which number says how long ago it was, where that has to be told: what stands in for something else is told with
    /// what the element says for its own time.
    const fn told_ago(&self) -> u16 {
        if self.stands_in {
            NONE
        } else {
            self.ago
        }
    }
}

/// An event that an element is to a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventRead {
    pub(super) event: Event,
    /// Which of the route's tasks is the event's.
    pub(super) task: u16,
    pub(super) is_tasked: bool,
    ago: u16,
    key: u16,
}

impl EventRead {
    fn of(rule: &Rule) -> Self {
        Self {
            event: Event::default().with(rule.symbol, rule.is_tasked),
            task: rule.task,
            is_tasked: rule.is_tasked,
            ago: rule.ago,
            key: rule.key,
        }
    }

    /// Whether the rule is the same event: of the same time, and of the same task as far as both name one.
    const fn is_same(&self, rule: &Rule) -> bool {
        let same_task = self.task == rule.task || !self.is_tasked || !rule.is_tasked;
        self.ago == rule.ago && same_task
    }

    fn join(&mut self, rule: &Rule) {
        self.event = self.event.with(rule.symbol, rule.is_tasked);
        if rule.is_tasked {
            (self.task, self.is_tasked) = (rule.task, true);
        }
        if rule.key != NONE {
            self.key = rule.key;
        }
    }
}

/// Appends the events that an element is which matches these rules of one metric, in the order in which their first
/// symbols are declared.
pub(super) fn gather<'a>(rules: impl Iterator<Item = &'a Rule>, events: &mut Vec<EventRead>) {
    for rule in rules {
        match events.iter_mut().find(|event| event.is_same(rule)) {
            Some(event) => event.join(rule),
            None => events.push(EventRead::of(rule)),
        }
    }
}

/// A rule as it is found, before its conditions have bits.
struct Draft {
    rule: Rule,
    tests: Vec<Test>,
}

impl Route {
    /// Finds what the stream means to the metrics, of which some are plain: these come with their programs. Sentences
    /// about those that cannot use it, since it lacks their fields, go to `complain`. If intermediate events are counted it
    /// is known what an element costs.
    pub(super) fn new<'a>(
        stream: &StreamDescriptor,
        metrics: impl Iterator<Item = (&'a Metric, Option<&'a Program>)>,
        parts: (u32, &mut Parts),
        cost_ns: Option<f64>,
        complain: &mut dyn FnMut(String),
    ) -> Self {
        let event = stream.event();
        let mut route = Self {
            lives: Lives::Silent,
            required: Vec::new(),
            bytes: stream.schema.size() as usize,
            probes: Vec::new(),
            tests: Vec::new(),
            tasks: Vec::new(),
            numbers: Vec::new(),
            letters: Vec::new(),
            choosing: 0,
            is_long: false,
            further: Vec::new(),
            context: WriterContext::of(stream),
            cost_ps: (cost_ns.unwrap_or(0.0) * 1_000.0).round() as u64,
            is_counted: cost_ns.is_some(),
            every: Vec::new(),
        };
        let mut drafts = Vec::new();
        for (index, (metric, program)) in metrics.enumerate() {
            let Some(source) = metric.source(&event) else {
                continue;
            };
            let number = u32::try_from(index).expect("nobody adds so many metrics");
            route.required.push((number, narrow(source)));
            for (number, symbol) in metric.specification().symbols.iter().enumerate() {
                if symbol.source != event {
                    continue;
                }
                match key_and_pattern(stream, metric, symbol) {
                    Ok((key, pattern)) => {
                        drafts.push(route.draft([index, number], program, key, pattern));
                    }
                    Err(sentence) => complain(format!(
                        "metric {} cannot use {}: {sentence}",
                        metric.name(),
                        stream.schema_label()
                    )),
                }
            }
        }
        route.lives = route.lives_of(stream);
        // All probes come first: their bits are known only when all of them are.
        for probe in drafts
            .iter()
            .flat_map(|draft| &draft.tests)
            .filter_map(Probe::of)
        {
            if route.probes.len() < u64::BITS as usize {
                place_of(&mut route.probes, &probe.0);
            }
        }
        for draft in drafts {
            route.add(draft);
        }
        route.choose(parts);
        if route.every.is_empty() && route.lives == Lives::Silent && !route.is_counted {
            route.bytes = usize::MAX;
        }
        route
    }

    fn draft(
        &mut self,
        [metric, symbol]: [usize; 2],
        program: Option<&Program>,
        key: Option<Number>,
        pattern: BoundPattern,
    ) -> Draft {
        let mut number = |field: Option<Number>| {
            field.map_or(NONE, |field| narrow(place_of(&mut self.numbers, &field)))
        };
        Draft {
            rule: Rule {
                metric: u32::try_from(metric).expect("nobody adds so many metrics"),
                symbol: narrow(symbol),
                ago: number(pattern.ago),
                key: number(key),
                task: narrow(place_of(&mut self.tasks, &pattern.task)),
                is_tasked: pattern.task != TaskSource::Nobody,
                is_plain: program.is_some(),
                stands_in: program.is_some_and(|program| program.stands_in(symbol)),
                number: 0,
                cares: 0,
                needs: 0,
            },
            tests: pattern.tests,
        }
    }

    /// Gives the conditions of a rule their bits.
    fn add(&mut self, Draft { mut rule, tests }: Draft) {
        rule.number = narrow(self.every.len());
        for test in tests {
            let probe = Probe::of(&test).and_then(|(probe, holds)| {
                let place = self.probes.iter().position(|known| *known == probe)?;
                Some((place, holds))
            });
            let (place, holds) = probe.unwrap_or_else(|| {
                let place = self.probes.len() + place_of(&mut self.tests, &test);
                (place, true)
            });
            if place < u64::BITS as usize {
                if rule.cares >> place & 1 == 1 && (rule.needs >> place & 1 == 1) != holds {
                    // Opposites never hold together, and nothing is ever equal to this.
                    (rule.cares, rule.needs) = (0, 1);
                    break;
                }
                rule.cares |= 1 << place;
                rule.needs |= u64::from(holds) << place;
            } else {
                self.tests.truncate(u64::BITS as usize - self.probes.len());
                self.further.push((self.every.len(), test));
            }
        }
        self.every.push(rule);
    }

    /// Finds the rules for each combination of conditions.
    fn choose(&mut self, (number, parts): (u32, &mut Parts)) {
        let tests = self.probes.len() + self.tests.len();
        self.is_long = tests > FEW_TESTS;
        if self.is_long {
            // Nobody knows what holds.
            return self.spell((number, parts), 0, |_| true);
        }
        self.choosing = (1 << tests) - 1;
        for held in 0..=self.choosing {
            let applies = |rule: &Rule| rule.cares & held == rule.needs;
            self.spell((number, &mut *parts), held, applies);
        }
    }

    fn spell(
        &mut self,
        (route, all): (u32, &mut Parts),
        held: u64,
        applies: impl Fn(&Rule) -> bool,
    ) {
        let rules = self.every.iter().filter(|rule| applies(rule));
        let (plain, others): (Vec<Rule>, Vec<Rule>) =
            rules.partition(|rule| rule.is_plain && !self.is_long);
        let mut parts: Vec<Vec<Rule>> = Vec::new();
        for rule in by_events(&plain) {
            // The events of one metric stay in their order.
            let of_metric = |part: &Vec<Rule>| part.iter().any(|it| it.metric == rule.metric);
            let from = parts.iter().rposition(of_metric).unwrap_or(0);
            let same = |part: &&mut Vec<Rule>| {
                (part[0].task, part[0].told_ago()) == (rule.task, rule.told_ago())
            };
            match parts[from..].iter_mut().find(same) {
                Some(part) => part.push(rule),
                None => parts.push(vec![rule]),
            }
        }
        let first = all.count();
        let metrics: Vec<u32> = parts.iter().flatten().map(|rule| rule.metric).collect();
        for rules in parts {
            let task = self.tasks[usize::from(rules[0].task)];
            let ago = self.numbers.get(usize::from(rules[0].told_ago())).copied();
            all.push(Meaning {
                route,
                task,
                ago,
                rules: rules.into(),
            });
        }
        let are_plain = all.all()[first..].iter().all(Part::is_plain);
        let are_single = all.from(first).iter().all(Meaning::is_single);
        let concerns = Concerns::of(metrics.into_iter())
            .with(Concerns::NOT_PLAIN.only_if(!are_plain))
            .with(Concerns::SEVERAL.only_if(!are_single));
        let ends = match self.lives {
            Lives::Silent => false,
            Lives::Life => true,
            Lives::Switch(_, alive) => held & alive == 0,
        };
        let mut events = Vec::new();
        for rules in others.chunk_by(|a, b| a.metric == b.metric) {
            let mut of_metric = Vec::new();
            gather(rules.iter(), &mut of_metric);
            events.push(MetricEvents {
                metric: rules[0].metric,
                events: of_metric.into(),
            });
        }
        let rules = match self.is_long {
            true => others.into(),
            false => Box::default(),
        };
        self.letters.push(Letter {
            sight: Sight {
                parts: (first as u32, (all.count() - first) as u32),
                concerns,
            },
            is_simple: !ends && events.is_empty() && !self.is_counted,
            events: events.into(),
            rules,
        });
    }

    /// The lives that the stream tells of. Whether a departure is the last one is a condition like others.
    fn lives_of(&mut self, stream: &StreamDescriptor) -> Lives {
        let of_kernel = matches!(stream.origin, Origin::Kernel { .. });
        let schema = &stream.schema;
        match stream.sensor.as_str() {
            TASK_LIFE if of_kernel => Lives::Life,
            SCHED_SWITCH if of_kernel => {
                let condition = Condition {
                    field: Word::new("prev_state"),
                    relation: Relation::Lacks,
                    constant: Constant::Number(DEAD),
                    constant_at: Place::default(),
                };
                let alive = Test::of(schema, &condition);
                let probe = alive.as_ref().and_then(Probe::of);
                match (Number::of(schema, "prev_tid"), probe) {
                    (Some(thread), Some((probe, true))) => {
                        Lives::Switch(thread, 1 << place_of(&mut self.probes, &probe))
                    }
                    _ => Lives::Silent,
                }
            }
            _ => Lives::Silent,
        }
    }

    /// Whether anybody wants to know of the element, and it has all of its bytes.
    #[inline(always)]
    pub(super) fn wants(&self, element: &ElementView<'_>) -> bool {
        element.payload.len() >= self.bytes
    }

    /// To see at a glance what elements say.
    pub(super) fn glance(&self) -> Glance {
        if self.bytes == usize::MAX {
            return Glance::idle();
        }
        let glance = match self.choosing {
            0 => Glance::at(&[], self.bytes),
            _ if self.tests.is_empty() => Glance::at(&self.probes, self.bytes),
            _ => None,
        };
        glance.unwrap_or_else(Glance::blind)
    }

    /// What an element says.
    pub(super) fn sight(&self, element: &ElementView<'_>) -> Sight {
        let letter = self.letter(self.held(element));
        match letter.is_simple {
            true => letter.sight,
            false => Sight::MORE,
        }
    }

    /// What the element is where these conditions hold.
    #[inline(always)]
    pub(super) fn letter(&self, held: u64) -> &Letter {
        &self.letters[(held & self.choosing) as usize]
    }

    /// To how many tasks and for how many times an element can say something.
    pub(super) fn parts_at_most(&self) -> usize {
        let parts = self.letters.iter().map(|letter| letter.sight.count());
        parts.max().unwrap_or(0)
    }

    /// The task of an event.
    pub(super) fn task(&self, event: &EventRead, element: &ElementView<'_>) -> Option<u32> {
        self.tasks[usize::from(event.task)].named_by(element.payload)
    }

    /// Whether the element is the symbol: `held` says which conditions of the route hold.
    #[inline(never)]
    pub(super) fn matches(&self, rule: &Rule, held: u64, element: &ElementView<'_>) -> bool {
        let number = usize::from(rule.number);
        let mut further = self.further.iter().filter(|(place, _)| *place == number);
        held & rule.cares == rule.needs && further.all(|(_, test)| test.holds(element))
    }

    /// Looks at all conditions, a bit each.
    #[inline(always)]
    pub(super) fn held(&self, element: &ElementView<'_>) -> u64 {
        let mut held = 0;
        for (place, probe) in self.probes.iter().enumerate() {
            held |= u64::from(probe.holds(element.payload)) << place;
        }
        for (place, test) in (self.probes.len()..).zip(&self.tests) {
            held |= u64::from(test.holds(element)) << place;
        }
        held
    }

    /// The time of an event.
    #[inline(always)]
    pub(super) fn time_of(&self, event: &EventRead, element: &ElementView<'_>) -> Timestamp {
        let Some(field) = self.numbers.get(usize::from(event.ago)) else {
            return element.time;
        };
        let ago = field.bits(element.payload).unwrap_or(0);
        element.time.minus(Nanos::from_ns(ago))
    }

    /// The key that an event gives, if it gives one.
    #[inline(always)]
    pub(super) fn key(&self, event: &EventRead, element: &ElementView<'_>) -> Option<Option<u64>> {
        let field = self.numbers.get(usize::from(event.key))?;
        Some(field.bits(element.payload))
    }

    /// Which number says how long ago the event was, if one does.
    pub(super) fn ago_of(&self, event: &EventRead) -> Option<Number> {
        self.numbers.get(usize::from(event.ago)).copied()
    }

    /// Which number is the key that the event gives, if it gives one.
    pub(super) fn key_of(&self, event: &EventRead) -> Option<Number> {
        self.numbers.get(usize::from(event.key)).copied()
    }
}

/// The rules that name a task, those of an event one after the other, in the order of the metrics and of their events.
fn by_events(rules: &[Rule]) -> Vec<Rule> {
    let mut ordered = Vec::new();
    for rules in rules.chunk_by(|a, b| a.metric == b.metric) {
        let mut events = Vec::new();
        gather(rules.iter(), &mut events);
        for event in events {
            let of_event = rules.iter().filter(|rule| event.is_same(rule));
            ordered.extend(of_event.filter(|rule| rule.is_tasked));
        }
    }
    ordered
}

fn narrow(place: usize) -> u16 {
    u16::try_from(place).expect("the check limits the number of symbols")
}

/// The place of this one, at the end if it is new.
fn place_of<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T) -> usize {
    all.iter()
        .position(|known| known == one)
        .unwrap_or_else(|| {
            all.push(one.clone());
            all.len() - 1
        })
}

fn key_and_pattern(
    stream: &StreamDescriptor,
    metric: &Metric,
    symbol: &Symbol,
) -> Result<(Option<Number>, BoundPattern), String> {
    let schema = &stream.schema;
    let pattern = BoundPattern::new(stream, symbol)?;
    let key = metric.specification().key.as_ref();
    let key = key.filter(|key| key.symbol.text == symbol.name.text);
    if let Some(key) = key {
        whole_number(schema, symbol, &key.field).map_err(|error| error.fault.to_string())?;
    }
    let key = key.and_then(|key| Number::of(schema, &key.field.text));
    Ok((key, pattern))
}
