// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitoring framework as a part of an application, with sensors of its own: results that are
//! elements again, and a program that the results of its monitor control.

use std::process::Command;
use std::time::{Duration, Instant};

use overhear::{Element, Sensor};
use overhear_directory::{
    monotonic_now, Begin, Directory, MonitorConnection, Query, SOCKET_VARIABLE,
};
use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::{Binding, Monitor, UpdateSet};

#[derive(Element)]
#[repr(C)]
struct Level {
    value: u64,
}

#[derive(Element)]
#[repr(C)]
struct Sum {
    of: u64,
    value: u64,
}

/// The first level of the hierarchy: adds up ten values and writes the sum to a sensor.
struct Summing {
    results: Sensor<Sum>,
    pending: Sum,
}

impl Analysis for Summing {
    fn element(&mut self, element: &ElementView<'_>) {
        let value = element.field("value").and_then(|value| value.as_u64());
        self.pending.of += 1;
        self.pending.value += value.unwrap_or_default();
        if self.pending.of == 10 {
            self.results.write(&self.pending);
            self.pending = Sum { of: 0, value: 0 };
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// The hold-back of each level.
const HOLD_BACK: Nanos = Nanos::from_ms(2);

/// The second level: its elements are results. It also records the time at which it received them.
#[derive(Default)]
struct Received(Vec<(Timestamp, Timestamp, String)>);

impl Analysis for Received {
    fn element(&mut self, element: &ElementView<'_>) {
        let field = |name| element.field(name).map(|value| value.to_string());
        let fields = [field("of"), field("value")].map(Option::unwrap_or_default);
        let now = monotonic_now();
        self.0.push((element.time, now, fields.join(": ")));
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        panic!("nothing is missed here: {gap:?}");
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn results_of_one_monitor_are_elements_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let _directory = Directory::builder().start(&socket).unwrap();
    // No other test of this binary uses a directory.
    std::env::set_var(SOCKET_VARIABLE, &socket);

    let attach = |names: &str| {
        let connection = MonitorConnection::connect(&socket).unwrap();
        let query = Query::parse(names).unwrap();
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(connection.attach(query, Begin::Now).unwrap()));
        monitor
    };
    // The second level exists before its sensor: it binds late.
    let (mut first, mut second) = (attach("level"), attach("sum"));
    let mut levels = Sensor::<Level>::builder("level").register().unwrap();
    let mut set = UpdateSet::new();
    let results = Sensor::<Sum>::builder("sum").register().unwrap();
    assert!(levels.is_connected() && results.is_connected());
    let summing = Summing {
        results,
        pending: Sum { of: 0, value: 0 },
    };
    let _summing = set.add(summing, Binding::new("summing")).unwrap();
    let mut received = Received::default();

    // Before the last element of each sum.
    let mut begun = Vec::new();
    for value in 0..40 {
        if value % 10 == 9 {
            begun.push(monotonic_now());
        }
        levels.write(&Level { value });
    }
    let written = monotonic_now();
    let patience = Instant::now();
    while received.0.len() < 4 {
        first.round(monotonic_now(), &mut set);
        second.round(monotonic_now(), &mut received);
        assert!(
            patience.elapsed() < Duration::from_secs(60),
            "{received:?}",
            received = received.0
        );
        std::thread::yield_now();
    }
    let fields: Vec<&str> = received
        .0
        .iter()
        .map(|(.., fields)| fields.as_str())
        .collect();
    assert_eq!(fields, ["10: 45", "10: 145", "10: 245", "10: 345"]);
    // The stamp of a result is the time of its computation: each level adds its hold-back to the
    // stamp of its input.
    for ((found, evaluated, _), begun) in received.0.iter().zip(begun) {
        assert!(*found >= begun.plus(HOLD_BACK), "{found} of {begun}");
        assert!(
            *evaluated >= found.plus(HOLD_BACK),
            "{evaluated} of {found}"
        );
    }
    assert!(received
        .0
        .last()
        .is_some_and(|(found, ..)| *found > written));
    assert_eq!((first.elements(), first.losses().missed()), (40, 0));
}

#[test]
fn player_adapts_to_results_of_its_own_monitor() {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().unwrap().parent().unwrap();
    let player = built.join("examples/player");
    if !player.exists() {
        println!("skipped: the examples are not built; type `cargo build --examples -p overhear`");
        return;
    }
    let output = Command::new(player)
        .env_remove(SOCKET_VARIABLE)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let expected = "frame 9: ten frames were late, quality is 70 now\n\
                    frame 19: ten frames were late, quality is 40 now\n\
                    23 frames, 23 evaluated, 0 missed, 20 late, quality 40\n";
    assert_eq!(text, expected);
}
