// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slow, obvious simulator: streams by their pairwise definition, monitors period by period.
//!
//! Nothing here uses the formulas under test. Times are small whole numbers. An evaluation that
//! ends just before an instant is counted at that instant, and elements of that instant do not
//! count yet. The bounds must stay below this limit.

#![allow(dead_code)] // Each test program uses its own part.

use overhear_admission::{ArrivalBound, PeriodicTask};
use overhear_event::Nanos;

pub(crate) fn stream(t: u64, d: u64, tau: u64) -> ArrivalBound {
    let [t, d, tau] = [t, d, tau].map(Nanos::from_ns);
    ArrivalBound::new(t, d, tau, Nanos::ZERO).unwrap()
}

pub(crate) fn task(t_m: u64, d: u64) -> PeriodicTask {
    PeriodicTask::new(Nanos::from_ns(t_m), Nanos::from_ns(d)).unwrap()
}

/// The constraint and the task as plain numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    pub(crate) t: i64,
    pub(crate) d: i64,
    pub(crate) tau: i64,
}

impl Plain {
    pub(crate) fn of(s: ArrivalBound) -> Self {
        let [t, d, tau] =
            [s.period(), s.distance(), s.jitter()].map(|x| i64::try_from(x.as_ns()).unwrap());
        Self { t, d, tau }
    }

    /// Equation 6, literally.
    pub(crate) fn least_distance(self, e: i64) -> i64 {
        (e * self.d).max(e * self.t - self.tau)
    }

    /// Whether an element at `at` may follow `earlier`, compared with each earlier element.
    pub(crate) fn may_follow(self, earlier: &[i64], at: i64) -> bool {
        earlier.iter().rev().zip(1..).all(|(&a, e)| {
            let apart = at - a;
            apart >= 0 && apart >= self.least_distance(e)
        })
    }

    /// Whether every pair of elements keeps its distance.
    pub(crate) fn admits(self, elements: &[i64]) -> bool {
        (0..elements.len()).all(|j| self.may_follow(&elements[..j], elements[j]))
    }

    /// The earliest instant, not before `from`, at which an element may follow.
    pub(crate) fn earliest(self, earlier: &[i64], from: i64) -> i64 {
        (from..).find(|&at| self.may_follow(earlier, at)).unwrap()
    }

    /// A dense stream: every element as early as possible; element i not before `not_before(i)`.
    pub(crate) fn dense(self, until: i64, not_before: impl Fn(usize) -> i64) -> Vec<i64> {
        let mut elements = Vec::new();
        loop {
            let from = elements.last().copied().unwrap_or(0);
            let at = self.earliest(&elements, from.max(not_before(elements.len())));
            if at > until {
                return elements;
            }
            elements.push(at);
        }
    }

    /// Calls `visit` with every stream whose elements come at instants below `until`.
    pub(crate) fn every_stream(self, until: i64, visit: &mut impl FnMut(&[i64])) {
        fn extend(s: Plain, until: i64, elements: &mut Vec<i64>, visit: &mut impl FnMut(&[i64])) {
            visit(elements);
            for at in elements.last().copied().unwrap_or(0)..until {
                if s.may_follow(elements, at) {
                    elements.push(at);
                    extend(s, until, elements, visit);
                    elements.pop();
                }
            }
        }
        extend(self, until, &mut Vec::new(), visit);
    }
}

/// The worst values of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worst {
    pub(crate) latency: i64,
    pub(crate) backlog: usize,
}

/// Elements of ascending `times` strictly before `at`.
pub(crate) fn before(times: &[i64], at: i64) -> usize {
    times.iter().filter(|&&time| time < at).count()
}

/// One sensor under a monitor. In period k the monitor behaves as `late(k)` returns: the time of
/// its check after the begin, and the time of its end after the begin (the length itself is not
/// reached).
pub(crate) fn run(
    elements: &[i64],
    (t_m, d): (i64, i64),
    r: usize,
    mut late: impl FnMut(i64) -> (i64, i64),
) -> Worst {
    let (mut done, mut worst) = (0, Worst::default());
    let mut k = 0;
    while done < elements.len() {
        let (check, end) = late(k);
        assert!(check < end && end <= d);
        let (begin, end) = (k * t_m, k * t_m + end);
        worst.backlog = worst.backlog.max(before(elements, end) - done);
        let seen = before(elements, begin + check);
        let n = r.min(seen - done);
        if n > 0 {
            worst.latency = worst.latency.max(end - elements[done]);
            done += n;
        }
        // Elements that have arrived by the latest end wait at least until the next period.
        worst.backlog = worst
            .backlog
            .max(before(elements, begin + t_m).saturating_sub(done));
        k += 1;
        assert!(k < 100_000, "the backlog never shrinks");
    }
    worst
}

/// The slowest monitor: it checks at the begin and finishes just before the deadline.
pub(crate) fn run_slow(elements: &[i64], (t_m, d): (i64, i64), r: usize) -> Worst {
    run(elements, (t_m, d), r, |_| (0, d))
}

/// Backlogs with a copying monitor; see `CopyPlan`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copied {
    pub(crate) shared: usize,
    pub(crate) private: usize,
    pub(crate) copies: usize,
}

/// Evaluates private elements first and then shared ones, and reads ahead until `window` are
/// private.
pub(crate) fn run_window(
    elements: &[i64],
    (t_m, d): (i64, i64),
    r: usize,
    window: usize,
) -> Copied {
    let (mut evaluated, mut taken, mut k) = (0_usize, 0_usize, 0);
    let mut worst = Copied::default();
    while evaluated < elements.len() {
        let seen = before(elements, k * t_m);
        let held = before(elements, k * t_m + d) - taken.max(evaluated);
        worst.shared = worst.shared.max(held);
        evaluated += r.min(seen - evaluated);
        taken = taken.max(evaluated);
        let ahead = (evaluated + window).min(seen).saturating_sub(taken);
        taken += ahead;
        worst.copies = worst.copies.max(ahead);
        worst.private = worst.private.max(taken - evaluated);
        k += 1;
    }
    worst
}

/// Copies up to `copies` elements and then evaluates private ones only.
pub(crate) fn run_rate(elements: &[i64], (t_m, d): (i64, i64), r: usize, copies: usize) -> Copied {
    let (mut evaluated, mut taken, mut k) = (0_usize, 0_usize, 0);
    let mut worst = Copied::default();
    while evaluated < elements.len() {
        let seen = before(elements, k * t_m);
        worst.shared = worst.shared.max(before(elements, k * t_m + d) - taken);
        let n = copies.min(seen - taken);
        taken += n;
        worst.copies = worst.copies.max(n);
        worst.private = worst.private.max(taken - evaluated);
        evaluated += r.min(taken - evaluated);
        k += 1;
    }
    worst
}

/// The behaviour of evaluations at the end of the runtime.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evaluations {
    /// They are throttled and continue in the next period.
    Divisible,
    /// They begin only if they fit into the rest of the runtime.
    Whole,
    /// They begin while less than this is consumed, and run to their end.
    WholeFrom(i64),
}

/// Several sensors in chronological order, elements of the same time in the order of `rank`, with
/// `q` of CPU time per period. Latency over all, backlog of each.
pub(crate) fn run_pool(
    streams: &[Vec<i64>],
    wcets: &[i64],
    rank: &[usize],
    (t_m, d): (i64, i64),
    q: i64,
    how: Evaluations,
) -> (i64, Vec<usize>) {
    let mut order: Vec<(i64, usize, usize)> = Vec::new();
    for (sensor, elements) in streams.iter().enumerate() {
        order.extend(elements.iter().map(|&at| (at, rank[sensor], sensor)));
    }
    order.sort_unstable();
    let mut order = order.into_iter().map(|(at, _, s)| (at, s)).peekable();
    let mut done = vec![0; streams.len()];
    let mut backlog = vec![0; streams.len()];
    let (mut latency, mut begun, mut k) = (0, 0, 0);
    while order.peek().is_some() {
        let end = k * t_m + d;
        for (sensor, elements) in streams.iter().enumerate() {
            backlog[sensor] = backlog[sensor].max(before(elements, end) - done[sensor]);
        }
        let mut consumed = 0;
        while let Some(&(at, sensor)) = order.peek() {
            let left = wcets[sensor] - begun;
            let (starts, fits) = (consumed < q, consumed + left <= q);
            let finishes = at < k * t_m
                && match how {
                    Evaluations::Divisible | Evaluations::Whole => fits,
                    Evaluations::WholeFrom(limit) => consumed < limit,
                };
            if !finishes {
                if at < k * t_m && starts && how == Evaluations::Divisible {
                    begun += q - consumed;
                }
                break;
            }
            consumed += left;
            begun = 0;
            order.next();
            done[sensor] += 1;
            latency = latency.max(end - at);
        }
        assert!(consumed <= q, "more was consumed than reserved");
        k += 1;
        assert!(k < 100_000, "the backlog never shrinks");
    }
    (latency, backlog)
}
