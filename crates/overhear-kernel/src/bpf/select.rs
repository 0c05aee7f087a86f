// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program `select` over tasks. These are the crate's only direct calls of libbpf for
//! iterators.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use rustix::io::{read, retry_on_intr, Errno};

/// The tasks to visit, by the ids of the caller's PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One thread.
    Thread(u32),
    /// All threads of a process.
    Process(u32),
    /// All threads that are visible in the caller's PID namespace.
    All,
}

/// Lets the kernel run an iterator program over the tasks.
///
/// The program holds each task while it visits it, so no id is looked up twice; an id without a
/// task is not visited.
pub(crate) fn visit(program: BorrowedFd<'_>, target: Target) -> io::Result<()> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    match target {
        Target::Thread(tid) => info.task.tid = tid,
        Target::Process(pid) => info.task.pid = pid,
        Target::All => {}
    }
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &raw mut info,
        iter_info_len: size_of::<libbpf_sys::bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: the descriptor is open; `options` states its own size and points at `info`, which
    // states its size as well; both live during the call, and the kernel keeps neither.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            &raw const options,
        )
    };
    let link = owned(link)?;
    // SAFETY: the link's descriptor is open.
    let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
    // The program writes nothing, so every read returns no bytes; after a million tasks the kernel
    // requires another read.
    let mut nothing = [0; 8];
    loop {
        match retry_on_intr(|| read(&iterator, &mut nothing)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        // libbpf returns the negative number.
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the call succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
