// SPDX-License-Identifier: MIT OR Apache-2.0
//! The updates of a file by executor. Each executor has a monitor of its own, with the sensors that
//! its updates take.

use super::{Config, ExecutorConfig, UpdateConfig};

/// A kind of executor. `auto` and `deadline` are one kind: guaranteed, if the machine permits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// `auto` and `deadline`.
    Guaranteed,
    /// `bandwidth`.
    Bandwidth,
    /// `buffered`.
    Buffered,
    /// `best_effort`.
    BestEffort,
    /// `idle`.
    Idle,
}

impl ExecutorKind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 5] = [
        Self::Guaranteed,
        Self::Bandwidth,
        Self::Buffered,
        Self::BestEffort,
        Self::Idle,
    ];

    /// Whether it reserves CPU time.
    #[must_use]
    pub const fn reserves(self) -> bool {
        !matches!(self, Self::BestEffort | Self::Idle)
    }
}

impl From<ExecutorConfig> for ExecutorKind {
    fn from(executor: ExecutorConfig) -> Self {
        match executor {
            ExecutorConfig::Auto | ExecutorConfig::Deadline => Self::Guaranteed,
            ExecutorConfig::Bandwidth => Self::Bandwidth,
            ExecutorConfig::Buffered => Self::Buffered,
            ExecutorConfig::BestEffort => Self::BestEffort,
            ExecutorConfig::Idle => Self::Idle,
        }
    }
}

/// Some of the updates of a file and the sensors that they take, by their indices in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    updates: Vec<bool>,
    sensors: Vec<bool>,
}

impl Selection {
    fn of(config: &Config, takes: impl Fn(&UpdateConfig) -> bool) -> Self {
        let updates: Vec<bool> = config.updates.iter().map(takes).collect();
        let is_full = updates.iter().all(|taken| *taken);
        let sensors = config.sensors.iter().map(|sensor| {
            let mut selected = config.updates.iter().zip(&updates);
            // A full selection has all sensors, so that admission refuses those without an update.
            is_full || selected.any(|(update, taken)| *taken && update.takes(&sensor.id))
        });
        let sensors = sensors.collect();
        Self { updates, sensors }
    }

    /// Whether an update is one of them.
    #[must_use]
    pub fn has_update(&self, index: usize) -> bool {
        self.updates.get(index).copied().unwrap_or(false)
    }

    /// Whether a sensor is taken by one of them.
    #[must_use]
    pub fn has_sensor(&self, index: usize) -> bool {
        self.sensors.get(index).copied().unwrap_or(false)
    }

    fn is_empty(&self) -> bool {
        !self.updates.contains(&true)
    }
}

impl UpdateConfig {
    /// Whether it takes the elements of this sensor.
    pub(crate) fn takes(&self, id: &str) -> bool {
        let named = self.sensors.as_ref();
        named.is_none_or(|ids| ids.iter().any(|own| own == id))
    }
}

impl Config {
    /// The executor of an update.
    #[must_use]
    pub fn executor_of(&self, update: &UpdateConfig) -> ExecutorConfig {
        update.executor.unwrap_or(self.monitor.executor)
    }

    /// All updates and sensors of the file.
    #[must_use]
    pub fn full_selection(&self) -> Selection {
        Selection::of(self, |_| true)
    }

    /// The updates of this kind of executor; `None` if there are none. A file without updates has
    /// one selection, for the executor of its monitor.
    #[must_use]
    pub fn selection(&self, kind: ExecutorKind) -> Option<Selection> {
        if self.updates.is_empty() {
            let is_own = ExecutorKind::from(self.monitor.executor) == kind;
            return is_own.then(|| self.full_selection());
        }
        let selection = Selection::of(self, |update| {
            ExecutorKind::from(self.executor_of(update)) == kind
        });
        (!selection.is_empty()).then_some(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, ExecutorKind};

    #[test]
    fn each_executor_has_its_updates_and_their_sensors() {
        let text = r#"
            [monitor]
            latency = "5ms"
            executor = "deadline"
            [[sensor]]
            id = "a"
            [[sensor]]
            id = "b"
            [[update]]
            name = "judge"
            sensors = ["a"]
            [[update]]
            name = "look"
            executor = "buffered"
            [[update]]
            name = "also"
            executor = "auto"
            sensors = ["a"]
        "#;
        let config = Config::parse(text).unwrap();
        let of = |kind| {
            config.selection(kind).map(|selection| {
                let updates: Vec<_> = (0..4).filter(|&it| selection.has_update(it)).collect();
                let sensors: Vec<_> = (0..4).filter(|&it| selection.has_sensor(it)).collect();
                (updates, sensors)
            })
        };
        assert_eq!(of(ExecutorKind::Guaranteed), Some((vec![0, 2], vec![0])));
        assert_eq!(of(ExecutorKind::Buffered), Some((vec![1], vec![0, 1])));
        assert_eq!(
            (of(ExecutorKind::Bandwidth), of(ExecutorKind::BestEffort)),
            (None, None)
        );
        // A full selection has all sensors, whether an update takes them or not.
        let text = text.replace("executor = \"buffered\"", "sensors = [\"a\"]");
        let config = Config::parse(&text).unwrap();
        let selection = config.selection(ExecutorKind::Guaranteed).unwrap();
        assert_eq!(selection, config.full_selection());
        assert!(selection.has_sensor(1));
    }
}
