// SPDX-License-Identifier: MIT OR Apache-2.0
//! The behaviour when the kernel refuses, and the messages to the user.

use overhear_event::StreamId;
use overhear_kernel::{ActiveBackend, Backend, Kernel, StartError};

use crate::harness::{is_root, run_role, Recorder};
use crate::perf::NOBODY;

/// The text for the user is one message, without words of developers.
fn assert_is_message(message: &str) {
    println!("{message}");
    assert!(message.starts_with("kernel sensors: "));
    assert!(!message.contains('\n') && !message.ends_with('.'));
}

pub(crate) fn auto_is_perf() {
    let kernel = Kernel::builder().build().unwrap();
    assert_is_message(&kernel.status().message);
    assert_eq!(
        kernel.status().message,
        "kernel sensors: perf context-switch records, because loading BPF needs CAP_BPF and \
         CAP_PERFMON; there are no wake-ups, runnable time comes from schedstat"
    );
    assert_eq!(kernel.status().active, ActiveBackend::Perf);
    let error = Kernel::builder().backend(Backend::Bpf).build().unwrap_err();
    println!("{error}");
    assert!(matches!(error, StartError::Bpf { .. }));
}

fn assert_none(expected: &str) {
    let mut kernel = Kernel::builder()
        .first_stream(StreamId::from_raw(5))
        .build()
        .unwrap();
    assert_is_message(&kernel.status().message);
    assert_eq!(kernel.status().active, ActiveBackend::None);
    assert!(kernel.status().message.contains(expected));
    // A source without sensors is quiet, not broken.
    let mut recorder = Recorder::default();
    kernel.follow(1).unwrap();
    recorder.poll(&mut kernel);
    kernel.finish();
    recorder.poll(&mut kernel);
    for backend in [Backend::Bpf, Backend::Perf] {
        let error = Kernel::builder().backend(backend).build().unwrap_err();
        println!("{error}");
    }
}

pub(crate) fn auto_is_none_by_filter() {
    refuse(&[libc::SYS_perf_event_open, libc::SYS_bpf]);
    assert_none("the kernel refused perf_event_open");
}

pub(crate) fn auto_is_none_by_limit() {
    // SAFETY: duplicates and closes a descriptor of our own, and lowers our own limit.
    let cpus = unsafe {
        let free = libc::dup(0);
        libc::close(free);
        let limit = libc::rlimit {
            rlim_cur: free as libc::rlim_t + 1,
            rlim_max: free as libc::rlim_t + 1,
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        libc::sysconf(libc::_SC_NPROCESSORS_ONLN)
    };
    if cpus < 2 {
        println!("skipped: one file descriptor suffices on one CPU");
        return;
    }
    assert_none("ulimit -n");
}

/// Makes system calls of this thread fail with EPERM, as filters of containers do.
fn refuse(calls: &[libc::c_long]) {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = vec![step(LOAD, 0, 0, 0)];
    for &call in calls {
        filter.push(step(JUMP_IF_EQUAL, 0, 1, call as u32));
        let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        filter.push(step(RETURN, 0, 0, refusal));
    }
    filter.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live during the calls; both only restrict this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let result = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0);
        assert_eq!(result, 0);
    }
}

/// Whether an ordinary user may use perf here.
fn perf_is_open_to_all() -> bool {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let open = level.is_ok_and(|level| level.trim().parse::<i32>().is_ok_and(|l| l <= 2));
    if !open {
        println!("skipped: kernel.perf_event_paranoid is above 2");
    }
    open
}

#[test]
fn auto_is_perf_without_privilege() {
    if perf_is_open_to_all() {
        run_role("auto_is_perf", is_root().then_some(NOBODY));
    }
}

#[test]
fn auto_is_none_if_both_calls_are_refused() {
    run_role("auto_is_none_by_filter", is_root().then_some(NOBODY));
    if is_root() {
        run_role("auto_is_none_by_filter", None);
    }
}

#[test]
fn auto_is_none_without_file_descriptors() {
    run_role("auto_is_none_by_limit", is_root().then_some(NOBODY));
}

#[test]
fn off_is_off() {
    let kernel = Kernel::builder().backend(Backend::Off).build().unwrap();
    assert_is_message(&kernel.status().message);
    assert_eq!(kernel.status().active, ActiveBackend::None);
}
