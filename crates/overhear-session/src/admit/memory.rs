// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a guaranteed monitor, said before it runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use overhear_event::{Origin, StreamDescriptor};
use overhear_monitor::Merge;
use overhear_stream::Geometry;

use super::kernel;
use super::resolved::{Evaluation, ResolvedMonitor};
use crate::config::{Config, UpdateConfig};
use crate::configured_monitor::{Counting, Measuring};
use crate::error::SessionError;
use crate::updates::{UpdateSpecification, Updates};

/// Sensors of several threads name the writer of each element in front of its payload.
const WRITER_BYTES: u32 = 8;

/// What an update of a plug-in may allocate besides what it takes when it is created, where the
/// file does not say how much.
const SPARE_BYTES: u64 = 1 << 20;

/// The plug-in of an `[[update]]`, loaded once, and what it takes before it has met a sensor.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPlugin {
    pub(crate) specification: UpdateSpecification,
    /// Bytes that are mapped, by file.
    mapped: BTreeMap<PathBuf, u64>,
    /// Bytes that its updates take when they are created.
    created: u64,
}

/// The plug-ins that the file names, each loaded once, so that one that cannot be used is told
/// before anything runs.
///
/// # Errors
/// [`SessionError`] with a message that names the update.
pub(crate) fn load_plugins(
    config: &Config,
    path: &Path,
) -> Result<Vec<Option<LoadedPlugin>>, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let updates = config.updates.iter().map(|update| {
        let Some(plugin) = &update.plugin else {
            return Ok(None);
        };
        let specification = UpdateSpecification::parse(&base.join(plugin).to_string_lossy());
        let loaded = Updates::load(std::slice::from_ref(&specification)).map_err(|failure| {
            let message = format!("update `{}`: {}", update.name, failure.message);
            SessionError::new(failure.kind, message)
        })?;
        Ok(Some(LoadedPlugin {
            specification,
            mapped: loaded.mapped_bytes().clone(),
            created: loaded.created_bytes(),
        }))
    });
    updates.collect()
}

/// The memory of a monitor, by what has it: stated beforehand as the most, or counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryBytes {
    /// Maps of the sensors' buffers, and the queues that are copied to.
    pub(crate) sensors: u64,
    /// The distributions that are counted.
    pub(crate) counting: u64,
    /// What is mapped of plug-ins, each file once.
    pub(crate) mapped: BTreeMap<PathBuf, u64>,
    /// What the updates of plug-ins allocate, by their places in the file.
    pub(crate) updates: BTreeMap<usize, u64>,
}

impl MemoryBytes {
    pub(crate) fn of_plugins(&self) -> u64 {
        let all = self.mapped.values().chain(self.updates.values());
        all.copied().fold(0, u64::saturating_add)
    }

    pub(crate) fn total(&self) -> u64 {
        let own = self.sensors.saturating_add(self.counting);
        own.saturating_add(self.of_plugins())
    }

    /// Why this, which was counted, is more than was stated; empty if it is not.
    pub(crate) fn excess_over(&self, stated: &Self, updates: &[UpdateConfig]) -> Vec<String> {
        if self.total() <= stated.total() {
            return Vec::new();
        }
        let mut messages = Vec::new();
        if self.sensors > stated.sensors {
            messages.push(format!(
                "its sensors take {} bytes of {}: one has more room or larger elements than the file says; give \
                 its `buffer`, `payload` and `lanes`",
                self.sensors, stated.sensors
            ));
        }
        for (index, &taken) in &self.updates {
            let allowed = stated.updates.get(index).copied().unwrap_or(0);
            if let Some(update) = updates.get(*index).filter(|_| taken > allowed) {
                messages.push(format!(
                    "update `{}` took {taken} bytes of {allowed}; give `memory = {}` to it",
                    update.name,
                    taken.next_multiple_of(1024)
                ));
            }
        }
        let head = format!(
            "the monitor took {} bytes of memory, {} had been stated",
            self.total(),
            stated.total()
        );
        match messages.is_empty() {
            // What is mapped of a plug-in has changed since.
            true => vec![head],
            false => messages.iter().map(|it| format!("{head}: {it}")).collect(),
        }
    }
}

/// What a monitor takes at most, if its sensors and updates are as the file says.
pub(super) fn stated(monitor: &ResolvedMonitor) -> MemoryBytes {
    let streams = monitor.sensors.iter().map(|sensor| {
        if let Some(ring) = &sensor.ring {
            return ring.bytes().saturating_mul(sensor.count.into());
        }
        let payload = sensor.payload.saturating_add(WRITER_BYTES);
        // One slot may be in the making, and capacities are powers of two.
        let capacity = sensor.buffer.saturating_add(1).next_power_of_two();
        let own = ring_bytes(payload, capacity) + Merge::bytes_for(payload, capacity) as u64;
        own.saturating_mul(u64::from(sensor.lanes) * u64::from(sensor.count))
    });
    let rings = monitor.sensors.iter().filter(|sensor| sensor.count > 0);
    let rings: Vec<_> = rings.filter_map(|sensor| sensor.ring.clone()).collect();
    let unused = kernel::unused_bytes(&rings);
    let mut memory = MemoryBytes {
        sensors: streams.fold(unused, u64::saturating_add),
        ..MemoryBytes::default()
    };
    let updates = monitor.updates.iter().enumerate();
    for (index, update) in updates.filter(|(_, update)| update.is_selected) {
        match &update.evaluation {
            Evaluation::Metric => memory.counting += Measuring::bytes(),
            Evaluation::Counting { has_field } => {
                memory.counting += Counting::bytes_for(*has_field);
            }
            Evaluation::Plugin {
                loaded: Some(plugin),
                memory: stated,
            } => {
                memory.mapped.extend(plugin.mapped.clone());
                let usual = plugin.created.saturating_add(SPARE_BYTES);
                memory.updates.insert(index, stated.unwrap_or(usual));
            }
            Evaluation::Plugin { loaded: None, .. } => {}
        }
    }
    memory
}

/// An update that takes more than the file allows it before it has met a sensor.
pub(super) fn too_large(monitor: &ResolvedMonitor) -> Option<String> {
    monitor.updates.iter().find_map(|update| {
        let Evaluation::Plugin {
            loaded: Some(plugin),
            memory: Some(allowed),
        } = &update.evaluation
        else {
            return None;
        };
        let taken = plugin.created;
        (taken > *allowed).then(|| {
            format!(
                "update `{}` takes {taken} bytes when it is created, and its `memory` is {allowed}; give at least \
                 {}",
                update.name,
                taken.next_multiple_of(1024)
            )
        })
    })
}

/// The map of a stream's buffer.
pub(crate) fn mapped_bytes(stream: &StreamDescriptor) -> u64 {
    if matches!(stream.origin, Origin::Kernel { .. }) {
        return kernel::mapped_bytes(stream);
    }
    ring_bytes(stream.schema.size(), stream.capacity)
}

fn ring_bytes(payload: u32, capacity: u64) -> u64 {
    let geometry = Geometry::new(payload, capacity);
    // What is larger than a buffer can be does not come to exist.
    geometry.map_or(0, |geometry| geometry.bytes() as u64)
}
