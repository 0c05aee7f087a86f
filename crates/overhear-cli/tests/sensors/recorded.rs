// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a recording: the document that the run printed, member by member.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::guaranteed::{alone, FILE};
use crate::program::program;
use crate::support::{finish, folder, overhear, path, report_json, run_json};
use crate::updates::in_rust;

/// Constraints, metrics and reactions for the eager program.
const REST: &str = r#"
    [[constraint]]
    name = "silent"
    of = "user:eager"
    never = true
    [[constraint]]
    name = "all"
    of = "user:eager"
    field = "number"
    max = 1000
    [[constraint]]
    name = "other"
    of = "user:other"
    window = "1ms"
    at_least = 1
    [[metric]]
    name = "between"
    initial = "eager"
    [[reaction]]
    name = "not silent"
    on = ["violated"]
    log = "not-silent.log"
"#;

#[track_caller]
fn is_equal(live: &Value, recorded: &Value) {
    for (member, value) in live.as_object().unwrap() {
        assert_eq!(value, &recorded[member], "{member}");
    }
    assert_eq!(live, recorded);
}

fn config(folder: &Path) -> String {
    let file = folder.join("overhear.toml");
    let text = FILE.replace("EXECUTOR", "auto") + REST;
    fs::write(&file, text).unwrap();
    path(&file).to_owned()
}

#[test]
fn recorded_report_equals_the_live_document() {
    let _alone = alone();
    let folder = folder();
    let out = folder.path().join("out");
    let config = config(folder.path());
    let mut options = vec!["--out", path(&out), "--config", &config];
    options.extend(["--metric", "time_slice", "--kernel-sensors", "all"]);
    let plugin = in_rust("late_elements");
    let update = plugin.map(|plugin| format!("{}:late_elements=1", path(&plugin)));
    options.extend(update.iter().flat_map(|update| ["--update", update]));
    let (ended, live) = run_json(&options, &[path(program()), "eager", "400"]);
    // Violated, independent of later elements.
    assert_eq!(ended.status, 1, "{ended:#?}");
    assert_eq!(live["outcome"], "violated");
    assert_eq!(live["findings"][0]["of"], "constraints");
    for member in ["check", "metrics", "guarantee", "reactions"] {
        assert!(live[member].is_object(), "{member}: {live:#}");
    }
    assert_eq!(
        live["updates"].as_array().unwrap().len(),
        update.iter().len()
    );
    let (again, recorded) = report_json(&out);
    assert_eq!(again.status, 1, "{again:#?}");
    is_equal(&live, &recorded);
    // The page has the verdicts, live and rebuilt.
    let made = folder.path().join("again.html");
    let ended = finish(&mut overhear(&[
        "report",
        path(&out),
        "--html",
        path(&made),
    ]));
    assert_eq!(ended.status, 1, "{ended:#?}");
    let data = |page: &Path| {
        let page = fs::read_to_string(page).unwrap();
        let (_, rest) = page.split_once("id=\"report-data\">").unwrap();
        let (report, _) = rest.split_once("</script>").unwrap();
        serde_json::from_str::<Value>(report).unwrap()
    };
    is_equal(&live, &data(&out.join("report.html")));
    is_equal(&live, &data(&made));
}

#[test]
fn recording_without_verdicts_is_read() {
    let folder = folder();
    let out = folder.path().join("out");
    let config = config(folder.path());
    let options = ["--kernel", "off", "--out", path(&out), "--check", &config];
    let program = [path(program()), "paced", "10"];
    let (_, live) = run_json(&options, &program);
    assert_eq!(live["outcome"], "inconclusive", "{live:#}");
    for document in ["check", "reactions"] {
        fs::remove_file(out.join(format!("trace/overhear/{document}.json"))).unwrap();
    }
    let (ended, recorded) = report_json(&out);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(recorded["outcome"], "complete");
    assert!(recorded.get("check").is_none(), "{recorded:#}");
    assert_eq!(recorded["sensors"], live["sensors"]);
}
