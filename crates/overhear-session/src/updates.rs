// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of plug-ins on the command line: `--update FILE.so[:NAME][=ARGUMENT]`.
//!
//! Everything that can be wrong with a specification is found before anything runs. Live and over a
//! recording the same updates are called, so they find the same.

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

/// The document of a recording in which the reports of its updates are kept.
pub const UPDATES: &str = "updates";

/// One update: which, and what it found. Stands in the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateReport {
    /// Its name.
    pub name: String,
    /// The plug-in it comes from.
    pub file: String,
    /// Its argument; empty without one.
    pub argument: String,
    /// `finished`, `stopped` (it missed elements and does not go on then) or `failed`.
    pub state: String,
    /// Why it was stopped or has failed; null if it has finished.
    #[serde(alias = "sentence")]
    pub message: Option<String>,
    /// Elements that reached it.
    pub elements: u64,
    /// Elements of its sensors that it missed, until it ended.
    pub missed: u64,
    /// What it told: numbers, texts, or any JSON, by their keys.
    pub results: serde_json::Map<String, serde_json::Value>,
    /// Messages: sensors of another type, results that are no JSON.
    pub complaints: Vec<String>,
    // Bytes that it had of the allocator's memory: at its begin or at its end, whichever is more.
    // No result: a replay has its own.
    #[serde(skip)]
    pub(crate) memory_bytes: u64,
}

impl UpdateReport {
    /// Whether it evaluated everything that it was to evaluate, as far as it knows.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state == "finished" && self.complaints.is_empty()
    }

    /// The distributions among its results: objects with `buckets`, a list of `low`, `high` and
    /// `count`, and with `unit` and `fractions` if they have these (docs/displays.md).
    pub fn histograms(&self) -> Vec<HistogramReport> {
        let told = self.results.iter();
        told.filter_map(|(key, value)| self.histogram(key, value))
            .collect()
    }

    /// The keys of these.
    pub fn histogram_keys(&self) -> Vec<String> {
        let told = self.results.iter();
        let told = told.filter(|(key, value)| self.histogram(key, value).is_some());
        told.map(|(key, _)| key.clone()).collect()
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

/// What stands behind `--update`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateSpecification {
    file: PathBuf,
    name: Option<String>,
    argument: String,
}

impl UpdateSpecification {
    /// Reads `FILE[:NAME][=ARGUMENT]`. The first `=` ends the name; a file whose own name has a `:`
    /// is found if it exists.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a plug-in that the user names")]
    pub fn parse(text: &str) -> Self {
        let (place, argument) = text.split_once('=').unwrap_or((text, ""));
        let (file, name) = match place.rsplit_once(':') {
            Some((file, name)) if !Path::new(place).exists() => (file, Some(name.to_string())),
            _ => (place, None),
        };
        Self {
            file: file.into(),
            name,
            argument: argument.to_string(),
        }
    }
}

/// Updates that are ready to be called.
#[derive(Debug, Default)]
pub struct Updates {
    set: UpdateSet,
    members: Vec<(UpdateReport, UpdateRef<PluginUpdate>)>,
    queries: Vec<Query>,
    // As they were written.
    patterns: Vec<String>,
    // Bytes that are mapped of each plug-in.
    mapped: BTreeMap<PathBuf, u64>,
}

impl Updates {
    /// Loads and makes them.
    ///
    /// # Errors
    /// [`SessionError`] with the message that names the entry.
    pub fn load(specifications: &[UpdateSpecification]) -> Result<Self, SessionError> {
        Self::load_with(specifications, None, |_| ())
    }

    /// The same, with this policy about missed elements instead of what the plug-ins say, and each
    /// update prepared before its first call.
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
            let place = trust::plugin(&specification.file).map_err(|message| usage(&message))?;
            let plugin = Plugin::load(&place).map_err(|error| usage(&error))?;
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
        let wrong = |error: &dyn std::fmt::Display| {
            format!("plug-in {}: update `{}`: {error}", report.file, report.name)
        };
        let pattern = update.sensors().unwrap_or("*").to_string();
        let query = Query::parse(&pattern).map_err(|error| wrong(&error))?;
        let streams = Query::streams(&pattern).map_err(|error| wrong(&error))?;
        let subscription = Subscription::all().matching(streams);
        let binding = Binding::new(update.name())
            .subscribe(subscription)
            .on_missed(missed);
        let added = self.set.add(update, binding);
        let member = added.map_err(|error| wrong(&error))?;
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

    /// Whether one of them is meant to hear such a stream.
    pub fn want(&self, stream: &StreamDescriptor) -> bool {
        let mut wanted = self
            .patterns
            .iter()
            .filter_map(|it| Query::streams(it).ok());
        wanted.any(|wants| wants(stream))
    }

    /// Begins with rounds in which missed elements stop nobody; whoever has the answer ends that.
    pub fn lenient(&mut self) -> Supervisor {
        self.set = std::mem::take(&mut self.set).lenient();
        self.set.supervisor()
    }

    /// What is called.
    pub fn set(&mut self) -> &mut UpdateSet {
        &mut self.set
    }

    /// Bytes that are mapped of each plug-in that they come from.
    pub const fn mapped_bytes(&self) -> &BTreeMap<PathBuf, u64> {
        &self.mapped
    }

    /// Bytes that all of them took when they were created.
    pub fn created_bytes(&self) -> u64 {
        self.members.iter().map(|(it, _)| it.memory_bytes).sum()
    }

    /// Elements that reached at least one of them.
    pub fn elements(&self) -> u64 {
        self.set.elements()
    }

    /// What they have found so far, asked between two rounds.
    pub fn look(&mut self) -> Vec<UpdateReport> {
        let (set, members) = (&mut self.set, &self.members);
        let looked = members.iter().map(|(report, member)| {
            let mut report = report.clone();
            fill(&mut report, member.status(), set.get_mut(member));
            report
        });
        looked.collect()
    }

    /// As [`Updates::finish`], of a monitor that had these streams: who wants none of them says so.
    pub fn finish_among(self, streams: &[Arc<StreamDescriptor>]) -> Vec<UpdateReport> {
        let patterns: Vec<String> = self.patterns.clone();
        let mut finished = self.finish();
        for (report, pattern) in finished.iter_mut().zip(patterns) {
            // It was parsed when the update was added.
            let wants = Query::streams(&pattern).ok();
            let wants = |stream: &Arc<StreamDescriptor>| wants.as_ref().is_none_or(|it| it(stream));
            if !streams.is_empty() && !streams.iter().any(wants) {
                report.complaints.push(format!(
                    "update `{}` wants the sensors `{pattern}`, and no sensor of this monitor is one: nothing \
                     was evaluated by it; name such a sensor in the file, or leave the update out",
                    report.name
                ));
            }
        }
        finished
    }

    /// What they have found.
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

/// Fills in how an update is doing, and what it tells.
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
        tell(&results, report);
    }
    let (state, message) = end.map_or(("finished", None), |(state, why)| (state, Some(why)));
    report.state = state.to_string();
    report.message = message;
}

/// Why an update was stopped.
pub fn stopped_by(gap: &Gap) -> String {
    format!(
        "{} elements of stream {} were missed ({}), between {} and {}, and it does not go on then",
        gap.missed, gap.stream, gap.cause, gap.from, gap.to
    )
}

fn tell(results: &Results, report: &mut UpdateReport) {
    for (key, told) in results.iter() {
        let value = match told {
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
