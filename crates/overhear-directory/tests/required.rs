// SPDX-License-Identifier: MIT OR Apache-2.0
//! What evaluations require, resolved: exactly the sensors of these events begin switched on.

mod support;

use overhear_directory::{Directory, MonitorConnection, Query};
use overhear_event::{EventName, EventSet};

use support::Here;

#[test]
fn exactly_the_required_sensors_begin_switched_on() {
    let required: EventSet = ["request", "absent"]
        .map(EventName::user)
        .into_iter()
        .collect();
    let here = Here::with(Directory::builder().standalone().required(required));
    let _sensors = ["request", "queue"].map(|sensor| here.register(sensor));
    let mut monitor = MonitorConnection::connect(here.directory.socket()).unwrap();
    let mut enabled = || -> Vec<(String, bool)> {
        let sensors = monitor.list(&Query::all()).unwrap().into_iter();
        sensors
            .map(|sensor| (sensor.descriptor.sensor.clone(), sensor.enabled))
            .collect()
    };
    let of = |names: &[(&str, bool)]| -> Vec<(String, bool)> {
        names
            .iter()
            .map(|(name, on)| ((*name).to_owned(), *on))
            .collect()
    };
    assert_eq!(enabled(), of(&[("request", true), ("queue", false)]));
    // Whoever may switch sensors still can.
    let queue = Query::parse("queue").unwrap();
    let mut other = MonitorConnection::connect(here.directory.socket()).unwrap();
    assert_eq!(other.set_enabled(&queue, true).unwrap(), 1);
    assert_eq!(enabled(), of(&[("request", true), ("queue", true)]));
}
