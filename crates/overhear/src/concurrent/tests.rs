// SPDX-License-Identifier: MIT OR Apache-2.0
//! Concurrent sensors that nobody hears, read back from their private memory.

use overhear_event::TypeSchema;
use overhear_stream::Reader;

use super::{ConcurrentSensor, Refused};
use crate::{Element, FieldKind};

#[derive(Debug)]
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

fn sensor(writers: u32) -> ConcurrentSensor<Value> {
    ConcurrentSensor::builder("test")
        .writers(writers)
        .register()
        .unwrap()
}

/// Thread ids and values, and the number of void elements.
fn read(sensor: &ConcurrentSensor<Value>) -> (Vec<(u32, u64)>, u64) {
    // SAFETY: the words go out of scope before the sensor does.
    let words = unsafe { sensor.open.stream.mapping.words() };
    let mut reader = Reader::from_start(words, sensor.open.geometry()).unwrap();
    let (mut seen, mut last) = (Vec::new(), 0);
    let report = reader.poll(usize::MAX, |element| {
        assert!(element.stamp.as_raw() >= last, "stamps ascend");
        last = element.stamp.as_raw();
        let (writer, value) = element.payload.split_at(8);
        let tid = u32::from_ne_bytes(writer[..4].try_into().unwrap());
        seen.push((tid, u64::from_ne_bytes(value.try_into().unwrap())));
    });
    let report = report.unwrap();
    assert_eq!(report.missed, 0);
    (seen, report.void)
}

fn tid() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() }.try_into().unwrap()
}

#[test]
fn threads_share_one_order() {
    let sensor = sensor(4);
    let mut expected = vec![(tid(), 0)];
    sensor.write(&Value(0)).unwrap();
    std::thread::scope(|scope| {
        for value in 1..4 {
            let sensor = &sensor;
            let thread = scope.spawn(move || {
                sensor.write(&Value(value)).unwrap();
                tid()
            });
            expected.push((thread.join().unwrap(), value));
        }
    });
    assert_eq!(read(&sensor), (expected, 0));
}

#[test]
fn what_is_begun_is_committed_or_void() {
    let sensor = sensor(4);
    let outer = sensor.begin().unwrap();
    sensor.write(&Value(1)).unwrap();
    drop(sensor.begin().unwrap());
    let moved = sensor.begin().unwrap();
    let other = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            moved.commit(&Value(2));
            tid()
        });
        thread.join().unwrap()
    });
    outer.commit(&Value(3));
    let seen = [(tid(), 1), (other, 2), (tid(), 3)].to_vec();
    assert_eq!(read(&sensor), (seen, 1));
}

#[test]
fn without_an_element_a_write_is_refused() {
    let sensor = sensor(100);
    let capacity = sensor.open.geometry().capacity();
    // 64 that a sensor has that nobody hears, and 100 spare. A directory of this machine gives more.
    assert!(sensor.is_heard() || capacity == 256, "{capacity}");
    let held: Vec<_> = (0..capacity).map(|_| sensor.begin().unwrap()).collect();
    assert_eq!(sensor.write(&Value(1)), Err(Refused::Full));
    assert_eq!(sensor.open.writer.lost_full(), 1);
    drop(held);
    sensor.write(&Value(1)).unwrap();
}

#[test]
fn too_many_elements_are_no_queue() {
    let wanted = ConcurrentSensor::<Value>::builder("test").writers(100_000);
    let sentence = wanted.register().unwrap_err().to_string();
    assert!(sentence.contains("65,536"), "{sentence}");
}
