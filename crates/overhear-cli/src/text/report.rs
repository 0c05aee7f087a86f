// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as text for a terminal.

use std::borrow::Cow;
use std::fmt::Write;

use overhear_event::{Nanos, SAMPLE_TYPE};

use super::columns::Table;
use super::width::Width;
use super::{budget, compensation, guarantee, metrics, overhead, reactions, samples, verdicts};
use overhear_session::conclusion::Exit;
use overhear_session::configured_monitor::MonitorReport;
use overhear_session::display::{self, TextDisplay};
use overhear_session::format::{number, printable, quoted, rate};
use overhear_session::metrics::{MetricReport, MetricsReport};
use overhear_session::quantities::Quantiles;
use overhear_session::report::{
    FieldReport, KernelSensorReport, Report, SensorReport, ThreadReport,
};
use overhear_session::updates::UpdateReport;

/// Rows of a table in the report, which fits a screen. The page and `--json` have all rows.
const MOST_ROWS: usize = 40;
/// Rows above the limit that are shown instead of their number.
const SLACK: usize = 5;
/// Characters of the command shown.
const LONGEST_COMMAND: usize = 160;

/// Number of these rows that are shown.
pub(super) const fn shown(rows: usize) -> usize {
    if rows > MOST_ROWS + SLACK {
        MOST_ROWS
    } else {
        rows
    }
}

/// Renders the report for lines of this width.
#[must_use]
pub(crate) fn render(report: &Report, width: Width) -> String {
    let mut text = String::new();
    headline(&mut text, report);
    for source in &report.sources {
        // If no program had a sensor, the state of their source does not matter.
        let matters =
            source.name != "programs" || !report.sensors.is_empty() || report.not_connected > 0;
        if matters {
            let _ = writeln!(text, "{}", source.message);
        }
    }
    if !report.threads.is_empty() {
        text.push('\n');
        threads(&mut text, &report.threads, width);
    }
    if !report.sensors.is_empty() {
        text.push('\n');
        sensors(&mut text, &report.sensors, width);
    }
    if !report.kernel_sensors.is_empty() {
        text.push('\n');
        kernel_sensors(&mut text, &report.kernel_sensors, width);
    }
    if !report.samplers.is_empty() {
        text.push('\n');
        text.push_str(&samples::render(&report.samplers, width));
    }
    if let Some(measured) = &report.metrics {
        text.push('\n');
        text.push_str(&metrics::render(measured, width));
    }
    if let Some(check) = &report.check {
        text.push('\n');
        text.push_str(&verdicts::render(check, width));
    }
    for update in &report.updates {
        text.push('\n');
        self::update(&mut text, update);
    }
    if let Some(guaranteed) = &report.guarantee {
        text.push('\n');
        text.push_str(&guarantee::render(guaranteed, width));
    }
    let found = report.guarantee.iter().flat_map(MonitorReport::histograms);
    let found = found.chain(report.updates.iter().flat_map(UpdateReport::histograms));
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        let mut display = TextDisplay::new(width.limit().unwrap_or(80).min(80));
        display::show(&found, &mut display);
        text.push('\n');
        text.push_str(&display.into_text());
    }
    if let Some(reactions) = &report.reactions {
        text.push('\n');
        text.push_str(&reactions::render(reactions, width));
    }
    if let Some(budget) = &report.budget {
        text.push('\n');
        text.push_str(&budget::render(budget, width));
    }
    if let Some(overhead) = &report.overhead {
        text.push('\n');
        text.push_str(&overhead::render(overhead));
    }
    if let Some(compensation) = &report.compensation {
        text.push_str(&compensation::render(compensation));
    }
    text.push('\n');
    losses(&mut text, report);
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    // Names, notes and commands come from programs, or from somebody else's recording.
    let lines = text.split('\n').map(|line| Cow::Owned(printable(line)));
    let mut text = width.wrap_lines(lines);
    if let Some(guaranteed) = &report.guarantee {
        text.push_str(&guaranteed.suggested_file());
    }
    text
}

fn headline(text: &mut String, report: &Report) {
    let how = match report.exit {
        Some(Exit::Code(code)) => format!("ended with status {code}"),
        Some(Exit::Signal(signal)) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("was ended by signal {signal} ({name})"),
            None => format!("was ended by signal {signal}"),
        },
        None => "was still running when the recording stopped".to_string(),
    };
    let duration = Nanos::from_ns(report.duration_ns);
    let _ = writeln!(
        text,
        "{} {how} after {duration}",
        command_line(&report.command)
    );
}

/// The command in the shell's syntax, on one line, cut if it is long.
fn command_line(command: &[String]) -> String {
    let quoted: Vec<String> = command.iter().map(|argument| quoted(argument)).collect();
    let line = quoted.join(" ");
    match line.char_indices().nth(LONGEST_COMMAND) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None => line,
    }
}

fn time(ns: u64) -> String {
    Nanos::from_ns(ns).to_string()
}

fn maybe(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_string(), time)
}

fn quantile(quantiles: Option<Quantiles>, pick: impl Fn(Quantiles) -> u64) -> String {
    maybe(quantiles.map(pick))
}

fn threads(text: &mut String, threads: &[ThreadReport], width: Width) {
    let mut sorted: Vec<&ThreadReport> = threads.iter().collect();
    sorted.sort_by_key(|thread| std::cmp::Reverse(thread.run_ns));
    let mut table = Table::new(&[
        ("thread", false),
        ("pid", true),
        ("tid", true),
        ("run", true),
        ("runnable", true),
        ("blocked", true),
        ("vol", true),
        ("invol", true),
        ("migr", true),
        ("wake-up p50", true),
        ("p99", true),
        ("max", true),
    ])
    .keys(3);
    for thread in sorted.iter().take(shown(threads.len())) {
        let latency = thread.wakeup_latency_ns;
        table.row(vec![
            printable(&thread.comm),
            thread.pid.to_string(),
            thread.tid.to_string(),
            time(thread.run_ns),
            maybe(thread.runnable_ns),
            maybe(thread.blocked_ns),
            thread.switches_voluntary.to_string(),
            thread.switches_involuntary.to_string(),
            thread.migrations.to_string(),
            quantile(latency, |q| q.median),
            quantile(latency, |q| q.p99),
            quantile(latency, |q| q.max),
        ]);
    }
    text.push_str(&table.render(width));
    let more = threads.len() - shown(threads.len());
    if more > 0 {
        let _ = writeln!(
            text,
            "... and {more} threads that ran less (all of them: --json)"
        );
    }
}

fn sensors(text: &mut String, sensors: &[SensorReport], width: Width) {
    let mut table = Table::new(&[
        ("sensor", false),
        ("task", false),
        ("elements", true),
        ("missed", true),
        ("rate", true),
        ("declared", true),
        ("interval median", true),
        ("p99", true),
        ("max", true),
    ])
    .keys(2);
    let some = &sensors[..shown(sensors.len())];
    for sensor in some {
        table.row(vec![
            printable(&name(sensor)),
            printable(&sensor.task),
            sensor.elements.to_string(),
            sensor.missed.to_string(),
            sensor.rate_hz.map_or_else(|| "-".to_string(), rate),
            sensor.declared.map_or_else(
                || "-".to_string(),
                |declared| rate(1e9 / declared.period_ns.max(1) as f64),
            ),
            quantile(sensor.interval_ns, |q| q.median),
            quantile(sensor.interval_ns, |q| q.p99),
            quantile(sensor.interval_ns, |q| q.max),
        ]);
    }
    text.push_str(&table.render(width));
    // Samples have tables of their own: statistics of thread ids have no meaning.
    let plain = some.iter().filter(|sensor| sensor.type_id != SAMPLE_TYPE);
    let all = plain.map(|sensor| (name(sensor), &*sensor.fields));
    fields(text, all, width);
    let more = sensors.len() - some.len();
    if more > 0 {
        let _ = writeln!(text, "... and {more} more sensors (all of them: --json)");
    }
}

/// Kernel sensors. They are few enough to be shown without a limit.
fn kernel_sensors(text: &mut String, sensors: &[KernelSensorReport], width: Width) {
    let name = |sensor: &KernelSensorReport| with_instance(&sensor.id, &sensor.instance);
    let mut table = Table::new(&[
        ("kernel sensor", false),
        ("elements", true),
        ("missed", true),
        ("rate", true),
        ("interval median", true),
        ("p99", true),
        ("max", true),
    ]);
    for sensor in sensors {
        table.row(vec![
            printable(&name(sensor)),
            sensor.elements.to_string(),
            sensor.missed.to_string(),
            sensor.rate_hz.map_or_else(|| "-".to_string(), rate),
            quantile(sensor.interval_ns, |q| q.median),
            quantile(sensor.interval_ns, |q| q.p99),
            quantile(sensor.interval_ns, |q| q.max),
        ]);
    }
    text.push_str(&table.render(width));
    // Sensors without elements have no fields to show.
    let written = sensors
        .iter()
        .filter(|sensor| sensor.elements > 0 && sensor.type_id != SAMPLE_TYPE);
    let all = written.map(|sensor| (name(sensor), &*sensor.fields));
    fields(text, all, width);
}

/// The values of these sensors' fields.
fn fields<'a>(
    text: &mut String,
    sensors: impl Iterator<Item = (String, &'a [FieldReport])>,
    width: Width,
) {
    let mut table = Table::new(&[
        ("field", false),
        ("min", true),
        ("median", true),
        ("mean", true),
        ("p99", true),
        ("max", true),
    ]);
    for (name, fields) in sensors {
        for field in fields {
            let unit = if field.unit.is_empty() {
                String::new()
            } else {
                format!(" [{}]", field.unit)
            };
            let value = |value: Option<f64>| value.map_or_else(|| "-".to_string(), number);
            table.row(vec![
                printable(&format!("{name}.{}{unit}", field.name)),
                value(field.min),
                value(field.median),
                value(field.mean),
                value(field.p99),
                value(field.max),
            ]);
        }
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(width));
    }
}

pub(crate) fn update(text: &mut String, update: &UpdateReport) {
    let argument = match update.argument.as_str() {
        "" => String::new(),
        argument => format!(" = {argument}"),
    };
    let _ = writeln!(
        text,
        "update {}{argument}: {}, {} elements, {} missed",
        update.name, update.state, update.elements, update.missed
    );
    let drawn = update.histogram_keys();
    for (key, value) in &update.results {
        if drawn.contains(key) {
            // Drawn below.
            continue;
        }
        // Text is shown without quotation marks.
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_string);
        let _ = writeln!(text, "  {key}: {}", printable(&value));
    }
    for message in update.message.iter().chain(&update.complaints) {
        let _ = writeln!(text, "  {message}");
    }
}

fn name(sensor: &SensorReport) -> String {
    with_instance(&sensor.id, &sensor.instance)
}

fn with_instance(id: &str, instance: &str) -> String {
    match instance {
        "" => id.to_string(),
        instance => format!("{id}#{instance}"),
    }
}

/// The metrics that lack kernel sensors, for a run that missed no element.
fn open(measured: &MetricsReport) -> String {
    let mut text = String::new();
    let mut warn = |message: &str, is_open: &dyn Fn(&MetricReport) -> bool| {
        let open = measured.metrics.iter().filter(|metric| is_open(metric));
        let open: Vec<String> = open.map(|metric| printable(&metric.name)).collect();
        if !open.is_empty() {
            let open = open.join(", ");
            let _ = writeln!(text, "INCOMPLETE: nothing missed, but {message}: {open}");
        }
    };
    let not_recorded = |metric: &MetricReport| !metric.absent_events.is_empty();
    warn(
        "not all events that metrics require were recorded",
        &not_recorded,
    );
    warn("not all had room in metrics", &|metric| metric.refused > 0);
    warn("measurements are incomplete of metrics", &|metric| {
        metric.incomplete > 0 || metric.missed > 0
    });
    if !measured.notes.is_empty() {
        text.push_str("INCOMPLETE: nothing missed, but metrics lack something; see their notes\n");
    }
    text
}

/// The message about elements that a recording lacks because of its limits.
pub(crate) fn left_out_message(left_out: u64) -> String {
    format!("recording: {left_out} elements left out to keep its limits")
}

fn losses(text: &mut String, report: &Report) {
    if report.trace.left_out > 0 {
        let _ = writeln!(text, "{}", left_out_message(report.trace.left_out));
    }
    if report.complete {
        let measured = report.metrics.as_ref();
        match measured.filter(|measured| !measured.is_complete()) {
            None => text.push_str("complete: nothing missed\n"),
            Some(measured) => text.push_str(&open(measured)),
        }
        return;
    }
    if report.missed_total > 0 {
        let _ = writeln!(text, "INCOMPLETE: {} elements missed", report.missed_total);
    } else if report.not_connected == 0 {
        text.push_str("INCOMPLETE: how much is missing is not known\n");
    }
    if report.not_connected > 0 {
        let sensors = if report.not_connected == 1 {
            "sensor is"
        } else {
            "sensors are"
        };
        let _ = writeln!(
            text,
            "INCOMPLETE: {} {sensors} not connected",
            report.not_connected
        );
    }
    for loss in &report.losses {
        let gaps = if loss.gaps == 1 { "gap" } else { "gaps" };
        let _ = writeln!(
            text,
            "  {}: {} {} in {} {gaps}",
            printable(&loss.stream),
            loss.missed,
            loss.cause,
            loss.gaps
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{command_line, open};
    use overhear_session::metrics::{MetricReport, MetricsReport};

    #[test]
    fn incomplete_metrics_are_named_with_their_cause() {
        let metric = |name: &str, absent_events: &[&str], refused| MetricReport {
            name: name.to_owned(),
            description: String::new(),
            absent_events: absent_events.iter().copied().map(String::from).collect(),
            completed: 0,
            incomplete: 0,
            unfinished: 0,
            missed: 0,
            unobserved: 0,
            refused,
            tasks: Vec::new(),
            measurements: None,
        };
        let mut measured = MetricsReport {
            metrics: vec![
                metric("deaf", &["user:a"], 0),
                metric("full", &[], 3),
                metric("fine", &[], 0),
            ],
            notes: Vec::new(),
            start: overhear_event::Timestamp::ZERO,
            quantile_error: 0.0,
        };
        assert_eq!(
            open(&measured),
            "INCOMPLETE: nothing missed, but not all events that metrics require were recorded: deaf\n\
             INCOMPLETE: nothing missed, but not all had room in metrics: full\n"
        );
        // All kernel sensors were on, but the elements contradict each other.
        measured.metrics.drain(..2);
        measured.notes.push("metric fine cannot use it".to_owned());
        assert!(!measured.is_complete());
        assert!(open(&measured).ends_with("see their notes\n"));
    }

    #[test]
    fn commands_are_printed_as_one_could_type_them() {
        let command = ["sh", "-c", "echo 'a b'\nls", ""].map(String::from);
        assert_eq!(command_line(&command), "sh -c 'echo '\\''a b'\\''\\nls' ''");
        assert_eq!(command_line(&["x".repeat(500)]).len(), 163);
    }
}
