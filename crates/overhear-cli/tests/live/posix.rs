// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX trace streams of running programs: `overhear posix`, and their events as elements of the
//! other verbs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use overhear_directory::Directory;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::compiled_with;
use crate::session::AttachOutput;
use crate::support::{eventually, finish, overhear, path, run_json, Ended};

fn program() -> &'static Path {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| compiled_with("tests/live/traced.c", "traced", "overhear_posixtrace"))
}

/// A directory of this process, as `overheard` is one.
struct Here {
    directory: Directory,
    _folder: TempDir,
}

impl Here {
    fn start() -> Self {
        let folder = crate::support::folder();
        let socket = folder.path().join("directory.sock");
        Self {
            directory: Directory::builder().standalone().start(&socket).unwrap(),
            _folder: folder,
        }
    }

    fn socket(&self) -> &Path {
        self.directory.socket()
    }

    /// A program with these arguments, once it has printed the line.
    #[track_caller]
    fn program(&self, arguments: &[&str], line: &str) -> Running {
        let mut command = Command::new(program());
        command.env("OVERHEAR_DIRECTORY", self.socket());
        let mut running = Running::start(command, arguments);
        running.until(line);
        running
    }

    #[track_caller]
    fn verb(&self, arguments: &[&str]) -> Ended {
        let ended = finish(overhear(arguments).env("OVERHEAR_DIRECTORY", self.socket()));
        ended.does_not_panic();
        ended
    }

    #[track_caller]
    fn streams(&self) -> Vec<Value> {
        let ended = self.verb(&["posix", "--json"]);
        let listing: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        listing["streams"].as_array().cloned().unwrap_or_default()
    }
}

/// A started program. It ends when its input is closed.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    #[track_caller]
    fn start(mut command: Command, arguments: &[&str]) -> Self {
        let command = command.args(arguments).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    #[track_caller]
    fn until(&mut self, expected: &str) {
        let line = self.line();
        assert_eq!(line.trim_end(), expected);
    }

    fn end(mut self) -> i32 {
        drop(self.input.take());
        crate::support::wait(&mut self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Values of the elements of an event type.
fn values(output: &AttachOutput, id: &str) -> Vec<u64> {
    let of_type = output.elements.iter();
    let of_type = of_type.filter(|it| it["sensor"].as_str().unwrap().contains(id));
    of_type
        .map(|it| it["values"]["value"].as_u64().unwrap())
        .collect()
}

#[test]
fn streams_are_listed_with_their_state() {
    let here = Here::start();
    let none = here.verb(&["posix"]);
    none.has_only_message(3, &["no process that uses the POSIX trace interface"]);
    let program = here.program(&["count", "100", "1600"], "ready");
    let stream = &here.streams()[0];
    let pid = program.child.id();
    assert_eq!(stream["task"], format!("traced({pid})"), "{stream:#}");
    assert_eq!(
        (&stream["pid"], &stream["controller"]),
        (&pid.into(), &pid.into())
    );
    assert_eq!(
        (&stream["name"], &stream["state"]),
        (&"requests".into(), &"running".into())
    );
    assert_eq!(
        (&stream["policy"], &stream["full"]),
        (&"loop".into(), &false.into())
    );
    assert_eq!(stream["event_types"], serde_json::json!(["request"]));
    // With the event `posix_trace_start`.
    assert_eq!(stream["recorded"], 101);
    let capacity = stream["capacity"].as_u64().unwrap();
    assert!((2..64).contains(&capacity), "{stream:#}");
    assert_eq!(stream["overwritten"], 101 - capacity);
    let text = here.verb(&["posix"]);
    assert_eq!(text.status, 0, "{text:#?}");
    for part in ["traced(", "requests", "running", "loop", "101", "request"] {
        assert!(text.stdout.contains(part), "{part}: {text:#?}");
    }
    program.end();
    // The tests' own process and `overhear` are not traced.
    eventually("the stream ends", || {
        here.streams().iter().all(|it| it["state"] == "ended")
    });
}

#[test]
fn events_are_printed_until_the_stream_ends() {
    let here = Here::start();
    let mut program = here.program(&["count", "500", "200000"], "ready");
    let pid = program.pid();
    let named = format!("{pid}/requests");
    let mut command = overhear(&["posix", &named, "--json"]);
    let reading = crate::support::Started::spawn(command.env("OVERHEAR_DIRECTORY", here.socket()));
    // All events are read, and the output ends with the stream.
    program.input = None;
    let output = AttachOutput::of(reading.end());
    assert_eq!(output.ended.status, 0, "{output:#?}");
    assert_eq!(values(&output, "/request"), (0..500).collect::<Vec<_>>());
    assert_eq!(values(&output, "/posix_trace_start").len(), 1);
    assert_eq!(values(&output, "/posix_trace_stop").len(), 1);
    let first = &output.elements[1];
    assert_eq!(first["sensor"], format!("traced({pid})/request#requests"));
    assert_eq!(first["values"]["writer_tid"].as_u64(), pid.parse().ok());
    assert_eq!(first["values"]["data_len"], 8);
    program.end();
    // The last events of an ended process are still there.
    let again = here.verb(&["posix", &pid, "--quiet"]);
    assert_eq!((again.status, again.stderr.as_str()), (0, ""), "{again:#?}");
    assert_eq!(again.stdout.lines().count(), 502);
}

#[test]
fn overwritten_events_are_counted() {
    let here = Here::start();
    let running = here.program(&["count", "20", "200000"], "ready");
    let attached = here.verb(&[
        "attach",
        "traced/request",
        "--start",
        "oldest",
        "--count",
        "20",
        "--json",
    ]);
    assert_eq!(values(&AttachOutput::of(attached), "/request").len(), 20);
    running.end();
    let options = ["--kernel", "off", "--quiet"];
    let command = [path(program()), "count", "1000", "1600"];
    let (ended, report) = run_json(&options, &command);
    let sensors = report["sensors"].as_array().unwrap();
    let request = sensors.iter().find(|sensor| sensor["id"] == "request");
    let request = request.unwrap_or_else(|| panic!("{ended:#?} {report:#}"));
    let number = |key: &str| request[key].as_u64().unwrap();
    // Gaps are of all event types: the start and the stop of the stream may be in one, too.
    let sum = number("elements") + number("missed");
    assert!((1000..=1002).contains(&sum), "{request:#}");
    assert!(number("elements") >= 2, "{request:#}");
}

#[test]
fn metrics_measure_trace_events_live() {
    let folder = crate::support::folder();
    let metric = folder.path().join("pairs.metric");
    let text = "metric pairs\n\
                event even = user:request [value lacks 1]\n\
                event odd = user:request [value has 1]\n\
                state Before out\nstate Begin begin\nstate In in\nstate End end\n\
                Before -> Begin: even, i\nBegin -> In: lambda\nIn -> End: odd, i\n\
                End -> Before: lambda\n";
    std::fs::write(&metric, text).unwrap();
    let options = ["--kernel", "off", "--quiet", "--metric", path(&metric)];
    let (ended, report) = run_json(&options, &[path(program()), "count", "100", "200000"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let measured = &report["metrics"]["metrics"][0];
    let counts = ["completed", "incomplete", "missed"].map(|key| &measured[key]);
    assert_eq!(counts, [50, 0, 0], "{measured:#}");
}

#[test]
fn streams_that_appear_later_are_followed() {
    let here = Here::start();
    let traced = here.program(&["traced"], "ready");
    let pid = traced.pid();
    // No stream yet: refused without --follow.
    let none = here.verb(&["posix", &pid]);
    none.has_only_message(3, &["has no trace stream", "--follow"]);
    let mut command = overhear(&["posix", &pid, "--follow", "--count", "30", "--json"]);
    let reading = crate::support::Started::spawn(command.env("OVERHEAR_DIRECTORY", here.socket()));
    let mut controller = here.program(&["control", &pid, "50"], "started");
    controller.until("read");
    let stream = &here.streams()[0];
    assert_eq!(stream["pid"], traced.child.id());
    assert_eq!(stream["controller"], controller.child.id());
    let output = AttachOutput::of(reading.end());
    assert_eq!(output.ended.status, 0, "{output:#?}");
    let numbers = values(&output, "/request");
    assert!(
        numbers.windows(2).all(|two| two[0] + 1 == two[1]),
        "{numbers:?}"
    );
    let top = here.verb(&[
        "top",
        "--once",
        "--json",
        "--window",
        "300ms",
        "traced/request",
    ]);
    let snapshot: Value = serde_json::from_str(&top.stdout).unwrap();
    let sensor = &snapshot["sensors"][0];
    assert!(sensor["elements"].as_u64().unwrap() > 0, "{snapshot:#}");
    assert_eq!(sensor["state"], "on");
    assert_eq!(controller.end(), 0);
    traced.end();
}

#[test]
fn children_are_read_after_their_parent_has_announced_them() {
    let here = Here::start();
    let family = here.program(&["family"], "ready");
    let pid = family.pid();
    eventually("the child is traced", || {
        here.streams()[0]["traced"].as_array().unwrap().len() == 2
    });
    let read = AttachOutput::of(here.verb(&["posix", &pid, "--count", "20", "--json"]));
    let mut pids: Vec<&str> = read
        .elements
        .iter()
        .map(|it| it["sensor"].as_str().unwrap())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    // posix_trace_start, the parent's event, and the child's.
    assert_eq!(pids.len(), 3, "{pids:?}");
    let traced = here.streams()[0]["traced"].clone();
    let child = traced
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it.to_string() != pid);
    // A controller may name the child.
    let child = child.unwrap().to_string();
    let controller = here.program(&["control", &child, "5"], "started");
    assert_eq!(controller.end(), 0);
    family.end();
}

#[test]
fn wrong_processes_and_options_have_one_clear_message() {
    let here = Here::start();
    for (arguments, status, parts) in [
        (
            vec!["posix", "4194305"],
            3,
            vec!["there is no process 4194305"],
        ),
        (
            vec!["posix", "1"],
            3,
            vec!["process 1 has no trace area", "liboverhear_posixtrace"],
        ),
        (vec!["posix", "--count", "3"], 2, vec!["--follow"]),
        (vec!["posix", "--format", "csv"], 2, vec!["text or JSON"]),
    ] {
        here.verb(&arguments).has_only_message(status, &parts);
    }
    here.verb(&["posix", "server"])
        .has_message(2, &["`server` is no process id"]);
    let nowhere = finish(&mut overhear(&["posix", "--socket", "/no/such/socket"]));
    nowhere.has_only_message(5, &["/no/such/socket"]);
    // posix_trace_create without a directory, and for a process without an area.
    let mut command = Command::new(program());
    command.env("OVERHEAR_DIRECTORY", "");
    let mut alone = Running::start(command, &["control", "1", "1"]);
    let message = alone.line();
    assert!(
        message.contains(&format!("error {}", libc::EPERM)),
        "{message}"
    );
    assert!(message.contains("no directory listens"), "{message}");
    let mut command = Command::new(program());
    command.env("OVERHEAR_DIRECTORY", here.socket());
    let mut none = Running::start(command, &["control", "4194305", "1"]);
    let message = none.line();
    assert!(
        message.contains(&format!("error {}", libc::ESRCH)),
        "{message}"
    );
}
