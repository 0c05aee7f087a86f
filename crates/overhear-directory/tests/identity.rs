// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peer is identified when its connection is accepted: no process can use the id of another one
//! that has ended, or drop groups afterwards.
#![cfg(feature = "daemon")]

mod support;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use overhear_directory::{MonitorConnection, Query};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

use support::users::{directory_of_root, is_root, MALLORY};
use support::{register_packet, Raw};

/// A child that does something as another user and ends; returns its number.
fn child(act: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child makes system calls only and ends without returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls without memory that is shared.
        unsafe {
            let became = libc::setgid(MALLORY) == 0 && libc::setuid(MALLORY) == 0;
            libc::_exit(i32::from(!(became && act())));
        }
    }
    child
}

#[track_caller]
fn wait_for(child: i32) {
    let mut status = 0;
    // SAFETY: the status is writable, and the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 0);
}

/// A process of root, until dropped.
struct Victim(i32);

impl Victim {
    /// Starts one with this number; `None` if the number is in use.
    fn with_pid(pid: i32) -> Option<Self> {
        // The kernel's `struct clone_args`: the fifth word is the signal, the ninth the numbers.
        let mut arguments = [0_u64; 11];
        arguments[4] = u64::from(libc::SIGCHLD.unsigned_abs());
        arguments[8] = (&raw const pid).addr() as u64;
        arguments[9] = 1;
        // SAFETY: as `fork`: the child makes system calls alone and never returns.
        let child = unsafe {
            libc::syscall(
                libc::SYS_clone3,
                arguments.as_ptr(),
                std::mem::size_of_val(&arguments),
            )
        };
        if child == 0 {
            loop {
                // SAFETY: waits for a signal; the parent ends it.
                unsafe { libc::pause() };
            }
        }
        i32::try_from(child)
            .ok()
            .filter(|child| *child > 0)
            .map(Self)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // SAFETY: the child is ours until it has been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

fn seqpacket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// The answer to a registration that comes after its process has ended.
#[track_caller]
fn register_late(socket: &Path) -> (Value, Victim) {
    for _ in 0..20 {
        let connection = seqpacket();
        let address = SocketAddrUnix::new(socket).unwrap();
        let pid = child(|| rustix::net::connect(&connection, &address).is_ok());
        wait_for(pid);
        // It is accepted before it sends anything.
        let status = br#"{"status":{"version":1}}"#;
        rustix::net::send(&connection, status, SendFlags::NOSIGNAL).unwrap();
        let mut answer = vec![0; 1 << 16];
        rustix::net::recv(&connection, &mut answer[..], RecvFlags::empty()).unwrap();
        let Some(victim) = Victim::with_pid(pid) else {
            continue;
        };
        let packet = register_packet("borrowed").to_string();
        rustix::net::send(&connection, packet.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let (bytes, _) =
            rustix::net::recv(&connection, &mut answer[..], RecvFlags::empty()).unwrap();
        return (serde_json::from_slice(&answer[..bytes]).unwrap(), victim);
    }
    panic!("others took each number first");
}

#[test]
fn process_that_has_ended_cannot_register_as_the_one_that_got_its_number() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("");
    let (answer, _victim) = register_late(&manager.socket);
    let message = answer["refused"]["message"].as_str();
    let message = message.unwrap_or_else(|| panic!("not refused: {answer}"));
    assert!(message.contains("its process has ended"), "{message}");
    let mut root = MonitorConnection::connect(&manager.socket).unwrap();
    assert!(root.list(&Query::all()).unwrap().is_empty());
}

#[test]
fn last_of_very_many_groups_counts() {
    const STAFF: u32 = 4711;
    if !is_root() {
        return;
    }
    let rule = "[[rule]]\ntitle = 'not the staff'\nforbid = ['register']\ngroups = [4711]\n";
    let manager = directory_of_root(rule);
    let register = |groups: &[u32]| {
        let connection = seqpacket();
        let address = SocketAddrUnix::new(&manager.socket).unwrap();
        let child = child_with(groups, || {
            rustix::net::connect(&connection, &address).is_ok()
        });
        let raw = Raw::of(connection);
        assert!(raw.send(&register_packet("of a member")));
        let answer = raw.receive().0;
        child.end();
        answer.to_string()
    };
    let others: Vec<u32> = (10_000..13_000).collect();
    let all: Vec<u32> = others.iter().copied().chain([STAFF]).collect();
    let forbidden = "the rule \\\"not the staff\\\" forbids it";
    assert!(register(&all).contains(forbidden), "{}", register(&all));
    assert!(register(&[STAFF]).contains(forbidden));
    assert!(
        register(&others).contains("granted"),
        "{}",
        register(&others)
    );
}

/// A child that lives until it is ended.
struct Living(i32, OwnedFd);

impl Living {
    fn end(self) {
        drop(self.1);
        wait_for(self.0);
    }
}

/// A child of another user in these groups, which does something and waits for its end.
#[track_caller]
fn child_with(groups: &[u32], act: impl FnOnce() -> bool) -> Living {
    let (wait, end) = rustix::pipe::pipe().unwrap();
    let (done, signal) = rustix::pipe::pipe().unwrap();
    let (end_raw, done_raw) = (end.as_raw_fd(), done.as_raw_fd());
    // SAFETY: root may do this; the groups are those of this thread's process until the line below.
    let before: Vec<u32> = rustix::process::getgroups()
        .unwrap()
        .iter()
        .map(|group| group.as_raw())
        .collect();
    // SAFETY: the array has the length that is passed. A child inherits the groups, and they are
    // restored at once.
    unsafe { assert_eq!(libc::setgroups(groups.len(), groups.as_ptr()), 0) };
    let child = child(|| {
        // SAFETY: descriptors of this process, which it does not use.
        unsafe { (libc::close(end_raw), libc::close(done_raw)) };
        let good = act();
        let _ = rustix::io::write(&signal, b"!");
        let _ = rustix::io::read(&wait, &mut [0_u8; 1]);
        good
    });
    // SAFETY: as above.
    unsafe { assert_eq!(libc::setgroups(before.len(), before.as_ptr()), 0) };
    rustix::io::read(&done, &mut [0_u8; 1]).unwrap();
    Living(child, end)
}
