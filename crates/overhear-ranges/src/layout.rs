// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that instrumented code, runtime and reader share.
//!
//! The C side is `native/ranges/pass/Table.h` (words, ranges, counters, text) and
//! `native/ranges/module/module.c` (module, object). All numbers are in the order of the machine:
//! results are read on the machine that wrote them.
//!
//! A results file belongs to one process:
//!
//! ```text
//! header        PAGE bytes: FileHeader
//! chunk ...     each a multiple of PAGE: ChunkHeader, then its content
//!   MODULE      path and text of a program or library, then a FunctionPrice for each function
//!   BLOCK       image of a module for one thread, then an Account for each function and a
//!               SegmentEstimate for each segment
//! ```
//!
//! The file is mapped: what a thread has written into its block is in the file, however the process
//! ends.

use crate::estimate::{SegmentEstimate, StretchCounts};

/// Version of module, object, block and text.
pub const LAYOUT_VERSION: u64 = 1;
/// Version of results files.
pub const FILE_VERSION: u32 = 1;
/// The first bytes of a results file.
pub const FILE_MAGIC: [u8; 8] = *b"OHRANGES";
/// Alignment of chunks. Every page size of Linux on 64-bit machines divides it.
pub const PAGE: usize = 65536;
/// The ending of the names of results files.
pub const FILE_ENDING: &str = "ranges";
/// Bytes of the words of one function.
pub const WORDS_BYTES: usize = 64;
/// Bytes of the range of one variable.
pub const RANGE_BYTES: usize = 16;

/// The words of a function in the block of a thread: one cache line.
///
/// Instrumented code is the only reader and writer of `credit` and `credit_limit` besides the slow
/// path of the same thread. `stop`, `tokens` and `token_updates` are also written by the control
/// thread; a write that is lost to the other side costs at most one round of control.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionWords {
    /// Plain stretch: passes left, minus 1. Monitored stretch: starts at -1 and goes down.
    pub credit: i64,
    /// The slow path is called at the pass that takes `credit` to this value or below.
    pub credit_limit: i64,
    /// Updates recorded.
    pub recorded: i64,
    /// Monitored code runs while `recorded` is below this word.
    pub stop: i64,
    /// Entries that may run the monitored copy out of turn.
    pub tokens: i64,
    /// Updates that one token allows.
    pub token_updates: i64,
    /// Address of the function's `Record` in this process, or 0.
    pub record: u64,
    /// Passes of monitored stretches that ran plain, because `stop` was reached.
    pub capped: i64,
}

/// What the slow path has counted for a function and thread. Written by that thread only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Passes of ended stretches.
    pub passes: i64,
    /// Passes of ended monitored stretches.
    pub monitored: i64,
    /// Passes of the stretch under way, when it was begun.
    pub length: i64,
    /// 1 while the stretch under way is monitored.
    pub is_monitored: u64,
    /// Monitored stretches of pairs.
    pub stretches: f64,
    /// Sum of updates per pass over them.
    pub rate_sum: f64,
    /// Sum of squares of updates per pass over them.
    pub rate_squares: f64,
    /// Updates recorded in ended monitored stretches. The others are those of tokens.
    pub stretch_updates: i64,
    /// Updates recorded when the stretch under way was begun.
    pub stretch_start: i64,
    /// The end of the last stratum.
    pub stratum_start: StretchCounts,
}

impl Account {
    /// Passes in all and those of monitored stretches, with the stretch under way.
    #[must_use]
    pub fn stretches_now(&self, words: &FunctionWords) -> (i64, i64) {
        let (all, monitored) = if self.is_monitored == 1 {
            let open = (-1_i64).wrapping_sub(words.credit).max(0);
            (open, open)
        } else if self.length > 0 {
            let open = self.length.wrapping_sub(1).wrapping_sub(words.credit);
            (open.max(0), 0)
        } else {
            (0, 0)
        };
        (
            self.passes.saturating_add(all),
            self.monitored.saturating_add(monitored),
        )
    }

    /// Passes in all and monitored ones: those of monitored stretches, without those that ran
    /// plain. Passes with a token count as plain.
    #[must_use]
    pub fn passes_now(&self, words: &FunctionWords) -> (i64, i64) {
        let (all, monitored) = self.stretches_now(words);
        let monitored = monitored.saturating_sub(words.capped.max(0));
        (all, monitored.clamp(0, all.max(0)))
    }

    /// Updates recorded in monitored stretches, with the stretch under way.
    #[must_use]
    pub fn updates_now(&self, words: &FunctionWords) -> i64 {
        let open = if self.is_monitored == 1 {
            words.recorded.saturating_sub(self.stretch_start).max(0)
        } else {
            0
        };
        self.stretch_updates.saturating_add(open)
    }

    /// All counts, with those of the stretch under way.
    #[must_use]
    pub fn counts_now(&self, words: &FunctionWords) -> StretchCounts {
        let (passes, monitored) = self.passes_now(words);
        StretchCounts {
            passes,
            monitored,
            recorded: words.recorded,
            in_stretches: self.updates_now(words),
            stretches: self.stretches,
            rate_sum: self.rate_sum,
            rate_squares: self.rate_squares,
        }
    }
}

/// An object file, as the pass describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// [`LAYOUT_VERSION`].
    pub version: u64,
    /// Its block in the image.
    pub block: *const u8,
    /// Bytes of the block.
    pub block_bytes: u64,
    /// Number of functions: the block begins with their words.
    pub functions: u64,
    /// Number of variables: their ranges follow the words.
    pub variables: u64,
    /// Number of segments: their counters follow the ranges.
    pub segments: u64,
    /// Names of functions and variables.
    pub text: *const u8,
    /// Bytes of `text`.
    pub text_bytes: u64,
}

/// A program or library, as its own part of the runtime describes it.
#[repr(C)]
#[derive(Debug)]
pub struct Module {
    /// [`LAYOUT_VERSION`].
    pub version: u64,
    /// Start of the image: the blocks of all object files.
    pub image_start: *const u8,
    /// End of the image.
    pub image_end: *const u8,
    /// Start of the descriptions of its object files.
    pub objects_start: *const Object,
    /// End of these descriptions.
    pub objects_end: *const Object,
    /// Index in the runtime; negative if it does not know the module.
    pub slot: i64,
}

/// The start of a results file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileHeader {
    /// [`FILE_MAGIC`].
    pub magic: [u8; 8],
    /// [`FILE_VERSION`].
    pub version: u32,
    /// Process id in its own namespace.
    pub pid: u32,
    /// When the process started, in ticks of the kernel since boot.
    pub start_ticks: u64,
    /// The inode of the process id namespace.
    pub pid_namespace: u64,
    /// The mode: see [`Mode`].
    pub mode: u32,
    /// Modules that found no room in the runtime.
    pub modules_refused: u32,
    /// Target overhead, as a fraction of the program's own CPU time.
    pub target: f64,
    /// Overhead of the plain copies, as a fraction of the program's own CPU time, as configured.
    pub base: f64,
    /// CPU time of the process at the last round of control.
    pub cpu_ns: f64,
    /// Estimated cost of the recorded updates.
    pub updates_ns: f64,
    /// Estimated cost of slow calls and of the control thread.
    pub machinery_ns: f64,
    /// ProcessCost of an update that was measured at the start of the process.
    pub calibrated_price_ns: f64,
    /// Rounds of control.
    pub rounds: u64,
    /// Blocks that could not be put into the file: their ranges are lost.
    pub blocks_lost: u64,
    /// The command of the process, cut.
    pub command: [u8; 64],
}

/// What a process does with its instrumented code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Plain code only.
    Off = 0,
    /// Everything is recorded.
    Full = 1,
    /// As much is recorded as the target allows.
    Budget = 2,
}

/// The kinds of chunks.
pub const CHUNK_MODULE: u32 = 1;
/// A block: see the head of this module.
pub const CHUNK_BLOCK: u32 = 2;

/// The chunk is in use.
pub const STATE_LIVE: u32 = 1;
/// The chunk has no content: its thread has ended, and another one holds its results.
pub const STATE_FREE: u32 = 2;
/// The module was unloaded while its process went on.
pub const STATE_UNLOADED: u32 = 3;

/// The start of a chunk.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChunkHeader {
    /// [`CHUNK_MODULE`] or [`CHUNK_BLOCK`]; 0 ends the file. Written last.
    pub kind: u32,
    /// [`STATE_LIVE`], [`STATE_FREE`] or [`STATE_UNLOADED`].
    pub state: u32,
    /// Bytes of the chunk with this header.
    pub bytes: u64,
    /// Index of the module.
    pub module: u32,
    /// Thread id, or 0 for what ended threads have left.
    pub thread: u32,
    /// Module: bytes of the path. Block: bytes of the image.
    pub first_bytes: u64,
    /// Module: bytes of the text. Block: number of accounts.
    pub second: u64,
    /// Module: number of functions.
    pub functions: u64,
    /// Block: number of segments.
    pub segments: u64,
    /// Not used.
    pub spare: u64,
}

/// What the control thread publishes for a function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionPrice {
    /// Nanoseconds for each update.
    pub price_ns: f64,
    /// Standard error of the price.
    pub error_ns: f64,
    /// Pairs of stretches behind the price.
    pub pairs: f64,
    /// Share of passes that are to be monitored.
    pub share: f64,
}

/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 64;

const _: () = assert!(size_of::<FunctionWords>() == WORDS_BYTES);
const _: () = assert!(size_of::<Account>() == 128);
const _: () = assert!(size_of::<SegmentEstimate>() == 32);
const _: () = assert!(size_of::<Object>() == 64);
const _: () = assert!(size_of::<Module>() == 48);
const _: () = assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_BYTES);
const _: () = assert!(size_of::<FunctionPrice>() == 32);
const _: () = assert!(size_of::<FileHeader>() <= 256);

/// Rounded up to whole pages.
#[must_use]
pub const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE) * PAGE
}
