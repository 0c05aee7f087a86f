// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitoring overhead of a run, by the calibration of its machine.

use std::collections::BTreeMap;

use overhear_event::{Analysis, Nanos};
use overhear_metrics::{AssumedElements, Costs, Observer, OverheadMeter, Scheduling};
use serde::{Deserialize, Serialize};

use crate::calibrate::Calibration;

/// Monitoring overhead of a run, estimated. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverheadReport {
    /// When the calibration was measured, in seconds since 1970.
    pub measured_at: u64,
    /// The sum of all parts below.
    pub total_ns: u64,
    /// `total_ns` divided by the running time of all threads; null if no thread was observed.
    pub share: Option<f64>,
    /// Number of elements.
    pub elements: u64,
    /// Cost of kernel elements for the threads in whose context they were written, by descending
    /// cost.
    pub threads: Vec<ThreadOverhead>,
    /// Cost of the programs' own sensors, by descending cost.
    pub programs: Vec<ProgramOverhead>,
    /// Cost of elements that were written in interrupts and by unknown threads.
    pub interrupts_ns: u64,
    /// Cost of missed elements.
    pub missed_ns: u64,
    /// Elements of unknown cost, which is not included.
    pub unpriced: Vec<Unpriced>,
    /// Elements whose cost was not measured, and is included at the price of other elements.
    #[serde(default)]
    pub assumed: Vec<Assumed>,
    /// Messages about the calibration.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Monitoring overhead of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadOverhead {
    /// Process; 0 if it is not known.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its newest name; empty if the thread was not tracked and ended before its name was read.
    pub comm: String,
    /// Its cost.
    #[serde(alias = "intrusion_ns")]
    pub overhead_ns: u64,
}

/// Monitoring overhead of a program, by its own sensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramOverhead {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The cost of its sensors.
    #[serde(alias = "intrusion_ns")]
    pub overhead_ns: u64,
}

/// Elements without a price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unpriced {
    /// The name of their event.
    pub event: String,
    /// Number of elements.
    pub elements: u64,
}

/// Elements with a price that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assumed {
    /// The name of their event.
    pub event: String,
    /// Number of elements, missed ones included.
    pub elements: u64,
    /// The sensor whose price is used; null in calibrations of older versions, which used the
    /// highest price.
    pub instead: Option<String>,
    /// The reason that it was not measured; null in calibrations of older versions.
    pub because: Option<String>,
}

/// The prices of a calibration, and the sum of the costs of a run's elements.
#[derive(Debug)]
pub struct CalibratedOverhead {
    calibration: Calibration,
    meter: OverheadMeter,
}

impl CalibratedOverhead {
    /// The prices of this calibration, without elements.
    #[must_use]
    pub fn new(calibration: Calibration) -> Self {
        let assumed = calibration.kernel.iter().filter(|cost| cost.assumed);
        let assumed = assumed.map(|cost| cost.sensor.clone());
        Self {
            meter: OverheadMeter::new(calibration.costs()).with_assumed(assumed),
            calibration,
        }
    }

    /// The analysis that counts the run's elements.
    pub fn analysis(&mut self) -> &mut dyn Analysis {
        &mut self.meter
    }

    /// The price of each element.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.meter.costs().clone()
    }

    /// The calibration, for the recording.
    pub const fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    fn assumed(&self, elements: AssumedElements) -> Assumed {
        let mut costs = self.calibration.kernel.iter();
        let cost = costs.find(|cost| cost.sensor == elements.price);
        Assumed {
            event: elements.event,
            elements: elements.elements,
            instead: cost.and_then(|cost| cost.instead.clone()),
            because: cost.and_then(|cost| cost.because.clone()),
        }
    }

    pub(crate) fn report<O: Observer>(&self, scheduling: &Scheduling<O>) -> OverheadReport {
        let meter = &self.meter;
        let mut known = BTreeMap::new();
        let mut run = Nanos::ZERO;
        for thread in scheduling.threads() {
            run = run.plus(thread.run);
            known.insert(thread.tid, (thread.pid, thread.comm.clone()));
        }
        let threads = meter.threads().into_iter().map(|(tid, cost)| {
            let (pid, comm) = known.get(&tid).cloned().unwrap_or_default();
            ThreadOverhead {
                pid,
                tid,
                comm,
                overhead_ns: cost.as_ns(),
            }
        });
        let programs = meter.processes().into_iter();
        let programs = programs.map(|(pid, cost)| ProgramOverhead {
            pid,
            comm: meter.process_name(pid).unwrap_or_default().to_string(),
            overhead_ns: cost.as_ns(),
        });
        let unpriced = meter.unpriced().map(|(event, elements)| Unpriced {
            event: event.to_string(),
            elements,
        });
        let assumed = meter.assumed().into_iter();
        OverheadReport {
            measured_at: self.calibration.measured_at,
            total_ns: meter.total().as_ns(),
            share: meter.share(run),
            elements: meter.elements(),
            threads: threads.collect(),
            programs: programs.collect(),
            interrupts_ns: meter.interrupts().as_ns(),
            missed_ns: meter.missed().as_ns(),
            unpriced: unpriced.collect(),
            assumed: assumed.map(|it| self.assumed(it)).collect(),
            notes: self.calibration.age().into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::OverheadReport;
    use crate::calibrate::KernelCost;

    #[test]
    fn keys_of_version_0_1_0_are_read() {
        let cost = json!({ "mean_ns": 200.0, "deviation_ns": 1.0, "within_ns": 0.5, "samples": 9 });
        let kernel = json!({ "sensor": "syscall", "by": null, "firing": cost, "constant": null,
            "assumed": false });
        let kernel: KernelCost = serde_json::from_value(kernel).unwrap();
        assert_eq!(kernel.cost_per_event.mean_ns, 200.0);
        assert_eq!(
            serde_json::to_value(&kernel).unwrap()["cost_per_event"],
            cost
        );
        let report = json!({
            "measured_at": 1, "total_ns": 30, "share": null, "elements": 3,
            "threads": [{ "pid": 7, "tid": 8, "comm": "a", "intrusion_ns": 20 }],
            "programs": [{ "pid": 7, "comm": "a", "intrusion_ns": 10 }],
            "interrupts_ns": 0, "missed_ns": 0, "unpriced": [],
        });
        let report: OverheadReport = serde_json::from_value(report).unwrap();
        let sums = (
            report.threads[0].overhead_ns,
            report.programs[0].overhead_ns,
        );
        assert_eq!(sums, (20, 10));
    }
}
