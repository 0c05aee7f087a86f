// SPDX-License-Identifier: MIT OR Apache-2.0
//! Concurrent sensors without a reader, read back from their private memory.

use overhear_admission::{AfterViolation, ArrivalBound, ConformanceCheck};
use overhear_event::{ClockId, Nanos, Rate, Timestamp, TypeSchema};
use overhear_stream::Reader;

use super::{ConcurrentSensor, Refused};
use crate::pace::PaceError;
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
fn begun_element_is_committed_or_void() {
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
fn write_without_free_element_is_refused() {
    let sensor = sensor(100);
    let capacity = sensor.open.geometry().capacity();
    // The 64 elements of a sensor without a reader, and 100 spare ones. A directory of this machine
    // grants more.
    assert!(sensor.is_connected() || capacity == 256, "{capacity}");
    let held: Vec<_> = (0..capacity).map(|_| sensor.begin().unwrap()).collect();
    assert_eq!(sensor.write(&Value(1)), Err(Refused::Full));
    assert_eq!(sensor.open.writer.lost_full(), 1);
    drop(held);
    sensor.write(&Value(1)).unwrap();
}

#[test]
fn queue_beyond_capacity_limit_is_refused() {
    let wanted = ConcurrentSensor::<Value>::builder("test").writers(100_000);
    let message = wanted.register().unwrap_err().to_string();
    assert!(message.contains("65,536"), "{message}");
}

/// Whether these stamps, in order, keep the declared rate exactly.
fn conforms(rate: Rate, stamps: &[u64]) -> bool {
    let constraint = ArrivalBound::from_rate(&rate).unwrap();
    let mut check = ConformanceCheck::new(constraint, AfterViolation::Keep);
    let violations = stamps
        .iter()
        .filter_map(|ns| check.push(Timestamp::from_monotonic_ns(*ns)));
    violations.count() == 0
}

/// The stamps of all elements, as times.
fn times(sensor: &ConcurrentSensor<Value>, clock: &(u64, u64, u64, u64)) -> Vec<u64> {
    // SAFETY: the words go out of scope before the sensor does.
    let words = unsafe { sensor.open.stream.mapping.words() };
    let mut reader = Reader::from_start(words, sensor.open.geometry()).unwrap();
    let mut times = Vec::new();
    let report = reader.poll(usize::MAX, |element| {
        times.push(element.stamp.as_raw());
    });
    assert_eq!(report.unwrap().missed, 0);
    if sensor.open.clock == ClockId::Monotonic {
        return times;
    }
    let &(ticks_0, ns_0, ticks_1, ns_1) = clock;
    let ns = |ticks: u64| {
        let passed = u128::from(ticks - ticks_0) * u128::from(ns_1 - ns_0);
        ns_0 + u64::try_from(passed / u128::from(ticks_1 - ticks_0)).unwrap()
    };
    times.into_iter().map(ns).collect()
}

fn both_clocks() -> (u64, u64) {
    let ticks = overhear_stream::read_hardware_ticks().as_raw();
    (ticks, overhear_directory::monotonic_now().as_monotonic_ns())
}

#[test]
fn paced_threads_keep_rate_of_stream() {
    let [period, distance, jitter] = [1_000, 500, 2_000].map(Nanos::from_us);
    let rate = Rate::new(period, distance, jitter).unwrap();
    let sensor = ConcurrentSensor::<Value>::builder("test")
        .writers(8)
        .rate(rate)
        .register()
        .unwrap();
    let begin = both_clocks();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let sensor = &sensor;
            scope.spawn(move || {
                for number in 0..12 {
                    sensor.pace().unwrap();
                    // Delayed between the two, as by a preemption.
                    if number % 4 == thread {
                        std::thread::sleep(std::time::Duration::from_micros(700));
                    }
                    sensor.write(&Value(number)).unwrap();
                }
            });
        }
    });
    let end = both_clocks();
    let times = times(&sensor, &(begin.0, begin.1, end.0, end.1));
    assert_eq!(times.len(), 48);
    let too_close = times.windows(2).filter(|pair| pair[1] - pair[0] < 500_000);
    assert_eq!(too_close.count(), 0, "{times:?}");
    assert!(conforms(rate, &times), "{times:?}");
}

#[test]
fn unused_grant_ends_with_next_call_or_timeout() {
    let [period, distance] = [100, 50].map(Nanos::from_us);
    let rate = Rate::new(period, distance, Nanos::ZERO).unwrap();
    let sensor = ConcurrentSensor::<Value>::builder("test")
        .rate(rate)
        .register()
        .unwrap();
    // The grant of this thread, which does not write: another thread waits until it is over, unless
    // by chance it begins to wait that late.
    let other_waits = |_| {
        sensor.pace().unwrap();
        sensor.pace().unwrap();
        let other = || sensor.pace().unwrap();
        let waited = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        waited > Nanos::from_ms(100)
    };
    assert!((0..20).any(other_waits));
    let undeclared = self::sensor(1);
    assert_eq!(undeclared.pace(), Err(PaceError));
}
