// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of recordings: kept at each moment, and what they leave out is counted by every verb.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use overhear_trace::TraceReader;
use serde_json::Value;

use crate::program::{compiled, number};
use crate::support::{
    babeltrace, finish, folder, has_babeltrace, overhear, path, report_json, Ended, Started,
};

const MIB: u64 = 1 << 20;

fn spender() -> &'static str {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    path(PROGRAM.get_or_init(|| compiled("tests/sensors/spender.c", "limited")))
}

/// The bytes of all files below a folder, by their lengths or on the disk, whichever is more.
fn size(dir: &Path) -> u64 {
    fn sum(dir: &Path) -> (u64, u64) {
        let blocks = fs::metadata(dir).map_or(0, |about| about.blocks() * 512);
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.fold((0, blocks), |(lengths, taken), entry| {
            // Removed meanwhile, if there is no metadata.
            let (length, blocks) = match entry.metadata() {
                Ok(about) if about.is_dir() => sum(&entry.path()),
                Ok(about) => (about.len(), about.blocks() * 512),
                Err(_) => (0, 0),
            };
            (lengths + length, taken + blocks)
        })
    }
    let (lengths, taken) = sum(dir);
    lengths.max(taken)
}

/// Runs the program with these options. Returns the end, the report, the number of all writes, and
/// the largest size that the recording had.
fn spend(options: &[&str], out: &Path, ms: &str) -> (Ended, Value, u64, u64) {
    let json = out.with_extension("json");
    let to = format!("--json={}", path(&json));
    let fixed = ["run", "--kernel", "off", &to, "--out", path(out)];
    let words = [&fixed[..], options, &["--", spender(), ms, "400"]].concat();
    let mut run = Started::spawn(&mut overhear(&words));
    let mut most = 0;
    while run.child.try_wait().unwrap().is_none() {
        most = most.max(size(out));
    }
    let ended = run.end();
    most = most.max(size(out));
    let report = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let lines = ended
        .stdout
        .lines()
        .filter_map(|line| line.rsplit_once(' '));
    let wrote = lines.filter(|(name, _)| ["frequent", "rare"].contains(name));
    let wrote = wrote.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    (ended, report, wrote, most)
}

/// Missed elements by cause.
fn lost(report: &Value, cause: &str) -> u64 {
    let all = report["losses"].as_array().unwrap().iter();
    let of_cause = all.filter(|loss| loss["cause"] == cause);
    of_cause.map(|loss| number(loss, "missed")).sum()
}

/// Checks the report, exports and verdicts of a recording of which this number was left out.
fn assert_counted_by_every_verb(out: &Path, wrote: u64, left_out: u64) {
    let (ended, report) = report_json(out);
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert_eq!(report["complete"], false);
    assert_eq!(lost(&report, "disk"), left_out);
    assert_eq!(number(&report["trace"], "left_out"), left_out);
    let missed = number(&report, "missed_total");
    assert_eq!(number(&report["trace"], "events") + missed, wrote);
    let text = finish(&mut overhear(&["report", path(out)])).stdout;
    let line = format!("recording: {left_out} elements left out to keep its limits");
    assert!(text.contains(&line), "{text}");

    // Rows with `missed` are gaps.
    let csv = out.with_extension("csv");
    let export = finish(&mut overhear(&[
        "export",
        path(out),
        "--to",
        "csv",
        "-o",
        path(&csv),
    ]));
    export.has_message(3, &["INCOMPLETE", &missed.to_string()]);
    let rows = fs::read_to_string(&csv).unwrap();
    let gaps = rows.lines().filter(|row| row.contains(",disk,"));
    let counts = gaps.map(|row| row.split(',').nth(4).unwrap().parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), left_out);

    let file = out.with_extension("toml");
    let constraint =
        "[[constraint]]\nname = \"a\"\nof = \"user:frequent\"\nfield = \"number\"\nmin = 0\n";
    let check = |more: &str| {
        fs::write(&file, format!("{constraint}{more}")).unwrap();
        finish(&mut overhear(&[
            "check",
            path(out),
            "--config",
            path(&file),
        ]))
    };
    let judged = check("");
    assert_eq!(judged.status, 3, "{judged:#?}");
    assert!(judged.stdout.contains("inconclusive"), "{judged:#?}");
    if missed == left_out {
        let sampled = check("sampled = true\n");
        assert_eq!(sampled.status, 0, "{sampled:#?}");
        assert!(
            sampled.stdout.contains("judged as a sample"),
            "{sampled:#?}"
        );
    }

    let page = out.with_extension("html");
    let written = finish(&mut overhear(&["report", path(out), "--html", path(&page)]));
    assert_eq!(written.status, 3, "{written:#?}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("\"cause\":\"disk\""));

    let repaired = finish(&mut overhear(&["repair", path(out)]));
    assert_eq!(repaired.status, 0, "{repaired:#?}");
    if has_babeltrace() {
        let (events, _) = babeltrace(out);
        assert_eq!(events, number(&report["trace"], "events"));
    }
}

#[test]
fn recording_of_millions_of_elements_stays_within_its_size() {
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, report, wrote, most) = spend(&["--max-size", "2MiB"], &out, "1500");
    assert!(wrote > 1_000_000, "{wrote}");
    assert!(most <= 2 * MIB, "{most}");
    let trace = &report["trace"];
    let left_out = number(trace, "left_out");
    assert!(left_out > 0, "{ended:#?}");
    // Live results have all elements that were received.
    let missed = number(&report, "missed_total");
    assert_eq!(ended.status, if missed == 0 { 0 } else { 3 });
    assert_eq!(lost(&report, "disk"), 0);
    assert_eq!(number(trace, "events") + left_out + missed, wrote);
    assert!(number(trace, "bytes") > MIB / 2, "{trace}");
    assert_counted_by_every_verb(&out, wrote, left_out);
    assert!(size(&out) <= 2 * MIB);
}

#[test]
fn recording_stays_within_its_rate() {
    const RATE: u64 = 200 << 10;
    let folder = folder();
    let out = folder.path().join("out");
    let file = folder.path().join("overhear.toml");
    fs::write(&file, "[recording]\ndisk_budget = \"200KiB/s\"\n").unwrap();
    let (ended, report, wrote, _) = spend(&["--config", path(&file)], &out, "2500");
    let left_out = number(&report["trace"], "left_out");
    assert!(left_out > wrote / 2, "{ended:#?}");
    let missed = number(&report, "missed_total");
    assert_eq!(
        number(&report["trace"], "events") + left_out + missed,
        wrote
    );
    let reader = TraceReader::open(&out).unwrap();
    // In each second that has begun, and some gaps at the end.
    let seconds = number(&report, "duration_ns") / 1_000_000_000 + 1;
    assert!(
        reader.bytes() <= seconds * RATE + 2_000,
        "{}",
        reader.bytes()
    );
    assert!(
        reader.bytes() > (seconds - 1) * RATE / 2,
        "{}",
        reader.bytes()
    );
    // The stream with few elements lost nothing.
    let rare = reader
        .streams()
        .find(|stream| stream.sensor == "rare")
        .unwrap();
    let (written, rare_missed) = reader.count(rare.id).unwrap();
    assert!(
        written > 0 && (rare_missed == 0 || missed > 0),
        "{rare_missed}"
    );
    assert_counted_by_every_verb(&out, wrote, left_out);
}

#[test]
fn killed_recorder_leaves_a_ring_within_its_size() {
    let folder = folder();
    for round in 0..6 {
        let out = folder.path().join(round.to_string());
        let mut run = overhear(&["run", "--kernel", "off", "--max-size", "1MiB", "--out"]);
        run.arg(&out).args(["--", spender(), "4000", "4"]);
        let mut run = Started::spawn(&mut run);
        let document = out.join("trace/overhear/disk.json");
        let has_turned = || {
            let text = fs::read_to_string(&document).unwrap_or_default();
            text.contains("\"first_part\":") && !text.contains("\"first_part\":0,")
        };
        crate::support::eventually("the ring turns", has_turned);
        let programs = crate::support::children(run.pid());
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        for program in programs {
            crate::support::send(program, libc::SIGKILL);
        }
        assert!(size(&out) <= MIB);
        let (ended, report) = report_json(&out);
        assert_eq!(ended.status, 3, "{ended:#?}");
        assert!(
            lost(&report, "disk") > 0 && lost(&report, "corrupt") == 0,
            "{report:#}"
        );
        let events = number(&report["trace"], "events");
        assert!(events > 0);
        assert_eq!(number(&report["trace"], "left_out"), lost(&report, "disk"));
        assert_eq!(finish(&mut overhear(&["repair", path(&out)])).status, 0);
        let (_, again) = report_json(&out);
        assert_eq!(again["losses"], report["losses"]);
        assert_eq!(number(&again["trace"], "events"), events);
    }
}

#[test]
fn attach_and_record_keep_the_size() {
    let folder = folder();
    let (out, socket) = (folder.path().join("out"), folder.path().join("socket"));
    let run = [
        "run",
        "--kernel",
        "off",
        "--quiet",
        "--socket",
        path(&socket),
    ];
    let run = [&run[..], &["--", spender(), "3000", "20000"]].concat();
    let run = Started::spawn(&mut overhear(&run));
    let list = ["list", "--format", "csv", "--socket", path(&socket)];
    let is_there = || finish(&mut overhear(&list)).stdout.contains("frequent");
    crate::support::eventually("the sensor is listed", is_there);
    let to = ["--out", path(&out), "--max-size", "1MiB"];
    let attach = ["attach", "*", "--until-ended", "--socket", path(&socket)];
    let attached = finish(&mut overhear(&[&attach[..], &to].concat()));
    assert_eq!(run.end().status, 0);
    assert!(size(&out) <= MIB, "{}", size(&out));
    let (ended, report) = report_json(&out);
    assert_eq!(ended.status, 3, "{ended:#?}");
    let left_out = lost(&report, "disk");
    assert!(left_out > 0);
    let line = format!("recording: {left_out} elements left out to keep its limits");
    assert!(attached.stderr.contains(&line), "{}", attached.stderr);

    let recorded = folder.path().join("recorded");
    let record = [
        "record",
        "--pid",
        &std::process::id().to_string(),
        "--duration",
        "3s",
    ];
    let to = [
        "--out",
        path(&recorded),
        "--disk-budget",
        "16KiB/s",
        "--max-size",
        "1MiB",
    ];
    let mut record = Started::spawn(&mut overhear(&[&record[..], &to].concat()));
    // This process starts others, and switches.
    while record.child.try_wait().unwrap().is_none() {
        drop(std::process::Command::new("true").status());
    }
    let ended = record.end();
    if ended.status == 5 {
        println!(
            "skipped: kernel sensors are not permitted: {}",
            ended.stderr
        );
        return;
    }
    assert!(size(&recorded) <= MIB, "{}", size(&recorded));
    let (_, report) = report_json(&recorded);
    assert!(lost(&report, "disk") > 0, "{ended:#?}");
    assert_eq!(number(&report["trace"], "left_out"), lost(&report, "disk"));
}

#[test]
fn impossible_limits_are_refused_with_the_minimum() {
    let folder = folder();
    let out = folder.path().join("out");
    let room = "has no room for";
    for (options, parts) in [
        (["--max-size", "0"], ["`0`", room, "at least 1MiB"]),
        (["--max-size", "-2GB"], ["`-2GB`", room, "at least 1MiB"]),
        (["--max-size", "900kB"], ["`900kB`", room, "at least 1MiB"]),
        (["--max-size", "many"], ["`many`", "is no size", "500MB"]),
        (["--disk-budget", "0"], ["`0`", room, "at least 16KiB/s"]),
        (
            ["--disk-budget", "-1MB/s"],
            ["`-1MB/s`", room, "at least 16KiB/s"],
        ),
        (
            ["--disk-budget", "1kB/s"],
            ["`1kB/s`", room, "at least 16KiB/s"],
        ),
        (
            ["--disk-budget", "fast"],
            ["`fast`", "is no rate", "10MB/s"],
        ),
    ] {
        for verb in [&["run"][..], &["record", "--all"], &["attach", "*"]] {
            let mut words = [verb, &options, &["--out", path(&out)]].concat();
            if verb == ["run"] {
                words.extend(["--", "true"]);
            }
            let ended = finish(&mut overhear(&words));
            ended.has_message(2, &parts);
            assert!(!out.exists());
        }
    }
    // Without a recording, they would have no effect.
    let ended = finish(&mut overhear(&["run", "--max-size", "2MB", "--", "true"]));
    ended.has_message(2, &["--out"]);
    let unused = folder.path().join("unused.toml");
    fs::write(&unused, "[recording]\nmax_size = \"5MB\"\n").unwrap();
    let ended = finish(&mut overhear(&[
        "run",
        "--config",
        path(&unused),
        "--",
        "true",
    ]));
    ended.has_message(
        0,
        &["[recording] has no effect, because the run keeps no recording"],
    );
    let file = folder.path().join("overhear.toml");
    fs::write(&file, "[recording]\nmax_size = \"5kB\"\n").unwrap();
    let ended = finish(&mut overhear(&[
        "run",
        "--config",
        path(&file),
        "--",
        "true",
    ]));
    ended.has_message(
        2,
        &["overhear.toml: [recording] `max_size`: ", "at least 1MiB"],
    );
}
