// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples on the page of a running program: tracks and jobs that grow, and the tables.

use overhear_event::{
    Analysis, ElementView, Origin, SamplePoint, SampleSchema, StreamDescriptor, StreamId, Timestamp,
};
use overhear_page::render_live;
use overhear_page::serve::{Content, Feed, Server};
use serde_json::{json, Value};

use crate::browser::Browser;
use crate::{plain, Plot};

/// A sampler in the kernel, with streams of two CPUs.
struct Sampler {
    feed: Feed,
    streams: [StreamDescriptor; 2],
    sequence: u64,
}

impl Sampler {
    fn new(feed: &Feed) -> Self {
        let schema = SampleSchema::new().count("cycles", "");
        let schema = schema.count("instructions", "").count("cpu_time", "ns");
        let schema = schema.level("resident", "B").build().unwrap();
        let streams = [0, 1].map(|cpu| {
            let (id, origin) = (StreamId::from_raw(1 + cpu), Origin::Kernel { cpu });
            StreamDescriptor::new(id, origin, "sampler", schema.clone())
        });
        for stream in &streams {
            feed.update().open(stream);
        }
        Self {
            feed: feed.clone(),
            streams,
            sequence: 0,
        }
    }

    /// A sample at this millisecond, of the millisecond before it.
    fn sample(&mut self, ms: u64, (tid, pid): (u32, u32), point: SamplePoint, cycles: u64) {
        let stream = &self.streams[(ms % 2) as usize];
        let words = [tid, pid, point.as_raw(), (ms % 2) as u32];
        let mut payload: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
        for word in [1_000_000, cycles, 3_000, 250_000, 4_096 * ms] {
            payload.extend(word.to_ne_bytes());
        }
        let time = Timestamp::from_monotonic_ns(1_000_000 * ms);
        let mut update = self.feed.update();
        update.element(&ElementView {
            stream,
            sequence: self.sequence,
            time,
            payload: &payload,
        });
        update.advance(time);
        self.sequence += 1;
    }
}

/// The rows below processes, as `name mode`.
fn rows(browser: &Browser) -> Vec<String> {
    let rows = "overhear.rows.filter((r) => r.kind !== 'process').map((r) => `${r.name} ${r.mode ?? r.kind}`)";
    let rows = browser.evaluate(rows);
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row.as_str().unwrap().to_string()).collect()
}

fn statistics(browser: &Browser, name: &str) -> Value {
    browser.evaluate(&format!(
        "overhear.statistics(0, overhear.extent + 1).sensors.find((s) => s.name === '{name}')"
    ))
}

#[test]
fn jobs_and_tracks_grow_with_the_run() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let feed = Feed::of(&["demo".to_string()]);
    let server = Server::start(Content::Live {
        page: render_live(&json!({"command": ["demo"], "goes_on": true})),
        feed: feed.clone(),
    })
    .unwrap();
    let mut sampler = Sampler::new(&feed);
    browser.visit(&server.url());
    for ms in 1_000..1_150 {
        let cycles = if ms == 1_120 { 9_000 } else { 1_500 + ms % 3 };
        sampler.sample(ms, (11, 10), SamplePoint::JobEnd, cycles);
    }
    browser.wait_for("window.overhear?.ready === true");
    browser.wait_for("overhear.statistics(0, overhear.extent + 1).sensors.find((s) => s.name === 'jobs')?.count === 150");
    assert_eq!(
        rows(&browser),
        [
            "thread 11 thread",
            "jobs bars",
            "cycles graph",
            "instructions graph",
            "cpu_time graph",
            "resident graph"
        ]
    );
    // Counts are per second of their time, time per time is a share, and levels stay.
    let cycles = statistics(&browser, "cycles");
    assert_eq!(
        (&cycles["unit"], &cycles["high"]),
        (&json!("/s"), &json!(9_000_000))
    );
    let share = statistics(&browser, "cpu_time");
    assert_eq!(
        (&share["unit"], &share["high"], &share["low"]),
        (&json!("%"), &json!(25), &json!(25))
    );
    let resident = statistics(&browser, "resident");
    assert_eq!(
        (&resident["unit"], &resident["high"]),
        (&json!("B"), &json!(4_096 * 1_149))
    );

    // The colour is the quantity that the menu names.
    let names =
        "[...document.querySelectorAll('#job-quantity option')].map((it) => it.value).join()";
    assert_eq!(
        browser.text(names),
        "duration,cycles,instructions,cpu_time,resident,ipc"
    );
    assert_eq!(statistics(&browser, "jobs")["field"], "duration");
    let colours = "(() => { const c = document.getElementById('plot'); const row = overhear.rows.find((r) => r.name === 'jobs'); const y = Math.round((row.top + row.height / 2) * devicePixelRatio); const data = c.getContext('2d').getImageData(0, y, c.width, 1).data; const found = new Set(); for (let i = 0; i < data.length; i += 4) found.add([data[i], data[i + 1], data[i + 2]].join()); return found.size; })()";
    let before = browser.number(colours);
    browser.evaluate("(() => { const menu = document.getElementById('job-quantity'); menu.value = 'cycles'; menu.dispatchEvent(new Event('change')); })()");
    browser.settle();
    assert_eq!(browser.text("overhear.jobQuantity"), "cycles");
    assert_eq!(statistics(&browser, "jobs")["high"], 9_000);
    // One job needed six times the cycles of the others: it has a colour of its own.
    assert!(browser.number(colours) > before, "{before}");

    // The anomaly comes with the next report, with what was off.
    browser.wait_for("document.querySelector('#samplers')?.innerText.includes('Anomalous jobs')");
    let tables = plain(&browser.text("document.querySelector('#samplers').innerText"));
    assert!(tables.contains("cycles 9 000, usually 1 501"), "{tables}");
    assert!(
        tables.contains("a thread is judged from its job 83 on"),
        "{tables}"
    );

    // More samples: another thread of which only samples at switches are known.
    for ms in 1_150..1_160 {
        sampler.sample(ms, (12, 10), SamplePoint::Switch, 2_000);
        sampler.sample(ms, (0, 0), SamplePoint::Period, 4_000);
    }
    browser.wait_for("overhear.rows.some((r) => r.name === 'cycles (system)')");
    browser.wait_for("overhear.rows.some((r) => r.name === 'thread 12')");
    let plot = Plot::of(&browser);
    browser.evaluate("overhear.fit()");
    browser.settle();
    // The 121st job ends 120 ms after the begin of the picture, which is the first sample.
    browser.wait_for("overhear.extent === 159e6");
    browser.hover(plot.at(&browser, "jobs", 119.5e6));
    browser.wait_for("!document.getElementById('tooltip').hidden");
    let tooltip = plain(&browser.text("document.getElementById('tooltip').innerText"));
    assert!(tooltip.contains("anomalous job 121"), "{tooltip}");
    assert!(
        tooltip.contains("9 000") && tooltip.contains("instead of 1501"),
        "{tooltip}"
    );
    // The saved picture has the bars, too.
    let svg = browser.text("overhear.svg()");
    assert!(svg.contains("jobs") && svg.contains("cycles (system)"));
    feed.finish(None, json!({"command": ["demo"], "complete": true}));
    browser.wait_for("overhear.live.ended");
}
