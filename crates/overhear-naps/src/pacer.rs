// SPDX-License-Identifier: MIT OR Apache-2.0
//! When an allocation is watched, and when it is protected again.
//!
//! The account is a [`Budget`] with two sources, whose events are nanoseconds: *protections* (a
//! protection and the access that ends it) and *allocations* (a stack and pages of their own). The
//! budget divides what the target permits between the two. What the handler does besides is the own
//! cost of control.
//!
//! Among allocations, the share of the protections is divided by the secondary controller of the
//! paper [SMCO, section 2.3.2]: after an access that took `p` to handle, and `tau` after the start
//! of its protection, an allocation is protected again after `d = p / m_lt - (tau + p)`. So each
//! one that is accessed at once after every protection costs the same share `m_lt` of the time. The
//! paper adjusts `m_lt` by a primary controller, which is unstable with many sources, because its
//! gain does not depend on their number. Here `m_lt` follows from the share of protections that the
//! budget permits; it has no gain.

use overhear_budget::smco::SecondaryController;
use overhear_budget::{
    Budget, EventPrice, Overhead, SourceCount, SourceId, SourceSpec, ThreadKey, TickInput,
    UnitCount,
};
use overhear_event::{Nanos, Timestamp};

/// Longest delay: an hour.
const MAX_DELAY_NS: u64 = 3_600_000_000_000;
/// CPU time over which the target is kept. Shorter than the default: programs of less than a second
/// are to stay within it, too.
const WINDOW: Nanos = Nanos::from_ms(500);
/// A program that sleeps is taken to use this share of a processor. Without it, nothing would
/// be protected again after a program fell asleep.
const LEAST_CPU_SHARE: f64 = 0.01;
/// Relative standard error of costs: prices of faults and pages are calibrated, not measured one by
/// one.
const COST_ERROR: f64 = 0.2;
/// Parts of a possible protection, so that parts are counted, too.
const PARTS: f64 = 1024.0;
/// Part of its largest surplus from which an account counts as full.
const FULL: f64 = 0.9;
/// Weight of a new cost in the mean cost of a protection.
const MEAN_STEP: f64 = 1.0 / 16.0;

/// What hooks of the program did since the start, as totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCounts {
    /// Nanoseconds that watching took.
    pub cost_ns: u64,
    /// Watched allocations.
    pub watched: u64,
    /// All allocations of at least the least size.
    pub all: u64,
}

/// What hooks may do until the next tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationGrant {
    /// Nanoseconds that may be spent.
    pub credit_ns: u64,
    /// Mean number of allocations between two watched ones.
    pub mean_gap: f64,
}

/// The account of one process and the level of its controllers.
#[derive(Clone, Debug)]
pub struct ProtectionPacer {
    /// None: the target is 0, so nothing is protected.
    sources: Option<Sources>,
    grant: AllocationGrant,
    /// Protections may spend this much until the next tick.
    cap_ns: u64,
    is_full: bool,
    /// m_lt, a share of the time.
    level: f64,
    mean_cost_ns: f64,
    mean_least_ns: f64,
    own_ns: u64,
    protections_ns: u64,
    /// Protections that were made and that were possible, in parts.
    made: u64,
    possible: f64,
    time_ns: u64,
    cpu_ns: u64,
    /// CPU time of the account: of the process, or the least share of a processor.
    paid_ns: u64,
}

#[derive(Clone, Debug)]
struct Sources {
    budget: Budget,
    protections: SourceId,
    allocations: SourceId,
    full_ns: f64,
}

impl Sources {
    fn new(target: f64) -> Option<Self> {
        let target = Overhead::from_overhead(target).ok()?;
        let mut budget = Budget::new(target, WINDOW).ok()?;
        let price = EventPrice::from_ns(1.0, COST_ERROR).ok()?;
        let protections = budget.add(SourceSpec::new("protections", price)).ok()?;
        let allocations = budget.add(SourceSpec::new("allocations", price)).ok()?;
        let m = target.monitoring_share();
        (m > 0.0).then_some(Self {
            budget,
            protections,
            allocations,
            full_ns: FULL * 0.25 * (1.0 - 0.5 * m) * m * WINDOW.as_ns() as f64,
        })
    }
}

impl ProtectionPacer {
    /// For this target (`0.05`), from this time on, without CPU time so far. A target that is not a
    /// positive number affords nothing.
    #[must_use]
    pub fn new(target: f64, time_ns: u64) -> Self {
        let mut pacer = Self {
            sources: Sources::new(target),
            grant: AllocationGrant {
                credit_ns: 0,
                mean_gap: 0.0,
            },
            cap_ns: 0,
            is_full: false,
            level: 1.0,
            mean_cost_ns: 0.0,
            mean_least_ns: 0.0,
            own_ns: 0,
            protections_ns: 0,
            made: 0,
            possible: 0.0,
            time_ns,
            cpu_ns: 0,
            paid_ns: 0,
        };
        pacer.tick(time_ns, 0, AllocationCounts::default());
        pacer
    }

    /// Charges what the handler did for no protection in particular.
    pub fn spend_own(&mut self, cost_ns: u64) {
        self.own_ns += cost_ns;
    }

    /// Charges a part of a protection, or of the access that ended it.
    pub fn spend(&mut self, cost_ns: u64) {
        self.protections_ns += cost_ns;
        self.cap_ns = self.cap_ns.saturating_sub(cost_ns);
    }

    /// Whether a protection that costs this much may be made now. One that costs more than ever may
    /// be spent between two ticks is made on credit, from a full account.
    pub fn affords(&mut self, cost_ns: u64) -> bool {
        let is_affordable = self.cap_ns >= cost_ns || self.is_full;
        if self.cap_ns < cost_ns {
            self.is_full = false;
        }
        is_affordable
    }

    /// What hooks may do until the next tick.
    #[must_use]
    pub const fn grant(&self) -> AllocationGrant {
        self.grant
    }

    /// Sum of all costs but those of allocations.
    #[must_use]
    pub const fn spent_ns(&self) -> u64 {
        self.own_ns + self.protections_ns
    }

    /// Books what was done since the last tick, and decides what may be done until the next one.
    /// `cpu_ns` is the CPU time of the process with all costs.
    pub fn tick(&mut self, time_ns: u64, cpu_ns: u64, allocations: AllocationCounts) {
        let time = time_ns.saturating_sub(self.time_ns);
        let cpu = cpu_ns.saturating_sub(self.cpu_ns);
        (self.time_ns, self.cpu_ns) = (time_ns.max(self.time_ns), cpu_ns.max(self.cpu_ns));
        self.paid_ns += cpu.max((time as f64 * LEAST_CPU_SHARE) as u64);
        let Some(sources) = &mut self.sources else {
            return;
        };
        let count = |source, events, on: u64, all: u64| SourceCount {
            source,
            thread: ThreadKey::PROCESS,
            events,
            units: Some(UnitCount {
                on,
                all: all.max(on),
            }),
            is_capped: false,
        };
        let outcome = sources.budget.tick(&TickInput {
            now: Timestamp::from_monotonic_ns(self.time_ns),
            cpu: Nanos::from_ns(self.paid_ns),
            own_cpu: Nanos::from_ns(self.own_ns),
            counts: &[
                count(
                    sources.protections,
                    self.protections_ns,
                    self.made,
                    self.possible as u64,
                ),
                count(
                    sources.allocations,
                    allocations.cost_ns,
                    allocations.watched,
                    allocations.all,
                ),
            ],
        });
        // An error is a total that fell: none of these does. Then the last decision stays.
        let Ok(outcome) = outcome else { return };
        let of = |source| outcome.settings.iter().find(|it| it.source == source);
        if let Some(setting) = of(sources.allocations) {
            self.grant = AllocationGrant {
                credit_ns: setting.burst_cap.unwrap_or(0),
                mean_gap: (1.0 / setting.share.max(1e-6) - 1.0).max(0.0),
            };
        }
        if let Some(setting) = of(sources.protections) {
            self.cap_ns = setting.burst_cap.unwrap_or(0);
            let largest = self.mean_cost_ns / (self.mean_cost_ns + self.mean_least_ns).max(1.0);
            self.level = match setting.share < 1.0 {
                true => (setting.share * largest).clamp(1e-9, 1.0),
                false => 1.0,
            };
        }
        let surplus_ns = sources.budget.surplus_ns();
        self.is_full = surplus_ns >= sources.full_ns;
    }

    /// Time until an allocation is protected again, after an access that took `cost_ns` with its
    /// protection and came `protected_ns` after the start of it; at least `least_ns`.
    pub fn delay_ns(&mut self, cost_ns: u64, protected_ns: u64, least_ns: u64) -> u64 {
        let mean = |mean: &mut f64, new: u64| match *mean > 0.0 {
            true => *mean += MEAN_STEP * (new as f64 - *mean),
            false => *mean = new as f64,
        };
        mean(&mut self.mean_cost_ns, cost_ns);
        mean(&mut self.mean_least_ns, least_ns);
        let start = Timestamp::from_monotonic_ns(0);
        let mut controller = SecondaryController::new(self.level, start);
        controller.access(Timestamp::from_monotonic_ns(protected_ns));
        let delay = controller.access_end(Nanos::from_ns(cost_ns));
        let delay = delay.map_or(MAX_DELAY_NS, |delay| delay.as_ns().min(MAX_DELAY_NS));
        let delay = delay.max(least_ns);
        // In the time of this delay so many protections were possible.
        let cycle = |delay: u64| (delay + protected_ns + cost_ns).max(1) as f64;
        self.made += PARTS as u64;
        self.possible += PARTS * cycle(delay) / cycle(least_ns);
        delay
    }

    /// Whether the level delays protections beyond the least delay.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.level < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::{AllocationCounts, ProtectionPacer};

    const SECOND: u64 = 1_000_000_000;
    const LEAST: u64 = 5_000_000;

    /// Cost per plain CPU time over the whole run, and over the worst second after the first.
    struct Outcome {
        share: f64,
        worst: f64,
    }

    /// A program whose `hot` allocations are accessed at once after each protection, and that makes
    /// `allocating` large allocations per 10 ms, each of which costs 20 us if it is watched.
    fn simulate(
        budget: f64,
        (hot, cost_ns): (usize, u64),
        allocating: u64,
        busy: impl Fn(u64) -> bool,
    ) -> Outcome {
        let mut pacer = ProtectionPacer::new(budget, 0);
        let step = 10_000_000;
        let mut due = vec![0u64; hot];
        let (mut plain, mut spent, mut now) = (0u64, 0u64, 0u64);
        let mut allocations = AllocationCounts::default();
        let mut skip = 0.0;
        let mut worst: f64 = 0.0;
        let mut window = (0, 0);
        while now < 30 * SECOND {
            now += step;
            let runs = busy(now);
            let before = spent;
            if runs {
                plain += step;
                let mut credit = pacer.grant().credit_ns;
                for _ in 0..allocating {
                    allocations.all += 1;
                    skip -= 1.0;
                    if skip < 0.0 && credit >= 20_000 {
                        credit -= 20_000;
                        spent += 20_000;
                        allocations.cost_ns += 20_000;
                        allocations.watched += 1;
                        skip += pacer.grant().mean_gap;
                    }
                }
            }
            for due in &mut due {
                if runs && *due <= now && pacer.affords(cost_ns) {
                    pacer.spend(cost_ns);
                    spent += cost_ns;
                    *due = now + pacer.delay_ns(cost_ns, 0, LEAST);
                }
            }
            pacer.tick(now, plain + spent, allocations);
            assert!(runs || spent == before);
            if now.is_multiple_of(SECOND) {
                if now > SECOND && plain - window.0 > SECOND / 10 {
                    worst = worst.max((spent - window.1) as f64 / (plain - window.0) as f64);
                }
                window = (plain, spent);
            }
        }
        let share = spent as f64 / plain as f64;
        Outcome { share, worst }
    }

    #[test]
    fn cost_stays_at_the_budget_with_any_number_of_sources() {
        for hot in [5, 60, 400, 4_000] {
            for budget in [0.01, 0.05, 0.2] {
                for allocating in [0, 1, 500] {
                    let it = simulate(budget, (hot, 15_000), allocating, |_| true);
                    let case = (hot, budget, allocating);
                    assert!(it.share <= 1.02 * budget, "{case:?} {}", it.share);
                    assert!(it.worst <= 2.0 * budget, "{case:?} {}", it.worst);
                }
            }
        }
    }

    #[test]
    fn budget_is_used_where_there_is_enough_to_observe() {
        for (hot, allocating) in [(400, 0), (4_000, 0), (0, 500), (4_000, 500)] {
            let it = simulate(0.05, (hot, 15_000), allocating, |_| true);
            assert!(it.share > 0.044, "{hot} {allocating} {}", it.share);
        }
    }

    #[test]
    fn everything_is_observed_if_it_costs_less_than_the_budget() {
        // Two protections per 10 ms would cost 0.3 %, five allocations 1 %.
        let it = simulate(0.05, (2, 15_000), 5, |_| true);
        assert!((0.0129..0.0131).contains(&it.share), "{}", it.share);
    }

    #[test]
    fn burst_after_idleness_spends_no_savings() {
        let it = simulate(0.05, (400, 15_000), 500, |now| now > 25 * SECOND);
        assert!(it.worst <= 0.1, "{}", it.worst);
        assert!(it.share <= 0.055, "{}", it.share);
    }

    #[test]
    fn short_program_stays_in_the_budget_but_for_a_small_loan() {
        for length in [SECOND / 10, SECOND / 5, SECOND] {
            let it = simulate(0.05, (400, 15_000), 500, |now| now <= length);
            let loan = 0.05 / 16.0 * 0.5e9 / length as f64;
            assert!(it.share <= 0.05 * 1.25 + loan, "{length} {}", it.share);
        }
    }

    #[test]
    fn program_that_sleeps_is_still_protected() {
        let mut pacer = ProtectionPacer::new(0.05, 0);
        while pacer.affords(1_000) {
            pacer.spend(1_000_000);
        }
        for tenth in 1..100 {
            pacer.tick(tenth * SECOND / 10, 0, AllocationCounts::default());
        }
        assert!(pacer.affords(15_000));
    }

    #[test]
    fn piece_above_every_cap_is_made_from_a_full_account_and_paid_afterwards() {
        let mut pacer = ProtectionPacer::new(0.05, 0);
        let mut cpu = 0;
        let piece = 100_000_000;
        let mut pieces = 0;
        for tenth in 1..=100 {
            cpu += SECOND / 10;
            if pacer.affords(piece) {
                pacer.spend(piece);
                cpu += piece;
                pieces += 1;
            }
            pacer.tick(tenth * SECOND / 10, cpu, AllocationCounts::default());
        }
        // 10 s at 5 % pay five of them.
        assert!((3..=5).contains(&pieces), "{pieces}");
    }

    #[test]
    fn budget_of_zero_affords_nothing() {
        let mut pacer = ProtectionPacer::new(0.0, 0);
        pacer.tick(100 * SECOND, 100 * SECOND, AllocationCounts::default());
        assert!(!pacer.affords(1));
        assert_eq!(pacer.grant().credit_ns, 0);
    }

    #[test]
    fn delay_follows_the_paper() {
        let mut pacer = ProtectionPacer::new(1.0, 0);
        pacer.level = 0.01;
        // d = p / m_lt - (tau + p)
        assert_eq!(pacer.delay_ns(20_000, 500_000, 1), 2_000_000 - 520_000);
        assert_eq!(pacer.delay_ns(20_000, 5_000_000, 7), 7);
    }
}
