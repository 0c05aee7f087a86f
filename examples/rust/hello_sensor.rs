// SPDX-License-Identifier: MIT OR Apache-2.0
//! A first sensor: a loop writes the duration of each of its turns and the amount of work.
//!
//! ```sh
//! cargo build --example hello_sensor -p overhear
//! overhear run -- target/debug/examples/hello_sensor
//! ```
//!
//! Without `overhear run` it works the same; then no monitor can read it, and it prints that.

use std::hint::black_box;

use overhear::{thread_cpu_time, Element, Sensor};

/// One observation. Every byte belongs to a field: there is no padding between or behind them, or
/// the derive refuses. The description lets every tool print and plot the sensor without knowing
/// this program.
#[derive(Element)]
#[element(type = "hello_turn")]
#[repr(C)]
struct Turn {
    #[field(unit = "ns")]
    cpu_ns: u64,
    number: u32,
    sum: u32,
}

fn main() -> Result<(), overhear::SensorError> {
    // Registering is the slow part, so it comes before the loop.
    let mut sensor = Sensor::<Turn>::builder("turn").register()?;
    if let Some(reason) = sensor.not_connected_reason() {
        eprintln!("not connected: {reason}");
    }

    for number in 0..1000_u32 {
        let before = thread_cpu_time();
        let sum = (0..1000 + number).fold(0, |sum: u32, term| sum.wrapping_add(black_box(term)));
        let cpu_ns = thread_cpu_time().as_ns() - before.as_ns();

        // About 10 ns: a few stores, no lock, no system call.
        sensor.write(&Turn {
            cpu_ns,
            number,
            sum,
        });
    }
    Ok(())
}
