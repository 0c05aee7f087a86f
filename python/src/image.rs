// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream's memory from a file or a core dump.

use numpy::PyArray1;
use overhear_event::ClockId;
use overhear_stream::sync::Ordering;
use overhear_stream::{
    Geometry, Header, HeaderUntrusted, LayoutError, OwnedWords, Reader, Words, WriterKind,
};
use pyo3::prelude::{pyfunction, Bound, PyResult, Python};
use zerocopy::IntoBytes;

use crate::collect::HEAD_WORDS;
use crate::error::TraceError;

/// Reads a simple stream out of `image`, its memory. The geometry is the caller's: the header of
/// a memory that others could write is compared with it, not believed.
///
/// Returns rows of `{sequence, stamp, payload}` as words, and the number of overwritten elements.
#[pyfunction]
pub(crate) fn read_image<'py>(
    py: Python<'py>,
    image: &[u8],
    payload_bytes: u32,
    capacity: u64,
    clock: u32,
    stream: u64,
) -> PyResult<(Bound<'py, PyArray1<u64>>, u64)> {
    let geometry = Geometry::new(payload_bytes, capacity);
    let geometry = geometry.map_err(|error| TraceError::new_err(error.to_string()))?;
    let clock = ClockId::from_raw(clock)
        .ok_or_else(|| TraceError::new_err(format!("there is no clock of number {clock}")))?;
    let header = Header::new(&geometry, WriterKind::Simple, clock, stream);
    let (rows, missed) = read(image, geometry, &header).map_err(TraceError::new_err)?;
    Ok((PyArray1::from_vec(py, rows), missed))
}

fn read(image: &[u8], geometry: Geometry, header: &Header) -> Result<(Vec<u64>, u64), String> {
    let message = |error: LayoutError| error.to_string();
    let memory = OwnedWords::zeroed(geometry.words());
    if image.len() < geometry.bytes() {
        let (has, needs) = (image.len(), geometry.bytes());
        return Err(format!(
            "the image has {has} bytes, a stream of this capacity has {needs}; give the capacity \
             and the fields it was made with"
        ));
    }
    for (index, word) in image[..geometry.bytes()].chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        // Relaxed: this memory is not shared.
        memory.word(index).store(word, Ordering::Relaxed);
    }
    let found = HeaderUntrusted::load(&memory).map_err(message)?;
    found.check(header).map_err(message)?;
    let row_words = HEAD_WORDS + geometry.payload_bytes().div_ceil(8);
    let mut rows: Vec<u64> = Vec::new();
    let mut reader = Reader::from_start(memory, geometry).map_err(message)?;
    let report = reader
        .poll(usize::MAX, |element| {
            let start = rows.len();
            rows.resize(start + row_words, 0);
            let row = &mut rows[start..];
            row[0] = element.sequence;
            row[1] = element.stamp.as_raw();
            row[HEAD_WORDS..].as_mut_bytes()[..element.payload.len()]
                .copy_from_slice(element.payload);
        })
        .map_err(message)?;
    Ok((rows, report.missed))
}
