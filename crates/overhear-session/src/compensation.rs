// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports in compensated time: what observing has cost is subtracted from the time stamps.

use overhear_event::{Analysis, Nanos, Timestamp};
use overhear_metrics::compensation::{Compensation, Delays};
use overhear_metrics::{Costs, Scheduling, SensorStatistics};
use overhear_monitor::Fanout;
use overhear_trace::{ReplaySummary, TraceReader};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, SessionError};

/// What the compensation of a run did. All times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompensationReport {
    /// By how much the run would have ended earlier.
    pub removed_ns: u64,
    /// By how much an element was moved at most.
    pub greatest_ns: u64,
    /// How often a CPU would have rested where it did not.
    pub rests: u64,
    /// Whether delays are carried along to those that are woken. Without wake-ups the rule of one
    /// CPU holds, on each CPU.
    #[serde(default = "yes")]
    pub along_wakeups: bool,
    /// Elements whose order is less exact, because too many were held back at one time.
    #[serde(default)]
    pub hurried: u64,
}

const fn yes() -> bool {
    true
}

impl CompensationReport {
    pub(crate) fn of(delays: &Delays, hears_wakeups: bool) -> Self {
        Self {
            removed_ns: delays.last().as_ns(),
            greatest_ns: delays.greatest().as_ns(),
            rests: delays.rests(),
            along_wakeups: hears_wakeups,
            hurried: delays.hurried(),
        }
    }
}

/// When what ended at `end` would have, with these delays, if there are some.
pub fn end(end: Timestamp, delays: Option<&Delays>) -> Timestamp {
    end.minus(delays.map_or(Nanos::ZERO, Delays::last))
}

/// The accounts of threads and sensors, which see recorded times or compensated ones.
pub(crate) enum Accounts<'a> {
    Recorded(Fanout<'a>),
    Compensated(Box<Compensation<Fanout<'a>>>),
}

impl<'a> Accounts<'a> {
    /// They see compensated times if there are costs.
    pub(crate) fn new(
        scheduling: &'a mut Scheduling,
        statistics: &'a mut SensorStatistics,
        costs: Option<Costs>,
    ) -> Self {
        let accounts = Fanout(vec![scheduling, statistics]);
        match costs {
            None => Self::Recorded(accounts),
            Some(costs) => Self::Compensated(Box::new(Compensation::new(costs, accounts))),
        }
    }

    pub(crate) fn update(&mut self) -> &mut (dyn Analysis + 'a) {
        match self {
            Self::Recorded(accounts) => accounts,
            Self::Compensated(compensation) => &mut **compensation,
        }
    }

    /// Hands on what is held back.
    pub(crate) fn finish(self) -> Option<Delays> {
        match self {
            Self::Recorded(_) => None,
            Self::Compensated(compensation) => Some(compensation.finish()),
        }
    }
}

pub(crate) fn no_calibration() -> SessionError {
    let message = "--compensate needs to know what observing costs, and there is no calibration; run `overhear calibrate`, or name one by --calibration FILE";
    SessionError::new(ErrorKind::Usage, message)
}

/// What the recording's calibration says that observing has cost.
///
/// # Errors
/// [`SessionError`] if it has none.
pub fn costs_of(reader: &TraceReader) -> Result<Costs, SessionError> {
    let costs = recorded_costs(reader)?;
    costs.ok_or_else(no_calibration)
}

/// The same, `None` if it has none.
pub fn recorded_costs(reader: &TraceReader) -> Result<Option<Costs>, SessionError> {
    overhear_trace::recorded_costs(reader)
        .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}

/// Elements between two looks whether a replay goes on.
const STEP: u64 = 65_536;

/// Replays a recording, in compensated time if there are costs.
pub fn replay(
    reader: &TraceReader,
    costs: Option<Costs>,
    updates: Vec<&mut dyn Analysis>,
) -> ReplaySummary {
    replay_while(reader, costs, updates, || true)
}

/// The same, as long as this holds.
pub fn replay_while(
    reader: &TraceReader,
    costs: Option<Costs>,
    updates: Vec<&mut dyn Analysis>,
    holds: impl Fn() -> bool,
) -> ReplaySummary {
    let replay = |update: &mut dyn Analysis| {
        let mut replay = reader.begin_replay();
        while replay.step(STEP, &mut [&mut *update]) && holds() {}
        replay.into_summary()
    };
    let mut updates = Fanout(updates);
    let Some(costs) = costs else {
        return replay(&mut updates);
    };
    let mut compensation = Compensation::new(costs, updates);
    let summary = replay(&mut compensation);
    compensation.finish();
    summary
}

#[cfg(test)]
mod tests {
    use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};
    use serde_json::json;

    use super::recorded_costs;
    use crate::calibrate::Calibration;

    #[test]
    fn recording_has_the_prices_of_its_calibration() {
        let cost =
            |ns| json!({ "mean_ns": ns, "deviation_ns": 1.0, "within_ns": 0.5, "samples": 41 });
        let kernel = |sensor, ns| {
            json!({ "sensor": sensor, "by": "hand", "cost_per_event": cost(ns), "constant": null,
                    "assumed": false })
        };
        let program =
            |kind, ns| json!({ "kind": kind, "write": cost(ns), "switched_off": cost(1.0) });
        let document = json!({
            "overhear_version": "0.1.0", "measured_at": 1, "cpu": "", "release": "", "rounds": 41,
            "kernel": [kernel("sched_switch", 202.3), kernel("probe", 872.0)], "perf": cost(890.0),
            "programs": [program("simple", 9.0), program("laned", 12.0), program("concurrent", 40.0)],
            "reading": [], "notes": [],
        });
        let calibration: Calibration = serde_json::from_value(document.clone()).unwrap();
        for active in ["bpf", "perf", "none"] {
            let folder = tempfile::tempdir().unwrap();
            let mut writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
            writer.attach_document("calibration", &document).unwrap();
            let source = json!({ "name": "kernel", "active": active, "message": "" });
            let run = json!({ "sources": [source] });
            writer.attach_document("run", &run).unwrap();
            writer.finish().unwrap();
            let reader = TraceReader::open(folder.path()).unwrap();
            let costs = recorded_costs(&reader).unwrap();
            let expected = calibration.clone().heard_by(active).costs();
            assert_eq!(costs, Some(expected), "{active}");
        }
    }
}
