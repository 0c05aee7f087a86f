// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies in private rings: complete, in order, and with exact counts of lapped elements.

use std::time::Duration;

use overhear_admission::DeadlineReservation;
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Inbox, Nanos, Source, SourceError, StreamDescriptor,
    Timestamp,
};
use overhear_monitor::executor::{buffer, copy_reserved};
use overhear_monitor::Monitor;

use crate::admitted::streams;
use crate::alone;
use crate::deadline::may_reserve;
use crate::rings::{rings, Produced, Producer};
use crate::witness::{keeps, Doubt, Excuse, Witness};

/// The received items, as (sequence, value) and gaps.
#[derive(Default)]
struct Log {
    elements: Vec<(u64, u64)>,
    gaps: Vec<(u64, u64, GapCause)>,
}

impl Analysis for Log {
    fn element(&mut self, element: &ElementView<'_>) {
        let value = element.field("number").and_then(|value| value.as_u64());
        self.elements.push((element.sequence, value.unwrap()));
    }
    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.gaps.push((gap.first, gap.missed, gap.cause));
    }
    fn advance(&mut self, _: Timestamp) {}
}

/// Delivers the items of another source, with a gap after them.
struct WithGap<S>(S, Option<(u64, u64, GapCause)>);

impl<S: Source> Source for WithGap<S> {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        self.0.poll(inbox)?;
        if let Some((first, missed, cause)) = self.1.take() {
            let stream = overhear_event::StreamId::from_raw(1);
            inbox.gap(stream, first, missed, cause);
        }
        Ok(())
    }
}

#[test]
fn lapped_elements_are_counted_and_gaps_keep_their_position() {
    let (mut writers, source) = rings(&[("a", 64)]);
    let mut source = WithGap(source, None);
    let (mut copier, copies) = buffer(16);
    let horizon = copies.horizon();
    let mut monitor = Monitor::new(Nanos::ZERO);
    monitor.add_source(Box::new(copies));
    let mut log = Log::default();
    let at = Timestamp::from_monotonic_ns;
    (0..5).for_each(|number| writers[0].write_at(number, || at(100 + number)));
    source.1 = Some((5, 2, GapCause::Corrupt));
    copier.copy(&mut source, at(1_000));
    monitor.round(horizon.now(), &mut log);
    assert_eq!(log.elements, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]);
    // Thirty more elements; the private ring has room for fifteen.
    (0..30).for_each(|number| writers[0].write_at(number, || at(2_000 + number)));
    copier.copy(&mut source, at(3_000));
    monitor.finish(horizon.now(), &mut log);
    let delivered: Vec<(u64, u64)> = (20..35).map(|sequence| (sequence, sequence - 5)).collect();
    assert_eq!(log.elements[5..], delivered);
    let mut lost: Vec<(u64, u64)> = Vec::new();
    for &(first, missed, cause) in &log.gaps {
        lost.push((first, missed));
        assert!(
            matches!(cause, GapCause::Corrupt | GapCause::Overwritten),
            "{cause}"
        );
    }
    assert_eq!(lost, [(5, 2), (7, 13)]);
}

#[test]
fn slow_evaluation_misses_nothing_that_the_private_rings_hold() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let hold_back = Nanos::from_ms(20);
    keeps(|| {
        let witness = Witness::start();
        let (log, produced) = evaluate_slowly(hold_back);
        let machine = witness.stop();
        let missed: u64 = log.gaps.iter().map(|(_, missed, _)| missed).sum();
        let seen = log.elements.len() as u64;
        assert_eq!(seen + missed, produced.written, "{:?}", log.gaps);
        if missed == 0 {
            return Ok(());
        }
        let excuses = log.gaps.iter().map(|(.., cause)| match cause {
            // A machine that stops for longer than the capacity of the rings.
            GapCause::Overwritten => Excuse::seen(machine.was_late(RING)),
            GapCause::Late => Excuse::seen(produced.held_up > hold_back),
            _ => Excuse::None,
        });
        Err(Doubt {
            excuse: Excuse::of_all(excuses),
            reasons: format!("{:?}, {produced:?}", log.gaps),
        })
    });
}

/// Less than the capacity of the producers' rings.
const RING: Nanos = Nanos::from_ms(100);

/// Evaluates the elements of two producers after a copying thread, with a slow evaluation.
fn evaluate_slowly(hold_back: Nanos) -> (Log, Produced) {
    let (writers, mut source) = rings(&[("a", 256), ("b", 256)]);
    let (mut copier, copies) = buffer(16 * 1024);
    let horizon = copies.horizon();
    let mut producers = Vec::new();
    for (ring, (stream, burst)) in writers.into_iter().zip(streams().into_iter().zip([8, 5])) {
        producers.push(Producer::start(ring, stream, burst));
    }
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let copying = std::thread::spawn(move || {
        let ms = Nanos::from_ms;
        let reservation = DeadlineReservation {
            runtime: ms(1),
            deadline: ms(10),
            period: ms(10),
        };
        let goes_on = || !crate::rings::is_stopped(&ended);
        copy_reserved(&mut source, &mut copier, reservation, goes_on)
    });
    let mut monitor = Monitor::new(hold_back);
    monitor.add_source(Box::new(copies));
    let mut log = Log::default();
    // Longer than the capacity of the producers' rings, and shorter than that of the private ones.
    for _ in 0..4 {
        monitor.round(horizon.now(), &mut log);
        std::thread::sleep(Duration::from_millis(400));
    }
    let produced = Produced::of_all(producers.into_iter().map(Producer::stop));
    drop(end);
    copying.join().unwrap().unwrap();
    monitor.finish(horizon.now(), &mut log);
    (log, produced)
}
