// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program with sensors of its own: this binary, started again.

use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::Duration;

use overhear::{Element, Nanos, Rate, Sensor};

/// Threads with a sensor each, and elements that each writes.
pub(crate) const SENSORS: u64 = 3;
pub(crate) const ELEMENTS: u64 = 400;

#[derive(Element)]
#[repr(C)]
struct Level {
    count: u64,
    #[field(unit = "V")]
    volts: f64,
}

/// The command line that starts `senses` from this copy of the test binary.
pub(crate) fn command(binary: &Path) -> Vec<OsString> {
    let words = ["--ignored", "--exact", "sensing::senses"];
    let words = words.iter().map(OsString::from);
    std::iter::once(binary.into()).chain(words).collect()
}

#[test]
#[ignore = "started by the other tests under `overhear run`"]
fn senses() {
    let write = |index: u64| {
        let rate = Rate::new(Nanos::from_us(100), Nanos::from_us(50), Nanos::from_ms(1));
        let mut sensor = Sensor::<Level>::builder("battery")
            .instance(&index.to_string())
            .rate(rate.unwrap())
            .register()
            .unwrap();
        assert!(sensor.is_connected());
        for count in 0..ELEMENTS {
            let volts = 12.0 + count as f64 / 7.0;
            sensor.write(&Level { count, volts });
            if count % 4 == 0 {
                thread::sleep(Duration::from_micros(100));
            }
        }
    };
    thread::scope(|scope| {
        for index in 0..SENSORS {
            scope.spawn(move || write(index));
        }
    });
}
