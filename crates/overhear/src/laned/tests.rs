// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laned sensors without a reader, read back from their private memory.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use overhear_event::{Nanos, Rate, TypeSchema};
use overhear_stream::{Reader, Shape, Tally};

use super::{lane_words, LanedSensor, Refused};
use crate::pace::PaceError;
use crate::{Element, FieldKind};

struct Value(u64);

impl Element for Value {
    fn schema() -> TypeSchema {
        TypeSchema::builder("value")
            .field("value", FieldKind::U64, "")
            .build()
            .expect("the schema is well-formed")
    }

    fn as_bytes(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(&self.0)
    }
}

fn sensor(lanes: u32) -> LanedSensor<Value> {
    LanedSensor::builder("test")
        .lanes(lanes)
        .register()
        .unwrap()
}

/// For each lane: thread ids and values.
fn read(sensor: &LanedSensor<Value>) -> Vec<Vec<(u32, u64)>> {
    let stream = &sensor.open.stream;
    let Shape::Laned(pool) = stream.shape else {
        panic!("not laned")
    };
    let read = |lane| {
        let words = lane_words(stream, &pool, lane).unwrap();
        let mut seen = Vec::new();
        let mut reader = Reader::from_start(words, *pool.lane()).unwrap();
        let report = reader.poll(usize::MAX, |element| {
            let (writer, value) = element.payload.split_at(8);
            let tid = u32::from_ne_bytes(writer[..4].try_into().unwrap());
            seen.push((tid, u64::from_ne_bytes(value.try_into().unwrap())));
        });
        assert_eq!(report.unwrap().missed, 0);
        seen
    };
    (0..pool.lanes()).map(read).collect()
}

fn tid() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }.try_into().unwrap()
}

fn nested(sensor: &LanedSensor<Value>) -> u64 {
    sensor
        .open
        .states
        .iter()
        .map(|lane| lane.lost_nested())
        .sum()
}

#[test]
fn thread_writes_its_own_lane() {
    let sensor = sensor(4);
    let write = |values: std::ops::Range<u64>| {
        values.for_each(|value| sensor.write(&Value(value)).unwrap());
        tid()
    };
    let mut expected = vec![(write(0..20), 0)];
    std::thread::scope(|scope| {
        let threads = [20, 40].map(|from| scope.spawn(move || write(from..from + 20)));
        for (thread, from) in threads.into_iter().zip([20, 40]) {
            expected.push((thread.join().unwrap(), from));
        }
    });
    let mut seen = read(&sensor);
    seen.retain(|lane| !lane.is_empty());
    assert_eq!(seen.len(), 3);
    for (tid, from) in expected {
        let values: Vec<_> = (from..from + 20).map(|value| (tid, value)).collect();
        assert!(seen.contains(&values), "{tid} from {from} in {seen:?}");
    }
}

#[test]
fn write_without_lane_is_refused_and_counted() {
    let sensor = sensor(1);
    sensor.prepare_thread().unwrap();
    let refused = std::thread::scope(|scope| {
        let other = scope.spawn(|| [1, 2, 3].map(|value| sensor.write(&Value(value))));
        other.join().unwrap()
    });
    assert_eq!(refused, [Err(Refused::NoLane); 3]);
    // SAFETY: the mapping lives in the sensor.
    let words = unsafe { sensor.open.stream.mapping.words() };
    let lost_full = overhear_stream::Words::word(&words, 144 / 8);
    assert_eq!(lost_full.load(overhear_stream::sync::Ordering::Relaxed), 3);
    assert_eq!(sensor.write(&Value(4)), Ok(()));
}

#[test]
fn dropped_guard_gives_slot_back() {
    let sensor = sensor(1);
    let mut write = sensor.begin().unwrap();
    write.fill(&Value(99));
    assert_eq!(sensor.write(&Value(98)), Err(Refused::Nested));
    drop(write);
    sensor.write(&Value(1)).unwrap();
    sensor.begin().unwrap().commit(&Value(2)).unwrap();
    // A panic between begin and commit, caught.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _write = sensor.begin().unwrap();
        panic!("between begin and commit");
    }));
    assert!(panicked.is_err());
    sensor.write(&Value(3)).unwrap();
    assert_eq!(
        read(&sensor),
        [[1, 2, 3].map(|value| (tid(), value)).to_vec()]
    );
    assert_eq!(nested(&sensor), 1);
}

#[test]
fn guard_returned_to_writing_caller_is_refused() {
    #[inline(never)]
    fn begin(sensor: &LanedSensor<Value>) -> super::LanedWrite<'_, Value> {
        let room = std::hint::black_box([0_u8; 4096]);
        let write = sensor.begin().unwrap();
        std::hint::black_box(room);
        write
    }
    let sensor = sensor(1);
    let write = begin(&sensor);
    // Not deeper than the frame that began: it counts as abandoned.
    sensor.write(&Value(1)).unwrap();
    assert_eq!(write.commit(&Value(99)), Err(Refused::Nested));
    assert_eq!(read(&sensor), [[(tid(), 1)].to_vec()]);
    assert_eq!(nested(&sensor), 1);
}

#[test]
fn thread_writes_more_sensors_than_its_slot_has_entries() {
    let sensors: Vec<_> = (0..40).map(|_| sensor(2)).collect();
    for value in 0..10 {
        for sensor in &sensors {
            sensor.write(&Value(value)).unwrap();
        }
    }
    for sensor in &sensors {
        let mut seen = read(sensor);
        seen.retain(|lane| !lane.is_empty());
        assert_eq!(
            seen,
            [(0..10).map(|value| (tid(), value)).collect::<Vec<_>>()]
        );
    }
}

#[test]
fn sensors_are_registered_and_dropped_repeatedly() {
    for value in 0..1000 {
        let sensor = sensor(1);
        sensor.write(&Value(value)).unwrap();
        assert_eq!(read(&sensor), [[(tid(), value)].to_vec()]);
    }
}

#[test]
fn paced_thread_keeps_rate_of_its_lane() {
    let [period, distance] = [2, 2].map(Nanos::from_ms);
    let rate = Rate::new(period, distance, Nanos::ZERO).unwrap();
    let sensor = LanedSensor::<Value>::builder("test")
        .lanes(2)
        .rate(rate)
        .register()
        .unwrap();
    // Two threads own the lanes of the pool; this one gets none and need not wait.
    let barrier = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                sensor.pace().unwrap();
                barrier.wait();
                let mut last = None;
                for number in 0..8 {
                    sensor.pace().unwrap();
                    // The distance contains no element before it or after it.
                    let allowed = std::time::Instant::now();
                    assert!(last.is_none_or(|last| allowed - last >= Duration::from_millis(2)));
                    sensor.write(&Value(number)).unwrap();
                    last = Some(allowed);
                }
            });
        }
        barrier.wait();
        assert_eq!(sensor.pace().unwrap(), Nanos::ZERO);
    });
    let (mapping, shape) = (&sensor.open.stream.mapping, &sensor.open.stream.shape);
    // SAFETY: the words go out of scope before the sensor does.
    let tally = Tally::of_sensor(&unsafe { mapping.words() }, shape);
    assert_eq!(tally.lost_full, 0, "to ask is no write");
    let lanes = read(&sensor);
    assert_eq!(lanes.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8]);
    assert_eq!(self::sensor(1).pace(), Err(PaceError));
}
