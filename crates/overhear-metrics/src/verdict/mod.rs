// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints and verdicts: whether a requirement is met, decided as early as possible.
//!
//! Items flow in, live or from a recording. A [`Constraint`] is a requirement on the measurements
//! of a metric, the fields of elements, or the times of events. [`Verdicts`] is the
//! [`Analysis`](overhear_event::Analysis) that judges any number of them. It reports every
//! [`Offence`] to a [`Judge`] when it is decided; absent or late events are decided by `advance`.
//! At the end each constraint has a [`Verdict`]: held, violated, or inconclusive, because elements
//! were missed, an order is within the clock error, or nothing was judged.
//!
//! ```
//! use overhear_event::{
//!     ElementView, FieldKind, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
//!     TypeSchema, Analysis,
//! };
//! use overhear_metrics::automaton::{Catalogue, Pattern};
//! use overhear_metrics::verdict::{Constraint, Demand, Outcome, Verdicts};
//!
//! let linux = Catalogue::linux();
//! let deadline = Demand::Deadline {
//!     after: Pattern::parse("user:request [phase == 1]", &linux)?,
//!     of: Pattern::parse("user:request [phase == 2]", &linux)?,
//!     within: Nanos::from_ms(10),
//! };
//! let mut verdicts = Verdicts::new(());
//! verdicts.add(Constraint::new("requests are answered", deadline, &linux)?)?;
//!
//! let schema = TypeSchema::builder("request").field("phase", FieldKind::U32, "").build()?;
//! let server = Origin::program(42, "server");
//! let stream = StreamDescriptor::new(StreamId::from_raw(1), server, "request", schema);
//! let at = |ms: u64| Timestamp::from_monotonic_ns(ms * 1_000_000);
//! for (sequence, ms, phase) in [(0, 100, 1_u32), (1, 104, 2), (2, 200, 1)] {
//!     let payload = &phase.to_ne_bytes();
//!     verdicts.element(&ElementView { stream: &stream, sequence, time: at(ms), payload });
//! }
//! // The second request is not answered. That is decided when nothing before 210 ms can still
//! // come.
//! verdicts.advance(at(210));
//! assert_eq!(verdicts.verdicts().next().unwrap().outcome, Outcome::Held);
//! verdicts.advance(at(211));
//! let verdict = verdicts.verdicts().next().unwrap();
//! assert_eq!(verdict.outcome, Outcome::Violated);
//! assert_eq!(
//!     verdict.first.unwrap().to_string(),
//!     "it did not follow within 10.0 ms, at 0.200000000 s, server(42) (server(42)/request #2)"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules
//!
//! 1. *Violated* needs a case that offends, whatever else is unknown. A missed element excuses
//!    a case that it may belong to: the answer to a request, the element between two that are
//!    too far apart, a measurement with missed elements, the first event of an order. If the gap
//!    becomes known after the decision, the offence is retracted ([`Judge::retracted`]). An event
//!    of which no stream exists is not absent, and nothing is certain after the place where a
//!    damaged recording breaks off.
//! 2. *Held* needs all of:
//!    - no element of the constraint's events was missed;
//!    - a stream of each of them existed;
//!    - at least one case was judged; for an event that must never happen, a task was seen for
//!      which it must not;
//!    - no case was uncertain.
//! 3. Everything else is *inconclusive*, with its [`Reason`]s.
//! 4. A case that the end of the observation cuts off is not judged.
//!
//! # Design constraints
//!
//! No clock: time comes with elements and `advance`. Memory is bounded: the groups per constraint,
//! the awaited answers per group, and the offences that are kept one by one. What finds no room is
//! counted and makes the verdict inconclusive. An element costs time for the constraints that name
//! its event, and one comparison for each constraint that waits.

mod anomalies;
mod constraint;
mod engine;
mod groups;
mod measurement_queue;
mod offence;
mod rhythm;
mod sequence;
mod tally;
mod trial;
mod values;
#[expect(
    clippy::module_inception,
    reason = "the noun that everything here is about"
)]
mod verdict;

pub use constraint::{Constraint, ConstraintError, Demand, Each, TaskFilter, Values};
pub use engine::{Judge, Verdicts};
pub use offence::{Offence, OffenceKind};
pub use verdict::{OffenceView, Outcome, Reason, Verdict};
