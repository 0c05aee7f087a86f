// SPDX-License-Identifier: MIT OR Apache-2.0
//! A metric compiled to one look-up per symbol.
//!
//! An automaton at *rest* is in a state that no lambda leaves, measures or does not, and is within a
//! stretch of states that is a segment, or may become one, or outside. These three things together are a
//! row of the table; a symbol, own or another's, is a column. The place where they meet says to which row
//! the symbol leads, and what happens to the measurement on the way there through all lambdas: its
//! [`Effects`], a bit each, in the order in which they come to pass.
//!
//! An [`Event`] that is several symbols takes one transition: that of the label with the greatest rank. The combinations
//! that occur have a [column](Program::column_of_all) each, behind the table.

use rustc_hash::FxHashMap;

use super::metric::{Column, Metric, Rank};
use super::specification::{StateKind, Symbol, TaskOf};

/// Symbols of a metric, a bit each: a metric has 64 at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols(u64);

impl Symbols {
    /// With this symbol besides.
    pub(super) const fn with(self, symbol: u16) -> Self {
        Self(self.0 | 1 << symbol)
    }

    const fn has(self, symbol: u16) -> bool {
        self.0 >> symbol & 1 == 1
    }

    /// The first one that was declared.
    pub(super) const fn first(self) -> Option<u16> {
        match self.0 {
            0 => None,
            bits => Some(bits.trailing_zeros() as u16),
        }
    }

    const fn is_single(self) -> bool {
        self.0.is_power_of_two()
    }

    /// In the order of declaration.
    pub(super) fn iter(self) -> impl Iterator<Item = u16> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let first = Self(rest).first()?;
            rest &= rest - 1;
            Some(first)
        })
    }
}

/// An event of the alphabet (seed 004: a tuple of event type, task and time stamp): symbols of one element that name the
/// same task and the same time. An element that names two tasks, as a context switch does, or two times, is as many
/// events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The symbols that the element matches.
    pub(super) symbols: Symbols,
    /// Of these, the ones that name a task.
    pub(super) tasked: Symbols,
}

impl Event {
    /// With a symbol more, which names a task or does not.
    pub(super) const fn with(self, symbol: u16, is_tasked: bool) -> Self {
        Self {
            symbols: self.symbols.with(symbol),
            tasked: match is_tasked {
                true => self.tasked.with(symbol),
                false => self.tasked,
            },
        }
    }

    /// The column of a symbol for the automaton of the event's task, or for another one.
    const fn column(self, symbol: u16, own: bool) -> Column {
        Column::new(symbol as usize, own && self.tasked.has(symbol))
    }
}

/// A row of the table, as the place of its first step.
///
/// It can be marked: then no step is found there until somebody has looked what the mark is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Row(u32);

impl Row {
    /// There is no automaton, and no step.
    pub(super) const ABSENT: Self = Self(1 << 31);
    const MARK: u32 = 1 << 30;
    /// All places of steps are before this.
    pub(super) const BEHIND: u32 = 1 << 29;

    /// The place of its first step, behind all steps if it is marked, or if there is no automaton.
    #[inline(always)]
    pub(super) const fn place(self) -> usize {
        self.0 as usize
    }

    /// The same row with a mark, or without.
    #[inline(always)]
    pub(super) const fn marked(self, is_marked: bool) -> Self {
        let mark = if is_marked { Self::MARK } else { 0 };
        Self(self.0 & !Self::MARK | mark)
    }

    pub(super) const fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
}

/// What a step does, one after the other from the lowest bit to the highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects(u16);

impl Effects {
    /// Nothing: the automaton stays where it is.
    pub(super) const STAY: Self = Self(0);
    /// It goes somewhere.
    pub(super) const MOVED: Self = Self(1);
    /// It happens when it is told, even if that lies before the last change.
    pub(super) const TOLD_LATE: Self = Self(1 << 1);
    /// A segment ends.
    pub(super) const CLOSE: Self = Self(1 << 2);
    /// The measurement is completed.
    pub(super) const END: Self = Self(1 << 3);
    /// A measurement begins.
    pub(super) const BEGIN: Self = Self(1 << 4);
    /// A stretch begins that is a segment, or may become one.
    pub(super) const OPEN: Self = Self(1 << 5);
    /// A state of a stretch is entered.
    pub(super) const ENTER: Self = Self(1 << 6);
    /// More happens behind these: see [`Program::further`]; or, in a column of several symbols, in place of these.
    pub(super) const FURTHER: Self = Self(1 << 7);

    /// Whether one of these is among them.
    #[inline(always)]
    pub(super) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a symbol leads, and what happens on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) to: Row,
    pub(super) effects: Effects,
    /// Which of the further effects come behind them.
    further: u16,
}

impl Step {
    const fn stay(row: Row) -> Self {
        Self {
            to: row,
            effects: Effects::STAY,
            further: 0,
        }
    }

    /// Whether its segments begin and end with measurements, or end with none.
    fn is_of_interval(&self) -> bool {
        let has = |effect| self.effects.has(effect);
        has(Effects::OPEN) == has(Effects::BEGIN) && (has(Effects::CLOSE) || !has(Effects::END))
    }
}

/// The stretch of states that is a segment, or may become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stretch {
    /// Outside.
    None,
    /// Of `in` states, perhaps begun by `cond` states.
    Segment,
    /// Of `cond` states alone.
    Pending,
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rest {
    state: u16,
    measures: bool,
    stretch: Stretch,
}

/// The rests that were found, in the order of their rows.
#[derive(Default)]
struct Rests {
    all: Vec<Rest>,
    places: FxHashMap<Rest, usize>,
}

impl Rests {
    /// The number of its row.
    fn number(&mut self, rest: Rest) -> usize {
        let place = *self.places.entry(rest).or_insert(self.all.len());
        if place == self.all.len() {
            self.all.push(rest);
        }
        place
    }
}

/// What has a column behind those of single symbols.
#[derive(Debug, PartialEq, Eq)]
enum Combination {
    /// An event that is several symbols: its steps.
    One(Event),
    /// Events that follow each other; see [`Program::column_of_all`].
    All(Box<[Event]>),
}

/// The table.
#[derive(Debug)]
pub(super) struct Program {
    /// Of single symbols, then of combinations of them.
    steps: Vec<Step>,
    /// The priorities of the labels that lead there, for single symbols.
    ranks: Vec<Rank>,
    /// Two columns per symbol.
    width: usize,
    /// Whether a row measures.
    measures: Vec<bool>,
    further: Vec<Box<[Effects]>>,
    /// Per symbol, the rows in which it matters although it belongs to others.
    heeded_in: Vec<Vec<Row>>,
    /// The symbols that matter anywhere although they belong to others.
    heeded: Symbols,
    /// Whether a row heeds others.
    heeds: Vec<bool>,
    /// See [`Program::is_interval`].
    is_interval: bool,
    /// See [`Program::stands_in`].
    stand_ins: Vec<bool>,
    /// The symbol that gives the key.
    key: Option<u16>,
    /// In the order of their columns.
    combined: Vec<Combination>,
}

impl Program {
    /// Compiles a metric.
    pub(super) fn new(metric: &Metric) -> Self {
        let specification = metric.specification();
        let symbols = specification.symbols.len();
        let is_late = |symbol: usize| specification.symbols[symbol].ago.is_some();
        let width = 2 * symbols;
        let mut program = Self {
            steps: Vec::new(),
            ranks: Vec::new(),
            width,
            measures: Vec::new(),
            further: Vec::new(),
            heeded_in: vec![Vec::new(); symbols],
            heeded: Symbols::default(),
            heeds: Vec::new(),
            is_interval: false,
            stand_ins: Vec::new(),
            key: None,
            combined: Vec::new(),
        };
        let mut rests = Rests::default();
        rests.number(Rest {
            state: 0,
            measures: false,
            stretch: Stretch::None,
        });
        let mut next = 0;
        while let Some(&rest) = rests.all.get(next) {
            let row = program.row(next);
            let mut heeds = false;
            for symbol in 0..symbols {
                for own in [false, true] {
                    let column = Column::new(symbol, own);
                    let step = match metric.next(rest.state, column) {
                        Some(state) => {
                            program.walk(metric, rest, state, is_late(symbol), &mut rests)
                        }
                        None => Step::stay(row),
                    };
                    program.ranks.push(metric.rank(rest.state, column));
                    if !own && step.effects != Effects::STAY {
                        heeds = true;
                        program.heeded_in[symbol].push(row);
                        program.heeded = program.heeded.with(symbol as u16);
                    }
                    program.steps.push(step);
                }
            }
            program.measures.push(rest.measures);
            program.heeds.push(heeds);
            next += 1;
        }
        program.is_interval =
            program.further.is_empty() && program.steps.iter().all(Step::is_of_interval);
        let key = specification.key.as_ref().map(|key| &key.symbol.text);
        let mut all = (0..).zip(&specification.symbols);
        let key = all.find(|(_, symbol)| Some(&symbol.name.text) == key);
        program.key = key.map(|(number, _)| number);
        let stands_in = |symbol| is_late(symbol) && program.has_substitutes(symbol, is_late);
        // Symbols that may be one event stand in together, or not at all.
        let declared = &specification.symbols;
        program.stand_ins = (0..symbols)
            .map(|symbol| {
                let same = |other: &usize| may_be_one(&declared[symbol], &declared[*other]);
                (0..symbols).filter(same).all(stands_in)
            })
            .collect();
        program
    }

    /// Whether wherever this symbol leads to, one that is not late leads to as well.
    fn has_substitutes(&self, symbol: usize, is_late: impl Fn(usize) -> bool) -> bool {
        let mut rows = self.steps.chunks(self.width);
        rows.all(|steps| {
            let step = steps[Column::new(symbol, true).index()];
            let mut others = (0..self.width / 2).filter(|other| !is_late(*other));
            step.effects == Effects::STAY
                || others.any(|other| steps[Column::new(other, true).index()] == step)
        })
    }

    /// Whether the symbol, which is told late, stands in for one that was not seen: nearly always that one was, and the
    /// automaton stays where it is.
    pub(super) fn stands_in(&self, symbol: usize) -> bool {
        self.stand_ins[symbol]
    }

    /// The column of an event for the automaton of its task. `None` if there is no room.
    pub(super) fn column_of(&mut self, event: Event) -> Option<u32> {
        match event.symbols.first() {
            Some(only) if event.symbols.is_single() => {
                u32::try_from(Column::new(usize::from(only), true).index()).ok()
            }
            _ => self.combined(Combination::One(event)),
        }
    }

    /// The column of the events that an element is for the automaton of their task, one after the other. If no more than
    /// one of them leads anywhere its step is there; else, or if that one is a [stand-in](Program::stands_in), one with
    /// [`Effects::FURTHER`]. `None` if there is no room.
    pub(super) fn column_of_all(&mut self, events: &[Event]) -> Option<u32> {
        self.combined(Combination::All(events.into()))
    }

    fn combined(&mut self, combination: Combination) -> Option<u32> {
        let known = self.combined.iter().position(|it| *it == combination);
        let number = known.unwrap_or(self.combined.len());
        // Behind the steps of single symbols as many others have room, again and again.
        let table = self.rows() * self.width;
        let first = table * (1 + number / self.width) + number % self.width;
        let behind = table * (2 + number / self.width);
        if behind >= Row::BEHIND as usize {
            return None;
        }
        if known.is_none() {
            self.steps.resize(behind, Step::stay(Row::ABSENT));
            for number in 0..self.rows() {
                let row = self.row(number);
                self.steps[first + row.place()] = match &combination {
                    Combination::One(event) => self.step(row, *event, true)?,
                    Combination::All(events) => self.step_by(row, events),
                };
            }
            self.combined.push(combination);
        }
        u32::try_from(first).ok()
    }

    /// Where several events lead, one after the other, if only one does.
    fn step_by(&self, row: Row, events: &[Event]) -> Step {
        let mut all = Step::stay(row);
        for &event in events {
            let Some(step) = self.step(all.to, event, true) else {
                continue;
            };
            let has_moved = all.effects != Effects::STAY;
            // The key that it gives is not that of what was completed before.
            let rekeys = has_moved && self.key.is_some_and(|key| event.symbols.has(key));
            if step.effects == Effects::STAY && !rekeys {
                continue;
            }
            let mut symbols = event.symbols.iter();
            if has_moved || symbols.any(|symbol| self.stands_in(usize::from(symbol))) {
                all.effects = Effects::FURTHER;
                return all;
            }
            all = step;
        }
        all
    }

    /// Where an event leads the automaton of its task, or another one, from a row; nowhere if that is marked, or if there
    /// is no automaton.
    #[inline]
    pub(super) fn step(&self, row: Row, event: Event, own: bool) -> Option<Step> {
        let first = event.symbols.first()?;
        let mut place = row.place() + event.column(first, own).index();
        if !event.symbols.is_single() {
            place = self.greatest(row, event, own)?;
        }
        self.steps.get(place).copied()
    }

    /// The place of the step whose label has the greatest rank.
    #[inline(never)]
    fn greatest(&self, row: Row, event: Event, own: bool) -> Option<usize> {
        let mut found: Option<(Rank, usize)> = None;
        for symbol in event.symbols.iter() {
            let place = row.place() + event.column(symbol, own).index();
            let rank = *self.ranks.get(place)?;
            if found.is_none_or(|(greatest, _)| rank > greatest) {
                found = Some((rank, place));
            }
        }
        found.map(|(_, place)| place)
    }

    /// Follows the lambdas from the state that a symbol leads to.
    fn walk(
        &mut self,
        metric: &Metric,
        mut rest: Rest,
        state: u16,
        is_late: bool,
        rests: &mut Rests,
    ) -> Step {
        let mut row = vec![Effects::MOVED];
        let mut next = Some(state);
        while let Some(state) = next {
            if metric.kind(state) == StateKind::Begin {
                begin_at_told_time(&mut row, is_late);
            }
            enter(&mut rest, metric.kind(state), &mut row);
            rest.state = state;
            next = metric.lambda(state);
        }
        let mut step = Step {
            to: self.row(rests.number(rest)),
            effects: row[0],
            further: 0,
        };
        if row.len() > 1 {
            step.effects = step.effects.with(Effects::FURTHER);
            let known = self.further.iter().position(|known| **known == row[1..]);
            let place = known.unwrap_or_else(|| {
                self.further.push(row[1..].into());
                self.further.len() - 1
            });
            // They follow from the state that is entered first and from what the stretch was: there are
            // no more of them than four times the states.
            step.further = u16::try_from(place).expect("the check limits the number of states");
        }
        step
    }

    /// Where an automaton begins.
    pub(super) fn start(&self) -> Row {
        self.row(0)
    }

    fn row(&self, number: usize) -> Row {
        let place = u32::try_from(number * self.width).ok();
        let place = place.filter(|place| *place < Row::BEHIND - self.width as u32);
        Row(place.expect("the check limits states and symbols"))
    }

    /// Whether each measurement is one segment, from its begin to its end: it is as long as that.
    pub(super) const fn is_interval(&self) -> bool {
        self.is_interval
    }

    /// Whether measurements are divided, and each ends by the symbol that gives the key.
    pub(super) fn is_keyed_by_ends(&self, metric: &Metric) -> bool {
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
        let mut further = self.further.iter().flatten();
        steps.all(|(place, step)| !ends(&step.effects) || gives(place % self.width))
            && !further.any(ends)
    }

    /// All steps: where a column meets a row, behind the place of the row.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether some steps of single symbols have [`Effects::FURTHER`].
    pub(super) fn has_further(&self) -> bool {
        !self.further.is_empty()
    }

    /// What happens behind the effects of a step of a single symbol that has [`Effects::FURTHER`].
    pub(super) fn further(&self, step: Step) -> &[Effects] {
        &self.further[usize::from(step.further)]
    }

    /// The how many-th row it is; there are [`Program::rows`], and those that are no rows come behind them.
    pub(super) fn number(&self, row: Row) -> usize {
        // Without symbols there is one row.
        row.place().checked_div(self.width).unwrap_or(0)
    }

    pub(super) fn rows(&self) -> usize {
        self.measures.len()
    }

    /// Whether a measurement is running there.
    pub(super) fn measures(&self, row: Row) -> bool {
        self.measures.get(self.number(row)) == Some(&true)
    }

    /// Whether input of other tasks can lead out of it.
    pub(super) fn heeds_others(&self, row: Row) -> bool {
        self.heeds.get(self.number(row)) == Some(&true)
    }

    /// Whether any row does.
    pub(super) fn heeds_any(&self) -> bool {
        self.heeds.contains(&true)
    }

    /// Whether the event matters to others than its task anywhere.
    #[inline(always)]
    pub(super) const fn is_heeded(&self, event: Event) -> bool {
        event.symbols.0 & self.heeded.0 != 0
    }

    /// The rows in which this symbol matters although it belongs to others.
    #[inline]
    pub(super) fn heeded_in(&self, symbol: usize) -> &[Row] {
        &self.heeded_in[symbol]
    }
}

/// Whether an element can be both symbols at once, for one task and one time.
fn may_be_one(a: &Symbol, b: &Symbol) -> bool {
    let is_nobody = |symbol: &Symbol| symbol.task == TaskOf::Nobody;
    let same_task = a.task == b.task || is_nobody(a) || is_nobody(b);
    a.source == b.source && a.ago == b.ago && same_task
}

/// A measurement begins when its event was, even if that lies before the last change: it may overlap the measurement
/// before it. If that one ends by the same event, its end still does not go back.
fn begin_at_told_time(effects: &mut Vec<Effects>, is_late: bool) {
    let ends = effects.iter().any(|effects| effects.has(Effects::END));
    if !ends {
        effects[0] = effects[0].with(Effects::TOLD_LATE);
    } else if is_late {
        effects.push(Effects::TOLD_LATE);
    }
}

/// Enters a state of this kind, and appends what that does.
fn enter(rest: &mut Rest, kind: StateKind, effects: &mut Vec<Effects>) {
    let mut put = |effect: Effects| {
        let last = effects.last_mut().expect("a step has effects");
        // What has to come after a higher bit, or once more, waits; an entry may be told twice.
        if last.0 < effect.0 || (*last).has(effect) && effect == Effects::ENTER {
            *last = last.with(effect);
        } else {
            effects.push(effect);
        }
    };
    // A stretch ends where a state of another kind begins; only `cond` turns into `in`.
    rest.stretch = match (kind, rest.stretch) {
        (StateKind::In, Stretch::Pending) => Stretch::Segment,
        (StateKind::In, Stretch::Segment) | (StateKind::Cond, Stretch::Pending) => rest.stretch,
        (_, Stretch::Segment) => {
            put(Effects::CLOSE);
            Stretch::None
        }
        _ => Stretch::None,
    };
    match kind {
        StateKind::Begin => {
            rest.measures = true;
            put(Effects::BEGIN);
        }
        StateKind::In | StateKind::Cond => {
            if rest.stretch == Stretch::None {
                put(Effects::OPEN);
                rest.stretch = match kind {
                    StateKind::In => Stretch::Segment,
                    _ => Stretch::Pending,
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
