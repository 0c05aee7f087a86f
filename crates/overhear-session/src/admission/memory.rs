// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a guaranteed monitor: an upper bound, stated before it runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use overhear_event::{Origin, StreamDescriptor};
use overhear_monitor::Merge;
use overhear_stream::Geometry;

use super::kernel;
use super::resolved::{ResolvedMonitor, UpdateKind};
use crate::builtin_updates::{CountingUpdate, MetricUpdate};
use crate::config::{Config, UpdateConfig};
use crate::error::SessionError;
use crate::updates::{UpdateSpecification, Updates};

/// Bytes of the writer's id, which sensors of several threads put in front of each payload.
const WRITER_BYTES: u32 = 8;

/// Bytes that an update of a plug-in may allocate after its creation if the file states no number.
const SPARE_BYTES: u64 = 1 << 20;

/// The plug-in of an `[[update]]`, loaded once, and its memory before its first stream.
#[derive(Clone, Debug)]
pub(crate) struct LoadedPlugin {
    pub(crate) specification: UpdateSpecification,
    /// Bytes that are mapped, by file.
    mapped: BTreeMap<PathBuf, u64>,
    /// Bytes that its updates allocate when they are created.
    created: u64,
}

/// Loads the plug-ins that the file names, each once, so that an unusable one is reported before
/// the program starts.
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

/// The memory of a monitor by owner: an upper bound stated in advance, or the number of bytes that
/// was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryBytes {
    /// Maps of the sensors' buffers, and the queues that are copied to.
    pub(crate) sensors: u64,
    /// Distributions of counted values.
    pub(crate) counting: u64,
    /// Mapped bytes of plug-ins, by file.
    pub(crate) mapped: BTreeMap<PathBuf, u64>,
    /// Bytes that updates of plug-ins allocate, by the index of the `[[update]]` in the file.
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

    /// Messages about counted memory that exceeds the stated bound; empty if it does not.
    pub(crate) fn excess_over(&self, stated: &Self, updates: &[UpdateConfig]) -> Vec<String> {
        if self.total() <= stated.total() {
            return Vec::new();
        }
        let mut messages = Vec::new();
        if self.sensors > stated.sensors {
            messages.push(format!(
                "its sensors take {} bytes of {}: one has more or larger elements than the file states; give \
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
            // A plug-in file has changed since it was loaded for admission.
            true => vec![head],
            false => messages.iter().map(|it| format!("{head}: {it}")).collect(),
        }
    }
}

/// Upper bound of a monitor's memory, if its sensors and updates are as the file states.
pub(super) fn stated(monitor: &ResolvedMonitor) -> MemoryBytes {
    let streams = monitor.sensors.iter().map(|sensor| {
        if let Some(ring) = &sensor.ring {
            return ring.bytes().saturating_mul(sensor.count.into());
        }
        let payload = sensor.payload.saturating_add(WRITER_BYTES);
        // One slot may be in the middle of a write, and capacities are powers of two.
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
        match &update.kind {
            UpdateKind::Metric => memory.counting += MetricUpdate::bytes(),
            UpdateKind::Counting { has_field } => {
                memory.counting += CountingUpdate::bytes_for(*has_field);
            }
            UpdateKind::Plugin {
                loaded: Some(plugin),
                memory: stated,
            } => {
                memory.mapped.extend(plugin.mapped.clone());
                let usual = plugin.created.saturating_add(SPARE_BYTES);
                memory.updates.insert(index, stated.unwrap_or(usual));
            }
            UpdateKind::Plugin { loaded: None, .. } => {}
        }
    }
    memory
}

/// The refusal if an update allocates more at its creation than the file allows it.
pub(super) fn too_large(monitor: &ResolvedMonitor) -> Option<String> {
    monitor.updates.iter().find_map(|update| {
        let UpdateKind::Plugin {
            loaded: Some(plugin),
            memory: Some(allowed),
        } = &update.kind
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

/// Bytes of the map of a stream's buffer.
pub(crate) fn mapped_bytes(stream: &StreamDescriptor) -> u64 {
    if matches!(stream.origin, Origin::Kernel { .. }) {
        return kernel::mapped_bytes(stream);
    }
    ring_bytes(stream.schema.size(), stream.capacity)
}

fn ring_bytes(payload: u32, capacity: u64) -> u64 {
    let geometry = Geometry::new(payload, capacity);
    // A stream with an impossible geometry is never registered.
    geometry.map_or(0, |geometry| geometry.bytes() as u64)
}
