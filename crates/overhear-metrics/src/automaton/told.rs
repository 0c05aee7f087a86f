// SPDX-License-Identifier: MIT OR Apache-2.0
//! What elements that are looked at together have told: it is found out once for all metrics, and then each metric
//! goes [its way](super::way) through it.

use overhear_event::{ElementView, Timestamp};

use super::glance::{Concerns, Sight};

/// A part of an element says something to plain metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    /// The how many-th element it is of those that are looked at together.
    pub(super) at: u32,
    pub(super) part: u32,
}

/// So many parts of an element at most are kept without a branch.
pub(super) const SOME: usize = 3;
/// As many are if no element has had more.
pub(super) const FEW: usize = 2;

/// Keeps which parts of the how many-th element say something, from a place on: the first ones, as if there were so
/// many, and says whether there are more, which are not kept then.
#[inline(always)]
pub(super) fn say<const COUNT: usize>(
    sight: &Sight,
    at: usize,
    said: &mut [Said],
    from: usize,
) -> bool {
    for (place, part) in said[from..from + COUNT].iter_mut().zip(sight.parts.0..) {
        let at = at as u32;
        *place = Said { at, part };
    }
    sight.count() > COUNT
}

/// As [`say`], however many there are.
#[inline(never)]
pub(super) fn say_all(sight: &Sight, at: usize, said: &mut [Said], from: usize) {
    let places = &mut said[from..from + sight.count()];
    for (place, part) in places.iter_mut().zip(sight.parts.0..) {
        let at = at as u32;
        *place = Said { at, part };
    }
}

/// What an element says to plain metrics of one task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// For when.
    pub(super) time: Timestamp,
    /// Of whom.
    pub(super) slot: u32,
    /// Which part of a letter it is: there its rules are.
    pub(super) meaning: u32,
    /// The how many-th element it is of those that are looked at together.
    pub(super) at: u32,
}

/// What was told so far, in the order of the elements.
#[derive(Debug, Default)]
pub(super) struct Tale {
    /// Behind what was told there are places to spare.
    places: Vec<Told>,
    count: usize,
    is_late: bool,
}

impl Tale {
    /// Has room for so much.
    pub(super) fn reach(&mut self, most: usize) {
        // One place more is written to and does not count.
        self.places.resize(most + 1, Told::default());
    }

    /// The places that there are.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Goes on, behind what was told.
    pub(super) fn go_on(&mut self) -> Telling<'_> {
        Telling {
            places: &mut self.places,
            count: self.count,
            told: &mut self.count,
            is_late: &mut self.is_late,
        }
    }

    /// Ends the tale of these elements, of which the first has this name and which concern these metrics. From here on
    /// nothing was told.
    pub(super) fn end<'a>(
        &'a mut self,
        elements: &'a [ElementView<'a>],
        first: u64,
        concerned: Concerns,
    ) -> Passage<'a> {
        Passage {
            is_single: concerned.are_single(),
            told: &self.places[..std::mem::take(&mut self.count)],
            is_late: std::mem::take(&mut self.is_late),
            elements,
            first,
        }
    }
}

/// A tale that goes on. What was put counts once it is [kept](Telling::keep).
pub(super) struct Telling<'a> {
    places: &'a mut [Told],
    count: usize,
    told: &'a mut usize,
    is_late: &'a mut bool,
}

impl Telling<'_> {
    /// Tells something, if it counts: without a branch.
    #[inline(always)]
    pub(super) fn put(&mut self, told: Told, counts: bool) {
        self.places[self.count] = told;
        self.count += usize::from(counts);
    }

    /// What is put may be about an earlier time than that of its element.
    #[inline(always)]
    pub(super) fn may_be_late(&mut self, is_late: bool) {
        *self.is_late |= is_late;
    }

    /// That is all.
    pub(super) fn keep(self) {
        *self.told = self.count;
    }
}

/// A tale that has ended.
#[derive(Clone, Copy)]
pub(super) struct Passage<'a> {
    pub(super) told: &'a [Told],
    /// Whether some of it is about an earlier time than that of its element.
    pub(super) is_late: bool,
    /// Whether each thing told is one symbol of a metric, and none that stands in for others.
    pub(super) is_single: bool,
    /// The elements that told it, perhaps among others.
    pub(super) elements: &'a [ElementView<'a>],
    /// What names the first of the elements.
    pub(super) first: u64,
}

impl<'a> Passage<'a> {
    /// Which element told this.
    #[inline(always)]
    pub(super) fn element(&self, told: &Told) -> &'a ElementView<'a> {
        &self.elements[told.at as usize]
    }

    /// What names that.
    #[inline(always)]
    pub(super) const fn ordinal(&self, told: &Told) -> u64 {
        self.first + told.at as u64
    }
}
