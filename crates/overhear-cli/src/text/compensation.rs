// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a compensation.

use overhear_event::Nanos;
use overhear_session::compensation::CompensationReport;
use overhear_session::format::counted;

/// Renders the compensation in a line.
pub(crate) fn render(report: &CompensationReport) -> String {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let without_wakeups = if report.along_wakeups {
        ""
    } else {
        "; without wake-ups no delay is carried from who wakes to who is woken: the times of several CPUs are less exact"
    };
    let hurried = match report.hurried {
        0 => String::new(),
        hurried => format!(
            "; {} had to be placed before all that belongs before them was known: their times are less exact",
            counted(hurried, "element", "elements")
        ),
    };
    format!(
        "all times are compensated: without its observation the run would have ended about {} earlier{without_wakeups}{hurried}\n",
        time(report.removed_ns)
    )
}
