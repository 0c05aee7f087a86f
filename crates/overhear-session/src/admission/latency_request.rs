// SPDX-License-Identifier: MIT OR Apache-2.0
//! The latency that a file requests, and the lateness of its machine.

use overhear_admission::{AdmissionRequest, Lateness, Ratio};
use overhear_event::Nanos;

use super::error::MonitorError;
use crate::config::selection::Selection;
use crate::config::Config;

/// The latency that the updates of a selection request, and the admission request for it.
#[derive(Clone, Debug)]
pub(super) struct LatencyRequest {
    pub(super) latency: Nanos,
    /// The entry that states the latency: `[monitor]`, or an update with a colon.
    pub(super) entry: String,
    pub(super) lateness: Lateness,
    pub(super) request: AdmissionRequest,
}

impl LatencyRequest {
    /// The request of a selection. It is an error if the lateness of the machine alone exceeds it.
    pub(super) fn checked(config: &Config, selection: &Selection) -> Result<Self, MonitorError> {
        let monitor = &config.monitor;
        let (least, largest) = (monitor.least_period.0, monitor.largest_period.0);
        if largest < least {
            return Err(MonitorError::Periods { largest, least });
        }
        let total = lateness_of(config).total();
        let total = total.map_err(MonitorError::Lateness)?;
        let request = Self::of(config, selection, total)?;
        if total >= request.latency {
            return Err(MonitorError::ShortLatency {
                entry: request.entry,
                latency: request.latency,
                lateness: total,
            });
        }
        Ok(request)
    }

    /// The request of a selection. `total` is the sum of the lateness.
    pub(super) fn of(
        config: &Config,
        selection: &Selection,
        total: Nanos,
    ) -> Result<Self, MonitorError> {
        let (entry, latency) = requested_latency(config, selection)?;
        let monitor = &config.monitor;
        Ok(Self {
            latency,
            entry,
            lateness: lateness_of(config),
            request: AdmissionRequest {
                latency: latency.into(),
                least_period: monitor.least_period.0,
                largest_period: monitor.largest_period.0,
                overhead: monitor.overhead.0,
                lateness: total,
                density: Ratio::new(monitor.cpu_percent.into(), 100).unwrap_or(Ratio::whole(1)),
                joint_bound: monitor.joint_bound,
            },
        })
    }
}

/// The least latency that the updates of a selection request, and the entry that states it.
fn requested_latency(
    config: &Config,
    selection: &Selection,
) -> Result<(String, Nanos), MonitorError> {
    let of_monitor = || {
        let latency = config.monitor.latency.ok_or(MonitorError::NoLatency)?;
        Ok((latency.0, "[monitor]".to_string()))
    };
    let updates = config.updates.iter().enumerate();
    let selected = updates.filter(|(index, _)| selection.has_update(*index));
    let latencies = selected.map(|(_, update)| match update.latency {
        Some(latency) => Ok((latency.0, format!("update `{}`:", update.name))),
        None => of_monitor(),
    });
    let latencies = latencies.collect::<Result<Vec<_>, MonitorError>>()?;
    let least = latencies.into_iter().min_by_key(|(latency, _)| *latency);
    let (latency, entry) = least.map_or_else(of_monitor, Ok)?;
    Ok((entry, latency))
}

/// Length of time for which buffers hold elements: the requested latency; without one, the longest
/// period.
pub(super) fn buffered_length(config: &Config, selection: &Selection) -> Nanos {
    let requested = requested_latency(config, selection);
    requested.map_or(config.monitor.largest_period.0, |(_, latency)| latency)
}

pub(super) const fn lateness_of(config: &Config) -> Lateness {
    let monitor = &config.monitor;
    Lateness {
        wake_up: monitor.wake_up_lateness.0,
        tardiness: monitor.scheduler_lateness.0,
        hold_back: monitor.hold_back.0,
    }
}
