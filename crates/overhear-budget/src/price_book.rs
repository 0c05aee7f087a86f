// SPDX-License-Identifier: MIT OR Apache-2.0
//! Price books: what earlier runs of the same binary measured.

use std::collections::BTreeMap;

use crate::EventPrice;

/// Prices by key, for example a function of one build. Measurements of one key are merged by
/// inverse variance, so a book may collect any number of runs in constant memory.
///
/// A book is the prior of the next run: [`crate::PricePool`] trusts it more than the pooled price.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriceBook(BTreeMap<Box<str>, EventPrice>);

impl PriceBook {
    /// An empty book.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Merges one measurement into the price of `key`.
    pub fn record(&mut self, key: &str, measured: EventPrice) {
        match self.0.get_mut(key) {
            Some(known) => *known = known.merged_with(measured),
            None => {
                self.0.insert(key.into(), measured);
            }
        }
    }

    /// Merges the measurements of another book, for example of another run.
    pub fn merge(&mut self, other: &Self) {
        for (key, &price) in &other.0 {
            self.record(key, price);
        }
    }

    /// The price of `key`, if an earlier run measured it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<EventPrice> {
        self.0.get(key).copied()
    }

    /// All prices in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, EventPrice)> {
        self.0.iter().map(|(key, &price)| (&**key, price))
    }
}

#[cfg(test)]
mod tests {
    use super::PriceBook;
    use crate::EventPrice;

    #[test]
    fn books_of_runs_are_merged_by_key() {
        let price = |ns, error| EventPrice::from_ns(ns, error).unwrap();
        let mut book = PriceBook::new();
        book.record("sort", price(1.0, 0.1));
        let mut run = PriceBook::new();
        run.record("sort", price(2.0, 0.1));
        run.record("copy", price(5.0, 0.2));
        book.merge(&run);
        assert!((book.get("sort").unwrap().as_ns() - 1.5).abs() < 1e-12);
        assert_eq!(book.get("copy"), Some(price(5.0, 0.2)));
        assert_eq!(book.get("other"), None);
        assert_eq!(
            book.iter().map(|(key, _)| key).collect::<Vec<_>>(),
            ["copy", "sort"]
        );
    }
}
