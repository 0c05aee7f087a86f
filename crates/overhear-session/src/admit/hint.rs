// SPDX-License-Identifier: MIT OR Apache-2.0
//! What would make a monitor fit that is refused.

use std::path::Path;

use overhear_admission::{AdmissionRequest, SensorLoad, Span};
use overhear_event::Nanos;

use super::{
    choose_with_reading, entries, guaranteed_selection, lateness_of, loads, wish_of,
    wished_latency, Entry,
};
use crate::config::selection::Selection;
use crate::config::Config;

/// What would make it fit, where that can be said: the demand alone, or the shortest latency.
pub(super) fn hint(
    config: &Config,
    entries: &[Entry<'_>],
    selection: &Selection,
    wish: &AdmissionRequest,
) -> String {
    let dear = too_dear(config, entries, selection);
    let demand: f64 = loads(entries)
        .iter()
        .map(|load| load.wcet.as_ns() as f64 / load.stream.period().as_ns() as f64)
        .sum();
    let granted = wish.density.numerator() as f64 / wish.density.denominator() as f64;
    if demand > granted {
        return format!(
            "{dear}; the evaluations alone need {:.1} % of a CPU in the mean, {:.0} % are allowed",
            demand * 100.0,
            granted * 100.0
        );
    }
    match fitting(entries, wish) {
        None => String::new(),
        Some(latency) => match latency.as_ns() {
            ns @ 0..10_000_000 => format!("; a latency of {} us would fit", ns / 1_000),
            ns => format!("; a latency of {} ms would fit", ns / 1_000_000),
        },
    }
}

/// Which update can never keep up with a sensor, because it needs more than a period for an element.
fn too_dear(config: &Config, entries: &[Entry<'_>], selection: &Selection) -> String {
    let updates = config.updates.iter().enumerate();
    for (_, update) in updates.filter(|(index, _)| selection.has_update(*index)) {
        let wcet = update.wcet.map_or(Nanos::ZERO, |wcet| wcet.0);
        let slow = entries
            .iter()
            .find(|entry| update.takes(&entry.config.id) && wcet > entry.load.stream.period());
        if let Some(entry) = slow {
            return format!(
                "; update `{}` has a wcet of {wcet}, above the period of sensor `{}`, {}",
                update.name,
                entry.config.id,
                entry.load.stream.period()
            );
        }
    }
    String::new()
}

/// A latency, about the shortest, that could be had where the wished one cannot, in whole units as the
/// file takes them.
fn fitting(entries: &[Entry<'_>], wish: &AdmissionRequest) -> Option<Nanos> {
    // Doubling finds a latency that can be had, halving the distance the least of them.
    let loads: Vec<SensorLoad> = loads(entries);
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
    let selection = guaranteed_selection(config);
    let entries = entries(config, base, &selection).ok()?;
    let total = lateness_of(config).total().ok()?;
    let (_, wished) = wished_latency(config, &selection).ok()?;
    fitting(&entries, &wish_of(config, wished, total))
}
