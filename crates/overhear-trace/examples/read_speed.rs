// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast traces are written and read, compared with babeltrace2 on the same trace.
//!
//! `cargo run --release -p overhear-trace --example read_speed [EVENTS [ROUNDS]]`
//!
//! The readers take turns, so that both see the same noise, and the medians are compared.

use std::error::Error;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Instant;

use overhear_event::kernel::Switch;
use overhear_event::{ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Update};
use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};

/// Streams, as on a machine with as many CPUs.
const STREAMS: u64 = 4;

/// An evaluation that looks at every element.
#[derive(Default)]
struct Count {
    events: u64,
    sum: u64,
}

impl Update for Count {
    fn element(&mut self, element: &ElementView<'_>) {
        self.events += 1;
        let tid = Switch::parse(element.payload).map_or(0, |switch| switch.next_tid);
        self.sum = self.sum.wrapping_add(u64::from(tid));
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let events: u64 = arguments
        .next()
        .map_or(Ok(2_000_000), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(7), |text| text.parse())?;
    let dir = tempfile::tempdir()?;

    let schema = std::sync::Arc::new(Switch::schema());
    let streams: Vec<_> = (0..STREAMS as u32)
        .map(|cpu| StreamDescriptor {
            id: StreamId::from_raw(cpu),
            origin: Origin::Kernel { cpu },
            sensor: "sched_switch".to_owned(),
            instance: String::new(),
            lane: None,
            schema: schema.clone(),
            rate: None,
            capacity: 0,
        })
        .collect();
    let begun = Instant::now();
    let mut writer = TraceWriter::create(dir.path(), TraceIdentity::default())?;
    for number in 0..events {
        let switch = Switch {
            prev_tid: number as u32,
            next_tid: number as u32 + 1,
            prev_pid: 7,
            next_pid: 8,
            prev_state: 1,
            flags: 0,
            prev_run_ns: 100,
        };
        writer.element(&ElementView {
            stream: &streams[(number % STREAMS) as usize],
            sequence: number / STREAMS,
            time: Timestamp::from_monotonic_ns(number * 1_000),
            payload: &switch.to_payload(),
        })?;
    }
    let summary = writer.finish()?;
    let wrote = begun.elapsed().as_secs_f64();
    println!(
        "written: {:.1} million events/s ({} MB)",
        events as f64 / wrote / 1e6,
        summary.bytes / 1_000_000
    );

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        let mut count = Count::default();
        TraceReader::open(dir.path())?.replay(&mut [&mut count]);
        ours.push(begun.elapsed().as_secs_f64());
        assert_eq!(black_box(&count).events, events);
        black_box(count.sum);

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
    let ours = median(ours);
    println!(
        "overhear:    {:.2} million events/s",
        events as f64 / ours / 1e6
    );
    if theirs.is_empty() {
        println!("skipped: babeltrace2 is not installed");
        return Ok(());
    }
    let theirs = median(theirs);
    println!(
        "babeltrace2: {:.2} million events/s",
        events as f64 / theirs / 1e6
    );
    println!("ratio of medians: {:.0}", theirs / ours);
    Ok(())
}
