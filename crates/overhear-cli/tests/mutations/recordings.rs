// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recordings that are changed: a run of the program, and three that are made here, with and
//! without checksums, of every kind of stream, with gaps and documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
use overhear_event::{
    ElementView, FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};
use overhear_session::disk_limits::ByteRate;
use overhear_trace::{DiskLimits, TraceIdentity, TraceWriter};

/// Files by their names below the recording's folder.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// All recordings that are changed.
pub(crate) fn all(folder: &Path) -> Vec<Files> {
    let [run, made, old, ring] = ["run", "made", "old", "ring"].map(|name| folder.join(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_overhear"));
    command.args(["run", "--out"]).arg(&run);
    command.args(["--", "sh", "-c", "for i in 1 2 3; do /bin/true; done"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    make(create(&made), 400);
    make(create(&old).without_checksums(), 400);
    // Its oldest parts were removed.
    let limits = DiskLimits {
        rate: Some(ByteRate::per_second(5e6).unwrap()),
        max_bytes: Some(DiskLimits::LEAST_BYTES),
    };
    make(create(&ring).with_limits(limits).unwrap(), 40_000);
    assert!(ring.join("trace/overhear/disk.json").exists());
    assert!(!ring.join("trace/stream-10").exists());
    [run, made, old, ring].map(|folder| read(&folder)).into()
}

/// The files of a recording, without the page.
fn read(folder: &Path) -> Files {
    let mut files = Files::new();
    for part in ["trace", "trace/overhear"] {
        for entry in fs::read_dir(folder.join(part)).unwrap() {
            let file = entry.unwrap().path();
            if file.is_file() {
                let name = file.strip_prefix(folder).unwrap().to_path_buf();
                files.insert(name, fs::read(&file).unwrap());
            }
        }
    }
    files
}

fn stream(id: u32, sensor: &str, origin: Origin, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor {
        capacity: 64,
        ..StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
    }
}

fn streams() -> Vec<StreamDescriptor> {
    let task = || Origin::program(400, "server");
    let level = || {
        TypeSchema::builder("level")
            .field("value", FieldKind::F64, "V")
            .field("edge", FieldKind::U8, "")
            .field("name", FieldKind::Text(7), "")
            .build()
            .unwrap()
    };
    let mut all: Vec<_> = (0..2)
        .flat_map(|cpu| {
            let kernel = || Origin::Kernel { cpu };
            [
                stream(10 + cpu, SCHED_SWITCH, kernel(), Switch::schema()),
                stream(20 + cpu, SCHED_WAKE, kernel(), Wake::schema()),
            ]
        })
        .collect();
    all.push(stream(30, "level", task(), level()));
    all.extend((31..33).map(|id| StreamDescriptor {
        lane: Some(id - 31),
        ..stream(id, "laned", task(), level())
    }));
    all.push(stream(40, "sampled", Origin::Sampler, level()));
    all
}

fn create(folder: &Path) -> TraceWriter {
    let identity = TraceIdentity {
        hostname: "machine".to_owned(),
        realtime_offset: Nanos::from_ms(1_700_000_000_000),
        uuid: None,
    };
    TraceWriter::create(folder, identity).unwrap()
}

/// Two threads alternate on two CPUs, and a program writes elements.
fn make(writer: TraceWriter, steps: u64) {
    let mut writer = writer.with_packet_bytes(400);
    let streams = streams();
    let mut sequences = BTreeMap::new();
    for step in 0..steps {
        let time = Timestamp::from_monotonic_ns(1_000_000 + step * 10_000);
        let stream = &streams[step as usize % streams.len()];
        let (here, there) = (400 + (step % 2) as u32, 401 - (step % 2) as u32);
        let payload = match stream.sensor.as_str() {
            SCHED_SWITCH => Switch {
                prev_tid: here,
                next_tid: there,
                prev_pid: 400,
                next_pid: 400,
                prev_state: (step % 2) as u16,
                flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
                prev_run_ns: 5_000,
            }
            .to_payload()
            .to_vec(),
            SCHED_WAKE => Wake {
                tid: there,
                pid: 400,
                waker_tid: here,
                waker_pid: 400,
                target_cpu: (step % 2) as u32,
                kind: Wake::WAKING,
            }
            .to_payload()
            .to_vec(),
            _ => {
                let mut payload = (step as f64).to_ne_bytes().to_vec();
                payload.push((step / 8 % 3) as u8);
                payload.extend(b"reading");
                payload.resize(stream.schema.size() as usize, 0);
                payload
            }
        };
        let sequence = sequences.entry(stream.id).or_insert(0);
        if step % 57 == 56 {
            let gap = Gap {
                stream: stream.id,
                first: *sequence,
                missed: 3,
                from: time,
                to: time,
                cause: GapCause::ALL[step as usize % GapCause::ALL.len()],
            };
            writer.gap(stream, &gap).unwrap();
            *sequence += 3;
        }
        let element = ElementView {
            stream,
            sequence: *sequence,
            time,
            payload: &payload,
        };
        writer.element(&element).unwrap();
        *sequence += 1;
        if step % 64 == 63 {
            writer.advance(time).unwrap();
        }
    }
    let end = 1_000_000 + steps * 10_000;
    let kernel = serde_json::json!({
        "name": "kernel", "active": "bpf", "message": "BPF", "sensors": [SCHED_SWITCH, SCHED_WAKE],
    });
    let run = serde_json::json!({
        "overhear_version": "0.1.0", "command": ["server"], "sources": [kernel], "start_ns": 1_000_000,
        "end": {"end_ns": end, "exit": {"code": 0}}, "notes": ["a note"], "unheard": 0,
    });
    writer.attach_document("run", &run).unwrap();
    let segment = serde_json::json!({
        "from_ticks": 1_000, "ns": 1_000_000, "mult": 1 << 20, "shift": 20, "error_ns": 40, "epoch": 0,
    });
    let clock = serde_json::json!({ "segments": [segment] });
    writer.attach_document("clock", &clock).unwrap();
    writer.advance(Timestamp::from_monotonic_ns(end)).unwrap();
    writer.finish().unwrap();
}
