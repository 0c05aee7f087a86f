// SPDX-License-Identifier: MIT OR Apache-2.0
//! A producer that keeps to its declared rate: it could be faster, but waits until its stream
//! allows the next element. A monitor that reserved time for this rate misses nothing.
//!
//! ```sh
//! cargo build --example paced -p overhear
//! overhear run -- target/debug/examples/paced
//! ```

use overhear::{Element, Nanos, Rate, Sensor};

#[derive(Element)]
#[repr(C)]
struct Level {
    number: u64,
    #[field(unit = "V")]
    volts: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One element each millisecond in the long run; up to 10 ms of them at once, but never two
    // closer than 100 us.
    let rate = Rate::new(Nanos::from_ms(1), Nanos::from_us(100), Nanos::from_ms(10))?;
    let mut sensor = Sensor::builder("level").rate(rate).register()?;
    if let Some(reason) = sensor.not_connected_reason() {
        eprintln!("not connected: {reason}");
    }
    for number in 0..200 {
        sensor.pace()?;
        let volts = (number % 50) as f64 / 10.0;
        sensor.write(&Level { number, volts });
    }
    Ok(())
}
