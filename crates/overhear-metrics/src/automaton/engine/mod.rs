// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: runs any number of metrics in one pass over the elements.
//!
//! # Stages
//!
//! Elements come in batches of up to 128 ([`Metrics`] splits longer runs):
//!
//! ```text
//! elements --decode_batch--> PartRef[] --resolve_tasks--> TaskInput[]       once for all metrics
//!             ^ DecodeCache per stream     ^ PartHot, Tasks: task -> slot
//!
//! TaskInput[] --filter--> FilteredInput[] --step loop--> Completed[] --report_all--> Sink
//!                ^ InputMap: part -> column   ^ Program: (row, column) -> Step   once per metric
//! ```
//!
//! This is the *fast path*: of *plain* metrics, whose elements only move the automata of the tasks
//! that they name, without intermediate events. It has four exits to slower code, and continues
//! after each:
//!
//! 1. In `decode_batch`, the cache misses or an element has many parts: `Routes::decode` evaluates
//!    the conditions of this element.
//! 2. In `decode_batch`, an element does more than to move automata of plain metrics: its stream is
//!    new, it concerns a metric that is not plain, intermediate events are counted, or it begins or
//!    ends a thread. The batch so far is applied. Then `Metrics::evaluate` takes this element: its
//!    parts by the fast path, the events of other metrics by `Group::input`.
//! 3. In the step loop, an input is several symbols that all lead somewhere: `Group::step_members`
//!    takes one step per symbol.
//! 4. In the step loop, the task has no automaton, elements were missed during its measurement, the
//!    step has spilled effects, or the input is before the end of a past gap: `Group::input`
//!    handles this input. It can handle everything.
//!
//! # Indices
//!
//! | array | indexed by | order |
//! |---|---|---|
//! | `Metrics::groups` | metric | calls of [`Metrics::add`] |
//! | `Routes::dense` | stream id | given by the source |
//! | `Routes::all`, `caches` | route number | appearance of the streams |
//! | `Route::symbol_sets` | set of conditions that hold | a bit per condition of the route |
//! | `Parts::hot`, `info` | part id | construction, over all routes |
//! | `InputMap::parts`, `members` | part id | as in `Parts` |
//! | `PartRef::element`, `TaskInput::element` | element | position in the batch |
//! | `FilteredInput::input`, `Completed::input` | input | position in the inputs of the batch |
//! | `Group::instances`, `keys`, `missed` | slot | given by `Tasks`; 0 is the template |
//! | `Tallies`, `WatcherIndex::positions` | slot | as in `Group` |
//! | `Program::steps` | row + column | a `Row` is the offset of its first step |
//! | `Program::measures`, `watches` | row number | row divided by the number of columns |
//! | `WatcherIndex::rows` | row number | as in `Program` |
//! | `Program::spilled` | `Step::spilled` | discovery |
//! | `Group::completed` | completed measurement | completion in the batch |
//! | `Reported::recent` | number of the measurement modulo 1024 | reports |

mod completed;
mod decode_cache;
mod fast_path;
mod flags;
mod group;
mod input;
mod input_map;
mod instance;
mod intermediate;
mod measurement;
mod memory;
mod metrics;
mod past_gaps;
mod reported;
mod routes;
mod tasks;
mod watchers;

pub use group::MetricStatistics;
pub use intermediate::Intermediate;
pub use measurement::{LateGap, Measurement, Missed, Position, Sink};
pub use metrics::Metrics;
pub use reported::REPORTED_WINDOW;
