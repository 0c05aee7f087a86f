// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of variable size: messages, split over elements of one sensor and rejoined by the reader.
//!
//! Elements have one size for each sensor; "nevertheless, the sensor can still produce arbitrary
//! output by splitting variably sized data" ([GRTMon, section 4.1] and its footnote 10). An element
//! that is a *part* begins with three numbers and then carries a piece of the message:
//!
//! | offset | size | field | meaning |
//! |--:|--:|---|---|
//! | 0 | 8 | `message` | the number of the message in its stream, from 0, one after the other |
//! | 8 | 4 | `part` | the number of the part in its message, from 0 |
//! | 12 | 4 | `bytes` | bytes of the whole message |
//! | 16 | the rest | `data` | the piece; behind the end of the message, zeros |
//!
//! A message has as many parts as its bytes need, an empty one has one. [`PartLayout::split`] makes
//! them, `overhear/parts.h` does the same in C, and a [`Rejoiner`] (`overhear/rejoin.h`) puts them
//! together. It delivers
//! a message whole or counts it as lost: because messages are numbered, it needs no word from
//! anybody about what was missed.
//!
//! Several threads may write messages to one laned or concurrent sensor. Then the numbers are those
//! of each thread, which its elements name, and there is a rejoiner for each.

use alloc::vec::Vec;

use crate::schema::array;
use crate::{FieldKind, SchemaError, TypeSchema, MAX_PAYLOAD_BYTES};

/// Bytes before the piece of the message.
const LEAD_BYTES: u32 = 16;
/// Bytes before a part with the id of its writing thread.
pub const WRITER_BYTES: u32 = 8;

/// How messages are split for one sensor.
///
/// Holding one proves that a part fits into an element and carries at least a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLayout {
    data_bytes: u32,
}

impl PartLayout {
    /// A layout with parts of `data_bytes` bytes of a message each, 1 to 4072; `None` for other
    /// sizes.
    #[must_use]
    pub const fn new(data_bytes: u32) -> Option<Self> {
        if data_bytes == 0 || data_bytes > MAX_PAYLOAD_BYTES - LEAD_BYTES {
            return None;
        }
        Some(Self { data_bytes })
    }

    /// The layout of a sensor's parts, `None` if its elements are not parts of messages.
    #[must_use]
    pub fn of(schema: &TypeSchema) -> Option<Self> {
        let layout = Self::new(schema.size().checked_sub(LEAD_BYTES)?)?;
        let expected = layout.schema(schema.id()).ok()?;
        (*schema == expected).then_some(layout)
    }

    /// The same of elements with the id of the writing thread, as those of laned and concurrent
    /// sensors: two words before the part. Each thread's parts are a sequence of messages of its
    /// own.
    #[must_use]
    pub fn of_writers(schema: &TypeSchema) -> Option<Self> {
        let lead = schema.size().checked_sub(WRITER_BYTES)?;
        let layout = Self::new(lead.checked_sub(LEAD_BYTES)?)?;
        let expected = layout.schema(schema.id()).ok()?.with_writer().ok()?;
        (*schema == expected).then_some(layout)
    }

    /// The schema of a part.
    ///
    /// # Errors
    /// [`SchemaError::BadName`] if the type id is none.
    pub fn schema(self, type_id: &str) -> Result<TypeSchema, SchemaError> {
        let data = FieldKind::Text(self.data_bytes as u16);
        TypeSchema::builder(type_id)
            .field("message", FieldKind::U64, "")
            .field("part", FieldKind::U32, "")
            .field("bytes", FieldKind::U32, "B")
            .field("data", data, "")
            .build()
    }

    /// Bytes of a part's payload.
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        (LEAD_BYTES + self.data_bytes) as usize
    }

    /// Bytes of a message that a part carries.
    #[must_use]
    pub const fn data_bytes(self) -> usize {
        self.data_bytes as usize
    }

    /// Number of parts of a message of this length.
    #[must_use]
    pub const fn parts(self, bytes: u32) -> u32 {
        match bytes {
            0 => 1,
            _ => bytes.div_ceil(self.data_bytes),
        }
    }

    /// Splits a message: writes each part's payload to `payload`, which has
    /// [`PartLayout::payload_bytes`], and calls `write`. Allocates nothing.
    ///
    /// # Errors
    /// [`MessageTooLong`] if its length does not fit 32 bits; then nothing is written.
    ///
    /// # Panics
    /// If `payload` has another length.
    pub fn split(
        self,
        message: u64,
        bytes: &[u8],
        payload: &mut [u8],
        mut write: impl FnMut(&[u8]),
    ) -> Result<(), MessageTooLong> {
        let length = u32::try_from(bytes.len()).map_err(|_| MessageTooLong)?;
        assert!(
            payload.len() == self.payload_bytes(),
            "the payload is not that of a part"
        );
        payload[..8].copy_from_slice(&message.to_ne_bytes());
        payload[12..16].copy_from_slice(&length.to_ne_bytes());
        for part in 0..self.parts(length) {
            let from = part as usize * self.data_bytes();
            let piece = &bytes[from..bytes.len().min(from + self.data_bytes())];
            payload[8..12].copy_from_slice(&part.to_ne_bytes());
            let (data, rest) = payload[LEAD_BYTES as usize..].split_at_mut(piece.len());
            data.copy_from_slice(piece);
            rest.fill(0);
            write(payload);
        }
        Ok(())
    }
}

/// A message is longer than its length field can represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has 4 GiB or more; nothing was written")]
pub struct MessageTooLong;

/// What a [`Rejoiner`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoined<'a> {
    /// A whole message.
    Message {
        /// Its number.
        number: u64,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Messages of which at least one part is missing.
    Lost {
        /// The number of the first.
        first: u64,
        /// Number of messages; exact for honest writers.
        count: u64,
    },
}

/// Progress of the current message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No part yet.
    Awaited,
    /// The first parts, with their number, and the length of the message.
    Begun { parts: u32, bytes: u32 },
    /// A part is missing: it is counted already, and further parts are ignored.
    GivenUp,
}

/// Puts the parts of one stream together again.
///
/// It holds one message at a time, at most [`Rejoiner::LARGEST`] bytes, whatever the parts say:
/// these come from another process. A longer one is lost.
#[derive(Debug)]
pub struct Rejoiner {
    layout: PartLayout,
    /// The message whose parts are awaited; `None` before the first part of a stream that was
    /// joined late.
    message: Option<u64>,
    progress: Progress,
    /// The bytes of its parts so far.
    bytes: Vec<u8>,
    lost: u64,
    rejected_corrupt: u64,
}

impl Rejoiner {
    /// The longest message that is put together, in bytes.
    pub const LARGEST: u32 = 64 << 20;

    /// For a stream that is read from its start: what is missing before the first part is lost.
    #[must_use]
    pub const fn from_start(layout: PartLayout) -> Self {
        Self::awaiting(layout, Some(0))
    }

    /// For a stream that is joined while it runs: messages begun earlier are no concern.
    #[must_use]
    pub const fn from_now(layout: PartLayout) -> Self {
        Self::awaiting(layout, None)
    }

    const fn awaiting(layout: PartLayout, message: Option<u64>) -> Self {
        Self {
            layout,
            message,
            progress: Progress::Awaited,
            bytes: Vec::new(),
            lost: 0,
            rejected_corrupt: 0,
        }
    }

    /// The next part that was seen, in the stream's order. Calls `found` for what it completes or
    /// proves to be lost, in the order of the messages.
    pub fn part(&mut self, payload_untrusted: &[u8], mut found: impl FnMut(Rejoined<'_>)) {
        let Some(part) = Part::parse(self.layout, payload_untrusted) else {
            self.rejected_corrupt += 1;
            return;
        };
        match self.message {
            Some(awaited) if part.message == awaited => {}
            Some(awaited) if part.message > awaited => {
                let counted = u64::from(self.progress == Progress::GivenUp);
                let first = awaited + counted;
                if part.message > first {
                    self.report_lost(first, part.message - first, &mut found);
                }
                self.await_message(part.message);
            }
            Some(_) => {
                // An honest writer does not go back. The number is believed all the same, lest one
                // bad part silence the stream.
                self.rejected_corrupt += 1;
                self.await_message(part.message);
            }
            None => {
                self.await_message(part.message);
                if part.part > 0 {
                    // It was begun before the stream was joined.
                    self.progress = Progress::GivenUp;
                }
            }
        }
        let parts = match self.progress {
            Progress::Awaited if part.part == 0 && part.bytes <= Self::LARGEST => 1,
            Progress::Begun { parts, bytes } if part.part == parts && part.bytes == bytes => {
                parts + 1
            }
            Progress::GivenUp => return,
            _ => {
                self.progress = Progress::GivenUp;
                self.report_lost(part.message, 1, &mut found);
                return;
            }
        };
        self.bytes.extend_from_slice(part.data);
        if parts < self.layout.parts(part.bytes) {
            let bytes = part.bytes;
            self.progress = Progress::Begun { parts, bytes };
            return;
        }
        let (number, bytes) = (part.message, &self.bytes[..]);
        found(Rejoined::Message { number, bytes });
        self.await_message(number.wrapping_add(1));
    }

    /// The stream has ended, or elements were missed here: a message that is not whole is lost.
    ///
    /// Optional for gaps, which the numbers of later parts show anyway; but later.
    pub fn interrupted(&mut self, mut found: impl FnMut(Rejoined<'_>)) {
        if let (Some(message), Progress::Begun { .. }) = (self.message, self.progress) {
            self.progress = Progress::GivenUp;
            self.report_lost(message, 1, &mut found);
        }
    }

    /// Messages lost so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Parts that no honest writer writes.
    #[must_use]
    pub const fn rejected_corrupt(&self) -> u64 {
        self.rejected_corrupt
    }

    fn report_lost(&mut self, first: u64, count: u64, found: &mut impl FnMut(Rejoined<'_>)) {
        self.lost = self.lost.saturating_add(count);
        found(Rejoined::Lost { first, count });
    }

    fn await_message(&mut self, message: u64) {
        self.message = Some(message);
        self.progress = Progress::Awaited;
        self.bytes.clear();
    }
}

/// A part as it was read.
struct Part<'a> {
    message: u64,
    part: u32,
    bytes: u32,
    data: &'a [u8],
}

impl<'a> Part<'a> {
    /// `None` if it is not one of this layout, or contradicts itself.
    fn parse(layout: PartLayout, payload: &'a [u8]) -> Option<Self> {
        if payload.len() != layout.payload_bytes() {
            return None;
        }
        let (lead, data) = payload.split_at(LEAD_BYTES as usize);
        let message = u64::from_ne_bytes(array(&lead[..8])?);
        let part = u32::from_ne_bytes(array(&lead[8..12])?);
        let bytes = u32::from_ne_bytes(array(&lead[12..])?);
        let before = part.checked_mul(layout.data_bytes)?;
        let left = match bytes.checked_sub(before)? {
            0 if part > 0 => return None,
            left => left.min(layout.data_bytes),
        };
        let data = &data[..left as usize];
        Some(Self {
            message,
            part,
            bytes,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use proptest::prelude::{any, prop, proptest, ProptestConfig};
    use proptest::{prop_assert, prop_assert_eq};

    use super::{PartLayout, Rejoined, Rejoiner};
    use crate::{FieldKind, TypeSchema};

    type Found = (Vec<(u64, Vec<u8>)>, Vec<(u64, u64)>);

    fn note(found: &mut Found, what: Rejoined<'_>) {
        match what {
            Rejoined::Message { number, bytes } => found.0.push((number, bytes.to_vec())),
            Rejoined::Lost { first, count } => found.1.push((first, count)),
        }
    }

    fn split(layout: PartLayout, message: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut parts = vec![];
        let mut payload = vec![0xff; layout.payload_bytes()];
        let written = layout.split(message, bytes, &mut payload, |part| {
            parts.push(part.to_vec())
        });
        written.unwrap();
        parts
    }

    fn rejoin(mut rejoiner: Rejoiner, parts: &[Vec<u8>]) -> (Found, Rejoiner) {
        let mut found = Found::default();
        for part in parts {
            rejoiner.part(part, |what| note(&mut found, what));
        }
        rejoiner.interrupted(|what| note(&mut found, what));
        (found, rejoiner)
    }

    #[test]
    fn layout_is_known_by_its_schema() {
        let layout = PartLayout::new(48).unwrap();
        let schema = layout.schema("log").unwrap();
        assert_eq!(schema.size(), 64);
        assert_eq!(PartLayout::of(&schema), Some(layout));
        let other = TypeSchema::builder("log").field("message", FieldKind::U64, "");
        assert_eq!(PartLayout::of(&other.build().unwrap()), None);
        let seen = schema.with_writer().unwrap();
        assert_eq!(PartLayout::of_writers(&seen), Some(layout));
        assert_eq!(PartLayout::of_writers(&schema), None);
        assert_eq!(PartLayout::of(&seen), None);
        assert_eq!((PartLayout::new(0), PartLayout::new(4073)), (None, None));
        assert!(PartLayout::new(4072).unwrap().schema("log").is_ok());
    }

    #[test]
    fn stream_that_is_joined_late_begins_with_the_next_message() {
        let layout = PartLayout::new(4).unwrap();
        let mut parts = split(layout, 7, b"seven is long");
        parts.extend(split(layout, 8, b"eight"));
        let (found, rejoiner) = rejoin(Rejoiner::from_now(layout), &parts[2..]);
        assert_eq!(found, (vec![(8, b"eight".to_vec())], vec![]));
        assert_eq!(rejoiner.lost(), 0);
        let (found, rejoiner) = rejoin(Rejoiner::from_start(layout), &parts[2..]);
        assert_eq!(found, (vec![(8, b"eight".to_vec())], vec![(0, 7), (7, 1)]));
        assert_eq!(rejoiner.lost(), 8);
    }

    #[test]
    fn message_beyond_all_reason_is_lost_without_taking_memory() {
        let layout = PartLayout::new(4).unwrap();
        let mut part = split(layout, 0, b"abcd").remove(0);
        part[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        let (found, rejoiner) = rejoin(Rejoiner::from_start(layout), &[part]);
        assert_eq!(found, (vec![], vec![(0, 1)]));
        assert_eq!(rejoiner.bytes.capacity(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Whatever parts are missing, every message is either delivered as it was written or lost,
        /// once; and only one with a missing part is lost.
        #[test]
        fn messages_come_whole_or_are_counted(
            data_bytes in 1..20_u32,
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..30),
            losses in prop::collection::vec(0..6_u8, 300),
            telling in any::<bool>(),
        ) {
            let layout = PartLayout::new(data_bytes).unwrap();
            let mut rejoiner = Rejoiner::from_start(layout);
            let mut found = Found::default();
            let mut losses = losses.into_iter().cycle();
            let mut whole = vec![];
            // The last one is seen: what is missing behind it cannot be known.
            let last = messages.len() - 1;
            for (number, bytes) in messages.iter().enumerate() {
                let mut is_whole = true;
                let parts = split(layout, number as u64, bytes);
                prop_assert_eq!(parts.len() as u32, layout.parts(bytes.len() as u32));
                for part in parts {
                    if number < last && losses.next() == Some(0) {
                        is_whole = false;
                        if telling {
                            rejoiner.interrupted(|what| note(&mut found, what));
                        }
                    } else {
                        rejoiner.part(&part, |what| note(&mut found, what));
                    }
                }
                if is_whole {
                    whole.push((number as u64, bytes.clone()));
                }
            }
            let lost: Vec<u64> = found.1.iter().flat_map(|&(first, count)| first..first + count).collect();
            let expected: Vec<u64> = (0..messages.len() as u64)
                .filter(|number| whole.iter().all(|(whole, _)| whole != number))
                .collect();
            prop_assert_eq!(found.0, whole);
            prop_assert_eq!(lost.len() as u64, rejoiner.lost());
            prop_assert_eq!(lost, expected);
            prop_assert_eq!(rejoiner.rejected_corrupt(), 0);
        }

        /// Arbitrary parts cause no panic, and take no more memory than has arrived.
        #[test]
        fn arbitrary_parts_are_harmless(
            data_bytes in 1..8_u32,
            numbers in prop::collection::vec((0..4_u64, 0..4_u32, 0..20_u32, any::<bool>()), 0..100),
        ) {
            let layout = PartLayout::new(data_bytes).unwrap();
            let mut rejoiner = Rejoiner::from_now(layout);
            let mut arrived = 0;
            for (message, part, bytes, is_far) in numbers {
                let message = if is_far { u64::MAX - message } else { message };
                let mut payload = vec![7; layout.payload_bytes()];
                payload[..8].copy_from_slice(&message.to_ne_bytes());
                payload[8..12].copy_from_slice(&part.to_ne_bytes());
                payload[12..16].copy_from_slice(&bytes.to_ne_bytes());
                arrived += layout.data_bytes();
                rejoiner.part(&payload, |what| {
                    if let Rejoined::Message { bytes, .. } = what {
                        assert!(bytes.len() <= arrived);
                    }
                });
            }
            rejoiner.part(&[1, 2, 3], |_| panic!("that is no part"));
            prop_assert!(rejoiner.rejected_corrupt() >= 1);
        }
    }
}
