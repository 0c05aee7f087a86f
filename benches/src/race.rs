// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders that alternate.
//!
//! A round lets each contender run one short batch. A disturbance that is longer than a batch
//! affects all contenders of that round. A disturbance of single batches does not change the median
//! over many rounds. The order is another one in each round, because a contender inherits the
//! caches of the one before it. A ratio is one of medians of the same race, never of figures from
//! two races; where several processes run one race each, it is the median of their ratios
//! ([`crate::processes`]).
//!
//! A virtual machine's neighbours can take units of the core away for a part of all batches: then a
//! median falls between two speeds and is useless. An interference probe therefore runs before and
//! after each batch, and batches with a slow probe are omitted ([`calm`]).

use crate::machine::{interference_probe, nanos, ordered_ticks};

/// One contender.
pub(crate) struct Contender<'a> {
    /// The table that shows it.
    pub(crate) section: &'static str,
    pub(crate) name: String,
    /// Runs one batch and returns nanoseconds per element.
    pub(crate) batch: Box<dyn FnMut() -> f64 + 'a>,
    /// The name of the contender in the same section that it is compared with.
    pub(crate) against: Option<String>,
    /// The largest ratio that is good.
    pub(crate) target: Option<f64>,
    /// Runs the interference probe on the CPU of the batch, and returns its nanoseconds.
    pub(crate) probe: Box<dyn FnMut() -> f64 + 'a>,
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
            probe: Box::new(interference_probe),
        }
    }

    /// Checks the batches by this interference probe instead of one in the measured thread.
    pub(crate) fn with_probe(mut self, probe: impl FnMut() -> f64 + 'a) -> Self {
        self.probe = Box::new(probe);
        self
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

/// The times of a contender, in nanoseconds per element.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) quartiles: [f64; 3],
    pub(crate) least: f64,
    pub(crate) against: Option<String>,
    /// Its median divided by that of `against`, if these figures do not give it: the median of the
    /// results of several races.
    pub(crate) ratio: Option<f64>,
    pub(crate) target: Option<f64>,
    pub(crate) batches: Batches,
}

impl Outcome {
    pub(crate) fn median(&self) -> f64 {
        self.quartiles[1]
    }
}

/// The number of batches of a contender, and the number of those that count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Batches {
    pub(crate) run: usize,
    /// Number of batches with a slow interference probe.
    pub(crate) disturbed: usize,
    /// Too few batches were calm, so all of them count: they permit no judgement.
    pub(crate) inconclusive: bool,
}

/// One batch: nanoseconds per element, and those of the slower interference probe.
#[derive(Clone, Copy, Debug)]
struct Batch {
    span: f64,
    probe: f64,
}

/// Runs this number of rounds.
pub(crate) fn race(rounds: usize, mut contenders: Vec<Contender<'_>>) -> Vec<Outcome> {
    let mut order: Vec<_> = (0..contenders.len()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut batches = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..WARM_UP_ROUNDS + rounds {
        shuffle(&mut order, &mut state);
        for &at in &order {
            let contender = &mut contenders[at];
            let before = (contender.probe)();
            let span = (contender.batch)();
            let probe = before.max((contender.probe)());
            if round >= WARM_UP_ROUNDS {
                batches[at].push(Batch { span, probe });
            }
        }
    }
    let usual = usual(&batches);
    contenders
        .into_iter()
        .zip(batches)
        .map(|(contender, batches)| {
            let (spans, batches) = calm(&batches, usual);
            let at = |part: usize| spans[(spans.len() * part / 4).min(spans.len() - 1)];
            Outcome {
                section: contender.section,
                name: contender.name,
                quartiles: [at(1), at(2), at(3)],
                least: spans[0],
                against: contender.against,
                ratio: None,
                target: contender.target,
                batches,
            }
        })
        .collect()
}

/// Time of the undisturbed interference probe: the first decile of a race. One lucky batch can
/// change the minimum, but not the decile.
fn usual(batches: &[Vec<Batch>]) -> f64 {
    let mut probes: Vec<_> = batches.iter().flatten().map(|one| one.probe).collect();
    probes.sort_by(f64::total_cmp);
    probes.get(probes.len() / 10).copied().unwrap_or(0.0)
}

/// An interference probe slower than usual by this factor shows a disturbance. Its own steps are
/// about a hundredth; a neighbour on the other hyperthread makes it 1.3 to 2 times as slow.
const SLOW: f64 = 1.05;
/// If fewer than this share of the batches are calm, the median is random.
const CALM_PART: usize = 5;

/// The times of the calm batches in order, or of all batches if too few were calm.
fn calm(batches: &[Batch], usual: f64) -> (Vec<f64>, Batches) {
    let run = batches.len();
    let quiet = |batch: &&Batch| batch.probe <= usual * SLOW;
    let calm = batches.iter().filter(quiet).count();
    let inconclusive = calm * CALM_PART < run;
    let mut spans: Vec<_> = batches
        .iter()
        .filter(|batch| inconclusive || quiet(batch))
        .map(|batch| batch.span)
        .collect();
    spans.sort_by(f64::total_cmp);
    let counts = Batches {
        run,
        disturbed: run - calm,
        inconclusive,
    };
    (spans, counts)
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

#[cfg(test)]
mod tests {
    use super::{calm, usual, Batch};

    fn batch(span: f64, probe: f64) -> Batch {
        Batch { span, probe }
    }

    #[test]
    fn disturbed_batches_stay_out() {
        let mut batches = vec![batch(1.0, 100.0); 6];
        batches.extend([batch(2.0, 140.0); 4]);
        let usual = usual(&[batches.clone()]);
        let (spans, counts) = calm(&batches, usual);
        assert_eq!(spans, [1.0; 6]);
        assert_eq!((counts.run, counts.disturbed), (10, 4));
        assert!(!counts.inconclusive);
    }

    #[test]
    fn too_few_calm_batches_are_inconclusive() {
        let mut batches = vec![batch(1.0, 100.0); 1];
        batches.extend([batch(2.0, 140.0); 9]);
        let (spans, counts) = calm(&batches, usual(&[vec![batch(1.0, 100.0)]]));
        assert_eq!(spans.len(), 10);
        assert_eq!(counts.disturbed, 9);
        assert!(counts.inconclusive);
    }
}
