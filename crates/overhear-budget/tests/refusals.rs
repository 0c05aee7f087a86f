// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input: each error has one clear message, and does not change the budget.
#![allow(missing_docs)]

use overhear_budget::{
    Actuator, AddSourceError, Budget, BudgetError, EventPrice, Overhead, SourceCount, SourceId,
    SourceSpec, ThreadKey, TickError, TickInput, UnitCount,
};
use overhear_event::{Nanos, Timestamp};

fn percent(percent: f64) -> Overhead {
    Overhead::from_percent(percent).unwrap()
}

fn budget() -> Budget {
    Budget::new(percent(5.0), Nanos::from_ms(1_000)).unwrap()
}

fn spec(name: &str) -> SourceSpec {
    SourceSpec::new(name, EventPrice::from_ns(100.0, 1.0).unwrap())
}

fn count(source: SourceId, events: u64) -> SourceCount {
    SourceCount {
        source,
        thread: ThreadKey::from_raw(7),
        events,
        units: None,
        is_capped: false,
    }
}

fn input(ms: u64, counts: &[SourceCount]) -> TickInput<'_> {
    TickInput {
        now: Timestamp::from_monotonic_ns(ms * 1_000_000),
        cpu: Nanos::from_ms(ms),
        own_cpu: Nanos::ZERO,
        counts,
    }
}

#[test]
fn budget_needs_a_window_and_a_source_to_switch() {
    let error = Budget::new(percent(5.0), Nanos::from_us(999)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the window of the budget is 999000 ns; give at least 1 ms of CPU time"
    );
    let mut budget = budget();
    assert_eq!(budget.check_switchable(), Err(BudgetError::NothingToSwitch));
    budget.add(spec("stays").always_on()).unwrap();
    assert_eq!(
        budget.check_switchable().unwrap_err().to_string(),
        "the budget has no source that can be switched; add one that is not always on"
    );
    budget.add(spec("switched")).unwrap();
    assert_eq!(budget.check_switchable(), Ok(()));
}

#[test]
fn source_needs_a_weight_and_floors_within_the_target() {
    let mut budget = budget();
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = budget.add(spec("a").weight(weight)).unwrap_err();
        assert!(matches!(error, AddSourceError::Weight { .. }));
        assert!(error.to_string().starts_with("source a: the weight is "));
    }
    budget.add(spec("b").floor(percent(3.0))).unwrap();
    let error = budget.add(spec("c").floor(percent(2.5))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "source c: with its floor, the floors of all sources are 5.5 % together, above the target \
         of 5 %; lower a floor or raise the target"
    );
    budget.add(spec("c").floor(percent(2.0))).unwrap();
    budget.add(spec("d")).unwrap();
    assert_eq!(budget.report().sources.len(), 3, "errors add no source");
}

#[test]
fn requirement_must_be_in_the_budget_and_always_on_if_the_source_is() {
    let mut budget = budget();
    let entry = budget.add(spec("entry")).unwrap();
    let error = budget
        .add(spec("exit").always_on().requires(entry))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "source exit is always on but requires entry, which is switched; make entry always on, too"
    );
    budget.add(spec("return").requires(entry)).unwrap();
    assert!(budget.remove(entry).is_some());
    let error = budget.add(spec("late").requires(entry)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "source late requires source 0.1, which is not in the budget; add it first"
    );
}

#[test]
fn removed_requirement_switches_its_dependents_off() {
    let mut budget = budget();
    let entry = budget.add(spec("entry")).unwrap();
    let exit = budget.add(spec("return").requires(entry)).unwrap();
    let outcome = budget.tick(&input(0, &[])).unwrap();
    assert!(outcome.settings.iter().all(|it| it.is_on));
    assert_eq!(budget.remove(entry).unwrap().name.as_ref(), "entry");
    assert_eq!(budget.remove(entry), None);
    // The index is used again, by a source that no source requires.
    let other = budget.add(spec("other")).unwrap();
    assert_eq!(other.index(), entry.index());
    let outcome = budget.tick(&input(10, &[count(exit, 3)])).unwrap();
    let on: Vec<_> = outcome
        .settings
        .iter()
        .map(|it| (it.source, it.is_on))
        .collect();
    assert_eq!(on, [(other, true), (exit, false)]);
}

#[test]
fn tick_with_bad_totals_changes_nothing() {
    let mut budget = budget();
    let a = budget.add(spec("a")).unwrap();
    let gone = budget.add(spec("gone")).unwrap();
    let _ = budget.remove(gone);
    budget.tick(&input(0, &[])).unwrap();
    budget.tick(&input(10, &[count(a, 100)])).unwrap();
    let before = budget.report();
    let units = |on, all| SourceCount {
        units: Some(UnitCount { on, all }),
        ..count(a, 101)
    };
    let now_back = TickInput {
        now: Timestamp::from_monotonic_ns(9_000_000),
        ..input(20, &[])
    };
    for (input, message) in [
        (
            input(20, &[count(a, 101), count(gone, 1)]),
            "a count names source 1.1, which is not in the budget; add it, or drop the counts of \
             removed sources",
        ),
        (
            input(20, &[count(a, 99)]),
            "a total of source 0.1 in thread 7 fell; give totals, and end a thread whose key is \
             used again",
        ),
        (
            input(20, &[units(3, 2)]),
            "source 0.1 reports more units on than units in all; give both as totals",
        ),
        (
            now_back,
            "the time of a tick is 1000000 ns before that of the last tick; give totals that \
             never fall",
        ),
        (
            TickInput {
                now: Timestamp::from_monotonic_ns(20_000_000),
                ..input(9, &[])
            },
            "the CPU time of a tick is 1000000 ns before that of the last tick; give totals that \
             never fall",
        ),
    ] {
        let error: TickError = budget.tick(&input).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(budget.report(), before);
    }
    // A thread that has ended frees its key.
    budget.end_thread(ThreadKey::from_raw(7));
    budget.tick(&input(20, &[count(a, 5)])).unwrap();
    assert_eq!(budget.report().sources[0].events, 105);
}

#[test]
fn costs_are_reported_by_thread_and_source() {
    let mut budget = budget();
    let [a, b] = ["a", "b"].map(|name| budget.add(spec(name)).unwrap());
    let thread = |source, thread, events| SourceCount {
        thread: ThreadKey::from_raw(thread),
        ..count(source, events)
    };
    budget.tick(&input(0, &[])).unwrap();
    let counts = [thread(a, 1, 10), thread(a, 2, 30), thread(b, 2, 5)];
    budget.tick(&input(100, &counts)).unwrap();
    budget.end_thread(ThreadKey::from_raw(1));
    let report = budget.report();
    let rows = |at: usize| -> Vec<(u64, u64, f64)> {
        let threads = report.sources[at].threads.iter();
        threads
            .map(|it| (it.thread.as_raw(), it.events, it.cost_ns))
            .collect()
    };
    assert_eq!(rows(0), [(2, 30, 3_000.0)]);
    assert_eq!(rows(1), [(2, 5, 500.0)]);
    let costs: Vec<f64> = report.sources.iter().map(|it| it.cost_ns).collect();
    assert_eq!(costs, [4_000.0, 500.0], "the ended thread stays in the sum");
    // 4.5 us of 100 ms; the prices have errors of 1 %.
    assert!((report.observed - 4.5e3 / (100e6 - 4.5e3)).abs() < 1e-12);
    assert!((report.observed_error / report.observed - 0.00894).abs() < 1e-4);
    let removed = budget.remove(a).unwrap();
    assert_eq!((removed.events, removed.cost_ns), (40, 4_000.0));
    let after = budget.report();
    assert_eq!((after.removed_sources, after.removed_ns), (1, 4_000.0));
    assert!((after.observed - report.observed).abs() < 1e-15);
}

#[test]
fn prices_of_removed_sources_are_not_accepted() {
    let mut budget = budget();
    let source = budget
        .add(spec("a").actuator(Actuator::Switch {
            dwell: Nanos::from_ms(5),
        }))
        .unwrap();
    let price = EventPrice::from_ns(1.0, 0.0).unwrap();
    assert!(budget.refine_price(source, price) && budget.change_price(source, price));
    let _ = budget.remove(source);
    assert!(!budget.refine_price(source, price) && !budget.change_price(source, price));
}

/// Numbers at the ends of their ranges cause no panic and no NaN.
#[test]
fn extreme_numbers_are_survived() {
    for (ns, target) in [(0.0, 5.0), (1e300, 5.0), (1.0, 1e12), (f64::MAX, 0.0)] {
        let mut budget = Budget::new(percent(target), Nanos::from_ns(u64::MAX)).unwrap();
        budget.set_base(percent(1e6));
        let price = EventPrice::from_ns(ns, ns).unwrap();
        let a = budget
            .add(SourceSpec::new("a", price).weight(1e300))
            .unwrap();
        let b = budget
            .add(SourceSpec::new("b", price).weight(1e-300))
            .unwrap();
        for step in [0, 1, 10, u64::MAX / 2, u64::MAX] {
            let counts = [count(a, step), count(b, step)];
            let outcome = budget
                .tick(&TickInput {
                    now: Timestamp::from_monotonic_ns(step),
                    cpu: Nanos::from_ns(step),
                    own_cpu: Nanos::from_ns(step / 2),
                    counts: &counts,
                })
                .unwrap();
            for setting in outcome.settings {
                assert!((0.0..=1.0).contains(&setting.share), "{setting:?}");
            }
        }
        assert!(!budget.report().observed.is_nan());
    }
}
