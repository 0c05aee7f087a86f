// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plug-ins: updates in shared objects, by the C interface of `include/overhear/update.h`.
//!
//! Into this module flow a file, the name of one of its updates and an argument; out comes a
//! [`PluginUpdate`], which is an [`Analysis`](overhear_event::Analysis) like any other, and at the
//! end its [`Results`]. What goes wrong at the border is a message that names the entry: a file
//! that does not load or is no plug-in ([`PluginError`]), a function that fails, panics or throws
//! ([`Analysis::failure`](overhear_event::Analysis::failure)), a sensor of another type
//! ([`Analysis::refuses`](overhear_event::Analysis::refuses)).
//!
//! A shared object can also have functions that carry out reactions ([`ReactionFunction`]), and an
//! update can request them by [`react`].
//!
//! A plug-in in Rust implements [`Exported`] for a type that is an `Analysis`, and names it in
//! [`export_updates!`](crate::export_updates), in a crate of type `cdylib`:
//!
//! ```
//! use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Analysis};
//! use overhear_monitor::plugin::{Exported, Results};
//!
//! struct Count(u64);
//!
//! impl Analysis for Count {
//!     fn element(&mut self, _: &ElementView<'_>) {
//!         self.0 += 1;
//!     }
//!     fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
//!     fn advance(&mut self, _: Timestamp) {}
//! }
//!
//! impl Exported for Count {
//!     const NAME: &'static str = "count";
//!
//!     fn create(_argument: &str) -> Result<Self, String> {
//!         Ok(Self(0))
//!     }
//!
//!     fn report(&self, results: &mut Results) {
//!         results.set("elements", self.0);
//!     }
//! }
//!
//! overhear_monitor::export_updates!(Count);
//! ```
//!
//! # Design constraints
//!
//! Nothing unwinds across the border. In Rust the exported functions catch panics, `update.hpp`
//! catches exceptions, and a function of C++ that could throw does not fit into `oh_update`. All
//! structs begin with their size and grow at their ends, so that plug-ins and monitors of different
//! minor versions work together.

mod abi;
mod export;
mod footprint;
mod host;
mod library;
mod reaction_function;
mod results;
mod tls;
mod update;

pub use abi::RawPlugin;
pub use export::{entry, react, table, Exported, ExportedEntry};
pub use library::{Plugin, PluginError};
pub use reaction_function::{ReactionContext, ReactionFunction};
pub use results::{ResultValue, Results};
pub use update::PluginUpdate;
