// SPDX-License-Identifier: MIT OR Apache-2.0
//! Logs of arbitrary bytes: they are read twice with the same events, in order, and converted.

use std::io::Write;

use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_posixtrace::{ElementSink, LogItem, LogReader, TraceElements};

/// Checks the order of times in each stream.
#[derive(Default)]
struct Counted(u64, Timestamp);

impl ElementSink for Counted {
    fn open(&mut self, _: &std::sync::Arc<StreamDescriptor>) {}

    fn element(&mut self, element: &ElementView<'_>) {
        assert_eq!(element.payload.len(), element.stream.schema.size() as usize);
        assert!(element.time >= self.1);
        (self.0, self.1) = (self.0 + 1, element.time);
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        assert!(gap.missed > 0 && gap.from <= gap.to);
    }
}

fn read(log: &mut LogReader) -> (u64, u64, u64) {
    let mut elements = TraceElements::new(log.header());
    for (event, name) in log.names() {
        elements.define(*event, name);
    }
    let mut counted = Counted::default();
    let (mut events, mut lost) = (0, 0_u64);
    while let Some(item) = log.next().expect("a file in memory is read") {
        match item {
            LogItem::Event(event) => {
                events += 1;
                elements.event(&event, &mut counted);
            }
            LogItem::Lost(loss) => {
                lost = lost.saturating_add(loss.missed);
                elements.lost(loss, &mut counted);
            }
        }
    }
    assert_eq!(counted.0 + elements.unconverted(), events);
    (events, lost, counted.0)
}

/// Runs one input: as it is, and with correct checksums.
pub(crate) fn run(input: &[u8]) {
    for bytes in [input.to_vec(), crate::frames::corrected(input)] {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let memory = rustix::fs::memfd_create("log", flags).expect("a file in memory");
        let mut file = std::fs::File::from(memory);
        file.write_all(&bytes).expect("memory takes everything");
        let mut log = match LogReader::open(file.into()) {
            Ok(log) => log,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let first = read(&mut log);
        log.rewind().expect("a log in a file");
        assert_eq!(read(&mut log), first);
        let _ = (log.status(), log.damaged(), log.cut_bytes(), log.times());
    }
}
