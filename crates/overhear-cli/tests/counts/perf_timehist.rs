// SPDX-License-Identifier: MIT OR Apache-2.0
//! Delays: wake-up latency and run delay, record by record those of `perf sched timehist` over the
//! same run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use overhear_event::kernel::Wake;
use overhear_event::{Nanos, Timestamp};
use overhear_metrics::automaton::{system_metric, MetricResult, Metrics, Results};
use overhear_trace::TraceReader;

use crate::harness::{cpu_lock, workload, Backend, KernelEvents, Overhear};
use crate::perf_sched::{can_record, has_lost, recorded_by_perf, PerfRecording, CLOSE, WINDOW};
use crate::witness::{keeps, Doubt, Excuse, Witness, LATE};

/// A delay that ends with an arrival on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Delay {
    arrival: Timestamp,
    length: Nanos,
    /// It cannot be compared: perf did not record its begin.
    unrecorded: bool,
}

/// By thread, ascending.
type Delays = BTreeMap<u32, Vec<Delay>>;

/// The times that timehist prints for threads.
#[derive(Default)]
struct Listed {
    wakeup_latency: Delays,
    run_delay: Delays,
    /// End of the first run of each listed thread. timehist does not know earlier events.
    since: BTreeMap<u32, Timestamp>,
    /// The last departure of each thread.
    displaced: BTreeMap<u32, bool>,
}

impl Listed {
    fn read(file: &Path) -> Self {
        let mut command = Command::new("perf");
        let output = command.args(["sched", "timehist", "--state", "-i"]);
        let output = output.arg(file).output().unwrap();
        let mut listed = Self::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let _ = listed.line(line);
        }
        listed
    }

    /// A line is `SECONDS.MICROS [CPU] NAME[TID/PID] WAIT DELAY RUN STATE`, the last three lengths
    /// in milliseconds, and is about a run that has ended. `None` where it is none.
    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let time = nanos(words.next()?, 1_000_000_000)?;
        let state = words.next_back()?;
        let mut millis = || nanos(words.next_back()?, 1_000_000);
        let (ran, delay, waited) = (millis()?, millis()?, millis()?);
        let (_, ids) = words.next_back()?.rsplit_once('[')?;
        let ids = ids.trim_end_matches(']');
        let tid = ids.split('/').next()?.parse().ok()?;
        let end = Timestamp::from_monotonic_ns(time);
        let arrival = Timestamp::from_monotonic_ns(time.checked_sub(ran)?);
        let add = |delays: &mut Delays, length| {
            let length = Nanos::from_ns(length);
            delays.entry(tid).or_default().push(Delay {
                arrival,
                length,
                unrecorded: false,
            });
        };
        match self.displaced.insert(tid, state.starts_with('R')) {
            // Its earlier departure is unknown.
            None => {
                self.since.insert(tid, end);
            }
            // It was still runnable: all of its wait is run delay.
            Some(true) => add(&mut self.run_delay, waited),
            Some(false) => {
                add(&mut self.run_delay, delay);
                add(&mut self.wakeup_latency, delay);
            }
        }
        Some(())
    }
}

/// A decimal fraction as an integer number of parts.
fn nanos(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.')?;
    let digits = u32::try_from(fraction.len()).ok()?;
    let parts = fraction.parse::<u64>().ok()?.checked_mul(unit)?;
    Some(whole.parse::<u64>().ok()? * unit + parts / 10_u64.pow(digits))
}

/// Begins of wake-ups that perf does not record, by thread: those by interrupts of idle CPUs
/// without records.
fn unrecorded(
    events: &KernelEvents,
    unrecorded_idle_cpus: &BTreeSet<u32>,
) -> BTreeSet<(u32, Timestamp)> {
    let wakes = events.wakes.iter();
    let by_lack =
        wakes.filter(|(_, cpu, wake)| wake.waker_tid == 0 && unrecorded_idle_cpus.contains(cpu));
    by_lack.map(|(time, _, wake)| (wake.tid, *time)).collect()
}

/// The begin of each wake-up, by thread and enqueue: timehist counts from there.
fn wakings(events: &KernelEvents) -> BTreeMap<(u32, Timestamp), Timestamp> {
    let (mut latest, mut wakings) = (BTreeMap::new(), BTreeMap::new());
    for (time, _, wake) in &events.wakes {
        if wake.kind == Wake::WAKING {
            latest.insert(wake.tid, *time);
        } else if let Some(waking) = latest.remove(&wake.tid) {
            wakings.insert((wake.tid, *time), waking);
        }
    }
    wakings
}

/// Our measurements of a metric that timehist measures, too. One that begins with an enqueue is as
/// long as if it began with the waking.
fn ours(
    results: &[MetricResult],
    listed: &Listed,
    unrecorded: &BTreeSet<(u32, Timestamp)>,
    wakings: &BTreeMap<(u32, Timestamp), Timestamp>,
) -> Delays {
    let mut delays = Delays::new();
    for result in results {
        let known = listed.since.get(&result.task);
        let waking = wakings.get(&(result.task, result.begin)).copied();
        let begin = waking.unwrap_or(result.begin);
        if known.is_some_and(|&since| begin > since) {
            delays.entry(result.task).or_default().push(Delay {
                arrival: result.end,
                length: result.length.plus(result.begin.since(begin)),
                unrecorded: unrecorded.contains(&(result.task, begin)),
            });
        }
    }
    delays
}

/// The differences of the lengths of the pairs: each of `ours` is paired with the one of `theirs`
/// that ended at the same microsecond. Incomparable ones are omitted; the second value is the
/// number of those of `theirs`.
fn differences(ours: &Delays, theirs: &Delays) -> (Vec<Nanos>, usize) {
    let distance = |a: Timestamp, b: Timestamp| a.max(b).since(a.min(b));
    let (mut differences, mut left_out) = (Vec::new(), 0);
    for (tid, ours) in ours {
        let mut left = theirs.get(tid).into_iter().flatten().peekable();
        for delay in ours {
            while left
                .next_if(|other| other.arrival.plus(CLOSE) < delay.arrival)
                .is_some()
            {}
            let near = |other: &&Delay| distance(other.arrival, delay.arrival) <= WINDOW;
            if let Some(other) = left.next_if(near) {
                if delay.unrecorded {
                    left_out += 1;
                    continue;
                }
                let difference = delay.length.as_ns().abs_diff(other.length.as_ns());
                differences.push(Nanos::from_ns(difference));
            }
        }
    }
    differences.sort_unstable();
    (differences, left_out)
}

/// Result of the comparison of one metric.
enum Compared {
    Agree,
    Disturbed,
}

/// Nearly all are pairs, and 99 of 100 pairs differ by at most 20 us: the tracepoints call the two
/// tools one after the other, and timehist prints microseconds. If half of the pairs differ by
/// more, this is no disturbance, unless perf does not record a CPU's idle task.
fn compare(name: &str, ours: &Delays, theirs: &Delays, lacks_idle_cpu: bool) -> Compared {
    let (pairs, left_out) = differences(ours, theirs);
    let theirs = theirs.iter().filter(|(tid, _)| ours.contains_key(tid));
    let theirs = theirs.map(|(_, delays)| delays.len()).sum::<usize>() - left_out;
    let all = ours.values().flatten();
    let ours = all.filter(|delay| !delay.unrecorded).count();
    let close = pairs
        .iter()
        .filter(|&&difference| difference <= CLOSE)
        .count();
    println!(
        "{name}: {ours} by us, {theirs} by perf, {} pairs, {close} within {CLOSE}; median {:?}, largest {:?}",
        pairs.len(),
        pairs.get(pairs.len() / 2),
        pairs.last(),
    );
    if ours < 300 && lacks_idle_cpu {
        println!("perf did not record most of them");
        return Compared::Disturbed;
    }
    if !lacks_idle_cpu {
        assert!(ours >= 300, "{name}: only {ours}");
        assert!(pairs.len() * 2 > ours, "{name}: most have no partner");
        assert!(close * 2 > pairs.len(), "{name}: most differ");
    }
    if pairs.len() * 100 >= ours.max(theirs) * 99 && close * 100 >= pairs.len() * 99 {
        Compared::Agree
    } else {
        Compared::Disturbed
    }
}

/// perf records all CPUs from before `overhear` starts until after it has ended.
#[test]
fn delays_are_those_of_perf_sched_timehist() {
    let _cpus = cpu_lock();
    if !can_record() || !Backend::Bpf.works() {
        return;
    }
    keeps(|| {
        let witness = Witness::start();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("perf.data");
        let front = recorded_by_perf(&file, &[]);
        let overhear = Overhear::new(&folder).backend(Backend::Bpf).front(front);
        let found = overhear.run([workload().as_os_str(), "park".as_ref()]);
        let machine = witness.stop();

        let mut engine = Metrics::new(Results::default());
        for name in ["wakeup_latency", "run_delay"] {
            engine.add(system_metric(name).unwrap());
        }
        let reader = TraceReader::open(overhear.trace()).unwrap();
        reader.replay(&mut [&mut engine]);
        engine.finish();
        let listed = Listed::read(&file);
        if has_lost(&file) {
            return Err(Doubt {
                excuse: Excuse::Seen,
                reasons: "perf has lost records".to_string(),
            });
        }
        let unrecorded_idle_cpus = PerfRecording::read(&file).unrecorded_idle_cpus();
        let unrecorded = unrecorded(&found.events, &unrecorded_idle_cpus);
        let lacks_idle_cpu = !unrecorded_idle_cpus.is_empty();
        let wakings = wakings(&found.events);
        let of = |index| ours(engine.sink().of(index), &listed, &unrecorded, &wakings);
        let compared = [
            compare(
                "wakeup_latency",
                &of(0),
                &listed.wakeup_latency,
                lacks_idle_cpu,
            ),
            compare("run_delay", &of(1), &listed.run_delay, lacks_idle_cpu),
        ];
        if compared.iter().all(|it| matches!(it, Compared::Agree)) {
            return Ok(());
        }
        // Between the two observations of an event the host may take the CPU away.
        let was_busy = machine.was_crowded() || machine.was_late(LATE);
        Err(Doubt {
            excuse: Excuse::seen(was_busy || lacks_idle_cpu),
            reasons: format!(
                "idle tasks without records: {unrecorded_idle_cpus:?}; see the differences above"
            ),
        })
    });
}

#[test]
fn lines_of_timehist_are_understood() {
    let mut listed = Listed::default();
    for line in [
        "           time    cpu  task name                       wait time  sch delay   run time",
        "--------------- ------  ------------------------------  ---------  ---------  ---------",
        "   79371.874569 [0001]  a name[31949/31940]                 0.000      0.000      1.148      S",
        "   79371.876000 [0001]  a name[31949/31940]                 0.931      0.014      0.500      R",
        "   79371.877000 [0001]  a name[31949/31940]                 0.250      0.000      0.750      S",
    ] {
        let _ = listed.line(line);
    }
    let delay = |arrival, length| Delay {
        arrival: Timestamp::from_monotonic_ns(arrival),
        length: Nanos::from_ns(length),
        unrecorded: false,
    };
    let woken = delay(79_371_875_500_000, 14_000);
    let displaced = delay(79_371_876_250_000, 250_000);
    assert_eq!(listed.wakeup_latency[&31_949], [woken]);
    assert_eq!(listed.run_delay[&31_949], [woken, displaced]);
    let mut ours = Delays::new();
    ours.insert(31_949, vec![delay(79_371_875_500_900, 14_500)]);
    let (found, left_out) = differences(&ours, &listed.run_delay);
    assert_eq!((found, left_out), (vec![Nanos::from_ns(500)], 0));
}
