// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outcome of a run: what its constraints, its guarantee and its other evaluations amount to,
//! worst first.

use overhear_event::Nanos;
use serde::{Deserialize, Serialize};

use crate::check::CheckReport;
use crate::conclusion::Conclusion;
use crate::configured_monitor::MonitorReport;
use crate::metrics::{MetricReport, MetricsReport};
use crate::reactions::ReactionsReport;
use crate::report::Report;
use crate::updates::UpdateReport;

/// What one part of a report amounts to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `constraints`, `guarantee`, `metrics`, `updates` or `reactions`.
    pub of: String,
    /// `held`, `violated` or `inconclusive`.
    pub verdict: String,
    /// The verdict in words, with the names of what did not hold.
    #[serde(alias = "sentence")]
    pub message: String,
}

impl Finding {
    fn new(of: &str, conclusion: Conclusion, message: String) -> Self {
        let verdict = match conclusion {
            Conclusion::Complete => "held",
            Conclusion::Violated => "violated",
            Conclusion::Inconclusive => "inconclusive",
        };
        Self {
            of: of.to_string(),
            verdict: verdict.to_string(),
            message,
        }
    }
}

/// The findings of a report. Parts that promise nothing and lack nothing have none.
pub(crate) fn of(report: &Report) -> Vec<Finding> {
    let updates = unfinished(&report.updates);
    let mut findings: Vec<Finding> = [
        report.check.as_ref().and_then(constraints),
        report.guarantee.as_ref().and_then(guarantee),
        report.metrics.as_ref().and_then(metrics),
        updates.map(|message| Finding::new("updates", Conclusion::Inconclusive, message)),
        report.reactions.as_ref().and_then(reactions),
    ]
    .into_iter()
    .flatten()
    .collect();
    let order = ["violated", "inconclusive", "held"];
    findings.sort_by_key(|finding| order.iter().position(|it| *it == finding.verdict));
    findings
}

fn constraints(check: &CheckReport) -> Option<Finding> {
    let all = check.constraints.len();
    let named = |verdict: &str| {
        let found = check.constraints.iter().filter(|it| it.verdict == verdict);
        found.map(|it| it.name.as_str()).collect::<Vec<_>>()
    };
    let mut parts = Vec::new();
    for verdict in ["violated", "inconclusive"] {
        let names = named(verdict);
        let of = if parts.is_empty() {
            format!(" of {all}")
        } else {
            String::new()
        };
        if !names.is_empty() {
            let (count, names) = (names.len(), names.join(", "));
            parts.push(format!("{count}{of} {verdict} ({names})"));
        }
    }
    let message = match parts.is_empty() {
        _ if all == 0 => return None,
        true => format!("{all} of {all} held"),
        false => parts.join(", "),
    };
    Some(Finding::new("constraints", check.conclusion(), message))
}

fn guarantee(guarantee: &MonitorReport) -> Option<Finding> {
    let conclusion = guarantee.conclusion();
    let complaints = guarantee.updates.iter().flat_map(|it| &it.complaints);
    let mut why = guarantee.reasons.iter().chain(&guarantee.others);
    let why = why
        .next()
        .or_else(|| complaints.into_iter().next())
        .cloned();
    let plugins = guarantee.updates.iter().flat_map(|it| &it.plugin);
    let why = why.or_else(|| match guarantee.missed {
        0 => unfinished(plugins),
        missed => Some(format!("{missed} elements missed")),
    });
    let latency = guarantee.latency_ns.map(Nanos::from_ns);
    let message = match (why, latency) {
        _ if guarantee.verdict.is_none() && conclusion == Conclusion::Complete => return None,
        (Some(why), _) => why,
        (None, Some(latency)) => format!("every element within {latency}"),
        (None, None) => String::new(),
    };
    Some(Finding::new("guarantee", conclusion, message))
}

fn metrics(measured: &MetricsReport) -> Option<Finding> {
    if measured.is_complete() {
        return None;
    }
    let lacking = measured.metrics.iter().filter(|it| !it.is_complete());
    let lacking: Vec<&str> = lacking.map(|it: &MetricReport| it.name.as_str()).collect();
    let message = match (lacking.as_slice(), measured.notes.first()) {
        ([], Some(note)) => note.clone(),
        (some, _) => format!("incomplete: {}", some.join(", ")),
    };
    Some(Finding::new("metrics", Conclusion::Inconclusive, message))
}

fn unfinished<'a>(updates: impl IntoIterator<Item = &'a UpdateReport>) -> Option<String> {
    let updates = updates.into_iter().filter(|it| !it.is_complete());
    let names: Vec<&str> = updates.map(|it| it.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("not finished: {}", names.join(", ")))
}

fn reactions(report: &ReactionsReport) -> Option<Finding> {
    let failed: u64 = report.reactions.iter().map(|it| it.failed).sum();
    let message = match (failed, report.lost) {
        (0, 0) => return None,
        (failed, 0) => format!("{failed} failed"),
        (0, lost) => format!("{lost} lost"),
        (failed, lost) => format!("{failed} failed, {lost} lost"),
    };
    Some(Finding::new("reactions", Conclusion::Inconclusive, message))
}

#[cfg(test)]
mod tests {
    use super::{constraints, guarantee, Finding};
    use crate::check::{CheckReport, VerdictReport};
    use crate::conclusion::Conclusion;
    use crate::configured_monitor::MonitorReport;

    #[test]
    fn constraints_that_did_not_hold_are_named() {
        let verdict = |name: &str, verdict: &str| VerdictReport {
            name: name.to_owned(),
            verdict: verdict.to_owned(),
            judged: 1,
            offences: 0,
            first: None,
            reasons: Vec::new(),
        };
        let check = |constraints: Vec<VerdictReport>, worst: &str| CheckReport {
            verdict: worst.to_owned(),
            constraints,
        };
        let held = check(vec![verdict("a", "held")], "held");
        let expected = Finding::new(
            "constraints",
            Conclusion::Complete,
            "1 of 1 held".to_owned(),
        );
        assert_eq!(constraints(&held), Some(expected));
        let all = [
            ("a", "violated"),
            ("b", "inconclusive"),
            ("c", "violated"),
            ("d", "held"),
        ];
        let all = all.iter().map(|(name, is)| verdict(name, is)).collect();
        let found = constraints(&check(all, "violated")).unwrap();
        assert_eq!(found.verdict, "violated");
        assert_eq!(found.message, "2 of 4 violated (a, c), 1 inconclusive (b)");
        assert_eq!(constraints(&check(Vec::new(), "held")), None);
    }

    #[test]
    fn guarantee_that_held_is_inconclusive_if_elements_were_missed() {
        let mut report = MonitorReport::default();
        assert_eq!(guarantee(&report), None);
        report.verdict = Some("held".to_owned());
        report.latency_ns = Some(5_000_000);
        let found = guarantee(&report).unwrap();
        let told = (found.verdict.as_str(), found.message.as_str());
        assert_eq!(told, ("held", "every element within 5.00 ms"));
        report.missed = 3;
        let found = guarantee(&report).unwrap();
        assert_eq!(found.verdict, "inconclusive");
        assert_eq!(found.message, "3 elements missed");
        report.verdict = None;
        report.reasons.push("sensor `a` never appeared".to_owned());
        assert_eq!(
            guarantee(&report).unwrap().message,
            "sensor `a` never appeared"
        );
    }
}
