// SPDX-License-Identifier: MIT OR Apache-2.0
//! One sensor, many threads: each writes into a lane of its own, without a lock, and a monitor sees
//! one sensor.
//!
//! ```sh
//! cargo build --example threads -p overhear
//! overhear run -- target/debug/examples/threads
//! ```

use overhear::{Element, LanedSensor, Refused};

const THREADS: u32 = 4;
const STEPS: u32 = 250;

#[derive(Element)]
#[repr(C)]
struct Step {
    worker: u32,
    number: u32,
}

fn work(sensor: &LanedSensor<Step>, worker: u32) -> Result<(), Refused> {
    // Optional: claims the lane and touches its memory now, not at the first write.
    sensor.prepare_thread()?;
    for number in 0..STEPS {
        sensor.write(&Step { worker, number })?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sensor = LanedSensor::builder("step").lanes(THREADS).register()?;
    if let Some(reason) = sensor.not_connected_reason() {
        eprintln!("not connected: {reason}");
    }
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|worker| {
            scope.spawn({
                let sensor = &sensor;
                move || work(sensor, worker)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the worker does not panic"))
    })?;
    Ok(())
}
