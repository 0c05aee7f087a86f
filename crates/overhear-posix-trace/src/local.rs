// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust half of `posix_trace_event`, and the memory that it reads.
//!
//! The C half (`shim.c`) finds out whether any stream records the event. The Rust half writes it
//! into the ring of each such stream: lock-free, without memory from the heap, safe in handlers of
//! signals that interrupt it anywhere. It enters the kernel to map a ring at the first event for
//! it, to learn the thread's id at its first event, and to wake a reader that waits.
//!
//! # Local memory
//!
//! One page that the kernel zeroes in every child (`MADV_WIPEONFORK`). So a child that no handler
//! of `fork` prepared, of a raw `clone`, is not traced; it never passes for its parent.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::{fence, signal_fence, AtomicU64, Ordering};
use overhear_stream::{EventRecord, EventRing, RingGeometry, SharedWords, WhenFull};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::area::{map_region, Area, Member, Slot, SlotConfig, REGION_BYTES, SLOTS};
use crate::clock::stamp;
use crate::event::FLAG_TRUNCATED;
use crate::{Attributes, EventId, StreamFullPolicy};

/// The page that the kernel wipes. `shim.c` reads the first two words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WipedPage {
    gate: AtomicU64,
    mask: AtomicU64,
    pid: AtomicU64,
}

/// The data of a process that a write of an event reads.
#[derive(Debug)]
pub(crate) struct Local {
    page: &'static WipedPage,
    slots: AtomicU64,
    is_hardware: AtomicU64,
    /// 1: readers order the publication of an event before the check for readers (`membarrier`);
    /// 0: each write does so by a fence.
    is_ordered_by_readers: AtomicU64,
    file: AtomicU64,
    /// The map of each slot's ring: its address, which is that of a page, plus the base-2 logarithm
    /// of its bytes. Maps grow by being replaced, and stay: another thread may be writing.
    maps: [AtomicU64; SLOTS],
}

const PAGE_BITS: u64 = 0xfff;

unsafe extern "C" {
    fn oh_posix_trace_set_local_(local: *const WipedPage);
    fn oh_posix_trace_event_(event: u32, data: *const c_void, size: usize);
    pub(crate) safe fn oh_posix_trace_thread_id_() -> u32;
    pub(crate) safe fn oh_posix_trace_forget_thread_();
}

impl Local {
    /// The value of a process that is not traced yet; `None` without memory.
    pub(crate) fn allocate() -> Option<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = rustix::param::page_size();
        let none = std::ptr::null_mut();
        // SAFETY: a new map at an address that the kernel chooses replaces none.
        let base = unsafe { rustix::mm::mmap_anonymous(none, bytes, access, MapFlags::PRIVATE) };
        let base = base.ok()?;
        // SAFETY: advice for the new map, which nothing uses yet.
        let wiped = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxWipeOnFork) };
        wiped.ok()?;
        Some(Self {
            // SAFETY: zeroed memory of a page, never unmapped, is a valid value.
            page: unsafe { &*base.cast::<WipedPage>() },
            slots: AtomicU64::new(0),
            is_hardware: AtomicU64::new(0),
            is_ordered_by_readers: AtomicU64::new(0),
            file: AtomicU64::new(0),
            maps: [const { AtomicU64::new(0) }; SLOTS],
        })
    }

    /// The value for the child of a fork: the maps are in its memory, too.
    pub(crate) fn for_child(&self) -> Self {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Self {
            page: self.page,
            slots: copy(&self.slots),
            is_hardware: copy(&self.is_hardware),
            is_ordered_by_readers: AtomicU64::new(0),
            file: copy(&self.file),
            maps: std::array::from_fn(|slot| copy(&self.maps[slot])),
        }
    }

    /// Lets the events of this process go to an area, as one of its members.
    pub(crate) fn attach(&self, area: &'static Area, member: Member<'static>, pid: u32) {
        use std::os::fd::AsRawFd as _;
        let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
        store(&self.page.mask, std::ptr::from_ref(member.mask()) as u64);
        store(&self.slots, area.slots_address() as u64);
        store(
            &self.is_hardware,
            (area.clock() != Some(ClockId::Monotonic)).into(),
        );
        store(&self.is_ordered_by_readers, register_for_barriers().into());
        store(&self.page.pid, pid.into());
        store(&self.file, area.file().as_raw_fd() as u64);
        // SYNC(local): a thread that loads the gate also sees the words above.
        self.page
            .gate
            .store(area.gate_address() as u64, Ordering::Release);
        // SAFETY: the memory lives until the process ends.
        unsafe { oh_posix_trace_set_local_(self.page) };
    }

    /// Ends the tracing of this process.
    pub(crate) fn detach(&self) {
        // SYNC(local)
        self.page.gate.store(0, Ordering::Release);
    }

    /// The process that [`Local::attach`] was called in; 0 in a child that was not prepared.
    pub(crate) fn pid(&self) -> u32 {
        self.page.pid.load(Ordering::Relaxed) as u32
    }

    /// Maps the ring of a stream of this process before its first event, which then needs no system
    /// call.
    pub(crate) fn prepare(&self, index: usize, config: SlotConfig) {
        if let Some(geometry) = geometry(config) {
            let _ = self.ring_words(index, geometry.words());
        }
    }

    /// The words of a slot's ring.
    #[inline(always)]
    fn ring_words(&self, index: usize, words: usize) -> Option<SharedWords> {
        // SYNC(map)
        let map = self.maps[index].load(Ordering::Acquire);
        // No map is one of 1 byte at address 0.
        if words * 8 > 1 << (map & PAGE_BITS) {
            return self.map_ring(index, words);
        }
        let base = NonNull::new((map & !PAGE_BITS) as *mut u64)?;
        // SAFETY: a map of at least this size, which stays.
        Some(unsafe { SharedWords::new(base, words) })
    }

    /// Maps a ring that is not mapped yet, or was smaller. Async-signal-safe: several threads and
    /// handlers may do this at once, and one of their maps is kept for the events to come.
    #[cold]
    #[inline(never)]
    fn map_ring(&self, index: usize, words: usize) -> Option<SharedWords> {
        let bytes = (words * 8)
            .checked_next_power_of_two()?
            .max(rustix::param::page_size());
        if bytes > REGION_BYTES {
            return None;
        }
        let number = i32::try_from(self.file.load(Ordering::Relaxed)).ok()?;
        // SAFETY: the number of the area's descriptor. The program may have closed it, and then
        // maps a file of its own here or nothing; the ring finds nothing that it trusts there.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        if !is_area_file(file) {
            return None;
        }
        let base = map_region(file, index, bytes, true).ok()?.leak();
        let map = base.as_ptr() as u64 | u64::from(bytes.trailing_zeros());
        // SYNC(map)
        let before = self.maps[index].load(Ordering::Acquire);
        if before & PAGE_BITS < map & PAGE_BITS {
            // SYNC(map): the loser's map stays, too: at most once for each size and thread.
            let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
            let _ = self.maps[index].compare_exchange(before, map, won, lost);
        }
        // SAFETY: a map of this size, which stays.
        Some(unsafe { SharedWords::new(base, words) })
    }
}

/// Whether a descriptor has the size that only areas have.
fn is_area_file(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_size == crate::area::FILE_BYTES as i64)
}

/// The geometry of a stream's ring.
#[inline(always)]
pub(crate) fn geometry(config: SlotConfig) -> Option<RingGeometry> {
    let data_bytes = Attributes::data_bytes_of(config.max_data_size());
    RingGeometry::new(config.capacity() as u64, u32::try_from(data_bytes).ok()?).ok()
}

/// Lets readers order the memory accesses of this process; false if the kernel cannot.
fn register_for_barriers() -> bool {
    use rustix::thread::{membarrier, MembarrierCommand};
    membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
}

/// After this, every event that was published before is visible, and writers that publish later
/// see that a reader waits: the reader's half of SYNC(wait). False if the kernel cannot.
pub(crate) fn order_writers() -> bool {
    use rustix::thread::{membarrier, MembarrierCommand};
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// `posix_trace_event`. A jump, so that the C half gets the program's return address.
///
/// # Safety
/// `data_ptr` is null or points to `data_len` bytes that nothing changes during the call.
#[unsafe(naked)]
#[no_mangle]
pub(crate) unsafe extern "C" fn posix_trace_event(
    event_id: u32,
    data_ptr: *const c_void,
    data_len: usize,
) {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("jmp {}", sym oh_posix_trace_event_);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("b {}", sym oh_posix_trace_event_);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("posix_trace_event needs the instruction for a jump");
}

/// The Rust half of `posix_trace_event`.
///
/// # Safety
/// Called by `shim.c`, which found the gate of the local memory and passes on its caller's
/// arguments.
#[no_mangle]
unsafe extern "C" fn oh_posix_trace_record_(
    streams: u64,
    event: u32,
    data: *const c_void,
    size: usize,
    address: *const c_void,
    tid: u32,
) {
    let Some(local) = crate::process::local() else {
        return;
    };
    let data = match NonZeroUsize::new(size) {
        Some(size) if !data.is_null() => {
            // SAFETY: by this function's condition.
            unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size.get()) }
        }
        _ => &[],
    };
    let record = EventRecord {
        stamp: Ticks::from_raw(0),
        address: address as u64,
        // SAFETY: the function has no conditions.
        thread: unsafe { libc::pthread_self() } as u64,
        pid: local.pid(),
        tid,
        event: event as u16,
        flags: 0,
        data,
    };
    let slots = local.slots.load(Ordering::Relaxed) as *const AtomicU64;
    let mut rest = streams;
    while rest != 0 {
        let index = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        // SAFETY: the area of the local memory is mapped until the process ends, and a bit of a
        // word is less than `SLOTS`.
        let slot = unsafe { Area::slot_at(slots, index) };
        local.write(index, slot, record);
    }
}

impl Local {
    #[inline(always)]
    fn write(&self, index: usize, slot: Slot<'_>, mut record: EventRecord<'_>) {
        let config = slot.config();
        let Some(policy) = config.policy() else {
            return; // Shut down meanwhile.
        };
        let when_full = match policy {
            StreamFullPolicy::Loop => WhenFull::Overwrite,
            StreamFullPolicy::UntilFull | StreamFullPolicy::Flush if slot.is_stopped() => {
                return slot.count_lost();
            }
            StreamFullPolicy::UntilFull | StreamFullPolicy::Flush => WhenFull::Refuse,
        };
        let Some(geometry) = geometry(config) else {
            return; // The area is damaged.
        };
        if record.data.len() > config.max_data_size() {
            record.data = &record.data[..config.max_data_size()];
            record.flags |= FLAG_TRUNCATED;
        }
        let Some(words) = self.ring_words(index, geometry.words()) else {
            return slot.count_lost();
        };
        let Ok(ring) = EventRing::new(words, geometry) else {
            return;
        };
        let is_hardware = self.is_hardware.load(Ordering::Relaxed) == 1;
        match ring.write(&record, when_full, || Ticks::from_raw(stamp(is_hardware))) {
            Ok(position) => {
                if self.is_ordered_by_readers.load(Ordering::Relaxed) == 1 {
                    signal_fence();
                } else {
                    // SYNC(wait)
                    fence(Ordering::SeqCst);
                }
                slot.published(position, config.capacity());
            }
            Err(_) => lost(slot, when_full, is_hardware),
        }
    }
}

#[cold]
#[inline(never)]
fn lost(slot: Slot<'_>, when_full: WhenFull, is_hardware: bool) {
    slot.count_lost();
    if when_full == WhenFull::Refuse {
        slot.stop_full(stamp(is_hardware));
        slot.wake_if_waiting();
    }
}

/// Records a user event of this process, as C does.
pub fn record(event: EventId, data: &[u8]) {
    // SAFETY: the data is valid during the call.
    unsafe { posix_trace_event(event.as_raw(), data.as_ptr().cast(), data.len()) };
}
