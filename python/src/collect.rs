// SPDX-License-Identifier: MIT OR Apache-2.0
//! An analysis that only collects: elements become rows of words, ready to be numpy arrays.
//!
//! A row is `{u64 sequence, u64 time_ns, payload}`, filled up with zeros to whole words. Each
//! stream has one block of rows, so a batch costs one copy of each element and one array per
//! stream. A gap is a row of six words, see [`GAP_WORDS`].

use std::collections::BTreeMap;
use std::sync::Arc;

use numpy::PyArray1;
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use pyo3::prelude::{Bound, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods, PyList, PyListMethods};
use zerocopy::IntoBytes;

use crate::schema;

/// Words of a row before its payload: sequence and time.
pub(crate) const HEAD_WORDS: usize = 2;

/// Words of a gap: stream, first, missed, from, to, index of the cause in [`GapCause::ALL`].
pub(crate) const GAP_WORDS: usize = 6;

/// The rows of one stream.
#[derive(Debug)]
struct Block {
    stream: StreamId,
    // Kept, so that no other schema can have its address: whoever has this very schema and the
    // same number is the same stream. A directory that begins anew gives its numbers anew.
    schema: Arc<TypeSchema>,
    descriptor: Arc<StreamDescriptor>,
    row_words: usize,
    words: Vec<u64>,
}

impl Block {
    #[inline]
    fn push(&mut self, element: &ElementView<'_>) {
        let start = self.words.len();
        let payload = element.payload;
        self.words
            .extend([element.sequence, element.time.as_monotonic_ns()]);
        // Most payloads are a few whole words; resizing and copying bytes would cost twice.
        let (whole, rest) = payload.split_at(payload.len() / 8 * 8);
        self.words.extend(
            whole
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())),
        );
        self.words.resize(start + self.row_words, 0);
        if !rest.is_empty() {
            let at = (start + HEAD_WORDS) * 8 + whole.len();
            let bytes = self.words.as_mut_slice().as_mut_bytes();
            bytes[at..at + rest.len()].copy_from_slice(rest);
        }
    }
}

/// Collects until it is emptied.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    blocks: Vec<Block>,
    // The newest block of each number; the one used last is looked at first, because elements of a
    // stream come in runs.
    by_stream: BTreeMap<StreamId, usize>,
    last: usize,
    elements: usize,
    gaps: Vec<u64>,
    advanced_to: Option<Timestamp>,
    // Streams that Python has not received yet.
    opened: Vec<Arc<StreamDescriptor>>,
}

impl Collector {
    /// Makes a block for a stream, if it has none, and returns its number. Python knows streams
    /// by the indices of their blocks, in the order in which they were opened.
    #[cold]
    pub(crate) fn open(&mut self, stream: &StreamDescriptor) -> usize {
        if let Some(index) = self.by_stream.get(&stream.id) {
            let block = &mut self.blocks[*index];
            if *block.descriptor == *stream {
                block.schema = Arc::clone(&stream.schema);
                return *index;
            }
        }
        let index = self.blocks.len();
        let descriptor = Arc::new(stream.clone());
        self.by_stream.insert(stream.id, index);
        self.blocks.push(Block {
            stream: stream.id,
            schema: Arc::clone(&stream.schema),
            descriptor: Arc::clone(&descriptor),
            row_words: HEAD_WORDS + (stream.schema.size() as usize).div_ceil(8),
            words: Vec::new(),
        });
        self.opened.push(descriptor);
        index
    }

    /// Elements collected.
    pub(crate) const fn elements(&self) -> usize {
        self.elements
    }

    /// Whether there is an element, a gap or a new stream. A mere advance is nothing yet.
    pub(crate) fn has_something(&self) -> bool {
        self.elements > 0 || !self.gaps.is_empty() || !self.opened.is_empty()
    }

    /// Takes the streams that were opened since the last time.
    pub(crate) fn take_opened(&mut self) -> Vec<Arc<StreamDescriptor>> {
        std::mem::take(&mut self.opened)
    }

    /// Takes what was collected; streams stay known.
    pub(crate) fn take(&mut self) -> Collected {
        let mut blocks = Vec::new();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if !block.words.is_empty() {
                // The next batch is likely to be as large as this one.
                let room = Vec::with_capacity(block.words.len());
                blocks.push((index, std::mem::replace(&mut block.words, room)));
            }
        }
        self.elements = 0;
        Collected {
            blocks,
            gaps: std::mem::take(&mut self.gaps),
            advanced_to: self.advanced_to.take(),
            opened: std::mem::take(&mut self.opened),
        }
    }
}

/// A gap as Python gets it.
pub(crate) fn gap_row(gap: &Gap) -> [u64; GAP_WORDS] {
    let cause = GapCause::ALL.iter().position(|cause| *cause == gap.cause);
    [
        u64::from(gap.stream.as_raw()),
        gap.first,
        gap.missed,
        gap.from.as_monotonic_ns(),
        gap.to.as_monotonic_ns(),
        cause.map_or(u64::MAX, |cause| cause as u64),
    ]
}

impl Analysis for Collector {
    #[inline]
    fn element(&mut self, element: &ElementView<'_>) {
        let stream = element.stream;
        let is_same = |block: &&Block| {
            block.stream == stream.id && Arc::ptr_eq(&block.schema, &stream.schema)
        };
        if self.blocks.get(self.last).filter(is_same).is_none() {
            let known = self.by_stream.get(&stream.id).copied();
            let known = known.filter(|index| is_same(&&self.blocks[*index]));
            self.last = known.unwrap_or_else(|| self.open(stream));
        }
        self.blocks[self.last].push(element);
        self.elements += 1;
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.open(stream);
        self.gaps.extend(gap_row(gap));
    }

    fn advance(&mut self, now: Timestamp) {
        self.advanced_to = Some(now);
    }
}

/// What was collected.
#[derive(Debug)]
pub(crate) struct Collected {
    blocks: Vec<(usize, Vec<u64>)>,
    gaps: Vec<u64>,
    advanced_to: Option<Timestamp>,
    opened: Vec<Arc<StreamDescriptor>>,
}

impl Collected {
    /// Nothing but an advance.
    pub(crate) const fn advance(advanced_to: Option<Timestamp>) -> Self {
        Self {
            blocks: Vec::new(),
            gaps: Vec::new(),
            advanced_to,
            opened: Vec::new(),
        }
    }

    /// As a dictionary of plain values and of arrays of words, which take over the memory.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let opened = PyList::empty(py);
        for stream in &self.opened {
            opened.append(schema::descriptor(py, stream)?)?;
        }
        let blocks = PyDict::new(py);
        for (index, words) in self.blocks {
            blocks.set_item(index, PyArray1::from_vec(py, words))?;
        }
        let plain = PyDict::new(py);
        plain.set_item("opened", opened)?;
        plain.set_item("blocks", blocks)?;
        plain.set_item("gaps", PyArray1::from_vec(py, self.gaps))?;
        plain.set_item(
            "advanced_to",
            self.advanced_to.map(Timestamp::as_monotonic_ns),
        )?;
        Ok(plain)
    }
}
