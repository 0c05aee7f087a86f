// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks memory before it is used, and counts page faults as the proof.

use rustix::mm::{mlockall, MlockAllFlags};

/// How much stack is touched before the start: far more than a round takes.
const STACK_BYTES: usize = 256 << 10;

/// Locks all current and future memory of the process, and touches the calling thread's stack. The
/// memory stays locked, because other threads may rely on it.
///
/// # Errors
/// The kernel's error: `EPERM` or `ENOMEM` where `RLIMIT_MEMLOCK` is too low.
pub(crate) fn lock() -> Result<(), rustix::io::Errno> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    touch_stack();
    Ok(())
}

/// Touches what the main thread's stack has not grown to yet; other threads have theirs mapped.
#[inline(never)]
fn touch_stack() {
    let stack = [0_u8; STACK_BYTES];
    std::hint::black_box(&stack);
}

/// Page faults of the calling thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFaults {
    /// Served without a disk.
    pub minor: u64,
    /// Waited for a disk.
    pub major: u64,
}

impl PageFaults {
    /// Those of the calling thread so far.
    #[must_use]
    pub fn so_far() -> Self {
        // SAFETY: a struct of plain numbers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such struct there.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        if result != 0 {
            return Self::default();
        }
        Self {
            minor: usage.ru_minflt.unsigned_abs(),
            major: usage.ru_majflt.unsigned_abs(),
        }
    }

    /// Those since `earlier`.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            minor: self.minor.saturating_sub(earlier.minor),
            major: self.major.saturating_sub(earlier.major),
        }
    }
}
