// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run's observation has cost, by the calibration of the machine that it ran on.

use std::collections::BTreeMap;

use overhear_event::{
    ElementView, Gap, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, Update,
};
use overhear_metrics::{price_name, Costs, Intrusion, Observer, Scheduling};
use serde::{Deserialize, Serialize};

use crate::calibrate::{Calibration, KernelCost};

/// The document of a recording that keeps the calibration.
pub const CALIBRATION: &str = "calibration";

/// What the observation has cost, estimated. All times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntrusionReport {
    /// When the calibration was measured, in seconds since 1970.
    pub measured_at: u64,
    /// All of the following together.
    pub total_ns: u64,
    /// `total_ns` by the time that threads ran; null if none was seen to run.
    pub share: Option<f64>,
    /// Elements that were counted.
    pub elements: u64,
    /// What elements of the kernel cost the threads in whose context they were written, the dearest
    /// first.
    pub threads: Vec<ThreadIntrusion>,
    /// What programs' own sensors cost them, the dearest first.
    pub programs: Vec<ProgramIntrusion>,
    /// What was written in interrupts, and by threads that are not known.
    pub interrupts_ns: u64,
    /// What missed elements cost.
    pub missed_ns: u64,
    /// Elements whose cost is not known, and is not contained.
    pub unpriced: Vec<Unpriced>,
    /// Elements whose cost was not measured, and is contained as that of others.
    #[serde(default)]
    pub assumed: Vec<Assumed>,
    /// What else is to be known of the calibration, as sentences.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What the observation cost a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadIntrusion {
    /// Process; 0 if the thread was only seen in passing.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its newest name; empty if it was only seen in passing, and had ended before it could be looked up.
    pub comm: String,
    /// Its cost.
    pub intrusion_ns: u64,
}

/// What the sensors of a program cost it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramIntrusion {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Their cost.
    pub intrusion_ns: u64,
}

/// Elements without a price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unpriced {
    /// The name of their event.
    pub event: String,
    /// How many.
    pub elements: u64,
}

/// Elements with a price that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assumed {
    /// The name of their event.
    pub event: String,
    /// How many, missed ones among them.
    pub elements: u64,
    /// The sensor whose price was taken; null in calibrations of older versions, which took the dearest.
    pub instead: Option<String>,
    /// Why it was not measured; null in calibrations of older versions.
    pub because: Option<String>,
}

/// Adds up while elements flow.
#[derive(Debug)]
pub struct Meter {
    calibration: Calibration,
    intrusion: Intrusion,
    comms: BTreeMap<u32, String>,
    // Streams of the kernel whose price is assumed: their event, its price's name, and how many elements.
    assumed: BTreeMap<StreamId, (String, String, u64)>,
}

impl Meter {
    /// A meter with the prices of this calibration.
    #[must_use]
    pub fn new(calibration: Calibration) -> Self {
        Self {
            intrusion: Intrusion::new(calibration.costs()),
            calibration,
            comms: BTreeMap::new(),
            assumed: BTreeMap::new(),
        }
    }

    /// By event.
    fn assumed(&self) -> Vec<Assumed> {
        let mut found: Vec<Assumed> = Vec::new();
        for (event, price, elements) in self.assumed.values().filter(|(.., count)| *count > 0) {
            if let Some(known) = found.iter_mut().find(|known| known.event == *event) {
                known.elements = known.elements.saturating_add(*elements);
            } else if let Some(cost) = self.price(price) {
                found.push(Assumed {
                    event: event.clone(),
                    elements: *elements,
                    instead: cost.instead.clone(),
                    because: cost.because.clone(),
                });
            }
        }
        found
    }

    fn price(&self, name: &str) -> Option<&KernelCost> {
        let mut costs = self.calibration.kernel.iter();
        costs.find(|cost| cost.sensor == name)
    }

    /// The price of each element.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.calibration.costs()
    }

    /// The calibration, for the recording.
    pub const fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    pub(crate) fn report<O: Observer>(&self, scheduling: &Scheduling<O>) -> IntrusionReport {
        let intrusion = &self.intrusion;
        let mut known = BTreeMap::new();
        let mut run = Nanos::ZERO;
        for thread in scheduling.threads() {
            run = run.plus(thread.run);
            known.insert(thread.tid, (thread.pid, thread.comm.clone()));
        }
        let mut threads: Vec<_> = intrusion
            .threads()
            .map(|(tid, cost)| {
                let (pid, comm) = known.get(&tid).cloned().unwrap_or_default();
                ThreadIntrusion {
                    pid,
                    tid,
                    comm,
                    intrusion_ns: cost.as_ns(),
                }
            })
            .collect();
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.intrusion_ns));
        let mut programs: Vec<_> = intrusion
            .processes()
            .map(|(pid, cost)| ProgramIntrusion {
                pid,
                comm: self.comms.get(&pid).cloned().unwrap_or_default(),
                intrusion_ns: cost.as_ns(),
            })
            .collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.intrusion_ns));
        let total = intrusion.total();
        let unpriced = intrusion.unpriced().map(|(event, elements)| Unpriced {
            event: event.to_string(),
            elements,
        });
        IntrusionReport {
            measured_at: self.calibration.measured_at,
            total_ns: total.as_ns(),
            share: (run > Nanos::ZERO).then(|| total.as_ns() as f64 / run.as_ns() as f64),
            elements: intrusion.elements(),
            threads,
            programs,
            interrupts_ns: intrusion.interrupts().as_ns(),
            missed_ns: intrusion.missed().as_ns(),
            unpriced: unpriced.collect(),
            assumed: self.assumed(),
            notes: self.calibration.age().into_iter().collect(),
        }
    }
}

impl Update for Meter {
    fn open(&mut self, stream: &StreamDescriptor) {
        match &stream.origin {
            Origin::Program(task) => {
                self.comms.insert(task.pid, task.comm.clone());
            }
            Origin::Kernel { .. } => {
                let name = price_name(&stream.sensor);
                if self.price(name).is_some_and(|cost| cost.assumed) {
                    let entry = (stream.event().to_string(), name.to_string(), 0);
                    self.assumed.insert(stream.id, entry);
                }
            }
            Origin::Sampler => {}
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if let Some((.., count)) = self.assumed.get_mut(&element.stream.id) {
            *count += 1;
        }
        self.intrusion.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some((.., count)) = self.assumed.get_mut(&stream.id) {
            *count = count.saturating_add(gap.missed);
        }
        self.intrusion.gap(stream, gap);
    }

    fn advance(&mut self, _: Timestamp) {}
}
