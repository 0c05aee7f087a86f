// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz target of logs over its seeds and inputs near them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use overhear_event::{GapCause, Timestamp};
use overhear_posixtrace::{
    Attributes, EventId, FinalStatus, LogFullPolicy, LogHeader, LogWriter, LostEvents, TraceEvent,
    Truncation,
};

#[path = "../../../fuzz/subjects/frames.rs"]
mod frames;
#[path = "../../../fuzz/subjects/log.rs"]
mod log;
#[path = "../../../fuzz/runner.rs"]
mod runner;

/// A small log; of a LOOP log the parts before the first hole and after it.
fn seed(log_full: LogFullPolicy) -> Vec<u8> {
    let header = LogHeader {
        attributes: Attributes {
            name: b"seed".to_vec(),
            log_size: 200,
            log_full,
            ..Attributes::default()
        },
        pid: 7,
        comm: "program".to_owned(),
        ..LogHeader::default()
    };
    let mut file: File = tempfile::tempfile().unwrap();
    let mut writer = LogWriter::create(file.try_clone().unwrap().into(), &header).unwrap();
    writer.define(EventId::user(1).unwrap(), b"one").unwrap();
    for number in 0..6_u64 {
        let time = Timestamp::from_monotonic_ns(10 * number);
        let event = TraceEvent {
            time,
            event: EventId::user(1).unwrap(),
            pid: 7,
            tid: 8,
            thread: 9,
            address: 10,
            truncation: Truncation::None,
            data: &[7; 11],
        };
        let _ = writer.event(&event).unwrap();
        if number == 3 {
            let _ = writer
                .lost(LostEvents {
                    from: time,
                    to: time,
                    missed: 2,
                    cause: GapCause::Full,
                })
                .unwrap();
        }
    }
    writer.finish(&FinalStatus::default()).unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    if log_full == LogFullPolicy::Loop {
        bytes.truncate(6_000);
    }
    bytes
}

#[test]
fn logs_survive_fuzz_seeds_and_mutations() {
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        for (name, policy) in [
            ("append", LogFullPolicy::Append),
            ("loop", LogFullPolicy::Loop),
        ] {
            std::fs::write(runner::seeds_of("log").join(name), seed(policy)).unwrap();
        }
    }
    runner::near_seeds("log", 600, log::run);
    runner::from_nothing(200, log::run);
}
