// SPDX-License-Identifier: MIT OR Apache-2.0
//! The known events and the schemas of their elements.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use overhear_event::kernel::{self, SchedStat};
use overhear_event::{EventName, TypeSchema};

/// The events that specifications may name.
///
/// Kernel events must be listed, except probes. Probes and sensors of programs need not be: their
/// schemas are known when their streams appear, and fields are checked then.
#[derive(Clone, Debug)]
pub struct Catalogue(BTreeMap<EventName, Arc<TypeSchema>>);

impl Catalogue {
    /// A catalogue without kernel events.
    #[must_use]
    pub const fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// The events of the kernel sensors and samplers of this version.
    #[must_use]
    pub fn linux() -> Self {
        Self::of_linux().clone()
    }

    /// The same catalogue, built once: metrics are mostly parsed over it, one after the other.
    pub(crate) fn of_linux() -> &'static Self {
        static LINUX: LazyLock<Catalogue> = LazyLock::new(Catalogue::make_linux);
        &LINUX
    }

    fn make_linux() -> Self {
        let schedstat = EventName::sampler(kernel::SCHEDSTAT);
        let linux = Self::empty().with(schedstat, SchedStat::schema());
        let sensors = kernel::SENSORS.into_iter();
        sensors.fold(linux, |linux, (sensor, schema)| {
            linux.with(EventName::kernel(sensor), schema())
        })
    }

    /// Adds an event, or replaces it.
    #[must_use]
    pub fn with(mut self, event: EventName, schema: TypeSchema) -> Self {
        self.0.insert(event, Arc::new(schema));
        self
    }

    /// The schema of the event's elements, if it is listed.
    #[must_use]
    pub fn schema(&self, event: &EventName) -> Option<&TypeSchema> {
        self.0.get(event).map(|schema| &**schema)
    }

    /// Whether a specification may name this event.
    #[must_use]
    pub fn permits(&self, event: &EventName) -> bool {
        let is_known_later = event.is_of_probe() || !event.as_str().starts_with("kernel:");
        self.0.contains_key(event) || is_known_later
    }

    /// The names of the listed events, for an error message.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.0.keys().map(EventName::as_str).collect();
        names.join(", ")
    }
}
