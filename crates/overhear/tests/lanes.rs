// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laned sensors that a directory owns: threads that begin and end, and the switch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use overhear::{ConcurrentSensor, Element, LanedSensor, Refused, Sensor};
use overhear_directory::{Begin, Directory, MonitorConnection, Query, SOCKET_VARIABLE};
use overhear_event::{GapCause, Inbox, Source, SourceError, StreamId, Timestamp};

#[derive(Element)]
#[repr(C)]
struct Value {
    thread: u64,
    value: u64,
}

/// The elements of a monitor: for each thread its values, in the order of their streams.
#[derive(Debug, Default)]
struct Received {
    values: BTreeMap<u64, Vec<u64>>,
    elements: u64,
    missed: u64,
}

impl Inbox for Received {
    fn open(&mut self, _: std::sync::Arc<overhear_event::StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, payload: &[u8]) {
        // The writer comes first.
        let word = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap());
        self.values.entry(word(8)).or_default().push(word(16));
        self.elements += 1;
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn complain(&mut self, complaint: SourceError) {
        panic!("{complaint:?}");
    }

    fn close(&mut self, _: StreamId) {}
}

/// Repeats a check until it is true; a watchdog ends tests whose condition never holds.
#[track_caller]
fn eventually(mut ask: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ask() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it does not come"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One test, because the environment contains the address of the directory.
#[test]
fn directory_reclaims_lanes_and_switches_sensors() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let directory = Directory::builder().standalone().start(&socket).unwrap();
    std::env::set_var(SOCKET_VARIABLE, directory.socket());
    threads_come_and_go(&directory);
    threads_end_without_destructors(&directory);
    sensors_are_switched(&directory);
}

fn query(names: &str) -> Query {
    Query::parse(names).unwrap()
}

fn threads_come_and_go(directory: &Directory) {
    const LANES: u64 = 3;
    const THREADS: u64 = 4 * LANES;
    const VALUES: u64 = 50;
    let sensor = LanedSensor::<Value>::builder("come_and_go")
        .lanes(LANES as u32)
        .register()
        .unwrap();
    assert!(sensor.is_connected(), "{:?}", sensor.not_connected_reason());
    let monitor = MonitorConnection::connect(directory.socket()).unwrap();
    let mut source = monitor.attach(query("come_and_go"), Begin::Now).unwrap();

    let mut refused = 0;
    for round in 0..THREADS / LANES {
        std::thread::scope(|scope| {
            let threads = (0..LANES).map(|index| {
                let (sensor, thread) = (&sensor, round * LANES + index);
                scope.spawn(move || {
                    let mut refused = 0;
                    // The earlier threads have ended, but the directory may not have noticed it.
                    eventually(|| match sensor.prepare_thread() {
                        Ok(()) => true,
                        Err(reason) => {
                            assert_eq!(reason, Refused::NoLane);
                            refused += 1;
                            false
                        }
                    });
                    for value in 0..VALUES {
                        sensor.write(&Value { thread, value }).unwrap();
                    }
                    refused
                })
            });
            let threads: Vec<_> = threads.collect();
            for thread in threads {
                refused += thread.join().unwrap();
            }
        });
    }
    let mut received = Received::default();
    // Refused writes are missed elements, which a gap counts.
    eventually(|| {
        source.poll(&mut received).unwrap();
        received.elements == THREADS * VALUES && received.missed >= refused
    });
    assert_eq!(received.missed, refused);
    assert_eq!(received.values.len() as u64, THREADS);
    for (thread, values) in received.values {
        assert_eq!(values, (0..VALUES).collect::<Vec<_>>(), "thread {thread}");
    }
}

/// The elements of a thread that ends by the bare system call.
const LAST_WORDS: u64 = 5;

/// Claims the only lane as soon as it is free, writes, and ends as no library does: no destructor
/// runs.
extern "C" fn end_abruptly(sensor: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the test keeps the sensor until this thread has ended.
    let sensor = unsafe { &*sensor.cast::<LanedSensor<Value>>() };
    eventually(|| sensor.prepare_thread().is_ok());
    for value in 0..LAST_WORDS {
        let element = Value { thread: 0, value };
        sensor.write(&element).expect("the lane is this thread's");
    }
    // SAFETY: ends this thread alone; the sensor, which it only borrowed, is all that it has.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended")
}

fn threads_end_without_destructors(directory: &Directory) {
    const THREADS: u64 = 4;
    let sensor = LanedSensor::<Value>::builder("abrupt").lanes(1).register();
    let sensor = sensor.unwrap();
    let monitor = MonitorConnection::connect(directory.socket()).unwrap();
    let mut source = monitor.attach(query("abrupt"), Begin::Now).unwrap();
    for _ in 0..THREADS {
        // SAFETY: the thread gets a sensor that outlives it, because it is joined; zeros are a
        // value of the handle, which the call fills.
        unsafe {
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let argument = std::ptr::from_ref(&sensor).cast_mut().cast();
            let attributes = std::ptr::null();
            let made = libc::pthread_create(&mut thread, attributes, end_abruptly, argument);
            assert_eq!(made, 0);
            assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
        }
    }
    let mut received = Received::default();
    eventually(|| {
        source.poll(&mut received).unwrap();
        received.elements == THREADS * LAST_WORDS
    });
    let each: Vec<u64> = (0..LAST_WORDS).collect();
    assert_eq!(received.values[&0], each.repeat(THREADS as usize));
}

fn sensors_are_switched(directory: &Directory) {
    let laned = LanedSensor::<Value>::builder("switched_laned")
        .register()
        .unwrap();
    let mut simple = Sensor::<Value>::builder("switched_simple")
        .register()
        .unwrap();
    let queue = ConcurrentSensor::<Value>::builder("switched_concurrent")
        .register()
        .unwrap();
    let element = Value {
        thread: 0,
        value: 1,
    };
    let mut monitor = MonitorConnection::connect(directory.socket()).unwrap();
    let published = |monitor: &mut MonitorConnection| {
        let records = monitor.list(&query("switched_*")).unwrap();
        records.iter().map(|record| record.published).sum::<u64>()
    };
    let all_are = |on: bool, simple: &Sensor<Value>| {
        let are = [laned.is_enabled(), simple.is_enabled(), queue.is_enabled()];
        are == [on; 3]
    };
    assert!(all_are(true, &simple));
    laned.write(&element).unwrap();
    simple.write(&element);
    queue.write(&element).unwrap();
    assert_eq!(published(&mut monitor), 3);

    assert_eq!(monitor.set_enabled(&query("switched_*"), false).unwrap(), 3);
    eventually(|| all_are(false, &simple));
    assert_eq!(laned.write(&element), Err(Refused::Off));
    assert_eq!(laned.begin().err(), Some(Refused::Off));
    simple.write(&element);
    assert_eq!(queue.write(&element), Err(Refused::Off));
    assert_eq!(queue.begin().err(), Some(Refused::Off));
    assert_eq!(published(&mut monitor), 3);

    assert_eq!(monitor.set_enabled(&query("switched_*"), true).unwrap(), 3);
    eventually(|| all_are(true, &simple));
    laned.write(&element).unwrap();
    simple.write(&element);
    queue.write(&element).unwrap();
    assert_eq!(published(&mut monitor), 6);
}
