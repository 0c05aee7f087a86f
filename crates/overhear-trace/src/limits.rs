// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of a recording on the disk: a rate, and a size.

use overhear_budget::ByteRate;

use crate::error::WriteError;

/// The limits of a recording. The default has none.
///
/// What a limit leaves out is a gap of the cause [`Disk`](overhear_event::GapCause::Disk), with its
/// exact number of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskLimits {
    /// In any second of trace time, packets have at most this number of bytes. Streams with little
    /// data are written in full, large ones share the rest. The documents, and the gaps that are
    /// pending at the end, are written in addition.
    pub rate: Option<ByteRate>,
    /// All files of the folder together take at most this number of bytes on the disk, at any
    /// time: the oldest packets of all streams are removed.
    pub max_bytes: Option<u64>,
}

impl DiskLimits {
    /// The smallest size: it has room for documents, and for 16 parts with some packets each.
    pub const LEAST_BYTES: u64 = 1 << 20;
    /// The smallest rate in bytes per second: it has room for some packets with the largest
    /// elements.
    pub const LEAST_RATE: u64 = 16 << 10;

    /// Whether there is no limit.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.rate.is_none() && self.max_bytes.is_none()
    }

    /// Checks that the limits have room for elements.
    ///
    /// # Errors
    /// [`WriteError`] with the minimum.
    pub fn check(&self) -> Result<(), WriteError> {
        if let Some(rate) = self.rate.map(ByteRate::as_bytes_per_second) {
            if rate < Self::LEAST_RATE as f64 {
                let rate = rate as u64;
                return Err(WriteError::TooSlow { rate });
            }
        }
        match self.max_bytes {
            Some(max_bytes) if max_bytes < Self::LEAST_BYTES => {
                Err(WriteError::TooSmall { max_bytes })
            }
            _ => Ok(()),
        }
    }
}
