// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dense streams exactly as admitted, while hogs, forks, files and real-time threads load every
//! CPU, and the judgement afterwards.
//!
//! - While the machine is as punctual as was assumed, nothing may be missed and no element may be
//!   later than the bound.
//! - When it is not, which a watchdog per CPU and the executor's own clock see, the verdict must
//!   say so and name the instant. Such a try proves nothing else, and is repeated.
//! - Best effort over the same streams under the same load misses elements or exceeds the bound:
//!   the load is real, in each try, whatever its verdict.

use std::time::Duration;

use overhear_admission::Lateness;
use overhear_event::{Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::executor::{
    BreachCause, GuaranteeVerdict, SensorFigures, Terms, Watch, Watched,
};
use overhear_monitor::{
    best_effort, LatencyWatchdog, Monitor, QueueMemory, SystemClock, WatchdogStats,
};

use crate::admitted::{lasting, run, sensor_of, streams, terms, terms_with, Ended, Sum};
use crate::load::{Load, RealTimeHogs};
use crate::rings::{now, rings, Produced, Producer, Rings};

/// The lateness of a machine if the user states no other: a virtual machine among others reaches it
/// sometimes.
pub(crate) const ASSUMED: Nanos = Nanos::from_ms(20);

/// A CPU's clock charges the running thread with interrupts and with time that a hypervisor takes.
/// So an update that adds one has a WCET of at least this, and of three times the longest time that
/// was measured under the load, but never more than the density of the streams permits.
const LEAST_WCET: Nanos = Nanos::from_us(200);
const LARGEST_WCET: Nanos = Nanos::from_us(300);

/// The update, the length and the load of a try.
pub(crate) struct Stress {
    pub(crate) terms: Terms,
    length: Nanos,
    // Whether a try continues after its result is decided.
    to_the_end: bool,
    // Time until the real-time threads delay best effort.
    without: Nanos,
    hogs: RealTimeHogs,
    _load: Load,
}

/// One run under the deadline executor.
pub(crate) struct Try {
    /// The measurements of the executor, with those of the watchdog.
    pub(crate) ended: Ended,
    pub(crate) seen: WatchdogStats,
    /// The elements that the sensors wrote, a few of them after the end.
    pub(crate) produced: Produced,
}

/// The result of a try.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Every element was evaluated in time.
    Kept,
    /// An assumption did not hold, and the verdict names it: its message begins with the name.
    Inconclusive(String),
    /// A forbidden result.
    Broken(String),
}

/// The result of best effort.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoadProof {
    /// It missed elements, or was later than the bound.
    Real,
    /// The load failed, because the kernel granted no real-time priority.
    NoRealTime,
    /// It was in time, so the load did not test the guarantee.
    TooLight,
}

impl Stress {
    /// Begins to load every CPU of a machine whose lateness is assumed to be at most this. With
    /// `to_the_end` each try lasts for `length`; otherwise a decided one ends.
    pub(crate) fn begin(length: Nanos, assumed: Nanos, to_the_end: bool) -> Self {
        let times = |factor: u64, divisor: u64| Nanos::from_ns(assumed.as_ns() * factor / divisor);
        let lateness = Lateness {
            wake_up: assumed,
            tardiness: times(1, 2),
            hold_back: times(1, 4),
        };
        // Longer than the latency, and rare enough for the kernel's limit of real-time threads.
        let (busy, period) = (times(9, 2), times(20, 1));
        // All CPUs that best effort could use.
        let cpus = overhear_monitor::scheduler::allowed_cpus().len();
        let mut stress = Self {
            terms: terms(times(7, 2), lateness),
            length,
            to_the_end,
            without: times(100, 1),
            hogs: RealTimeHogs::start(cpus, duration(busy), duration(period)),
            _load: Load::start(cpus),
        };
        let measured = stress.measured();
        let wcet = Nanos::from_ns(3 * measured.as_ns());
        let wcet = wcet.clamp(LEAST_WCET, LARGEST_WCET);
        stress.terms = terms_with(wcet, times(7, 2), lateness);
        stress
    }

    /// The longest CPU time that the update takes for an element under this load.
    fn measured(&self) -> Nanos {
        self.watched(duration(self.without), |watch| {
            watch.longest().first().map_or(Nanos::ZERO, |it| it.took)
        })
    }

    /// Runs the set once with its guarantee.
    ///
    /// # Errors
    /// Why there can be no guarantee here, or no watchdog.
    pub(crate) fn attempt(&self) -> Result<Try, String> {
        // A watchdog is late because of the executor's own work; that is no lateness of the
        // machine.
        let allowed = self.terms.lateness.wake_up;
        let allowed = allowed.plus(self.terms.reservation.runtime);
        let watchdog = LatencyWatchdog::start(allowed).map_err(|error| error.to_string())?;
        let (producers, source) = produce();
        let mut sum = Sum(0, |_| ());
        let mut last = lasting(self.length);
        let ended = run(&self.terms, source, &mut sum, |monitor, guarantee| {
            let decided = guarantee.verdict() != GuaranteeVerdict::Held;
            last(monitor, guarantee) && (self.to_the_end || !decided)
        });
        let seen = watchdog.stop();
        let produced = Produced::of_all(producers.into_iter().map(Producer::stop));
        let mut ended = ended.map_err(|refusal| refusal.to_string())?;
        for &breach in &seen.breaches {
            ended.guarantee.breach(breach);
        }
        ended.messages = ended.guarantee.messages(&self.terms, Timestamp::ZERO);
        Ok(Try {
            ended,
            seen,
            produced,
        })
    }

    /// Runs the set by best effort, and checks whether the load delays it.
    pub(crate) fn without_guarantee(&self) -> (LoadProof, Vec<SensorFigures>) {
        let figures: Vec<SensorFigures> =
            self.watched(duration(self.without), |watch| watch.figures().collect());
        let bound = self.terms.latency;
        let exceeded = |sensor: &SensorFigures| sensor.missed > 0 || sensor.latency > bound;
        let proof = match (figures.iter().any(exceeded), self.hogs.are_real()) {
            (true, _) => LoadProof::Real,
            (false, false) => LoadProof::NoRealTime,
            (false, true) => LoadProof::TooLight,
        };
        (proof, figures)
    }

    /// Evaluates by best effort for this time, with the CPU time of each step, and returns the
    /// results of the watch.
    fn watched<T>(&self, length: Duration, read: impl FnOnce(&Watch<'_, SystemClock>) -> T) -> T {
        let (producers, source) = produce();
        let mut monitor =
            Monitor::with_memory(self.terms.lateness.hold_back, QueueMemory::Reserved);
        monitor.add_source(Box::new(source));
        let mut sum = Sum(0, |_| ());
        let watched = Watched {
            update: &mut sum,
            sensors: None,
            in_place: None,
        };
        let sensor_of = |stream: &StreamDescriptor| sensor_of(&self.terms, stream);
        let watch = Watch::new(&self.terms, vec![watched], SystemClock, sensor_of);
        let mut watch = watch.measuring().judging();
        let (begun, length) = (now(), Nanos::from_ns(length.as_nanos() as u64));
        best_effort(&mut monitor, &mut watch, now, std::thread::sleep, |_| {
            now().since(begun) < length
        });
        let produced = Produced::of_all(producers.into_iter().map(Producer::stop));
        assert!(produced.written > 0, "the sensors write");
        read(&watch)
    }
}

impl Try {
    /// The result of this try.
    pub(crate) fn judge(&self, terms: &Terms) -> Judgement {
        let Ended {
            run,
            guarantee,
            figures,
            messages,
        } = &self.ended;
        let because = messages.join("; ");
        let bound = terms.latency;
        let failed = |sensor: &SensorFigures| sensor.missed > 0 || sensor.latency > bound;
        let failed = figures.iter().any(failed);
        let late = self.seen.worst().max(run.wake_up);
        match guarantee.verdict() {
            GuaranteeVerdict::Violated => Judgement::Broken(because),
            GuaranteeVerdict::Held => {
                let evaluated: u64 = figures.iter().map(|sensor| sensor.elements).sum();
                let written = self.produced.written;
                if failed || evaluated == 0 || evaluated > written {
                    let message = format!("held, but {figures:?} of {written}, bound {bound}");
                    return Judgement::Broken(message);
                }
                Judgement::Kept
            }
            GuaranteeVerdict::Inconclusive if guarantee.since().is_none() || because.is_empty() => {
                Judgement::Broken("inconclusive, without a time or a reason".to_string())
            }
            // Only the guarantee itself measured a lateness of the machine, and a large one.
            GuaranteeVerdict::Inconclusive
                if failed && self.seen.is_within() && late < half(terms.lateness.wake_up) =>
            {
                Judgement::Broken(format!("{figures:?}, bound {bound}, and only: {because}"))
            }
            GuaranteeVerdict::Inconclusive => {
                let first = guarantee.first_breach().map(|breach| breach.cause);
                let cause = first.map_or_else(String::new, |cause| named(cause, late, terms));
                Judgement::Inconclusive(format!("{cause}: {because}"))
            }
        }
    }
}

/// The first assumption that did not hold.
fn named(cause: BreachCause, late: Nanos, terms: &Terms) -> String {
    let assumed = terms.lateness.wake_up;
    let lateness = match late > assumed {
        true => format!("machine lateness {late} > {assumed}"),
        false => format!("machine lateness {late} of {assumed}"),
    };
    match cause {
        BreachCause::WakeUp { .. } | BreachCause::Machine { .. } => lateness,
        BreachCause::Tardy { .. } => format!("the machine was tardy ({lateness})"),
        BreachCause::Stolen { .. } => format!("the hypervisor took CPU time ({lateness})"),
        BreachCause::UpdateOverrun { .. } => format!(
            "an update's CPU time was above its WCET: interrupts, or what the hypervisor takes unseen \
             ({lateness})"
        ),
        BreachCause::JobOverrun { .. } => format!(
            "a period's CPU time was above the runtime: interrupts, or what the hypervisor takes unseen \
             ({lateness})"
        ),
        BreachCause::SensorExceeds { .. } => format!("a sensor exceeded its stream ({lateness})"),
        BreachCause::Lost { .. } => {
            format!("a sensor was held up between stamp and publication ({lateness})")
        }
        BreachCause::Unadmitted { .. } => format!("a sensor was not admitted ({lateness})"),
        BreachCause::SmallBuffer { .. } => format!("a buffer was small ({lateness})"),
        BreachCause::Foreign { .. } => format!("somebody else reserved CPU time ({lateness})"),
    }
}

fn duration(length: Nanos) -> Duration {
    Duration::from_nanos(length.as_ns())
}

fn half(length: Nanos) -> Nanos {
    Nanos::from_ns(length.as_ns() / 2)
}

/// Producers on all rings.
fn produce() -> (Vec<Producer>, Rings) {
    let (writers, source) = rings(&[("a", 512), ("b", 512)]);
    let all = writers.into_iter().zip(streams().into_iter().zip([8, 5]));
    let producers = all.map(|(ring, (stream, burst))| Producer::start(ring, stream, burst));
    (producers.collect(), source)
}
