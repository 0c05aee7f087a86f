// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packets in the file of a stream.

use std::ops::Range;

/// The range of each packet.
pub(crate) fn packets(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut begin = 0;
    while begin < bytes.len() {
        let bits = u64::from_ne_bytes(bytes[begin + 40..][..8].try_into().unwrap());
        let end = begin + (bits / 8) as usize;
        all.push(begin..end);
        begin = end;
    }
    all
}
