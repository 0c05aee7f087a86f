// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of jobs: the CPU time and the page faults of each frame that is decoded.
//!
//! ```sh
//! cargo build --example jobs -p overhear
//! overhear run -- target/debug/examples/jobs
//! ```

use std::hint::black_box;

use overhear::{Sampler, SamplerBuilder};

const FRAMES: u32 = 100;
const FRAME_BYTES: usize = 256 * 1024;

/// `overhear doctor --counters` lists the counters of a machine.
const FRAME: SamplerBuilder<'static, 2> =
    Sampler::builder("frame").counters(["task-clock", "page-faults"]);

fn decode(number: u32) {
    let mut pixels = vec![0_u8; FRAME_BYTES];
    for (index, pixel) in pixels.iter_mut().enumerate().step_by(64) {
        *pixel = (number as usize + index) as u8;
    }
    black_box(pixels);
}

fn main() -> Result<(), overhear::RegisterSamplerError> {
    let mut sampler = FRAME.register()?;
    if let Some(reason) = sampler.not_connected_reason() {
        eprintln!("not connected: {reason}");
    }
    for number in 0..FRAMES {
        let _job = sampler.job();
        decode(number);
    }
    Ok(())
}
