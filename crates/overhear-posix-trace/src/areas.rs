// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the area of a process by its id: the memory through which it is traced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_directory::areas::{open_of_process, OpenAreaError};
use overhear_directory::AreaAccess;

use crate::area::{forked_from, Area};
use crate::process;
use crate::TraceError;

/// A process that is to be traced.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) area: Arc<Area>,
    pub(crate) pid: u32,
}

/// The area of a process; 0 is the calling one.
///
/// The process itself and its family (the processes that came from one another by `fork` since the
/// library was loaded) share an area. Others are found through the directory.
///
/// # Errors
/// [`TraceError`] `ESRCH` if there is no such process, `EPERM` if the caller may not trace it or it
/// does not have the library, `ENOMEM` if this process has no area itself.
pub(crate) fn area_of_process(pid: i32) -> Result<Target, TraceError> {
    let own = process::own()?;
    let caller = std::process::id();
    let pid = match pid {
        0 => caller,
        _ => u32::try_from(pid).map_err(|_| no_process(pid))?,
    };
    if own.area().has_member(pid)? || joins_soon(own.area(), pid)? {
        if pid != caller {
            may_signal(pid)?;
        }
        let area = Arc::clone(own.area());
        return Ok(Target { area, pid });
    }
    if pid == caller {
        return Err(TraceError::new(
            libc::ENOMEM,
            "the trace area of the process has no room for another process",
        ));
    }
    area_of_stranger(pid)
}

/// Longest time in which a child enters itself into the area. A loaded machine needs much less.
const MAX_JOIN_WAIT: Duration = Duration::from_secs(1);
const JOIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Whether a process is a child of the family that enters itself now: `fork` returns in the parent
/// before the child has done so.
fn joins_soon(area: &Area, pid: u32) -> Result<bool, TraceError> {
    let begun = Instant::now();
    while is_fork_of(area, pid)? && begun.elapsed() < MAX_JOIN_WAIT {
        if area.has_member(pid)? {
            return Ok(true);
        }
        std::thread::sleep(JOIN_POLL_INTERVAL);
    }
    Ok(false)
}

fn is_fork_of(area: &Area, pid: u32) -> Result<bool, TraceError> {
    forked_from(pid).map_or(Ok(false), |parent| area.has_member(parent))
}

/// The area of a process outside of the family: the directory's rules decide.
fn area_of_stranger(pid: u32) -> Result<Target, TraceError> {
    // Works without a directory, too. The directory decides whether the caller may trace the
    // process.
    if let Err(error) = may_signal(pid) {
        if error.errno == libc::ESRCH {
            return Err(error);
        }
    }
    let opened = open_of_process(pid, AreaAccess::Control).map_err(|error| {
        let errno = match error {
            OpenAreaError::NoProcess(_) => libc::ESRCH,
            _ => libc::EPERM,
        };
        TraceError::new(errno, error)
    })?;
    let area = Area::open(opened.file, true).map_err(|error| {
        let message = format!("process {pid} cannot be traced: {error}");
        TraceError::new(libc::EPERM, message)
    })?;
    match area.has_member(pid)? || joins_soon(&area, pid)? {
        true => Ok(Target {
            area: Arc::new(area),
            pid,
        }),
        false => Err(TraceError::new(libc::EPERM, OpenAreaError::NoArea(pid))),
    }
}

/// Whether this process may trace another one: as it may send it signals.
fn may_signal(pid: u32) -> Result<(), TraceError> {
    let number = pid as i32;
    // SAFETY: a system call without memory; signal 0 is not sent.
    if unsafe { libc::kill(number, 0) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH) => Err(no_process(number)),
        _ => Err(TraceError::new(
            libc::EPERM,
            format!("the caller may not trace process {pid}"),
        )),
    }
}

fn no_process(pid: i32) -> TraceError {
    TraceError::new(libc::ESRCH, format!("there is no process {pid}"))
}
