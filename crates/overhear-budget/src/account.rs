// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost accounts: count x price, for each source and thread.
//!
//! An account keeps counts, not money. A better measurement of the price re-evaluates everything
//! that was spent since the price itself last changed; a change of the price (another machine
//! speed, another clock frequency) closes that period at its own price.

use crate::EventPrice;

/// Key of a thread in an account, chosen by the caller. A thread id may be used again: then the
/// caller gives the new thread another key, or ends the old one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadKey(u64);

impl ThreadKey {
    /// The key of counts that belong to no particular thread.
    pub const PROCESS: Self = Self(0);

    /// The key `raw`.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number of the key.
    #[must_use]
    pub const fn as_raw(self) -> u64 {
        self.0
    }
}

/// Events of one thread, priced in periods.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Events so far.
    count: u64,
    /// Part of `count` before the last change of the price.
    closed_count: u64,
    /// Cost of `closed_count` in ns, and its standard error.
    closed_ns: f64,
    closed_error_ns: f64,
}

impl Tally {
    fn cost_ns(&self, price: EventPrice) -> f64 {
        self.closed_ns + (self.count - self.closed_count) as f64 * price.as_ns()
    }

    /// All events of a period have the same error of the price; periods are independent.
    fn error_ns(&self, price: EventPrice) -> f64 {
        let open = (self.count - self.closed_count) as f64 * price.error_ns();
        (self.closed_error_ns * self.closed_error_ns + open * open).sqrt()
    }

    fn close(&mut self, price: EventPrice) {
        (self.closed_ns, self.closed_error_ns) = (self.cost_ns(price), self.error_ns(price));
        self.closed_count = self.count;
    }

    /// Adds the events and costs of a thread that has ended.
    fn absorb(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.closed_count = self.closed_count.saturating_add(other.closed_count);
        self.closed_ns += other.closed_ns;
        // The threads of a source share its price, so their errors are not independent.
        self.closed_error_ns += other.closed_error_ns;
    }
}

/// Events and units of one thread as last reported.
#[derive(Clone, Copy, Debug)]
struct ThreadTally {
    thread: ThreadKey,
    tally: Tally,
    units_on: u64,
    units_all: u64,
}

/// What a thread reported since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) count: u64,
    pub(crate) units_on: u64,
    pub(crate) units_all: u64,
}

/// The account of one source.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    price: EventPrice,
    /// Sorted by key.
    threads: Vec<ThreadTally>,
    /// Threads that have ended.
    ended: Tally,
}

impl Account {
    pub(crate) fn new(price: EventPrice) -> Self {
        Self {
            price,
            threads: Vec::new(),
            ended: Tally::default(),
        }
    }

    pub(crate) fn price(&self) -> EventPrice {
        self.price
    }

    fn find(&self, thread: ThreadKey) -> Result<usize, usize> {
        self.threads.binary_search_by_key(&thread, |it| it.thread)
    }

    /// The totals of a thread as last reported: count, units on, all units.
    pub(crate) fn reported(&self, thread: ThreadKey) -> Reported {
        self.find(thread).map_or_else(
            |_| Reported::default(),
            |at| {
                let it = &self.threads[at];
                Reported {
                    count: it.tally.count,
                    units_on: it.units_on,
                    units_all: it.units_all,
                }
            },
        )
    }

    /// Replaces the totals of a thread, and returns by what they grew. Totals never fall: the
    /// caller has checked it.
    pub(crate) fn report(&mut self, thread: ThreadKey, total: Reported) -> Reported {
        let at = self.find(thread).unwrap_or_else(|at| {
            let tally = Tally::default();
            let fresh = ThreadTally {
                thread,
                tally,
                units_on: 0,
                units_all: 0,
            };
            self.threads.insert(at, fresh);
            at
        });
        let it = &mut self.threads[at];
        let grown = Reported {
            count: total.count - it.tally.count,
            units_on: total.units_on - it.units_on,
            units_all: total.units_all - it.units_all,
        };
        it.tally.count = total.count;
        (it.units_on, it.units_all) = (total.units_on, total.units_all);
        grown
    }

    /// Moves the events of a thread to those of ended threads, so that its key is free again.
    pub(crate) fn end_thread(&mut self, thread: ThreadKey) {
        if let Ok(at) = self.find(thread) {
            let it = self.threads.remove(at);
            self.ended.absorb(&it.tally);
        }
    }

    /// A better measurement of the same price: the period since the last change is re-evaluated.
    pub(crate) fn refine(&mut self, price: EventPrice) {
        self.price = price;
    }

    /// Another price from now on.
    pub(crate) fn change(&mut self, price: EventPrice) {
        for it in &mut self.threads {
            it.tally.close(self.price);
        }
        self.ended.close(self.price);
        self.price = price;
    }

    fn tallies(&self) -> impl Iterator<Item = &Tally> {
        self.threads.iter().map(|it| &it.tally).chain([&self.ended])
    }

    pub(crate) fn count(&self) -> u64 {
        let counts = self.tallies().map(|it| it.count);
        counts.fold(0, u64::saturating_add)
    }

    pub(crate) fn cost_ns(&self) -> f64 {
        self.tallies().map(|it| it.cost_ns(self.price)).sum()
    }

    /// Standard error of [`Self::cost_ns`]: threads share the price, so their errors add up.
    pub(crate) fn error_ns(&self) -> f64 {
        self.tallies().map(|it| it.error_ns(self.price)).sum()
    }

    /// Thread, count and cost of every thread that has not ended.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (ThreadKey, u64, f64)> + '_ {
        let row = |it: &ThreadTally| (it.thread, it.tally.count, it.tally.cost_ns(self.price));
        self.threads.iter().map(row)
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Reported, ThreadKey};
    use crate::EventPrice;

    fn price(ns: f64) -> EventPrice {
        EventPrice::from_ns(ns, 0.1 * ns).unwrap()
    }

    fn count(count: u64) -> Reported {
        Reported {
            count,
            ..Reported::default()
        }
    }

    #[test]
    fn refined_price_re_evaluates_and_changed_price_does_not() {
        let [a, b] = [1, 2].map(ThreadKey::from_raw);
        let mut account = Account::new(price(10.0));
        account.report(a, count(100));
        account.report(b, count(50));
        assert_eq!(account.cost_ns(), 1500.0);
        account.refine(price(20.0));
        assert_eq!((account.cost_ns(), account.error_ns()), (3000.0, 300.0));
        account.change(price(60.0));
        assert_eq!(account.cost_ns(), 3000.0);
        account.report(a, count(110));
        assert_eq!(account.cost_ns(), 3600.0);
        account.refine(price(30.0));
        assert_eq!(account.cost_ns(), 3300.0);
    }

    #[test]
    fn ended_thread_stays_in_the_sum_and_frees_its_key() {
        let thread = ThreadKey::from_raw(7);
        let mut account = Account::new(price(10.0));
        assert_eq!(account.report(thread, count(100)), count(100));
        account.end_thread(thread);
        assert_eq!((account.count(), account.threads().count()), (100, 0));
        assert_eq!(account.report(thread, count(5)), count(5));
        account.change(price(20.0));
        account.report(thread, count(6));
        account.end_thread(thread);
        assert_eq!((account.count(), account.cost_ns()), (106, 1070.0));
    }
}
