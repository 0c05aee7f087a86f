// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the elements of one stream mean to the metrics. Names of fields become offsets once, when
//! the stream appears.
//!
//! The metrics need much the same: a condition that several symbols have is tested once per
//! element, a task that several symbols name is read once. The conditions that hold, a bit each,
//! select a [`SymbolSet`]: all symbols of all metrics that the element is.

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Nanos, Origin, StreamDescriptor, Timestamp};

use super::decoded::{Decoded, MetricSet};
use super::fields::{MaskTest, NumberField, Test};
use super::metric::Metric;
use super::part::{PartHot, PartInfo, Parts};
use super::pattern::BoundPattern;
use super::program::Program;
use super::rule::{by_events, collect_events, EventRead, Rule, NO_FIELD};
use super::task_source::TaskSource;
use crate::automaton::spec::check::whole_number;
use crate::automaton::spec::specification::{
    Condition, Constant, Relation, Symbol, TextPosition, Word,
};
use crate::context::WriterContext;

/// Largest number of conditions for which there is a table of all combinations.
const MAX_TABLE_TESTS: usize = 8;
/// The kernel's state bits of a thread that will never run again: EXIT_DEAD, EXIT_ZOMBIE and
/// TASK_DEAD.
const DEAD: u64 = 0x10 | 0x20 | 0x80;

/// The information of a stream about the lifecycle of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// Nothing.
    None,
    /// Forks, execs and exits.
    Life,
    /// The last switch of a thread that ended: the field with the thread that leaves the CPU, and
    /// the bit of the condition that it will run again.
    Switch(NumberField, u64),
}

/// What selects the symbol set of an element.
pub(crate) enum Selection<'a> {
    /// Nothing: no metric uses the elements.
    Constant,
    /// Tests of a mask and a comparison, in payloads of this number of bytes.
    Masks(&'a [MaskTest], usize),
    /// Other tests, too.
    General,
}

/// What the elements of a stream mean.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) lifecycle: Lifecycle,
    /// The metrics that require the stream: index of the metric, and of the source in it.
    pub(crate) required: Vec<(u32, u16)>,
    /// Bytes of a payload; shorter ones are ignored. `usize::MAX` if no metric uses the elements.
    bytes: usize,
    /// Distinct conditions that are a mask and a comparison, at most 64: the lowest bits of a set
    /// of conditions.
    masks: Vec<MaskTest>,
    /// Other distinct conditions: the bits after those of `masks`, 64 in all.
    tests: Vec<Test>,
    /// Distinct task sources.
    tasks: Vec<TaskSource>,
    /// Distinct fields that hold a key, or the nanoseconds of a backdated symbol.
    numbers: Vec<NumberField>,
    /// Indexed by the set of conditions that hold; a single one, of all rules, if
    /// [untabled](Route::is_untabled).
    symbol_sets: Vec<SymbolSet>,
    /// The conditions that select a symbol set.
    selector_mask: u64,
    /// Whether the rules of the symbol set have to be tested by [`Route::matches`], because there
    /// are [too many](MAX_TABLE_TESTS) conditions for a table.
    pub(crate) is_untabled: bool,
    /// Conditions without a bit, with the number of their rule.
    extra_tests: Vec<(usize, Test)>,
    /// In whose context the elements are written.
    pub(crate) context: WriterContext,
    /// Cost of writing an element, in picoseconds; 0 unless intermediate events are counted.
    pub(crate) cost_ps: u64,
    /// Whether intermediate events are counted, so that each element takes the slow path.
    is_counted: bool,
    /// All rules, in the order of the metrics, and within a metric of its symbols.
    rules: Vec<Rule>,
}

/// The symbols of all metrics that an element is.
#[derive(Clone, Debug)]
pub(crate) struct SymbolSet {
    /// The parts: rules of plain metrics, by task and time.
    pub(crate) decoded: Decoded,
    /// Whether the element does nothing else than to move automata of plain metrics.
    pub(crate) is_simple: bool,
    /// The events of other metrics.
    pub(crate) events: Box<[MetricEvents]>,
    /// If the route is [untabled](Route::is_untabled): all rules, of which the element decides.
    pub(crate) rules: Box<[Rule]>,
}

/// The events that an element is to one metric.
#[derive(Clone, Debug)]
pub(crate) struct MetricEvents {
    pub(crate) metric: u32,
    pub(crate) events: Box<[EventRead]>,
}

/// A rule whose conditions have no bits yet.
struct PendingRule {
    rule: Rule,
    tests: Vec<Test>,
}

impl Route {
    /// Builds the route of a stream. A metric that is plain comes with its program. `parts` is the
    /// number of the route and the list to which its parts are appended; `cost_ns` the cost of an
    /// element, if intermediate events are counted. `complain` gets a message for each symbol that
    /// cannot use the stream, because that lacks a field.
    pub(crate) fn new<'a>(
        stream: &StreamDescriptor,
        metrics: impl Iterator<Item = (&'a Metric, Option<&'a Program>)>,
        parts: (u32, &mut Parts),
        cost_ns: Option<f64>,
        complain: &mut dyn FnMut(String),
    ) -> Self {
        let event = stream.event();
        let mut route = Self {
            lifecycle: Lifecycle::None,
            required: Vec::new(),
            bytes: stream.schema.size() as usize,
            masks: Vec::new(),
            tests: Vec::new(),
            tasks: Vec::new(),
            numbers: Vec::new(),
            symbol_sets: Vec::new(),
            selector_mask: 0,
            is_untabled: false,
            extra_tests: Vec::new(),
            context: WriterContext::of(stream),
            cost_ps: (cost_ns.unwrap_or(0.0) * 1_000.0).round() as u64,
            is_counted: cost_ns.is_some(),
            rules: Vec::new(),
        };
        let mut all_pending = Vec::new();
        for (index, (metric, program)) in metrics.enumerate() {
            let Some(source) = metric.source(&event) else {
                continue;
            };
            let number = u32::try_from(index).expect("there are fewer than 2^32 metrics");
            route.required.push((number, narrow(source)));
            for (number, symbol) in metric.specification().symbols.iter().enumerate() {
                if symbol.source != event {
                    continue;
                }
                match key_and_pattern(stream, metric, symbol) {
                    Ok((key, pattern)) => {
                        all_pending.push(route.pending([index, number], program, key, pattern));
                    }
                    Err(message) => complain(format!(
                        "metric {} cannot use {}: {message}",
                        metric.name(),
                        stream.schema_label()
                    )),
                }
            }
        }
        route.lifecycle = route.lifecycle_of(stream);
        // Masks come first: the bits of the other tests are known only when all masks are.
        for test in all_pending
            .iter()
            .flat_map(|pending| &pending.tests)
            .filter_map(MaskTest::of)
        {
            if route.masks.len() < u64::BITS as usize {
                index_of(&mut route.masks, &test.0);
            }
        }
        for pending in all_pending {
            route.add(pending);
        }
        route.build_symbol_sets(parts);
        if route.rules.is_empty() && route.lifecycle == Lifecycle::None && !route.is_counted {
            route.bytes = usize::MAX;
        }
        route
    }

    fn pending(
        &mut self,
        [metric, symbol]: [usize; 2],
        program: Option<&Program>,
        key: Option<NumberField>,
        pattern: BoundPattern,
    ) -> PendingRule {
        let mut number = |field: Option<NumberField>| {
            field.map_or(NO_FIELD, |field| {
                narrow(index_of(&mut self.numbers, &field))
            })
        };
        PendingRule {
            rule: Rule {
                metric: u32::try_from(metric).expect("there are fewer than 2^32 metrics"),
                symbol: narrow(symbol),
                backdate_by: number(pattern.backdate_by),
                key: number(key),
                task: narrow(index_of(&mut self.tasks, &pattern.task)),
                is_tasked: pattern.task != TaskSource::NoTask,
                is_plain: program.is_some(),
                is_fallback: program.is_some_and(|program| program.is_fallback(symbol)),
                number: 0,
                tested_mask: 0,
                required_mask: 0,
            },
            tests: pattern.tests,
        }
    }

    /// Gives the conditions of a rule their bits and adds the rule.
    fn add(&mut self, PendingRule { mut rule, tests }: PendingRule) {
        rule.number = narrow(self.rules.len());
        for test in tests {
            let mask = MaskTest::of(&test).and_then(|(mask, holds)| {
                let bit = self.masks.iter().position(|known| *known == mask)?;
                Some((bit, holds))
            });
            let (bit, holds) = mask.unwrap_or_else(|| {
                let bit = self.masks.len() + index_of(&mut self.tests, &test);
                (bit, true)
            });
            if bit < u64::BITS as usize {
                if rule.tested_mask >> bit & 1 == 1 && (rule.required_mask >> bit & 1 == 1) != holds
                {
                    // A condition and its opposite: these masks match no set of conditions.
                    (rule.tested_mask, rule.required_mask) = (0, 1);
                    break;
                }
                rule.tested_mask |= 1 << bit;
                rule.required_mask |= u64::from(holds) << bit;
            } else {
                self.tests.truncate(u64::BITS as usize - self.masks.len());
                self.extra_tests.push((self.rules.len(), test));
            }
        }
        self.rules.push(rule);
    }

    /// Builds the symbol set of each set of conditions.
    fn build_symbol_sets(&mut self, (number, parts): (u32, &mut Parts)) {
        let tests = self.masks.len() + self.tests.len();
        self.is_untabled = tests > MAX_TABLE_TESTS;
        if self.is_untabled {
            // One set of all rules; each element tests them.
            return self.add_symbol_set((number, parts), 0, |_| true);
        }
        self.selector_mask = (1 << tests) - 1;
        for held in 0..=self.selector_mask {
            let applies = |rule: &Rule| rule.tested_mask & held == rule.required_mask;
            self.add_symbol_set((number, &mut *parts), held, applies);
        }
    }

    fn add_symbol_set(
        &mut self,
        (route, all): (u32, &mut Parts),
        held: u64,
        applies: impl Fn(&Rule) -> bool,
    ) {
        let rules = self.rules.iter().filter(|rule| applies(rule));
        let (plain, others): (Vec<Rule>, Vec<Rule>) =
            rules.partition(|rule| rule.is_plain && !self.is_untabled);
        let mut parts: Vec<Vec<Rule>> = Vec::new();
        for rule in by_events(&plain) {
            // The events of one metric keep their order.
            let of_metric = |part: &Vec<Rule>| part.iter().any(|it| it.metric == rule.metric);
            let from = parts.iter().rposition(of_metric).unwrap_or(0);
            let same = |part: &&mut Vec<Rule>| {
                (part[0].task, part[0].part_backdate()) == (rule.task, rule.part_backdate())
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
            let backdate = usize::from(rules[0].part_backdate());
            let backdate_by = self.numbers.get(backdate).copied();
            all.push(PartInfo {
                route,
                task,
                backdate_by,
                rules: rules.into(),
            });
        }
        let all_direct = all.hot()[first..].iter().all(PartHot::is_direct);
        let all_single = all.info_from(first).iter().all(PartInfo::is_single);
        let metrics = MetricSet::of(metrics.into_iter())
            .with(MetricSet::NOT_DIRECT.only_if(!all_direct))
            .with(MetricSet::SEVERAL.only_if(!all_single));
        let ends = match self.lifecycle {
            Lifecycle::None => false,
            Lifecycle::Life => true,
            Lifecycle::Switch(_, alive) => held & alive == 0,
        };
        let mut events = Vec::new();
        for rules in others.chunk_by(|a, b| a.metric == b.metric) {
            let mut of_metric = Vec::new();
            collect_events(rules.iter(), &mut of_metric);
            events.push(MetricEvents {
                metric: rules[0].metric,
                events: of_metric.into(),
            });
        }
        let rules = match self.is_untabled {
            true => others.into(),
            false => Box::default(),
        };
        self.symbol_sets.push(SymbolSet {
            decoded: Decoded {
                parts: (first as u32, (all.count() - first) as u32),
                metrics,
            },
            is_simple: !ends && events.is_empty() && !self.is_counted,
            events: events.into(),
            rules,
        });
    }

    /// The information of the stream about threads. Whether a switch is the last one of its thread
    /// is a condition like others.
    fn lifecycle_of(&mut self, stream: &StreamDescriptor) -> Lifecycle {
        let of_kernel = matches!(stream.origin, Origin::Kernel { .. });
        let schema = &stream.schema;
        match stream.sensor.as_str() {
            TASK_LIFE if of_kernel => Lifecycle::Life,
            SCHED_SWITCH if of_kernel => {
                let condition = Condition {
                    field: Word::new("prev_state"),
                    relation: Relation::Lacks,
                    constant: Constant::Number(DEAD),
                    constant_at: TextPosition::default(),
                };
                let alive = Test::of(schema, &condition);
                let mask = alive.as_ref().and_then(MaskTest::of);
                match (NumberField::of(schema, "prev_tid"), mask) {
                    (Some(thread), Some((mask, true))) => {
                        Lifecycle::Switch(thread, 1 << index_of(&mut self.masks, &mask))
                    }
                    _ => Lifecycle::None,
                }
            }
            _ => Lifecycle::None,
        }
    }

    /// Whether a metric uses the element, and it has all of its bytes.
    #[inline(always)]
    pub(crate) fn wants(&self, element: &ElementView<'_>) -> bool {
        element.payload.len() >= self.bytes
    }

    /// What selects the symbol set of an element.
    pub(crate) fn selection(&self) -> Selection<'_> {
        if self.bytes == usize::MAX {
            return Selection::Constant;
        }
        match self.selector_mask {
            0 => Selection::Masks(&[], self.bytes),
            _ if self.tests.is_empty() => Selection::Masks(&self.masks, self.bytes),
            _ => Selection::General,
        }
    }

    /// What an element means to plain metrics; [`Decoded::SLOW_PATH`] if it does more.
    pub(crate) fn decode(&self, element: &ElementView<'_>) -> Decoded {
        let symbol_set = self.symbol_set(self.held_conditions(element));
        match symbol_set.is_simple {
            true => symbol_set.decoded,
            false => Decoded::SLOW_PATH,
        }
    }

    /// The symbols of an element for which these conditions hold.
    #[inline(always)]
    pub(crate) fn symbol_set(&self, held: u64) -> &SymbolSet {
        &self.symbol_sets[(held & self.selector_mask) as usize]
    }

    /// The largest number of parts of an element.
    pub(crate) fn max_parts(&self) -> usize {
        let parts = self
            .symbol_sets
            .iter()
            .map(|symbol_set| symbol_set.decoded.count());
        parts.max().unwrap_or(0)
    }

    /// The task of an event.
    pub(crate) fn task(&self, event: &EventRead, element: &ElementView<'_>) -> Option<u32> {
        self.tasks[usize::from(event.task)].named_by(element.payload)
    }

    /// Whether the element is the symbol of the rule; `held` is its set of conditions.
    #[inline(never)]
    pub(crate) fn matches(&self, rule: &Rule, held: u64, element: &ElementView<'_>) -> bool {
        let number = usize::from(rule.number);
        let mut extra = self.extra_tests.iter().filter(|(rule, _)| *rule == number);
        held & rule.tested_mask == rule.required_mask && extra.all(|(_, test)| test.holds(element))
    }

    /// Tests all conditions. Returns the set of those that hold, a bit each.
    #[inline(always)]
    pub(crate) fn held_conditions(&self, element: &ElementView<'_>) -> u64 {
        let mut held = 0;
        for (bit, mask) in self.masks.iter().enumerate() {
            held |= u64::from(mask.holds(element.payload)) << bit;
        }
        for (bit, test) in (self.masks.len()..).zip(&self.tests) {
            held |= u64::from(test.holds(element)) << bit;
        }
        held
    }

    /// The time of an event.
    #[inline(always)]
    pub(crate) fn time_of(&self, event: &EventRead, element: &ElementView<'_>) -> Timestamp {
        let Some(field) = self.numbers.get(usize::from(event.backdate_by)) else {
            return element.time;
        };
        let by = field.bits(element.payload).unwrap_or(0);
        element.time.minus(Nanos::from_ns(by))
    }

    /// The key that an event gives, if it gives one; the inner value is `None` if the payload is
    /// too short.
    #[inline(always)]
    pub(crate) fn key(&self, event: &EventRead, element: &ElementView<'_>) -> Option<Option<u64>> {
        let field = self.numbers.get(usize::from(event.key))?;
        Some(field.bits(element.payload))
    }

    /// The field with the nanoseconds by which the event is backdated, if it is.
    pub(crate) fn backdate_of(&self, event: &EventRead) -> Option<NumberField> {
        self.numbers.get(usize::from(event.backdate_by)).copied()
    }

    /// The field of the key that the event gives, if it gives one.
    pub(crate) fn key_of(&self, event: &EventRead) -> Option<NumberField> {
        self.numbers.get(usize::from(event.key)).copied()
    }
}

fn narrow(index: usize) -> u16 {
    u16::try_from(index).expect("the check limits the number of symbols")
}

/// The index of `one`, which is appended if it is new.
fn index_of<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T) -> usize {
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
) -> Result<(Option<NumberField>, BoundPattern), String> {
    let schema = &stream.schema;
    let pattern = BoundPattern::new(stream, symbol)?;
    let key = metric.specification().key.as_ref();
    let key = key.filter(|key| key.symbol.text == symbol.name.text);
    if let Some(key) = key {
        whole_number(schema, symbol, &key.field).map_err(|error| error.fault.to_string())?;
    }
    let key = key.and_then(|key| NumberField::of(schema, &key.field.text));
    Ok((key, pattern))
}
