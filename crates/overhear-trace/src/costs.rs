// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of observing, from the calibration that a recording contains.

use overhear_metrics::Costs;

use crate::{ReadError, TraceReader};

/// The cost of one element for the observed thread, per sensor, as measured by `overhear calibrate`
/// before the recording; `None` if the recording has no calibration.
/// [`Results::minus_costs`](overhear_metrics::automaton::Results::minus_costs) subtracts it from
/// the lengths of measurements.
///
/// # Errors
/// [`ReadError`] if the recording's documents are damaged.
pub fn recorded_costs(recording: &TraceReader) -> Result<Option<Costs>, ReadError> {
    let Some(calibration) = recording.document("calibration")? else {
        return Ok(None);
    };
    let mut costs = Costs::default();
    let run = recording.document("run")?.unwrap_or_default();
    let sources = run["sources"].as_array().into_iter().flatten();
    let mut kernels = sources.filter(|source| source["name"] == "kernel");
    let by_perf = kernels.any(|kernel| kernel["active"] == "perf");
    if by_perf {
        // A calibration prices only one kind of perf record: context switches.
        if let Some(ns) = calibration["perf"]["mean_ns"].as_f64() {
            costs.kernel(overhear_event::kernel::SCHED_SWITCH, ns);
        }
    } else {
        for cost in calibration["kernel"].as_array().into_iter().flatten() {
            // Recordings of version 0.1.0 have `firing` instead.
            let per_event = cost.get("cost_per_event").or_else(|| cost.get("firing"));
            let price = per_event.and_then(|cost| cost["mean_ns"].as_f64());
            if let (Some(sensor), Some(ns)) = (cost["sensor"].as_str(), price) {
                costs.kernel(sensor, ns);
            }
        }
    }
    for cost in calibration["programs"].as_array().into_iter().flatten() {
        match (cost["kind"].as_str(), cost["write"]["mean_ns"].as_f64()) {
            (Some("simple"), Some(ns)) => costs.simple(ns),
            (Some("laned"), Some(ns)) => costs.laned(ns),
            (Some("concurrent"), Some(ns)) => costs.concurrent(ns),
            _ => {}
        }
    }
    Ok(Some(costs))
}

#[cfg(test)]
mod tests {
    use crate::{TraceIdentity, TraceReader, TraceWriter};
    use overhear_event::{EventName, Nanos};
    use serde_json::json;

    use super::recorded_costs;

    #[test]
    fn costs_are_those_of_the_active_kernel_backend() {
        let calibration = json!({
            "kernel": [{"sensor": "sched_switch", "cost_per_event": {"mean_ns": 202.3}},
                       {"sensor": "syscall", "firing": {"mean_ns": 233.0}}],
            "perf": {"mean_ns": 890.0},
            "programs": [{"kind": "simple", "write": {"mean_ns": 9.0}}],
        });
        for (active, switch, syscall) in [("bpf", 202, Some(233)), ("perf", 890, None)] {
            let folder = tempfile::tempdir().unwrap();
            let mut writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
            let run = json!({"sources": [{"name": "programs", "active": "perf"},
                                         {"name": "kernel", "active": active}]});
            writer.attach_document("run", &run).unwrap();
            writer.attach_document("calibration", &calibration).unwrap();
            writer.finish().unwrap();
            let reader = TraceReader::open(folder.path()).unwrap();
            let costs = recorded_costs(&reader).unwrap().unwrap();
            let of = |event: EventName| costs.of_event(&event).map(Nanos::as_ns);
            assert_eq!(of(EventName::kernel("sched_switch")), Some(switch));
            assert_eq!(of(EventName::kernel("syscall")), syscall);
            assert_eq!(of(EventName::user("a")), Some(9));
        }
    }

    #[test]
    fn recording_without_calibration_has_no_costs() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(folder.path(), TraceIdentity::default()).unwrap();
        writer.finish().unwrap();
        let reader = TraceReader::open(folder.path()).unwrap();
        assert_eq!(recorded_costs(&reader).unwrap(), None);
    }
}
