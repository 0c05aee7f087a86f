// SPDX-License-Identifier: MIT OR Apache-2.0
use std::path::Path;

use overhear_metrics::verdict::Demand;

use super::{parse, parse_any};

fn refused(text: &str) -> String {
    parse(text, Path::new("")).unwrap_err()
}

#[test]
fn every_kind_can_be_written() {
    let text = r#"
        [[constraint]]
        name = "1"
        metric = "wakeup_latency"
        task = "worker*"
        max = "200 us"
        [[constraint]]
        name = "2"
        of = "user:queue [length != 0]"
        field = "wait"
        quantile = 0.99
        at_most = 5.5
        each = "task"
        [[constraint]]
        name = "3"
        of = "user:queue"
        field = "wait"
        jitter = 7
        [[constraint]]
        name = "4"
        of = "user:tick"
        window = "1s"
        at_least = 99
        at_most = 101
        [[constraint]]
        name = "5"
        of = "user:tick"
        period = "10ms"
        jitter = "1ms"
        [[constraint]]
        name = "6"
        of = "user:tick"
        absence = "1s"
        [[constraint]]
        name = "7"
        of = "user:error"
        never = true
        [[constraint]]
        name = "8"
        order = ["user:a", "user:b"]
        each = "number"
        [[constraint]]
        name = "9"
        of = "user:b"
        after = "user:a"
        within = "5ms"
        clock_error = "1us"
        [[constraint]]
        name = "10"
        of = "user:jobs"
        anomalies = 2
    "#;
    let constraints = parse(text, Path::new("")).unwrap();
    let kinds: Vec<usize> = constraints
        .iter()
        .map(|constraint| match constraint.demand() {
            Demand::Bounds { .. } => 1,
            Demand::Quantile { .. } => 2,
            Demand::Spread { .. } => 3,
            Demand::Rate { .. } => 4,
            Demand::Period { .. } => 5,
            Demand::Absence { .. } => 6,
            Demand::Never { .. } => 7,
            Demand::Order { .. } => 8,
            Demand::Deadline { .. } => 9,
            Demand::Anomalies { at_most, .. } => 8 + *at_most as usize,
        })
        .collect();
    assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}

#[test]
fn tasks_are_named_by_id_or_name() {
    let of = |task: &str| {
        let text =
            format!("[[constraint]]\nname = \"c\"\nof = \"user:a\"\nnever = true\ntask = {task}\n");
        parse(&text, Path::new(""))
    };
    assert_eq!(of("4711"), of("\"4711\""));
    assert_ne!(of("4711"), of("\"4711*\""));
    assert!(of("\"\"").unwrap_err().contains("line 5"));
    assert!(of("-1").unwrap_err().contains("-1 is no id of a task"));
    assert!(of("1.5")
        .unwrap_err()
        .contains("the id of a task, or a name"));
}

#[test]
fn constraints_of_a_monitor_are_optional() {
    let monitor = "[monitor]\nlatency = \"1s\"\n";
    let any = |text: &str| parse_any(text, Path::new("")).map(|found| found.len());
    assert_eq!(any(monitor), Ok(0));
    assert!(refused(monitor).starts_with("there is no [[constraint]]"));
    let both = format!("{monitor}[[constraint]]\nname = \"c\"\nof = \"user:a\"\nnever = true\n");
    assert_eq!(any(&both), Ok(1));
}

#[test]
fn mistakes_have_line_and_column() {
    let entry = "[[constraint]]\nname = \"c\"\n";
    for (rest, line, column, part) in [
        ("", 2, 8, "it demands nothing"),
        (
            "max = 5\nof = \"user:a\"\n",
            2,
            8,
            "values come from a `metric`",
        ),
        (
            "max = 5\nabsence = \"1s\"\nof = \"user:a\"\n",
            2,
            8,
            "`max` and `absence` demand different things",
        ),
        (
            "max = \"1ms\"\nmetric = \"wakeup\"\n",
            4,
            10,
            "there is no system metric `wakeup`",
        ),
        (
            "max = 5\nmetric = \"run_delay\"\n",
            2,
            8,
            "a metric measures lengths",
        ),
        (
            "max = 5\nmin = \"1 ms\"\nof = \"user:a\"\nfield = \"b\"\n",
            2,
            8,
            "one bound is a length and one a number",
        ),
        (
            "never = true\nof = \"kernel:syscall\"\neach = \"value\"\n",
            2,
            8,
            "field `value` of `kernel:syscall` is not an unsigned number",
        ),
        (
            "jitter = -1\nof = \"user:a\"\nfield = \"b\"\n",
            2,
            8,
            "the jitter is -1; give at least 0",
        ),
        (
            "never = true\nof = \"kernel:sched\"\n",
            4,
            7,
            "unknown event `kernel:sched`; known are",
        ),
        (
            "never = true\nof = \"kernel:sched_wake [pit == 1]\"\n",
            4,
            26,
            "`kernel:sched_wake` has no field `pit`",
        ),
        (
            "never = true\nof = \"user:a [x = 1]\"\n",
            4,
            17,
            "expected `==`, `!=`, `has` or `lacks`, found `=`",
        ),
        (
            "order = [\"user:a\", \"usr:b\"]\n",
            3,
            21,
            "expected `kernel:HOOK`, `user:SENSOR` or `sampler:SENSOR`",
        ),
        (
            "within = \"1s\"\nof = \"user:a\"\n",
            2,
            8,
            "`within` needs `after`",
        ),
        (
            "absence = \"1s\"\nof = \"user:a\"\nfield = \"x\"\n",
            2,
            8,
            "`field` has no meaning",
        ),
        (
            "window = \"1s\"\nof = \"user:a\"\n",
            2,
            8,
            "no bound is given",
        ),
        (
            "window = \"1s\"\nat_most = 1.5\nof = \"user:a\"\n",
            2,
            8,
            "a number of elements",
        ),
        (
            "never = false\nof = \"user:a\"\n",
            2,
            8,
            "`never` can only be true",
        ),
    ] {
        let message = refused(&format!("{entry}{rest}"));
        let location = format!("line {line}, column {column}: constraint `c`: ");
        assert!(
            message.starts_with(&location) && message.contains(part),
            "{rest}: {message}"
        );
    }
    let twice = format!("{entry}never = true\nof = \"user:a\"\n").repeat(2);
    assert!(refused(&twice).starts_with("line 6, column 8: constraint `c`: another"));
    for (text, part) in [
        ("", "there is no [[constraint]]"),
        (
            "[[constrain]]\nname = \"c\"\n",
            "`constrain` needs a [monitor]",
        ),
        (
            "[monitor]\nlatencies = 1\n",
            "line 2: [monitor] `latencies`: unknown field `latencies`",
        ),
        (
            "[[constraint]]\nname = \"c\"\nmx = 1\n",
            "line 3: constraint `c`, `mx`: unknown field `mx`",
        ),
        (
            "[[constraint]]\nname = \"c\"\nmax = \"5\"\n",
            "line 3: constraint `c`, `max`: `5` is not a length",
        ),
        (
            "[[constraint]]\nname = \"c\"\nmax = true\n",
            "line 3: constraint `c`, `max`: invalid type: boolean",
        ),
    ] {
        assert!(refused(text).contains(part), "{text}: {}", refused(text));
    }
}
