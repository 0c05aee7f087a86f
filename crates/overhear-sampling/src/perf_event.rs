// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call `perf_event_open`, which rustix does not have.
//!
//! Counters use it here, kernel sensors in the crate above. Constants have the names of
//! `linux/perf_event.h`.

#![allow(missing_docs, reason = "the constants are the kernel's")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

pub const PERF_TYPE_HARDWARE: u32 = 0;
pub const PERF_TYPE_SOFTWARE: u32 = 1;
pub const PERF_TYPE_TRACEPOINT: u32 = 2;
pub const PERF_TYPE_HW_CACHE: u32 = 3;
pub const PERF_TYPE_RAW: u32 = 4;
pub const PERF_FORMAT_GROUP: u64 = 1 << 3;
pub const FLAG_DISABLED: u64 = 1 << 0;
pub const FLAG_INHERIT: u64 = 1 << 1;
pub const FLAG_PINNED: u64 = 1 << 2;
pub const FLAG_EXCLUDE_USER: u64 = 1 << 4;
pub const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
pub const FLAG_EXCLUDE_HV: u64 = 1 << 6;
pub const FLAG_ENABLE_ON_EXEC: u64 = 1 << 12;

const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::Ioctl = 0x2401;

/// `struct perf_event_attr` as of version 3 (96 bytes), the first with `clockid`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventAttributes {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub breakpoint_type: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clock_id: i32,
}

const _: () = assert!(size_of::<EventAttributes>() == 96);

impl EventAttributes {
    /// An event of this type and number; everything else is zero.
    #[must_use]
    pub const fn new(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config,
            sample_period: 0,
            sample_type: 0,
            read_format: 0,
            flags: 0,
            wakeup_events: 0,
            breakpoint_type: 0,
            config1: 0,
            config2: 0,
            branch_sample_type: 0,
            sample_regs_user: 0,
            sample_stack_user: 0,
            clock_id: 0,
        }
    }
}

/// Opens an event. `pid` is 0 for the calling thread and -1 for all; `cpu` is `None` for all. With
/// a `leader` the event joins its group.
///
/// # Errors
/// The kernel's.
pub fn open_event(
    attributes: &EventAttributes,
    pid: libc::pid_t,
    cpu: Option<u32>,
    leader: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, Errno> {
    let cpu = cpu.map_or(-1, |cpu| cpu as libc::c_int);
    let leader = leader.map_or(-1, |leader| leader.as_raw_fd());
    // SAFETY: `attributes` is a valid perf_event_attr that states its own size; the kernel reads
    // it during the call and keeps no pointer.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            pid,
            cpu,
            leader,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the call succeeded, so this is a new file descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Starts or stops an event and its inherited copies. A leader starts or stops its group.
pub fn set_enabled(event: BorrowedFd<'_>, enabled: bool) {
    let request = if enabled {
        PERF_EVENT_IOC_ENABLE
    } else {
        PERF_EVENT_IOC_DISABLE
    };
    // SAFETY: the descriptor is open; the request takes no memory, only a flag. It cannot fail
    // for an event that was opened.
    let _ = unsafe { libc::ioctl(event.as_raw_fd(), request, 0) };
}

/// The value of `kernel.perf_event_paranoid`, for error messages.
#[must_use]
pub fn perf_event_paranoid() -> Option<i32> {
    let value = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    value.trim().parse().ok()
}

/// The error of the thread's last system call.
#[must_use]
pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
