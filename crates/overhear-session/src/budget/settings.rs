// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of a budget: the target, the window, and rules for sensors.

use std::str::FromStr;

use overhear_budget::{Actuator, Budget, EventPrice, Overhead, SourceSpec};
use overhear_directory::Matcher;
use overhear_event::{Nanos, StreamDescriptor};

/// The window without another one: one second of CPU time.
const WINDOW: Nanos = Nanos::from_ms(1000);

/// The requested budget.
#[derive(Clone, Debug)]
pub struct BudgetSettings {
    /// The monitoring overhead to keep.
    pub target: Overhead,
    /// The CPU time over which it is kept.
    pub window: Nanos,
    /// Rules for sensors; the first that matches counts.
    pub rules: Vec<SensorRule>,
}

/// How the sensors that match a pattern take part.
#[derive(Clone, Debug)]
pub struct SensorRule {
    /// The pattern, as it was given.
    pub name: String,
    /// The sensors.
    pub sensors: Matcher,
    /// Weight in the division of the budget.
    pub weight: f64,
    /// Overhead that each of them may cause in any case.
    pub floor: Option<Overhead>,
    /// They are never switched off.
    pub always_on: bool,
}

impl SensorRule {
    /// Sensors that a guaranteed monitor reads: admission's promise stands before a budget.
    pub(crate) fn guaranteed(sensors: Matcher) -> Self {
        Self {
            name: "sensors of guaranteed monitors".to_string(),
            sensors,
            weight: 1.0,
            floor: None,
            always_on: true,
        }
    }
}

impl BudgetSettings {
    /// A budget of this target, with a window of one second and without rules.
    #[must_use]
    pub const fn of(target: Overhead) -> Self {
        Self {
            target,
            window: WINDOW,
            rules: Vec::new(),
        }
    }

    /// Refuses settings that cannot be kept.
    ///
    /// # Errors
    /// A message.
    pub fn check(&self) -> Result<(), String> {
        Budget::new(self.target, self.window).map_err(|error| error.to_string())?;
        let exceeds = |rule: &&SensorRule| rule.floor.is_some_and(|floor| floor > self.target);
        match self.rules.iter().find(exceeds) {
            Some(rule) => Err(format!(
                "the floors of [[budget.sensor]] `{}` exceed the target of {}",
                rule.name, self.target
            )),
            None => Ok(()),
        }
    }

    fn rule(&self, sensor: &StreamDescriptor) -> Option<&SensorRule> {
        self.rules.iter().find(|rule| rule.sensors.matches(sensor))
    }

    pub(super) fn spec(
        &self,
        label: &str,
        sensor: &StreamDescriptor,
        price: EventPrice,
    ) -> SourceSpec {
        let actuator = Actuator::Switch { dwell: Nanos::ZERO };
        let spec = SourceSpec::new(label, price).actuator(actuator);
        let Some(rule) = self.rule(sensor) else {
            return spec;
        };
        let mut spec = spec.weight(rule.weight);
        if let Some(floor) = rule.floor {
            spec = spec.floor(floor);
        }
        if rule.always_on {
            spec = spec.always_on();
        }
        spec
    }
}

/// Reads `5%`, `0.5 %` or `5`: per cent of the CPU time that the programs take without it.
///
/// # Errors
/// A message.
pub fn parse_target(text: &str) -> Result<Overhead, String> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    let percent = f64::from_str(number).map_err(|_| {
        format!("`{text}` is no budget; give per cent of the CPU time, for example 5%")
    })?;
    Overhead::from_percent(percent).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::parse_target;

    #[test]
    fn targets_are_per_cent_with_or_without_sign() {
        for text in ["5%", "5 %", "5", " 5.0% "] {
            assert_eq!(parse_target(text).unwrap().overhead(), 0.05, "{text}");
        }
        assert_eq!(parse_target("0").unwrap().overhead(), 0.0);
    }

    #[test]
    fn other_texts_are_refused_with_a_message() {
        for (text, message) in [
            (
                "-1%",
                "an overhead of -1 % is not possible; give 0 % or more",
            ),
            (
                "five",
                "`five` is no budget; give per cent of the CPU time, for example 5%",
            ),
            (
                "",
                "`` is no budget; give per cent of the CPU time, for example 5%",
            ),
            (
                "5%%",
                "`5%%` is no budget; give per cent of the CPU time, for example 5%",
            ),
            (
                "inf",
                "the overhead is not a finite number; give a value in per cent, for example 5 %",
            ),
            (
                "nan",
                "the overhead is not a finite number; give a value in per cent, for example 5 %",
            ),
        ] {
            assert_eq!(parse_target(text).unwrap_err(), message);
        }
    }
}
