// SPDX-License-Identifier: MIT OR Apache-2.0
//! When samplers in the kernel take samples: points, distances, the timer, budgets, full rings.

use overhear_event::{GapCause, Nanos, SamplePoint};
use overhear_kernel::{Backend, BudgetState, FlowPoint, Kernel, KernelSampler, StartError};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::samples::{
    at, end_program, kernel, kernel_of, minus, samples, sums, switches, totals_of, totals_of_all,
    Sample, Totals,
};

/// A run of the program with all kinds of switches.
struct Run {
    program: Program,
    recorder: Recorder,
    before: Totals,
}

impl Run {
    /// Runs it until its threads are parked and off their CPUs. `meanwhile` is called often.
    fn until_parked(kernel: &mut Kernel, mut meanwhile: impl FnMut(&mut Kernel)) -> Self {
        let mut before = Totals::new();
        let mut program = Program::start("counted", |pid| {
            before = totals_of(pid, pid);
            kernel.follow(pid).unwrap();
        });
        let mut recorder = Recorder::default();
        program.until_parked(|| {
            meanwhile(kernel);
            recorder.poll(kernel);
        });
        Self {
            program,
            recorder,
            before,
        }
    }

    /// The kernel's totals of each thread since it is followed.
    fn totals(&self) -> Vec<(u32, Totals)> {
        let own = self.program.pid;
        let since = |(tid, totals)| match tid == own {
            true => (tid, minus(totals, &self.before)),
            false => (tid, totals),
        };
        totals_of_all(own).into_iter().map(since).collect()
    }

    fn samples(&self) -> Vec<Sample> {
        samples(&self.recorder, "samples")
    }

    fn samples_of(&self, tid: u32) -> Vec<Sample> {
        let mut all = self.samples();
        all.retain(|sample| sample["tid"] == tid.into());
        all
    }

    /// Ends the program, and asserts that the samples of its main thread add up to its totals.
    fn end(mut self, kernel: &mut Kernel) -> Recorder {
        let pid = self.program.pid;
        end_program(
            &mut self.program,
            kernel,
            &mut self.recorder,
            "samples",
            [pid],
        );
        let total = minus(totals_of(pid, pid), &self.before);
        let all = self.samples();
        assert_totals(&sums(&all, pid, &total), &total);
        self.recorder.assert_complete(kernel);
        self.recorder
    }
}

/// Asserts that sums of an ended thread are its totals. Samples of a running thread contain the
/// interrupts since its arrival; if it ends soon after, the kernel's CPU time is a little less.
fn assert_totals(sums: &Totals, totals: &Totals) {
    for (name, total) in totals {
        match *name {
            "cpu_time" => assert!(sums[name] >= *total, "{sums:?} of {totals:?}"),
            _ => assert_eq!(sums[name], *total, "{name}"),
        }
    }
}

fn sums_are_totals(run: &Run) {
    for (tid, total) in run.totals() {
        let all = run.samples();
        assert_eq!(sums(&all, tid, &total), total, "thread {tid}");
    }
}

#[test]
fn timer_leaves_out_no_departure() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches().timer(Nanos::from_ms(1))) else {
        return;
    };
    let mut run = Run::until_parked(&mut kernel, |_| {});
    let totals = run.totals();
    run.recorder.poll(&mut kernel);
    for (tid, total) in &totals {
        let own = run.samples_of(*tid);
        let departures = own.iter().filter(|sample| at(sample, SamplePoint::Switch));
        let switches = total["voluntary_switches"] + total["involuntary_switches"];
        assert_eq!(departures.count() as i128, switches, "thread {tid}");
    }
    let all = run.samples();
    let timers = all.iter().filter(|sample| at(sample, SamplePoint::Timer));
    let timers = timers.count();
    println!("{timers} samples of the timer of {}", all.len());
    assert!(timers > 10);
    run.end(&mut kernel);
}

/// Times of samples are not recorded, but each has the time since the one before.
#[test]
fn distance_of_points_does_not_depend_on_the_timer() {
    let _cpus = cpu_lock();
    let distance = Nanos::from_ms(5);
    let sampler = switches().least_distance(distance).timer(Nanos::from_ms(1));
    let Some(mut kernel) = kernel(sampler) else {
        return;
    };
    let mut run = Run::until_parked(&mut kernel, |_| {});
    let totals = run.totals();
    run.recorder.poll(&mut kernel);
    let (mut points, mut timers) = (0, 0);
    for (tid, total) in &totals {
        let mut since_point = None;
        for sample in run.samples_of(*tid) {
            let duration = sample["duration"];
            let elapsed = since_point.map(|since| since + duration);
            if at(&sample, SamplePoint::Timer) {
                timers += 1;
                since_point = elapsed;
                continue;
            }
            points += 1;
            if let Some(elapsed) = elapsed {
                assert!(
                    elapsed >= i128::from(distance.as_ns()),
                    "thread {tid}: {elapsed}"
                );
            }
            since_point = Some(0);
        }
        // The thread has left a CPU, so there is a sample at a point.
        let switches = total["voluntary_switches"] + total["involuntary_switches"];
        assert!(switches == 0 || since_point.is_some(), "thread {tid}");
    }
    println!("{points} samples at points, {timers} of the timer");
    assert!(points > 20 && timers > 20);
    run.end(&mut kernel);
}

#[test]
fn without_masked_interrupts_sums_are_totals() {
    let _cpus = cpu_lock();
    let builder = Kernel::builder().without_interrupt_masking();
    let sampler = switches()
        .at(FlowPoint::WakeUp)
        .at(FlowPoint::SystemCallEntry)
        .timer(Nanos::from_ms(1));
    let Some(mut kernel) = kernel_of(builder, sampler) else {
        return;
    };
    let mut run = Run::until_parked(&mut kernel, |_| {});
    let totals = run.totals();
    run.recorder.poll(&mut kernel);
    // The last sample of a parked thread is that of its departure, unless a wake-up on another CPU
    // kept it from its account.
    let nested = run.recorder.missed(GapCause::Nested);
    println!("{nested} samples were not taken, because another was in progress");
    if nested == 0 {
        sums_are_totals(&run);
    }
    assert!(totals.len() > 8);
    run.end(&mut kernel);
}

#[test]
fn wake_ups_and_calls_are_points() {
    let _cpus = cpu_lock();
    let sampler = KernelSampler::new("samples")
        .quantities(["cpu-time", "voluntary-switches"])
        .at(FlowPoint::WakeUp)
        .at(FlowPoint::SystemCallExit)
        .elements(65_536);
    let Some(mut kernel) = kernel(sampler) else {
        return;
    };
    let mut run = Run::until_parked(&mut kernel, |_| {});
    let totals = run.totals();
    run.recorder.poll(&mut kernel);
    let all = run.samples();
    let of = |point| all.iter().filter(|sample| at(sample, point)).count();
    let (woken, calls) = (of(SamplePoint::WakeUp), of(SamplePoint::SystemCallExit));
    let slept: i128 = totals.iter().map(|(_, it)| it["voluntary_switches"]).sum();
    println!("{woken} wake-ups, {calls} calls, {slept} voluntary switches");
    // A parked thread sleeps and was not woken.
    assert!(woken as i128 * 10 >= slept * 9);
    assert!(calls as i128 > slept);
    let pid = run.program.pid;
    end_program(
        &mut run.program,
        &mut kernel,
        &mut run.recorder,
        "samples",
        [pid],
    );
    let mut total = minus(totals_of(pid, pid), &run.before);
    total.retain(|name, _| ["cpu_time", "voluntary_switches"].contains(name));
    let all = run.samples();
    assert_totals(&sums(&all, pid, &total), &total);
}

#[test]
fn budgets_skip_samples_but_no_counts() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches()) else {
        return;
    };
    let stream = |kernel: &Kernel| {
        let writes = kernel.writes();
        let own = writes
            .into_iter()
            .find(|it| it.descriptor.sensor == "samples");
        own.expect("the sampler is known to budgets")
    };
    let first = stream(&kernel).descriptor.id;
    let mut turn = 0_u32;
    let run = Run::until_parked(&mut kernel, |kernel| {
        turn += 1;
        let to = match turn % 40 {
            0 => BudgetState::On,
            20 => BudgetState::Detached,
            _ => return,
        };
        kernel.switch_for_budget(first, to).unwrap();
    });
    kernel.switch_for_budget(first, BudgetState::On).unwrap();
    let writes = stream(&kernel);
    println!(
        "{} samples written, {} skipped",
        writes.written, writes.skipped
    );
    assert!(writes.written > 0 && writes.skipped > 0);
    assert!(!writes.is_detachable && writes.is_attached);
    let recorder = run.end(&mut kernel);
    assert_eq!(recorder.missed(GapCause::Budget), stream(&kernel).skipped);
}

#[test]
fn overwritten_samples_are_counted() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches().elements(8)) else {
        return;
    };
    let mut program = Program::start("counted", |pid| kernel.follow(pid).unwrap());
    // Nobody reads meanwhile.
    program.until_parked(|| {});
    program.end();
    kernel.finish();
    let mut recorder = Recorder::default();
    recorder.poll(&mut kernel);
    recorder.assert_complete(&kernel);
    let missed = recorder.missed_of("samples");
    println!("{missed} overwritten");
    assert!(missed > 0);
}

/// The clock of a CPU counts while the thread is on it. Interrupts and the program itself are a
/// small part of it.
#[test]
fn counters_of_cpus_are_assigned_to_threads() {
    let _cpus = cpu_lock();
    let mut differences = Vec::new();
    // The clocks go on in interrupts, which the account of a thread leaves out: some seconds of
    // heavy input and output part both by several hundredths.
    for _ in 0..10 {
        let sampler = KernelSampler::new("samples")
            .quantities(["cpu-time", "cpu-clock"])
            .at(FlowPoint::Switch)
            .elements(65_536);
        let Some(mut kernel) = kernel(sampler) else {
            return;
        };
        let run = Run::until_parked(&mut kernel, |_| {});
        let sum = |tid, name: &str| run.samples_of(tid).iter().map(|it| it[name]).sum::<i128>();
        let threads = totals_of_all(run.program.pid);
        let spinner = threads
            .keys()
            .max_by_key(|tid| sum(**tid, "cpu_time"))
            .unwrap();
        let (time, clock) = (sum(*spinner, "cpu_time"), sum(*spinner, "cpu_clock"));
        println!("thread {spinner}: {time} ns on CPUs, their clocks counted {clock}");
        differences.push((time - clock).abs() as f64 / time as f64);
        if differences.iter().any(|difference| *difference < 0.01) {
            return;
        }
    }
    panic!("counters and accounts differ by {differences:?}");
}

#[test]
fn held_programs_are_sampled_from_their_execve() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches()) else {
        return;
    };
    let mut before = Totals::new();
    let mut program = Program::start("counted", |pid| {
        before = totals_of(pid, pid);
        kernel.follow_held(pid).unwrap();
    });
    let mut recorder = Recorder::default();
    program.until_parked(|| recorder.poll(&mut kernel));
    let total = minus(totals_of_all(program.pid)[&program.pid].clone(), &before);
    recorder.poll(&mut kernel);
    let sum = sums(&samples(&recorder, "samples"), program.pid, &total);
    println!("since the fork {total:?}, since the execve {sum:?}");
    for (name, sum) in &sum {
        assert!(*sum <= total[name], "{name}");
    }
    assert!(sum["cpu_time"] > 0 && sum["cpu_time"] < total["cpu_time"]);
    // Threads that the program created have all that they did.
    for (tid, total) in totals_of_all(program.pid) {
        if tid != program.pid {
            assert_eq!(sums(&samples(&recorder, "samples"), tid, &total), total);
        }
    }
}

#[test]
fn timers_that_the_kernel_would_slow_down_are_refused() {
    let sampler = switches().timer(Nanos::from_us(1));
    let builder = Kernel::builder().backend(Backend::Bpf);
    match builder.samplers([sampler]).build() {
        Err(error @ StartError::Bpf { .. }) => println!("skipped: {error}"),
        Err(error) => assert!(
            error.to_string().contains("1000000 samples per second"),
            "{error}"
        ),
        Ok(_) => panic!("the kernel's clock events have at least 10 us"),
    }
}
