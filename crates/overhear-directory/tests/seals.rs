// SPDX-License-Identifier: MIT OR Apache-2.0
//! After the hand-over no process can map a stream for writing, write it, or change its size:
//! neither the program that kept the file, nor root.

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use overhear_directory::Mapping;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;

use support::attempts::{can_only_be_read, is_sealed};
use support::{register_packet, Raw, TestDirectory};

#[test]
fn sealed_stream_cannot_be_changed_by_others() {
    let here = TestDirectory::start();
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&register_packet("sealed")));
    let (answer, file) = raw.receive();
    let file = file.unwrap();
    let granted = &answer["granted"];
    let number = |name: &str| granted[name].as_u64().unwrap() as usize;
    let bytes = rustix::fs::fstat(&file).unwrap().st_size as usize;
    assert!(bytes >= 4096 + number("stride") * number("capacity"));
    // Until the hand-over is acknowledged the program may map it, and does.
    let mapping = Mapping::writable(&file, bytes).unwrap();
    assert!(raw.send(&json!("mapped")));
    assert_eq!(raw.receive().0, json!("sealed"));

    is_sealed(&file, bytes);
    // A descriptor that is opened again has no more rights, if it can be opened at all.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(again) = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()) {
        is_sealed(&again, bytes);
    }
    let cut = rustix::fs::open(&path, OFlags::RDWR | OFlags::TRUNC, Mode::empty());
    assert_eq!(cut.map(drop), Err(Errno::PERM));
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size as usize, bytes);

    // The writer's own map goes on working, and readers see what it writes.
    let readers = Mapping::read_only(&file, bytes).unwrap();
    let at = 4096;
    // SAFETY: both maps are at least a page and a word long, and only this thread uses them.
    let seen = unsafe {
        mapping.base().as_ptr().add(at).write_volatile(0x5a);
        readers.base().as_ptr().add(at).read_volatile()
    };
    assert_eq!(seen, 0x5a);
}

#[test]
fn monitor_cannot_change_its_streams() {
    let here = TestDirectory::standalone();
    let registration = here.register("watched");
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&json!({ "attach": { "version": 1, "query": {} } })));
    let (attached, clock) = raw.receive();
    assert!(attached["attached"]["directory"].is_u64(), "{attached}");
    let (opened, file) = raw.receive();
    assert_eq!(opened["opened"]["sensor"]["kind"], "simple");
    let (file, bytes) = (file.unwrap(), registration.shape.bytes());
    is_sealed(&file, bytes);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(again) = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()) {
        is_sealed(&again, bytes);
    }
    // The clock page, if there is one.
    if let Some(clock) = clock {
        let bytes = rustix::fs::fstat(&clock).unwrap().st_size as usize;
        can_only_be_read(&clock, bytes);
    }
}

#[test]
fn program_can_only_read_its_control_page() {
    let here = TestDirectory::start();
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&register_packet("switched")));
    let (granted, files) = raw.receive_all();
    assert!(granted["granted"]["line"].is_u64(), "{granted}");
    let [_, control] = &files[..] else {
        panic!("{files:?}");
    };
    let bytes = rustix::fs::fstat(control).unwrap().st_size as usize;
    can_only_be_read(control, bytes);
    let path = format!("/proc/self/fd/{}", control.as_raw_fd());
    let again = rustix::fs::open(&path, OFlags::RDWR, Mode::empty());
    // The mode binds all users that the kernel checks.
    if !rustix::process::geteuid().is_root() {
        assert_eq!(again.map(drop), Err(Errno::ACCESS));
    }
}

#[test]
fn seals_bind_an_ordinary_user_too() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the other tests ran as an ordinary user already");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "sealed_stream_cannot_be_changed_by_others",
            "monitor_cannot_change_its_streams",
            "program_can_only_read_its_control_page",
        ])
        .uid(65_534)
        .gid(65_534)
        .current_dir("/")
        .env("TMPDIR", "/tmp");
    let Ok(output) = command.output() else {
        println!("skipped: another user may not run this test");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("3 passed"),
        "{text}"
    );
}
