// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings and output folders of another user: root reads them without a change on disk, follows
//! no link in them, does not block, uses bounded memory, and writes no file there.

use std::fs::{self, File};
use std::os::unix::fs::{chown, symlink, FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use overhear_event::{
    ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceWriter};
use rustix::fs::{mknodat, FileType, Mode, CWD};
use serde_json::{json, Value};

use crate::packets::packets;
use crate::support::{finish, folder, is_root, overhear, path, Ended};

const NOBODY: u32 = 65_534;

/// A recording with two streams and all documents that viewers read.
fn record(dir: &Path) {
    let schema = TypeSchema::builder("level").field("value", FieldKind::U64, "");
    let schema = std::sync::Arc::new(schema.build().unwrap());
    let mut writer = TraceWriter::create(dir, TraceIdentity::default())
        .unwrap()
        .with_packet_bytes(400);
    let run = json!({
        "overhear_version": "0", "command": ["program"], "sources": [], "start_ns": 1_000,
        "end": { "end_ns": 12_500, "exit": { "code": 0 } },
    });
    writer.attach_document("run", &run).unwrap();
    for id in [1, 2] {
        let stream = StreamDescriptor::new(
            StreamId::from_raw(id),
            Origin::Sampler,
            format!("sensor{id}"),
            std::sync::Arc::clone(&schema),
        );
        for sequence in 0..100_u64 {
            let element = ElementView {
                stream: &stream,
                sequence,
                time: Timestamp::from_monotonic_ns(2_000 + 100 * sequence),
                payload: &sequence.to_ne_bytes(),
            };
            writer.element(&element).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Files below a folder with their content, and links with their targets.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let kind = fs::symlink_metadata(&file).unwrap().file_type();
        if kind.is_dir() {
            all.extend(content(&file));
        } else if kind.is_symlink() {
            let target = fs::read_link(&file).unwrap().into_os_string();
            all.push((file, target.into_encoded_bytes()));
        } else if kind.is_file() && fs::metadata(&file).unwrap().len() < 1 << 30 {
            let bytes = fs::read(&file).unwrap();
            all.push((file, bytes));
        } else {
            all.push((file, Vec::new()));
        }
    }
    all.sort();
    all
}

fn give(folder: &Path, user: u32) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let kind = fs::symlink_metadata(&file).unwrap().file_type();
        std::os::unix::fs::lchown(&file, Some(user), Some(user)).unwrap();
        if kind.is_dir() {
            give(&file, user);
        }
    }
    chown(folder, Some(user), Some(user)).unwrap();
}

fn needs_root() -> bool {
    if !is_root() {
        println!("skipped: only root can give folders away");
    }
    is_root()
}

/// A file with a constraint that the recording keeps.
fn constraints(folder: &Path) -> PathBuf {
    let file = folder.join("constraints.toml");
    let text = "[[constraint]]\nname = \"often\"\nof = \"clerk:sensor1\"\nperiod = \"100ns\"\njitter = \"1us\"\n";
    fs::write(&file, text).unwrap();
    file
}

/// All verbs that read a recording.
fn viewers(dir: &Path, elsewhere: &Path) -> Vec<(Vec<String>, Ended)> {
    let dir = path(dir).to_owned();
    let constraints = constraints(elsewhere);
    let page = elsewhere.join("page.html");
    let csv = elsewhere.join("out.csv");
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let all = vec![
        words(&["report", &dir]),
        words(&["report", &dir, "--json"]),
        words(&["report", &dir, "--html", path(&page)]),
        words(&["metrics", &dir, "--json"]),
        words(&["check", &dir, "--config", path(&constraints)]),
        words(&["export", &dir, "--to", "csv", "-o", path(&csv)]),
        words(&["export", &dir, "--to", "perfetto", "-o", path(&csv)]),
        words(&["fit-rate", &dir, "sensor1"]),
    ];
    all.into_iter()
        .map(|words| {
            let borrowed: Vec<&str> = words.iter().map(String::as_str).collect();
            let ended = finish(&mut overhear(&borrowed));
            ended.does_not_panic();
            (words, ended)
        })
        .collect()
}

#[test]
fn root_viewer_writes_nothing_chosen_by_the_owner_of_a_recording() {
    if !needs_root() {
        return;
    }
    let folder = folder();
    let (out, precious) = (folder.path().join("out"), folder.path().join("precious"));
    record(&out);
    // A file of root. Its path could be that of a list of libraries to load.
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
    let own = out.join("trace/overhear");
    let catalogue = fs::read_to_string(own.join("streams.json")).unwrap();
    let hostile = "\"hostname\": \"/library.so \"";
    fs::write(
        own.join("streams.json"),
        catalogue.replace("\"hostname\": \"\"", hostile),
    )
    .unwrap();
    assert!(fs::read_to_string(own.join("streams.json"))
        .unwrap()
        .contains("library.so"));
    // A damaged recording: metadata and a torn tail; and links in place of every name that a repair
    // writes.
    fs::write(out.join("trace/metadata"), "damaged").unwrap();
    let stream = File::options()
        .write(true)
        .open(out.join("trace/stream-1"))
        .unwrap();
    stream
        .set_len(stream.metadata().unwrap().len() - 3)
        .unwrap();
    for name in [
        ".metadata.new",
        ".streams.json.new",
        ".run.json.new",
        ".repairs.json.new",
    ] {
        symlink(&precious, own.join(name)).unwrap();
    }
    for name in ["report.html", "report.html.tmp", "page.html.tmp"] {
        symlink(&precious, out.join(name)).unwrap();
    }
    give(&out, NOBODY);
    let before = content(&out);
    for (words, ended) in viewers(&out, folder.path()) {
        assert!([0, 2, 3].contains(&ended.status), "{words:?} {ended:#?}");
    }
    let ended = finish(&mut overhear(&["repair", path(&out)]));
    ended.has_only_message(5, &["belongs to user 65534", "name a folder of this user"]);
    let html = out.join("report.html");
    let ended = finish(&mut overhear(&[
        "report",
        path(&out),
        "--html",
        path(&html),
    ]));
    ended.has_message(2, &["report.html", "symbolic link, which is not followed"]);
    assert_eq!(content(&out), before);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let mode = fs::metadata(&precious).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn owner_repairs_a_recording_without_following_links() {
    let folder = folder();
    let (out, precious) = (folder.path().join("out"), folder.path().join("precious"));
    record(&out);
    fs::write(&precious, "precious").unwrap();
    fs::write(out.join("trace/metadata"), "damaged").unwrap();
    let stream = out.join("trace/stream-1");
    let tail = File::options().write(true).open(&stream).unwrap();
    tail.set_len(fs::metadata(&stream).unwrap().len() - 3)
        .unwrap();
    let second = out.join("trace/stream-2");
    fs::rename(&second, folder.path().join("stream-2")).unwrap();
    symlink(&precious, &second).unwrap();
    symlink(&precious, out.join("trace/overhear/.metadata.new")).unwrap();
    let ended = finish(&mut overhear(&["repair", path(&out)]));
    ended.has_message(3, &["stream-2", "a symbolic link, not a regular file"]);
    for done in ["cut the torn tails of 1 stream", "wrote the metadata anew"] {
        assert!(ended.stdout.contains(done), "{ended:#?}");
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(fs::read_to_string(out.join("trace/metadata"))
        .unwrap()
        .starts_with("/* CTF"));
}

#[test]
fn root_recorder_writes_only_to_folders_of_root() {
    if !needs_root() {
        return;
    }
    let folder = folder();
    let precious = folder.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
    let is_untouched = || {
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let mode = fs::metadata(&precious).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    };
    let run = |out: &Path| {
        let arguments = ["run", "--kernel", "off", "--out", path(out), "--", "true"];
        finish(&mut overhear(&arguments))
    };
    // Another user's folder, with links where a recorder writes.
    let theirs = folder.path().join("theirs");
    fs::create_dir_all(theirs.join("trace/overhear")).unwrap();
    symlink(&precious, theirs.join("trace/overhear/lock")).unwrap();
    symlink(&precious, theirs.join("report.html")).unwrap();
    symlink(&precious, theirs.join("report.html.tmp")).unwrap();
    give(&theirs, NOBODY);
    let before = content(&theirs);
    run(&theirs).has_only_message(5, &["theirs", "belongs to user 65534"]);
    run(&theirs.join("new")).has_only_message(5, &["theirs", "belongs to user 65534"]);
    let record = [
        "record",
        "--all",
        "--duration",
        "1ms",
        "--out",
        path(&theirs),
    ];
    let ended = finish(&mut overhear(&record));
    assert_eq!(ended.status, 5, "{ended:#?}");
    assert_eq!(content(&theirs), before);
    is_untouched();
    // Others can write to it.
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    run(&shared).has_only_message(5, &["can be written to by other users"]);
    assert_eq!(content(&shared), []);
    // Root's own folder, which still contains the links: none is followed.
    let lock = folder.path().join("lock");
    fs::create_dir_all(lock.join("trace/overhear")).unwrap();
    symlink(&precious, lock.join("trace/overhear/lock")).unwrap();
    run(&lock).has_only_message(2, &["lock", "a symbolic link, not a regular file"]);
    is_untouched();
    let page = folder.path().join("page");
    fs::create_dir(&page).unwrap();
    symlink(&precious, page.join("report.html")).unwrap();
    for name in ["report.html.tmp", ".report.html.new"] {
        symlink(&precious, page.join(name)).unwrap();
    }
    let ended = run(&page);
    // The recording is complete; a page can be made again.
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(
        ended
            .stderr
            .contains("symbolic link, which is not followed"),
        "{ended:#?}"
    );
    is_untouched();
    for (link, _) in content(&page)
        .iter()
        .filter(|(file, _)| file.starts_with("report.html"))
    {
        assert!(fs::symlink_metadata(link).unwrap().is_symlink());
    }
    // A new folder in a sticky one belongs to root; other users can write to the sticky folder.
    let sticky = folder.path().join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(run(&sticky.join("out")).status, 0);
}

/// A name, and the function that creates it at a path.
type Intruder = (&'static str, Box<dyn Fn(&Path)>);

/// Kinds of entries that can replace a file.
fn intruders() -> Vec<Intruder> {
    let mut all: Vec<Intruder> = vec![
        (
            "fifo",
            Box::new(|at| {
                mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
            }),
        ),
        ("folder", Box::new(|at| fs::create_dir(at).unwrap())),
        ("link", Box::new(|at| symlink("/etc/passwd", at).unwrap())),
        ("dangling", Box::new(|at| symlink("nowhere", at).unwrap())),
        (
            "socket",
            Box::new(|at| {
                drop(std::os::unix::net::UnixListener::bind(at).unwrap());
            }),
        ),
    ];
    if is_root() {
        all.push((
            "device",
            Box::new(|at| {
                let zero = rustix::fs::makedev(1, 5);
                let kind = FileType::CharacterDevice;
                mknodat(CWD, at, kind, Mode::from_raw_mode(0o666), zero).unwrap();
            }),
        ));
    }
    all
}

#[test]
fn special_files_do_not_block_readers() {
    let folder = folder();
    let out = folder.path().join("out");
    record(&out);
    let kept = folder.path().join("kept");
    let files = [
        "trace/metadata",
        "trace/stream-1",
        "trace/overhear/streams.json",
        "trace/overhear/summary.json",
        "trace/overhear/run.json",
        "trace/overhear/lock",
        "trace/overhear/calibration.json",
        "trace/overhear/histograms.json",
        "trace/overhear/repairs.json",
    ];
    for file in files {
        let at = out.join(file);
        let was_there = at.exists();
        for (kind, make) in intruders() {
            if was_there {
                fs::rename(&at, &kept).unwrap();
            }
            make(&at);
            let mut all = viewers(&out, folder.path());
            let ended = finish(&mut overhear(&["repair", path(&out)]));
            ended.does_not_panic();
            all.push((vec!["repair".to_owned()], ended));
            for (words, ended) in all {
                let what = format!("{kind} for {file}, {words:?}: {ended:#?}");
                assert!([0, 2, 3].contains(&ended.status), "{what}");
                // One message, which names the folder of a file.
                assert!(
                    ended.status != 2 || ended.stderr.lines().count() == 1,
                    "{what}"
                );
                let refuses = ["metadata", "streams.json", "summary.json", "repairs.json"];
                if refuses.iter().any(|name| file.ends_with(name)) {
                    assert_eq!(ended.status, 2, "{what}");
                    assert!(ended.stderr.contains("regular file"), "{what}");
                }
                if file.ends_with("stream-1") && words[0] == "report" {
                    assert_eq!(ended.status, 3, "{what}");
                }
            }
            let about = fs::symlink_metadata(&at).unwrap().file_type();
            match kind {
                "fifo" => assert!(about.is_fifo()),
                "folder" => assert!(about.is_dir()),
                "device" => assert!(about.is_char_device()),
                "socket" => assert!(about.is_socket()),
                _ => assert!(about.is_symlink()),
            }
            match kind {
                "folder" => fs::remove_dir(&at).unwrap(),
                _ => fs::remove_file(&at).unwrap(),
            }
            if was_there {
                fs::rename(&kept, &at).unwrap();
            }
        }
    }
    // The same holds for the folders.
    for inner in ["trace", "trace/overhear"] {
        let at = out.join(inner);
        fs::rename(&at, &kept).unwrap();
        symlink(&kept, &at).unwrap();
        for (words, ended) in viewers(&out, folder.path()) {
            assert_eq!(ended.status, 2, "{words:?} {ended:#?}");
            assert!(
                ended.stderr.contains("a symbolic link, not a folder"),
                "{ended:#?}"
            );
        }
        fs::remove_file(&at).unwrap();
        fs::rename(&kept, &at).unwrap();
    }
    let restored = finish(&mut overhear(&["report", path(&out)]));
    assert_eq!(restored.status, 0, "{restored:#?}");
}

/// The maximum memory of a command, in KiB, and its end.
fn with_memory(arguments: &[&str]) -> (Ended, u64) {
    let folder = folder();
    let peak = folder.path().join("peak");
    // `exec` keeps the process, so that its parent's account of ended children has it alone.
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "
import resource, subprocess, sys
ended = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL)
open(sys.argv[1], 'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(ended.returncode)
",
    ]);
    command
        .arg(&peak)
        .arg(env!("CARGO_BIN_EXE_overhear"))
        .args(arguments);
    command.env_remove("OVERHEAR_DIRECTORY");
    let ended = finish(&mut command);
    let kib = fs::read_to_string(&peak).unwrap_or_else(|error| panic!("{error} {ended:#?}"));
    (ended, kib.parse().unwrap())
}

#[test]
fn large_files_take_no_memory() {
    if finish(Command::new("python3").arg("--version")).status != 0 {
        println!("skipped: python3 is not installed");
        return;
    }
    const MOST_KIB: u64 = 128 << 10;
    let folder = folder();
    let constraints = constraints(folder.path());
    let out = folder.path().join("out");
    record(&out);
    let good = folder.path().join("good");
    // Sparse: nothing on disk.
    for file in [
        "metadata",
        "overhear/streams.json",
        "overhear/run.json",
        "overhear/summary.json",
    ] {
        let at = out.join("trace").join(file);
        fs::rename(&at, &good).unwrap();
        File::create(&at).unwrap().set_len(3 << 30).unwrap();
        for verb in ["report", "repair", "metrics"] {
            let (ended, kib) = with_memory(&[verb, path(&out)]);
            // A repair does not read the run.
            if verb != "repair" || !file.ends_with("run.json") {
                ended.has_only_message(2, &[file, "has 3221225472 bytes, more than the"]);
            }
            assert!(kib < MOST_KIB, "{verb} {file}: {kib} KiB");
        }
        fs::rename(&good, &at).unwrap();
    }
    // Documents whose values need more memory than their text: refused by their size, or within the
    // bound.
    let run = out.join("trace/overhear/run.json");
    for (unit, bytes) in [
        ("\"\",", 60 << 20),
        ("{\"a\":0},", 60 << 20),
        ("\"\",", 15 << 20),
        ("{\"a\":0},", 15 << 20),
        ("[[]],", 15 << 20),
        ("\"letters\",", 40 << 20),
    ] {
        let units = unit.repeat(bytes / unit.len());
        fs::write(
            &run,
            format!("{{\"notes\": [{units}\"\"], \"x\": [{units}0]}}"),
        )
        .unwrap();
        for verb in ["report", "metrics", "check"] {
            let config = format!("--config={}", path(&constraints));
            let words = [verb, path(&out), &config];
            let words = if verb == "check" {
                &words[..]
            } else {
                &words[..2]
            };
            let (ended, kib) = with_memory(words);
            ended.does_not_panic();
            assert!(
                kib < MOST_KIB + (64 << 10),
                "{verb} {unit} {bytes}: {kib} KiB {ended:#?}"
            );
        }
    }
}

#[test]
fn readers_need_no_permission_to_write() {
    let folder = folder();
    let out = folder.path().join("out");
    record(&out);
    fs::write(out.join("trace/metadata"), "damaged").unwrap();
    let stream = File::options()
        .write(true)
        .open(out.join("trace/stream-1"))
        .unwrap();
    stream
        .set_len(stream.metadata().unwrap().len() - 3)
        .unwrap();
    let constraints = constraints(folder.path());
    let all = ["report", "metrics", "check", "export"];
    let command = |verb: &str| -> Vec<String> {
        let more: &[&str] = match verb {
            "report" => &["--json"],
            "metrics" => &["--json"],
            "check" => &["--config", path(&constraints)],
            _ => &["--to", "csv", "-o", "-"],
        };
        let words = [&[verb, path(&out)], more].concat();
        words.iter().map(ToString::to_string).collect()
    };
    let run = |user: Option<u32>| -> Vec<(i32, String)> {
        all.iter()
            .map(|verb| {
                let words = command(verb);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let mut command = overhear(&words);
                if let Some(user) = user {
                    command.uid(user).gid(user).current_dir("/");
                }
                let ended = finish(&mut command);
                ended.does_not_panic();
                (ended.status, ended.stdout)
            })
            .collect()
    };
    let expected = run(None);
    let before = content(&out);
    if is_root() {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if crate::support::as_nobody(&["--version"]).is_some() {
            assert_eq!(run(Some(NOBODY)), expected);
            let mut repair = overhear(&["repair", path(&out)]);
            let ended = finish(repair.uid(NOBODY).gid(NOBODY).current_dir("/"));
            ended.has_only_message(5, &["cannot repair", "Permission denied"]);
        }
        let bind = |options: &str| {
            let mut mount = Command::new("mount");
            mount
                .args(["-o", options])
                .args([&out, &out])
                .status()
                .is_ok_and(|it| it.success())
        };
        if bind("bind") {
            let is_read_only = bind("remount,ro,bind");
            let found = run(None);
            let ended = finish(&mut overhear(&["repair", path(&out)]));
            let _ = Command::new("umount").arg(&out).status();
            if is_read_only {
                assert_eq!(found, expected);
                ended.has_only_message(5, &["cannot repair", "Read-only file system"]);
            }
        }
    }
    assert_eq!(content(&out), before);
    // The repair changes no result. The recorder is known to have finished, so the torn part is
    // missing.
    assert_eq!(finish(&mut overhear(&["repair", path(&out)])).status, 3);
    assert_eq!(run(None), expected);
    assert!(content(&out) != before);
}

#[test]
fn unfinished_recording_is_not_repaired() {
    let folder = folder();
    let out = folder.path().join("out");
    let writer = TraceWriter::create(&out, TraceIdentity::default()).unwrap();
    let before = content(&out);
    let ended = finish(&mut overhear(&["repair", path(&out)]));
    ended.has_only_message(2, &["is still being recorded; stop the recorder first"]);
    assert_eq!(content(&out), before);
    drop(writer);
    assert_eq!(finish(&mut overhear(&["repair", path(&out)])).status, 0);
}

#[test]
fn missing_packet_and_changed_array_are_reported_by_every_verb() {
    let folder = folder();
    let good = folder.path().join("good");
    record(&good);
    let own = good.join("trace/overhear");
    let histograms = json!([{"title": "a", "unit": "ns", "buckets": []}]);
    let sealed = overhear_trace::sealed_document(&histograms).unwrap();
    fs::write(own.join("histograms.json"), sealed).unwrap();
    let constraints = constraints(folder.path());
    let csv = folder.path().join("out.csv");
    let verbs = |out: &Path| {
        let report = finish(&mut overhear(&["report", path(out), "--json"]));
        let export = ["export", path(out), "--to", "csv", "-o", path(&csv)];
        let export = finish(&mut overhear(&export));
        let check = ["check", path(out), "--json", "--config", path(&constraints)];
        let check = finish(&mut overhear(&check));
        let report_json: Value = serde_json::from_str(&report.stdout).unwrap();
        let check_json: Value = serde_json::from_str(&check.stdout).unwrap();
        (
            [report.status, export.status, check.status],
            report_json,
            fs::read_to_string(&csv).unwrap(),
            check_json,
        )
    };
    let (statuses, report, rows, _) = verbs(&good);
    assert_eq!(statuses, [0, 0, 0], "{report:#}");
    assert!(!rows.contains("corrupt"));
    let stream = fs::read(good.join("trace/stream-1")).unwrap();
    let all = packets(&stream);
    for cut in 1..all.len() {
        let out = folder.path().join("out");
        copy(&good, &out);
        let left = [&stream[..all[cut].start], &stream[all[cut].end..]].concat();
        fs::write(out.join("trace/stream-1"), left).unwrap();
        let (statuses, report, rows, check) = verbs(&out);
        assert_eq!(statuses, [3, 3, 3], "{cut} {report:#}");
        let losses = report["losses"].as_array().unwrap();
        assert_eq!(losses.len(), 1, "{report:#}");
        assert_eq!(losses[0]["cause"], "corrupt");
        let missed = losses[0]["missed"].as_u64().unwrap();
        // The export has the gap at its place.
        let of_first = rows.lines().filter(|row| row.contains("sensor1"));
        let (gap, elements): (Vec<_>, Vec<_>) = of_first.partition(|row| row.contains("corrupt"));
        assert_eq!(elements.len() as u64 + missed, 100, "{rows}");
        let [row] = gap[..] else {
            panic!("{rows}");
        };
        assert!(row.contains(&format!(",{missed},corrupt")), "{row}");
        assert_eq!(
            check["constraints"][0]["verdict"], "inconclusive",
            "{check:#}"
        );
        fs::remove_dir_all(&out).unwrap();
    }
    // A changed byte in an array is damage, as in any document.
    let out = folder.path().join("out");
    copy(&good, &out);
    let file = out.join("trace/overhear/histograms.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("ns", "us", 1)).unwrap();
    let (statuses, report, ..) = verbs(&out);
    assert_eq!(statuses[..2], [3, 3], "{report:#}");
    assert!(
        report.to_string().contains("histograms.json is damaged"),
        "{report:#}"
    );
}

#[test]
fn results_are_the_same_before_and_after_a_repair() {
    let folder = folder();
    let good = folder.path().join("good");
    record(&good);
    let constraints = constraints(folder.path());
    let lengths: Vec<u64> = [1, 2]
        .map(|id| {
            fs::metadata(good.join(format!("trace/stream-{id}")))
                .unwrap()
                .len()
        })
        .into();
    // A killed recorder has written neither the summary nor the end of the run.
    for is_killed in [true, false] {
        for cut in (0..24_u64).map(|step| step * lengths[0] / 24 + step % 5) {
            let out = folder.path().join("out");
            copy(&good, &out);
            for id in [1, 2] {
                let stream = out.join(format!("trace/stream-{id}"));
                let stream = File::options().write(true).open(stream).unwrap();
                stream
                    .set_len(if id == 1 { cut } else { lengths[1] - cut % 7 })
                    .unwrap();
            }
            if is_killed {
                fs::remove_file(out.join("trace/overhear/summary.json")).unwrap();
                let run = out.join("trace/overhear/run.json");
                let mut json: Value = serde_json::from_slice(&fs::read(&run).unwrap()).unwrap();
                json["end"] = Value::Null;
                fs::write(&run, json.to_string()).unwrap();
            }
            let results = || {
                let report = finish(&mut overhear(&["report", "--json", path(&out)]));
                let metrics = finish(&mut overhear(&["metrics", "--json", path(&out)]));
                let csv = finish(&mut overhear(&[
                    "export",
                    path(&out),
                    "--to",
                    "csv",
                    "-o",
                    "-",
                ]));
                let check = [
                    "check",
                    path(&out),
                    "--json",
                    "--config",
                    path(&constraints),
                ];
                let check = finish(&mut overhear(&check));
                let all = [report, metrics, csv, check];
                all.map(|ended| (ended.status, ended.stdout))
            };
            let before = results();
            assert_eq!(before[0].0, 3, "{cut} {before:#?}");
            let ended = finish(&mut overhear(&["repair", path(&out)]));
            // In a finished recording packets are missing, which no repair brings back.
            let status = if is_killed { 0 } else { 3 };
            assert_eq!(ended.status, status, "{cut} {ended:#?}");
            assert_eq!(results(), before, "{cut}");
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
