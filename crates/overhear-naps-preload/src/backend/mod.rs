// SPDX-License-Identifier: MIT OR Apache-2.0
//! How accesses to memory are found, by what the kernel offers.
//!
//! The contract of a back end:
//!
//! 1. It changes nothing that the program can notice but time: system calls that read or write
//!    watched memory succeed, and no signal is sent.
//! 2. After `protect` returns, each access to the range is returned by `accesses`, or its time is
//!    not covered by `verified_ns`. An access may be returned that did not happen (for example
//!    after the kernel looked for memory to reclaim).
//! 3. It is used by the handler thread alone.
//!
//! `mprotect` with a handler of SIGSEGV, which the paper uses, is not among the back ends: a system
//! call that gets protected memory fails with EFAULT there, so it breaks rule 1.

mod accessed;
mod guarding;
mod moving;
mod uffd;

use accessed::Accessed;
use guarding::Guarding;
use moving::Moving;

use crate::table;

/// An access to a protected range, or to a range that was protected shortly before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) address: usize,
    /// Instruction, if known.
    pub(crate) at: Option<u64>,
    /// The range was not accessed from `protect` until this time.
    pub(crate) idle_until_ns: u64,
}

/// A back end that works on this machine for this process.
pub(crate) enum Backend {
    Guarding(Guarding),
    Moving(Moving),
    Accessed(Accessed),
}

impl Backend {
    /// The best back end, or the one with this name, and why no better one. That a kernel is older
    /// than Linux 7.3 is no reason that a user could remove: it is stated if RWP was asked for.
    pub(crate) fn choose(name: &str) -> (Option<Self>, String) {
        type Open = fn() -> Result<Backend, String>;
        let all: [(&str, Open); 3] = [
            ("rwp", || Guarding::open().map(Self::Guarding)),
            ("move", || Moving::open().map(Self::Moving)),
            ("accessed", || Accessed::open().map(Self::Accessed)),
        ];
        let mut reasons = String::new();
        for (one, open) in all {
            if name != "auto" && name != one {
                continue;
            }
            match open() {
                Ok(backend) => return (Some(backend), reasons),
                Err(_) if one != name && one == "rwp" => {}
                Err(reason) => {
                    if !reasons.is_empty() {
                        reasons.push_str("; ");
                    }
                    reasons.push_str(one);
                    reasons.push_str(": ");
                    reasons.push_str(&reason);
                }
            }
        }
        (None, reasons)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Guarding(_) => "rwp",
            Self::Moving(_) => "move",
            Self::Accessed(_) => "accessed",
        }
    }

    /// State of the record of a protected range: a thread that accesses it waits for the handler.
    /// None: it does not wait, and the record stays LIVE.
    pub(crate) fn protected_state(&self) -> Option<u32> {
        match self {
            Self::Guarding(_) => Some(table::GUARDED),
            Self::Moving(_) => Some(table::AWAY),
            Self::Accessed(_) => None,
        }
    }

    /// Starts to watch a range.
    pub(crate) fn protect(&mut self, address: usize, bytes: usize) -> bool {
        match self {
            Self::Guarding(backend) => backend.protect(address, bytes),
            Self::Moving(backend) => backend.protect(address, bytes),
            Self::Accessed(backend) => backend.protect(address, bytes),
        }
    }

    /// Makes a range accessible, if `protect` makes it inaccessible.
    pub(crate) fn unprotect(&mut self, address: usize, bytes: usize) {
        match self {
            Self::Guarding(backend) => backend.unprotect(address, bytes),
            Self::Moving(backend) => backend.unprotect(address, bytes),
            Self::Accessed(_) => {}
        }
    }

    /// Lets a thread run that waits for this address.
    pub(crate) fn wake(&self, address: usize, bytes: usize) {
        match self {
            Self::Guarding(backend) => backend.wake(address, bytes),
            Self::Moving(backend) => backend.wake(address, bytes),
            Self::Accessed(_) => {}
        }
    }

    /// Waits for accesses until the timeout, and returns them. Returns until when ranges without
    /// an access are known to be idle.
    pub(crate) fn accesses(&mut self, timeout_ns: u64, found: &mut Vec<Access>) -> u64 {
        match self {
            Self::Guarding(backend) => backend.accesses(timeout_ns, found),
            Self::Moving(backend) => backend.accesses(timeout_ns, found),
            Self::Accessed(backend) => backend.accesses(timeout_ns),
        }
    }

    /// Looks for accesses to these ranges, if the back end has to look. Returns until when ranges
    /// without an access are known to be idle; none if accesses come by themselves.
    pub(crate) fn survey(
        &mut self,
        ranges: &std::collections::BTreeMap<usize, usize>,
        found: &mut Vec<Access>,
    ) -> Option<u64> {
        match self {
            Self::Guarding(_) | Self::Moving(_) => None,
            Self::Accessed(backend) => Some(backend.survey(ranges, found)),
        }
    }

    /// Address whose reading wakes the handler, if it does not wait for a word.
    pub(crate) fn doorbell(&self) -> usize {
        match self {
            Self::Guarding(backend) => backend.doorbell(),
            Self::Moving(backend) => backend.doorbell(),
            Self::Accessed(_) => 0,
        }
    }
}

/// Sleeps until the timeout or [`ring_bell`].
pub(crate) fn wait_for_bell(timeout_ns: u64) {
    accessed::wait_for_bell(timeout_ns);
}

/// Wakes a handler that waits for a word.
pub(crate) fn ring_bell() {
    // Relaxed: the bell carries no data.
    accessed::BELL.store(1, overhear_stream::sync::Ordering::Relaxed);
    crate::sys::futex_wake(&accessed::BELL);
}
