// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that a monitor switches off to keep a budget: every skipped write is counted, and each
//! run of them is between the correct elements.

use std::sync::Arc;

use overhear::{ConcurrentSensor, Element, LanedSensor, Refused, Sensor};
use overhear_directory::{Begin, Directory, MonitorConnection, Query, SOCKET_VARIABLE};
use overhear_event::{GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, Timestamp};

#[derive(Element)]
#[repr(C)]
struct Value {
    value: u64,
}

/// The items of one sensor in a monitor, in their order.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Value(u64),
    /// Number of skipped writes.
    Skipped(u64),
}
use Item::{Skipped, Value as Read};

#[derive(Debug, Default)]
struct Items(Vec<Item>);

impl Inbox for Items {
    fn open(&mut self, _: Arc<StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, payload: &[u8]) {
        // The value is last: the writer comes first, if there is one.
        let value = payload[payload.len() - 8..].try_into().unwrap();
        self.0.push(Read(u64::from_ne_bytes(value)));
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, cause: GapCause) {
        assert_eq!(cause, GapCause::Budget);
        self.0.push(Skipped(missed));
    }

    fn complain(&mut self, complaint: SourceError) {
        panic!("{complaint:?}");
    }

    fn close(&mut self, _: StreamId) {}
}

/// A monitor of one sensor, and the connection by which it keeps its budget.
struct Monitor {
    source: Box<dyn Source>,
    budget: MonitorConnection,
    stream: StreamId,
}

impl Monitor {
    fn of(directory: &Directory, id: &str) -> Self {
        let query = Query::parse(id).unwrap();
        let connect = || MonitorConnection::connect(directory.socket()).unwrap();
        let stream = connect().list(&query).unwrap()[0].descriptor.id;
        Self {
            source: Box::new(connect().attach(query, Begin::Now).unwrap()),
            budget: connect(),
            stream,
        }
    }

    fn switch(&mut self, on: bool) {
        let stream = [self.stream];
        let (off, on): (&[_], &[_]) = if on { (&[], &stream) } else { (&stream, &[]) };
        assert_eq!(self.budget.switch_for_budget(off, on).unwrap(), 1);
        // The same request again changes nothing.
        assert_eq!(self.budget.switch_for_budget(off, on).unwrap(), 0);
    }

    fn read(&mut self) -> Vec<Item> {
        let mut items = Items::default();
        self.source.poll(&mut items).unwrap();
        items.0
    }
}

/// Writes 1 to 8 with switches between them, polls where the script requires it, and compares.
fn skipped_writes_are_counted_at_their_position(
    directory: &Directory,
    id: &str,
    mut write: impl FnMut(u64) -> bool,
) {
    let mut monitor = Monitor::of(directory, id);
    assert!(write(1));
    // Off between two polls.
    monitor.switch(false);
    assert!(!write(2) && !write(2));
    assert_eq!(monitor.read(), [Read(1), Skipped(2)]);
    // Off from before the last poll on, then on.
    assert!(!write(2));
    monitor.switch(true);
    assert!(write(3));
    assert_eq!(monitor.read(), [Skipped(1), Read(3)]);
    // Off and on between two polls.
    assert!(write(4));
    monitor.switch(false);
    assert!(!write(5) && !write(5) && !write(5));
    monitor.switch(true);
    assert!(write(6));
    assert_eq!(monitor.read(), [Read(4), Skipped(3), Read(6)]);
    // Twice off between two polls: the position of the first run is unknown, so it may be anywhere.
    assert!(write(7));
    for value in [8, 9] {
        monitor.switch(false);
        assert!(!write(0));
        monitor.switch(true);
        assert!(write(value));
    }
    let expected = [
        Skipped(0),
        Read(7),
        Skipped(0),
        Read(8),
        Skipped(2),
        Read(9),
    ];
    assert_eq!(monitor.read(), expected);
    // The request ends with its connection. A sensor that is off for another reason counts nothing.
    monitor.switch(false);
    let query = Query::parse(id).unwrap();
    let mut user = MonitorConnection::connect(directory.socket()).unwrap();
    user.set_enabled(&query, false).unwrap();
    assert!(!write(0));
    assert_eq!(monitor.read(), []);
    user.set_enabled(&query, true).unwrap();
    assert!(!write(0));
    assert_eq!(monitor.read(), [Skipped(1)]);
    monitor.budget = user;
    while !write(10) {
        std::thread::yield_now();
    }
    let last = monitor.read();
    assert_eq!(last.last(), Some(&Read(10)), "{last:?}");
}

/// One test, because the environment contains the address of the directory.
#[test]
fn budget_counts_skipped_writes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let directory = Directory::builder().standalone().start(&socket).unwrap();
    std::env::set_var(SOCKET_VARIABLE, &socket);

    let mut simple = Sensor::<Value>::builder("simple").register().unwrap();
    skipped_writes_are_counted_at_their_position(&directory, "simple", |value| {
        let is_on = simple.is_enabled();
        if is_on {
            simple.write(&Value { value });
        }
        is_on
    });
    let laned = LanedSensor::<Value>::builder("laned").register().unwrap();
    skipped_writes_are_counted_at_their_position(&directory, "laned", |value| {
        let written = laned.write(&Value { value });
        assert!(matches!(written, Ok(()) | Err(Refused::Off)));
        written.is_ok()
    });
    let queue = ConcurrentSensor::<Value>::builder("concurrent")
        .register()
        .unwrap();
    skipped_writes_are_counted_at_their_position(&directory, "concurrent", |value| {
        let written = queue.write(&Value { value });
        assert!(matches!(written, Ok(()) | Err(Refused::Off)));
        written.is_ok()
    });
}
