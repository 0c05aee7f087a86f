// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of an admission.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::admit::AdmissionReport;
use overhear_session::admit::UpdateAdmission;

use super::columns::Table;
use super::width::Width;

/// The result as text, on one screen of this width.
#[must_use]
pub(crate) fn render(report: &AdmissionReport, width: Width) -> String {
    let mut text = String::new();
    if report.level == "none" {
        samplers(report, width, &mut text);
        return text;
    }
    answer(report, &mut text);
    reservation(report, &mut text);
    text.push('\n');
    sensors(report, width, &mut text);
    updates(report, width, &mut text);
    samplers(report, width, &mut text);
    text
}

fn time(ns: u64) -> String {
    Nanos::from_ns(ns).to_string()
}

fn maybe(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_string(), time)
}

/// Whether the monitor is accepted, with its latency or the reason.
fn answer(report: &AdmissionReport, text: &mut String) {
    match (report.accepted, report.latency_ns) {
        (true, Some(latency)) => {
            let guarantees = report.updates.iter().any(|it| it.latency_ns.is_some());
            if let Some(lacking) = &report.lacking {
                let _ = writeln!(text, "NOT HERE: {lacking}");
            }
            let (accepted, verb) = match guarantees && report.lacking.is_none() {
                true => ("accepted", "is"),
                false => ("accepted by its numbers", "would be"),
            };
            let _ = writeln!(
                text,
                "{accepted}: every element {verb} evaluated within {} (demanded: {})",
                time(latency),
                time(report.requested_latency_ns)
            );
            if !guarantees {
                text.push_str(
                    "nothing is guaranteed: the executor of no update gives a guarantee\n",
                );
            }
        }
        _ => {
            let _ = writeln!(text, "REFUSED: {}", report.reason);
        }
    }
}

/// The reservation, its conditions and the memory.
fn reservation(report: &AdmissionReport, text: &mut String) {
    if let Some(utilisation) = report.utilisation {
        let _ = writeln!(
            text,
            "\nperiod {}, deadline {}, runtime {}: {:.2} % of a CPU",
            maybe(report.period_ns),
            maybe(report.deadline_ns),
            maybe(report.runtime_ns),
            utilisation * 100.0
        );
        let _ = writeln!(
            text,
            "the latency contains {} for late wake-ups, scheduler lateness and hold-back",
            time(report.lateness_ns)
        );
    }
    let present = match report.others {
        0 => "no other thread has a reservation".to_string(),
        1 => "1 other thread has a reservation".to_string(),
        n => format!("{n} other threads have reservations"),
    };
    let _ = writeln!(text, "level {}; {present}", report.level);
    let kernel = match report.kernel {
        "accepted" => "the kernel accepts the reservation (tried, and released)",
        "not_permitted" => "the kernel permits this user no reservation: needs CAP_SYS_NICE",
        "busy" | "unacceptable" => "the kernel refuses the reservation",
        _ => "the reservation was not tried in the kernel",
    };
    let _ = writeln!(text, "{kernel}");
    let kib = report.memory_bytes.div_ceil(1024);
    let plugins = match report.plugin_memory_bytes.div_ceil(1024) {
        0 => String::new(),
        kib => format!(", {kib} KiB of it for plug-ins"),
    };
    let _ = writeln!(text, "memory of the monitor: at most {kib} KiB{plugins}");
    if let Some(copying) = &report.copying {
        let _ = writeln!(
            text,
            "buffered: elements are copied within {}, by {} every {}: {:.2} % of a CPU",
            time(copying.latency_ns),
            time(copying.runtime_ns),
            time(copying.period_ns),
            copying.utilisation * 100.0
        );
    }
}

fn sensors(report: &AdmissionReport, width: Width, text: &mut String) {
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_string(), |n| n.to_string());
    let mut table = Table::new(&[
        ("sensor", false),
        ("count", true),
        ("T", true),
        ("D", true),
        ("tau", true),
        ("wcet", true),
        ("L", true),
        ("R min", true),
        ("R", true),
        ("R max", true),
        ("buffer", true),
        ("backlog", true),
        ("copies", true),
        ("latency", true),
    ]);
    for sensor in &report.sensors {
        table.row(vec![
            overhear_session::format::printable(&sensor.id),
            sensor.count.to_string(),
            time(sensor.period_ns),
            time(sensor.distance_ns),
            time(sensor.jitter_ns),
            time(sensor.wcet_ns),
            sensor
                .burst_length
                .map_or_else(|| "endless".to_string(), |l| l.to_string()),
            number(sensor.r_min),
            number(sensor.r),
            number(sensor.r_max),
            sensor.buffer_elements.to_string(),
            number(sensor.backlog),
            number(sensor.copies),
            maybe(sensor.latency_ns),
        ]);
    }
    text.push_str(&table.render(width));
    if let Some(rings) = report.sensors.iter().find_map(|sensor| sensor.rings) {
        let _ = writeln!(
            text,
            "kernel sensors: {rings} rings of this buffer, one for each possible CPU"
        );
    }
}

/// The memory and the overhead of samplers.
fn samplers(report: &AdmissionReport, width: Width, text: &mut String) {
    if report.samplers.is_empty() {
        return;
    }
    let mut table = Table::new(&[
        ("sampler", false),
        ("samples", false),
        ("quantities", true),
        ("memory", true),
        ("a sample takes", true),
        ("of a CPU", true),
    ]);
    for sampler in &report.samplers {
        let every = sampler
            .period_ns
            .map(|period| format!("every {}", time(period)));
        let per = sampler.point.as_ref().map(|point| format!("per {point}"));
        let both: Vec<String> = every.into_iter().chain(per).collect();
        let percent = |share: f64| format!("{:.3} %", 100.0 * share);
        let memory = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
        table.row(vec![
            overhear_session::format::printable(&sampler.name),
            both.join(", "),
            sampler.sample.len().to_string(),
            sampler
                .memory_bytes
                .map_or_else(|| "of the kernel".to_owned(), memory),
            maybe(sampler.sample_ns),
            sampler.overhead.map_or_else(|| "-".to_owned(), percent),
        ]);
    }
    text.push_str(&table.render(width));
    if report
        .samplers
        .iter()
        .any(|sampler| sampler.sample_ns.is_some())
    {
        text.push_str(
            "the time of a sample is measured now, on this command, without the wake-up\n",
        );
    }
}

/// One screen: where all updates are alike, they have no table.
fn updates(report: &AdmissionReport, width: Width, text: &mut String) {
    let first = report.updates.first();
    let differs = |it: &UpdateAdmission| {
        first.is_some_and(|first| {
            it.executor != first.executor || it.requested_latency_ns != first.requested_latency_ns
        })
    };
    if report.updates.iter().any(differs) {
        let mut table = Table::new(&[
            ("update", false),
            ("executor", false),
            ("demanded", true),
            ("guaranteed", true),
        ]);
        for update in &report.updates {
            table.row(vec![
                overhear_session::format::printable(&update.name),
                update.executor.to_string(),
                maybe(update.requested_latency_ns),
                maybe(update.latency_ns),
            ]);
        }
        text.push_str(&table.render(width));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use overhear_session::admit::admit;
    use overhear_session::config::Execution;

    use super::{render, Width};

    const TWO: &str = r#"
        [monitor]
        latency = "50ms"
        [[sensor]]
        id = "queue"
        period = "1ms"
        distance = "50us"
        jitter = "5ms"
        [[sensor]]
        id = "torque"
        period = "40us"
        jitter = "3ms"
        [[update]]
        name = "histogram"
        wcet = "2us"
        [[update]]
        name = "alarm"
        sensors = ["torque"]
        wcet = "500ns"
    "#;

    /// The text for `TWO` with one line replaced.
    fn text(from: &str, to: &str, width: Width) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("overhear.toml");
        assert!(TWO.contains(from), "{from}");
        fs::write(&file, TWO.replace(from, to)).unwrap();
        render(&admit(&file, Execution::Allowed).unwrap(), width)
    }

    #[test]
    fn admission_fits_one_screen() {
        let alarm = "wcet = \"500ns\"";
        let hasty = "latency = \"2500us\"";
        for (from, to, part) in [
            (alarm, alarm.to_string(), "every element "),
            // Updates that differ have a table.
            (
                alarm,
                format!("{alarm}\nlatency = \"20ms\""),
                "histogram  auto",
            ),
            ("latency = \"50ms\"", hasty.to_string(), "REFUSED: "),
        ] {
            for width in [Width::UNLIMITED, Width::columns(80)] {
                let screen = text(from, &to, width);
                assert!(screen.contains(part), "{screen}");
                assert!(screen.lines().count() <= 24, "{screen}");
            }
        }
    }
}
