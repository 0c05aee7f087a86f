// SPDX-License-Identifier: MIT OR Apache-2.0
//! A million writes neither enter the kernel nor allocate.
//!
//! A forked child installs a filter that kills it at any system call but `exit_group`, writes, and
//! ends with a status. The allocator counts per thread. The tests first show that both guards
//! detect a violation; `native/tests/no_system_call.c` is the same for C.
#![cfg(not(any(loom, miri)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    read_hardware_ticks, Geometry, Header, OwnedWords, QueueGeometry, QueueWriter, Shape,
    SimpleWriter, Words, WriterKind,
};

const WRITES: u64 = 1_000_000;

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

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn writer() -> SimpleWriter<OwnedWords> {
    let geometry = Geometry::new(32, 1024).unwrap();
    let memory = OwnedWords::zeroed(geometry.words());
    Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, 1).store(&memory);
    SimpleWriter::new(memory, geometry).unwrap()
}

fn write(writer: &mut SimpleWriter<OwnedWords>, mut stamp: impl FnMut() -> Ticks) {
    for number in 0..WRITES {
        let mut payload = [0; 32];
        payload[..8].copy_from_slice(&number.to_ne_bytes());
        writer.write(&payload, &mut stamp);
    }
}

fn queue_writer() -> QueueWriter<OwnedWords> {
    let queue = QueueGeometry::new(32, 1024).unwrap();
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    QueueWriter::new(memory, queue).unwrap()
}

/// Writes, abandons, and gets an empty queue.
fn write_queue(writer: &QueueWriter<OwnedWords>, mut stamp: impl FnMut() -> Ticks) -> bool {
    let mut written = true;
    for number in 0..WRITES {
        let mut payload = [0; 32];
        payload[..8].copy_from_slice(&number.to_ne_bytes());
        written &= writer.write(1, &payload, &mut stamp).is_ok();
        if number % 16 == 0 {
            written &= writer.take().map(drop).is_ok();
        }
    }
    while let Ok(taken) = writer.take() {
        std::mem::forget(taken);
    }
    written && writer.lost_full() == 1
}

#[test]
fn million_writes_do_not_allocate() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations(), before + 2, "the guard counts");

    let mut writer = writer();
    let before = allocations();
    write(&mut writer, read_hardware_ticks);
    assert_eq!((writer.count(), allocations()), (WRITES, before));

    let writer = queue_writer();
    let before = allocations();
    assert!(write_queue(&writer, read_hardware_ticks));
    assert_eq!(allocations(), before);
}

#[cfg(target_os = "linux")]
mod system_calls {
    use overhear_stream::{hardware_clock, read_hardware_ticks, read_hardware_ticks_ordered};

    use super::{queue_writer, write, write_queue, writer, WRITES};

    const REFUSED: i32 = 99;

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

    /// The wait status of a child that runs `work` under the filter.
    fn guarded(work: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child calls nothing that another thread could have left locked: prctl, the
        // work, which does not allocate, and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if forbid_system_calls() {
                i32::from(!work())
            } else {
                REFUSED
            };
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

    #[test]
    fn million_writes_do_not_enter_the_kernel() {
        // SAFETY: getppid has no preconditions.
        let status = guarded(|| unsafe { libc::getppid() } > 0);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == REFUSED {
            println!("skipped: seccomp filters are refused here");
            return;
        }
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS;
        assert!(killed, "the guard bites");
        if hardware_clock().is_none() {
            println!("skipped: this CPU has no counter to stamp with");
            return;
        }
        let mut writer = writer();
        let status = guarded(|| {
            write(&mut writer, read_hardware_ticks);
            writer.count() == WRITES
        });
        assert!(libc::WIFEXITED(status), "killed: wait status {status}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
        let writer = queue_writer();
        let status = guarded(|| write_queue(&writer, read_hardware_ticks_ordered));
        assert!(libc::WIFEXITED(status), "killed: wait status {status}");
        assert_eq!(libc::WEXITSTATUS(status), 0);
    }
}
