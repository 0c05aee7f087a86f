// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of writers a stream can have.

use core::fmt;

use serde::{Deserialize, Serialize};

/// The protocol by which a sensor's elements are written (`docs/abi/stream-layout.md`, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriterKind {
    /// One thread at a time, wait-free.
    #[default]
    Simple,
    /// A pool of lanes, one per thread.
    Laned,
    /// The lock-free queue with an index array.
    Concurrent,
    /// A BPF program, one ring per CPU.
    Kernel,
}

impl WriterKind {
    /// The number in a stream's header.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::Simple => 1,
            Self::Laned => 2,
            Self::Concurrent => 3,
            Self::Kernel => 4,
        }
    }

    /// The name in tables and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::Laned => "laned",
            Self::Concurrent => "concurrent",
            Self::Kernel => "kernel",
        }
    }

    /// Whether elements carry the thread that wrote them: several can.
    #[must_use]
    pub const fn names_threads(self) -> bool {
        matches!(self, Self::Laned | Self::Concurrent)
    }
}

impl fmt::Display for WriterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
