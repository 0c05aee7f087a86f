// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements and gaps of kernel monitors: `oh_kernel_event` of `kernel.h`. The assertions below hold
//! both sides to the same bytes.

use std::mem::{offset_of, size_of};

use crate::RawStream;

/// Words of the largest payload of a kernel stream.
pub const KERNEL_PAYLOAD_WORDS: usize = 7;

/// `oh_kernel_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "kernel.h describes the members")]
pub struct RawKernelEvent {
    pub stream: *const RawStream,
    pub sequence: u64,
    pub time_ns: u64,
    pub missed: u64,
    pub cause: u32,
    pub reserved: u32,
    pub payload: [u64; KERNEL_PAYLOAD_WORDS],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(RawKernelEvent, cause) == 32);
    assert!(offset_of!(RawKernelEvent, payload) == 40);
    assert!(size_of::<RawKernelEvent>() == 96);
};
