// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the calling thread.

use std::marker::PhantomData;

use super::page::{self, EventPage};
use super::{
    CounterError, CounterEvent, CounterGroup, CounterOptions, CounterTarget, CountersLost,
};
use crate::{DataSource, Quantity};

/// A group that counts the calling thread, and that this thread alone can read.
///
/// Where all counters can be read by `rdpmc`, a read enters the kernel only if the kernel has taken
/// the counters away. Otherwise each read is one system call.
#[derive(Debug)]
pub struct ThreadCounters {
    group: CounterGroup,
    // One per counter, or none: then the group is read by a system call.
    pages: Vec<EventPage>,
    // `rdpmc` reads the counters of the thread that executes it.
    not_send: PhantomData<*const ()>,
}

impl ThreadCounters {
    /// Opens the group for the calling thread, and starts it.
    ///
    /// # Errors
    /// As [`CounterGroup::open`].
    pub fn open(events: &[CounterEvent], options: CounterOptions) -> Result<Self, CounterError> {
        let group = CounterGroup::open(events, CounterTarget::CallingThread, options)?;
        let pages = if page::is_supported() && !options.inherit && !options.on_exec {
            let pages = group.descriptors().map(EventPage::map);
            let pages: Result<Vec<_>, _> = pages.collect();
            // Without the pages (a limit of locked memory), one system call is right, too.
            let pages = pages.unwrap_or_default();
            match pages.iter().all(EventPage::is_readable) {
                true => pages,
                false => Vec::new(),
            }
        } else {
            Vec::new()
        };
        Ok(Self {
            group,
            pages,
            not_send: PhantomData,
        })
    }

    /// Whether counters are read without a system call.
    #[must_use]
    pub fn uses_rdpmc(&self) -> bool {
        !self.pages.is_empty()
    }

    /// The quantities, in the order of the list.
    #[must_use]
    pub fn quantities(&self) -> &[Quantity] {
        self.group.quantities()
    }

    /// See [`CounterGroup::excludes_kernel`].
    #[must_use]
    pub const fn excludes_kernel(&self) -> bool {
        self.group.excludes_kernel()
    }

    /// Reads the totals. No allocation, no lock; at most one system call.
    ///
    /// # Errors
    /// [`CountersLost`].
    ///
    /// # Panics
    /// If `totals` has another length than the group.
    #[inline]
    pub fn read(&mut self, totals: &mut [u64]) -> Result<(), CountersLost> {
        if self.pages.is_empty() {
            return self.group.read(totals);
        }
        assert_eq!(totals.len(), self.pages.len(), "one word for each counter");
        for (total, page) in totals.iter_mut().zip(&self.pages) {
            match page.read() {
                Some(counted) => *total = counted,
                None => return self.group.read(totals),
            }
        }
        Ok(())
    }

    /// Makes the value harmless in the child of a `fork`: later reads are system calls, and read
    /// the parent's counters. Async-signal-safe.
    ///
    /// # Safety
    /// Only in a child process, between `fork` and the next memory map of the child.
    pub unsafe fn make_private(&self) {
        for page in &self.pages {
            // SAFETY: the contract is the caller's.
            unsafe { page.make_private() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadCounters;
    use crate::counters::{CounterError, CounterEvent, CounterOptions};

    #[test]
    fn software_events_are_read_by_a_system_call() {
        let events = CounterEvent::parse_list("task-clock,context-switches").unwrap();
        let mut counters = ThreadCounters::open(&events, CounterOptions::default()).unwrap();
        assert!(!counters.uses_rdpmc());
        let mut totals = [0; 2];
        counters.read(&mut totals).unwrap();
        assert!(totals[0] > 0);
    }

    #[test]
    fn rdpmc_and_read_agree() {
        let events = CounterEvent::parse_list("instructions:u").unwrap();
        let mut counters = match ThreadCounters::open(&events, CounterOptions::default()) {
            Ok(counters) => counters,
            Err(CounterError::Unsupported { .. }) => {
                println!("skipped: this machine has no hardware counters");
                return;
            }
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        if !counters.uses_rdpmc() {
            println!("skipped: the kernel does not permit rdpmc");
            return;
        }
        let (mut first, mut by_kernel, mut last) = ([0], [0], [0]);
        counters.read(&mut first).unwrap();
        counters.group.read(&mut by_kernel).unwrap();
        counters.read(&mut last).unwrap();
        assert!(first <= by_kernel && by_kernel <= last);
        assert!(first < last);
    }
}
