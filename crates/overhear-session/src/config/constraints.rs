// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[constraint]]`: requirements on results.
//!
//! The keys of an entry select its kind. Keys that do not belong together are refused with their
//! line and column.

use std::fmt;
use std::path::Path;

use overhear_event::Nanos;
use overhear_metrics::automaton::{Catalogue, Pattern, SpecificationError};
use overhear_metrics::verdict::{Constraint, Demand, Each, TaskFilter, Values};
use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{reject_unknown_entries, Length};
use crate::error::{ErrorKind, SessionError};

/// `[[constraint]]`: a requirement on a metric, a field or an event; see docs/verdicts.md.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConstraintConfig {
    /// Its name, in verdicts and reports.
    #[schemars(with = "String")]
    pub name: Spanned<String>,
    /// The metric whose measurements are judged: a built-in one, or a file relative to this
    /// file.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub metric: Option<Spanned<String>>,
    /// The event that is judged, as in a metric: `user:SENSOR`, `kernel:HOOK [FIELD == 1]`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub of: Option<Spanned<String>>,
    /// The field of the event whose values are judged.
    #[serde(default)]
    pub field: Option<String>,
    /// Judges these tasks alone: an id, or a name with `*` and `?`.
    #[serde(default, deserialize_with = "task_filter")]
    #[schemars(schema_with = "task_filter_schema")]
    pub task: Option<TaskFilter>,
    /// The division of values into groups that are judged separately: `all`, `sensor`, `task`, or a
    /// field.
    #[serde(default)]
    pub each: Option<String>,
    /// Lower bound of each value.
    #[serde(default)]
    pub min: Option<Bound>,
    /// Upper bound of each value.
    #[serde(default)]
    pub max: Option<Bound>,
    /// The fraction of the values that must not exceed `at_most`.
    #[serde(default)]
    pub quantile: Option<f64>,
    /// With `quantile` the bound; with `window` the largest number of elements in it.
    #[serde(default)]
    pub at_most: Option<Bound>,
    /// With `window` the smallest number of elements in it.
    #[serde(default)]
    pub at_least: Option<u64>,
    /// Largest difference of two values; with `period`, of a distance from it.
    #[serde(default)]
    pub jitter: Option<Bound>,
    /// Distance of neighbouring elements.
    #[serde(default)]
    pub period: Option<Length>,
    /// Length of a window in which elements are counted. It may begin at any time.
    #[serde(default)]
    pub window: Option<Length>,
    /// Largest distance to the next element.
    #[serde(default)]
    pub absence: Option<Length>,
    /// The event must not occur.
    #[serde(default)]
    pub never: Option<bool>,
    /// The largest number of anomalies of the samples `of` a sampler; see docs/samples.md.
    #[serde(default)]
    pub anomalies: Option<u64>,
    /// The events that must occur in this order, repeatedly.
    #[serde(default)]
    #[schemars(with = "Option<Vec<String>>")]
    pub order: Option<Vec<Spanned<String>>>,
    /// The event after which `of` must come `within`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub after: Option<Spanned<String>>,
    /// The deadline of `of` after `after`.
    #[serde(default)]
    pub within: Option<Length>,
    /// Largest error between the stamps of two streams, if it is known to be less than the error of
    /// the clock.
    #[serde(default)]
    pub clock_error: Option<Length>,
    /// Judges what a budget let be observed, as a sample.
    #[serde(default)]
    pub sampled: bool,
}

/// A bound: a number in the unit of the field, or a length of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// A number in the unit of the field.
    Number(f64),
    /// A length of time.
    Length(Nanos),
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrLength;

        impl Visitor<'_> for NumberOrLength {
            type Value = Bound;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or a length of time such as \"50 ms\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Bound, E> {
                Ok(Bound::Number(number as f64))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Bound, E> {
                Ok(Bound::Number(number as f64))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Bound, E> {
                Ok(Bound::Number(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Bound, E> {
                Length::parse(text)
                    .map(|length| Bound::Length(length.0))
                    .map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrLength)
    }
}

/// Deserialises an id, as a number or a text, or a name.
fn task_filter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TaskFilter>, D::Error> {
    struct IdOrName;

    impl Visitor<'_> for IdOrName {
        type Value = TaskFilter;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the id of a task, or a name such as \"worker*\"")
        }

        fn visit_i64<E: Error>(self, id: i64) -> Result<TaskFilter, E> {
            let id =
                u32::try_from(id).map_err(|_| E::custom(format!("{id} is no id of a task")))?;
            Ok(TaskFilter::Id(id))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<TaskFilter, E> {
            match text {
                "" => Err(E::custom(
                    "a task has no empty name; leave `task` out to judge all",
                )),
                text => Ok(TaskFilter::parse(text)),
            }
        }
    }

    deserializer.deserialize_any(IdOrName).map(Some)
}

fn task_filter_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["integer", "string"], "examples": ["worker*", 4711] })
}

impl JsonSchema for Bound {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bound".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["number", "string"],
            "description": "a number in the unit of the field, or a length of time with its unit",
            "examples": [99.5, "200us"],
        })
    }
}

/// A message, and the byte in the file that it is about.
type LocatedMessage = (usize, String);

/// The constraints of the file `path`, at least one.
///
/// # Errors
/// [`SessionError`] with a message that names the file, the line and the column.
pub fn read(path: &Path) -> Result<Vec<Constraint>, SessionError> {
    let usage = |message: String| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    };
    let text = super::text_of(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse(&text, base).map_err(usage)
}

/// As [`read`], of a file that may have no constraints.
///
/// # Errors
/// [`SessionError`] with a message that names the file, the line and the column.
pub fn read_any(path: &Path) -> Result<Vec<Constraint>, SessionError> {
    let text = super::text_of(path)?;
    let base = path.parent().unwrap_or(Path::new(""));
    parse_any(&text, base).map_err(|message| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    })
}

/// The constraints of a file's text, at least one. `base` is the folder of relative file names.
///
/// # Errors
/// A message that names the line and the column.
pub fn parse(text: &str, base: &Path) -> Result<Vec<Constraint>, String> {
    let constraints = parse_any(text, base)?;
    match constraints.is_empty() {
        true => Err("there is no [[constraint]]; write what must hold".to_owned()),
        false => Ok(constraints),
    }
}

fn parse_any(text: &str, base: &Path) -> Result<Vec<Constraint>, String> {
    /// The entries for constraints.
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default, rename = "constraint")]
        constraints: Vec<ConstraintConfig>,
    }

    reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    let catalogue = Catalogue::linux();
    let mut constraints: Vec<Constraint> = Vec::new();
    for config in &entries.constraints {
        let name = config.name.get_ref();
        let constraint = config
            .resolve(base, &catalogue)
            .and_then(|constraint| match names(&constraints, name) {
                true => Err((
                    config.name.span().start,
                    "another constraint has this name; rename one of them".to_owned(),
                )),
                false => Ok(constraint),
            })
            .map_err(|(at, message)| {
                let (line, column) = line_and_column(text, at);
                format!("line {line}, column {column}: constraint `{name}`: {message}")
            })?;
        constraints.push(constraint);
    }
    Ok(constraints)
}

fn names(constraints: &[Constraint], name: &str) -> bool {
    constraints
        .iter()
        .any(|constraint| constraint.name() == name)
}

/// Line and column of a byte, both counted from 1.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |index| index + 1);
    (line, before[start..].chars().count() + 1)
}

/// The position in the file of an error within a string. It is exact if the string is on one line
/// and has no escapes.
fn locate(word: &Spanned<String>, error: &SpecificationError) -> LocatedMessage {
    let before = error.at.column.saturating_sub(1) as usize;
    let bytes: usize = word
        .get_ref()
        .chars()
        .take(before)
        .map(char::len_utf8)
        .sum();
    (word.span().start + 1 + bytes, error.fault.to_string())
}

impl ConstraintConfig {
    fn resolve(&self, base: &Path, catalogue: &Catalogue) -> Result<Constraint, LocatedMessage> {
        let at = self.name.span().start;
        let here = |message: &str| (at, message.to_owned());
        let demand = self.demand(base, catalogue)?;
        let constraint = Constraint::new(self.name.get_ref(), demand, catalogue)
            .map_err(|error| here(&error.to_string()))?;
        let constraint = match self.each.as_deref() {
            None => constraint,
            Some(each) => {
                let each = match each {
                    "all" => Each::All,
                    "sensor" => Each::Sensor,
                    "task" => Each::Task,
                    field => Each::Field(field.to_owned()),
                };
                constraint
                    .each(each, catalogue)
                    .map_err(|error| here(&error.to_string()))?
            }
        };
        let constraint = match &self.task {
            Some(task) => constraint.of_task(task.clone()),
            None => constraint,
        };
        let constraint = constraint.sampled(self.sampled);
        Ok(match self.clock_error {
            Some(error) => constraint.with_clock_error(error.0),
            None => constraint,
        })
    }

    /// The one key that selects the kind of the constraint.
    fn kind(&self) -> Result<&'static str, LocatedMessage> {
        let kinds = [
            ("max", self.max.is_some() || self.min.is_some()),
            ("quantile", self.quantile.is_some()),
            ("window", self.window.is_some()),
            ("period", self.period.is_some()),
            ("jitter", self.jitter.is_some() && self.period.is_none()),
            ("absence", self.absence.is_some()),
            ("never", self.never.is_some()),
            ("anomalies", self.anomalies.is_some()),
            ("order", self.order.is_some()),
            ("within", self.within.is_some()),
        ];
        let mut given = kinds.iter().filter(|(_, given)| *given).map(|(key, _)| key);
        let at = self.name.span().start;
        match (given.next(), given.next()) {
            (Some(kind), None) => Ok(kind),
            (Some(one), Some(other)) => Err((
                at,
                format!(
                    "`{one}` and `{other}` demand different things; write a constraint for each"
                ),
            )),
            (None, _) => Err((
                at,
                "it demands nothing; give max, min, quantile, jitter, window, period, absence, \
                 never, anomalies, order or within"
                    .to_owned(),
            )),
        }
    }

    fn demand(&self, base: &Path, catalogue: &Catalogue) -> Result<Demand, LocatedMessage> {
        let kind = self.kind()?;
        self.reject_unknown_entries(kind)?;
        let at = self.name.span().start;
        let missing = |key: &str| (at, format!("`{kind}` needs `{key}`"));
        let pattern = |word: &Spanned<String>| {
            Pattern::parse(word.get_ref(), catalogue).map_err(|error| locate(word, &error))
        };
        let event = || match &self.of {
            Some(word) => pattern(word),
            None => Err(missing("of")),
        };
        Ok(match kind {
            "max" => {
                let bounds = [self.min, self.max];
                let (of, [min, max]) = self.values(base, catalogue, bounds)?;
                Demand::Bounds { of, min, max }
            }
            "quantile" => {
                let bound = self.at_most.ok_or_else(|| missing("at_most"))?;
                let (of, [at_most]) = self.values(base, catalogue, [Some(bound)])?;
                Demand::Quantile {
                    of,
                    fraction: self.quantile.unwrap_or(f64::NAN),
                    at_most: at_most.unwrap_or(f64::NAN),
                }
            }
            "jitter" => {
                let (of, [at_most]) = self.values(base, catalogue, [self.jitter])?;
                Demand::Spread {
                    of,
                    at_most: at_most.unwrap_or(f64::NAN),
                }
            }
            "window" => Demand::Rate {
                of: event()?,
                window: self.window.map_or(Nanos::ZERO, |length| length.0),
                at_least: self.at_least,
                at_most: match self.at_most {
                    None => None,
                    Some(Bound::Number(count)) if count >= 0.0 && count.fract() == 0.0 => {
                        Some(count as u64)
                    }
                    Some(_) => {
                        let message = "with `window`, `at_most` is a number of elements";
                        return Err((at, message.to_owned()));
                    }
                },
            },
            "period" => Demand::Period {
                of: event()?,
                period: self.period.map_or(Nanos::ZERO, |length| length.0),
                jitter: match self.jitter {
                    Some(Bound::Length(jitter)) => jitter,
                    Some(Bound::Number(_)) => {
                        let message = "with `period`, `jitter` is a length such as \"50 us\"";
                        return Err((at, message.to_owned()));
                    }
                    None => return Err(missing("jitter")),
                },
            },
            "absence" => Demand::Absence {
                of: event()?,
                at_most: self.absence.map_or(Nanos::ZERO, |length| length.0),
            },
            "never" => match self.never {
                Some(true) => Demand::Never { of: event()? },
                _ => return Err((at, "`never` can only be true".to_owned())),
            },
            "anomalies" => Demand::Anomalies {
                of: event()?,
                at_most: self.anomalies.unwrap_or_default(),
            },
            "order" => {
                let order = self.order.iter().flatten().map(pattern);
                Demand::Order {
                    of: order.collect::<Result<_, _>>()?,
                }
            }
            _ => Demand::Deadline {
                after: match &self.after {
                    Some(word) => pattern(word)?,
                    None => return Err(missing("after")),
                },
                of: event()?,
                within: self.within.map_or(Nanos::ZERO, |length| length.0),
            },
        })
    }

    /// Refuses keys that have no meaning for this kind.
    fn reject_unknown_entries(&self, kind: &str) -> Result<(), LocatedMessage> {
        let judges_values = matches!(kind, "max" | "quantile" | "jitter");
        let keys = [
            ("metric", self.metric.is_some(), judges_values),
            ("field", self.field.is_some(), judges_values),
            ("of", self.of.is_some(), kind != "order"),
            ("after", self.after.is_some(), kind == "within"),
            (
                "at_most",
                self.at_most.is_some(),
                matches!(kind, "quantile" | "window"),
            ),
            ("at_least", self.at_least.is_some(), kind == "window"),
            (
                "jitter",
                self.jitter.is_some(),
                matches!(kind, "jitter" | "period"),
            ),
        ];
        match keys.iter().find(|(_, given, belongs)| *given && !*belongs) {
            Some((key, ..)) => Err((
                self.name.span().start,
                format!("`{key}` has no meaning with `{kind}`; leave it out"),
            )),
            None => Ok(()),
        }
    }

    /// The values that are judged, and the bounds in their unit.
    fn values<const N: usize>(
        &self,
        base: &Path,
        catalogue: &Catalogue,
        bounds: [Option<Bound>; N],
    ) -> Result<(Values, [Option<f64>; N]), LocatedMessage> {
        let at = self.name.span().start;
        let as_time = bounds
            .iter()
            .flatten()
            .any(|bound| matches!(bound, Bound::Length(_)));
        let as_number = bounds
            .iter()
            .flatten()
            .any(|bound| matches!(bound, Bound::Number(_)));
        if as_time && as_number {
            let message = "one bound is a length and one a number; give both in one form";
            return Err((at, message.to_owned()));
        }
        let of = match (&self.metric, &self.of, &self.field) {
            (Some(_), None, None) if as_number => {
                let message =
                    "a metric measures lengths; give the bound as one, such as \"200 us\"";
                return Err((at, message.to_owned()));
            }
            (Some(name), None, None) => {
                let metric = super::metrics::find(name.get_ref(), base)
                    .map_err(|message| (name.span().start, message))?;
                Values::Metric(Box::new(metric))
            }
            (None, Some(word), Some(field)) => Values::Field {
                of: Pattern::parse(word.get_ref(), catalogue)
                    .map_err(|error| locate(word, &error))?,
                field: field.clone(),
                as_time,
            },
            _ => {
                let message = "values come from a `metric`, or from `of` an event and its `field`";
                return Err((at, message.to_owned()));
            }
        };
        let bounds = bounds.map(|bound| {
            bound.map(|bound| match bound {
                Bound::Number(number) => number,
                Bound::Length(length) => length.as_ns() as f64,
            })
        });
        Ok((of, bounds))
    }
}

#[cfg(test)]
mod tests;
