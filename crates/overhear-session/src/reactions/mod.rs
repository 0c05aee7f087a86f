// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[reaction]]` of `overhear.toml`: read before anything runs, decided by the monitors
//! ([`overhear_monitor::reaction`]), carried out by a thread of their own.
//!
//! [`Reactions::read`] refuses entries that cannot be carried out. `Deciders` creates the decider
//! of each analysis. `Reactor` takes the decisions and carries them out.

mod action;
mod reactor;
mod report;

use std::ffi::CString;
use std::path::Path;

use overhear_event::{Nanos, Timestamp};
use overhear_metrics::verdict::Constraint;
use overhear_monitor::reaction::{
    Condition, Decision, Measure, Occurrence, ReactionIndex, Trigger,
};
use serde::Deserialize;

use crate::config::reactions::ReactionConfig;
use crate::config::Execution;
use crate::error::{ErrorKind, SessionError};

use action::Action;
pub(crate) use reactor::{ActionContext, Deciders, Reactor};
pub use report::{ReactionReport, ReactionsReport};

/// The reactions of a run, ready to be carried out.
#[derive(Clone, Debug, Default)]
pub struct Reactions {
    all: Vec<Reaction>,
    names: Names,
    // Actions that were left out because execution is disabled.
    disabled: Vec<String>,
}

/// One `[[reaction]]`.
#[derive(Clone, Debug)]
struct Reaction {
    name: CString,
    // Each with the indices of its sensors, updates or constraints; `None` for all.
    triggers: Vec<(Trigger, Option<Vec<usize>>)>,
    after: u64,
    once: bool,
    actions: Vec<Action>,
}

/// Names of the entries that a reaction can refer to, by index.
#[derive(Clone, Debug, Default)]
struct Names {
    sensors: Vec<String>,
    updates: Vec<String>,
    constraints: Vec<String>,
}

impl Names {
    /// The kind of entry that this trigger refers to, and the names of these entries.
    fn of(&self, trigger: Trigger) -> (&'static str, &[String]) {
        match trigger {
            Trigger::Overrun | Trigger::Update => ("update", &self.updates),
            Trigger::Stream | Trigger::Missed => ("sensor", &self.sensors),
            Trigger::Violated | Trigger::Inconclusive => ("constraint", &self.constraints),
        }
    }

    fn name(&self, occurrence: &Occurrence) -> &str {
        let (_, names) = self.of(occurrence.trigger());
        names.get(occurrence.of()).map_or("?", String::as_str)
    }

    /// A message about a decision. Times count from `start`.
    fn message(&self, decision: &Decision, start: Timestamp) -> String {
        let at = decision.at.relative_to(start);
        let measure = measure_text(&decision.occurrence.measure());
        let of = self.name(&decision.occurrence);
        match decision.occurrence {
            Occurrence::Overrun {
                sensor,
                element,
                took,
                wcet,
                ..
            } => {
                let sensor = sensor.and_then(|sensor| self.sensors.get(sensor.0));
                let sensor = sensor.map_or("?", String::as_str);
                format!(
                    "at {at} update `{of}` took {took} for element {element} of sensor `{sensor}`, \
                     more than its wcet of {wcet}"
                )
            }
            Occurrence::Exceeded { element, .. } => {
                format!("at {at} sensor `{of}` exceeded its stream with element {element}{measure}")
            }
            Occurrence::Missed { first, missed, .. } => {
                let elements = match missed {
                    0 => "an unknown number of elements".to_string(),
                    1 => "1 element".to_string(),
                    more => format!("{more} elements"),
                };
                format!("at {at} {elements} of sensor `{of}` from {first} on had been missed")
            }
            Occurrence::Violated {
                offences, element, ..
            } => {
                let element = element.map(|element| format!(" by element {element}"));
                format!(
                    "at {at} constraint `{of}` was violated{} (offence {offences}){measure}",
                    element.unwrap_or_default()
                )
            }
            Occurrence::Inconclusive { .. } => format!(
                "at {at} constraint `{of}` became inconclusive: it cannot be found to hold any more"
            ),
            Occurrence::Requested { code, value, .. } => {
                format!(
                    "at {at} update `{of}` requested a reaction with code {code} and value {value}"
                )
            }
        }
    }
}

/// The end of a message with the observed value and the bound; empty without either.
fn measure_text(measure: &Measure) -> String {
    let number = |value: f64| match measure.in_nanoseconds && value >= 0.0 {
        true => Nanos::from_ns(value as u64).to_string(),
        false => value.to_string(),
    };
    match (measure.observed.map(number), measure.bound.map(number)) {
        (Some(observed), Some(bound)) => format!(": observed {observed}, bound {bound}"),
        (Some(observed), None) => format!(": observed {observed}"),
        (None, Some(bound)) => format!(": bound {bound}"),
        (None, None) => String::new(),
    }
}

/// The parts of a file that reactions refer to. The rest is checked elsewhere.
#[derive(Deserialize)]
struct Entries {
    monitor: Option<toml::Table>,
    #[serde(default, rename = "sensor")]
    sensors: Vec<Sensor>,
    #[serde(default, rename = "update")]
    updates: Vec<Update>,
    #[serde(default, rename = "reaction")]
    reactions: Vec<ReactionConfig>,
}

#[derive(Deserialize)]
struct Sensor {
    id: String,
}

#[derive(Deserialize)]
struct Update {
    name: String,
}

impl Reactions {
    /// The reactions of these files, which must be different files. They refer to these
    /// constraints, and to the sensors and updates of the files.
    ///
    /// # Errors
    /// [`SessionError`] with a message that names the file and the entry.
    pub fn read(
        files: &[&Path],
        constraints: &[Constraint],
        execution: Execution,
    ) -> Result<Self, SessionError> {
        let mut reactions = Self::default();
        let names = constraints.iter().map(|it| it.name().to_string());
        reactions.names.constraints = names.collect();
        let mut all = Vec::new();
        for &path in files {
            let usage = |message: String| {
                SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
            };
            let text = crate::config::text_of(path)?;
            let entries: Entries = crate::config::from_toml(&text).map_err(usage)?;
            if entries.monitor.is_some() {
                let sensors = entries.sensors.into_iter().map(|sensor| sensor.id);
                reactions.names.sensors.extend(sensors);
                let updates = entries.updates.into_iter().map(|update| update.name);
                reactions.names.updates.extend(updates);
            }
            all.push((path, entries.monitor.is_some(), entries.reactions));
        }
        for (path, has_monitor, configs) in all {
            for mut config in configs {
                if execution == Execution::Disabled && !reactions.disable(&mut config) {
                    continue;
                }
                let reaction = reactions.resolve(&config, path, has_monitor);
                let reaction = reaction.map_err(|message| {
                    let (path, name) = (path.display(), &config.name);
                    SessionError::new(
                        ErrorKind::Usage,
                        format!("{path}: reaction `{name}`: {message}"),
                    )
                })?;
                reactions.all.push(reaction);
            }
        }
        Ok(reactions)
    }

    /// Removes the actions that execute code. Returns whether the reaction has other actions.
    fn disable(&mut self, config: &mut ReactionConfig) -> bool {
        let removed = [
            ("exec", config.exec.take().is_some()),
            ("function", config.function.take().is_some()),
        ];
        let removed = removed.iter().filter(|(_, was_present)| *was_present);
        let removed = removed.map(|(key, _)| format!("`{key}` of reaction `{}`", config.name));
        let before = self.disabled.len();
        self.disabled.extend(removed);
        let others = [
            config.log.is_some(),
            config.signal.is_some(),
            config.sensor.is_some(),
        ];
        others.contains(&true) || self.disabled.len() == before
    }

    /// A message about the actions that are left out because execution is disabled; `None` if there
    /// are none.
    #[must_use]
    pub fn disabled(&self) -> Option<String> {
        let list = self.disabled.join(", ");
        (!list.is_empty()).then(|| format!("execution is off, which disables {list}"))
    }

    /// Whether there are no reactions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn resolve(
        &self,
        config: &ReactionConfig,
        path: &Path,
        has_monitor: bool,
    ) -> Result<Reaction, String> {
        let name = CString::new(config.name.as_str())
            .map_err(|_| "its name has a zero byte".to_string())?;
        if self.all.iter().any(|known| known.name == name) {
            return Err("another reaction has this name; rename one of them".to_string());
        }
        if config.on.is_empty() {
            let known = Trigger::ALL.map(|trigger| format!("\"{}\"", trigger.name()));
            let known = known.join(", ");
            return Err(format!(
                "`on` is empty; name one or more triggers of {known}"
            ));
        }
        if config.after == Some(0) {
            return Err("`after` is 0; it is a count, and 1 is the first".to_string());
        }
        let mut triggers = Vec::new();
        for trigger in config.on.iter().map(|on| on.trigger()) {
            let (kind, names) = self.names.of(trigger);
            if kind != "constraint" && !has_monitor {
                let on = trigger.name();
                return Err(format!(
                    "`{on}` is about a monitor, and the file has no [monitor]"
                ));
            }
            let of = config.of.as_ref().map(|of| {
                let indices = of
                    .iter()
                    .filter_map(|it| names.iter().position(|n| n == it));
                indices.collect::<Vec<_>>()
            });
            if of.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!(
                    "`{}` is about {kind}s, and `of` names none of them; {}",
                    trigger.name(),
                    known(kind, names)
                ));
            }
            triggers.push((trigger, of));
        }
        for of in config.of.iter().flatten() {
            let is_known = |(trigger, _): &(Trigger, _)| self.names.of(*trigger).1.contains(of);
            if !triggers.iter().any(is_known) {
                let (kind, names) = self.names.of(triggers[0].0);
                return Err(format!(
                    "`of` names `{of}`, which nothing here is; {}",
                    known(kind, names)
                ));
            }
        }
        Ok(Reaction {
            name,
            triggers,
            after: config.after.unwrap_or(1),
            once: config.once,
            actions: Action::all_of(config, path.parent().unwrap_or(Path::new("")))?,
        })
    }

    /// The conditions of the reactions with these triggers.
    pub(crate) fn conditions(&self, is_wanted: impl Fn(Trigger) -> bool) -> Vec<Condition> {
        let mut conditions = Vec::new();
        for (index, reaction) in self.all.iter().enumerate() {
            for (trigger, of) in reaction.triggers.iter().filter(|(it, _)| is_wanted(*it)) {
                conditions.push(Condition {
                    reaction: ReactionIndex(index),
                    trigger: *trigger,
                    of: of.clone(),
                    after: reaction.after,
                    once: reaction.once,
                });
            }
        }
        conditions
    }
}

/// A list of the known entries, for a message.
fn known(kind: &str, names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.as_slice() {
        [] => format!("there is no [[{kind}]]"),
        some => format!("there is {}", some.join(", ")),
    }
}
