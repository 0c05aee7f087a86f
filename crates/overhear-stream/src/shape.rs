// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shape of a sensor's memory: one ring, a pool of lanes, or a queue (section 5).

use alloc::vec;
use alloc::vec::Vec;

use overhear_event::{ClockId, WriterKind};

use crate::layout::{check_size, Geometry, Header, LayoutError, HEADER_SIZE};
use crate::sync::Ordering;
use crate::words::Words;

/// The largest pool of lanes: a claim searches all of them.
pub const MAX_LANES: u32 = 4096;
/// The largest queue: its indices have 16 bits.
pub const MAX_QUEUE: u64 = 1 << 16;

/// What lanes and index arrays are aligned to. Smaller under loom, which tracks every word.
const PAGE: usize = if cfg!(loom) { 8 } else { 4096 };

/// The memory of a laned sensor: a header page, then lanes, each a simple ring with a header of
/// its own (section 5.2).
///
/// Holding one proves that there is at least one lane and that the whole fits into an `usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePool {
    lanes: u32,
    lane: Geometry,
}

impl LanePool {
    /// A pool of `lanes` rings of `capacity` slots each.
    ///
    /// # Errors
    /// [`LayoutError::BadLanes`], [`LayoutError::BadCapacity`], [`LayoutError::BadPayload`].
    pub fn new(payload_bytes: u32, capacity: u64, lanes: u32) -> Result<Self, LayoutError> {
        if lanes == 0 || lanes > MAX_LANES {
            return Err(LayoutError::BadLanes(lanes));
        }
        let lane = Geometry::with_writer(payload_bytes, capacity)?;
        let pool = Self { lanes, lane };
        let bytes = (pool.lane_stride_bytes() as u64).checked_mul(lanes.into());
        let bytes = bytes.and_then(|bytes| bytes.checked_add(HEADER_SIZE as u64));
        match bytes.map(usize::try_from) {
            Some(Ok(_)) => Ok(pool),
            _ => Err(LayoutError::BadCapacity(capacity)),
        }
    }

    /// How many lanes there are.
    #[must_use]
    pub const fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Where things lie in a lane, counted from the lane's beginning.
    #[must_use]
    pub const fn lane(&self) -> &Geometry {
        &self.lane
    }

    /// Bytes from one lane to the next: whole pages.
    #[must_use]
    pub const fn lane_stride_bytes(&self) -> usize {
        self.lane.bytes().next_multiple_of(PAGE)
    }

    /// Where a lane begins, in bytes. In bounds for indices below [`Self::lanes`].
    #[must_use]
    pub const fn lane_offset(&self, index: u32) -> usize {
        HEADER_SIZE + index as usize * self.lane_stride_bytes()
    }

    /// Bytes of the whole.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.lane_offset(self.lanes)
    }
}

/// The memory of a concurrent sensor: a header page, the index array, then the elements
/// (section 5.3).
///
/// Holding one proves that the capacity is a power of two from 2 to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueGeometry {
    elements: Geometry,
}

impl QueueGeometry {
    /// A queue of `capacity` elements, those in the hands of writers included.
    ///
    /// # Errors
    /// [`LayoutError::BadQueue`], [`LayoutError::BadCapacity`], [`LayoutError::BadPayload`].
    pub fn new(payload_bytes: u32, capacity: u64) -> Result<Self, LayoutError> {
        if capacity > MAX_QUEUE {
            return Err(LayoutError::BadQueue(capacity));
        }
        let elements = Geometry::with_writer(payload_bytes, capacity)?;
        Ok(Self { elements })
    }

    /// Sizes of the elements, and how many there are.
    #[must_use]
    pub const fn elements(&self) -> &Geometry {
        &self.elements
    }

    /// How many elements there are, and words in the index array.
    #[inline(always)]
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.elements.capacity()
    }

    /// The word of the index array's slot for this position. In bounds for every position.
    #[inline(always)]
    #[must_use]
    pub const fn index_word(&self, position: u64) -> usize {
        HEADER_SIZE / 8 + (position & (self.capacity() - 1)) as usize
    }

    /// Where the elements begin, in bytes.
    #[must_use]
    pub const fn elements_offset(&self) -> usize {
        HEADER_SIZE + (self.capacity() as usize * 8).next_multiple_of(PAGE)
    }

    /// The word where an element begins. In bounds for every number: only as many of its bits count
    /// as there are elements.
    #[inline(always)]
    #[must_use]
    pub const fn element_word(&self, element: u16) -> usize {
        let element = element as u64 & (self.capacity() - 1);
        self.elements_offset() / 8 + element as usize * self.elements.stride_words()
    }

    /// Bytes of the whole.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.elements_offset() + self.capacity() as usize * self.elements.stride_bytes()
    }
}

impl QueueGeometry {
    pub(crate) fn check_size(&self, words: &impl Words) -> Result<(), LayoutError> {
        check_size(words, self.bytes())
    }
}

/// Where things lie in one stream: what a [`Reader`](crate::Reader) needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGeometry {
    /// A ring: a simple sensor, a lane, a kernel's hook.
    Ring(Geometry),
    /// The queue of a concurrent sensor.
    Queue(QueueGeometry),
}

impl From<Geometry> for StreamGeometry {
    fn from(geometry: Geometry) -> Self {
        Self::Ring(geometry)
    }
}

impl From<QueueGeometry> for StreamGeometry {
    fn from(queue: QueueGeometry) -> Self {
        Self::Queue(queue)
    }
}

/// Where everything lies in a sensor's memory. Comes from the directory's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One ring, written by one thread at a time.
    Simple(Geometry),
    /// A ring per thread.
    Laned(LanePool),
    /// One queue for all threads.
    Concurrent(QueueGeometry),
}

impl Shape {
    /// The shape of a program's sensor. `capacity` counts the slots of a ring, of each lane, or of
    /// the queue; `lanes` matters to laned sensors alone.
    ///
    /// # Errors
    /// [`LayoutError`] for numbers out of range. A kernel's rings have no shape: they are alone.
    pub fn new(
        kind: WriterKind,
        payload_bytes: u32,
        capacity: u64,
        lanes: u32,
    ) -> Result<Self, LayoutError> {
        match kind {
            WriterKind::Simple | WriterKind::Kernel => {
                Geometry::new(payload_bytes, capacity).map(Self::Simple)
            }
            WriterKind::Laned => LanePool::new(payload_bytes, capacity, lanes).map(Self::Laned),
            WriterKind::Concurrent => {
                QueueGeometry::new(payload_bytes, capacity).map(Self::Concurrent)
            }
        }
    }

    /// The protocol of its writers.
    #[must_use]
    pub const fn kind(&self) -> WriterKind {
        match self {
            Self::Simple(_) => WriterKind::Simple,
            Self::Laned(_) => WriterKind::Laned,
            Self::Concurrent(_) => WriterKind::Concurrent,
        }
    }

    /// Sizes of elements and, of a ring, a lane or the queue, how many there are.
    #[must_use]
    pub const fn elements(&self) -> &Geometry {
        match self {
            Self::Simple(geometry) => geometry,
            Self::Laned(pool) => pool.lane(),
            Self::Concurrent(queue) => queue.elements(),
        }
    }

    /// Lanes of a laned sensor, 0 of others.
    #[must_use]
    pub const fn lanes(&self) -> u32 {
        match self {
            Self::Laned(pool) => pool.lanes(),
            Self::Simple(_) | Self::Concurrent(_) => 0,
        }
    }

    /// How many stream numbers the sensor takes: one, or one per lane.
    #[must_use]
    pub const fn streams(&self) -> u32 {
        match self {
            Self::Laned(pool) => pool.lanes(),
            Self::Simple(_) | Self::Concurrent(_) => 1,
        }
    }

    /// Bytes of the whole.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Simple(geometry) => geometry.bytes(),
            Self::Laned(pool) => pool.bytes(),
            Self::Concurrent(queue) => queue.bytes(),
        }
    }

    /// The header at the beginning of the memory. `stream_id` is that of the first stream.
    #[must_use]
    pub fn header(&self, clock: ClockId, stream_id: u64) -> Header {
        match self {
            Self::Laned(pool) => Header::of_pool(pool, clock, stream_id),
            _ => Header::new(self.elements(), self.kind(), clock, stream_id),
        }
    }

    /// The header at the beginning of a lane, whose stream numbers follow one another.
    #[must_use]
    pub fn lane_header(pool: &LanePool, lane: u32, clock: ClockId, stream_id: u64) -> Header {
        let stream_id = stream_id.wrapping_add(lane.into());
        Header::new(pool.lane(), WriterKind::Simple, clock, stream_id)
    }

    /// What must stand in zeroed memory before the writers get it: words, and the byte at which
    /// they begin, in ascending order.
    #[must_use]
    pub fn initial(&self, clock: ClockId, stream_id: u64) -> Vec<(usize, Vec<u64>)> {
        let header = self.header(clock, stream_id).to_words().to_vec();
        let mut initial = vec![(0, header)];
        match self {
            Self::Simple(_) => {}
            Self::Laned(pool) => initial.extend((0..pool.lanes()).map(|lane| {
                let header = Self::lane_header(pool, lane, clock, stream_id);
                (pool.lane_offset(lane), header.to_words().to_vec())
            })),
            Self::Concurrent(queue) => {
                // `head` is (capacity, 0): behind a sequence of dummy elements, which the index
                // array maps slot by slot. `tail` is 0.
                let capacity = queue.capacity();
                initial.push((crate::layout::COUNTER_OFFSET, vec![capacity << 16]));
                let indices = (0..capacity).map(|slot| slot << 16 | slot).collect();
                initial.push((HEADER_SIZE, indices));
            }
        }
        initial
    }

    /// Stores [`Self::initial`] into memory that is zero and not shared yet.
    ///
    /// # Panics
    /// If the memory is smaller than the shape.
    pub fn store(&self, words: &impl Words, clock: ClockId, stream_id: u64) {
        for (offset, initial) in self.initial(clock, stream_id) {
            for (word, value) in words.range(offset / 8, initial.len()).iter().zip(initial) {
                // Relaxed: the memory is handed over afterwards.
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use overhear_event::{ClockId, WriterKind};

    use super::{LanePool, QueueGeometry, Shape};
    use crate::layout::LayoutError;

    #[test]
    fn lanes_are_whole_pages_behind_the_pools_header() {
        let pool = LanePool::new(8, 16, 3).unwrap();
        assert_eq!(pool.lane().stride_bytes(), 24);
        assert_eq!(pool.lane().body_bytes(), 16);
        assert_eq!(pool.lane_stride_bytes(), 8192);
        assert_eq!(pool.lane_offset(0), 4096);
        assert_eq!(pool.bytes(), 4096 + 3 * 8192);
        assert_eq!(LanePool::new(8, 16, 0), Err(LayoutError::BadLanes(0)));
        assert_eq!(LanePool::new(8, 16, 4097), Err(LayoutError::BadLanes(4097)));
        // The monitors' payload begins with the writer.
        assert!(LanePool::new(4080, 2, 1).is_ok());
        assert_eq!(
            LanePool::new(4081, 2, 1),
            Err(LayoutError::BadPayload(4081))
        );
    }

    #[test]
    fn queue_has_its_indices_between_header_and_elements() {
        let queue = QueueGeometry::new(8, 1024).unwrap();
        assert_eq!(queue.elements_offset(), 4096 + 8192);
        assert_eq!(queue.index_word(1025), 512 + 1);
        assert_eq!(queue.element_word(1), (4096 + 8192 + 24) / 8);
        // Numbers out of another process stay in bounds.
        assert!(queue.element_word(u16::MAX) * 8 + 24 <= queue.bytes());
        assert_eq!(
            QueueGeometry::new(8, 1 << 17),
            Err(LayoutError::BadQueue(1 << 17))
        );
        let shape = Shape::Concurrent(QueueGeometry::new(8, 4).unwrap());
        let initial = shape.initial(ClockId::Monotonic, 9);
        assert_eq!(initial[1], (64, [4 << 16].to_vec()));
        assert_eq!(initial[2].1, [0, 1 << 16 | 1, 2 << 16 | 2, 3 << 16 | 3]);
    }

    #[test]
    fn streams_of_lanes_follow_one_another() {
        let shape = Shape::new(WriterKind::Laned, 8, 16, 3).unwrap();
        assert_eq!((shape.streams(), shape.lanes()), (3, 3));
        let initial = shape.initial(ClockId::X86Tsc, 40);
        let ids: [u64; 4] = core::array::from_fn(|index| initial[index].1[6]);
        assert_eq!(ids, [40, 40, 41, 42]);
        // Kind 2, 3 lanes, 2 pages from one to the next.
        assert_eq!(initial[0].1[2] >> 32, 2);
        assert_eq!((initial[0].1[4], initial[0].1[3] >> 32), (3, 2));
    }
}
