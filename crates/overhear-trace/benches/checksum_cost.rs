// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of checksums: the same elements, written and replayed with them (the current format)
//! and without (format 2).
//!
//! `cargo bench -p overhear-trace --bench checksum_cost -- [EVENTS [ROUNDS]]`
//!
//! The formats alternate, so that both have the same noise, and the medians of the times are
//! compared.
#![allow(missing_docs)]

mod support;

use std::error::Error;
use std::time::Instant;

use overhear_monitor::interference::median;
use overhear_trace::{TraceIdentity, TraceWriter};

use support::{arguments, number, replay_switches, write_switches};

fn main() -> Result<(), Box<dyn Error>> {
    let words = arguments();
    let (events, rounds) = (number(&words, 0, 2_000_000)?, number(&words, 1, 11_usize)?);
    // By operation, with and without checksums.
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let has_checksums = (round + turn) % 2 == 0;
            let dir = tempfile::tempdir()?;
            let begun = Instant::now();
            let mut writer = TraceWriter::create(dir.path(), TraceIdentity::default())?;
            if !has_checksums {
                writer = writer.without_checksums();
            }
            write_switches(writer, events)?;
            times[0][usize::from(has_checksums)].push(begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            replay_switches(dir.path(), events)?;
            times[1][usize::from(has_checksums)].push(begun.elapsed().as_secs_f64());
        }
    }
    for (what, [without, with]) in ["write", "replay"].iter().zip(&times) {
        let (without, with) = (median(without), median(with));
        let ns = |seconds: f64| seconds * 1e9 / events as f64;
        println!(
            "{what}: {:.2} ns per element without checksums, {:.2} with; ratio of medians {:.3}",
            ns(without),
            ns(with),
            with / without
        );
    }
    Ok(())
}
