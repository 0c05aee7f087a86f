// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checksums of packets and documents.
//!
//! CRC-32C finds every error of up to 32 adjacent bits, hence every flipped bit, and misses one in
//! 2^32 of all others. Processors compute it: 28 GB/s on the machine of `checksum_cost`, where xxh3
//! with 64 bits reaches 33 to 47 GB/s and guarantees nothing about a single bit. It does not
//! protect against people: a person who changes a file on purpose can write its checksum, too.
//!
//! A document is a JSON object whose last member is its checksum, `"checksum":"crc32c:xxxxxxxx"`,
//! or a JSON array whose last element is an object with that member alone. The checksum covers all
//! bytes that precede the comma, or the member if nothing else is in the document. The file stays
//! plain JSON. Texts that are neither object nor array have none.

use std::io;
use std::io::Write;

use serde::Serialize;

/// Kind of a document that has room for a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Object,
    Array,
}

impl Shape {
    /// By the first byte of the document.
    fn of(first: u8) -> Option<Self> {
        match first {
            b'{' => Some(Self::Object),
            b'[' => Some(Self::Array),
            _ => None,
        }
    }

    /// By the last byte of the document.
    fn of_last(last: u8) -> Option<Self> {
        let mut shapes = [Self::Object, Self::Array].into_iter();
        shapes.find(|shape| shape.close() == last)
    }

    const fn close(self) -> u8 {
        match self {
            Self::Object => b'}',
            Self::Array => b']',
        }
    }

    /// The text between the covered bytes, or the comma after them, and the hexadecimal digits.
    const fn before_digits(self) -> &'static [u8] {
        match self {
            Self::Object => b"\"checksum\":\"crc32c:",
            Self::Array => b"{\"checksum\":\"crc32c:",
        }
    }

    /// The text after the digits.
    const fn after_digits(self) -> &'static [u8] {
        match self {
            Self::Object => b"\"}",
            Self::Array => b"\"}]",
        }
    }
}

const DIGITS: usize = 8;

/// Writes the end of a document whose covered bytes have this checksum. `is_empty` is true if they
/// are the opening bracket alone.
fn write_end(out: &mut impl Write, shape: Shape, is_empty: bool, checksum: u32) -> io::Result<()> {
    if !is_empty {
        out.write_all(b",")?;
    }
    out.write_all(shape.before_digits())?;
    write!(out, "{checksum:08x}")?;
    out.write_all(shape.after_digits())
}

/// CRC-32C of these bytes.
#[inline]
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Adds the checksum to a document that is written through it, as [`seal_document`] does, without
/// keeping the document. The text must begin and end with the object or array.
pub(crate) struct SealingWriter<W> {
    out: W,
    checksum: u32,
    bytes: u64,
    shape: Option<Shape>,
    /// The last byte; it is written when the next one is known.
    held: Option<u8>,
}

impl<W: Write> SealingWriter<W> {
    pub(crate) const fn new(out: W) -> Self {
        Self {
            out,
            checksum: 0,
            bytes: 0,
            shape: None,
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
        match self.shape {
            Some(shape) if last == shape.close() && self.bytes >= 2 => {
                write_end(&mut self.out, shape, self.bytes == 2, self.checksum)
            }
            _ => self.out.write_all(&[last]),
        }
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((last, rest)) = bytes.split_last() else {
            return Ok(0);
        };
        if self.bytes == 0 {
            self.shape = Shape::of(bytes[0]);
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

/// A document with its checksum, for a file that is added to a finished recording.
///
/// # Errors
/// Errors of the serialisation.
pub fn sealed_document<T: Serialize + ?Sized>(document: &T) -> serde_json::Result<Vec<u8>> {
    let mut json = serde_json::to_vec(document)?;
    seal_document(&mut json);
    Ok(json)
}

/// Removes the checksum of a document of any shape, if it has one.
pub(crate) fn strip_document(json: &mut Vec<u8>) {
    if let Some((shape, covered, _)) = split_document(json) {
        let length = covered.len();
        json.truncate(length);
        json.push(shape.close());
    }
}

/// The shape of a document, its covered bytes, and its checksum.
fn split_document(json_untrusted: &[u8]) -> Option<(Shape, &[u8], u32)> {
    let text = json_untrusted.trim_ascii_end();
    // By the last byte, so that a changed first one is found.
    let shape = Shape::of_last(*text.last()?)?;
    let digits = text.strip_suffix(shape.after_digits())?;
    let (rest, digits) = digits.split_at_checked(digits.len().checked_sub(DIGITS)?)?;
    let stored = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    let covered = rest.strip_suffix(shape.before_digits())?;
    match covered.strip_suffix(b",") {
        Some(covered) => Some((shape, covered, stored)),
        None => (covered.len() == 1).then_some((shape, covered, stored)),
    }
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

/// Adds the checksum to a JSON object or array. Any other text stays as it is.
pub(crate) fn seal_document(json: &mut Vec<u8>) {
    let text = json.trim_ascii_end();
    let Some(shape) = text.first().and_then(|first| Shape::of(*first)) else {
        return;
    };
    let Some(covered) = text.strip_suffix(&[shape.close()]) else {
        return;
    };
    let length = covered.trim_ascii_end().len();
    if length == 0 {
        return;
    }
    json.truncate(length);
    let checksum = checksum(json);
    // Writing into a vector cannot fail.
    let _ = write_end(json, shape, length == 1, checksum);
    json.push(b'\n');
}

/// Compares the checksum of a document with its bytes.
pub(crate) fn check_document(json_untrusted: &[u8]) -> DocumentCheck {
    let Some((_, covered, stored)) = split_document(json_untrusted) else {
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
        for text in ["{\"a\":[1,2]}", "{}", "[1]", "[]", "[[],{}]", "null", ""] {
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
        let documents = [
            ("{\n  \"a\": [1, 2],\n  \"b\": \"text\"\n}\n", "/b"),
            ("[\n  {\"a\": 1},\n  \"text\"\n]\n", "/1"),
        ];
        for (text, pointer) in documents {
            let mut sealed = text.as_bytes().to_vec();
            assert_eq!(check_document(&sealed), DocumentCheck::Absent);
            seal_document(&mut sealed);
            let json: serde_json::Value = serde_json::from_slice(&sealed).unwrap();
            assert_eq!(json.pointer(pointer).unwrap(), "text");
            assert_eq!(check_document(&sealed), DocumentCheck::Correct);
            let covered = sealed.len() - 34;
            for bit in 0..covered * 8 {
                let mut flipped = sealed.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let found = check_document(&flipped);
                assert!(matches!(found, DocumentCheck::Wrong { .. }), "{bit}");
            }
        }
    }

    #[test]
    fn texts_that_are_no_object_or_array_are_not_sealed() {
        for text in ["", "1", "null", "}", "\"[\"", "[", "{"] {
            let mut sealed = text.as_bytes().to_vec();
            seal_document(&mut sealed);
            assert_eq!(sealed, text.as_bytes());
        }
    }
}
