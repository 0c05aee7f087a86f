// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[sensor]]` with the id `kernel:NAME`: a kernel sensor or a probe. Its rings belong to the
//! monitor.

use overhear_event::kernel::is_probe;
use overhear_event::TypeSchema;
use overhear_kernel::{Probe, ProbeError, Sensor};

use super::SensorConfig;

/// Prefix of the ids of kernel sensors, and of the names of their events.
const KERNEL_PREFIX: &str = "kernel:";

/// The kernel sensor or probe of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KernelSource {
    Sensor(Sensor),
    Probe(Probe),
}

impl KernelSource {
    /// The name of its streams.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Sensor(sensor) => sensor.name().to_owned(),
            Self::Probe(probe) => probe.sensor(),
        }
    }

    /// The schema of its elements. For a probe, its function or static probe is looked up.
    pub(crate) fn schema(&self) -> Result<TypeSchema, ProbeError> {
        match self {
            Self::Sensor(sensor) => Ok(sensor.schema()),
            Self::Probe(probe) => probe.schema(),
        }
    }
}

impl SensorConfig {
    /// Whether it is a sensor of the kernel.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        self.id.starts_with(KERNEL_PREFIX)
    }

    /// Its kernel sensor, or its probe among those of the file; `None` for sensors of programs.
    ///
    /// # Errors
    /// A message without the id, if there is no such kernel sensor or probe, or if `count` or
    /// `lanes` is not 1.
    pub(crate) fn of_kernel(&self, probes: &[Probe]) -> Result<Option<KernelSource>, String> {
        let Some(name) = self.id.strip_prefix(KERNEL_PREFIX) else {
            return Ok(None);
        };
        let source = if is_probe(name) {
            let mut named = probes.iter().filter(|probe| probe.sensor() == name);
            match (named.next(), named.next()) {
                (Some(probe), None) => KernelSource::Probe(probe.clone()),
                (None, _) => {
                    return Err("there is no [[probe]] of this name in the file; add it".to_owned())
                }
                _ => {
                    return Err(
                        "several probes of the file have this name; a monitor can take one of them"
                            .to_owned(),
                    )
                }
            }
        } else {
            KernelSource::Sensor(name.parse().map_err(|error| format!("{error}"))?)
        };
        if self.count != 1 || self.lanes != 1 {
            return Err(
                "a kernel sensor is one sensor with one bound for all CPUs; leave `count` and `lanes` out"
                    .to_string(),
            );
        }
        Ok(Some(source))
    }
}
