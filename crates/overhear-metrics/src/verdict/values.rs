// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on numbers: bounds, quantiles, spreads.

use super::groups::{Groups, Hit};
use super::offence::{Offence, OffenceKind};
use super::tally::{Excuse, Tally};

/// A number with its time and position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Valued {
    pub(super) value: f64,
    pub(super) begin: Hit,
    /// End of the measurement; for a field, the element itself.
    pub(super) end: Hit,
    pub(super) excuse: Excuse,
}

impl Valued {
    fn offence(&self, kind: OffenceKind) -> Offence {
        let end = (self.end.position != self.begin.position).then_some(self.end.position);
        Offence {
            kind,
            begin: self.begin.time,
            end: self.end.time,
            task: self.begin.task,
            elements: [Some(self.begin.position), end],
        }
    }
}

/// `min <= value <= max`. NaN is between no bounds.
pub(super) fn judge_bounds(min: Option<f64>, max: Option<f64>, valued: &Valued, tally: &mut Tally) {
    tally.judged += 1;
    let value = valued.value;
    let kind = match (min, max) {
        _ if value.is_nan() => OffenceKind::NotANumber,
        (_, Some(bound)) if value > bound => OffenceKind::Above { value, bound },
        (Some(bound), _) if value < bound => OffenceKind::Below { value, bound },
        _ => return,
    };
    tally.offend(valued.offence(kind), valued.excuse);
}

#[derive(Debug, Default)]
pub(super) struct QuantileGroup {
    count: u64,
    within: u64,
    first_above: Option<Offence>,
}

/// The values of each group, counted on both sides of the bound: the quantile is at most the bound
/// if and only if at least that fraction of the values is.
#[derive(Debug, Default)]
pub(super) struct Quantiles(Groups<QuantileGroup>);

impl Quantiles {
    pub(super) fn take(&mut self, bound: f64, valued: &Valued, tally: &mut Tally) {
        tally.judged += 1;
        let Some(group) = self.0.of(&valued.begin, tally) else {
            return;
        };
        group.count += 1;
        if valued.value <= bound {
            group.within += 1;
        } else if group.first_above.is_none() {
            let value = valued.value;
            group.first_above = Some(valued.offence(OffenceKind::Above { value, bound }));
        }
    }

    /// Decides at the end of the observation. `unknown` is the largest number of values that were
    /// missed, `None` if that is not known: a group offends if no missed values could change the
    /// result.
    pub(super) fn decide(
        &mut self,
        fraction: f64,
        bound: f64,
        unknown: Option<u64>,
        tally: &mut Tally,
    ) {
        self.0.each(None, |group| {
            let Some(offence) = group.first_above else {
                return;
            };
            let Some(unknown) = unknown else { return };
            let (count, within) = (group.count + unknown, group.within + unknown);
            // A product that is whole in theory may be slightly larger.
            let needed = (fraction * count as f64 * (1.0 - 1e-12)).ceil() as u64;
            if within < needed {
                let kind = OffenceKind::Fraction {
                    above: group.count - group.within,
                    of: group.count,
                    bound,
                };
                tally.offend(Offence { kind, ..offence }, Excuse::None);
            }
        });
    }
}

#[derive(Debug, Default)]
pub(super) struct SpreadGroup {
    ends: Option<(Valued, Valued)>,
}

/// The smallest and the largest value of each group.
#[derive(Debug, Default)]
pub(super) struct Spreads(Groups<SpreadGroup>);

impl Spreads {
    pub(super) fn take(&mut self, bound: f64, valued: &Valued, tally: &mut Tally) {
        tally.judged += 1;
        let value = valued.value;
        if value.is_nan() {
            tally.offend(valued.offence(OffenceKind::NotANumber), valued.excuse);
            return;
        }
        let Some(group) = self.0.of(&valued.begin, tally) else {
            return;
        };
        let (mut least, mut most) = group.ends.unwrap_or((*valued, *valued));
        if value < least.value {
            least = *valued;
        }
        if value > most.value {
            most = *valued;
        }
        group.ends = Some((least, most));
        // The value is a new minimum or maximum, or it lies between them and offends with neither.
        let other = match value {
            value if value - least.value > bound => least,
            value if most.value - value > bound => most,
            _ => return,
        };
        let offence = Offence {
            kind: OffenceKind::Spread {
                least: value.min(other.value),
                most: value.max(other.value),
                bound,
            },
            begin: other.begin.time,
            end: valued.end.time,
            task: valued.begin.task,
            elements: [Some(other.begin.position), Some(valued.begin.position)],
        };
        tally.offend(offence, valued.excuse.with(other.excuse));
    }

    /// Elements were missed during this measurement: it is no minimum or maximum any more, and only
    /// the other one is certain.
    pub(super) fn retract(&mut self, number: u64) {
        let is_doubted = |end: &Valued| end.excuse == Excuse::Measurement(number);
        self.0.each(None, |group| {
            group.ends = match group.ends {
                Some((least, most)) if is_doubted(&least) => Some((most, most)),
                Some((least, most)) if is_doubted(&most) => Some((least, least)),
                ends => ends,
            };
            group.ends = group.ends.filter(|(end, _)| !is_doubted(end));
        });
    }
}
