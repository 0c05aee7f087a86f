// SPDX-License-Identifier: MIT OR Apache-2.0
//! The idle executor: evaluates in the time in which the CPUs would be idle.
//!
//! The thread has the policy `SCHED_IDLE`: any other runnable thread is preferred, also the
//! observed program. What it has not evaluated waits in the buffers; when these are full, elements
//! are missed and counted. It processes data *speculatively at the idle time* [EPOS, section VI].

use overhear_event::Analysis;

use crate::clock::{Clock, SystemClock};
use crate::executor::best_effort;
use crate::monitor::Monitor;
use crate::scheduler::{run_idle, run_normally, KernelVerdict};

/// Runs rounds in the calling thread, in the idle time of its CPUs, until `go_on` returns false;
/// then the last one, with the usual policy if the kernel permits the return. An ordinary user
/// without a limit `RLIMIT_NICE` of 20 or more stays in the idle time.
///
/// # Errors
/// [`KernelVerdict`] if the kernel refuses the policy; then nothing has been evaluated.
pub fn idle(
    monitor: &mut Monitor,
    update: &mut dyn Analysis,
    mut go_on: impl FnMut(&mut Monitor) -> bool,
) -> Result<(), KernelVerdict> {
    run_idle()?;
    let now = || SystemClock.now();
    best_effort(monitor, update, now, std::thread::sleep, |monitor| {
        let goes_on = go_on(monitor);
        if !goes_on {
            // The last round follows: somebody waits for it.
            let _ = run_normally();
        }
        goes_on
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};

    use super::idle;
    use crate::monitor::Monitor;

    struct Nothing;

    impl Analysis for Nothing {
        fn element(&mut self, _: &ElementView<'_>) {}
        fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
        fn advance(&mut self, _: Timestamp) {}
    }

    /// The policy of the calling thread, by `/proc`: the 41st field of its `stat`.
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        rest.split(' ').nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn rounds_have_the_idle_policy() {
        std::thread::spawn(|| {
            let mut monitor = Monitor::new(Nanos::ZERO);
            let mut policies = Vec::new();
            idle(&mut monitor, &mut Nothing, |_| {
                policies.push(policy());
                policies.len() < 3
            })
            .unwrap();
            const SCHED_IDLE: u32 = 5;
            assert_eq!(policies, [SCHED_IDLE; 3]);
            // Ordinary users may have to stay.
            if rustix::process::geteuid().is_root() {
                assert_eq!(policy(), 0);
            }
        })
        .join()
        .unwrap();
    }
}
