// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that is run: held before its `exec` until it is tracked, and always reaped.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{
    kill_process, pidfd_open, waitid, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions,
};

use crate::conclusion::Exit;
use crate::error::{ErrorKind, SessionError, Setting};
use crate::signals::Inherited;

/// The destination of the program's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// The standard output of this process.
    Inherited,
    /// The standard error of this process, whose standard output carries a document.
    ToStderr,
}

/// A child that has not executed the program yet.
pub(crate) struct Held {
    program: OsString,
    pid: u32,
    // A byte written to it releases the child; closing it ends the child.
    release: OwnedFd,
    spawning: JoinHandle<io::Result<Child>>,
}

impl Held {
    /// Forks a child and holds it just before `exec`.
    ///
    /// `Command::spawn` returns only after the `exec`, so it runs in a thread of its own while the
    /// child waits for the release.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        output: Output,
    ) -> Result<Self, SessionError> {
        let [program, arguments @ ..] = command else {
            return Err(SessionError::new(
                ErrorKind::Usage,
                "no program is given; name it with its arguments",
            )
            .about(Setting::Command));
        };
        let fail = |error: io::Error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot start {}: {error}", program.display()),
            )
        };
        // If SIGCHLD is ignored, which a parent may pass on to us, the kernel reaps the program
        // itself, and its exit status is lost.
        if crate::interrupts::ignores("self", libc::SIGCHLD) {
            // SAFETY: the default action of a signal runs no code.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(errno.into()));
        let (pid_read, pid_write) = pipe()?;
        let (go_read, go_write) = pipe()?;
        let found = found_in_path(program).ok_or_else(|| not_found(program))?;
        let mut command = Command::new(found);
        command
            .arg0(program)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        if output == Output::ToStderr {
            let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(fail)?;
            command.stdout(Stdio::from(stderr));
        }
        let inherited = Inherited::get();
        let parent_end = go_write.as_raw_fd();
        let hold = move || {
            // Between fork and exec: system calls only, no allocation.
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            rustix::io::write(&pid_write, &pid.to_ne_bytes())?;
            let mut go = [0];
            // SAFETY: this is the child, which alone has this copy of the parent's end. If it
            // stayed open, the child would wait for ever after a parent that is killed now.
            unsafe { rustix::io::close(parent_end) };
            let go = rustix::io::retry_on_intr(|| rustix::io::read(&go_read, &mut go))?;
            inherited.restore();
            match go {
                0 => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                _ => Ok(()),
            }
        };
        // SAFETY: `hold` calls nothing but async-signal-safe system calls.
        unsafe { command.pre_exec(hold) };
        let spawning = std::thread::Builder::new()
            .name("oh-spawn".to_string())
            .spawn(move || {
                let child = command.spawn();
                // Closes the child's ends in this process, so that a failure before the hold is
                // seen by the reader of the pid.
                drop(command);
                child
            })
            .map_err(fail)?;
        let mut pid = [0; 4];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&pid_read, &mut pid));
        let pid = i32::from_ne_bytes(pid).unsigned_abs();
        let held = Self {
            program: program.clone(),
            pid,
            release: go_write,
            spawning,
        };
        match read {
            Ok(4) => Ok(held),
            // The fork itself failed.
            _ => match held.join() {
                Err(failure) => Err(failure),
                Ok(_) => Err(fail(io::Error::other("the child did not report"))),
            },
        }
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the child execute the program.
    pub(crate) fn release(self) -> Result<Running, SessionError> {
        // If the child has been killed meanwhile, the join returns the error.
        let _ = rustix::io::write(&self.release, &[1]);
        let pid = self.pid;
        let child = self.join()?;
        let pid = Pid::from_raw(pid.cast_signed());
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Running {
            child,
            pid,
            process,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "the file of a program")]
    fn join(self) -> Result<Child, SessionError> {
        let program = self.program;
        drop(self.release);
        let spawned = self
            .spawning
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the spawning thread failed")));
        spawned.map_err(|error| {
            let name = program.display();
            match error.kind() {
                io::ErrorKind::NotFound => not_found(&program),
                io::ErrorKind::PermissionDenied if Path::new(&program).is_dir() => {
                    SessionError::new(
                        ErrorKind::NotRunnable,
                        format!("cannot run {name}: it is a directory; name a program in it"),
                    )
                }
                io::ErrorKind::PermissionDenied => SessionError::new(
                    ErrorKind::NotRunnable,
                    format!("cannot run {name}: it is not executable; see `chmod +x`"),
                ),
                _ => SessionError::new(
                    ErrorKind::NotRunnable,
                    format!("cannot run {name}: {error}"),
                ),
            }
        })
    }
}

pub(crate) fn not_found(program: &OsStr) -> SessionError {
    let name = program.display();
    SessionError::new(
        ErrorKind::NotFound,
        format!("cannot run {name}: there is no such program; check the name and PATH"),
    )
}

/// The file of a program, as `execvp` finds it: a name without `/` is looked up in PATH. The lookup
/// is done here, because in the child each missing file would be a failed execve of the program.
#[expect(clippy::disallowed_methods, reason = "files of programs")]
pub(crate) fn found_in_path(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    // The default of the C library without PATH.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    // An empty name of a folder is the current one.
    let in_folder = |folder| Path::new(".").join(folder).join(program);
    let files = std::env::split_paths(&path).map(in_folder);
    let files: Vec<PathBuf> = files.filter(|file| file.is_file()).collect();
    let may_run = |file: &&PathBuf| {
        rustix::fs::accessat(CWD, *file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    // Without an executable file, the first one gives the reason of the failure.
    files.iter().find(may_run).or(files.first()).cloned()
}

/// The running program.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pid: Option<Pid>,
    // Readable once the program has ended; `None` where the kernel is too old for it.
    process: Option<OwnedFd>,
}

impl Running {
    /// Waits until the program has ended, but not longer than this.
    pub(crate) fn wait(&self, longest: Duration) {
        let Some(process) = &self.process else {
            return std::thread::sleep(longest);
        };
        let nanos = longest.subsec_nanos();
        let timeout = Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: nanos.into(),
        };
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
    }

    /// Whether the program has ended. It stays a zombie, so that its last statistics can be read.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pid) = self.pid else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Sends a signal. It has no effect on a program that has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether the program ignores SIGINT, as programs that a shell started in the background do.
    pub(crate) fn ignores_interrupts(&self) -> bool {
        crate::interrupts::ignores(&self.child.id().to_string(), libc::SIGINT)
    }

    /// Reaps the program, and returns how it ended.
    pub(crate) fn reap(mut self) -> Result<Exit, SessionError> {
        let status = self.child.wait();
        status.map(Exit::from_status).map_err(|error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot read the exit status of the program: {error}"),
            )
        })
    }
}
