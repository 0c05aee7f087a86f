// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a reader has copied at once, and how it is handed out: one by one, or as runs.

use overhear_event::{Run, Ticks, Timestamp};
use zerocopy::IntoBytes as _;

use crate::layout::pair;
use crate::queue::ELEMENT_VOID;
use crate::reader::Copied;

/// Whole copies of neighbours, void elements among them.
pub(crate) struct Copies<'a> {
    /// The position of the first.
    pub(crate) first: u64,
    pub(crate) words: &'a mut [u64],
    /// Words from one to the next.
    pub(crate) stride: usize,
    /// Bytes behind the stamp that count.
    pub(crate) body: usize,
    /// Whether each names its writer, and may be void.
    pub(crate) is_signed: bool,
}

/// Elements that were copied and found whole, without a hole between them.
#[derive(Debug)]
pub struct CopiedRun<'a> {
    first: u64,
    words: &'a mut [u64],
    stride: usize,
    body: usize,
}

impl<'a> CopiedRun<'a> {
    /// The run with times for stamps; the function is called for each stamp, in the order of
    /// positions.
    #[inline(always)]
    pub fn timed(self, mut time_of: impl FnMut(Ticks) -> Timestamp) -> Run<'a> {
        for copy in self.words.chunks_exact_mut(self.stride) {
            copy[0] = time_of(Ticks::from_raw(copy[0])).as_monotonic_ns();
        }
        let stride = self.stride * size_of::<u64>();
        Run::new(self.first, self.words.as_bytes(), stride, self.body)
    }
}

fn is_void(copy: &[u64]) -> bool {
    copy[1] & pair(0, ELEMENT_VOID) != 0
}

impl Copies<'_> {
    /// Hands out the elements one by one, and returns how many are void.
    #[inline(always)]
    pub(crate) fn each(self, sink: &mut impl FnMut(Copied<'_>)) -> u64 {
        // The commonest element, stamp and one word, has a loop of its own, whose numbers the
        // compiler knows.
        match (self.stride, self.body) {
            (2, 8) if !self.is_signed => self.each_of(2, 8, false, sink),
            (stride, body) => self.each_of(stride, body, self.is_signed, sink),
        }
    }

    #[inline(always)]
    fn each_of(
        &self,
        stride: usize,
        body: usize,
        is_signed: bool,
        sink: &mut impl FnMut(Copied<'_>),
    ) -> u64 {
        let mut sequence = self.first;
        let mut void = 0;
        for copy in self.words.chunks_exact(stride) {
            if is_signed && is_void(copy) {
                void += 1;
            } else {
                sink(Copied {
                    sequence,
                    stamp: Ticks::from_raw(copy[0]),
                    payload: &copy[1..].as_bytes()[..body],
                });
            }
            sequence = sequence.wrapping_add(1);
        }
        void
    }

    /// Hands out runs of the elements, and returns how many are void: these end runs.
    #[inline(always)]
    pub(crate) fn runs(self, sink: &mut impl FnMut(CopiedRun<'_>)) -> u64 {
        let Self {
            mut first,
            words,
            stride,
            body,
            is_signed,
        } = self;
        let mut hand_out = |first, words| {
            sink(CopiedRun {
                first,
                words,
                stride,
                body,
            });
        };
        if !is_signed {
            hand_out(first, words);
            return 0;
        }
        let mut void = 0;
        let mut rest = words;
        while !rest.is_empty() {
            let mut copies = rest.chunks_exact(stride);
            let until_void = copies.position(is_void);
            let count = until_void.unwrap_or(rest.len() / stride);
            let (run, behind) = rest.split_at_mut(count * stride);
            if count > 0 {
                hand_out(first, run);
            }
            let passed = usize::from(until_void.is_some());
            first = first.wrapping_add((count + passed) as u64);
            void += passed as u64;
            rest = &mut behind[passed * stride..];
        }
        void
    }
}
