// SPDX-License-Identifier: MIT OR Apache-2.0
//! The speed of writing and reading traces, compared with babeltrace2 on the same trace.
//!
//! `cargo bench -p overhear-trace --bench read_speed -- [EVENTS [ROUNDS]]`
//!
//! The readers alternate, so that both have the same noise, and the medians are compared.
#![allow(missing_docs)]

mod support;

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

use overhear_monitor::interference::median;
use overhear_trace::{TraceIdentity, TraceWriter};

use support::{arguments, number, replay_switches, write_switches};

fn main() -> Result<(), Box<dyn Error>> {
    let words = arguments();
    let (events, rounds) = (number(&words, 0, 2_000_000)?, number(&words, 1, 7_usize)?);
    let dir = tempfile::tempdir()?;

    let begun = Instant::now();
    let writer = TraceWriter::create(dir.path(), TraceIdentity::default())?;
    let summary = write_switches(writer, events)?;
    let wrote = begun.elapsed().as_secs_f64();
    println!(
        "written: {:.1} million events/s ({} MB)",
        events as f64 / wrote / 1e6,
        summary.bytes / 1_000_000
    );

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        replay_switches(dir.path(), events)?;
        ours.push(begun.elapsed().as_secs_f64());

        let begun = Instant::now();
        let status = Command::new("babeltrace2")
            .args(["-o", "dummy"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => theirs.push(begun.elapsed().as_secs_f64()),
            Ok(status) => return Err(format!("babeltrace2 ended with {status}").into()),
            Err(_) => {}
        }
    }
    let ours = median(&ours);
    println!(
        "overhear:    {:.2} million events/s",
        events as f64 / ours / 1e6
    );
    if theirs.is_empty() {
        println!("skipped: babeltrace2 is not installed");
        return Ok(());
    }
    let theirs = median(&theirs);
    println!(
        "babeltrace2: {:.2} million events/s",
        events as f64 / theirs / 1e6
    );
    println!("ratio of medians: {:.0}", theirs / ours);
    Ok(())
}
