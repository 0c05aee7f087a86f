// SPDX-License-Identifier: MIT OR Apache-2.0
//! Begin and end of units of work: an element for each, so that a monitor sees which units are
//! under way at any moment, and how long each took, without the program remembering anything.
//!
//! ```sh
//! cargo build --example spans -p overhear
//! overhear run -- target/debug/examples/spans
//! ```

use std::hint::black_box;

use overhear::{Element, Sensor};

const UNITS: u64 = 500;
const BEGIN: u32 = 0;
const END: u32 = 1;

#[derive(Element)]
#[repr(C)]
struct WorkEdge {
    /// Which unit of work: the same at its begin and its end.
    unit: u64,
    /// `BEGIN` or `END`.
    edge: u32,
    /// How much there is to do.
    #[field(unit = "steps")]
    amount: u32,
}

/// A unit of work that is under way: its end is written however it is left.
struct Span<'a> {
    sensor: &'a mut Sensor<WorkEdge>,
    unit: u64,
    amount: u32,
}

impl<'a> Span<'a> {
    fn begin(sensor: &'a mut Sensor<WorkEdge>, unit: u64, amount: u32) -> Self {
        sensor.write(&WorkEdge {
            unit,
            edge: BEGIN,
            amount,
        });
        Self {
            sensor,
            unit,
            amount,
        }
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        self.sensor.write(&WorkEdge {
            unit: self.unit,
            edge: END,
            amount: self.amount,
        });
    }
}

fn work(amount: u32) {
    black_box((0..amount).fold(0, |sum: u32, step| sum.wrapping_add(black_box(step))));
}

fn main() -> Result<(), overhear::SensorError> {
    let mut sensor = Sensor::builder("work").register()?;
    if let Some(reason) = sensor.not_connected_reason() {
        eprintln!("not connected: {reason}");
    }
    for unit in 0..UNITS {
        let amount = 1000 + 10 * unit as u32;
        let _under_way = Span::begin(&mut sensor, unit, amount);
        work(amount);
    }
    Ok(())
}
