// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorders that are killed at a hundred moments: from the first system call to the middle of a
//! recording. The report works at once, and gives the same result after a repair. After the repair
//! other tools can read the recording, too.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use overhear_trace::TraceReader;

use crate::support::{
    babeltrace, eventually, finish, folder, has_babeltrace, overhear, path, report_json, Started,
};

/// Number of kills, and of threads that kill in parallel: a recorder often sleeps.
const KILLS: usize = 100;
const THREADS: usize = 4;

/// Counts over all kills.
#[derive(Debug, Default)]
struct Found {
    without_trace: usize,
    torn: usize,
    events: u64,
    with_events: usize,
}

/// Processes of a group that still run. Zombies only wait for their new parent.
fn members(group: i32) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
            let fields: Vec<&str> = fields.split(' ').collect();
            fields.get(2).and_then(|group| group.parse().ok()) == Some(group) && fields[0] != "Z"
        })
        .count()
}

/// Runs a busy program, kills the recorder after a while, and checks the remaining files.
fn kill_after(
    begun: bool,
    delay: Duration,
    out: &Path,
    runtime: &Path,
    has_babeltrace: bool,
) -> Found {
    // Busy enough to fill packets, and it ends by itself: only the recorder is killed. The small
    // blocks make both ends of the pipe alternate.
    let script =
        "dd if=/dev/zero bs=64 count=150000 2>/dev/null | dd bs=64 of=/dev/null 2>/dev/null";
    let mut command = overhear(&["run", "--out", path(out), "--", "sh", "-c", script]);
    command.env("XDG_RUNTIME_DIR", runtime).process_group(0);
    let run = Started::spawn(&mut command);
    let group = run.pid();
    if begun {
        eventually("the recording begins", || {
            out.join("trace/overhear/run.json").exists()
        });
    }
    sleep(delay);
    run.signal(libc::SIGKILL);
    run.end().does_not_panic();

    // A child that was held for its first instruction ends with the recorder; a running program
    // continues until its own end. Until it executes the program the child shares the recorder's
    // lock, so the test reads only after that.
    eventually("the program ends by itself", || members(group) == 0);

    // Number of readable events before the repair.
    let mut found = Found::default();
    let (mut events, mut torn) = (None, 0);
    if let Ok(reader) = TraceReader::open(out) {
        assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
        events = Some(reader.events());
        torn = reader.torn().len();
    }
    match events {
        None => {
            let ended = finish(&mut overhear(&["report", path(out)]));
            ended.has_only_message(2, &["is not a trace of Overhear"]);
            found.without_trace = 1;
        }
        Some(events) => {
            let (ended, report) = report_json(out);
            // It was killed before the end, or between the last write and the message about it.
            assert!([0, 3].contains(&ended.status), "{ended:#?}");
            assert_eq!(report["complete"].as_bool(), Some(ended.status == 0));
            assert_eq!(
                report["trace"]["events"].as_u64(),
                Some(events),
                "{ended:#?}"
            );
            let advises = ended.stderr.contains("`overhear repair` cuts it");
            assert_eq!(advises, torn > 0, "{ended:#?}");
            let repaired = finish(&mut overhear(&["repair", path(out)]));
            assert_eq!(repaired.status, 0, "{repaired:#?}");
            assert_eq!(repaired.stdout.contains("cut the torn"), torn > 0);
            if has_babeltrace {
                assert_eq!(babeltrace(out).0, events, "{}", out.display());
            }
            let (again, same) = report_json(out);
            assert_eq!(again.stderr, "", "repaired once, repaired for good");
            assert_eq!(same, report);
            found.torn = torn;
            found.events = events;
            found.with_events = usize::from(events > 0);
        }
    }
    found
}

#[test]
fn killed_recorders_leave_readable_recordings() {
    let has_babeltrace = has_babeltrace();
    let folder = folder();
    let runtime = folder.path().join("runtime");
    fs::create_dir(&runtime).unwrap();
    let all = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (all, runtime, folder) = (&all, &runtime, folder.path());
            scope.spawn(move || {
                // Moments over the complete range, the same in every run.
                let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ thread as u64;
                for kill in 0..KILLS / THREADS {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // Every second kill comes after the begin of the recording, independent of the
                    // time until then.
                    let begun = kill % 2 == 1;
                    let range = if begun { 600_000 } else { 300_000 };
                    let delay = Duration::from_micros(state % range);
                    let out = folder.join(format!("{thread}-{kill}"));
                    let found = kill_after(begun, delay, &out, runtime, has_babeltrace);
                    fs::remove_dir_all(&out).unwrap_or_default();
                    let mut all = all.lock().unwrap();
                    all.without_trace += found.without_trace;
                    all.torn += found.torn;
                    all.events += found.events;
                    all.with_events += found.with_events;
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!("{all:?}");
    assert!(all.without_trace < KILLS, "{all:?}");

    // A killed recorder cannot clean up: its folder for the socket stays, private and small, until
    // the next recorder of the same location removes it.
    for left in fs::read_dir(&runtime).unwrap().flatten() {
        use std::os::unix::fs::PermissionsExt;
        // No other user can list or change it.
        assert_eq!(left.metadata().unwrap().permissions().mode() & 0o066, 0);
        let inside: Vec<_> = fs::read_dir(left.path()).unwrap().flatten().collect();
        assert!(
            inside
                .iter()
                .all(|entry| entry.file_name() == "directory.sock" || entry.file_name() == "lock"),
            "{inside:?}"
        );
    }
    let mut command = overhear(&["run", "--kernel", "off", "--", "true"]);
    assert_eq!(finish(command.env("XDG_RUNTIME_DIR", &runtime)).status, 0);
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0);
}

#[test]
fn folder_of_a_killed_recorder_can_be_used_again() {
    let folder = folder();
    let out = folder.path().join("out");
    // The state on disk before the first stream is known.
    fs::create_dir_all(out.join("trace/overhear")).unwrap();
    fs::write(out.join("trace/overhear/lock"), "").unwrap();
    let arguments = ["run", "--kernel", "off", "--out", path(&out), "--", "true"];
    assert_eq!(finish(&mut overhear(&arguments)).status, 0);
    assert_eq!(report_json(&out).0.status, 0);
}
