// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a running program, in a browser: rows that appear and grow, and the end.

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{Analysis, ElementView, Origin, StreamDescriptor, StreamId, Timestamp};
use overhear_page::render_live;
use overhear_page::serve::{Content, Feed, Server};
use overhear_session::calibrate::Calibration;
use serde_json::json;

use crate::browser::Browser;
use crate::set_view;

/// Switches of one CPU between threads of process 10, fed one after the other.
struct Machine {
    feed: Feed,
    stream: StreamDescriptor,
    sequence: u64,
}

impl Machine {
    fn new(feed: &Feed) -> Self {
        let stream = StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::Kernel { cpu: 0 },
            SCHED_SWITCH,
            Switch::schema(),
        );
        feed.update().open(&stream);
        Self {
            feed: feed.clone(),
            stream,
            sequence: 0,
        }
    }

    fn switch(&mut self, ms: u64, prev_tid: u32, next_tid: u32) {
        let tracked = |tid, flag| if tid == 0 { 0 } else { flag };
        let switch = Switch {
            prev_tid,
            next_tid,
            prev_pid: 10,
            next_pid: 10,
            prev_state: 1,
            flags: tracked(prev_tid, Switch::PREV_TRACKED)
                | tracked(next_tid, Switch::NEXT_TRACKED),
            prev_run_ns: Switch::UNKNOWN,
        };
        let time = Timestamp::from_monotonic_ns(1_000_000 * ms);
        let mut update = self.feed.update();
        update.element(&ElementView {
            stream: &self.stream,
            sequence: self.sequence,
            time,
            payload: &switch.to_payload(),
        });
        update.advance(time);
        self.sequence += 1;
    }
}

/// A calibration in which a context switch costs a millisecond.
fn calibration() -> Calibration {
    let cost = json!({ "mean_ns": 1e6, "deviation_ns": 1.0, "within_ns": 0.5, "samples": 41 });
    let kernel = json!([{ "sensor": SCHED_SWITCH, "by": "hand", "cost_per_event": cost, "constant": null, "assumed": false }]);
    serde_json::from_value(json!({
        "overhear_version": "0.1.0", "measured_at": 1, "cpu": "", "release": "", "rounds": 41,
        "kernel": kernel, "programs": [], "reading": [], "notes": [],
    }))
    .unwrap()
}

#[test]
fn growing_run_is_shown_in_both_times() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let feed = Feed::of(&["demo".to_string()]).compensated_by(Some(calibration()));
    let server = Server::start(Content::Live {
        page: render_live(&json!({"command": ["demo"], "goes_on": true})),
        feed: feed.clone(),
    })
    .unwrap();
    let mut machine = Machine::new(&feed);
    browser.visit(&server.url());
    machine.switch(1_000, 0, 11);
    machine.switch(1_010, 11, 12);
    machine.switch(1_030, 12, 0);
    browser.wait_for("window.overhear?.ready === true");
    browser.wait_for("document.getElementById('time-choice').checkVisibility()");
    let run_of = |name: &str| {
        format!(
            "overhear.statistics(0, overhear.extent).threads.find((t) => t.name === '{name}')?.run"
        )
    };
    browser.wait_for(&format!("{} === 20e6", run_of("thread 12")));
    browser.evaluate("overhear.setTime('compensated')");
    assert_eq!(browser.text("overhear.time"), "compensated");
    // Each has entered by an element that cost a millisecond of its time.
    let now = |ms: u64| Timestamp::from_monotonic_ns(ms * 1_000_000);
    feed.update().advance(now(1_100));
    browser.wait_for(&format!("{} === 9e6", run_of("thread 11")));
    browser.wait_for(&format!("{} === 19e6", run_of("thread 12")));
    // It continues to grow in the chosen time, and is visible in the other one, too.
    machine.switch(1_200, 0, 11);
    machine.switch(1_220, 11, 0);
    feed.update().advance(now(1_300));
    browser.wait_for(&format!("{} === 28e6", run_of("thread 11")));
    browser.evaluate("overhear.setTime('plain')");
    browser.wait_for(&format!("{} === 30e6", run_of("thread 11")));
    feed.finish(
        Some(now(1_310)),
        json!({"command": ["demo"], "complete": true}),
    );
    browser.wait_for("overhear.live.ended");
    browser.evaluate("overhear.setTime('compensated')");
    assert_eq!(browser.number(&run_of("thread 11")), 28e6);
    assert_eq!(browser.number(&run_of("thread 12")), 19e6);
}

#[test]
fn run_grows_on_the_page_until_it_ends() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let feed = Feed::of(&["demo".to_string()]);
    let server = Server::start(Content::Live {
        page: render_live(&json!({"command": ["demo"], "goes_on": true})),
        feed: feed.clone(),
    })
    .unwrap();
    let mut machine = Machine::new(&feed);
    browser.visit(&server.url());
    browser.wait_for(
        "document.getElementById('timeline-empty').textContent === 'Nothing was received yet.'",
    );

    machine.switch(1_000, 0, 11);
    machine.switch(1_010, 11, 0);
    browser.wait_for("window.overhear?.ready === true");
    let rows = "overhear.rows.map((r) => r.name).join(' ')";
    browser.wait_for(&format!("{rows} === 'CPUs CPU 0 process 10 thread 11'"));
    assert_eq!(
        browser.evaluate("document.getElementById('time-choice').checkVisibility()"),
        json!(false),
        "nobody knows what observing costs"
    );
    browser.wait_for("overhear.extent === 10e6");
    browser.wait_for("document.getElementById('live-text').textContent.startsWith('Live')");

    // Another thread appears and continues to run: it has a row, and lasts until now on both rows.
    machine.switch(1_020, 0, 12);
    machine.switch(1_040, 12, 11);
    browser.wait_for(&format!("{rows}.endsWith('thread 11 thread 12')"));
    let run_of = |name: &str| {
        format!(
            "overhear.statistics(0, overhear.extent).threads.find((t) => t.name === '{name}').run"
        )
    };
    browser.wait_for(&format!("{} === 20e6", run_of("thread 12")));
    feed.update()
        .advance(Timestamp::from_monotonic_ns(1_100_000_000));
    browser.wait_for(&format!("{} === 70e6", run_of("thread 11")));
    browser.wait_for("overhear.statistics(0, overhear.extent).cpus[0].busy === 90e6");

    // A complete view stays complete; a partial view follows the end, until the user stops that.
    browser.wait_for("overhear.view.from === 0 && overhear.view.to === 100e6");
    set_view(&browser, 60e6, 100e6);
    feed.update()
        .advance(Timestamp::from_monotonic_ns(1_200_000_000));
    browser.wait_for("overhear.view.from === 160e6 && overhear.view.to === 200e6");
    browser.evaluate("document.getElementById('follow').click()");
    feed.update()
        .advance(Timestamp::from_monotonic_ns(1_300_000_000));
    browser.wait_for("overhear.extent === 300e6");
    assert_eq!(browser.number("overhear.view.from"), 160e6);

    machine.switch(1_310, 11, 0);
    feed.finish(
        Some(Timestamp::from_monotonic_ns(1_320_000_000)),
        json!({"command": ["demo"], "missed_total": 0, "complete": true, "duration_ns": 320_000_000_u64}),
    );
    browser.wait_for("overhear.live.ended");
    assert_eq!(
        browser.text("document.getElementById('live-text').textContent"),
        "The run has ended."
    );
    assert!(browser
        .text("document.getElementById('losses').textContent")
        .contains("Complete"));
    assert_eq!(browser.number(&run_of("thread 11")), 280e6);
    assert!(browser.number("overhear.primitives") <= browser.number("overhear.bound"));

    // The page has requested nothing from other servers.
    let own = format!("request of \"{}", server.url());
    let complaints = browser.complaints();
    let foreign: Vec<_> = complaints
        .iter()
        .filter(|one| !one.starts_with(&own))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
