// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain and compensated time: one switch between two pictures of the same run.

use overhear_page::{render, render_comparison, Run};
use serde_json::{json, Value};

use crate::browser::Browser;
use crate::synthetic::{self, BLOCKED, RUNNING};
use crate::{assert_silent, plain};

const NO_CPU: u16 = u16::MAX;

/// Two threads that alternate on a CPU, and a sensor; with the cost of observing them.
fn turns() -> Value {
    let one = synthetic::thread(
        10,
        10,
        "one",
        100_000,
        &[
            (1_000_000, RUNNING, 0),
            (500_000, BLOCKED, NO_CPU),
            (1_000_000, RUNNING, 0),
        ],
    );
    let other = synthetic::thread(
        10,
        11,
        "other",
        1_100_000,
        &[
            (500_000, RUNNING, 0),
            // In two pieces, and the cost is in the last one.
            (u32::MAX, BLOCKED, NO_CPU),
            (5, BLOCKED, NO_CPU),
        ],
    );
    let marks = [1_000_000, 1_500_000, 2_500_000];
    let marks = synthetic::sensor(10, "mark", &marks, "n", "", &[1.0, 2.0, 3.0]);
    let mut timeline = synthetic::timeline(
        5_000_000_000,
        vec![
            synthetic::with_shrinks(one, 5_000, &[10_000, -2_000, 20_000]),
            synthetic::with_shrinks(other, 15_000, &[3_000, 0, 300]),
        ],
        vec![synthetic::with_shrinks(marks, 0, &[14_000, 2_000, 12_000])],
    );
    timeline["gaps"] = json!([{
        "label": "kernel/sched_wake@0", "from_ns": 2_000_000, "to_ns": 2_100_000, "missed": 3,
        "cause": "overwritten", "moved": [1_980_000, 2_080_000],
    }]);
    timeline["moved_end_ns"] = json!(timeline["end_ns"].as_u64().unwrap() - 1_000_000);
    timeline
}

fn report(is_compensated: bool) -> Value {
    json!({
        "command": ["turns"], "duration_ns": 5_000_000_000_u64, "complete": true, "missed_total": 0,
        "compensated": is_compensated,
    })
}

#[test]
fn time_can_be_chosen() {
    let Some(browser) = Browser::start() else {
        return;
    };
    nothing_is_to_be_chosen_where_no_cost_is_known(&browser);
    both_times_are_shown(&browser);
    two_runs_are_compensated_together(&browser);
    drawing_stays_bounded(&browser);
}

fn is_hidden(browser: &Browser) -> Value {
    browser.evaluate("document.getElementById('time-choice').checkVisibility() === false")
}

fn nothing_is_to_be_chosen_where_no_cost_is_known(browser: &Browser) {
    let mut timeline = turns();
    timeline.as_object_mut().unwrap().remove("moved_end_ns");
    browser.open(&render(&report(true), &timeline));
    assert_eq!(is_hidden(browser), json!(true));
    browser.evaluate("document.getElementById('frame').focus()");
    browser.key("t");
    assert_eq!(browser.text("overhear.time"), "plain");
    assert_silent(browser);
}

/// Running and blocked time of all threads, elements, and the CPU's time in use.
fn accounts(browser: &Browser) -> Value {
    browser.evaluate(
        "(() => { const all = overhear.statistics(0, overhear.extent);
          return [all.threads.map((t) => [t.name, t.run, t.blocked]), all.cpus.map((c) => c.busy),
                  overhear.statistics(0, 1490000).sensors[0].count]; })()",
    )
}

fn both_times_are_shown(browser: &Browser) {
    browser.open(&render(&report(false), &turns()));
    assert_eq!(is_hidden(browser), json!(false));
    let blocked = u64::from(u32::MAX) + 5;
    let recorded = json!([
        [["one", 2_000_000, 500_000], ["other", 500_000, blocked]],
        [2_500_000],
        1
    ]);
    assert_eq!(accounts(browser), recorded);
    browser.evaluate("overhear.setMeter(1000000, 2600000); overhear.setView(500000, 3000000)");
    browser.evaluate("document.getElementById('time-compensated').click()");
    browser.settle();
    assert_eq!(browser.text("overhear.time"), "compensated");
    let moved = json!([
        [
            ["one", 1_970_000, 502_000],
            ["other", 497_000, blocked - 300]
        ],
        [2_467_000],
        2
    ]);
    assert_eq!(accounts(browser), moved);
    let pressed = |id: &str| {
        browser.text(&format!(
            "document.getElementById('{id}').getAttribute('aria-pressed')"
        ))
    };
    assert_eq!(
        (pressed("time-plain"), pressed("time-compensated")),
        ("false".into(), "true".into())
    );
    let note = plain(&browser.text("document.getElementById('time-note').textContent"));
    assert_eq!(note, "without its observation the run ends 1 ms earlier");
    // The lines and the view do not move: they show the movement of the rest.
    assert_eq!(
        browser.evaluate("overhear.meter"),
        json!([1_000_000, 2_600_000])
    );
    assert_eq!(
        browser.evaluate("overhear.view"),
        json!({"from": 500_000, "to": 3_000_000})
    );
    assert!(browser.number("overhear.extent") >= 5_000_000_000.0);

    let svg = browser.text("overhear.svg()");
    browser.evaluate("document.getElementById('frame').focus()");
    browser.key("t");
    assert_eq!(browser.text("overhear.time"), "plain");
    assert_eq!(accounts(browser), recorded);
    assert_ne!(browser.text("overhear.svg()"), svg);
    assert_eq!(
        browser.text("document.getElementById('time-note').textContent"),
        ""
    );

    // A compensated report shows its own time first.
    browser.open(&render(&report(true), &turns()));
    assert_eq!(browser.text("overhear.time"), "compensated");
    assert_eq!(accounts(browser), moved);
    assert_silent(browser);
}

fn two_runs_are_compensated_together(browser: &Browser) {
    let (with, mut without) = (turns(), turns());
    without.as_object_mut().unwrap().remove("moved_end_ns");
    let report = report(false);
    let run = |timeline, label| Run {
        label,
        ..Run::of_values(&report, timeline)
    };
    browser.open(&render_comparison(
        &run(&with, "with"),
        &run(&without, "without"),
    ));
    browser.evaluate("overhear.setTime('compensated')");
    let runs = "overhear.statistics(0, 4000000).threads.map((t) => [t.of, t.name, t.run])";
    assert_eq!(
        browser.evaluate(runs),
        json!([
            [0, "one", 1_970_000],
            [0, "other", 497_000],
            [1, "one", 2_000_000],
            [1, "other", 500_000]
        ])
    );
    assert_silent(browser);
}

fn drawing_stays_bounded(browser: &Browser) {
    let mut timeline = synthetic::run(20_000);
    let mut dice = synthetic::Dice::new(3);
    for thread in timeline["threads"].as_array_mut().unwrap() {
        let count = synthetic::intervals_of(thread);
        let shrinks: Vec<i64> = (0..count)
            .map(|_| dice.below(400).cast_signed() - 20)
            .collect();
        *thread = synthetic::with_shrinks(thread.take(), 0, &shrinks);
    }
    timeline["moved_end_ns"] = timeline["end_ns"].clone();
    browser.open(&render(&synthetic::report(), &timeline));
    browser.evaluate("overhear.setTime('compensated'); overhear.fit()");
    assert_eq!(browser.text("overhear.time"), "compensated");
    let drawn = browser.number("overhear.primitives");
    assert!(
        drawn > 0.0 && drawn <= browser.number("overhear.bound"),
        "{drawn}"
    );
    assert_silent(browser);
}
