// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demonstration on this machine: real programs, real context switches.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use demo::programs::{self, CLIENT, SERVER};
use demo::{Span, Spans};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_metrics::Histogram;
use overhear_session::conclusion::{Conclusion, Exit};
use overhear_session::error::ErrorKind;
use overhear_session::session::{KernelBackend, Session};

const CALLS: u32 = 400;
const PERIOD_US: u32 = 500;
const DEMO: &str = env!("CARGO_BIN_EXE_demo");

/// One session at a time: a session handles the signals of its complete process.
static SESSION: Mutex<()> = Mutex::new(());

/// The server's own measurement of its IPC: the thread time from each P after to the next P before.
/// One such time belongs to two calls, their sum to all calls.
#[derive(Default)]
struct BetweenCalls {
    left_at_cpu_ns: Option<u64>,
    sum_ns: u64,
    calls: u64,
}

impl Analysis for BetweenCalls {
    fn element(&mut self, element: &ElementView<'_>) {
        if element.stream.sensor != "P" {
            return;
        }
        let number = |name: &str| element.field(name).and_then(|value| value.as_u64());
        let cpu_ns = number("cpu_ns").unwrap();
        if number("after") == Some(1) {
            self.left_at_cpu_ns = Some(cpu_ns);
        } else if let Some(left) = self.left_at_cpu_ns {
            self.sum_ns += cpu_ns - left;
            self.calls += 1;
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

fn sum(histogram: &Histogram) -> f64 {
    histogram.mean().unwrap_or(0.0) * histogram.count() as f64
}

#[test]
fn four_spans_are_measured_with_every_kernel_sensor() {
    let _session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    for backend in [KernelBackend::Bpf, KernelBackend::Perf, KernelBackend::Off] {
        // Context switches and the thread's CPU clock agree on average, within a factor of two: the
        // calls are few, and a single delayed one counts only for the clock. The test fails after
        // three failures in a row.
        let alike = |_| match four_spans(backend) {
            Some((by_switches, by_clock)) => {
                println!("{backend:?}: IPC by switches {by_switches:.0} ns, by the clock {by_clock:.0} ns");
                (0.5..=2.0).contains(&(by_switches / by_clock))
            }
            None => true,
        };
        assert!((0..3).any(alike), "{backend:?}: switches and clock differ");
    }
}

/// Runs both programs once. Mean nanoseconds of a call in the kernel: by context switches, and by
/// the thread's clock; no numbers if the machine disturbed most of the calls. `None` if kernel
/// sensors do not work.
fn four_spans(backend: KernelBackend) -> Option<(f64, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let command = programs::command(Path::new(DEMO), folder.path(), CALLS, PERIOD_US).unwrap();
    let (mut spans, mut between) = (Spans::default(), BetweenCalls::default());
    let outcome = Session::builder(command)
        .kernel(backend)
        .run(&mut [&mut spans, &mut between]);
    let outcome = match outcome {
        Err(failure) if failure.kind == ErrorKind::Unavailable && backend != KernelBackend::Off => {
            println!("skipped: {backend:?}: {failure}");
            return None;
        }
        outcome => outcome.unwrap(),
    };
    spans.finish();
    let report = &outcome.report;
    assert_eq!(report.missed_total, 0, "{backend:?}: {:?}", report.losses);
    assert_eq!(
        (outcome.exit, outcome.report.conclusion()),
        (Exit::Code(0), Conclusion::Complete),
        "{backend:?}: {:?}",
        outcome.report.notes
    );
    assert!(spans.discarded().is_empty(), "{:?}", spans.discarded());

    let count = |span| spans.histogram(span).count();
    for span in [Span::Client, Span::Parsing, Span::Function] {
        assert_eq!(count(span), u64::from(CALLS), "{backend:?}: {span:?}");
    }
    // CPU time is a part of the time that has passed, and the stamps enclose it. The clocks of
    // stamps and of CPU time are not the same; they differ by much less than a hundredth.
    let round_trip = sum(spans.round_trip());
    assert!(sum(spans.histogram(Span::Client)) <= round_trip * 1.01);
    let inside = sum(spans.histogram(Span::Parsing)) + sum(spans.histogram(Span::Function));
    let service = sum(spans.service());
    assert!(inside <= service * 1.01, "{inside} of {service}");

    if backend == KernelBackend::Off {
        assert_eq!((spans.switches(), count(Span::Ipc)), (0, 0));
        return None;
    }
    let discarded: u64 = spans.ipc_discarded().values().sum();
    assert_eq!(count(Span::Ipc) + discarded, u64::from(CALLS));
    if count(Span::Ipc) < u64::from(CALLS) / 2 {
        println!("{backend:?}: too few: {:?}", spans.ipc_discarded());
        return Some((f64::NAN, f64::NAN));
    }
    let by_switches = spans.histogram(Span::Ipc).mean().unwrap();
    let by_clock = between.sum_ns as f64 / between.calls as f64;
    Some((by_switches, by_clock))
}

/// The server serves another client at the same time, whose sensors are not connected.
#[test]
fn only_calls_of_the_test_client_are_measured() {
    let _session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let [client, server, socket] =
        [CLIENT, SERVER, "socket"].map(|name| folder.path().join(name).display().to_string());
    programs::command(Path::new(DEMO), folder.path(), 0, 0).unwrap();
    let both = format!(
        "'{client}' -n {CALLS} -p {PERIOD_US} -s '{server}' '{socket}' & first=$!
         OVERHEAR_DIRECTORY= '{client}' -n {CALLS} -p 301 '{socket}' 'describe 1' || exit 1
         wait $first"
    );
    let command = ["sh", "-c", &both].map(Into::into).to_vec();
    let mut spans = Spans::default();
    let builder = Session::builder(command);
    let outcome = builder.run(&mut [&mut spans]).unwrap();
    spans.finish();
    let ended = (outcome.exit, outcome.report.conclusion());
    let expected = (Exit::Code(0), Conclusion::Complete);
    assert_eq!(ended, expected, "{:?}", outcome.report);
    assert!(spans.discarded().is_empty(), "{:?}", spans.discarded());
    assert_eq!(spans.histogram(Span::Client).count(), u64::from(CALLS));
    let invocations = |id: &str| {
        let of_id = outcome
            .report
            .sensors
            .iter()
            .filter(|sensor| sensor.id == id);
        of_id.map(|sensor| sensor.elements).sum::<u64>()
    };
    let calls = u64::from(CALLS);
    assert_eq!(
        ["C", "P", "F"].map(invocations),
        [2 * calls, 4 * calls, 4 * calls]
    );
    if spans.switches() > 0 {
        let without: u64 = spans.ipc_discarded().values().sum();
        assert_eq!(spans.histogram(Span::Ipc).count() + without, calls);
        println!("without span 2: {:?}", spans.ipc_discarded());
    }
}

#[test]
fn output_fits_a_terminal_and_the_report_shows_the_spans() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let output = Command::new(DEMO)
        .args(["--calls", "100", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    // A path can be of any length.
    let own = text.lines().filter(|line| !line.contains("report.html"));
    for line in own {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for span in Span::ALL {
        assert!(text.contains(&span.title()[1..]), "{text}");
        assert!(
            page.contains(span.title()),
            "{} is not in the page",
            span.title()
        );
    }
    assert!(text.contains("Calls discarded: 0 of 100"), "{text}");
}

#[test]
fn both_programs_run_without_directory_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let command = programs::command(Path::new(DEMO), folder.path(), 20, 0).unwrap();
    // An empty variable switches sensors off, even if this machine has a directory.
    let run = |arguments: &[std::ffi::OsString]| {
        Command::new(&command[0])
            .args(arguments)
            .env("OVERHEAR_DIRECTORY", "")
            .output()
            .unwrap()
    };
    let output = run(&command[1..]);
    assert!(output.status.success(), "{}", complaint(&output));
    assert_eq!((&*output.stdout, &*output.stderr), (&b""[..], &b""[..]));
    let mut left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, [CLIENT, SERVER]);

    // The same with commands that the server refuses, and one that it accepts.
    for (text, reply) in [
        ("settitle 0 \"a \\\"b\\\"\"", None),
        ("describe 3", None),
        ("describe 4", Some("there is no such screen")),
        ("probemode 3 640", Some("an argument is of the wrong kind")),
        ("probemode 3 \"640x480", Some("a text does not end")),
        ("probe", Some("there is no such function")),
        ("move 1 2 3 4 5", Some("there are too many arguments")),
        ("", Some("cannot")),
    ] {
        let mut arguments = command[1..].to_vec();
        *arguments.last_mut().unwrap() = text.into();
        let output = run(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), reply.is_none(), "{text}: {errors}");
        assert!(
            errors.contains(reply.unwrap_or_default()),
            "{text}: {errors}"
        );
    }
}

/// gcc and clang print no warning, neither with sensors nor with sensors compiled out.
#[test]
fn c_programs_compile_without_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for compiler in ["gcc", "clang-19"] {
        for program in ["client.c", "server.c"] {
            for disabled in [&["-DOVERHEAR_DISABLE"][..], &[]] {
                let output = Command::new(compiler)
                    .args([
                        "-std=c11",
                        "-Wall",
                        "-Wextra",
                        "-Werror",
                        "-O2",
                        "-fsyntax-only",
                    ])
                    .args(disabled)
                    .arg("-I")
                    .arg(folder.join("../include"))
                    .arg(folder.join(program))
                    .output();
                match output {
                    Ok(output) => assert!(output.status.success(), "{}", complaint(&output)),
                    Err(error) => println!("skipped: {compiler} on {program}: {error}"),
                }
            }
        }
    }
}

fn complaint(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
