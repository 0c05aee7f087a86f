// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: the CPU time and memory that a monitor must reserve so that it never misses an
//! element and never evaluates one too late.
//!
//! A sensor promises a bound of its arrivals: an [`ArrivalBound`] (T, D, tau), a
//! *jitter-constrained stream*. A monitor is a [`PeriodicTask`] (T_M, d). From the two follow,
//! before the start, the number of elements that each period must evaluate (R), the largest latency
//! (l) and the largest backlog, and hence CPU time and memory. [`SingleSensor`] and [`CopyPlan`]
//! compute them for one sensor, [`reserve`] and [`Pool`] for several in chronological order.
//! [`choose`] finds the [`ReservationPlan`] with the least utilisation for a required latency, and
//! [`DeadlineReservation`] has the kernel's parameters for it. If the bound of a sensor is not
//! known, [`ParetoFront`] and [`StreamingFit`] find it in a trace; at run time a
//! [`ConformanceCheck`] names the first element that violates it.
//!
//! ```
//! use overhear_admission::{
//!     choose, AdmissionRequest, AfterViolation, ArrivalBound, ConformanceCheck,
//!     DeadlineReservation, JobEnd, KernelLimits, Lateness, ParetoFront, PeriodicTask, Ratio,
//!     SensorLoad, SingleSensor, Span,
//! };
//! use overhear_event::{Nanos, Timestamp};
//!
//! // A sensor at 1 kHz, in bursts: up to 5 ms early, never closer than 50 us.
//! let stream = ArrivalBound::new(
//!     Nanos::from_ms(1),
//!     Nanos::from_us(50),
//!     Nanos::from_ms(5),
//!     Nanos::ZERO,
//! )?;
//! assert_eq!(stream.burst_length(), Some(6));
//!
//! // A monitor with a period of 10 ms, and a latency of 25 ms: ten evaluations per period.
//! let task = PeriodicTask::new(Nanos::from_ms(10), Nanos::from_ms(10))?;
//! let sensor = SingleSensor::new(stream, task);
//! let r = sensor.least_r(Span::from_ns(25_000_000))?.expect("25 ms exceed T_M + d");
//! assert_eq!((sensor.r_min(), r, sensor.r_max()), (10, 10, 15));
//! assert_eq!(sensor.latency(r)?, Some(Span::from_ns(25_000_000)));
//! assert_eq!(sensor.b_max(r)?, Some(25));
//!
//! // Or let the period be chosen, on a machine that wakes threads up to 300 us late.
//! let lateness = Lateness { wake_up: Nanos::from_us(300), ..Lateness::default() };
//! let load = SensorLoad {
//!     stream,
//!     wcet: Nanos::from_us(40),
//!     copy: Nanos::from_us(1),
//!     buffer: Some(64),
//! };
//! let choice = choose(
//!     &[load],
//!     &AdmissionRequest {
//!         latency: Span::from_ns(25_000_000),
//!         least_period: Nanos::from_us(100),
//!         largest_period: Nanos::from_ms(1_000),
//!         overhead: Nanos::from_us(20),
//!         lateness: lateness.total()?,
//!         density: Ratio::new(1, 2).expect("1/2 is a fraction"),
//!         joint_bound: false,
//!     },
//! )?;
//! let reservation = DeadlineReservation::of_plan(&choice, lateness, JobEnd::Sleep)?;
//! KernelLimits::usual(2).admit(&[reservation])?;
//! assert!(choice.latency <= Span::from_ns(25_000_000));
//!
//! // What did the sensor really do? Fit a trace, and watch the rest.
//! let trace: Vec<Timestamp> = [0, 1_000, 1_100, 3_000, 4_000]
//!     .map(|us| Timestamp::from_monotonic_ns(us * 1_000))
//!     .into();
//! let fitted = ParetoFront::of_trace(&trace)?.stream(Nanos::from_us(900))?;
//! assert_eq!(fitted.jitter(), Nanos::from_us(800));
//! let mut check = ConformanceCheck::new(fitted, AfterViolation::Ignore);
//! assert!(trace.iter().all(|&at| check.push(at).is_none()));
//! let early = check.push(Timestamp::from_monotonic_ns(4_050_000)).expect("it is too early");
//! assert_eq!(early.element, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where the formulas come from
//!
//! [GRTMon, sections 3.2 and 4.2], whose equation numbers the functions cite and whose names the
//! variables keep: T, D, tau, E, L and R of a stream, T_M, d and l of a monitor. Some printed
//! equations are damaged or wrong. What stands here instead was proved and checked against
//! simulation; each correction is named at its function:
//!
//! - equation 2 is a minimum of two terms, because its branch has no value at D = T, and zero for
//!   an empty interval even at D = 0 ([`ArrivalBound::elements_within`]);
//! - L divides by zero at D = T ([`ArrivalBound::burst_length`]);
//! - equation 7 needs floor where ceil is printed; it is the model behind equation 18;
//! - equation 18 lacks the lower limit zero ([`SingleSensor::latency`]);
//! - equations 21 to 23 need ceil where floor is printed, and k = 1 must always be tried
//!   ([`SingleSensor::b_max`]);
//! - several sensors keep their latency only if an evaluation may be throttled and continued
//!   ([`runtime_for_whole_evaluations`]).
//!
//! # Design constraints
//!
//! Integers only: times are whole nanoseconds, intermediate values have 128 bits and every
//! operation is checked. A parameter of any size yields the exact result or [`Overflow`], never a
//! wrapped or rounded one. No clock, no thread, no scheduler and no `unsafe`: callers pass the
//! numbers. `no_std` with `alloc`, because the directory, monitors and programs all use it.
//!
//! Conventions: work of a period ends strictly before d (where *at* d is allowed, give d + 1 ns),
//! and an element that comes exactly at a check is missed by it. `None` is "no such value",
//! "without bound" or "endless", as each function documents.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod choose;
mod conformance;
mod copy;
mod deadline;
mod exact;
mod fit;
mod pacing;
mod pareto_front;
mod pool;
mod several;
mod single;
mod span;
mod stream;
mod task;

pub use choose::{choose, choose_for_period, AdmissionRequest, PlanError, ReservationPlan};
pub use conformance::{AfterViolation, Broken, ConformanceCheck, Violation};
pub use copy::CopyPlan;
pub use deadline::{DeadlineError, DeadlineReservation, JobEnd, KernelLimits, Lateness, Level};
pub use exact::{Overflow, Ratio};
pub use fit::{fit_monitor, fit_strip, fit_strip_stream, MonitorFit, StreamingFit, Strip};
pub use pacing::Pacer;
pub use pareto_front::{FitError, ParetoFront};
pub use pool::{Pool, PoolBound};
pub use several::{
    reserve, runtime_for_whole_evaluations, Reservation, ReserveError, SensorLoad, SensorShare,
};
pub use single::{largest_period, SingleSensor};
pub use span::Span;
pub use stream::{ArrivalBound, ArrivalBoundError, Parameters};
pub use task::{PeriodicTask, TaskError};
