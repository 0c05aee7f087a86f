// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of isolation: the same foreign trace, imported with libbabeltrace2 in this process and
//! in another one.
//!
//! `cargo bench -p overhear-trace --bench import_cost -- [EVENTS [ROUNDS]]`
//!
//! The two ways alternate, so that both have the same noise, and the medians of the times are
//! compared.
#![allow(missing_docs)]

mod support;

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use overhear_event::{
    ElementView, FieldKind, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_monitor::interference::median;
use overhear_trace::{import_trace, send_foreign_trace, ForeignReader, TraceIdentity, TraceWriter};

use support::{arguments, number};

/// Writes a recording, which is also a trace in the format of other tracers.
fn write(dir: &Path, events: u64) -> Result<(), Box<dyn Error>> {
    let schema = TypeSchema::builder("sample")
        .field("number", FieldKind::U64, "")
        .field("size", FieldKind::U32, "B")
        .field("kind", FieldKind::U32, "")
        .build()?;
    let stream = StreamDescriptor::new(
        StreamId::from_raw(1),
        Origin::program(400, "server"),
        "request",
        schema,
    );
    let mut writer = TraceWriter::create(dir, TraceIdentity::default())?;
    for sequence in 0..events {
        let payload = [sequence.to_ne_bytes(), (sequence << 32).to_ne_bytes()].concat();
        writer.element(&ElementView {
            stream: &stream,
            sequence,
            time: Timestamp::ZERO.plus(Nanos::from_us(sequence)),
            payload: &payload,
        })?;
    }
    writer.finish()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = arguments();
    if let [word, path] = &words[..] {
        if word == "--send" {
            let pipe = std::fs::File::from(rustix::stdio::stdout().try_clone_to_owned()?);
            return Ok(send_foreign_trace(Path::new(path), pipe)?);
        }
    }
    let (events, rounds) = (number(&words, 0, 1_000_000)?, number(&words, 1, 9_usize)?);
    let folder = tempfile::tempdir()?;
    write(folder.path(), events)?;
    let trace = folder.path().join("trace");
    let command = || {
        let mut command = Command::new("/proc/self/exe");
        command.arg("--send").arg(&trace);
        command
    };
    let isolated = ForeignReader::Isolated {
        command: &command,
        patience: Duration::from_secs(600),
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (times, reader) in times.iter_mut().zip([&ForeignReader::InProcess, &isolated]) {
            let out = tempfile::tempdir()?;
            let begun = Instant::now();
            let (imported, _) = import_trace(&trace, out.path(), reader)?;
            times.push(begun.elapsed().as_secs_f64());
            assert_eq!(imported.elements, events);
        }
    }
    let [here, there] = times.map(|times| median(&times));
    println!("{events} events, median of {rounds} rounds:");
    println!("in this process     {here:.3} s");
    println!("in another process  {there:.3} s");
    println!("ratio               {:.2}", there / here);
    Ok(())
}
