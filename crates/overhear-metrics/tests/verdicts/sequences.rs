// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders and deadlines.

use overhear_event::Timestamp;
use overhear_metrics::automaton::Catalogue;
use overhear_metrics::verdict::{Constraint, ConstraintError, Demand, Each};

use crate::scene::{constraint, end, ns, pattern, play, stream};

fn order() -> Constraint {
    constraint(Demand::Order {
        of: vec![pattern("user:a"), pattern("user:b"), pattern("user:c")],
    })
}

#[test]
fn order_is_a_cycle_from_its_first_event() {
    assert_eq!(
        end(play(order(), 0, "1 a; 2 b; 3 c; 4 a; 5 b"), 9),
        "held 0/5"
    );
    let played = play(order(), 0, "1 a; 1 open b; 2 c; 3 a; 4 a; 5 b; 6 c");
    assert_eq!(
        played.judge().0,
        [
            "1: event 3 of the order came where event 2 was due, at 0.000000001 s, p1(1) \
             (p1(1)/a #0, p1(1)/c #0)",
            "2: event 1 of the order came where event 2 was due, at 0.000000003 s, p1(1) \
             (p1(1)/a #1, p1(1)/a #2)",
        ]
    );
    assert_eq!(
        play(order(), 0, "0 open a; 1 b").judge().0,
        ["1: event 2 of the order came where event 1 was due, at 0.000000001 s, p1(1) (p1(1)/b #0)"]
    );
    assert_eq!(
        end(play(order(), 0, "1 a; 2 b"), 9),
        "inconclusive 0/2: no stream of user:c"
    );
}

#[test]
fn each_task_and_value_has_its_own_order() {
    let two = "1 a@7; 2 a@8; 3 b@7; 4 b@8; 5 c@8; 6 c@7";
    assert!(end(play(order(), 0, two), 9).starts_with("violated"));
    let linux = Catalogue::linux();
    let task = order().each(Each::Task, &linux).unwrap();
    assert_eq!(end(play(task, 0, two), 9), "held 0/6");
    let value = order().each(Each::Field("wait".into()), &linux).unwrap();
    let by_value = "1 a 7; 2 a 8; 3 b 7; 4 b 8; 5 c 8; 6 c 7";
    assert_eq!(end(play(value, 0, by_value), 9), "held 0/6");
    // Groups have unsigned numbers; another field has no groups.
    let signed = order().each(Each::Field("value".into()), &linux).unwrap();
    let played = end(play(signed, 0, by_value), 9);
    let message = "field `value` of `user:a` is not an unsigned number";
    assert!(played.starts_with("inconclusive 0/0"), "{played}");
    assert!(played.contains(message), "{played}");
}

#[test]
fn order_within_clock_error_is_inconclusive() {
    // Each stamp may be wrong by 5: two streams by 10.
    let close = "100 a; 111 b; 122 c; 130 a; 145 b; 160 c";
    assert_eq!(
        end(play(order(), 5, close), 999),
        "inconclusive 0/5: 1 inside the clock error"
    );
    // In the wrong order, and close.
    let crossed = "100 a; 200 c; 205 b; 300 a; 400 b; 500 c; 600 a";
    let played = play(order(), 5, crossed);
    assert_eq!(played.judge().0, [] as [&str; 0]);
    assert!(end(played, 999).starts_with("inconclusive 0/"));
    // In the wrong order, and far enough apart: decided when no closer element can come any more.
    let played = play(order(), 5, "100 a; 200 c; 210 advance");
    assert_eq!(played.judge().0, [] as [&str; 0]);
    let played = play(order(), 5, "100 a; 100 open b; 200 c; 211 advance");
    assert_eq!(played.judge().0.len(), 1);
    // Within one stream the order is certain.
    let demand = Demand::Order {
        of: vec![
            pattern("user:a [value == 1]"),
            pattern("user:a [value == 2]"),
        ],
    };
    assert_eq!(
        end(play(constraint(demand), 5, "1 a 1; 2 a 2; 3 a 1"), 9),
        "held 0/3"
    );
    // The user's clock error takes precedence over that of the segments.
    let exact = order().with_clock_error(ns(0));
    assert_eq!(end(play(exact, 5, "100 a; 101 b; 102 c"), 999), "held 0/3");
}

#[test]
fn missed_element_may_be_the_due_one() {
    // The gap is known before: the order starts again.
    let played = play(order(), 0, "1 a; 5 gap b 2 1; 6 c; 7 a");
    assert_eq!(end(played, 9), "inconclusive 0/2: 1 missed");
    // It becomes known later.
    let played = play(order(), 0, "1 a; 1 open b; 6 c; 8 gap b 0 1; 8 b");
    assert_eq!(played.judge().0[1], "retracted: c");
    assert!(end(played, 9).starts_with("inconclusive 0/"));
    // The gap is at another time.
    let played = play(order(), 0, "1 a; 1 open b; 6 c; 9 gap b 6 1; 9 b");
    assert!(end(played, 9).starts_with("violated 1/"));
}

/// A group whose first known element comes after a gap may have begun in the gap.
#[test]
fn missed_element_may_be_the_first_one() {
    let linux = Catalogue::linux();
    let each = |each| order().each(each, &linux).unwrap();
    let (all, task) = (each(Each::All), each(Each::Task));
    let number = each(Each::Field("wait".into()));
    let lost = "5 gap a@7 0 1; 6 b@7 7; 7 c@7 7; 8 a@7 8; 9 b@7 8; 10 c@7 8";
    for constraint in [all, task.clone(), number.clone()] {
        let played = play(constraint, 0, lost);
        assert_eq!(played.judge().0, [] as [&str; 0]);
        assert!(end(played, 99).starts_with("inconclusive 0/"));
    }
    // The order of a group is judged from its second known event on.
    for constraint in [task, number] {
        let wrong = "5 gap a@7 0 1; 6 b@7 7; 7 c@7 7; 8 b@7 7";
        assert!(end(play(constraint, 0, wrong), 99).starts_with("violated 1/2: 1 missed"));
    }
    // Losses of one sensor excuse no other.
    let of = ["user:a [value == 1]", "user:a [value == 2]"];
    let of = of.iter().map(|text| pattern(text)).collect();
    let sensors = constraint(Demand::Order { of });
    let sensors = || sensors.clone().each(Each::Sensor, &linux).unwrap();
    assert_eq!(
        end(play(sensors(), 0, "5 gap a@7 0 1; 6 a@7 2; 7 a@7 1"), 99),
        "inconclusive 0/1: 1 missed"
    );
    assert_eq!(
        end(play(sensors(), 0, "5 gap a@7 0 1; 6 a@8 2"), 99),
        "violated 1/1: 1 missed"
    );
    // It is removed when its process ends, with or without an element: over time there may be more
    // processes than the capacity.
    let short = |pid: u32| match pid % 2 {
        0 => format!("5 gap a@{pid} 0 1; 6 a@{pid} 2; 7 exit {pid}; "),
        _ => format!("5 gap a@{pid} 0 1; 7 exit {pid}; "),
    };
    let many: String = (1..=16_400).map(short).collect();
    assert_eq!(
        end(play(sensors(), 0, &many), 99),
        "inconclusive 0/0: 16400 missed"
    );
}

fn deadline() -> Constraint {
    constraint(Demand::Deadline {
        after: pattern("user:a"),
        of: pattern("user:b"),
        within: ns(100),
    })
}

#[test]
fn answer_answers_every_question_before_it() {
    assert_eq!(
        end(play(deadline(), 0, "0 a; 50 a; 100 b; 200 b; 300 a"), 350),
        "held 0/2"
    );
    let played = play(deadline(), 0, "0 a; 50 a; 100 advance; 101 advance; 120 b");
    assert_eq!(
        played.judge().0,
        ["1: it did not follow within 100 ns, at 0.000000000 s, p1(1) (p1(1)/a #0)"]
    );
    assert_eq!(end(played, 999), "violated 1/2");
    // The element itself decides which events are due before it.
    let played = play(deadline(), 0, "0 a; 101 b");
    assert_eq!(played.judge().0.len(), 1);
}

#[test]
fn answers_belong_to_the_asking_task_or_number() {
    let linux = Catalogue::linux();
    let each = |each| deadline().each(each, &linux).unwrap();
    let crossed = "0 a@7; 10 a@8; 50 b@8; 101 advance; 110 b@7";
    assert_eq!(end(play(each(Each::All), 0, crossed), 999), "held 0/2");
    assert_eq!(end(play(each(Each::Task), 0, crossed), 999), "violated 1/2");
    let numbers = "0 a 1; 10 a 2; 50 b 2; 90 b 1";
    let of_numbers = each(Each::Field("wait".into()));
    assert_eq!(end(play(of_numbers, 0, numbers), 999), "held 0/2");
    // If a task ends without an answer, the answer is absent.
    let ends = "0 a@7; 1 b@8; 5 exit 7; 200 advance";
    assert_eq!(end(play(each(Each::Task), 0, ends), 999), "violated 1/1");
}

#[test]
fn element_can_answer_and_ask() {
    let again = constraint(Demand::Deadline {
        after: pattern("user:a"),
        of: pattern("user:a"),
        within: ns(100),
    });
    assert_eq!(end(play(again, 0, "0 a; 100 a; 200 a"), 250), "held 0/2");
}

#[test]
fn deadline_within_clock_error_is_inconclusive() {
    let judged = |trace: &str| end(play(deadline(), 5, trace), 999);
    assert_eq!(judged("0 a; 89 b"), "held 0/1");
    for close in ["0 a; 90 b", "0 a; 110 b"] {
        assert_eq!(judged(close), "inconclusive 0/0: 1 inside the clock error");
    }
    assert_eq!(judged("0 a; 111 b"), "violated 1/1");
    // The answer may have come just after the question, although its stamp is earlier.
    assert_eq!(
        judged("200 b; 205 a"),
        "inconclusive 0/0: 1 inside the clock error"
    );
}

#[test]
fn answer_may_be_a_missed_element() {
    let judged = |trace: &str| end(play(deadline(), 0, trace), 999);
    assert_eq!(
        judged("0 a; 1 b; 10 a; 50 gap b 20 1; 500 advance"),
        "inconclusive 0/1: 1 missed"
    );
    // Missed questions excuse no answer.
    assert_eq!(
        judged("0 a; 1 b; 10 a; 50 gap a 20 1; 500 advance"),
        "violated 1/2: 1 missed"
    );
    let late = "0 a; 1 b; 10 a; 111 advance; 500 gap b 20 1; 500 b";
    assert_eq!(
        judged(late),
        "inconclusive 0/2: 1 missed, 1 excused by what was missed"
    );
}

#[test]
fn answer_within_clock_error_is_ambiguous() {
    let one_stream = constraint(Demand::Deadline {
        after: pattern("user:a [value == 1]"),
        of: pattern("user:a [value == 2]"),
        within: ns(100),
    });
    let judged = |trace: &str| end(play(one_stream.clone(), 5, trace), 999);
    assert_eq!(judged("0 a 1; 105 a 2"), "violated 1/1");
    assert_eq!(
        judged("0 a 1; 50 gap a 20 1; 105 a 2"),
        "inconclusive 0/0: 1 missed"
    );
    assert_eq!(
        judged("0 a 1; 50 gap a 20 1; 100 a 2"),
        "inconclusive 0/1: 1 missed"
    );
}

#[test]
fn event_without_a_stream_is_not_absent() {
    // There is no stream of `b`.
    let played = play(deadline(), 0, "0 a; 200 advance; 300 a");
    assert_eq!(played.judge().0, [] as [&str; 0]);
    assert_eq!(end(played, 999), "inconclusive 0/0: no stream of user:b");
    let played = play(order(), 0, "1 a; 2 c; 3 a");
    assert_eq!(end(played, 9), "inconclusive 0/2: no stream of user:b");
    // The stream of the due event exists, even if another one does not.
    let played = play(order(), 0, "1 a; 2 b; 3 b");
    assert_eq!(end(played, 9), "violated 1/3: no stream of user:c");
    // A sensor that is registered later has written nothing before.
    let played = play(deadline(), 0, "0 a; 200 advance; 300 b; 301 advance");
    assert_eq!(
        played.judge().0,
        ["1: it did not follow within 100 ns, at 0.000000000 s, p1(1) (p1(1)/a #0)"]
    );
    assert_eq!(end(played, 999), "violated 1/1");
    // A gap excuses a waiting question, too.
    let played = play(deadline(), 0, "0 a; 200 advance; 300 gap b 50 1; 300 b");
    assert!(end(played, 999).starts_with("inconclusive 0/"));
}

#[test]
fn events_of_an_unreadable_stream_are_not_absent() {
    let trace = "0 a; 50 b; 100 a; 150 b; 200 a; 500 advance; 600 a";
    let cut = |sensor: u32, name: &str, at| {
        let mut played = play(deadline(), 0, trace);
        played.cut(&stream(sensor, name, 1), Timestamp::from_monotonic_ns(at));
        end(played, 999)
    };
    assert_eq!(cut(3, "other", 0), "violated 2/4");
    // Unreadable questions do not excuse a missing answer either.
    assert_eq!(cut(1, "a", 0), "violated 2/4");
    // The answers end early: neither those that were due nor those that are due at the end are
    // certain.
    assert_eq!(
        cut(2, "b", 150),
        "inconclusive 0/4: 2 excused by what was missed"
    );
    assert_eq!(
        cut(2, "b", 400),
        "violated 1/4: 1 excused by what was missed"
    );
}

#[test]
fn orders_of_one_or_repeated_events_are_refused() {
    let linux = Catalogue::linux();
    let refused = |of: &[&str]| {
        let of = of.iter().map(|text| pattern(text)).collect();
        Constraint::new("c", Demand::Order { of }, &linux).unwrap_err()
    };
    assert_eq!(refused(&["user:a"]), ConstraintError::OneEvent);
    assert_eq!(
        refused(&["user:a", "user:b", "user:a"]),
        ConstraintError::TwiceInOrder("user:a".to_owned())
    );
}
