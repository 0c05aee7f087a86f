// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples that BPF programs take, against the kernel's own accounts of the threads.

use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, ptr, thread};

use overhear_event::{GapCause, Nanos, SamplePoint};
use overhear_kernel::{
    Backend, FlowPoint, JobEndPoint, Kernel, KernelBuilder, KernelSampler, Probe, StartError,
};

use crate::harness::{cpu_lock, settled_switches, Program, Recorder};
use crate::roles::park;

const ACCOUNTS: [&str; 8] = [
    "cpu-time",
    "wait-time",
    "voluntary-switches",
    "involuntary-switches",
    "minor-faults",
    "major-faults",
    "read-bytes",
    "write-bytes",
];

/// The totals of a thread, by the names of the fields of samples.
pub(crate) type Totals = BTreeMap<&'static str, i128>;

/// The kernel's totals of a thread. A zombie has no `io` file.
pub(crate) fn totals_of(pid: u32, tid: u32) -> Totals {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    let words = |text: String| -> Vec<i128> {
        let numbers = text.split_whitespace().map(str::parse);
        numbers.map(Result::unwrap_or_default).collect()
    };
    let schedstat = words(read("schedstat").unwrap());
    let stat = read("stat").unwrap();
    let stat = words(stat.rsplit_once(')').unwrap().1.to_owned());
    let status = read("status").unwrap();
    let line = |text: &str, key: &str| -> i128 {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse().unwrap()
    };
    let mut totals = Totals::from([
        ("cpu_time", schedstat[0]),
        ("wait_time", schedstat[1]),
        (
            "voluntary_switches",
            line(&status, "voluntary_ctxt_switches:"),
        ),
        (
            "involuntary_switches",
            line(&status, "nonvoluntary_ctxt_switches:"),
        ),
        // Fields are counted from the state, which is the third.
        ("minor_faults", stat[7]),
        ("major_faults", stat[9]),
    ]);
    if let Ok(io) = read("io") {
        totals.insert("read_bytes", line(&io, "read_bytes:"));
        totals.insert("write_bytes", line(&io, "write_bytes:"));
    }
    totals
}

pub(crate) fn totals_of_all(pid: u32) -> BTreeMap<u32, Totals> {
    let settled = settled_switches(pid);
    settled
        .keys()
        .map(|tid| (*tid, totals_of(pid, *tid)))
        .collect()
}

pub(crate) fn minus(mut totals: Totals, before: &Totals) -> Totals {
    for (name, total) in &mut totals {
        *total -= before.get(name).copied().unwrap_or_default();
    }
    totals
}

pub(crate) type Sample = BTreeMap<String, i128>;

/// The samples of a sampler, in the order of their times: those of several CPUs have no common
/// order.
pub(crate) fn samples(recorder: &Recorder, sampler: &str) -> Vec<Sample> {
    let (Some(all), Some(times)) = (recorder.others.get(sampler), recorder.times.get(sampler))
    else {
        return Vec::new();
    };
    let mut all: Vec<_> = times.iter().zip(all).collect();
    all.sort_by_key(|(time, _)| **time);
    all.into_iter().map(|(_, sample)| sample.clone()).collect()
}

pub(crate) fn at(sample: &Sample, point: SamplePoint) -> bool {
    sample["point"] == i128::from(point.as_raw())
}

/// Sums of a sampler's samples of a thread, for these quantities.
pub(crate) fn sums(samples: &[Sample], tid: u32, of: &Totals) -> Totals {
    let own = samples.iter().filter(|sample| sample["tid"] == tid.into());
    let mut sums: Totals = of.keys().map(|name| (*name, 0)).collect();
    for sample in own {
        for (name, sum) in &mut sums {
            *sum += sample[*name];
        }
    }
    sums
}

/// Starts a kernel with this sampler; `None` after printing "skipped".
pub(crate) fn kernel(sampler: KernelSampler) -> Option<Kernel> {
    kernel_of(Kernel::builder(), sampler)
}

/// As [`kernel`], with other settings.
pub(crate) fn kernel_of(builder: KernelBuilder, sampler: KernelSampler) -> Option<Kernel> {
    match builder.backend(Backend::Bpf).samplers([sampler]).build() {
        Ok(kernel) => Some(kernel),
        Err(error @ StartError::Bpf { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Lets the program end, and waits until each of these threads has its last sample: on a busy
/// machine they leave their CPUs long after they have announced their end.
pub(crate) fn end_program(
    program: &mut Program,
    kernel: &mut Kernel,
    recorder: &mut Recorder,
    sampler: &str,
    tids: impl IntoIterator<Item = u32>,
) {
    program.end();
    for tid in tids {
        let is_last = |it: &Sample| it["tid"] == tid.into() && at(it, SamplePoint::ThreadEnd);
        let end = Instant::now() + Duration::from_secs(120);
        while !recorder
            .others
            .get(sampler)
            .is_some_and(|all| all.iter().any(is_last))
        {
            assert!(Instant::now() < end, "thread {tid} has no last sample");
            thread::sleep(Duration::from_millis(1));
            recorder.poll(kernel);
        }
    }
    kernel.finish();
    recorder.poll(kernel);
}

pub(crate) fn switches() -> KernelSampler {
    KernelSampler::new("samples")
        .quantities(ACCOUNTS)
        .at(FlowPoint::Switch)
        .elements(65_536)
}

#[test]
fn sums_of_samples_are_the_totals_of_each_thread() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches()) else {
        return;
    };
    let mut before = Totals::new();
    let mut program = Program::start("counted", |pid| {
        before = totals_of(pid, pid);
        kernel.follow(pid).unwrap();
    });
    let mut recorder = Recorder::default();
    program.until_parked(|| recorder.poll(&mut kernel));
    let mut totals = totals_of_all(program.pid);
    recorder.poll(&mut kernel);
    assert!(totals.len() > 8, "the main thread and its workers");
    let main = totals.get_mut(&program.pid).unwrap();
    *main = minus(std::mem::take(main), &before);
    for (tid, total) in &totals {
        println!("thread {tid}: {total:?}");
        assert_eq!(
            sums(&samples(&recorder, "samples"), *tid, total),
            *total,
            "thread {tid}"
        );
    }
    let moved = samples(&recorder, "samples")
        .into_iter()
        .map(|it| it["cpu"]);
    let cpus: std::collections::BTreeSet<_> = moved.collect();
    println!("samples on CPUs {cpus:?}");

    // The end: each thread has a last sample, and nothing is missing.
    let tids = totals.keys().copied();
    end_program(&mut program, &mut kernel, &mut recorder, "samples", tids);
    let samples = samples(&recorder, "samples");
    for tid in totals.keys() {
        let own = samples
            .iter()
            .filter(|sample| sample["tid"] == (*tid).into());
        let ends: Vec<_> = own
            .map(|sample| at(sample, SamplePoint::ThreadEnd))
            .collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1, "thread {tid}");
        assert_eq!(ends.last(), Some(&true), "thread {tid}");
    }
    let total = minus(totals_of(program.pid, program.pid), &before);
    assert_eq!(sums(&samples, program.pid, &total), total, "after the end");
    recorder.assert_complete(&kernel);
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
}

/// Jobs of each kind, and the CPU time of each.
const JOBS: usize = 40;
const JOB_NS: i64 = 100_000;
/// The descriptor that one kind reads.
const DESCRIPTOR: i32 = 77;

/// The variable at which one kind of jobs waits. It has another value than the waits expect, so
/// they return at once.
#[unsafe(no_mangle)]
static OVERHEAR_TEST_FUTEX: u32 = 7;

/// The function that ends one kind of jobs.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn overhear_test_step(number: usize) -> usize {
    black_box(number) + 1
}

fn thread_cpu_ns() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is written to a variable that lives during the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    assert_eq!(result, 0);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn spin_for(ns: i64) {
    let end = thread_cpu_ns() + ns;
    while thread_cpu_ns() < end {
        spin_loop();
    }
}

/// Role: runs jobs of each kind in its main thread.
pub(crate) fn jobs() {
    println!("@ {:#x}", ptr::from_ref(&OVERHEAR_TEST_FUTEX).addr());
    let zeros = fs::File::open("/dev/zero").unwrap();
    // SAFETY: the first is an open descriptor, and this process has no other with the second
    // number.
    let copy = unsafe { libc::dup2(zeros.as_raw_fd(), DESCRIPTOR) };
    assert_eq!(copy, DESCRIPTOR);
    let own = fs::File::open(env::current_exe().unwrap()).unwrap();
    println!("@ parked");
    park();
    // SAFETY: gettid only returns a number.
    println!("@ {}", unsafe { libc::gettid() });
    let ends: [fn(usize, i32); 6] = [
        |_, _| thread::yield_now(),
        |_, _| thread::sleep(Duration::from_micros(1)),
        |_, _| {
            let other = OVERHEAR_TEST_FUTEX + 1;
            let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            let address = ptr::from_ref(&OVERHEAR_TEST_FUTEX);
            let no_limit = ptr::null::<libc::timespec>();
            // SAFETY: the variable is never freed, and the wait ends at once.
            let result = unsafe { libc::syscall(libc::SYS_futex, address, wait, other, no_limit) };
            assert_eq!(result, -1);
        },
        |_, _| read_byte(DESCRIPTOR),
        |_, own| read_byte(own),
        |number, _| assert_eq!(overhear_test_step(number), number + 1),
    ];
    for end in ends {
        for number in 0..JOBS {
            spin_for(JOB_NS);
            end(number, own.as_raw_fd());
        }
    }
    println!("@ parked");
    park();
}

fn read_byte(descriptor: i32) {
    let mut byte = 0_u8;
    // SAFETY: `byte` has room for the one requested byte.
    let read = unsafe { libc::read(descriptor, ptr::from_mut(&mut byte).cast(), 1) };
    assert_eq!(read, 1);
}

/// The series of a thread that has its totals: the last sample continues the series of other
/// points, if the thread has one.
fn without_jobs_beside_timers(all: &[Sample], tid: u32) -> Vec<Sample> {
    let mut own = all.to_vec();
    own.retain(|sample| sample["tid"] == tid.into());
    if own.iter().any(|sample| at(sample, SamplePoint::Timer)) {
        own.retain(|sample| !at(sample, SamplePoint::JobEnd));
    }
    own
}

/// Runs the jobs under a sampler with this end of jobs, for a program that runs already; returns
/// its samples of the thread with the jobs. Without an end it is the futex by its address.
fn samples_of_jobs(end: Option<JobEndPoint>, period: Option<Nanos>) -> Option<Vec<Sample>> {
    let mut program = Program::start("jobs", |_| {});
    program.until_parked(|| {});
    let address = program.printed[0].trim_start_matches("0x");
    let address = u64::from_str_radix(address, 16).unwrap();
    let sampler = KernelSampler::new("jobs").quantities(ACCOUNTS);
    let mut sampler = sampler.job_end(end.unwrap_or(JobEndPoint::Futex(address)));
    if let Some(period) = period {
        sampler = sampler.timer(period);
    }
    let mut kernel = kernel(sampler)?;
    let before = totals_of_all(program.pid);
    kernel.follow(program.pid).unwrap();
    let mut recorder = Recorder::default();
    program.release(1);
    program.until_parked_again(|| recorder.poll(&mut kernel));
    let tid: u32 = program.printed[0].parse().unwrap();
    let parked = totals_of_all(program.pid)[&tid].clone();
    let jobs = samples(&recorder, "jobs").len();
    recorder.poll(&mut kernel);
    assert_eq!(samples(&recorder, "jobs").len(), jobs);
    // The end adds the rest of each thread, so that the sums are totals again.
    let tids = [program.pid, tid];
    end_program(&mut program, &mut kernel, &mut recorder, "jobs", tids);
    recorder.assert_complete(&kernel);
    let all = samples(&recorder, "jobs");
    let main = minus(totals_of(program.pid, program.pid), &before[&program.pid]);
    assert_eq!(
        sums(
            &without_jobs_beside_timers(&all, program.pid),
            program.pid,
            &main
        ),
        main
    );
    // The thread with the jobs has ended since; it did a little more until then.
    let sum = sums(&without_jobs_beside_timers(&all, tid), tid, &parked);
    for (name, parked) in minus(parked, &before[&tid]) {
        assert!(sum[name] >= parked, "{name}: {sum:?}");
    }
    let own = all.into_iter().filter(|it| it["tid"] == tid.into());
    let own: Vec<Sample> = own.collect();
    Some(own)
}

#[test]
fn jobs_end_where_the_user_says() {
    let _cpus = cpu_lock();
    let own = env::current_exe().unwrap();
    let program = own.to_str().unwrap().to_owned();
    let function = Probe::function(&format!("{program}:overhear_test_step:return")).unwrap();
    let variable = "OVERHEAR_TEST_FUTEX".to_owned();
    // The address is known when the program runs.
    let ends: [(&str, Option<JobEndPoint>); 7] = [
        ("yield", Some(JobEndPoint::Yield)),
        ("sleep", Some(JobEndPoint::Sleep)),
        ("address", None),
        (
            "variable",
            Some(JobEndPoint::FutexVariable { program, variable }),
        ),
        (
            "descriptor",
            Some(JobEndPoint::Descriptor(DESCRIPTOR as u32)),
        ),
        ("file", Some(JobEndPoint::File(own))),
        ("function", Some(JobEndPoint::Function(function))),
    ];
    for (name, end) in ends {
        let Some(samples) = samples_of_jobs(end, None) else {
            return;
        };
        let is_end = |sample: &&Sample| at(sample, SamplePoint::JobEnd);
        let jobs: Vec<&Sample> = samples.iter().filter(is_end).collect();
        assert_eq!(jobs.len(), JOBS, "{name}");
        let last = samples.last().unwrap();
        assert!(
            at(last, SamplePoint::ThreadEnd) && samples.len() == JOBS + 1,
            "{name}"
        );
        // The first job begins where the one of the previous kind ended.
        let mut times: Vec<i128> = jobs[1..].iter().map(|job| job["cpu_time"]).collect();
        times.sort_unstable();
        println!(
            "{name}: CPU time of jobs {:?} to {:?}",
            times[0],
            times[times.len() - 1]
        );
        // The kernel may subtract interrupts that our estimate contains, and returns them later.
        let expected = i128::from(JOB_NS);
        assert!(
            times[times.len() / 2] > expected * 9 / 10,
            "{name}: {times:?}"
        );
    }
}

#[test]
fn timer_and_jobs_are_two_series() {
    let _cpus = cpu_lock();
    let period = Some(Nanos::from_ms(1));
    let Some(samples) = samples_of_jobs(Some(JobEndPoint::Yield), period) else {
        return;
    };
    let of = |point| samples.iter().filter(move |sample| at(sample, point));
    let timers = of(SamplePoint::Timer).count();
    println!("{timers} samples of the timer");
    assert_eq!(of(SamplePoint::JobEnd).count(), JOBS);
    // The other kinds of jobs take some 20 ms, without an end of this kind.
    assert!(timers > 3);
    // No sample of the timer takes anything from a job.
    let mut times: Vec<i128> = of(SamplePoint::JobEnd).map(|job| job["cpu_time"]).collect();
    times.sort_unstable();
    assert!(times[JOBS / 2] > i128::from(JOB_NS) * 9 / 10, "{times:?}");
}

/// Role: children that work, create threads and execute a program; they end before their parent.
pub(crate) fn lineage() {
    println!("@ parked");
    park();
    let executes = Command::new("sh")
        .args(["-c", "for i in 1 2 3 4 5; do :; done"])
        .spawn();
    let mut children = vec![executes.unwrap()];
    for _ in 0..3 {
        let mut child = Command::new("/nonexistent");
        // SAFETY: the child is alone: only this thread was copied. It calls what std permits in a
        // process with one thread, and never returns.
        unsafe {
            child.pre_exec(|| {
                for cpu in 0..4 {
                    let mut set: libc::cpu_set_t = std::mem::zeroed();
                    libc::CPU_SET(cpu, &mut set);
                    libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
                    let end = thread_cpu_ns() + 2_000_000;
                    while thread_cpu_ns() < end {}
                    libc::sched_yield();
                }
                libc::_exit(0);
            });
        }
        // The child ends instead of executing; `spawn` reads the end of its pipe as success.
        children.push(child.spawn().unwrap());
    }
    for child in &children {
        println!("@ {}", child.id());
    }
    println!("@ parked");
    park();
    // They are zombies until now.
    for mut child in children {
        let _ = child.wait();
    }
}

#[test]
fn sums_are_totals_through_fork_exec_migration_and_exit() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches().at(FlowPoint::SystemCallExit)) else {
        return;
    };
    let mut program = Program::start("lineage", |_| {});
    program.until_parked(|| {});
    kernel.follow(program.pid).unwrap();
    let mut recorder = Recorder::default();
    program.release(1);
    program.until_parked_again(|| recorder.poll(&mut kernel));
    let children: Vec<u32> = program
        .printed
        .iter()
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert_eq!(children.len(), 4);
    let is_zombie = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.starts_with(" Z")
    };
    while !children.iter().all(is_zombie) {
        recorder.poll(&mut kernel);
        thread::sleep(Duration::from_millis(1));
    }
    for child in &children {
        settled_switches(*child);
    }
    recorder.poll(&mut kernel);
    let samples = samples(&recorder, "samples");
    for child in children {
        let total = totals_of(child, child);
        println!("child {child}: {total:?}");
        assert_eq!(sums(&samples, child, &total), total, "child {child}");
        let own: Vec<&Sample> = samples
            .iter()
            .filter(|it| it["tid"] == child.into())
            .collect();
        assert!(at(own[own.len() - 1], SamplePoint::ThreadEnd));
        let cpus: std::collections::BTreeSet<_> = own.iter().map(|it| it["cpu"]).collect();
        println!("{} samples on CPUs {cpus:?}", own.len());
    }
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
}
