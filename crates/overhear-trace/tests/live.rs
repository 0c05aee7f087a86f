// SPDX-License-Identifier: MIT OR Apache-2.0
//! An analysis gets the same items live and in the replay. Elements reach the monitor's merge in
//! any rounds, too late, out of order or not at all; the recording delivers the same items as the
//! merge. Times, sequences, payloads, both ends of every gap and the order are equal, without any
//! tolerance. This includes two gaps at one place: their packets cannot both have a duration (see
//! the writer), but the gaps' own times are kept.

mod support;

use std::sync::Arc;

use overhear_event::{Analysis, GapCause, Inbox, Item, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::{Fanout, Merge};
use overhear_trace::{TraceReader, TraceWriter};
use proptest::collection::vec;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, prop_oneof, Strategy};
use proptest::proptest;

use support::{at, descriptor, identity, pair, pair_payload, program, Memory, Owned};

/// In nanoseconds: about as long as a round, so that some elements are late.
const HOLD_BACK: u64 = 1_000;

/// Numbers that are neither dense nor in order; some collide in the writer's table of recent
/// streams.
const IDS: [u32; 5] = [67, 3, 1, 131, 2];

/// A step of a source with one stream.
#[derive(Clone, Debug)]
enum Step {
    /// An element with a stamp this long before the begin of the round, but after its predecessor.
    Element {
        before: u64,
        x: u64,
    },
    /// An element with a stamp this long after its predecessor, perhaps after the begin of the
    /// round.
    Soon {
        after: u64,
        x: u64,
    },
    /// An element with a stamp before that of its predecessor: damage.
    Backwards {
        by: u64,
    },
    Gap {
        missed: u64,
        cause: GapCause,
    },
    /// The stream ends.
    Close,
}

#[derive(Clone, Debug)]
struct Round {
    /// Time since the last round.
    after: u64,
    steps: Vec<(usize, Step)>,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..2 * HOLD_BACK, any::<u64>()).prop_map(|(before, x)| Step::Element { before, x }),
        10 => (0_u64..200, any::<u64>()).prop_map(|(after, x)| Step::Soon { after, x }),
        1 => (1_u64..500).prop_map(|by| Step::Backwards { by }),
        4 => (0_u64..2_000, prop::sample::select(GapCause::ALL.to_vec()))
            .prop_map(|(missed, cause)| Step::Gap { missed, cause }),
        1 => proptest::strategy::Just(Step::Close),
    ]
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let round = (0..2 * HOLD_BACK, vec((0..IDS.len(), step()), 0..30))
        .prop_map(|(after, steps)| Round { after, steps });
    vec(round, 0..12)
}

/// State of a stream.
#[derive(Clone, Debug, Default)]
struct StreamPosition {
    open: bool,
    closed: bool,
    sequence: u64,
    time: u64,
}

/// Delivers a step to the merge, as a source does.
fn deliver(
    merge: &mut Merge,
    streams: &[Arc<StreamDescriptor>],
    places: &mut [StreamPosition],
    now: u64,
    (stream, step): &(usize, Step),
) {
    let (descriptor, place) = (&streams[*stream], &mut places[*stream]);
    if place.closed {
        return;
    }
    if !place.open {
        merge.open(Arc::clone(descriptor));
        place.open = true;
    }
    let (time, x) = match *step {
        Step::Element { before, x } => (now.saturating_sub(before).max(place.time), x),
        Step::Soon { after, x } => (place.time + after, x),
        Step::Backwards { by } => (place.time.saturating_sub(by), by),
        Step::Gap { missed, cause } => {
            merge.gap(descriptor.id, place.sequence, missed, cause);
            place.sequence += missed;
            return;
        }
        Step::Close => {
            merge.close(descriptor.id);
            place.closed = true;
            return;
        }
    };
    merge.element(descriptor.id, place.sequence, at(time), &pair_payload(x));
    place.sequence += 1;
    place.time = place.time.max(time);
}

fn release(merge: &mut Merge, until: Timestamp, update: &mut dyn Analysis) {
    merge.release(until, |item| match item {
        Item::Element(element) => update.element(&element),
        Item::InPlace(element) => element.evaluate(update),
        Item::Gap(stream, gap) => update.gap(stream, &gap),
        Item::Advance(time) => update.advance(time),
    });
}

/// Stores all items; rounds without items repeat the same time.
#[derive(Default)]
struct Live(Memory);

impl Analysis for Live {
    fn element(&mut self, element: &overhear_event::ElementView<'_>) {
        self.0.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &overhear_event::Gap) {
        self.0.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        if now > self.0.advanced_to {
            self.0.advance(now);
        }
    }
}

proptest! {
    #[test]
    fn replay_equals_the_live_order(
        rounds in rounds(),
        packet_bytes in 0_usize..1_500,
        pending in 0_u64..4_000,
    ) {
        let streams = IDS.map(|id| Arc::new(descriptor(id, &format!("s{id}"), program(), pair())));
        let dir = tempfile::tempdir().unwrap();
        let mut live = Live::default();
        let mut writer = TraceWriter::create(dir.path(), identity())
            .unwrap()
            .with_packet_bytes(packet_bytes)
            .with_pending(Nanos::from_ns(pending));

        let mut merge = Merge::new();
        let mut places = vec![StreamPosition::default(); streams.len()];
        let mut now = 5 * HOLD_BACK;
        for round in &rounds {
            now += round.after;
            merge.begin_round(at(now));
            for step in &round.steps {
                deliver(&mut merge, &streams, &mut places, now, step);
            }
            let until = at(now).minus(Nanos::from_ns(HOLD_BACK));
            release(&mut merge, until, &mut Fanout(vec![&mut live, &mut writer]));
        }
        release(&mut merge, Timestamp::MAX, &mut Fanout(vec![&mut live, &mut writer]));
        let written = writer.finish().unwrap();
        let Live(live) = live;

        // Every position of every stream was delivered or is in a gap.
        let delivered: u64 = live
            .items
            .iter()
            .map(|item| match item {
                Owned::Element { .. } => 1,
                Owned::Gap(gap) => gap.missed,
            })
            .sum();
        prop_assert_eq!(delivered, places.iter().map(|place| place.sequence).sum::<u64>());
        // The live order is the total one.
        prop_assert!(live.items.is_sorted_by_key(|item| (item.time(), item.stream())));

        let reader = TraceReader::open(dir.path()).unwrap();
        prop_assert!(reader.torn().is_empty() && reader.corrupt().is_empty());
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        prop_assert_eq!(&memory.items, &live.items);
        prop_assert_eq!(memory.advanced_to, live.advanced_to);
        prop_assert!(replayed.corrupt.is_empty());
        prop_assert_eq!(written.events + written.discarded, delivered);
        prop_assert_eq!(written.unrecorded, 0);
    }
}
