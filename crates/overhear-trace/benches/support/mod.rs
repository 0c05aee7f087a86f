// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared parts of the benches: arguments, and a recording of context switches that is written and
//! replayed.
#![allow(dead_code, reason = "no bench uses everything")]

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{Analysis, ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp};
use overhear_trace::{TraceReader, TraceSummary, TraceWriter};

/// Streams, one for each CPU of the machine that the recording imitates.
const STREAMS: u64 = 4;

/// The arguments of the program, without the one that `cargo bench` adds.
pub(crate) fn arguments() -> Vec<String> {
    let given = std::env::args().skip(1);
    given.filter(|word| word != "--bench").collect()
}

/// The argument at an index as a number, or the default.
pub(crate) fn number<T: FromStr>(given: &[String], at: usize, default: T) -> Result<T, T::Err> {
    given.get(at).map_or(Ok(default), |word| word.parse())
}

/// Writes context switches to the streams in turns.
pub(crate) fn write_switches(
    mut writer: TraceWriter,
    events: u64,
) -> Result<TraceSummary, Box<dyn Error>> {
    let schema = Arc::new(Switch::schema());
    let stream = |cpu| {
        let (id, origin) = (StreamId::from_raw(cpu), Origin::Kernel { cpu });
        StreamDescriptor::new(id, origin, SCHED_SWITCH, Arc::clone(&schema))
    };
    let streams: Vec<_> = (0..STREAMS as u32).map(stream).collect();
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
    Ok(writer.finish()?)
}

/// Replays a recording of `switches` context switches into an analysis that reads each element.
pub(crate) fn replay_switches(dir: &Path, events: u64) -> Result<(), Box<dyn Error>> {
    let mut count = Count::default();
    let replayed = TraceReader::open(dir)?.replay(&mut [&mut count]);
    assert!(replayed.corrupt.is_empty());
    assert_eq!(black_box(&count).events, events);
    black_box(count.sum);
    Ok(())
}

#[derive(Default)]
struct Count {
    events: u64,
    sum: u64,
}

impl Analysis for Count {
    fn element(&mut self, element: &ElementView<'_>) {
        self.events += 1;
        let tid = Switch::parse(element.payload).map_or(0, |switch| switch.next_tid);
        self.sum = self.sum.wrapping_add(u64::from(tid));
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}
