// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the built-in metrics: the requirements of each, its file, and its automaton's
//! picture.

use std::fmt::Write;
use std::path::Path;

use overhear_event::EventName;
use overhear_metrics::automaton::{
    events_required_by, new_user_metric, system_metric, system_metric_text, system_metrics,
    Catalogue, Metric,
};

const HEAD: &str = "# The metrics of Linux, one by one

You can look up each built-in [metric](metrics.md#the-metrics-of-linux): its required events, its file and the picture of its automaton. Double lines begin and
end a measurement, filled states count, dashed ones count if a filled one follows, octagons discard. `dot -Tsvg` of Graphviz
draws the pictures. The table in [metrics](metrics.md) compares them; the [scenes](../crates/overhear-metrics/tests/specs/linux.md) show
each at work, and a test runs each beside a program that does what it measures.
";

const USER: &str = "
## User metrics

What [`new_user_metric`](metrics.md#user-metrics) makes of two events of a program, here `begins` and `ends`: the counterpart of the paper's
figure 2.
";

fn section(page: &mut String, name: &str, metric: &Metric, text: &str) {
    let required = events_required_by(metric);
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
fn page_shows_every_built_in_metric() {
    let mut page = HEAD.to_owned();
    for name in system_metrics() {
        let text = system_metric_text(name).unwrap();
        section(&mut page, name, &system_metric(name).unwrap(), text);
    }
    page += USER;
    let [begins, ends] = ["begins", "ends"].map(|sensor| EventName::user(sensor).into());
    for (name, include_system) in [("with_system_time", true), ("without_system_time", false)] {
        let linux = Catalogue::linux();
        let metric = new_user_metric(name, &begins, &ends, include_system, &linux).unwrap();
        section(&mut page, name, &metric, &metric.to_string());
    }
    let page_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/linux-metrics.md");
    if std::env::var_os("OVERHEAR_BLESS").is_some() {
        std::fs::write(&page_path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&page_path).unwrap();
    assert!(
        kept == page,
        "set OVERHEAR_BLESS=1 to write {}",
        page_path.display()
    );
}
