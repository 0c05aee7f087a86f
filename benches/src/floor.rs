// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floor in Rust: the minimum work of a write.
//!
//! Store the payload's words into a ring whose address, capacity and stride are constants, read the
//! hardware counter, store it, store the element counter with release. `c/contenders.h` is the same
//! in C.

use overhear_directory::Mapping;
use overhear_stream::read_hardware_ticks;
use overhear_stream::sync::{fence, AtomicU64, Ordering};

use crate::cold::Lines;

/// A ring with everything known at compile time: `STRIDE` words per element.
#[repr(C, align(4096))]
pub(crate) struct Floor<const STRIDE: usize, const SLOTS: usize> {
    counter: AtomicU64,
    // The counter has a cache line of its own, as in a stream.
    apart: [u64; 7],
    slots: [[AtomicU64; STRIDE]; SLOTS],
}

impl<const STRIDE: usize, const SLOTS: usize> Floor<STRIDE, SLOTS> {
    pub(crate) const fn new() -> Self {
        Self {
            counter: AtomicU64::new(0),
            apart: [0; 7],
            slots: [const { [const { AtomicU64::new(0) }; STRIDE] }; SLOTS],
        }
    }

    #[inline(always)]
    pub(crate) fn write(&self, elements: u64) {
        // Relaxed: only one thread stores the counter.
        let mut count = self.counter.load(Ordering::Relaxed);
        for element in 0..elements {
            let slot = &self.slots[count as usize % SLOTS];
            for (word, at) in slot[1..].iter().zip(0..) {
                word.store(element + at, Ordering::Relaxed);
            }
            slot[0].store(read_hardware_ticks().as_raw(), Ordering::Relaxed);
            count += 1;
            self.counter.store(count, Ordering::Release);
            fence(Ordering::Release);
        }
    }

    pub(crate) fn lines(&self) -> Lines {
        Lines::of(self)
    }
}

/// A floor whose address is a constant in the only function that writes it.
pub(crate) struct Named {
    pub(crate) bytes: u32,
    pub(crate) slots: u64,
    pub(crate) write: fn(u64),
    pub(crate) lines: fn() -> Lines,
    /// The same code and memory once more: it shows the error of the measurement.
    pub(crate) twin: fn(u64),
}

macro_rules! floors {
    ($($name:ident, $twin:ident: $bytes:literal bytes, $stride:literal words, $slots:literal slots;)*) => {
        $(
            static $name: Floor<$stride, $slots> = Floor::new();
            static $twin: Floor<$stride, $slots> = Floor::new();
        )*
        /// Every floor that the sensors are compared with.
        pub(crate) const FLOORS: &[Named] = &[$({
            #[inline(never)]
            fn write(elements: u64) {
                $name.write(elements);
            }
            #[inline(never)]
            fn twin(elements: u64) {
                $twin.write(elements);
            }
            Named { bytes: $bytes, slots: $slots, write, lines: || $name.lines(), twin }
        },)*];
    };
}

floors! {
    FLOOR_0_64, TWIN_0_64: 0 bytes, 1 words, 64 slots;
    FLOOR_4_64, TWIN_4_64: 4 bytes, 2 words, 64 slots;
    FLOOR_8_64, TWIN_8_64: 8 bytes, 2 words, 64 slots;
    FLOOR_64_64, TWIN_64_64: 64 bytes, 9 words, 64 slots;
    FLOOR_0_256, TWIN_0_256: 0 bytes, 1 words, 256 slots;
    FLOOR_8_256, TWIN_8_256: 8 bytes, 2 words, 256 slots;
    FLOOR_0_32768, TWIN_0_32768: 0 bytes, 1 words, 32768 slots;
    FLOOR_8_32768, TWIN_8_32768: 8 bytes, 2 words, 32768 slots;
}

/// The floor of this size.
pub(crate) fn floor(bytes: u32, slots: u64) -> &'static Named {
    FLOORS
        .iter()
        .find(|floor| floor.bytes == bytes && floor.slots == slots)
        .expect("every size that is compared has a floor")
}

/// A floor in memory of its own that the kernel has reserved and not allocated yet.
pub(crate) struct UntouchedFloor(Mapping);

impl UntouchedFloor {
    pub(crate) fn new() -> Self {
        let bytes = size_of::<Floor<2, 64>>();
        Self(Mapping::private(bytes).expect("the kernel has two pages"))
    }

    #[inline(never)]
    pub(crate) fn write(&self) {
        // SAFETY: the mapping is as large, aligned to pages, zeroed as the type allows, and reached
        // through its atomics alone.
        let floor: &Floor<2, 64> = unsafe { self.0.base().cast().as_ref() };
        floor.write(1);
    }
}
