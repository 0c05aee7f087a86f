// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a command on a terminal of its own.

#![allow(
    dead_code,
    reason = "two test binaries include this file, neither uses all of it"
)]

use std::fs::File;
use std::io::{pipe, PipeWriter, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::event::{poll, PollFd, PollFlags};

use crate::support::{eventually, wait};

/// A command on a terminal of its own.
pub(crate) struct OnTerminal {
    pub(crate) child: Child,
    pub(crate) keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    // Dropped to end the reader before the command ends.
    stop: PipeWriter,
    reading: std::thread::JoinHandle<()>,
}

impl OnTerminal {
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_in(100, command)
    }

    /// On a terminal with this number of columns.
    pub(crate) fn spawn_in(columns: u16, mut command: Command) -> Self {
        let (ours, theirs) = pty(columns);
        let raw = theirs.as_raw_fd();
        let login = move || {
            // SAFETY: in the child, which has the descriptor; system calls only. It becomes the
            // standard descriptors and the controlling terminal of a new session.
            match unsafe { libc::login_tty(raw) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: `login` makes async-signal-safe calls only.
        unsafe { command.pre_exec(login) };
        let child = command.spawn().unwrap();
        drop(theirs);
        let keyboard = File::from(ours);
        let mut screen = keyboard.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&shown);
        let (stopped, stop) = pipe().unwrap();
        let reading = std::thread::spawn(move || {
            let mut some = [0; 4096];
            loop {
                let mut both = [
                    PollFd::new(&screen, PollFlags::IN),
                    PollFd::new(&stopped, PollFlags::IN),
                ];
                let _ = poll(&mut both, None);
                if !both[1].revents().is_empty() {
                    break;
                }
                // If the other side is closed, a read returns an error here, not the end of the
                // file.
                match screen.read(&mut some) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => all.lock().unwrap().extend(&some[..count]),
                }
            }
        });
        Self {
            child,
            keyboard,
            shown,
            stop,
            reading,
        }
    }

    /// The complete output until now.
    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the output contains this text.
    #[track_caller]
    pub(crate) fn shows(&self, words: &str) {
        eventually(&format!("the screen shows {words:?}"), || {
            self.screen().contains(words)
        });
    }

    /// Closes the terminal's other side, as a lost connection does, and waits for the end of the
    /// command.
    #[track_caller]
    pub(crate) fn hang_up(self) -> i32 {
        let Self {
            mut child,
            keyboard,
            stop,
            reading,
            ..
        } = self;
        drop(stop);
        reading.join().unwrap();
        drop(keyboard);
        wait(&mut child)
    }

    pub(crate) fn end(mut self) -> (i32, String) {
        let status = wait(&mut self.child);
        self.reading.join().unwrap();
        let shown = self.shown.lock().unwrap();
        (status, String::from_utf8_lossy(&shown).into_owned())
    }
}

/// Both sides of a new terminal of this width. Processes that another thread starts meanwhile must
/// not inherit them: they would keep the terminal open.
#[track_caller]
fn pty(columns: u16) -> (OwnedFd, OwnedFd) {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: a system call without memory; the result is checked.
    let ours = unsafe { libc::posix_openpt(flags) };
    assert!(ours >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: an open descriptor that no other owner has.
    let ours = unsafe { OwnedFd::from_raw_fd(ours) };
    // SAFETY: system calls on an open descriptor, and one of them opens another.
    let theirs = unsafe {
        assert_eq!(libc::unlockpt(ours.as_raw_fd()), 0);
        libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags)
    };
    assert!(theirs >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as above.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
    let size = rustix::termios::Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&theirs, size).unwrap();
    (ours, theirs)
}
