// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types that the programs, the rings and the hand-over of a monitor share. They have a module of
//! their own, so that none of these three depends on another one.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use overhear_stream::Skips;

use crate::streams::{Feed, Hook, Numbering};

/// Program calls that the kernel skipped, because the program was already running on that CPU
/// (`recursion_misses` in `bpf_prog_info`). The key is the ring slot that the program writes to.
pub(crate) type RecursionMisses = BTreeMap<u32, u64>;

/// Number of descriptors before those of rings, links and programs: four maps and `select`.
pub(crate) const FIXED_FILES: usize = 5;

/// Read position and reported losses of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadProgress {
    /// Position in the ring.
    pub(crate) position: u64,
    /// Refused elements reported so far.
    pub(crate) refused: u64,
    pub(crate) nested_seen: u64,
    pub(crate) inherit_seen: u64,
    pub(crate) last_ns: u64,
    /// Skipped events reported so far.
    pub(crate) skips: Skips,
    pub(crate) damaged: bool,
}

/// A feed of the monitor, with the state of its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedState {
    /// Index of the feed; stream numbers derive from it.
    pub(crate) number: u32,
    pub(crate) feed: Feed,
    /// One entry per CPU.
    pub(crate) progress: Vec<ReadProgress>,
}

/// Everything about a monitor except its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandoverMessage {
    pub(crate) numbering: Numbering,
    /// Number of the monitor in its program set.
    pub(crate) number: u32,
    pub(crate) moves_seen: Option<u64>,
    pub(crate) feeds: Vec<FeedState>,
    pub(crate) links: usize,
    /// Hook of each program in [`Files::writers`].
    pub(crate) writers: Vec<Hook>,
    /// Ring slot of each program in [`Files::points`].
    pub(crate) points: Vec<u32>,
    pub(crate) baseline: RecursionMisses,
    /// Message of the status.
    pub(crate) message: String,
}

/// The descriptors of a monitor, in the order of transfer.
pub(crate) struct Files<T> {
    pub(crate) shared: T,
    pub(crate) rings: T,
    pub(crate) tracked: T,
    pub(crate) cgroups: T,
    pub(crate) select: T,
    /// Ring map of each feed.
    pub(crate) buffers: Vec<T>,
    pub(crate) links: Vec<T>,
    pub(crate) writers: Vec<T>,
    pub(crate) points: Vec<T>,
}

impl<'a> Files<BorrowedFd<'a>> {
    pub(crate) fn in_order(self) -> Vec<BorrowedFd<'a>> {
        let mut all = vec![
            self.shared,
            self.rings,
            self.tracked,
            self.cgroups,
            self.select,
        ];
        all.extend(self.buffers);
        all.extend(self.links);
        all.extend(self.writers);
        all.extend(self.points);
        all
    }
}

impl Files<OwnedFd> {
    /// Assigns received descriptors to their purposes; `None` if their number differs from the
    /// message.
    pub(crate) fn sorted(files: Vec<OwnedFd>, message: &HandoverMessage) -> Option<Self> {
        let programs = message.writers.len() + message.points.len();
        let expected = FIXED_FILES + message.feeds.len() + message.links + programs;
        if files.len() != expected {
            return None;
        }
        let mut files = files.into_iter();
        let mut next = || files.next();
        let [shared, rings, tracked, cgroups, select] =
            [next()?, next()?, next()?, next()?, next()?];
        let mut several = |count| (0..count).map(|_| next()).collect::<Option<Vec<_>>>();
        Some(Self {
            shared,
            rings,
            tracked,
            cgroups,
            select,
            buffers: several(message.feeds.len())?,
            links: several(message.links)?,
            writers: several(message.writers.len())?,
            points: several(message.points.len())?,
        })
    }
}
