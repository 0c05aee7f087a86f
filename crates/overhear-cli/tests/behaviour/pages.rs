// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages: written last, or not at all, of a part of the run.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::support::{eventually, finish, folder, overhear, path, wait};

/// A named pipe: open for writing waits for a reader.
fn pipe(place: &Path) {
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, place, mode).unwrap();
}

/// The documents of a page.
fn document(page: &str, name: &str) -> Value {
    let (_, rest) = page.split_once(&format!("id=\"{name}\">")).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

fn record(out: &Path, command: &[&str]) {
    let arguments = [&["run", "--out", path(out), "--"], command].concat();
    let ended = finish(&mut overhear(&arguments));
    assert_eq!(ended.status, 0, "{ended:#?}");
}

/// A child that was stopped to show the wait is killed if the test fails.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn run_shows_tables_and_verdicts_before_it_begins_the_page() {
    let folder = folder();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let blocked = out.join("report.html");
    pipe(&blocked);
    let (json, junit) = (
        folder.path().join("report.json"),
        folder.path().join("junit.xml"),
    );
    let config = folder.path().join("limits.toml");
    let limits = "[[constraint]]\nname = \"short\"\nmetric = \"time_slice\"\nmax = \"1 ns\"\n";
    fs::write(&config, limits).unwrap();
    for as_json in [false, true] {
        let _ = fs::remove_dir_all(out.join("trace"));
        let messages = folder.path().join("said");
        let mut command = overhear(&["run", "--out", path(&out), "--check", path(&config)]);
        command.args(["--junit", path(&junit)]);
        if as_json {
            command.arg(format!("--json={}", json.display()));
        }
        command.args(["--", "true"]);
        let child = command
            .stdout(Stdio::null())
            .stderr(fs::File::create(&messages).unwrap())
            .spawn();
        let mut child = Waiting(child.unwrap());
        // All files exist while the page waits for a reader.
        if as_json {
            eventually("the report is written", || {
                let report = fs::read_to_string(&json).unwrap_or_default();
                let report: Option<Value> = serde_json::from_str(&report).ok();
                report.is_some_and(|report| report["check"]["verdict"].is_string())
            });
        } else {
            eventually("the verdicts are shown", || {
                let messages = fs::read_to_string(&messages).unwrap();
                messages.contains("ended with status 0") && messages.contains("short  ")
            });
        }
        assert!(fs::read_to_string(&junit).unwrap().contains("short"));
        assert!(child.0.try_wait().unwrap().is_none());
        let mut page = String::new();
        let read = fs::File::open(&blocked).and_then(|mut pipe| pipe.read_to_string(&mut page));
        assert!(read.unwrap() > 0 && page.starts_with("<!doctype html>"));
        let report = document(&page, "report-data");
        let expected = match report["check"]["verdict"].as_str() {
            Some("violated") => 1,
            // If kernel sensors do not work.
            _ => 3,
        };
        assert_eq!(wait(&mut child.0), expected);
        let messages = fs::read_to_string(&messages).unwrap();
        assert!(messages.trim_end().ends_with("report.html"), "{messages}");
    }
}

#[test]
fn report_shows_tables_before_it_begins_the_page() {
    let folder = folder();
    let (out, blocked) = (folder.path().join("out"), folder.path().join("blocked"));
    record(&out, &["true"]);
    pipe(&blocked);
    let child = overhear(&["report", path(&out), "--html", path(&blocked)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = Waiting(child.unwrap());
    let mut stdout = child.0.stdout.take().unwrap();
    let mut shown = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&shown).contains("complete") {
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{shown:?}");
        shown.extend(byte);
    }
    assert!(child.0.try_wait().unwrap().is_none());
    let page = io::read_to_string(fs::File::open(&blocked).unwrap()).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    assert_eq!(wait(&mut child.0), 0);
}

#[test]
fn page_that_cannot_be_written_changes_no_status() {
    let folder = folder();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join("report.html/full")).unwrap();
    let arguments = ["run", "--kernel", "off", "--out", path(&out), "--", "true"];
    let ended = finish(&mut overhear(&arguments));
    ended.has_message(0, &["cannot write", "report.html"]);
    ended.has_message(0, &["complete: nothing missed"]);
}

#[test]
fn no_page_writes_no_page() {
    let folder = folder();
    let out = folder.path().join("out");
    let arguments = ["run", "--kernel", "off", "--no-page", "--out", path(&out)];
    let ended = finish(overhear(&arguments).args(["--", "true"]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(!ended.stderr.contains("report.html"), "{ended:#?}");
    assert!(out.join("trace").is_dir() && !out.join("report.html").exists());
    // It can be written later.
    let page = folder.path().join("page.html");
    let ended = finish(&mut overhear(&[
        "report",
        path(&out),
        "--html",
        path(&page),
    ]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(page.is_file());
    for verb in ["run", "record"] {
        let ended = finish(overhear(&[verb, "--no-page", "--pid", "1"]).args(["--", "true"]));
        assert_eq!(ended.status, 2, "{ended:#?}");
    }
}

#[test]
fn page_shows_the_range_that_is_named() {
    let folder = folder();
    let (out, page) = (folder.path().join("out"), folder.path().join("page.html"));
    record(&out, &["sleep", "0.3"]);
    let html = |more: &[&str]| {
        let arguments = [&["report", path(&out), "--html", path(&page)], more].concat();
        let ended = finish(&mut overhear(&arguments));
        let page = fs::read_to_string(&page).unwrap_or_default();
        (ended, page)
    };
    let (_, whole) = html(&[]);
    let whole = document(&whole, "timeline-data");
    assert_eq!(whole["left_out"], serde_json::json!([]));
    let begin = whole["origin_ns"].as_u64().unwrap();
    let (ended, part) = html(&["--from", "100ms", "--to", "200ms"]);
    ended.has_message(0, &["shows 100 ms to 200 ms of the run"]);
    let timeline = document(&part, "timeline-data");
    assert_eq!(timeline["origin_ns"], begin + 100_000_000);
    assert_eq!(timeline["end_ns"], begin + 200_000_000);
    // The tables cover the complete run.
    let duration = document(&part, "report-data")["duration_ns"].as_u64();
    assert!(duration.unwrap() >= 300_000_000);
    let (ended, _) = html(&["--from", "2s", "--to", "1s"]);
    ended.has_only_message(2, &["--to 1.00 s is not after --from 2.00 s"]);
    let ended = finish(&mut overhear(&["report", path(&out), "--from", "1s"]));
    ended.has_only_message(2, &["name its file by --html"]);
}
