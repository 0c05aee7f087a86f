// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources: what a budget can switch, and what it must know of each.

use std::fmt;

use overhear_event::Nanos;

use crate::{EventPrice, Overhead};

/// Handle of a source in one [`crate::Budget`].
///
/// The generation distinguishes a removed source from one that took its index later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SourceId {
    /// Index of the source, below the largest number of sources that the budget had at one time.
    /// A removed source's index is used again.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// How a source is switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Actuator {
    /// The source can be on for a fraction of its units. An actuator in the program draws the
    /// units itself, from [`crate::SourceSetting::share`], and reports them as
    /// [`crate::UnitCount`]; another one follows [`crate::SourceSetting::is_on`] from tick to tick.
    #[default]
    Share,
    /// The source is switched at ticks, and stays as it is for at least `dwell`: for example a
    /// probe, whose attachment is expensive.
    ///
    /// A dwell is one piece: a window keeps its bound only if the cost of one dwell fits into it.
    Switch {
        /// Least time between two decisions.
        dwell: Nanos,
    },
}

impl Actuator {
    pub(crate) const fn dwell(self) -> Nanos {
        match self {
            Self::Share => Nanos::ZERO,
            Self::Switch { dwell } => dwell,
        }
    }
}

/// A source that observes: name, price, and how it takes part in the budget.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceSpec {
    pub(crate) name: Box<str>,
    pub(crate) price: EventPrice,
    pub(crate) weight: f64,
    pub(crate) floor: Overhead,
    pub(crate) is_always_on: bool,
    pub(crate) saves_for_phases: bool,
    pub(crate) actuator: Actuator,
    pub(crate) requires: Vec<SourceId>,
}

impl SourceSpec {
    /// A source with weight 1, without floor, switched by share. `price` is calibrated, from a
    /// price book, or a first guess.
    #[must_use]
    pub fn new(name: &str, price: EventPrice) -> Self {
        Self {
            name: name.into(),
            price,
            weight: 1.0,
            floor: Overhead::from_overhead(0.0).expect("zero is an overhead"),
            is_always_on: false,
            saves_for_phases: false,
            actuator: Actuator::Share,
            requires: Vec::new(),
        }
    }

    /// Weight in the division of the budget: sources that do not get their demand receive costs
    /// in the proportion of their weights.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = weight;
        self
    }

    /// Overhead that the source may cause in any case, also while the budget is in debt. It is
    /// paid before the rest is divided.
    #[must_use]
    pub fn floor(mut self, floor: Overhead) -> Self {
        self.floor = floor;
        self
    }

    /// The source is never switched off. Its cost is paid first.
    #[must_use]
    pub fn always_on(mut self) -> Self {
        self.is_always_on = true;
        self
    }

    /// The source works in phases that are shorter than a window, and may spend in one tick what it
    /// saved before. Several such sources may spend together: for some ticks their sum can exceed
    /// what the budget has saved.
    #[must_use]
    pub fn saves_for_phases(mut self) -> Self {
        self.saves_for_phases = true;
        self
    }

    /// Whether the source is never switched off.
    #[must_use]
    pub const fn is_always_on(&self) -> bool {
        self.is_always_on
    }

    /// How the source is switched.
    #[must_use]
    pub fn actuator(mut self, actuator: Actuator) -> Self {
        self.actuator = actuator;
        self
    }

    /// Events of this source are useless without those of `other`: a function's return without
    /// its entry, a free without its allocation. This source is on only while `other` is.
    #[must_use]
    pub fn requires(mut self, other: SourceId) -> Self {
        self.requires.push(other);
        self
    }
}

/// The reason why a budget does not accept a source.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AddSourceError {
    /// The weight is not a positive number.
    #[error("source {name}: the weight is {weight}; give a finite number above 0")]
    Weight {
        /// Name of the source.
        name: Box<str>,
        /// The weight as given.
        weight: f64,
    },
    /// The floors of all sources exceed the target.
    #[error(
        "source {name}: with its floor, the floors of all sources are {floors_percent} % together, \
         above the target of {target_percent} %; lower a floor or raise the target"
    )]
    FloorsAboveTarget {
        /// Name of the source.
        name: Box<str>,
        /// Sum of all floors, in per cent.
        floors_percent: f64,
        /// Target, in per cent.
        target_percent: f64,
    },
    /// A required source is not in the budget.
    #[error("source {name} requires source {required}, which is not in the budget; add it first")]
    UnknownRequirement {
        /// Name of the source.
        name: Box<str>,
        /// Handle of the required source.
        required: SourceId,
    },
    /// A source that is always on requires one that is switched.
    #[error(
        "source {name} is always on but requires {required}, which is switched; make {required} \
         always on, too"
    )]
    AlwaysOnRequiresSwitched {
        /// Name of the source.
        name: Box<str>,
        /// Name of the required source.
        required: Box<str>,
    },
}
