// SPDX-License-Identifier: MIT OR Apache-2.0
//! A prepared thread writes ten million elements of each kind without system call, page fault or
//! allocation. A sampler takes a million samples with one system call each, the read of its
//! counters, or without one by `rdpmc`.
//!
//! The memory is a directory's, and for lanes private once more. Each case is a process of its own,
//! this test started again, because the sensors of a forked child are not connected. Its thread
//! writes under a filter that kills at any system call but `exit_group` and the one that counts
//! page faults, for samplers also `read`. The test shows that all guards detect a violation.
//! `native/tests/connected_hot_path.c` is the same for C, and `laned_no_system_call.c` counts the
//! calls of a thread that is not prepared.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use overhear::{ConcurrentSensor, Element, LanedSensor, Sampler, Sensor};
use overhear_directory::{Directory, SOCKET_VARIABLE};

const WRITES: u64 = 10_000_000;

/// More than the number of slots of any ring here, so that it wraps.
const WARM_UP: u64 = 200_000;

/// The exit statuses of a case.
const REFUSED: i32 = 99;
const NOT_CONNECTED: i32 = 98;
const FAULTED: i32 = 97;
const ALLOCATED: i32 = 96;
const UNPUBLISHED: i32 = 95;
const READ_TWICE: i32 = 94;

/// Writes whose system calls are counted.
const COUNTED_WRITES: u64 = 100_000;

/// The case of this process.
const CASE: &str = "OVERHEAR_TEST_HOT_PATH";

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

/// A registered sensor that this thread may write without further preparation.
enum Prepared {
    Simple(Box<Sensor<Value>>),
    Laned(LanedSensor<Value>),
    Concurrent(ConcurrentSensor<Value>),
    Sampler(Sampler<6>),
}

impl Prepared {
    fn new(kind: &str, instance: &str) -> Self {
        match kind {
            "simple" => {
                let sensor = Sensor::builder("hot_path").instance(instance);
                Self::Simple(Box::new(sensor.register().unwrap()))
            }
            "laned" => {
                let sensor = LanedSensor::builder("hot_path").instance(instance);
                let sensor = sensor.lanes(4).register().unwrap();
                sensor.prepare_thread().unwrap();
                Self::Laned(sensor)
            }
            "concurrent" => {
                overhear::prepare_thread();
                let sensor = ConcurrentSensor::builder("hot_path").instance(instance);
                Self::Concurrent(sensor.register().unwrap())
            }
            "sampler" => {
                let counters = [
                    "task-clock",
                    "cpu-clock",
                    "page-faults",
                    "minor-faults",
                    "major-faults",
                    "context-switches",
                ];
                let sampler = Sampler::builder("hot_path").instance(instance);
                Self::Sampler(sampler.counters(counters).register().unwrap())
            }
            other => panic!("{other:?} is no kind"),
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Self::Simple(sensor) => sensor.is_connected(),
            Self::Laned(sensor) => sensor.is_connected(),
            Self::Concurrent(sensor) => sensor.is_connected(),
            Self::Sampler(sampler) => sampler.is_connected(),
        }
    }

    /// The system calls of each write: the filter permits `read` for them.
    fn reads(&self) -> u64 {
        match self {
            Self::Sampler(sampler) => u64::from(!sampler.uses_rdpmc()),
            _ => 0,
        }
    }

    /// Whether all writes were published: for the kinds with a begin, half are.
    fn write(&mut self, writes: u64) -> bool {
        match self {
            Self::Simple(sensor) => {
                (0..writes).for_each(|value| sensor.write(&Value { value }));
                true
            }
            Self::Laned(sensor) => (0..writes / 2).all(|value| {
                let whole = sensor.write(&Value { value }).is_ok();
                let begun = sensor.begin();
                whole && begun.is_ok_and(|write| write.commit(&Value { value }).is_ok())
            }),
            Self::Concurrent(sensor) => (0..writes / 2).all(|value| {
                let whole = sensor.write(&Value { value }).is_ok();
                let begun = sensor.begin();
                whole && begun.map(|write| write.commit(&Value { value })).is_ok()
            }),
            Self::Sampler(sampler) => (0..writes / 10).all(|number| match number % 2 {
                0 => sampler.sample(),
                _ => sampler.job_end(),
            }),
        }
    }
}

/// Kills the process if this thread calls the kernel for anything but `exit_group`, `getrusage` and
/// one more call; false if that is refused.
fn forbid_system_calls_but(permitted: libc::c_long) -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let is_call = |number: libc::c_long, jt: u8, jf: u8| libc::sock_filter {
        jt,
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32)
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_call(libc::SYS_exit_group, 2, 0),
        is_call(permitted, 1, 0),
        is_call(libc::SYS_getrusage, 0, 1),
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

/// The calls of `read` that this thread has made; `None` if the kernel does not count them.
fn reads_of_this_thread() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    let count = counts.lines().find_map(|line| line.strip_prefix("syscr: "));
    count?.parse().ok()
}

fn faults() -> (i64, i64) {
    // SAFETY: zeros are a value of the struct, which the kernel fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        (usage.ru_minflt, usage.ru_majflt)
    }
}

/// Ends the process at once: the thread may call nothing else.
fn end(status: i32) -> ! {
    // SAFETY: ends the process without running anything more of it.
    unsafe { libc::_exit(status) }
}

/// Runs a case if the variable names one; otherwise this is no test.
#[test]
fn child_with_one_case() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    let allocations = || ALLOCATIONS.with(Cell::get);
    let (before, faults_before) = (allocations(), faults());
    match case.as_str() {
        "guard of system calls" => {
            if !forbid_system_calls_but(libc::SYS_exit_group) {
                end(REFUSED);
            }
            // SAFETY: getppid has no preconditions.
            end(i32::from(unsafe { libc::getppid() } > 0));
        }
        "guard of faults" => {
            let pages = vec![1_u8; 1 << 20];
            std::hint::black_box(&pages);
            let faulted = faults() != faults_before;
            assert_eq!(allocations(), before + 1, "allocations are counted");
            end(if faulted { FAULTED } else { 0 });
        }
        kind => {
            let (kind, connected) = match kind.strip_suffix(", private") {
                Some(kind) => (kind, false),
                None => (kind, true),
            };
            // The test does not check the pages of code and stack: a first sensor maps them.
            let mut first = Prepared::new(kind, "first");
            let mut sensor = Prepared::new(kind, "second");
            if !first.write(WARM_UP) || sensor.is_connected() != connected {
                end(NOT_CONNECTED);
            }
            let permitted = match sensor.reads() {
                0 => libc::SYS_exit_group,
                _ => libc::SYS_read,
            };
            let looks = (reads_of_this_thread(), reads_of_this_thread());
            let published = sensor.write(COUNTED_WRITES);
            let counted = match (looks, reads_of_this_thread()) {
                // Each look reads the file itself.
                ((Some(first), Some(second)), Some(third)) => third - second - (second - first),
                _ => {
                    println!("\nskipped: this kernel does not count system calls of threads");
                    sensor.reads() * COUNTED_WRITES / 10
                }
            };
            if counted != sensor.reads() * COUNTED_WRITES / 10 {
                end(READ_TWICE);
            }
            if !published {
                end(UNPUBLISHED);
            }
            if !forbid_system_calls_but(permitted) {
                // The previous line of the harness is not complete.
                println!("\nskipped: seccomp filters are refused here");
            }
            let (before, faults_before) = (allocations(), faults());
            let published = sensor.write(WRITES);

            end(match () {
                () if faults() != faults_before => FAULTED,
                () if allocations() != before => ALLOCATED,
                () if !published => UNPUBLISHED,
                () => 0,
            })
        }
    }
}

/// Runs this test again as that case.
fn run(case: &str, socket: &Path) -> ExitStatus {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["child_with_one_case", "--exact", "--nocapture"])
        .env(CASE, case)
        .env(SOCKET_VARIABLE, socket)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let skipped = text.lines().filter(|line| line.starts_with("skipped: "));
    skipped.for_each(|line| println!("{line}"));
    output.status
}

#[test]
fn prepared_write_does_not_enter_kernel_or_allocate() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let status = run("guard of system calls", &socket);
    if status.code() != Some(REFUSED) {
        assert_eq!(status.signal(), Some(libc::SIGSYS), "the filter bites");
    }
    let status = run("guard of faults", &socket);
    assert_eq!(status.code(), Some(FAULTED), "faults are counted");

    // No monitor reads yet.
    writes_stay_in_the_program("laned, private", &socket);
    let _directory = Directory::builder().standalone().start(&socket).unwrap();
    for kind in ["simple", "laned", "concurrent", "sampler"] {
        writes_stay_in_the_program(kind, &socket);
    }
}

fn writes_stay_in_the_program(case: &str, socket: &Path) {
    // A kernel with little free memory may evict pages of code, once. Each process runs again, so a
    // write that faults does so in all of them.
    let mut ends = (0..3).map(|_| run(case, socket));
    let status = ends.find(|status| status.code() != Some(FAULTED));
    let status = status.unwrap_or_else(|| panic!("{case}: page faults"));
    assert!(status.success(), "{case}: {status}");
}
