// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events per second that a log in a file takes and gives, with 8 bytes of data each.

use std::fs::File;
use std::time::Instant;

use overhear_event::Timestamp;
use overhear_posixtrace::{
    Attributes, EventId, FinalStatus, LogFullPolicy, LogHeader, LogItem, LogReader, LogWriter,
    TraceEvent, Truncation,
};

const EVENTS: u64 = 2_000_000;

/// The best of five times of this work, as millions of events per second.
fn best(mut work: impl FnMut()) -> f64 {
    let times = [(); 5].map(|()| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    });
    EVENTS as f64 / times.into_iter().fold(f64::MAX, f64::min) / 1e6
}

fn write(file: &File, log_full: LogFullPolicy) {
    let header = LogHeader {
        attributes: Attributes {
            log_full,
            log_size: 64 << 20,
            ..Attributes::default()
        },
        ..LogHeader::default()
    };
    let mut writer = LogWriter::create(file.try_clone().unwrap().into(), &header).unwrap();
    for number in 0..EVENTS {
        let event = TraceEvent {
            time: Timestamp::from_monotonic_ns(number),
            event: EventId::UNNAMED,
            pid: 1,
            tid: 2,
            thread: 3,
            address: 4,
            truncation: Truncation::None,
            data: &number.to_ne_bytes(),
        };
        let _ = writer.event(&event).unwrap();
    }
    writer.finish(&FinalStatus::default()).unwrap();
}

fn main() {
    let file = tempfile::tempfile().unwrap();
    for policy in [LogFullPolicy::Append, LogFullPolicy::Loop] {
        println!(
            "write, {policy:?}: {:.1} M events/s",
            best(|| write(&file, policy))
        );
        let open = best(|| drop(LogReader::open(file.try_clone().unwrap().into()).unwrap()));
        println!("open, {policy:?}: {open:.1} M events/s");
        let mut log = LogReader::open(file.try_clone().unwrap().into()).unwrap();
        let mut total = 0;
        let read = best(|| {
            log.rewind().unwrap();
            while let Some(item) = log.next().unwrap() {
                if let LogItem::Event(event) = item {
                    total += event.data.len();
                }
            }
        });
        println!("read, {policy:?}: {read:.1} M events/s ({total} bytes)");
    }
}
