// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timer interrupts a program continuously, as profilers do. The program waits for a directory no
//! longer than any other: every wait lasts for the rest of the client's timeout, not for all of it
//! again.

mod support;

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use overhear_directory::client::{register_at, RegisterError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use support::request;

/// Longer than registration may take on any machine: a longer wait would never end.
const WATCHDOG: Duration = Duration::from_secs(30);

/// Exit statuses of the child.
const GAVE_UP_HEARING: i32 = 10;
const GAVE_UP: i32 = 11;
const OTHERWISE: i32 = 12;

/// Writes to descriptor 1, which is the test's pipe, when the timer expires.
extern "C" fn struck(_: libc::c_int) {
    // SAFETY: errno belongs to the thread; it is restored, because the interrupted code may read
    // it. One byte is read from a constant.
    unsafe {
        let errno = *libc::__errno_location();
        let _ = libc::write(1, b"!".as_ptr().cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// A timer of 50 ms, whose handler requests the restart of system calls.
fn be_interrupted() {
    // SAFETY: all-zero bytes are a valid action and a valid timer; the handler makes
    // async-signal-safe calls only; the pointers are valid during the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = struck as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()),
            0
        );
        let mut timer: libc::itimerval = std::mem::zeroed();
        timer.it_interval.tv_usec = 50_000;
        timer.it_value.tv_usec = 50_000;
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()),
            0
        );
    }
}

fn register_interrupted(socket: &Path) -> i32 {
    be_interrupted();
    match register_at(socket, request("interrupted")) {
        Err(RegisterError::Unreachable {
            action: "receive from",
            ..
        }) => GAVE_UP_HEARING,
        Err(_) => GAVE_UP,
        Ok(_) => OTHERWISE,
    }
}

/// Registers in a child, whose only thread receives the timer's signals. Returns the child's exit
/// status and the number of expiries.
#[track_caller]
fn in_a_child(socket: &Path) -> (i32, usize) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child uses its copies of this thread's memory; the C library makes its allocator
    // usable there, and the child takes no other lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: a system call without memory.
        unsafe { libc::dup2(write.as_raw_fd(), 1) };
        let status = std::panic::catch_unwind(|| register_interrupted(socket));
        // SAFETY: ends the child without running the exit handlers of the harness.
        unsafe { libc::_exit(status.unwrap_or(OTHERWISE)) };
    }
    drop(write);
    let begun = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the status is writable; the child is ours and has not been waited for.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if begun.elapsed() > WATCHDOG => {
                // SAFETY: as above; it is a child until it has been waited for.
                unsafe {
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, &raw mut status, 0);
                }
                panic!("registration does not return under an interval timer");
            }
            0 => std::thread::sleep(Duration::from_millis(5)),
            pid => {
                assert_eq!(pid, child, "{}", std::io::Error::last_os_error());
                break;
            }
        }
    }
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    let mut strikes = Vec::new();
    std::fs::File::from(read).read_to_end(&mut strikes).unwrap();
    (libc::WEXITSTATUS(status), strikes.len())
}

fn seqpacket(flags: SocketFlags) -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A directory that accepts this number of connections and never answers.
fn mute(socket: &Path, room: i32) -> OwnedFd {
    let mute = seqpacket(SocketFlags::CLOEXEC);
    rustix::net::bind(&mute, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    rustix::net::listen(&mute, room).unwrap();
    mute
}

#[test]
fn mute_directory_is_given_up_under_an_interval_timer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("mute.sock");
    let _mute = mute(&socket, 8);
    let (status, strikes) = in_a_child(&socket);
    assert_eq!(status, GAVE_UP_HEARING);
    assert!(strikes > 0, "nothing was interrupted");
}

#[test]
fn directory_without_room_is_given_up_under_an_interval_timer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("full.sock");
    let _mute = mute(&socket, 0);
    // Connections that are not accepted, until the next one would have to wait.
    let mut waiting = Vec::new();
    loop {
        let connection = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match rustix::net::connect(&connection, &SocketAddrUnix::new(&socket).unwrap()) {
            Ok(()) => waiting.push(connection),
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let (status, strikes) = in_a_child(&socket);
    assert_eq!(status, GAVE_UP);
    assert!(strikes > 0, "nothing was interrupted");
}
