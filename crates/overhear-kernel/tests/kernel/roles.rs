// SPDX-License-Identifier: MIT OR Apache-2.0
//! The roles of this binary when it is executed again.
//!
//! A role sends its parent lines that begin with `@`, among the lines of the test harness. Its
//! threads park by reading standard input, which is empty until the parent closes it.

use std::os::unix::process::CommandExt;
use std::process::{exit, Command};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{env, ptr, thread};

/// The variable with the role.
pub(crate) const ROLE: &str = "OVERHEAR_KERNEL_TEST_ROLE";
/// The path of the function below in the test binary.
pub(crate) const ENTRY: &str = "roles::play";

/// Plays the role; as an ordinary test it has none and does nothing.
#[test]
fn play() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    match role.as_str() {
        "flood" => workload(u32::MAX, MIXED),
        "counted" => workload(1_000, MIXED),
        "signalled" => workload(2_000, &[be_signalled, sleep, be_signalled, yield_cpu]),
        "brood" => brood(),
        "chorus" => chorus(12, 300, 1),
        "refrain" => chorus(4, 300, 3),
        "crowd" => chorus(2_000, 1, 1),
        "choir" => {
            // Enough threads that their perf events exceed the number that one message can
            // transfer.
            let cpus = thread::available_parallelism().map_or(1, usize::from);
            chorus(280 / cpus + 2, 10, 4);
        }
        "churn" => churn(),
        "jobs" => crate::samples::jobs(),
        "lineage" => crate::samples::lineage(),
        "pointed" => crate::points::pointed(),
        "probed" => crate::probes::probed(),
        "phases" => crate::budget::phases(),
        "eventful" => crate::sensors::eventful(),
        "monitor_and_wait" => crate::owners::monitor_and_wait(),
        "giver" => crate::hand_over::giver(),
        "receiver" => crate::hand_over::receiver(),
        "perf_giver" => crate::hand_over::perf_giver(),
        "probing_giver" => crate::hand_over::probing_giver(),
        "inside_a_namespace" => crate::owners::inside_a_namespace(),
        "perf_monitor" => crate::owners::perf_monitor(),
        "perf_selections" => crate::owners::perf_selections(),
        "usurper" => usurper(),
        "usurped" => {
            println!("@ parked");
            park();
        }
        "perf_counts" => crate::perf::counts_agree(),
        "perf_overflow" => crate::perf::overflow_is_counted(),
        "auto_is_perf" => crate::fallback::auto_is_perf(),
        "auto_is_none_by_filter" => crate::fallback::auto_is_none_by_filter(),
        "auto_is_none_by_limit" => crate::fallback::auto_is_none_by_limit(),
        _ => exit(99),
    }
    println!("@ played");
}

/// The work of a thread until the time is over.
type Work = fn(&mut Turns);

/// All methods to leave a CPU: for a partner, for a timer, by a yield, by preemption.
const MIXED: &[Work] = &[ping, pong, sleep, yield_cpu, spin, mix, sleep, yield_cpu];

/// Time of a thread's work, and the pipes of threads with a partner.
#[derive(Clone)]
struct Turns {
    /// Maximum number of turns. For equal counts no element may be lost, so there are fewer turns
    /// than the rings have room for, even if the monitor does not get a CPU.
    left: u32,
    end: Instant,
    there: [i32; 2],
    back: [i32; 2],
}

impl Turns {
    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0 && Instant::now() < self.end
    }
}

fn workload(turns: u32, works: &'static [Work]) {
    let (mut there, mut back) = ([0; 2], [0; 2]);
    // SAFETY: both arrays have room for the two descriptors of a pipe.
    let failed = unsafe { libc::pipe(there.as_mut_ptr()) | libc::pipe(back.as_mut_ptr()) };
    assert_eq!(failed, 0);
    let start = Arc::new(Barrier::new(works.len()));
    let end = Arc::new(Barrier::new(works.len() + 1));
    let turns = Turns {
        left: turns,
        end: Instant::now() + Duration::from_millis(600),
        there,
        back,
    };
    let threads: Vec<_> = works
        .iter()
        .enumerate()
        .map(|(index, work)| {
            let (start, end, mut turns) = (Arc::clone(&start), Arc::clone(&end), turns.clone());
            let body = move || {
                start.wait();
                work(&mut turns);
                end.wait();
                park();
            };
            thread::Builder::new()
                .name(format!("work-{index}"))
                .spawn(body)
                .unwrap()
        })
        .collect();
    end.wait();
    println!("@ parked");
    park();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Threads that print their ids; in each verse they wait until they are released, work, and wait
/// for each other.
fn chorus(threads: usize, turns: u32, verses: u32) {
    let begin = Arc::new(Barrier::new(threads + 1));
    let end = Arc::new(Barrier::new(threads + 1));
    let body = move |begin: Arc<Barrier>, end: Arc<Barrier>| {
        // SAFETY: gettid only returns a number.
        println!("@ {}", unsafe { libc::gettid() });
        begin.wait();
        for _ in 0..verses {
            park();
            for cpu_lock in 0..turns {
                match cpu_lock % 3 {
                    0 => thread::sleep(Duration::from_micros(50)),
                    1 => thread::yield_now(),
                    _ => (0..5_000).for_each(|_| std::hint::spin_loop()),
                }
            }
            end.wait();
        }
        park();
    };
    let spawn = |_| {
        let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
        let builder = thread::Builder::new().stack_size(64 << 10);
        builder.spawn(move || body(begin, end)).unwrap()
    };
    let all: Vec<_> = (0..threads).map(spawn).collect();
    begin.wait();
    println!("@ parked");
    for _ in 0..verses {
        end.wait();
        println!("@ parked");
    }
    for thread in all {
        thread.join().unwrap();
    }
    park();
}

/// Number of short-lived threads of a churn.
pub(crate) const CHURN: usize = 10_000;

/// Many short-lived threads, from several creators at once.
fn churn() {
    const CREATORS: usize = 4;
    println!("@ parked");
    park();
    let create = || {
        for _ in 0..CHURN / CREATORS {
            let builder = thread::Builder::new().stack_size(16 << 10);
            builder.spawn(|| {}).unwrap().join().unwrap();
        }
    };
    thread::scope(|scope| {
        for _ in 0..CREATORS {
            scope.spawn(create);
        }
    });
    println!("@ parked");
    park();
}

/// Blocks until the parent closes our standard input.
pub(crate) fn park() {
    let mut byte = 0_u8;
    // SAFETY: `byte` has room for the one requested byte.
    unsafe { libc::read(0, ptr::from_mut(&mut byte).cast(), 1) };
}

/// Writes a byte.
fn post(fd: i32) {
    // SAFETY: the byte lives during the call.
    assert_eq!(unsafe { libc::write(fd, [0_u8].as_ptr().cast(), 1) }, 1);
}

/// Reads a byte; returns false after 20 ms without one, when the partner has stopped.
fn fetch(fd: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut byte = 0_u8;
    // SAFETY: one pollfd, and room for the one requested byte.
    unsafe {
        libc::poll(&raw mut poll, 1, 20) == 1
            && libc::read(fd, ptr::from_mut(&mut byte).cast(), 1) == 1
    }
}

fn ping(turns: &mut Turns) {
    while turns.next() {
        post(turns.there[1]);
        fetch(turns.back[0]);
    }
}

fn pong(turns: &mut Turns) {
    while turns.next() {
        if fetch(turns.there[0]) {
            post(turns.back[1]);
        }
    }
}

fn sleep(turns: &mut Turns) {
    while turns.next() {
        thread::sleep(Duration::from_micros(50));
    }
}

fn yield_cpu(turns: &mut Turns) {
    while turns.next() {
        thread::yield_now();
    }
}

fn spin(turns: &mut Turns) {
    while turns.next() {
        for _ in 0..5_000 {
            std::hint::spin_loop();
        }
    }
}

fn mix(turns: &mut Turns) {
    while turns.next() {
        thread::sleep(Duration::from_micros(10));
        thread::yield_now();
    }
}

/// Sleeps while a timer sends this thread signals at a rate close to that of the sleeps, so that
/// some of them are pending at the very moment the thread wants to sleep.
fn be_signalled(turns: &mut Turns) {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all structures are plain data for which zero is valid; the handler does nothing.
    // The timer ends with the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = ptr::null_mut();
        let created = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        assert_eq!(created, 0);
        let interval = libc::timespec {
            tv_sec: 0,
            tv_nsec: 13_000,
        };
        let period = libc::itimerspec {
            it_interval: interval,
            it_value: interval,
        };
        libc::timer_settime(timer, 0, &raw const period, ptr::null_mut());
        while turns.next() {
            libc::usleep(5);
            libc::poll(ptr::null_mut(), 0, 1);
        }
        libc::timer_delete(timer);
    }
}

/// A thread that is not the leader executes this program again.
fn usurper() {
    let execute = || {
        // SAFETY: gettid only returns a number.
        println!("@ {}", unsafe { libc::gettid() });
        let error = Command::new(env::current_exe().unwrap())
            .args(["--exact", ENTRY, "--nocapture", "--test-threads=1"])
            .env(ROLE, "usurped")
            .exec();
        panic!("exec: {error}");
    };
    // A role may itself run in a thread of the test harness; either way this one is no leader.
    thread::spawn(execute).join().unwrap();
}

/// Number of threads and processes of a brood.
pub(crate) const BROOD: u32 = 300;

/// Threads and processes in turn, each ended before the next begins.
fn brood() {
    for index in 0..BROOD {
        if index % 2 == 0 {
            // SAFETY: gettid only returns a number.
            let tid = thread::spawn(|| unsafe { libc::gettid() }).join().unwrap();
            println!("@ thread {tid}");
            continue;
        }
        let code = index as i32 % 100;
        // SAFETY: the child calls nothing but _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` has room for the result.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        println!("@ process {pid} {status}");
    }
    println!("@ parked");
    park();
}
