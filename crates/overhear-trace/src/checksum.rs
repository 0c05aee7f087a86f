// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checksums of packets and documents.
//!
//! CRC-32C finds every error of up to 32 adjacent bits, hence every flipped bit, and misses one in
//! 2^32 of all others. Processors compute it: 28 GB/s on the machine of `checksum_cost`, where xxh3 with
//! 64 bits reaches 33 to 47 GB/s and promises nothing about a single bit. It is no protection against
//! people: whoever changes a file on purpose can write its checksum, too.
//!
//! A document is a JSON object whose last member is its checksum, `"checksum":"crc32c:xxxxxxxx"`, which
//! covers all bytes that precede the comma. The file stays plain JSON.

use std::io;
use std::io::Write;

/// What stands between the covered bytes of a document and the hexadecimal digits.
const BEFORE_DIGITS: &[u8] = b",\"checksum\":\"crc32c:";
/// What stands after the digits.
const AFTER_DIGITS: &[u8] = b"\"}";
const DIGITS: usize = 8;

/// CRC-32C of these bytes.
#[inline]
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Adds the checksum to a JSON object that is written through it, as [`seal_document`] does, without keeping the
/// document. The text must end with the object.
pub(crate) struct SealingWriter<W> {
    out: W,
    checksum: u32,
    bytes: u64,
    is_object: bool,
    /// The last byte, which is written once it is known what follows.
    held: Option<u8>,
}

impl<W: Write> SealingWriter<W> {
    pub(crate) const fn new(out: W) -> Self {
        Self {
            out,
            checksum: 0,
            bytes: 0,
            is_object: false,
            held: None,
        }
    }

    fn cover(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.out.write_all(bytes)
    }

    /// Writes the end of the document.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(last) = self.held.take() else {
            return Ok(());
        };
        if self.is_object && last == b'}' && self.bytes > 2 {
            let digits = format!("{:08x}", self.checksum);
            self.out.write_all(BEFORE_DIGITS)?;
            self.out.write_all(digits.as_bytes())?;
            return self.out.write_all(AFTER_DIGITS);
        }
        self.out.write_all(&[last])
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((last, rest)) = bytes.split_last() else {
            return Ok(0);
        };
        if self.bytes == 0 {
            self.is_object = bytes[0] == b'{';
        }
        if let Some(held) = self.held.replace(*last) {
            self.cover(&[held])?;
        }
        self.cover(rest)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Takes the checksum out of a document, whatever it is.
pub(crate) fn strip_document(json: &mut Vec<u8>) {
    if let Some((covered, _)) = split_document(json) {
        let length = covered.len();
        json.truncate(length);
        json.push(b'}');
    }
}

/// The covered bytes of a document, and its checksum.
fn split_document(json_untrusted: &[u8]) -> Option<(&[u8], u32)> {
    let text = json_untrusted.trim_ascii_end();
    let digits = text.strip_suffix(AFTER_DIGITS)?;
    let (rest, digits) = digits.split_at_checked(digits.len().checked_sub(DIGITS)?)?;
    let stored = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((rest.strip_suffix(BEFORE_DIGITS)?, stored))
}

/// State of a document's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentCheck {
    /// The document has no checksum: another program or an older version wrote it.
    Absent,
    Correct,
    Wrong {
        stored: u32,
        computed: u32,
    },
}

/// Adds the checksum to a JSON object with at least one member. Any other text stays as it is.
pub(crate) fn seal_document(json: &mut Vec<u8>) {
    let text = json.trim_ascii_end();
    let Some(open) = text.strip_suffix(b"}") else {
        return;
    };
    let open = open.trim_ascii_end();
    if !text.starts_with(b"{") || open.ends_with(b"{") {
        return;
    }
    let length = open.len();
    json.truncate(length);
    let digits = format!("{:08x}", checksum(json));
    json.extend_from_slice(BEFORE_DIGITS);
    json.extend_from_slice(digits.as_bytes());
    json.extend_from_slice(AFTER_DIGITS);
    json.push(b'\n');
}

/// Compares the checksum of a document with its bytes.
pub(crate) fn check_document(json_untrusted: &[u8]) -> DocumentCheck {
    let Some((covered, stored)) = split_document(json_untrusted) else {
        return DocumentCheck::Absent;
    };
    match checksum(covered) {
        computed if computed == stored => DocumentCheck::Correct,
        computed => DocumentCheck::Wrong { stored, computed },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{
        check_document, checksum, seal_document, strip_document, DocumentCheck, SealingWriter,
    };

    #[test]
    fn documents_are_sealed_alike_in_pieces_and_whole() {
        for text in ["{\"a\":[1,2]}", "{}", "[1]", "null", ""] {
            let mut whole = text.as_bytes().to_vec();
            seal_document(&mut whole);
            for size in 1..=text.len().max(1) {
                let mut pieces = Vec::new();
                let mut sealing = SealingWriter::new(&mut pieces);
                for piece in text.as_bytes().chunks(size) {
                    sealing.write_all(piece).unwrap();
                }
                sealing.finish().unwrap();
                assert_eq!(pieces, whole.trim_ascii_end(), "{text}");
                strip_document(&mut pieces);
                assert_eq!(pieces, text.as_bytes());
            }
        }
    }

    #[test]
    fn checksum_is_crc32c() {
        // RFC 3720, B.4: 32 bytes of zeros, and of ones.
        assert_eq!(checksum(&[0; 32]), 0x8A91_36AA);
        assert_eq!(checksum(&[0xFF; 32]), 0x62A8_AB43);
    }

    #[test]
    fn sealed_documents_are_json_and_show_every_flipped_bit() {
        let mut sealed = b"{\n  \"a\": [1, 2],\n  \"b\": \"text\"\n}\n".to_vec();
        assert_eq!(check_document(&sealed), DocumentCheck::Absent);
        seal_document(&mut sealed);
        let json: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
        assert_eq!(json["b"], "text");
        assert_eq!(check_document(&sealed), DocumentCheck::Correct);
        let covered = sealed.len() - 32;
        for bit in 0..covered * 8 {
            let mut flipped = sealed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = check_document(&flipped);
            assert!(matches!(found, DocumentCheck::Wrong { .. }), "{bit}");
        }
    }

    #[test]
    fn texts_without_members_are_not_sealed() {
        for text in ["", "{}", "[1]", "null", "}"] {
            let mut sealed = text.as_bytes().to_vec();
            seal_document(&mut sealed);
            assert_eq!(sealed, text.as_bytes());
        }
    }
}
