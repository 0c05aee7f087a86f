// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the built-in metrics: what each requires, its file, and its automaton's picture.

use std::fmt::Write;
use std::path::Path;

use overhear_metrics::automaton::{
    events_required_by, system_metric, system_metric_text, system_metrics, Metric,
};

const HEAD: &str = "# The metrics of Linux, one by one

What each built-in [metric](metrics.md#the-metrics-of-linux) requires, its file and its automaton's picture: double lines begin and
end a measurement, filled states count, dashed ones count if a filled one follows, octagons discard. `dot -Tsvg` of Graphviz
draws the pictures. The table in [metrics](metrics.md) tells them apart; the [scenes](../crates/overhear-metrics/tests/specs/linux.md) show
each at work, and a test runs each beside a program that does what it measures.
";

fn section(page: &mut String, name: &str, metric: &Metric) {
    let (text, required) = (
        system_metric_text(name).unwrap(),
        events_required_by(metric),
    );
    let required: Vec<String> = required.iter().map(|event| format!("`{event}`")).collect();
    let _ = write!(
        page,
        "\n## {name}\n\n{}. It requires {}.\n\n```text\n{}```\n\n```dot\n{}```\n",
        metric.description(),
        required.join(", "),
        text,
        metric.specification().to_graphviz()
    );
}

/// With `OVERHEAR_BLESS` set the page is written instead of compared.
#[test]
fn the_page_shows_every_built_in_metric() {
    let mut page = HEAD.to_owned();
    for name in system_metrics() {
        section(&mut page, name, &system_metric(name).unwrap());
    }
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/linux-metrics.md");
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        std::fs::write(&place, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&place).unwrap();
    assert!(
        kept == page,
        "set OVERHEAR_BLESS=1 to write {}",
        place.display()
    );
}
