// SPDX-License-Identifier: MIT OR Apache-2.0
//! A calibration as text for a terminal.

use std::fmt::Write;

use overhear_session::calibrate::{Calibration, Cost, KernelCost, Method};

use super::columns::Table;
use super::width::Width;

/// Renders the tables.
#[must_use]
pub(crate) fn render(calibration: &Calibration, width: Width) -> String {
    let mut text = format!(
        "cost of sensors on {}, Linux {}; {} rounds\n",
        calibration.cpu, calibration.release, calibration.rounds
    );
    if !calibration.kernel.is_empty() {
        text.push_str("\nper element of the kernel, and per event of untracked threads\n");
        let mut table = Table::new(&[
            ("sensor", false),
            ("per event", true),
            ("deviation", true),
            ("99 %", true),
            ("constant", true),
            ("99 %", true),
            ("measured by", false),
        ]);
        for cost in &calibration.kernel {
            let (constant, within) = cost.constant.map_or_else(
                || ("-".to_string(), "-".to_string()),
                |constant| (ns(constant.mean_ns), within(&constant)),
            );
            table.row(vec![
                cost.sensor.clone(),
                ns(cost.cost_per_event.mean_ns),
                ns(cost.cost_per_event.deviation_ns),
                self::within(&cost.cost_per_event),
                constant,
                within,
                measured_by(cost),
            ]);
        }
        text.push_str(&table.render(width));
    }
    if let Some(cost) = &calibration.entry {
        let _ = writeln!(
            text,
            "\nby run time: the kernel's statistics of BPF programs, and {} ({}) for each run that they leave out",
            ns(cost.mean_ns),
            within(cost)
        );
    }
    if let Some(cost) = &calibration.perf {
        let _ = writeln!(
            text,
            "\nwith perf records instead, a departure or an arrival costs {} ({})",
            ns(cost.mean_ns),
            within(cost)
        );
    }
    text.push_str("\nper element of 8 bytes of a program\n");
    let mut table = Table::new(&[
        ("sensor", false),
        ("write", true),
        ("99 %", true),
        ("switched off", true),
        ("99 %", true),
    ]);
    for cost in &calibration.programs {
        table.row(vec![
            cost.kind.clone(),
            ns(cost.write.mean_ns),
            within(&cost.write),
            ns(cost.switched_off.mean_ns),
            within(&cost.switched_off),
        ]);
    }
    text.push_str(&table.render(width));
    text.push('\n');
    for cost in &calibration.reading {
        let _ = writeln!(
            text,
            "reading takes the monitor {} ({}) per element of {}",
            ns(cost.element.mean_ns),
            within(&cost.element),
            match &*cost.of {
                "kernel" => "the kernel",
                _ => "programs",
            }
        );
    }
    for note in &calibration.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn measured_by(cost: &KernelCost) -> String {
    match (&cost.by, cost.method, &cost.instead) {
        (Some(by), Some(Method::Statistics), _) => format!("{by}, by run time"),
        (Some(by), ..) => by.clone(),
        (None, _, Some(other)) => format!("nothing; taken to be as {other}"),
        (None, ..) => "nothing; assumed to be as the dearest".to_string(),
    }
}

fn ns(value: f64) -> String {
    match value.abs() {
        small if small < 99.95 => format!("{value:.1} ns"),
        _ => format!("{value:.0} ns"),
    }
}

fn within(cost: &Cost) -> String {
    format!("±{}", ns(cost.within_ns))
}
