// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs over scripted sources, with literal times.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Inbox, Nanos, Origin, Source, SourceError,
    StreamDescriptor, StreamId, Timestamp, TypeSchema,
};

use super::{Pacing, Runner};
use crate::monitor::Monitor;

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn stream(raw: u32) -> Arc<StreamDescriptor> {
    Arc::new(StreamDescriptor {
        id: StreamId::from_raw(raw),
        origin: Origin::Kernel { cpu: raw },
        sensor: "t".to_string(),
        instance: String::new(),
        lane: None,
        schema: Arc::new(TypeSchema::builder("t").build().unwrap()),
        rate: None,
        capacity: 8,
    })
}

/// The action of one poll of a [`Script`].
#[derive(Clone)]
enum Act {
    /// Delivers an element of this time.
    Element(u64),
    /// Misses this number of elements.
    Miss(u64),
    /// Reports damage, and goes on.
    Complain(&'static str),
    /// Fails.
    Fail(&'static str),
}

/// A source that does one act per poll, and others in the first poll after its end.
struct Script {
    stream: Arc<StreamDescriptor>,
    is_open: bool,
    sequence: u64,
    acts: VecDeque<Act>,
    after_end: Vec<Act>,
    is_over: bool,
}

impl Script {
    fn new(raw: u32, acts: impl IntoIterator<Item = Act>) -> Self {
        Self {
            stream: stream(raw),
            is_open: false,
            sequence: 0,
            acts: acts.into_iter().collect(),
            after_end: Vec::new(),
            is_over: false,
        }
    }

    fn after_end(self, acts: impl IntoIterator<Item = Act>) -> Self {
        Self {
            after_end: acts.into_iter().collect(),
            ..self
        }
    }
}

impl Source for Script {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let id = self.stream.id;
        if !std::mem::replace(&mut self.is_open, true) {
            inbox.open(Arc::clone(&self.stream));
        }
        let acts = match self.is_over {
            true => std::mem::take(&mut self.after_end),
            false => self.acts.pop_front().into_iter().collect(),
        };
        for act in acts {
            match act {
                Act::Element(time) => {
                    inbox.element(id, self.sequence, at(time), &[]);
                    self.sequence += 1;
                }
                Act::Miss(missed) => {
                    inbox.gap(id, self.sequence, missed, GapCause::Overwritten);
                    self.sequence += missed;
                }
                Act::Complain(message) => inbox.complain(SourceError(message.to_string())),
                Act::Fail(message) => return Err(SourceError(message.to_string())),
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        self.is_over = true;
    }
}

/// The times of the elements.
#[derive(Default)]
struct Times(Vec<u64>);

impl Analysis for Times {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0.push(element.time.as_monotonic_ns());
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// Round n is at 10 n ns and ends 5 ns later. So it evaluates elements of 10 (n - 1) to 10 n - 1
/// ns.
fn tens() -> impl Fn() -> Timestamp {
    let now = Cell::new(5);
    move || {
        now.set(now.get() + 5);
        at(now.get())
    }
}

/// One element for each of the first rounds.
fn one_per_round(rounds: u64) -> impl Iterator<Item = Act> {
    (0..rounds).map(|round| Act::Element(10 * round + 1))
}

/// A wait that fails in a run that does not end.
fn few() -> impl FnMut(Duration) {
    let mut waits = 0;
    move |_| {
        waits += 1;
        assert!(waits < 2_000, "the condition never holds");
    }
}

fn runner<'a>(sources: impl IntoIterator<Item = Script>) -> Runner<'a, Times> {
    let runner = Runner::over(Monitor::new(Nanos::ZERO), Times::default()).clock(tens());
    sources
        .into_iter()
        .fold(runner, |runner, source| runner.source(Box::new(source)))
}

#[test]
fn run_ends_in_the_round_whose_condition_holds() {
    let source = Script::new(1, one_per_round(9));
    let mut rounds = 0;
    let waits = RefCell::new(Vec::new());
    let finished = runner([source]).run(
        |pause| waits.borrow_mut().push(pause),
        |runner| {
            rounds += 1;
            // Before the condition of round n there were n - 1 waits.
            assert_eq!(waits.borrow().len() + 1, rounds);
            assert_eq!(runner.update.0.len(), rounds);
            assert_eq!(runner.now(), at(10 * rounds as u64 + 5));
            (rounds == 3).then_some("third")
        },
    );
    assert_eq!(finished.ended_by, "third");
    assert_eq!(finished.ended, at(35));
    assert_eq!(finished.update.0, [1, 11, 21]);
    assert_eq!(waits.borrow().len(), 2);
}

#[test]
fn condition_may_hold_after_the_first_round() {
    let finished = runner([]).run(|_| panic!("nothing is left to wait for"), |_| Some("first"));
    assert_eq!(finished.ended_by, "first");
    assert_eq!(finished.ended, at(15));
}

#[test]
fn progress_counts_evaluated_and_missed_elements() {
    let acts = [Act::Element(1), Act::Miss(5), Act::Element(21)];
    let mut progress = Vec::new();
    let finished = runner([Script::new(1, acts)]).run(few(), |runner| {
        let missed = runner.monitor.losses().missed();
        progress.push((runner.monitor.elements(), missed));
        (runner.monitor.elements() == 2).then_some(())
    });
    assert_eq!(progress.first(), Some(&(1, 0)));
    assert_eq!(progress.last(), Some(&(2, 5)));
    assert_eq!(finished.monitor.losses().missed(), 5);
}

#[test]
fn complaint_passes_once_in_its_round() {
    let acts = [
        Act::Element(1),
        Act::Complain("damaged"),
        Act::Element(21),
        Act::Element(31),
    ];
    let source = Script::new(1, acts).after_end([Act::Complain("last")]);
    let (round, passed) = (Cell::new(1), RefCell::new(Vec::new()));
    let mut finished = runner([source])
        .complaints(|complaint| passed.borrow_mut().push((round.get(), complaint.0)))
        .run(
            |_| round.set(round.get() + 1),
            |_| (round.get() == 4).then(|| round.set(5)),
        );
    let expected = [(2, "damaged".to_string()), (5, "last".to_string())];
    assert_eq!(*passed.borrow(), expected);
    assert_eq!(finished.monitor.take_complaints(), []);
}

#[test]
fn untaken_complaints_stay_in_the_monitor() {
    let acts = (0..1_000).map(|_| Act::Complain("damaged"));
    let mut rounds = 0;
    let mut finished = runner([Script::new(1, acts)]).run(few(), |_| {
        rounds += 1;
        (rounds == 1_000).then_some(())
    });
    let kept = finished.monitor.take_complaints();
    assert!(kept.len() < 1_000);
    let rest = 1_000 - (kept.len() - 1);
    let last = kept.last().map(ToString::to_string).unwrap();
    assert_eq!(last, format!("{rest} more complaints were not kept"));
}

#[test]
fn failed_source_ends_neither_the_run_nor_other_sources() {
    let failing = Script::new(1, [Act::Element(1), Act::Fail("gone"), Act::Element(25)]);
    let other = Script::new(2, [2, 12, 26].map(Act::Element));
    let mut complaints = Vec::new();
    let finished = runner([failing, other])
        .complaints(|complaint| complaints.push(complaint.0))
        .run(few(), |runner| (runner.update.0.len() == 5).then_some(()));
    assert_eq!(finished.update.0, [1, 2, 12, 25, 26]);
    assert_eq!(complaints, ["gone"]);
}

#[test]
fn last_round_evaluates_held_back_and_final_elements() {
    let source = Script::new(1, [Act::Element(1), Act::Element(900_000_000)])
        .after_end([Act::Element(950_000_000), Act::Miss(2)]);
    let mut rounds = 0;
    let finished = runner([source]).run(few(), |runner| {
        rounds += 1;
        (rounds == 2).then(|| runner.update.0.clone())
    });
    assert_eq!(finished.ended_by, [1]);
    assert_eq!(finished.update.0, [1, 900_000_000, 950_000_000]);
    assert_eq!(finished.monitor.losses().missed(), 2);
}

#[test]
fn sources_added_between_rounds_are_read_from_the_next_round_on() {
    let mut later = Some(Script::new(2, [Act::Element(17)]));
    let mut finished =
        runner([Script::new(1, [Act::Element(1)])]).run(few(), |runner| match later.take() {
            Some(source) => {
                assert_eq!(runner.update.0, [1]);
                runner.monitor.add_source(Box::new(source));
                None
            }
            None => Some(()),
        });
    assert_eq!(finished.update.0, [1, 17]);
    let opened = finished.monitor.take_opened();
    let opened: Vec<u32> = opened.iter().map(|stream| stream.id.as_raw()).collect();
    assert_eq!(opened, [1, 2]);
}

#[test]
fn opened_streams_are_taken_in_a_round_or_at_the_end() {
    let sources = [Script::new(1, []), Script::new(2, [])];
    let [one, two] = sources;
    let mut two = Some(two);
    let mut taken = Vec::new();
    let mut finished = runner([one]).run(few(), |runner| {
        taken.extend(runner.monitor.take_opened());
        runner.monitor.add_source(Box::new(two.take()?));
        Some(())
    });
    let ids = |streams: &[Arc<StreamDescriptor>]| -> Vec<u32> {
        streams.iter().map(|stream| stream.id.as_raw()).collect()
    };
    assert_eq!(ids(&taken), [1]);
    assert_eq!(ids(&finished.monitor.take_opened()), [2]);
}

#[test]
fn steps_of_the_callers_own_loop_are_the_rounds_of_a_run() {
    let mut stepped = runner([Script::new(1, one_per_round(3))]);
    let mut pauses = Vec::new();
    for _ in 0..2 {
        pauses.push(stepped.step());
    }
    assert_eq!(stepped.update.0, [1, 11]);
    let stepped = stepped.finish("enough");
    let mut waited = Vec::new();
    let run = runner([Script::new(1, one_per_round(3))]).run(
        |pause| {
            waited.push(pause);
            assert!(waited.len() < 2_000, "the condition never holds");
        },
        |runner| (runner.update.0.len() == 2).then_some("enough"),
    );
    assert_eq!(stepped.update.0, run.update.0);
    assert_eq!((stepped.ended_by, stepped.ended), (run.ended_by, run.ended));
    assert_eq!(pauses[..1], waited);
}

#[test]
fn lent_monitor_goes_on_after_the_run() {
    let mut monitor = Monitor::new(Nanos::ZERO);
    monitor.add_source(Box::new(Script::new(1, one_per_round(2))));
    let mut times = Times::default();
    Runner::over(&mut monitor, &mut times)
        .clock(tens())
        .run(few(), |runner| {
            (runner.monitor.elements() == 2).then_some(())
        });
    assert_eq!((monitor.elements(), times.0), (2, vec![1, 11]));
    assert_eq!(monitor.take_opened().len(), 1);
}

#[test]
fn pauses_double_up_to_the_longest_and_are_short_after_a_busy_round() {
    let mut pacing = Pacing::default();
    let pauses = [0, 0, 2_000, 0, 2_001, 0].map(|elements| pacing.pause_after(elements));
    let expected = [2, 4, 8, 10, 1, 2].map(Duration::from_millis);
    assert_eq!(pauses, expected);
}
