// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets of recordings and of imported traces over their seeds and inputs near
//! them.

#[path = "../../../fuzz/subjects/frames.rs"]
mod frames;
#[path = "../../../fuzz/subjects/import.rs"]
mod import;
#[path = "../../../fuzz/subjects/recording.rs"]
mod recording;
#[path = "../../../fuzz/runner.rs"]
mod runner;
#[path = "../../../fuzz/subjects/trace.rs"]
mod trace;

use recording::Recording;

/// The seeds are the files of the recording as they are written; with `OVERHEAR_BLESS` set they are
/// updated.
fn bless(target: &str, files: &[&str], recording: &Recording) {
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        for (choice, file) in (0..).zip(files) {
            let seed = [&[choice], recording.original(file)].concat();
            let name = file.replace('/', "-");
            std::fs::write(runner::seeds_of(target).join(name), seed).unwrap();
        }
    }
}

#[test]
fn recordings_survive_fuzz_seeds_and_mutations() {
    let recording = Recording::new();
    bless("trace", &trace::FILES, &recording);
    runner::near_seeds("trace", 400, |input| trace::run(&recording, input));
}

#[test]
fn imports_survive_fuzz_seeds_and_mutations() {
    if let Err(error) = overhear_trace::ForeignTrace::available() {
        println!("skipped: {error}");
        return;
    }
    let recording = Recording::new();
    bless("import", &import::FILES, &recording);
    runner::near_seeds("import", 1_000, |input| import::run(&recording, input));
}

/// A channel with a frame of each kind.
fn channel() -> Vec<u8> {
    use overhear_event::{FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp};
    use overhear_trace::{ChannelHeader, FrameWriter, PacketBuilder};

    let schema = overhear_event::TypeSchema::builder("level").field("volts", FieldKind::F64, "V");
    let id = StreamId::from_raw(1);
    let stream = StreamDescriptor::new(id, Origin::Sampler, "battery", schema.build().unwrap());
    let at = Timestamp::from_monotonic_ns;
    let mut writer = FrameWriter::new(Vec::new());
    let header = ChannelHeader {
        content: "levels".to_owned(),
        realtime_offset_ns: 5,
    };
    writer.header(&header).unwrap();
    writer.stream(&stream).unwrap();
    writer.document("notes", b"{}").unwrap();
    for mut packet in [PacketBuilder::fixed(&stream), PacketBuilder::sized(&stream)] {
        packet.push(0, at(1), &1.5_f64.to_ne_bytes());
        packet.push(1, at(2), &2.5_f64.to_ne_bytes());
        writer.packet(&mut packet).unwrap();
    }
    let (first, missed, from, to, cause) = (2, 3, at(2), at(9), GapCause::Full);
    let gap = Gap {
        stream: id,
        first,
        missed,
        from,
        to,
        cause,
    };
    writer.gap(&gap).unwrap();
    writer.watermark(at(10)).unwrap();
    writer.end(at(10)).unwrap();
    writer.into_inner()
}

#[test]
fn frames_survive_fuzz_seeds_and_mutations() {
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        std::fs::write(runner::seeds_of("frames").join("channel"), channel()).unwrap();
    }
    runner::near_seeds("frames", 1_000, frames::run);
}
