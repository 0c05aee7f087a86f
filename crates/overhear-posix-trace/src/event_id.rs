// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event types. Their numbers are those of `include/overhear/trace.h`.

use overhear_event::kernel::SENSORS;
use overhear_event::TypeSchema;

/// Maximum number of characters of the name of an event type: `TRACE_EVENT_NAME_MAX`.
pub const EVENT_NAME_MAX: usize = 64;
/// Maximum number of user event types of a process, with the unnamed one: `TRACE_USER_EVENT_MAX`.
pub const USER_EVENT_MAX: usize = 256;

/// An event type: a number below [`EventId::COUNT`]. It need not be defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(u16);

impl EventId {
    /// `POSIX_TRACE_ERROR`: an error of the trace system. Data: an `int`, the error number.
    pub const ERROR: Self = Self(1);
    /// `POSIX_TRACE_START`: the stream was started. Data: the filter, an
    /// [`EventTypeSet`](crate::EventTypeSet).
    pub const START: Self = Self(2);
    /// `POSIX_TRACE_STOP`: the stream was stopped. Data: an `int`, 0 if by `posix_trace_stop`.
    pub const STOP: Self = Self(3);
    /// `POSIX_TRACE_OVERFLOW`: events were lost from here on.
    pub const OVERFLOW: Self = Self(4);
    /// `POSIX_TRACE_RESUME`: the end of the loss.
    pub const RESUME: Self = Self(5);
    /// `POSIX_TRACE_FILTER`: the filter was changed. Data: the old and the new filter.
    pub const FILTER: Self = Self(6);
    /// `POSIX_TRACE_FLUSH_START`: a flush of the stream to its log begins.
    pub const FLUSH_START: Self = Self(7);
    /// `POSIX_TRACE_FLUSH_STOP`: the flush ended.
    pub const FLUSH_STOP: Self = Self(8);
    /// `POSIX_TRACE_UNNAMED_USER_EVENT`: a user event type beyond the limit of names.
    pub const UNNAMED: Self = Self(64);

    /// Number of event types: user event types are those from [`EventId::UNNAMED`] on.
    pub const COUNT: usize = 64 + USER_EVENT_MAX;
    /// Numbers of event types of Linux, one for each kernel sensor.
    const KERNEL: core::ops::RangeInclusive<u16> = 16..=63;

    /// The names of the system event types of the standard.
    const STANDARD: [(Self, &'static str); 8] = [
        (Self::ERROR, "posix_trace_error"),
        (Self::START, "posix_trace_start"),
        (Self::STOP, "posix_trace_stop"),
        (Self::OVERFLOW, "posix_trace_overflow"),
        (Self::RESUME, "posix_trace_resume"),
        (Self::FILTER, "posix_trace_filter"),
        (Self::FLUSH_START, "posix_trace_flush_start"),
        (Self::FLUSH_STOP, "posix_trace_flush_stop"),
    ];
    /// The names of the event types of Linux, from the first number of [`EventId::KERNEL`] on. Logs
    /// contain the numbers: new names are added at the end.
    const LINUX: [&'static str; 18] = [
        "sched_switch",
        "sched_wake",
        "task_life",
        "page_fault",
        "block_io",
        "syscall",
        "futex",
        "signal",
        "irq",
        "softirq",
        "timer",
        "sched_migrate",
        "cpu_idle",
        "cpu_frequency",
        "ipc",
        "flutter",
        "schedule",
        "lock",
    ];
    /// The name of [`EventId::UNNAMED`].
    pub const UNNAMED_NAME: &'static str = "posix_trace_unnamed_userevent";

    /// The event type of a number, `None` if it is out of range.
    #[must_use]
    pub const fn from_raw(number: u32) -> Option<Self> {
        match number {
            0 => None,
            _ if number as usize >= Self::COUNT => None,
            _ => Some(Self(number as u16)),
        }
    }

    /// The user event type of an index in the table of names, 0 is the unnamed one.
    #[must_use]
    pub const fn user(index: usize) -> Option<Self> {
        if index < USER_EVENT_MAX {
            Some(Self(Self::UNNAMED.0 + index as u16))
        } else {
            None
        }
    }

    /// The number in C.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        self.0 as u32
    }

    /// The index in tables of all event types, less than [`EventId::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether programs record events of the type by `posix_trace_event`.
    #[must_use]
    pub const fn is_user(self) -> bool {
        self.0 >= Self::UNNAMED.0
    }

    /// Whether it is an event type of Linux, recorded by a kernel sensor.
    #[must_use]
    pub fn is_kernel(self) -> bool {
        Self::KERNEL.contains(&self.0)
    }

    /// The event type of Linux with this name: that of the kernel sensor.
    #[must_use]
    pub fn kernel(name: &str) -> Option<Self> {
        let index = Self::LINUX.iter().position(|known| *known == name)?;
        Some(Self(Self::KERNEL.start() + index as u16))
    }

    /// The name of an event type of Linux. `None` for other types, and for numbers without a sensor
    /// in this version.
    #[must_use]
    pub fn kernel_name(self) -> Option<&'static str> {
        let index = self.0.checked_sub(*Self::KERNEL.start())?;
        Self::LINUX.get(usize::from(index)).copied()
    }

    /// The schema of the data of an event type of Linux: that of the kernel sensor's elements.
    #[must_use]
    pub fn kernel_schema(self) -> Option<TypeSchema> {
        let name = self.kernel_name()?;
        let (_, schema) = SENSORS.iter().find(|(known, _)| *known == name)?;
        Some(schema())
    }

    /// The event types of Linux that have a sensor, in the order of their numbers.
    pub fn kernel_events() -> impl Iterator<Item = Self> {
        Self::KERNEL.take(Self::LINUX.len()).map(Self)
    }

    /// The name of a system event type of the standard, or of the unnamed user event type.
    #[must_use]
    pub fn standard_name(self) -> Option<&'static str> {
        if self == Self::UNNAMED {
            return Some(Self::UNNAMED_NAME);
        }
        let named = Self::STANDARD.iter().find(|(id, _)| *id == self)?;
        Some(named.1)
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::FieldKind;

    use super::*;
    use crate::CPU_BYTES;

    #[test]
    fn numbers_out_of_range_are_no_event_types() {
        assert_eq!(EventId::from_raw(0), None);
        assert_eq!(EventId::from_raw(320), None);
        assert_eq!(EventId::from_raw(u32::MAX), None);
        assert_eq!(EventId::from_raw(319), EventId::user(255));
        assert_eq!(EventId::user(256), None);
    }

    #[test]
    fn each_number_is_of_one_kind() {
        for number in 1..320 {
            let id = EventId::from_raw(number).unwrap();
            let kinds = [id.is_user(), id.is_kernel(), number < 16];
            assert_eq!(kinds.iter().filter(|kind| **kind).count(), 1, "{number}");
        }
    }

    #[test]
    fn event_types_of_linux_are_the_kernel_sensors() {
        let sensors = SENSORS.map(|(name, _)| name);
        assert_eq!(EventId::LINUX, sensors);
        for (number, name) in (16..).zip(sensors) {
            let id = EventId::from_raw(number).unwrap();
            assert_eq!(EventId::kernel(name), Some(id));
            assert_eq!((id.kernel_name(), id.is_kernel()), (Some(name), true));
            assert_eq!(id.kernel_schema().unwrap().id(), name);
        }
        assert_eq!(EventId::kernel("nonsense"), None);
        assert_eq!(EventId::from_raw(34).unwrap().kernel_name(), None);
        assert_eq!(EventId::UNNAMED.kernel_name(), None);
        assert_eq!(EventId::START.kernel_name(), None);
        assert_eq!(EventId::kernel_events().count(), sensors.len());
    }

    /// A row of the table in docs/posix-metrics.md.
    fn row(event: EventId) -> String {
        let (name, schema) = (event.kernel_name().unwrap(), event.kernel_schema().unwrap());
        let fields = schema.fields().iter().map(|field| match field.kind {
            FieldKind::Text(bytes) => format!("{} char[{bytes}]", field.name),
            kind => format!("{} {}", field.name, format!("{kind:?}").to_lowercase()),
        });
        let fields = fields.collect::<Vec<_>>().join(", ");
        let (number, bytes) = (event.as_raw(), schema.size() + CPU_BYTES as u32);
        format!("| {number} | `{name}` | {fields}, on_cpu u32 | {bytes} |")
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a page of the repository")]
    fn page_has_a_row_for_each_event_type_of_linux() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/posix-metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let rows: Vec<String> = EventId::kernel_events().map(row).collect();
        let is_row =
            |line: &&str| line.starts_with("| ") && line.ends_with(" |") && line.contains(" | `");
        let numbered = |line: &&str| line[2..].starts_with(|c: char| c.is_ascii_digit());
        let written: Vec<&str> = page.lines().filter(is_row).filter(numbered).collect();
        assert_eq!(written, rows, "the rows are:\n{}", rows.join("\n"));
    }

    #[test]
    fn names_of_the_standard_fit_the_limit() {
        for (id, name) in EventId::STANDARD {
            assert!(name.len() <= 30, "{name}");
            assert_eq!(id.standard_name(), Some(name));
        }
        assert_eq!(
            EventId::UNNAMED.standard_name(),
            Some("posix_trace_unnamed_userevent")
        );
    }
}
