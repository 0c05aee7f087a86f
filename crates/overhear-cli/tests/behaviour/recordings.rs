// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear report` on damaged recordings, and on folders that are no recordings.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{finish, folder, overhear, path, report_json, Ended};

#[track_caller]
fn report(directory: &Path) -> Ended {
    let ended = finish(&mut overhear(&["report", path(directory)]));
    ended.does_not_panic();
    ended
}

/// A recording with kernel elements, or without them if kernel sensors do not work.
fn record(out: &Path) {
    let arguments = [
        "run",
        "--out",
        path(out),
        "--",
        "sh",
        "-c",
        "for i in 1 2 3; do /bin/true; done",
    ];
    let ended = finish(&mut overhear(&arguments));
    assert_eq!(ended.status, 0, "{ended:#?}");
}

/// Every file of the recording but the page.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            found.extend(files(&file));
        } else if !file.ends_with("report.html") {
            found.push(file);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

#[test]
fn folder_without_recording_is_named_as_such() {
    let folder = folder();
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no recording").unwrap();
    let other = folder.path().join("other");
    fs::create_dir_all(other.join("trace")).unwrap();
    fs::write(other.join("trace/metadata"), "/* CTF 1.8 */").unwrap();
    report(&file).has_only_message(2, &["is a file", "no POSIX trace log", path(&file)]);
    for directory in [folder.path().join("missing"), empty, other] {
        report(&directory)
            .has_only_message(2, &["is not a trace of Overhear", "give the directory"]);
        assert!(
            !directory.join("trace/overhear").exists(),
            "something was made"
        );
    }
}

#[test]
fn page_can_be_written_elsewhere_or_fails_with_a_reason() {
    let folder = folder();
    let out = folder.path().join("out");
    record(&out);
    let page = folder.path().join("page.html");
    let html = |page: &Path| finish(&mut overhear(&["report", path(&out), "--html", path(page)]));
    assert_eq!(html(&page).status, 0);
    assert!(fs::read_to_string(&page)
        .unwrap()
        .starts_with("<!doctype html>"));
    html(Path::new("/nonexistent/page.html"))
        .has_message(2, &["cannot write /nonexistent/page.html"]);
    let json = "--json=/nonexistent/report.json";
    let ended = finish(&mut overhear(&["report", path(&out), json]));
    ended.has_only_message(2, &["cannot write /nonexistent/report.json"]);
}

#[test]
fn page_is_written_to_devices_but_not_through_links() {
    use std::os::unix::fs::{symlink, FileTypeExt};
    let folder = folder();
    let out = folder.path().join("out");
    record(&out);
    let html = |page: &Path| finish(&mut overhear(&["report", path(&out), "--html", path(page)]));
    let is_page = |page: &Path| {
        fs::read_to_string(page)
            .unwrap()
            .starts_with("<!doctype html>")
    };

    let target = folder.path().join("elsewhere/page.html");
    fs::create_dir(target.parent().unwrap()).unwrap();
    fs::write(&target, "an old page").unwrap();
    let link = folder.path().join("link.html");
    symlink("elsewhere/page.html", &link).unwrap();
    html(&link).has_message(2, &["link.html", "symbolic link, which is not followed"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), "an old page");
    assert_eq!(html(&target).status, 0);
    assert!(is_page(&target));
    // No half-written file is left.
    assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);

    // A device such as /dev/null, which root must not replace by a page.
    let device = folder.path().join("null");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &device,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from(0o666),
        rustix::fs::makedev(1, 3),
    );
    if made.is_err() || fs::write(&device, "").is_err() {
        println!("skipped: only root can make a device, on a file system that allows it");
        return;
    }
    let link = folder.path().join("link-to-device");
    symlink(&device, &link).unwrap();
    for page in [&device, &link] {
        let ended = html(page);
        assert_eq!(ended.status, 0, "{ended:#?}");
        let kind = fs::symlink_metadata(&device).unwrap().file_type();
        assert!(kind.is_char_device(), "{kind:?}");
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&device).unwrap(), b"");
}

/// Pseudo-random numbers, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap()
    }
}

/// Damages each file in turn, several times, and reads the recording.
fn damaged(times: usize, mut damage: impl FnMut(&mut Vec<u8>, &mut Chance)) {
    let folder = folder();
    let good = folder.path().join("good");
    record(&good);
    let mut chance = Chance(0x2545_F491_4F6C_DD1D);
    for file in files(&good) {
        let name = file.strip_prefix(&good).unwrap();
        for round in 0..times {
            let bad = folder.path().join("bad");
            copy(&good, &bad);
            let mut bytes = fs::read(&file).unwrap();
            damage(&mut bytes, &mut chance);
            fs::write(bad.join(name), bytes).unwrap();
            // Twice: after the repair it is read again.
            for attempt in 0..2 {
                let ended = report(&bad);
                let what = format!("{} {round} {attempt}: {ended:#?}", name.display());
                assert!([0, 2, 3].contains(&ended.status), "{what}");
                let messages = ended
                    .stderr
                    .lines()
                    .all(|line| line.starts_with("overhear: "));
                assert!(messages, "{what}");
                assert!(
                    ended.status != 2 || ended.stderr.lines().count() >= 1,
                    "{what}"
                );
                // It never exits with 0 and without data.
                assert!(
                    ended.status != 0 || ended.stdout.contains("complete:"),
                    "{what}"
                );
                assert!(
                    ended.status != 3 || ended.stdout.contains("INCOMPLETE"),
                    "{what}"
                );
                let repaired = finish(&mut overhear(&["repair", path(&bad)]));
                repaired.does_not_panic();
                assert!([0, 2, 3].contains(&repaired.status), "{what} {repaired:#?}");
            }
            fs::remove_dir_all(&bad).unwrap();
        }
    }
}

#[test]
fn flipped_bits_in_any_file_crash_nothing() {
    damaged(12, |bytes, chance| {
        for _ in 0..=chance.below(3) {
            if !bytes.is_empty() {
                let at = chance.below(bytes.len());
                bytes[at] ^= 1 << chance.below(8);
            }
        }
    });
}

#[test]
fn overwritten_and_truncated_files_crash_nothing() {
    damaged(4, |bytes, chance| {
        let at = chance.below(bytes.len());
        match chance.below(3) {
            0 => bytes.truncate(at),
            1 => bytes[at..].fill(0xff),
            _ => bytes.splice(at..at, [0; 24]).for_each(drop),
        }
    });
}

#[test]
fn truncated_stream_is_reported_and_repaired() {
    let folder = folder();
    let out = folder.path().join("out");
    record(&out);
    let (_, whole) = report_json(&out);
    let streams = files(&out).into_iter().filter(|file| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.starts_with("stream-") && fs::metadata(file).unwrap().len() > 100
    });
    let Some(stream) = streams.max_by_key(|file| fs::metadata(file).unwrap().len()) else {
        println!("skipped: the kernel cannot be observed, so nothing was recorded");
        return;
    };
    let length = fs::metadata(&stream).unwrap().len();
    fs::File::options()
        .write(true)
        .open(&stream)
        .unwrap()
        .set_len(length - 10)
        .unwrap();
    // A killed recorder has not written the ends of the streams: no missing element is known.
    fs::remove_file(out.join("trace/overhear/ends.json")).unwrap();
    let name = stream.file_name().unwrap().to_string_lossy().into_owned();
    let before = fs::read(&stream).unwrap();
    let ended = report(&out);
    ended.has_message(
        3,
        &["half written is left out", "`overhear repair` cuts it"],
    );
    assert!(ended.stdout.contains(&name), "{ended:#?}");
    let (again, cut) = report_json(&out);
    let events = |report: &serde_json::Value| report["trace"]["events"].as_u64().unwrap();
    assert!(events(&cut) < events(&whole), "{again:#?}");
    assert_eq!(fs::read(&stream).unwrap(), before, "a viewer has written");
    let repaired = finish(&mut overhear(&["repair", path(&out)]));
    assert_eq!(repaired.status, 0, "{repaired:#?}");
    assert!(repaired.stdout.contains("cut the torn tails of 1 stream"));
    assert!(fs::metadata(&stream).unwrap().len() < before.len() as u64);
    let (same, after) = report_json(&out);
    assert_eq!((after, same.stderr), (cut, String::new()));
    let again = finish(&mut overhear(&["repair", path(&out)]));
    assert!(
        again.stdout.ends_with(": nothing to repair\n"),
        "{again:#?}"
    );
}
