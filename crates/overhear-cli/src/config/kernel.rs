// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[sensor]]` with the id `kernel:NAME`: a sensor of the kernel, whose rings the monitor has itself.

use overhear_kernel::Sensor;

use super::SensorConfig;

/// What the ids of kernel sensors begin with, as the names of their events do.
const KERNEL: &str = "kernel:";

impl SensorConfig {
    /// Whether it is a sensor of the kernel.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        self.id.starts_with(KERNEL)
    }

    /// The kernel sensor that it is; `None` for sensors of programs.
    ///
    /// # Errors
    /// A sentence, without the id: there is no such kernel sensor, or it is to be more than one.
    pub(crate) fn of_kernel(&self) -> Result<Option<Sensor>, String> {
        let Some(name) = self.id.strip_prefix(KERNEL) else {
            return Ok(None);
        };
        let sensor: Sensor = name.parse().map_err(|error| format!("{error}"))?;
        if self.count != 1 || self.lanes != 1 {
            return Err(
                "a kernel sensor is one sensor, bounded as a whole, whatever CPUs it writes on; leave `count` \
                 and `lanes` out"
                    .to_string(),
            );
        }
        Ok(Some(sensor))
    }
}
