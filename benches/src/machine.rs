// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machine: its CPUs, its counter, and how it is described.
//!
//! The measured thread has a CPU of its own; everything else runs on another one. If it is
//! permitted, measured threads run as `SCHED_FIFO`, so that other work of the machine does not
//! interrupt a batch of ten microseconds.

use std::fs;
use std::mem::size_of_val;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use overhear_monitor::interference::InterferenceProbe;
use overhear_stream::read_hardware_ticks;
use overhear_stream::sync::{fence, AtomicBool, Ordering};
use serde::Serialize;

/// Facts about the machine that a reader of the figures must know.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// Whether the kernel reports the two CPUs as hyperthreads of one core. The kernel of a virtual
    /// machine may not see the hyperthreads,
    pub(crate) one_core: bool,
    /// so this is measured: the factor by which arithmetic on the other CPU slows arithmetic on the
    /// measured one. 1 means two cores; hyperthreads show 1.3 to 2.
    pub(crate) sibling_slowdown: f64,
    pub(crate) kernel: String,
    pub(crate) ticks_per_ns: f64,
    pub(crate) fifo: bool,
    pub(crate) date: String,
}

/// The CPU of the measured thread, and the CPU of everything else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpus {
    pub(crate) measured: usize,
    pub(crate) others: usize,
}

/// Chooses the CPUs and moves every thread of the process to the second; new threads inherit it.
pub(crate) fn settle() -> Result<Cpus> {
    // SAFETY: the set is a plain value that the call fills in.
    let allowed: Vec<usize> = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let filled = libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        ensure!(
            filled == 0,
            "the kernel does not say which CPUs are allowed"
        );
        (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| libc::CPU_ISSET(*cpu, &set))
            .collect()
    };
    ensure!(
        allowed.len() >= 2,
        "one CPU is too few: readers and drains must not run on the measured one"
    );
    let cpus = Cpus {
        measured: allowed[allowed.len() - 1],
        others: allowed[0],
    };
    for thread in fs::read_dir("/proc/self/task")? {
        let name = thread?.file_name();
        pin(name.to_string_lossy().parse()?, cpus.others)?;
    }
    Ok(cpus)
}

/// Binds the calling thread to this CPU, with real-time priority if that is permitted; returns
/// whether it was.
pub(crate) fn occupy(cpu: usize) -> Result<bool> {
    pin(0, cpu)?;
    // SAFETY: the parameter is a plain value; the call changes the calling thread's policy only.
    let refused = unsafe {
        let mut parameter: libc::sched_param = std::mem::zeroed();
        parameter.sched_priority = 1;
        // New threads must not inherit the priority.
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameter)
    };
    Ok(refused == 0)
}

fn pin(thread: i32, cpu: usize) -> Result<()> {
    // SAFETY: the set is a plain value that the call reads.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread, size_of_val(&set), &set)
    };
    ensure!(failed == 0, "a thread cannot be pinned to CPU {cpu}");
    Ok(())
}

/// Whether the kernel reports the two as hyperthreads of one core.
fn one_core(cpus: Cpus) -> bool {
    let core = |cpu: usize| {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus");
        fs::read_to_string(topology).ok()
    };
    core(cpus.measured).is_some() && core(cpus.measured) == core(cpus.others)
}

/// The nanoseconds of a short piece of arithmetic that needs all units of a core. It is slow if
/// another program on the machine uses some of them. No clock or counter of a guest shows that.
pub(crate) fn interference_probe() -> f64 {
    crate::race::time(1, &mut |_| PROBE.work())
}

/// About two microseconds: two hundred steps of a counter of 10 ns.
pub(crate) const PROBE: InterferenceProbe = InterferenceProbe::new(1500);

/// The factor by which arithmetic on the other CPU slows it on the measured one. The caller
/// occupies the measured CPU.
fn sibling_slowdown(others: usize) -> f64 {
    const STEPS: u64 = 100_000;
    const TURNS: usize = 41;
    static BUSY: AtomicBool = AtomicBool::new(false);
    static DONE: AtomicBool = AtomicBool::new(false);
    // Relaxed everywhere: if the partner runs a moment too long or too short, the medians do not
    // change.
    let partner = std::thread::spawn(move || {
        let _ = pin(0, others);
        while !DONE.load(Ordering::Relaxed) {
            if BUSY.load(Ordering::Relaxed) {
                InterferenceProbe::new(STEPS / 100).work();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let turn = |busy: bool| {
        BUSY.store(busy, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(1));
        crate::race::time(1, &mut |_| InterferenceProbe::new(STEPS).work())
    };
    let (mut alone, mut together): (Vec<_>, Vec<_>) =
        (0..TURNS).map(|_| (turn(false), turn(true))).unzip();
    DONE.store(true, Ordering::Relaxed);
    let _ = partner.join();
    alone.sort_by(f64::total_cmp);
    together.sort_by(f64::total_cmp);
    together[TURNS / 2] / alone[TURNS / 2]
}

/// The counter, ordered after earlier instructions and before later ones.
#[inline(always)]
pub(crate) fn ordered_ticks() -> u64 {
    barrier();
    let ticks = read_hardware_ticks().as_raw();
    barrier();
    ticks
}

#[inline(always)]
fn barrier() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions exist on every x86-64 CPU and only order others. Stores must have
    // left the store buffer, else a batch would leave them to the one after it.
    unsafe {
        core::arch::x86_64::_mm_mfence();
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    let _ = (fence, Ordering::SeqCst);
}

/// Ticks to nanoseconds. Measured once against the kernel's clock.
pub(crate) fn nanos(ticks: u64) -> f64 {
    ticks as f64 / ticks_per_ns()
}

pub(crate) fn ticks_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (begin, from) = (Instant::now(), ordered_ticks());
        std::thread::sleep(Duration::from_millis(100));
        let (span, to) = (begin.elapsed(), ordered_ticks());
        (to - from) as f64 / span.as_nanos() as f64
    })
}

/// Describes the machine by the properties that matter to the figures. The caller occupies the
/// measured CPU.
pub(crate) fn describe(cpus: Cpus, fifo: bool) -> Result<Machine> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or("", |(_, value)| value.trim())
            .to_owned()
    };
    let (family, model) = (field("cpu family"), field("model\t"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let version = release.trim().split(['-', '+']).next().unwrap_or_default();
    Ok(Machine {
        cpu: format!("{} (family {family}, model {model})", field("model name")),
        cpus: std::thread::available_parallelism()
            .context("the number of CPUs is unknown")?
            .get()
            .max(info.matches("processor\t").count()),
        one_core: one_core(cpus),
        sibling_slowdown: sibling_slowdown(cpus.others),
        kernel: format!("Linux {version}"),
        ticks_per_ns: ticks_per_ns(),
        fifo,
        date: today(),
    })
}

/// The date in UTC, without a crate for it.
fn today() -> String {
    // SAFETY: both calls fill plain values of this frame.
    let date = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut date: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&now, &mut date);
        date
    };
    let (year, month) = (date.tm_year + 1900, date.tm_mon + 1);
    format!("{year}-{month:02}-{:02}", date.tm_mday)
}
