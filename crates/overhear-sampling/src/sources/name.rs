// SPDX-License-Identifier: MIT OR Apache-2.0
//! The syntax of names: from a name to a file and the place of a number in it.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::ProcessQuantity;
use super::text::{keys_of, Pick, Place};
use super::{SourceFinder, SourceNameError, SENSOR};
use crate::counters::{CounterError, CounterEvent};
use crate::{KernelAccount, Quantity, QuantityKind};

/// Nanoseconds of a tick of `/proc/stat`: `USER_HZ` is 100 on every machine.
const TICK_NS: u64 = 10_000_000;

/// Columns of the lines `cpu` of `/proc/stat`.
pub(crate) const CPU_COLUMNS: [&str; 10] = [
    "user",
    "nice",
    "system",
    "idle",
    "iowait",
    "irq",
    "softirq",
    "steal",
    "guest",
    "guest_nice",
];

/// Families of names that are files.
const FAMILIES: [&str; 13] = [
    "psi", "stat", "meminfo", "vmstat", "cgroup", "hwmon", "thermal", "cpufreq", "powercap",
    "running", "file", "total", "plugin",
];

/// Splits a list of names at its commas, except those between the slashes of a device's event, and
/// leaves out empty entries.
pub fn split_names(list: &str) -> impl Iterator<Item = &str> {
    let (mut has_family, mut is_inside) = (false, false);
    let entries = list.split(move |letter| {
        match letter {
            ':' => has_family |= !is_inside,
            '/' => is_inside = !is_inside && !has_family,
            ',' if !is_inside => has_family = false,
            _ => {}
        }
        letter == ',' && !is_inside
    });
    entries.map(str::trim).filter(|entry| !entry.is_empty())
}

/// The counter of this name.
pub(crate) fn counter(name: &str) -> Option<CounterEvent> {
    let family = name.split_once(':').map_or("", |(family, _)| family);
    let is_other = KernelAccount::of_name(name).is_some()
        || FAMILIES.contains(&family)
        || name.starts_with(SENSOR);
    if is_other {
        return None;
    }
    CounterEvent::parse(name).ok()
}

/// The source of a name.
pub(crate) enum Resolved {
    Process(ProcessQuantity),
    Counter(Box<CounterEvent>),
    File(PathBuf, Box<Pick>),
}

/// The identifier for a name in a schema.
pub(super) fn identifier(name: &str) -> String {
    let mut identifier = String::new();
    for part in name.split(|c: char| !c.is_ascii_alphanumeric()) {
        if part.is_empty() {
            continue;
        }
        if !identifier.is_empty() {
            identifier.push('_');
        }
        identifier.push_str(part);
    }
    match identifier.bytes().next() {
        Some(first) if !first.is_ascii_digit() => identifier,
        _ => format!("q_{identifier}"),
    }
}

/// A name without its family, and the finder.
struct Name<'a> {
    whole: &'a str,
    rest: &'a str,
    finder: &'a SourceFinder,
}

impl SourceFinder {
    pub(crate) fn resolve(&self, name: &str) -> Result<Resolved, SourceNameError> {
        if let Some(event) = counter(name) {
            return Ok(Resolved::Counter(Box::new(event)));
        }
        if let Some(quantity) = ProcessQuantity::of_name(name) {
            return Ok(Resolved::Process(quantity));
        }
        let Some((family, rest)) = name.split_once(':') else {
            return Err(self.unknown_counter(name));
        };
        let parts = Name {
            whole: name,
            rest,
            finder: self,
        };
        let (path, pick) = match family {
            "psi" => parts.psi(),
            "stat" => parts.stat(),
            "meminfo" => parts.meminfo(),
            "vmstat" => parts.vmstat(),
            "cgroup" => parts.cgroup(),
            "hwmon" => parts.hwmon(),
            "thermal" => parts.thermal(),
            "cpufreq" => parts.cpufreq(),
            "powercap" => parts.powercap(),
            "running" => parts.running(),
            "file" => parts.file(QuantityKind::Level),
            "total" => parts.file(QuantityKind::Count),
            _ => Err(self.unknown_counter(name)),
        }?;
        Ok(Resolved::File(path, Box::new(pick)))
    }

    /// The error for a name that could be one of a counter.
    fn unknown_counter(&self, name: &str) -> SourceNameError {
        match CounterEvent::parse(name) {
            Err(error @ CounterError::Syntax { .. }) => error.into(),
            _ => self.unknown(name),
        }
    }

    /// The error for a name that nothing has.
    pub(crate) fn unknown(&self, name: &str) -> SourceNameError {
        let near = self.near(name);
        let near = match near.as_slice() {
            [] => String::new(),
            some => format!(": near it are `{}`", some.join("`, `")),
        };
        SourceNameError::Unknown {
            name: name.to_owned(),
            near,
        }
    }
}

type Found = Result<(PathBuf, Pick), SourceNameError>;

impl Name<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.finder.root().join(path.trim_start_matches('/'))
    }

    fn quantity(&self, unit: &str, kind: QuantityKind) -> Quantity {
        Quantity::new(identifier(self.whole), unit, kind)
    }

    fn unknown(&self) -> SourceNameError {
        self.finder.unknown(self.whole)
    }

    fn missing(&self, reason: impl Into<String>) -> SourceNameError {
        SourceNameError::Missing {
            name: self.whole.to_owned(),
            reason: reason.into(),
        }
    }

    /// The text of a file, which tells what its numbers are.
    fn text(&self, path: &Path) -> Result<String, SourceNameError> {
        let error = |error| self.missing(format!("{} cannot be read: {error}", path.display()));
        fs::read(path)
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .map_err(error)
    }

    /// Fails if the place is not in the file.
    fn check(&self, path: &Path, place: &Place) -> Result<(), SourceNameError> {
        let text = self.text(path)?;
        if place.find(text.as_bytes()).is_some() {
            return Ok(());
        }
        Err(
            match path.starts_with(self.finder.root().join("proc/pressure")) {
                true => self.missing(format!("{} does not have it", path.display())),
                false => self.unknown(),
            },
        )
    }

    /// `cpu`, `cpu.full`, `io.some.avg10`.
    fn pressure(&self, path: PathBuf, words: &str) -> Found {
        let (mut key, mut name) = ("some", "total");
        for word in words.split('.').filter(|word| !word.is_empty()) {
            match word {
                "some" | "full" => key = word,
                "total" | "avg10" | "avg60" | "avg300" => name = word,
                _ => return Err(self.unknown()),
            }
        }
        let place = Place::Assigned {
            key: key.to_owned(),
            name: name.to_owned(),
        };
        self.check(&path, &place)?;
        let quantity = match name {
            "total" => self.quantity("us", QuantityKind::Count),
            _ => self.quantity("%", QuantityKind::RealLevel),
        };
        Ok((path, Pick::new(place, quantity)))
    }

    fn psi(&self) -> Found {
        let (resource, words) = self.rest.split_once('.').unwrap_or((self.rest, ""));
        if !["cpu", "io", "memory", "irq"].contains(&resource) {
            return Err(self.unknown());
        }
        self.pressure(self.path(&format!("proc/pressure/{resource}")), words)
    }

    fn stat(&self) -> Found {
        let path = self.path("proc/stat");
        let (key, index, unit) = match self.rest.split_once('.') {
            Some((cpu, column)) => {
                let index = CPU_COLUMNS.iter().position(|name| *name == column);
                (cpu, index.ok_or_else(|| self.unknown())?, "ns")
            }
            None => (self.rest, 0, ""),
        };
        if key.starts_with("cpu") == unit.is_empty() {
            return Err(self.unknown());
        }
        let place = Place::Word {
            key: key.to_owned(),
            index,
        };
        self.check(&path, &place)?;
        let kind = match key.starts_with("procs_") {
            true => QuantityKind::Level,
            false => QuantityKind::Count,
        };
        let scale = if unit.is_empty() { 1 } else { TICK_NS };
        Ok((
            path,
            Pick::new(place, self.quantity(unit, kind)).scaled(scale),
        ))
    }

    fn meminfo(&self) -> Found {
        let path = self.path("proc/meminfo");
        let word = |index| Place::Word {
            key: self.rest.to_owned(),
            index,
        };
        self.check(&path, &word(0))?;
        // A few lines have no unit.
        let text = self.text(&path)?;
        let (unit, scale) = match word(1).find(text.as_bytes()) {
            Some(b"kB") => ("B", 1024),
            _ => ("", 1),
        };
        let quantity = self.quantity(unit, QuantityKind::Level);
        Ok((path, Pick::new(word(0), quantity).scaled(scale)))
    }

    fn vmstat(&self) -> Found {
        let path = self.path("proc/vmstat");
        let place = Place::Word {
            key: self.rest.to_owned(),
            index: 0,
        };
        self.check(&path, &place)?;
        let kind = match self.rest.starts_with("nr_") {
            true => QuantityKind::Level,
            false => QuantityKind::Count,
        };
        Ok((path, Pick::new(place, self.quantity("", kind))))
    }

    /// `memory.current`, `cpu.stat#usage_usec`, `/GROUP/io.stat#rbytes`.
    fn cgroup(&self) -> Found {
        let (file, key) = match self.rest.split_once('#') {
            Some((file, key)) => (file, Some(key)),
            None => (self.rest, None),
        };
        let group = match file.starts_with('/') {
            true => String::new(),
            false => self.own_group()?,
        };
        let path = format!("sys/fs/cgroup/{}/{file}", group.trim_matches('/'));
        let path = self.path(&path);
        let base = file.rsplit('/').next().unwrap_or(file);
        if base.ends_with(".pressure") {
            return self.pressure(path, key.unwrap_or(""));
        }
        if !path.is_file() {
            return Err(self.missing(format!(
                "there is no file {}; the group may lack the controller",
                path.display()
            )));
        }
        let Some(key) = key else {
            let is_bytes = base.starts_with("memory.") && base != "memory.events";
            let unit = if is_bytes { "B" } else { "" };
            let place = Place::First;
            let text = self.text(&path)?;
            let keys = keys_of(&text);
            if !keys.is_empty() && base.ends_with(".stat") {
                let (keys, file) = (keys.join("`, `"), self.rest);
                return Err(
                    self.missing(format!("name a key of it, `cgroup:{file}#KEY`: `{keys}`"))
                );
            }
            self.check(&path, &place)?;
            return Ok((
                path,
                Pick::new(place, self.quantity(unit, QuantityKind::Level)),
            ));
        };
        if base == "io.stat" {
            let unit = if key.ends_with("bytes") { "B" } else { "" };
            let place = Place::Sum {
                name: key.to_owned(),
            };
            if !["rbytes", "wbytes", "rios", "wios", "dbytes", "dios"].contains(&key) {
                return Err(self.unknown());
            }
            return Ok((
                path,
                Pick::new(place, self.quantity(unit, QuantityKind::Count)),
            ));
        }
        let place = Place::Word {
            key: key.to_owned(),
            index: 0,
        };
        self.check(&path, &place)?;
        let counts = ["pg", "workingset_", "thp_", "nr_", "total_"];
        let is_count = base != "memory.stat" || counts.iter().any(|it| key.starts_with(it));
        let (unit, kind) = match is_count {
            true if key.ends_with("_usec") => ("us", QuantityKind::Count),
            true => ("", QuantityKind::Count),
            false => ("B", QuantityKind::Level),
        };
        Ok((path, Pick::new(place, self.quantity(unit, kind))))
    }

    /// The group of the process, in the unified hierarchy.
    fn own_group(&self) -> Result<String, SourceNameError> {
        let pid = self.finder.pid.ok_or_else(|| {
            let name = self.whole.to_owned();
            SourceNameError::NoProcess(name)
        })?;
        let text = self.text(&self.path(&format!("proc/{pid}/cgroup")))?;
        let group = text.lines().find_map(|line| line.strip_prefix("0::"));
        let group = group.ok_or_else(|| self.missing("the process is in no group of cgroup v2"))?;
        Ok(group.to_owned())
    }

    /// The folder of a class whose file `file` has the name, or that bears it.
    fn of_class(&self, class: &str, file: &str, name: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(self.path(class)).ok()?;
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        folders.into_iter().find(|folder| {
            let has_name = folder.file_name().is_some_and(|own| own == name);
            let text = fs::read_to_string(folder.join(file));
            has_name || text.is_ok_and(|text| text.trim() == name)
        })
    }

    fn first_of(&self, path: PathBuf, unit: &str, kind: QuantityKind) -> Found {
        self.text(&path)?;
        Ok((path, Pick::new(Place::First, self.quantity(unit, kind))))
    }

    /// `CHIP/INPUT`: `coretemp/temp1`.
    fn hwmon(&self) -> Found {
        let (chip, input) = self.rest.split_once('/').ok_or_else(|| self.unknown())?;
        let folder = self.of_class("sys/class/hwmon", "name", chip);
        let folder = folder.ok_or_else(|| self.missing(format!("it has no chip `{chip}`")))?;
        let unit = match input.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "temp" => "m°C",
            "in" => "mV",
            "curr" => "mA",
            "power" => "uW",
            "energy" => "uJ",
            "fan" => "rpm",
            _ => "",
        };
        let kind = match unit {
            "uJ" => QuantityKind::Count,
            _ => QuantityKind::Level,
        };
        self.first_of(folder.join(format!("{input}_input")), unit, kind)
    }

    /// `TYPE` or `thermal_zoneN`.
    fn thermal(&self) -> Found {
        let zone = self.of_class("sys/class/thermal", "type", self.rest);
        let zone = zone.ok_or_else(|| self.missing(format!("it has no zone `{}`", self.rest)))?;
        self.first_of(zone.join("temp"), "m°C", QuantityKind::Level)
    }

    /// `CPU`: the current frequency.
    fn cpufreq(&self) -> Found {
        let cpu: u32 = self.rest.parse().map_err(|_| self.unknown())?;
        let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq");
        self.first_of(self.path(&path), "kHz", QuantityKind::Level)
    }

    /// `ZONE`: its energy.
    fn powercap(&self) -> Found {
        let zone = self.of_class("sys/class/powercap", "name", self.rest);
        let zone = zone.ok_or_else(|| self.missing(format!("it has no zone `{}`", self.rest)))?;
        let range = fs::read_to_string(zone.join("max_energy_range_uj"));
        let range = range.ok().and_then(|text| text.trim().parse().ok());
        let (path, mut pick) = self.first_of(zone.join("energy_uj"), "uJ", QuantityKind::Count)?;
        pick.wraps_at = range.unwrap_or(0);
        Ok((path, pick))
    }

    /// `CPU`: the id of the thread that runs on it.
    fn running(&self) -> Found {
        let cpu: u32 = self.rest.parse().map_err(|_| self.unknown())?;
        let path = self.path("sys/kernel/debug/sched/debug");
        let place = Place::Section {
            section: format!("cpu#{cpu}"),
            key: ".curr->pid".to_owned(),
        };
        let text = self.text(&path)?;
        if place.find(text.as_bytes()).is_none() {
            return Err(self.missing(format!("it has no CPU {cpu}")));
        }
        Ok((
            path,
            Pick::new(place, self.quantity("", QuantityKind::Level)),
        ))
    }

    /// `PATH` or `PATH#KEY`.
    fn file(&self, kind: QuantityKind) -> Found {
        let (file, key) = match self.rest.split_once('#') {
            Some((file, key)) => (file, Some(key)),
            None => (self.rest, None),
        };
        if !file.starts_with('/') {
            return Err(self.missing("the path of the file does not begin with `/`"));
        }
        let path = self.path(file);
        let text = self.text(&path)?;
        let place = match key {
            None => Place::First,
            Some(key) => Place::Word {
                key: key.to_owned(),
                index: 0,
            },
        };
        let Some(word) = place.find(text.as_bytes()) else {
            let reason =
                match key {
                    Some(key) => {
                        format!(
                    "{file} has no line that begins with `{key}`; its lines begin with `{}`",
                    keys_of(&text).into_iter().take(20).collect::<Vec<_>>().join("`, `")
                )
                    }
                    None => format!("{file} has no number"),
                };
            return Err(self.missing(reason));
        };
        let kind = match kind {
            QuantityKind::Level if word.contains(&b'.') => QuantityKind::RealLevel,
            kind => kind,
        };
        Ok((path, Pick::new(place, self.quantity("", kind))))
    }
}
