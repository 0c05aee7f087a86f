// SPDX-License-Identifier: MIT OR Apache-2.0
//! The findings of a report: the verdict on its constraints, its guarantee, and each other part.

use overhear_event::Nanos;
use serde::{Deserialize, Serialize};

use crate::check::CheckReport;
use crate::conclusion::Conclusion;
use crate::configured_monitor::MonitorReport;
use crate::metrics::{MetricReport, MetricsReport};
use crate::reactions::ReactionsReport;
use crate::updates::UpdateReport;

/// The verdict on one part of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// `constraints`, `guarantee`, `metrics`, `updates` or `reactions`.
    pub of: String,
    /// `held`, `violated` or `inconclusive`.
    pub verdict: String,
    /// The verdict in words, with the names of the entries that did not hold.
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

/// The parts of a report that have findings.
pub(crate) struct Parts<'a> {
    pub(crate) check: Option<&'a CheckReport>,
    pub(crate) guarantee: Option<&'a MonitorReport>,
    pub(crate) metrics: Option<&'a MetricsReport>,
    pub(crate) updates: &'a [UpdateReport],
    pub(crate) reactions: Option<&'a ReactionsReport>,
}

/// The findings, the worst first. A part without a guarantee that is complete has none.
pub(crate) fn of(parts: &Parts<'_>) -> Vec<Finding> {
    let updates = unfinished(parts.updates);
    let mut findings: Vec<Finding> = [
        parts.check.and_then(constraints),
        parts.guarantee.and_then(guarantee),
        parts.metrics.and_then(metrics),
        updates.map(|message| Finding::new("updates", Conclusion::Inconclusive, message)),
        parts.reactions.and_then(reactions),
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
    let mut reasons = guarantee.reasons.iter().chain(&guarantee.others);
    let reason = reasons
        .next()
        .or_else(|| complaints.into_iter().next())
        .cloned();
    let plugins = guarantee.updates.iter().flat_map(|it| &it.plugin);
    let reason = reason.or_else(|| match guarantee.missed {
        0 => unfinished(plugins),
        missed => Some(format!("{missed} elements missed")),
    });
    let latency = guarantee.latency_ns.map(Nanos::from_ns);
    let message = match (reason, latency) {
        _ if guarantee.verdict.is_none() && conclusion == Conclusion::Complete => return None,
        (Some(reason), _) => reason,
        (None, Some(latency)) => format!("every element within {latency}"),
        (None, None) => String::new(),
    };
    Some(Finding::new("guarantee", conclusion, message))
}

fn metrics(report: &MetricsReport) -> Option<Finding> {
    if report.is_complete() {
        return None;
    }
    let incomplete = report.metrics.iter().filter(|it| !it.is_complete());
    let incomplete: Vec<&str> = incomplete
        .map(|it: &MetricReport| it.name.as_str())
        .collect();
    let message = match (incomplete.as_slice(), report.notes.first()) {
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
        let shown = (found.verdict.as_str(), found.message.as_str());
        assert_eq!(shown, ("held", "every element within 5.00 ms"));
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
