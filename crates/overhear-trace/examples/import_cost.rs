// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of isolation: the same foreign trace, imported with libbabeltrace2 in this process and in another one.
//!
//! `cargo run --release -p overhear-trace --example import_cost [EVENTS [ROUNDS]]`
//!
//! The ways take turns, so that both see the same noise, and the medians of the times are compared.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overhear_event::{
    ElementView, FieldKind, Nanos, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema,
};
use overhear_trace::{import_trace, send_foreign_trace, ForeignReader, TraceIdentity, TraceWriter};

/// Writes a recording, which is a trace in the format of other tracers, too.
fn write(dir: &Path, events: u64) -> Result<(), Box<dyn Error>> {
    let schema = TypeSchema::builder("sample")
        .field("number", FieldKind::U64, "")
        .field("size", FieldKind::U32, "B")
        .field("kind", FieldKind::U32, "")
        .build()?;
    let stream = StreamDescriptor {
        id: StreamId::from_raw(1),
        origin: Origin::Program(Task {
            pid: 400,
            start: Timestamp::ZERO,
            comm: "server".to_owned(),
        }),
        sensor: "request".to_owned(),
        instance: String::new(),
        lane: None,
        schema: Arc::new(schema),
        rate: None,
        capacity: 0,
    };
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, path] = &arguments[..] {
        if word == "--send" {
            let pipe = std::fs::File::from(rustix::stdio::stdout().try_clone_to_owned()?);
            return Ok(send_foreign_trace(Path::new(path), pipe)?);
        }
    }
    let number = |at: usize, other: u64| arguments.get(at).map_or(Ok(other), |it| it.parse());
    let (events, rounds) = (number(0, 1_000_000)?, number(1, 9)?);
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
            times.push(begun.elapsed());
            assert_eq!(imported.elements, events);
        }
    }
    let [here, there] = times.map(median);
    println!("{events} events, median of {rounds} rounds:");
    println!("in this process     {here:?}");
    println!("in another process  {there:?}");
    println!(
        "ratio               {:.2}",
        there.as_secs_f64() / here.as_secs_f64()
    );
    Ok(())
}
