// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of plug-ins, named by `FILE.so[:NAME][=ARGUMENT]`.
//!
//! Errors in a specification are reported before the program starts. The same updates run live and
//! over a recording, with the same results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use overhear_directory::Query;
use overhear_event::{Analysis as _, Gap, StreamDescriptor};
use overhear_monitor::plugin::{Plugin, PluginUpdate, ResultValue, Results};
use overhear_monitor::{
    Binding, MissedPolicy, Subscription, Supervisor, UpdateRef, UpdateSet, UpdateState,
    UpdateStatus,
};
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, SessionError};
use crate::quantities::HistogramReport;
use crate::trust;

/// The report of one update.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Its name.
    pub name: String,
    /// The file of its plug-in.
    pub file: String,
    /// Its argument; empty without one.
    pub argument: String,
    /// `finished`, `stopped` (by its missed policy) or `failed`.
    pub state: String,
    /// The reason that it was stopped or has failed; null if it has finished.
    #[serde(alias = "sentence")]
    pub message: Option<String>,
    /// Number of elements that it evaluated.
    pub elements: u64,
    /// Number of elements of its sensors that it missed until its end.
    pub missed: u64,
    /// Its results: numbers, texts, or any JSON, by key.
    pub results: serde_json::Map<String, serde_json::Value>,
    /// Messages about sensors of another type and results that are no JSON.
    pub complaints: Vec<String>,
    // Bytes that it had allocated at its begin or at its end, whichever is more. It is not part of
    // the document: a replay measures its own.
    #[serde(skip)]
    pub(crate) memory_bytes: u64,
}

impl UpdateReport {
    /// Whether it has finished without complaints.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == "finished" && self.complaints.is_empty()
    }

    /// The distributions among its results: objects with `buckets`, a list of `low`, `high` and
    /// `count`, and optionally `unit` and `fractions` (docs/displays.md).
    pub fn histograms(&self) -> Vec<HistogramReport> {
        let results = self.results.iter();
        results
            .filter_map(|(key, value)| self.histogram(key, value))
            .collect()
    }

    /// The keys of the distributions among its results.
    pub fn histogram_keys(&self) -> Vec<String> {
        let results = self.results.iter();
        let histograms = results.filter(|(key, value)| self.histogram(key, value).is_some());
        histograms.map(|(key, _)| key.clone()).collect()
    }

    fn histogram(&self, key: &str, value: &serde_json::Value) -> Option<HistogramReport> {
        let buckets = serde_json::from_value(value.get("buckets")?.clone()).ok()?;
        let unit = value.get("unit").and_then(serde_json::Value::as_str);
        let fractions = value.get("fractions").and_then(serde_json::Value::as_bool);
        Some(HistogramReport {
            title: format!("{}: {key}", self.name),
            unit: unit.unwrap_or_default().to_string(),
            buckets,
            fractions: fractions.unwrap_or(false),
        })
    }
}

/// The plug-in, name and argument of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSpecification {
    file: PathBuf,
    name: Option<String>,
    argument: String,
}

impl UpdateSpecification {
    /// Parses `FILE[:NAME][=ARGUMENT]`. The first `=` ends the name. A `:` may be part of the name
    /// of an existing file.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a plug-in that the user names")]
    pub fn parse(text: &str) -> Self {
        let (path, argument) = text.split_once('=').unwrap_or((text, ""));
        let (file, name) = match path.rsplit_once(':') {
            Some((file, name)) if !Path::new(path).exists() => (file, Some(name.to_string())),
            _ => (path, None),
        };
        Self {
            file: file.into(),
            name,
            argument: argument.to_string(),
        }
    }
}

/// Loaded updates.
#[derive(Debug, Default)]
pub struct Updates {
    set: UpdateSet,
    members: Vec<(UpdateReport, UpdateRef<PluginUpdate>)>,
    queries: Vec<Query>,
    // The patterns of `queries`.
    patterns: Vec<String>,
    // Mapped bytes of each plug-in.
    mapped: BTreeMap<PathBuf, u64>,
}

impl Updates {
    /// Loads the plug-ins and creates the updates.
    ///
    /// # Errors
    /// [`SessionError`] with the message that names the entry.
    pub fn load(specifications: &[UpdateSpecification]) -> Result<Self, SessionError> {
        Self::load_with(specifications, None, |_| ())
    }

    /// As [`Updates::load`], with this missed policy instead of those of the plug-ins. `prepare` is
    /// called with each update before its first item.
    ///
    /// # Errors
    /// As for [`Updates::load`].
    pub fn load_with(
        specifications: &[UpdateSpecification],
        missed: Option<MissedPolicy>,
        mut prepare: impl FnMut(&mut PluginUpdate),
    ) -> Result<Self, SessionError> {
        let mut updates = Self::default();
        for specification in specifications {
            let usage = |error: &dyn std::fmt::Display| {
                SessionError::new(ErrorKind::Usage, error.to_string())
            };
            let path = trust::plugin(&specification.file).map_err(|message| usage(&message))?;
            let plugin = Plugin::load(&path).map_err(|error| usage(&error))?;
            let file = specification.file.clone();
            updates.mapped.insert(file, plugin.mapped_bytes());
            let name = specification.name.as_deref();
            let made = plugin.create(name, &specification.argument);
            for mut update in made.map_err(|error| usage(&error))? {
                prepare(&mut update);
                let missed = missed.unwrap_or_else(|| update.missed_policy());
                updates
                    .add(specification, update, missed)
                    .map_err(|message| usage(&message))?;
            }
        }
        Ok(updates)
    }

    fn add(
        &mut self,
        specification: &UpdateSpecification,
        update: PluginUpdate,
        missed: MissedPolicy,
    ) -> Result<(), String> {
        let file = specification.file.display().to_string();
        let report = UpdateReport {
            name: update.name().to_string(),
            file,
            argument: specification.argument.clone(),
            state: String::new(),
            message: None,
            elements: 0,
            missed: 0,
            results: serde_json::Map::new(),
            complaints: Vec::new(),
            memory_bytes: update.allocated_bytes(),
        };
        let located = |error: &dyn std::fmt::Display| {
            format!("plug-in {}: update `{}`: {error}", report.file, report.name)
        };
        let pattern = update.sensors().unwrap_or("*").to_string();
        let query = Query::parse(&pattern).map_err(|error| located(&error))?;
        let streams = Query::streams(&pattern).map_err(|error| located(&error))?;
        let subscription = Subscription::all().matching(streams);
        let binding = Binding::new(update.name())
            .subscribe(subscription)
            .on_missed(missed);
        let added = self.set.add(update, binding);
        let member = added.map_err(|error| located(&error))?;
        self.members.push((report, member));
        self.queries.push(query);
        self.patterns.push(pattern);
        Ok(())
    }

    /// The sensors that they evaluate.
    pub fn queries(&self) -> impl Iterator<Item = Query> + '_ {
        self.queries.iter().cloned()
    }

    /// Their names, and the patterns of the sensors that they evaluate.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, &str)> + '_ {
        let names = self.members.iter().map(|(report, _)| report.name.as_str());
        names.zip(self.patterns.iter().map(String::as_str))
    }

    /// Whether one of them takes such a stream.
    pub fn take(&self, stream: &StreamDescriptor) -> bool {
        let mut matchers = self
            .patterns
            .iter()
            .filter_map(|it| Query::streams(it).ok());
        matchers.any(|matches| matches(stream))
    }

    /// Lets missed elements stop none of them, until the returned supervisor enforces their
    /// policies.
    pub fn lenient(&mut self) -> Supervisor {
        self.set = std::mem::take(&mut self.set).lenient();
        self.set.supervisor()
    }

    /// The set to call with items.
    pub fn set(&mut self) -> &mut UpdateSet {
        &mut self.set
    }

    /// Mapped bytes of each of their plug-ins.
    pub const fn mapped_bytes(&self) -> &BTreeMap<PathBuf, u64> {
        &self.mapped
    }

    /// Bytes that all of them allocated when they were created.
    pub fn created_bytes(&self) -> u64 {
        self.members.iter().map(|(it, _)| it.memory_bytes).sum()
    }

    /// Number of elements that reached at least one of them.
    pub fn elements(&self) -> u64 {
        self.set.elements()
    }

    /// Their reports so far. Call it between two rounds.
    pub fn interim_reports(&mut self) -> Vec<UpdateReport> {
        let (set, members) = (&mut self.set, &self.members);
        let reports = members.iter().map(|(report, member)| {
            let mut report = report.clone();
            fill(&mut report, member.status(), set.get_mut(member));
            report
        });
        reports.collect()
    }

    /// As [`Updates::finish`], in a monitor that had these streams. An update that takes none of
    /// them gets a complaint.
    pub fn finish_among(self, streams: &[Arc<StreamDescriptor>]) -> Vec<UpdateReport> {
        let patterns: Vec<String> = self.patterns.clone();
        let mut finished = self.finish();
        for (report, pattern) in finished.iter_mut().zip(patterns) {
            // `add` has parsed it without an error.
            let matches = Query::streams(&pattern).ok();
            let takes =
                |stream: &Arc<StreamDescriptor>| matches.as_ref().is_none_or(|it| it(stream));
            if !streams.is_empty() && !streams.iter().any(takes) {
                report.complaints.push(format!(
                    "update `{}` takes the sensors `{pattern}`, and this monitor has none of them: it evaluated \
                     nothing; name such a sensor in the file, or leave the update out",
                    report.name
                ));
            }
        }
        finished
    }

    /// Their reports at the end.
    #[must_use]
    pub fn finish(self) -> Vec<UpdateReport> {
        let Self { set, members, .. } = self;
        drop(set);
        let finished = members.into_iter().map(|(mut report, member)| {
            let mut update = member.take();
            fill(&mut report, member.status(), update.as_mut());
            if let Some(update) = update {
                report.memory_bytes = report.memory_bytes.max(update.allocated_bytes());
                report.memory_bytes = report.memory_bytes.max(update.destroy());
            }
            report
        });
        finished.collect()
    }
}

/// Sets the state and the results of an update.
fn fill(report: &mut UpdateReport, status: UpdateStatus, update: Option<&mut PluginUpdate>) {
    report.elements = status.elements;
    report.missed = status.missed;
    report.complaints = status.complaints;
    let mut end = match status.state {
        UpdateState::Stopped(gap) => Some(("stopped", stopped_by(&gap))),
        UpdateState::Failed(message) => Some(("failed", message)),
        _ => None,
    };
    if let Some(update) = update {
        let results = update.report();
        // `report` may have failed as well.
        if let Some(message) = update.failure() {
            let entry = format!("plug-in {}: update `{}`", report.file, report.name);
            end = Some(("failed", format!("{entry}: {message}")));
        }
        add_results(&results, report);
    }
    let (state, message) = end.map_or(("finished", None), |(state, message)| {
        (state, Some(message))
    });
    report.state = state.to_string();
    report.message = message;
}

/// The reason that an update was stopped after this gap.
pub fn stopped_by(gap: &Gap) -> String {
    format!(
        "{} elements of stream {} were missed ({}), between {} and {}, and it does not go on then",
        gap.missed, gap.stream, gap.cause, gap.from, gap.to
    )
}

fn add_results(results: &Results, report: &mut UpdateReport) {
    for (key, result) in results.iter() {
        let value = match result {
            ResultValue::Unsigned(value) => (*value).into(),
            ResultValue::Signed(value) => (*value).into(),
            ResultValue::Float(value) => (*value).into(),
            ResultValue::Text(text) => text.as_str().into(),
            ResultValue::Json(text) => match serde_json::from_str(text) {
                Ok(value) => value,
                Err(error) => {
                    let name = &report.name;
                    let message =
                        format!("update `{name}`: its result `{key}` is no JSON: {error}");
                    report.complaints.push(message);
                    serde_json::Value::Null
                }
            },
        };
        report.results.insert(key.to_string(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::UpdateSpecification;

    #[test]
    fn specification_is_a_file_a_name_and_an_argument() {
        let parts = |text| {
            let it = UpdateSpecification::parse(text);
            (it.file.display().to_string(), it.name, it.argument)
        };
        let expected = |file: &str, name: Option<&str>, argument: &str| {
            (
                file.to_string(),
                name.map(String::from),
                argument.to_string(),
            )
        };
        assert_eq!(parts("a.so"), expected("a.so", None, ""));
        assert_eq!(parts("./a.so:n"), expected("./a.so", Some("n"), ""));
        assert_eq!(parts("a.so=1:2=3"), expected("a.so", None, "1:2=3"));
        assert_eq!(parts("b/a.so:n=x"), expected("b/a.so", Some("n"), "x"));
    }
}
