// SPDX-License-Identifier: MIT OR Apache-2.0
//! Non-accessed periods (NAPs) of allocations: the part without a process.
//!
//! A *NAP* is a time of at least the threshold in which nothing accessed an allocation [SMCO,
//! section 3.2]. The preload library (`overhear-naps-preload`) protects allocations inside a
//! running program; the first access ends the protection. Its state flows through two nouns of
//! this crate:
//!
//! ```text
//! accesses, CPU time --> ProtectionPacer --> when to protect an allocation again
//! times of protection --> ProcessRecord (a JSON document) --> overhear-session
//! ```
//!
//! Only time under protection counts as idle, so a reported NAP is never false: an access between
//! two protections can shorten a NAP, or hide it, and cannot add to one.
//!
//! ```
//! use overhear_naps::{AllocationCounts, ProtectionPacer};
//!
//! // 5 % of the program's CPU time.
//! let mut pacer = ProtectionPacer::new(0.05, 0);
//! // A protection and the access that ended it cost 20 us.
//! assert!(pacer.affords(20_000));
//! pacer.spend(20_000);
//! // The access came 3 ms after the protection. The next protection is due at least 5 ms later.
//! let delay = pacer.delay_ns(20_000, 3_000_000, 5_000_000);
//! assert!(delay >= 5_000_000);
//! // One second of CPU time later.
//! pacer.tick(1_000_000_000, 1_000_000_000, AllocationCounts::default());
//! assert!(pacer.affords(20_000));
//! ```
#![forbid(unsafe_code)]

mod pacer;
mod record;

pub use pacer::{AllocationCounts, AllocationGrant, ProtectionPacer};
pub use record::{
    Allocation, AllocationKind, CodeMapping, Nap, NapEnd, NapsCost, ProcessRecord, Site, Unwatched,
    WatchedSums, FORMAT,
};

/// Names of the environment variables through which a session configures the library.
pub mod environment {
    /// Folder that receives a document from each process.
    pub const FOLDER: &str = "OVERHEAR_NAPS_FOLDER";
    /// Least length of a NAP in nanoseconds.
    pub const THRESHOLD_NS: &str = "OVERHEAR_NAPS_THRESHOLD_NS";
    /// Budget as a share of the program's CPU time: `0.05`.
    pub const BUDGET: &str = "OVERHEAR_NAPS_BUDGET";
    /// Size in bytes of the smallest allocation that is watched.
    pub const MIN_SIZE_BYTES: &str = "OVERHEAR_NAPS_MIN_SIZE_BYTES";
    /// `auto`, `rwp`, `move` or `accessed`.
    pub const BACKEND: &str = "OVERHEAR_NAPS_BACKEND";
}

/// Default size of the smallest allocation that is watched, in bytes.
pub const DEFAULT_MIN_SIZE_BYTES: u64 = 16 * 1024;

/// Name of the file that the library leaves in its folder when a program loads it.
pub const LOADED: &str = "loaded";
