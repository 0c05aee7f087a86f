// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace areas: announced by processes, opened by others as the rules permit, kept over a restart,
//! and hostile announcements.
#![cfg(feature = "daemon")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use overhear_directory::areas::{
    open_of_process_at, publish_at, AreaEvent, AreaFeed, OpenAreaError,
};
use overhear_directory::client::RegisterError;
use overhear_directory::{AreaAccess, AreaRecord, Directory, LinkError, MonitorConnection, Query};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use serde_json::{json, Value};

use support::manager::Manager;
use support::users::{directory_of_root, is_root, socket, Other, ALICE, MALLORY};
use support::{eventually, register_patiently, Raw, TestDirectory};

const BYTES: u64 = 1 << 20;

/// A file as the library of a traced process makes it.
fn area() -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("test-area", flags).unwrap();
    rustix::fs::ftruncate(&file, BYTES).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).unwrap();
    file
}

fn reopened(file: impl AsFd, access: OFlags) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Whether the client gave up because it had to wait.
fn is_late(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::TimedOut
}

/// Announces an area; the client times out on a busy machine, and tries again.
#[track_caller]
fn publish(socket: &Path, area: &OwnedFd) {
    let result = eventually(
        || publish_at(socket, area),
        |result| !matches!(result, Err(RegisterError::Unreachable { source, .. }) if is_late(source)),
    );
    result.unwrap();
}

#[track_caller]
fn open(socket: &Path, pid: u32, access: AreaAccess) -> Result<OwnedFd, OpenAreaError> {
    let result = eventually(
        || open_of_process_at(socket, pid, access),
        |result| !matches!(result, Err(OpenAreaError::Link(LinkError::Unreachable { source, .. })) if is_late(source)),
    );
    result.map(|opened| opened.file)
}

/// The areas that this user may read.
fn areas(socket: &Path) -> Vec<AreaRecord> {
    let mut feed = AreaFeed::connect(socket).unwrap();
    let events = feed.poll_existing().unwrap();
    let opened = events.into_iter().filter_map(|event| match event {
        AreaEvent::Opened(opened) => Some(opened.record),
        AreaEvent::Changed(_) | AreaEvent::Ended(_) => None,
    });
    opened.collect()
}

fn read_at_start(file: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 5];
    rustix::io::pread(file, &mut *bytes, 0).unwrap();
    bytes
}

/// A process of this program that announces an area and waits for the end of its input.
struct Traced {
    child: Child,
    // Kept open: the test harness writes its result.
    _output: BufReader<ChildStdout>,
}

impl Traced {
    #[track_caller]
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_with_an_area", "--nocapture"])
            .env("AREA_DIRECTORY", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("announced") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0);
        }
        Self {
            child,
            _output: output,
        }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[test]
fn child_with_an_area() {
    let Some(socket) = std::env::var_os("AREA_DIRECTORY") else {
        return;
    };
    let area = area();
    rustix::io::pwrite(&area, b"child", 0).unwrap();
    publish(Path::new(&socket), &area);
    println!("announced");
    std::io::stdout().flush().unwrap();
    let _ = std::io::read_to_string(std::io::stdin());
}

#[test]
fn announced_area_is_opened_for_reading_or_control() {
    let here = TestDirectory::standalone();
    let own = std::process::id();
    let missing = open(&here.socket(), own, AreaAccess::Read).unwrap_err();
    assert!(
        matches!(missing, OpenAreaError::NoArea(pid) if pid == own),
        "{missing}"
    );
    let area = area();
    rustix::io::pwrite(&area, b"hello", 0).unwrap();
    publish(&here.socket(), &area);
    let reader = open(&here.socket(), own, AreaAccess::Read).unwrap();
    assert_eq!(read_at_start(&reader), b"hello");
    assert!(rustix::io::pwrite(&reader, b"x", 0).is_err());
    let map = |protection| {
        // SAFETY: a fresh map at an address of the kernel's choice, which nothing uses.
        unsafe {
            let flags = rustix::mm::MapFlags::SHARED;
            rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, &reader, 0)
        }
    };
    assert!(map(rustix::mm::ProtFlags::READ).is_ok());
    let writable = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    assert_eq!(map(writable), Err(rustix::io::Errno::ACCESS));
    let control = open(&here.socket(), own, AreaAccess::Control).unwrap();
    rustix::io::pwrite(&control, b"HELLO", 0).unwrap();
    assert_eq!(read_at_start(&area), b"HELLO");
    let ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    let _ = ended.wait_with_output();
    let missing = open(&here.socket(), pid, AreaAccess::Control).unwrap_err();
    assert!(
        matches!(missing, OpenAreaError::NoProcess(found) if found == pid),
        "{missing}"
    );
    let missing = open(&here.socket(), u32::MAX, AreaAccess::Read).unwrap_err();
    assert!(matches!(missing, OpenAreaError::NoProcess(_)), "{missing}");
    // Announced again it is the same; another one replaces it.
    publish(&here.socket(), &area);
    let first = areas(&here.socket());
    assert_eq!((first.len(), first[0].members[0].pid), (1, own));
    let other = self::area();
    publish(&here.socket(), &other);
    let second = areas(&here.socket());
    assert_eq!(second.len(), 1);
    assert_ne!(first[0].area, second[0].area);
    assert_eq!(second[0].bytes, BYTES);
}

#[test]
fn feed_gets_areas_that_appear_and_end() {
    let here = TestDirectory::start();
    let mut remote = AreaFeed::connect(&here.socket()).unwrap();
    let mut embedded = AreaFeed::embedded(&here.directory);
    assert!(remote.poll_existing().unwrap().is_empty() && embedded.poll().is_empty());
    let traced = Traced::start(&here.socket());
    let pid = traced.child.id();
    for feed in [&mut remote, &mut embedded] {
        let opened = eventually(|| feed.poll(), |events| !events.is_empty());
        let AreaEvent::Opened(opened) = &opened[0] else {
            panic!("{opened:?}");
        };
        assert_eq!(opened.record.members[0].pid, pid);
        assert_eq!(read_at_start(&opened.file), b"child");
        assert!(feed.poll().is_empty());
    }
    traced.end();
    for feed in [&mut remote, &mut embedded] {
        let ended = eventually(|| feed.poll(), |events| !events.is_empty());
        assert!(matches!(ended[..], [AreaEvent::Ended(_)]), "{ended:?}");
    }
    // It is retained: a monitor that comes now still reads it.
    let retained = areas(&here.socket());
    assert!(retained.len() == 1 && retained[0].ended, "{retained:?}");
    let missing = open(&here.socket(), pid, AreaAccess::Control).unwrap_err();
    assert!(matches!(missing, OpenAreaError::NoProcess(_)), "{missing}");
}

#[test]
fn area_is_closed_after_the_retention_time() {
    let retention = std::time::Duration::from_millis(1);
    let here = TestDirectory::with(Directory::builder().standalone().retention(retention));
    Traced::start(&here.socket()).end();
    eventually(|| areas(&here.socket()), Vec::is_empty);
    let status = here.directory.status();
    assert_eq!((status.bytes, status.sensors), (0, 0));
}

#[test]
fn members_share_an_area() {
    let here = TestDirectory::standalone();
    let area = area();
    publish(&here.socket(), &area);
    let socket = here.socket();
    // SAFETY: the child only uses this thread; it ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let result = publish_at(&socket, &area);
        // SAFETY: ends the child without handlers of the test program.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let pid = child.unsigned_abs();
    let mut status = 0;
    // SAFETY: waits for the child of this test.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    let left = eventually(
        || areas(&here.socket()),
        |areas| areas.len() == 1 && areas[0].members.len() == 1,
    );
    assert!(!left[0].ended && left[0].members[0].pid != pid);
}

#[test]
fn areas_outlive_a_killed_directory() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let area = area();
    rustix::io::pwrite(&area, b"hello", 0).unwrap();
    publish(&manager.socket, &area);
    let living = Traced::start(&manager.socket);
    let dying = Traced::start(&manager.socket);
    let before = areas(&manager.socket);
    assert_eq!(before.len(), 3);
    let mut feed = AreaFeed::connect(&manager.socket).unwrap();
    assert_eq!(feed.poll_existing().unwrap().len(), 3);
    manager.kill();
    let dead = dying.child.id();
    dying.end();
    manager.start();
    let after = eventually(|| areas(&manager.socket), |after| after.len() == 3);
    let numbers = |areas: &[AreaRecord]| areas.iter().map(|it| it.area).collect::<Vec<_>>();
    assert_eq!(numbers(&before), numbers(&after));
    let ended: Vec<bool> = after.iter().map(|area| area.ended).collect();
    assert_eq!(ended, [false, false, true]);
    assert_eq!(after[2].members[0].pid, dead);
    // A monitor gets only what has changed.
    let ended = eventually(|| feed.poll(), |events| !events.is_empty());
    assert!(matches!(ended[..], [AreaEvent::Ended(_)]), "{ended:?}");
    let reader = open(&manager.socket, std::process::id(), AreaAccess::Read).unwrap();
    assert_eq!(read_at_start(&reader), b"hello");
    // Another restart: the journal of the second directory has them as well.
    manager.kill();
    manager.start();
    assert_eq!(areas(&manager.socket).len(), 3);
    living.end();
    let none_alive = |areas: &Vec<AreaRecord>| areas.iter().filter(|it| !it.ended).count() == 1;
    eventually(|| areas(&manager.socket), none_alive);
    // Numbers are not reused.
    let new = self::area();
    publish(&manager.socket, &new);
    let newest = areas(&manager.socket).pop().unwrap();
    assert!(!numbers(&before).contains(&newest.area));
}

#[test]
fn wrong_announcements_are_refused_with_a_message() {
    let here = TestDirectory::standalone();
    let packet = json!({ "publish_area": { "version": 1 } }).to_string();
    let refused = |files: &[&OwnedFd]| {
        let raw = Raw::connect(&here.socket());
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        assert!(raw.send_with_files(packet.as_bytes(), &files));
        let (answer, file) = raw.receive();
        assert!(file.is_none());
        let message = answer["refused"]["message"].as_str();
        message
            .unwrap_or_else(|| panic!("not refused: {answer}"))
            .to_string()
    };
    let good = area();
    let reader = reopened(&good, OFlags::RDONLY);
    let (one, other) = rustix::pipe::pipe().unwrap();
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
    let folder = rustix::fs::open("/", OFlags::RDONLY, Mode::empty()).unwrap();
    let socket = reopened(&good, OFlags::PATH);
    let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, BYTES).unwrap();
    rustix::fs::fchmod(&unsealed, Mode::RUSR | Mode::WUSR).unwrap();
    let unsealed_reader = reopened(&unsealed, OFlags::RDONLY);
    for (files, words) in [
        (vec![&good], "with 1 files"),
        (vec![&good, &good], "open for reading"),
        (vec![&reader, &good], "open for reading"),
        (vec![&one, &other], "no memory file"),
        (vec![&null, &null], "no memory file"),
        (vec![&folder, &folder], "no memory file"),
        (vec![&socket, &socket], "no memory file"),
        (vec![&unsealed, &unsealed_reader], "must be sealed"),
        (vec![&good, &unsealed_reader], "must be sealed"),
    ] {
        let message = refused(&files);
        assert!(message.contains(words), "{words}: {message}");
    }
    let raw = Raw::connect(&here.socket());
    raw.is_refused(
        &json!({ "publish_area": { "version": 1 } }),
        &["with 0 files"],
    );
    let raw = Raw::connect(&here.socket());
    raw.is_refused(&json!({ "publish_area": { "version": 2 } }), &["version 2"]);
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&json!({ "open_area": { "version": 1, "access": "read" } })));
    assert_eq!(raw.receive().0, json!({ "no_area": "not_announced" }));
    assert!(raw.send(&json!({ "open_area": { "version": 1, "area": 77, "access": "control" } })));
    assert_eq!(raw.receive().0, json!({ "no_area": "not_announced" }));
    raw.is_refused(
        &json!({ "open_area": { "version": 1, "area": 1, "access": "execute" } }),
        &["not understood"],
    );
    assert!(areas(&here.socket()).is_empty());
    // A refusal is listed like that of a sensor.
    let listed = MonitorConnection::connect(&here.socket())
        .unwrap()
        .not_connected()
        .unwrap();
    assert!(
        listed.iter().any(|it| it.sensor == "posix-trace"),
        "{listed:?}"
    );
    publish(&here.socket(), &good);
    assert_eq!(areas(&here.socket()).len(), 1);
}

/// Bytes that the kernel has allocated count, also those that appear later.
#[test]
fn pages_of_an_area_count_as_memory_of_buffers() {
    let here = TestDirectory::with(Directory::builder().quota_bytes(512 << 10).standalone());
    let area = area();
    publish(&here.socket(), &area);
    assert_eq!(here.directory.status().bytes, 0);
    rustix::io::pwrite(&area, &vec![1; 100_000], 0).unwrap();
    eventually(|| here.directory.status().bytes, |bytes| *bytes >= 100_000);
    // More than the quota: the directory closes the area, with a message.
    rustix::io::pwrite(&area, &vec![1; 600 << 10], 0).unwrap();
    eventually(|| here.directory.status().bytes, |bytes| *bytes == 0);
    assert!(areas(&here.socket()).is_empty());
    let lost = here.directory.status().not_connected;
    assert_eq!(lost, 1);
    let again = publish_at(&here.socket(), &area).unwrap_err().to_string();
    assert!(again.contains("left of the quota"), "{again}");
}

/// Retained areas make room for sensors.
#[test]
fn retained_area_is_closed_for_a_new_sensor() {
    let settings = "[quota]\ntotal_sensors = 40\nsensors = 10\n";
    let mut manager = Manager::new(&[]);
    let file = manager.folder.path().join("directory.toml");
    std::fs::write(&file, settings).unwrap();
    manager.arguments = vec!["--config".to_string(), file.display().to_string()];
    manager.start();
    for _ in 0..12 {
        Traced::start(&manager.socket).end();
    }
    let retained = areas(&manager.socket);
    assert!(retained.len() <= 10 && !retained.is_empty());
    let kept: Vec<_> = (0..10)
        .map(|number| register_patiently(&manager.socket, &format!("sensor {number}")).unwrap())
        .collect();
    assert!(kept.iter().all(|sensor| !sensor.is_deferred()));
    assert!(areas(&manager.socket).is_empty());
}

const RULES: &str = r#"
[[rule]]
title = "alice may read what mallory traces"
permit = ["attach"]
users = [61234]
owners = [65534]
sensors = "*/posix-trace"
"#;

#[test]
fn rules_decide_about_areas_of_other_users() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root(RULES);
    let own = area();
    publish(&manager.socket, &own);
    let mallory = Other::prepare(MALLORY, "mallory_is_traced", &manager.socket);
    let mallory = mallory.begin("traced");
    let all = areas(&manager.socket);
    assert_eq!(all.len(), 2, "root sees all: {all:?}");
    let of_mallory = all.iter().find(|area| area.uid == MALLORY).unwrap();
    let pid = of_mallory.members[0].pid;
    let mut alice = Other::prepare(ALICE, "alice_reads", &manager.socket);
    alice.env("AREA_OF_MALLORY", &pid.to_string());
    alice.env("AREA_OF_ROOT", &std::process::id().to_string());
    alice.start().passes();
    open(&manager.socket, pid, AreaAccess::Control).unwrap();
    drop(mallory);
}

#[test]
fn mallory_is_traced() {
    let Some(socket) = socket() else { return };
    let area = area();
    publish(&socket, &area);
    println!("@ traced");
    let _ = std::io::read_to_string(std::io::stdin());
}

#[test]
fn alice_reads() {
    let Some(socket) = socket() else { return };
    let pid = |name| std::env::var(name).unwrap().parse::<u32>().unwrap();
    let (mallory, root) = (pid("AREA_OF_MALLORY"), pid("AREA_OF_ROOT"));
    let readable = areas(&socket);
    assert_eq!(readable.len(), 1);
    assert_eq!(readable[0].members[0].pid, mallory);
    let file = open(&socket, mallory, AreaAccess::Read).unwrap();
    // Neither as it is nor opened again.
    assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    assert!(rustix::fs::open(path, OFlags::RDWR, Mode::empty()).is_err());
    let refused = open(&socket, mallory, AreaAccess::Control).unwrap_err();
    let words = "user 61234 may not create trace streams in processes of user 65534";
    assert!(refused.to_string().contains(words), "{refused}");
    // The same answer for a process with an area and one without.
    for pid in [root, 1] {
        for access in [AreaAccess::Read, AreaAccess::Control] {
            let refused = open(&socket, pid, access).unwrap_err();
            assert!(
                matches!(refused, OpenAreaError::Refused { .. }),
                "{refused}"
            );
        }
    }
    // The area of another user is not hers, even though she has a descriptor.
    let raw = Raw::connect(&socket);
    let packet = json!({ "publish_area": { "version": 1 } }).to_string();
    assert!(raw.send_with_files(packet.as_bytes(), &[file.as_fd(), file.as_fd()]));
    let answer = raw.receive().0;
    let message = answer["refused"]["message"].as_str().unwrap();
    assert!(message.contains("must belong to user 61234"), "{message}");
}

/// One user announces without end; another one is served.
#[test]
fn flood_of_announcements_leaves_others_alone() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("[quota]\ntotal_sensors = 400\nsensors = 100\n");
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{}/fd", manager.pid()))
            .unwrap()
            .count()
    };
    let before = descriptors();
    let mallory = Other::start(MALLORY, "mallory_floods", &manager.socket);
    let own = area();
    publish(&manager.socket, &own);
    assert!(open(&manager.socket, std::process::id(), AreaAccess::Read).is_ok());
    register_patiently(&manager.socket, "a sensor of root").unwrap();
    let others = areas(&manager.socket)
        .into_iter()
        .filter(|area| area.uid == MALLORY);
    assert!(others.count() <= 100);
    mallory.passes();
    // Mallory's process has ended: what it announced last is retained, and all else is closed.
    let left = eventually(|| areas(&manager.socket), |areas| areas.len() <= 2);
    assert!(left.len() <= 2);
    eventually(descriptors, |now| *now <= before + 12);
    let status = MonitorConnection::connect(&manager.socket)
        .unwrap()
        .list(&Query::all());
    assert!(status.is_ok());
}

#[test]
fn mallory_floods() {
    let Some(socket) = socket() else { return };
    let packet = json!({ "publish_area": { "version": 1 } }).to_string();
    let one = area();
    let reader = reopened(&one, OFlags::RDONLY);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let mut kept = Vec::new();
    for number in 0..600 {
        let raw = Raw::connect(&socket);
        let new = area();
        let new_reader = reopened(&new, OFlags::RDONLY);
        let files = match number % 3 {
            0 => [one.as_fd(), reader.as_fd()],
            1 => [new.as_fd(), new_reader.as_fd()],
            _ => [pipe.as_fd(), pipe.as_fd()],
        };
        raw.send_with_files(packet.as_bytes(), &files);
        match number % 5 {
            0 => {
                assert_ne!(raw.receive().0, Value::Null);
            }
            _ => kept.push(raw),
        }
        if kept.len() > 40 {
            kept.clear();
        }
    }
    // Every other request ignores files.
    let raw = Raw::connect(&socket);
    let list = json!({ "list_areas": { "version": 1 } }).to_string();
    assert!(raw.send_with_files(list.as_bytes(), &[pipe.as_fd(), one.as_fd()]));
    let answer: Value = raw.receive().0;
    assert!(
        answer["areas"].is_object() || answer["refused"].is_object(),
        "{answer}"
    );
}
