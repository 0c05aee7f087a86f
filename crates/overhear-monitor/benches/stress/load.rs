// SPDX-License-Identifier: MIT OR Apache-2.0
//! The load of the machine: threads that never sleep, files, short-lived processes, and real-time
//! threads that take every CPU for longer than a guaranteed latency.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::rings::{is_stopped, now};

/// Child processes that load the machine, ended with the value.
pub(crate) struct Load(Vec<Child>);

/// Loops without end; ends with its standard input, so that it never outlives the test.
const HOG: &str = "( while :; do :; done ) & hog=$!; read -r end; kill $hog";
/// Starts processes without end.
const FORKS: &str = "( while :; do /bin/true; done ) & storm=$!; read -r end; kill $storm";
/// Writes a file and forces it to the disk, again and again.
const FILES: &str = "place=$(mktemp -d); ( while :; do dd if=/dev/zero of=$place/file bs=64k \
                     count=16 conv=fsync 2>/dev/null; done ) & writer=$!; read -r end; kill $writer; \
                     wait $writer 2>/dev/null; rm -rf $place";

impl Load {
    /// Several hogs for each of `cpus`, a storm of forks and a writer of files.
    pub(crate) fn start(cpus: usize) -> Self {
        let scripts = std::iter::repeat_n(HOG, 3 * cpus).chain([FORKS, FILES]);
        let children = scripts.map(|script| {
            Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        Self(children.collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            if let Some(mut stdin) = child.stdin.take() {
                let _ = stdin.write_all(b"end\n");
            }
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// A thread for each CPU that takes it for some time, all at the same time, again and again, with
/// the lowest real-time priority: no thread of normal priority runs meanwhile.
pub(crate) struct RealTimeHogs {
    // For each thread, the sender whose drop ends it.
    stop: Vec<Sender<()>>,
    threads: Vec<JoinHandle<bool>>,
    real: bool,
}

impl RealTimeHogs {
    pub(crate) fn start(cpus: usize, busy: Duration, period: Duration) -> Self {
        let (ready, stop_signal) = channel();
        let mut ends = Vec::new();
        let threads = (0..cpus).map(|_| {
            let (end, stop) = channel();
            ends.push(end);
            let ready = ready.clone();
            std::thread::spawn(move || {
                let real = take_real_time_priority();
                let _ = ready.send(real);
                let period = period.as_nanos() as u64;
                while real && !is_stopped(&stop) {
                    let phase = now().as_monotonic_ns() % period;
                    if phase >= busy.as_nanos() as u64 {
                        std::thread::sleep(Duration::from_nanos(period - phase));
                    }
                }
                real
            })
        });
        let threads: Vec<_> = threads.collect();
        let real = stop_signal.iter().take(cpus).all(|real| real);
        Self {
            stop: ends,
            threads,
            real,
        }
    }

    /// Whether the kernel granted the priority.
    pub(crate) fn are_real(&self) -> bool {
        self.real
    }
}

impl Drop for RealTimeHogs {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn take_real_time_priority() -> bool {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the parameter, and changes the policy of the calling thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) == 0 }
}
