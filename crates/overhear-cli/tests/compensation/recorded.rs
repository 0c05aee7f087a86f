// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload under `overhear record`, and the compensated times of its laps.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overhear_event::kernel::SCHED_SWITCH;
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_metrics::compensation::Compensation;
use overhear_metrics::Costs;
use overhear_session::calibrate::Calibration;
use overhear_trace::TraceReader;

use crate::workload::{Lap, Workload};
use crate::OVERHEAR;

/// The exit status of a run of which something was missed.
const INCONCLUSIVE: i32 = 3;
/// Timeout for the begin and the end of the monitor.
const PATIENCE: Duration = Duration::from_secs(60);

/// The times of the workload's switches, recorded or compensated.
#[derive(Default)]
struct Switches(Vec<Timestamp>);

impl Analysis for Switches {
    fn element(&mut self, element: &ElementView<'_>) {
        if element.stream.sensor == SCHED_SWITCH {
            self.0.push(element.time);
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// Laps under the monitor, and their compensated lengths.
pub(crate) struct Monitored {
    pub(crate) laps: Vec<Lap>,
    pub(crate) compensated_ns: Vec<u64>,
}

/// Runs laps under a monitor. `None` if elements were missed, for example if the monitor did not
/// get a CPU.
pub(crate) fn run(
    workload: &mut Workload,
    out: &Path,
    calibration: &Calibration,
    laps: impl FnOnce(&mut Workload) -> Vec<Lap>,
) -> Result<Option<Monitored>, String> {
    let _ = std::fs::remove_dir_all(out);
    let mut command = Command::new(OVERHEAR);
    command.args(["record", "--backend", "bpf", "--quiet", "--out"]);
    command.arg(out);
    for pid in workload.pids() {
        command.args(["--pid", &pid.to_string()]);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut monitor = command.spawn().unwrap();
    // The trace is created when all threads are selected.
    let begun = Instant::now();
    while !out.join("trace").exists() {
        if monitor.try_wait().unwrap().is_some() {
            let ended = monitor.wait_with_output().unwrap();
            return Err(String::from_utf8_lossy(&ended.stderr).into_owned());
        }
        assert!(begun.elapsed() < PATIENCE, "the monitor does not begin");
        std::thread::yield_now();
    }
    let laps = laps(workload);
    let pid = rustix::process::Pid::from_child(&monitor);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = monitor.wait_with_output().unwrap();
    match ended.status.code() {
        Some(0) => {}
        Some(INCONCLUSIVE) => return Ok(None),
        _ => return Err(String::from_utf8_lossy(&ended.stderr).into_owned()),
    }
    let reader = TraceReader::open(out.join("trace")).unwrap();
    let compensated_ns = compensated(&reader, calibration.costs(), &laps);
    Ok(Some(Monitored {
        laps,
        compensated_ns,
    }))
}

/// The compensated lengths of the laps, by the recording: a lap becomes shorter by the delay of the
/// last switch before its end, less the delay of the last switch before its begin.
fn compensated(reader: &TraceReader, costs: Costs, laps: &[Lap]) -> Vec<u64> {
    let mut plain = Switches::default();
    reader.replay(&mut [&mut plain]);
    let mut compensation = Compensation::new(costs, Switches::default());
    reader.replay(&mut [&mut compensation]);
    let (_, moved) = compensation.into_parts();
    // Compensation keeps the order of the switches, which are all of one CPU.
    assert_eq!(plain.0.len(), moved.0.len());
    let delay_ns = |at_ns: u64| {
        let earlier = plain
            .0
            .partition_point(|time| time.as_monotonic_ns() <= at_ns);
        let last = earlier.checked_sub(1).expect("no switch before a lap");
        plain.0[last].since(moved.0[last]).as_ns()
    };
    // On a crowded machine the prices can exceed the length of a lap.
    let compensated_ns = |lap: &Lap| {
        let until_end_ns = lap.end_ns - lap.begin_ns + delay_ns(lap.begin_ns);
        until_end_ns.saturating_sub(delay_ns(lap.end_ns))
    };
    laps.iter().map(compensated_ns).collect()
}
