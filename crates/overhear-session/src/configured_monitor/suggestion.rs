// SPDX-License-Identifier: MIT OR Apache-2.0
//! From measured execution times to a suggested reservation, and to a file with it.

use std::fmt::Write as _;
use std::path::Path;

use overhear_event::Nanos;
use serde::{Deserialize, Serialize};
use toml_edit::{DocumentMut, Item, TomlError, Value};

use super::report::{wcet_with_margin, MonitorReport};
use crate::admission::{self, AdmissionReport};
use crate::config::{Config, Length};
use crate::format::printable;

/// A reservation with a margin: what admission would grant if the measured updates had the WCETs
/// that are suggested for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Whether there is one.
    pub accepted: bool,
    /// The reason that there is none; empty if there is one.
    pub reason: String,
    /// Messages about a different latency, and about sensors that exceeded their declared rates.
    pub notes: Vec<String>,
    /// CPU time per period besides evaluating and copying: the longest round without elements with
    /// a margin, or the value of the file if that is larger.
    pub overhead_ns: Option<u64>,
    /// T_M, the period.
    pub period_ns: Option<u64>,
    /// The relative deadline of the reservation.
    pub deadline_ns: Option<u64>,
    /// CPU time per period.
    pub runtime_ns: Option<u64>,
    /// `runtime / period`.
    pub utilisation: Option<f64>,
    /// The latency that would be guaranteed.
    pub latency_ns: Option<u64>,
    /// The text of the file with the suggested numbers.
    pub config: Option<String>,
}

/// The longest CPU time of a round without elements: the cost of a period besides evaluating.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuietRounds {
    last: Option<(u64, Nanos)>,
    longest: Option<Nanos>,
}

impl QuietRounds {
    /// Adds a round, with the number of elements and the CPU time of all rounds so far.
    pub(super) fn record_round(&mut self, elements: u64, cpu: Nanos) {
        if let Some((before, since)) = self.last.replace((elements, cpu)) {
            // Rounds before the first element open streams, which happens once.
            if before == elements && elements > 0 {
                let took = Nanos::from_ns(cpu.as_ns().saturating_sub(since.as_ns()));
                self.longest = self.longest.max(Some(took));
            }
        }
    }

    pub(super) const fn longest(&self) -> Option<Nanos> {
        self.longest
    }
}

/// The suggestion for the figures that were measured with the file `path`.
pub(super) fn suggest(path: &Path, report: &MonitorReport, quiet: QuietRounds) -> Suggestion {
    let refused = |reason: String| Suggestion {
        reason,
        ..Suggestion::default()
    };
    let text = crate::config::text_of(path);
    let file = text.map_err(|error| error.message);
    let file = file.and_then(|text| text.parse().map_err(|error: TomlError| error.to_string()));
    let mut file: DocumentMut = match file {
        Ok(file) => file,
        Err(error) => return refused(format!("cannot read {} again: {error}", path.display())),
    };
    for (index, update) in report.updates.iter().enumerate() {
        match (update.suggested_wcet_ns, update.wcet_ns) {
            (Some(wcet), _) => set(&mut file, ("update", Some(index)), "wcet", wcet),
            (None, Some(_)) => {}
            (None, None) => {
                return refused(format!(
                    "update `{}` evaluated no element, so nothing is known of its wcet; measure a run in \
                     which its sensors write",
                    update.name
                ))
            }
        }
    }
    let exceeding = report.sensors.iter().filter(|it| it.exceeding > 0);
    let exceeding = exceeding.map(|sensor| {
        format!(
            "sensor `{}` exceeded its stream {} times: what the file declares does not cover it; \
             `overhear fit-rate` finds what does",
            sensor.id, sensor.exceeding
        )
    });
    let mut notes: Vec<String> = exceeding.collect();
    let parse = |file: &DocumentMut| {
        let text = file.to_string();
        Config::parse(&text).map(|config| (text, config))
    };
    let admitted = parse(&file).and_then(|(_, mut config)| {
        let declared = config.monitor.overhead.0;
        let measured = quiet.longest().map_or(0, wcet_with_margin);
        let overhead = declared.as_ns().max(measured);
        set(&mut file, ("monitor", None), "overhead", overhead);
        config.monitor.overhead = Length(Nanos::from_ns(overhead));
        let mut admitted = admission::admit_config(&config, path).map_err(|it| it.message)?;
        if !admitted.report.accepted {
            if let Some(latency) = admission::fitting_latency(&config, path) {
                let requested = config
                    .monitor
                    .latency
                    .map_or(latency, |requested| requested.0);
                config.monitor.latency = Some(Length(latency));
                let other = admission::admit_config(&config, path).map_err(|it| it.message)?;
                if other.report.accepted {
                    notes.push(format!(
                        "a latency of {requested} cannot be kept, one of {latency} can"
                    ));
                    set(&mut file, ("monitor", None), "latency", latency.as_ns());
                    admitted = other;
                }
            }
        }
        let (text, _) = parse(&file)?;
        Ok((text, overhead, admitted.report))
    });
    match admitted {
        Ok((text, overhead, report)) => Suggestion {
            notes,
            overhead_ns: Some(overhead),
            ..Suggestion::of(report, text)
        },
        Err(reason) => refused(reason),
    }
}

/// Sets a length in a table, or in one entry of an array of tables. Order, comments and spaces of
/// the file stay the same.
fn set(file: &mut DocumentMut, (key, index): (&str, Option<usize>), name: &str, ns: u64) {
    let found = file.get_mut(key);
    let found = found.and_then(|found| match index {
        Some(index) => found.get_mut(index),
        None => Some(found),
    });
    let Some(entry) = found.and_then(Item::as_table_like_mut) else {
        return;
    };
    let length = Length(Nanos::from_ns(ns)).to_string();
    match entry.get_mut(name).and_then(Item::as_value_mut) {
        Some(value) => {
            let decor = value.decor().clone();
            *value = Value::from(length);
            *value.decor_mut() = decor;
        }
        None => drop(entry.insert(name, toml_edit::value(length))),
    }
}

impl Suggestion {
    fn of(report: AdmissionReport, text: String) -> Self {
        Self {
            accepted: report.accepted,
            reason: report.reason,
            period_ns: report.period_ns,
            deadline_ns: report.deadline_ns,
            runtime_ns: report.runtime_ns,
            utilisation: report.utilisation,
            latency_ns: report.latency_ns,
            config: report.accepted.then_some(text),
            ..Self::default()
        }
    }
}

/// The file as text to save. Its lines are not wrapped.
pub(super) fn file(suggestion: &Suggestion) -> String {
    let Some(config) = &suggestion.config else {
        return String::new();
    };
    let mut text = "\n# overhear.toml with these numbers, for `overhear admit`\n".to_string();
    for line in config.lines() {
        let _ = writeln!(text, "{}", printable(line));
    }
    text
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{set, DocumentMut, QuietRounds};

    #[test]
    fn suggestion_keeps_comments_order_and_spaces() {
        let text =
            "# Mine.\n[monitor]  # of the arm\noverhead = \"2ms\"   # seen\nlatency='5ms'\n\n\
            # The first.\n[[update]]\nname = \"z\"\nfield = \"torque\" # [Nm]\n\n\
            # The other.\n[[update]]\nwcet = \"1us\" # a guess\nname = \"a\"\n# End.\n";
        let mut file: DocumentMut = text.parse().unwrap();
        set(&mut file, ("monitor", None), "overhead", 30_000);
        set(&mut file, ("update", Some(0)), "wcet", 4_000);
        set(&mut file, ("update", Some(1)), "wcet", 5_500);
        let expected = text
            .replace("overhead = \"2ms\"", "overhead = \"30us\"")
            .replace("# [Nm]\n", "# [Nm]\nwcet = \"4us\"\n")
            .replace("wcet = \"1us\"", "wcet = \"5500ns\"");
        assert_eq!(file.to_string(), expected);
        // Inline tables.
        let text = "monitor = { latency = \"5ms\" } # short\nupdate = [{ name = \"a\" }]\n";
        let mut file: DocumentMut = text.parse().unwrap();
        set(&mut file, ("monitor", None), "latency", 6_000_000);
        set(&mut file, ("update", Some(0)), "wcet", 1_000);
        let expected = "monitor = { latency = \"6ms\" } # short\nupdate = [{ name = \"a\" , wcet = \"1us\" }]\n";
        assert_eq!(file.to_string(), expected);
    }

    #[test]
    fn rounds_without_elements_count_after_the_first_element() {
        let mut quiet = QuietRounds::default();
        let mut cpu = 0;
        // (elements so far, CPU time of the round)
        for (elements, took) in [
            (0, 900),
            (0, 800),
            (3, 500),
            (3, 20),
            (3, 30),
            (4, 400),
            (4, 10),
        ] {
            cpu += took;
            quiet.record_round(elements, Nanos::from_ns(cpu));
        }
        assert_eq!(quiet.longest(), Some(Nanos::from_ns(30)));
    }
}
