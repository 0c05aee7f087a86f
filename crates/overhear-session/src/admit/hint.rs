// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would make a monitor fit that is refused.

use std::path::Path;

use overhear_admission::{AdmissionRequest, SensorLoad, Span};
use overhear_event::Nanos;

use super::resolved::{ResolvedMonitor, ResolvedUpdate};
use super::sensor::loads;
use super::{choose_with_reading, Machine};
use crate::config::Config;

/// What would make it fit, if that is known: the demand alone, or the shortest latency.
pub(super) fn hint(monitor: &ResolvedMonitor) -> String {
    let dear = too_dear(monitor);
    let demand: f64 = loads(&monitor.sensors)
        .iter()
        .map(|load| load.wcet.as_ns() as f64 / load.stream.period().as_ns() as f64)
        .sum();
    let density = monitor.wish.request.density;
    let granted = density.numerator() as f64 / density.denominator() as f64;
    if demand > granted {
        return format!(
            "{dear}; the evaluations alone need {:.1} % of a CPU in the mean, {:.0} % are allowed",
            demand * 100.0,
            granted * 100.0
        );
    }
    match fitting(monitor) {
        None => String::new(),
        Some(latency) => match latency.as_ns() {
            ns @ 0..10_000_000 => format!("; a latency of {} us would fit", ns / 1_000),
            ns => format!("; a latency of {} ms would fit", ns / 1_000_000),
        },
    }
}

/// Which update can never keep up with a sensor, because it needs more than a period for an
/// element.
fn too_dear(monitor: &ResolvedMonitor) -> String {
    let overtaxed = |update: &ResolvedUpdate, wcet: Nanos| {
        let mut sensors = monitor.sensors.iter();
        sensors.find(|it| update.takes(&it.id) && wcet > it.load.stream.period())
    };
    let mut updates = monitor.updates.iter().filter(|update| update.is_selected);
    let dear = updates.find_map(|update| {
        let wcet = update.wcet.unwrap_or(Nanos::ZERO);
        overtaxed(update, wcet).map(|sensor| {
            format!(
                "; update `{}` has a wcet of {wcet}, above the period of sensor `{}`, {}",
                update.name,
                sensor.id,
                sensor.load.stream.period()
            )
        })
    });
    dear.unwrap_or_default()
}

/// A latency, about the shortest, that could be had where the wished one cannot, in whole units as
/// the file takes them.
fn fitting(monitor: &ResolvedMonitor) -> Option<Nanos> {
    // Doubling finds a latency that can be had, halving the distance the least of them.
    let loads: Vec<SensorLoad> = loads(&monitor.sensors);
    let wish = &monitor.wish.request;
    let fits = |ns: u64| {
        let latency = Span::from_ns(ns);
        choose_with_reading(&loads, &AdmissionRequest { latency, ..*wish }).is_ok()
    };
    let mut low = u64::try_from(wish.latency.as_ns()).unwrap_or(u64::MAX);
    let mut high = (1..=10)
        .map(|doubled| low.max(1_000).saturating_mul(1 << doubled))
        .find(|&ns| fits(ns))?;
    // To one selection in a hundred.
    while high - low > high / 100 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    let unit = if high < 10_000_000 { 1_000 } else { 1_000_000 };
    Some(Nanos::from_ns(high.div_ceil(unit) * unit))
}

/// A latency that could be had for a file that was read from `path`, where the wished one cannot.
pub(crate) fn fitting_latency(config: &Config, path: &Path) -> Option<Nanos> {
    let base = path.parent().unwrap_or(Path::new(""));
    let monitor = ResolvedMonitor::of(config, base, &Machine::here(), &[]).ok()?;
    fitting(&monitor)
}
