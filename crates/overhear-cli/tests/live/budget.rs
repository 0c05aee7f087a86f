// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets of monitors that attach to programs which run already.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use overhear_directory::Directory;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::compiled;
use crate::support::{eventually, finish, folder, overhear, path, report_json, Ended, Started};

/// CPU time of a program that outlives each test, in milliseconds.
const LONG: &str = "600000";

/// A directory in this process, without a monitor of its own, and a program that writes all the
/// time.
struct Busy {
    folder: TempDir,
    directory: Directory,
    program: Option<Started>,
}

impl Busy {
    /// Waits for its sensors.
    #[track_caller]
    fn start(cpu_ms: &str, steps: &str) -> Self {
        static SPENDER: OnceLock<PathBuf> = OnceLock::new();
        let spender = SPENDER.get_or_init(|| compiled("tests/sensors/spender.c", "spender"));
        let folder = folder();
        let socket = folder.path().join("directory.sock");
        let directory = Directory::builder().standalone().start(&socket).unwrap();
        let mut command = Command::new(spender);
        command.args([cpu_ms, steps]);
        command.env("OVERHEAR_DIRECTORY", &socket);
        let busy = Self {
            folder,
            directory,
            program: Some(Started::spawn(&mut command)),
        };
        eventually("the program registers its sensors", || {
            let listed = finish(&mut busy.verb(&["list", "--format", "csv"]));
            listed.stdout.lines().count() == 3
        });
        busy
    }

    fn socket(&self) -> &Path {
        self.directory.socket()
    }

    /// A verb with this directory.
    fn verb(&self, arguments: &[&str]) -> Command {
        let mut command = overhear(arguments);
        command.env("OVERHEAR_DIRECTORY", self.socket());
        command
    }

    /// Attaches with JSON as output.
    #[track_caller]
    fn attach(&self, more: &[&str]) -> Attached {
        let arguments = [&["attach", "frequent", "--json"], more].concat();
        Attached::of(finish(&mut self.verb(&arguments)))
    }

    /// Waits until a monitor that yields to budgets misses elements.
    #[track_caller]
    fn await_off(&self) {
        let yields = ["--budget", "1000%", "--duration", "200ms"];
        eventually("the sensor is off", || {
            self.attach(&yields).missed("budget") > 0
        });
    }

    /// Kills the program.
    fn end_program(&mut self) {
        if let Some(program) = self.program.take() {
            program.signal(libc::SIGKILL);
            let _ = program.end();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.end_program();
    }
}

/// The output of `overhear attach --json`.
#[derive(Debug)]
struct Attached {
    ended: Ended,
    records: Vec<Value>,
}

impl Attached {
    #[track_caller]
    fn of(ended: Ended) -> Self {
        ended.does_not_panic();
        let records = ended.stdout.lines().map(serde_json::from_str);
        let records = records.collect::<Result<_, _>>().unwrap();
        Self { ended, records }
    }

    fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        let of_kind = move |it: &&Value| it["record"] == kind;
        self.records.iter().filter(of_kind)
    }

    /// Elements that were missed for this cause.
    fn missed(&self, cause: &str) -> u64 {
        let gaps = self.all("gap").filter(|gap| gap["cause"] == cause);
        gaps.map(|gap| gap["missed"].as_u64().unwrap()).sum()
    }

    /// The entry of the sensor in the budget.
    #[track_caller]
    fn sensor(&self) -> &Value {
        let budget = self.all("budget").next();
        let budget = budget.unwrap_or_else(|| panic!("{}", self.ended.stderr));
        &budget["sensors"][0]
    }
}

#[test]
fn attached_budget_counts_what_it_skips() {
    let mut busy = Busy::start(LONG, "400");
    let out = busy.folder.path().join("out");
    let attach = ["attach", "frequent", "--json", "--until-ended"];
    let options = ["--budget", "0.1%", "--out", path(&out)];
    let attached = Started::spawn(&mut busy.verb(&[&attach[..], &options].concat()));
    busy.await_off();
    busy.end_program();
    let attached = Attached::of(attached.end());
    assert_eq!(attached.ended.status, 3, "{}", attached.ended.stderr);
    let sensor = attached.sensor();
    let [written, skipped] = ["written", "skipped"].map(|key| sensor[key].as_u64().unwrap());
    assert!(written > 0 && skipped > 0, "{sensor}");
    assert_eq!(attached.missed("budget"), skipped);
    let lost = attached.missed("overwritten");
    let elements = attached.all("element").count() as u64;
    assert_eq!(elements + lost, written, "{sensor}");
    let stderr = &attached.ended.stderr;
    assert!(
        stderr.contains("budget: 0.10 % of the CPU time"),
        "{stderr}"
    );
    // The recording has the same gaps, and the budget.
    let (_, report) = report_json(&out);
    assert_eq!(report["budget"]["sensors"][0], *sensor);
    let losses = report["losses"].as_array().unwrap();
    let of_budget = losses.iter().filter(|loss| loss["cause"] == "budget");
    let of_budget: u64 = of_budget.map(|loss| loss["missed"].as_u64().unwrap()).sum();
    assert_eq!(of_budget, skipped);
}

#[test]
fn killed_monitor_leaves_the_sensors_on() {
    let busy = Busy::start(LONG, "40000");
    let text = ["attach", "frequent", "--budget", "0", "--quiet"];
    let killed = Started::spawn(&mut busy.verb(&text));
    busy.await_off();
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.end().status, 128 + libc::SIGKILL);
    let yields = ["--budget", "1000%", "--duration", "200ms"];
    eventually("the sensor is on", || {
        busy.attach(&yields).missed("budget") == 0
    });
}

#[test]
fn monitor_without_a_budget_gets_everything_and_the_budget_names_it() {
    let busy = Busy::start(LONG, "40000");
    let whole = ["attach", "frequent", "--json"];
    let whole = Started::spawn(&mut busy.verb(&whole));
    eventually("it is attached", || {
        let listed = finish(&mut busy.verb(&["list", "--format", "csv"]));
        listed.stdout.lines().any(|line| line.ends_with(",1"))
    });
    let limited = busy.attach(&["--budget", "0", "--duration", "1s"]);
    let message = "a monitor without a budget needs all of their elements";
    assert!(
        limited.ended.stderr.contains(message),
        "{}",
        limited.ended.stderr
    );
    assert_eq!(limited.missed("budget"), 0);
    whole.signal(libc::SIGINT);
    let whole = Attached::of(whole.end());
    assert_eq!(whole.missed("budget"), 0);
    assert!(whole.all("element").count() > 0);
}

#[test]
fn impossible_budget_is_refused_before_anything_is_attached() {
    let busy = Busy::start(LONG, "40000");
    let ended = finish(&mut busy.verb(&["attach", "*", "--budget", "-1%"]));
    assert_eq!(ended.status, 2, "{ended:#?}");
    let message = "an overhead of -1 % is not possible; give 0 % or more";
    assert!(ended.stderr.contains(message), "{ended:#?}");
}

#[test]
fn top_keeps_a_budget_and_shows_it() {
    let busy = Busy::start(LONG, "400");
    let file = busy.folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"50%\"\n[[budget.sensor]]\nname = \"rare\"\nalways = true\n";
    std::fs::write(&file, text).unwrap();
    let options = ["top", "*", "--once", "--window", "2s", "--json"];
    let budget = ["--budget", "0.1%", "--config", path(&file)];
    let ended = finish(&mut busy.verb(&[&options[..], &budget].concat()));
    assert_eq!(ended.status, 3, "{ended:#?}");
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
    // The command line overrides the target of the file, and no more.
    assert_eq!(shown["budget"]["target"], 0.001);
    let all = shown["budget"]["sensors"].as_array().unwrap();
    let skipped = |name: &str| {
        let of = |it: &&Value| it["name"].as_str().unwrap().ends_with(name);
        all.iter().find(of).unwrap()["skipped"].as_u64().unwrap()
    };
    assert!(skipped("/frequent") > 0, "{shown:#}");
    assert_eq!(skipped("/rare"), 0, "{shown:#}");
    assert!(shown["missed"].as_u64().unwrap() > 0, "{shown:#}");
    // Another picture yields to the budget of an attached monitor, and has its gaps.
    let attached = ["attach", "frequent", "--budget", "0", "--quiet"];
    let attached = Started::spawn(&mut busy.verb(&attached));
    eventually("the picture misses elements", || {
        let ended = finish(&mut busy.verb(&options));
        let shown: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(shown.get("budget").is_none());
        shown["missed"].as_u64().unwrap() > 0
    });
    attached.signal(libc::SIGINT);
    attached.end();
}

#[test]
fn program_that_is_killed_while_off_has_its_last_counts() {
    let mut busy = Busy::start(LONG, "40000");
    let arguments = [
        "attach",
        "frequent",
        "--json",
        "--budget",
        "0",
        "--until-ended",
    ];
    let attached = Started::spawn(&mut busy.verb(&arguments));
    busy.await_off();
    busy.end_program();
    let attached = Attached::of(attached.end());
    assert_eq!(attached.ended.status, 3, "{}", attached.ended.stderr);
    let sensor = attached.sensor();
    let skipped = sensor["skipped"].as_u64().unwrap();
    assert!(skipped > 0, "{sensor}");
    assert_eq!(attached.missed("budget"), skipped);
    let [summary] = attached.all("summary").collect::<Vec<_>>()[..] else {
        panic!("one summary");
    };
    assert_eq!(summary["ended_by"], "ended");
}
