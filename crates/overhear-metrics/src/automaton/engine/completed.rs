// SPDX-License-Identifier: MIT OR Apache-2.0
//! A measurement between the step that completes it and its report.

use overhear_event::{Nanos, Timestamp};

use super::flags::{INTERVAL, POSITIONS};
use super::instance::{Instance, KeyValue};
use super::measurement::Position;
use crate::automaton::compile::program::{Effects, Step};

/// A completed measurement that is not reported yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
    /// Sum of the segments; not set for [intervals](INTERVAL).
    pub(super) length: Nanos,
    /// Set if the metric is [keyed](super::flags::KEYED).
    pub(super) key: Option<u64>,
    pub(super) task: u32,
    /// Index in the batch of the input that completed it; set with [`POSITIONS`] or
    /// [`KEYED_BY_END`](super::flags::KEYED_BY_END).
    pub(super) input: u32,
    /// Set with [`POSITIONS`].
    pub(super) begin_at: Position,
}

impl Completed {
    /// Takes the key, which is that of the newest symbol that gave one. A measurement that begins
    /// forgets a key that was given before.
    #[inline(always)]
    pub(super) fn take_key(
        &mut self,
        newest: &mut KeyValue,
        given: Option<Option<u64>>,
        ordinal: u64,
        effects: Effects,
    ) {
        if let Some(key) = given {
            *newest = KeyValue { key, ordinal };
        }
        self.key = newest.key;
        if effects.has(Effects::BEGIN) {
            newest.renew(ordinal);
        }
    }

    /// Lets the automaton take a step at this time, which may be earlier than its element. All that
    /// a completed measurement needs is written here, whether the step completes one or not.
    #[inline(always)]
    pub(super) fn step<const FLAGS: usize>(
        &mut self,
        instance: &mut Instance,
        step: &Step,
        (time, may_be_backdated): (Timestamp, bool),
        element: impl Fn() -> Position,
    ) {
        let effects = step.effects;
        let mut moved = *instance;
        let now = moved.step_without_branch(step.to, effects, time, may_be_backdated);
        self.begin = moved.begin;
        self.end = now;
        self.task = moved.task;
        moved.begin_if(effects, now);
        if FLAGS & POSITIONS != 0 {
            self.begin_at = moved.begin_at;
            moved.begin_at_if(effects, element());
            instance.begin_at = moved.begin_at;
        }
        if FLAGS & INTERVAL == 0 {
            moved.close_if(effects, now);
            self.length = moved.length;
            moved.open_if(effects, now);
            (instance.length, instance.since) = (moved.length, moved.since);
        }
        instance.copy_step_of(&moved);
    }
}
