// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of recording a context switch for the threads that switch. Two processes on one CPU
//! pass a byte to and fro through pipes [MKM, section 5.5]: with nothing, with kernel monitors,
//! with ftrace and with `perf record`, alternately. Then the same with a sensor that one of them
//! invokes, with and without recorded switches [GRTMon, table 3].
//!
//! A measurement is a lap of less than half a millisecond between two runs of an interference
//! probe, which show whether the core was undisturbed. Laps on a disturbed core do not count,
//! whatever they show. Each listener is compared with the time before and after it. A target is met
//! or missed if a confidence interval of 99 % shows it. It is judged by differences of the rounds:
//! the measured value and its limit in the same round.
//!
//! `cargo bench -p overhear-kernel --bench switch_cost -- [ROUNDS]`; as root, on a quiet machine
//! with two CPUs or more. The targets are judged here and asserted by no test.
#![allow(missing_docs)]

mod players;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use overhear_kernel::{Backend, CountingInbox, KernelMonitor, Sensor};
use overhear_metrics::Estimate;
use players::{bind, Invoked, Players};

const TRACEFS: &str = "/sys/kernel/tracing";

/// The recorder during a measurement.
enum Recorder {
    Monitors(Vec<KernelMonitor>),
    Ftrace,
    Perf(Child),
}

impl Drop for Recorder {
    fn drop(&mut self) {
        match self {
            Self::Monitors(monitors) => {
                let mut count = CountingInbox::default();
                for monitor in monitors {
                    let _ = monitor.read(&mut count);
                }
            }
            Self::Ftrace => {
                let _ = ftrace("0");
            }
            Self::Perf(child) => {
                // SAFETY: signals our own child, which has not been waited for.
                unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
                let _ = child.wait();
            }
        }
    }
}

/// Events for perf: switches alone, or all events from which a kernel monitor of scheduling makes
/// elements.
const SWITCHES: &str = "sched:sched_switch";
const SWITCHES_AND_WAKE_UPS: &str = "sched:sched_switch,sched:sched_waking,sched:sched_wakeup";

fn ftrace(on: &str) -> std::io::Result<()> {
    fs::write(
        Path::new(TRACEFS).join("events/sched/sched_switch/enable"),
        on,
    )
}

fn monitors(count: usize, tracked: &[u32], more: &[Sensor]) -> Result<Recorder, Box<dyn Error>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let builder = KernelMonitor::builder()
            .backend(Backend::Bpf)
            .sensors(more.iter().copied());
        let mut monitor = builder.create()?;
        for &pid in tracked {
            monitor.thread_monitor(pid, pid)?;
        }
        monitor.resume()?;
        all.push(monitor);
    }
    Ok(Recorder::Monitors(all))
}

/// `whom` is `-a`, for all CPUs, or `-p` with processes. The latter costs more, because the kernel
/// switches their events on and off at each of their context switches.
fn perf_record(events: &str, whom: &[&str]) -> Result<Recorder, Box<dyn Error>> {
    let mut child = Command::new("perf")
        .args(["record", "-q", "-e", events, "-o", "/dev/null"])
        .args(whom)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // perf starts some time after its events are open.
    for _ in 0..2_000 {
        let links = fs::read_dir(format!("/proc/{}/fd", child.id()))?.flatten();
        let targets = links.filter_map(|entry| fs::read_link(entry.path()).ok());
        let events = targets.filter(|target| target.to_string_lossy().contains("perf_event"));
        if events.count() >= 2 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            return Ok(Recorder::Perf(child));
        }
        if child.try_wait()?.is_some() {
            return Err("perf ended by itself".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Err("perf did not begin".into())
}

/// The median and the quartiles.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` adds an argument of its own.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let rounds: usize = words.next().map_or(Ok(15), |text| text.parse())?;
    let cpus = std::thread::available_parallelism()?.get();
    if cpus < 2 {
        return Err("the players need a CPU of their own: two are too few".into());
    }
    let mut players = Players::start(cpus - 1)?;
    bind(0);
    // Mounted here if it is not mounted, and unmounted afterwards.
    let mounted = !Path::new(TRACEFS).join("events").exists()
        && Command::new("mount")
            .args(["-t", "tracefs", "tracefs", TRACEFS])
            .status()?
            .success();
    let pids = players.pids;
    let me = [std::process::id()];
    let (calls, switches) = (["syscall".parse()?], ["sched_switch".parse()?]);
    let both = pids.map(|pid| pid.to_string()).join(",");
    let contenders: Vec<(&str, Begin<'_>)> = vec![
        (
            "nothing, again",
            Box::new(|| Ok(Recorder::Monitors(Vec::new()))),
        ),
        (
            "a kernel monitor, untracked",
            Box::new(|| monitors(1, &me, &[])),
        ),
        (
            "a kernel monitor, tracked",
            Box::new(|| monitors(1, &pids, &[])),
        ),
        (
            "a kernel monitor of switches, untracked",
            Box::new(|| monitors(1, &me, &switches)),
        ),
        (
            "a kernel monitor of switches, tracked",
            Box::new(|| monitors(1, &pids, &switches)),
        ),
        (
            "two kernel monitors, tracked",
            Box::new(|| monitors(2, &pids, &[])),
        ),
        (
            "eight kernel monitors, tracked",
            Box::new(|| monitors(8, &pids, &[])),
        ),
        (
            "system calls too, tracked",
            Box::new(|| monitors(1, &pids, &calls)),
        ),
        (
            "ftrace sched_switch",
            Box::new(|| ftrace("1").map(|()| Recorder::Ftrace).map_err(Into::into)),
        ),
        (
            "perf record -e sched:sched_switch",
            Box::new(|| perf_record(SWITCHES, &["-a"])),
        ),
        (
            "perf record of the two processes' switches",
            Box::new(|| perf_record(SWITCHES, &["-p", &both])),
        ),
        (
            "perf record of switches and wake-ups",
            Box::new(|| perf_record(SWITCHES_AND_WAKE_UPS, &["-a"])),
        ),
    ];
    // By listener and round; `None` if the core was disturbed for too long.
    let mut added: Vec<Vec<Option<f64>>> = vec![Vec::new(); contenders.len()];
    let mut bases = Vec::new();
    for round in 0..rounds {
        for step in 0..contenders.len() {
            // Another order each time, so that no contender always follows the same one.
            let index = (step + round) % contenders.len();
            let before = players.play()?;
            let recorder = match (contenders[index].1)() {
                Ok(recorder) => recorder,
                Err(error) => {
                    if round == 0 {
                        println!("{} is left out: {error}", contenders[index].0);
                    }
                    continue;
                }
            };
            let during = players.play()?;
            drop(recorder);
            let after = players.play()?;
            let base = before.zip(after).map(|(one, other)| (one + other) / 2.0);
            added[index].push(during.zip(base).map(|(during, base)| during - base));
            bases.extend(base);
        }
    }
    if bases.is_empty() {
        return Err("the core is never undisturbed: nothing can be measured".into());
    }
    let [low, middle, high] = quartiles(&mut bases);
    println!("a switch takes {middle:.0} ns ({low:.0} to {high:.0}); {rounds} rounds");
    println!();
    println!("| added per switch | mean ns | 99 % | rounds |\n|---|--:|--:|--:|");
    let mut of: BTreeMap<&str, &[Option<f64>]> = BTreeMap::new();
    for ((name, _), values) in contenders.iter().zip(&added) {
        let known: Vec<f64> = values.iter().flatten().copied().collect();
        if let Some(estimate) = Estimate::of(&known) {
            let (mean, within) = (estimate.mean_ns, estimate.within_ns);
            println!("| {name} | {mean:.0} | ±{within:.0} | {} |", known.len());
        }
        of.insert(name, values);
    }
    println!();
    let tracked = of["a kernel monitor, tracked"];
    let second: Vec<_> = of["two kernel monitors, tracked"]
        .iter()
        .zip(tracked)
        .map(|(two, one)| two.zip(*one).map(|(two, one)| two - one))
        .collect();
    let untracked = of["a kernel monitor, untracked"];
    let (ftrace, perf) = (
        of["ftrace sched_switch"],
        of["perf record -e sched:sched_switch"],
    );
    judge("untracked", untracked, "ftrace", ftrace, 0.75);
    let alone = of["a kernel monitor of switches, tracked"];
    judge("tracked, switches alone", alone, "perf record", perf, 0.6);
    let same = of["perf record of switches and wake-ups"];
    let what = "tracked, with wake-ups";
    judge(what, tracked, "perf record of the same events", same, 0.6);
    judge(what, tracked, "perf record without wake-ups", perf, 0.6);
    judge("a second monitor", &second, "the first", tracked, 0.5);
    println!();
    let done = table_3(&mut players, rounds, &contenders);
    if mounted {
        let _ = Command::new("umount").arg(TRACEFS).status();
    }
    done
}

/// Judges whether something costs at most a share of something else, by the rounds in which both
/// are known.
fn judge(what: &str, some: &[Option<f64>], of_what: &str, whole: &[Option<f64>], target: f64) {
    let both = some.iter().zip(whole);
    let both: Vec<(f64, f64)> = both.filter_map(|(some, whole)| some.zip(*whole)).collect();
    let above: Vec<f64> = both
        .iter()
        .map(|(some, whole)| some - target * whole)
        .collect();
    let Some(above) = Estimate::of(&above) else {
        return;
    };
    let sum = |which: fn(&(f64, f64)) -> f64| both.iter().map(which).sum::<f64>();
    let ratio = sum(|both| both.0) / sum(|both| both.1);
    let verdict = match above.mean_ns {
        _ if above.may_be_zero() => "not distinguishable from it",
        mean if mean < 0.0 => "met",
        _ => "missed",
    };
    println!("{what}: {ratio:.2} of {of_what}, target {target}: {verdict}");
}

type Begin<'a> = Box<dyn Fn() -> Result<Recorder, Box<dyn Error>> + 'a>;

/// [GRTMon, table 3]: a round trip with an invocation of each sensor, without and with a record of
/// switches. The columns are measured in turns, and so are the sensors.
fn table_3(
    players: &mut Players,
    rounds: usize,
    contenders: &[(&str, Begin<'_>)],
) -> Result<(), Box<dyn Error>> {
    let is_column = |name: &str| {
        name == "a kernel monitor, tracked"
            || name == "a kernel monitor of switches, tracked"
            || name.starts_with("ftrace")
            || name.starts_with("perf record -e")
    };
    let columns = contenders.iter().filter(|(name, _)| is_column(name));
    let columns: Vec<Option<&(&str, Begin<'_>)>> =
        [None].into_iter().chain(columns.map(Some)).collect();
    let mut trips: BTreeMap<(usize, Invoked), Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for step in 0..columns.len() {
            let index = (step + round) % columns.len();
            let recorder = match columns[index].map(|(_, begin)| begin()).transpose() {
                Ok(recorder) => recorder,
                // The reason was printed above.
                Err(_) => continue,
            };
            for turn in 0..Invoked::ALL.len() {
                let invoked = Invoked::ALL[(turn + round) % Invoked::ALL.len()];
                let spent = players.play_with(invoked)?;
                trips.entry((index, invoked)).or_default().extend(spent);
            }
            drop(recorder);
        }
    }
    let names = columns
        .iter()
        .map(|one| one.map_or("switches not recorded", |(name, _)| name));
    let names: Vec<&str> = names.collect();
    println!("| a round trip, median ns | {} |", names.join(" | "));
    println!("|---|{}", "--:|".repeat(columns.len()));
    for invoked in Invoked::ALL {
        let median = |index| {
            let values = trips.get_mut(&(index, invoked));
            values.map_or("".to_owned(), |values| {
                format!("{:.0}", quartiles(values)[1])
            })
        };
        let row: Vec<String> = (0..columns.len()).map(median).collect();
        println!("| {} | {} |", invoked.name(), row.join(" | "));
    }
    Ok(())
}
