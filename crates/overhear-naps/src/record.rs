// SPDX-License-Identifier: MIT OR Apache-2.0
//! The document that each observed process writes.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, addresses are those of the process.

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Version of the document. The session and the library of one installation have the same.
pub const FORMAT: u32 = 1;

/// What one process observed, from the start of its observation to the document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// Process id in the namespace of the process.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Name of the process, as the kernel shows it.
    pub comm: String,
    /// Back end: `rwp`, `move`, `accessed` or `none`.
    pub backend: String,
    /// Reason why a better back end is not used; empty without one.
    pub backend_reason: String,
    /// Least length of a NAP.
    pub threshold_ns: u64,
    /// Budget as a share of the program's CPU time.
    pub budget: f64,
    /// Size in bytes of the smallest allocation that is watched.
    pub min_size_bytes: u64,
    /// Start of the observation.
    pub started_ns: u64,
    /// Time of this document.
    pub written_ns: u64,
    /// The process ended, or ended the observation, after this document. False if it was killed:
    /// what happened after `written_ns` is not known.
    pub ended: bool,
    /// Reason why the observation ended before the process; empty without one.
    pub stopped: String,
    /// CPU time of the process since `started_ns`, with the cost of the observation.
    pub cpu_ns: u64,
    /// Cost of the observation, by part.
    pub cost: NapsCost,
    /// Allocations that were watched.
    pub watched: WatchedSums,
    /// Allocations of at least the least size that were not watched, by cause.
    pub unwatched: Unwatched,
    /// Calls that allocated, by stack.
    pub sites: Vec<Site>,
    /// Executable files in memory, for the symbols of addresses.
    pub mappings: Vec<CodeMapping>,
    /// Live allocations, and freed ones with NAPs.
    pub allocations: Vec<Allocation>,
    /// Freed allocations with NAPs that are missing in `allocations`, because there are too many.
    pub allocations_omitted: u64,
}

/// Cost of an observation in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapsCost {
    /// CPU time of the thread that protects and handles accesses, measured.
    pub handler_ns: u64,
    /// Page faults of the program, and its interruptions by the thread: count x price.
    pub faults_ns: u64,
    /// Stacks and pages of watched allocations: count x price.
    pub allocations_ns: u64,
}

impl NapsCost {
    /// Sum of the parts.
    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.handler_ns + self.faults_ns + self.allocations_ns
    }
}

/// Sums over watched allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedSums {
    /// Number of allocations.
    pub allocations: u64,
    /// Their sizes, as the program requested them.
    pub bytes: u64,
    /// Largest number of bytes that whole pages and records took in addition, at one time.
    pub peak_extra_bytes: u64,
    /// Largest number of live watched bytes at one time.
    pub peak_bytes: u64,
    /// Protections.
    pub protections: u64,
    /// Accesses that ended a protection.
    pub accesses: u64,
}

/// Allocations of at least the least size that were not watched, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwatched {
    /// Watching would exceed the time budget.
    pub budget: u64,
    /// Whole pages would exceed the limit of memory.
    pub space: u64,
    /// The table of allocations or the address range is full.
    pub full: u64,
    /// The program changes the mapping itself (`mprotect`, `mremap`, `mlock`, part of `munmap`).
    pub excluded: u64,
}

/// A stack that allocated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Return addresses, innermost first.
    pub frames: Vec<u64>,
    /// Watched allocations.
    pub allocations: u64,
    /// Their sizes.
    pub bytes: u64,
    /// Freed ones.
    pub freed: u64,
    /// Sum of the lifetimes of the freed ones.
    pub freed_life_ns: u64,
    /// Sum of size x lifetime of the freed ones, in bytes x seconds.
    pub freed_byte_seconds: f64,
    /// Time under protection of the freed ones.
    pub freed_protected_ns: u64,
    /// Accesses that ended a protection, of the freed ones.
    pub freed_accesses: u64,
    /// NAPs of the freed ones.
    pub freed_naps: u64,
    /// Sum of size x length of the NAPs of the freed ones, in bytes x seconds.
    pub freed_nap_byte_seconds: f64,
}

/// A mapped file with code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeMapping {
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// The file.
    pub path: String,
}

/// The call that made an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AllocationKind {
    /// `malloc`, and the `new` of C++.
    #[default]
    Malloc,
    /// `calloc`.
    Calloc,
    /// `realloc` to another place.
    Realloc,
    /// `aligned_alloc`, `posix_memalign`, `memalign`.
    Aligned,
    /// `mmap` of private anonymous memory.
    Mmap,
}

/// A watched allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// Index in the sites of the process.
    pub site: u32,
    /// The call that made it.
    pub kind: AllocationKind,
    /// First address.
    pub address: u64,
    /// Size in bytes, as the program requested it.
    pub size: u64,
    /// Time of the allocation. For memory that a child inherited by `fork`, of the parent's call.
    pub allocated_ns: u64,
    /// Time of `free`; none for a live allocation.
    pub freed_ns: Option<u64>,
    /// Sum of the times under protection.
    pub protected_ns: u64,
    /// Start of the current protection; none if the allocation is not protected.
    pub protected_since_ns: Option<u64>,
    /// Accesses that ended a protection.
    pub accesses: u64,
    /// Time of the last of them, or of the allocation.
    pub last_access_ns: u64,
    /// The last access, observed or not, was no later than this: the start of the last protection.
    pub last_access_before_ns: u64,
    /// Instruction of the last observed access; none if the back end does not know it.
    pub last_access_at: Option<u64>,
    /// NAPs, oldest first, of which a long list has only the first ones.
    pub naps: Vec<Nap>,
    /// Number of all NAPs.
    pub nap_count: u64,
    /// Sum of the lengths of all NAPs.
    pub nap_ns: u64,
    /// Excluded from further observation, because the program changes the mapping itself.
    pub excluded: bool,
}

/// A time in which nothing accessed an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nap {
    /// Start of the protection.
    pub start_ns: u64,
    /// End of the protection, or of the observation.
    pub end_ns: u64,
    /// What ended it.
    pub end: NapEnd,
    /// Instruction of the access that ended it, if known.
    pub at: Option<u64>,
}

impl Nap {
    /// Length.
    #[must_use]
    pub const fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// What ended a NAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NapEnd {
    /// An access.
    Access,
    /// `free`, `realloc` or `munmap`.
    Free,
    /// The end of the observation: the NAP may be longer.
    Open,
}
