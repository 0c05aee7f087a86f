// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where cpusets are, what partitions are called, and how the kernel writes lists of CPUs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Which interface the cpuset controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// The hierarchy of control groups that has the cpuset controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Where its root is mounted.
    pub(super) root: PathBuf,
    /// The group of the calling thread, from the root on.
    pub(super) own: PathBuf,
}

impl Hierarchy {
    pub(super) fn of_this_process() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/thread-self/cgroup").ok()?;
        let has_cpusets = |root: &Path| {
            let controllers = fs::read_to_string(root.join("cgroup.controllers"));
            controllers.is_ok_and(|text| text.split_whitespace().any(|word| word == "cpuset"))
        };
        Self::find(&mounts, &own, has_cpusets)
    }

    /// From `/proc/self/mountinfo` and `/proc/thread-self/cgroup`. A controller is in one hierarchy
    /// only; `has_cpusets` looks whether that of version 2 mounted there has it.
    fn find(mounts: &str, own: &str, has_cpusets: impl Fn(&Path) -> bool) -> Option<Self> {
        let group = |wanted: &dyn Fn(&str) -> bool| {
            let mut lines = own.lines().map(|line| line.splitn(3, ':').skip(1));
            let found = lines.find_map(|mut fields| {
                let controllers = fields.next()?;
                let group = fields.next()?;
                wanted(controllers).then_some(group)
            });
            found.map(PathBuf::from)
        };
        mounts.lines().find_map(|line| {
            // Fields of a mount, a dash, then kind, source and options of the file system
            // (proc(5)).
            let (mount, system) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (inner, mount) = (fields.next()?, fields.next()?);
            let mut system = system.split(' ');
            let (kind, options) = (system.next()?, system.nth(1)?);
            // A mount of a part of the hierarchy is not its root.
            let root = PathBuf::from(mount);
            let is_cpuset = |list: &str| list.split(',').any(|word| word == "cpuset");
            let (version, own) = match kind {
                "cgroup2" if has_cpusets(&root) => (Version::V2, group(&str::is_empty)?),
                "cgroup" if is_cpuset(options) => (Version::V1, group(&is_cpuset)?),
                _ => return None,
            };
            (inner == "/").then_some(Self { version, root, own })
        })
    }

    /// The file that names the CPUs that there are for all.
    pub(super) fn root_cpus(&self) -> PathBuf {
        self.root.join(match self.version {
            Version::V1 => "cpuset.cpus",
            Version::V2 => "cpuset.cpus.effective",
        })
    }

    /// The file of a group that lists its threads, and takes them.
    pub(super) const fn threads(&self) -> &'static str {
        match self.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        }
    }
}

/// The name of a partition, after the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupName {
    pid: u32,
    // When the process began, in clock ticks since boot: numbers of processes are reused.
    started: u64,
    /// Whether the root cpuset balanced before there were partitions (version 1 only).
    pub(super) balanced: bool,
}

const PREFIX: &str = "overhear-";
const BALANCED: &str = "-balanced";

impl GroupName {
    pub(super) fn of_this_process(balanced: bool) -> Self {
        let pid = std::process::id();
        Self {
            pid,
            started: started(pid).unwrap_or(0),
            balanced,
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix(PREFIX)?;
        let without = rest.strip_suffix(BALANCED);
        let (pid, started) = without.unwrap_or(rest).split_once('-')?;
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.parse().ok()?,
            balanced: without.is_some(),
        })
    }

    /// Whether the process that made it still runs.
    pub(super) fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balanced = if self.balanced { BALANCED } else { "" };
        write!(f, "{PREFIX}{}-{}{balanced}", self.pid, self.started)
    }
}

fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    started_in(&stat)
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may contain anything. A zombie has ended.
fn started_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(started)
}

/// A list as `0-2,5`, ascending. What is not a list is empty.
pub(super) fn parse_cpus(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The same list, number by number.
pub(super) fn format_cpus(cpus: &[u32]) -> String {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    cpus.join(",")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{format_cpus, parse_cpus, started_in, GroupName, Hierarchy, Version};

    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const OWN: &str = "3:cpuset:/box\n1:cpu:/other\n0::/user.slice/a:b\n";

    #[test]
    fn hierarchy_with_cpusets_is_found() {
        let found = |mounts: &str, v2| Hierarchy::find(mounts, OWN, |_| v2);
        let hybrid = format!("{V2}{V1}");
        assert_eq!(
            found(&hybrid, false),
            Some(Hierarchy {
                version: Version::V1,
                root: PathBuf::from("/sys/fs/cgroup/cpuset"),
                own: PathBuf::from("/box"),
            })
        );
        assert_eq!(
            found(V2, true),
            Some(Hierarchy {
                version: Version::V2,
                root: PathBuf::from("/sys/fs/cgroup/unified"),
                own: PathBuf::from("/user.slice/a:b"),
            })
        );
        assert_eq!(found(V2, false), None);
        // What a container sees of it.
        assert_eq!(found(&V2.replace(" / ", " /docker/1 "), true), None);
        assert_eq!(found("", true), None);
    }

    #[test]
    fn group_name_identifies_the_maker() {
        for (text, balanced) in [
            ("overhear-12-345", false),
            ("overhear-12-345-balanced", true),
        ] {
            let name = GroupName::parse(text).unwrap();
            assert_eq!((name.pid, name.started, name.balanced), (12, 345, balanced));
            assert_eq!(name.to_string(), text);
        }
        for other in ["overhear-rest", "overhear-1", "docker-1-2", "overhear-x-2"] {
            assert_eq!(GroupName::parse(other), None, "{other}");
        }
        let mine = GroupName::of_this_process(false);
        assert!(mine.is_alive());
        // The number was given to another process.
        let older = GroupName {
            started: mine.started.wrapping_sub(1),
            ..mine
        };
        assert!(!older.is_alive());
    }

    #[test]
    fn start_is_found_behind_any_name_and_zombies_have_ended() {
        let stat = |state| {
            format!("7 (a) b (c) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 3")
        };
        assert_eq!(started_in(&stat("S")), Some(4711));
        assert_eq!(started_in(&stat("Z")), None);
    }

    #[test]
    fn lists_of_cpus_are_read_and_written() {
        assert_eq!(parse_cpus("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpus("\n"), [0; 0]);
        assert_eq!(format_cpus(&[0, 1, 5]), "0,1,5");
    }
}
