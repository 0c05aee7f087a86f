// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency watchdog: measures how late the machine wakes threads, while other threads work.
//!
//! A thread per CPU sleeps until the next of equidistant times and measures its wake-up latency.
//! The threads have the highest fixed priority, so they are delayed like a deadline thread: by
//! interrupts, by sections of the kernel that cannot be preempted, and by a hypervisor that runs
//! another guest. They are also delayed by deadline threads, which is no lateness of the machine:
//! `allowed` is J plus the runtime of the expected deadline threads. The time that the hypervisor
//! took comes from `/proc/stat`, at its grain of 10 ms.
//!
//! A stall is measured if it covers a wake-up; up to a millisecond of it is not measured.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear_event::{Nanos, Timestamp};

use crate::clock::{sleep_until, Clock, SystemClock};
use crate::executor::{Breach, BreachCause};
use crate::scheduler::{allowed_cpus, run_on, take_highest_priority};

/// Time between two wake-ups.
const PERIOD: Nanos = Nanos::from_ms(1);
/// Time between two readings of `/proc/stat`.
const STEAL_PERIOD: Duration = Duration::from_millis(100);

/// Why a watchdog cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WatchdogError {
    /// The priority is refused.
    #[error("a latency watchdog needs a real-time priority: give the command cap_sys_nice, or raise RLIMIT_RTPRIO")]
    NotPermitted,
    /// Its threads cannot be started.
    #[error("a latency watchdog cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The measurements on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuLateness {
    /// The CPU.
    pub cpu: u32,
    /// Wake-ups.
    pub wake_ups: u64,
    /// The largest latency.
    pub worst: Nanos,
    /// The time of the largest latency.
    pub worst_at: Timestamp,
    /// CPU time that the hypervisor took.
    pub stolen: Nanos,
}

/// The results of a watchdog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchdogStats {
    /// One for each CPU.
    pub cpus: Vec<CpuLateness>,
    /// The first value above the allowed one, for each CPU and cause.
    pub breaches: Vec<Breach>,
}

impl WatchdogStats {
    /// The largest latency on any CPU.
    #[must_use]
    pub fn worst(&self) -> Nanos {
        let worst = self.cpus.iter().map(|cpu| cpu.worst).max();
        worst.unwrap_or_default()
    }

    /// CPU time that the hypervisor took of all CPUs.
    #[must_use]
    pub fn stolen(&self) -> Nanos {
        let stolen = self.cpus.iter().map(|cpu| cpu.stolen);
        stolen.fold(Nanos::ZERO, Nanos::plus)
    }

    /// Whether no value was above the allowed one.
    #[must_use]
    pub fn is_within(&self) -> bool {
        self.breaches.is_empty()
    }
}

/// Threads that measure, until [`LatencyWatchdog::stop`].
#[derive(Debug)]
pub struct LatencyWatchdog {
    shared: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<CpuResult>>,
    steal: Option<JoinHandle<Stolen>>,
}

/// The time stolen of each CPU, and the breaches.
type Stolen = (Vec<(u32, Nanos)>, Vec<Breach>);

/// The results of one thread.
#[derive(Debug)]
struct CpuResult {
    lateness: CpuLateness,
    first: Option<Breach>,
}

impl LatencyWatchdog {
    /// Starts measuring on every CPU that the calling thread may use. The first latency above
    /// `allowed` is recorded with its time.
    ///
    /// # Errors
    /// [`WatchdogError`]; then nothing runs.
    pub fn start(allowed: Nanos) -> Result<Self, WatchdogError> {
        let mut watchdog = Self {
            shared: Arc::default(),
            threads: Vec::new(),
            steal: None,
        };
        let cpus = allowed_cpus();
        for &cpu in &cpus {
            let shared = Arc::clone(&watchdog.shared);
            let (ready, started) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("oh-watchdog-{cpu}"))
                .spawn(move || {
                    let begun = run_on(cpu).map_err(|error| error.raw_os_error());
                    let begun = begun.is_ok() && take_highest_priority() == Ok(());
                    // `start` waits for this answer.
                    let _ = ready.send(begun);
                    measure(cpu, allowed, &shared.0, begun)
                })?;
            watchdog.threads.push(thread);
            if !started.recv().unwrap_or(false) {
                return Err(WatchdogError::NotPermitted);
            }
        }
        let shared = Arc::clone(&watchdog.shared);
        let steal = std::thread::Builder::new()
            .name("oh-steal".to_string())
            .spawn(move || measure_steal(&cpus, allowed, &shared))?;
        watchdog.steal = Some(steal);
        Ok(watchdog)
    }

    /// Ends the threads and returns their results.
    #[must_use]
    pub fn stop(mut self) -> WatchdogStats {
        self.end()
    }

    fn end(&mut self) -> WatchdogStats {
        *lock(&self.shared.0) = true;
        self.shared.1.notify_all();
        let mut seen = WatchdogStats::default();
        for thread in self.threads.drain(..) {
            if let Ok(one) = thread.join() {
                seen.cpus.push(one.lateness);
                seen.breaches.extend(one.first);
            }
        }
        if let Some((stolen, breaches)) = self.steal.take().and_then(|t| t.join().ok()) {
            for (cpu, stolen) in stolen {
                let found = seen.cpus.iter_mut().find(|found| found.cpu == cpu);
                if let Some(found) = found {
                    found.stolen = stolen;
                }
            }
            seen.breaches.extend(breaches);
        }
        seen.breaches.sort_by_key(|breach| breach.from);
        seen
    }
}

impl Drop for LatencyWatchdog {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread of one CPU.
fn measure(cpu: u32, allowed: Nanos, stop: &Mutex<bool>, begun: bool) -> CpuResult {
    let mut seen = CpuResult {
        lateness: CpuLateness {
            cpu,
            ..CpuLateness::default()
        },
        first: None,
    };
    let mut due = SystemClock.now();
    let mut stopped = !begun;
    while !stopped {
        due = due.plus(PERIOD).max(SystemClock.now());
        sleep_until(due);
        note(&mut seen, due, SystemClock.now(), allowed);
        // If `stop` holds it, the next wake-up reads it.
        stopped = stop.try_lock().is_ok_and(|stop| *stop);
    }
    seen
}

fn note(seen: &mut CpuResult, due: Timestamp, now: Timestamp, allowed: Nanos) {
    let late = now.since(due);
    seen.lateness.wake_ups += 1;
    if late > seen.lateness.worst {
        seen.lateness.worst = late;
        seen.lateness.worst_at = now;
    }
    if late > allowed {
        let cpu = seen.lateness.cpu;
        seen.first.get_or_insert(Breach {
            from: due,
            at: now,
            cause: BreachCause::Machine { cpu, late },
        });
    }
}

/// The thread that reads /proc/stat: what was stolen of each CPU, and the first time for each that
/// it was more than allowed between two looks.
fn measure_steal(cpus: &[u32], allowed: Nanos, (stop, wake): &(Mutex<bool>, Condvar)) -> Stolen {
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let read = || parse_steal(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
    let begin = read();
    let (mut last, mut last_at) = (begin.clone(), SystemClock.now());
    let mut breaches: Vec<Breach> = Vec::new();
    let mut stopped = false;
    while !stopped {
        let (guard, _) = wake
            .wait_timeout_while(lock(stop), STEAL_PERIOD, |stop| !*stop)
            .unwrap_or_else(PoisonError::into_inner);
        stopped = *guard;
        drop(guard);
        let (now, at) = (read(), SystemClock.now());
        for &cpu in cpus {
            let stolen = ticks(&now, cpu).saturating_sub(ticks(&last, cpu));
            let stolen = Nanos::from_ns(stolen.saturating_mul(tick));
            let known = |breach: &Breach| matches!(breach.cause, BreachCause::Stolen { cpu: c, .. } if c == cpu);
            if stolen > allowed && !breaches.iter().any(known) {
                breaches.push(Breach {
                    from: last_at,
                    at,
                    cause: BreachCause::Stolen { cpu, stolen },
                });
            }
        }
        (last, last_at) = (now, at);
    }
    let stolen = cpus.iter().map(|&cpu| {
        let ticks = ticks(&last, cpu).saturating_sub(ticks(&begin, cpu));
        (cpu, Nanos::from_ns(ticks.saturating_mul(tick)))
    });
    (stolen.collect(), breaches)
}

fn ticks(steal: &[(u32, u64)], cpu: u32) -> u64 {
    let found = steal.iter().find(|(found, _)| *found == cpu);
    found.map_or(0, |(_, ticks)| *ticks)
}

/// The eighth number of each line `cpuN` (proc(5)).
fn parse_steal(stat: &str) -> Vec<(u32, u64)> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = words.next()?.parse().ok()?;
        Some((cpu, words.nth(7)?.parse().ok()?))
    };
    // The first line is the sum over all CPUs: its first word is no number of a CPU.
    stat.lines()
        .filter(|line| !line.starts_with("cpu "))
        .filter_map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::{note, parse_steal, CpuLateness, CpuResult, LatencyWatchdog, WatchdogError};
    use crate::executor::BreachCause;

    #[test]
    fn steal_is_the_eighth_number_of_a_cpu() {
        let stat = "cpu  1 2 3 4 5 6 7 99 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n\
                    cpu11 0 0 0 0 0 0 0 42 0 0\nintr 1 2 3\n";
        assert_eq!(parse_steal(stat), [(0, 8), (11, 42)]);
    }

    #[test]
    fn first_and_the_worst_are_kept() {
        let at = Timestamp::from_monotonic_ns;
        let mut seen = CpuResult {
            lateness: CpuLateness {
                cpu: 3,
                ..CpuLateness::default()
            },
            first: None,
        };
        for (due, now) in [(100, 110), (200, 250), (300, 400), (500, 540)] {
            note(&mut seen, at(due), at(now), Nanos::from_ns(30));
        }
        assert_eq!(seen.lateness.worst, Nanos::from_ns(100));
        assert_eq!(
            (seen.lateness.worst_at, seen.lateness.wake_ups),
            (at(400), 4)
        );
        let first = seen.first.unwrap();
        assert_eq!((first.from, first.at), (at(200), at(250)));
        let late = Nanos::from_ns(50);
        assert_eq!(first.cause, BreachCause::Machine { cpu: 3, late });
    }

    #[test]
    fn every_cpu_has_a_thread_and_they_end() {
        // No machine is on time to the nanosecond, so each names an instant.
        let watchdog = match LatencyWatchdog::start(Nanos::ZERO) {
            Ok(watchdog) => watchdog,
            Err(error @ WatchdogError::NotPermitted) => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let cpus = crate::scheduler::allowed_cpus();
        let seen = watchdog.stop();
        let named: Vec<u32> = seen.cpus.iter().map(|cpu| cpu.cpu).collect();
        assert_eq!(named, cpus);
        assert!(seen.cpus.iter().all(|cpu| cpu.wake_ups > 0));
        assert!(seen.worst() > Nanos::ZERO && !seen.is_within());
    }
}
