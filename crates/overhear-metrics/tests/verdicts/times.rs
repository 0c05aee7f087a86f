// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rates, periods, absences, and forbidden events.

use overhear_event::{Analysis, ElementView, Origin, Timestamp};
use overhear_metrics::automaton::Catalogue;
use overhear_metrics::verdict::{
    Constraint, ConstraintError, Demand, Each, TaskFilter, Values, Verdicts,
};

use crate::scene::{constraint, end, ns, pattern, play, stream};

fn rate(at_least: Option<u64>, at_most: Option<u64>) -> Constraint {
    constraint(Demand::Rate {
        of: pattern("user:a"),
        window: ns(100),
        at_least,
        at_most,
    })
}

#[test]
fn window_with_too_many_elements_offends() {
    // Two in 100: the third may come 100 after the first.
    let two = || rate(None, Some(2));
    assert_eq!(
        end(play(two(), 0, "0 a; 50 a; 100 a; 150 a"), 200),
        "held 0/4"
    );
    let played = play(two(), 0, "0 a; 50 a; 99 a; 150 a");
    assert_eq!(
        played.judge().0,
        ["1: 3 elements within 99 ns, 2 permitted, at 0.000000000 s, p1(1) (p1(1)/a #0, p1(1)/a #2)"]
    );
    assert_eq!(end(played, 200), "violated 1/4");
    // Missed elements can only raise the number.
    assert_eq!(
        end(play(two(), 0, "0 a; 50 a; 60 gap a 50 1; 99 a"), 200),
        "violated 1/3: 1 missed"
    );
    assert_eq!(
        end(play(rate(None, Some(0)), 0, "5 a"), 200),
        "violated 1/1"
    );
}

#[test]
fn window_with_too_few_elements_is_decided_by_advance() {
    // The window after each element holds at least two more.
    let two = || rate(Some(2), None);
    let played = play(two(), 0, "0 a; 50 a; 100 a; 150 a; 199 advance");
    assert_eq!(played.judge().0, [] as [&str; 0]);
    // 50 + 100 is over and has 100 and 150; 100 + 100 has only 150.
    let played = play(
        two(),
        0,
        "0 a; 50 a; 100 a; 150 a; 200 advance; 201 advance",
    );
    assert_eq!(
        played.judge().0,
        ["1: 1 elements in 100 ns, 2 demanded, at 0.000000100 s, p1(1) (p1(1)/a #2)"]
    );
    // An element decides as well as an advance.
    let played = play(two(), 0, "0 a; 50 a; 301 a");
    assert_eq!(played.judge().0.len(), 2);
    // Windows that the end cuts off are not judged.
    assert_eq!(
        end(play(two(), 0, "0 a; 50 a; 100 a; 150 a"), 199),
        "held 0/2"
    );
    // Windows with a gap are not judged either.
    assert_eq!(
        end(play(two(), 0, "0 a; 90 gap a 10 1; 90 a; 91 a; 92 a"), 150),
        "inconclusive 0/1: 1 missed"
    );
}

#[test]
fn sensors_are_judged_separately_until_their_process_ends() {
    let absence = || {
        constraint(Demand::Absence {
            of: pattern("user:a"),
            at_most: ns(100),
        })
    };
    let two = "0 a@7; 10 a@8; 90 a@7; 100 a@8";
    assert_eq!(end(play(absence(), 0, two), 189), "held 0/2");
    assert_eq!(end(play(absence(), 0, two), 190), "violated 1/3");
    let exits = format!("{two}; 120 exit 7; 180 a@8");
    assert_eq!(end(play(absence(), 0, &exits), 250), "held 0/3");
    // All sensors together; one of them is sufficient.
    let all = absence().each(Each::All, &Catalogue::linux()).unwrap();
    assert_eq!(end(play(all, 0, "0 a@7; 90 a@8; 180 a@7"), 279), "held 0/2");
}

#[test]
fn absence_is_decided_once_and_retracted_by_a_gap() {
    let absence = || {
        constraint(Demand::Absence {
            of: pattern("user:a"),
            at_most: ns(100),
        })
    };
    let played = play(
        absence(),
        0,
        "0 a; 100 advance; 101 advance; 300 advance; 310 a",
    );
    assert_eq!(
        played.judge().0,
        ["1: the next one did not come within 100 ns, at 0.000000000 s, p1(1) (p1(1)/a #0)"]
    );
    assert_eq!(end(played, 320), "violated 1/1");
    // The gap becomes known with the element after it.
    let played = play(absence(), 0, "0 a; 150 advance; 200 gap a 0 2; 200 a");
    assert_eq!(played.judge().0[1], "retracted: c");
    assert_eq!(
        end(played, 250),
        "inconclusive 0/1: 2 missed, 1 excused by what was missed"
    );
    // A gap that is known before excuses.
    let played = play(absence(), 0, "0 a; 50 gap a 0 2; 150 advance");
    assert_eq!(end(played, 250), "inconclusive 0/0: 2 missed");
    // A gap elsewhere does not.
    let played = play(absence(), 0, "0 a; 50 gap b 0 2; 150 advance");
    assert_eq!(end(played, 250), "violated 1/1");
}

#[test]
fn last_advance_of_a_monitor_is_no_time() {
    let last = format!("0 a; 50 a; {} advance", u64::MAX);
    let of = || pattern("user:a");
    let within = ns(100);
    let absence = Demand::Absence {
        of: of(),
        at_most: within,
    };
    let deadline = Demand::Deadline {
        after: of(),
        of: of(),
        within,
    };
    let rate = Demand::Rate {
        of: of(),
        window: within,
        at_least: Some(1),
        at_most: None,
    };
    for demand in [absence, deadline, rate] {
        let played = play(constraint(demand.clone()), 0, &last);
        assert_eq!(played.judge().0, [] as [&str; 0], "{demand:?}");
        assert_eq!(end(played, 149), "held 0/1", "{demand:?}");
        // The observation went on.
        let played = play(constraint(demand.clone()), 0, &last);
        assert_eq!(end(played, 150), "violated 1/2", "{demand:?}");
    }
}

#[test]
fn period_has_jitter_to_both_sides() {
    let period = || {
        constraint(Demand::Period {
            of: pattern("user:a"),
            period: ns(100),
            jitter: ns(10),
        })
    };
    assert_eq!(
        end(play(period(), 0, "0 a; 90 a; 200 a; 300 a"), 400),
        "held 0/3"
    );
    let played = play(period(), 0, "0 a; 89 a; 200 a; 310 a");
    assert_eq!(
        played.judge().0,
        [
            "1: 89 ns after the one before, at least 90 ns demanded, at 0.000000000 s, p1(1) \
             (p1(1)/a #0, p1(1)/a #1)",
            "2: the next one did not come within 110 ns, at 0.000000089 s, p1(1) (p1(1)/a #1)",
        ]
    );
    // A distance that is too small is certain in spite of missed elements; one that is too large is
    // not.
    assert_eq!(
        end(play(period(), 0, "0 a; 89 a; 95 gap a 0 1; 180 a"), 200),
        "violated 1/1: 1 missed"
    );
}

#[test]
fn forbidden_event_holds_if_its_stream_exists() {
    let never = || {
        constraint(Demand::Never {
            of: pattern("user:a [value == 3]"),
        })
    };
    assert_eq!(end(play(never(), 0, "1 a 1; 2 a 2"), 9), "held 0/0");
    let played = play(never(), 0, "1 a 1; 2 a 3");
    assert_eq!(
        played.judge().0,
        ["1: it happened, at 0.000000002 s, p1(1) (p1(1)/a #1)"]
    );
    assert_eq!(
        end(play(never(), 0, "1 a 1; 5 gap a 1 2"), 9),
        "inconclusive 0/0: 2 missed"
    );
    assert_eq!(
        end(play(never(), 0, "1 b 1"), 9),
        "inconclusive 0/0: no stream of user:a"
    );
    // It does not exist without a task either: the name may be wrong.
    let named = |name: &str| never().of_task(TaskFilter::parse(name));
    assert_eq!(end(play(named("p?"), 0, "1 a 1"), 9), "held 0/0");
    assert_eq!(end(play(named("1"), 0, "1 a 1"), 9), "held 0/0");
    assert_eq!(
        end(play(named("q?"), 0, "1 a 1; 2 a 3"), 9),
        "inconclusive 0/0: no task `q?` was seen"
    );
    let renamed = "1 a 1; 2 name 5 q1; 3 name 5 other";
    assert_eq!(end(play(named("q?"), 0, renamed), 9), "held 0/0");
}

/// A program that changes its name between two sensors, as LTTng's library does while it begins.
#[test]
fn process_has_the_name_of_its_registration() {
    let named = |id, sensor: &str, comm: &str| {
        let mut stream = stream(id, sensor, 7);
        if let Origin::Program(task) = &mut stream.origin {
            comm.clone_into(&mut task.comm);
        }
        stream
    };
    let (first, second) = (named(1, "first", "early"), named(2, "a", "late"));
    let offences = |filter: &str| {
        let never = constraint(Demand::Never {
            of: pattern("user:a"),
        });
        let mut verdicts = Verdicts::new(());
        verdicts
            .add(never.of_task(TaskFilter::parse(filter)))
            .unwrap();
        verdicts.open(&first);
        verdicts.open(&second);
        verdicts.element(&ElementView {
            stream: &second,
            sequence: 0,
            time: Timestamp::ZERO,
            payload: &[0; 16],
        });
        let verdict = verdicts.verdicts().next().unwrap();
        verdict
            .first
            .map(|case| (verdict.offences, case.task().unwrap()))
    };
    assert_eq!(offences("late"), Some((1, "late(7)".to_owned())));
    assert_eq!(offences("7"), Some((1, "late(7)".to_owned())));
    assert_eq!(offences("early"), None);
}

/// A run receives a sensor at its registration, a replay receives all of them before their first
/// elements.
#[test]
fn name_of_a_later_sensor_does_not_matter_to_an_earlier_one() {
    let named = |id, sensor: &str, comm: &str| {
        let mut stream = stream(id, sensor, 7);
        if let Origin::Program(task) = &mut stream.origin {
            comm.clone_into(&mut task.comm);
        }
        stream
    };
    let (first, second) = (named(1, "a", "early"), named(2, "b", "late"));
    let element = |sequence| ElementView {
        stream: &first,
        sequence,
        time: Timestamp::from_monotonic_ns(sequence),
        payload: &[0; 16],
    };
    let metric = "metric m\nevent a = user:a\nstate 0 out\nstate 1 begin\nstate 2 in\n\
                  state 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: a, i\n";
    let demands: [fn(&str) -> Demand; 2] = [
        |_| Demand::Never {
            of: pattern("user:a"),
        },
        |metric| Demand::Bounds {
            of: Values::Metric(Box::new(metric.parse().unwrap())),
            min: None,
            max: Some(0.0),
        },
    ];
    for (demand, offences) in demands.into_iter().zip([2, 1]) {
        let found = |filter: &str, is_replay: bool| {
            let judged = constraint(demand(metric)).of_task(TaskFilter::parse(filter));
            let mut verdicts = Verdicts::new(());
            verdicts.add(judged).unwrap();
            verdicts.open(&first);
            if is_replay {
                verdicts.open(&second);
            }
            (0..2).for_each(|sequence| verdicts.element(&element(sequence)));
            verdicts.open(&second);
            let found = verdicts.verdicts().next().unwrap().offences;
            found
        };
        for is_replay in [false, true] {
            assert_eq!(found("late", is_replay), 0, "{is_replay}");
            assert_eq!(found("early", is_replay), offences, "{is_replay}");
        }
    }
}

#[test]
fn lengths_of_zero_and_huge_windows_are_refused() {
    let linux = Catalogue::linux();
    let refused = |demand| Constraint::new("c", demand, &linux).unwrap_err();
    let of = || pattern("user:a");
    let demand = |window, at_most| Demand::Rate {
        of: of(),
        window,
        at_least: None,
        at_most,
    };
    assert_eq!(
        refused(demand(ns(0), Some(1))),
        ConstraintError::Zero("window")
    );
    assert_eq!(refused(demand(ns(1), None)), ConstraintError::Boundless);
    assert_eq!(
        refused(demand(ns(1), Some(65_537))),
        ConstraintError::Window(65_537)
    );
    let absence = Demand::Absence {
        of: of(),
        at_most: ns(0),
    };
    assert_eq!(refused(absence), ConstraintError::Zero("longest absence"));
    let nameless = Constraint::new(" ", Demand::Never { of: of() }, &linux);
    assert_eq!(nameless, Err(ConstraintError::Nameless));
}
