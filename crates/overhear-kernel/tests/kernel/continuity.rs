// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conclusions of monitors from the switches of real programs: nothing is missing in a complete
//! recording, and switches that were never recorded are proven.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId,
    Timestamp,
};
use overhear_kernel::{Backend, Kernel, KernelMonitor};
use overhear_monitor::{Clock, Monitor, SystemClock, HOLD_BACK};

use crate::harness::{cpu_lock, is_root, Program};

/// A source that forwards the items of another one, except some departures of tracked threads.
struct Forgetful<S> {
    source: Rc<RefCell<S>>,
    /// Every `every`-th departure is lost; none if it is 0.
    every: u64,
    seen: u64,
    lost: Rc<Cell<u64>>,
    /// Number of lost departures of each stream of switches.
    of_stream: BTreeMap<StreamId, u64>,
}

impl<S: Source> Source for Forgetful<S> {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let source = Rc::clone(&self.source);
        let mut sieve = Sieve {
            forgetful: self,
            inbox,
        };
        let result = source.borrow_mut().poll(&mut sieve);
        result
    }
}

struct Sieve<'a, S> {
    forgetful: &'a mut Forgetful<S>,
    inbox: &'a mut dyn Inbox,
}

impl<S> Inbox for Sieve<'_, S> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        if stream.sensor == SCHED_SWITCH {
            self.forgetful.of_stream.insert(stream.id, 0);
        }
        self.inbox.open(stream);
    }

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        let this = &mut *self.forgetful;
        let Some(lost) = this.of_stream.get_mut(&stream) else {
            return self.inbox.element(stream, sequence, time, payload);
        };
        let switch = Switch::parse(payload).unwrap();
        if switch.flags & Switch::PREV_TRACKED != 0 {
            this.seen += 1;
            if this.seen.checked_rem(this.every) == Some(0) {
                *lost += 1;
                this.lost.set(this.lost.get() + 1);
                return;
            }
        }
        self.inbox.element(stream, sequence - *lost, time, payload);
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        let lost = self.forgetful.of_stream.get(&stream).copied();
        self.inbox
            .gap(stream, first - lost.unwrap_or(0), missed, cause);
    }

    fn close(&mut self, stream: StreamId) {
        self.inbox.close(stream);
    }

    fn complain(&mut self, complaint: SourceError) {
        self.inbox.complain(complaint);
    }
}

/// Totals of the streams.
#[derive(Default)]
struct Account {
    next: BTreeMap<StreamId, u64>,
    resumed: u64,
    proofs: u64,
}

impl Analysis for Account {
    fn element(&mut self, element: &ElementView<'_>) {
        let next = self.next.entry(element.stream.id).or_default();
        assert_eq!(element.sequence, *next, "{}", element.stream.label());
        *next += 1;
        if element.stream.sensor == SCHED_SWITCH {
            let switch = Switch::parse(element.payload).unwrap();
            self.resumed += u64::from(switch.flags & Switch::RESUMED != 0);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let next = self.next.entry(stream.id).or_default();
        assert_eq!(gap.first, *next, "{}: {gap:?}", stream.label());
        *next += gap.missed;
        if gap.cause == GapCause::Inconsistent {
            assert_eq!(stream.sensor, SCHED_SWITCH);
            assert!(gap.from < gap.to && gap.missed == 1, "{gap:?}");
            self.proofs += 1;
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// A monitor of a source, and its results.
struct Observation<S> {
    source: Rc<RefCell<S>>,
    monitor: Monitor,
    account: Account,
    lost: Rc<Cell<u64>>,
}

impl<S: Source + 'static> Observation<S> {
    fn new(source: S, every: u64) -> Self {
        let source = Rc::new(RefCell::new(source));
        let lost = Rc::new(Cell::new(0));
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(Forgetful {
            source: Rc::clone(&source),
            every,
            seen: 0,
            lost: Rc::clone(&lost),
            of_stream: BTreeMap::new(),
        }));
        Self {
            source,
            monitor,
            account: Account::default(),
            lost,
        }
    }

    fn round(&mut self) {
        self.monitor.round(SystemClock.now(), &mut self.account);
    }

    /// Evaluates the rest. Returns the number of lost switches, and the number of proven ones.
    fn finish(&mut self) -> (u64, u64) {
        self.monitor.finish(SystemClock.now(), &mut self.account);
        let losses = self.monitor.losses().iter();
        let inconsistent = losses.filter(|(.., cause, _)| *cause == GapCause::Inconsistent);
        let counted: u64 = inconsistent.map(|(.., loss)| loss.missed).sum();
        assert_eq!(counted, self.account.proofs);
        (self.lost.get(), counted)
    }
}

fn start(backend: Backend) -> Option<Kernel> {
    match Kernel::builder().backend(backend).build() {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Observes a role to its end; every `every`-th departure is lost.
fn observe(backend: Backend, role: &str, every: u64) -> Option<(u64, u64)> {
    let _cpus = cpu_lock();
    let mut observation = Observation::new(start(backend)?, every);
    let mut program = Program::start(role, |pid| {
        observation.source.borrow_mut().follow(pid).unwrap();
    });
    program.until_parked(|| observation.round());
    if role == "churn" {
        program.release(1);
        program.until_parked_again(|| observation.round());
    }
    program.end();
    observation.source.borrow_mut().finish();
    let (lost, proven) = observation.finish();
    let elements = observation.monitor.elements();
    println!("{backend:?}, {role}: {elements} elements, {lost} lost, {proven} proven");
    assert!(elements > 0);
    Some((lost, proven))
}

/// Roles with all ways to leave a CPU, to begin, to end, and to take over an id.
const ROLES: [&str; 6] = ["counted", "signalled", "brood", "crowd", "churn", "usurper"];

#[test]
fn complete_runs_have_no_proofs() {
    if !is_root() {
        return println!("skipped: BPF and perf side by side take root");
    }
    for backend in [Backend::Bpf, Backend::Perf] {
        for role in ROLES {
            let Some(found) = observe(backend, role, 0) else {
                return;
            };
            assert_eq!(found, (0, 0), "{backend:?}, {role}");
        }
    }
}

#[test]
fn unrecorded_departures_are_proven() {
    if !is_root() {
        return println!("skipped: BPF and perf side by side take root");
    }
    for backend in [Backend::Bpf, Backend::Perf] {
        let Some((lost, proven)) = observe(backend, "counted", 50) else {
            return;
        };
        // The last ones of threads and CPUs contradict no other element.
        assert!(lost > 20, "{lost}");
        assert!(
            proven * 10 > lost * 8 && proven <= lost,
            "{proven} of {lost}"
        );
    }
}

#[test]
fn suspended_monitor_misses_nothing() {
    let _cpus = cpu_lock();
    if !is_root() {
        return println!("skipped: BPF and perf side by side take root");
    }
    for backend in [Backend::Bpf, Backend::Perf] {
        let monitor = match KernelMonitor::builder().backend(backend).create() {
            Ok(monitor) => monitor,
            Err(error) => return println!("skipped: {error}"),
        };
        let mut observation = Observation::new(monitor, 0);
        let monitor = Rc::clone(&observation.source);
        let mut program = Program::start("refrain", |_| {});
        program.until_parked(|| {});
        let threads = crate::monitors::named(&program);
        monitor.borrow_mut().process_monitor(program.pid).unwrap();
        monitor.borrow_mut().resume().unwrap();
        let mut verses = 0;
        for pauses in [3, 40, 1] {
            program.release(threads.len());
            // In the middle of it, independent of the state of the threads.
            let mut left = pauses;
            program.until_parked_again(|| {
                observation.round();
                if left > 0 {
                    left -= 1;
                    monitor.borrow_mut().suspend().unwrap();
                    std::thread::yield_now();
                    monitor.borrow_mut().resume().unwrap();
                }
            });
            verses += 1;
        }
        assert_eq!(verses, 3);
        program.end();
        monitor.borrow_mut().finish().unwrap();
        assert_eq!(observation.finish(), (0, 0), "{backend:?}");
        println!(
            "{backend:?}: {} switches after pauses",
            observation.account.resumed
        );
        assert!(observation.account.resumed > 0);
    }
}

#[test]
fn threads_running_before_and_after_miss_nothing() {
    let _cpus = cpu_lock();
    if !is_root() {
        return println!("skipped: BPF and perf side by side take root");
    }
    for backend in [Backend::Bpf, Backend::Perf] {
        let mut program = Program::start("refrain", |_| {});
        program.until_parked(|| {});
        let threads = crate::monitors::named(&program);
        for is_by_thread in [true, false, true] {
            let monitor = KernelMonitor::builder().backend(backend).create();
            let mut monitor = match monitor {
                Ok(monitor) => monitor,
                Err(error) => return println!("skipped: {error}"),
            };
            program.release(threads.len());
            monitor.resume().unwrap();
            if is_by_thread {
                for (id, &tid) in (1..).zip(&threads) {
                    monitor.thread_monitor(tid, id).unwrap();
                }
            } else {
                monitor.process_monitor(program.pid).unwrap();
            }
            let mut observation = Observation::new(monitor, 0);
            let mut is_finished = false;
            program.until_parked_again(|| {
                observation.round();
                // The threads go on.
                if observation.monitor.elements() >= 100 && !is_finished {
                    observation.source.borrow_mut().finish().unwrap();
                    is_finished = true;
                }
            });
            observation.source.borrow_mut().finish().unwrap();
            assert_eq!(observation.finish(), (0, 0), "{backend:?}");
        }
    }
}
