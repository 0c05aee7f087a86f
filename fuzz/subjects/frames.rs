// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames of arbitrary bytes: they are decoded in pieces as in one, and no byte is counted twice.

use overhear_trace::{Decoded, FrameContent, FrameCounts, FrameDecoder};

/// Corrects the lengths and checksums of everything that begins like a frame, so that changed
/// bodies are read.
pub(crate) fn corrected(input: &[u8]) -> Vec<u8> {
    const HEAD: usize = 24;
    let mut bytes = input.to_vec();
    let mut at = 0;
    while at + HEAD + 4 <= bytes.len() {
        if !bytes[at..].starts_with(&[0xF5, b'O', b'H', b'F']) {
            at += 1;
            continue;
        }
        let stated = u32::from_le_bytes(bytes[at + 16..at + 20].try_into().expect("four bytes"));
        let length = (stated as usize).min(bytes.len() - at - HEAD - 4);
        bytes[at + 16..at + 20].copy_from_slice(&(length as u32).to_le_bytes());
        let head = crc32c::crc32c(&bytes[at..at + 20]).to_le_bytes();
        bytes[at + 20..at + HEAD].copy_from_slice(&head);
        let end = at + HEAD + length;
        let all = crc32c::crc32c(&bytes[at..end]).to_le_bytes();
        bytes[end..end + 4].copy_from_slice(&all);
        at = end + 4;
    }
    bytes
}

fn read(bytes: &[u8], piece: usize) -> (Vec<(u64, String)>, FrameCounts, usize) {
    let mut decoder = FrameDecoder::default();
    let mut frames = Vec::new();
    let mut framed_bytes = 0;
    let mut take = |decoder: &mut FrameDecoder| {
        while let Some(decoded) = decoder.next() {
            if let Decoded::Frame(frame) = decoded {
                if let FrameContent::Packet(packet) = &frame.content {
                    assert_eq!(packet.records().count(), packet.count as usize);
                }
                frames.push((frame.number, format!("{:?}", frame.content)));
                framed_bytes = frame.offset;
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
    assert!(framed_bytes <= bytes.len() as u64);
    assert!(decoder.counts().skipped_bytes as usize + decoder.cut_bytes() <= bytes.len());
    assert_eq!(decoder.counts().read, frames.len() as u64);
    (frames, decoder.counts(), decoder.cut_bytes())
}

/// Runs one input: as it is, and with correct checksums.
#[allow(dead_code, reason = "the logs use the corrections alone")]
pub(crate) fn run(input: &[u8]) {
    for bytes in [input.to_vec(), corrected(input)] {
        assert_eq!(read(&bytes, usize::MAX), read(&bytes, 7));
    }
}
