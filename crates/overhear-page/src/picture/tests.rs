// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pictures with a limit below the number of items.

use std::sync::Arc;

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
    Timestamp, TypeSchema,
};
use serde_json::Value;

use super::{Cursor, Picture, Remedy, Room, TimeRange};

fn at(us: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(us * 1_000)
}

const ALL: (Timestamp, Timestamp) = (Timestamp::ZERO, Timestamp::MAX);

fn sensor(id: u32, name: &str) -> StreamDescriptor {
    let schema = TypeSchema::builder("t")
        .field("value", FieldKind::U32, "")
        .field("text", FieldKind::Text(4), "");
    StreamDescriptor::new(
        StreamId::from_raw(id),
        Origin::program(42, "p"),
        name,
        schema.build().unwrap(),
    )
}

fn write(picture: &mut Picture, stream: &StreamDescriptor, us: u64) {
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&(us as u32).to_ne_bytes());
    payload[4..6].copy_from_slice(b"<\"");
    picture.element(&ElementView {
        stream,
        sequence: us,
        time: at(us),
        payload: &payload,
    });
}

/// Threads 7 and 8 enter the CPU alternately.
fn switch(picture: &mut Picture, us: u64, number: u64) {
    let tids = [7 + (number % 2) as u32, 7 + ((number + 1) % 2) as u32];
    let switch = Switch {
        prev_tid: tids[0],
        next_tid: tids[1],
        prev_pid: 7,
        next_pid: 7,
        prev_state: 1,
        flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
        prev_run_ns: Switch::UNKNOWN,
    };
    let mut stream = sensor(1, SCHED_SWITCH);
    stream.origin = Origin::Kernel { cpu: 0 };
    stream.schema = Arc::new(Switch::schema());
    picture.element(&ElementView {
        stream: &stream,
        sequence: number,
        time: at(us),
        payload: &switch.to_payload(),
    });
}

fn gap(picture: &mut Picture, stream: &StreamDescriptor, from_us: u64) {
    let gap = Gap {
        stream: stream.id,
        first: 1,
        missed: 3,
        from: at(from_us),
        to: at(from_us + 1),
        cause: GapCause::Overwritten,
    };
    picture.gap(stream, &gap);
}

fn document(picture: &Picture) -> Value {
    serde_json::to_value(picture.whole(at(0))).unwrap()
}

fn count(picture: &Picture, stream: &StreamDescriptor) -> u64 {
    let index = picture.columns.index(stream).unwrap();
    picture.columns.after(&[], usize::MAX)[index].count()
}

#[test]
fn slow_sensors_keep_all_and_fast_ones_share_the_rest() {
    let (slow, fast, faster) = (sensor(1, "slow"), sensor(2, "fast"), sensor(3, "faster"));
    let room = Room {
        element_bytes: 20_000,
        ..Room::PAGE
    };
    let mut picture = Picture::new(room, None, ALL);
    let streams = [&slow, &fast, &faster].map(|stream| Arc::new(stream.clone()));
    streams.iter().for_each(|stream| picture.announce(stream));
    picture.expect(streams.iter().zip([20, 10_000, 20_000]));
    for us in 0..10_000 {
        write(&mut picture, &fast, us);
        write(&mut picture, &faster, us);
        write(&mut picture, &faster, us);
        if us % 500 == 0 {
            write(&mut picture, &slow, us);
        }
    }
    picture.end(at(10_000));
    assert_eq!(count(&picture, &slow), 20);
    assert_eq!(count(&picture, &fast), count(&picture, &faster));
    assert!(count(&picture, &fast) > 200);
    let html = serde_json::to_string(&document(&picture)).unwrap();
    assert!(html.len() < 21_500, "{}", html.len());
    let cuts = picture.columns.cuts();
    let cuts: Vec<_> = cuts
        .iter()
        .map(|it| (it.label.as_str(), it.dropped))
        .collect();
    let (kept, kept_faster) = (count(&picture, &fast), count(&picture, &faster));
    let expected = [
        ("p(42)/faster", 20_000 - kept_faster),
        ("p(42)/fast", 10_000 - kept),
    ];
    assert_eq!(cuts, expected);
    // One of them has all elements: the picture covers the whole run.
    assert_eq!(document(&picture)["end_ns"], 10_000_000);
}

/// A picture with memory for few elements, and the sensor that it shows.
fn picture_of_few_elements() -> (Picture, StreamDescriptor) {
    let fast = sensor(2, "fast");
    let room = Room {
        element_bytes: 2_000,
        ..Room::PAGE
    };
    let mut picture = Picture::new(room, None, ALL);
    picture.open(&fast);
    (picture, fast)
}

#[test]
fn picture_of_a_run_that_goes_on_stops_taking_elements() {
    let (mut picture, fast) = picture_of_few_elements();
    for us in 0..1_000 {
        write(&mut picture, &fast, us);
    }
    let kept = count(&picture, &fast);
    assert!((20..100).contains(&kept), "{kept}");
    // All displayed items end there.
    assert_eq!(document(&picture)["end_ns"], kept * 1_000);
    let (first, _) = picture.piece(at(0), &mut Cursor::default(), 10);
    let first = serde_json::to_value(first).unwrap();
    let texts = first["sensors"][0]["fields"][1]["values"]
        .as_array()
        .unwrap();
    assert_eq!(texts, &vec![Value::from("<\""); 10]);
}

#[test]
fn full_picture_states_the_time_up_to_which_it_shows_states() {
    let room = Room {
        intervals: 10,
        ..Room::PAGE
    };
    let mut picture = Picture::new(room, None, ALL);
    for number in 0..100 {
        switch(&mut picture, 10 + number * 10, number);
    }
    picture.end(at(2_000));
    let document = document(&picture);
    let threads = document["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    let end_ns = document["end_ns"].as_u64().unwrap();
    assert!((50_000..100_000).contains(&end_ns), "{end_ns}");
    let left_out = document["left_out"].to_string();
    assert!(
        left_out.contains("no room for states of threads from"),
        "{left_out}"
    );
    // The other sensor continues, and the states of the threads are unknown from then on.
    let marks = sensor(2, "marks");
    write(&mut picture, &marks, 0);
    picture.open(&marks);
    write(&mut picture, &marks, 1_500);
    let document = self::document(&picture);
    assert_eq!(document["end_ns"], 2_000_000);
    for thread in document["threads"].as_array().unwrap() {
        assert_eq!(thread["open"]["state"], 5);
        assert_eq!(thread["open"]["from_ns"], end_ns);
    }
}

#[test]
fn picture_ends_at_the_last_gap_that_fits() {
    let (marks, other) = (sensor(2, "marks"), sensor(3, "other"));
    let room = Room {
        gaps: 2,
        ..Room::PAGE
    };
    let mut picture = Picture::new(room, None, ALL);
    picture.open(&marks);
    picture.open(&other);
    for number in 0..10 {
        let us = 100 + number * 100;
        write(&mut picture, &marks, us);
        write(&mut picture, &other, us);
        switch(&mut picture, us, number);
        gap(&mut picture, &marks, us + 10);
    }
    picture.end(at(2_000));
    let document = document(&picture);
    assert_eq!(document["gaps"].as_array().unwrap().len(), 2);
    assert_eq!((count(&picture, &marks), count(&picture, &other)), (3, 3));
    let left_out = document["left_out"].to_string();
    assert!(
        left_out.contains("8 gaps, and all else, from 310 us on"),
        "{left_out}"
    );
    assert!(document["end_ns"].as_u64().unwrap() <= 400_000);
}

#[test]
fn picture_of_a_range_counts_from_its_begin() {
    let marks = sensor(2, "marks");
    let range = TimeRange {
        from: Nanos::from_us(250),
        to: Some(Nanos::from_us(550)),
    };
    let begin = at(1_000);
    let mut picture = Picture::new(Room::PAGE, None, range.of_run(begin));
    picture.open(&marks);
    for number in 0..10 {
        let us = 1_000 + number * 100;
        write(&mut picture, &marks, us);
        switch(&mut picture, us, number);
        gap(&mut picture, &marks, us + 10);
    }
    picture.end(at(3_000));
    let piece = picture.whole(begin);
    let piece = piece.with_remedy(Remedy::Recording("run 1".to_string()));
    let document = serde_json::to_value(piece).unwrap();
    assert_eq!(document["origin_ns"], 1_250_000);
    assert_eq!(document["end_ns"], 1_550_000);
    assert_eq!(document["sensors"][0]["first_ns"], 50_000);
    assert_eq!(count(&picture, &marks), 3);
    assert_eq!(document["gaps"].as_array().unwrap().len(), 3);
    assert_eq!(document["threads"][0]["first_ns"], 0);
    let left_out = document["left_out"].as_array().unwrap();
    assert_eq!(
        left_out,
        &["The time-line shows 250 us to 550 us of the run; its times count from 250 us."]
    );
}

#[test]
fn message_names_commands_that_can_be_typed() {
    let (mut picture, fast) = picture_of_few_elements();
    for number in 0..1_000 {
        write(&mut picture, &fast, 1_000 + number * 100_000);
    }
    let piece = picture.whole(at(0));
    assert!(!piece.left_out()[0].contains('`'), "{:?}", piece.left_out());
    let piece = piece.with_remedy(Remedy::Recording("run 1".to_string()));
    let [message] = &piece.left_out()[..] else {
        panic!("{:?}", piece.left_out());
    };
    for part in [
        "elements of p(42)/fast from ",
        "`overhear report 'run 1' --html FILE --from ",
        "ms` shows what follows",
        "`overhear export 'run 1' --to perfetto --output FILE`",
    ] {
        assert!(message.contains(part), "{message}");
    }
}
