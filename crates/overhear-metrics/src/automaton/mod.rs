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
//! [`new_user_metric`] makes those between two events of a task.
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
//! 1. *Input.* The paper's input is a tuple of event type, task and time stamp. The alphabet is what the metric declares.
//!    Elements that match no declared symbol do not move an automaton, so that a result does not depend on what else
//!    happens to be recorded. Symbols of one element that name the same task and the same time are one event. An element
//!    that names two tasks, as a context switch does, or two times (`ago`), is as many events, which are input in the
//!    order of declaration of their first symbols. A symbol without a task joins the first event of its time.
//! 2. *Labels.* One event is one transition. The paper's table is read as an order over all symbols of the event: `event, i`
//!    goes before `event, not i`, that before `event`, and that before `*`; among equal labels the symbol that is declared
//!    first decides. An event that matches no label leaves the automaton where it is, as if the
//!    state had `*` leading to itself. Lambda is followed at once, so a state that has one can have
//!    nothing else. An event without a task is never `i`, and always `not i`.
//! 3. *Begin* begins a measurement. The seed does not say what becomes of one that is running:
//!    specifications in which that can happen are refused; they lead to a cancel first. A begin that
//!    is told late (`ago`) lies where it was, directly or behind lambdas, even before the end of the last measurement:
//!    measurements of one task can overlap then, as requests to a disk do. Within one, time does not go back.
//! 4. *Segments.* A segment goes from the time of the input that enters its first state to the time of
//!    the input that leaves its last. The seed says "the input tuples that have determined the initial
//!    and final states"; that a state is the final one is determined by leaving it. Otherwise the time
//!    from the last event in state 2 of figure 2 to the interrupt would be lost. Where a figure has a
//!    further `in` state before the end (state 3 of figure 2) both readings agree.
//! 5. *Cond.* A chain of `cond` states that an `in` state follows is part of that segment. Followed by
//!    any other kind, an end among them, it is outside.
//! 6. *Intermediate events* are the elements that were recorded while the automaton was in its segments: "trace events
//!    detected while making the measure". They are the number of states of each segment less one, as the paper says, where staying
//!    in a state is entering it again: of any stream, in the alphabet or not. The element that opens a segment is not one
//!    of them. The element that leaves it is one only if it has entered a state of it before, as the final event of
//!    figure 2 does. States entered by lambda take no element and
//!    count nothing. An element counts once, however many events it is.
//!
//!    The paper has one CPU: every element that is written costs the measured task time, and the length is adjusted by all
//!    of them ([`Measurement::adjusted_on_one_cpu`]). Here threads run on several CPUs, and what the others write costs
//!    others time. So the *own* ones are told apart: elements that were written in the context of the task, and those that
//!    the alphabet assigns to it ([`Measurement::adjusted`]). Each costs what its own sensor costs. The element that opens
//!    a segment is stamped before it has cost anything, so its cost lies in the length, and is not
//!    subtracted, as in the paper. What was recorded between a begin that is told late and the element that tells it does not
//!    count. Nor do the task's own elements before the first one that the alphabet assigns to it.
//! 7. *One automaton per task.* All tasks have one from the beginning: an automaton that is made later
//!    is a copy of the *stranger*, which has seen everything as `not i`. What is completed before an
//!    element names its task is nobody's.
//!
//! And what the seed does not have:
//!
//! 8. *Gaps* in streams of the alphabet. A measurement that is running goes on and names them. An
//!    automaton without one starts anew in the first state, as at the start of the observation; a measurement whose begin is
//!    told late names the gaps since its begin. A gap
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
mod intermediate;
mod measurement;
mod metric;
mod parse;
mod part;
mod past_gaps;
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
pub use intermediate::Intermediate;
pub use measurement::{Doubt, Measurement, Missed, Position, Sink};
pub use metric::Metric;
pub use pattern::Pattern;
pub(crate) use pattern::{process, BoundPattern};
pub use reported::MAX_DOUBTED_MEASUREMENTS;
pub use results::{MeasurementGap, MetricResult, Results};
pub use shared::{SharedMetrics, Taken};
pub use specification::{
    Condition, Constant, Key, Label, Place, Relation, Specification, State, StateKind, Symbol,
    TaskOf, Transition, Whose, Word,
};
pub use summary::{Summaries, Summary};
