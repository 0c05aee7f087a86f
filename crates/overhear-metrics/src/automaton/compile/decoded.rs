// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an element means to plain metrics: a range of parts, and the metrics that these concern.

/// The metrics that some elements concern.
///
/// Bits 0 to 60: one metric each; bit 61: all metrics from number 61 on; bits 62 and 63: flags of
/// the [parts](super::part::PartHot).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetricSet(u64);

impl MetricSet {
    const NONE: Self = Self(0);
    /// Flag: some parts are not [direct](super::part::PartHot::is_direct).
    pub(crate) const NOT_DIRECT: Self = Self(1 << 63);
    /// Flag: some parts are several symbols of one metric, or a fallback.
    pub(crate) const SEVERAL: Self = Self(1 << 62);

    /// The metrics with these indices.
    pub(crate) fn of(metrics: impl Iterator<Item = u32>) -> Self {
        metrics.map(Self::one).fold(Self::NONE, Self::with)
    }

    const fn one(metric: u32) -> Self {
        Self(1 << if metric < 61 { metric } else { 61 })
    }

    /// This set if the condition holds, else the empty set.
    pub(crate) const fn only_if(self, condition: bool) -> Self {
        match condition {
            true => self,
            false => Self::NONE,
        }
    }

    /// The union of two sets.
    #[inline(always)]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the metric may be in the set: from number 61 on they share a bit.
    pub(crate) const fn contains(self, metric: usize) -> bool {
        self.0 & Self::one(metric as u32).0 != 0
    }

    /// Whether all parts are [direct](super::part::PartHot::is_direct).
    pub(crate) const fn all_direct(self) -> bool {
        self.0 & Self::NOT_DIRECT.0 == 0
    }

    /// Whether each part is one symbol per metric, and none of them a fallback.
    pub(crate) const fn all_single(self) -> bool {
        self.0 & Self::SEVERAL.0 == 0
    }
}

/// What an element means to plain metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decoded {
    /// The first part id and the number of parts, which are contiguous.
    pub(crate) parts: (u32, u32),
    /// The metrics that the parts concern.
    pub(crate) metrics: MetricSet,
}

impl Decoded {
    /// The element does more than move automata of plain metrics: it takes the slow path.
    pub(crate) const SLOW_PATH: Self = Self {
        parts: (0, u32::MAX),
        metrics: MetricSet::NONE,
    };

    /// The number of parts; `u32::MAX` on the slow path, more than there can be.
    #[inline(always)]
    pub(crate) const fn count(&self) -> usize {
        self.parts.1 as usize
    }

    /// Whether the element only moves automata of plain metrics.
    #[inline(always)]
    pub(crate) const fn is_fast(&self) -> bool {
        self.parts.1 != u32::MAX
    }
}
