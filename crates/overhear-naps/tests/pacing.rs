// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of the pacer against simulated programs of any length, with any number of allocations
//! that are used at once after each protection, and with pauses.

use overhear_naps::{AllocationCounts, ProtectionPacer};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
/// CPU time over which the pacer keeps its target.
const WINDOW_NS: f64 = 500.0 * MS as f64;
/// Part of a window's budget that a new program may borrow, and part that it may have saved.
const LOAN: f64 = 1.0 / 16.0;
const SAVED: f64 = 1.0 / 4.0;
/// The most expensive piece of observing: it cannot be divided.
const PIECE_NS: u64 = 60_000;
const STEP_NS: u64 = 10 * MS;

/// A part of a program's life in which it behaves the same.
#[derive(Clone, Debug)]
struct Phase {
    length_ms: u64,
    is_busy: bool,
    /// Allocations that are used at once after each protection.
    hot: usize,
    protection_ns: u64,
    /// Large allocations per step.
    allocating: u64,
    allocation_ns: u64,
}

fn any_phase() -> impl Strategy<Value = Phase> {
    let counts = (
        50_u64..3_000,
        prop::bool::weighted(0.7),
        0_usize..2_000,
        0_u64..500,
    );
    (counts, 5_000..PIECE_NS, 4_000_u64..40_000).prop_map(
        |((length_ms, is_busy, hot, allocating), protection_ns, allocation_ns)| Phase {
            length_ms,
            is_busy,
            hot,
            protection_ns,
            allocating,
            allocation_ns,
        },
    )
}

/// Totals at the end of a step.
#[derive(Clone, Copy, Default)]
struct Totals {
    plain_ns: u64,
    spent_ns: u64,
}

/// The totals of all steps of 10 ms, each with a tick after it, as the handler makes them at first.
fn simulate(budget: f64, phases: &[Phase]) -> Vec<Totals> {
    let mut pacer = ProtectionPacer::new(budget, 0);
    let (mut now, mut it, mut steps) = (0, Totals::default(), Vec::new());
    let mut due = vec![0_u64; 2_000];
    let mut allocations = AllocationCounts::default();
    let mut gap = 0.0_f64;
    for phase in phases {
        for _ in 0..phase.length_ms * MS / STEP_NS {
            now += STEP_NS;
            if phase.is_busy {
                it.plain_ns += STEP_NS;
                let mut credit = pacer.grant().credit_ns;
                for _ in 0..phase.allocating {
                    allocations.all += 1;
                    gap -= 1.0;
                    if gap < 0.0 && credit >= phase.allocation_ns {
                        credit -= phase.allocation_ns;
                        it.spent_ns += phase.allocation_ns;
                        allocations.cost_ns += phase.allocation_ns;
                        allocations.watched += 1;
                        gap = pacer.grant().mean_gap;
                    }
                }
                for due in &mut due[..phase.hot] {
                    if *due <= now && pacer.affords(phase.protection_ns) {
                        pacer.spend(phase.protection_ns);
                        it.spent_ns += phase.protection_ns;
                        *due = now + pacer.delay_ns(phase.protection_ns, 0, 5 * MS);
                    }
                }
            }
            pacer.tick(now, it.plain_ns + it.spent_ns, allocations);
            steps.push(it);
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// A program may end after any step. What it has paid until then is at most the budget of its
    /// CPU time, a loan, what it earned while it slept, and what the caps permit before the next
    /// tick sees it: three times what is wanted, which is at most twice the target.
    #[test]
    fn cost_is_at_most_the_budget_wherever_a_program_ends(
        budget in 0.005..0.2, phases in prop::collection::vec(any_phase(), 1..8),
    ) {
        for (step, it) in simulate(budget, &phases).iter().enumerate() {
            let slept = 0.01 * ((step as u64 + 1) * STEP_NS) as f64;
            let ahead = LOAN * WINDOW_NS + 6.0 * STEP_NS as f64;
            let paid = budget * (it.plain_ns as f64 + slept + ahead);
            // Each of the two sources may have begun a piece.
            let most = paid + 2.0 * PIECE_NS as f64;
            prop_assert!(it.spent_ns as f64 <= most, "{} of {} in step {}", it.spent_ns, most, step);
        }
    }

    /// Nor does a burst after idleness.
    #[test]
    fn no_window_costs_more_than_twice_the_budget(
        budget in 0.005..0.2, phases in prop::collection::vec(any_phase(), 1..8),
    ) {
        let steps = simulate(budget, &phases);
        for (index, last) in steps.iter().enumerate() {
            let before = |it: &Totals| last.plain_ns - it.plain_ns >= WINDOW_NS as u64;
            let Some(first) = steps[..index].iter().rev().find(|it| before(it)) else {
                continue;
            };
            let spent = (last.spent_ns - first.spent_ns) as f64;
            let most = 2.0 * budget * (last.plain_ns - first.plain_ns) as f64 + 2.0 * PIECE_NS as f64;
            prop_assert!(spent <= most, "{} of {} in step {}", spent, most, index);
        }
    }

    #[test]
    fn budget_is_used_where_full_observation_costs_more(
        budget in 0.01..0.1, hot in 1_000_usize..2_000, protection_ns in 10_000_u64..40_000,
        allocating in 0_u64..500,
    ) {
        let allocation_ns = 20_000;
        let length_ms = 10_000;
        let phase = Phase {
            length_ms, is_busy: true, hot, protection_ns, allocating, allocation_ns,
        };
        let it = *simulate(budget, &[phase]).last().unwrap();
        let share = it.spent_ns as f64 / it.plain_ns as f64;
        prop_assert!(share >= (1.0 - SAVED) * budget, "{} of {}", share, budget);
    }
}
