// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadline executor: runs a monitor with a guarantee, on the terms of its admission.
//!
//! It runs in the calling thread, in three phases:
//!
//! 1. *Settling.* Rounds without a guarantee, until every sensor of the terms has appeared. They
//!    warm up the updates in this thread, and leave no backlog for later rounds [GRTMon, section
//!    4.2.1]. Then memory is locked and CPU time reserved, which may be refused, and every update
//!    warms up ([`Analysis::warm_up`](overhear_event::Analysis::warm_up)), so that the first
//!    element of the guarantee causes no page fault, even if no element came before.
//! 2. *Guaranteed.* One round per period T_M, at absolute times: the thread sleeps, reads the
//!    clock, reads elements, evaluates at most the admitted amount by the WCETs, and reads the
//!    clock again. So a burst is spread over periods as in equation 18, and the kernel, which
//!    enforces at the grain of its tick, does not have to. The observations become a
//!    [`Guarantee`](super::Guarantee).
//! 3. *Leaving.* After the request to stop, rounds continue until all elements stamped before it
//!    have been evaluated, still judged. Then the reservation is released, and the rest is
//!    evaluated without a guarantee.
//!
//! A second thread, at normal priority, searches once per second for reservations that admission
//! did not have.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear_admission::{DeadlineError, KernelLimits, Level};
use overhear_event::{Analysis as _, Nanos, Timestamp};
use rustix::io::Errno;

use super::guarantee::{Breach, BreachCause, Guarantee};
use super::overruns::Overruns;
use super::periods::Periods;
use super::terms::Terms;
use super::watch::Watch;
use crate::clock::{sleep_until, Clock, SystemClock};
use crate::memory::{self, PageFaults};
use crate::monitor::Monitor;
use crate::partition::{Partition, PartitionError};
use crate::scheduler::{
    allowed_cpus, deadline_threads, DeadlineThread, KernelVerdict, ReservedThread,
};

/// Period of the search for foreign reservations.
const SCAN_PERIOD: Duration = Duration::from_secs(1);
/// Period of rounds while sensors of the terms are missing.
const SETTLE_PERIOD: Nanos = Nanos::from_ms(1);

/// Why a guarantee cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DeadlineRefusal {
    /// The caller may not reserve CPU time.
    #[error(
        "this user may not reserve CPU time: give the command cap_sys_nice and cap_ipc_lock \
         (`setcap cap_sys_nice,cap_ipc_lock+ep`), or ask for best effort"
    )]
    NotPermitted,
    /// There is no CPU of the monitor's own.
    #[error(
        "the monitor is to have a CPU of its own, but may run on {cpus} CPUs, or on one that others \
         use: let a cpuset partition of one CPU be made (`dedicated_cpu`), start it in one (docs/executors.md), or \
         ask for level \"shared\""
    )]
    NoPartition {
        /// How many CPUs it may run on.
        cpus: usize,
    },
    /// The CPU of its own cannot be had.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// All memory cannot be locked.
    #[error(
        "memory cannot be locked ({0}), so a page fault could stop the monitor: raise RLIMIT_MEMLOCK \
         (`ulimit -l`), or give the command cap_ipc_lock"
    )]
    Memory(Errno),
    /// The kernel has given away too much already.
    #[error("the kernel refuses the reservation: other deadline threads have reserved too much; end one")]
    Busy,
    /// The kernel does not take the numbers.
    #[error("the kernel refuses these numbers, or has no deadline scheduler")]
    Unacceptable,
    /// With the reservations that are present now, deadlines cannot be promised.
    #[error(transparent)]
    NotAdmitted(#[from] DeadlineError),
    /// The share of a CPU is none.
    #[error("a share of {percent} % of a CPU cannot be reserved; give 1 to 95")]
    Share {
        /// In per cent.
        percent: u32,
    },
    /// The end came before all sensors had appeared.
    #[error("the end came before sensor {0} had appeared: nothing was guaranteed")]
    Absent(String),
    /// No thread can be started that looks for foreign reservations.
    #[error("cannot start a thread that looks for foreign reservations: {0}")]
    Thread(std::io::Error),
}

impl DeadlineRefusal {
    /// What it means that the kernel does not accept.
    #[must_use]
    pub const fn of(verdict: KernelVerdict) -> Self {
        match verdict {
            KernelVerdict::NotPermitted => Self::NotPermitted,
            KernelVerdict::Busy => Self::Busy,
            KernelVerdict::Unacceptable | KernelVerdict::Accepted => Self::Unacceptable,
        }
    }

    /// Whether a permission or a feature of the kernel is missing, so that another user, or another
    /// machine, could begin.
    #[must_use]
    pub const fn is_lack_of_permission(&self) -> bool {
        matches!(
            self,
            Self::NotPermitted
                | Self::NoPartition { .. }
                | Self::Partition(_)
                | Self::Memory(_)
                | Self::Unacceptable
        )
    }
}

/// The statistics of a run under the deadline executor.
#[derive(Clone, Debug, Default)]
pub struct DeadlineRun {
    /// When the guarantee began.
    pub begun: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// Periods with a round.
    pub rounds: u64,
    /// Periods that were left out because the one before was not over.
    pub left_out: u64,
    /// The latest wake-up.
    pub wake_up: Nanos,
    /// The most CPU time that a period took.
    pub longest_job: Nanos,
    /// Page faults of the thread between begin and end.
    pub faults: PageFaults,
    /// How often the kernel stopped a job of this process because its runtime was used up
    /// (`SIGXCPU`). It confirms the overruns that the guarantee names. `None` where no handler
    /// could be installed, so that the kernel sends no signal.
    pub kernel_overruns: Option<u64>,
}

/// Runs a monitor on these terms in the calling thread until `go_on` returns false. It is called in
/// every period, with what is known of the guarantee, so it must do little.
///
/// `watch` watches with [`SystemClock`]; the verdict is in it afterwards. `tell` is called once,
/// when the guarantee begins.
///
/// # Errors
/// [`DeadlineRefusal`] if there will be no guarantee. What came until then has been evaluated, and
/// the monitor can go on, for instance with [`best_effort`](super::best_effort()).
pub fn deadline(
    monitor: &mut Monitor,
    watch: &mut Watch<'_, SystemClock>,
    tell: impl FnOnce(),
    mut go_on: impl FnMut(&mut Monitor, &Guarantee) -> bool,
) -> Result<DeadlineRun, DeadlineRefusal> {
    let terms = watch.terms();
    settle(monitor, watch, &mut go_on)?;
    let present = admitted_with(terms)?;
    memory::lock().map_err(DeadlineRefusal::Memory)?;
    let scan = ReservationScan::start(terms.level, present)?;
    // Without a handler the signal would end the process, so the kernel is not requested to send
    // it; the result has no count of it then.
    let overruns = Overruns::listen().ok();
    let reserved = reserve(terms, overruns.is_some())?;
    // Locking has mapped all memory that there is, of plug-ins too; what an update does only
    // once in a thread is left.
    watch.warm_up();
    tell();

    // What lay in the buffers is evaluated before anything is judged.
    monitor.round(SystemClock.now(), watch);
    let faults = PageFaults::so_far();
    let begun = SystemClock.now();
    let mut run = DeadlineRun {
        begun,
        ..DeadlineRun::default()
    };
    watch.begin_judging();
    let mut periods = Periods::new(
        begun.plus(terms.reservation.period),
        terms.reservation.period,
    );
    let mut stop_at = None;
    // A signal during the warm-up is no overrun of a period.
    let mut before = None;
    loop {
        sleep_until(periods.due());
        before = before.or_else(|| overruns.as_ref().map(Overruns::count));
        let woke = job(monitor, watch, &mut run, periods.due());
        if let Some(breach) = scan.found() {
            watch.guarantee_mut().breach(breach);
        }
        if stop_at.is_none() && !go_on(monitor, watch.guarantee()) {
            stop_at = Some(woke);
        }
        if stop_at.is_some_and(|stop| monitor.evaluated_until() >= stop) {
            break;
        }
        periods.advance(SystemClock.now());
    }
    run.ended = SystemClock.now();
    run.faults = PageFaults::so_far().since(faults);
    run.left_out = periods.left_out();
    let confirmed = overruns.as_ref().map(Overruns::count);
    run.kernel_overruns = confirmed.map(|count| count - before.unwrap_or(count));
    watch.end_judging();
    drop(reserved);
    // The last second has not been looked at.
    if let Some(breach) = scan.stop() {
        watch.guarantee_mut().breach(breach);
    }
    monitor.finish(SystemClock.now(), watch);
    Ok(run)
}

/// One period: reads, evaluates, and compares the times with the terms. Returns the wake-up time.
fn job(
    monitor: &mut Monitor,
    watch: &mut Watch<'_, SystemClock>,
    run: &mut DeadlineRun,
    due: Timestamp,
) -> Timestamp {
    let terms = watch.terms();
    let (woke, cpu) = watch.mark();
    let late = woke.since(due);
    run.wake_up = run.wake_up.max(late);
    let breach = |guarantee: &mut Guarantee, at, cause| {
        guarantee.breach(Breach {
            from: due,
            at,
            cause,
        });
    };
    if late > terms.lateness.wake_up {
        breach(watch.guarantee_mut(), woke, BreachCause::WakeUp { late });
    }
    let (spent, allowed) = (watch.spent(), terms.evaluations);
    monitor.round_within(woke, &|| spent.get() >= allowed, watch);
    let (end, used) = (watch.clock().now(), watch.clock().cpu_time());
    let used = Nanos::from_ns(used.as_ns().saturating_sub(cpu.as_ns()));
    run.longest_job = run.longest_job.max(used);
    if used > terms.reservation.runtime {
        breach(watch.guarantee_mut(), end, BreachCause::JobOverrun { used });
    }
    let after = end.since(due);
    let allowed = terms.lateness.wake_up.plus(terms.lateness.tardiness);
    if after > terms.reservation.deadline.plus(allowed) {
        breach(watch.guarantee_mut(), end, BreachCause::Tardy { after });
    }
    run.rounds += 1;
    woke
}

/// Rounds until every sensor of the terms has appeared.
fn settle(
    monitor: &mut Monitor,
    watch: &mut Watch<'_, SystemClock>,
    go_on: &mut impl FnMut(&mut Monitor, &Guarantee) -> bool,
) -> Result<(), DeadlineRefusal> {
    loop {
        let now = SystemClock.now();
        monitor.round(now, watch);
        if watch.is_complete() {
            return Ok(());
        }
        if !go_on(monitor, watch.guarantee()) {
            let absent = watch.absent().into_iter().map(|(sensor, present)| {
                let name = watch.terms().sensor(sensor);
                match watch.terms().sensors[sensor.0].count {
                    1 => format!("`{name}`"),
                    count => format!("`{name}` ({present} of {count})"),
                }
            });
            let absent: Vec<String> = absent.collect();
            return Err(DeadlineRefusal::Absent(absent.join(", ")));
        }
        sleep_until(now.plus(SETTLE_PERIOD));
    }
}

/// The reservations that are present now, if the terms can be kept with them.
fn admitted_with(terms: &Terms) -> Result<Vec<DeadlineThread>, DeadlineRefusal> {
    let present = deadline_threads();
    let mut all = vec![terms.reservation];
    if terms.level == Level::Shared {
        all.extend(present.iter().map(|thread| thread.reservation));
    }
    KernelLimits::usual(terms.cpus).keeps(terms.level, &all)?;
    Ok(present)
}

fn reserve(terms: &Terms, signals_overruns: bool) -> Result<ReservedThread, DeadlineRefusal> {
    let cpus = allowed_cpus().len();
    if terms.level == Level::Exclusive && cpus != 1 {
        return Err(DeadlineRefusal::NoPartition { cpus });
    }
    // The kernel takes a deadline thread only on all CPUs of its root domain: on a single CPU it
    // takes it only if that is a partition of its own.
    ReservedThread::reserve(terms.reservation, signals_overruns).map_err(|verdict| match verdict {
        KernelVerdict::NotPermitted if terms.level == Level::Exclusive => {
            DeadlineRefusal::NoPartition { cpus }
        }
        other => DeadlineRefusal::of(other),
    })
}

/// Whether a guarantee on these terms could begin now: reserves all that [`deadline`] reserves, in
/// a thread that gives the reservation back, inside `partition` if there is one. Memory stays
/// locked.
///
/// # Errors
/// [`DeadlineRefusal`] as from [`deadline`].
pub fn may_guarantee(terms: &Terms, partition: Option<&Partition>) -> Result<(), DeadlineRefusal> {
    admitted_with(terms)?;
    let asking = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("oh-query".to_string());
        let thread = thread.spawn_scoped(scope, || {
            let _inside = partition.map(Partition::enter).transpose()?;
            reserve(terms, false).map(drop)
        });
        let answer = thread.map_err(DeadlineRefusal::Thread)?.join();
        answer.unwrap_or(Err(DeadlineRefusal::Unacceptable))
    });
    asking?;
    memory::lock().map_err(DeadlineRefusal::Memory)
}

/// Searches for reservations of others, once per second, in a separate thread: the walk through all
/// threads of the machine takes longer than a period.
struct ReservationScan {
    shared: Arc<(Mutex<ScanResult>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ScanResult {
    stop: bool,
    found: Option<Breach>,
}

impl ReservationScan {
    fn start(level: Level, known: Vec<DeadlineThread>) -> Result<Self, DeadlineRefusal> {
        let shared: Arc<(Mutex<ScanResult>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&shared);
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        let cpus = allowed_cpus();
        let thread = std::thread::Builder::new()
            .name("oh-scan".to_string())
            .spawn(move || {
                let (seen, wake) = &*theirs;
                let mut known = known;
                let mut last = SystemClock.now();
                let mut stop = false;
                while !stop {
                    let waiting = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    let (waited, _) = wake
                        .wait_timeout_while(waiting, SCAN_PERIOD, |seen| !seen.stop)
                        .unwrap_or_else(PoisonError::into_inner);
                    stop = waited.stop;
                    drop(waited);
                    let present = foreign(level, me, &cpus);
                    let at = SystemClock.now();
                    let new: Vec<_> = present
                        .into_iter()
                        .filter(|thread| !known.contains(thread))
                        .collect();
                    if !new.is_empty() {
                        let breach = Breach {
                            from: last,
                            at,
                            cause: BreachCause::Foreign { threads: new.len() },
                        };
                        known.extend(new);
                        // Held for a moment only, and never while looking.
                        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                        seen.found.get_or_insert(breach);
                    }
                    last = at;
                }
            })
            .map_err(DeadlineRefusal::Thread)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Takes the breach found since the last call, without waiting: if the lock is held, the next
    /// period gets it.
    fn found(&self) -> Option<Breach> {
        let mut seen = self.shared.0.try_lock().ok()?;
        seen.found.take()
    }

    /// Searches for the last time.
    fn stop(mut self) -> Option<Breach> {
        self.end();
        let mut seen = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.found.take()
    }

    fn end(&mut self) {
        let mut seen = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.stop = true;
        drop(seen);
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ReservationScan {
    fn drop(&mut self) {
        self.end();
    }
}

/// The reservations of others that count at this level: all at the shared level, those that may
/// lie on the same CPU at the exclusive one.
fn foreign(level: Level, me: u32, cpus: &[u32]) -> Vec<DeadlineThread> {
    let mut present = deadline_threads();
    present.retain(|thread| {
        thread.tid != me
            && match level {
                Level::Shared => true,
                Level::Exclusive => thread.cpus().iter().any(|cpu| cpus.contains(cpu)),
            }
    });
    present
}
