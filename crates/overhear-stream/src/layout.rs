// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layout v1 (`docs/abi/stream-layout.md`): offsets, geometry, header.

use core::mem::{offset_of, size_of};

use overhear_event::{ClockId, Ticks, WriterKind, MAX_PAYLOAD_BYTES};

use crate::shape::LanePool;
use crate::sync::Ordering;
use crate::words::Words;

/// The first eight bytes of a stream: "OVHRSTR1" (section 2).
pub const MAGIC: u64 = u64::from_le_bytes(*b"OVHRSTR1");
/// The version of the layout.
pub const VERSION: u32 = 1;
/// Bytes before the first element. Smaller under loom, which tracks every word.
pub const HEADER_SIZE: usize = if cfg!(loom) { 168 } else { 4096 };
/// Where the element counter lies, in bytes: alone on the second cache line.
pub const COUNTER_OFFSET: usize = 64;
/// The largest capacity: sequences must be able to lap it many times.
pub const MAX_CAPACITY: u64 = 1 << 32;

pub(crate) const COUNTER_WORD: usize = COUNTER_OFFSET / 8;
/// The reserved bit of the header's flags: an element counter in two words (section 6).
const FLAG_TWO_WORD_COUNTER: u32 = 1;

/// Why a layout is invalid, or a header contradicts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The capacity is no power of two, or out of range.
    #[error("a capacity of {0} elements is not a power of two from 2 to 2^32; round it up to one")]
    BadCapacity(u64),
    /// The queue is too large.
    #[error("a queue of {0} elements exceeds 65,536, with those for concurrent writers; ask for fewer, or use a laned sensor")]
    BadQueue(u64),
    /// The payload is too large.
    #[error("a payload of {0} bytes exceeds {MAX_PAYLOAD_BYTES}; split it over several elements")]
    BadPayload(u64),
    /// The number of lanes is out of range.
    #[error("a pool of {0} lanes is out of range; ask for 1 to 4096, one per thread that writes")]
    BadLanes(u32),
    /// The memory is smaller than the geometry requires.
    #[error(
        "the buffer has {found} bytes, but its geometry needs {needed}; register the sensor again"
    )]
    TooSmall {
        /// Bytes of the memory.
        found: u64,
        /// Required bytes.
        needed: u64,
    },
    /// The first bytes are not the magic.
    #[error("the buffer begins with {0:#018x} instead of \"OVHRSTR1\": it is no stream, or its process overwrote it")]
    BadMagic(u64),
    /// The version is unknown.
    #[error("the stream's header says layout version {0} where the directory recorded version {VERSION}: its process overwrote it")]
    BadVersion(u32),
    /// A field of the header contradicts the directory's record.
    #[error("the stream's header says {field} {found} where the directory recorded {expected}: its process overwrote it")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// The value in the header.
        found: u64,
        /// The value in the directory's record.
        expected: u64,
    },
    /// A word of a queue's index array has an impossible position.
    #[error("the index word of element {position} belongs to another one: the sensor's process damaged its stream")]
    BadIndex {
        /// The element's position, less the number of dummy elements.
        position: u64,
    },
    /// The header has the flag of an element counter in two words of 32 bits (section 6).
    #[error("the stream's header says that the element counter has two words, which no version of this program reads or writes: its process overwrote it")]
    TwoWordCounter,
    /// The element counter ran backwards.
    #[error("the element counter went back from {before} to {now}: the sensor's process damaged its stream")]
    CounterBackwards {
        /// The counter as last seen.
        before: u64,
        /// The counter now.
        now: u64,
    },
}

/// The layout of a stream. It comes from the directory's record.
///
/// Holding one proves that the capacity is a power of two from 2 to 2^32, that an element's lead
/// and payload fit into the stride, and that the total size fits into an `usize`.
///
/// Laid out as in C, because it is a part of the lanes that C writes too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    // Words before the payload: 1 for the stamp, or 2 for stamp and writer (section 4).
    lead_words: u32,
    payload_bytes: u32,
    stride_words: u32,
    // The header's flags: none is defined, so zero.
    flags: u32,
    // Power of two in [2, 2^32].
    capacity: u64,
}

impl Geometry {
    /// The geometry of a program's simple stream: the stride is the payload rounded up to whole
    /// words, plus one word for the stamp (section 4).
    ///
    /// # Errors
    /// [`LayoutError::BadCapacity`], [`LayoutError::BadPayload`].
    pub fn new(payload_bytes: u32, capacity: u64) -> Result<Self, LayoutError> {
        // Saturating: a size beyond all bounds is refused by the check, not by arithmetic.
        let stride_bytes = payload_bytes
            .div_ceil(8)
            .saturating_add(1)
            .saturating_mul(8);
        Self::with_stride(payload_bytes, stride_bytes, capacity)
    }

    /// The geometry of a ring whose elements have their writer, as those of lanes and queues: two
    /// words before the payload (section 4).
    ///
    /// # Errors
    /// [`LayoutError::BadCapacity`], [`LayoutError::BadPayload`].
    pub fn with_writer(payload_bytes: u32, capacity: u64) -> Result<Self, LayoutError> {
        // The monitors' view of the payload begins with the writer, so both must fit.
        let seen = payload_bytes.saturating_add(8);
        if seen > MAX_PAYLOAD_BYTES {
            return Err(LayoutError::BadPayload(u64::from(payload_bytes)));
        }
        let mut geometry = Self::new(seen, capacity)?;
        geometry.lead_words = 2;
        geometry.payload_bytes = payload_bytes;
        Ok(geometry)
    }

    /// A geometry with a given stride, for kernel rings.
    ///
    /// # Errors
    /// [`LayoutError::BadCapacity`], [`LayoutError::BadPayload`] (also for a stride that is no
    /// multiple of 8 or too small).
    pub fn with_stride(
        payload_bytes: u32,
        stride_bytes: u32,
        capacity: u64,
    ) -> Result<Self, LayoutError> {
        if payload_bytes > MAX_PAYLOAD_BYTES
            || !stride_bytes.is_multiple_of(8)
            || stride_bytes < 8 + payload_bytes
            || stride_bytes > 4096
        {
            return Err(LayoutError::BadPayload(u64::from(payload_bytes)));
        }
        if !capacity.is_power_of_two() || !(2..=MAX_CAPACITY).contains(&capacity) {
            return Err(LayoutError::BadCapacity(capacity));
        }
        let geometry = Self {
            lead_words: 1,
            payload_bytes,
            stride_words: stride_bytes / 8,
            flags: 0,
            capacity,
        };
        // At most 2^32 * 4096 + 4096 bytes: fits u64; must also fit the address space.
        let bytes = capacity * u64::from(stride_bytes) + HEADER_SIZE as u64;
        usize::try_from(bytes).map_err(|_| LayoutError::BadCapacity(capacity))?;
        Ok(geometry)
    }

    /// Bytes of a payload.
    #[inline(always)]
    #[must_use]
    pub const fn payload_bytes(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Words before the payload: 1, the stamp, or 2, stamp and writer.
    #[inline(always)]
    #[must_use]
    pub const fn lead_words(&self) -> usize {
        self.lead_words as usize
    }

    /// Bytes after the stamp: the writer, if elements have it, and the payload. A
    /// [`Reader`](crate::Reader) delivers these.
    #[inline(always)]
    #[must_use]
    pub const fn body_bytes(&self) -> usize {
        (self.lead_words as usize - 1) * 8 + self.payload_bytes as usize
    }

    /// Bytes from one element to the next.
    #[must_use]
    pub const fn stride_bytes(&self) -> usize {
        self.stride_words as usize * 8
    }

    /// Slots in the ring.
    #[inline(always)]
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Words from one element to the next.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn stride_words(&self) -> usize {
        self.stride_words as usize
    }

    /// Index of the first word of the element at this position. In bounds for every position.
    #[inline(always)]
    pub(crate) const fn slot(&self, position: u64) -> usize {
        HEADER_SIZE / 8 + (position & (self.capacity - 1)) as usize * self.stride_words as usize
    }

    /// Words of an element: stamp, writer and payload.
    pub(crate) const fn used_words(&self) -> usize {
        1 + self.body_bytes().div_ceil(8)
    }

    /// Number of slots from this position's to the end of the ring, both included.
    pub(crate) const fn until_wrap(&self, position: u64) -> u64 {
        self.capacity - (position & (self.capacity - 1))
    }

    /// The stamp in the slot of this position, for its own writer. Another process needs a
    /// [`Reader`](crate::Reader), which proves that the stamp belongs to this position.
    ///
    /// # Panics
    /// If the memory is smaller than the geometry.
    #[must_use]
    pub fn own_stamp(&self, words: &impl Words, position: u64) -> Ticks {
        // Relaxed: this thread has stored it.
        Ticks::from_raw(words.word(self.slot(position)).load(Ordering::Relaxed))
    }

    /// Words of the whole stream, header included.
    #[must_use]
    pub const fn words(&self) -> usize {
        HEADER_SIZE / 8 + self.capacity as usize * self.stride_words as usize
    }

    /// Bytes of the whole stream, header included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.words() * 8
    }

    pub(crate) fn check_size(&self, words: &impl Words) -> Result<(), LayoutError> {
        check_size(words, self.bytes())
    }
}

/// Checks that the memory has at least these bytes.
pub(crate) fn check_size(words: &impl Words, bytes: usize) -> Result<(), LayoutError> {
    let (found, needed) = (words.len() as u64 * 8, bytes as u64);
    if found < needed {
        return Err(LayoutError::TooSmall { found, needed });
    }
    Ok(())
}

/// The header as its creator writes it (section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    payload_bytes: u32,
    // Bytes between elements; of a pool, pages between lanes.
    stride: u32,
    // Slots; of a pool, lanes.
    capacity: u64,
    flags: u32,
    kind: WriterKind,
    clock: ClockId,
    stream_id: u64,
}

impl Header {
    /// The header of a stream with this geometry.
    #[must_use]
    pub const fn new(
        geometry: &Geometry,
        kind: WriterKind,
        clock: ClockId,
        stream_id: u64,
    ) -> Self {
        Self {
            payload_bytes: geometry.payload_bytes,
            stride: geometry.stride_words * 8,
            capacity: geometry.capacity,
            flags: geometry.flags,
            kind,
            clock,
            stream_id,
        }
    }

    /// The header of a pool: `capacity` is the number of lanes, `stride` their distance in pages
    /// (section 5.2).
    #[must_use]
    pub(crate) fn of_pool(pool: &LanePool, clock: ClockId, stream_id: u64) -> Self {
        let mut header = Self::new(pool.lane(), WriterKind::Laned, clock, stream_id);
        header.capacity = pool.lanes().into();
        // In pages. A distance that does not fit in 32 bits is stored as the maximum, for display
        // only: readers use the geometry of the directory's record.
        header.stride = u32::try_from(pool.lane_stride_bytes() / 4096).unwrap_or(u32::MAX);
        header
    }

    /// The first eight words of the stream.
    #[must_use]
    pub const fn to_words(&self) -> [u64; 8] {
        [
            MAGIC,
            pair(VERSION, HEADER_SIZE as u32),
            pair(self.flags, self.kind.as_raw()),
            pair(self.payload_bytes, self.stride),
            self.capacity,
            pair(self.clock.as_raw(), 0),
            self.stream_id,
            0,
        ]
    }

    /// Writes the header into memory that is not shared yet.
    ///
    /// # Panics
    /// If the memory is smaller than a header.
    pub fn store(&self, words: &impl Words) {
        for (index, word) in self.to_words().into_iter().enumerate() {
            // Relaxed: the hand-over of the memory itself orders these stores.
            words.word(index).store(word, Ordering::Relaxed);
        }
    }
}

/// The table of section 2 as a type, to hold [`Header::to_words`] and the constants to it.
#[repr(C)]
struct HeaderTable {
    magic: u64,
    version: u32,
    header_size: u32,
    flags: u32,
    writer_kind: u32,
    payload_size: u32,
    stride: u32,
    capacity: u64,
    clock_id: u32,
    reserved: u32,
    stream_id: u64,
    reserved_words: u64,
    counter: u64,
}

const _: () = {
    assert!(offset_of!(HeaderTable, magic) == 0);
    assert!(offset_of!(HeaderTable, version) == 8);
    assert!(offset_of!(HeaderTable, header_size) == 12);
    assert!(offset_of!(HeaderTable, flags) == 16);
    assert!(offset_of!(HeaderTable, writer_kind) == 20);
    assert!(offset_of!(HeaderTable, payload_size) == 24);
    assert!(offset_of!(HeaderTable, stride) == 28);
    assert!(offset_of!(HeaderTable, capacity) == 32);
    assert!(offset_of!(HeaderTable, clock_id) == 40);
    assert!(offset_of!(HeaderTable, reserved) == 44);
    assert!(offset_of!(HeaderTable, stream_id) == 48);
    assert!(offset_of!(HeaderTable, reserved_words) == 56);
    assert!(offset_of!(HeaderTable, counter) == COUNTER_OFFSET);
    // `struct oh_lane_` of include/overhear/laned.h has it inside.
    assert!(offset_of!(Geometry, payload_bytes) == 4);
    assert!(offset_of!(Geometry, stride_words) == 8);
    assert!(offset_of!(Geometry, capacity) == 16);
    assert!(size_of::<Geometry>() == 24);
    assert!(size_of::<HeaderTable>() == 72);
};

/// Two 32-bit fields that share a word, the first at the lower address.
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        (second as u64) << 32 | first as u64
    } else {
        (first as u64) << 32 | second as u64
    }
}

pub(crate) const fn unpair(word: u64) -> (u32, u32) {
    if cfg!(target_endian = "little") {
        (word as u32, (word >> 32) as u32)
    } else {
        ((word >> 32) as u32, word as u32)
    }
}

/// A header in memory that another process can write.
#[derive(Clone, Copy, Debug)]
pub struct HeaderUntrusted([u64; 8]);

impl HeaderUntrusted {
    /// Copies the header out of the memory.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] if there is no room for one.
    pub fn load(words: &impl Words) -> Result<Self, LayoutError> {
        let found = words.len() as u64 * 8;
        if words.len() < HEADER_SIZE / 8 {
            return Err(LayoutError::TooSmall {
                found,
                needed: HEADER_SIZE as u64,
            });
        }
        // Relaxed: a header is written before its memory is handed over.
        Ok(Self(core::array::from_fn(|index| {
            words.word(index).load(Ordering::Relaxed)
        })))
    }

    /// Compares the header with the directory's record. Readers never use the header's numbers, so
    /// a contradiction is not dangerous, but shows that the sensor's process damaged the stream.
    ///
    /// # Errors
    /// [`LayoutError`] naming the first field that differs.
    pub fn check(&self, expected: &Header) -> Result<(), LayoutError> {
        let words = expected.to_words();
        if self.0[0] != MAGIC {
            return Err(LayoutError::BadMagic(self.0[0]));
        }
        let version = unpair(self.0[1]).0;
        if version != VERSION {
            return Err(LayoutError::BadVersion(version));
        }
        if unpair(self.0[2]).0 & FLAG_TWO_WORD_COUNTER != 0 {
            return Err(LayoutError::TwoWordCounter);
        }
        let names = [
            ("magic", "magic"),
            ("version", "header size"),
            ("flags", "writer kind"),
            ("payload size", "stride"),
            ("capacity", "capacity"),
            ("clock", "reserved field"),
            ("stream id", "stream id"),
        ];
        for (index, (first, second)) in names.into_iter().enumerate() {
            let (found, expected) = (self.0[index], words[index]);
            if found == expected {
                continue;
            }
            if first == second {
                return Err(LayoutError::Contradiction {
                    field: first,
                    found,
                    expected,
                });
            }
            let (found, expected) = (unpair(found), unpair(expected));
            let (field, found, expected) = if found.0 == expected.0 {
                (second, found.1, expected.1)
            } else {
                (first, found.0, expected.0)
            };
            let (found, expected) = (u64::from(found), u64::from(expected));
            return Err(LayoutError::Contradiction {
                field,
                found,
                expected,
            });
        }
        Ok(())
    }
}

/// Further header words of lanes and pools (section 2).
pub(crate) const LOST_NESTED_WORD: usize = 136 / 8;
pub(crate) const LOST_FULL_WORD: usize = 144 / 8;
pub(crate) const OWNER_WORD: usize = 160 / 8;
/// Words of writes that a budget kept from being made (section 5.5).
pub(crate) const SKIPPED_WORD: usize = 168 / 8;
pub(crate) const SKIPPED_AT_WORD: usize = 176 / 8;
pub(crate) const SKIP_RUNS_WORD: usize = 184 / 8;

/// The element counter's word.
#[inline(always)]
pub(crate) fn counter(words: &impl Words) -> &crate::sync::AtomicU64 {
    words.word(COUNTER_WORD)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec::Vec;
    use core::mem::offset_of;

    use overhear_event::ClockId;

    use super::{pair, Geometry, Header, HeaderTable, HeaderUntrusted, LayoutError, WriterKind};
    use crate::sync::Ordering;
    use crate::words::{OwnedWords, Words};

    #[test]
    fn strides_hold_stamp_and_whole_words() {
        for (payload, stride) in [(0, 8), (1, 16), (8, 16), (9, 24), (64, 72), (4088, 4096)] {
            assert_eq!(Geometry::new(payload, 4).unwrap().stride_bytes(), stride);
        }
        assert!(matches!(
            Geometry::new(4089, 4),
            Err(LayoutError::BadPayload(4089))
        ));
        assert!(matches!(
            Geometry::new(u32::MAX, 4),
            Err(LayoutError::BadPayload(_))
        ));
        for capacity in [0, 1, 3, 100, 1 << 33] {
            assert_eq!(
                Geometry::new(8, capacity),
                Err(LayoutError::BadCapacity(capacity))
            );
        }
        assert!(Geometry::with_stride(24, 28, 4).is_err());
        assert!(Geometry::with_stride(24, 24, 4).is_err());
    }

    #[test]
    fn every_field_of_the_header_lies_where_the_page_says() {
        let geometry = Geometry::with_stride(24, 32, 1 << 20).unwrap();
        let header = Header::new(&geometry, WriterKind::Kernel, ClockId::X86Tsc, 7);
        let bytes: Vec<u8> = header
            .to_words()
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let short = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(bytes[..8], *b"OVHRSTR1");
        assert_eq!(short(offset_of!(HeaderTable, version)), 1);
        assert_eq!(short(offset_of!(HeaderTable, header_size)), 4096);
        assert_eq!(short(offset_of!(HeaderTable, flags)), 0);
        assert_eq!(short(offset_of!(HeaderTable, writer_kind)), 4);
        assert_eq!(short(offset_of!(HeaderTable, payload_size)), 24);
        assert_eq!(short(offset_of!(HeaderTable, stride)), 32);
        assert_eq!(long(offset_of!(HeaderTable, capacity)), 1 << 20);
        assert_eq!(short(offset_of!(HeaderTable, clock_id)), 2);
        assert_eq!(long(offset_of!(HeaderTable, stream_id)), 7);
    }

    #[test]
    fn two_word_counter_is_refused() {
        let geometry = Geometry::new(8, 4).unwrap();
        let header = Header::new(&geometry, WriterKind::Simple, ClockId::X86Tsc, 9);
        let memory = OwnedWords::zeroed(geometry.words());
        header.store(&memory);
        let flags_and_kind = memory.word(2).load(Ordering::Relaxed);
        let flagged = flags_and_kind | pair(1, 0);
        memory.word(2).store(flagged, Ordering::Relaxed);
        let result = HeaderUntrusted::load(&memory).unwrap().check(&header);
        assert_eq!(result, Err(LayoutError::TwoWordCounter));
    }

    #[test]
    fn overwritten_header_field_is_named() {
        let geometry = Geometry::new(8, 4).unwrap();
        let header = Header::new(&geometry, WriterKind::Simple, ClockId::X86Tsc, 9);
        let memory = OwnedWords::zeroed(geometry.words());
        header.store(&memory);
        let check = || HeaderUntrusted::load(&memory).unwrap().check(&header);
        assert_eq!(check(), Ok(()));
        let damage = [
            (0, "no stream"),
            (1, "layout version"),
            (2, "flags"),
            (3, "payload size"),
            (4, "capacity"),
            (5, "clock"),
            (6, "stream id"),
        ];
        for (word, expected) in damage {
            let before = memory.word(word).load(Ordering::Relaxed);
            // The first field of the word, and not its lowest bit, which is a reserved flag in word
            // 2.
            let damaged = before ^ pair(2, 0);
            memory.word(word).store(damaged, Ordering::Relaxed);
            let message = alloc::string::ToString::to_string(&check().unwrap_err());
            assert!(message.contains(expected), "{message}");
            memory.word(word).store(before, Ordering::Relaxed);
        }
        assert!(HeaderUntrusted::load(&OwnedWords::zeroed(10)).is_err());
    }
}
