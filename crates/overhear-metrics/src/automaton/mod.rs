// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics as automata: from streams of events to measurements, without knowing how the system makes
//! its events (seed 004).
//!
//! A [`Specification`] is a metric as it is written, in a small text format (`docs/metrics.md` has
//! its grammar). A [`Metric`] is one that makes sense, compiled to tables. [`Metrics`] is the
//! [`Update`](overhear_event::Update) that runs any number of them in one pass over the elements, an
//! automaton per task each, and hands every [`Measurement`] to a [`Sink`]: whose it is, its begin, end
//! and length, the elements that lie in it, and what was missed while it was running.
//!
//! The metrics of Linux are files in this format: [`system_metric`] finds them by name, and
//! [`new_user_metric`] makes those between two events of a program.
//!
//! ```
//! use std::sync::Arc;
//!
//! use overhear_event::{
//!     ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema, Update,
//! };
//! use overhear_metrics::automaton::{Measurement, Metric, Metrics, Sink};
//!
//! // How long a request takes, without the time in which its task waits for the disk.
//! let metric: Metric = r#"
//!     metric request "A request, without its disk"
//!
//!     event begins = user:phase [number == 1]
//!     event waits  = user:phase [number == 2]
//!     event goes   = user:phase [number == 3]
//!     event ends   = user:phase [number == 4]
//!
//!     state idle  out
//!     state first begin
//!     state works in
//!     state disk  out
//!     state done  end
//!
//!     idle  -> first: begins, i
//!     first -> works: lambda
//!     works -> disk:  waits, i
//!     disk  -> works: goes, i
//!     works -> done:  ends, i
//!     done  -> idle:  lambda
//! "#.parse()?;
//!
//! #[derive(Default)]
//! struct Lengths(Vec<(u32, u64)>);
//!
//! impl Sink for Lengths {
//!     fn measurement(&mut self, measurement: &Measurement<'_>) {
//!         assert!(measurement.is_complete());
//!         self.0.push((measurement.task, measurement.length.as_ns()));
//!     }
//! }
//!
//! let phase = StreamDescriptor {
//!     id: StreamId::from_raw(1),
//!     origin: Origin::Program(Task { pid: 42, start: Timestamp::ZERO, comm: "server".into() }),
//!     sensor: "phase".into(),
//!     instance: String::new(),
//!     lane: None,
//!     schema: Arc::new(TypeSchema::builder("phase").field("number", FieldKind::U32, "").build()?),
//!     rate: None,
//!     capacity: 64,
//! };
//! let mut metrics = Metrics::new(Lengths::default());
//! metrics.add(metric);
//! let phases: [(u64, u32); 4] = [(1_000, 1), (1_300, 2), (8_300, 3), (8_500, 4)];
//! for (sequence, (ns, number)) in (0..).zip(phases) {
//!     metrics.element(&ElementView {
//!         stream: &phase,
//!         sequence,
//!         time: Timestamp::from_monotonic_ns(ns),
//!         payload: &number.to_ne_bytes(),
//!     });
//! }
//! assert_eq!(metrics.sink().0, [(42, 300 + 200)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The rules, and how they are read
//!
//! The seed's section 3 states the rules; where it leaves a choice this is ours.
//!
//! 1. *Input.* The alphabet is what the metric declares. Elements that match no declared event are
//!    not seen, so that a result does not depend on what else happens to be recorded. An element
//!    that matches several events is input once for each, in the order of their declaration, at one
//!    time: a context switch is the departure of one thread and the arrival of another.
//! 2. *Labels.* The seed's table is read as an order: `event, i` and `event, not i` go before `event`,
//!    and that before `*`. Input that matches no label leaves the automaton where it is, as if the
//!    state had `*` leading to itself. Lambda is followed at once, so a state that has one can have
//!    nothing else. Input without a task is never `i`, and always `not i`.
//! 3. *Begin* begins a measurement. The seed does not say what becomes of one that is running:
//!    specifications in which that can happen are refused; they lead to a cancel first. A begin that
//!    is told late (`ago`) may lie before the end of the last measurement: measurements of one task can
//!    overlap then, as requests to a disk do. Within one, time does not go back.
//! 4. *Segments.* A segment goes from the time of the input that enters its first state to the time of
//!    the input that leaves its last. The seed says "the input tuples that have determined the initial
//!    and final states"; that a state is the final one is determined by leaving it. Otherwise the time
//!    from the last event in state 2 of figure 2 to the interrupt would be lost. Where a figure has a
//!    further `in` state before the end (state 3 of figure 2) both readings agree.
//! 5. *Cond.* A chain of `cond` states that an `in` state follows is part of that segment. Followed by
//!    any other kind, an end among them, it is outside.
//! 6. *Intermediate events* are the elements by which the states of the segments go on, counted by
//!    event type: the number of states less one, as the seed says, where staying in a state is entering
//!    it again. The element that leaves a segment is not one of them unless it has entered a state of
//!    it before (as the final event of figure 2 does). States entered by lambda take no element and
//!    count nothing. An element that is several symbols counts once.
//! 7. *One automaton per task.* All tasks have one from the beginning: an automaton that is made later
//!    is a copy of the *stranger*, which has seen everything as `not i`. What is completed before an
//!    element names its task is nobody's.
//!
//! And what the seed does not have:
//!
//! 8. *Gaps* in streams of the alphabet. A measurement that is running goes on and names them. An
//!    automaton without one starts anew in the first state, as at the start of the observation. A gap
//!    that begins before the end of a measurement may become known after it was reported: then the
//!    sink gets a [`Doubt`].
//! 9. *Ends of tasks.* With its EXIT (or, if the metric listens to context switches and is measuring,
//!    with its last departure) a thread's automaton goes; a running measurement is counted as
//!    unfinished.
//!
//! # Design constraints
//!
//! Memory is bounded: an automaton per task that differs from the stranger's, so many per metric and
//! no more; what is refused is counted. Nothing is allocated per element or measurement. The cost of an
//! element does not depend on how many tasks there are or were, only on those that it moves. What is
//! remembered to be fast (combinations of states) is limited, and can be forgotten at any time.

mod builtin;
mod catalogue;
mod check;
mod engine;
mod fault;
mod glance;
mod group;
mod hearing;
mod instance;
mod measurement;
mod metric;
mod parse;
mod part;
mod pattern;
mod print;
mod program;
mod reading;
mod reported;
mod results;
mod route;
mod routes;
mod shared;
mod specification;
mod summary;
mod tasks;
mod told;
mod way;

pub use builtin::{
    events_required_by, new_user_metric, system_metric, system_metric_text, system_metrics,
    SystemMetricError, UserMetricError,
};
pub use catalogue::Catalogue;
pub use engine::Metrics;
pub use fault::{Fault, SpecificationError};
pub use group::MetricStatistics;
pub use measurement::{Doubt, Intermediate, Measurement, Missed, Position, Sink};
pub use metric::Metric;
pub use pattern::Pattern;
pub(crate) use pattern::{process, BoundPattern};
pub use results::{MeasurementGap, MetricResult, Results};
pub use shared::{SharedMetrics, Taken};
pub use specification::{
    Condition, Constant, Key, Label, Place, Relation, Specification, State, StateKind, Symbol,
    TaskOf, Transition, Whose, Word,
};
pub use summary::{Summaries, Summary};
