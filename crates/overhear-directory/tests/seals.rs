// SPDX-License-Identifier: MIT OR Apache-2.0
//! After the hand-over nobody can map a stream for writing, write it, or change its size: not the
//! program that kept the file, not root (`DESIGN` decision 5).

mod support;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use overhear_directory::Mapping;
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use serde_json::json;

use support::{register_packet, Here, Raw};

/// Maps a file as asked and says what the kernel thinks of it; a map that is granted is undone.
fn map(file: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<(), Errno> {
    // SAFETY: a fresh map at an address of the kernel's choice, unmapped before anyone uses it.
    unsafe {
        let base = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )?;
        rustix::mm::munmap(base, bytes)
    }
}

/// Maps a file for reading and asks for the right to write afterwards.
fn map_and_raise(file: impl AsFd, bytes: usize) -> Result<(), Errno> {
    // SAFETY: as in `map`; raising the rights of a fresh map changes nothing else.
    unsafe {
        let base = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )?;
        let raised = rustix::mm::mprotect(base, bytes, MprotectFlags::READ | MprotectFlags::WRITE);
        rustix::mm::munmap(base, bytes)?;
        raised
    }
}

/// Everything that would change the stream through this descriptor.
fn is_sealed(file: &OwnedFd, bytes: usize) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    assert_eq!(
        map(file, bytes, ProtFlags::READ),
        Ok(()),
        "reading is allowed"
    );
    assert_eq!(map(file, bytes, both), Err(Errno::PERM));
    assert_eq!(map(file, bytes, ProtFlags::WRITE), Err(Errno::PERM));
    assert_eq!(map_and_raise(file, bytes), Err(Errno::ACCESS));
    assert_eq!(rustix::io::pwrite(file, &[1; 8], 64), Err(Errno::PERM));
    assert_eq!(rustix::io::write(file, &[1; 8]), Err(Errno::PERM));
    let size = bytes as u64;
    for other in [0, size - 4096, size + 4096] {
        assert_eq!(rustix::fs::ftruncate(file, other), Err(Errno::PERM));
    }
    let keep = FallocateFlags::KEEP_SIZE;
    let hole = keep | FallocateFlags::PUNCH_HOLE;
    assert_eq!(rustix::fs::fallocate(file, hole, 0, 4096), Err(Errno::PERM));
    let grow = FallocateFlags::empty();
    assert_eq!(
        rustix::fs::fallocate(file, grow, 0, size + 4096),
        Err(Errno::PERM)
    );
    assert_eq!(
        rustix::fs::fcntl_add_seals(file, SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn nobody_can_change_a_stream_behind_its_writers_back() {
    let here = Here::start();
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
    // A descriptor opened anew is no better, if it can be had at all.
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
fn seals_bind_an_ordinary_user_too() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the other test ran as an ordinary user already");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "nobody_can_change_a_stream_behind_its_writers_back",
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
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}
