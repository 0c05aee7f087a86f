// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of which one file is arbitrary: they are read, replayed, exported and repaired
//! without a panic, and the reader's counts are those of the replay.

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_trace::{repair, CsvExport, PerfettoExport, TraceReader};

use crate::recording::Recording;

/// The files that are replaced; the first byte of the input chooses one.
pub(crate) const FILES: [&str; 5] = [
    "stream-1",
    "metadata",
    "overhear/streams.json",
    "overhear/summary.json",
    "overhear/ends.json",
];

/// Counts its calls.
#[derive(Default)]
struct Counted {
    elements: u64,
    gaps: u64,
}

impl Analysis for Counted {
    fn element(&mut self, element: &ElementView<'_>) {
        assert!(element.payload.len() >= element.stream.schema.size() as usize);
        self.elements += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {
        self.gaps += 1;
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// Runs one input over this recording.
pub(crate) fn run(recording: &Recording, input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    recording.with(FILES[usize::from(*choice) % FILES.len()], bytes);
    let dir = recording.dir();
    let read = || {
        let reader = match TraceReader::open(&dir) {
            Ok(reader) => reader,
            Err(error) => return assert!(!error.to_string().is_empty()),
        };
        let mut counted = Counted::default();
        let mut csv = CsvExport::new(std::io::sink());
        let offset = reader.identity().realtime_offset;
        let mut perfetto = PerfettoExport::new(std::io::sink(), offset);
        let replayed = reader.replay(&mut [&mut counted, &mut csv, &mut perfetto]);
        assert_eq!(
            (replayed.events, replayed.gaps),
            (counted.elements, counted.gaps)
        );
        let exported = csv.finish().expect("a sink takes everything");
        assert_eq!(
            (exported.elements, exported.gaps),
            (counted.elements, counted.gaps)
        );
        perfetto.finish().expect("a sink takes everything");
    };
    read();
    match repair(&dir) {
        Ok(_) => read(),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
