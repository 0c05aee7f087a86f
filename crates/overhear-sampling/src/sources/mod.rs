// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data sources of the operating system: from names to a [`Reading`].
//!
//! All files are read below a root folder, so that tests and users can give another one. Names that
//! share a file share its read.

mod catalogue;
mod counter_sum;
mod name;
mod newest;
mod plugin;
mod process;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::counters::{CounterError, CounterEvent};
use crate::{CostClass, DataSource, Quantity, SourceReadError};

pub use catalogue::AvailableSource;
use counter_sum::CounterSum;
pub use name::split_names;
use name::{counter, Resolved};
pub use newest::{NewestValue, SENSOR};
use plugin::PluginSource;
use process::{ProcessAccounts, ProcessQuantity};
use text::{Pick, TextFile};

/// What a name of a data source in a shared object begins with: `plugin:FILE[=ARGUMENT]`.
pub const PLUGIN: &str = "plugin:";

/// A note about counters that exclude the kernel.
const USER_MODE: &str = "counters count in user mode only, because this user may not count in the \
                         kernel: see kernel.perf_event_paranoid";

/// The end of a note about counters that accounts replace.
const INSTEAD: &str = "accounts of /proc are sampled instead, without child processes";

/// Why a name cannot be sampled: a sentence for the user.
#[derive(Debug, thiserror::Error)]
pub enum SourceNameError {
    /// No data source has this name.
    #[error("`{name}` is no quantity that can be sampled{near}; `overhear list --data-sources` has all names")]
    Unknown {
        /// The name.
        name: String,
        /// Names that are near, as a part of the sentence.
        near: String,
    },
    /// This machine does not have it.
    #[error("`{name}` cannot be sampled on this machine: {reason}")]
    Missing {
        /// The name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// It belongs to a process, and none is sampled.
    #[error("`{0}` is a quantity of a process; name the process to sample")]
    NoProcess(String),
    /// Counters are not available.
    #[error(transparent)]
    Counters(#[from] CounterError),
}

impl SourceNameError {
    /// Whether a permission or a feature of the machine is missing, and the name itself is right.
    #[must_use]
    pub fn is_of_machine(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::Counters(error) => !error.is_usage(),
            Self::Unknown { .. } | Self::NoProcess(_) => false,
        }
    }
}

/// Finds sources by the names that users write.
#[derive(Clone, Debug)]
pub struct SourceFinder {
    root: PathBuf,
    pid: Option<u32>,
    on_exec: bool,
    newest: BTreeMap<String, NewestValue>,
}

impl Default for SourceFinder {
    fn default() -> Self {
        Self::below("/")
    }
}

impl SourceFinder {
    /// Finds files below this folder: `/`, or a copy of its parts.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            pid: None,
            on_exec: false,
            newest: BTreeMap::new(),
        }
    }

    /// Reads the quantities of processes from this one.
    #[must_use]
    pub fn of_process(self, pid: u32) -> Self {
        Self {
            pid: Some(pid),
            ..self
        }
    }

    /// Gives the name of a sensor's field to a value.
    #[must_use]
    pub fn newest(mut self, name: impl Into<String>, value: NewestValue) -> Self {
        self.newest.insert(name.into(), value);
        self
    }

    /// Lets counters begin when the process executes its program.
    #[must_use]
    pub fn on_exec(self) -> Self {
        Self {
            on_exec: true,
            ..self
        }
    }

    /// Whether a name is a quantity of the sampled process, if there is one. Counters are those of
    /// the machine without a process.
    #[must_use]
    pub fn is_of_process(name: &str) -> bool {
        Self::needs_process(name) || counter(name).is_some()
    }

    /// Whether a name is a quantity of a process, and has no meaning without one.
    #[must_use]
    pub fn needs_process(name: &str) -> bool {
        let own_group = name
            .strip_prefix("cgroup:")
            .is_some_and(|file| !file.starts_with('/'));
        ProcessQuantity::of_name(name).is_some() || own_group
    }

    /// Opens the sources of these names, in this order.
    ///
    /// # Errors
    /// [`SourceNameError`] for the first name that cannot be sampled.
    pub fn find(&self, names: &[impl AsRef<str>]) -> Result<Reading, SourceNameError> {
        let mut files: BTreeMap<PathBuf, Vec<(usize, Pick)>> = BTreeMap::new();
        let mut accounts: Vec<(usize, ProcessQuantity)> = Vec::new();
        let mut counters: Vec<(usize, CounterEvent)> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut place = 0;
        // The name of each place.
        let mut named: Vec<&str> = Vec::new();
        for name in names {
            let name = name.as_ref();
            if let Some(file) = name.strip_prefix(PLUGIN) {
                let source = self.plugin(name, file)?;
                let count = source.quantities().len();
                parts.push(Part::new(
                    Box::new(source),
                    (place..place + count).collect(),
                ));
                named.extend(std::iter::repeat_n(name, count));
                place += count;
                continue;
            }
            named.push(name);
            place += 1;
            let place = place - 1;
            if name.starts_with(SENSOR) {
                let value = self
                    .newest
                    .get(name)
                    .ok_or_else(|| SourceNameError::Missing {
                        name: name.to_owned(),
                        reason:
                            "there is no sensor to read; name it as `sensor=NAME.FIELD`, in a run"
                                .to_owned(),
                    })?;
                parts.push(Part::new(Box::new(value.source(name)), vec![place]));
                continue;
            }
            match self.resolve(name)? {
                Resolved::Process(quantity) => accounts.push((place, quantity)),
                Resolved::Counter(event) => counters.push((place, *event)),
                Resolved::File(path, pick) => files.entry(path).or_default().push((place, *pick)),
            }
        }
        let missing = |place: usize, error: SourceReadError| SourceNameError::Missing {
            name: named[place].to_owned(),
            reason: error.to_string(),
        };
        let mut notes = Vec::new();
        if !counters.is_empty() {
            let (places, events): (Vec<usize>, Vec<CounterEvent>) = counters.into_iter().unzip();
            match self.counters(&events) {
                Ok(counted) => {
                    if counted.excludes_kernel() {
                        notes.push(USER_MODE.to_owned());
                    }
                    parts.push(Part::new(Box::new(counted), places));
                }
                Err(error) => {
                    let same = events
                        .iter()
                        .map(|event| ProcessQuantity::of_name(event.name()));
                    let same: Option<Vec<ProcessQuantity>> = same.collect();
                    let Some(same) = same.filter(|_| self.pid.is_some()) else {
                        return Err(error.into());
                    };
                    notes.push(format!("{error}; {INSTEAD}"));
                    accounts.extend(places.into_iter().zip(same));
                }
            }
        }
        if let Some(&(first, _)) = accounts.first() {
            let pid = self
                .pid
                .ok_or_else(|| SourceNameError::NoProcess(named[first].to_owned()))?;
            let (places, wanted) = accounts.into_iter().unzip();
            let opened = ProcessAccounts::open(&self.root, pid, wanted);
            let source = opened.map_err(|error| missing(first, error))?;
            parts.push(Part::new(Box::new(source), places));
        }
        for (path, picks) in files {
            let (places, picks): (Vec<usize>, Vec<Pick>) = picks.into_iter().unzip();
            let opened = TextFile::open(&path, picks);
            let source = opened.map_err(|error| missing(places[0], error))?;
            parts.push(Part::new(Box::new(source), places));
        }
        let mut reading = Reading::new(parts, place);
        reading.notes = notes;
        Ok(reading)
    }

    /// The data source of `FILE[=ARGUMENT]`.
    fn plugin(&self, name: &str, file: &str) -> Result<PluginSource, SourceNameError> {
        let (file, argument) = file.split_once('=').unwrap_or((file, ""));
        let loaded = PluginSource::load(Path::new(file), argument, self.pid.unwrap_or(0));
        loaded.map_err(|reason| SourceNameError::Missing {
            name: name.to_owned(),
            reason,
        })
    }

    fn counters(&self, events: &[CounterEvent]) -> Result<CounterSum, CounterError> {
        match self.pid {
            Some(pid) => CounterSum::of_process(events, pid, self.on_exec),
            None => CounterSum::of_machine(events),
        }
    }

    /// The root folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }
}

/// A source, and the places of its values among all.
struct Part {
    source: Box<dyn DataSource>,
    places: Vec<usize>,
    values: Vec<u64>,
}

impl Part {
    fn new(source: Box<dyn DataSource>, places: Vec<usize>) -> Self {
        Self {
            values: vec![0; places.len()],
            source,
            places,
        }
    }
}

/// The sources of one sampler, which are read together.
pub struct Reading {
    parts: Vec<Part>,
    quantities: Vec<Quantity>,
    notes: Vec<String>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reading").field(&self.quantities).finish()
    }
}

impl Reading {
    fn new(parts: Vec<Part>, count: usize) -> Self {
        let empty = Quantity::new("", "", crate::QuantityKind::Level);
        let mut quantities = vec![empty; count];
        for part in &parts {
            for (place, quantity) in part.places.iter().zip(part.source.quantities()) {
                quantities[*place] = quantity.clone();
            }
        }
        // Two names may become the same identifier.
        for index in 0..quantities.len() {
            let name = quantities[index].name.clone();
            let taken = |name: &str, all: &[Quantity]| all.iter().any(|it| it.name == name);
            let mut number = 2;
            while taken(&quantities[index].name, &quantities[..index]) {
                quantities[index].name = format!("{name}_{number}");
                number += 1;
            }
        }
        Self {
            parts,
            quantities,
            notes: Vec::new(),
        }
    }

    /// The sources of a user: their quantities in their order.
    #[must_use]
    pub fn of(sources: Vec<Box<dyn DataSource>>) -> Self {
        let mut count = 0;
        let parts = sources.into_iter().map(|source| {
            let from = count;
            count += source.quantities().len();
            Part::new(source, (from..count).collect())
        });
        let parts = parts.collect();
        Self::new(parts, count)
    }

    /// The sources of both, first the own ones.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let shift = self.quantities.len();
        let count = shift + other.quantities.len();
        let mut parts = self.parts;
        parts.extend(other.parts.into_iter().map(|mut part| {
            part.places.iter_mut().for_each(|place| *place += shift);
            part
        }));
        Self::new(parts, count)
    }

    /// The quantities, in the order of the values.
    #[must_use]
    pub fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    /// What the values do not contain, as sentences.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What a read costs: that of the most expensive source.
    #[must_use]
    pub fn cost(&self) -> CostClass {
        let costs = self.parts.iter().map(|part| part.source.cost());
        costs.max().unwrap_or(CostClass::Instruction)
    }

    /// Whether a source's object has ended, so that there will be no sample any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.parts.iter().any(|part| part.source.has_ended())
    }

    /// Reads all sources.
    ///
    /// # Errors
    /// [`SourceReadError`] of the first source that cannot be read; the values are not changed
    /// from there on.
    ///
    /// # Panics
    /// If there are fewer values than quantities.
    pub fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        for part in &mut self.parts {
            part.source.read(&mut part.values)?;
            for (place, value) in part.places.iter().zip(&part.values) {
                values[*place] = *value;
            }
        }
        Ok(())
    }
}
