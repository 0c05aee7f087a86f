// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the page, and its robustness: hostile names, missing parts, narrow windows.

use std::path::PathBuf;

use overhear_page::render;
use serde_json::{json, Value};

use crate::browser::Browser;
use crate::synthetic::{self, BLOCKED, RUNNING};
use crate::{assert_silent, plain, set_view, simple_timeline, Plot};

/// A name that tries to break out of every context of the page.
const EVIL: &str = "</script><script>window.pwned=1</script><img src=x onerror=pwned=1>{{SCRIPT}}\u{2028}&amp;<!--";

fn hostile_timeline() -> Value {
    let thread = synthetic::thread(1, 1, EVIL, 0, &[(5_000_000, RUNNING, 0)]);
    let mut sensor = synthetic::sensor(1, EVIL, &[1_000_000], EVIL, EVIL, &[f64::NAN]);
    sensor["type"] = json!(EVIL);
    sensor["fields"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": EVIL, "unit": EVIL, "kind": "text", "values": [EVIL]}));
    let mut timeline = synthetic::timeline(5_000_000, vec![thread], vec![sensor]);
    timeline["gaps"] =
        json!([{"label": EVIL, "pid": 1, "from_ns": 2, "to_ns": 1, "missed": 1, "cause": EVIL}]);
    timeline
}

fn hostile_report() -> Value {
    json!({
        "overhear_version": EVIL, "command": [EVIL, EVIL], "exit": {"signal": 11},
        "sources": [{"name": EVIL, "active": EVIL, "message": EVIL}],
        "threads": [{"pid": 1, "tid": 1, "comm": EVIL}],
        "sensors": [{"task": EVIL, "id": EVIL, "fields": [{"name": EVIL, "unit": EVIL, "max": 3}]}],
        "losses": [{"stream": EVIL, "cause": EVIL, "missed": 1, "gaps": 1}], "missed_total": 1,
        "histograms": [{"title": EVIL, "unit": EVIL, "buckets": [{"low": 0, "high": 1, "count": 3}]}],
    })
}

/// Five hundred threads of one process.
fn crowd() -> Value {
    let busy = [
        (300_000, BLOCKED, u16::MAX),
        (100_000, RUNNING, 1),
        (500_000, BLOCKED, u16::MAX),
    ];
    let threads = (0..500)
        .map(|i| synthetic::thread(7, 7 + i, &format!("thread-{i}"), u64::from(i) * 200, &busy));
    synthetic::timeline(1_000_000, threads.collect(), vec![])
}

#[test]
fn hostile_and_missing_parts_do_no_harm() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let evil = EVIL;
    browser.open(&render(&hostile_report(), &hostile_timeline()));
    let plot = Plot::of(&browser);
    browser.hover(plot.at(&browser, evil, 1_000_000.0));
    assert_eq!(browser.evaluate("typeof window.pwned"), json!("undefined"));
    assert_eq!(browser.number("document.images.length"), 0.0);
    assert_eq!(
        browser.text("overhear.rows.find((r) => r.kind === 'process' && r.name !== 'CPUs').name"),
        evil
    );
    assert_eq!(
        browser.text("document.title"),
        format!("{} - Overhear", evil.rsplit('/').next().unwrap())
    );
    assert_silent(&browser);

    let one =
        |threads: Vec<Value>, sensors: Vec<Value>| synthetic::timeline(1_000_000, threads, sensors);
    let mut many_gaps = simple_timeline();
    many_gaps["gaps"] = (0..20_000).map(|i| json!({"label": "x", "pid": 10, "from_ns": i * 450, "to_ns": i * 450 + 200, "missed": 1, "cause": "full"})).collect();
    for timeline in [
        Value::Null,
        json!({}),
        json!([1, 2]),
        one(vec![], vec![]),
        one(vec![synthetic::thread(1, 1, "", 0, &[])], vec![]),
        one(
            vec![],
            vec![synthetic::sensor(5, "alone", &[17], "f", "", &[1.0])],
        ),
        crowd(),
        many_gaps,
    ] {
        for report in [
            json!({}),
            Value::Null,
            json!({"missed_total": 0, "threads": [], "sensors": [], "exit": null}),
        ] {
            browser.open(&render(&report, &timeline));
            let primitives = browser.number("overhear.primitives");
            assert!(
                primitives <= browser.number("overhear.bound"),
                "{primitives}"
            );
            assert_silent(&browser);
        }
    }
}

#[test]
fn policy_forbids_connections_and_all_controls_have_names() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&synthetic::report(), &synthetic::run(1_000)));
    let directive = browser.text(
        "new Promise((done) => {
           document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective));
           fetch('http://127.0.0.1:9/').catch(() => {});
         })",
    );
    assert_eq!(directive, "connect-src");

    let tree = browser.call("Accessibility.getFullAXTree", json!({}));
    let mut controls = 0;
    for node in tree["nodes"].as_array().unwrap() {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if ["button", "searchbox", "application", "link"].contains(&role) {
            controls += 1;
            assert!(
                node["name"]["value"]
                    .as_str()
                    .is_some_and(|name| !name.is_empty()),
                "{node}"
            );
        }
    }
    assert!(controls > 20, "{controls}");
}

#[test]
fn page_fits_windows_of_all_widths() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&hostile_report(), &crowd()));
    for (width, scale) in [
        (360, 3.0),
        (420, 2.0),
        (761, 1.25),
        (1280, 1.0),
        (2560, 1.0),
    ] {
        browser.resize(width, 800, scale);
        browser.settle();
        let sideways = browser
            .number("document.documentElement.scrollWidth - document.documentElement.clientWidth");
        assert_eq!(sideways, 0.0, "the page of {width} pixels scrolls sideways");
        // The plot ends at the scroll bar, and has one pixel for each screen pixel.
        let rectangle = "document.getElementById('plot').getBoundingClientRect()";
        let scroller = "document.getElementById('scroller')";
        let rest = browser.number(&format!(
            "{scroller}.getBoundingClientRect().left + {scroller}.clientWidth - {rectangle}.right"
        ));
        assert!((0.0..1.0).contains(&rest), "{rest} at {width}");
        let pixels = browser.number(&format!(
            "document.getElementById('plot').width / {rectangle}.width"
        ));
        assert!((pixels - scale).abs() < 0.01, "{pixels} at {scale}");
        assert!(browser.number("overhear.primitives") <= browser.number("overhear.bound"));
    }
    assert_silent(&browser);
}

#[test]
fn panel_is_as_high_as_its_content() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let height = |id: &str| {
        browser.number(&format!(
            "document.getElementById('{id}').getBoundingClientRect().height"
        ))
    };
    let empty = |id: &str| {
        browser.number(&format!(
            "(() => {{
               const holder = document.getElementById('{id}');
               const parts = [...holder.children].map((part) => part.getBoundingClientRect().bottom);
               return holder.getBoundingClientRect().bottom - Math.max(...parts);
             }})()"
        ))
    };
    for width in [1280, 1920] {
        browser.resize(width, 800, 1.0);
        browser.open(&render(&synthetic::report(), &simple_timeline()));
        browser.settle();
        let rows = browser.number("overhear.rows.reduce((sum, row) => sum + row.height, 0)");
        assert!((height("scroller") - rows).abs() < 1.0, "{rows} at {width}");
        let rest = empty("statistics-body");
        assert!((0.0..20.0).contains(&rest), "{rest} pixels at {width}");
        // Nothing below the panel moves with the view, even if a part has fewer lines.
        let full = height("panel");
        set_view(&browser, 1_200_000.0, 1_300_000.0);
        browser.evaluate("overhear.showStatistics()");
        browser.settle();
        assert_eq!(height("panel"), full);
    }
    // Long content is scrolled.
    browser.open(&render(&synthetic::report(), &crowd()));
    browser.settle();
    assert_eq!(height("statistics-body"), 300.0);
    assert_silent(&browser);
}

#[test]
fn long_intervals_and_distances_are_joined() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let thread = synthetic::thread(
        1,
        1,
        "sleeper",
        0,
        &[
            (u32::MAX, BLOCKED, u16::MAX),
            (705_032_705, BLOCKED, u16::MAX),
            (1_000_000_000, RUNNING, 0),
        ],
    );
    let mut sensor = synthetic::sensor(1, "rare", &[0, 1, 2], "value", "", &[1.0, 2.0]);
    // The second element is 4,294,967,295 + 5 ns after the first.
    let deltas: Vec<u8> = [u32::MAX, 5]
        .iter()
        .flat_map(|d: &u32| d.to_le_bytes())
        .collect();
    sensor["deltas"] = json!(base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        deltas
    ));
    browser.open(&render(
        &json!({}),
        &synthetic::timeline(6_000_000_000, vec![thread], vec![sensor]),
    ));
    let plot = Plot::of(&browser);
    let tooltip = |row, t| {
        browser.hover(plot.at(&browser, row, t));
        plain(&browser.text("document.getElementById('tooltip').innerText"))
    };
    let text = tooltip("sleeper", 4_500_000_000.0);
    assert!(text.contains("blocked") && text.contains("5 s"), "{text}");
    let text = tooltip("rare", 4_294_967_300.0);
    assert!(
        text.contains("4 294.967 300 ms") && text.contains("101"),
        "{text}"
    );
    assert_silent(&browser);
}

/// Pictures of pages that lie on disk: `OVERHEAR_PAGE_OF=a.html:b.html`, as the documentation has
/// them.
#[test]
fn pictures_of_pages() {
    let (Some(folder), Some(pages)) = (
        std::env::var_os("OVERHEAR_PAGE_SHOTS").map(PathBuf::from),
        std::env::var_os("OVERHEAR_PAGE_OF"),
    ) else {
        return;
    };
    let Some(browser) = Browser::start() else {
        return;
    };
    std::fs::create_dir_all(&folder).unwrap();
    let script = std::env::var("OVERHEAR_PAGE_DO").unwrap_or_else(|_| "null".to_owned());
    for page in std::env::split_paths(&pages) {
        let html = std::fs::read_to_string(&page).unwrap();
        let name = page.file_stem().unwrap().to_string_lossy().into_owned();
        for (scheme, width) in [
            ("light", 1280),
            ("dark", 1280),
            ("light", 1920),
            ("dark", 1920),
        ] {
            browser.prefer(scheme);
            browser.resize(width, 1000, 1.0);
            browser.open(&html);
            Plot::of(&browser);
            browser.evaluate(&script);
            browser.settle();
            browser.screenshot(&folder.join(format!("{name}-{scheme}-{width}.png")), false);
        }
        // The files that the page itself saves, as the documentation has them.
        browser.prefer("light");
        browser.resize(1280, 1000, 1.0);
        browser.open(&html);
        browser.evaluate(&script);
        browser.settle();
        let svg = browser.text("overhear.svg()");
        std::fs::write(folder.join(format!("{name}.svg")), svg).unwrap();
        let png = browser.text("overhear.png()");
        let png = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, png).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), png).unwrap();
        assert_silent(&browser);
    }
}

#[test]
fn pictures() {
    let Some(folder) = std::env::var_os("OVERHEAR_PAGE_SHOTS").map(PathBuf::from) else {
        return;
    };
    let Some(browser) = Browser::start() else {
        return;
    };
    std::fs::create_dir_all(&folder).unwrap();
    let large = render(&synthetic::report(), &synthetic::run(60_000));
    let mut complete = synthetic::report();
    complete["missed_total"] = json!(0);
    complete["losses"] = json!([]);
    for scheme in ["light", "dark"] {
        let shot = |name: &str, full: bool| {
            browser.screenshot(&folder.join(format!("{name}-{scheme}.png")), full)
        };
        browser.prefer(scheme);
        browser.resize(1440, 900, 1.0);
        browser.open(&large);
        browser.settle();
        shot("full", true);
        let plot = Plot::of(&browser);
        let detail = folder.join(format!("detail-{scheme}.png"));
        browser.enlarge(
            &detail,
            (plot.left - 200.0, plot.top - 40.0),
            (620.0, 400.0),
        );
        set_view(&browser, 3_000_000_000.0, 3_120_000_000.0);
        browser.evaluate("overhear.setMeter(3020000000, 3057341207)");
        browser.hover(plot.at(&browser, "encoder", 3_090_000_000.0));
        shot("zoomed", false);
        set_view(&browser, 3_000_000_000.0, 3_012_000_000.0);
        browser.evaluate("overhear.setMeter(3002000000, 3005341207)");
        let (_, y) = plot.at(&browser, "control.cycle", 3_006_000_000.0);
        browser.hover((plot.left + plot.width * 0.56, y));
        shot("close", false);
        browser.resize(1100, 760, 2.0);
        browser.open(&render(&complete, &synthetic::run(3_000)));
        let plot = Plot::of(&browser);
        browser.hover(plot.at(&browser, "grabber", 4_000_000_000.0));
        shot("sharp", false);
        browser.resize(1280, 800, 1.0);
        browser.open(&render(&complete, &crowd()));
        Plot::of(&browser);
        shot("crowd", false);
        browser.open(&render(&hostile_report(), &hostile_timeline()));
        shot("hostile", true);
        browser.open(&large);
        browser.resize(420, 800, 2.0);
        browser.settle();
        shot("narrow", true);
        browser.resize(1280, 800, 1.0);
        browser.open(&render(
            &json!({"command": ["true"], "missed_total": 0}),
            &Value::Null,
        ));
        shot("empty", true);
        browser.open(&render(&complete, &simple_timeline()));
        browser.evaluate("document.getElementById('help').showModal()");
        shot("help", true);
        assert_silent(&browser);
    }
}

#[test]
fn result_of_a_monitor_is_shown() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let mut report = hostile_report();
    browser.open(&render(&report, &Value::Null));
    assert_eq!(
        browser.evaluate("document.getElementById('monitor').hidden"),
        json!(true)
    );
    report["guarantee"] = json!({
        "executor": "deadline", "verdict": "inconclusive", "level": "shared", "latency_ns": 50_000_000,
        "period_ns": 5_000_000, "runtime_ns": 120_000, "reasons": [EVIL, "the machine was late"],
        "sensors": [{"id": EVIL, "elements": 400, "missed": 3, "latency_ns": 7_000, "exceeding": 1}],
        "updates": [{
            "name": "numbers", "state": "stopped", "message": "3 elements were missed", "elements": 390,
            "missed": 3, "overruns": 2, "longest_ns": 41_000, "wcet_ns": 40_000,
            "plugin": [{"name": EVIL, "file": EVIL, "argument": EVIL, "state": "failed", "message": EVIL,
                "elements": 1, "missed": 0, "results": {EVIL: EVIL}, "complaints": [EVIL]}],
        }],
    });
    report["reactions"] = json!({"lost": 7, "reactions": [{
        "name": "call for help", "on": ["stream", "missed"], "carried_out": 11, "failed": 1,
        "first": "at 1.0 sensor `queue` exceeded its stream", "failure": EVIL,
    }]});
    browser.open(&render(&report, &Value::Null));
    let shown = browser.text("document.getElementById('monitor').innerText");
    for words in [
        "inconclusive",
        "the machine was late",
        "3 elements were missed",
        "numbers",
        "call for help",
        "stream, missed",
        "7 reactions lost",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // Errors are marked: missed, too fast, missed, overruns, failed.
    let alarms = browser.number("document.querySelectorAll('#monitor td.alarm').length");
    assert_eq!(alarms, 5.0, "{shown}");
    assert_eq!(browser.evaluate("typeof window.pwned"), json!("undefined"));
    assert_silent(&browser);
}

#[test]
fn verdicts_come_first_and_a_bad_one_is_never_shown_as_good() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let constraint = |name: &str, verdict: &str| {
        json!({"name": name, "verdict": verdict, "judged": 7, "offences": 1, "reasons": [EVIL],
            "first": {"message": EVIL, "begin_ns": 0, "end_ns": 1, "task": null, "elements": []}})
    };
    let finding = |of: &str, verdict: &str| json!({"of": of, "verdict": verdict, "message": EVIL});
    let of_class = |class: &str| {
        let count = format!("document.querySelectorAll('.verdict.{class}').length");
        browser.number(&count)
    };
    for (outcome, findings, expected) in [
        ("complete", vec![], (1.0, 0.0, 0.0)),
        (
            "complete",
            vec![finding("constraints", "held")],
            (2.0, 0.0, 0.0),
        ),
        (
            "violated",
            vec![
                finding("constraints", "violated"),
                finding("guarantee", "held"),
            ],
            (0.0, 1.0, 0.0),
        ),
        (
            "inconclusive",
            vec![finding("metrics", "inconclusive")],
            (0.0, 0.0, 1.0),
        ),
    ] {
        let report = json!({
            "command": ["true"], "missed_total": 0, "complete": true, "losses": [],
            "outcome": outcome, "findings": findings,
            "check": {"constraints": [constraint("few", outcome)]},
        });
        browser.open(&render(&report, &Value::Null));
        let counts = (of_class("good"), of_class("bad"), of_class("unsure"));
        assert_eq!(counts, expected, "{outcome}");
        let shown = browser.text("document.getElementById('verdicts').innerText");
        assert!(
            shown.contains("few") && shown.contains("First offence"),
            "{shown}"
        );
        // It comes before everything else of the run.
        let first = "document.querySelector('main > section:not([hidden]):not(#facts)').id";
        assert_eq!(browser.text(first), "verdicts");
    }
    assert_eq!(browser.evaluate("typeof window.pwned"), json!("undefined"));
    assert_silent(&browser);
}

#[test]
fn budget_is_shown_against_its_target() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let mut report = hostile_report();
    browser.open(&render(&report, &Value::Null));
    assert_eq!(
        browser.evaluate("document.getElementById('budget').hidden"),
        json!(true)
    );
    let second = 1_000_000_000_u64;
    let points = [0.052, 0.049, 0.2].iter().zip(0_u64..);
    let course = points.map(|(overhead, i)| {
        json!({"from_ns": (7 + i) * second, "to_ns": (8 + i) * second, "overhead": overhead, "worst_window": overhead})
    });
    let sensor = |name: &str, cost_ns: f64| {
        json!({"name": name, "share_on": 0.4, "written": 400, "skipped": 600, "cost_ns": cost_ns,
            "cost_error_ns": 100.0, "price_ns": 10.5, "price_error_ns": 0.25})
    };
    let mut uncounted = sensor("cheap", 5.0);
    uncounted["skipped"] = Value::Null;
    uncounted["share_on"] = Value::Null;
    report["budget"] = json!({
        "target": 0.05, "observed": 0.0493, "observed_error": 0.0011, "window_ns": second,
        "cpu_ns": 3 * second, "course": course.collect::<Vec<_>>(),
        "sensors": [uncounted, sensor(EVIL, 4_200.0)],
    });
    browser.open(&render(&report, &Value::Null));
    let shown = plain(&browser.text("document.getElementById('budget').innerText"));
    for words in [
        "about 4.93 % ± 0.11 % of the CPU time, of 5.00 % permitted",
        "target 5.00 %",
        "10.5 ns ± 0.3 ns",
        "4.2 µs ± 100 ns",
        "40 %",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // The sensor of the highest cost comes first.
    assert!(shown.find(EVIL) < shown.find("cheap"), "{shown}");
    let bars = "[...document.querySelectorAll('#budget .chart-fill')].map((it) => Number(it.getAttribute('height')))";
    let bars = browser.evaluate(bars);
    let bars: Vec<f64> = bars
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_f64().unwrap())
        .collect();
    assert_eq!(bars.len(), 3);
    // The line of the target lies between the bars that exceed it and the one that does not.
    let of_line =
        "184 - 34 - Number(document.querySelector('#budget .chart-target').getAttribute('y1'))";
    let target = browser.number(of_line);
    assert!(
        bars[1] < target && target < bars[0] && 3.9 * target < bars[2],
        "{bars:?} {target}"
    );
    assert_eq!(browser.evaluate("typeof window.pwned"), json!("undefined"));
    assert_silent(&browser);
    // A run that was shorter than a window, and damaged numbers.
    report["budget"]["course"] = json!([{"from_ns": EVIL, "to_ns": 1}, 7]);
    browser.open(&render(&report, &Value::Null));
    let shown = browser.text("document.getElementById('budget').innerText");
    assert!(shown.contains("shorter than a window"), "{shown}");
    assert_silent(&browser);
}
