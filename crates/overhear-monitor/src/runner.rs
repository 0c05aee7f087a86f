// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runner: rounds of one monitor until a condition ends them, then the last round.
//!
//! ```text
//!             +------------------------- Runner::run --------------------------+
//!             |                                                                |
//!  sources ---+-> step: one round of the Monitor ---> update                   |
//!             |     |                                                          |
//!             |     +---> complaints: passed on, each once                     |
//!             |     v                                                          |
//!             |   until(&mut runner) -- None --> wait(pause) --> next step     |
//!             |     |                                                          |
//!             |     +-- Some(ended_by) --> finish: sources end, the rest is    |
//!             |                            read and evaluated                  |
//!             +----------------------------------|-----------------------------+
//!                                                v
//!              Finished { ended_by, ended, update, monitor: losses, opened streams }
//! ```
//!
//! The runner decides when a round is due and when the run is over. The caller supplies the wait,
//! and in tests the clock. A caller with an event loop of its own calls [`Runner::step`] and
//! [`Runner::finish`], and has its own conditions. It is the best-effort
//! [executor](crate::executor): it gives no guarantee and reserves nothing.

use std::borrow::BorrowMut;
use std::time::Duration;

use overhear_event::{Analysis, Source, SourceError, Timestamp};

use crate::clock::{Clock, SystemClock};
use crate::monitor::{Monitor, HOLD_BACK};

#[cfg(test)]
mod tests;

/// Runs a monitor and its update by best effort.
///
/// `M` is a [`Monitor`], or a mutable reference to one that outlives the run.
///
/// ```
/// # use std::sync::Arc;
/// # use overhear_event::{
/// #     ElementView, Gap, Inbox, Origin, Source, SourceError, StreamDescriptor, StreamId,
/// #     Timestamp, TypeSchema, Analysis,
/// # };
/// # struct Sensor(Option<Arc<StreamDescriptor>>);
/// # impl Source for Sensor {
/// #     fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
/// #         if let Some(stream) = self.0.take() {
/// #             let id = stream.id;
/// #             inbox.open(stream);
/// #             for sequence in 0..3 {
/// #                 inbox.element(id, sequence, Timestamp::from_monotonic_ns(sequence), &[]);
/// #             }
/// #         }
/// #         Ok(())
/// #     }
/// # }
/// # let sensor = Sensor(Some(Arc::new(StreamDescriptor {
/// #     id: StreamId::from_raw(1),
/// #     origin: Origin::Kernel { cpu: 0 },
/// #     sensor: "sensor".to_string(),
/// #     instance: String::new(),
/// #     lane: None,
/// #     schema: Arc::new(TypeSchema::builder("empty").build().unwrap()),
/// #     rate: None,
/// #     capacity: 2,
/// # })));
/// use overhear_monitor::Runner;
///
/// #[derive(Default)]
/// struct Count(u64);
/// impl Analysis for Count {
///     fn element(&mut self, _: &ElementView<'_>) {
///         self.0 += 1;
///     }
///     fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
///     fn advance(&mut self, _: Timestamp) {}
/// }
///
/// // The sensor has written three elements.
/// let finished = Runner::new(Count::default())
///     .source(Box::new(sensor))
///     .complaints(|complaint| eprintln!("{complaint}"))
///     .run(std::thread::sleep, |runner| {
///         (runner.update.0 == 3).then_some("count")
///     });
/// assert_eq!(finished.ended_by, "count");
/// assert_eq!(finished.monitor.elements(), 3);
/// assert_eq!(finished.monitor.losses().missed(), 0);
/// ```
pub struct Runner<'a, U, M = Monitor> {
    /// The monitor: its sources, losses and discovered streams.
    pub monitor: M,
    /// The update that gets every item.
    pub update: U,
    clock: Box<dyn Fn() -> Timestamp + 'a>,
    complaints: Option<Box<dyn FnMut(SourceError) + 'a>>,
    pacing: Pacing,
    now: Timestamp,
}

/// A run that is over: all sources have ended, and everything that they delivered is evaluated.
pub struct Finished<U, R, M = Monitor> {
    /// The reason that the condition returned.
    pub ended_by: R,
    /// When the condition held, before the last round.
    pub ended: Timestamp,
    /// The update.
    pub update: U,
    /// The monitor, with the losses and the streams that have not been taken from it.
    pub monitor: M,
}

impl<U: Analysis> Runner<'_, U> {
    /// A runner without sources, with the default [hold-back](HOLD_BACK).
    #[must_use]
    pub fn new(update: U) -> Self {
        Self::over(Monitor::new(HOLD_BACK), update)
    }
}

impl<'a, U: Analysis, M: BorrowMut<Monitor>> Runner<'a, U, M> {
    /// A runner of this monitor.
    #[must_use]
    pub fn over(monitor: M, update: U) -> Self {
        Self {
            monitor,
            update,
            clock: Box::new(|| SystemClock.now()),
            complaints: None,
            pacing: Pacing::default(),
            now: Timestamp::ZERO,
        }
    }

    /// Adds a source. Later sources can be added to the [monitor](Runner::monitor).
    #[must_use]
    pub fn source(mut self, source: Box<dyn Source>) -> Self {
        self.monitor.borrow_mut().add_source(source);
        self
    }

    /// Sets the clock that the rounds read; it is `CLOCK_MONOTONIC` by default.
    #[must_use]
    pub fn clock(self, clock: impl Fn() -> Timestamp + 'a) -> Self {
        Self {
            clock: Box::new(clock),
            ..self
        }
    }

    /// Passes each complaint about a source on, once, after the round in which it came. Without
    /// this, complaints stay in the monitor, which keeps a limited number of them.
    #[must_use]
    pub fn complaints(self, pass: impl FnMut(SourceError) + 'a) -> Self {
        Self {
            complaints: Some(Box::new(pass)),
            ..self
        }
    }

    /// Runs one round. Returns the pause until the next one is due.
    pub fn step(&mut self) -> Duration {
        let monitor = self.monitor.borrow_mut();
        let before = monitor.elements();
        monitor.round((self.clock)(), &mut self.update);
        let pause = self.pacing.pause_after(monitor.elements() - before);
        self.pass_complaints();
        self.now = (self.clock)();
        pause
    }

    /// The time just after the latest step.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Runs rounds in the calling thread until `until` returns a reason; then the last one. `until`
    /// is called after each round. `wait` sleeps between two rounds, and may return early.
    pub fn run<R>(
        mut self,
        mut wait: impl FnMut(Duration),
        mut until: impl FnMut(&mut Self) -> Option<R>,
    ) -> Finished<U, R, M> {
        loop {
            let pause = self.step();
            if let Some(ended_by) = until(&mut self) {
                return self.finish(ended_by);
            }
            wait(pause);
        }
    }

    /// Ends the sources, reads and evaluates the rest.
    pub fn finish<R>(mut self, ended_by: R) -> Finished<U, R, M> {
        let monitor = self.monitor.borrow_mut();
        monitor.finish((self.clock)(), &mut self.update);
        self.pass_complaints();
        Finished {
            ended_by,
            ended: self.now,
            update: self.update,
            monitor: self.monitor,
        }
    }

    fn pass_complaints(&mut self) {
        if let Some(pass) = &mut self.complaints {
            let complaints = self.monitor.borrow_mut().take_complaints();
            complaints.into_iter().for_each(pass);
        }
    }
}

/// Decides the pauses between rounds.
#[derive(Debug)]
struct Pacing {
    pause: Duration,
}

impl Pacing {
    /// Pause after a busy round.
    const SHORTEST: Duration = Duration::from_millis(1);
    /// Longest pause, after rounds with few elements.
    const LONGEST: Duration = Duration::from_millis(10);
    /// A round with more elements than this is busy.
    const BUSY_ELEMENTS: u64 = 2_000;

    /// The pause after a round with this number of elements.
    fn pause_after(&mut self, elements: u64) -> Duration {
        self.pause = match elements > Self::BUSY_ELEMENTS {
            true => Self::SHORTEST,
            false => (self.pause * 2).min(Self::LONGEST),
        };
        self.pause
    }
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            pause: Self::SHORTEST,
        }
    }
}
