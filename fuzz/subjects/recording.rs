// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small recording, of which the input replaces one file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, Rate, StreamDescriptor,
    StreamId, Task, Timestamp, TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceWriter};

const ELEMENTS: u64 = 12;

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn stream() -> StreamDescriptor {
    let schema = TypeSchema::builder("sample")
        .field("number", FieldKind::U64, "ns")
        .field("load", FieldKind::F32, "%")
        .field("label", FieldKind::Text(8), "")
        .build();
    StreamDescriptor {
        id: StreamId::from_raw(1),
        origin: Origin::Program(Task {
            pid: 4242,
            start: at(17),
            comm: "engine".to_owned(),
        }),
        sensor: "queue".to_owned(),
        instance: "in".to_owned(),
        lane: None,
        schema: Arc::new(schema.expect("a schema without padding")),
        rate: Rate::new(Nanos::from_us(10), Nanos::from_us(1), Nanos::from_us(50)).ok(),
        capacity: 1024,
    }
}

fn record(dir: &Path) {
    let identity = TraceIdentity {
        hostname: "host".to_owned(),
        realtime_offset: Nanos::from_ns(1_700_000_000_123_456_789),
        uuid: Some(*b"overhear-fuzzing"),
    };
    let stream = stream();
    let mut writer = TraceWriter::create(dir, identity).expect("an empty folder");
    let update: &mut dyn Analysis = &mut writer;
    update.open(&stream);
    for number in 0..ELEMENTS {
        let mut payload = number.to_ne_bytes().to_vec();
        payload.extend(0.5_f32.to_ne_bytes());
        payload.extend(*b"label\0\0\0");
        // A hole in the middle.
        let sequence = number + if number > ELEMENTS / 2 { 3 } else { 0 };
        if sequence > number && number == ELEMENTS / 2 + 1 {
            update.gap(
                &stream,
                &Gap {
                    stream: stream.id,
                    first: number,
                    missed: 3,
                    from: at(number * 10_000),
                    to: at(1_000 + number * 10_000),
                    cause: GapCause::Overwritten,
                },
            );
        }
        update.element(&ElementView {
            stream: &stream,
            sequence,
            time: at(1_000 + number * 10_000),
            payload: &payload,
        });
    }
    update.advance(at(10_000_000));
    writer.finish().expect("room for a small recording");
}

/// A recording in a folder of its own, with its files as they were written.
pub(crate) struct Recording {
    pub(crate) folder: tempfile::TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Recording {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the recording");
        record(folder.path());
        let mut recording = Self {
            folder,
            files: Vec::new(),
        };
        recording.remember(&recording.dir().join("trace"));
        recording
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    fn remember(&mut self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("the recording's folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => self.remember(&path),
                false => {
                    let bytes = fs::read(&path).expect("the recording's file");
                    self.files.push((path, bytes));
                }
            }
        }
    }

    /// The recording as it was written, but for this file below `trace`.
    pub(crate) fn with(&self, name: &str, bytes: &[u8]) {
        for (path, content) in &self.files {
            fs::write(path, content).expect("the folder can be written");
        }
        fs::write(self.folder.path().join("trace").join(name), bytes)
            .expect("the folder can be written");
    }

    /// A file as it was written.
    #[allow(dead_code, reason = "seeds are made by tests alone")]
    pub(crate) fn original(&self, name: &str) -> &[u8] {
        let path = self.folder.path().join("trace").join(name);
        let found = self.files.iter().find(|(it, _)| *it == path);
        found.map_or(&[], |(_, bytes)| bytes)
    }
}
