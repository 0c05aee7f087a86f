// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that a monitor switches off to keep a budget: every skipped write is counted, and each
//! run of them is between the correct elements.

use std::sync::Arc;

use overhear::{ConcurrentSensor, Element, LanedSensor, Nanos, Refused, Sampler, Sensor};
use overhear_directory::{
    AttachedSource, Begin, BudgetSwitch, Directory, MonitorConnection, Needs, Query,
    SOCKET_VARIABLE,
};
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

/// Attaches to sensors, with needs that yield to budgets or not.
fn attach(directory: &Directory, id: &str, yields: bool) -> AttachedSource {
    let connection = MonitorConnection::connect(directory.socket()).unwrap();
    let needs = if yields {
        Needs::all().yield_to_budgets()
    } else {
        Needs::all()
    };
    let query = Query::parse(id).unwrap();
    connection.attach_needing(query, Begin::Now, needs).unwrap()
}

impl Monitor {
    fn of(directory: &Directory, id: &str) -> Self {
        let query = Query::parse(id).unwrap();
        let connect = || MonitorConnection::connect(directory.socket()).unwrap();
        let stream = connect().list(&query).unwrap()[0].descriptor.id;
        Self {
            source: Box::new(attach(directory, id, true)),
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
    sampler_counts_due_samples(&directory);
    what_other_monitors_need_stays_on(&directory, &mut simple);
    sensors_that_end_leave_no_request(&directory);
    drop(directory);
    embedded_monitor_yields_while_it_has_a_budget(&folder.path().join("embedded"));
}

/// Samples that are not due are not counted; jobs whose begin or end a budget skipped are.
fn sampler_counts_due_samples(directory: &Directory) {
    let hourly = Sampler::builder("sampled").every(Nanos::from_ms(3_600_000));
    let mut sampler = match hourly.counters(["major-faults"]).register() {
        Ok(sampler) => sampler,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let mut monitor = Monitor::of(directory, "sampled");
    assert!(sampler.sample());
    monitor.switch(false);
    assert!(!sampler.sample(), "an hour has not passed");
    assert!(!sampler.job_end());
    let job = sampler.job();
    monitor.switch(true);
    drop(job);
    assert_eq!(sampler.written(), 1, "the begin of the job was not seen");
    assert!(sampler.job_end());
    let items = monitor.read();
    assert!(
        matches!(items[..], [Read(_), Skipped(2), Read(_)]),
        "{items:?}"
    );
}

/// Waits until the writer finds its sensor in this state.
fn await_state(sensor: &mut Sensor<Value>, is_on: bool) {
    while sensor.is_enabled() != is_on {
        std::thread::yield_now();
    }
}

/// Polls until the directory has answered the request of a budget as expected.
fn await_kept_on(source: &mut AttachedSource, kept_on: u32) {
    while source.kept_on() != kept_on {
        source.poll(&mut Items::default()).unwrap();
    }
}

fn what_other_monitors_need_stays_on(directory: &Directory, sensor: &mut Sensor<Value>) {
    await_state(sensor, true);
    let mut connection = MonitorConnection::connect(directory.socket()).unwrap();
    let query = Query::parse("simple").unwrap();
    let stream = [connection.list(&query).unwrap()[0].descriptor.id];
    let mut strict = attach(directory, "simple", true);
    let mut lavish = attach(directory, "simple", true);
    // The smallest budget holds.
    lavish.switch_for_budget(&[], &stream);
    strict.switch_for_budget(&stream, &[]);
    await_state(sensor, false);
    lavish.switch_for_budget(&stream, &[]);
    lavish.switch_for_budget(&[], &stream);
    // One that attaches and does not need the sensor, or yields, changes nothing.
    let onlooker = attach(directory, "simple", true);
    let other = attach(directory, "laned", false);
    assert!(!sensor.is_enabled());
    // One without a budget gets every element, from the moment at which it is attached.
    let mut whole = attach(directory, "simple", false);
    assert!(sensor.is_enabled());
    sensor.write(&Value { value: 1 });
    let mut items = Items::default();
    whole.poll(&mut items).unwrap();
    assert_eq!(items.0, [Read(1)]);
    strict.switch_for_budget(&stream, &[]);
    await_kept_on(&mut strict, 1);
    assert!(sensor.is_enabled());
    // When it is gone, the budget has the sensor off again.
    drop(whole);
    await_state(sensor, false);
    strict.switch_for_budget(&[], &stream);
    await_state(sensor, true);
    await_kept_on(&mut strict, 0);
    strict.switch_for_budget(&stream, &[]);
    await_state(sensor, false);
    // A monitor that is gone has no budget.
    drop(strict);
    await_state(sensor, true);
    drop((lavish, onlooker, other));
}

/// More sensors than a budget may have off at a time end while they are off.
fn sensors_that_end_leave_no_request(directory: &Directory) {
    let mut monitor = attach(directory, "brief", true);
    // From now on the last writes of sensors are kept.
    assert!(monitor.writes().is_empty());
    for round in 0..4_200_u32 {
        let mut sensor = Sensor::<Value>::builder("brief").register().unwrap();
        let mut opened = Opened::default();
        while opened.0.is_none() {
            monitor.poll(&mut opened).unwrap();
        }
        let stream = [opened.0.unwrap()];
        monitor.switch_for_budget(&stream, &[]);
        await_state(&mut sensor, false);
        // Two writes that are skipped are counted, whatever number its stream had before.
        assert!(!sensor.is_enabled() && !sensor.is_enabled());
        drop(sensor);
        let mut ended = Vec::new();
        while ended.is_empty() {
            monitor.poll(&mut opened).unwrap();
            ended = monitor.writes();
            ended.retain(|writes| writes.has_ended);
        }
        assert!(ended[0].skipped >= 2, "{round}: {ended:?}");
    }
}

/// The streams that are opened, and no complaint.
#[derive(Debug, Default)]
struct Opened(Option<StreamId>);

impl Inbox for Opened {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        self.0 = Some(stream.id);
    }

    fn element(&mut self, _: StreamId, _: u64, _: Timestamp, _: &[u8]) {}

    fn gap(&mut self, _: StreamId, _: u64, _: u64, _: GapCause) {}

    fn complain(&mut self, complaint: SourceError) {
        panic!("{complaint:?}");
    }

    fn close(&mut self, _: StreamId) {}
}

fn embedded_monitor_yields_while_it_has_a_budget(socket: &std::path::Path) {
    let directory = Directory::builder().start(socket).unwrap();
    std::env::set_var(SOCKET_VARIABLE, socket);
    let mut sensor = Sensor::<Value>::builder("simple").register().unwrap();
    let mut connection = MonitorConnection::connect(socket).unwrap();
    let stream = [connection.list(&Query::all()).unwrap()[0].descriptor.id];
    let mut other = attach(&directory, "simple", true);
    other.switch_for_budget(&stream, &[]);
    // The monitor in the directory's process reads every element.
    await_kept_on(&mut other, 1);
    assert!(sensor.is_enabled());
    // With a budget of its own it takes part in that of others.
    let mut own = BudgetSwitch::new(&directory);
    assert!(!sensor.is_enabled());
    other.switch_for_budget(&[], &stream);
    await_state(&mut sensor, true);
    assert_eq!(own.switch(&stream, &[]), Ok(0));
    assert!(!sensor.is_enabled());
    drop(own);
    assert!(sensor.is_enabled());
}
