// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time of processes, by their CPU clocks.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use overhear_event::Nanos;

use super::mode_times::ModeTimes;

/// CPU time of a changing set of processes since each was added. Threads that have ended are
/// counted, and a process that has ended keeps the time of its last reading.
#[derive(Debug, Default)]
pub(super) struct ProcessTimes {
    clocks: BTreeMap<u32, ProcessClock>,
    ended: Nanos,
    ended_modes: ModeTimes,
}

#[derive(Clone, Copy, Debug)]
struct ProcessClock {
    clock: libc::clockid_t,
    begin: Nanos,
    last: Nanos,
    modes: ModeTimes,
}

impl ProcessTimes {
    /// Adds a process that lives. Time before this call is not counted.
    pub(super) fn add(&mut self, pid: u32) {
        if self.clocks.contains_key(&pid) {
            return;
        }
        if let Some((clock, begin)) = clock_of(pid).and_then(|clock| Some((clock, read(clock)?))) {
            let last = begin;
            let process = ProcessClock {
                clock,
                begin,
                last,
                modes: ModeTimes::default(),
            };
            self.clocks.insert(pid, process);
        }
    }

    /// Reads all clocks; the sum. It never falls.
    pub(super) fn total(&mut self) -> Nanos {
        let (ended, ended_modes) = (&mut self.ended, &mut self.ended_modes);
        self.clocks.retain(|_, process| {
            let now = read(process.clock);
            if let Some(now) = now {
                process.last = process.last.max(now);
            } else {
                *ended = ended.plus(used(process));
                ended_modes.add(process.modes);
            }
            now.is_some()
        });
        let living = self.clocks.values().map(used);
        living.fold(self.ended, Nanos::plus)
    }
}

impl ProcessTimes {
    /// Reads the times by mode of all processes, since each began; the sums. They differ from the
    /// total by some clock ticks.
    pub(super) fn by_mode(&mut self) -> ModeTimes {
        let mut all = self.ended_modes;
        for process in self.clocks.values_mut() {
            if let Some(modes) = read_modes(process.clock) {
                process.modes = modes;
            }
            all.add(process.modes);
        }
        all
    }
}

/// The times of a process in user mode and in the kernel, by the clocks of the same process that
/// the clock tick drives.
fn read_modes(clock: libc::clockid_t) -> Option<ModeTimes> {
    /// The lowest bits of a clock of a process: which of its times it has.
    const WHICH: libc::clockid_t = 3;
    const BOTH_MODES: libc::clockid_t = 0;
    const USER_MODE: libc::clockid_t = 1;
    let [both, user] = [BOTH_MODES, USER_MODE].map(|which| read(clock & !WHICH | which));
    let [both, user] = [both?, user?].map(|time| time.as_ns() as f64);
    Some(ModeTimes {
        user_ns: user,
        system_ns: (both - user).max(0.0),
    })
}

fn used(process: &ProcessClock) -> Nanos {
    Nanos::from_ns(process.last.as_ns() - process.begin.as_ns())
}

fn clock_of(pid: u32) -> Option<libc::clockid_t> {
    let pid = libc::pid_t::try_from(pid).ok()?;
    let mut clock = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for the call; the result is read only after success.
    (unsafe { libc::clock_getcpuclockid(pid, clock.as_mut_ptr()) } == 0)
        // SAFETY: the call succeeded, so it has written the id.
        .then(|| unsafe { clock.assume_init() })
}

/// `None` after the process has been waited for.
fn read(clock: libc::clockid_t) -> Option<Nanos> {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: as in `clock_of`.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let ns = u64::try_from(time.tv_nsec).ok()?;
    Some(Nanos::from_ns(seconds * 1_000_000_000 + ns))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use overhear_event::Nanos;

    use super::ProcessTimes;

    #[test]
    fn ended_process_keeps_its_time() {
        // It uses CPU time until it is killed.
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut times = ProcessTimes::default();
        times.add(busy.id());
        while times.total() < Nanos::from_ms(20) {
            std::thread::yield_now();
        }
        let modes = times.by_mode();
        // Some clock ticks of at most 10 ms.
        assert!(modes.user_ns + modes.system_ns <= times.total().as_ns() as f64 + 40e6);
        busy.kill().unwrap();
        // A process that has ended and was not waited for has its clock.
        let before = times.total();
        busy.wait().unwrap();
        let after = times.total();
        assert!(after >= before);
        assert_eq!(times.total(), after);
        // Time from before is not counted, and one that is gone is not added.
        times.add(busy.id());
        times.add(std::process::id());
        assert!(times.total() >= after);
    }
}
