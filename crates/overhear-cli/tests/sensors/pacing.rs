// SPDX-License-Identifier: MIT OR Apache-2.0
//! Producers at their declared rate: the recorded times, which are those of monitors, keep it
//! exactly.

use overhear::{Element, Nanos, Rate, Sensor};
use overhear_admission::{AfterViolation, ArrivalBound, ConformanceCheck};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_trace::TraceReader;

use crate::program::program;
use crate::support::{folder, path, run_json};

const ELEMENTS: usize = 400;

#[derive(Element)]
#[repr(C)]
struct Number {
    number: u64,
}

/// Bursts of 11 elements at a distance of 50 us, on average 2,000 per second.
fn rate() -> Rate {
    let us = Nanos::from_us;
    Rate::new(us(500), us(50), us(4_500)).unwrap()
}

/// Not a test: the program in Rust.
#[test]
#[ignore = "started by the other tests"]
fn eager_program() {
    let mut sensor = Sensor::<Number>::builder("eager")
        .rate(rate())
        .register()
        .unwrap();
    for number in 0..ELEMENTS as u64 {
        sensor.pace().unwrap();
        sensor.write(&Number { number });
    }
}

#[derive(Default)]
struct Times(Vec<Timestamp>);

impl Analysis for Times {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0.push(element.time);
    }
    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        panic!("{gap:?}");
    }
    fn advance(&mut self, _: Timestamp) {}
}

#[track_caller]
fn conforms(program: &[&str]) {
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, report) = run_json(&["--kernel", "off", "--out", path(&out)], program);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(report["complete"], true);
    let mut times = Times::default();
    TraceReader::open(&out).unwrap().replay(&mut [&mut times]);
    assert_eq!(times.0.len(), ELEMENTS);
    let constraint = ArrivalBound::from_rate(&rate()).unwrap();
    let mut check = ConformanceCheck::new(constraint, AfterViolation::Keep);
    for time in &times.0 {
        assert_eq!(check.push(*time), None);
    }
}

#[test]
fn eager_program_in_rust_keeps_its_rate() {
    let here = std::env::current_exe().unwrap();
    conforms(&[path(&here), "--exact", "pacing::eager_program", "--ignored"]);
}

#[test]
fn eager_program_in_c_keeps_its_rate() {
    let elements = ELEMENTS.to_string();
    conforms(&[path(program()), "eager", &elements]);
}
