// SPDX-License-Identifier: MIT OR Apache-2.0
//! The document of a process: from what the handler knows to a JSON file.
//!
//! A file is written under another name and renamed, so a reader never sees half of one.

use std::io::Write as _;

use overhear_naps::{Nap, NapEnd, NapsCost, ProcessRecord, Unwatched, WatchedSums, FORMAT};
use overhear_stream::sync::Ordering;

use crate::backend::Backend;
use crate::engine::{REASON, REASONS};
use crate::handler::Handler;
use crate::settings;
use crate::sys;
use crate::table::{self, get, COUNTS, RECORD};

/// What is not used of it takes no memory.
const BUFFER_BYTES: usize = 64 * 1024;

pub(crate) fn write(handler: &Handler, ended: bool, folder: i32) {
    let record = record(handler, ended);
    let name = format!("naps-{}-{}.json", record.pid, handler.started_ns);
    let (Ok(new), Ok(name)) = (
        std::ffi::CString::new(format!("{name}.new")),
        std::ffi::CString::new(name),
    ) else {
        return;
    };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the names are C strings; the descriptor is closed once, by the file.
    unsafe {
        let fd = libc::openat(folder, new.as_ptr(), flags, 0o600);
        if fd < 0 {
            return;
        }
        let file = <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd);
        // A long text is never whole in memory, which is the program's.
        let mut out = std::io::BufWriter::with_capacity(BUFFER_BYTES, file);
        if serde_json::to_writer(&mut out, &record).is_ok() && out.flush().is_ok() {
            // The function of the C library would make 64 KB of its code resident.
            let names = (new.as_ptr(), name.as_ptr());
            libc::syscall(libc::SYS_renameat2, folder, names.0, folder, names.1, 0);
        }
    }
}

fn record(handler: &Handler, ended: bool) -> ProcessRecord {
    let settings = settings::get();
    let now = sys::now_ns();
    ProcessRecord {
        format: FORMAT,
        pid: sys::pid(),
        // SAFETY: the call has no arguments.
        parent: unsafe { libc::getppid() } as u32,
        comm: std::fs::read_to_string("/proc/self/comm")
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
        backend: handler
            .backend
            .as_ref()
            .map_or("none", Backend::name)
            .to_owned(),
        backend_reason: handler.backend_reason.clone(),
        threshold_ns: settings.threshold_ns,
        budget: settings.budget,
        min_size_bytes: settings.min_size,
        started_ns: handler.started_ns,
        written_ns: now,
        ended,
        stopped: REASONS[REASON.load(Ordering::Relaxed) as usize % REASONS.len()].to_owned(),
        cpu_ns: sys::process_cpu_ns().saturating_sub(handler.started_cpu_ns),
        cost: NapsCost {
            handler_ns: handler.handler_ns(),
            faults_ns: handler.faults_ns,
            allocations_ns: crate::credit::cost_ns(),
        },
        watched: WatchedSums {
            allocations: get(&COUNTS.allocations),
            bytes: get(&COUNTS.bytes),
            peak_extra_bytes: get(&COUNTS.peak_extra_bytes),
            peak_bytes: get(&COUNTS.peak_bytes),
            protections: handler.protections,
            accesses: handler.accesses,
        },
        unwatched: Unwatched {
            budget: crate::credit::passed_over(),
            space: get(&COUNTS.unwatched_space),
            full: get(&COUNTS.unwatched_full),
            excluded: get(&COUNTS.excluded),
        },
        sites: handler.sites.clone(),
        mappings: crate::mappings::with_code(),
        allocations: allocations(handler, now),
        allocations_omitted: handler.omitted,
    }
}

fn allocations(handler: &Handler, now: u64) -> Vec<overhear_naps::Allocation> {
    let mut all = handler.finished.clone();
    let verified = handler.verified_ns(now);
    for (index, tracked) in handler.tracked.iter().enumerate() {
        let Some(tracked) = tracked else { continue };
        let mut allocation = tracked.allocation.clone();
        allocation.excluded |= RECORD[index].excluded.load(Ordering::Relaxed) != 0;
        allocation.protected_since_ns = tracked.since_ns;
        // A thread may have freed it meanwhile; that is in the next document.
        let freed = RECORD[index].state() == table::GONE;
        if let Some(since) = tracked.since_ns.filter(|_| !freed) {
            let idle = verified.saturating_sub(since);
            allocation.protected_ns += idle;
            if idle >= settings::get().threshold_ns {
                allocation.nap_count += 1;
                allocation.nap_ns += idle;
                allocation.naps.push(Nap {
                    start_ns: since,
                    end_ns: verified,
                    end: NapEnd::Open,
                    at: None,
                });
            }
        }
        all.push(allocation);
    }
    all
}
