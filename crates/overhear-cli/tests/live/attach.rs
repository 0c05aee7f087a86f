// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching: early, late, while sensors begin, end and die, and with an output that is too slow.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use crate::program::program;
use crate::session::{AttachOutput, Live};
use crate::support::{as_nobody, eventually, finish, path, report_json, wait, Started};

const JSON: [&str; 2] = ["--format", "json"];

fn attach<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["attach", "*"], &JSON[..], more].concat()
}

#[test]
fn later_sensor_is_read_from_its_first_to_its_last_element() {
    let command = format!("sleep 0.5; exec {} paced 300", path(program()));
    let live = Live::start(&["sh", "-c", &command]);
    let output = AttachOutput::of(live.run_verb(&attach(&["--until-ended"])));
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended);
    output.is_gapless();
    assert_eq!((output.elements.len(), output.number("missed")), (300, 0));
    assert_eq!(output.elements[0]["sequence"], 0);
    assert_eq!(output.summary["complete"], true);
    assert!(
        output.ended.stderr.contains("no sensor yet"),
        "{:#?}",
        output.ended
    );
    let ended = live.end();
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(
        ended.stderr.contains("complete: nothing missed"),
        "{ended:#?}"
    );
}

#[test]
fn attaching_late_at_any_moment_misses_nothing_after_the_first_element() {
    let live = Live::program(&["paced", "2500"]);
    let mut started = Vec::new();
    for pause_ms in [0, 7, 130, 41, 313, 3] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        started.push(Started::spawn(&mut live.verb(&attach(&["--until-ended"]))));
    }
    // The time of attachment depends on the scheduling of its process, so their order is not
    // asserted.
    let mut first_of_last = 0;
    for attached in started {
        let output = AttachOutput::of(attached.end());
        assert_eq!(output.ended.status, 0, "{:#?}", output.ended.stderr);
        output.is_gapless();
        first_of_last = output.elements[0]["sequence"].as_u64().unwrap();
        assert_eq!(output.elements.len() as u64, 2_500 - first_of_last);
    }
    assert!(first_of_last > 0, "the last monitor was early");
}

#[test]
fn lanes_of_a_sensor_are_streams_of_one_sensor() {
    let threads = crate::program::compiled("../../examples/c/threads.c", "threads");
    let command = format!("sleep 0.5; exec {}", path(&threads));
    let live = Live::start(&["sh", "-c", &command]);
    let output = AttachOutput::of(live.run_verb(&attach(&["--until-ended"])));
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended.stderr);
    let sensors = output.summary["sensors"].as_array().unwrap();
    assert_eq!(sensors.len(), 1, "{sensors:?}");
    assert_eq!(
        (&sensors[0]["elements"], &sensors[0]["missed"]),
        (&1_000.into(), &0.into())
    );
    // Each worker's numbers equal the sequence in its lane, unless the thread adopted the lane of
    // an ended one; the thread id is the first column.
    let mut next = std::collections::BTreeMap::new();
    for element in &output.elements {
        let sequence = element["sequence"].as_u64().unwrap();
        let expected = next.entry(element["stream"].as_u64()).or_insert(0);
        assert_eq!(sequence, *expected, "{element}");
        *expected += 1;
        assert!(
            element["values"]["writer_tid"].as_u64() > Some(0),
            "{element}"
        );
    }
    assert!(output.gaps.is_empty());
}

#[test]
fn start_oldest_begins_at_the_oldest_element() {
    let live = Live::paced();
    eventually("some elements lie in the buffer", || {
        live.listed()[0]["elements"].as_u64() > Some(100)
    });
    let output = AttachOutput::of(live.run_verb(&attach(&["--start", "oldest", "--count", "60"])));
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended);
    output.is_gapless();
    assert_eq!(
        (output.elements.len(), &output.elements[0]["sequence"]),
        (60, &0.into())
    );
    assert_eq!(output.summary["ended_by"], "count");
}

#[test]
fn killed_program_is_read_to_its_last_element() {
    let live = Live::program(&["paced", "40000"]);
    let attached = Started::spawn(&mut live.verb(&attach(&["--until-ended"])));
    std::thread::sleep(Duration::from_millis(300));
    live.kill_program();
    let output = AttachOutput::of(attached.end());
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended.stderr);
    output.is_gapless();
    assert!(!output.elements.is_empty());
    assert_eq!(output.summary["complete"], true);
    // The directory's own monitor has the same last element.
    let ended = live.end();
    assert_eq!(ended.status, 128 + libc::SIGKILL, "{ended:#?}");
    let last = output.elements.last().unwrap()["sequence"]
        .as_u64()
        .unwrap();
    let row = ended
        .stderr
        .lines()
        .find(|line| line.starts_with("pace#first"));
    let elements = row.unwrap().split_whitespace().nth(2);
    assert_eq!(elements, Some(&*(last + 1).to_string()), "{ended:#?}");
}

#[test]
fn interrupt_ends_attach_with_a_summary() {
    let live = Live::paced();
    let attached = Started::spawn(&mut live.verb(&attach(&[])));
    std::thread::sleep(Duration::from_millis(300));
    attached.signal(libc::SIGINT);
    let output = AttachOutput::of(attached.end());
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended);
    output.is_gapless();
    assert_eq!(output.summary["ended_by"], "interrupted");
    assert!(
        output.ended.stderr.contains("complete: nothing missed"),
        "{:#?}",
        output.ended
    );
}

#[test]
fn end_of_the_directory_ends_attach() {
    let live = Live::program(&["paced", "400"]);
    let output = AttachOutput::of(live.run_verb(&attach(&[])));
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended);
    output.is_gapless();
    assert_eq!(output.summary["ended_by"], "directory");
}

#[test]
fn killed_directory_loses_no_element() {
    let here = std::env::current_exe().unwrap();
    let service = here.ancestors().nth(2).unwrap().join("overheard");
    if !service.is_file() {
        println!(
            "skipped: overheard is not built beside this test; `cargo build --workspace` does"
        );
        return;
    }
    let folder = crate::support::folder();
    let socket = folder.path().join("directory.sock");
    let list = ["list", "--format", "csv", "--socket", path(&socket)];
    let listed = || finish(&mut crate::support::overhear(&list));
    let mut command = std::process::Command::new(&service);
    let directory = Started::spawn(command.args(["--socket", path(&socket)]));
    eventually("the directory answers", || listed().status == 3);
    let mut command = std::process::Command::new(program());
    command
        .args(["paced", "1500"])
        .env("OVERHEAR_DIRECTORY", &socket);
    let sensor = Started::spawn(&mut command);
    let options = ["--start", "oldest", "--socket", path(&socket)];
    let mut attached = crate::support::overhear(&attach(&options));
    // Attached too early, it waits: in both cases the first element is the first written one.
    let attached = Started::spawn(&mut attached);
    // One monitor is attached, and the sensor exists.
    let ready = || listed().stdout.lines().any(|line| line.ends_with(",1"));
    eventually("the sensor is attached to", ready);
    std::thread::sleep(Duration::from_millis(200));
    directory.signal(libc::SIGKILL);
    assert_eq!(directory.end().status, 128 + libc::SIGKILL);
    assert_eq!(sensor.end().status, 0);
    let output = AttachOutput::of(attached.end());
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended.stderr);
    output.is_gapless();
    assert_eq!((output.elements.len(), output.number("missed")), (1_500, 0));
    assert_eq!(output.summary["ended_by"], "directory");
    assert!(
        output.ended.stderr.contains("are still read"),
        "{}",
        output.ended.stderr
    );
}

#[test]
fn closed_output_is_no_error() {
    let live = Live::paced();
    let mut command = live.verb(&["attach", "*"]);
    let mut attached = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(attached.stdout.take().unwrap());
    let _ = stdout.read_line(&mut line).unwrap();
    drop(stdout);
    assert!(line.contains("/pace#first  number "), "{line}");
    assert_eq!(wait(&mut attached), 0);
    let mut messages = String::new();
    let _ = attached
        .stderr
        .unwrap()
        .read_to_string(&mut messages)
        .unwrap();
    assert!(
        !messages.contains("cannot") && !messages.contains("panicked"),
        "{messages}"
    );
}

#[test]
fn slow_output_has_gaps_at_their_positions() {
    // 65,536 slots at most, two million elements, and a pipe without a reader for some time.
    let gate = crate::support::folder();
    let (go, count) = (gate.path().join("go"), 2_000_000_u64);
    let command = format!(
        "while [ ! -e {} ]; do sleep 0.01; done; exec {} tight {count}",
        path(&go),
        path(program())
    );
    let live = Live::start(&["sh", "-c", &command]);
    let mut attached = live
        .verb(&attach(&["--until-ended"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut messages = BufReader::new(attached.stderr.take().unwrap());
    let mut line = String::new();
    let _ = messages.read_line(&mut line).unwrap();
    assert!(line.contains("attached to"), "{line}");
    std::fs::write(&go, "").unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let mut text = String::new();
    let mut stdout = attached.stdout.take().unwrap();
    let _ = stdout.read_to_string(&mut text).unwrap();
    let status = wait(&mut attached);
    let mut stderr = String::new();
    let _ = messages.read_to_string(&mut stderr).unwrap();
    let ended = crate::support::Ended {
        status,
        stdout: text,
        stderr,
    };
    let output = AttachOutput::of(ended);
    output.is_gapless();
    assert_eq!(output.number("elements") + output.number("missed"), count);
    assert!(output.number("missed") > 0);
    assert_eq!(output.gaps[0]["cause"], "overwritten");
    assert_eq!(status, 3);
    assert!(
        output.ended.stderr.contains("INCOMPLETE"),
        "{}",
        output.ended.stderr
    );
}

#[test]
fn recording_of_attach_has_the_shown_elements() {
    let live = Live::paced();
    let out = live.folder.path().join("out");
    let attached = live.run_verb(&attach(&["--count", "200", "--out", path(&out)]));
    let output = AttachOutput::of(attached);
    assert_eq!(output.ended.status, 0, "{:#?}", output.ended);
    let (ended, report) = report_json(&out);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(report["sensors"][0]["elements"], 200);
    assert_eq!(
        report["command"],
        serde_json::json!(["overhear", "attach", "*"])
    );
    let first = output.elements[0]["sequence"].as_f64().unwrap();
    assert_eq!(report["sensors"][0]["fields"][0]["min"], first);
}

#[test]
fn csv_is_one_table_per_type() {
    let live = Live::paced();
    let options = ["--count", "20", "--format", "csv"];
    let ended = live.run_verb(&[&["attach", "pace"], &options[..]].concat());
    assert_eq!(ended.status, 0, "{ended:#?}");
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let heads = "type,time_ns,stream,task,pid,id,instance,sequence,missed,cause,";
    assert_eq!(lines[0], format!("{heads}number,load,change,word"));
    assert_eq!(lines.len(), 21);
    assert!(
        lines[1].starts_with("sample,") && lines[1].ends_with(",abc"),
        "{}",
        lines[1]
    );
    let chosen = ["--fields", "word,nothing"];
    let ended = live.run_verb(&[&["attach", "pace"], &options[..], &chosen].concat());
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], format!("{heads}word,nothing"));
    assert!(lines[1].ends_with(",abc,"), "{}", lines[1]);
    live.run_verb(&["attach", "pace", "--fields", "a"])
        .has_only_message(2, &["--format csv"]);
}

#[test]
fn attach_without_elements_fails_with_a_message() {
    let live = Live::paced();
    let output = AttachOutput::of(live.run_verb(&[
        "attach",
        "nothing",
        "--format",
        "json",
        "--duration",
        "50ms",
    ]));
    assert_eq!(output.ended.status, 3);
    assert_eq!(output.summary["complete"], false);
    let messages = "no sensor matched `nothing`";
    assert!(
        output.ended.stderr.contains(messages),
        "{:#?}",
        output.ended
    );
    live.run_verb(&["attach", "["])
        .has_only_message(2, &["`[`", "pattern"]);
}

#[test]
fn other_user_is_refused_with_a_reason() {
    if as_nobody(&["--version"]).is_none() {
        return;
    }
    let live = Live::paced();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(live.folder.path(), open).unwrap();
    for verb in [&["attach", "*"][..], &["disable", "*"], &["top", "--once"]] {
        let mut command = as_nobody(verb).unwrap();
        let ended = finish(command.env("OVERHEAR_DIRECTORY", live.socket()));
        ended.does_not_panic();
        assert_eq!((ended.status, &*ended.stdout), (5, ""), "{ended:#?}");
        let why = "permits you none of its 1 sensor";
        assert!(ended.stderr.contains(why), "{ended:#?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
    }
    assert_eq!(live.listed()[0]["state"], "on");
}
