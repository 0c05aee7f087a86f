// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounds, quantiles and spreads.

use overhear_event::Analysis;
use overhear_metrics::automaton::{system_metric, Catalogue, Metric};
use overhear_metrics::verdict::{
    Constraint, ConstraintError, Demand, Each, TaskFilter, Values, Verdicts,
};

use crate::scene::{constraint, end, pattern, play};

fn field(of: &str, field: &str, as_time: bool) -> Values {
    Values::Field {
        of: pattern(of),
        field: field.to_owned(),
        as_time,
    }
}

fn bounds(min: Option<f64>, max: Option<f64>) -> Constraint {
    let of = field("user:a", "value", false);
    constraint(Demand::Bounds { of, min, max })
}

#[test]
fn bounds_include_their_ends() {
    let both = || bounds(Some(-2.0), Some(5.0));
    assert_eq!(end(play(both(), 0, "1 a 5; 2 a -2"), 9), "held 0/2");
    let played = play(both(), 0, "1 a 5; 2 a 6; 3 a -3; 4 a 7");
    assert_eq!(
        played.judge().0,
        [
            "1: 6 is more than 5, at 0.000000002 s, p1(1) (p1(1)/a #1)",
            "2: -3 is less than -2, at 0.000000003 s, p1(1) (p1(1)/a #2)",
            "3: 7 is more than 5, at 0.000000004 s, p1(1) (p1(1)/a #3)",
        ]
    );
    assert_eq!(end(played, 9), "violated 3/4");
    // The condition selects the values.
    let of = field("user:a [value != 6]", "value", false);
    let (min, max) = (None, Some(5.0));
    let some = constraint(Demand::Bounds { of, min, max });
    assert_eq!(end(play(some, 0, "1 a 5; 2 a 6"), 9), "held 0/1");
}

#[test]
fn missed_elements_are_inconclusive_unless_a_value_offends() {
    let max = || bounds(None, Some(5.0));
    let missed = "1 a 5; 9 gap a 1 3; 9 a 5";
    assert_eq!(end(play(max(), 0, missed), 9), "inconclusive 0/2: 3 missed");
    assert_eq!(
        end(play(max(), 0, "1 a 6; 9 gap a 1 3"), 9),
        "violated 1/1: 3 missed"
    );
    assert_eq!(
        end(play(max(), 0, "1 b 5; 2 gap b 1 1"), 9),
        "inconclusive 0/0: no stream of user:a"
    );
    let mut nothing = play(max(), 0, "");
    nothing.open(&crate::scene::stream(5, "a", 1));
    assert_eq!(
        end(nothing, 9),
        "inconclusive 0/0: nothing to judge happened"
    );
    let mut distrusted = play(max(), 0, "1 a 5");
    distrusted.distrust("the recorder did not finish".to_owned());
    assert_eq!(
        end(distrusted, 9),
        "inconclusive 0/1: the recorder did not finish"
    );
}

#[test]
fn sample_is_judged_where_a_budget_left_elements_out() {
    let max = || bounds(None, Some(5.0));
    let trace = "1 a 5; 9 gap a 1 3 budget; 9 a 5";
    let left_out = "3 not observed to keep a budget (`sampled = true` judges the others)";
    let whole = |trace: &str| end(play(max(), 0, trace), 20);
    assert_eq!(whole(trace), format!("inconclusive 0/2: {left_out}"));
    let more = whole(&format!("{trace}; 12 gap a 9 2"));
    assert_eq!(more, format!("inconclusive 0/2: 2 missed, {left_out}"));
    let sampled = |trace: &str| end(play(max().sampled(true), 0, trace), 20);
    let reason = "judged as a sample: 3 not observed to keep a budget";
    assert_eq!(sampled(trace), format!("held 0/2: {reason}"));
    let offends = "1 a 6; 9 gap a 1 3 budget";
    assert_eq!(sampled(offends), format!("violated 1/1: {reason}"));
    // So are elements that are not in the recording, to keep its rate or size.
    let recorded = trace.replace("budget", "disk");
    assert_eq!(sampled(&recorded), format!("held 0/2: {reason}"));
    assert_eq!(whole(&recorded), format!("inconclusive 0/2: {left_out}"));
    // Other losses count as before.
    let both = format!("{trace}; 12 gap a 9 2");
    assert_eq!(
        sampled(&both),
        format!("inconclusive 0/2: 2 missed, {reason}")
    );
    assert_eq!(sampled("1 a 5"), "held 0/1");
    // An offence that an omitted element excuses is not judged, and causes no doubt.
    let within = 4;
    let answered = |is_sampled| {
        let demand = Demand::Deadline {
            of: pattern("user:b"),
            after: pattern("user:a"),
            within: crate::scene::ns(within),
        };
        let judged = constraint(demand).sampled(is_sampled);
        end(
            play(
                judged,
                0,
                "1 a 1; 2 b 1; 3 a 1; 8 gap b 4 1 budget; 9 b 1; 10 a 1; 11 b 1",
            ),
            20,
        )
    };
    assert!(
        answered(false).starts_with("inconclusive"),
        "{}",
        answered(false)
    );
    assert!(answered(true).starts_with("held"), "{}", answered(true));
}

#[test]
fn inconclusive_constraint_is_reported_once_and_at_once() {
    let max = || bounds(None, Some(5.0));
    let reported = |trace: &str| {
        let mut verdicts = play(max(), 0, trace);
        let before = verdicts.judge().1.clone();
        verdicts.finish(overhear_event::Timestamp::from_monotonic_ns(90));
        (before, verdicts.judge().1.clone())
    };
    let at_once = reported("1 a 5; 9 gap a 1 3; 12 gap a 9 1; 13 a 5");
    assert_eq!(at_once, (vec![9], vec![9]));
    // A violation is certain, in spite of missed elements.
    assert_eq!(reported("1 a 6; 9 gap a 1 3"), (vec![], vec![]));
    // A gap of another stream does not matter; the lack of a stream is known at the end.
    assert_eq!(reported("1 b 5; 9 gap b 1 3"), (vec![], vec![90]));
    assert_eq!(reported("1 a 5"), (vec![], vec![]));
    // For a metric: the elements that its automaton missed.
    let metric = play(of_metric(100.0), 0, "10 a 1; 15 gap a 10 1; 20 a 2");
    assert_eq!(metric.judge().1, [15]);
}

#[test]
fn lengths_are_converted_from_the_unit_of_the_field() {
    let of = || field("user:a", "wait", true);
    let demand = |of| Demand::Bounds {
        of,
        min: None,
        max: Some(5_000.0),
    };
    let played = play(constraint(demand(of())), 0, "1 a 5; 2 a 6");
    assert_eq!(
        played.judge().0,
        ["1: 6.00 us is more than 5.00 us, at 0.000000002 s, p1(1) (p1(1)/a #1)"]
    );
    let of = field("user:a", "value", true);
    assert_eq!(
        end(play(constraint(demand(of)), 0, "1 a 5"), 9),
        "inconclusive 0/0: p1(1)/a: field `value` is in ``, which is no unit of time; give the bound \
         as a number"
    );
    let of = field("user:a", "nothing", false);
    assert_eq!(
        end(play(constraint(demand(of)), 0, "1 a 5"), 9),
        "inconclusive 0/0: p1(1)/a: `user:a` has no field `nothing`; its fields are value, wait"
    );
}

#[test]
fn quantile_is_exact_and_allows_for_missed_elements() {
    let quantile = |fraction| {
        constraint(Demand::Quantile {
            of: field("user:a", "value", false),
            fraction,
            at_most: 5.0,
        })
    };
    let values = |within: usize, above: usize| {
        let mut trace = String::new();
        for index in 0..within + above {
            let value = if index < within { 5 } else { 6 };
            trace.push_str(&format!("{} a {value};", index + 1));
        }
        trace
    };
    assert_eq!(
        end(play(quantile(0.99), 0, &values(99, 1)), 999),
        "held 0/100"
    );
    assert_eq!(
        end(play(quantile(0.99), 0, &values(98, 2)), 999),
        "violated 1/100"
    );
    // 0.07 * 100 is a little more than 7 in binary fractions.
    assert_eq!(
        end(play(quantile(0.07), 0, &values(7, 93)), 999),
        "held 0/100"
    );
    // Five more could all be within the bound: 98 + 102 of 202 are more than 0.99, 98 + 5 of 105
    // are not.
    let some = |missed: u64| format!("{} 300 gap a 200 {missed}", values(98, 2));
    assert_eq!(
        end(play(quantile(0.99), 0, &some(102)), 999),
        "inconclusive 0/100: 102 missed"
    );
    assert_eq!(
        end(play(quantile(0.99), 0, &some(5)), 999),
        "violated 1/100: 5 missed"
    );
    // Each task separately.
    let each = |each| quantile(0.5).each(each, &Catalogue::linux()).unwrap();
    let two = "1 a@7 5; 2 a@7 5; 3 a@8 6";
    assert_eq!(end(play(each(Each::All), 0, two), 9), "held 0/3");
    let played = play(each(Each::Task), 0, two);
    assert_eq!(end(played, 9), "violated 1/3");
}

#[test]
fn spread_is_the_largest_less_the_smallest() {
    let spread = || {
        constraint(Demand::Spread {
            of: field("user:a", "value", false),
            at_most: 10.0,
        })
    };
    assert_eq!(
        end(play(spread(), 0, "1 a 5; 2 a 15; 3 a 9"), 9),
        "held 0/3"
    );
    let played = play(spread(), 0, "1 a 5; 2 a 15; 3 a 4; 4 a 10");
    assert_eq!(
        played.judge().0,
        ["1: 4 and 15 are more than 10 apart, at 0.000000002 s, p1(1) (p1(1)/a #1, p1(1)/a #2)"]
    );
}

const OWN: &str = "metric m\nevent a = user:a\nevent b = user:b\nstate 0 out\nstate 1 begin\n\
    state 2 in\nstate 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: b, i\n3 -> 0: lambda\n";

fn of_metric(max: f64) -> Constraint {
    let metric: Metric = OWN.parse().unwrap();
    constraint(Demand::Bounds {
        of: Values::Metric(Box::new(metric)),
        min: None,
        max: Some(max),
    })
}

#[test]
fn measurements_have_the_elements_of_begin_and_end() {
    let played = play(of_metric(10.0), 0, "1 a; 11 b; 20 a@7; 31 b@7");
    assert_eq!(
        played.judge().0,
        ["1: 11 ns is more than 10 ns, at 0.000000020 s, p7(7) (p7(7)/a #0, p7(7)/b #0)"]
    );
    assert_eq!(end(played, 99), "violated 1/2");
    let filtered = |filter: &str| of_metric(10.0).of_task(TaskFilter::parse(filter));
    let trace = "1 a; 11 b; 20 a@7; 31 b@7";
    assert_eq!(end(play(filtered("1"), 0, trace), 99), "held 0/1");
    assert_eq!(end(play(filtered("p?"), 0, trace), 99), "violated 1/2");
    assert_eq!(
        end(play(filtered("q*"), 0, trace), 99),
        "inconclusive 0/0: no task `q*` was seen"
    );
    assert_eq!(
        end(play(filtered("p1"), 0, "1 a; 20 a@7; 31 b@7"), 99),
        "inconclusive 0/0: nothing to judge happened"
    );
    // A thread's newest name counts; the process is named when its sensor appears.
    let named = "20 a@7; 21 name 7 quick; 29 b@7";
    assert_eq!(end(play(filtered("q*"), 0, named), 99), "held 0/1");
}

#[test]
fn gap_excuses_a_measurement_before_and_after_its_judgement() {
    let before = "1 a; 15 gap a 5 2; 20 b";
    assert_eq!(
        end(play(of_metric(10.0), 0, before), 99),
        "inconclusive 0/0: 2 missed"
    );
    let played = play(of_metric(10.0), 0, "1 a; 20 b; 30 gap a 5 2");
    let reported = &played.judge().0;
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[1], "retracted: c");
    assert_eq!(
        end(played, 99),
        "inconclusive 0/1: 2 missed, 1 excused by what was missed"
    );
}

/// Both ends of a spread must be certain.
#[test]
fn gap_excuses_a_spread_at_both_ends() {
    let spread = || {
        constraint(Demand::Spread {
            of: Values::Metric(Box::new(OWN.parse().unwrap())),
            at_most: 5.0,
        })
    };
    // 1 and 10 long. The gap in the first becomes known after both.
    let trace = "1 a@7; 2 b@7; 20 a; 30 b; 40 gap a@7 1 2; 50 a; 55 b; 60 a; 62 b";
    let played = play(spread(), 0, trace);
    let reported = &played.judge().0;
    assert_eq!(reported[1], "retracted: c", "{reported:#?}");
    // A later one does not end with it either: the others are 10, 5 and 2 long.
    assert!(
        reported[2].starts_with("1: 2 ns and 10 ns"),
        "{reported:#?}"
    );
}

#[test]
fn equal_names_of_metrics_or_constraints_are_refused() {
    let mut verdicts = Verdicts::new(());
    verdicts.add(of_metric(10.0)).unwrap();
    assert_eq!(
        verdicts.add(of_metric(10.0)),
        Err(ConstraintError::TwoConstraints("c".to_owned()))
    );
    let linux = Catalogue::linux();
    let named = |name: &str, metric: Metric| {
        let of = Values::Metric(Box::new(metric));
        let (min, max) = (None, Some(1.0));
        Constraint::new(name, Demand::Bounds { of, min, max }, &linux).unwrap()
    };
    verdicts.add(named("same", OWN.parse().unwrap())).unwrap();
    let other: Metric = OWN
        .replace("event b = user:b", "event b = user:c")
        .parse()
        .unwrap();
    assert_eq!(
        verdicts.add(named("other", other)),
        Err(ConstraintError::TwoMetrics("m".to_owned()))
    );
    verdicts
        .add(named("third", system_metric("run_delay").unwrap()))
        .unwrap();
}

#[test]
fn meaningless_bounds_are_refused() {
    let linux = Catalogue::linux();
    let refused = |demand: Demand| {
        Constraint::new("c", demand, &linux)
            .unwrap_err()
            .to_string()
    };
    let of = || field("user:a", "value", false);
    let demand = |min, max| Demand::Bounds { of: of(), min, max };
    assert_eq!(
        refused(demand(None, None)),
        "no bound is given; give at least one"
    );
    assert_eq!(
        refused(demand(Some(2.0), Some(1.0))),
        "the least permitted, 2, is more than the most, 1; exchange them"
    );
    assert_eq!(
        refused(demand(None, Some(f64::NAN))),
        "a bound is not a number"
    );
    let quantile = Demand::Quantile {
        of: of(),
        fraction: 99.0,
        at_most: 1.0,
    };
    assert!(refused(quantile).starts_with("the quantile is 99; give a fraction"));
    let negative = Demand::Spread {
        of: of(),
        at_most: -3.0,
    };
    assert!(refused(negative).starts_with("the jitter is -3; give at least 0"));
    let text = Demand::Spread {
        of: field("kernel:task_life", "comm", false),
        at_most: 1.0,
    };
    assert_eq!(
        refused(text),
        "field `comm` of `kernel:task_life` is a text; a number is needed"
    );
    let each = bounds(None, Some(1.0)).each(Each::Field("nothing".into()), &linux);
    assert!(each.is_ok(), "fields of programs are known when they come");
    let metric = of_metric(1.0).each(Each::Sensor, &linux).unwrap_err();
    assert_eq!(metric, ConstraintError::EachOfMetric);
}
