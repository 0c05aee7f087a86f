// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of unused memory.

use overhear_page::html::naps;
use serde_json::{json, Value};

use crate::browser::Browser;

const SECOND: u64 = 1_000_000_000;

fn opened(browser: &Browser, report: &Value) {
    let mut page = Vec::new();
    naps::write(&mut page, report, "server").unwrap();
    browser.open_at(
        &String::from_utf8(page).unwrap(),
        "window.overhearNaps === true",
    );
}

fn allocation(address: u64, naps: &Value) -> Value {
    json!({
        "site": 1, "kind": "malloc", "address": address, "size": 65_536, "allocated_ns": 1000,
        "freed_ns": null, "accesses": 2, "last_access_ns": 5 * SECOND,
        "last_access_before_ns": 5 * SECOND, "last_access_at": {"address": 1, "function": "find"},
        "nap_count": naps.as_array().map_or(0, Vec::len), "nap_ns": SECOND,
        "nap_byte_seconds": 65_536.0, "naps": naps, "excluded": false, "cold": true,
    })
}

#[test]
fn naps_are_drawn_in_the_lives_of_their_allocations() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let nap = |from: u64, to: u64| {
        json!({"start_ns": from * SECOND, "end_ns": to * SECOND, "end": "access",
            "at": {"address": 1, "function": "<b>find</b>"}})
    };
    let report = json!({
        "command": ["./server", "<i>"], "threshold_ns": SECOND, "budget": 0.05,
        "min_size_bytes": 16_384,
        "processes": [{
            "pid": 7, "comm": "server", "backend": "move", "backend_reason": "",
            "started_ns": 0, "ended_ns": 10 * SECOND, "complete": false, "stopped": "",
            "overhead": 0.031, "space_overhead": 0.02,
            "watched": {"allocations": 2, "bytes": 131_072, "protections": 9, "accesses": 4},
            "unwatched": {"budget": 3, "space": 0, "full": 0, "excluded": 0},
            "sites": [{
                "site": 1, "stack": [{"address": 1, "function": "load_index"}, {"address": 2}],
                "allocations": 2, "bytes": 131_072, "live": 2, "naps": 3,
                "nap_byte_seconds": 131_072.0, "life_byte_seconds": 262_144.0,
                "mean_life_ns": 10 * SECOND, "cold": true,
            }],
            "allocations": [
                allocation(0x1000, &json!([nap(1, 2), nap(4, 9)])),
                allocation(0x9000, &json!([nap(0, 10)])),
                allocation(0xf000, &json!([])),
            ],
            "allocations_omitted": 5,
        }],
    });
    opened(&browser, &report);
    let count = |what: &str| {
        browser.number(&format!(
            "document.querySelectorAll({}).length",
            json!(what)
        ))
    };
    assert_eq!(count("rect.nap"), 3.0);
    assert_eq!(count("table.data"), 2.0);
    // One without NAPs is not in the table.
    assert_eq!(count("table[aria-label=Allocations] tbody tr"), 2.0);
    let text = browser.text("document.querySelector('main').textContent");
    for part in [
        "load_index < 0x2",
        "the process was killed",
        "3 allocations",
        "cold",
        "find",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("5 allocations with NAPs more"), "{text}");
    // The longest NAP is as long as the life.
    let widths =
        "[...document.querySelectorAll('rect.nap')].map((r) => Number(r.getAttribute('width')))";
    assert_eq!(
        browser.number(&format!("Math.round({widths}[2] / {widths}[0])")),
        10.0
    );
    assert_eq!(count("b, i"), 0.0);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn estimate_of_the_machine_is_marked_as_one() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let region = |start: u64, age_ns: u64| json!({"start": start, "end": start + 4096, "accesses": 0, "age_ns": age_ns});
    let report = json!({
        "estimate": true, "threshold_ns": SECOND, "duration_ns": 4 * SECOND,
        "bytes": 8192, "idle_bytes": 4096, "regions": [region(0, SECOND), region(4096, 0)],
    });
    opened(&browser, &report);
    let heading = browser.text("document.getElementById('command').textContent");
    assert!(heading.contains("estimate by DAMON"), "{heading}");
    assert_eq!(
        browser.number("document.querySelectorAll('tbody tr').length"),
        2.0
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
