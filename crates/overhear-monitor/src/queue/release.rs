// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes out of a queue.
//!
//! Elements are lent out from where they lie, several queues' at once ([`Batch`]), so a queue that releases
//! is not changed but for its head. What was released stays as it is until the next element comes in.

use std::sync::Arc;

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, Gap, GapCause, Places, StreamId, Timestamp, Turn,
};
use zerocopy::IntoBytes as _;

use super::{Queue, HEAD_WORDS};
use crate::batch::{Batch, Portion, Released};
use crate::watch::Watches;

impl Queue {
    /// Releases what comes before `until` in the total order, and returns the place of the rest;
    /// `None` if there is none. `turn` is a place of this stream. Where there have been enough the rest
    /// begins before `until`.
    #[inline]
    pub(crate) fn release<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        turn: Turn,
        until: Turn,
        batch: &mut Batch<'q, P, S>,
    ) -> Option<Turn> {
        if !self.lies_elsewhere() && self.gaps.borrow().is_empty() {
            // Nearly always. Whether there were enough shows in the place of the rest.
            self.release_elements(turn, until, self.tail, batch);
            let head = self.head.get();
            return (head != self.tail).then(|| turn.at(self.coming(head)));
        }
        self.release_mixed(turn, until, batch)
    }

    /// The time of the element at this position, which is the head, and a look at the one behind it: where
    /// streams alternate, whose turn is next waits for this time, and the way to it is long.
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

    /// [`Queue::release`] where there are gaps, or the payloads lie elsewhere.
    fn release_mixed<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        turn: Turn,
        until: Turn,
        batch: &mut Batch<'q, P, S>,
    ) -> Option<Turn> {
        loop {
            let time = self.head()?;
            let next = turn.at(time);
            if next >= until {
                return Some(next);
            }
            let head = self.head.get();
            match self.first_gap() {
                Some(before) if before == head => self.release_gap(batch),
                first => {
                    let end = first.unwrap_or(self.tail);
                    let had_enough = match &self.places {
                        None => self.release_elements(turn, until, end, batch),
                        Some(places) => self.release_in_place(places, turn, until, end, batch),
                    };
                    if had_enough {
                        return self.head().map(|time| turn.at(time));
                    }
                    debug_assert_ne!(self.head.get(), head, "the head comes before the end");
                }
            }
        }
    }

    /// As [`Queue::release`], for a stream of which proofs of missing elements are looked for. `find` finds the queue of
    /// another stream.
    pub(crate) fn release_watched<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        turn: Turn,
        until: Turn,
        batch: &mut Batch<'q, P, S>,
        watches: &mut Watches,
        find: impl Fn(StreamId) -> Option<&'q Self> + Copy,
    ) -> Option<Turn> {
        while let Some(before) = self.first_gap() {
            let time = self.head()?;
            if turn.at(time) >= until {
                return Some(turn.at(time));
            }
            if before == self.head.get() {
                watches.gap(self.role);
                self.release_gap(batch);
            } else if self.release_checked(turn, until, before, batch, watches, find) {
                return self.head().map(|time| turn.at(time));
            }
        }
        // Nearly always all of it. Whether there were enough shows in the place of the rest.
        self.release_checked(turn, until, self.tail, batch, watches, find);
        let head = self.head.get();
        (head != self.tail).then(|| turn.at(self.coming(head)))
    }

    /// As [`Queue::release_elements`], for a stream that is watched.
    #[inline(always)]
    fn release_checked<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        turn: Turn,
        until: Turn,
        end: u64,
        batch: &mut Batch<'q, P, S>,
        watches: &mut Watches,
        find: impl Fn(StreamId) -> Option<&'q Self> + Copy,
    ) -> bool {
        let mut head = self.head.get();
        while head != end {
            let start = self.start(head);
            let slot = &self.slots[start..start + self.stride];
            let time = Timestamp::from_monotonic_ns(slot[0]);
            if turn.at(time) >= until {
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

    /// Releases the gaps that an element proves, and takes it. If an evaluation fails, the element is looked at again.
    #[cold]
    #[inline(never)]
    fn release_proven<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        time: Timestamp,
        payload: &[u8],
        batch: &mut Batch<'q, P, S>,
        watches: &mut Watches,
        find: impl Fn(StreamId) -> Option<&'q Self>,
    ) {
        batch.hand_over();
        while let Some((stream, role)) = watches.next_hole(self.role, payload) {
            watches.gap(role);
            let Some(queue) = find(stream) else { continue };
            // One that was counted already, and is not released yet, explains as much.
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
            batch.pass(Released::Gap(&queue.descriptor, gap));
        }
        watches.take(self.role, payload);
    }

    /// The position that the oldest gap stands before.
    fn first_gap(&self) -> Option<u64> {
        self.gaps.borrow().front().map(|gap| gap.before)
    }

    /// Releases elements before the position `end`, as long as they come before `until`, and says
    /// whether there were enough before that.
    #[inline(always)]
    fn release_elements<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        turn: Turn,
        until: Turn,
        end: u64,
        batch: &mut Batch<'q, P, S>,
    ) -> bool {
        let mut head = self.head.get();
        while head != end {
            let start = self.start(head);
            let slot = &self.slots[start..start + self.stride];
            let time = Timestamp::from_monotonic_ns(slot[0]);
            if turn.at(time) >= until {
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

    /// As [`Queue::release_elements`], for payloads that lie elsewhere.
    fn release_in_place<'q, P: Portion, S: FnMut(Released<'_>)>(
        &'q self,
        places: &Arc<dyn Places>,
        turn: Turn,
        until: Turn,
        end: u64,
        batch: &mut Batch<'q, P, S>,
    ) -> bool {
        while self.head.get() != end {
            let (sequence, time) = self.head_at(self.head.get());
            if turn.at(time) >= until {
                return false;
            }
            if batch.is_enough() {
                return true;
            }
            let key = ElementKey {
                stream: &self.descriptor,
                sequence,
                time,
            };
            let element = ElementInPlace::new(key, &**places);
            // First what comes before it: if that fails, this one stays to be released.
            batch.hand_over();
            self.head.set(self.head.get() + 1);
            // What is gone already need not be evaluated in vain.
            if element.is_whole() {
                batch.pass_in_place(&element);
            }
            let whole = element.is_whole();
            if whole {
                self.released.set(time);
                continue;
            }
            let (to, missed) = self.pass_overwritten(places, (sequence, time), turn, until, end);
            let gap = Gap {
                stream: self.descriptor.id,
                first: sequence,
                missed,
                from: self.released.replace(to),
                to,
                cause: GapCause::Overwritten,
            };
            batch.pass(Released::Gap(&self.descriptor, gap));
        }
        false
    }

    /// Passes over the elements right behind one that was overwritten that were too. Returns the time of the
    /// last one, and how many there are with the first.
    #[cold]
    fn pass_overwritten(
        &self,
        places: &Arc<dyn Places>,
        (first, mut to): (u64, Timestamp),
        turn: Turn,
        until: Turn,
        end: u64,
    ) -> (Timestamp, u64) {
        let mut missed = 1;
        while self.head.get() != end {
            let (sequence, time) = self.head_at(self.head.get());
            if turn.at(time) >= until
                || sequence != first.wrapping_add(missed)
                || places.is_whole(sequence)
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
    fn release_gap<'q, P: Portion, S: FnMut(Released<'_>)>(&'q self, batch: &mut Batch<'q, P, S>) {
        // First what comes before it: if that fails, the gap stays to be told.
        batch.hand_over();
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
        batch.pass(Released::Gap(&self.descriptor, gap));
    }
}
