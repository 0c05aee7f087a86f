// SPDX-License-Identifier: MIT OR Apache-2.0
//! Non-accessed periods as tables.

use std::fmt::Write as _;

use overhear_event::Nanos;
use overhear_session::format::{counted, printable};
use overhear_session::naps::{
    AllocationReport, FrameReport, MachineReport, NapsReport, ProcessReport, SiteReport,
};

use super::columns::Table;
use super::width::Width;

/// Functions of a stack in a table.
const SHOWN_FRAMES: usize = 3;
/// What allocates on behalf of others is left out at the inner end of a stack.
const ALLOCATORS: [&str; 6] = [
    "operator new",
    "__gnu_cxx",
    "std::",
    "__libc_",
    "PyMem_",
    "_Py",
];

pub(crate) fn render(report: &NapsReport, rows: usize, width: Width) -> String {
    let mut text = String::new();
    if report.processes.is_empty() {
        text.push_str("no process made an allocation of the least size\n");
    }
    // The processes with most idle memory first, then in the order of their starts.
    let mut processes: Vec<&ProcessReport> = report.processes.iter().collect();
    processes.sort_by(|a, b| idle(b).total_cmp(&idle(a)));
    for process in processes {
        if !text.is_empty() {
            text.push('\n');
        }
        heading(&mut text, report, process);
        sites(&mut text, process, rows, width);
        allocations(&mut text, process, rows, width);
    }
    text
}

fn idle(process: &ProcessReport) -> f64 {
    process.sites.iter().map(|site| site.nap_byte_seconds).sum()
}

fn heading(text: &mut String, report: &NapsReport, process: &ProcessReport) {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let watched = &process.watched;
    let _ = writeln!(
        text,
        "{} ({}): {} watched, {} in all, back end {}, NAPs of at least {}",
        printable(&process.comm),
        process.pid,
        counted(watched.allocations, "allocation", "allocations"),
        bytes(watched.bytes as f64),
        printable(&process.backend),
        time(report.threshold_ns),
    );
    let _ = writeln!(
        text,
        "cost {} of {} CPU time ({:.1} %, budget {:.1} %); {:.1} % more memory at most; {} \
         protections, {} accesses",
        time(process.cost.total_ns()),
        time(process.cpu_ns),
        process.overhead * 100.0,
        report.budget * 100.0,
        process.space_overhead * 100.0,
        watched.protections,
        watched.accesses,
    );
    let missed = &process.unwatched;
    for (number, cause) in [
        (missed.budget, "budget"),
        (missed.space, "limit of memory"),
        (missed.full, "table is full"),
    ] {
        if number > 0 {
            let number = counted(number, "allocation was", "allocations were");
            let _ = writeln!(text, "{number} not watched: {cause}");
        }
    }
    if missed.excluded > 0 {
        let number = counted(missed.excluded, "allocation", "allocations");
        let _ = writeln!(text, "{number} excluded: the program changes its mapping");
    }
    if !process.backend_reason.is_empty() {
        let lost = match process.backend.as_str() {
            "accessed" => "accesses have no place, and times are coarser",
            _ => "no NAP can be found",
        };
        let reason = printable(&process.backend_reason);
        let _ = writeln!(text, "{lost}: {reason}");
    }
    if !process.stopped.is_empty() {
        let _ = writeln!(text, "INCOMPLETE: {}", printable(&process.stopped));
    } else if !process.complete {
        let _ = writeln!(
            text,
            "INCOMPLETE: the process was killed; its last moments are not known"
        );
    }
}

fn sites(text: &mut String, process: &ProcessReport, rows: usize, width: Width) {
    let mut table = Table::new(&[
        ("allocated by", false),
        ("allocations", true),
        ("bytes", true),
        ("live", true),
        ("NAPs", true),
        ("idle byte s", true),
        ("idle", true),
        ("", false),
    ]);
    let napping: Vec<&SiteReport> = process.sites.iter().filter(|site| site.naps > 0).collect();
    for site in napping.iter().take(rows) {
        table.row(vec![
            stack(&site.stack),
            site.allocations.to_string(),
            bytes(site.bytes as f64),
            site.live.to_string(),
            site.naps.to_string(),
            bytes(site.nap_byte_seconds),
            share(site.nap_byte_seconds, site.life_byte_seconds),
            mark(site.cold),
        ]);
    }
    if table.is_empty() {
        text.push_str("no NAP was found\n");
        return;
    }
    text.push('\n');
    text.push_str(&table.render(width));
    more(text, napping.len(), rows, "sites");
}

fn allocations(text: &mut String, process: &ProcessReport, rows: usize, width: Width) {
    let seconds = |ns: i64| format!("{:.3} s", ns as f64 / 1e9);
    let mut table = Table::new(&[
        ("address", false),
        ("size", true),
        ("allocated", true),
        ("freed", true),
        ("last access", true),
        ("at", false),
        ("NAPs", true),
        ("longest", true),
        ("idle byte s", true),
        ("", false),
    ]);
    let is_idle = |one: &&AllocationReport| one.nap_count > 0;
    let napping: Vec<&AllocationReport> = process.allocations.iter().filter(is_idle).collect();
    for one in napping.iter().take(rows) {
        let lengths = one.naps.iter().map(|nap| nap.end_ns - nap.start_ns);
        let freed = one.freed_ns.map(|time| seconds(time.cast_signed()));
        table.row(vec![
            format!("{:#x}", one.address),
            bytes(one.size as f64),
            seconds(one.allocated_ns),
            freed.unwrap_or_else(|| "-".to_owned()),
            seconds(one.last_access_ns),
            one.last_access_at
                .as_ref()
                .map_or_else(|| "-".to_owned(), function),
            one.nap_count.to_string(),
            Nanos::from_ns(lengths.max().unwrap_or_default()).to_string(),
            bytes(one.nap_byte_seconds),
            mark(one.cold),
        ]);
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(width));
        more(text, napping.len(), rows, "allocations");
    }
}

fn more(text: &mut String, all: usize, shown: usize, noun: &str) {
    if all > shown {
        let _ = writeln!(text, "({} more {noun}: --rows, --json)", all - shown);
    }
}

fn mark(cold: bool) -> String {
    if cold { "cold" } else { "-" }.to_owned()
}

fn share(part: f64, whole: f64) -> String {
    format!("{:.0} %", part / whole.max(1e-9) * 100.0)
}

/// A number of bytes in the unit that suits it.
fn bytes(number: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} B"),
        _ => format!("{value:.1} {}", units[unit]),
    }
}

fn function(frame: &FrameReport) -> String {
    match (&frame.function, &frame.file) {
        (Some(function), _) => printable(function),
        (None, Some(file)) => {
            let name = file.rsplit('/').next().unwrap_or(file);
            format!("{}+{:#x}", printable(name), frame.file_offset.unwrap_or(0))
        }
        (None, None) => format!("{:#x}", frame.address),
    }
}

/// The calls of a stack that are specific to its program.
fn stack(frames: &[FrameReport]) -> String {
    let is_allocator = |frame: &&FrameReport| {
        let name = frame.function.as_deref().unwrap_or_default();
        ALLOCATORS.iter().any(|prefix| name.starts_with(prefix))
    };
    let skipped = frames.iter().take_while(is_allocator).count();
    let skipped = if skipped == frames.len() { 0 } else { skipped };
    let shown = frames[skipped..].iter().take(SHOWN_FRAMES).map(function);
    let shown: Vec<String> = shown.collect();
    match shown.is_empty() {
        true => "?".to_owned(),
        false => shown.join(" < "),
    }
}

/// The estimate of the machine.
pub(crate) fn render_machine(report: &MachineReport) -> String {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let mut text = format!(
        "estimate by DAMON over {}: {} of {} ({}) were not accessed for at least {}\n",
        time(report.duration_ns),
        bytes(report.idle_bytes as f64),
        bytes(report.bytes as f64),
        share(report.idle_bytes as f64, report.bytes as f64),
        time(report.threshold_ns),
    );
    let mut table = Table::new(&[("idle for", false), ("memory", true), ("regions", true)]);
    let mut least = report.threshold_ns;
    let idle = |least: u64| {
        let regions = report.regions.iter();
        regions.filter(move |region| region.accesses == 0 && region.age_ns >= least)
    };
    while idle(least).next().is_some() && least <= report.duration_ns.saturating_mul(2) {
        table.row(vec![
            format!("at least {}", time(least)),
            bytes(idle(least).map(|it| (it.end - it.start) as f64).sum()),
            idle(least).count().to_string(),
        ]);
        least = least.saturating_mul(2);
    }
    if !table.is_empty() {
        text.push_str(&table.render(Width::UNLIMITED));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{bytes, stack};
    use overhear_session::naps::FrameReport;

    #[test]
    fn stack_begins_after_allocators() {
        let frame = |name: &str| FrameReport {
            function: Some(name.to_owned()),
            ..FrameReport::default()
        };
        let names = [
            "operator new(unsigned long)",
            "load",
            "parse",
            "main",
            "start",
        ];
        assert_eq!(stack(&names.map(frame)), "load < parse < main");
        assert_eq!(stack(&[frame("std::vector")]), "std::vector");
        assert_eq!(stack(&[]), "?");
    }

    #[test]
    fn bytes_have_a_unit() {
        assert_eq!(bytes(100.0), "100 B");
        assert_eq!(bytes(16_384.0), "16.0 KiB");
        assert_eq!(bytes(3.5 * 1024.0 * 1024.0), "3.5 MiB");
    }
}
