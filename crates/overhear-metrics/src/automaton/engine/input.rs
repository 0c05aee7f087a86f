// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoded inputs of one batch.
//!
//! Decoding is shared by all metrics; each metric then [steps](super::fast_path) through the
//! result.

use overhear_event::{ElementView, Timestamp};

use crate::automaton::compile::decoded::{Decoded, MetricSet};

/// A part of an element: one task and one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartRef {
    /// Index of the element in the current batch.
    pub(super) element: u32,
    /// Part id: index in [`Parts`](crate::automaton::compile::part::Parts).
    pub(super) part: u32,
}

/// Largest number of parts per element that is written without a branch.
pub(super) const MAX_INLINE_PARTS: usize = 3;
/// The same number as long as no element has had more parts than this.
pub(super) const INLINE_PARTS: usize = 2;

/// Writes the first `COUNT` parts of element `at` to `out[from..]`, unconditionally (no branch).
/// Returns true if the element has more parts; the caller then uses [`push_all_parts`].
#[inline(always)]
pub(super) fn push_parts<const COUNT: usize>(
    decoded: &Decoded,
    at: usize,
    out: &mut [PartRef],
    from: usize,
) -> bool {
    for (out, part) in out[from..from + COUNT].iter_mut().zip(decoded.parts.0..) {
        let element = at as u32;
        *out = PartRef { element, part };
    }
    decoded.count() > COUNT
}

/// Writes all parts of element `at` to `out[from..]`.
#[inline(never)]
pub(super) fn push_all_parts(decoded: &Decoded, at: usize, out: &mut [PartRef], from: usize) {
    let out = &mut out[from..from + decoded.count()];
    for (out, part) in out.iter_mut().zip(decoded.parts.0..) {
        let element = at as u32;
        *out = PartRef { element, part };
    }
}

/// The input of one task for plain metrics: a part of an element with its task and time resolved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskInput {
    /// Time of the input; earlier than the element's time if it is backdated.
    pub(super) time: Timestamp,
    /// Slot of the task.
    pub(super) slot: u32,
    /// Part id.
    pub(super) part: u32,
    /// Index of the element in the current batch.
    pub(super) element: u32,
}

/// The inputs of the current batch, in the order of the elements.
#[derive(Debug, Default)]
pub(super) struct InputBuffer {
    /// The first `count` entries are valid; the rest is spare.
    inputs: Vec<TaskInput>,
    count: usize,
    has_backdated: bool,
}

impl InputBuffer {
    /// Makes room for `most` inputs.
    pub(super) fn reserve(&mut self, most: usize) {
        // One more: `InputWriter::push` writes past the end before it counts.
        self.inputs.resize(most + 1, TaskInput::default());
    }

    /// Number of inputs for which there is room.
    pub(super) fn capacity(&self) -> usize {
        self.inputs.len()
    }

    /// Continues after the inputs that are there.
    pub(super) fn writer(&mut self) -> InputWriter<'_> {
        InputWriter {
            inputs: &mut self.inputs,
            count: self.count,
            committed: &mut self.count,
            has_backdated: &mut self.has_backdated,
        }
    }

    /// Ends the batch and empties the buffer. `first` is the ordinal of the first element,
    /// `affected` the metrics that the inputs concern.
    pub(super) fn finish<'a>(
        &'a mut self,
        elements: &'a [ElementView<'a>],
        first: u64,
        affected: MetricSet,
    ) -> InputBatch<'a> {
        InputBatch {
            is_single: affected.all_single(),
            inputs: &self.inputs[..std::mem::take(&mut self.count)],
            has_backdated: std::mem::take(&mut self.has_backdated),
            elements,
            first,
        }
    }
}

/// Appends to an [`InputBuffer`]. What was pushed counts after [`InputWriter::commit`].
pub(super) struct InputWriter<'a> {
    inputs: &'a mut [TaskInput],
    count: usize,
    committed: &'a mut usize,
    has_backdated: &'a mut bool,
}

impl InputWriter<'_> {
    /// Appends an input if `counts`: it is always written, and only the count depends on that (no
    /// branch).
    #[inline(always)]
    pub(super) fn push(&mut self, input: TaskInput, counts: bool) {
        self.inputs[self.count] = input;
        self.count += usize::from(counts);
    }

    /// Records whether an input is earlier than its element.
    #[inline(always)]
    pub(super) fn mark_backdated(&mut self, is_backdated: bool) {
        *self.has_backdated |= is_backdated;
    }

    /// Makes the pushed inputs part of the buffer.
    pub(super) fn commit(self) {
        *self.committed = self.count;
    }
}

/// The inputs of a finished batch.
#[derive(Clone, Copy)]
pub(super) struct InputBatch<'a> {
    pub(super) inputs: &'a [TaskInput],
    /// Whether an input is earlier than its element.
    pub(super) has_backdated: bool,
    /// Whether each input is one symbol per metric, and none of them a fallback.
    pub(super) is_single: bool,
    /// The elements of the batch; not all of them need have an input.
    pub(super) elements: &'a [ElementView<'a>],
    /// Ordinal of the first element.
    pub(super) first: u64,
}

impl<'a> InputBatch<'a> {
    /// The element of an input.
    #[inline(always)]
    pub(super) fn element(&self, input: &TaskInput) -> &'a ElementView<'a> {
        &self.elements[input.element as usize]
    }

    /// The ordinal of that element: its number among all elements so far, from 1 on.
    #[inline(always)]
    pub(super) const fn ordinal(&self, input: &TaskInput) -> u64 {
        self.first + input.element as u64
    }
}
