// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requirements of analyses: exactly the sensors of these events are switched on. A sensor that
//! was switched off for that gets its old state back when no monitor requires it any more.

mod support;

use std::time::{Duration, Instant};

use overhear_directory::{AttachedSource, Begin, Directory, MonitorConnection, Needs, Query};
use overhear_event::{EventName, EventSet};
use overhear_stream::SwitchState;

use support::{Raw, TestDirectory};

fn events(sensors: &[&str]) -> EventSet {
    sensors
        .iter()
        .map(|sensor| EventName::user(sensor))
        .collect()
}

fn connect(here: &TestDirectory) -> MonitorConnection {
    MonitorConnection::connect(here.directory.socket()).unwrap()
}

fn attach(here: &TestDirectory, names: &str, needs: Needs) -> AttachedSource {
    let query = Query::parse(names).unwrap();
    let attached = connect(here).attach_needing(query, Begin::Now, needs);
    attached.unwrap()
}

/// The sensors that are switched on.
fn on(here: &TestDirectory) -> Vec<String> {
    let sensors = connect(here).list(&Query::all()).unwrap().into_iter();
    let enabled = sensors.filter(|sensor| sensor.enabled);
    enabled.map(|sensor| sensor.descriptor.sensor).collect()
}

/// Waits until the directory has noticed the end of a monitor.
#[track_caller]
fn until_on(here: &TestDirectory, sensors: &[&str]) {
    let begun = Instant::now();
    while on(here) != sensors {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?} instead of {sensors:?}",
            on(here)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn exactly_the_required_sensors_begin_switched_on() {
    let required = events(&["request", "absent"]);
    let here = TestDirectory::with(Directory::builder().standalone().required(required));
    let sensors = ["request", "queue"].map(|sensor| here.register(sensor));
    let lines = sensors.each_ref().map(|sensor| {
        let control = sensor.control.as_ref().expect("a control page");
        control.line().unwrap()
    });
    assert_eq!(on(&here), ["request"]);
    assert_eq!(
        [0, 1].map(|line: usize| lines[line].state() != SwitchState::Off),
        [true, false]
    );
    // A user who may switch sensors still can.
    let queue = Query::parse("queue").unwrap();
    assert_eq!(connect(&here).set_enabled(&queue, true).unwrap(), 1);
    assert_eq!(on(&here), ["request", "queue"]);
    assert_eq!(lines[1].state(), SwitchState::On);
    assert_eq!(connect(&here).set_enabled(&queue, false).unwrap(), 1);
    assert_eq!(on(&here), ["request"]);
}

#[test]
fn needed_sensors_are_on_while_the_monitor_is_attached() {
    let here = TestDirectory::with(Directory::builder().standalone().required(events(&[])));
    let _sensors = ["a", "b", "c"].map(|sensor| here.register(sensor));
    assert!(on(&here).is_empty());
    let one = attach(&here, "a", Needs::all());
    assert_eq!(on(&here), ["a"]);
    // It attaches to all of them, and evaluates two.
    let needs = Needs::events(events(&["b"])).and(Query::parse("[cd]").unwrap());
    let other = attach(&here, "*", needs);
    assert_eq!(on(&here), ["a", "b", "c"]);
    let _late = here.register("d");
    let _unneeded = here.register("e");
    assert_eq!(on(&here), ["a", "b", "c", "d"]);
    drop(one);
    until_on(&here, &["b", "c", "d"]);
    drop(other);
    until_on(&here, &[]);
}

#[test]
fn detached_monitor_leaves_switches_as_they_were() {
    let here = TestDirectory::standalone();
    let _sensors = ["a", "b", "c", "d"].map(|sensor| here.register(sensor));
    connect(&here)
        .set_enabled(&Query::parse("d").unwrap(), false)
        .unwrap();
    assert_eq!(on(&here), ["a", "b", "c"]);
    // The requirements of other monitors are respected, before and after.
    let _other = attach(&here, "b", Needs::all());
    let sparing = attach(
        &here,
        "*",
        Needs::events(events(&["a", "d"])).disable_unused(),
    );
    // A sensor that a user has switched off stays off, needed or not.
    assert_eq!(on(&here), ["a", "b"]);
    let second = attach(&here, "c", Needs::events(events(&["x"])).disable_unused());
    assert_eq!(on(&here), ["a", "b"]);
    let third = attach(&here, "c", Needs::all());
    assert_eq!(on(&here), ["a", "b", "c"]);
    drop(third);
    until_on(&here, &["a", "b"]);
    // A user makes another choice while it is unneeded; a sensor that the user has switched off
    // stays off.
    let mut chooser = connect(&here);
    assert_eq!(
        chooser
            .set_enabled(&Query::parse("c").unwrap(), true)
            .unwrap(),
        1
    );
    assert_eq!(
        chooser
            .set_enabled(&Query::parse("b").unwrap(), false)
            .unwrap(),
        1
    );
    assert_eq!(on(&here), ["a", "c"]);
    drop(sparing);
    // The second monitor still requires it.
    until_on(&here, &["c"]);
    drop(second);
    until_on(&here, &["a", "c"]);
    chooser.set_enabled(&Query::all(), true).unwrap();
    assert_eq!(on(&here), ["a", "b", "c", "d"]);
    // No choice remains.
    let _sparing = attach(&here, "*", Needs::events(events(&["a"])).disable_unused());
    assert_eq!(on(&here), ["a", "b"], "b is attached to");
}

#[test]
fn needs_that_make_no_sense_are_refused() {
    let here = TestDirectory::standalone();
    let raw = Raw::connect(here.directory.socket());
    let packet = serde_json::json!({ "attach": {
        "version": 1,
        "query": {},
        "needs": { "all": false, "sensors": [{ "names": "[" }] },
    } });
    raw.is_refused(&packet, &["is not a pattern for sensors"]);
}
