// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot: the properties of a stream that the processes of an area share.

use overhear_event::{Nanos, Timestamp};
use overhear_stream::sync::{fence, AtomicU64, Ordering};
use overhear_stream::RingObserver;

use super::{Area, AreaLock, Member, SLOTS};
use crate::clock::monotonic_now;
use crate::local::geometry;
use crate::{Attributes, EventTypeSet, Inheritance, StreamFullPolicy, NAME_MAX};

/// Words of a slot.
pub(super) const WORDS: usize = 64;

// Read by each write, changed by the controller.
const CONFIG: usize = 0;
const STATE: usize = 1;
const CONTROLLER: usize = 2;
const TARGET: usize = 3;
const INHERITED: usize = 4;
const CREATION: usize = 5;
const REALTIME_OFFSET: usize = 6;
const HAS_LOG: usize = 7;
const FILTER: usize = 8;
/// 1: the controller has no lock that shows that it lives.
const HAS_NO_LOCK: usize = 13;
const NAME: usize = 16;
// Words that each write loads and few writes change: a cache line of their own.
const STOPPED: usize = 32;
const STOP_STAMP: usize = 33;
const WAITING: usize = 34;
// Changed by writes whose events are lost.
const LOST_FULL: usize = 40;
const WAKES: usize = 41;
// For observers that read the last events of a stream that has ended.
const ENDED: usize = 42;
const ENDED_WRITTEN: usize = 43;
const ENDED_NS: usize = 44;

/// Minimum time for which the ring of a stream that has ended is kept for observers. The memory is
/// freed when the area's next stream begins or ends.
const KEEP_RING: Nanos = Nanos::from_ms(2_000);

const _: () = assert!(NAME + NAME_MAX / 8 <= STOPPED);
const _: () = assert!(FILTER + size_of::<EventTypeSet>() / 8 <= HAS_NO_LOCK);

/// Generations are numbers of 24 bits.
pub(super) const GENERATION_MASK: u32 = (1 << 24) - 1;

/// The properties of a stream that a writer needs, in one word: 0 if there is no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotConfig(u64);

impl SlotConfig {
    /// A stream with a ring of `2^log2_capacity` events.
    pub(crate) fn new(
        generation: u32,
        log2_capacity: u32,
        policy: StreamFullPolicy,
        max_data_size: u32,
    ) -> Self {
        debug_assert!(log2_capacity < 32 && generation <= GENERATION_MASK);
        let policy = match policy {
            StreamFullPolicy::Loop => 1,
            StreamFullPolicy::UntilFull => 2,
            StreamFullPolicy::Flush => 3,
        };
        Self(
            u64::from(max_data_size)
                | u64::from(log2_capacity) << 32
                | policy << 37
                | u64::from(generation) << 40,
        )
    }

    /// The word.
    pub(crate) const fn as_raw(self) -> u64 {
        self.0
    }

    /// The configuration of a word, which may be anything.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Maximum bytes of data of a user event.
    #[inline(always)]
    pub(crate) const fn max_data_size(self) -> usize {
        self.0 as u32 as usize
    }

    /// Events of the ring.
    #[inline(always)]
    pub(crate) const fn capacity(self) -> usize {
        1 << (self.0 >> 32 & 31)
    }

    /// The stream-full-policy; `None` if there is no stream.
    #[inline(always)]
    pub(crate) const fn policy(self) -> Option<StreamFullPolicy> {
        match self.0 >> 37 & 7 {
            1 => Some(StreamFullPolicy::Loop),
            2 => Some(StreamFullPolicy::UntilFull),
            3 => Some(StreamFullPolicy::Flush),
            _ => None,
        }
    }

    /// A number that differs between the streams of a slot.
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 40) as u32
    }
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// There is no stream.
    Free,
    /// It records nothing.
    Suspended,
    /// It records, unless it is full.
    Running,
}

impl SlotState {
    const fn as_raw(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Suspended => 1,
            Self::Running => 2,
        }
    }

    const fn from_untrusted(raw: u64) -> Self {
        match raw {
            1 => Self::Suspended,
            2 => Self::Running,
            _ => Self::Free,
        }
    }
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    words: &'a [AtomicU64],
}

/// Bit of the waiting word: the thread that flushes the stream waits for it to be half full.
const FLUSHER: u64 = 1 << 32;
const READERS: u64 = FLUSHER - 1;

impl<'a> Slot<'a> {
    #[inline(always)]
    pub(super) const fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    /// The configuration.
    #[inline(always)]
    pub(crate) fn config(self) -> SlotConfig {
        // SYNC(config)
        SlotConfig(self.words[CONFIG].load(Ordering::Acquire))
    }

    /// Whether the stream still is the one with this configuration.
    pub(crate) fn is_same(self, config: SlotConfig) -> bool {
        // SYNC(overwrite): a reader whose copy has words of another stream finds another
        // configuration here.
        fence(Ordering::Acquire);
        self.words[CONFIG].load(Ordering::Relaxed) == config.0
    }

    /// The state of the stream.
    pub(crate) fn state(self) -> SlotState {
        SlotState::from_untrusted(self.words[STATE].load(Ordering::Relaxed))
    }

    /// Changes the state. Only the controller does.
    pub(crate) fn set_state(self, state: SlotState) {
        // Relaxed: the gate decides what is recorded; this is information.
        self.words[STATE].store(state.as_raw(), Ordering::Relaxed);
    }

    /// Begins a stream, which is suspended.
    pub(crate) fn begin(
        self,
        config: SlotConfig,
        attributes: &Attributes,
        about: &SlotOwner,
        _lock: &AreaLock<'_>,
    ) {
        let store = |index: usize, value: u64| self.words[index].store(value, Ordering::Relaxed);
        // Relaxed: SYNC(config) publishes them, and observers get information only.
        for word in &self.words[CONTROLLER..] {
            word.store(0, Ordering::Relaxed);
        }
        store(CONTROLLER, about.controller.into());
        store(TARGET, about.target.into());
        store(HAS_LOG, about.has_log.into());
        store(
            INHERITED,
            (attributes.inheritance == Inheritance::Inherited).into(),
        );
        store(CREATION, attributes.creation_ns);
        store(REALTIME_OFFSET, about.realtime_offset_ns as u64);
        let name = Attributes::fitting_name(&attributes.name);
        for (at, part) in name.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            store(NAME + at, u64::from_ne_bytes(bytes));
        }
        self.set_state(SlotState::Suspended);
        // SYNC(config): a process that loads it also sees the words above and those of the ring.
        self.words[CONFIG].store(config.0, Ordering::Release);
    }

    /// Ends the stream, into which `written` events were recorded; its slot is free.
    pub(crate) fn end(self, written: u64, _lock: &AreaLock<'_>) {
        let store = |index: usize, value: u64| self.words[index].store(value, Ordering::Relaxed);
        // Relaxed: SYNC(config) publishes them.
        store(ENDED_WRITTEN, written);
        store(ENDED_NS, monotonic_now().as_monotonic_ns());
        store(ENDED, self.words[CONFIG].load(Ordering::Relaxed));
        // SYNC(config)
        self.words[CONFIG].store(0, Ordering::Release);
        self.set_state(SlotState::Free);
    }

    /// The configuration of the stream that has ended here, and the number of its events, as long
    /// as its ring is kept.
    pub(crate) fn ended_untrusted(self) -> Option<(SlotConfig, u64)> {
        // SYNC(overwrite): as in `is_same`.
        fence(Ordering::Acquire);
        let config = self.words[ENDED].load(Ordering::Relaxed);
        let written = self.words[ENDED_WRITTEN].load(Ordering::Relaxed);
        (config != 0).then_some((SlotConfig(config), written))
    }

    /// Whether the ring has the events of the stream with this configuration, which may have ended.
    pub(crate) fn has_events_of(self, config: SlotConfig) -> bool {
        self.is_same(config)
            || self
                .ended_untrusted()
                .is_some_and(|(ended, _)| ended == config)
    }

    /// Marks that the ring of the stream that has ended here is freed.
    pub(super) fn forget_ended(self) {
        self.words[ENDED].store(0, Ordering::Release);
    }

    /// The controller of the stream, and the process that it traces.
    pub(crate) fn owner(self) -> SlotOwner {
        let load = |index: usize| self.words[index].load(Ordering::Relaxed);
        SlotOwner {
            controller: load(CONTROLLER) as u32,
            target: load(TARGET) as u32,
            has_log: load(HAS_LOG) == 1,
            realtime_offset_ns: load(REALTIME_OFFSET) as i64,
        }
    }

    /// When the stream was created, `CLOCK_REALTIME`.
    pub(crate) fn creation_ns(self) -> u64 {
        self.words[CREATION].load(Ordering::Relaxed)
    }

    /// Whether children of its processes are traced.
    pub(crate) fn is_inherited(self) -> bool {
        self.words[INHERITED].load(Ordering::Relaxed) == 1
    }

    /// The name of the stream.
    pub(crate) fn name(self) -> Vec<u8> {
        let words = &self.words[NAME..NAME + NAME_MAX / 8];
        let bytes = words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        Attributes::fitting_name(&bytes.collect::<Vec<u8>>()).to_vec()
    }

    /// The filter: information for observers.
    pub(crate) fn filter(self) -> EventTypeSet {
        let word = |at: usize| self.words[FILTER + at].load(Ordering::Relaxed);
        EventTypeSet::from_words(std::array::from_fn(word))
    }

    /// Changes the filter. Only the controller does.
    pub(crate) fn set_filter(self, filter: EventTypeSet) {
        for (word, bits) in self.words[FILTER..].iter().zip(filter.words()) {
            word.store(bits, Ordering::Relaxed);
        }
    }

    /// Whether the stream was full, and records nothing until it has been read.
    #[inline(always)]
    pub(crate) fn is_stopped(self) -> bool {
        // Relaxed: it only saves the attempt.
        self.words[STOPPED].load(Ordering::Relaxed) != 0
    }

    /// A writer found the stream full at this time.
    #[cold]
    pub(crate) fn stop_full(self, stamp: u64) {
        if self.words[STOPPED].swap(1, Ordering::Relaxed) == 0 {
            self.words[STOP_STAMP].store(stamp, Ordering::Relaxed);
        }
    }

    /// When [`Slot::stop_full`] was called first.
    pub(crate) fn stop_stamp_untrusted(self) -> u64 {
        self.words[STOP_STAMP].load(Ordering::Relaxed)
    }

    /// Lets the stream record again.
    pub(crate) fn restart(self) {
        self.words[STOPPED].store(0, Ordering::Relaxed);
    }

    /// Counts an event that was lost because the stream was full.
    #[cold]
    pub(crate) fn count_lost(self) {
        self.words[LOST_FULL].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of events that were lost because the stream was full.
    pub(crate) fn lost_full(self) -> u64 {
        self.words[LOST_FULL].load(Ordering::Relaxed)
    }

    /// After a publication: wakes a reader that waits for it, or the thread that flushes if the
    /// stream is half full now.
    #[inline(always)]
    pub(crate) fn published(self, position: u64, capacity: usize) {
        // SYNC(wait): ordered after the publication by the caller's fence or the reader's barrier.
        // Either this load finds the reader, or the reader finds the event.
        let waiting = self.words[WAITING].load(Ordering::Relaxed);
        if waiting != 0 {
            self.wake_waiting(waiting, position, capacity);
        }
    }

    #[cold]
    fn wake_waiting(self, waiting: u64, position: u64, capacity: usize) {
        let half = (capacity as u64 / 2).max(1);
        if waiting & READERS != 0 || position % half == half - 1 {
            self.wake();
        }
    }

    /// Wakes the threads that wait, if any.
    pub(crate) fn wake_if_waiting(self) {
        // SYNC(wait)
        if self.words[WAITING].load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// Wakes all threads that wait for the stream. Async-signal-safe: one system call.
    #[cold]
    pub(crate) fn wake(self) {
        let word = self.wakes();
        // SYNC(wait)
        word.fetch_add(1, Ordering::SeqCst);
        crate::futex::wake_all(word);
    }

    /// The word that [`Slot::wake`] changes.
    pub(crate) fn wakes(self) -> &'a AtomicU64 {
        &self.words[WAKES]
    }

    /// Announces a reader or the flushing thread, which reads the ring once more and then waits.
    pub(crate) fn begin_wait(self, flusher: bool) {
        let one = if flusher { FLUSHER } else { 1 };
        // SYNC(wait)
        self.words[WAITING].fetch_add(one, Ordering::SeqCst);
    }

    /// Ends what [`Slot::begin_wait`] began.
    pub(crate) fn end_wait(self, flusher: bool) {
        let one = if flusher { FLUSHER } else { 1 };
        // SYNC(wait)
        self.words[WAITING].fetch_sub(one, Ordering::SeqCst);
    }
}

/// The processes of a stream. The numbers come from shared memory: no right depends on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotOwner {
    pub(crate) controller: u32,
    pub(crate) target: u32,
    pub(crate) has_log: bool,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the creation.
    pub(crate) realtime_offset_ns: i64,
}

impl Area {
    /// The slots with a stream, a bit for each.
    pub(crate) fn active(&self, _lock: &AreaLock<'_>) -> u64 {
        let taken = (0..SLOTS).filter(|index| self.slot(*index).state() != SlotState::Free);
        taken.fold(0, |mask, index| mask | 1 << index)
    }

    /// The streams that trace the children of a member, too.
    pub(crate) fn inherited_mask(&self, member: Member<'_>) -> u64 {
        let mask = member.mask().load(Ordering::Relaxed);
        let inherited = (0..SLOTS).filter(|index| self.slot(*index).is_inherited());
        inherited.fold(0, |sum, index| sum | 1 << index) & mask
    }

    /// Ends the stream of a slot: no process records into it any more.
    pub(crate) fn end_stream(&self, index: usize, lock: &AreaLock<'_>) {
        self.close_gate(index);
        self.untrace(index, lock);
        let config = self.slot(index).config();
        self.slot(index).end(self.written(index, config), lock);
        self.free_kept_rings(lock);
    }

    /// Number of events that were recorded into the ring of a slot; 0 if the kernel has no memory
    /// for the map.
    fn written(&self, index: usize, config: SlotConfig) -> u64 {
        let written = geometry(config).and_then(|shape| {
            let memory = self.map_ring(index, shape.words() * 8).ok()?;
            let now = RingObserver::from_now(memory.words(), shape).ok()?;
            Some(now.position())
        });
        written.unwrap_or(0)
    }

    /// Gives back the rings of streams that have ended some time ago.
    fn free_kept_rings(&self, _lock: &AreaLock<'_>) {
        let now = monotonic_now();
        for index in 0..SLOTS {
            let slot = self.slot(index);
            let ended = Timestamp::from_monotonic_ns(slot.words[ENDED_NS].load(Ordering::Relaxed));
            let is_kept = slot.state() == SlotState::Free && slot.ended_untrusted().is_some();
            if is_kept && now.since(ended) >= KEEP_RING {
                self.free_ring(index);
            }
        }
    }

    /// Ends the streams whose controllers have ended.
    pub(crate) fn sweep(&self, lock: &AreaLock<'_>) {
        let own = self.own.load(Ordering::Relaxed);
        self.free_kept_rings(lock);
        for index in (0..SLOTS).filter(|index| own >> index & 1 == 0) {
            let slot = self.slot(index);
            if slot.state() == SlotState::Free || lock.has_controller(index) {
                continue;
            }
            // Relaxed: changed under the lock.
            let has_no_lock = slot.words[HAS_NO_LOCK].load(Ordering::Relaxed) == 1;
            if !(has_no_lock && exists(slot.owner().controller)) {
                self.end_stream(index, lock);
            }
        }
    }

    /// A slot without a stream. Slots are used in turn, so that a writer that was preempted for a
    /// long time does not write into the ring of another stream.
    pub(crate) fn free_slot(&self, generation: u32, _lock: &AreaLock<'_>) -> Option<usize> {
        let mut indices = (0..SLOTS).map(|step| (generation as usize + step) % SLOTS);
        indices.find(|index| self.slot(*index).state() == SlotState::Free)
    }

    /// Makes this process the controller of a slot, or ends that.
    pub(crate) fn set_own(&self, index: usize, is_own: bool, lock: &AreaLock<'_>) {
        if is_own {
            self.own.fetch_or(1 << index, Ordering::Relaxed);
            let has_lock = lock.begin_controller(index);
            let word = &self.slot(index).words[HAS_NO_LOCK];
            word.store((!has_lock).into(), Ordering::Relaxed);
        } else {
            self.own.fetch_and(!(1 << index), Ordering::Relaxed);
            lock.end_controller(index);
        }
    }

    /// Opens the gate for all event types outside of a filter.
    pub(crate) fn open_gate(&self, index: usize, filter: EventTypeSet) {
        for event in EventTypeSet::ALL.iter().filter(|event| event.is_user()) {
            match filter.contains(event) {
                true => self.gate(event).fetch_and(!(1 << index), Ordering::Relaxed),
                false => self.gate(event).fetch_or(1 << index, Ordering::Relaxed),
            };
        }
    }

    /// Closes the gate of a stream for all event types.
    pub(crate) fn close_gate(&self, index: usize) {
        self.open_gate(index, EventTypeSet::ALL);
    }
}

/// Whether a process of this number exists. It may be another one, or not be visible from here.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // Of another user's process it returns EPERM.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_keeps_its_parts() {
        let config = SlotConfig::new(GENERATION_MASK, 20, StreamFullPolicy::Flush, u32::MAX);
        assert_eq!(config.generation(), GENERATION_MASK);
        assert_eq!(config.capacity(), 1 << 20);
        assert_eq!(config.policy(), Some(StreamFullPolicy::Flush));
        assert_eq!(config.max_data_size(), u32::MAX as usize);
        assert_eq!(SlotConfig(0).policy(), None);
    }
}
