// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hints for a monitor that is refused.

use std::path::Path;

use overhear_admission::{AdmissionRequest, SensorLoad, Span};
use overhear_event::Nanos;

use super::resolved::{ResolvedMonitor, ResolvedUpdate};
use super::sensor::loads;
use super::{choose_with_reading, Machine};
use crate::config::Config;

/// A hint for a refusal: the demand, if it alone is too high; else the shortest latency that can be
/// admitted, if there is one.
pub(super) fn hint(monitor: &ResolvedMonitor) -> String {
    let overload = overloading_update(monitor);
    let demand: f64 = loads(&monitor.sensors)
        .iter()
        .map(|load| load.wcet.as_ns() as f64 / load.stream.period().as_ns() as f64)
        .sum();
    let density = monitor.latency_request.request.density;
    let granted = density.numerator() as f64 / density.denominator() as f64;
    if demand > granted {
        return format!(
            "{overload}; the evaluations alone need {:.1} % of a CPU in the mean, {:.0} % are allowed",
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

/// The update that can never keep up with a sensor, because its WCET exceeds the sensor's period.
fn overloading_update(monitor: &ResolvedMonitor) -> String {
    let overtaxed = |update: &ResolvedUpdate, wcet: Nanos| {
        let mut sensors = monitor.sensors.iter();
        sensors.find(|it| update.takes(&it.id) && wcet > it.load.stream.period())
    };
    let mut updates = monitor.updates.iter().filter(|update| update.is_selected);
    let overload = updates.find_map(|update| {
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
    overload.unwrap_or_default()
}

/// A latency that can be admitted where the requested one cannot, about the shortest one, in whole
/// units as they are written in the file.
fn fitting(monitor: &ResolvedMonitor) -> Option<Nanos> {
    // Doubling finds a latency that can be admitted. Bisection then finds the least one.
    let loads: Vec<SensorLoad> = loads(&monitor.sensors);
    let request = &monitor.latency_request.request;
    let fits = |ns: u64| {
        let latency = Span::from_ns(ns);
        choose_with_reading(
            &loads,
            &AdmissionRequest {
                latency,
                ..*request
            },
        )
        .is_ok()
    };
    let mut low = u64::try_from(request.latency.as_ns()).unwrap_or(u64::MAX);
    let mut high = (1..=10)
        .map(|doubled| low.max(1_000).saturating_mul(1 << doubled))
        .find(|&ns| fits(ns))?;
    // To one per cent.
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

/// A latency that can be admitted for a file that was read from `path`, where the requested one
/// cannot.
pub(crate) fn fitting_latency(config: &Config, path: &Path) -> Option<Nanos> {
    let base = path.parent().unwrap_or(Path::new(""));
    let monitor = ResolvedMonitor::of(config, base, &Machine::local(), &[]).ok()?;
    fitting(&monitor)
}
