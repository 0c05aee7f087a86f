// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a command on a terminal of its own.

#![allow(
    dead_code,
    reason = "two test binaries include this file, neither uses all of it"
)]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use crate::support::{eventually, wait};

/// A command on a terminal of its own.
pub(crate) struct OnTerminal {
    pub(crate) child: Child,
    pub(crate) keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reading: std::thread::JoinHandle<()>,
}

impl OnTerminal {
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_in(100, command)
    }

    /// On a terminal of so many columns.
    pub(crate) fn spawn_in(columns: u16, mut command: Command) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        let size = libc::winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: both numbers are writable; the other arguments may be null.
        let opened = unsafe {
            libc::openpty(
                &raw mut ours,
                &raw mut theirs,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: two open descriptors that nobody else knows.
        let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
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
        let reading = std::thread::spawn(move || {
            let mut some = [0; 4096];
            // An error, not an end, says that the other side has closed.
            while let Ok(count) = screen.read(&mut some) {
                if count == 0 {
                    break;
                }
                all.lock().unwrap().extend(&some[..count]);
            }
        });
        Self {
            child,
            keyboard,
            shown,
            reading,
        }
    }

    /// Everything that was written so far.
    pub(crate) fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until these words were written.
    #[track_caller]
    pub(crate) fn shows(&self, words: &str) {
        eventually(&format!("the screen shows {words:?}"), || {
            self.screen().contains(words)
        });
    }

    pub(crate) fn end(mut self) -> (i32, String) {
        let status = wait(&mut self.child);
        self.reading.join().unwrap();
        let shown = self.shown.lock().unwrap();
        (status, String::from_utf8_lossy(&shown).into_owned())
    }
}
