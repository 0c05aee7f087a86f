// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors beyond scheduling, compared with a program that counts its own actions.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::{ptr, thread};

use overhear_event::kernel::events::{
    BLOCK_IO, CPU_IDLE, FLUTTER, FUTEX, IPC, IRQ, KIND_BEGIN, KIND_END, LOCK, PAGE_FAULT, SCHEDULE,
    SCHED_MIGRATE, SIGNAL, SOFTIRQ, SYSCALL, TIMER,
};
use overhear_event::kernel::Switch;
use overhear_event::GapCause;
use overhear_kernel::{Backend, KernelMonitor, Sensor, StartError};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::roles::park;

/// Number of repetitions of each action of the program.
const PAGES: usize = 400;
const CALLS: usize = 500;
const WAITS: usize = 10;
const SIGNALS: usize = 10;
const WRITES: usize = 8;
const MESSAGES: usize = 100;
const YIELDS: usize = 300;
const INHERITANCES: usize = 10;
/// Lines of the program after it has written blocks to a file on a device, and after it has yielded
/// to no other thread.
const WROTE: &str = "blocks were written";
const ALONE: &str = "yielded alone";
const AMONG_OTHERS: &str = "yielded beside others";

/// Role: a known number of actions for each sensor.
pub(crate) fn eventful() {
    println!("@ parked");
    park();
    touch_pages();
    for _ in 0..CALLS {
        // SAFETY: only returns a number.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    wait_for_futexes();
    wait_for_socket();
    wake_by_futex();
    send_signals();
    let wrote = write_to_disk();
    pass_messages();
    change_cpus();
    let alone = yield_alone();
    inherit_priorities();
    spin();
    println!("@ {}", if wrote { WROTE } else { "no file was written" });
    // SAFETY: gettid only returns a number.
    let tid = unsafe { libc::gettid() };
    println!("@ {tid} {}", if alone { ALONE } else { AMONG_OTHERS });
    println!("@ parked");
    park();
}

/// Yields with a real-time priority that no other thread has, so that each yield goes back to this
/// thread; with the ordinary priority if that is not permitted. Returns whether it was permitted.
fn yield_alone() -> bool {
    let take = |policy, sched_priority| {
        let parameter = libc::sched_param { sched_priority };
        // SAFETY: the structure lives during the call, which changes this thread alone.
        unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) == 0 }
    };
    let is_alone = take(libc::SCHED_FIFO, 7);
    for _ in 0..YIELDS {
        thread::yield_now();
    }
    take(libc::SCHED_OTHER, 0);
    is_alone
}

fn touch_pages() {
    let bytes = PAGES * 4096;
    // SAFETY: a new mapping that only this function uses; each store is within it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
        for page in 0..PAGES {
            base.cast::<u8>().add(page * 4096).write_volatile(1);
        }
        libc::munmap(base, bytes);
    }
}

fn wait_for_futexes() {
    let word = 0_u32;
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    for _ in 0..WAITS {
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the limit live during the call; no thread wakes it, so it times out.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                &raw const word,
                operation,
                0,
                &raw const limit,
            )
        };
    }
}

/// Waits for a socket without data: such waits end by timers of low resolution, in soft interrupts.
fn wait_for_socket() {
    let (mut silent, _other) = UnixStream::pair().unwrap();
    silent
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    for _ in 0..WAITS {
        silent.read_exact(&mut [0]).unwrap_err();
    }
}

/// A thread of lower priority wakes another one, which waits for a futex without priority
/// inheritance.
fn wake_by_futex() {
    let zero = 0_u32;
    let word = &raw const zero as usize;
    let call = move |command: libc::c_int, value: u32| {
        let operation = command | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives until both threads have ended; without a limit its place holds
        // NULL.
        unsafe { libc::syscall(libc::SYS_futex, word, operation, value, ptr::null::<u8>()) }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: concerns this thread alone.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid().cast_unsigned(), 10) };
            for _ in 0..WAITS {
                // The other thread cannot go on, so it will wait at last.
                while call(libc::FUTEX_WAKE, 1) == 0 {
                    thread::yield_now();
                }
            }
        });
        scope.spawn(|| (0..WAITS).for_each(|_| _ = call(libc::FUTEX_WAIT, 0)));
    });
}

fn send_signals() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: zero is valid for the structure; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut());
        for _ in 0..SIGNALS {
            // To this very thread, so each is delivered before the next.
            libc::syscall(
                libc::SYS_tgkill,
                libc::getpid(),
                libc::gettid(),
                libc::SIGUSR2,
            );
        }
    }
}

/// Whether the folder of the test binary permits direct writes.
fn write_to_disk() -> bool {
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let path = std::env::current_exe()
        .unwrap()
        .with_extension(format!("{}", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
        .open(&path);
    let written = file.and_then(|mut file| {
        let block = Block([7; 4096]);
        (0..WRITES).try_for_each(|_| file.write_all(&block.0))
    });
    // File systems without a device have the major number 0; if they have several devices, these
    // are unknown.
    let device = path.metadata().map_or(0, |metadata| metadata.dev());
    let _ = std::fs::remove_file(&path);
    written.is_ok() && libc::major(device) != 0
}

fn pass_messages() {
    let (mut read, mut write) = std::io::pipe().unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = [0; 8];
        for _ in 0..MESSAGES {
            read.read_exact(&mut bytes).unwrap();
        }
        for _ in 0..MESSAGES {
            there.read_exact(&mut bytes).unwrap();
        }
        read.as_raw_fd()
    });
    for _ in 0..MESSAGES {
        write.write_all(&[1; 8]).unwrap();
    }
    for _ in 0..MESSAGES {
        here.write_all(&[1; 8]).unwrap();
    }
    reader.join().unwrap();
}

fn change_cpus() {
    // SAFETY: the sets are plain data, and the calls concern this thread alone.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&all), &raw mut all);
        for cpu in (0..64).filter(|&cpu| libc::CPU_ISSET(cpu, &all)) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
        }
        libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
    }
}

/// A thread of lower priority holds a lock with priority inheritance until another one waits for
/// it.
fn inherit_priorities() {
    /// The bit of the lock's word that means waiters.
    const WAITERS: u32 = 0x8000_0000;
    struct Mutex(std::cell::UnsafeCell<libc::pthread_mutex_t>);
    // SAFETY: a mutex is made to be used by several threads.
    unsafe impl Sync for Mutex {}
    // SAFETY: zero is valid for the attributes until they are initialised; the mutex is initialised
    // before it is used, and is not moved afterwards.
    let mutex = unsafe {
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attributes);
        libc::pthread_mutexattr_setprotocol(&raw mut attributes, libc::PTHREAD_PRIO_INHERIT);
        let mutex = Box::new(Mutex(std::mem::zeroed()));
        libc::pthread_mutex_init(mutex.0.get(), &raw const attributes);
        mutex
    };
    let (mutex, barrier) = (&*mutex, &std::sync::Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: concerns this thread alone.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid().cast_unsigned(), 10) };
            for _ in 0..INHERITANCES {
                // SAFETY: the mutex lives until all threads have ended; its first word is the
                // futex.
                unsafe {
                    libc::pthread_mutex_lock(mutex.0.get());
                    barrier.wait();
                    while mutex.0.get().cast::<u32>().read_volatile() & WAITERS == 0 {
                        libc::sched_yield();
                    }
                    libc::pthread_mutex_unlock(mutex.0.get());
                }
                barrier.wait();
            }
        });
        scope.spawn(move || {
            for _ in 0..INHERITANCES {
                barrier.wait();
                // SAFETY: as above.
                unsafe {
                    libc::pthread_mutex_lock(mutex.0.get());
                    libc::pthread_mutex_unlock(mutex.0.get());
                }
                barrier.wait();
            }
        });
    });
}

/// 60 ms on a CPU, so that the scheduler's tick interrupts it.
fn spin() {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut until = None;
    loop {
        // Reading the clock of a thread is a system call, and the rings have no room for that many.
        (0..20_000).for_each(|_| std::hint::spin_loop());
        // SAFETY: there is room for the result.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
        let now = used.tv_sec * 1_000_000_000 + used.tv_nsec;
        if now > *until.get_or_insert(now + 60_000_000) {
            return;
        }
    }
}

type Fields = BTreeMap<String, i128>;

#[test]
fn each_sensor_records_program_events() {
    let _cpus = cpu_lock();
    let builder = KernelMonitor::builder().sensors(Sensor::all());
    let mut monitor = match builder.backend(Backend::Bpf).create() {
        Ok(monitor) => monitor,
        Err(error) => return println!("skipped: {error}"),
    };
    let message = monitor.status().unwrap().message.clone();
    println!("{message}");
    let mut recorder = Recorder::default();
    let mut program = Program::start("eventful", |_| {});
    program.until_parked(|| {});
    let pid = program.pid;
    monitor.process_monitor(pid).unwrap();
    monitor.resume().unwrap();
    program.release(1);
    program.until_parked_again(|| recorder.poll(&mut monitor));
    let has_printed = |words: &str| program.printed.iter().any(|line| line == words);
    let wrote = has_printed(WROTE);
    let yielded = program.printed.iter().find_map(|line| {
        let (tid, how) = line.split_once(' ')?;
        let is_alone = [ALONE, AMONG_OTHERS]
            .iter()
            .position(|known| *known == how)?
            == 0;
        Some((tid.parse::<i128>().ok()?, is_alone))
    });
    let (yields_by, alone) = yielded.expect("it prints who yielded");
    program.end();
    monitor.finish().unwrap();
    recorder.poll(&mut monitor);
    recorder.assert_all(|id| monitor.committed(id));
    println!("{:?}", recorder.gaps());
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
    let not_entered = recorder.missed(GapCause::Kernel);
    println!("{not_entered} calls not entered");

    let elements_of = |sensor: &str| -> Vec<&Fields> {
        let lacks = message.contains(&format!("no sensor {sensor}"));
        match recorder.others.get(sensor) {
            Some(elements) => elements.iter().collect(),
            None if lacks => Vec::new(),
            None => {
                println!("nothing of {sensor}");
                Vec::new()
            }
        }
    };
    let exists = |sensor: &str| {
        let there = !message.contains(&format!("no sensor {sensor}"));
        if !there {
            println!("skipped: this kernel has no {sensor}");
        }
        there
    };
    let count = |sensor: &str, wanted: &[(&str, i128)]| {
        let fits = |fields: &&&Fields| wanted.iter().all(|(name, value)| fields[*name] == *value);
        elements_of(sensor).iter().filter(fits).count()
    };
    let (begin, end) = (i128::from(KIND_BEGIN), i128::from(KIND_END));
    // Every element with a thread has one of the program's, except for signals from elsewhere.
    for sensor in [
        PAGE_FAULT,
        BLOCK_IO,
        SYSCALL,
        FUTEX,
        IPC,
        SCHED_MIGRATE,
        IRQ,
        SOFTIRQ,
        TIMER,
        FLUTTER,
        SCHEDULE,
        LOCK,
    ] {
        assert!(elements_of(sensor)
            .iter()
            .all(|fields| fields["pid"] == i128::from(pid)));
    }
    if exists(PAGE_FAULT) {
        assert!(count(PAGE_FAULT, &[("kind", 1)]) >= PAGES);
        if message.contains("when page faults were served") {
            println!("skipped: {message}");
        } else {
            assert!(count(PAGE_FAULT, &[("kind", 3)]) + not_entered as usize >= PAGES);
        }
    }
    if exists(SCHEDULE) {
        // Each wait goes through the scheduler, and comes back by a switch.
        assert!(count(SCHEDULE, &[("kind", begin)]) + not_entered as usize >= WAITS);
        let returns = count(SCHEDULE, &[("kind", end), ("flag", 1)]);
        assert!(returns + not_entered as usize >= WAITS, "{returns}");
        // Only the end elements have the time that the scheduler has worked, and all of them do.
        let took = |fields: &&Fields| fields["took_ns"] > 0;
        let begins = elements_of(SCHEDULE)
            .into_iter()
            .filter(|it| it["kind"] == begin);
        assert_eq!(begins.filter(|it| took(it)).count(), 0);
        let ends: Vec<_> = elements_of(SCHEDULE)
            .into_iter()
            .filter(|it| it["kind"] == end)
            .collect();
        let silent = ends.len() - ends.iter().filter(|it| took(it)).count();
        assert!(silent <= not_entered as usize, "{silent} of {}", ends.len());
    }
    if exists(LOCK) {
        let boosted = count(LOCK, &[("kind", 3), ("inverted", 1)]);
        let restored = count(LOCK, &[("kind", 4)]);
        println!("{boosted} boosted, {restored} restored");
        assert!(boosted + not_entered as usize >= INHERITANCES, "{boosted}");
        assert!(
            restored + not_entered as usize >= INHERITANCES,
            "{restored}"
        );
        // A wait has one holder, however often it begins anew: each element with a holder has a
        // begin and an end.
        let waits = count(LOCK, &[("kind", 1), ("inverted", 1)]);
        let ends = count(LOCK, &[("kind", 2), ("inverted", 1)]);
        assert!(
            waits.abs_diff(ends) <= not_entered as usize,
            "{waits} {ends}"
        );
    }
    if exists(SYSCALL) {
        let number = libc::SYS_getppid.into();
        for kind in [begin, end] {
            let calls = count(SYSCALL, &[("number", number), ("kind", kind)]);
            assert!(
                calls == CALLS || calls + not_entered as usize >= CALLS,
                "{calls}"
            );
        }
    }
    if exists(FUTEX) {
        let timed_out = count(
            FUTEX,
            &[("kind", end), ("result", -i128::from(libc::ETIMEDOUT))],
        );
        assert!(timed_out >= WAITS);
        let long = |fields: &&&Fields| fields["kind"] == end && fields["waited_ns"] >= 1_000_000;
        assert!(elements_of(FUTEX).iter().filter(long).count() >= WAITS);
        let wakes = count(FUTEX, &[("kind", 3), ("inverted", 1)]);
        assert!(wakes + not_entered as usize >= WAITS, "{wakes}");
        for wake in elements_of(FUTEX)
            .iter()
            .filter(|fields| fields["kind"] == 3)
        {
            assert!(wake["other_tid"] > 0 && wake["other_tid"] != wake["tid"]);
            assert!(wake["waited_ns"] > 0);
        }
    }
    // Older kernels do not permit programs to mask interrupts.
    let sees_wakers = !message.contains("timers that wake a thread are seen only if");
    if exists(TIMER) && sees_wakers {
        // Most of these timeouts expire on an idle CPU, and all of them have elements: those of
        // futexes with one function of the kernel in hard interrupts, those of sockets with another
        // one in soft interrupts.
        let mut by_function: BTreeMap<i128, [usize; 2]> = BTreeMap::new();
        for fields in elements_of(TIMER) {
            if let 5 | 6 = fields["kind"] {
                let counts = by_function.entry(fields["function"]).or_default();
                counts[(fields["kind"] - 5) as usize] += 1;
            }
        }
        let [woken, handled] = by_function.values().fold([0, 0], |sum, counts| {
            [sum[0] + counts[0], sum[1] + counts[1]]
        });
        assert!(woken + not_entered as usize >= WAITS, "{by_function:?}");
        assert!(handled + not_entered as usize >= WAITS, "{by_function:?}");
        // A thread that is preempted on its way to sleep may go on without a wake-up: under load,
        // one wait in some hundreds.
        let half = |counts: &&[usize; 2]| {
            counts
                .iter()
                .all(|&count| count + not_entered as usize >= WAITS / 2)
        };
        assert!(
            by_function.values().filter(half).count() >= 2,
            "{by_function:?}"
        );
        // Each thread has an element for the begin of the interrupt right before that of the timer.
        let timers = elements_of(TIMER);
        let pairs = timers.windows(2).filter(|pair| pair[1]["kind"] == 5);
        let pairs: Vec<_> = pairs.filter(|pair| pair[0]["kind"] == 7).collect();
        assert_eq!(pairs.len(), woken);
        assert!(pairs
            .iter()
            .all(|pair| pair[0]["tid"] == pair[1]["tid"]
                && pair[0]["function"] == pair[1]["function"]));
        // Some interrupts of virtual machines have no tracepoint.
        let known = pairs.iter().filter(|pair| pair[0]["late_ns"] > 0).count();
        println!("of {woken} timers that wake {known} have the begin of the interrupt");
        if !message.contains("interrupts of the local timer begin") {
            assert!(2 * known >= woken, "{known} of {woken}");
        }
    }
    if exists(SIGNAL) {
        let number = ("number", libc::SIGUSR2.into());
        assert_eq!(
            count(SIGNAL, &[number, ("kind", 1), ("sender_pid", pid.into())]),
            SIGNALS
        );
        assert_eq!(count(SIGNAL, &[number, ("kind", 2)]), SIGNALS);
    }
    if exists(IPC) {
        let eight = ("bytes", 8);
        for family in [0, 1] {
            for kind in [1, 2] {
                let wanted = [eight, ("family", family), ("kind", kind)];
                assert!(
                    count(IPC, &wanted) >= MESSAGES,
                    "family {family}, kind {kind}"
                );
            }
        }
        // Both ends of a pipe are one channel; the ends of a socket are each other's peers.
        let pipes: Vec<_> = elements_of(IPC)
            .into_iter()
            .filter(|f| f["family"] == 0)
            .collect();
        let channel = pipes.iter().find(|f| f["bytes"] == 8).unwrap()["channel"];
        let through = |kind| count(IPC, &[("channel", channel), ("kind", kind)]);
        assert_eq!((through(1), through(2)), (MESSAGES, MESSAGES));
        let sockets: Vec<_> = elements_of(IPC)
            .into_iter()
            .filter(|f| f["family"] == 1)
            .collect();
        let sent = sockets.iter().find(|f| f["kind"] == 1).unwrap();
        let got = sockets.iter().find(|f| f["kind"] == 2).unwrap();
        assert_eq!(
            (sent["channel"], sent["peer"]),
            (got["peer"], got["channel"])
        );
    }
    if exists(FLUTTER) {
        // Each yield ends in another thread, or in its own; a switch that is not forced is a yield.
        // Without another thread at its priority it is a switch to itself.
        let yielded = |switch: &&Switch| {
            i128::from(switch.prev_tid) == yields_by
                && switch.prev_state == 0
                && switch.flags & (Switch::PREEMPTED | Switch::PREV_TRACKED) == Switch::PREV_TRACKED
        };
        let switches = recorder.switches.iter().map(|(_, _, switch)| switch);
        let others = switches.filter(yielded).count();
        let own = count(FLUTTER, &[("tid", yields_by)]);
        println!("{YIELDS} yields: {others} to others, {own} to themselves");
        assert!(own + others + not_entered as usize >= YIELDS);
        match alone {
            true => assert!(own + not_entered as usize >= YIELDS),
            false => {
                println!("skipped: a real-time priority is refused, so others may be yielded to")
            }
        }
    }
    if exists(BLOCK_IO) && wrote {
        let ends: Vec<_> = elements_of(BLOCK_IO)
            .into_iter()
            .filter(|f| f["kind"] == end)
            .collect();
        for fields in &ends {
            let issue = [("kind", begin), ("request", fields["request"])];
            // If a driver has no room, a request is issued again.
            assert!(count(BLOCK_IO, &issue) >= 1, "{fields:?}");
            assert_eq!(fields["error"], 0);
            assert!(fields["latency_ns"] > 0);
        }
        assert!(ends.len() >= WRITES, "{}", ends.len());
    } else {
        println!("skipped: no block device is behind the test's files");
    }
    if exists(SCHED_MIGRATE) {
        for fields in elements_of(SCHED_MIGRATE) {
            assert_ne!(fields["from_cpu"], fields["to_cpu"]);
        }
    }
    let names = [
        PAGE_FAULT,
        SYSCALL,
        FUTEX,
        SIGNAL,
        IPC,
        BLOCK_IO,
        SCHED_MIGRATE,
    ];
    for sensor in names
        .into_iter()
        .chain([IRQ, SOFTIRQ, TIMER, CPU_IDLE, FLUTTER])
    {
        println!("{sensor}: {} elements", count(sensor, &[]));
    }
}

#[test]
fn sensor_names_parse_and_unknown_ones_fail() {
    let error = "page-fault".parse::<Sensor>().unwrap_err().to_string();
    assert!(error.contains("page_fault, block_io"), "{error}");
    for sensor in Sensor::all() {
        assert_eq!(sensor.name().parse(), Ok(sensor));
        assert_eq!(sensor.schema().id(), sensor.name());
    }
    let perf = KernelMonitor::builder()
        .backend(Backend::Perf)
        .sensors(Sensor::all());
    match perf.create() {
        Ok(monitor) => {
            let message = &monitor.status().unwrap().message;
            assert!(
                message.contains("ipc, flutter, schedule, lock need BPF"),
                "{message}"
            );
        }
        Err(StartError::Perf { why }) => println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    }
}
