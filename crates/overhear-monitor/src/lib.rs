// SPDX-License-Identifier: MIT OR Apache-2.0
//! Merges streams into one total order and feeds analyses.
//!
//! Elements come in through [`Source`](overhear_event::Source)s, stream by stream. [`Merge`] brings
//! them into the one order that holds everywhere, (time, stream, sequence), holding back the newest
//! for a moment because a writer can be preempted between stamp and publication. What is older than
//! the hold-back goes to the [`Analysis`](overhear_event::Analysis)s, together with the gaps at
//! their places and the promise that nothing older can still come. [`Monitor`] connects the three
//! and keeps the account of what was missed, per stream and cause ([`Losses`]). An [`UpdateSet`]
//! calls several updates, each for its own sensors. A [`Runner`] runs the monitor by best effort
//! until a condition ends it; the [executors](executor) run it with reserved CPU time,
//! [`executor::deadline()`] on what was admitted. [`scheduler`] queries the kernel for what a
//! guarantee needs: CPU time that is reserved, and [`Partition`] for a CPU of the monitor's own.
//! What is found can call for a [`reaction`], which another thread carries out.
//!
//! Analyses are independent of executors; the merge reads no clock: time is an argument.
//!
//! ```
//! use overhear_event::{
//!     ElementView, Gap, Inbox, Nanos, Origin, Source, SourceError, StreamDescriptor, StreamId,
//!     Timestamp, TypeSchema, Analysis,
//! };
//! use overhear_monitor::Monitor;
//! # use std::sync::Arc;
//!
//! /// Two elements at 10 and 20 ns.
//! struct Two(Option<Arc<StreamDescriptor>>);
//! impl Source for Two {
//!     fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
//!         if let Some(stream) = self.0.take() {
//!             let id = stream.id;
//!             inbox.open(stream);
//!             inbox.element(id, 0, Timestamp::from_monotonic_ns(10), &[]);
//!             inbox.element(id, 1, Timestamp::from_monotonic_ns(20), &[]);
//!         }
//!         Ok(())
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Count(u64);
//! impl Analysis for Count {
//!     fn element(&mut self, _: &ElementView<'_>) {
//!         self.0 += 1;
//!     }
//!     fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
//!     fn advance(&mut self, _: Timestamp) {}
//! }
//!
//! # let schema = TypeSchema::builder("empty").build().unwrap();
//! # let (id, origin) = (StreamId::from_raw(1), Origin::Kernel { cpu: 0 });
//! # let stream = Arc::new(StreamDescriptor::new(id, origin, "two", schema));
//! let mut monitor = Monitor::new(Nanos::from_ms(2));
//! monitor.add_source(Box::new(Two(Some(stream))));
//! let mut count = Count::default();
//! monitor.round(Timestamp::from_monotonic_ns(2_000_015), &mut count);
//! assert_eq!(count.0, 1); // 20 ns is still held back.
//! monitor.finish(Timestamp::from_monotonic_ns(2_000_016), &mut count);
//! assert_eq!(count.0, 2);
//! assert_eq!(monitor.losses().missed(), 0);
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(unsafe_code)]

mod batch;
mod clock;
mod continuity;
mod continuity_checks;
pub mod executor;
mod fanout;
mod group;
mod in_place;
pub mod interference;
mod losses;
#[allow(unsafe_code, reason = "a system call without a safe function")]
mod memory;
mod merge;
mod monitor;
mod partition;
#[allow(unsafe_code, reason = "functions of shared objects, by a C interface")]
pub mod plugin;
mod queue;
pub mod reaction;
pub mod runner;
#[allow(unsafe_code, reason = "system calls without a function in libc")]
pub mod scheduler;
mod updates;
mod watchdog;

pub use clock::{Clock, SystemClock};
pub use continuity::{Continuity, CpuIndex, MissingSwitches, Scope};
pub use executor::best_effort;
pub use fanout::Fanout;
pub use group::{Group, UpdateFunction};
pub use losses::{Loss, Losses};
pub use memory::PageFaults;
pub use merge::{Merge, QueueMemory};
pub use monitor::{Monitor, SourceKey, HOLD_BACK};
pub use partition::{Partition, PartitionError, PartitionGuard};
pub use runner::{Finished, Runner};
pub use updates::{
    AddError, Binding, MissedPolicy, Start, Subscription, Supervisor, UpdateRef, UpdateSet,
    UpdateState, UpdateStatus, WaitError, MOST_UPDATES,
};
pub use watchdog::{CpuLateness, LatencyWatchdog, WatchdogError, WatchdogStats};
