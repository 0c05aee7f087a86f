// SPDX-License-Identifier: MIT OR Apache-2.0
//! The perf sensor, as root and as an ordinary user.

use overhear_event::kernel::Life;
use overhear_event::GapCause;
use overhear_kernel::{ActiveBackend, Backend, Kernel};

use crate::harness::{cpu_lock, is_root, run_role, Program, Recorder};

/// The user `nobody` of every distribution.
pub(crate) const NOBODY: u32 = 65_534;

fn start(pages: u32) -> Option<Kernel> {
    let builder = Kernel::builder().backend(Backend::Perf).perf_pages(pages);
    match builder.build() {
        Ok(kernel) => {
            println!("{}", kernel.status().message);
            assert_eq!(kernel.status().active, ActiveBackend::Perf);
            Some(kernel)
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The sensor's counts and samples agree with the kernel's.
pub(crate) fn counts_agree() {
    let Some(mut kernel) = start(128) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("counted", |pid| kernel.follow(pid).unwrap());
    program.until_parked(|| recorder.poll(&mut kernel));
    let expected = program.switches();
    recorder.poll(&mut kernel);
    assert_eq!(recorder.missed(GapCause::Kernel), 0);
    for (&tid, &counts) in &expected {
        println!("thread {tid}: {counts:?} voluntary and involuntary departures");
        assert_eq!(recorder.departures(tid), counts, "thread {tid}");
        assert_eq!(recorder.arrivals(tid), counts.0 + counts.1, "thread {tid}");
    }
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    for &tid in expected.keys() {
        let kinds: Vec<u32> = recorder
            .lives
            .iter()
            .filter(|(_, life)| life.tid == tid)
            .map(|(_, life)| life.kind)
            .collect();
        let first = if tid == program.pid {
            Life::EXEC
        } else {
            Life::FORK
        };
        assert!(kinds.contains(&first), "thread {tid}: {kinds:?}");
        assert!(kinds.contains(&Life::EXIT), "thread {tid}: {kinds:?}");
        let samples: Vec<_> = recorder.samples.iter().filter(|s| s.1.tid == tid).collect();
        let (first, last) = (samples.first().unwrap(), samples.last().unwrap());
        assert!(last.1.pid == program.pid);
        assert!(last.1.run_ns > 0 && last.1.run_ns >= first.1.run_ns);
        assert!(last.1.wait_ns >= first.1.wait_ns);
    }
    // The main thread was sampled once more as a zombie, after everything else.
    let last_exit = recorder.lives.iter().filter(|l| l.1.kind == Life::EXIT);
    let last_exit = last_exit.map(|l| l.0).max().unwrap();
    let last_sample = recorder.samples.iter().rfind(|s| s.1.tid == program.pid);
    assert!(last_sample.unwrap().0 > last_exit);
    assert!(recorder.samples.len() > expected.len());
    let exit_names = recorder.lives.iter().filter(|l| l.1.kind == Life::EXIT);
    assert!(exit_names.into_iter().any(|l| l.1.comm() == "work-3"));
}

/// Elements that a full ring drops are counted exactly.
pub(crate) fn overflow_is_counted() {
    let Some(mut kernel) = start(8) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("flood", |pid| kernel.follow(pid).unwrap());
    let mut polls = 0;
    program.until_parked(|| {
        // A poll now and then frees the ring, so that there are several gaps.
        polls += 1;
        if polls % 64 == 0 {
            recorder.poll(&mut kernel);
        }
    });
    let switches: u64 = program.switches().values().map(|c| c.0 + c.1).sum();
    let threads = program.switches().len() as u64;
    kernel.finish();
    recorder.poll(&mut kernel);
    let missed = recorder.missed(GapCause::Kernel);
    let delivered = recorder.switches.len() as u64 + recorder.lives.len() as u64;
    println!("{delivered} records delivered, {missed} lost");
    assert!(missed > 0);
    // A departure and an arrival per switch; a fork and a name per thread, except the first, which
    // has an exec. The thread of the test harness has no name record of its own.
    let lives_at_most = 2 * threads;
    let expected = 2 * switches..=2 * switches + lives_at_most;
    let all = delivered + missed;
    assert!(expected.contains(&all), "{all} outside {expected:?}");
    assert_eq!(
        2 * switches,
        all - recorder.lives.len() as u64,
        "lives are early and were not lost"
    );
    program.end();
}

#[test]
fn counts_agree_for_root() {
    let _cpus = cpu_lock();
    if is_root() {
        counts_agree();
    } else {
        println!("skipped: not root; the test as an ordinary user covers it");
    }
}

#[test]
fn counts_agree_for_an_ordinary_user() {
    let _cpus = cpu_lock();
    run_role("perf_counts", is_root().then_some(NOBODY));
}

#[test]
fn overflow_is_counted_for_an_ordinary_user() {
    let _cpus = cpu_lock();
    run_role("perf_overflow", is_root().then_some(NOBODY));
}
