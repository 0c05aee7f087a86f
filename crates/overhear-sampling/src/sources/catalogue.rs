// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of all data sources that a machine has.

use std::fs;

use super::name::CPU_COLUMNS;
use super::text::keys_of;
use super::SourceFinder;
use crate::counters::CounterEvent;
use crate::KernelAccount;

/// A data source of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableSource {
    /// The name that a user writes.
    pub name: String,
    /// What it is, as a phrase.
    pub description: String,
}

fn source(name: impl Into<String>, description: impl Into<String>) -> AvailableSource {
    AvailableSource {
        name: name.into(),
        description: description.into(),
    }
}

impl SourceFinder {
    /// The data sources of this machine, by family. Counters of the CPU are not among them.
    #[must_use]
    pub fn available(&self) -> Vec<AvailableSource> {
        let mut all = Vec::new();
        for account in KernelAccount::ALL {
            all.push(source(account.name(), "account of a process"));
        }
        self.pressures(&mut all);
        self.keys("proc/stat", "stat", &mut all);
        self.keys("proc/meminfo", "meminfo", &mut all);
        self.keys("proc/vmstat", "vmstat", &mut all);
        self.groups(&mut all);
        self.sensors(&mut all);
        all
    }

    /// Names near this one: those that contain it, or differ by few letters.
    pub(crate) fn near(&self, name: &str) -> Vec<String> {
        let lower = name.to_lowercase();
        let mut near: Vec<(usize, String)> = Vec::new();
        let counters = CounterEvent::all_named();
        let counters = counters.iter().map(|event| event.name().to_owned());
        let sources = self.available().into_iter().map(|source| source.name);
        for candidate in counters.chain(sources) {
            let other = candidate.to_lowercase();
            let distance = distance(&lower, &other);
            let contains = other.contains(&lower) || lower.contains(&other);
            // The family is right, and the begin of the rest.
            let last = lower.chars().next_back().map_or(0, char::len_utf8);
            let begin = &lower[..lower.len() - last];
            let begins = lower.contains(':') && other.starts_with(begin);
            if distance <= 2 + lower.len() / 6 || contains || begins {
                near.push((distance, candidate));
            }
        }
        near.sort();
        near.into_iter().take(4).map(|(_, name)| name).collect()
    }

    fn pressures(&self, all: &mut Vec<AvailableSource>) {
        for resource in ["cpu", "io", "memory", "irq"] {
            let path = self.root().join("proc/pressure").join(resource);
            let Ok(text) = fs::read_to_string(path) else {
                continue;
            };
            for line in ["some", "full"] {
                if text.lines().any(|it| it.starts_with(line)) {
                    let name = format!("psi:{resource}.{line}");
                    let stalled = if line == "some" {
                        "a task is"
                    } else {
                        "all tasks are"
                    };
                    let description = format!("time during which {stalled} stalled; also .avg10");
                    all.push(source(name, description));
                }
            }
        }
    }

    fn keys(&self, file: &str, family: &str, all: &mut Vec<AvailableSource>) {
        let text = fs::read_to_string(self.root().join(file)).unwrap_or_default();
        for key in keys_of(&text) {
            let description = format!("/{file}");
            match family == "stat" && key.starts_with("cpu") {
                true => all.extend(
                    CPU_COLUMNS
                        .iter()
                        .map(|column| source(format!("stat:{key}.{column}"), description.clone())),
                ),
                false => all.push(source(format!("{family}:{key}"), description)),
            }
        }
    }

    fn groups(&self, all: &mut Vec<AvailableSource>) {
        if !self
            .root()
            .join("sys/fs/cgroup/cgroup.controllers")
            .exists()
        {
            return;
        }
        for name in [
            "cpu.stat#usage_usec",
            "memory.current",
            "io.stat#rbytes",
            "io.stat#wbytes",
        ] {
            let description = "value of the process's cgroup; also cgroup:/GROUP/FILE#KEY";
            all.push(source(format!("cgroup:{name}"), description));
        }
    }

    /// Folders of a class with the names that a file in them gives.
    fn class(&self, class: &str, file: &str) -> Vec<(std::path::PathBuf, String)> {
        let entries = fs::read_dir(self.root().join(class))
            .into_iter()
            .flatten()
            .flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| {
                let name = fs::read_to_string(entry.path().join(file)).ok()?;
                Some((entry.path(), name.trim().to_owned()))
            })
            .collect();
        found.sort();
        found
    }

    fn sensors(&self, all: &mut Vec<AvailableSource>) {
        for (folder, chip) in self.class("sys/class/hwmon", "name") {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut inputs: Vec<String> = names
                .filter_map(|name| Some(name.strip_suffix("_input")?.to_owned()))
                .collect();
            inputs.sort();
            let name = |input| format!("hwmon:{chip}/{input}");
            all.extend(
                inputs
                    .iter()
                    .map(|input| source(name(input), "sensor of the board")),
            );
        }
        for (folder, zone) in self.class("sys/class/thermal", "type") {
            if folder.join("temp").exists() {
                all.push(source(format!("thermal:{zone}"), "temperature"));
            }
        }
        for cpu in 0..4096 {
            let cpu_folder = format!("sys/devices/system/cpu/cpu{cpu}");
            let folder = self.root().join(cpu_folder);
            if !folder.exists() {
                break;
            }
            if folder.join("cpufreq/scaling_cur_freq").exists() {
                all.push(source(format!("cpufreq:{cpu}"), "frequency of a CPU"));
            }
        }
        for (folder, zone) in self.class("sys/class/powercap", "name") {
            if folder.join("energy_uj").exists() {
                all.push(source(format!("powercap:{zone}"), "energy"));
            }
        }
        let debug = fs::read_to_string(self.root().join("sys/kernel/debug/sched/debug"));
        let cpus = debug.unwrap_or_default();
        for line in cpus.lines().filter_map(|line| line.strip_prefix("cpu#")) {
            let cpu = line.split(',').next().unwrap_or(line);
            all.push(source(
                format!("running:{cpu}"),
                "id of the thread that runs on a CPU",
            ));
        }
    }
}

/// The least number of inserted, deleted and changed letters from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, candidate) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *candidate);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn distance_counts_changes() {
        assert_eq!(distance("page-fault", "page-faults"), 1);
        assert_eq!(distance("cpu_time", "cpu-time"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
