// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics as automata: from streams of events to measurements, independent of the system that
//! produces the events [POSIX-metrics, section 3].
//!
//! A [`Specification`] is a metric as text, in a small format (`docs/metrics.md` has its grammar).
//! A [`Metric`] is a checked one, compiled to tables. [`Metrics`] is the
//! [`Analysis`](overhear_event::Analysis) that runs any number of metrics in one pass over the
//! elements, with an automaton per task and metric. It hands every [`Measurement`] to a [`Sink`]:
//! its task, begin, end and length, the elements in it, and the elements that were missed during
//! it.
//!
//! The metrics of Linux are files in this format: [`system_metric`] finds them by name, and
//! [`new_user_metric`] makes those between two events of a task.
//!
//! Folders: `spec` (text to specification), `compile` (specification to tables), `engine` (elements
//! to measurements; its page has a picture of the stages), `results` (sinks that keep
//! measurements).
//!
//! ```
//! use overhear_event::{
//!     ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
//!     Analysis,
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
//! let schema = TypeSchema::builder("phase").field("number", FieldKind::U32, "").build()?;
//! let server = Origin::program(42, "server");
//! let phase = StreamDescriptor::new(StreamId::from_raw(1), server, "phase", schema);
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
//! The paper [POSIX-metrics, section 3] states the rules. Where it leaves a choice, the choice is
//! made here.
//!
//! 1. *Input.* The paper's input is a tuple of event type, task and time stamp. The alphabet is
//!    what the metric declares. Elements that match no declared symbol do not move an automaton, so
//!    that a result does not depend on what else is recorded. The symbols of one element that name
//!    the same task and the same time are one event. An element that names two tasks, as a context
//!    switch does, or two times (`ago`) is two events; events are input in the order of declaration
//!    of their first symbols. A symbol without a task joins the first event of its time.
//! 2. *Labels.* One event is one transition. The paper's table is read as an order over all symbols
//!    of the event: `event, i`, then `event, not i`, then `event`, then `*`. Among equal labels the
//!    symbol that is declared first decides. An event that matches no label leaves the automaton
//!    where it is, as if the state had `*` leading to itself. Lambda is followed at once, so a
//!    state with a lambda has no other label. An event without a task is never `i`, and always `not
//!    i`.
//! 3. *Begin* begins a measurement. The paper does not define what happens to one that is running:
//!    specifications in which that can happen are refused; they lead to a cancel first. A backdated
//!    begin (`ago`), directly or after lambdas, has its own time, even before the end of the last
//!    measurement: the measurements of one task can overlap then, as requests to a disk do. Within
//!    a measurement, time does not go back.
//! 4. *Segments.* A segment goes from the time of the input that enters its first state to the time
//!    of the input that leaves its last state. The paper has "the input tuples that have determined
//!    the initial and final states"; that a state is the final one is determined by leaving it.
//!    Otherwise the time from the last event in state 2 of figure 2 to the interrupt would be lost.
//!    Where a figure has another `in` state before the end (state 3 of figure 2), both readings
//!    agree.
//! 5. *Cond.* A chain of `cond` states that an `in` state follows is part of that segment. If any
//!    other kind follows, an end included, the chain is outside.
//! 6. *Intermediate events* are the elements that were recorded while the automaton was in its
//!    segments: "trace events detected while making the measure". As in the paper, their number is
//!    that of the states of each segment less one, where staying in a state is entering it again.
//!    - They are of any stream, in the alphabet or not.
//!    - The element that opens a segment is not counted.
//!    - The element that leaves a segment is counted only if it has entered a state of it before,
//!      as the final event of figure 2 does.
//!    - States entered by lambda take no element and count nothing.
//!    - An element counts once, even if it is several events.
//!
//!    The paper has one CPU: each written element costs time of the measured task, and the length
//!    is adjusted by all of them ([`Measurement::adjusted_on_one_cpu`]). Here threads run on
//!    several CPUs, and elements of other threads cost time of those threads. So *own* elements are
//!    counted apart: those that were written in the context of the task, and those that the
//!    alphabet assigns to it ([`Measurement::adjusted`]). Each costs the price of its own sensor.
//!    The element that opens a segment has its time stamp before its cost, so that its cost is part
//!    of the length and is not subtracted, as in the paper. Elements between a backdated begin and
//!    the element with it do not count; nor do the task's own elements before the first one that
//!    the alphabet assigns to it.
//! 7. *One automaton per task.* All tasks have one from the beginning: an automaton that is created
//!    later is a copy of the *template instance*, for which every event was `not i`. Measurements
//!    that are completed before an element names their task belong to no task, and are not
//!    reported.
//!
//! Additions to the paper:
//!
//! 8. *Gaps* in streams of the alphabet. A running measurement goes on and lists them. An automaton
//!    without one starts anew in the first state, as at the start of the observation. A measurement
//!    with a backdated begin lists the gaps since its begin. A gap that begins before the end of a
//!    measurement may become known after the report: then the sink gets a [`LateGap`].
//! 9. *Ends of tasks.* The automaton of a thread is removed at its EXIT; if the alphabet contains
//!    context switches and a measurement is running, at its last switch. A running measurement
//!    counts as unfinished.
//!
//! # Design constraints
//!
//! - Memory is bounded: each metric has at most a fixed number of automata, for tasks that differ
//!   from the template instance. Refused ones are counted.
//! - Nothing is allocated per element or measurement.
//! - The cost of an element depends only on the automata that it moves, not on the number of tasks.
//! - Caches are bounded, and any entry can be dropped at any time.

mod builtin;
mod compile;
mod engine;
mod results;
mod spec;

pub use builtin::{
    events_required_by, new_user_metric, system_metric, system_metric_text, system_metrics,
    SystemMetricError, UserMetricError,
};
pub use compile::metric::Metric;
pub use compile::pattern::Pattern;
pub(crate) use compile::pattern::{process, BoundPattern};
pub use engine::{
    Intermediate, LateGap, Measurement, MetricStatistics, Metrics, Missed, Position, Sink,
    REPORTED_WINDOW,
};
pub use results::{
    CMeasurement, CMeasurementGap, MeasurementGap, MeasurementList, MetricResult, Results,
    SharedMetrics, Summaries, Summary, TakenResults,
};
pub use spec::catalogue::Catalogue;
pub use spec::fault::{Fault, SpecificationError};
pub use spec::specification::{
    Condition, Constant, Key, Label, Ownership, Relation, Specification, State, StateKind, Symbol,
    TaskOf, TextPosition, Transition, Word,
};
