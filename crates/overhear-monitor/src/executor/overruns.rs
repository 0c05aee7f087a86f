// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overruns reported by the kernel: a `SIGXCPU` for each job that it stopped because its runtime
//! was used up.
//!
//! The signal comes with the kernel's tick, to the process, without the element; if the runtime is
//! shorter than a tick it may not come at all. So it only confirms the overruns that the executor's
//! own clock finds after each evaluation: it is counted, and decides nothing.

use std::io;
use std::sync::Arc;

use overhear_stream::sync::SignalCount;
use signal_hook::consts::SIGXCPU;
use signal_hook::low_level::{register, unregister};
use signal_hook::SigId;

/// Counts the signals of this process for as long as it lives. Afterwards they are ignored: one
/// that is under way would otherwise end the process.
#[derive(Debug)]
pub(crate) struct Overruns {
    handler: SigId,
    count: Arc<SignalCount>,
}

impl Overruns {
    pub(crate) fn listen() -> io::Result<Self> {
        let count: Arc<SignalCount> = Arc::default();
        let counted = Arc::clone(&count);
        // SAFETY: the handler counts and does nothing else, which is async-signal-safe.
        let handler = unsafe { register(SIGXCPU, move || counted.add_one()) }?;
        Ok(Self { handler, count })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }
}

impl Drop for Overruns {
    fn drop(&mut self) {
        unregister(self.handler);
    }
}

#[cfg(test)]
mod tests {
    use overhear_admission::DeadlineReservation;
    use overhear_event::Nanos;

    use super::Overruns;
    use crate::clock::{Clock, SystemClock};
    use crate::scheduler::ReservedThread;

    #[test]
    fn kernel_confirms_an_overrun() {
        let overruns = Overruns::listen().unwrap();
        assert_eq!(overruns.count(), 0);
        let ms = Nanos::from_ms;
        let reservation = DeadlineReservation {
            // Longer than the tick of every kernel.
            runtime: ms(20),
            deadline: ms(100),
            period: ms(100),
        };
        let reserved = match ReservedThread::reserve(reservation, true) {
            Ok(reserved) => reserved,
            Err(verdict) => {
                println!("skipped: the kernel reserves no CPU time here ({verdict:?})");
                return;
            }
        };
        // A job without end: its runtime is used up sooner or later, again and again.
        while overruns.count() == 0 && SystemClock.cpu_time() < ms(2_000) {
            std::hint::black_box(());
        }
        drop(reserved);
        assert!(overruns.count() > 0);
    }
}
