// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames, whole, cut, damaged and hostile: against a list of what was written.

use std::collections::BTreeSet;

use overhear_event::{
    FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{
    ChannelHeader, Decoded, FrameContent, FrameCounts, FrameDecoder, FrameWriter, PacketBuilder,
    FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, MAX_FRAME_BODY_BYTES,
};
use proptest::prelude::*;

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn stream(id: u32, text_bytes: u16) -> StreamDescriptor {
    let schema = TypeSchema::builder("sample")
        .field("value", FieldKind::U64, "ns")
        .field("text", FieldKind::Text(text_bytes), "")
        .build()
        .unwrap();
    let origin = Origin::program(7, "program");
    StreamDescriptor::new(StreamId::from_raw(id), origin, "sensor", schema)
}

/// What a channel has, to compare.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Header(String, i64),
    Document(String, Vec<u8>),
    Stream(u32, u16),
    /// Stream, whether records have sizes of their own, first sequence; times and payloads.
    Packet(u32, bool, u64, Vec<(u64, Vec<u8>)>),
    Gap(Gap),
    Watermark(u64),
    End(u64),
}

/// Bytes of the text in the payloads of packets with records of one size.
const TEXT_BYTES: u16 = 8;

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let time = 0..=1_u64 << 62;
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    let record = (0..50_u64, bytes.clone());
    let packet = (any::<u32>(), any::<bool>(), 0..u64::MAX / 2, 0..1_u64 << 40);
    let packet = (packet, prop::collection::vec(record, 1..20)).prop_map(
        |((stream, is_sized, sequence, begin), records)| {
            let mut time = begin;
            let records = records.into_iter().map(|(later, mut payload)| {
                time += later;
                if !is_sized {
                    payload.resize(16, 1);
                }
                (time, payload)
            });
            Part::Packet(stream, is_sized, sequence, records.collect())
        },
    );
    let gap = (
        any::<u32>(),
        0..1_u64 << 40,
        0..1_u64 << 40,
        time.clone(),
        time.clone(),
        0..11_usize,
    );
    let gap = gap.prop_map(|(stream, first, missed, from, to, cause)| {
        Part::Gap(Gap {
            stream: StreamId::from_raw(stream),
            first,
            missed,
            from: at(from.min(to)),
            to: at(from.max(to)),
            cause: GapCause::ALL[cause],
        })
    });
    let part = prop_oneof![
        (".{1,20}", any::<i64>()).prop_map(|(text, offset)| Part::Header(text, offset)),
        (".{1,20}", bytes).prop_map(|(name, bytes)| Part::Document(name, bytes)),
        (any::<u32>(), 1..4_000_u16).prop_map(|(id, bytes)| Part::Stream(id, bytes)),
        packet,
        gap,
        time.clone().prop_map(Part::Watermark),
        time.prop_map(Part::End),
    ];
    prop::collection::vec(part, 1..12)
}

/// The frames of these parts, and the position at which each ends.
fn encode(parts: &[Part]) -> (Vec<u8>, Vec<usize>) {
    let mut writer = FrameWriter::new(Vec::new());
    let mut ends = Vec::new();
    for part in parts {
        match part {
            Part::Header(content, realtime_offset_ns) => writer.header(&ChannelHeader {
                content: content.clone(),
                realtime_offset_ns: *realtime_offset_ns,
            }),
            Part::Document(name, bytes) => writer.document(name, bytes),
            Part::Stream(id, bytes) => writer.stream(&stream(*id, *bytes)),
            Part::Packet(id, is_sized, sequence, records) => {
                let descriptor = stream(*id, TEXT_BYTES);
                let mut packet = match is_sized {
                    true => PacketBuilder::sized(&descriptor),
                    false => PacketBuilder::fixed(&descriptor),
                };
                for (sequence, (time, payload)) in (*sequence..).zip(records) {
                    packet.push(sequence, at(*time), payload);
                }
                writer.packet(&mut packet)
            }
            Part::Gap(gap) => writer.gap(gap),
            Part::Watermark(time) => writer.watermark(at(*time)),
            Part::End(time) => writer.end(at(*time)),
        }
        .unwrap();
        ends.push(writer.get_ref().len());
    }
    (writer.into_inner(), ends)
}

fn part_of(content: &FrameContent<'_>) -> Option<Part> {
    Some(match content {
        FrameContent::Header(header) => {
            Part::Header(header.content.clone(), header.realtime_offset_ns)
        }
        FrameContent::Document { name, bytes } => {
            Part::Document((*name).to_owned(), bytes.to_vec())
        }
        FrameContent::Stream(descriptor) => {
            let text_bytes = descriptor.schema.size() - 8;
            assert_eq!(
                **descriptor,
                stream(descriptor.id.as_raw(), text_bytes as u16)
            );
            Part::Stream(descriptor.id.as_raw(), text_bytes as u16)
        }
        FrameContent::Packet(packet) => {
            let mut records = Vec::new();
            for (record, sequence) in packet.records().zip(packet.first_sequence..) {
                assert_eq!(record.sequence, sequence);
                records.push((record.time.as_monotonic_ns(), record.payload.to_vec()));
            }
            assert_eq!(packet.count as usize, records.len());
            let bytes: usize = records.iter().map(|(_, payload)| 8 + payload.len()).sum();
            let is_sized = bytes != packet.bytes().len();
            Part::Packet(
                packet.stream.as_raw(),
                is_sized,
                packet.first_sequence,
                records,
            )
        }
        FrameContent::Gap(gap) => Part::Gap(*gap),
        FrameContent::Watermark(time) => Part::Watermark(time.as_monotonic_ns()),
        FrameContent::End(time) => Part::End(time.as_monotonic_ns()),
        FrameContent::Unknown { .. } => return None,
    })
}

/// Everything that a decoder yields for bytes that come in pieces of this size: the parts with
/// their numbers, the counts, and the bytes of the cut frame.
fn decode(bytes: &[u8], piece: usize) -> (Vec<(u64, Part)>, FrameCounts, usize) {
    let mut decoder = FrameDecoder::default();
    let mut parts = Vec::new();
    let mut take = |decoder: &mut FrameDecoder| {
        while let Some(decoded) = decoder.next() {
            if let Decoded::Frame(frame) = decoded {
                parts.extend(part_of(&frame.content).map(|part| (frame.number, part)));
            }
        }
    };
    for mut piece in bytes.chunks(piece) {
        while !piece.is_empty() {
            let taken = decoder.push(piece);
            piece = &piece[taken..];
            take(&mut decoder);
        }
    }
    decoder.finish();
    take(&mut decoder);
    (parts, decoder.counts(), decoder.cut_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn channel_gives_what_was_written(parts in parts(), piece in 1..2_000_usize) {
        let (bytes, _) = encode(&parts);
        let (decoded, counts, cut) = decode(&bytes, piece);
        let expected: Vec<(u64, Part)> = (0..).zip(parts.clone()).collect();
        prop_assert_eq!(decoded, expected);
        let read = parts.len() as u64;
        prop_assert_eq!(counts, FrameCounts { read, ..FrameCounts::default() });
        prop_assert_eq!(cut, 0);
    }

    #[test]
    fn cut_channel_gives_its_whole_frames(parts in parts(), at in any::<prop::sample::Index>()) {
        let (bytes, ends) = encode(&parts);
        let cut = at.index(bytes.len());
        let (decoded, counts, cut_bytes) = decode(&bytes[..cut], 700);
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let expected: Vec<(u64, Part)> = (0..).zip(parts[..whole].to_vec()).collect();
        prop_assert_eq!(decoded, expected);
        let last = whole.checked_sub(1).map_or(0, |last| ends[last]);
        prop_assert_eq!((counts.damaged, cut_bytes), (0, cut - last));
    }

    #[test]
    fn damaged_byte_costs_its_frame(
        parts in parts(),
        at in any::<prop::sample::Index>(),
        change in 1..=255_u8,
        piece in 1..2_000_usize,
    ) {
        let (mut bytes, ends) = encode(&parts);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let damaged = ends.iter().filter(|end| **end <= at).count();
        let (decoded, counts, cut_bytes) = decode(&bytes, piece);
        let mut expected: Vec<(u64, Part)> = (0..).zip(parts.clone()).collect();
        expected.remove(damaged);
        prop_assert_eq!(decoded, expected);
        let begin = damaged.checked_sub(1).map_or(0, |last| ends[last]);
        prop_assert_eq!(counts.damaged, 1);
        prop_assert_eq!(cut_bytes, 0);
        prop_assert_eq!(counts.skipped_bytes as usize, ends[damaged] - begin);
        // The number of frames that are missing at the begin and at the end is not known.
        let is_inside = damaged > 0 && damaged + 1 < parts.len();
        prop_assert_eq!(counts.missing, u64::from(is_inside));
    }

    #[test]
    fn removed_bytes_cost_few_frames(
        mut parts in parts(),
        from in any::<prop::sample::Index>(),
        count in 1..300_usize,
    ) {
        let from = from.index(encode(&parts).0.len());
        // Longer than what is removed: no length reaches beyond the end.
        parts.push(Part::Document("rest".to_owned(), vec![7; 400]));
        let (mut bytes, ends) = encode(&parts);
        let to = from + count;
        bytes.drain(from..to);
        let (decoded, ..) = decode(&bytes, 900);
        for (number, part) in &decoded {
            prop_assert_eq!(part, &parts[*number as usize]);
        }
        let begins = |index: usize| index.checked_sub(1).map_or(0, |last| ends[last]);
        let numbers: BTreeSet<usize> = decoded.iter().map(|(number, _)| *number as usize).collect();
        for number in 0..parts.len() {
            // A frame may be whole with the first bytes of the next one.
            let takes_begin = number > 0 && ends[number - 1] > from && numbers.contains(&(number - 1));
            if ends[number] <= from || begins(number) >= to && !takes_begin {
                prop_assert!(numbers.contains(&number), "{} is not in {:?}", number, numbers);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_skipped(bytes in prop::collection::vec(any::<u8>(), 0..4_000)) {
        let (decoded, counts, cut) = decode(&bytes, 1_000);
        prop_assert!(decoded.is_empty());
        prop_assert_eq!(counts.skipped_bytes as usize + cut, bytes.len());
    }
}

#[test]
fn channel_begins_with_the_documented_bytes() {
    let mut writer = FrameWriter::starting_at(Vec::new(), 5);
    writer.watermark(at(0x0102)).unwrap();
    let bytes = writer.into_inner();
    let head = [
        0xF5, b'O', b'H', b'F', 1, 6, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0,
    ];
    assert_eq!(bytes[..20], head);
    assert_eq!(bytes[20..24], crc32c::crc32c(&bytes[..20]).to_le_bytes());
    assert_eq!(bytes[24..32], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..], crc32c::crc32c(&bytes[..32]).to_le_bytes());
    assert!(overhear_trace::begins_with_frame(&bytes));
}

/// A frame with any kind, version and body.
fn raw_frame(version: u8, kind: u8, number: u64, body: &[u8], body_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0xF5, b'O', b'H', b'F', version, kind, 0, 0];
    bytes.extend(number.to_le_bytes());
    bytes.extend(body_bytes.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes.extend(body);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

#[test]
fn frames_of_the_future_are_skipped_and_counted() {
    let mut bytes = raw_frame(1, 200, 0, b"a new kind", 10);
    bytes.extend(raw_frame(2, 6, 1, b"a new version", 13));
    bytes.extend(raw_frame(1, 6, 2, &7_u64.to_le_bytes(), 8));
    let (decoded, counts, _) = decode(&bytes, 11);
    assert_eq!(decoded, [(2, Part::Watermark(7))]);
    assert_eq!((counts.read, counts.unknown, counts.damaged), (3, 2, 0));
}

#[test]
fn bodies_that_contradict_themselves_are_damage() {
    let packet = |count: u32, record_bytes: u32, times: [u64; 2], records: &[u8]| {
        let mut body = 1_u32.to_le_bytes().to_vec();
        body.extend(count.to_le_bytes());
        body.extend(u64::MAX.wrapping_sub(5).to_le_bytes());
        body.extend(times.map(u64::to_le_bytes).concat());
        body.extend(record_bytes.to_le_bytes());
        body.extend([0; 4]);
        body.extend(records);
        body
    };
    let two = [3_u64, 4].map(u64::to_ne_bytes).concat();
    let good = raw_frame(1, 4, 0, &packet(2, 8, [3, 4], &two), 56);
    assert_eq!(decode(&good, 100).1.damaged, 0);
    let bodies: [(u8, Vec<u8>); 16] = [
        (4, packet(3, 8, [3, 4], &two)),
        (4, packet(1, 8, [3, 3], &two)),
        (4, packet(0, 8, [0, 0], &[])),
        (4, packet(2, 8, [3, 5], &two)),
        (4, packet(2, 8, [4, 4], &two)),
        (4, packet(2, 7, [3, 4], &two)),
        (4, packet(2, u32::MAX, [3, 4], &two)),
        (
            4,
            packet(1, 0, [3, 3], &[3_u64, 5].map(u64::to_ne_bytes).concat()),
        ),
        (
            4,
            packet(
                2,
                8,
                [3, 1 << 63],
                &[3, 1 << 63].map(u64::to_ne_bytes).concat(),
            ),
        ),
        (4, vec![1; 39]),
        (1, vec![4; 20]),
        (2, vec![200, b'a']),
        (2, vec![2, 0xFF, 0xFF]),
        (3, b"{\"id\":1}".to_vec()),
        (5, vec![0; 40]),
        (6, u64::MAX.to_le_bytes().to_vec()),
    ];
    for (index, (kind, body)) in bodies.into_iter().enumerate() {
        let bytes = raw_frame(1, kind, 0, &body, body.len() as u32);
        let (decoded, counts, cut) = decode(&bytes, 50);
        assert_eq!(
            (decoded.len(), counts.damaged, cut),
            (0, 1, 0),
            "body {index}"
        );
    }
}

#[test]
fn no_length_takes_more_memory_or_time_than_the_bytes() {
    // Each head states a length up to the end, and lies inside the frame before it.
    let heads = 60_000_usize;
    let mut bytes = Vec::new();
    for index in 0..heads {
        let rest = (heads - index) * FRAME_HEAD_BYTES;
        let frame = raw_frame(1, 2, 0, &[], rest.min(MAX_FRAME_BODY_BYTES) as u32);
        bytes.extend(&frame[..FRAME_HEAD_BYTES]);
    }
    bytes.extend([0; 2 * FRAME_OVERHEAD_BYTES]);
    bytes.extend(raw_frame(1, 6, 9, &7_u64.to_le_bytes(), 8));
    let (decoded, counts, _) = decode(&bytes, 1 << 16);
    assert_eq!(decoded, [(9, Part::Watermark(7))]);
    assert_eq!(counts.damaged, 1);
    // A length beyond the largest is no length.
    let too_long = raw_frame(1, 2, 0, &[], MAX_FRAME_BODY_BYTES as u32 + 1);
    let after = raw_frame(1, 6, 9, &7_u64.to_le_bytes(), 8);
    let (decoded, ..) = decode(&[too_long, after].concat(), 10);
    assert_eq!(decoded, [(9, Part::Watermark(7))]);
}

#[test]
fn data_that_imitates_frames_is_no_frame() {
    let imitation = raw_frame(1, 6, 1, &7_u64.to_le_bytes(), 8);
    let mut writer = FrameWriter::new(Vec::new());
    writer.document("data", &imitation).unwrap();
    writer.watermark(at(8)).unwrap();
    let mut bytes = writer.into_inner();
    assert_eq!(decode(&bytes, 10).0.len(), 2);
    // Also when the frame around it is damaged.
    bytes[FRAME_HEAD_BYTES] ^= 1;
    let (decoded, counts, _) = decode(&bytes, 10);
    assert_eq!(decoded, [(1, Part::Watermark(8))]);
    assert_eq!(counts.damaged, 1);
}

#[test]
fn writer_refuses_what_no_reader_takes() {
    let mut writer = FrameWriter::new(Vec::new());
    assert!(writer.document("", b"").is_err());
    assert!(writer.document(&"x".repeat(256), b"").is_err());
    assert!(writer
        .document("x", &vec![0; MAX_FRAME_BODY_BYTES])
        .is_err());
    assert_eq!((writer.next_number(), writer.get_ref().len()), (0, 0));
}
