// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints and verdicts: whether what must hold does hold, said as soon as it is decided.
//!
//! What flows in are items, live or of a recording; a [`Constraint`] says what must hold of them: of
//! the measurements of a metric, the fields of elements, or the times of events. [`Verdicts`] is the
//! [`Update`](overhear_event::Update) that judges any number of them. It tells a [`Judge`] of every
//! [`Offence`] when it is decided, what is absent or late by `advance`, and gives a [`Verdict`] for each
//! constraint: held, violated, or inconclusive, because elements were missed, an order is inside the
//! clock error, or nothing was judged at all.
//!
//! ```
//! use std::sync::Arc;
//!
//! use overhear_event::{
//!     ElementView, FieldKind, Nanos, Origin, StreamDescriptor, StreamId, Task, Timestamp,
//!     TypeSchema, Update,
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
//! let stream = StreamDescriptor {
//!     id: StreamId::from_raw(1),
//!     origin: Origin::Program(Task { pid: 42, start: Timestamp::ZERO, comm: "server".into() }),
//!     sensor: "request".into(),
//!     instance: String::new(),
//!     lane: None,
//!     schema: Arc::new(TypeSchema::builder("request").field("phase", FieldKind::U32, "").build()?),
//!     rate: None,
//!     capacity: 64,
//! };
//! let at = |ms: u64| Timestamp::from_monotonic_ns(ms * 1_000_000);
//! for (sequence, ms, phase) in [(0, 100, 1_u32), (1, 104, 2), (2, 200, 1)] {
//!     let payload = &phase.to_ne_bytes();
//!     verdicts.element(&ElementView { stream: &stream, sequence, time: at(ms), payload });
//! }
//! // The second request is not answered. That is decided when nothing before 210 ms can still come.
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
//! 1. *Violated* needs an instance that offends whatever else is not known. What was missed excuses an
//!    instance that may be among it: the answer to a request, the element between two that are too far
//!    apart, a measurement in which something was missed, the first event of an order. If the gap becomes known
//!    after the instance was decided, the offence is taken back ([`Judge::doubted`]). What nobody listened for is
//!    not absent, and nothing is certain behind the place where a damaged recording breaks off.
//! 2. *Held* needs that nothing was missed of the events that the constraint speaks of, that their
//!    streams were heard, that at least one instance was judged (where an event must never happen, that a task
//!    was seen for which it must not), and that no instance was uncertain.
//! 3. Everything else is *inconclusive*, and its [`Reason`]s say why.
//! 4. What begins so late that the end of the observation cuts it off is not judged.
//!
//! # Design constraints
//!
//! No clock: time comes with elements and `advance`. Memory is bounded: so many groups per constraint,
//! so many awaited answers per group, so many offences that are remembered one by one; what finds no
//! room is counted and makes the verdict inconclusive. An element costs what the constraints cost that
//! speak of it, and one comparison for each that waits for something.

mod constraint;
mod engine;
mod groups;
mod offence;
mod rhythm;
mod sequence;
mod taken;
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
pub use offence::{Found, Offence};
pub use verdict::{Case, Outcome, Reason, Verdict};
