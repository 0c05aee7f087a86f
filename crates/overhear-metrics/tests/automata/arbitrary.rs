// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary metrics and traces: the engine and the reference have equal results, and printed
//! metrics can be parsed again.

use overhear_event::EventName;
use overhear_metrics::automaton::{
    Condition, Constant, Key, Label, Metric, Ownership, Relation, Specification, State, StateKind,
    Symbol, TaskOf, TextPosition, Transition, Word,
};
use proptest::prelude::{any, prop, prop_oneof, proptest, Just, ProptestConfig, Strategy};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use proptest::{prop_assert, prop_assert_eq};

use crate::reference::interpret;
use crate::scene::{catalogue, play, steps, Line};

fn symbol(name: &str, source: &str, low: Option<(Relation, u64)>) -> Symbol {
    Symbol {
        name: Word::new(name),
        source: EventName::kernel(source),
        source_at: TextPosition::default(),
        conditions: low
            .map(|(relation, constant)| Condition {
                field: Word::new("value"),
                relation,
                constant: Constant::Number(constant),
                constant_at: TextPosition::default(),
            })
            .into_iter()
            .collect(),
        task: TaskOf::Field(Word::new("task")),
        ago: None,
    }
}

/// Six symbols over three sources. An element of `y` may be `c` and `e`, which are one event then,
/// and `d`, which names another task; one of `x` may be `b` and `f`, which names no task.
fn symbols() -> Vec<Symbol> {
    let mut second = symbol("d", "y", Some((Relation::Lacks, 2)));
    second.task = TaskOf::Field(Word::new("value"));
    let mut nobody = symbol("f", "x", Some((Relation::Has, 2)));
    nobody.task = TaskOf::NoTask;
    vec![
        symbol("a", "w", None),
        symbol("b", "x", Some((Relation::Unequal, 3))),
        symbol("c", "y", Some((Relation::Has, 1))),
        second,
        symbol("e", "y", Some((Relation::Unequal, 2))),
        nobody,
    ]
}

/// Four symbols over two events: `b`, `c` and `d` may be the same element of the same task, and `d`
/// is backdated.
fn own_symbols() -> Vec<Symbol> {
    let mut late = symbol("d", "y", Some((Relation::Unequal, 4)));
    late.ago = Some(Word::new("value"));
    vec![
        symbol("a", "w", None),
        late,
        symbol("b", "y", Some((Relation::Unequal, 3))),
        symbol("c", "y", Some((Relation::Has, 1))),
    ]
}

fn own_label() -> impl Strategy<Value = Label> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "d"]);
    prop_oneof![
        5 => name.prop_map(own),
        1 => Just(Label::Lambda),
    ]
}

fn own(name: &str) -> Label {
    Label::Symbol(Word::new(name), Ownership::Own)
}

fn label() -> impl Strategy<Value = Label> {
    let whose = prop_oneof![
        Just(Ownership::Anyone),
        Just(Ownership::Own),
        Just(Ownership::Other)
    ];
    let name = prop::sample::select(vec!["a", "b", "c", "d", "e"]);
    prop_oneof![
        6 => (name, whose).prop_map(|(name, whose)| Label::Symbol(Word::new(name), whose)),
        1 => Just(Label::Symbol(Word::new("f"), Ownership::Anyone)),
        2 => Just(Label::Lambda),
        1 => Just(Label::Any),
    ]
}

/// A state, and whether a measurement is running in it.
fn state() -> impl Strategy<Value = (StateKind, bool)> {
    prop_oneof![
        Just((StateKind::Out, false)),
        Just((StateKind::Out, true)),
        Just((StateKind::Begin, true)),
        Just((StateKind::In, true)),
        Just((StateKind::In, true)),
        Just((StateKind::Cond, true)),
        Just((StateKind::Cond, true)),
        Just((StateKind::End, false)),
        Just((StateKind::Cancel, false)),
    ]
}

/// Metrics that are valid by construction: a state is entered with a running measurement or without
/// one, never both.
pub(crate) fn metric() -> impl Strategy<Value = Option<Metric>> {
    metric_of(symbols, "c", label)
}

/// Metrics as [`metric`] makes them whose automata react to their own tasks only. In some of them
/// backdated symbols are fallbacks.
pub(crate) fn own_metric() -> impl Strategy<Value = Option<Metric>> {
    let key = prop::sample::select(vec!["a", "b", "c", "d"]);
    key.prop_flat_map(|key| metric_of(own_symbols, key, own_label))
}

fn metric_of<L: Strategy<Value = Label>>(
    symbols: fn() -> Vec<Symbol>,
    key: &'static str,
    label: fn() -> L,
) -> impl Strategy<Value = Option<Metric>> {
    let states = prop::collection::vec(state(), 2..9);
    let edge = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        label(),
    );
    let candidates = prop::collection::vec(edge, 4..40);
    // Most have a path through a segment; otherwise there would be little to compare.
    let path = prop::option::weighted(0.8, (label(), label()));
    let stands_in = any::<bool>();
    (states, candidates, path, stands_in).prop_map(
        move |(mut kinds, candidates, path, stands_in)| {
            kinds.insert(0, (StateKind::Out, false));
            let begin = kinds.len();
            kinds.push((StateKind::Begin, true));
            kinds.push((StateKind::In, true));
            kinds.push((StateKind::End, false));
            let path = path.into_iter().flat_map(|(enter, leave)| {
                [
                    (0, begin, enter),
                    (begin, begin + 1, Label::Lambda),
                    (begin + 1, begin + 2, leave),
                    (begin + 2, 0, Label::Lambda),
                ]
            });
            let count = kinds.len();
            let candidates = candidates
                .into_iter()
                .map(|(from, to, label)| (from.index(count), to.index(count), label))
                .flat_map(|(from, to, label)| {
                    // Only `own_symbols` are backdated.
                    let other = (stands_in && label == own("d")).then(|| (from, to, own("a")));
                    other.into_iter().chain([(from, to, label)])
                });
            let mut edges: Vec<(usize, usize, Label)> = Vec::new();
            for (from, to, label) in path.chain(candidates) {
                let fits = match kinds[to] {
                    (StateKind::Out, measures) => kinds[from].1 == measures,
                    (StateKind::Begin, _) => !kinds[from].1,
                    _ => kinds[from].1,
                };
                let mut here = edges.iter().filter(|(other, ..)| *other == from);
                let clashes = here.any(|(_, _, other)| {
                    let lambda = *other == Label::Lambda || label == Label::Lambda;
                    lambda || *other == label || hides(other, &label)
                });
                let turns = label == Label::Lambda && reaches(&edges, to, from);
                let replaced = edges.contains(&(from, to, own("a")));
                let misses = stands_in && label == own("d") && !replaced;
                if fits && !clashes && !turns && !misses {
                    edges.push((from, to, label));
                }
            }
            build(&kinds, &edges, symbols(), key)
        },
    )
}

/// The third kind may make labels of one symbol useless: they are kept separately.
fn hides(a: &Label, b: &Label) -> bool {
    match (a, b) {
        (Label::Symbol(a, Ownership::Anyone), Label::Symbol(b, Ownership::Other))
        | (Label::Symbol(a, Ownership::Other), Label::Symbol(b, Ownership::Anyone)) => a == b,
        _ => false,
    }
}

fn reaches(edges: &[(usize, usize, Label)], from: usize, to: usize) -> bool {
    let mut lambda = edges.iter().filter(|(_, _, label)| *label == Label::Lambda);
    from == to || lambda.any(|(at, next, _)| *at == from && reaches(edges, *next, to))
}

fn build(
    kinds: &[(StateKind, bool)],
    edges: &[(usize, usize, Label)],
    symbols: Vec<Symbol>,
    key: &str,
) -> Option<Metric> {
    let mut reached = vec![0];
    let mut at = 0;
    while let Some(&state) = reached.get(at) {
        for (_, to, _) in edges.iter().filter(|(from, ..)| *from == state) {
            if !reached.contains(to) {
                reached.push(*to);
            }
        }
        at += 1;
    }
    let has = |kind| reached.iter().any(|&state: &usize| kinds[state].0 == kind);
    if !has(StateKind::Begin) || !has(StateKind::End) {
        return None;
    }
    let name = |state: usize| Word::new(&format!("s{state}"));
    let mut order = reached.clone();
    order.sort_unstable();
    let specification = Specification {
        name: Word::new("arbitrary"),
        description: String::from("quotes \" and \\ and\nlines"),
        symbols,
        key: Some(Key {
            symbol: Word::new(key),
            field: Word::new("value"),
        }),
        states: order
            .iter()
            .map(|&state| State {
                name: name(state),
                kind: kinds[state].0,
            })
            .collect(),
        transitions: edges
            .iter()
            .filter(|(from, ..)| reached.contains(from))
            .map(|(from, to, label)| Transition {
                from: name(*from),
                to: name(*to),
                label: label.clone(),
                label_at: TextPosition::default(),
            })
            .collect(),
    };
    let catalogue = catalogue(Some(&specification));
    Some(Metric::new(specification, &catalogue).expect("it makes sense by construction"))
}

fn line() -> impl Strategy<Value = (u64, u8, u32, u32)> {
    (0..5_u64, 0..26_u8, 0..4_u32, 0..4_u32)
}

fn lines(parts: &[(u64, u8, u32, u32)]) -> Vec<Line> {
    let mut time = 100;
    let each = parts.iter().map(|&(step, kind, task, value)| {
        time += step;
        let event = ["w", "x", "y", "z"][usize::from(kind % 4)];
        let line = match kind {
            25 => format!("{time} gap kernel:{event} from={} missed=2", time - 3),
            _ => format!("{time} kernel:{event} task={task} value={value}"),
        };
        Line::parse(&line).unwrap()
    });
    each.collect()
}

/// The comparison would be useless if arbitrary metrics measured nothing.
#[test]
fn arbitrary_metrics_measure() {
    let mut runner = TestRunner::deterministic();
    let (mut measuring, mut inside) = (0, 0);
    for _ in 0..500 {
        let metric = metric().new_tree(&mut runner).unwrap().current();
        let parts = prop::collection::vec(line(), 40..80);
        let parts = parts.new_tree(&mut runner).unwrap().current();
        if let Some(metric) = metric {
            let rows = play(&metric, &lines(&parts), None).rows;
            measuring += usize::from(!rows.is_empty());
            inside += usize::from(rows.iter().any(|row| row.length > 0 && row.events > 0));
        }
    }
    assert!(
        measuring >= 150 && inside >= 50,
        "{measuring} measure, {inside} inside"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn engine_follows_the_rules(
        metric in metric(),
        parts in prop::collection::vec(line(), 0..80),
    ) {
        let Some(metric) = metric else { return Ok(()) };
        let lines = lines(&parts);
        let played = play(&metric, &lines, None);
        let (steps, tasks) = steps(metric.specification(), &lines).unwrap();
        let expected = interpret(metric.specification(), &steps, &tasks);
        prop_assert_eq!(played.rows.len(), expected.len(), "{}", metric);
        for (row, found) in played.rows.iter().zip(&expected) {
            let actual = (row.task, row.begin, row.end, row.length);
            prop_assert_eq!(actual, (found.task, found.begin, found.end, found.length), "{}", metric);
            let counts = (row.events, row.own, row.missed);
            let expected = (found.events as u64, found.own as u64, found.missed);
            prop_assert_eq!(counts, expected, "{}\n{:?}", metric, row);
            prop_assert!(row.length <= row.end - row.begin);
        }
    }

    #[test]
    fn engine_follows_the_rules_for_backdated_events(
        metric in own_metric(),
        parts in prop::collection::vec(line(), 0..80),
    ) {
        let Some(metric) = metric else { return Ok(()) };
        let lines = lines(&parts);
        let played = play(&metric, &lines, None);
        let (steps, tasks) = steps(metric.specification(), &lines).unwrap();
        let expected = interpret(metric.specification(), &steps, &tasks);
        let actual = played.rows.iter().map(|row| (row.task, row.begin, row.end, row.length, row.missed));
        let expected = expected.iter().map(|it| (it.task, it.begin, it.end, it.length, it.missed));
        prop_assert_eq!(actual.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{}", metric);
    }

    #[test]
    fn printed_metric_parses_to_itself(metric in metric()) {
        let Some(metric) = metric else { return Ok(()) };
        let again: Specification = metric.to_string().parse().unwrap();
        prop_assert_eq!(&again, metric.specification());
        let picture = metric.specification().to_graphviz();
        prop_assert_eq!(picture.lines().next(), Some("digraph arbitrary {"));
    }

    #[test]
    fn parser_panics_on_no_text(text in "(metric|event|state|by|->|[ab0\"\\\\=:,*λ\\[\\]#\n ]){0,40}") {
        let _ = text.parse::<Metric>();
    }
}
