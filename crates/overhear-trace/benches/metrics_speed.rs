// SPDX-License-Identifier: MIT OR Apache-2.0
//! The speed of metrics over a recording, compared with the readers of other tools.
//!
//! Fifteen threads pass tokens round while `perf record` records switches and wake-ups: the events
//! that `perf sched timehist` and the metrics read, and no others (`perf sched record` has other
//! events, too, which cost perf less and us nothing). Its data become a recording of ours, element
//! by element. Then three programs take turns, each in a process of its own, and their CPU times
//! are compared:
//!
//! - three metrics over that recording (`wakeup_latency`, `run_delay`, `time_slice`),
//! - babeltrace2's dummy sink over the same recording,
//! - `perf sched timehist` over perf's file.
//!
//! Further results are the share of each stage (reading in order, automata, results), and the cost
//! by number of metrics and by number of tasks that have ended, which must not matter.
//!
//! `cargo bench -p overhear-trace --bench metrics_speed -- [ROUNDS]`; as root, or without perf:
//! then the recording is synthetic. The targets are judged here and asserted by no test.
#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_metrics::automaton::{system_metric, Measurement, Metric, Metrics, Sink, Summaries};
use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};

const METRICS: [&str; 3] = ["wakeup_latency", "run_delay", "time_slice"];
const TASKS: usize = 15;
/// Number of times that a token is passed on; each time is a wake-up and a switch, or two.
const HOPS: u64 = 300_000;
const TOKENS: usize = 3;
const ROUNDS: usize = 11;
/// Maximum number of rounds for each wanted one.
const TRIES: usize = 6;
/// Maximum time of a sentinel, relative to the fastest one.
const DISTURBED: f64 = 1.05;
const WITH_DURATIONS: &str = "three metrics, with durations";
const PERF: &str = "perf sched timehist";
/// Lower bounds of these ratios.
const BABELTRACE_TARGET: f64 = 7.0;
const PERF_TARGET: f64 = 15.0;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    match support::arguments()
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()[..]
    {
        ["work"] => work(),
        ["measure", dir] => {
            evaluate(&TraceReader::open(dir)?, 1);
            Ok(())
        }
        [] => compare(ROUNDS),
        [rounds] => compare(rounds.parse()?),
        _ => Err("give nothing, or ROUNDS".into()),
    }
}

/// Threads in a ring pass tokens on through pipes.
fn work() -> Result<()> {
    let pipes: Vec<_> = (0..TASKS)
        .map(|_| std::io::pipe())
        .collect::<std::io::Result<_>>()?;
    let (readers, mut writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    for writer in writers.iter_mut().step_by(TASKS / TOKENS) {
        writer.write_all(&[0])?;
    }
    writers.rotate_left(1);
    let threads = readers.into_iter().zip(writers).enumerate();
    let threads: Vec<_> = threads
        .map(|(number, (mut reader, mut writer))| {
            let name = format!("task-{number}");
            std::thread::Builder::new().name(name).spawn(move || {
                let mut token = [0];
                for _ in 0..HOPS / TASKS as u64 {
                    // A neighbour that has finished reads no more.
                    if reader.read_exact(&mut token).is_err() || writer.write_all(&token).is_err() {
                        return;
                    }
                }
            })
        })
        .collect::<std::io::Result<_>>()?;
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

/// Replays the recording through `copies` copies of the metrics. Returns the number of
/// measurements.
fn evaluate(reader: &TraceReader, copies: usize) -> u64 {
    let mut metrics = engine(Summaries::default(), copies);
    reader.replay(&mut [&mut metrics]);
    metrics.finish();
    metrics.statistics().map(|(_, each)| each.completed).sum()
}

fn engine<S: Sink>(sink: S, copies: usize) -> Metrics<S> {
    let mut metrics = Metrics::new(sink);
    for name in METRICS.iter().cycle().take(METRICS.len() * copies) {
        metrics.add(system_metric(name).expect("it is built in"));
    }
    metrics
}

fn compare(rounds: usize) -> Result<()> {
    let place = tempfile::tempdir()?;
    let [dir, known, data] =
        ["recording", "with-durations", "perf.data"].map(|name| place.path().join(name));
    let recorded = record(&data).and_then(|()| convert(&data, &dir, &known));
    let perf_events = match recorded {
        Ok(events) => Some(events),
        Err(why) => {
            println!("perf is left out, the recording is made up: {why}");
            let _ = std::fs::remove_dir_all(&dir);
            make_up(&dir)?;
            None
        }
    };
    let reader = TraceReader::open(&dir)?;
    let events = reader.events();
    println!(
        "{events} elements of {TASKS} tasks; {} measurements by {}",
        evaluate(&reader, 1),
        METRICS.join(", ")
    );

    let this = std::env::current_exe()?;
    let mut contenders = vec![Contender {
        name: "three metrics",
        command: vec![this, "measure".into(), dir.clone()],
        events,
        target: None,
        runs: Vec::new(),
    }];
    if runs("babeltrace2", "--version") {
        let words = ["babeltrace2", "-o", "dummy"].map(PathBuf::from);
        contenders.push(Contender {
            name: "babeltrace2 -o dummy",
            command: [&words[..], &[dir.join("trace")]].concat(),
            events,
            target: Some(BABELTRACE_TARGET),
            runs: Vec::new(),
        });
    }
    if let Some(events) = perf_events {
        // Not right before the first one: its program would be in the caches.
        contenders.push(Contender {
            name: WITH_DURATIONS,
            command: vec![std::env::current_exe()?, "measure".into(), known],
            events: reader.events(),
            target: None,
            runs: Vec::new(),
        });
        let words = ["perf", "sched", "timehist", "-i"].map(PathBuf::from);
        contenders.push(Contender {
            name: PERF,
            command: [&words[..], &[data]].concat(),
            events,
            target: Some(PERF_TARGET),
            runs: Vec::new(),
        });
    }
    stay_on_this_cpu();
    for round in 0..TRIES * rounds {
        // The order rotates, because each one inherits the caches of the one before.
        let count = contenders.len();
        for turn in 0..count {
            contenders[(round + turn) % count].run()?;
        }
        let limit = limit(&contenders);
        if contenders.iter().all(|it| it.quiet(limit).len() >= rounds) {
            break;
        }
    }
    table(&contenders);
    stages(&reader, rounds);
    growth(&reader, rounds);
    Ok(())
}

/// A reader of recordings.
struct Contender {
    name: &'static str,
    command: Vec<PathBuf>,
    events: u64,
    target: Option<f64>,
    runs: Vec<Run>,
}

struct Run {
    /// CPU time per event, in nanoseconds.
    span: f64,
    /// The slower one of the sentinels before and after it.
    sentinel: u64,
}

impl Contender {
    fn run(&mut self) -> Result<()> {
        let sentinel_before = sentinel();
        let before = children_cpu_ns();
        let mut command = Command::new(&self.command[0]);
        let status = command
            .args(&self.command[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("{} failed: {status}", self.name).into());
        }
        let spent = children_cpu_ns() - before;
        self.runs.push(Run {
            span: spent as f64 / self.events as f64,
            sentinel: sentinel().max(sentinel_before),
        });
        Ok(())
    }

    /// The runs whose sentinels were not slower than this.
    fn quiet(&self, limit: u64) -> Vec<f64> {
        let quiet = self.runs.iter().filter(|run| run.sentinel <= limit);
        quiet.map(|run| run.span).collect()
    }
}

/// Maximum time of a sentinel.
fn limit(contenders: &[Contender]) -> u64 {
    let runs = contenders.iter().flat_map(|it| &it.runs);
    let least = runs.map(|run| run.sentinel).min().unwrap_or(0);
    (least as f64 * DISTURBED) as u64
}

/// Arithmetic that needs all units of a core. Returns its CPU time, which is longer while other
/// threads use these units.
fn sentinel() -> u64 {
    let begun = thread_cpu_ns();
    let mut words: [u64; 8] = std::array::from_fn(|at| at as u64);
    for step in 0..100_000 {
        for word in &mut words {
            *word = word.rotate_left(7).wrapping_add(step);
        }
        std::hint::black_box(&mut words);
    }
    thread_cpu_ns() - begun
}

/// The compared processes run on the CPU of their sentinels.
fn stay_on_this_cpu() {
    // SAFETY: the set is plain data, and the calls take its size. If they fail, nothing changes.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if let Ok(cpu) = usize::try_from(libc::sched_getcpu()) {
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }
}

/// The CPU time of all children that have ended.
fn children_cpu_ns() -> u64 {
    // SAFETY: the structure is plain data that the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

fn quartiles(spans: &[f64]) -> [f64; 3] {
    let mut sorted = spans.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|part| sorted[(sorted.len() * part / 4).min(sorted.len() - 1)])
}

fn table(contenders: &[Contender]) {
    let limit = limit(contenders);
    let (all, quiet) = contenders.iter().fold((0, 0), |(all, quiet), it| {
        (all + it.runs.len(), quiet + it.quiet(limit).len())
    });
    println!(
        "\nOf {all} runs {} were left out: a sentinel beside them was slow.",
        all - quiet
    );
    if contenders.iter().any(|it| it.quiet(limit).len() < 3) {
        println!("inconclusive: the machine was too busy");
        return;
    }
    println!("\n| | events | ns of CPU per event | quartiles | events per second and core | ratio | target | met |");
    println!("|---|--:|--:|--:|--:|--:|--:|---|");
    let [_, ours, _] = quartiles(&contenders[0].quiet(limit));
    for contender in contenders {
        let [low, median, high] = quartiles(&contender.quiet(limit));
        let ratio = median / ours;
        let (target, met) = match contender.target {
            Some(target) if ratio >= target => (format!("{target}"), "yes"),
            Some(target) => (format!("{target}"), "**no**"),
            None => (String::new(), ""),
        };
        println!(
            "| {} | {} | {median:.1} | {low:.1} to {high:.1} | {:.1} M | {ratio:.2} | {target} | {met} |",
            contender.name,
            contender.events,
            1_000.0 / median,
        );
    }
    let median = |name| {
        let found = contenders.iter().find(|it| it.name == name)?;
        Some(quartiles(&found.quiet(limit))[1])
    };
    if let (Some(known), Some(perf)) = (median(WITH_DURATIONS), median(PERF)) {
        println!(
            "\nWith durations the ratio to {PERF} is {:.2}.",
            perf / known
        );
    }
}

/// Reads the time of every element.
#[derive(Default)]
struct Times(u64);

impl Analysis for Times {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0 ^= element.time.as_monotonic_ns();
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// Receives measurements, and only adds them up.
#[derive(Default)]
struct Sum(u64);

impl Sink for Sum {
    fn counts_intermediate(&self, _: &Metric) -> bool {
        false
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.0 = self.0.wrapping_add(measurement.length.as_ns());
    }
}

/// As [`Sum`], with the elements inside the measurements.
#[derive(Default)]
struct SumLess(Sum);

impl Sink for SumLess {
    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        self.0.measurement(measurement);
        self.0 .0 ^= measurement.intermediate.map_or(0, |counted| counted.all);
    }
}

/// The time of each stage; each stage includes the one before. The stages alternate.
fn stages(reader: &TraceReader, rounds: usize) {
    let names = [
        "reading in order",
        "and automata",
        "and summaries",
        "automata that count intermediate elements",
    ];
    let mut spans = vec![Vec::new(); names.len()];
    for round in 0..rounds {
        for turn in 0..names.len() {
            let stage = (round + turn) % names.len();
            let mut times = Times::default();
            let (mut bare, mut whole) =
                (engine(Sum::default(), 1), engine(Summaries::default(), 1));
            let mut counting = engine(SumLess::default(), 1);
            let updates: [&mut dyn Analysis; 4] =
                [&mut times, &mut bare, &mut whole, &mut counting];
            let begun = thread_cpu_ns();
            for (_, update) in (0..).zip(updates).filter(|(at, _)| *at == stage) {
                reader.replay(&mut [update]);
            }
            let ns = (thread_cpu_ns() - begun) as f64;
            std::hint::black_box((times.0, bare.sink().0, counting.sink().0 .0));
            spans[stage].push(ns / reader.events() as f64);
        }
    }
    println!("\n| stage | ns of CPU per element | quartiles |");
    println!("|---|--:|--:|");
    for (name, spans) in names.into_iter().zip(&spans) {
        let [low, median, high] = quartiles(spans);
        println!("| {name} | {median:.1} | {low:.1} to {high:.1} |");
    }
}

/// The CPU time of this thread.
fn thread_cpu_ns() -> u64 {
    // SAFETY: the structure is plain data that the call fills.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The cost by number of metrics and by number of ended tasks; the cases alternate, too.
fn growth(reader: &TraceReader, rounds: usize) {
    // Copies of the metrics, ended tasks, the case to compare with, and the largest good ratio. Two
    // results are equal if they differ by no more than one measurement from the next.
    let cases = [
        (1, 0, 0, 1.0),
        (2, 0, 0, 2.0),
        (4, 0, 0, 4.0),
        (1, 100_000, 0, 1.1),
    ];
    let mut spans = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for turn in 0..cases.len() {
            let place = (round + turn) % cases.len();
            let (copies, ended, ..) = cases[place];
            let mut metrics = engine(Summaries::default(), copies);
            live_and_die(&mut metrics, ended);
            let begun = thread_cpu_ns();
            reader.replay(&mut [&mut metrics]);
            let ns = (thread_cpu_ns() - begun) as f64;
            spans[place].push(ns / reader.events() as f64);
        }
    }
    println!("\n| | ns per element | ratio | at most | met |");
    println!("|---|--:|--:|--:|---|");
    let median = |place: usize| quartiles(&spans[place])[1];
    for (place, (copies, ended, against, target)) in cases.into_iter().enumerate() {
        let ratio = median(place) / median(against);
        let met = if ratio <= target { "yes" } else { "**no**" };
        println!(
            "| {} metrics after {ended} ended tasks | {:.1} | {ratio:.2} | {target} | {met} |",
            METRICS.len() * copies,
            median(place),
        );
    }
}

/// Tasks that begin, run and end.
fn live_and_die(update: &mut dyn Analysis, tasks: u32) {
    let streams = [
        stream(101, SCHED_SWITCH, Switch::schema()),
        stream(102, TASK_LIFE, Life::schema()),
    ];
    let mut push = |stream: usize, payload: &[u8], ns: u64| {
        update.element(&ElementView {
            stream: &streams[stream],
            sequence: 0,
            time: Timestamp::from_monotonic_ns(ns),
            payload,
        });
    };
    for tid in 1_000_000..1_000_000 + tasks {
        let ns = u64::from(tid);
        push(0, &switch(0, tid, 0).to_payload(), ns);
        let life = Life {
            tid,
            pid: 1,
            parent_tid: 0,
            parent_pid: 0,
            kind: Life::EXIT,
            code: 0,
            cpu_ns: 0,
            comm: [0; 16],
        };
        push(1, &life.to_payload(), ns);
        // Its last departure; an automaton that measures it ends there.
        push(0, &switch(tid, 0, 0x80).to_payload(), ns);
    }
}

fn switch(prev_tid: u32, next_tid: u32, prev_state: u16) -> Switch {
    let tracked = |tid: u32, flag: u16| if tid == 0 { 0 } else { flag };
    Switch {
        prev_tid,
        next_tid,
        prev_pid: 1,
        next_pid: 1,
        prev_state,
        flags: tracked(prev_tid, Switch::PREV_TRACKED) | tracked(next_tid, Switch::NEXT_TRACKED),
        prev_run_ns: Switch::UNKNOWN,
    }
}

fn wake(tid: u32, waker_tid: u32, kind: u32) -> Wake {
    Wake {
        tid,
        pid: 1,
        waker_tid,
        waker_pid: 1,
        target_cpu: 0,
        kind,
    }
}

fn stream(id: u32, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor::new(
        StreamId::from_raw(id),
        Origin::Kernel { cpu: id & 1 },
        sensor,
        schema,
    )
}

/// The recorded events.
const EVENTS: &str =
    "sched:sched_switch,sched:sched_waking,sched:sched_wakeup,sched:sched_wakeup_new";

/// Runs the work under `perf record`. The rings hold the events until perf gets a CPU.
fn record(data: &Path) -> Result<()> {
    let this = std::env::current_exe()?;
    let script = "test -e /sys/kernel/tracing/events || \
        mount -t tracefs nodev /sys/kernel/tracing || exit 77; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.args(["perf", "record", "-a", "-k", "mono", "-m", "8192"]);
    command.args(["-e", EVENTS, "-o"]).arg(data);
    let output = command.arg("--").arg(this).arg("work").output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().into())
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    let quiet = command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Writes elements into the streams of two CPUs.
struct Recorder {
    writer: TraceWriter,
    streams: Vec<(StreamDescriptor, u64)>,
}

impl Recorder {
    fn create(dir: &Path) -> Result<Self> {
        Ok(Self {
            writer: TraceWriter::create(dir, TraceIdentity::default())?,
            streams: Vec::new(),
        })
    }

    fn push(&mut self, cpu: u32, time: Timestamp, payload: &[u8], wake: bool) -> Result<()> {
        let id = 1 + 2 * cpu + u32::from(wake);
        if !self
            .streams
            .iter()
            .any(|(stream, _)| stream.id.as_raw() == id)
        {
            let stream = if wake {
                stream(id, SCHED_WAKE, Wake::schema())
            } else {
                stream(id, SCHED_SWITCH, Switch::schema())
            };
            self.streams.push((stream, 0));
        }
        let mut streams = self.streams.iter_mut();
        let found = streams.find(|(stream, _)| stream.id.as_raw() == id);
        let (stream, sequence) = found.expect("it was pushed");
        self.writer.element(&ElementView {
            stream,
            sequence: *sequence,
            time,
            payload,
        })?;
        *sequence += 1;
        Ok(())
    }
}

/// Makes a recording of perf's events of the working threads, and another one that also has the
/// running time of each thread, as our own recordings do. Returns the number of events of any kind
/// in perf's file.
fn convert(data: &Path, dir: &Path, with_durations: &Path) -> Result<u64> {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "tid,cpu,time,event,trace", "--ns", "-i"]);
    let output = command.arg(data).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut working = BTreeSet::new();
    for line in text.lines() {
        for (name, tid) in [(" prev_comm=task-", " prev_pid="), (" comm=task-", " pid=")] {
            if line.contains(name) {
                working.extend(number_after(line, tid).map(|tid| tid as u32));
            }
        }
    }
    let (mut plain, mut timed) = (Recorder::create(dir)?, Recorder::create(with_durations)?);
    let mut arrivals = BTreeMap::new();
    let mut events = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(current), Some(cpu)) = (words.next(), words.next()) else {
            continue;
        };
        let (Some(time), Some(event)) = (words.next(), words.next()) else {
            continue;
        };
        events += 1;
        let cpu: u32 = cpu.trim_matches(['[', ']']).parse()?;
        let (seconds, nanos) = time
            .trim_end_matches(':')
            .split_once('.')
            .ok_or("no time")?;
        let ns = seconds.parse::<u64>()? * 1_000_000_000 + nanos.parse::<u64>()?;
        let time = Timestamp::from_monotonic_ns(ns);
        let tid = |key: &str| number_after(line, key).map_or(0, |tid| tid as u32);
        if event == "sched:sched_switch:" {
            let (prev, next) = (tid(" prev_pid="), tid(" next_pid="));
            let (ours, theirs) = (working.contains(&prev), working.contains(&next));
            if !ours && !theirs {
                continue;
            }
            let runnable = line.contains(" prev_state=R");
            let mut switch = switch(prev, next, u16::from(!runnable));
            switch.flags = if ours { Switch::PREV_TRACKED } else { 0 }
                | if theirs { Switch::NEXT_TRACKED } else { 0 };
            plain.push(cpu, time, &switch.to_payload(), false)?;
            // perf does not record every arrival: then the time is unknown.
            if let Some(arrived) = arrivals.remove(&prev) {
                switch.prev_run_ns = u32::try_from(ns - arrived).unwrap_or(Switch::UNKNOWN);
            }
            arrivals.insert(next, ns);
            timed.push(cpu, time, &switch.to_payload(), false)?;
        }
        let kind = match event {
            "sched:sched_waking:" => Wake::WAKING,
            "sched:sched_wakeup:" => Wake::WAKEUP,
            "sched:sched_wakeup_new:" => Wake::NEW,
            _ => continue,
        };
        let woken = tid(" pid=");
        if working.contains(&woken) {
            let wake = wake(woken, current.parse()?, kind);
            plain.push(cpu, time, &wake.to_payload(), true)?;
            timed.push(cpu, time, &wake.to_payload(), true)?;
        }
    }
    plain.writer.finish()?;
    timed.writer.finish()?;
    if events == 0 {
        return Err("perf script prints no event".into());
    }
    Ok(events)
}

/// The number after the last occurrence of a key: names before it may contain anything.
fn number_after(line: &str, key: &str) -> Option<u64> {
    let (_, rest) = line.rsplit_once(key)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A synthetic recording of the same shape: each task wakes the next one and sleeps.
fn make_up(dir: &Path) -> Result<()> {
    let mut recorder = Recorder::create(dir)?;
    let mut time = Timestamp::from_monotonic_ns(1_000_000);
    for hop in 0..HOPS {
        let task = |number: u64| 100 + (number % TASKS as u64) as u32;
        let (this, next) = (task(hop), task(hop + 1));
        let cpu = (hop / 64 % 2) as u32;
        for kind in [Wake::WAKING, Wake::WAKEUP] {
            time = time.plus(Nanos::from_ns(400));
            recorder.push(cpu, time, &wake(next, this, kind).to_payload(), true)?;
        }
        time = time.plus(Nanos::from_ns(2_000 + hop % 7 * 100));
        recorder.push(cpu, time, &switch(this, next, 1).to_payload(), false)?;
    }
    recorder.writer.finish()?;
    Ok(())
}
