// SPDX-License-Identifier: MIT OR Apache-2.0
//! Release of a queue's items.
//!
//! Released elements are borrowed from their slots, from several queues at the same time
//! ([`Batch`]). So a release changes nothing but the head of the queue, and the slots stay
//! unchanged until the next element is queued.

use std::sync::Arc;

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, Gap, GapCause, InPlaceMemory, MergeKey, StreamId,
    Timestamp,
};
use zerocopy::IntoBytes as _;

use super::{Queue, HEAD_WORDS};
use crate::batch::{Batch, ReleaseLimit, Released};
use crate::continuity_checks::ContinuityChecks;

impl Queue {
    /// Releases the items with keys before `until`, and returns the key of the rest; `None` if
    /// there is none. `key` is any key of this stream. If the limit of the batch ends the release,
    /// the returned key is before `until`.
    #[inline]
    pub(crate) fn release<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        key: MergeKey,
        until: MergeKey,
        batch: &mut Batch<'q, P, S>,
    ) -> Option<MergeKey> {
        if !self.is_in_place() && self.gaps.borrow().is_empty() {
            // The usual case. The returned key shows whether the limit ended the release.
            self.release_elements(key, until, self.tail, batch);
            let head = self.head.get();
            return (head != self.tail).then(|| key.at(self.coming(head)));
        }
        self.release_mixed(key, until, batch)
    }

    /// The time of the element at this position, which is the head. It also prefetches the next
    /// one: if streams alternate, the merge depends on that time.
    #[inline(always)]
    fn coming(&self, head: u64) -> Timestamp {
        let (position, seen) = self.seen.get();
        let time = if position == head {
            seen
        } else {
            self.time_at(head)
        };
        let behind = head + 1;
        if behind != self.tail {
            self.seen.set((behind, self.time_at(behind)));
        }
        time
    }

    /// [`Queue::release`] for queues with gaps, or with payloads in place.
    fn release_mixed<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        key: MergeKey,
        until: MergeKey,
        batch: &mut Batch<'q, P, S>,
    ) -> Option<MergeKey> {
        loop {
            let time = self.head()?;
            let next = key.at(time);
            if next >= until {
                return Some(next);
            }
            let head = self.head.get();
            match self.first_gap() {
                Some(before) if before == head => self.release_gap(batch),
                first => {
                    let end = first.unwrap_or(self.tail);
                    let had_enough = match &self.payloads {
                        None => self.release_elements(key, until, end, batch),
                        Some(payloads) => self.release_in_place(payloads, key, until, end, batch),
                    };
                    if had_enough {
                        return self.head().map(|time| key.at(time));
                    }
                    debug_assert_ne!(self.head.get(), head, "the head comes before the end");
                }
            }
        }
    }

    /// As [`Queue::release`], for a stream that is checked for missing switches. `find` returns the
    /// queue of another stream.
    pub(crate) fn release_watched<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        key: MergeKey,
        until: MergeKey,
        batch: &mut Batch<'q, P, S>,
        watches: &mut ContinuityChecks,
        find: impl Fn(StreamId) -> Option<&'q Self> + Copy,
    ) -> Option<MergeKey> {
        while let Some(before) = self.first_gap() {
            let time = self.head()?;
            if key.at(time) >= until {
                return Some(key.at(time));
            }
            if before == self.head.get() {
                watches.gap(self.role);
                self.release_gap(batch);
            } else if self.release_checked(key, until, before, batch, watches, find) {
                return self.head().map(|time| key.at(time));
            }
        }
        // Usually all items. The returned key shows whether the limit ended the release.
        self.release_checked(key, until, self.tail, batch, watches, find);
        let head = self.head.get();
        (head != self.tail).then(|| key.at(self.coming(head)))
    }

    /// As [`Queue::release_elements`], for a stream that is checked.
    #[inline(always)]
    fn release_checked<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        key: MergeKey,
        until: MergeKey,
        end: u64,
        batch: &mut Batch<'q, P, S>,
        watches: &mut ContinuityChecks,
        find: impl Fn(StreamId) -> Option<&'q Self> + Copy,
    ) -> bool {
        let mut head = self.head.get();
        while head != end {
            let start = self.start(head);
            let slot = &self.slots[start..start + self.stride];
            let time = Timestamp::from_monotonic_ns(slot[0]);
            if key.at(time) >= until {
                return false;
            }
            if batch.is_enough() {
                return true;
            }
            let payload = &slot[HEAD_WORDS..].as_bytes()[..self.payload];
            if !watches.take(self.role, payload) {
                self.release_proven(time, payload, batch, watches, find);
            }
            head += 1;
            self.head.set(head);
            self.released.set(time);
            let sequence = slot[1].wrapping_add(self.moved.get());
            self.next.set(sequence.wrapping_add(1));
            batch.push(ElementView {
                stream: &self.descriptor,
                sequence,
                time,
                payload,
            });
        }
        false
    }

    /// Releases the gaps that an element proves, and takes it. If an analysis panics, the element
    /// is checked again.
    #[cold]
    #[inline(never)]
    fn release_proven<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        time: Timestamp,
        payload: &[u8],
        batch: &mut Batch<'q, P, S>,
        watches: &mut ContinuityChecks,
        find: impl Fn(StreamId) -> Option<&'q Self>,
    ) {
        batch.flush();
        while let Some((stream, role)) = watches.next_hole(self.role, payload) {
            watches.gap(role);
            let Some(queue) = find(stream) else { continue };
            // A counted gap that is not released yet explains it as well.
            if queue.first_gap() == Some(queue.head.get()) {
                continue;
            }
            let first = queue.next.get();
            queue.next.set(first.wrapping_add(1));
            queue.moved.set(queue.moved.get().wrapping_add(1));
            let gap = Gap {
                stream: queue.descriptor.id,
                first,
                missed: 1,
                from: queue.released.replace(time),
                to: time,
                cause: GapCause::Inconsistent,
            };
            batch.flush_with(Released::Gap(&queue.descriptor, gap));
        }
        watches.take(self.role, payload);
    }

    /// The position of the element after the oldest gap.
    fn first_gap(&self) -> Option<u64> {
        self.gaps.borrow().front().map(|gap| gap.before)
    }

    /// Releases elements before the position `end` with keys before `until`. Returns whether the
    /// limit ended it.
    #[inline(always)]
    fn release_elements<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        key: MergeKey,
        until: MergeKey,
        end: u64,
        batch: &mut Batch<'q, P, S>,
    ) -> bool {
        let mut head = self.head.get();
        while head != end {
            let start = self.start(head);
            let slot = &self.slots[start..start + self.stride];
            let time = Timestamp::from_monotonic_ns(slot[0]);
            if key.at(time) >= until {
                return false;
            }
            if batch.is_enough() {
                return true;
            }
            head += 1;
            self.head.set(head);
            self.released.set(time);
            batch.push(ElementView {
                stream: &self.descriptor,
                sequence: slot[1],
                time,
                payload: &slot[HEAD_WORDS..].as_bytes()[..self.payload],
            });
        }
        false
    }

    /// As [`Queue::release_elements`], for payloads in place.
    fn release_in_place<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        payloads: &Arc<dyn InPlaceMemory>,
        key: MergeKey,
        until: MergeKey,
        end: u64,
        batch: &mut Batch<'q, P, S>,
    ) -> bool {
        while self.head.get() != end {
            let (sequence, time) = self.head_at(self.head.get());
            if key.at(time) >= until {
                return false;
            }
            if batch.is_enough() {
                return true;
            }
            let element_key = ElementKey {
                stream: &self.descriptor,
                sequence,
                time,
            };
            let element = ElementInPlace::new(element_key, &**payloads);
            // First the elements before it: if that panics, this one stays queued.
            batch.flush();
            self.head.set(self.head.get() + 1);
            // Overwritten elements are not evaluated.
            if element.is_whole() {
                batch.flush_in_place(&element);
            }
            let whole = element.is_whole();
            if whole {
                self.released.set(time);
                continue;
            }
            let (to, missed) = self.pass_overwritten(payloads, (sequence, time), key, until, end);
            let gap = Gap {
                stream: self.descriptor.id,
                first: sequence,
                missed,
                from: self.released.replace(to),
                to,
                cause: GapCause::Overwritten,
            };
            batch.flush_with(Released::Gap(&self.descriptor, gap));
        }
        false
    }

    /// Skips the overwritten elements that follow an overwritten one. Returns the time of the last
    /// one, and their number with the first.
    #[cold]
    fn pass_overwritten(
        &self,
        payloads: &Arc<dyn InPlaceMemory>,
        (first, mut to): (u64, Timestamp),
        key: MergeKey,
        until: MergeKey,
        end: u64,
    ) -> (Timestamp, u64) {
        let mut missed = 1;
        while self.head.get() != end {
            let (sequence, time) = self.head_at(self.head.get());
            if key.at(time) >= until
                || sequence != first.wrapping_add(missed)
                || payloads.is_whole(sequence)
            {
                break;
            }
            to = time;
            missed += 1;
            self.head.set(self.head.get() + 1);
        }
        (to, missed)
    }

    /// Sequence and time of the element at this position.
    fn head_at(&self, position: u64) -> (u64, Timestamp) {
        let start = self.start(position);
        let time = Timestamp::from_monotonic_ns(self.slots[start]);
        (self.slots[start + 1], time)
    }

    #[cold]
    fn release_gap<'q, P: ReleaseLimit, S: FnMut(Released<'_>)>(
        &'q self,
        batch: &mut Batch<'q, P, S>,
    ) {
        // First the elements before it: if that panics, the gap stays queued.
        batch.flush();
        let Some(queued) = self.gaps.borrow_mut().pop_front() else {
            return;
        };
        let from = self.released.get();
        let first = queued.first.wrapping_add(self.moved.get());
        self.next.set(first.wrapping_add(queued.missed));
        let gap = Gap {
            stream: self.descriptor.id,
            first,
            missed: queued.missed,
            from,
            to: queued.to.max(from),
            cause: queued.cause,
        };
        self.released.set(gap.to);
        batch.flush_with(Released::Gap(&self.descriptor, gap));
    }
}
