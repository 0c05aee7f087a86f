// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of the calling thread.

use std::marker::PhantomData;
use std::sync::Arc;

use super::page::{self, CounterPages};
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
    pages: Arc<CounterPages>,
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
        let pages = match page::is_supported() && !options.inherit && !options.on_exec {
            true => CounterPages::map(group.descriptors()),
            false => CounterPages::none(),
        };
        Ok(Self {
            group,
            pages: Arc::new(pages),
            not_send: PhantomData,
        })
    }

    /// Whether counters are read without a system call.
    #[must_use]
    pub fn uses_rdpmc(&self) -> bool {
        self.pages.are_readable()
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
        if self.pages.read(totals) {
            return Ok(());
        }
        self.group.read(totals)
    }

    /// The mapped pages, which the child of a `fork` must retire.
    #[must_use]
    pub fn pages(&self) -> &Arc<CounterPages> {
        &self.pages
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
