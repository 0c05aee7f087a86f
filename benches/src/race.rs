// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders that take turns.
//!
//! A round lets each contender run one short batch. What disturbs the machine for longer than a
//! batch disturbs all contenders of that round alike, and what disturbs single batches stays out of
//! the median over many rounds. The order is another one in each round, because a contender inherits
//! the caches of the one before it. A ratio is one of medians of the same race, never of figures from
//! two races.

use crate::machine::{nanos, ordered_ticks};

/// One way to do what is measured.
pub(crate) struct Contender<'a> {
    /// The table that it is shown in.
    pub(crate) section: &'static str,
    pub(crate) name: String,
    /// Runs one batch and returns nanoseconds per element.
    pub(crate) batch: Box<dyn FnMut() -> f64 + 'a>,
    /// The contender that it is compared with, by name, in the same section.
    pub(crate) against: Option<String>,
    /// The largest ratio that is good.
    pub(crate) target: Option<f64>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(
        section: &'static str,
        name: impl Into<String>,
        batch: impl FnMut() -> f64 + 'a,
    ) -> Self {
        Self {
            section,
            name: name.into(),
            batch: Box::new(batch),
            against: None,
            target: None,
        }
    }

    pub(crate) fn against(mut self, name: impl Into<String>) -> Self {
        self.against = Some(name.into());
        self
    }

    /// Sets the largest ratio that is good.
    pub(crate) fn at_most(mut self, ratio: f64) -> Self {
        self.target = Some(ratio);
        self
    }
}

const WARM_UP_ROUNDS: usize = 5;

/// Nanoseconds per element of one call.
#[inline(always)]
pub(crate) fn time(elements: u64, run: &mut (impl FnMut(u64) + ?Sized)) -> f64 {
    let begin = ordered_ticks();
    run(elements);
    let end = ordered_ticks();
    nanos(end - begin) / elements as f64
}

/// What a contender needed, in nanoseconds per element.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) quartiles: [f64; 3],
    pub(crate) least: f64,
    pub(crate) against: Option<String>,
    pub(crate) target: Option<f64>,
}

impl Outcome {
    pub(crate) fn median(&self) -> f64 {
        self.quartiles[1]
    }
}

/// Runs so many rounds.
pub(crate) fn race(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Outcome> {
    let mut order: Vec<_> = (0..contenders.len()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut spans = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..WARM_UP_ROUNDS + rounds {
        shuffle(&mut order, &mut state);
        for &at in &order {
            let span = (contenders[at].batch)();
            if round >= WARM_UP_ROUNDS {
                spans[at].push(span);
            }
        }
    }
    contenders
        .into_iter()
        .zip(spans)
        .map(|(contender, mut spans)| {
            spans.sort_by(f64::total_cmp);
            let at = |part: usize| spans[(spans.len() * part / 4).min(spans.len() - 1)];
            Outcome {
                section: contender.section,
                name: contender.name,
                quartiles: [at(1), at(2), at(3)],
                least: spans[0],
                against: contender.against,
                target: contender.target,
            }
        })
        .collect()
}

/// Fisher and Yates, with Marsaglia's xorshift64: the same orders in every run.
fn shuffle(order: &mut [usize], state: &mut u64) {
    for last in (1..order.len()).rev() {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        order.swap(last, (*state % (last as u64 + 1)) as usize);
    }
}
