// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rights of a process that reads a foreign trace.
//!
//! It keeps what it needs: its open descriptors, and the files below the trace for reading. Each
//! step that the kernel does not offer is left out: the process is isolated from the importing one
//! in any case.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use syscalls::{syscall, Sysno};

/// Limit of private memory. The library keeps an index of all packets, some 100 bytes each.
const MAX_MEMORY_BYTES: u64 = 1 << 30;

// Flags of `landlock_create_ruleset` and kinds of rules (linux/landlock.h).
const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
const ACCESS_READ_FILE: u64 = 1 << 2;
const ACCESS_READ_DIR: u64 = 1 << 3;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Rights that this version of Landlock can deny, and the bytes of [`RulesetAttributes`] that it
/// knows.
fn deniable(version: usize) -> (RulesetAttributes, usize) {
    let access_bits = match version {
        1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let attributes = RulesetAttributes {
        handled_access_fs: (1 << access_bits) - 1,
        handled_access_net: if version >= 4 { 0b11 } else { 0 },
        scoped: if version >= 6 { 0b11 } else { 0 },
    };
    let bytes = match version {
        ..4 => 8,
        4 | 5 => 16,
        _ => 24,
    };
    (attributes, bytes)
}

/// Gives up all rights that are not needed to read the trace at this path.
///
/// # Errors
/// Errors of the kernel; a missing feature is none.
pub(super) fn confine(path: &Path) -> io::Result<()> {
    let limit = |resource, bytes| {
        let bound = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        rustix::process::setrlimit(resource, bound)
    };
    limit(Resource::Core, 0)?;
    // No file grows; pipes have no size.
    limit(Resource::Fsize, 0)?;
    let memory = rustix::process::getrlimit(Resource::Data);
    let memory = memory
        .current
        .map_or(MAX_MEMORY_BYTES, |it| it.min(MAX_MEMORY_BYTES));
    limit(Resource::Data, memory)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_no_new_privs(true)?;
    // Root reads the traces of all users.
    let held = rustix::thread::capabilities(None)?;
    let kept = CapabilitySet::DAC_READ_SEARCH;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & kept,
            permitted: held.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    restrict_files(path)
}

/// Denies all files but those below `path` for reading, and, where the kernel can, connections and
/// signals to other processes.
fn restrict_files(path: &Path) -> io::Result<()> {
    // SAFETY: With this flag no attributes are read; the call returns a number.
    let version = unsafe { syscall!(Sysno::landlock_create_ruleset, 0, 0, CREATE_RULESET_VERSION) };
    let Ok(version @ 1..) = version else {
        return Ok(());
    };
    let (attributes, bytes) = deniable(version);
    let failed = |error: syscalls::Errno| io::Error::from_raw_os_error(error.into_raw());
    // SAFETY: The attributes live during the call, and have these bytes.
    let ruleset = unsafe {
        syscall!(
            Sysno::landlock_create_ruleset,
            std::ptr::from_ref(&attributes),
            bytes,
            0
        )
    };
    let ruleset = i32::try_from(ruleset.map_err(failed)?).map_err(io::Error::other)?;
    // SAFETY: The kernel has just returned it, and nothing else owns it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Without a folder there is nothing to read, which the reader reports.
    if let Ok(folder) = rustix::fs::open(path, flags, Mode::empty()) {
        let rule = PathBeneath {
            allowed_access: ACCESS_READ_FILE | ACCESS_READ_DIR,
            parent_fd: folder.as_raw_fd(),
        };
        // SAFETY: The rule lives during the call, and has the type of its kind; both descriptors
        // are open.
        unsafe {
            syscall!(
                Sysno::landlock_add_rule,
                ruleset.as_raw_fd(),
                RULE_PATH_BENEATH,
                std::ptr::from_ref(&rule),
                0
            )
        }
        .map_err(failed)?;
    }
    // SAFETY: The descriptor is that of a set of rules.
    unsafe { syscall!(Sysno::landlock_restrict_self, ruleset.as_raw_fd(), 0) }.map_err(failed)?;
    Ok(())
}
