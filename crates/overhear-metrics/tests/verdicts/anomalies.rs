// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on the anomalies of samples.

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Origin, SamplePoint, SampleSchema, StreamDescriptor,
    StreamId, Timestamp,
};
use overhear_metrics::verdict::{Constraint, Demand, TaskFilter, Verdicts};
use overhear_metrics::FIRST_JUDGED;

use crate::scene::{constraint, end, pattern, stream, Reported};

fn at_most(at_most: u64) -> Constraint {
    let of = pattern("user:jobs");
    constraint(Demand::Anomalies { of, at_most })
}

fn sampler() -> StreamDescriptor {
    let schema = SampleSchema::new().count("cycles", "").build().unwrap();
    let origin = Origin::program(1, "p1");
    StreamDescriptor::new(StreamId::from_raw(7), origin, "jobs", schema)
}

/// Plays jobs of thread 9; those with these numbers need five times the cycles.
fn play(constraint: Constraint, jobs: u64, slow: &[u64]) -> Verdicts<Reported> {
    let mut verdicts = Verdicts::new(Reported::default());
    verdicts.add(constraint).unwrap();
    let stream = sampler();
    verdicts.open(&stream);
    for job in 1..=jobs {
        let words = [9, 1, SamplePoint::JobEnd.as_raw(), 0];
        let mut payload: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
        let cycles = if slow.contains(&job) {
            5_000 + job
        } else {
            1_000 + job % 3
        };
        for word in [500, cycles] {
            payload.extend(word.to_ne_bytes());
        }
        verdicts.element(&ElementView {
            stream: &stream,
            sequence: job - 1,
            time: Timestamp::from_monotonic_ns(job),
            payload: &payload,
        });
    }
    verdicts
}

#[test]
fn anomalies_above_the_bound_offend() {
    let slow = [200, 210, 220];
    let judged = 300 - (FIRST_JUDGED - 1);
    assert_eq!(
        end(play(at_most(3), 300, &slow), 301),
        format!("held 0/{judged}")
    );
    let played = play(at_most(1), 300, &slow);
    let [first, second] = played.judge().0.as_slice() else {
        panic!("{:?}", played.judge().0);
    };
    assert!(
        first.starts_with("1: job 210 of the thread is anomalous, 420 spreads from the usual: 2 anomalies, 1 permitted, at"),
        "{first}"
    );
    assert!(
        second.starts_with("2: job 220 of the thread is anomalous"),
        "{second}"
    );
    assert_eq!(end(played, 301), format!("violated 2/{judged}"));
}

#[test]
fn nothing_is_held_if_nothing_was_judged_or_samples_were_missed() {
    let few = end(play(at_most(0), FIRST_JUDGED - 1, &[80]), 99);
    assert!(few.starts_with("inconclusive 0/0"), "{few}");
    let mut missed = play(at_most(0), 300, &[]);
    let stream = sampler();
    let at = Timestamp::from_monotonic_ns;
    let gap = Gap {
        stream: stream.id,
        first: 300,
        missed: 2,
        from: at(300),
        to: at(310),
        cause: GapCause::Overwritten,
    };
    missed.gap(&stream, &gap);
    let missed = end(missed, 311);
    assert!(missed.starts_with("inconclusive 0/218"), "{missed}");
    // A gap excuses no anomaly that was found.
    let mut found = play(at_most(0), 300, &[200]);
    found.gap(&stream, &gap);
    assert!(end(found, 311).starts_with("violated 1/218"));
}

#[test]
fn other_tasks_and_other_elements_are_not_judged() {
    let of_other = at_most(0).of_task(TaskFilter::Id(8));
    let other = end(play(of_other, 300, &[200]), 301);
    assert!(other.starts_with("inconclusive 0/0"), "{other}");
    let own = at_most(0).of_task(TaskFilter::Id(9));
    assert!(end(play(own, 300, &[200]), 301).starts_with("violated 1/"));
    let mut verdicts = Verdicts::new(Reported::default());
    verdicts.add(at_most(0)).unwrap();
    verdicts.open(&stream(3, "jobs", 1));
    let complaints = verdicts.complaints();
    assert!(
        complaints[0].ends_with("its elements are not samples"),
        "{complaints:?}"
    );
}
