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
mod moving;

use accessed::Accessed;
use moving::Moving;

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
    Moving(Moving),
    Accessed(Accessed),
}

impl Backend {
    /// The best back end, or the one with this name, and why no better one.
    pub(crate) fn choose(name: &str) -> (Option<Self>, String) {
        let mut reasons = String::new();
        if name != "accessed" {
            match Moving::open() {
                Ok(backend) => return (Some(Self::Moving(backend)), reasons),
                Err(reason) => reasons = format!("move: {reason}"),
            }
        }
        if name != "move" {
            match Accessed::open() {
                Ok(backend) => return (Some(Self::Accessed(backend)), reasons),
                Err(reason) => {
                    if !reasons.is_empty() {
                        reasons.push_str("; ");
                    }
                    reasons.push_str("accessed: ");
                    reasons.push_str(&reason);
                }
            }
        }
        (None, reasons)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Moving(_) => "move",
            Self::Accessed(_) => "accessed",
        }
    }

    /// Whether protection takes the pages away from the program, so that the record has the state
    /// AWAY.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::Moving(_))
    }

    /// Starts to watch a range.
    pub(crate) fn protect(&mut self, address: usize, bytes: usize) -> bool {
        match self {
            Self::Moving(backend) => backend.protect(address, bytes),
            Self::Accessed(backend) => backend.protect(address, bytes),
        }
    }

    /// Gives the pages of a range back, if `protect` takes them away.
    pub(crate) fn unprotect(&mut self, address: usize, bytes: usize) {
        if let Self::Moving(backend) = self {
            backend.unprotect(address, bytes);
        }
    }

    /// Lets a thread run that waits for this address.
    pub(crate) fn wake(&mut self, address: usize, bytes: usize) {
        if let Self::Moving(backend) = self {
            backend.wake(address, bytes);
        }
    }

    /// Waits for accesses until the timeout, and returns them. Returns until when ranges without
    /// an access are known to be idle.
    pub(crate) fn accesses(&mut self, timeout_ns: u64, found: &mut Vec<Access>) -> u64 {
        match self {
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
            Self::Moving(_) => None,
            Self::Accessed(backend) => Some(backend.survey(ranges, found)),
        }
    }

    /// Address whose reading wakes the handler, if it does not wait for a word.
    pub(crate) fn doorbell(&self) -> usize {
        match self {
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
