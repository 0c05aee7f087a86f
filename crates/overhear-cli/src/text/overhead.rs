// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of the monitoring overhead.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::format::printable;
use overhear_session::overhead::OverheadReport;

/// Renders the overhead in a line or two.
pub(crate) fn render(report: &OverheadReport) -> String {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let mut text = format!("monitoring overhead about {}", time(report.total_ns));
    if let Some(share) = report.share {
        let _ = write!(
            text,
            ", {:.2} % of the time that threads ran",
            share * 100.0
        );
    }
    let threads = report.threads.iter().map(|thread| {
        let name = match thread.comm.as_str() {
            "" => "?",
            comm => comm,
        };
        (format!("{name}({})", thread.tid), thread.overhead_ns)
    });
    let programs = report.programs.iter().map(|program| {
        let name = format!("sensors of {}({})", program.comm, program.pid);
        (name, program.overhead_ns)
    });
    let mut payers: Vec<_> = threads.chain(programs).collect();
    payers.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let shown = payers.iter().take(NAMED);
    let shown: Vec<_> = shown
        .map(|(name, ns)| format!("{} {}", printable(name), time(*ns)))
        .collect();
    if !shown.is_empty() {
        let more = if payers.len() > NAMED { ", ..." } else { "" };
        let _ = write!(text, ": {}{more}", shown.join(", "));
    }
    text.push('\n');
    if !report.unpriced.is_empty() {
        let events: Vec<_> = report
            .unpriced
            .iter()
            .map(|one| format!("{} x {}", one.elements, printable(&one.event)))
            .collect();
        let _ = writeln!(text, "  without {}: not calibrated", events.join(", "));
    }
    for one in &report.assumed {
        let instead = match &one.instead {
            Some(other) => format!("at the price of {}", printable(other)),
            None => "at the dearest price".to_string(),
        };
        let because = match &one.because {
            Some(reason) => format!(", because {}", printable(reason)),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "  with {} x {} {instead}{because}",
            one.elements,
            printable(&one.event)
        );
    }
    for note in &report.notes {
        let _ = writeln!(text, "  {}", printable(note));
    }
    text
}

/// Maximum number of threads that the text names.
const NAMED: usize = 3;
