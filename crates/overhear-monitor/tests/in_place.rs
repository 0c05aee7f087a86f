// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large elements, evaluated in place: the same results as by copies, and exact counts of the
//! elements that were overwritten before or during the evaluation.

mod support;

use std::sync::{Arc, Mutex};

use overhear_event::{
    Analysis, ClockId, ElementInPlace, ElementKey, ElementView, FieldKind, Gap, GapCause, Inbox,
    Nanos, Source, SourceError, StreamDescriptor, Ticks, Timestamp, TypeSchema, WriterKind,
};
use overhear_monitor::{Binding, Monitor, QueueMemory, UpdateSet, UpdateState};
use overhear_stream::{Geometry, Header, OwnedWords, ReadItem, Reader, RingInPlace, SimpleWriter};

use support::{at, descriptor};

const CAPACITY: u64 = 8;
const PIXELS: u16 = 1000;

/// A sensor whose frames have a number, and equal pixels.
#[derive(Clone)]
struct Camera(Arc<Mutex<SimpleWriter<OwnedWords>>>);

impl Camera {
    /// Writes frames `numbers`; each is stamped with ten times its number.
    fn film(&self, numbers: std::ops::Range<u64>) {
        let mut writer = self.0.lock().unwrap();
        for number in numbers {
            let mut payload = number.to_ne_bytes().to_vec();
            payload.resize(8 + PIXELS as usize, number as u8);
            writer.write(&payload, || Ticks::from_raw(10 * number));
        }
    }
}

struct Film {
    stream: Arc<StreamDescriptor>,
    memory: OwnedWords,
    geometry: Geometry,
    reader: Reader<OwnedWords>,
    opened: Option<bool>,
}

fn camera() -> (Camera, Film) {
    let schema = TypeSchema::builder("frame")
        .field("number", FieldKind::U64, "")
        .field("pixels", FieldKind::Text(PIXELS), "");
    let schema = Arc::new(schema.build().unwrap());
    let geometry = Geometry::new(schema.size(), CAPACITY).unwrap();
    let memory = OwnedWords::zeroed(geometry.words());
    Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, 1).store(&memory);
    let stream = Arc::new(StreamDescriptor {
        schema,
        ..(*descriptor(1, "frame", CAPACITY)).clone()
    });
    let writer = SimpleWriter::new(memory.share(), geometry).unwrap();
    let film = Film {
        stream,
        geometry,
        reader: Reader::from_start(memory.share(), geometry).unwrap(),
        memory,
        opened: None,
    };
    (Camera(Arc::new(Mutex::new(writer))), film)
}

impl Source for Film {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let in_place = *self.opened.get_or_insert_with(|| {
            let payloads = RingInPlace::new(self.memory.share(), self.geometry).unwrap();
            let taken = inbox.open_in_place(Arc::clone(&self.stream), Arc::new(payloads));
            if taken {
                self.reader.heads_only();
            }
            taken
        });
        let id = self.stream.id;
        let end = self.reader.published();
        let result = self.reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                let time = at(element.stamp.as_raw());
                match in_place {
                    true => inbox.in_place(id, element.sequence, time),
                    false => inbox.element(id, element.sequence, time, element.payload),
                }
            }
            ReadItem::Missed { first, count } => inbox.gap(id, first, count, GapCause::Overwritten),
        });
        result
            .map(drop)
            .map_err(|error| SourceError(error.to_string()))
    }
}

/// The records of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Record {
    Frame(u64, u64),
    Dropped(u64),
    Gap(u64, u64, u64, u64),
}

/// Records each frame with its last pixel, in place or not, and writes further frames while it
/// prepares the one with this number.
struct Notes {
    in_place: bool,
    prepared: Option<(u64, u64)>,
    meanwhile: Option<(u64, Camera, std::ops::Range<u64>)>,
    records: Vec<Record>,
    copies: u64,
}

impl Notes {
    fn new(in_place: bool) -> Self {
        Self {
            in_place,
            prepared: None,
            meanwhile: None,
            records: Vec::new(),
            copies: 0,
        }
    }
}

impl Analysis for Notes {
    fn reads_in_place(&self, _: &StreamDescriptor) -> bool {
        self.in_place
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let number = element.number(0).and_then(|number| number.as_u64());
        let number = number.unwrap();
        if let Some((_, camera, frames)) = self.meanwhile.take_if(|it| it.0 == number) {
            camera.film(frames);
        }
        let mut pixel = [0];
        element.load(7 + PIXELS as usize, &mut pixel);
        self.prepared = Some((number, pixel[0].into()));
        true
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let (number, pixel) = self.prepared.take().unwrap();
        self.records.push(match valid {
            true => Record::Frame(number, pixel),
            false => Record::Dropped(element.sequence),
        });
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let number = element.field("number").and_then(|number| number.as_u64());
        let pixel = *element.payload.last().unwrap();
        self.copies += 1;
        self.records
            .push(Record::Frame(number.unwrap(), pixel.into()));
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        assert_eq!(gap.cause, GapCause::Overwritten);
        let (from, to) = (gap.from.as_monotonic_ns(), gap.to.as_monotonic_ns());
        self.records
            .push(Record::Gap(gap.first, gap.missed, from, to));
    }

    fn advance(&mut self, _: Timestamp) {}
}

fn monitor(film: Film) -> Monitor {
    let mut monitor = Monitor::with_memory(Nanos::from_ns(100), QueueMemory::Reserved);
    monitor.add_source(Box::new(film));
    monitor
}

fn frames(numbers: std::ops::Range<u64>) -> Vec<Record> {
    numbers
        .map(|number| Record::Frame(number, number))
        .collect()
}

#[test]
fn results_in_place_and_by_copies_are_equal() {
    for in_place in [false, true] {
        let (camera, film) = camera();
        let stream = Arc::clone(&film.stream);
        let mut monitor = monitor(film);
        let mut notes = Notes::new(in_place);
        for number in 0..20 {
            camera.film(number..number + 1);
            // Six frames are in the buffer before the first is old enough.
            monitor.round(at(10 * number + 50), &mut notes);
        }
        monitor.finish(at(1_000), &mut notes);
        assert_eq!(notes.records, frames(0..20), "{in_place}");
        assert_eq!(notes.copies, if in_place { 0 } else { 20 });
        assert_eq!((monitor.elements(), monitor.losses().missed()), (20, 0));
        // Without copies the monitor's memory holds times and sequences.
        let payloads = 2 * CAPACITY as usize * PIXELS as usize;
        let all = overhear_monitor::Merge::bytes_for(stream.schema.size(), stream.capacity);
        let expected = if in_place {
            all - payloads - 16 * 8
        } else {
            all
        };
        assert_eq!(monitor.memory_bytes(), expected);
    }
}

#[test]
fn adjacent_overwritten_elements_are_one_gap() {
    let (camera, film) = camera();
    let mut monitor = monitor(film);
    let mut notes = Notes::new(true);
    camera.film(0..5);
    monitor.round(at(120), &mut notes);
    assert_eq!(notes.records, frames(0..2));
    // Laps frames 2 and 3: seven are readable. The fourth, at 40 ns, still exists.
    camera.film(5..11);
    monitor.round(at(200), &mut notes);
    let mut expected = frames(0..2);
    expected.push(Record::Gap(2, 2, 10, 30));
    expected.extend(frames(4..10));
    assert_eq!(notes.records, expected);
    monitor.finish(at(1_000), &mut notes);
    expected.extend(frames(10..11));
    assert_eq!(notes.records, expected);
    assert_eq!((monitor.elements(), monitor.losses().missed()), (9, 2));
}

#[test]
fn element_overwritten_during_prepare_is_dropped_and_missed() {
    let (camera, film) = camera();
    let mut monitor = monitor(film);
    let mut notes = Notes::new(true);
    // While frame 1 is prepared, its slot and the next are used for the frames 9 and 10.
    notes.meanwhile = Some((1, camera.clone(), 4..10));
    camera.film(0..4);
    monitor.round(at(140), &mut notes);
    let mut expected = frames(0..1);
    expected.push(Record::Dropped(1));
    expected.push(Record::Gap(1, 2, 0, 20));
    expected.extend(frames(3..4));
    assert_eq!(notes.records, expected);
    monitor.finish(at(2_000), &mut notes);
    expected.extend(frames(4..10));
    assert_eq!(notes.records, expected);
    assert_eq!((monitor.elements(), monitor.losses().missed()), (8, 2));
}

#[test]
fn updates_in_a_set_evaluate_an_element_all_or_none() {
    let (camera, film) = camera();
    let mut monitor = monitor(film);
    let mut set = UpdateSet::new();
    let mut placed = Notes::new(true);
    placed.meanwhile = Some((2, camera.clone(), 4..10));
    let copied = set.add(Notes::new(false), Binding::new("copied")).unwrap();
    let placed = set.add(placed, Binding::new("placed")).unwrap();
    // Evaluates from the second frame on.
    let late = Binding::new("late").start(overhear_monitor::Start::At(at(10)));
    let late = set.add(Notes::new(true), late).unwrap();
    camera.film(0..4);
    monitor.round(at(140), &mut set);
    monitor.finish(at(2_000), &mut set);
    let statuses = [copied.status(), placed.status(), late.status()];
    drop(set);
    for (status, elements) in statuses.iter().zip([9, 9, 8]) {
        assert_eq!(status.state, UpdateState::Running);
        assert_eq!(
            (status.elements, status.missed),
            (elements, 1),
            "{status:?}"
        );
    }
    let [copied, mut placed, mut late] =
        [copied, placed, late].map(|update| update.take().unwrap());
    assert_eq!((copied.copies, placed.copies, late.copies), (9, 0, 0));
    let mut expected = frames(0..2);
    expected.push(Record::Gap(2, 1, 10, 20));
    expected.extend(frames(3..10));
    assert_eq!(copied.records, expected);
    for placed in [&mut placed, &mut late] {
        placed.records.retain(|it| *it != Record::Dropped(2));
    }
    assert_eq!(placed.records, expected);
    assert_eq!(late.records, expected[1..]);
}

#[test]
fn update_added_to_a_copied_stream_gets_copies() {
    let (camera, film) = camera();
    let mut monitor = monitor(film);
    let mut set = UpdateSet::new();
    let first = set.add(Notes::new(false), Binding::new("first")).unwrap();
    camera.film(0..1);
    monitor.round(at(1_000), &mut set);
    let second = set.add(Notes::new(true), Binding::new("second")).unwrap();
    camera.film(101..103);
    monitor.round(at(2_000), &mut set);
    drop(set);
    let (first, second) = (first.take().unwrap(), second.take().unwrap());
    assert_eq!((first.copies, second.copies), (3, 2));
    assert_eq!(
        second.records,
        [Record::Frame(101, 101), Record::Frame(102, 102)]
    );
}
