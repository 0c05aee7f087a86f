// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sensors that a user names. Each is required: without it, the program is not run.

use std::collections::BTreeSet;
use std::str::FromStr;

use overhear_kernel::{ActiveBackend, Backend, Sensor, Status, UnknownSensor};

use crate::error::{ErrorKind, SessionError, Setting};

/// The kernel sensors that a user names, or all of them.
#[derive(Clone, Debug, Default)]
pub struct NamedSensors {
    named: BTreeSet<Sensor>,
    all: bool,
}

impl FromStr for NamedSensors {
    type Err = UnknownSensor;

    /// One name, or `all` for all sensors that the kernel has.
    fn from_str(word: &str) -> Result<Self, UnknownSensor> {
        let mut sensors = Self::default();
        match word {
            "all" => sensors.all = true,
            name => {
                sensors.named.insert(name.parse()?);
            }
        }
        Ok(sensors)
    }
}

impl FromIterator<Sensor> for NamedSensors {
    fn from_iter<I: IntoIterator<Item = Sensor>>(sensors: I) -> Self {
        Self {
            named: sensors.into_iter().collect(),
            all: false,
        }
    }
}

impl NamedSensors {
    /// The union of these.
    #[must_use]
    pub fn joined(lists: &[Self]) -> Self {
        Self {
            named: lists.iter().flat_map(|list| list.named.clone()).collect(),
            all: lists.iter().any(|list| list.all),
        }
    }

    pub(crate) fn sensors(&self) -> BTreeSet<Sensor> {
        match self.all {
            true => Sensor::all().collect(),
            false => self.named.clone(),
        }
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.all
    }

    /// Checks that this backend can have kernel sensors, if some are named.
    ///
    /// # Errors
    /// [`SessionError`] if the backend is off.
    pub fn check_backend(&self, backend: Backend) -> Result<(), SessionError> {
        if self.is_empty() || backend != Backend::Off {
            return Ok(());
        }
        let message =
            "kernel sensors are named, and the source of kernel events is off; leave one of the two out";
        Err(SessionError::new(ErrorKind::Usage, message).about(Setting::KernelOff))
    }

    /// Checks that the named sensors are recorded.
    ///
    /// # Errors
    /// [`SessionError`] with the sensors that are not, and the reason.
    pub fn check(&self, status: &Status) -> Result<(), SessionError> {
        let is_connected = |sensor: &&Sensor| status.sensors.contains(sensor);
        let absent = self.named.iter().filter(|sensor| !is_connected(sensor));
        let mut absent: Vec<&str> = absent.map(|sensor| sensor.name()).collect();
        if self.all && status.active != ActiveBackend::Bpf {
            absent = vec!["all"];
        }
        if absent.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the named kernel sensors cannot be recorded: {} ({}); leave them out, or see `overhear doctor`",
            absent.join(","),
            status.message
        );
        Err(SessionError::new(ErrorKind::Unavailable, message).about(Setting::KernelSensors))
    }
}

#[cfg(test)]
mod tests {
    use overhear_kernel::{ActiveBackend, Sensor, Status};

    use super::NamedSensors;
    use crate::error::ErrorKind;

    #[test]
    fn each_named_sensor_is_required() {
        let status = |active, names: &[&str]| Status {
            active,
            message: "why".to_owned(),
            sensors: names.iter().map(|name| name.parse().unwrap()).collect(),
        };
        let named = ["syscall", "flutter"].map(|name| name.parse::<NamedSensors>().unwrap());
        let named = NamedSensors::joined(&named);
        let old = status(ActiveBackend::Bpf, &["sched_switch", "syscall"]);
        let refused = named.check(&old).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unavailable);
        assert!(refused
            .message
            .contains("cannot be recorded: flutter (why)"));
        let new = status(ActiveBackend::Bpf, &["sched_switch", "syscall", "flutter"]);
        assert!(named.check(&new).is_ok());
        let all: NamedSensors = "all".parse().unwrap();
        assert_eq!(all.sensors().len(), Sensor::all().count());
        assert!(all.check(&old).is_ok());
        let perf = status(ActiveBackend::Perf, &["sched_switch", "task_life"]);
        assert_eq!(all.check(&perf).unwrap_err().kind, ErrorKind::Unavailable);
        assert!(NamedSensors::default().check(&perf).is_ok());
    }
}
