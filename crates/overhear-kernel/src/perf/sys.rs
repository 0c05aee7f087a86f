// SPDX-License-Identifier: MIT OR Apache-2.0
//! The events of kernel sensors.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use overhear_sampling::perf_event::{
    last_error, open_event, EventAttributes, FLAG_DISABLED, FLAG_EXCLUDE_KERNEL, FLAG_INHERIT,
    PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT,
};
use rustix::io::{read, Errno};

use crate::machine;

const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_PAGE_FAULTS: u64 = 2;
const PERF_COUNT_SW_PAGE_FAULTS_MIN: u64 = 5;
const PERF_COUNT_SW_PAGE_FAULTS_MAJ: u64 = 6;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_TIME: u64 = 1 << 2;
const PERF_SAMPLE_CPU: u64 = 1 << 7;
const PERF_FORMAT_LOST: u64 = 1 << 4;
const FLAG_MMAP: u64 = 1 << 8;
const FLAG_COMM: u64 = 1 << 9;
const FLAG_TASK: u64 = 1 << 13;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_COMM_EXEC: u64 = 1 << 24;
const FLAG_USE_CLOCK_ID: u64 = 1 << 25;
const FLAG_CONTEXT_SWITCH: u64 = 1 << 26;
const PERF_EVENT_IOC_SET_OUTPUT: libc::Ioctl = 0x2405;

/// The thread that an event observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A thread.
    Thread {
        /// Id of the thread.
        tid: u32,
        /// Observe the threads that it creates, too.
        inherit: bool,
        /// Do not record before the event is enabled.
        disabled: bool,
    },
    /// No thread: the event only owns a ring that others write to. It is opened on the calling
    /// thread with all properties of a real event, so it also shows whether that is permitted.
    Anchor,
}

/// Opens an event that counts nothing and records switches, forks, exits, names, and mappings of
/// code.
///
/// Kernel events are excluded, although none are counted: otherwise users without privileges may
/// not open the event.
pub(super) fn open(target: Target, cpu: u32) -> Result<OwnedFd, Errno> {
    match open_with(target, cpu, PERF_FORMAT_LOST) {
        // Linux 6.0 added the count of lost records; before, only the records report losses.
        Err(Errno::INVAL) => open_with(target, cpu, 0),
        other => other,
    }
}

fn open_with(target: Target, cpu: u32, read_format: u64) -> Result<OwnedFd, Errno> {
    let (pid, extra) = match target {
        Target::Thread {
            tid,
            inherit,
            disabled,
        } => {
            let inherit = if inherit { FLAG_INHERIT } else { 0 };
            let disabled = if disabled { FLAG_DISABLED } else { 0 };
            (tid as libc::pid_t, inherit | disabled)
        }
        Target::Anchor => (0, FLAG_DISABLED),
    };
    let attributes = EventAttributes {
        sample_type: PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CPU,
        read_format,
        flags: extra
            | FLAG_EXCLUDE_KERNEL
            | FLAG_MMAP
            | FLAG_COMM
            | FLAG_TASK
            | FLAG_SAMPLE_ID_ALL
            | FLAG_COMM_EXEC
            | FLAG_USE_CLOCK_ID
            | FLAG_CONTEXT_SWITCH,
        clock_id: libc::CLOCK_MONOTONIC,
        ..EventAttributes::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY)
    };
    open_event(&attributes, pid, Some(cpu), None)
}

/// Opens the events of a CPU for served page faults: the minor ones and the major ones. A program
/// that is attached to them is called for each fault.
pub(crate) fn served_faults(cpu: u32) -> Result<[OwnedFd; 2], Errno> {
    let open = |config| {
        let attributes = EventAttributes {
            sample_period: 1,
            ..EventAttributes::new(PERF_TYPE_SOFTWARE, config)
        };
        open_event(&attributes, -1, Some(cpu), None)
    };
    Ok([
        open(PERF_COUNT_SW_PAGE_FAULTS_MIN)?,
        open(PERF_COUNT_SW_PAGE_FAULTS_MAJ)?,
    ])
}

/// Opens the event of a CPU for page faults. A program that is attached to it is called at the
/// begin of each fault, with the address.
pub(crate) fn faults(cpu: u32) -> Result<OwnedFd, Errno> {
    let attributes = EventAttributes {
        sample_period: 1,
        ..EventAttributes::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS)
    };
    open_event(&attributes, -1, Some(cpu), None)
}

/// Opens a clock of a CPU. A program that is attached to it is called once in a period.
pub(crate) fn clock(cpu: u32, period_ns: u64) -> Result<OwnedFd, Errno> {
    let attributes = EventAttributes {
        sample_period: period_ns,
        ..EventAttributes::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK)
    };
    open_event(&attributes, -1, Some(cpu), None)
}

/// Opens the event of a tracepoint. A program that is attached to it is called on every CPU,
/// independent of the CPU of the event.
pub(crate) fn tracepoint(id: u64) -> Result<OwnedFd, Errno> {
    let attributes = EventAttributes {
        sample_period: 1,
        ..EventAttributes::new(PERF_TYPE_TRACEPOINT, id)
    };
    let mut opened = Err(Errno::NODEV);
    for cpu in machine::online_cpus() {
        opened = open_event(&attributes, -1, Some(cpu), None);
        // The CPU went offline between the listing and here.
        if !matches!(opened, Err(Errno::NODEV)) {
            break;
        }
    }
    opened
}

/// Lets an event write into another's ring; both must be bound to the same CPU.
pub(super) fn redirect(event: BorrowedFd<'_>, ring: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: both descriptors are open; the argument of this request is a descriptor.
    let result = unsafe {
        libc::ioctl(
            event.as_raw_fd(),
            PERF_EVENT_IOC_SET_OUTPUT,
            ring.as_raw_fd(),
        )
    };
    if result < 0 {
        return Err(last_error());
    }
    Ok(())
}

/// Number of records of this event and its inherited copies that found no room; `None` before 6.0.
pub(super) fn lost(event: BorrowedFd<'_>) -> Option<u64> {
    // With PERF_FORMAT_LOST alone: the value, then the count.
    let mut words = [0; 16];
    let size = read(event, &mut words).ok()?;
    let count = words.get(8..16).filter(|_| size == 16)?;
    Some(u64::from_ne_bytes(count.try_into().ok()?))
}
