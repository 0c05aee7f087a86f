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
//! that they name, without intermediate events. It has four exits to slower code, and takes over
//! again after each:
//!
//! | where | when | what handles it |
//! |---|---|---|
//! | `decode_batch` | the cache of the stream misses, or an element has many parts | `Routes::decode` decodes this element by its conditions |
//! | `decode_batch` | the stream is new, the element concerns a metric that is not plain, or it begins or ends a thread | the batch so far is applied, then `Metrics::evaluate` evaluates this element: its plain parts by the fast path, then each other metric by `Group::input` |
//! | step loop | the input is several symbols that all lead somewhere | `Group::step_members`, one step per symbol |
//! | step loop | the task has no automaton, its measurement has missed elements, the step has spilled effects, or the input is before the end of a past gap | `Group::input`, which handles everything |
//!
//! # Indices
//!
//! | array | indexed by | which is |
//! |---|---|---|
//! | `Metrics::groups` | metric | order of [`Metrics::add`] |
//! | `Routes::dense` | stream id | the id that the source gave the stream |
//! | `Routes::all`, `caches` | route number | order in which streams appeared |
//! | `Route::symbol_sets` | conditions that hold, a bit each | order in which the rules of the route name them |
//! | `Parts::hot`, `info`; `InputMap::parts`, `members` | part id | order in which parts were built, over all routes |
//! | `PartRef::element`, `TaskInput::element` | element | position in the batch |
//! | `FilteredInput::input`, `Completed::input` | input | position in the inputs of the batch |
//! | `Group::instances`, `keys`, `missed`; `Tallies`; `WatcherIndex::positions` | slot | given by [`Tasks`](tasks::Tasks); 0 is the template instance |
//! | `Program::steps` | row + column | a [`Row`](super::compile::program::Row) is the offset of its first step |
//! | `Program::measures`, `watches`; `WatcherIndex::rows` | row number | row divided by the number of columns |
//! | `Program::spilled` | `Step::spilled` | order in which they were found |
//! | `Group::completed` | completed measurement | order of completion in the batch |
//! | `Reported::recent` | number of the measurement modulo 1024 | order of the reports |

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
