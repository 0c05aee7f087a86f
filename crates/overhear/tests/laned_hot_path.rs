// SPDX-License-Identifier: MIT OR Apache-2.0
//! A prepared thread writes two million elements without system call, page fault or allocation.
//!
//! A forked child installs a filter that kills it at any system call but `exit_group`; the filter is
//! shown to bite. `native/tests/laned_no_system_call.c` is the same for C, longer, and counts the calls of a
//! thread that is not prepared.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use overhear::{Element, LanedSensor};

const WRITES: u64 = 2_000_000;
const REFUSED: i32 = 99;

thread_local! {
    // Without a destructor, so that it can be used while a thread ends.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Element)]
#[repr(C)]
struct Value {
    value: u64,
}

/// Whether all writes were published.
fn write(sensor: &LanedSensor<Value>) -> bool {
    (0..WRITES / 2).all(|value| {
        let whole = sensor.write(&Value { value }).is_ok();
        let begun = sensor.begin();
        whole && begun.is_ok_and(|write| write.commit(&Value { value }).is_ok())
    })
}

/// Kills the process at any further system call but `exit_group`; false if that is refused.
fn forbid_system_calls() -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                libc::SYS_exit_group as u32,
            )
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program points to the filter, and the kernel copies both during the call.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    }
}

/// The wait status of a child that runs `work`, which says whether it went well.
fn in_child(work: impl FnOnce() -> Option<bool>) -> i32 {
    // SAFETY: the child calls nothing that another thread could have left locked: prctl, the work,
    // which does not allocate, and _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = work().map_or(REFUSED, |good| i32::from(!good));
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the status is a valid place for the result.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    status
}

#[inline(never)]
fn touch_the_stack() {
    std::hint::black_box([0_u8; 1 << 16]);
}

fn faults() -> (i64, i64) {
    // SAFETY: zeros are a value of the struct, which the kernel fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        (usage.ru_minflt, usage.ru_majflt)
    }
}

#[test]
fn prepared_writes_stay_in_the_program() {
    let sensor = LanedSensor::<Value>::builder("hot_path")
        .lanes(4)
        .register()
        .unwrap();
    let allocations = || ALLOCATIONS.with(Cell::get);

    // SAFETY: getppid has no preconditions.
    let status = in_child(|| forbid_system_calls().then(|| unsafe { libc::getppid() } > 0));
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == REFUSED {
        println!("skipped: seccomp filters are refused here");
    } else {
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS;
        assert!(killed, "the guard bites");
        let status = in_child(|| {
            let before = allocations();
            sensor.prepare_thread().is_ok().then_some(())?;
            forbid_system_calls().then(|| write(&sensor) && allocations() == before)
        });
        assert_eq!(status, 0, "killed, or a write was refused");
    }

    // Once in this thread: code is paged in when it is first run, whoever runs it.
    assert!(write(&sensor));
    let quiet = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            sensor.prepare_thread().unwrap();
            // The pages of the stack are the program's own affair.
            touch_the_stack();
            faults();
            let before = faults();
            write(&sensor) && faults() == before
        });
        other.join().unwrap()
    });
    assert!(quiet, "page faults, or a write was refused");
}
