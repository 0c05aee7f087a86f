// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watched allocations: their addresses, their records and the states of their protection.
//!
//! # Addresses
//! All watched allocations lie in one reserved range, the *arena*. So a freed pointer is recognised
//! by one comparison. A second range of the same size, the *shadow*, has a place for the pages of
//! each allocation; both ranges have the same position within huge pages. An unmapped page follows
//! each allocation, so that no two are neighbours in one mapping of the kernel.
//!
//! # States and their transitions
//!
//! | from | to | by | meaning |
//! |---|---|---|---|
//! | FREE | LIVE | allocating thread | The record is filled, the pages are accessible. |
//! | LIVE | MOVING, then AWAY | handler | The allocation is protected: its pages are in the shadow. |
//! | LIVE | MOVING, then GUARDED | handler | It is protected, and its pages stay in place. |
//! | AWAY, GUARDED | RETURNING, then LIVE | handler | An access ended the protection. |
//! | LIVE | BUSY, then LIVE | program thread | It changes the mapping; the handler keeps off. |
//! | LIVE | EXCLUDED | program thread | It is never protected again. |
//! | LIVE, AWAY, GUARDED, EXCLUDED | GONE | freeing thread | The pages are given back. |
//! | GONE | FREE | handler, or the engine of a forked child | The record may be used again. |
//!
//! 1. Every transition from LIVE, AWAY or GUARDED is a compare-and-exchange, `SYNC(naps_state)`:
//!    acquire and release. The loser waits until MOVING, RETURNING or BUSY is over, or finds GONE.
//! 2. Only the handler waits for nobody: MOVING and RETURNING last for a few system calls of the
//!    handler. A program thread may wait while it holds the lock of this table, because the handler
//!    never takes that lock.
//! 3. A record belongs to the program thread that allocates until LIVE, then it is constant until
//!    GONE. Its index returns to the free ones only through the handler, which has read the freed
//!    record. So neither finds a record that was reused.
//! 4. Program threads tell the handler of new and freed records through one ring, in the order of
//!    the lock. It has room for two entries per record, so it is never full.

use core::cell::UnsafeCell;

use overhear_stream::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::sys::{self, Mutex, PAGE};

/// Number of records: each protected allocation takes up to four of the 65,530 mappings that Linux
/// allows a process.
pub(crate) const RECORDS: usize = 12 * 1024;
const RING: usize = 32 * 1024;
/// Address space of the arena, and again of the shadow.
const ARENA_BYTES: usize = 256 << 30;
const HUGE_PAGES: usize = 512;
/// Ranges of up to so many pages keep their mapping when they are freed.
const KEPT_PAGES: usize = 512;
/// Above, the address space of a range is rounded up to an eighth of a power of two.
const LARGE_CLASSES: usize = 8 * 28;
/// Bytes of records and stacks per allocation, for the account of memory.
const RECORD_BYTES: u64 = 256;

pub(crate) const FREE: u32 = 0;
pub(crate) const LIVE: u32 = 1;
pub(crate) const MOVING: u32 = 2;
pub(crate) const AWAY: u32 = 3;
pub(crate) const RETURNING: u32 = 4;
pub(crate) const BUSY: u32 = 5;
pub(crate) const EXCLUDED: u32 = 6;
pub(crate) const GONE: u32 = 7;
pub(crate) const GUARDED: u32 = 8;

/// A watched allocation. All fields but `state` are constant while it is LIVE.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) state: AtomicU32,
    pub(crate) site: AtomicU32,
    pub(crate) kind: AtomicU32,
    pub(crate) excluded: AtomicU32,
    pub(crate) start: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) allocated_ns: AtomicU64,
    pub(crate) freed_ns: AtomicU64,
}

impl Record {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            site: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            excluded: AtomicU32::new(0),
            start: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            size: AtomicU64::new(0),
            allocated_ns: AtomicU64::new(0),
            freed_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn start(&self) -> usize {
        // Relaxed, as all fields: constant while the record is LIVE (rule 3).
        self.start.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.load(Ordering::Relaxed) as usize * PAGE
    }

    pub(crate) fn state(&self) -> u32 {
        // SYNC(naps_state)
        self.state.load(Ordering::Acquire)
    }

    /// Changes the state if it is `from`.
    pub(crate) fn transition(&self, from: u32, to: u32) -> bool {
        // SYNC(naps_state)
        let changed = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }

    /// Ends a state that belongs to the caller.
    pub(crate) fn enter(&self, state: u32) {
        // SYNC(naps_state)
        self.state.store(state, Ordering::Release);
    }
}

pub(crate) static RECORD: [Record; RECORDS] = [const { Record::new() }; RECORDS];

/// A ring with one consumer. Producers hold the lock of the table, or there is one.
struct Ring {
    words: [AtomicU32; RING],
    head: AtomicU32,
    tail: AtomicU32,
}

impl Ring {
    const fn new() -> Self {
        Self {
            words: [const { AtomicU32::new(0) }; RING],
            head: AtomicU32::new(0),
            tail: AtomicU32::new(0),
        }
    }

    fn push(&self, word: u32) {
        let tail = self.tail.load(Ordering::Relaxed);
        self.words[tail as usize % RING].store(word, Ordering::Relaxed);
        // SYNC(naps_ring): the consumer sees the word, and the record that it names.
        self.tail.store(tail.wrapping_add(1), Ordering::Release);
    }

    fn pop(&self) -> Option<u32> {
        let head = self.head.load(Ordering::Relaxed);
        // SYNC(naps_ring)
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        let word = self.words[head as usize % RING].load(Ordering::Relaxed);
        self.head.store(head.wrapping_add(1), Ordering::Release);
        Some(word)
    }

    fn clear(&self) {
        self.head
            .store(self.tail.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

static EVENTS: Ring = Ring::new();
static RETURNED: Ring = Ring::new();

/// What a program thread did to a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Allocated(usize),
    Freed(usize),
}

/// The next event, for the handler.
pub(crate) fn next_event() -> Option<Event> {
    EVENTS.pop().map(|word| match word & 1 {
        0 => Event::Allocated(word as usize / 2),
        _ => Event::Freed(word as usize / 2),
    })
}

/// Gives a freed record back, by the handler.
pub(crate) fn recycle(index: usize) {
    RECORD[index].enter(FREE);
    RETURNED.push(index as u32);
}

/// The records that were ever used.
pub(crate) fn used() -> &'static [Record] {
    // Relaxed: a record that another thread takes now is found by its event.
    let used = USED_RECORDS.load(Ordering::Relaxed) as usize;
    &RECORD[..used.min(RECORDS)]
}

/// Number of records that were ever used, written under the lock.
static USED_RECORDS: AtomicU32 = AtomicU32::new(0);

/// Counters of the account, written under the lock of the table.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) allocations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) live_extra_bytes: AtomicU64,
    pub(crate) peak_bytes: AtomicU64,
    pub(crate) peak_extra_bytes: AtomicU64,
    pub(crate) unwatched_space: AtomicU64,
    pub(crate) unwatched_full: AtomicU64,
    pub(crate) excluded: AtomicU64,
    /// Price of what program threads did, in nanoseconds.
    pub(crate) cost_ns: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    allocations: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    live_bytes: AtomicU64::new(0),
    live_extra_bytes: AtomicU64::new(0),
    peak_bytes: AtomicU64::new(0),
    peak_extra_bytes: AtomicU64::new(0),
    unwatched_space: AtomicU64::new(0),
    unwatched_full: AtomicU64::new(0),
    excluded: AtomicU64::new(0),
    cost_ns: AtomicU64::new(0),
};

/// Relaxed: these are sums for reports and for a limit that need not be exact.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Addresses of the arena, constant after [`reserve`]. A base of 0: there is none.
static BASE: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU64 = AtomicU64::new(0);
/// Address of the array of owners: for the first page of a range the index of its record plus 1,
/// or, in a free range, the next free range of its class plus 1.
static OWNERS: AtomicU64 = AtomicU64::new(0);

pub(crate) static LOCK: Mutex = Mutex::new();

struct Ranges {
    /// First page that was never used.
    next: usize,
    /// First free range of each number of pages plus 1.
    free: [u32; KEPT_PAGES + 1],
    free_large: [u32; LARGE_CLASSES],
    /// Records from this one on were never used.
    next_record: usize,
}

struct Guarded(UnsafeCell<Ranges>);

// SAFETY: it is used under `LOCK` only.
unsafe impl Sync for Guarded {}

static RANGES: Guarded = Guarded(UnsafeCell::new(Ranges {
    next: HUGE_PAGES,
    free: [0; KEPT_PAGES + 1],
    free_large: [0; LARGE_CLASSES],
    next_record: 0,
}));

/// Whether an address is in the arena.
#[inline(always)]
pub(crate) fn is_inside(address: usize) -> bool {
    // Relaxed: set once, before the first allocation from it.
    address.wrapping_sub(BASE.load(Ordering::Relaxed) as usize)
        < SIZE.load(Ordering::Relaxed) as usize
}

/// First address of the arena, and its bytes: 0 without one.
pub(crate) fn arena() -> (usize, usize) {
    (
        BASE.load(Ordering::Relaxed) as usize,
        SIZE.load(Ordering::Relaxed) as usize,
    )
}

/// Address of the shadow of an address of the arena.
pub(crate) fn shadow_of(address: usize) -> usize {
    address + SIZE.load(Ordering::Relaxed) as usize
}

/// Reserves the address space; half as much until the limits of the process allow it.
pub(crate) fn reserve() -> bool {
    let mut size = ARENA_BYTES;
    while size >= 64 << 20 {
        let huge = HUGE_PAGES * PAGE;
        if let Some(place) = sys::map(None, 2 * size + huge, libc::PROT_NONE, 0) {
            let owners = sys::map(None, size / PAGE * 4, libc::PROT_READ | libc::PROT_WRITE, 0);
            if let Some(owners) = owners {
                OWNERS.store(owners as u64, Ordering::Relaxed);
                SIZE.store(size as u64, Ordering::Relaxed);
                BASE.store(place.next_multiple_of(huge) as u64, Ordering::Relaxed);
                return true;
            }
            sys::unmap(place, 2 * size + huge);
        }
        size /= 2;
    }
    false
}

fn owner(page: usize) -> &'static AtomicU32 {
    let place = OWNERS.load(Ordering::Relaxed) as usize + page * 4;
    // SAFETY: the array has a word for each page of the arena, and `page` comes from an address
    // inside the arena.
    unsafe { &*(place as *const AtomicU32) }
}

fn page_of(address: usize) -> usize {
    (address - BASE.load(Ordering::Relaxed) as usize) / PAGE
}

fn address_of(page: usize) -> usize {
    BASE.load(Ordering::Relaxed) as usize + page * PAGE
}

/// Number of pages that a range of this many takes from the address space, and its class.
fn rounded(pages: usize) -> (usize, Option<usize>) {
    if pages <= KEPT_PAGES {
        return (pages, None);
    }
    let log = pages.ilog2() as usize;
    let step = 1usize << (log - 3);
    let rounded = pages.next_multiple_of(step);
    let log = rounded.ilog2() as usize;
    let class = (log - 9) * 8 + (rounded - (1 << log)) / (1 << (log - 3));
    (rounded, Some(class))
}

/// A place for a new allocation.
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) address: usize,
    /// The pages must be mapped first.
    pub(crate) fresh: bool,
}

/// Why an allocation is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Space,
    Full,
}

/// Takes a record and a range. The caller fills the record and makes it LIVE by [`publish`].
pub(crate) fn claim(size: usize) -> Result<Place, Refusal> {
    let pages = size.div_ceil(PAGE);
    let extra = (pages * PAGE - size) as u64 + RECORD_BYTES;
    let (bytes, extras) = (get(&COUNTS.live_bytes), get(&COUNTS.live_extra_bytes));
    // Whole pages and records take at most a tenth of the watched memory.
    if (extras + extra) * 10 > bytes + size as u64 {
        return Err(Refusal::Space);
    }
    LOCK.lock();
    let place = claim_locked(pages);
    if place.is_some() {
        let live = bytes_after(&COUNTS.live_bytes, size as u64);
        let extra = bytes_after(&COUNTS.live_extra_bytes, extra);
        COUNTS.peak_bytes.fetch_max(live, Ordering::Relaxed);
        COUNTS.peak_extra_bytes.fetch_max(extra, Ordering::Relaxed);
    }
    LOCK.unlock();
    place.ok_or(Refusal::Full)
}

/// Pages of an allocation of this size that the C library would take from memory that was used
/// before. The others would be fresh ones of the kernel without this library, too.
pub(crate) fn pages_used_again(size: usize) -> u64 {
    let grown = get(&COUNTS.live_bytes) + size as u64;
    let fresh = grown.saturating_sub(get(&COUNTS.peak_bytes));
    (size as u64).saturating_sub(fresh).div_ceil(PAGE as u64)
}

fn bytes_after(counter: &AtomicU64, added: u64) -> u64 {
    counter.fetch_add(added, Ordering::Relaxed) + added
}

fn claim_locked(pages: usize) -> Option<Place> {
    // SAFETY: the lock is held.
    let ranges = unsafe { &mut *RANGES.0.get() };
    let limit = SIZE.load(Ordering::Relaxed) as usize / PAGE;
    let (taken, class) = rounded(pages);
    if taken >= limit / 8 {
        return None;
    }
    let index = match RETURNED.pop() {
        Some(index) => index as usize,
        None if ranges.next_record < RECORDS => {
            ranges.next_record += 1;
            USED_RECORDS.store(ranges.next_record as u32, Ordering::Relaxed);
            ranges.next_record - 1
        }
        None => return None,
    };
    let head = match class {
        None => &mut ranges.free[taken],
        Some(class) => &mut ranges.free_large[class],
    };
    let (page, fresh) = if *head != 0 {
        let page = *head as usize - 1;
        *head = owner(page).load(Ordering::Relaxed);
        (page, class.is_some())
    } else {
        let align = if taken >= HUGE_PAGES { HUGE_PAGES } else { 1 };
        let page = ranges.next.next_multiple_of(align);
        // The page after the range stays unmapped.
        if page + taken + 1 >= limit {
            RETURNED.push(index as u32);
            return None;
        }
        ranges.next = page + taken + 1;
        (page, true)
    };
    owner(page).store(index as u32 + 1, Ordering::Relaxed);
    Some(Place {
        index,
        address: address_of(page),
        fresh,
    })
}

/// Makes a filled record LIVE.
pub(crate) fn publish(index: usize) {
    let record = &RECORD[index];
    add(&COUNTS.allocations, 1);
    add(&COUNTS.bytes, record.size.load(Ordering::Relaxed));
    record.enter(LIVE);
    LOCK.lock();
    EVENTS.push(index as u32 * 2);
    LOCK.unlock();
}

/// Gives back what [`claim`] took, for an allocation that did not become LIVE. Its address space is
/// lost.
pub(crate) fn abandon(place: &Place, size: usize) {
    account_freed(size);
    LOCK.lock();
    owner(page_of(place.address)).store(0, Ordering::Relaxed);
    RETURNED.push(place.index as u32);
    LOCK.unlock();
}

fn account_freed(size: usize) {
    let extra = (size.next_multiple_of(PAGE) - size) as u64 + RECORD_BYTES;
    COUNTS.live_bytes.fetch_sub(size as u64, Ordering::Relaxed);
    COUNTS.live_extra_bytes.fetch_sub(extra, Ordering::Relaxed);
}

/// The record of the allocation that begins at this address.
pub(crate) fn find(address: usize) -> Option<usize> {
    if !is_inside(address) || !address.is_multiple_of(PAGE) {
        return None;
    }
    let index = owner(page_of(address)).load(Ordering::Relaxed);
    let index = (index as usize).checked_sub(1)?;
    let record = RECORD.get(index)?;
    (record.start() == address && record.state() != FREE).then_some(index)
}

/// The records whose pages overlap a range of addresses.
pub(crate) fn overlapping(start: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let end = start.saturating_add(bytes);
    used()
        .iter()
        .enumerate()
        .filter_map(move |(index, record)| {
            let state = record.state();
            let from = record.start();
            let overlaps = from < end && start < from + record.bytes();
            (overlaps && state != FREE && state != GONE).then_some(index)
        })
}

/// Takes a record out of the hands of the handler, for `free`: returns its last state. None if
/// another thread frees it, or if it is no allocation.
pub(crate) fn seize(index: usize) -> Option<u32> {
    seize_in(index, &[LIVE, AWAY, GUARDED, EXCLUDED])
}

/// As [`seize`], for pages that are to move. Guarded ones are made accessible before.
pub(crate) fn seize_movable(index: usize) -> Option<u32> {
    seize_in(index, &[LIVE, AWAY, EXCLUDED])
}

fn seize_in(index: usize, states: &[u32]) -> Option<u32> {
    let record = &RECORD[index];
    loop {
        let state = record.state();
        match state {
            state if states.contains(&state) => {
                if record.transition(state, GONE) {
                    return Some(state);
                }
            }
            GUARDED => touch(record.start()),
            MOVING | RETURNING | BUSY => sys::yield_now(),
            _ => return None,
        }
    }
}

/// Gives back the pages of a seized record, which was in this state, and its range. `moved`: the
/// pages are no longer there.
pub(crate) fn release(index: usize, state: u32, moved: bool) {
    let record = &RECORD[index];
    let (address, bytes) = (record.start(), record.bytes());
    let pages = bytes / PAGE;
    let (taken, class) = rounded(pages);
    let size = record.size.load(Ordering::Relaxed) as usize;
    // What stays mapped belongs to this library, and may be replaced. Addresses that were unmapped
    // for a moment may belong to another thread now.
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let shadow = shadow_of(address);
    let accessible = |kept: bool| kept && (class.is_some() || sys::protect(address, bytes, access));
    let usable = match (state, moved, class) {
        // The program changed the mapping, and its shadow may be lost.
        (EXCLUDED, true, _) => false,
        (EXCLUDED, false, _) => {
            sys::unmap(address, bytes);
            false
        }
        (AWAY, true, _) => {
            accessible(sys::map_at(address, bytes, libc::PROT_NONE))
                && sys::reserve_at(shadow, bytes)
        }
        (_, true, _) => accessible(sys::reserve_at(address, bytes)),
        (AWAY, false, _) => {
            accessible(sys::map_at(address, bytes, libc::PROT_NONE))
                && sys::map_at(shadow, bytes, libc::PROT_NONE)
        }
        // New pages in their place end the protection.
        (GUARDED, false, None) => sys::map_at(address, bytes, access),
        (_, false, Some(_)) => sys::map_at(address, taken * PAGE, libc::PROT_NONE),
        (_, false, None) => sys::advise(address, bytes, libc::MADV_DONTNEED),
    };
    account_freed(size);
    LOCK.lock();
    // SAFETY: the lock is held.
    let ranges = unsafe { &mut *RANGES.0.get() };
    let page = page_of(address);
    if usable {
        let head = match class {
            None => &mut ranges.free[taken],
            Some(class) => &mut ranges.free_large[class],
        };
        owner(page).store(*head, Ordering::Relaxed);
        *head = page as u32 + 1;
    } else {
        owner(page).store(0, Ordering::Relaxed);
    }
    EVENTS.push(index as u32 * 2 + 1);
    LOCK.unlock();
}

/// Makes the pages accessible and keeps the handler off, until [`Record::enter`]. False if the
/// allocation is gone.
pub(crate) fn hold(index: usize, state: u32) -> bool {
    let record = &RECORD[index];
    loop {
        match record.state() {
            LIVE => {
                if record.transition(LIVE, state) {
                    return true;
                }
            }
            // An access ends the protection.
            AWAY | GUARDED => touch(record.start()),
            MOVING | RETURNING | BUSY => sys::yield_now(),
            _ => return false,
        }
    }
}

/// Reads a byte, so that the handler ends a protection.
pub(crate) fn touch(address: usize) {
    // SAFETY: the page is mapped and readable, or becomes so by the handler.
    unsafe { core::ptr::read_volatile(address as *const u8) };
}

/// Excludes an allocation from protection for good.
pub(crate) fn exclude(index: usize) {
    if hold(index, EXCLUDED) {
        RECORD[index].excluded.store(1, Ordering::Relaxed);
        add(&COUNTS.excluded, 1);
    }
}

/// In a forked child: brings the pages of all allocations back. Only the handler of the parent was
/// in a transition, of one record at most; `pages_are_away` decides about that one.
pub(crate) fn bring_back(pages_are_away: impl Fn(usize, usize) -> bool) {
    for record in used() {
        let (address, bytes) = (record.start(), record.bytes());
        let away = match record.state() {
            AWAY => true,
            MOVING | RETURNING => pages_are_away(shadow_of(address), bytes),
            // The thread that held it does not exist here, nor does the descriptor that guards.
            BUSY | GUARDED => false,
            _ => continue,
        };
        let shadow = shadow_of(address);
        if away && !sys::move_pages(shadow, bytes, address, bytes, libc::MREMAP_DONTUNMAP) {
            sys::fatal("the memory of a forked child cannot be brought back");
        }
        record.enter(LIVE);
    }
}

/// In a forked child: forgets events and gives back records that were being freed. The engine of
/// the child looks at all others by itself.
pub(crate) fn recover() {
    EVENTS.clear();
    for (index, record) in used().iter().enumerate() {
        if record.state() == GONE {
            recycle(index);
        }
    }
}

/// Whether hooks watch anything: false before the start and after a fatal condition.
pub(crate) static ENABLED: AtomicBool = AtomicBool::new(false);

/// In a forked child: the sums begin again, those over live allocations continue.
pub(crate) fn forget_counts() {
    for counter in [
        &COUNTS.allocations,
        &COUNTS.bytes,
        &COUNTS.unwatched_space,
        &COUNTS.unwatched_full,
        &COUNTS.excluded,
        &COUNTS.cost_ns,
    ] {
        counter.store(0, Ordering::Relaxed);
    }
}
