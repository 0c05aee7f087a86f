// SPDX-License-Identifier: MIT OR Apache-2.0
//! What checksums cost: the same elements, written and replayed with them (the current format) and without (format 2).
//!
//! `cargo run --release -p overhear-trace --example checksum_cost [EVENTS [ROUNDS]]`
//!
//! The formats take turns, so that both see the same noise, and the medians of the times are compared.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
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

fn streams() -> Vec<StreamDescriptor> {
    let schema = Arc::new(Switch::schema());
    let stream = |cpu| StreamDescriptor {
        id: StreamId::from_raw(cpu),
        origin: Origin::Kernel { cpu },
        sensor: "sched_switch".to_owned(),
        instance: String::new(),
        lane: None,
        schema: schema.clone(),
        rate: None,
        capacity: 0,
    };
    (0..STREAMS as u32).map(stream).collect()
}

fn write(dir: &Path, has_checksums: bool, events: u64) -> Result<(), Box<dyn Error>> {
    let streams = streams();
    let mut writer = TraceWriter::create(dir, TraceIdentity::default())?;
    if !has_checksums {
        writer = writer.without_checksums();
    }
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
    writer.finish()?;
    Ok(())
}

fn read(dir: &Path, events: u64) -> Result<(), Box<dyn Error>> {
    let mut count = Count::default();
    let replayed = TraceReader::open(dir)?.replay(&mut [&mut count]);
    assert!(replayed.corrupt.is_empty());
    assert_eq!(black_box(&count).events, events);
    black_box(count.sum);
    Ok(())
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let events = arguments.next();
    let events: u64 = events.map_or(Ok(2_000_000), |text| text.parse())?;
    let rounds = arguments.next();
    let rounds: usize = rounds.map_or(Ok(11), |text| text.parse())?;
    // By what is done, and whether with checksums.
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..rounds {
        for turn in 0..2 {
            let has_checksums = (round + turn) % 2 == 0;
            let dir = tempfile::tempdir()?;
            let begun = Instant::now();
            write(dir.path(), has_checksums, events)?;
            times[0][usize::from(has_checksums)].push(begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            read(dir.path(), events)?;
            times[1][usize::from(has_checksums)].push(begun.elapsed().as_secs_f64());
        }
    }
    for (what, [without, with]) in ["write", "replay"].iter().zip(&mut times) {
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
