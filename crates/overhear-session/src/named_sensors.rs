// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sensors that a user names: each must be heard, or nothing is run.

use std::collections::BTreeSet;
use std::str::FromStr;

use overhear_kernel::{ActiveBackend, Backend, Sensor, Status, UnknownSensor};

use crate::error::{ErrorKind, SessionError};

/// The sensors of `--kernel-sensors`.
#[derive(Clone, Debug, Default)]
pub struct NamedSensors {
    named: BTreeSet<Sensor>,
    all: bool,
}

impl FromStr for NamedSensors {
    type Err = UnknownSensor;

    /// One name, or `all`: what the kernel has of all of them.
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
    /// All of these.
    #[must_use]
    pub fn joined(lists: &[Self]) -> Self {
        Self {
            named: lists.iter().flat_map(|list| list.named.clone()).collect(),
            all: lists.iter().any(|list| list.all),
        }
    }

    pub(crate) fn wanted(&self) -> BTreeSet<Sensor> {
        match self.all {
            true => Sensor::all().collect(),
            false => self.named.clone(),
        }
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && !self.all
    }

    /// Whether what is named can be heard at all by this backend.
    ///
    /// # Errors
    /// [`SessionError`] if nothing is to be heard of the kernel.
    pub fn check_backend(&self, backend: Backend) -> Result<(), SessionError> {
        if self.is_empty() || backend != Backend::Off {
            return Ok(());
        }
        let message =
            "--kernel off hears no kernel sensor, and --kernel-sensors names some; leave one of them out";
        Err(SessionError::new(ErrorKind::Usage, message))
    }

    /// Whether what is named is heard.
    ///
    /// # Errors
    /// [`SessionError`] with the sensors that are not, and why.
    pub fn check(&self, status: &Status) -> Result<(), SessionError> {
        let is_connected = |sensor: &&Sensor| status.sensors.contains(sensor);
        let unheard = self.named.iter().filter(|sensor| !is_connected(sensor));
        let mut unheard: Vec<&str> = unheard.map(|sensor| sensor.name()).collect();
        if self.all && status.active != ActiveBackend::Bpf {
            unheard = vec!["all"];
        }
        if unheard.is_empty() {
            return Ok(());
        }
        let message = format!(
            "--kernel-sensors {} cannot be heard ({}); leave it out, or see `overhear doctor`",
            unheard.join(","),
            status.message
        );
        Err(SessionError::new(ErrorKind::Unavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use overhear_kernel::{ActiveBackend, Sensor, Status};

    use super::NamedSensors;
    use crate::error::ErrorKind;

    #[test]
    fn named_sensors_are_demanded_one_by_one_and_all_as_far_as_there_are() {
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
            .starts_with("--kernel-sensors flutter cannot"));
        let new = status(ActiveBackend::Bpf, &["sched_switch", "syscall", "flutter"]);
        assert!(named.check(&new).is_ok());
        let all: NamedSensors = "all".parse().unwrap();
        assert_eq!(all.wanted().len(), Sensor::all().count());
        assert!(all.check(&old).is_ok());
        let perf = status(ActiveBackend::Perf, &["sched_switch", "task_life"]);
        assert_eq!(all.check(&perf).unwrap_err().kind, ErrorKind::Unavailable);
        assert!(NamedSensors::default().check(&perf).is_ok());
    }
}
