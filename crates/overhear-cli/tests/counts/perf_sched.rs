// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wake-ups: compared with `perf sched record` of the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use overhear_event::kernel::Wake;
use overhear_event::{Nanos, Timestamp};

use crate::harness::{
    cpu_lock, has_tool, is_root, workload, Backend, KernelEvents, Overhear, OVERHEAR,
};
use crate::witness::{keeps, Doubt, Excuse, Witness, LATE};

/// Wake-ups of one kind of one thread, ascending.
type Times = BTreeMap<(u32, u32), Vec<Timestamp>>;

/// Two observations with a larger distance do not belong to one wake-up.
pub(crate) const WINDOW: Nanos = Nanos::from_ms(1);
/// Nearly all distances are below this.
pub(crate) const CLOSE: Nanos = Nanos::from_us(20);

/// Runs the rest of the command line in a mount namespace of its own, and mounts tracefs there if
/// it is not mounted: perf needs it, and the machine is not changed.
const WITH_TRACEFS: &str = "test -e /sys/kernel/tracing/events || \
    mount -t tracefs nodev /sys/kernel/tracing || exit 77; exec \"$@\"";

fn with_tracefs(program: &[&str]) -> Vec<OsString> {
    let front = ["unshare", "--mount", "sh", "-c", WITH_TRACEFS, "sh"];
    front.iter().chain(program).map(OsString::from).collect()
}

/// The command line before that of `overhear`: perf records all CPUs from before it starts until
/// after it has ended. These events are recorded in addition to those of `perf sched`.
pub(crate) fn recorded_by_perf(file: &Path, events: &[&str]) -> Vec<OsString> {
    let mut front = with_tracefs(&["perf", "sched", "record", "-k", "mono", "-a"]);
    // A ring of 32 MiB per CPU: perf must get a CPU before its ring is full, too.
    front.extend(["-m", "8192"].map(OsString::from));
    for event in events {
        front.extend(["-e", event].map(OsString::from));
    }
    front.extend(["-o".into(), file.into(), "--".into(), OVERHEAR.into()]);
    front
}

/// Whether perf can record scheduling here; prints "skipped" if not.
pub(crate) fn can_record() -> bool {
    if !has_tool("perf") || !has_tool("unshare") {
        return false;
    }
    if !is_root() {
        println!("skipped: recording all CPUs needs root");
        return false;
    }
    let words = with_tracefs(&[
        "perf",
        "sched",
        "record",
        "-k",
        "mono",
        "-o",
        "/dev/null",
        "true",
    ]);
    let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        println!("skipped: perf sched record does not work ({})", why.trim());
    }
    output.status.success()
}

/// Events that perf has recorded.
#[derive(Default)]
pub(crate) struct PerfRecording {
    wakes: Times,
    /// CPUs that became idle, and CPUs with any recorded event of the idle task.
    idle: BTreeSet<u32>,
    idle_recorded: BTreeSet<u32>,
}

impl PerfRecording {
    /// A line is `TID [CPU] SECONDS.NANOSECONDS: sched:EVENT: comm=NAME pid=TID prio=...`; the
    /// first thread is the current one (the waker), and the name may hold anything.
    pub(crate) fn read(file: &Path) -> Self {
        let fields = ["-F", "tid,cpu,time,event,trace", "--ns", "-i"];
        let mut command = Command::new("perf");
        let output = command.arg("script").args(fields).arg(file).output();
        let output = output.unwrap();
        let mut events = Self::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let _ = events.line(line);
        }
        for times in events.wakes.values_mut() {
            times.sort_unstable();
        }
        events
    }

    /// `None` if the line is no event.
    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let (current, cpu) = (words.next()?, words.next()?);
        let (time, event) = (words.next()?, words.next()?);
        let cpu = cpu.trim_matches(['[', ']']).parse().ok()?;
        if current == "0" {
            self.idle_recorded.insert(cpu);
        }
        let kind = match event {
            "sched:sched_waking:" => Wake::WAKING,
            "sched:sched_wakeup:" => Wake::WAKEUP,
            "sched:sched_wakeup_new:" => Wake::NEW,
            "sched:sched_switch:" if line.contains(" next_pid=0 ") => {
                self.idle.insert(cpu);
                return None;
            }
            _ => return None,
        };
        let (seconds, nanos) = time.trim_end_matches(':').split_once('.')?;
        let ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + nanos.parse::<u64>().ok()?;
        let (_, tid) = line.rsplit_once(" pid=")?;
        let tid = tid.split(' ').next()?.parse().ok()?;
        let times = self.wakes.entry((kind, tid)).or_default();
        times.push(Timestamp::from_monotonic_ns(ns));
        Some(())
    }

    /// CPUs that became idle without a single event of their idle task.
    ///
    /// There must be at least its departure. On Linux 6.18 perf sometimes records no event of the
    /// idle task of one CPU, without a record of losses, for seconds or minutes and in any session:
    /// `perf sched record -a -- sleep 1` alone shows it. Wake-ups by interrupts of that idle CPU
    /// cannot be compared then.
    pub(crate) fn unrecorded_idle_cpus(&self) -> BTreeSet<u32> {
        self.idle.difference(&self.idle_recorded).copied().collect()
    }
}

/// Our wake-ups, and the number of omitted ones, because perf did not record their waker.
fn recorded_by_us(events: &KernelEvents, unrecorded_idle_cpus: &BTreeSet<u32>) -> (Times, u64) {
    let mut times = Times::new();
    let mut left_out = 0;
    for (time, cpu, wake) in &events.wakes {
        if wake.waker_tid == 0 && unrecorded_idle_cpus.contains(cpu) {
            left_out += 1;
        } else {
            times.entry((wake.kind, wake.tid)).or_default().push(*time);
        }
    }
    (times, left_out)
}

/// The distances of the pairs: each of `ours` is paired with the nearest remaining one of `theirs`.
fn pair(ours: &[Timestamp], theirs: &[Timestamp]) -> Vec<Nanos> {
    let distance = |a: Timestamp, b: Timestamp| a.max(b).since(a.min(b));
    let mut pairs = Vec::new();
    let mut left = theirs.iter().copied().peekable();
    for (index, &time) in ours.iter().enumerate() {
        while left.next_if(|&other| other.plus(WINDOW) < time).is_some() {}
        // An earlier one without partner must not shift all later ones.
        while let Some(&other) = left.peek() {
            let mut rest = left.clone();
            rest.next();
            let nearer = rest
                .peek()
                .is_some_and(|&n| distance(n, time) < distance(other, time));
            if !nearer {
                break;
            }
            left.next();
        }
        let Some(&other) = left.peek() else { break };
        let rival = ours.get(index + 1);
        let is_rivals = rival.is_some_and(|&r| distance(r, other) < distance(time, other));
        if distance(time, other) <= WINDOW && !is_rivals {
            pairs.push(distance(time, other));
            left.next();
        }
    }
    pairs
}

/// perf records all CPUs from before `overhear` starts until after it has ended. Of its wake-ups
/// count those of our threads between our first and our last.
///
/// perf 6.1 records the beginning of wake-ups and those of new threads; their completion is enabled
/// here as well.
#[test]
fn wake_ups_are_those_of_perf_sched_record() {
    let _cpus = cpu_lock();
    if !can_record() || !Backend::Bpf.works() {
        return;
    }
    keeps(|| {
        let witness = Witness::start();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("perf.data");
        let front = recorded_by_perf(&file, &["sched:sched_wakeup"]);
        let overhear = Overhear::new(&folder).backend(Backend::Bpf).front(front);
        let found = overhear.run([workload().as_os_str(), "park".as_ref()]);

        let machine = witness.stop();
        let perf = PerfRecording::read(&file);
        let unrecorded_idle_cpus = perf.unrecorded_idle_cpus();
        let (ours, left_out) = recorded_by_us(&found.events, &unrecorded_idle_cpus);
        if left_out > 0 {
            println!("perf recorded no events of the idle tasks of {unrecorded_idle_cpus:?}: {left_out} wake-ups left out");
        }
        let tids: BTreeSet<u32> = ours.keys().map(|key| key.1).collect();
        let first = ours.values().flatten().min().copied().unwrap();
        let last = ours.values().flatten().max().copied().unwrap();
        // The two tools observe the first and the last one at slightly different times.
        let span = first.minus(CLOSE)..=last.plus(CLOSE);
        let theirs: Times = perf
            .wakes
            .into_iter()
            .filter(|((_, tid), _)| tids.contains(tid))
            .map(|(key, times)| {
                (
                    key,
                    times.into_iter().filter(|t| span.contains(t)).collect(),
                )
            })
            .collect();

        let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        let none = Vec::new();
        let mut pairs = Vec::new();
        for key in keys {
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            pairs.extend(pair(ours.unwrap_or(&none), theirs.unwrap_or(&none)));
        }
        pairs.sort_unstable();
        let count = |times: &Times| times.values().map(Vec::len).sum::<usize>();
        let (ours, theirs) = (count(&ours), count(&theirs));
        let close = pairs.iter().filter(|&&distance| distance <= CLOSE).count();
        println!(
            "{ours} wake-ups by us, {theirs} by perf, {} pairs, {close} within {CLOSE}; median \
             {}, largest {}",
            pairs.len(),
            pairs[pairs.len() / 2],
            pairs[pairs.len() - 1],
        );
        assert!(ours > 1_000);
        if pairs.len() * 100 < ours.max(theirs) * 99 && has_lost(&file) {
            return Err(Doubt {
                excuse: Excuse::Seen,
                reasons: "perf has lost records".to_string(),
            });
        }
        assert!(pairs.len() * 100 >= ours.max(theirs) * 99);
        // A systematic difference is not caused by the machine.
        assert!(close * 10 >= pairs.len() * 9);
        if close * 100 >= pairs.len() * 99 {
            return Ok(());
        }
        // Between the two observations of a wake-up the host may take the CPU away.
        Err(Doubt {
            excuse: Excuse::seen(machine.was_crowded() || machine.was_late(LATE)),
            reasons: format!("{close} of {} within {CLOSE}", pairs.len()),
        })
    });
}

/// Whether perf could not keep up.
pub(crate) fn has_lost(file: &Path) -> bool {
    let mut command = Command::new("perf");
    let output = command.args(["report", "-D", "-i"]).arg(file).output();
    String::from_utf8_lossy(&output.unwrap().stdout).contains("PERF_RECORD_LOST")
}
