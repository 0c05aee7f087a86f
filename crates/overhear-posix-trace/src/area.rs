// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace area: the memory that a traced process, its children and their controllers share.
//!
//! ```text
//!  header | gate | 64 slots | names | members |   ring of slot 0   |  ...  |  ring of slot 63
//!  each process maps this part at its start       mapped by writers and readers of the stream
//! ```
//!
//! An area is a sparse memory file of fixed, sealed size: no access to a map of it can fault. A
//! process makes one when the library is loaded. Children of `fork` share it; after `exec` and
//! `posix_spawn` the new program finds the descriptor by its name ([`crate::process`]).
//!
//! # Owners of the words
//!
//! 1. *Gate*: for each event type a word, bit i set if the stream of slot i records that type now.
//!    The controller of a stream changes its bit, atomically. `posix_trace_event` reads it.
//! 2. *Member*: a process that may record; bit i of its mask is set if the stream of slot i traces
//!    it. Changed under the [lock](AreaLock).
//! 3. *Slot*: a stream. Taken and given back under the lock, and changed by its controller. The
//!    configuration is one word, so that a writer reads it whole.
//! 4. *Name*: written once under the lock, published by its length, never changed.
//!
//! # Trust
//!
//! Every process of the family can write all of it. Values that are read here can be anything: they
//! are checked before they size or index memory, and a controller keeps the geometry of its streams
//! itself. A wrong value costs the family its trace, never another process its memory safety.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use overhear_event::ClockId;
use overhear_stream::sync::{AtomicU64, Ordering};
use overhear_stream::{SharedWords, Words};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

mod lock;
mod members;
mod names;
mod slot;

pub(crate) use lock::AreaLock;
pub(crate) use members::{forked_from, Member};
pub(crate) use slot::{Slot, SlotConfig, SlotOwner, SlotState};

use crate::private_file::PrivateFile;
use crate::{EventId, TraceError};

/// Streams of an area, and of the system: `TRACE_SYS_MAX`.
pub(crate) const SLOTS: usize = 64;

/// Name of the memory file.
pub(crate) const FILE_NAME: &str = "overhear-posix-trace";

const MAGIC: u64 = u64::from_le_bytes(*b"OHTRAREA");
const VERSION: u64 = 1;

const MAGIC_WORD: usize = 0;
const VERSION_WORD: usize = 1;
const CLOCK_WORD: usize = 2;
/// The generation of the stream that was created last.
const GENERATION_WORD: usize = 3;
const GATE: usize = 64;
const SLOT_TABLE: usize = 512;
const NAME_TABLE: usize = SLOT_TABLE + SLOTS * slot::WORDS;
const MEMBER_TABLE: usize = NAME_TABLE + crate::USER_EVENT_MAX * names::WORDS;
const HEADER_WORDS: usize = 32 << 10;
const HEADER_BYTES: usize = HEADER_WORDS * 8;

/// Address space of the ring of a slot, of which memory exists for the stream's size alone.
pub(crate) const REGION_BYTES: usize = 256 << 20;
pub(crate) const FILE_BYTES: usize = HEADER_BYTES + SLOTS * REGION_BYTES;

const _: () = assert!(GATE + EventId::COUNT <= SLOT_TABLE);
const _: () = assert!(MEMBER_TABLE + members::COUNT * members::WORDS <= HEADER_WORDS);

/// A part of a memory file in this process. It is unmapped when the value is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u64>,
    bytes: usize,
}

// SAFETY: the map is bound to the value, not to a thread, and is reached through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file, shared. The kernel leaves it out of core files.
    fn new(
        file: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        write: bool,
    ) -> rustix::io::Result<Self> {
        let access = match write {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        let none = std::ptr::null_mut();
        // SAFETY: a new map at an address that the kernel chooses replaces none.
        let base = unsafe {
            rustix::mm::mmap(none, bytes, access, MapFlags::SHARED, file, offset as u64)
        }?;
        let base = NonNull::new(base.cast::<u64>()).ok_or(rustix::io::Errno::NOMEM)?;
        let mapping = Self { base, bytes };
        // SAFETY: the advice concerns the map of the line above, and changes no memory.
        let _ = unsafe {
            rustix::mm::madvise(
                base.as_ptr().cast(),
                bytes,
                rustix::mm::Advice::LinuxDontDump,
            )
        };
        Ok(mapping)
    }

    /// The words of the map, for as long as it lives.
    fn words(&self) -> SharedWords {
        // SAFETY: a map is aligned to pages and `bytes` long, and its memory is reached only
        // through values of this type. Each holder of the words also holds the mapping (see the
        // callers).
        unsafe { SharedWords::new(self.base, self.bytes / 8) }
    }

    /// Leaves the memory mapped until the process ends, and returns its address.
    pub(crate) fn leak(self) -> NonNull<u64> {
        std::mem::ManuallyDrop::new(self).base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the map was made by `new`, and words of it do not outlive the value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The memory of a stream's ring, mapped.
#[derive(Debug)]
pub(crate) struct RingMemory(Arc<Mapping>);

impl RingMemory {
    /// The words, which keep the memory mapped.
    pub(crate) fn words(&self) -> overhear_stream::KeptWords<Arc<Mapping>> {
        self.0.words().kept_by(Arc::clone(&self.0))
    }
}

/// An area that this process has mapped.
///
/// Holding one proves that the file has the size of an area and cannot change it, and that its
/// version is known. It proves nothing about the values in it.
#[derive(Debug)]
pub(crate) struct Area {
    file: Arc<OwnedFd>,
    header: Arc<Mapping>,
    words: SharedWords,
    writable: bool,
    /// Device and inode of the file, to find out whether a descriptor still refers to it.
    identity: (u64, u64),
    /// An open file description of this process alone, which holds its locks. The mutex is the lock
    /// between the threads of the process.
    private: Mutex<Option<PrivateFile>>,
    /// The slots of the streams that this process controls.
    own: AtomicU64,
}

impl Drop for Area {
    fn drop(&mut self) {
        // A program that closes all descriptors, as daemons do, may have a file of its own there.
        if !self.is(self.file.as_fd()) {
            std::mem::forget(Arc::clone(&self.file));
        }
    }
}

impl Area {
    /// Makes the area of this process. Programs of `exec` inherit its descriptor.
    ///
    /// # Errors
    /// [`TraceError`] `ENOMEM` if the kernel refuses the memory file.
    pub(crate) fn create(clock: ClockId) -> Result<Self, TraceError> {
        let fail = |errno: rustix::io::Errno| {
            TraceError::new(
                libc::ENOMEM,
                format!("cannot create the trace area of the process: {errno}"),
            )
        };
        // For a size beyond the limit for files, the kernel would send a signal.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|bytes| bytes < FILE_BYTES as u64) {
            return Err(TraceError::new(
                libc::ENOMEM,
                format!(
                    "the limit for the size of files (ulimit -f) is too low for a trace area; it must \
                     be at least {FILE_BYTES} bytes"
                ),
            ));
        }
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(FILE_NAME, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(FILE_NAME, flags))
            .map_err(fail)?;
        rustix::fs::ftruncate(&file, FILE_BYTES as u64).map_err(fail)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(fail)?;
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            HEADER_BYTES as u64,
        )
        .map_err(fail)?;
        let file = above_standard(file);
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).map_err(fail)?;
        let area = Self::map(file, true)?;
        area.word(VERSION_WORD).store(VERSION, Ordering::Relaxed);
        area.word(CLOCK_WORD)
            .store(clock.as_raw().into(), Ordering::Relaxed);
        area.define_unnamed();
        // SYNC(area): a process that loads the magic number also sees the words stored before it.
        area.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        Ok(area)
    }

    /// Maps an area that another process made.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the file is no area of this version, `ENOMEM` if it cannot be
    /// mapped.
    pub(crate) fn open(file: OwnedFd, writable: bool) -> Result<Self, TraceError> {
        let no_area = || TraceError::invalid("the file is no trace area of this version");
        let stat = rustix::fs::fstat(&file).map_err(|_| no_area())?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| no_area())?;
        let sealed = seals.contains(SealFlags::SHRINK | SealFlags::GROW);
        if stat.st_size != FILE_BYTES as i64 || !sealed {
            return Err(no_area());
        }
        let area = Self::map(file, writable)?;
        // SYNC(area)
        let magic_untrusted = area.word(MAGIC_WORD).load(Ordering::Acquire);
        let version_untrusted = area.word(VERSION_WORD).load(Ordering::Relaxed);
        match (magic_untrusted, version_untrusted, area.clock()) {
            (MAGIC, VERSION, Some(_)) => Ok(area),
            _ => Err(no_area()),
        }
    }

    fn map(file: OwnedFd, writable: bool) -> Result<Self, TraceError> {
        let fail = |errno| {
            TraceError::new(
                libc::ENOMEM,
                format!("the trace area cannot be mapped: {errno}"),
            )
        };
        let stat = rustix::fs::fstat(&file).map_err(fail)?;
        let header = Mapping::new(file.as_fd(), 0, HEADER_BYTES, writable).map_err(fail)?;
        Ok(Self {
            words: header.words(),
            header: Arc::new(header),
            file: Arc::new(file),
            writable,
            identity: (stat.st_dev, stat.st_ino),
            private: Mutex::new(None),
            own: AtomicU64::new(0),
        })
    }

    /// The same area for the child of a fork, whose threads hold no lock of it.
    pub(crate) fn for_child(&self) -> Self {
        Self {
            words: self.header.words(),
            header: Arc::clone(&self.header),
            file: Arc::clone(&self.file),
            writable: self.writable,
            identity: self.identity,
            private: Mutex::new(None),
            own: AtomicU64::new(0),
        }
    }

    /// The clock of its stamps; `None` if the area has an unknown value.
    pub(crate) fn clock(&self) -> Option<ClockId> {
        let raw_untrusted = self.word(CLOCK_WORD).load(Ordering::Relaxed);
        u32::try_from(raw_untrusted)
            .ok()
            .and_then(ClockId::from_raw)
    }

    /// The descriptor.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether a descriptor still is this area: the program may have closed it and opened another
    /// file, which has the number now.
    fn is(&self, file: BorrowedFd<'_>) -> bool {
        let stat = rustix::fs::fstat(file);
        stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity)
    }

    /// Whether the descriptor still is the area's, before it is used to change the file.
    fn check_file(&self) -> Result<(), TraceError> {
        match self.is(self.file.as_fd()) {
            true => Ok(()),
            false => Err(TraceError::new(
                libc::ENOMEM,
                "the program has closed the descriptor of its trace area; a program must close only \
                 the descriptors that it has opened",
            )),
        }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.words.word(index)
    }

    /// The streams that record events of a type now, a bit for each slot.
    pub(crate) fn gate(&self, event: EventId) -> &AtomicU64 {
        self.word(GATE + event.index())
    }

    /// The first word of the gate.
    pub(crate) fn gate_address(&self) -> *const AtomicU64 {
        self.word(GATE)
    }

    /// The first word of the slots.
    pub(crate) fn slots_address(&self) -> *const AtomicU64 {
        self.word(SLOT_TABLE)
    }

    /// The slot of an index.
    ///
    /// # Panics
    /// If there is none: a broken internal invariant.
    pub(crate) fn slot(&self, index: usize) -> Slot<'_> {
        assert!(index < SLOTS, "slot {index}");
        Slot::new(
            self.words
                .range(SLOT_TABLE + index * slot::WORDS, slot::WORDS),
        )
    }

    /// The words of a slot at an address from [`Area::slots_address`].
    ///
    /// # Safety
    /// The area is mapped for `'a`, and `index` is less than [`SLOTS`].
    #[inline(always)]
    pub(crate) unsafe fn slot_at<'a>(slots: *const AtomicU64, index: usize) -> Slot<'a> {
        // SAFETY: by this function's conditions, the words lie in the map of the area.
        Slot::new(unsafe {
            std::slice::from_raw_parts(slots.add(index * slot::WORDS), slot::WORDS)
        })
    }

    /// A number for a new stream, less than 2^24, that was not used for a long time.
    pub(crate) fn next_generation(&self, _lock: &AreaLock<'_>) -> u32 {
        // Relaxed: changed under the lock.
        let before = self.word(GENERATION_WORD).fetch_add(1, Ordering::Relaxed);
        (before as u32).wrapping_add(1) & slot::GENERATION_MASK
    }

    /// Allocates zeroed memory for a slot's ring, and maps it.
    ///
    /// # Errors
    /// [`TraceError`] `ENOMEM`.
    pub(crate) fn allocate_ring(
        &self,
        index: usize,
        bytes: usize,
    ) -> Result<RingMemory, TraceError> {
        let fail = |errno| {
            TraceError::new(
                libc::ENOMEM,
                format!(
                    "cannot allocate {bytes} bytes for the events of a stream: {errno}; reduce \
                     stream-min-size"
                ),
            )
        };
        if bytes > REGION_BYTES {
            return Err(fail(rustix::io::Errno::NOMEM));
        }
        self.check_file()?;
        self.free_ring(index);
        let offset = region_offset(index);
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let all = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&self.file, all, offset as u64, bytes as u64).map_err(fail)?;
        self.map_ring(index, bytes)
    }

    /// Maps the ring of a slot.
    ///
    /// # Errors
    /// [`TraceError`] `ENOMEM`.
    pub(crate) fn map_ring(&self, index: usize, bytes: usize) -> Result<RingMemory, TraceError> {
        self.check_file()?;
        let mapping = map_region(self.file.as_fd(), index, bytes, self.writable);
        let mapping = mapping.map_err(|errno| {
            TraceError::new(
                libc::ENOMEM,
                format!("a ring of {bytes} bytes cannot be mapped: {errno}"),
            )
        })?;
        Ok(RingMemory(Arc::new(mapping)))
    }

    /// Gives the memory of a slot's ring back to the kernel.
    pub(crate) fn free_ring(&self, index: usize) {
        self.slot(index).forget_ended();
        if self.check_file().is_err() {
            return;
        }
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let (offset, bytes) = (region_offset(index) as u64, REGION_BYTES as u64);
        // Without memory for the call the pages stay; the next stream zeroes them.
        let _ = rustix::fs::fallocate(&self.file, hole, offset, bytes);
    }

    /// An open file description of the file for this process alone; `None` without `/proc`.
    fn reopen(&self) -> Option<PrivateFile> {
        use std::os::fd::AsRawFd as _;
        if !self.is(self.file.as_fd()) {
            return None;
        }
        let path = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).ok()?;
        Some(PrivateFile::new(above_standard(file)))
    }
}

/// Maps the region of a slot in an area's file.
pub(crate) fn map_region(
    file: BorrowedFd<'_>,
    index: usize,
    bytes: usize,
    writable: bool,
) -> rustix::io::Result<Mapping> {
    debug_assert!(index < SLOTS && bytes <= REGION_BYTES);
    Mapping::new(file, region_offset(index), bytes, writable)
}

pub(crate) const fn region_offset(index: usize) -> usize {
    HEADER_BYTES + index * REGION_BYTES
}

/// Moves a descriptor out of the low numbers, on which programs rely, if the limit permits.
fn above_standard(file: OwnedFd) -> OwnedFd {
    const FIRST: i32 = 200;
    rustix::io::fcntl_dupfd_cloexec(&file, FIRST).unwrap_or(file)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    /// A file that has the size and the seals of an area, and these words at its beginning.
    pub(crate) fn forged(words: &[u64], size: usize, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("forged area", flags).unwrap();
        rustix::fs::ftruncate(&file, size as u64).unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0), Ok(bytes.len()));
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    /// The first words of an area of this version.
    pub(crate) fn head() -> [u64; 3] {
        [MAGIC, VERSION, u64::from(ClockId::Monotonic.as_raw())]
    }

    pub(crate) const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    #[test]
    fn files_that_are_no_areas_are_refused() {
        let opens = |file| Area::open(file, false).is_ok();
        assert!(opens(forged(&head(), FILE_BYTES, SIZE_SEALS)));
        assert!(!opens(forged(&head(), FILE_BYTES, SealFlags::GROW)));
        assert!(!opens(forged(&head(), FILE_BYTES - 8, SIZE_SEALS)));
        let [magic, version, clock] = head();
        assert!(!opens(forged(
            &[magic + 1, version, clock],
            FILE_BYTES,
            SIZE_SEALS
        )));
        assert!(!opens(forged(
            &[magic, version + 1, clock],
            FILE_BYTES,
            SIZE_SEALS
        )));
        assert!(!opens(forged(
            &[magic, version, 77],
            FILE_BYTES,
            SIZE_SEALS
        )));
        assert!(!opens(tempfile::tempfile().unwrap().into()));
    }

    #[test]
    fn area_of_another_map_has_the_same_names() {
        let area = Area::create(ClockId::Monotonic).unwrap();
        let other = Area::open(area.file().try_clone_to_owned().unwrap(), true).unwrap();
        let event = area.open_name(b"shared").unwrap();
        assert_eq!(other.open_name(b"shared"), Ok(event));
        assert_ne!(other.open_name(b"another"), Ok(event));
        assert_eq!(other.user_name(event).as_deref(), Some(&b"shared"[..]));
        let too_long = other.open_name(&[b'n'; 65]);
        assert_eq!(too_long.unwrap_err().errno, libc::ENAMETOOLONG);
        for number in 0..300 {
            let event = area.open_name(format!("name {number}").as_bytes());
            assert_eq!(event == Ok(EventId::UNNAMED), number >= 253);
        }
    }
}
