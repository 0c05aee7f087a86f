// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the CPU and of the kernel, by the names of perf.
//!
//! ```text
//!   CounterEvent     a name, and what the kernel opens for it
//!        |
//!   CounterGroup     all events of a sampler, opened as one pinned group; one read(2) reads all
//!        |
//!   ThreadCounters   the group of the calling thread, read without a system call where the CPU
//!                    and the kernel permit it
//! ```
//!
//! A group is *pinned*: it counts all the time or not at all, and its values are never scaled. If
//! the CPU has too few counters, opening fails with the number that fits.
//!
//! ```
//! use overhear_sampling::counters::{CounterEvent, CounterOptions, ThreadCounters};
//!
//! let events = CounterEvent::parse_list("task-clock,page-faults")?;
//! let mut counters = ThreadCounters::open(&events, CounterOptions::default())?;
//! let mut totals = [0; 2];
//! counters.read(&mut totals)?;
//! assert!(totals[0] > 0, "nanoseconds of this thread since the group was opened");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod event;
mod group;
mod page;
mod pmu;
mod survey;
mod thread;

pub use error::{CounterError, CountersLost};
pub use event::{split_list, CounterEvent, EventClass};
pub use group::{CounterGroup, CounterOptions, CounterTarget};
pub use page::CounterPages;
pub use survey::{survey, CounterSurvey, SurveyedCounter};
pub use thread::ThreadCounters;

/// Maximum number of counters of a group.
pub const MAX_COUNTERS: usize = 32;
