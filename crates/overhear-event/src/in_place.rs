// SPDX-License-Identifier: MIT OR Apache-2.0
//! Large elements, evaluated where their writer put them [GRTMon, sections 4.2 and 4.3].
//!
//! A copied element is validated before it is evaluated. Reading an element in place saves the
//! copy, but its writer may overwrite it at any moment. So an analysis has two parts. `prepare`
//! reads the payload through an [`ElementInPlace`] and computes a result, without an effect outside
//! the update: the words that it read may be a mixture of two elements. Then the monitor checks
//! whether the element was still whole, and `commit` applies the result, or drops it.
//!
//! Needed by: updates of sensors with payloads of more than 256 bytes, as samples of images or
//! packets, which read a part of each payload or have a bound on their WCET that a copy would
//! exceed. Everybody else implements `element` alone.
//!
//! No reference into the stream's memory is handed out: words are loaded by value.

use core::cell::Cell;
use core::fmt;

use crate::{Analysis, StreamDescriptor, Timestamp, Value};

/// Payloads of more bytes than this can be evaluated in place. For smaller ones a copy costs less
/// than the checks.
pub const IN_PLACE_BYTES: u32 = 256;

/// The memory of a stream whose elements can be read in place.
pub trait InPlaceMemory: Send + Sync + fmt::Debug {
    /// Loads words of an element's payload, from the word `first` on. They are valid only if
    /// [`Self::is_whole`] is true afterwards. Words after the payload are 0.
    fn load(&self, sequence: u64, first: usize, to: &mut [u64]);

    /// Whether all words of this element that were loaded so far belong to it: it was in the
    /// buffer, and was not being overwritten.
    fn is_whole(&self, sequence: u64) -> bool;
}

/// The identity of an element: everything but its payload.
#[derive(Clone, Copy, Debug)]
pub struct ElementKey<'a> {
    /// The stream it belongs to.
    pub stream: &'a StreamDescriptor,
    /// Its position in the stream since the stream's start.
    pub sequence: u64,
    /// When it was committed.
    pub time: Timestamp,
}

/// One element in total order, in its writer's memory, which may be overwritten while it is read.
#[derive(Debug)]
pub struct ElementInPlace<'a> {
    key: ElementKey<'a>,
    payloads: &'a dyn InPlaceMemory,
    // False once a check has found it overwritten.
    whole: Cell<bool>,
}

impl<'a> ElementInPlace<'a> {
    /// The element of this key in `places`.
    #[must_use]
    pub const fn new(key: ElementKey<'a>, payloads: &'a dyn InPlaceMemory) -> Self {
        let whole = Cell::new(true);
        Self {
            key,
            payloads,
            whole,
        }
    }

    /// The identity of the element.
    #[must_use]
    pub const fn key(&self) -> ElementKey<'a> {
        self.key
    }

    /// Loads the payload from the byte `offset` on; bytes after the payload are 0.
    pub fn load(&self, offset: usize, to: &mut [u8]) {
        let mut words = [0; 8];
        let mut word = offset / 8;
        let mut skipped = offset % 8;
        let mut rest = to;
        while !rest.is_empty() {
            let count = (skipped + rest.len()).div_ceil(8).min(words.len());
            self.payloads
                .load(self.key.sequence, word, &mut words[..count]);
            for loaded in &words[..count] {
                let bytes = &loaded.to_ne_bytes()[skipped..];
                let (now, later) = rest.split_at_mut(bytes.len().min(rest.len()));
                now.copy_from_slice(&bytes[..now.len()]);
                rest = later;
                skipped = 0;
            }
            word += count;
        }
    }

    /// Loads whole words of the payload, from the word `first` on: the fastest way for large parts.
    #[inline]
    pub fn load_words(&self, first: usize, to: &mut [u64]) {
        self.payloads.load(self.key.sequence, first, to);
    }

    /// The value of a numeric field, by its index in the schema.
    #[must_use]
    pub fn number(&self, index: usize) -> Option<Value<'static>> {
        let field = self.key.stream.schema.fields().get(index)?;
        if !field.kind.is_number() {
            return None;
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..field.kind.size() as usize];
        self.load(field.offset as usize, bytes);
        field.kind.number(bytes)
    }

    /// Whether everything loaded so far belongs to this element. False stays false.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        if self.whole.get() {
            self.whole.set(self.payloads.is_whole(self.key.sequence));
        }
        self.whole.get()
    }

    /// Evaluates it: prepare, check, commit. It was missed if it is not [whole](Self::is_whole)
    /// then.
    pub fn evaluate(&self, update: &mut dyn Analysis) {
        let prepared = update.prepare(self);
        let valid = self.is_whole();
        update.commit(&self.key, prepared && valid);
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use core::cell::Cell;

    use super::{ElementInPlace, ElementKey, InPlaceMemory};
    use crate::{
        Analysis, ElementView, FieldKind, Gap, Origin, StreamDescriptor, StreamId, Timestamp,
        TypeSchema, Value,
    };

    /// Three words of payload, whole until the sequence 7.
    #[derive(Debug)]
    struct Three;

    impl InPlaceMemory for Three {
        fn load(&self, _: u64, first: usize, to: &mut [u64]) {
            let bytes: [u8; 24] = core::array::from_fn(|at| at as u8);
            for (word, to) in (first..).zip(to) {
                let bytes = bytes.get(8 * word..8 * word + 8).unwrap_or(&[0; 8]);
                *to = u64::from_ne_bytes(bytes.try_into().unwrap());
            }
        }
        fn is_whole(&self, sequence: u64) -> bool {
            sequence < 7
        }
    }

    fn stream() -> StreamDescriptor {
        let schema = TypeSchema::builder("t")
            .field("a", FieldKind::U64, "")
            .field("b", FieldKind::U32, "")
            .field("c", FieldKind::I8, "")
            .field("pad", FieldKind::Text(11), "");
        StreamDescriptor {
            instance: "".to_string(),
            capacity: 8,
            ..StreamDescriptor::new(
                StreamId::from_raw(1),
                Origin::Kernel { cpu: 0 },
                "t",
                schema.build().unwrap(),
            )
        }
    }

    fn at(stream: &StreamDescriptor, sequence: u64) -> ElementInPlace<'_> {
        let time = Timestamp::from_monotonic_ns(9);
        let key = ElementKey {
            stream,
            sequence,
            time,
        };
        ElementInPlace::new(key, &Three)
    }

    #[test]
    fn bytes_and_fields_are_loaded_from_any_place() {
        let stream = stream();
        let element = at(&stream, 1);
        for (offset, length) in [(0, 24), (3, 11), (7, 2), (8, 8), (23, 1), (5, 0)] {
            let mut bytes = [99; 24];
            element.load(offset, &mut bytes[..length]);
            let expected: [u8; 24] = core::array::from_fn(|at| match at < length {
                true => (offset + at) as u8,
                false => 99,
            });
            assert_eq!(bytes, expected, "{offset} {length}");
        }
        // Behind the payload there is nothing.
        let mut bytes = [99; 80];
        element.load(20, &mut bytes);
        assert_eq!(
            (bytes[..4].as_ref(), bytes[4..].iter().sum()),
            ([20, 21, 22, 23].as_ref(), 0)
        );
        assert_eq!(
            [0, 1, 2, 3, 4].map(|index| element.number(index)),
            [
                Some(Value::Unsigned(0x0706_0504_0302_0100)),
                Some(Value::Unsigned(0x0b0a_0908)),
                Some(Value::Signed(12)),
                None,
                None
            ]
        );
    }

    /// Prepares every element but the fourth, and notes commits.
    #[derive(Default)]
    struct Notes(Cell<(u64, Option<bool>)>);

    impl Analysis for Notes {
        fn element(&mut self, _: &ElementView<'_>) {}
        fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
        fn advance(&mut self, _: Timestamp) {}
        fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
            element.key().sequence != 4
        }
        fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
            self.0.set((element.sequence, Some(valid)));
        }
    }

    #[test]
    fn commit_needs_a_prepared_and_whole_element() {
        let stream = stream();
        let mut notes = Notes::default();
        for (sequence, valid, whole) in [(3, true, true), (4, false, true), (7, false, false)] {
            let element = at(&stream, sequence);
            element.evaluate(&mut notes);
            assert_eq!(notes.0.get(), (sequence, Some(valid)));
            assert_eq!(element.is_whole(), whole);
        }
    }
}
