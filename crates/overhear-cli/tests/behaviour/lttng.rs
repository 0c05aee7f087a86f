// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import` of a trace that LTTng records here: a program with tracepoints of
//! ros2_tracing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{
    eventually, finish, folder, has_libbabeltrace, is_root, overhear, path, send,
};

/// Number of calls of the callback.
const TURNS: u64 = 50;
/// The user of LTTng if root runs these tests: the session daemon of root belongs to the machine.
const NOBODY: &str = "65534";

/// The length of each callback: a metric over foreign events.
const METRIC: &str = "metric callback\nevent begins = user:ros2.callback_start\n\
    event ends = user:ros2.callback_end\nby begins.callback\nstate idle out\nstate first begin\n\
    state called in\nstate done end\nidle -> first: begins, i\nfirst -> called: lambda\n\
    called -> done: ends, i\ndone -> idle: lambda\n";

/// LTTng in a folder of its own.
struct Lttng {
    home: PathBuf,
    daemon: Child,
    // New files of its programs in shared memory.
    left: Vec<PathBuf>,
}

/// A program without access to other session daemons.
fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        command.args(user).args(["--clear-groups", "--"]);
        command.arg(arguments[0]);
        command
    } else {
        Command::new(arguments[0])
    };
    command.args(&arguments[1..]);
    command.env("LTTNG_HOME", home).env("HOME", home);
    command.env("LTTNG_UST_REGISTER_TIMEOUT", "-1");
    command
}

impl Lttng {
    /// Returns `None` and prints the reason if LTTng does not work.
    fn start(home: &Path) -> Option<Self> {
        let user = if is_root() {
            NOBODY.to_owned()
        } else {
            // SAFETY: geteuid only returns a number.
            unsafe { libc::geteuid() }.to_string()
        };
        let left = [
            "lttng-ust-wait-8".to_owned(),
            format!("lttng-ust-wait-8-{user}"),
        ];
        let left = left.map(|name| Path::new("/dev/shm").join(name));
        let left = left.into_iter().filter(|file| !file.exists()).collect();
        fs::set_permissions(home, fs::Permissions::from_mode(0o777)).unwrap();
        let mut daemon = command(home, &["lttng-sessiond", "--no-kernel"]);
        let daemon = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(daemon) = daemon else {
            println!("skipped: lttng-sessiond (or setpriv) is not installed");
            return None;
        };
        let mut lttng = Self {
            home: home.to_path_buf(),
            daemon,
            left,
        };
        let mut has_ended = false;
        eventually("the session daemon answers", || {
            has_ended = lttng.daemon.try_wait().unwrap().is_some();
            has_ended || lttng.run(&["list"])
        });
        if has_ended {
            println!("skipped: lttng-sessiond does not run here");
            return None;
        }
        Some(lttng)
    }

    fn run(&self, arguments: &[&str]) -> bool {
        let arguments = [&["lttng", "--no-sessiond"], arguments].concat();
        let output = command(&self.home, &arguments).output();
        output.is_ok_and(|output| output.status.success())
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        send(self.daemon.id().cast_signed(), libc::SIGTERM);
        let _ = self.daemon.wait();
        for file in &self.left {
            let _ = fs::remove_file(file);
        }
    }
}

/// The program with the tracepoints; `None` if LTTng's headers are not installed.
fn compiled(place: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/lttng");
    let program = place.join("callbacks");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-I"])
        .arg(&source)
        .arg(source.join("callbacks.c"))
        .arg("-o")
        .arg(&program)
        .args(["-llttng-ust", "-ldl"])
        .output()
        .expect("the tests need the C compiler cc");
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(messages.contains("lttng"), "{messages}");
        println!("skipped: liblttng-ust-dev is not installed");
        return None;
    }
    Some(program)
}

#[test]
fn lttng_trace_becomes_a_recording() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let Some(program) = compiled(folder.path()) else {
        return;
    };
    let Some(lttng) = Lttng::start(folder.path()) else {
        return;
    };
    let trace = folder.path().join("trace");
    let output = format!("--output={}", path(&trace));
    for arguments in [
        &["create", "own", &output][..],
        &["enable-event", "-u", "-s", "own", "ros2:*"],
        &[
            "add-context",
            "-u",
            "-s",
            "own",
            "-t",
            "vpid",
            "-t",
            "vtid",
            "-t",
            "procname",
        ],
        &["start", "own"],
    ] {
        assert!(lttng.run(arguments), "lttng {arguments:?}");
    }
    let ran = command(folder.path(), &[path(&program)]).status().unwrap();
    assert!(ran.success());
    assert!(lttng.run(&["destroy", "own"]));
    drop(lttng);

    let out = folder.path().join("out");
    let ended = finish(&mut overhear(&[
        "import",
        path(&trace),
        "--out",
        path(&out),
    ]));
    let events = format!("{} events", 2 * TURNS);
    ended.has_message(0, &[&events]);
    // Other users can write to the folder of the session; root uses no metric of it.
    let own = crate::support::folder();
    let metric = own.path().join("callback.metric");
    fs::write(&metric, METRIC).unwrap();
    let measure = ["metrics", path(&out), "--metric", path(&metric), "--json"];
    let ended = finish(&mut overhear(&measure));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows = report["metrics"][0]["tasks"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{report:#}");
    assert_eq!(
        (&rows[0]["count"], &rows[0]["comm"]),
        (&TURNS.into(), &"callbacks".into())
    );
    // Each callback sleeps for 100 us.
    assert!(rows[0]["min_ns"].as_u64().unwrap() >= 100_000, "{report:#}");
    let config = own.path().join("overhear.toml");
    let constraints =
        "[[constraint]]\nname = \"callbacks return\"\nafter = \"user:ros2.callback_start\"\n\
        of = \"user:ros2.callback_end\"\nwithin = \"60 s\"\neach = \"callback\"\n";
    fs::write(&config, constraints).unwrap();
    let check = ["check", path(&out), "--config", path(&config), "--json"];
    let ended = finish(&mut overhear(&check));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["constraints"][0]["judged"], TURNS);
}
