// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a budget: what it allowed, what was spent, and on which sensors.

use overhear_event::Nanos;
use overhear_session::budget::{BudgetOutcome, BudgetSensor};
use overhear_session::format::printable;

use super::columns::Table;
use super::width::Width;

/// Sensors that the table names.
const NAMED: usize = 20;

/// The report as a line and a table, for lines of this width.
pub(crate) fn render(report: &BudgetOutcome, width: Width) -> String {
    let percent = |overhead: f64| format!("{:.2} %", overhead * 100.0);
    let mut text = format!(
        "budget: {} of the CPU time; observing took about {} ± {}",
        percent(report.target),
        percent(report.observed),
        percent(report.observed_error),
    );
    let worst = report.course.iter().map(|point| point.worst_window);
    if let Some(worst) = worst.max_by(f64::total_cmp) {
        let window = Nanos::from_ns(report.window_ns);
        text.push_str(&format!(
            ", at most {} in {window} of CPU time",
            percent(worst)
        ));
    }
    text.push('\n');
    let mut table = Table::new(&[
        ("sensor", false),
        ("on", true),
        ("written", true),
        ("skipped", true),
        ("price", true),
        ("cost", true),
    ])
    .keys(1);
    for sensor in report.sensors.iter().take(NAMED) {
        table.row(row(sensor));
    }
    if !table.is_empty() {
        text.push_str(&table.render(width));
    }
    if let Some(more) = report
        .sensors
        .len()
        .checked_sub(NAMED)
        .filter(|more| *more > 0)
    {
        text.push_str(&format!("and {more} cheaper ones\n"));
    }
    if report.counting_ns > 0 {
        let counting = Nanos::from_ns(report.counting_ns);
        text.push_str(&format!(
            "counting events of sensors that were off: {counting}\n"
        ));
    }
    text
}

fn row(sensor: &BudgetSensor) -> Vec<String> {
    let share = sensor
        .share_on
        .map(|share| format!("{:.1} %", share * 100.0));
    let skipped = sensor.skipped.map(|skipped| skipped.to_string());
    vec![
        printable(&sensor.name),
        share.unwrap_or_default(),
        sensor.written.to_string(),
        skipped.unwrap_or_else(|| "?".to_string()),
        format!("{:.1} ± {:.1} ns", sensor.price_ns, sensor.price_error_ns),
        Nanos::from_ns(sensor.cost_ns as u64).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use overhear_session::budget::{BudgetOutcome, BudgetPoint, BudgetSensor};

    use super::render;
    use crate::text::width::Width;

    #[test]
    fn budget_shows_target_spending_and_sensors() {
        let sensor = |name: &str, written, skipped, share_on| BudgetSensor {
            name: name.to_string(),
            written,
            skipped,
            share_on,
            cost_ns: written as f64 * 10.5,
            cost_error_ns: 1.0,
            price_ns: 10.5,
            price_error_ns: 0.25,
        };
        let report = BudgetOutcome {
            target: 0.05,
            observed: 0.0493,
            observed_error: 0.0011,
            window_ns: 1_000_000_000,
            cpu_ns: 3_000_000_000,
            counting_ns: 1_500,
            course: vec![BudgetPoint {
                from_ns: 0,
                to_ns: 1,
                overhead: 0.05,
                worst_window: 0.0712,
            }],
            sensors: vec![
                sensor("server(7)/queue", 400, Some(600), Some(0.4)),
                sensor("kernel", 3, None, None),
            ],
        };
        insta::assert_snapshot!(render(&report, Width::columns(100)), @r"
        budget: 5.00 % of the CPU time; observing took about 4.93 % ± 0.11 %, at most 7.12 % in 1.00 s of CPU time
        sensor               on  written  skipped          price     cost
        server(7)/queue  40.0 %      400      600  10.5 ± 0.2 ns  4.20 us
        kernel                         3        ?  10.5 ± 0.2 ns    31 ns
        counting events of sensors that were off: 1.50 us
        ");
    }
}
