// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of a sample at a context switch. Two processes on one CPU pass a byte to and fro
//! through pipes, as in the bench `switch_cost`: with a kernel monitor of switches, and with a
//! sampler of both processes besides. Another contender is a tracepoint whose program ignores the
//! processes: the least that a program at switches costs.
//!
//! The values are differences to the monitor alone in the same round, so drifts of the machine
//! cancel. `cargo bench -p overhear-kernel --bench samples_at_switch -- [ROUNDS]`; as root, on a
//! machine with two CPUs or more. The target is judged here and asserted by no test.
#![allow(missing_docs)]

#[allow(dead_code, reason = "it is shared with another bench")]
#[path = "../switch_cost/players.rs"]
mod players;

use std::error::Error;

use overhear_kernel::{Backend, CountingInbox, FlowPoint, KernelMonitor, KernelSampler, Probe};
use overhear_metrics::Estimate;
use players::{bind, Players};

/// Most nanoseconds that a sample may add to a switch.
const TARGET_NS: f64 = 500.0;

/// What records during a measurement, besides the monitor of switches.
enum Contender {
    Nothing,
    EmptyTracepoint,
    Sampler(&'static [&'static str]),
}

const CONTENDERS: [(&str, Contender); 7] = [
    ("nothing, again", Contender::Nothing),
    (
        "a tracepoint whose program does nothing",
        Contender::EmptyTracepoint,
    ),
    ("one account", Contender::Sampler(&["cpu-time"])),
    (
        "six accounts",
        Contender::Sampler(&[
            "cpu-time",
            "wait-time",
            "voluntary-switches",
            "involuntary-switches",
            "minor-faults",
            "major-faults",
        ]),
    ),
    ("one counter", Contender::Sampler(&["cpu-clock"])),
    (
        "one account and two counters",
        Contender::Sampler(&["cpu-time", "cpu-clock", "alignment-faults"]),
    ),
    (
        "four counters of the CPU",
        Contender::Sampler(&["cycles", "instructions", "llc-misses", "branch-misses"]),
    ),
];

fn begin(contender: &Contender, pids: &[u32]) -> Result<Vec<KernelMonitor>, Box<dyn Error>> {
    let builder = || {
        let switches = "sched_switch".parse();
        switches.map(|it| KernelMonitor::builder().backend(Backend::Bpf).sensors([it]))
    };
    let mut builder_of_players = builder()?;
    if let Contender::Sampler(quantities) = contender {
        let sampler = KernelSampler::new("samples").quantities(quantities.iter().copied());
        builder_of_players = builder_of_players.samplers([sampler.at(FlowPoint::Switch)]);
    }
    let mut monitor = builder_of_players.create()?;
    for &pid in pids {
        monitor.thread_monitor(pid, pid)?;
    }
    monitor.resume()?;
    let mut all = vec![monitor];
    if let Contender::EmptyTracepoint = contender {
        let probe = Probe::tracepoint("sched_switch")?;
        let mut ignoring = builder()?.probes([probe]).create()?;
        ignoring.resume()?;
        all.push(ignoring);
    }
    Ok(all)
}

/// Nanoseconds per switch; `None` if the core stays disturbed.
fn play(players: &mut Players, contender: &Contender) -> Result<Option<f64>, Box<dyn Error>> {
    let mut monitors = begin(contender, &players.pids)?;
    let time = players.play()?;
    let mut count = CountingInbox::default();
    for monitor in &mut monitors {
        monitor.read(&mut count)?;
    }
    Ok(time)
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
    let mut added: [Vec<f64>; CONTENDERS.len()] = Default::default();
    let mut ratios: [Vec<f64>; CONTENDERS.len()] = Default::default();
    for round in 0..rounds {
        for step in 0..CONTENDERS.len() {
            // Another order each time, so that no contender always follows the same one.
            let index = (step + round) % CONTENDERS.len();
            let (name, contender) = &CONTENDERS[index];
            let before = play(&mut players, &Contender::Nothing)?;
            let during = match play(&mut players, contender) {
                Ok(during) => during,
                Err(error) => {
                    if round == 0 {
                        println!("{name} is left out: {error}");
                    }
                    continue;
                }
            };
            let after = play(&mut players, &Contender::Nothing)?;
            if let (Some(before), Some(during), Some(after)) = (before, during, after) {
                let base = before.midpoint(after);
                added[index].push(during - base);
                ratios[index].push(during / base);
            }
        }
    }
    println!(
        "| besides a monitor of switches | added ns | 99 % | median ratio | rounds | target |"
    );
    println!("|---|--:|--:|--:|--:|---|");
    for (((name, contender), values), ratios) in CONTENDERS.iter().zip(&added).zip(&mut ratios) {
        let Some(estimate) = Estimate::of(values) else {
            continue;
        };
        let (mean, within) = (estimate.mean_ns, estimate.within_ns);
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ratios.len() / 2];
        let verdict = match contender {
            Contender::Sampler(_) if mean + within <= TARGET_NS => "met",
            Contender::Sampler(_) if mean - within > TARGET_NS => "missed",
            Contender::Sampler(_) => "not known",
            _ => "",
        };
        let rounds = values.len();
        println!("| {name} | {mean:.0} | ±{within:.0} | {ratio:.3} | {rounds} | {verdict} |");
    }
    Ok(())
}
