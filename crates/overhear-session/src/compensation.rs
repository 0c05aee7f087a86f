// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports in compensated time: the monitoring overhead is subtracted from the time stamps.

use overhear_event::{Analysis, Nanos, Timestamp};
use overhear_metrics::compensation::{Compensation, Delays};
use overhear_metrics::{Costs, Scheduling, SensorStatistics};
use overhear_monitor::Fanout;
use overhear_trace::{ReplaySummary, TraceReader};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, SessionError, Setting};

/// What the compensation of a run did. All times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompensationReport {
    /// The time by which the run would have ended earlier.
    pub removed_ns: u64,
    /// The largest delay that was subtracted from an element.
    pub greatest_ns: u64,
    /// Number of times a CPU would have been idle and was not.
    pub rests: u64,
    /// Whether delays are passed on to woken threads. Without wake-ups each CPU is compensated by
    /// itself.
    #[serde(default = "default_true")]
    pub along_wakeups: bool,
    /// Elements whose order is less exact, because too many were held back at once.
    #[serde(default)]
    pub hurried: u64,
}

const fn default_true() -> bool {
    true
}

impl CompensationReport {
    pub(crate) fn of(delays: &Delays, has_wakeups: bool) -> Self {
        Self {
            removed_ns: delays.last().as_ns(),
            greatest_ns: delays.greatest().as_ns(),
            rests: delays.rests(),
            along_wakeups: has_wakeups,
            hurried: delays.hurried(),
        }
    }
}

/// The time `end` without the last of these delays.
pub fn end(end: Timestamp, delays: Option<&Delays>) -> Timestamp {
    end.minus(delays.map_or(Nanos::ZERO, Delays::last))
}

/// The accounts of threads and sensors, with recorded or with compensated times.
pub(crate) enum Accounts<'a> {
    Recorded(Fanout<'a>),
    Compensated(Box<Compensation<Fanout<'a>>>),
}

impl<'a> Accounts<'a> {
    /// The times are compensated if there are costs.
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

    pub(crate) fn analysis(&mut self) -> &mut (dyn Analysis + 'a) {
        match self {
            Self::Recorded(accounts) => accounts,
            Self::Compensated(compensation) => &mut **compensation,
        }
    }

    /// Passes on the elements that are held back.
    pub(crate) fn finish(self) -> Option<Delays> {
        match self {
            Self::Recorded(_) => None,
            Self::Compensated(compensation) => Some(compensation.finish()),
        }
    }
}

pub(crate) fn no_calibration() -> SessionError {
    let message =
        "times cannot be compensated, because there is no calibration; run `overhear calibrate`, \
                   or name a calibration file";
    SessionError::new(ErrorKind::Usage, message).about(Setting::Calibration)
}

/// The costs of elements by the calibration of the recording.
///
/// # Errors
/// [`SessionError`] if it has none.
pub fn costs_of(reader: &TraceReader) -> Result<Costs, SessionError> {
    let costs = recorded_costs(reader)?;
    costs.ok_or_else(no_calibration)
}

/// As [`costs_of`]; `None` if the recording has no calibration.
pub fn recorded_costs(reader: &TraceReader) -> Result<Option<Costs>, SessionError> {
    overhear_trace::recorded_costs(reader)
        .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}

/// Number of elements between two checks whether a replay goes on.
const STEP_ELEMENTS: u64 = 65_536;

/// Replays a recording, in compensated time if there are costs.
pub fn replay(
    reader: &TraceReader,
    costs: Option<Costs>,
    updates: Vec<&mut dyn Analysis>,
) -> ReplaySummary {
    replay_while(reader, costs, updates, || true)
}

/// As [`replay`], as long as `goes_on` returns true.
pub fn replay_while(
    reader: &TraceReader,
    costs: Option<Costs>,
    updates: Vec<&mut dyn Analysis>,
    goes_on: impl Fn() -> bool,
) -> ReplaySummary {
    let replay = |update: &mut dyn Analysis| {
        let mut replay = reader.begin_replay();
        while replay.step(STEP_ELEMENTS, &mut [&mut *update]) && goes_on() {}
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
            let expected = calibration.clone().for_backend(active).costs();
            assert_eq!(costs, Some(expected), "{active}");
        }
    }
}
