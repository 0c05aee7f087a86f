// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices of elements, by sensor.

use std::collections::BTreeMap;

use overhear_event::{EventName, Nanos, Origin, StreamDescriptor, WRITER_TID};

/// Name in [`Costs::kernel`] of probes at entries of functions.
pub const ENTRIES: &str = "probe";
/// Name of probes at returns of functions.
pub const RETURNS: &str = "probe/return";
/// Name of static probes.
pub const STATIC_PROBES: &str = "usdt";

/// The name under which the price of a kernel sensor is kept: its own, or that of its kind of
/// probe.
///
/// ```
/// use overhear_metrics::price_name;
///
/// assert_eq!(price_name("syscall"), "syscall");
/// assert_eq!(price_name("probe/handle_request"), "probe");
/// assert_eq!(price_name("probe/handle_request/return"), "probe/return");
/// assert_eq!(price_name("usdt/app/phase"), "usdt");
/// ```
#[must_use]
pub fn price_name(sensor: &str) -> &str {
    match sensor.split_once('/') {
        Some(("probe", place)) if place.ends_with("/return") => RETURNS,
        Some(("probe", _)) => ENTRIES,
        Some(("usdt", _)) => STATIC_PROBES,
        _ => sensor,
    }
}

/// Prices of elements in nanoseconds: by sensor for the kernel, by kind of sensor for programs.
/// Negative means are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    every: Option<f64>,
    kernel: BTreeMap<String, f64>,
    simple: Option<f64>,
    laned: Option<f64>,
    concurrent: Option<f64>,
}

impl Costs {
    /// Sets the price of a kernel sensor, by its name without `kernel:`, or of a kind of probe
    /// ([`price_name`]).
    pub fn kernel(&mut self, sensor: &str, ns: f64) {
        self.kernel.insert(sensor.to_string(), ns.max(0.0));
    }

    /// Sets the price of an element of a program's simple sensor.
    pub fn simple(&mut self, ns: f64) {
        self.simple = Some(ns.max(0.0));
    }

    /// Sets the price of an element of a program's laned sensor.
    pub fn laned(&mut self, ns: f64) {
        self.laned = Some(ns.max(0.0));
    }

    /// Sets the price of an element of a program's concurrent sensor.
    pub fn concurrent(&mut self, ns: f64) {
        self.concurrent = Some(ns.max(0.0));
    }

    /// Price of an element of this event, rounded to a nanosecond; `None` if unknown. An event of
    /// programs has the price of a simple sensor.
    #[must_use]
    pub fn of_event(&self, event: &EventName) -> Option<Nanos> {
        let named = match event.as_str().split_once(':') {
            Some(("kernel", sensor)) => self.of_kernel(sensor),
            Some(("user", _)) => self.simple,
            _ => Some(0.0),
        };
        named.or(self.every).map(nanos)
    }

    /// Price of an element of this stream, rounded to a nanosecond; `None` if unknown.
    #[must_use]
    pub fn of_stream(&self, stream: &StreamDescriptor) -> Option<Nanos> {
        self.of(stream).map(nanos)
    }

    /// Price of an element of this stream, in nanoseconds; zero if unknown.
    #[must_use]
    pub fn of_stream_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.of(stream).unwrap_or(0.0)
    }

    /// Whether all prices are zero.
    pub(crate) fn are_zero(&self) -> bool {
        let programs = [self.every, self.simple, self.laned, self.concurrent];
        let programs = programs.into_iter().flatten();
        programs
            .chain(self.kernel.values().copied())
            .all(|ns| ns == 0.0)
    }

    fn of_kernel(&self, sensor: &str) -> Option<f64> {
        let own = self.kernel.get(sensor);
        own.or_else(|| self.kernel.get(price_name(sensor))).copied()
    }

    pub(super) fn of(&self, stream: &StreamDescriptor) -> Option<f64> {
        let named = match &stream.origin {
            Origin::Kernel { .. } => self.of_kernel(&stream.sensor),
            Origin::Program(_) if stream.lane.is_some() => self.laned,
            // Its elements name their writers, and it is no lane. Without a price of its own it has
            // that of a simple sensor.
            Origin::Program(_) if stream.schema.index_of(WRITER_TID) == Some(0) => {
                self.concurrent.or(self.simple)
            }
            Origin::Program(_) => self.simple,
            // A sampler runs on a thread of its own.
            Origin::Sampler => Some(0.0),
        };
        named.or(self.every)
    }
}

/// Every element has this price.
impl From<Nanos> for Costs {
    fn from(every: Nanos) -> Self {
        Self {
            every: Some(every.as_ns() as f64),
            ..Self::default()
        }
    }
}

/// A number of nanoseconds, rounded.
pub(super) fn nanos(ns: f64) -> Nanos {
    Nanos::from_ns(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{SCHED_SWITCH, SCHED_WAKE};
    use overhear_event::{EventName, Nanos};

    use super::Costs;

    #[test]
    fn prices_are_found_by_event() {
        let mut costs = Costs::default();
        costs.kernel(SCHED_SWITCH, 263.4);
        costs.simple(8.6);
        let of = |costs: &Costs, event: EventName| costs.of_event(&event).map(Nanos::as_ns);
        assert_eq!(of(&costs, EventName::kernel(SCHED_SWITCH)), Some(263));
        assert_eq!(of(&costs, EventName::kernel(SCHED_WAKE)), None);
        assert_eq!(of(&costs, EventName::user("frame")), Some(9));
        assert_eq!(of(&costs, EventName::sampler("schedstat")), Some(0));
        let all = Costs::from(Nanos::from_ns(7));
        assert_eq!(of(&all, EventName::kernel(SCHED_WAKE)), Some(7));
        assert_eq!(of(&all, EventName::user("frame")), Some(7));
    }
}
