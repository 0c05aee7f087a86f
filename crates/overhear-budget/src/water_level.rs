// SPDX-License-Identifier: MIT OR Apache-2.0
//! Water filling: one budget divided among demands, exactly.
//!
//! A basin j has the demand o_j (its cost per CPU time while it is on), the slope s_j and the floor
//! phi_j. At the level x it is on for the share `pi_j(x) = min(1, max(phi_j, s_j x))` of the units.
//! With the slope w_j / o_j every basin below its demand receives the same cost w_j x. The level
//! solves `sum o_j pi_j(x) = want`.

/// One source as the filling sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Basin {
    /// o: cost per CPU time while the source is on. Finite, at least 0.
    pub(crate) demand: f64,
    /// phi: least share of units, from 0 to 1.
    pub(crate) floor: f64,
    /// s: share of units per level. Infinite without a demand. Slopes up to [`FLAT`] do not rise
    /// at any finite level.
    pub(crate) slope: f64,
}

/// Largest slope of a basin that keeps its floor until everything else is full.
pub(crate) const FLAT: f64 = f64::MIN_POSITIVE;

impl Basin {
    /// pi at the level x.
    pub(crate) fn share(self, level: f64) -> f64 {
        // The slope may be infinite (no demand): such a basin is full at every level, also at 0.
        if self.slope == f64::INFINITY {
            return 1.0;
        }
        // 0 x infinity is not a number, and `max` takes the floor then.
        (self.slope * level).max(self.floor).min(1.0)
    }
}

/// The level at which the basins cost `want` together; infinite if they cost less when all are
/// full; 0 if the floors alone cost at least `want`.
///
/// The sum grows in straight lines between the levels where a basin leaves its floor (phi / s) and
/// where it is full (1 / s). The levels are sorted and walked through once: O(n log n). `scratch`
/// is memory that is kept between calls.
pub(crate) fn level(basins: &[Basin], want: f64, scratch: &mut Vec<(f64, f64)>) -> f64 {
    scratch.clear();
    let mut sum = 0.0;
    for basin in basins {
        if basin.demand <= 0.0 || basin.slope == f64::INFINITY {
            sum += basin.demand.max(0.0);
            continue;
        }
        sum += basin.demand * basin.floor;
        if basin.floor < 1.0 && basin.slope > FLAT {
            let gain = basin.demand * basin.slope;
            scratch.push((basin.floor / basin.slope, gain));
            scratch.push((1.0 / basin.slope, -gain));
        }
    }
    if sum >= want {
        return if scratch.is_empty() && sum <= want {
            f64::INFINITY
        } else {
            0.0
        };
    }
    scratch.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut at, mut gain) = (0.0, 0.0);
    for &(next, change) in &*scratch {
        let reached = sum + gain * (next - at);
        if reached >= want && gain > 0.0 {
            return at + (want - sum) / gain;
        }
        (sum, at) = (reached, next);
        gain += change;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, proptest, Strategy};

    use super::{level, Basin, FLAT};

    fn cost(basins: &[Basin], x: f64) -> f64 {
        basins.iter().map(|b| b.demand * b.share(x)).sum()
    }

    fn basin(demand: f64, weight: f64, floor: f64) -> Basin {
        Basin {
            demand,
            floor,
            slope: weight / demand,
        }
    }

    #[test]
    fn equal_weights_get_equal_costs_below_their_demands() {
        let basins = [0.01, 0.2, 0.5].map(|o| basin(o, 1.0, 0.0));
        let x = level(&basins, 0.11, &mut Vec::new());
        let costs = basins.map(|b| b.demand * b.share(x));
        for (cost, expected) in costs.iter().zip([0.01, 0.05, 0.05]) {
            assert!((cost - expected).abs() < 1e-12, "{costs:?}");
        }
    }

    #[test]
    fn all_is_on_if_it_costs_less() {
        let basins = [0.01, 0.02].map(|o| basin(o, 1.0, 0.0));
        assert_eq!(level(&basins, 0.05, &mut Vec::new()), f64::INFINITY);
        assert_eq!(level(&[], 0.05, &mut Vec::new()), f64::INFINITY);
        assert_eq!(basins[0].share(f64::INFINITY), 1.0);
    }

    #[test]
    fn floors_above_the_budget_leave_nothing_to_divide() {
        let basins = [basin(0.2, 1.0, 0.5), basin(0.2, 1.0, 0.0)];
        let x = level(&basins, 0.05, &mut Vec::new());
        assert_eq!((basins[0].share(x), basins[1].share(x)), (0.5, 0.0));
    }

    #[test]
    fn flat_basins_keep_their_floor_until_everything_is_full() {
        let flat = |slope| Basin {
            demand: 0.1,
            floor: 0.25,
            slope,
        };
        let basins = [basin(0.2, 1.0, 0.0), flat(FLAT), flat(0.0)];
        let x = level(&basins, 0.1, &mut Vec::new());
        assert!((x - 0.05).abs() < 1e-12, "{x}");
        assert_eq!([1, 2].map(|at: usize| basins[at].share(x)), [0.25, 0.25]);
        let x = level(&basins, 1.0, &mut Vec::new());
        assert_eq!(
            [0, 1, 2].map(|at: usize| basins[at].share(x)),
            [1.0, 1.0, 0.25]
        );
    }

    fn any_basin() -> impl Strategy<Value = Basin> {
        (-6.0..0.5, 0.01..100.0, prop::option::of(0.0..1.0))
            .prop_map(|(log, weight, floor)| basin(10_f64.powf(log), weight, floor.unwrap_or(0.0)))
    }

    proptest! {
        /// The reference is bisection of the definition.
        #[test]
        fn level_solves_its_equation(
            basins in prop::collection::vec(any_basin(), 1..50), want in 1e-6..3.0,
        ) {
            let x = level(&basins, want, &mut Vec::new());
            if cost(&basins, f64::INFINITY) <= want {
                prop_assert!(x == f64::INFINITY || (cost(&basins, x) - want).abs() < 1e-9 * want);
            } else if cost(&basins, 0.0) >= want {
                prop_assert!(x == 0.0);
            } else {
                prop_assert!((cost(&basins, x) - want).abs() < 1e-9 * want);
                let (mut low, mut high) = (0.0, 1e9);
                for _ in 0..200 {
                    let mid = 0.5 * (low + high);
                    if cost(&basins, mid) < want { low = mid } else { high = mid }
                }
                for b in &basins {
                    prop_assert!((b.share(x) - b.share(low)).abs() < 1e-6);
                }
            }
        }
    }
}
