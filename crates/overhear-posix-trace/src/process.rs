// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process as a traced one: its area, and the effects of `fork`, `exec` and `exit`.
//!
//! - *Load*: the constructor of the library looks for an area that was inherited over `exec`, and
//!   makes a new one if there is none. It announces the area to the directory, if there is one.
//! - *Fork*: the child shares the area, and is entered as a member of it; the streams of its parent
//!   that children inherit trace it. It controls no stream of its parent.
//! - *Exec*: the descriptor of the area stays open. The new program finds itself in the table of
//!   members and stays traced; the streams that the old program controlled end.
//! - *Spawn*: no handler of `fork` runs, and the new program finds its parent in the table.
//! - *Exit*: streams that the process controls are shut down.

use std::os::fd::{FromRawFd, OwnedFd};

use overhear_stream::sync::{AtomicBool, Ordering};

use crate::area::{Area, AreaLock, Member, FILE_NAME};
use crate::local::{oh_posix_trace_forget_thread_, Local};
use crate::per_process::PerProcess;
use crate::{announcement, clock, private_file, registry, TraceError};

/// The data of this process; a child of `fork` gets its own.
pub(crate) struct Own {
    area: std::sync::Arc<Area>,
    local: Local,
    pid: u32,
}

static OWN: PerProcess<Own> = PerProcess::new();
static HANDLERS: AtomicBool = AtomicBool::new(false);

impl Own {
    /// The area.
    pub(crate) fn area(&self) -> &std::sync::Arc<Area> {
        &self.area
    }

    /// The memory that writes of events read.
    pub(crate) fn local(&self) -> &Local {
        &self.local
    }
}

/// The memory that writes of events read, if the process has an area.
#[inline(always)]
pub(crate) fn local() -> Option<&'static Local> {
    OWN.get().map(Own::local)
}

/// The id of this process as the library has stored it: 0 in a child that was not prepared yet.
#[inline]
pub(crate) fn known_pid() -> u32 {
    local().map_or(0, Local::pid)
}

/// The area of this process. The first call makes it, if the constructor did not.
///
/// # Errors
/// [`TraceError`] `ENOMEM` if the kernel refuses one.
pub(crate) fn own() -> Result<&'static Own, TraceError> {
    match OWN.get() {
        // The id is on a page that is wiped in children: no system call is needed to read it.
        Some(own) if own.local.pid() == own.pid => Ok(own),
        Some(own) if own.pid == std::process::id() => Ok(own),
        // A child that no handler prepared, of a raw `clone`.
        Some(_) => {
            enter_child();
            OWN.get().ok_or_else(no_memory)
        }
        None => begin(std::process::id()),
    }
}

fn no_memory() -> TraceError {
    TraceError::new(
        libc::ENOMEM,
        "there is no memory for the data of the process about its trace area",
    )
}

fn begin(pid: u32) -> Result<&'static Own, TraceError> {
    clock::begin();
    let inherited = is_privileged()
        .then_some(())
        .map_or_else(|| inherited_area(pid), |()| None);
    let area = match inherited {
        Some(area) => area,
        None => {
            let area = Area::create(clock::stamp_clock())?;
            area.lock().map(|lock| area.join(pid, 0, &lock).is_some())?;
            area
        }
    };
    let local = Local::allocate().ok_or_else(no_memory)?;
    let area = std::sync::Arc::new(area);
    let own = OWN.get_or_init(|| Own { area, local, pid });
    own.attach();
    install_handlers();
    announcement::announce(&own.area);
    Ok(own)
}

impl Own {
    /// Lets events of this process go to the streams that trace it.
    fn attach(&'static self) {
        let member = self.area.lock().ok().and_then(|lock| self.member(&lock));
        match member {
            Some(member) => self.local.attach(&self.area, member, self.pid),
            None => self.local.detach(),
        }
    }

    fn member(&'static self, lock: &AreaLock<'_>) -> Option<Member<'static>> {
        self.area.member_of(self.pid, lock)
    }
}

/// Whether the program has rights that its caller does not have.
fn is_privileged() -> bool {
    // SAFETY: the function has no conditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The area of the program that this one replaced, or of the parent that spawned it, if a stream of
/// the parent's traces its children.
fn inherited_area(pid: u32) -> Option<Area> {
    let name = format!("/memfd:{FILE_NAME} (deleted)");
    #[expect(
        clippy::disallowed_methods,
        reason = "a folder of the kernel, not of a recording"
    )]
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers: Vec<i32> = entries
        .flatten()
        .filter(|entry| {
            #[expect(clippy::disallowed_methods, reason = "a link of the kernel")]
            let target = std::fs::read_link(entry.path());
            target.is_ok_and(|target| target.as_os_str() == name.as_str())
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.into_iter().find_map(|number| {
        // SAFETY: an open descriptor that this library made in the previous program; no other code
        // of the new program has its number.
        let file = unsafe { OwnedFd::from_raw_fd(number) };
        continue_in(file, pid)
    })
}

/// Enters this process into an area, if it is a member, or if its parent's streams are inherited.
fn continue_in(file: OwnedFd, pid: u32) -> Option<Area> {
    let area = Area::open(file, true).ok()?;
    let lock = area.lock().ok()?;
    // The streams of the previous program have no controller any more.
    area.sweep(&lock);
    if area.member_of(pid, &lock).is_none() {
        let parent = rustix::process::getppid()?.as_raw_nonzero().get() as u32;
        let mask = area.inherited_mask(area.member_of(parent, &lock)?);
        if mask == 0 {
            return None;
        }
        area.join(pid, mask, &lock)?;
    }
    drop(lock);
    Some(area)
}

fn install_handlers() {
    if !HANDLERS.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler has the right type, does not unwind, and stays loaded as long as the
        // library. Without memory for the registration, children are not traced.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

unsafe extern "C" fn in_child() {
    enter_child();
}

/// Enters the child of a fork. Takes no lock of the parent's threads.
fn enter_child() {
    private_file::close_in_child();
    oh_posix_trace_forget_thread_();
    registry::forget();
    clock::forget();
    let Some(parent) = OWN.get() else {
        return;
    };
    let area = parent.area.for_child();
    let pid = std::process::id();
    let mut is_traced = false;
    if let Ok(lock) = area.lock() {
        let mask = area
            .member_of(parent.pid, &lock)
            .map_or(0, |member| area.inherited_mask(member));
        is_traced = mask != 0;
        let _ = area.join(pid, mask, &lock);
    }
    OWN.set(Own {
        area: std::sync::Arc::new(area),
        local: parent.local.for_child(),
        pid,
    });
    if let Some(own) = OWN.get() {
        own.attach();
        // Most children call `exec` at once; the others are found by their parent's area.
        if is_traced {
            announcement::announce_child(&own.area);
        }
    }
}

/// When the library is loaded.
#[no_mangle]
extern "C" fn oh_posix_trace_load_() {
    // Without an area the program runs on, untraced, and `posix_trace_create` gives the reason.
    let _ = own();
}

/// When the program exits, or the library is unloaded.
#[no_mangle]
extern "C" fn oh_posix_trace_unload_() {
    let Some(own) = OWN.get().filter(|own| own.pid == std::process::id()) else {
        return;
    };
    registry::shut_down_all();
    own.local.detach();
    if let Ok(lock) = own.area.lock() {
        if let Some(member) = own.member(&lock) {
            member.leave();
        }
    };
}
