// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time-line as a tool: CPUs, reasons, wake-ups, ways to draw sensors, statistics of an
//! interval, search, comparison of two runs, and the picture as a file.

use overhear_page::{render, render_comparison, Run};
use serde_json::{json, Value};

use crate::browser::Browser;
use crate::synthetic::{self, with_reasons, BLOCKED, PREEMPTED, RUNNABLE, RUNNING};
use crate::{assert_silent, plain, set_view, Plot};

const NO_CPU: u16 = u16::MAX;

/// A client wakes a server, the server preempts it, and once the client switches to itself.
fn pair() -> Value {
    pair_woken_by(10)
}

/// The same, whose server is woken by this thread.
fn pair_woken_by(waker: u32) -> Value {
    let client = synthetic::thread(
        10,
        10,
        "client",
        0,
        &[
            (2_000_000, RUNNING, 0),
            (1_000_000, PREEMPTED, NO_CPU),
            (2_000_000, RUNNING, 0),
            (1_000_000, RUNNING, 0),
            (4_000_000, BLOCKED, NO_CPU),
        ],
    );
    let client = with_reasons(
        client,
        &[(1, "displaced", 11), (3, "again", 0), (4, "asleep", 2)],
    );
    let server = synthetic::thread(
        10,
        11,
        "server",
        0,
        &[
            (1_500_000, BLOCKED, NO_CPU),
            (500_000, RUNNABLE, NO_CPU),
            (1_000_000, RUNNING, 0),
            (3_000_000, BLOCKED, NO_CPU),
            (4_000_000, RUNNING, 1),
        ],
    );
    let server = with_reasons(server, &[(0, "asleep", 1), (1, "woken", waker)]);
    let level = synthetic::sensor(
        10,
        "level",
        &[1_000_000, 2_000_000, 6_000_000, 8_000_000],
        "height",
        "mm",
        &[3.0, -1.0, 7.5, 2.0],
    );
    let mut work = synthetic::sensor(
        10,
        "work",
        &[1_000_000, 2_000_000, 4_000_000, 5_000_000, 7_000_000],
        "unit",
        "",
        &[1.0, 2.0, 1.0, 2.0, 3.0],
    );
    work["fields"].as_array_mut().unwrap().push(
        json!({"name": "edge", "unit": "", "kind": "number", "values": synthetic::numbers(&[0.0, 0.0, 1.0, 1.0, 0.0])}),
    );
    let mut line = synthetic::timeline(10_000_000, vec![client, server], vec![level, work]);
    line["processes"] = json!([{"pid": 10, "comm": "client"}]);
    line
}

fn report(name: &str, run_ns: u64) -> Value {
    json!({"command": [name], "duration_ns": 10_000_000, "missed_total": 0, "complete": true,
        "threads": [{"pid": 10, "tid": 10, "comm": "client", "run_ns": run_ns, "switches_voluntary": 1}]})
}

fn tooltip(browser: &Browser, plot: &Plot, row: &str, t: f64) -> String {
    browser.hover(plot.at(browser, row, t));
    plain(&browser.text("document.getElementById('tooltip').innerText"))
}

/// Evaluates an expression in the page; the name is printed.
type Question = (&'static str, fn(&Browser));

/// The start of a browser takes longer than most tests, so several share one.
fn together(all: &[Question]) {
    let Some(browser) = Browser::start() else {
        return;
    };
    for (name, steps) in all {
        println!("{name}");
        browser.resize(1280, 800, 1.0);
        steps(&browser);
    }
}

#[test]
fn time_line_shows_reasons_and_statistics() {
    together(&[
        (
            "cpus_show_threads_and_reasons",
            cpus_show_threads_and_reasons,
        ),
        (
            "arrows_lead_from_waker_to_woken",
            arrows_lead_from_waker_to_woken,
        ),
        (
            "statistics_are_those_of_the_interval",
            statistics_are_those_of_the_interval,
        ),
        (
            "statistics_of_long_intervals_are_exact",
            statistics_of_long_intervals_are_exact,
        ),
        (
            "sensors_are_marks_graphs_or_spans",
            sensors_are_marks_graphs_or_spans,
        ),
        (
            "kernel_rows_show_actor_action_and_length",
            kernel_rows_show_actor_action_and_length,
        ),
    ]);
}

#[test]
fn time_line_searches_filters_compares_and_exports() {
    together(&[
        ("search_finds_moments", search_finds_moments),
        (
            "rows_are_chosen_by_part_and_by_activity",
            rows_are_chosen_by_part_and_by_activity,
        ),
        (
            "compared_runs_share_one_scale",
            compared_runs_share_one_scale,
        ),
        (
            "picture_is_saved_as_svg_and_png",
            picture_is_saved_as_svg_and_png,
        ),
    ]);
}

fn cpus_show_threads_and_reasons(browser: &Browser) {
    browser.open(&render(&report("pair", 5), &pair()));
    let plot = Plot::of(browser);
    let shows = |row: &str, t: f64, parts: &[&str]| {
        let text = tooltip(browser, &plot, row, t);
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{row} at {t}: {text}"
        );
    };
    shows("CPU 0", 1_000_000.0, &["client 10", "2 ms"]);
    shows("CPU 0", 2_500_000.0, &["server 11"]);
    shows("CPU 0", 9_000_000.0, &["none of the threads"]);
    shows("CPU 1", 8_000_000.0, &["server 11", "4 ms"]);
    shows(
        "client",
        2_500_000.0,
        &["preempted", "Preempted by", "server 11"],
    );
    shows("client", 5_500_000.0, &["running", "switched to itself"]);
    shows(
        "client",
        8_000_000.0,
        &["blocked", "uninterruptible sleep (D)"],
    );
    shows("server", 1_000_000.0, &["interruptible sleep (S)"]);
    shows("server", 1_700_000.0, &["Woken by", "client 10"]);
    shows("server", 2_500_000.0, &["running", "Woken by", "client 10"]);
    // The report has the name of a thread that was not tracked.
    let mut report = report("pair", 5);
    report["other_threads"] = json!([{"tid": 28_071, "comm": "kworker/3:1"}]);
    for (waker, name) in [(28_071, "kworker/3:1 28071"), (28_072, "thread 28072")] {
        browser.open(&render(&report, &pair_woken_by(waker)));
        let plot = Plot::of(browser);
        let text = tooltip(browser, &plot, "server", 1_700_000.0);
        assert!(text.contains(name), "{text}");
    }
    assert_silent(browser);
}

fn arrows_lead_from_waker_to_woken(browser: &Browser) {
    browser.open(&render(&report("pair", 5), &pair()));
    assert_eq!(
        browser.evaluate("overhear.wakes"),
        json!({"inView": 1, "drawn": 1})
    );
    set_view(browser, 3_000_000.0, 9_000_000.0);
    assert_eq!(
        browser.evaluate("overhear.wakes"),
        json!({"inView": 0, "drawn": 0})
    );
    browser.evaluate("overhear.fit()");
    let with = browser.number("overhear.primitives");
    browser.evaluate("document.getElementById('wakes').click()");
    browser.settle();
    assert!(browser.number("overhear.primitives") < with);
    // The woken thread's row or the waker's may be hidden: then there is no arrow.
    browser.evaluate("document.getElementById('wakes').click(); (() => { const s = document.getElementById('search'); s.value = 'server'; s.dispatchEvent(new Event('input')); })()");
    browser.settle();
    assert_eq!(browser.number("overhear.wakes.drawn"), 0.0);

    // With more wake-ups than fit, the page shows their number, and only the row under the pointer
    // has arrows, if they fit.
    browser.open(&render(&synthetic::report(), &synthetic::run(60_000)));
    browser.settle();
    assert!(browser.number("overhear.wakes.inView") > 10_000.0);
    assert_eq!(browser.number("overhear.wakes.drawn"), 0.0);
    let note = plain(&browser.text("document.getElementById('wakes-note').textContent"));
    assert!(note.contains("wake-ups: zoom in"), "{note}");
    set_view(browser, 3_000_000_000.0, 3_005_000_000.0);
    let drawn = browser.number("overhear.wakes.drawn");
    assert!(
        drawn > 3.0 && drawn == browser.number("overhear.wakes.inView"),
        "{drawn}"
    );
    assert!(browser.number("overhear.primitives") <= browser.number("overhear.bound"));
    assert_silent(browser);
}

fn statistics_are_those_of_the_interval(browser: &Browser) {
    browser.open(&render(&report("pair", 5), &pair()));
    let found = browser.evaluate("overhear.statistics(1000000, 5500000)");
    let of = |kind: &str, name: &str| -> Value {
        let all = found[kind].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap().clone()
    };
    let client = of("threads", "client");
    assert_eq!(client["run"], 3_500_000);
    assert_eq!(client["preempted"], 1_000_000);
    assert_eq!(
        (client["runs"].clone(), client["preemptions"].clone()),
        (json!(2), json!(1))
    );
    let server = of("threads", "server");
    assert_eq!(
        (server["waiting"].clone(), server["wakeups"].clone()),
        (json!(500_000), json!(1))
    );
    assert_eq!(server["blocked"], 3_000_000);
    assert_eq!(of("cpus", "CPU 0")["busy"], 4_500_000);
    assert_eq!(of("cpus", "CPU 1")["busy"], 0);
    let level = of("sensors", "level");
    assert_eq!(
        (
            level["count"].clone(),
            level["low"].clone(),
            level["mean"].clone()
        ),
        (json!(2), json!(-1), json!(1))
    );

    // The panel shows the statistics between the lines as soon as there are two.
    browser.evaluate("overhear.setMeter(1000000, 5500000); overhear.showStatistics()");
    let shown = plain(&browser.text("document.getElementById('statistics').innerText"));
    for part in [
        "between the lines",
        "4.5 ms",
        "client 10",
        "3.500 ms",
        "CPU 0",
        "level",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_silent(browser);
}

/// Sums that are kept for blocks agree with a walk over all intervals.
fn statistics_of_long_intervals_are_exact(browser: &Browser) {
    let mut dice = synthetic::Dice::new(5);
    let states = [RUNNING, BLOCKED, RUNNABLE, PREEMPTED];
    let intervals: Vec<_> = (0..20_000_usize)
        .map(|_| {
            (
                1 + dice.below(5_000) as u32,
                states[dice.below(4) as usize],
                0,
            )
        })
        .collect();
    let extent: u64 = intervals.iter().map(|one| u64::from(one.0)).sum();
    let times: Vec<u64> = (0..5_000).map(|i| i * extent / 5_000).collect();
    let values: Vec<f64> = times.iter().map(|_| dice.below(1_000_000) as f64).collect();
    let thread = synthetic::thread(1, 1, "dice", 0, &intervals);
    let sensor = synthetic::sensor(1, "values", &times, "v", "x", &values);
    browser.open(&render(
        &json!({}),
        &synthetic::timeline(extent, vec![thread], vec![sensor]),
    ));
    for _ in 0..40 {
        let (a, b) = (dice.below(extent), dice.below(extent));
        let (from, to) = (a.min(b), a.max(b) + 1);
        let found = browser.evaluate(&format!("overhear.statistics({from}, {to})"));
        let (mut run, mut runs, mut start) = (0, 0, 0_u64);
        for &(length, state, _) in &intervals {
            let end = start + u64::from(length);
            if state == RUNNING {
                run += end.min(to).saturating_sub(start.max(from));
                runs += u64::from(start >= from && start < to);
            }
            start = end;
        }
        assert_eq!(found["threads"][0]["run"], run, "{from} {to}");
        assert_eq!(found["threads"][0]["runs"], runs, "{from} {to}");
        let inside = times
            .iter()
            .zip(&values)
            .filter(|(t, _)| (from..to).contains(t));
        let inside: Vec<f64> = inside.map(|(_, value)| *value).collect();
        let sensor = &found["sensors"][0];
        assert_eq!(sensor["count"], inside.len());
        if !inside.is_empty() {
            let high = inside.iter().copied().fold(f64::MIN, f64::max);
            let low = inside.iter().copied().fold(f64::MAX, f64::min);
            let mean = inside.iter().sum::<f64>() / inside.len() as f64;
            assert_eq!(
                (sensor["low"].as_f64(), sensor["high"].as_f64()),
                (Some(low), Some(high))
            );
            assert!((sensor["mean"].as_f64().unwrap() - mean).abs() < 1e-6 * mean);
        }
    }
    assert_silent(browser);
}

fn sensors_are_marks_graphs_or_spans(browser: &Browser) {
    let mut line = pair();
    let mut irq = synthetic::sensor(0, "irq", &[3_000_000, 3_500_000], "number", "", &[7.0, 7.0]);
    irq["type"] = json!("irq");
    irq["pid"] = Value::Null;
    irq["fields"].as_array_mut().unwrap().push(
        json!({"name": "kind", "unit": "", "kind": "number", "values": synthetic::numbers(&[1.0, 2.0])}),
    );
    // One after the other, but each on a CPU of its own.
    let times = [3_000_000, 3_200_000, 3_400_000, 3_600_000];
    let mut soft = synthetic::sensor(0, "softirq", &times, "number", "", &[1.0, 1.0, 4.0, 4.0]);
    soft["type"] = json!("softirq");
    soft["pid"] = Value::Null;
    soft["fields"][0]["names"] = json!({"1": "timer", "4": "block"});
    for (name, values) in [
        ("kind", [1.0, 2.0, 1.0, 2.0]),
        ("cpu", [1.0, 1.0, 0.0, 0.0]),
    ] {
        soft["fields"].as_array_mut().unwrap().push(
            json!({"name": name, "unit": "", "kind": "number", "values": synthetic::numbers(&values)}),
        );
    }
    line["sensors"].as_array_mut().unwrap().extend([irq, soft]);
    browser.open(&render(&report("pair", 5), &line));
    let height = |name: &str| {
        browser.number(&format!(
            "overhear.rows.find((r) => r.name === '{name}').height"
        ))
    };
    let step = height("softirq") - height("irq");
    assert!(step >= 14.0, "each CPU has a lane of its own: {step}");
    let mode = |name: &str| {
        browser.text(&format!(
            "overhear.rows.find((r) => r.name === '{name}').mode"
        ))
    };
    assert_eq!(
        (mode("level"), mode("work")),
        ("graph".into(), "spans".into())
    );
    let plot = Plot::of(browser);
    let height = height("work");
    assert!(
        height >= 40.0,
        "two spans overlap, so there are two lanes: {height}"
    );
    let (x, y) = plot.at(browser, "work", 3_000_000.0);
    let upper = |browser: &Browser, x: f64| {
        browser.hover((x, y - 8.0));
        plain(&browser.text("document.getElementById('tooltip').innerText"))
    };
    let text = upper(browser, x);
    assert!(
        text.contains("3 ms") && text.contains("1.000 000 ms"),
        "{text}"
    );
    // A call without an end lasts until the end of the run.
    let text = upper(browser, plot.at(browser, "work", 9_000_000.0).0);
    assert!(
        text.contains("3 ms") && text.contains("7.000 000 ms"),
        "{text}"
    );

    let press = |name: &str| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('.row.sensor')].find((r) => r.querySelector('.name').textContent === '{name}').querySelector('.mode').click()"
        ));
        browser.settle();
    };
    assert_eq!(mode("irq"), "spans", "the kernel's begins and ends");
    let text = tooltip(browser, &plot, "irq", 3_100_000.0);
    assert!(text.contains("500 µs"), "{text}");
    let (x, y) = plot.at(browser, "softirq", 3_500_000.0);
    browser.hover((x, y - 8.0));
    let text = plain(&browser.text("document.getElementById('tooltip').innerText"));
    assert!(text.contains("block") && text.contains("200 µs"), "{text}");
    press("level");
    assert_eq!(mode("level"), "marks");
    press("level");
    assert_eq!(mode("level"), "graph");
    assert_silent(browser);
}

/// A sensor of the kernel: its elements by time, and each field's values.
fn kernel_sensor(id: &str, of: &str, times: &[u64], fields: &[(&str, &[f64])]) -> Value {
    let (first, rest) = fields.split_first().unwrap();
    let mut sensor = synthetic::sensor(0, id, times, first.0, "", first.1);
    sensor["type"] = json!(of);
    sensor["pid"] = Value::Null;
    for (name, values) in rest {
        sensor["fields"].as_array_mut().unwrap().push(
            json!({"name": name, "unit": "", "kind": "number", "values": synthetic::numbers(values)}),
        );
    }
    sensor
}

/// Rows of kernel elements have names for numbers, and spans end with the recorded activity.
fn kernel_rows_show_actor_action_and_length(browser: &Browser) {
    let mut line = pair();
    let worker = synthetic::thread(10, 12, "worker", 0, &[(4_000_000, RUNNING, 1)]);
    line["threads"].as_array_mut().unwrap().push(worker);
    // The worker's second call does not return, because it ends; the client's goes on.
    let mut calls = kernel_sensor(
        "syscall",
        "syscall",
        &[1_000_000, 1_500_000, 2_000_000, 6_000_000],
        &[
            ("tid", &[12.0, 12.0, 12.0, 10.0]),
            ("number", &[202.0, 202.0, 60.0, 202.0]),
            ("kind", &[1.0, 2.0, 1.0, 1.0]),
        ],
    );
    calls["fields"][1]["names"] = json!({"202": "futex", "60": "exit"});
    // The end of a timer's handler does not name the function. A hard one interrupts a soft one,
    // and wakes a thread, whose tooltip shows it as well.
    let timers = kernel_sensor(
        "timer",
        "timer",
        &[
            1_000_000, 1_200_000, 1_200_000, 1_500_000, 1_500_000, 2_000_000,
        ],
        &[
            ("tid", &[12.0, 12.0, 11.0, 11.0, 12.0, 12.0]),
            ("function", &[70.0, 80.0, 80.0, 80.0, 0.0, 0.0]),
            ("kind", &[1.0, 3.0, 5.0, 6.0, 4.0, 2.0]),
            ("cpu", &[1.0; 6]),
        ],
    );
    // A function that calls itself, and one call that does not return.
    let calls_of = kernel_sensor(
        "probe/sum",
        "probe",
        &[1_000_000, 2_000_000, 7_000_000],
        &[
            ("tid", &[12.0, 12.0, 10.0]),
            ("argument_1", &[2.0, 1.0, 5.0]),
        ],
    );
    let returns = kernel_sensor(
        "probe/sum/return",
        "probe_return",
        &[2_500_000, 3_000_000],
        &[("tid", &[12.0, 12.0]), ("value", &[41.0, 43.0])],
    );
    let fault = kernel_sensor(
        "page_fault",
        "page_fault",
        &[5_000_000],
        &[
            ("tid", &[11.0]),
            ("address", &[(0x7fff_0000_1000_u64) as f64]),
        ],
    );
    let sensors = [calls, timers, calls_of, returns, fault];
    line["sensors"].as_array_mut().unwrap().extend(sensors);
    browser.open(&render(&report("pair", 5), &line));
    let spans = |name: &str| -> Vec<(u64, u64)> {
        let found = browser.evaluate(&format!("overhear.spans({})", json!(name)));
        let number = |value: &Value| value.as_f64().unwrap() as u64;
        let all = found.as_array().unwrap().iter();
        all.map(|span| (number(&span[0]), number(&span[1])))
            .collect()
    };
    assert_eq!(
        spans("syscall"),
        [
            (1_000_000, 1_500_000),
            (2_000_000, 4_000_000),
            (6_000_000, 10_000_000)
        ]
    );
    assert_eq!(
        spans("timer"),
        [(1_000_000, 2_000_000), (1_200_000, 1_500_000)]
    );
    assert_eq!(
        spans("probe/sum"),
        [
            (1_000_000, 3_000_000),
            (2_000_000, 2_500_000),
            (7_000_000, 10_000_000)
        ]
    );
    let plot = Plot::of(browser);
    let tip = |row: &str, t: f64, up: f64| {
        let (x, y) = plot.at(browser, row, t);
        browser.hover((x, y - up));
        plain(&browser.text("document.getElementById('tooltip').innerText"))
    };
    let text = tip("syscall", 3_000_000.0, 0.0);
    for part in ["worker 12", "exit", "2 ms", "not told"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = tip("syscall", 8_000_000.0, 0.0);
    assert!(
        text.contains("client 10") && text.contains("goes on"),
        "{text}"
    );
    let text = tip("probe/sum", 1_500_000.0, 8.0);
    assert!(text.contains("returns") && text.contains("43"), "{text}");
    let text = tip("page_fault", 5_000_000.0, 0.0);
    assert!(
        text.contains("server 11") && text.contains("0x7fff00001000"),
        "{text}"
    );
    // Statistics exist for durations, and not for ids.
    let found = browser.evaluate("overhear.statistics(0, 5000000)");
    let all = found["sensors"].as_array().unwrap();
    let of = |name: &str| all.iter().find(|one| one["name"] == name).unwrap();
    assert_eq!(
        (&of("syscall")["low"], &of("syscall")["high"]),
        (&json!(500_000), &json!(2_000_000))
    );
    assert_eq!(of("probe/sum/return")["mean"], json!(42));
    assert_eq!(of("page_fault")["mean"], Value::Null);
    assert_silent(browser);
}

fn search_finds_moments(browser: &Browser) {
    browser.open(&render(&report("pair", 5), &pair()));
    let type_in = |text: &str| {
        browser.evaluate(&format!(
            "(() => {{ const s = document.getElementById('search'); s.focus(); s.value = {}; s.dispatchEvent(new Event('input')); }})()",
            json!(text)
        ));
    };
    let found = |shift: bool| {
        browser.evaluate(&format!(
            "document.getElementById('search').dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Enter', shiftKey: {shift} }}))"
        ));
        browser.settle();
        plain(&browser.text("document.getElementById('matches').textContent"))
    };
    type_in("is:preempted");
    assert!(
        browser
            .text("overhear.rows.map((r) => r.name).join(' ')")
            .contains("level"),
        "it hides no row"
    );
    assert_eq!(found(false), "found at 2.000 000 ms");
    assert_eq!(found(false), "nothing more to the right");
    type_in("client is:again");
    set_view(browser, 0.0, 10_000_000.0);
    browser.evaluate("document.getElementById('frame').focus()");
    assert_eq!(found(true), "nothing more to the left");
    type_in("by:client");
    assert_eq!(found(true), "found at 1.500 000 ms");
    type_in("kind:thread >3.5ms is:running");
    assert_eq!(found(false), "found at 6.000 000 ms");
    assert_eq!(
        browser.text("overhear.rows.map((r) => r.name).join(' ')"),
        "client client server"
    );
    type_in("-client kind:thread");
    assert_eq!(
        browser.text("overhear.rows.map((r) => r.name).join(' ')"),
        "client server"
    );
    assert_silent(browser);
}

fn rows_are_chosen_by_part_and_by_activity(browser: &Browser) {
    let mut line = pair();
    let mut irq = synthetic::sensor(
        0,
        "irq_entry",
        &[500_000, 600_000],
        "vector",
        "",
        &[7.0, 8.0],
    );
    irq["pid"] = Value::Null;
    line["sensors"].as_array_mut().unwrap().push(irq);
    browser.open(&render(&report("pair", 5), &line));
    let kinds = || browser.text("overhear.rows.map((r) => r.name).join(' ')");
    assert_eq!(
        kinds(),
        "CPUs CPU 0 CPU 1 client client server level work Kernel irq_entry"
    );
    let click = |id: &str| {
        browser.evaluate(&format!("document.getElementById('{id}').click()"));
        browser.settle();
    };
    click("show-cpus");
    assert_eq!(kinds(), "CPUs CPU 0 CPU 1 Kernel irq_entry");
    click("show-threads");
    assert_eq!(kinds(), "client client server level work");
    set_view(browser, 6_500_000.0, 7_500_000.0);
    click("active");
    assert_eq!(kinds(), "client server work");
    click("active");
    assert_eq!(kinds(), "client client server level work");
    assert_silent(browser);
}

fn compared_runs_share_one_scale(browser: &Browser) {
    let (a, b) = (report("old", 5_000_000), report("new", 10_000_000));
    let mut longer = pair();
    longer["end_ns"] = json!(1_000_000_000_u64 + 20_000_000);
    let page = render_comparison(
        &Run {
            label: "runs/old",
            ..Run::of_values(&a, &pair())
        },
        &Run {
            label: "runs/new",
            ..Run::of_values(&b, &longer)
        },
    );
    browser.open(&page);
    assert_eq!(browser.number("overhear.extent"), 20_000_000.0);
    let rows = browser.text("overhear.rows.map((r) => r.name).join('|')");
    assert!(
        rows.starts_with("A  runs/old|CPUs|") && rows.contains("|B  runs/new|CPUs|"),
        "{rows}"
    );
    let runs =
        browser.evaluate("overhear.statistics(0, 20000000).threads.map((t) => [t.of, t.name])");
    let named = |run: u64| {
        runs.as_array()
            .unwrap()
            .iter()
            .filter(|one| one[0] == run)
            .count()
    };
    // Both runs have the same threads, and each thread is counted in its own run only.
    assert_eq!((named(0), named(1)), (2, 2), "{runs}");
    let comparison = plain(&browser.text("document.getElementById('comparison').innerText"));
    for part in ["runs/old", "runs/new", "Running", "+5 ms (× 2)", "equal"] {
        assert!(comparison.contains(part), "{part}: {comparison}");
    }
    assert!(browser.number("overhear.primitives") <= browser.number("overhear.bound"));
    assert_silent(browser);
}

fn picture_is_saved_as_svg_and_png(browser: &Browser) {
    let mut line = synthetic::run(60_000);
    line["threads"][0]["comm"] = json!("a<b>&\"'\u{1}");
    browser.open(&render(&synthetic::report(), &line));
    browser.evaluate("overhear.setMeter(3000000000, 4000000000)");
    // Well-formed, with all names, and of bounded size.
    let facts = browser.evaluate(
        "(() => { const text = overhear.svg(); const document_ = new DOMParser().parseFromString(text, 'image/svg+xml');
           return { size: text.length, root: document_.documentElement.nodeName, errors: document_.querySelectorAll('parsererror').length,
                    texts: [...document_.querySelectorAll('text')].map((one) => one.textContent).join('|') }; })()",
    );
    assert_eq!(
        (&facts["root"], &facts["errors"]),
        (&json!("svg"), &json!(0))
    );
    let texts = plain(facts["texts"].as_str().unwrap());
    for part in [
        "a<b>&\"'\u{fffd}",
        "worker/1",
        "control.cycle",
        "CPU 3",
        "between 1 000.000 000 ms",
        "more switches than pixels",
    ] {
        assert!(texts.contains(part), "{part}: {texts}");
    }
    assert!(
        facts["size"].as_u64().unwrap() < 4_000_000,
        "{}",
        facts["size"]
    );

    let png = base64::Engine::decode(
        &base64::engine::general_purpose::STANDARD,
        browser.text("overhear.png()"),
    )
    .unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert!(
        side(16) > 1000 && side(20) > 300,
        "{} x {}",
        side(16),
        side(20)
    );
    assert_silent(browser);
}
