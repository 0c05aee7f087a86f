// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page in a real browser: what it draws, how much drawing that takes, and whether
//! mouse and keyboard do what its help promises.
//!
//! Without Chromium the tests print "skipped" and pass. With `OVERHEAR_PAGE_SHOTS=DIR` the test
//! `pictures` writes screenshots for the eye to judge.

mod appearance;
mod browser;
mod compensated;
mod live;
mod naps;
mod sampled;
mod synthetic;
mod tool;

use browser::{Browser, Held};
use overhear_page::render;
use serde_json::{json, Value};
use synthetic::{BLOCKED, RUNNING};

const PLAIN: Held = Held {
    shift: false,
    right: false,
    alt: false,
};
const SHIFT: Held = Held {
    shift: true,
    ..PLAIN
};
const RIGHT: Held = Held {
    right: true,
    ..PLAIN
};
const ALT: Held = Held { alt: true, ..PLAIN };

/// The position of the plot's rectangles on the screen, and the time of one pixel.
struct Plot {
    left: f64,
    top: f64,
    width: f64,
}

impl Plot {
    fn of(browser: &Browser) -> Self {
        browser.evaluate("document.getElementById('frame').scrollIntoView({block: 'center'})");
        browser.settle();
        let side = |name: &str| {
            browser.number(&format!(
                "document.getElementById('plot').getBoundingClientRect().{name}"
            ))
        };
        Self {
            left: side("left"),
            top: side("top"),
            width: side("width"),
        }
    }

    /// The position of a time in the row with this name.
    fn at(&self, browser: &Browser, row: &str, t: f64) -> (f64, f64) {
        let (from, to) = view(browser);
        let middle = browser.number(&format!(
            "(() => {{ const r = overhear.rows.find((r) => r.kind !== 'process' && r.name === {}); return r.top + r.height / 2; }})()",
            json!(row)
        ));
        (
            self.left + (t - from) / (to - from) * self.width,
            self.top + middle,
        )
    }
}

fn view(browser: &Browser) -> (f64, f64) {
    (
        browser.number("overhear.view.from"),
        browser.number("overhear.view.to"),
    )
}

fn set_view(browser: &Browser, from: f64, to: f64) {
    browser.evaluate(&format!("overhear.setView({from}, {to})"));
}

/// The visible texts, with plain spaces instead of narrow ones.
fn plain(text: &str) -> String {
    text.replace('\u{202f}', " ")
}

#[track_caller]
fn assert_silent(browser: &Browser) {
    browser.settle();
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Ten milliseconds of a thread: one running, two blocked, seven running.
fn simple_timeline() -> Value {
    let thread = synthetic::thread(
        10,
        10,
        "simple",
        0,
        &[
            (1_000_000, RUNNING, 2),
            (2_000_000, BLOCKED, u16::MAX),
            (7_000_000, RUNNING, 3),
        ],
    );
    let sensor = synthetic::sensor(
        10,
        "load",
        &[500_000, 4_000_000, 9_000_000],
        "torque",
        "Nm",
        &[1.5, -2.25, 40.0],
    );
    synthetic::timeline(10_000_000, vec![thread], vec![sensor])
}

#[test]
fn drawing_is_bounded_by_the_window_alone() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let mut counts = Vec::new();
    for intervals in [10_000, 1_000_000] {
        browser.open(&render(&synthetic::report(), &synthetic::run(intervals)));
        // The positions in the plot become stable with the layout, and the bound with them.
        browser.settle();
        let width = browser.number("document.getElementById('plot').clientWidth");
        let rows = browser.number("overhear.rows.length");
        let bound = browser.number("overhear.bound");
        assert!(
            bound <= 4.0 * (width + rows),
            "{bound} is more than 4 * ({width} + {rows})"
        );
        let extent = browser.number("overhear.extent");
        for part in [1.0, 0.3, 0.01, 1e-4, 1e-6] {
            for start in [0.0, 0.42, 1.0] {
                let from = start * extent * (1.0 - part);
                set_view(&browser, from, from + part * extent);
                let primitives = browser.number("overhear.primitives");
                assert!(
                    primitives > 0.0 && primitives <= bound,
                    "{primitives} of {bound} at {part}"
                );
                if part == 1.0 {
                    counts.push((intervals, primitives, bound));
                }
            }
        }
        assert_silent(&browser);
    }
    let time = browser.number("(() => { const t = performance.now(); for (let i = 0; i < 20; i += 1) overhear.fit(); return (performance.now() - t) / 20; })()");
    println!("a frame of the full view takes {time:.1} ms");
    println!("primitives (intervals, drawn, bound): {counts:?}");
    assert_eq!(
        counts[0].2, counts[3].2,
        "the bound depends on the number of intervals"
    );
}

/// The bench of the page: `OVERHEAR_PAGE_BENCH=10000,1000000,5000000` prints how long pages with so
/// many intervals and elements take to open and to draw, and asserts the bound there, too.
#[test]
fn pages_of_all_sizes_open() {
    let Ok(sizes) = std::env::var("OVERHEAR_PAGE_BENCH") else {
        return;
    };
    let Some(browser) = Browser::start() else {
        return;
    };
    for size in sizes.split(',').map(|size| size.parse::<usize>().unwrap()) {
        let line = synthetic::run(size);
        let intervals: usize = line["threads"]
            .as_array()
            .unwrap()
            .iter()
            .map(|thread| thread["states"].as_str().unwrap().len() / 4 * 3)
            .sum();
        let html = render(&synthetic::report(), &line);
        let start = std::time::Instant::now();
        browser.open(&html);
        let opened = start.elapsed();
        browser.settle();
        let extent = browser.number("overhear.extent");
        let mut most: f64 = 0.0;
        for part in [1.0, 0.1, 0.001, 1e-5] {
            set_view(&browser, 0.4 * extent, (0.4 + 0.6 * part) * extent);
            most = most.max(browser.number("overhear.primitives"));
        }
        let bound = browser.number("overhear.bound");
        assert!(most <= bound, "{most} of {bound} with {size}");
        let frame = browser.number("(() => { const t = performance.now(); for (let i = 0; i < 20; i += 1) overhear.fit(); return (performance.now() - t) / 20; })()");
        println!(
            "{intervals} intervals, {:.1} MB: opened after {:.0} ms, a frame of all takes {frame:.1} ms, at most {most} primitives of {bound}",
            html.len() as f64 / 1e6,
            opened.as_secs_f64() * 1e3,
        );
        assert_silent(&browser);
    }
}

#[test]
fn serration_shows_where_switches_are_hidden() {
    let Some(browser) = Browser::start() else {
        return;
    };
    // 100,000 switches in a tenth of a second: each pixel hides a hundred of them.
    let intervals: Vec<_> = (0..100_000_u32)
        .map(|i| (1000, if i % 2 == 0 { RUNNING } else { BLOCKED }, 1))
        .collect();
    let thread = synthetic::thread(1, 1, "flutter", 0, &intervals);
    browser.open(&render(
        &json!({}),
        &synthetic::timeline(100_000_000, vec![thread], vec![]),
    ));
    let hidden = || browser.number("overhear.rows.find((r) => r.kind === 'thread').hidden");
    // The top line of the bar: it is serrated above hidden switches, and nowhere else.
    let edge_colors = || {
        browser.number(
            "(() => { const plot = document.getElementById('plot'); const r = overhear.rows.find((r) => r.kind === 'thread');
               const copy = new OffscreenCanvas(plot.width, plot.height).getContext('2d', { willReadFrequently: true });
               copy.drawImage(plot, 0, 0);
               const line = copy.getImageData(4, (r.top + 4) * devicePixelRatio, 90, 1).data;
               const colors = new Set(); for (let i = 0; i < line.length; i += 4) colors.add(line.slice(i, i + 3).join());
               return colors.size; })()",
        )
    };
    let width = browser.number("document.getElementById('plot').width");
    assert!(hidden() >= width - 2.0, "{} of {width} columns", hidden());
    assert!(edge_colors() >= 2.0);

    // Inside one interval of a thousand nanoseconds nothing is hidden.
    set_view(&browser, 50_000_100.0, 50_000_900.0);
    assert_eq!(hidden(), 0.0);
    assert_eq!(edge_colors(), 1.0);
    // Nothing is hidden if each interval is many pixels wide.
    set_view(&browser, 50_000_000.0, 50_010_000.0);
    assert_eq!(hidden(), 0.0);
    assert_silent(&browser);
}

/// The expected content of a column of pixels, by a slow and obvious method: the state with the
/// larger part, or `None` if the column hides more than one change.
fn expected_column(ends: &[f64], from: f64, to: f64) -> Option<(u8, f64)> {
    let changes = ends
        .iter()
        .filter(|end| **end >= from && **end < to)
        .count();
    if changes > 1 {
        return None;
    }
    let mut times = [0.0; 2];
    let mut start = 0.0;
    for (end, state) in ends.iter().zip([0, 1].into_iter().cycle()) {
        times[state] += (end.min(to) - f64::max(start, from)).max(0.0);
        start = *end;
    }
    let [running, blocked] = times;
    let state = if running > blocked { RUNNING } else { BLOCKED };
    Some((state, (running - blocked).abs() / (to - from)))
}

#[test]
fn every_column_shows_its_state() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let mut dice = synthetic::Dice::new(11);
    let mut intervals = Vec::new();
    for i in 0..4000_u32 {
        // Bursts of short intervals between long ones, so that all kinds of columns occur.
        let scale = if i / 100 % 2 == 0 { 400 } else { 60_000 };
        let length = 1 + u32::try_from(dice.below(scale)).unwrap();
        intervals.push((length, if i % 2 == 0 { RUNNING } else { BLOCKED }, u16::MAX));
    }
    let ends: Vec<f64> = intervals
        .iter()
        .scan(0.0, |end, interval| {
            *end += f64::from(interval.0);
            Some(*end)
        })
        .collect();
    let extent = ends[ends.len() - 1];
    let thread = synthetic::thread(1, 1, "bursts", 0, &intervals);
    browser.open(&render(
        &json!({}),
        &synthetic::timeline(extent as u64, vec![thread], vec![]),
    ));
    let mut colors = [None, None];
    let (mut hidden_seen, mut plain_seen) = (0, 0);
    for part in [1.0, 0.31, 0.07, 0.004] {
        for start in [0.0, 0.4321, 1.0] {
            let from = start * extent * (1.0 - part);
            set_view(&browser, from, from + extent * part);
            let (from, to) = view(&browser);
            let pixels = browser.evaluate(
                "(() => { const plot = document.getElementById('plot'); const row = overhear.rows.find((r) => r.kind === 'thread');
                   const copy = new OffscreenCanvas(plot.width, plot.height).getContext('2d', { willReadFrequently: true });
                   copy.drawImage(plot, 0, 0);
                   const line = copy.getImageData(0, row.top + row.height - 6, plot.width, 1).data;
                   return Array.from({ length: plot.width }, (_, x) => line.slice(4 * x, 4 * x + 3).join()); })()",
            );
            let pixels = pixels.as_array().unwrap();
            let per_column = (to - from) / pixels.len() as f64;
            let mut hidden = 0;
            for (x, pixel) in pixels.iter().enumerate() {
                // The same rule as in the page: a change at a border belongs to one column.
                let border = |x: usize| from + x as f64 * per_column;
                match expected_column(&ends, border(x), border(x + 1)) {
                    None => hidden += 1,
                    // If both states fill half of the column, both are correct.
                    Some((_, margin)) if margin < 1e-6 => {}
                    Some((state, _)) => {
                        let color = &mut colors[usize::from(state == RUNNING)];
                        let known = color.get_or_insert_with(|| pixel.clone());
                        assert_eq!(pixel, known, "column {x} of {from} to {to}");
                        plain_seen += 1;
                    }
                }
            }
            assert_eq!(
                browser.number("overhear.rows.find((r) => r.kind === 'thread').hidden"),
                f64::from(hidden),
                "{from} to {to}"
            );
            hidden_seen += hidden;
        }
    }
    assert!(
        hidden_seen > 500 && plain_seen > 5000,
        "{hidden_seen} {plain_seen}"
    );
    assert_ne!(colors[0], colors[1]);
    assert_silent(&browser);
}

#[test]
fn mouse_and_keyboard_change_the_view() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&json!({}), &simple_timeline()));
    let plot = Plot::of(&browser);
    let near = |a: f64, b: f64| (a - b).abs() <= 2.0 * 10_000_000.0 / plot.width;

    // The wheel keeps the time under the pointer at its position.
    let at = plot.at(&browser, "simple", 2_500_000.0);
    browser.wheel(at, -200.0);
    let (from, to) = view(&browser);
    assert!(to - from < 9_000_000.0, "{from} {to}");
    assert!(near(from + (to - from) * 0.25, 2_500_000.0), "{from} {to}");

    // A drag to the left by a quarter shows the time a quarter later.
    set_view(&browser, 2_000_000.0, 6_000_000.0);
    let start = plot.at(&browser, "simple", 5_000_000.0);
    browser.drag(start, (start.0 - plot.width / 4.0, start.1), PLAIN);
    let (from, to) = view(&browser);
    assert!(
        near(from, 3_000_000.0) && near(to, 7_000_000.0),
        "{from} {to}"
    );
    assert_eq!(
        browser.evaluate("overhear.meter"),
        json!([null, null]),
        "a drag places no line"
    );

    // Dragging with Shift zooms to the selection.
    browser.evaluate("overhear.fit()");
    let start = plot.at(&browser, "simple", 1_000_000.0);
    let end = plot.at(&browser, "simple", 3_000_000.0);
    browser.drag(start, end, SHIFT);
    let (from, to) = view(&browser);
    assert!(
        near(from, 1_000_000.0) && near(to, 3_000_000.0),
        "{from} {to}"
    );

    // The bar below the rows moves the view to the pressed position.
    let track = |name: &str| {
        browser.number(&format!(
            "document.getElementById('track').getBoundingClientRect().{name}"
        ))
    };
    let point = (track("left") + track("width") * 0.7, track("top") + 5.0);
    browser.click(point, PLAIN);
    let (from, to) = view(&browser);
    assert!(near((from + to) / 2.0, 7_000_000.0), "{from} {to}");

    browser.hover((2.0, 2.0));
    browser.evaluate("document.getElementById('frame').focus()");
    for (key, check) in [
        (
            "0",
            (|_, new| new == (0.0, 10_000_000.0)) as fn((f64, f64), (f64, f64)) -> bool,
        ),
        ("+", |old, new| new.1 - new.0 < old.1 - old.0),
        ("w", |old, new| new.1 - new.0 < old.1 - old.0),
        ("ArrowRight", |old, new| new.0 > old.0),
        ("d", |old, new| new.0 > old.0),
        ("ArrowLeft", |old, new| new.0 < old.0),
        ("a", |old, new| new.0 < old.0),
        ("-", |old, new| new.1 - new.0 > old.1 - old.0),
        ("s", |old, new| new.1 - new.0 > old.1 - old.0),
        ("+", |old, new| new.1 - new.0 < old.1 - old.0),
        ("Home", |_, new| new == (0.0, 10_000_000.0)),
    ] {
        let old = view(&browser);
        browser.key(key);
        let new = view(&browser);
        assert!(check(old, new), "{key}: {old:?} became {new:?}");
    }
    browser.key("?");
    assert_eq!(
        browser.evaluate("document.getElementById('help').open"),
        json!(true)
    );
    assert_silent(&browser);
}

#[test]
fn metering_lines_show_the_time_between_them() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&json!({}), &simple_timeline()));
    let plot = Plot::of(&browser);
    let pixel = 10_000_000.0 / plot.width;

    browser.click(plot.at(&browser, "simple", 2_000_000.0), PLAIN);
    browser.click(plot.at(&browser, "simple", 7_000_000.0), SHIFT);
    let a = browser.number("overhear.meter[0]");
    let b = browser.number("overhear.meter[1]");
    assert!(
        (a - 2_000_000.0).abs() <= pixel && (b - 7_000_000.0).abs() <= pixel,
        "{a} {b}"
    );
    browser.click(plot.at(&browser, "simple", 5_000_000.0), RIGHT);
    let b = browser.number("overhear.meter[1]");
    assert!((b - 5_000_000.0).abs() <= pixel, "{b}");

    // The mouse takes a line and moves it; the view does not change.
    let line = plot.at(&browser, "simple", b);
    browser.drag(line, plot.at(&browser, "simple", 9_000_000.0), PLAIN);
    let b = browser.number("overhear.meter[1]");
    assert!((b - 9_000_000.0).abs() <= 2.0 * pixel, "{b}");
    assert_eq!(view(&browser), (0.0, 10_000_000.0));

    // With Alt it goes to the nearest change exactly.
    browser.click(plot.at(&browser, "simple", 1_060_000.0), ALT);
    assert_eq!(browser.number("overhear.meter[0]"), 1_000_000.0);

    browser.evaluate("overhear.setMeter(1234567, 8000000)");
    let exact = "A 1.234 567 ms  B 8.000 000 ms  between 6.765 433 ms";
    assert_eq!(plain(&browser.text("overhear.meterText()")), exact);
    let shown = plain(&browser.text("document.getElementById('meter').textContent"));
    assert!(shown.contains("6.765 433 ms"), "{shown}");

    // By keyboard alone: choose the row, step to its changes, and place the lines there.
    browser.key("x");
    assert_eq!(browser.evaluate("overhear.meter"), json!([null, null]));
    browser.hover((2.0, 2.0));
    browser.evaluate("document.getElementById('frame').focus(); overhear.setView(0, 2100000)");
    // Threads alone; otherwise the CPUs' rows come first.
    for key in ["c", "ArrowDown", ",", "[", ".", "]"] {
        browser.key(key);
    }
    assert_eq!(
        browser.evaluate("overhear.meter"),
        json!([1_000_000, 3_000_000])
    );
    let messages = plain(&browser.text("document.getElementById('announce').textContent"));
    assert!(
        messages.contains("simple: running") && messages.contains("Duration 7 ms"),
        "{messages}"
    );
    assert_silent(&browser);
}

#[test]
fn tooltips_show_states_elements_and_losses() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let mut timeline = simple_timeline();
    timeline["gaps"] = json!([{"label": "kernel/cpu1", "pid": null, "from_ns": 6_000_000, "to_ns": 6_000_001, "missed": 17, "cause": "overwritten"},
        {"label": "load", "pid": 10, "from_ns": 4_500_000, "to_ns": 5_000_000, "missed": 2, "cause": "late", "sensor": 0}]);
    browser.open(&render(&json!({}), &timeline));
    let plot = Plot::of(&browser);
    let tooltip = || {
        assert_eq!(
            browser.evaluate("document.getElementById('tooltip').hidden"),
            json!(false)
        );
        plain(&browser.text("document.getElementById('tooltip').innerText"))
    };

    browser.hover(plot.at(&browser, "simple", 2_000_000.0));
    let text = tooltip();
    assert!(
        ["blocked", "2 ms", "1.000 000 ms"]
            .iter()
            .all(|part| text.contains(part)),
        "{text}"
    );
    browser.hover(plot.at(&browser, "simple", 8_000_000.0));
    let text = tooltip();
    assert!(
        ["running", "7 ms", "CPU", "3"]
            .iter()
            .all(|part| text.contains(part)),
        "{text}"
    );

    browser.hover(plot.at(&browser, "load", 4_000_000.0));
    let text = tooltip();
    assert!(
        ["torque", "−2.25 Nm", "4.000 000 ms", "101"]
            .iter()
            .all(|part| text.contains(part)),
        "{text}"
    );
    // Two elements were missed before the last one, and they have sequence numbers, too.
    browser.hover(plot.at(&browser, "load", 9_000_000.0));
    assert!(tooltip().contains("104"), "{}", tooltip());

    browser.hover(plot.at(&browser, "missed", 6_000_000.0));
    let text = tooltip();
    assert!(
        ["17 elements missed", "kernel/cpu1", "overwritten"]
            .iter()
            .all(|part| text.contains(part)),
        "{text}"
    );
    browser.hover(plot.at(&browser, "load", 4_700_000.0));
    assert!(tooltip().contains("2 elements missed"), "{}", tooltip());
    assert_silent(&browser);
}

#[test]
fn left_out_parts_are_listed() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let left_out = "document.getElementById('left-out').innerText";
    let mut timeline = simple_timeline();
    browser.open(&render(&json!({}), &timeline));
    assert_eq!(browser.text(left_out), "");
    timeline["left_out"] = json!(["Begin <b>.", "No room."]);
    // The elements of several lanes have no common sequence.
    timeline["sensors"][0]["first_sequence"] = Value::Null;
    browser.open(&render(&json!({}), &timeline));
    assert_eq!(browser.text(left_out), "Begin <b>. No room.");
    browser.hover(Plot::of(&browser).at(&browser, "load", 4_000_000.0));
    let text = browser.text("document.getElementById('tooltip').innerText");
    assert!(
        text.contains("torque") && !text.contains("Sequence"),
        "{text}"
    );
    assert_silent(&browser);
}

#[test]
fn search_filters_and_processes_collapse() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&synthetic::report(), &synthetic::run(10_000)));
    let names = || browser.text("overhear.rows.map((r) => r.name).join(' ')");
    assert!(names().contains("logger") && names().contains("grabber"));
    browser.evaluate(
        "(() => { const s = document.getElementById('search'); s.value = 'WORKER'; s.dispatchEvent(new Event('input')); })()",
    );
    assert_eq!(names(), "planner worker/0 worker/1 worker/2");
    browser.evaluate(
        "(() => { const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); })()",
    );
    browser.evaluate("[...document.querySelectorAll('.row.process')].find((r) => r.textContent.includes('planner')).click()");
    assert!(!names().contains("logger") && names().contains("grabber"));
    assert_silent(&browser);
}

#[test]
fn tables_are_sorted_by_their_heads() {
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&render(&synthetic::report(), &Value::Null));
    let column = |n: u32| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('#tables table')[0].tBodies[0].rows].map((row) => row.cells[{n}].textContent)"
        ))
    };
    let click = |name: &str| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('#tables table')[0].tHead.querySelectorAll('button')].find((b) => b.textContent === '{name}').click()"
        ));
    };
    click("TID");
    assert_eq!(column(2)[0], "4396");
    click("TID");
    assert_eq!(column(2)[0], "4210");
    click("Max");
    // Rows without a measurement are last in either order.
    assert_eq!(column(0)[8], "logger");
    click("Max");
    assert_eq!(column(0)[8], "logger");
    assert_silent(&browser);
}
