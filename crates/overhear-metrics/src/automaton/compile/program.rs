// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric compiled to one table lookup per symbol.
//!
//! An automaton *rests* in a state that no lambda leaves. A row of the table is such a state,
//! together with whether a measurement is running and the [`SegmentPhase`]. A column is a symbol,
//! of the own task or of another one. The [`Step`] in row and column has the row to which the
//! symbol leads through all lambdas, and its [`Effects`] on the measurement, a bit each, in the
//! order in which they are applied.
//!
//! An [`Event`] of several symbols takes one transition: that of the label with the greatest rank.
//! Each column that occurs has a [column](Program::column_of_sequence) of its own, in an extra
//! table after the first one.

use rustc_hash::FxHashMap;

use super::metric::{Column, Metric, Rank};
use crate::automaton::spec::specification::{StateKind, Symbol, TaskOf};

/// Set of symbols of a metric, a bit each: a metric has 64 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbols(u64);

impl Symbols {
    /// Adds this symbol.
    pub(crate) const fn with(self, symbol: u16) -> Self {
        Self(self.0 | 1 << symbol)
    }

    const fn has(self, symbol: u16) -> bool {
        self.0 >> symbol & 1 == 1
    }

    /// The symbol that is declared first.
    pub(crate) const fn first(self) -> Option<u16> {
        match self.0 {
            0 => None,
            bits => Some(bits.trailing_zeros() as u16),
        }
    }

    const fn is_single(self) -> bool {
        self.0.is_power_of_two()
    }

    /// The symbols in the order of declaration.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = Self(rest).first()?;
            rest &= rest - 1;
            Some(first)
        })
    }
}

/// An event of the alphabet, a tuple of event type, task and time stamp [POSIX-metrics, section 3]:
/// the symbols of one element that name the same task and the same time. An element that names two
/// tasks, as a context switch does, or two times is two events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Symbols that the element matches.
    pub(crate) symbols: Symbols,
    /// Those of them that name a task.
    pub(crate) tasked: Symbols,
}

impl Event {
    /// Adds a symbol.
    pub(crate) const fn with(self, symbol: u16, is_tasked: bool) -> Self {
        Self {
            symbols: self.symbols.with(symbol),
            tasked: match is_tasked {
                true => self.tasked.with(symbol),
                false => self.tasked,
            },
        }
    }

    /// The column of a symbol for the automaton of the event's task, or for that of another task.
    const fn column(self, symbol: u16, own: bool) -> Column {
        Column::new(symbol as usize, own && self.tasked.has(symbol))
    }
}

/// A row of the table, as the offset of its first step.
///
/// A row can be marked. A marked row has no steps, so that the reason for the mark is looked at
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Row(u32);

impl Row {
    /// No automaton: a row without steps.
    pub(crate) const ABSENT: Self = Self(1 << 31);
    const MARK: u32 = 1 << 30;
    /// Larger than each offset of a step.
    pub(crate) const LIMIT: u32 = 1 << 29;

    /// The offset of its first step; beyond all steps if the row is marked or absent.
    #[inline(always)]
    pub(crate) const fn offset(self) -> usize {
        self.0 as usize
    }

    /// The row with a mark, or without.
    #[inline(always)]
    pub(crate) const fn marked(self, is_marked: bool) -> Self {
        let mark = if is_marked { Self::MARK } else { 0 };
        Self(self.0 & !Self::MARK | mark)
    }

    pub(crate) const fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
}

/// The effects of a step, applied from the lowest bit to the highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects(u16);

impl Effects {
    /// No effect: the automaton stays in its row.
    pub(crate) const STAY: Self = Self(0);
    /// It moves to another row, or enters its own anew.
    pub(crate) const MOVED: Self = Self(1);
    /// The move has the time of its input, even if that is before the last change.
    pub(crate) const BACKDATED: Self = Self(1 << 1);
    /// A segment ends.
    pub(crate) const CLOSE: Self = Self(1 << 2);
    /// The measurement is completed.
    pub(crate) const END: Self = Self(1 << 3);
    /// A measurement begins.
    pub(crate) const BEGIN: Self = Self(1 << 4);
    /// A candidate segment begins: a segment, or what may become one.
    pub(crate) const OPEN: Self = Self(1 << 5);
    /// A state of a candidate segment is entered.
    pub(crate) const ENTER: Self = Self(1 << 6);
    /// More effects follow: see [`Program::spilled`]. In a column of several symbols: the symbols
    /// take several steps, and this one has no other effects.
    pub(crate) const SPILLED: Self = Self(1 << 7);

    /// Whether one of these effects is set.
    #[inline(always)]
    pub(crate) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The row to which a symbol leads, and the effects on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) to: Row,
    pub(crate) effects: Effects,
    /// Index of the spilled effects in [`Program::spilled`].
    spilled: u16,
}

impl Step {
    const fn stay(row: Row) -> Self {
        Self {
            to: row,
            effects: Effects::STAY,
            spilled: 0,
        }
    }

    /// Whether a segment begins exactly where a measurement does, and ends where it ends.
    fn is_of_interval(&self) -> bool {
        let has = |effect| self.effects.has(effect);
        has(Effects::OPEN) == has(Effects::BEGIN) && (has(Effects::CLOSE) || !has(Effects::END))
    }
}

/// Whether states are within a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SegmentPhase {
    /// Outside of segments.
    None,
    /// In a segment: of `in` states, possibly with `cond` states at its begin.
    Segment,
    /// In `cond` states: they are a segment if an `in` state follows.
    Pending,
}

/// The meaning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RestingState {
    state: u16,
    measures: bool,
    phase: SegmentPhase,
}

/// The rows that were found.
#[derive(Default)]
struct RestingStates {
    all: Vec<RestingState>,
    rows: FxHashMap<RestingState, usize>,
}

impl RestingStates {
    /// The row number.
    fn row_number(&mut self, rest: RestingState) -> usize {
        let row = *self.rows.entry(rest).or_insert(self.all.len());
        if row == self.all.len() {
            self.all.push(rest);
        }
        row
    }
}

/// An extra column, after those of single symbols.
#[derive(Debug, PartialEq, Eq)]
enum ExtraColumn {
    /// One event of several symbols.
    Event(Event),
    /// Several events, one after the other: see [`Program::column_of_sequence`].
    Sequence(Box<[Event]>),
}

/// The table.
#[derive(Debug)]
pub(crate) struct Program {
    /// Steps of single symbols, row by row, then those of the extra columns.
    steps: Vec<Step>,
    /// Ranks of the labels of the steps, for single symbols.
    ranks: Vec<Rank>,
    /// Columns of single symbols: two per symbol.
    width: usize,
    /// Indexed by row number: whether a measurement is running.
    measures: Vec<bool>,
    spilled: Vec<Box<[Effects]>>,
    /// Indexed by symbol: the rows in which it matters if it belongs to another task.
    watching_rows: Vec<Vec<Row>>,
    /// The symbols that matter in some row if they belong to another task.
    watched: Symbols,
    /// Indexed by row number: whether a symbol of another task matters.
    watches: Vec<bool>,
    /// See [`Program::is_interval`].
    is_interval: bool,
    /// Indexed by symbol: see [`Program::is_fallback`].
    fallbacks: Vec<bool>,
    /// The symbol that gives the key.
    key: Option<u16>,
    /// In the order of their columns.
    extra: Vec<ExtraColumn>,
}

impl Program {
    /// Compiles a metric.
    pub(crate) fn new(metric: &Metric) -> Self {
        let specification = metric.specification();
        let symbols = specification.symbols.len();
        let is_backdated = |symbol: usize| specification.symbols[symbol].ago.is_some();
        let width = 2 * symbols;
        let mut program = Self {
            steps: Vec::new(),
            ranks: Vec::new(),
            width,
            measures: Vec::new(),
            spilled: Vec::new(),
            watching_rows: vec![Vec::new(); symbols],
            watched: Symbols::default(),
            watches: Vec::new(),
            is_interval: false,
            fallbacks: Vec::new(),
            key: None,
            extra: Vec::new(),
        };
        let mut resting = RestingStates::default();
        resting.row_number(RestingState {
            state: 0,
            measures: false,
            phase: SegmentPhase::None,
        });
        let mut next = 0;
        while let Some(&rest) = resting.all.get(next) {
            let row = program.row(next);
            let mut watches = false;
            for symbol in 0..symbols {
                for own in [false, true] {
                    let column = Column::new(symbol, own);
                    let step = match metric.next(rest.state, column) {
                        Some(state) => program.follow_lambdas(
                            metric,
                            rest,
                            state,
                            is_backdated(symbol),
                            &mut resting,
                        ),
                        None => Step::stay(row),
                    };
                    program.ranks.push(metric.rank(rest.state, column));
                    if !own && step.effects != Effects::STAY {
                        watches = true;
                        program.watching_rows[symbol].push(row);
                        program.watched = program.watched.with(symbol as u16);
                    }
                    program.steps.push(step);
                }
            }
            program.measures.push(rest.measures);
            program.watches.push(watches);
            next += 1;
        }
        program.is_interval =
            program.spilled.is_empty() && program.steps.iter().all(Step::is_of_interval);
        let key = specification.key.as_ref().map(|key| &key.symbol.text);
        let mut all = (0..).zip(&specification.symbols);
        let key = all.find(|(_, symbol)| Some(&symbol.name.text) == key);
        program.key = key.map(|(number, _)| number);
        let is_fallback =
            |symbol| is_backdated(symbol) && program.has_substitutes(symbol, is_backdated);
        // All symbols that may be one event are fallbacks, or none is.
        let declared = &specification.symbols;
        program.fallbacks = (0..symbols)
            .map(|symbol| {
                let same = |other: &usize| may_be_one(&declared[symbol], &declared[*other]);
                (0..symbols).filter(same).all(is_fallback)
            })
            .collect();
        program
    }

    /// Whether a symbol that is not backdated leads to the same row, from each row that this symbol
    /// leaves.
    fn has_substitutes(&self, symbol: usize, is_backdated: impl Fn(usize) -> bool) -> bool {
        let mut rows = self.steps.chunks(self.width);
        rows.all(|steps| {
            let step = steps[Column::new(symbol, true).index()];
            let mut others = (0..self.width / 2).filter(|other| !is_backdated(*other));
            step.effects == Effects::STAY
                || others.any(|other| steps[Column::new(other, true).index()] == step)
        })
    }

    /// Whether the symbol, which is backdated, replaces a symbol that was not seen. Nearly always
    /// that one was seen, and the automaton stays in its row.
    pub(crate) fn is_fallback(&self, symbol: usize) -> bool {
        self.fallbacks[symbol]
    }

    /// The column of an event for the automaton of its task; `None` if there is no room.
    pub(crate) fn column_of_event(&mut self, event: Event) -> Option<u32> {
        match event.symbols.first() {
            Some(only) if event.symbols.is_single() => {
                u32::try_from(Column::new(usize::from(only), true).index()).ok()
            }
            _ => self.extra(ExtraColumn::Event(event)),
        }
    }

    /// The column of the events of an element for the automaton of their task, one after the other;
    /// `None` if there is no room. If at most one of them leads anywhere, the step is that of this
    /// event. If several do, or if that one is a [fallback](Program::is_fallback), the step has
    /// [`Effects::SPILLED`].
    pub(crate) fn column_of_sequence(&mut self, events: &[Event]) -> Option<u32> {
        self.extra(ExtraColumn::Sequence(events.into()))
    }

    fn extra(&mut self, column: ExtraColumn) -> Option<u32> {
        let known = self.extra.iter().position(|it| *it == column);
        let number = known.unwrap_or(self.extra.len());
        // Extra columns stand in tables of the same size as the first one, after it.
        let table = self.rows() * self.width;
        let first = table * (1 + number / self.width) + number % self.width;
        let end = table * (2 + number / self.width);
        if end >= Row::LIMIT as usize {
            return None;
        }
        if known.is_none() {
            self.steps.resize(end, Step::stay(Row::ABSENT));
            for number in 0..self.rows() {
                let row = self.row(number);
                self.steps[first + row.offset()] = match &column {
                    ExtraColumn::Event(event) => self.step(row, *event, true)?,
                    ExtraColumn::Sequence(events) => self.step_of_sequence(row, events),
                };
            }
            self.extra.push(column);
        }
        u32::try_from(first).ok()
    }

    /// The step of several events, one after the other, if only one of them leads anywhere.
    fn step_of_sequence(&self, row: Row, events: &[Event]) -> Step {
        let mut all = Step::stay(row);
        for &event in events {
            let Some(step) = self.step(all.to, event, true) else {
                continue;
            };
            let has_moved = all.effects != Effects::STAY;
            // The key that this event gives does not belong to a measurement that an earlier one
            // completed.
            let rekeys = has_moved && self.key.is_some_and(|key| event.symbols.has(key));
            if step.effects == Effects::STAY && !rekeys {
                continue;
            }
            let mut symbols = event.symbols.iter();
            if has_moved || symbols.any(|symbol| self.is_fallback(usize::from(symbol))) {
                all.effects = Effects::SPILLED;
                return all;
            }
            all = step;
        }
        all
    }

    /// The step of an event for the automaton of its task, or for another one; `None` if the row is
    /// marked or absent.
    #[inline]
    pub(crate) fn step(&self, row: Row, event: Event, own: bool) -> Option<Step> {
        let first = event.symbols.first()?;
        let mut at = row.offset() + event.column(first, own).index();
        if !event.symbols.is_single() {
            at = self.offset_of_greatest(row, event, own)?;
        }
        self.steps.get(at).copied()
    }

    /// The offset of the step whose label has the greatest rank.
    #[inline(never)]
    fn offset_of_greatest(&self, row: Row, event: Event, own: bool) -> Option<usize> {
        let mut found: Option<(Rank, usize)> = None;
        for symbol in event.symbols.iter() {
            let at = row.offset() + event.column(symbol, own).index();
            let rank = *self.ranks.get(at)?;
            if found.is_none_or(|(greatest, _)| rank > greatest) {
                found = Some((rank, at));
            }
        }
        found.map(|(_, at)| at)
    }

    /// Follows the lambdas from the state to which a symbol leads.
    fn follow_lambdas(
        &mut self,
        metric: &Metric,
        mut rest: RestingState,
        state: u16,
        is_backdated: bool,
        resting: &mut RestingStates,
    ) -> Step {
        let mut row = vec![Effects::MOVED];
        let mut next = Some(state);
        while let Some(state) = next {
            if metric.kind(state) == StateKind::Begin {
                begin_at_input_time(&mut row, is_backdated);
            }
            enter_state(&mut rest, metric.kind(state), &mut row);
            rest.state = state;
            next = metric.lambda(state);
        }
        let mut step = Step {
            to: self.row(resting.row_number(rest)),
            effects: row[0],
            spilled: 0,
        };
        if row.len() > 1 {
            step.effects = step.effects.with(Effects::SPILLED);
            let known = self.spilled.iter().position(|known| **known == row[1..]);
            let at = known.unwrap_or_else(|| {
                self.spilled.push(row[1..].into());
                self.spilled.len() - 1
            });
            // They follow from the state that is entered first and from the phase before: there are
            // at most four times as many of them as states.
            step.spilled = u16::try_from(at).expect("the check limits the number of states");
        }
        step
    }

    /// The row in which an automaton starts.
    pub(crate) fn start(&self) -> Row {
        self.row(0)
    }

    fn row(&self, number: usize) -> Row {
        let at = u32::try_from(number * self.width).ok();
        let at = at.filter(|at| *at < Row::LIMIT - self.width as u32);
        Row(at.expect("the check limits states and symbols"))
    }

    /// Whether each measurement is one segment, so that its length is `end - begin`.
    pub(crate) const fn is_interval(&self) -> bool {
        self.is_interval
    }

    /// Whether measurements have a key, and each ends with the symbol that gives it.
    pub(crate) fn is_keyed_by_end(&self, metric: &Metric) -> bool {
        let specification = metric.specification();
        let Some(key) = &specification.key else {
            return false;
        };
        let gives = |column: usize| {
            let symbol = &specification.symbols[column / 2];
            column % 2 == 1 && symbol.name.text == key.symbol.text
        };
        let ends = |effects: &Effects| effects.has(Effects::END);
        let mut steps = self.steps.iter().enumerate();
        let mut spilled = self.spilled.iter().flatten();
        steps.all(|(at, step)| !ends(&step.effects) || gives(at % self.width)) && !spilled.any(ends)
    }

    /// All steps, at the offset of their row plus the index of their column.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether some steps of single symbols have [`Effects::SPILLED`].
    pub(crate) fn has_spilled(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// The spilled effects of a step of a single symbol, in order: they follow the effects of the
    /// step.
    pub(crate) fn spilled(&self, step: Step) -> &[Effects] {
        &self.spilled[usize::from(step.spilled)]
    }

    /// The row number, less than [`Program::rows`]; larger for a row that is absent.
    pub(crate) fn row_number(&self, row: Row) -> usize {
        // A table without symbols has one row.
        row.offset().checked_div(self.width).unwrap_or(0)
    }

    pub(crate) fn rows(&self) -> usize {
        self.measures.len()
    }

    /// Whether a measurement is running in this row.
    pub(crate) fn measures(&self, row: Row) -> bool {
        self.measures.get(self.row_number(row)) == Some(&true)
    }

    /// Whether a symbol of another task matters in this row.
    pub(crate) fn watches_others(&self, row: Row) -> bool {
        self.watches.get(self.row_number(row)) == Some(&true)
    }

    /// Whether a symbol of another task matters in any row.
    pub(crate) fn any_watches(&self) -> bool {
        self.watches.contains(&true)
    }

    /// Whether the event can matter to automata of other tasks than its own.
    #[inline(always)]
    pub(crate) const fn is_watched(&self, event: Event) -> bool {
        event.symbols.0 & self.watched.0 != 0
    }

    /// The rows in which this symbol matters if it belongs to another task.
    #[inline]
    pub(crate) fn watching_rows(&self, symbol: usize) -> &[Row] {
        &self.watching_rows[symbol]
    }
}

/// Whether an element can be both symbols at once, for one task and one time.
fn may_be_one(a: &Symbol, b: &Symbol) -> bool {
    let has_no_task = |symbol: &Symbol| symbol.task == TaskOf::NoTask;
    let same_task = a.task == b.task || has_no_task(a) || has_no_task(b);
    a.source == b.source && a.ago == b.ago && same_task
}

/// A measurement begins at the time of its event, even if that is before the last change: it may
/// overlap the measurement before it. If the same event ends that one, its end still does not go
/// back.
fn begin_at_input_time(effects: &mut Vec<Effects>, is_backdated: bool) {
    let ends = effects.iter().any(|effects| effects.has(Effects::END));
    if !ends {
        effects[0] = effects[0].with(Effects::BACKDATED);
    } else if is_backdated {
        effects.push(Effects::BACKDATED);
    }
}

/// Enters a state of this kind, and appends the effects.
fn enter_state(rest: &mut RestingState, kind: StateKind, effects: &mut Vec<Effects>) {
    let mut put = |effect: Effects| {
        let last = effects.last_mut().expect("a step has effects");
        // An effect that comes after a higher one, or a second time, spills over to new effects; a
        // second entry changes nothing.
        if last.0 < effect.0 || (*last).has(effect) && effect == Effects::ENTER {
            *last = last.with(effect);
        } else {
            effects.push(effect);
        }
    };
    // A candidate segment ends where a state of another kind begins; only `cond` turns into `in`.
    rest.phase = match (kind, rest.phase) {
        (StateKind::In, SegmentPhase::Pending) => SegmentPhase::Segment,
        (StateKind::In, SegmentPhase::Segment) | (StateKind::Cond, SegmentPhase::Pending) => {
            rest.phase
        }
        (_, SegmentPhase::Segment) => {
            put(Effects::CLOSE);
            SegmentPhase::None
        }
        _ => SegmentPhase::None,
    };
    match kind {
        StateKind::Begin => {
            rest.measures = true;
            put(Effects::BEGIN);
        }
        StateKind::In | StateKind::Cond => {
            if rest.phase == SegmentPhase::None {
                put(Effects::OPEN);
                rest.phase = match kind {
                    StateKind::In => SegmentPhase::Segment,
                    _ => SegmentPhase::Pending,
                };
            }
            put(Effects::ENTER);
        }
        StateKind::Out => {}
        StateKind::Cancel => rest.measures = false,
        StateKind::End => {
            if std::mem::take(&mut rest.measures) {
                put(Effects::END);
            }
        }
    }
}
