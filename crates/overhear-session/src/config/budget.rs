// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[budget]`: how much CPU time observing may take, and which sensors take part how.

use std::path::Path;

use overhear_budget::Overhead;
use overhear_directory::Query;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Length;
use crate::budget::{parse_target, BudgetSettings, SensorRule};
use crate::error::{ErrorKind, SessionError};

/// `[budget]`: keeps the monitoring overhead at a target, by switching sensors off and on.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// The overhead in per cent of the CPU time that the program takes without observing: `"5%"`.
    pub target: String,
    /// The CPU time over which it is kept; 1 s without it.
    #[serde(default)]
    pub window: Option<Length>,
    /// Rules for sensors; the first that matches a sensor counts.
    #[serde(default, rename = "sensor")]
    pub sensors: Vec<BudgetSensorConfig>,
}

/// `[[budget.sensor]]`: how some sensors take part in the budget.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetSensorConfig {
    /// The sensors: a pattern as for `overhear list`.
    pub name: String,
    /// Weight in the division of what is left; 1 without it.
    #[serde(default)]
    pub weight: Option<f64>,
    /// Overhead in per cent that each of them may cause in any case.
    #[serde(default)]
    pub floor: Option<String>,
    /// Whether they are never switched off.
    #[serde(default)]
    pub always: bool,
}

impl BudgetConfig {
    /// The settings, or a message that names the key.
    pub(crate) fn settings(&self) -> Result<BudgetSettings, String> {
        let target = parse_target(&self.target);
        let target = target.map_err(|message| format!("[budget] `target`: {message}"))?;
        let mut settings = BudgetSettings::of(target);
        if let Some(window) = self.window {
            settings.window = window.0;
        }
        for sensor in &self.sensors {
            let name = &sensor.name;
            let refused = |key: &str, message: String| {
                format!("[[budget.sensor]] `{name}`, `{key}`: {message}")
            };
            let query = Query::parse(name).and_then(|query| query.compile());
            let weight = sensor.weight.unwrap_or(1.0);
            if !weight.is_finite() || weight <= 0.0 {
                return Err(refused("weight", format!("{weight} is not above 0")));
            }
            let floor = sensor.floor.as_deref().map(parse_target).transpose();
            settings.rules.push(SensorRule {
                name: name.clone(),
                sensors: query.map_err(|error| refused("name", error.to_string()))?,
                weight,
                floor: floor.map_err(|message| refused("floor", message))?,
                always_on: sensor.always,
            });
        }
        settings.check()?;
        Ok(settings)
    }
}

/// The budget of a file, if it has one.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
fn read_any(path: &Path) -> Result<Option<BudgetSettings>, SessionError> {
    let text = super::text_of(path)?;
    parse_any(&text).map_err(|message| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    })
}

fn parse_any(text: &str) -> Result<Option<BudgetSettings>, String> {
    /// The entry of the budget.
    #[derive(Deserialize)]
    struct Entries {
        budget: Option<BudgetConfig>,
    }

    super::reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    entries
        .budget
        .as_ref()
        .map(BudgetConfig::settings)
        .transpose()
}

/// The budget that holds: the target of the command line, else the file's.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
pub fn requested(
    target: Option<Overhead>,
    file: Option<&Path>,
) -> Result<Option<BudgetSettings>, SessionError> {
    let chosen = chosen(target, file.map(read_any).transpose()?.flatten());
    if let (Some(settings), Some(file)) = (&chosen, file) {
        settings.check().map_err(|message| {
            SessionError::new(ErrorKind::Usage, format!("{}: {message}", file.display()))
        })?;
    }
    Ok(chosen)
}

fn chosen(target: Option<Overhead>, file: Option<BudgetSettings>) -> Option<BudgetSettings> {
    match (target, file) {
        (Some(target), Some(file)) => Some(BudgetSettings { target, ..file }),
        (Some(target), None) => Some(BudgetSettings::of(target)),
        (None, file) => file,
    }
}

#[cfg(test)]
mod tests {
    use overhear_budget::Overhead;
    use overhear_event::Nanos;

    use super::{chosen, parse_any};

    #[test]
    fn rules_of_a_file_stay_with_another_target() {
        let text =
            "[budget]\ntarget = \"5%\"\nwindow = \"200ms\"\n[[budget.sensor]]\nname = \"a*\"\n\
                    always = true\n";
        let file = parse_any(text).unwrap();
        let settings = chosen(Some(Overhead::from_percent(1.0).unwrap()), file).unwrap();
        assert_eq!(settings.target.overhead(), 0.01);
        assert_eq!(settings.window, Nanos::from_ms(200));
        assert!(settings.rules[0].always_on);
        assert!(chosen(None, None).is_none());
    }

    #[test]
    fn impossible_budgets_are_refused_with_the_key() {
        let rule = |line: &str| {
            format!("[budget]\ntarget = \"5%\"\n[[budget.sensor]]\nname = \"a\"\n{line}\n")
        };
        for (text, message) in [
            (
                "[budget]\ntarget = \"-5%\"\n".to_owned(),
                "[budget] `target`: an overhead of -5 % is not possible; give 0 % or more",
            ),
            (
                rule("weight = 0"),
                "[[budget.sensor]] `a`, `weight`: 0 is not above 0",
            ),
            (
                rule("floor = \"6%\""),
                "the floors of [[budget.sensor]] `a` exceed the target of 5 %",
            ),
            (
                "[budget]\ntarget = \"5%\"\nwindow = \"1us\"\n".to_owned(),
                "the window of the budget is 1000 ns; give at least 1 ms of CPU time",
            ),
        ] {
            assert_eq!(parse_any(&text).unwrap_err(), message);
        }
    }
}
