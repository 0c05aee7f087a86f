// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear check`, from a recording and a file to verdicts and exit statuses.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::metrics::record;
use crate::support::{finish, folder, overhear, path, Ended};

/// The recorded latencies are 1000 ns and 7 more each period, 2393 at most.
fn config(folder: &Path, bound: &str) -> PathBuf {
    let file = folder.join("overhear.toml");
    let text = format!(
        "[[constraint]]\nname = \"woken <fast>\"\nmetric = \"wakeup_latency\"\nmax = \"{bound}\"\n\
         [[constraint]]\nname = \"often\"\nof = \"kernel:sched_wake [kind == 1] task tid\"\n\
         each = \"task\"\nperiod = \"100us\"\njitter = \"1us\"\n"
    );
    fs::write(&file, text).unwrap();
    file
}

fn check(dir: &Path, config: &Path, options: &[&str]) -> Ended {
    let arguments = [&["check", path(dir), "--config", path(config)], options].concat();
    finish(&mut overhear(&arguments))
}

#[test]
fn held_violated_and_inconclusive_are_statuses_and_test_cases() {
    let folder = folder();
    let (whole, torn) = (folder.path().join("whole"), folder.path().join("torn"));
    record(&whole, true, 0);
    record(&torn, true, 3);
    let junit = folder.path().join("junit.xml");
    let judged = |dir: &Path, bound: &str| {
        let file = config(folder.path(), bound);
        let options = ["--json", "--junit", path(&junit)];
        let ended = check(dir, &file, &options);
        ended.does_not_panic();
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        (ended.status, report, fs::read_to_string(&junit).unwrap())
    };
    let (status, report, xml) = judged(&whole, "3us");
    assert_eq!(
        (status, &report["verdict"]),
        (0, &"held".into()),
        "{report}"
    );
    assert_eq!(report["constraints"][0]["judged"], 200);
    assert_eq!(report["constraints"][1]["judged"], 199);
    assert!(
        xml.contains("tests=\"2\"") && xml.contains("failures=\"0\""),
        "{xml}"
    );
    assert!(xml.contains("woken &lt;fast&gt;"), "{xml}");

    // 1000 + 7 * 143 = 2001: the period from 143 on is the first, begun by the wake-up 286.
    let (status, report, xml) = judged(&whole, "2us");
    assert_eq!(status, 1, "{report}");
    let first = &report["constraints"][0];
    assert_eq!(first["offences"], 57);
    let elements = &first["first"]["elements"];
    assert_eq!(elements[0]["stream"], "kernel/sched_wake@0");
    assert_eq!(elements[0]["sequence"], 286);
    assert_eq!(elements[1]["stream"], "kernel/sched_switch@0");
    assert_eq!(elements[1]["sequence"], 4 * 143);
    assert_eq!(first["first"]["begin_ns"], 1_000_000 + 143 * 100_000);
    assert!(xml.contains("failures=\"1\""), "{xml}");
    assert!(xml.contains("2001 ns is more than 2000 ns"), "{xml}");

    let (status, report, xml) = judged(&torn, "3us");
    assert_eq!(status, 3, "{report}");
    assert_eq!(report["constraints"][0]["reasons"][0], "3 missed");
    assert_eq!(report["constraints"][1]["verdict"], "held");
    assert!(xml.contains("errors=\"1\""), "{xml}");
    // An offence without an excuse stays, independent of missed elements elsewhere.
    assert_eq!(judged(&torn, "2us").0, 1);
}

#[test]
fn verdicts_have_their_first_offence_and_their_reasons() {
    let folder = folder();
    let (whole, torn) = (folder.path().join("whole"), folder.path().join("torn"));
    record(&whole, true, 0);
    record(&torn, true, 3);
    let ended = check(&whole, &config(folder.path(), "2us"), &[]);
    for part in ["violated", "57", "kernel/sched_wake@0 #286", "held"] {
        assert!(ended.stdout.contains(part), "{ended:?}");
    }
    let ended = check(&torn, &config(folder.path(), "3us"), &[]);
    assert!(ended.stdout.contains("inconclusive: 3 missed"), "{ended:?}");
}

#[test]
fn unrecorded_event_is_inconclusive_and_mistakes_have_positions() {
    let folder = folder();
    let without_wake_ups = folder.path().join("without-wake-ups");
    record(&without_wake_ups, false, 0);
    let file = config(folder.path(), "3us");
    let ended = check(&without_wake_ups, &file, &[]);
    assert_eq!(ended.status, 3, "{ended:?}");
    assert!(
        ended.stdout.contains("no stream of kernel:sched_wake"),
        "{ended:?}"
    );
    fs::write(
        &file,
        "[[constraint]]\nname = \"c\"\nof = \"user:a [x = 1]\"\nnever = true\n",
    )
    .unwrap();
    let location = format!(
        "{}: line 3, column 17: constraint `c`: expected",
        path(&file)
    );
    check(&without_wake_ups, &file, &[]).has_only_message(2, &[&location]);
    let nowhere = folder.path().join("nowhere.toml");
    check(&without_wake_ups, &nowhere, &[]).has_only_message(2, &["cannot read"]);
    let file = config(folder.path(), "3us");
    check(folder.path(), &file, &[]).has_only_message(2, &[path(folder.path())]);
}

/// An unreadable element may have been the awaited one.
#[test]
fn damaged_recording_violates_nothing() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[[constraint]]\nname = \"runs\"\nafter = \"kernel:sched_wake [kind == 1]\"\n\
         of = \"kernel:sched_switch\"\nwithin = \"20us\"\n\
         [[constraint]]\nname = \"switches\"\nof = \"kernel:sched_switch\"\nabsence = \"1ms\"\n\
         [[constraint]]\nname = \"prev\"\nof = \"kernel:sched_switch\"\nfield = \"prev_tid\"\n\
         quantile = 0.9\nat_most = 0\n\
         [[constraint]]\nname = \"never\"\nof = \"kernel:sched_wake [kind == 1]\"\nnever = true\n";
    fs::write(&file, text).unwrap();
    // The gap in the switches splits them into two packets; the second one contains nearly all.
    let judged = |name: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let dir = folder.path().join(name);
        record(&dir, true, 3);
        let switches = dir.join("trace/stream-1");
        let mut bytes = fs::read(&switches).unwrap();
        damage(&mut bytes);
        fs::write(&switches, bytes).unwrap();
        let ended = check(&dir, &file, &["--json"]);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let all = report["constraints"].as_array().unwrap().iter();
        let verdicts: Vec<_> = all.map(|one| one["verdict"].clone()).collect();
        (verdicts, report)
    };
    let (verdicts, report) = judged("sound", &|_| {});
    assert_eq!(
        verdicts,
        ["inconclusive", "inconclusive", "violated", "violated"],
        "{report:#}"
    );
    let tear = |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1);
    let corrupt = |bytes: &mut Vec<u8>| bytes[0] ^= 0xff;
    let is_broken = |name: &str, damage: &dyn Fn(&mut Vec<u8>), message: &str| {
        let (verdicts, report) = judged(name, damage);
        // The readable elements suffice to violate a constraint that forbids an event.
        assert_eq!(
            verdicts,
            ["inconclusive", "inconclusive", "inconclusive", "violated"],
            "{name}: {report:#}"
        );
        let reasons = report["constraints"][0]["reasons"].to_string();
        assert!(reasons.contains(message), "{name}: {report:#}");
    };
    is_broken("torn", &tear, "are torn");
    is_broken("corrupt", &corrupt, "is damaged at byte 0");
}

/// A killed recorder may have lost an event that was due, so a recording without its summary is
/// incomplete.
#[test]
fn unfinished_recording_has_no_known_end() {
    let folder = folder();
    let (dir, file) = (
        folder.path().join("out"),
        folder.path().join("overhear.toml"),
    );
    record(&dir, true, 0);
    let text =
        "[[constraint]]\nname = \"switches\"\nof = \"kernel:sched_switch\"\nabsence = \"50us\"\n\
         [[constraint]]\nname = \"wakes\"\nof = \"kernel:sched_wake\"\nabsence = \"1ms\"\n";
    fs::write(&file, text).unwrap();
    let ended = check(&dir, &file, &[]);
    assert_eq!(ended.status, 1, "{ended:?}");
    fs::remove_file(dir.join("trace/overhear/summary.json")).unwrap();
    let ended = check(&dir, &file, &[]);
    assert_eq!(ended.status, 3, "{ended:?}");
    for name in ["switches", "wakes"] {
        let mut lines = ended.stdout.lines().rev();
        let line = lines.find(|line| line.starts_with(name)).unwrap();
        assert!(line.ends_with("the recorder did not finish"), "{ended:?}");
    }
}
