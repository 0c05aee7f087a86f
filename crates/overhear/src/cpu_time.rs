// SPDX-License-Identifier: MIT OR Apache-2.0
//! Execution times, for payloads that carry them.

use overhear_event::Nanos;
use rustix::time::{clock_gettime, ClockId};

/// The CPU time that the calling thread has used so far, by `CLOCK_THREAD_CPUTIME_ID`; in C,
/// `oh_thread_cpu_ns`. Elements of [GRTMon, section 5.1] carry such times. Enters the kernel, but
/// does not block.
#[must_use]
pub fn thread_cpu_time() -> Nanos {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    Nanos::from_ns(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::thread_cpu_time;

    #[test]
    fn thread_cpu_time_grows() {
        let before = thread_cpu_time();
        while thread_cpu_time() == before {}
        assert!(thread_cpu_time() > before);
    }
}
