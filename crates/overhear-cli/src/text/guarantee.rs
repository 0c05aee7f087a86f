// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a guarantee: its terms, the measured times, and the suggested reservation.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::configured_monitor::{MonitorReport, Suggestion};
use overhear_session::format::{number, printable};
use overhear_session::quantities::ValueQuantiles;

use super::columns::Table;
use super::width::Width;

/// The guarantee as text, for lines of this width.
#[must_use]
pub(crate) fn render(report: &MonitorReport, width: Width) -> String {
    let mut text = String::new();
    match (&report.verdict, report.latency_ns) {
        (Some(verdict), Some(latency)) => {
            let _ = writeln!(
                text,
                "guarantee {verdict}: every element within {} (level {}, period {}, {} reserved)",
                time(latency),
                report.level.as_deref().unwrap_or("-"),
                time(report.period_ns.unwrap_or(0)),
                time(report.runtime_ns.unwrap_or(0)),
            );
            let _ = writeln!(
                text,
                "latest wake-up {}, longest period's work {}, {} page faults",
                time(report.wake_up_ns),
                time(report.longest_period_ns),
                report.page_faults
            );
        }
        _ => {
            let _ = writeln!(
                text,
                "monitor ({}): nothing was guaranteed",
                report.executor
            );
        }
    }
    for message in report
        .reasons
        .iter()
        .chain(&report.others)
        .chain(&report.notes)
    {
        let _ = writeln!(text, "  {}", printable(message));
    }
    if let Some(stated) = report.stated_memory_bytes {
        let taken = report.memory_bytes.div_ceil(1024);
        let _ = writeln!(
            text,
            "memory {taken} KiB, {} KiB had been stated",
            stated.div_ceil(1024)
        );
    }
    sensors(report, width, &mut text);
    updates(report, width, &mut text);
    for update in &report.updates {
        if let Some(message) = &update.message {
            let _ = writeln!(text, "  update {}: STOPPED: {message}", update.name);
        }
        for complaint in &update.complaints {
            let _ = writeln!(text, "  update {}: {complaint}", update.name);
        }
    }
    for update in report.plugins() {
        super::report::update(&mut text, update);
    }
    if let Some(suggestion) = &report.suggestion {
        text.push_str(&self::suggestion(suggestion));
    }
    text
}

fn time(ns: u64) -> String {
    Nanos::from_ns(ns).to_string()
}

fn sensors(report: &MonitorReport, width: Width, text: &mut String) {
    let mut table = Table::new(&[
        ("sensor", false),
        ("elements", true),
        ("missed", true),
        ("latency", true),
        ("too fast", true),
    ]);
    for sensor in &report.sensors {
        table.row(vec![
            printable(&sensor.id),
            sensor.elements.to_string(),
            sensor.missed.to_string(),
            time(sensor.latency_ns),
            sensor.exceeding.to_string(),
        ]);
    }
    text.push_str(&table.render(width));
}

fn updates(report: &MonitorReport, width: Width, text: &mut String) {
    let mut table = Table::new(&[
        ("update", false),
        ("executor", false),
        ("elements", true),
        ("missed", true),
        ("longest", true),
        ("overruns", true),
        ("wcet", true),
        ("suggested", true),
        ("median", true),
        ("p99", true),
        ("max", true),
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
    for update in &report.updates {
        let value = |of: fn(&ValueQuantiles) -> f64| {
            let value = update.values.as_ref().map(of);
            or_dash(value.map(|value| match value.fract() == 0.0 {
                true => format!("{value:.0}"),
                false => number(value),
            }))
        };
        table.row(vec![
            printable(&update.name),
            update.executor.clone(),
            update.elements.to_string(),
            update.missed.to_string(),
            time(update.longest_ns),
            update.overruns.to_string(),
            or_dash(update.wcet_ns.map(time)),
            or_dash(update.suggested_wcet_ns.map(time)),
            value(|values| values.median),
            value(|values| values.p99),
            value(|values| values.max),
        ]);
    }
    text.push_str(&table.render(width));
}

/// The suggested reservation as text.
pub(super) fn suggestion(suggestion: &Suggestion) -> String {
    let time = |ns: Option<u64>| Nanos::from_ns(ns.unwrap_or(0)).to_string();
    let mut text = String::new();
    match &suggestion.config {
        Some(_) => {
            let _ = writeln!(
                text,
                "suggested reservation: {} every {}, deadline {} ({:.2} % of a CPU), for a latency of {}",
                time(suggestion.runtime_ns),
                time(suggestion.period_ns),
                time(suggestion.deadline_ns),
                suggestion.utilisation.unwrap_or(0.0) * 100.0,
                time(suggestion.latency_ns)
            );
        }
        None => {
            let _ = writeln!(text, "no reservation is suggested: {}", suggestion.reason);
        }
    }
    for note in &suggestion.notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}
