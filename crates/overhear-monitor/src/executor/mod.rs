// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executors run the rounds of a monitor. Updates do not depend on them, and run unchanged under
//! each.
//!
//! - [`best_effort()`]: in the calling thread, without any guarantee.
//! - [`idle()`]: in the time in which the CPUs would be idle, without any guarantee.
//! - *buffered*: [`copy_reserved()`] copies with reserved CPU time into private rings, best effort
//!   evaluates from there.
//! - [`bandwidth()`]: within a share of a CPU that the kernel keeps for it; as many elements as
//!   fit.
//! - [`deadline()`]: on the [`Terms`] of an admission, with CPU time that the kernel reserves; its
//!   [`GuaranteeVerdict`] states whether every element was evaluated in time.
//!
//! The decisions of an executor (wake-up times, judgement of times) are separate from threads and
//! clocks, so that they are tested with literal times.

mod bandwidth;
mod best_effort;
mod buffered;
mod deadline;
mod guarantee;
mod idle;
#[allow(unsafe_code, reason = "a signal handler")]
mod overruns;
mod periods;
mod terms;
mod watch;

pub use bandwidth::{bandwidth, share_of_cpu, MAX_SHARE_PERCENT};
pub use best_effort::best_effort;
pub use buffered::{buffer, copy_reserved, Copier, Copies, Horizon};
pub use deadline::{deadline, may_guarantee, DeadlineRefusal, DeadlineRun};
pub use guarantee::{
    Breach, BreachCause, Guarantee, GuaranteeVerdict, GuaranteeViolation, ViolationKind,
};
pub use idle::idle;
pub use terms::{SensorIndex, SensorTerms, Terms, UpdateIndex, UpdateTerms};
pub use watch::{LongestStep, SensorFigures, UpdateOutcome, Watch, Watched};
