// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guarantees that begin, hold, break and are refused.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use overhear_admission::{DeadlineReservation, Lateness, Level};
use overhear_event::Nanos;
use overhear_monitor::executor::{BreachCause, GuaranteeVerdict, SensorIndex, Terms};
use overhear_monitor::scheduler::ReservedThread;
use overhear_monitor::{Clock, PageFaults, SystemClock};

use crate::admitted::{lasting, run, run_from_begin, streams, terms, Ended, Sum};
use crate::alone;
use crate::counting::calls;
use crate::excuse::{doubt, refused};
use crate::rings::{is_stopped, now, rings, Produced, Producer};
use crate::witness::{keeps, Doubt, Excuse, Witness};

pub(crate) fn lateness() -> Lateness {
    Lateness {
        wake_up: Nanos::from_ms(5),
        tardiness: Nanos::from_ms(2),
        hold_back: Nanos::from_ms(2),
    }
}

impl Ended {
    pub(crate) fn has(&self, wanted: impl Fn(&BreachCause) -> bool) -> bool {
        let mut breaches = self.guarantee.breaches();
        breaches.any(|(breach, _)| wanted(&breach.cause))
    }
}

/// Whether this user may reserve; prints the reason if not.
pub(crate) fn may_reserve() -> bool {
    let terms = terms(Nanos::from_ms(50), lateness());
    match ReservedThread::reserve(terms.reservation, false) {
        Ok(_) => true,
        Err(verdict) => {
            println!("skipped: the kernel reserves no CPU time here ({verdict:?})");
            false
        }
    }
}

#[test]
fn admitted_guarantee_holds() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let terms = terms(Nanos::from_ms(50), lateness());
    keeps(|| {
        let witness = Witness::start();
        let (writers, source) = rings(&[("a", 512), ("b", 512)]);
        let mut producers = Vec::new();
        for (ring, (stream, burst)) in writers.into_iter().zip(streams().into_iter().zip([8, 5])) {
            producers.push(Producer::start(ring, stream, burst));
        }
        let mut sum = Sum(0, |_| ());
        let (mut begun, mut after) = (0, 0);
        let mut last = lasting(Nanos::from_ms(500));
        let on_begin = || begun = calls();
        let ended = run_from_begin(&terms, source, &mut sum, on_begin, |monitor, guarantee| {
            after = calls();
            last(monitor, guarantee)
        });
        let produced = Produced::of_all(producers.into_iter().map(Producer::stop));
        let machine = witness.stop();
        let ended = ended.map_err(|refusal| refused(&refusal, &machine))?;
        // In any state of the machine.
        assert_eq!(
            (after, begun > 0),
            (begun, true),
            "the guaranteed thread has called the allocator"
        );
        let elements: u64 = ended.figures.iter().map(|sensor| sensor.elements).sum();
        assert_eq!(elements, sum.0);
        match ended.guarantee.verdict() {
            GuaranteeVerdict::Violated => panic!("{:?}", ended.messages),
            GuaranteeVerdict::Inconclusive => {
                return Err(doubt(&ended, &terms, &machine, produced))
            }
            GuaranteeVerdict::Held => {}
        }
        assert!(elements > 0 && ended.figures.iter().all(|sensor| sensor.missed == 0));
        let latest = ended.figures.iter().map(|sensor| sensor.latency).max();
        assert!(latest <= Some(terms.latency), "{latest:?}");
        let faults = ended.run.faults;
        if faults != PageFaults::default() && machine.moved_pages() {
            let reasons = format!("{faults:?}, and the kernel moved pages meanwhile");
            let excuse = Excuse::Seen;
            return Err(Doubt { excuse, reasons });
        }
        assert_eq!(faults, PageFaults::default());
        assert!(ended.run.rounds > 0 && ended.run.longest_job <= terms.reservation.runtime);
        Ok(())
    });
}

#[test]
fn update_that_takes_too_long_is_named_with_its_element() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let terms = terms(Nanos::from_ms(50), lateness());
    let (mut writers, source) = rings(&[("a", 512), ("b", 512)]);
    // Far more than its WCET, by the CPU's clock, independent of other load.
    let mut sum = Sum(0, |element| {
        let begun = SystemClock.cpu_time();
        let mut used = Nanos::ZERO;
        while element == 3 && used <= Nanos::from_ms(10) {
            used = Nanos::from_ns(SystemClock.cpu_time().as_ns() - begun.as_ns());
        }
    });
    let mut judged = 0;
    let ended = run(&terms, source, &mut sum, |monitor, _| {
        // One element per period, far below the admitted rate, until the bad one has been
        // evaluated.
        if judged < 6 {
            writers[0].write(judged);
        }
        judged += 1;
        monitor.elements() < 6
    });
    let ended = ended.unwrap();
    assert_eq!(ended.guarantee.verdict(), GuaranteeVerdict::Inconclusive);
    let named = "update `sum` took ";
    let all = ended.messages.join("; ");
    let by_name =
        all.contains(named) && all.contains(" for element 3 of sensor `a`, its wcet is 100 us");
    // If the thread was preempted for as long in the same period, only the period is the cause.
    assert!(
        by_name || ended.has(|cause| matches!(cause, BreachCause::JobOverrun { .. })),
        "{all}"
    );
}

#[test]
fn sensor_that_exceeds_its_stream_is_noticed_within_one_element() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let terms = terms(Nanos::from_ms(50), lateness());
    let (mut writers, source) = rings(&[("a", 512), ("b", 512)]);
    let mut sum = Sum(0, |_| ());
    let mut calls = 0;
    let ended = run(&terms, source, &mut sum, |monitor, guarantee| {
        calls += 1;
        // Six at once: the sixth has come early by more than tau = 6 ms = 4 T allows.
        if calls == 2 {
            let stamp = now();
            (0..6).for_each(|number| writers[1].write_at(number, || stamp));
        }
        let found = guarantee
            .breaches()
            .find_map(|(breach, _)| match breach.cause {
                BreachCause::SensorExceeds { sensor, violation } => {
                    Some((sensor, violation.element))
                }
                _ => None,
            });
        if found.is_some() {
            // At the element itself, and in the round of its evaluation.
            assert_eq!(found, Some((SensorIndex(1), 5)));
            assert_eq!(monitor.elements(), 6);
        }
        monitor.elements() < 6
    });
    let ended = ended.unwrap();
    assert_eq!(ended.guarantee.verdict(), GuaranteeVerdict::Inconclusive);
    assert_eq!(
        (ended.figures[1].exceeding, ended.figures[1].elements),
        (1, 6)
    );
    assert!(
        ended
            .messages
            .iter()
            .any(|message| message.starts_with("sensor `b` exceeds its stream")),
        "{:?}",
        ended.messages
    );
}

#[test]
fn foreign_reservation_makes_it_inconclusive() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let terms = terms(Nanos::from_ms(50), lateness());
    let (_writers, source) = rings(&[("a", 64), ("b", 64)]);
    let mut sum = Sum(0, |_| ());
    let mut foreign: Option<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)> = None;
    let begun = now();
    let ended = run(&terms, source, &mut sum, |_, guarantee| {
        foreign.get_or_insert_with(|| {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let ms = Nanos::from_ms;
                let reservation = DeadlineReservation {
                    runtime: ms(10),
                    deadline: ms(100),
                    period: ms(100),
                };
                let reserved = ReservedThread::reserve(reservation, false);
                assert!(reserved.is_ok(), "{reserved:?}");
                let _ = released.recv();
            });
            (release, thread)
        });
        let found = |cause: &BreachCause| matches!(cause, BreachCause::Foreign { .. });
        let found = guarantee.breaches().any(|(breach, _)| found(&breach.cause));
        !found && now().since(begun) < Nanos::from_ms(60_000)
    });
    let (release, thread) = foreign.unwrap();
    drop(release);
    thread.join().unwrap();
    let ended = ended.unwrap();
    assert_eq!(ended.guarantee.verdict(), GuaranteeVerdict::Inconclusive);
    assert!(
        ended.has(|cause| matches!(cause, BreachCause::Foreign { threads: 1.. })),
        "{:?}",
        ended.messages
    );
}

/// Not a test: a guarantee in a process of its own, which the test stops from outside.
#[test]
#[ignore = "started by another test"]
fn stopped_process() {
    let terms = terms(Nanos::from_ms(50), lateness());
    let (_writers, source) = rings(&[("a", 64), ("b", 64)]);
    let mut sum = Sum(0, |_| ());
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(end);
    });
    let mut calls = 0;
    let result = run(&terms, source, &mut sum, |_, _| {
        calls += 1;
        // The first call comes from a period: all sensors are there from the beginning.
        if calls == 1 {
            println!("guaranteed");
        }
        !is_stopped(&ended)
    });
    let result = result.unwrap();
    println!("verdict {}", result.guarantee.verdict());
    for message in &result.messages {
        println!("because {message}");
    }
}

#[test]
fn stopped_executor_is_reported() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "deadline::stopped_process",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |begin: &str| {
        let found = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|line| line.contains(begin));
        found.unwrap_or_else(|| panic!("the process did not say `{begin}`"))
    };
    until("guaranteed");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    // Stopped for longer than J, by the clock that the executor reads.
    let stopped = now();
    while now().since(stopped)
        <= lateness()
            .wake_up
            .plus(terms(Nanos::from_ms(50), lateness()).reservation.period)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    child.stdin.take().unwrap().write_all(b"end").unwrap();
    assert!(until("verdict ").contains("verdict inconclusive"));
    let because = until("because ");
    assert!(
        because.contains("at ") && because.contains(" late"),
        "{because}"
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn refused_guarantee_is_evaluated_without_one() {
    let _alone = alone();
    let refused = |terms: &Terms, expected: &str| {
        let (mut writers, source) = rings(&[("a", 64), ("b", 64)]);
        writers[0].write(1);
        let mut sum = Sum(0, |_| ());
        let refusal = run(terms, source, &mut sum, |_, _| true).err().unwrap();
        assert!(refusal.to_string().contains(expected), "{refusal}");
        refusal.is_lack_of_permission()
    };
    let good = terms(Nanos::from_ms(50), lateness());
    // A CPU of its own, if there are several.
    if std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) > 1 {
        let exclusive = Terms {
            level: Level::Exclusive,
            ..good.clone()
        };
        assert!(refused(&exclusive, "cpuset partition of one CPU"));
    }
    // More than the machine has.
    let mut crowded = good.clone();
    crowded.reservation.runtime = crowded.reservation.deadline.plus(Nanos::from_ns(1));
    assert!(!refused(&crowded, "runtime <= deadline <= period"));
    // A sensor that never appears.
    let mut absent = good;
    absent.sensors[1].name = "c".to_string();
    let (_writers, source) = rings(&[("a", 64), ("b", 64)]);
    let refusal = run(&absent, source, &mut Sum(0, |_| ()), |_, _| false)
        .err()
        .unwrap();
    assert!(
        refusal.to_string().contains("sensor `c` had appeared"),
        "{refusal}"
    );
}
