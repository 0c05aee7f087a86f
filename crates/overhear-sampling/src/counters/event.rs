// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of counters.

use std::path::Path;

use overhear_event::is_similar_name;

use super::pmu;
use super::CounterError;
use crate::perf_event::{
    EventAttributes, FLAG_EXCLUDE_HV, FLAG_EXCLUDE_KERNEL, FLAG_EXCLUDE_USER, PERF_TYPE_HARDWARE,
    PERF_TYPE_HW_CACHE, PERF_TYPE_RAW, PERF_TYPE_SOFTWARE,
};
use crate::{Quantity, QuantityKind};

/// Maximum number of similar names in a message.
const MAX_SIMILAR: usize = 4;

/// Names, number (`PERF_COUNT_HW_*`). The first name is that of the quantity.
const HARDWARE: [(&[&str], u64); 10] = [
    (&["cycles", "cpu-cycles"], 0),
    (&["instructions"], 1),
    (&["cache-references", "llc-references"], 2),
    (&["llc-misses", "cache-misses"], 3),
    (&["branches", "branch-instructions"], 4),
    (&["branch-misses"], 5),
    (&["bus-cycles"], 6),
    (&["stalled-cycles-frontend"], 7),
    (&["stalled-cycles-backend"], 8),
    (&["ref-cycles"], 9),
];

/// Names, number (`PERF_COUNT_SW_*`), whether the kernel counts it in user mode, too.
///
/// The clocks ignore the mode. Switches and migrations happen in the kernel only.
const SOFTWARE: [(&[&str], u64, bool); 10] = [
    (&["cpu-clock"], 0, true),
    (&["task-clock"], 1, true),
    (&["page-faults", "faults"], 2, true),
    (&["context-switches", "cs"], 3, false),
    (&["migrations", "cpu-migrations"], 4, false),
    (&["minor-faults"], 5, true),
    (&["major-faults"], 6, true),
    (&["alignment-faults"], 7, true),
    (&["emulation-faults"], 8, true),
    (&["cgroup-switches"], 11, false),
];

/// `PERF_COUNT_HW_CACHE_*`, in the order of their numbers.
const CACHES: [&str; 7] = [
    "l1-dcache",
    "l1-icache",
    "llc",
    "dtlb",
    "itlb",
    "branch",
    "node",
];

/// Number of the operation, number of the result.
const CACHE_EVENTS: [(&str, u64, u64); 6] = [
    ("loads", 0, 0),
    ("load-misses", 0, 1),
    ("stores", 1, 0),
    ("store-misses", 1, 1),
    ("prefetches", 2, 0),
    ("prefetch-misses", 2, 1),
];

/// What a counter counts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventClass {
    /// A counter of the kernel: works on every machine.
    Software,
    /// A counter of the CPU with a name for all CPUs.
    Hardware,
    /// A counter of the CPU for a cache, a TLB or the branch predictor.
    Cache,
    /// A code of this CPU or of another device with counters.
    Raw,
}

/// A counter that a name describes. It may exist or not: that is known when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterEvent {
    written: String,
    quantity: Quantity,
    class: EventClass,
    kind: u32,
    config: [u64; 3],
    exclude: u64,
    counts_in_user_mode: bool,
}

impl CounterEvent {
    /// The event with this name: `cycles`, `task-clock`, `llc-load-misses`, a raw code `r01c2`, or
    /// `PMU/event=0x3c,umask=0/` with the terms that sysfs lists for a device. Appended, `:u`
    /// counts in user mode only and `:k` in the kernel only.
    ///
    /// # Errors
    /// [`CounterError::Unknown`], [`CounterError::Syntax`].
    pub fn parse(name: &str) -> Result<Self, CounterError> {
        Self::parse_below(name, Path::new(pmu::DEVICES))
    }

    /// [`CounterEvent::parse`] with the devices in this folder.
    pub(super) fn parse_below(name: &str, devices: &Path) -> Result<Self, CounterError> {
        let syntax = |reason: &str| CounterError::Syntax {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        // The modifier of a device's event stands after the slash: `cpu/.../u`.
        let (base, modifier) = match (name.split_once('/'), name.rsplit_once(':')) {
            (Some(_), _) => name.rsplit_once('/').unwrap_or((name, "")),
            (None, Some((base, modifier))) => (base, modifier),
            (None, None) => (name, ""),
        };
        let exclude = match modifier.trim_start_matches(':') {
            "" | "uk" | "ku" => 0,
            "u" => FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV,
            "k" => FLAG_EXCLUDE_USER | FLAG_EXCLUDE_HV,
            other => return Err(syntax(&format!("the modifier `{other}` is not `u` or `k`"))),
        };
        let mut event = match base.split_once('/') {
            Some((device, terms)) => {
                let found = pmu::resolve(devices, device, terms).map_err(|why| syntax(&why))?;
                let named = found.name.filter(|name| !name.is_empty());
                let named = named.unwrap_or_else(|| base.to_owned());
                Self::new(&named, EventClass::Raw, found.kind, found.config)
            }
            None => Self::named(&base.to_lowercase()).ok_or_else(|| CounterError::Unknown {
                name: name.to_owned(),
                similar: similar(&base.to_lowercase()),
            })?,
        };
        name.clone_into(&mut event.written);
        event.exclude = exclude;
        if exclude & FLAG_EXCLUDE_KERNEL != 0 && !event.counts_in_user_mode {
            return Err(syntax(
                "this event happens in the kernel only: leave `:u` out",
            ));
        }
        Ok(event)
    }

    /// The events of a list with commas. Commas between slashes belong to a device's event.
    ///
    /// # Errors
    /// As [`CounterEvent::parse`].
    pub fn parse_list(list: &str) -> Result<Vec<Self>, CounterError> {
        split_list(list).into_iter().map(Self::parse).collect()
    }

    /// All events with names that do not depend on the machine.
    #[must_use]
    pub fn all_named() -> Vec<Self> {
        names()
            .iter()
            .filter_map(|name| Self::named(name))
            .collect()
    }

    /// The name as the user wrote it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.written
    }

    /// The quantity that it counts.
    #[must_use]
    pub const fn quantity(&self) -> &Quantity {
        &self.quantity
    }

    /// What it counts on.
    #[must_use]
    pub const fn class(&self) -> EventClass {
        self.class
    }

    /// Whether it counts anything without the kernel's permission to observe the kernel.
    pub(super) const fn counts_in_user_mode(&self) -> bool {
        self.counts_in_user_mode && self.exclude & FLAG_EXCLUDE_USER == 0
    }

    pub(super) fn attributes(&self) -> EventAttributes {
        EventAttributes {
            config1: self.config[1],
            config2: self.config[2],
            flags: self.exclude,
            ..EventAttributes::new(self.kind, self.config[0])
        }
    }

    fn new(name: &str, class: EventClass, kind: u32, config: [u64; 3]) -> Self {
        let unit = if name.ends_with("-clock") { "ns" } else { "" };
        Self {
            written: name.to_owned(),
            quantity: Quantity::new(identifier(name), unit, QuantityKind::Count),
            class,
            kind,
            config,
            exclude: 0,
            counts_in_user_mode: true,
        }
    }

    fn named(name: &str) -> Option<Self> {
        if let Some((names, number)) = HARDWARE.iter().find(|it| it.0.contains(&name)) {
            let config = [*number, 0, 0];
            return Some(Self::new(
                names[0],
                EventClass::Hardware,
                PERF_TYPE_HARDWARE,
                config,
            ));
        }
        if let Some((names, number, in_user)) = SOFTWARE.iter().find(|it| it.0.contains(&name)) {
            let config = [*number, 0, 0];
            let software = Self::new(names[0], EventClass::Software, PERF_TYPE_SOFTWARE, config);
            return Some(Self {
                counts_in_user_mode: *in_user,
                ..software
            });
        }
        for (cache, id) in CACHES.iter().zip(0_u64..) {
            let event = name.strip_prefix(cache).and_then(|it| it.strip_prefix('-'));
            let found = CACHE_EVENTS.iter().find(|it| Some(it.0) == event);
            if let Some((_, operation, result)) = found {
                let config = [id | operation << 8 | result << 16, 0, 0];
                return Some(Self::new(
                    name,
                    EventClass::Cache,
                    PERF_TYPE_HW_CACHE,
                    config,
                ));
            }
        }
        let code = u64::from_str_radix(name.strip_prefix('r')?, 16).ok()?;
        Some(Self::new(
            name,
            EventClass::Raw,
            PERF_TYPE_RAW,
            [code, 0, 0],
        ))
    }
}

/// Splits a list at its commas, except those between slashes, and leaves out empty entries.
#[must_use]
pub fn split_list(list: &str) -> Vec<&str> {
    let mut inside = false;
    let entries = list.split(|letter| {
        inside ^= letter == '/';
        letter == ',' && !inside
    });
    let entries: Vec<&str> = entries.collect();
    entries
        .into_iter()
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .collect()
}

/// All names with their aliases.
fn names() -> Vec<String> {
    let software = SOFTWARE.iter().map(|it| it.0[0].to_owned());
    let hardware = HARDWARE.iter().map(|it| it.0[0].to_owned());
    let caches = CACHES.iter().flat_map(|cache| {
        let events = CACHE_EVENTS.iter();
        events.map(move |(event, ..)| format!("{cache}-{event}"))
    });
    software.chain(hardware).chain(caches).collect()
}

fn similar(name: &str) -> Vec<String> {
    let aliases = HARDWARE.iter().flat_map(|it| it.0.iter());
    let aliases = aliases.chain(SOFTWARE.iter().flat_map(|it| it.0.iter()));
    let mut found: Vec<String> = aliases.map(|it| (*it).to_owned()).collect();
    found.extend(names());
    found.retain(|other| is_similar_name(other, name));
    let mut seen = Vec::new();
    for other in found {
        if !seen.contains(&other) && seen.len() < MAX_SIMILAR {
            seen.push(other);
        }
    }
    seen
}

/// A C identifier.
fn identifier(name: &str) -> String {
    let mut identifier = String::with_capacity(name.len());
    for letter in name.trim_end_matches('/').chars() {
        match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' => identifier.push(letter),
            _ if identifier.ends_with('_') => {}
            _ => identifier.push('_'),
        }
    }
    if identifier.starts_with(|first: char| first.is_ascii_digit()) {
        identifier.insert(0, '_');
    }
    identifier
}

#[cfg(test)]
mod tests {
    use super::{split_list, CounterEvent, EventClass};
    use crate::counters::CounterError;

    fn parse(name: &str) -> CounterEvent {
        CounterEvent::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn names_are_the_kernels_numbers() {
        let numbers = |name: &str| {
            let attributes = parse(name).attributes();
            (attributes.kind, attributes.config)
        };
        assert_eq!(numbers("cycles"), (0, 0));
        assert_eq!(numbers("cpu-cycles"), (0, 0));
        assert_eq!(numbers("llc-misses"), (0, 3));
        assert_eq!(numbers("task-clock"), (1, 1));
        assert_eq!(numbers("migrations"), (1, 4));
        assert_eq!(numbers("LLC-load-misses"), (3, 2 | 1 << 16));
        assert_eq!(numbers("dTLB-store-misses"), (3, 3 | 1 << 8 | 1 << 16));
        assert_eq!(numbers("r01c2"), (4, 0x1c2));
    }

    #[test]
    fn alias_has_the_name_of_its_event_in_samples() {
        assert_eq!(parse("cache-misses").quantity().name, "llc_misses");
        assert_eq!(parse("cache-misses").name(), "cache-misses");
        assert_eq!(parse("faults").quantity().name, "page_faults");
        assert_eq!(parse("task-clock").quantity().unit, "ns");
        assert_eq!(parse("r1C2:u").quantity().name, "r1c2");
    }

    #[test]
    fn modifiers_exclude() {
        let flags = |name: &str| parse(name).attributes().flags;
        assert_eq!(flags("cycles"), 0);
        assert_eq!(flags("cycles:u"), 1 << 5 | 1 << 6);
        assert_eq!(flags("cycles:k"), 1 << 4 | 1 << 6);
        assert!(parse("page-faults").counts_in_user_mode());
        assert!(!parse("context-switches").counts_in_user_mode());
        assert!(!parse("cycles:k").counts_in_user_mode());
    }

    #[test]
    fn mistakes_are_explained() {
        let refused = |name| CounterEvent::parse(name).unwrap_err().to_string();
        assert_eq!(
            refused("cycels"),
            "there is no counter `cycels`; similar names: cycles"
        );
        assert!(
            refused("branch").contains("branches"),
            "{}",
            refused("branch")
        );
        assert_eq!(
            refused("zebra"),
            "there is no counter `zebra`; `overhear doctor --counters` lists them"
        );
        assert_eq!(
            refused("cycles:x"),
            "the counter `cycles:x` is invalid: the modifier `x` is not `u` or `k`"
        );
        assert!(refused("migrations:u").contains("in the kernel only"));
        assert!(matches!(
            CounterEvent::parse("rxyz"),
            Err(CounterError::Unknown { .. })
        ));
    }

    #[test]
    fn commas_between_slashes_do_not_separate() {
        assert_eq!(
            split_list("cycles, cpu/event=1,umask=2/u,,r3"),
            ["cycles", "cpu/event=1,umask=2/u", "r3"]
        );
        assert!(split_list("").is_empty());
    }

    #[test]
    fn every_name_is_parsed() {
        let all = CounterEvent::all_named();
        assert_eq!(all.len(), 10 + 10 + 42);
        for event in &all {
            assert_eq!(&parse(event.name()), event);
        }
        let software = all.iter().filter(|it| it.class() == EventClass::Software);
        assert_eq!(software.count(), 10);
    }
}
