// SPDX-License-Identifier: MIT OR Apache-2.0
//! Partitions of control groups version 1 (`Documentation/scheduler/sched-deadline.rst`, section
//! 5).
//!
//! Needed by: machines whose init mounts the cpuset controller as version 1, as older
//! distributions, container hosts and small virtual machines do. There the controller is missing in
//! version 2, so without this module no monitor could have a CPU of its own.
//!
//! Needed by: machines whose init mounts the cpuset controller as version 1, as older
//! distributions, container hosts and small virtual machines do. There the controller is missing in
//! version 2, so without this module no monitor could have a CPU of its own.
//!
//! The kernel makes a root domain of each cpuset that balances its load, as long as the root cpuset
//! does not. So that the CPUs that are left go on being balanced they are in a cpuset as well,
//! [`REST`], which holds no thread: balancing goes by CPUs, not by threads.

use std::fs;
use std::path::Path;

use super::names::{format_cpus, parse_cpus};
use super::{failure, text_of, write, PartitionError};

/// The cpuset of all CPUs that are in no partition.
const REST: &str = "overhear-rest";

/// Whether the root balances the load of all CPUs.
pub(super) fn is_balanced(root: &Path) -> bool {
    text_of(&root.join("cpuset.sched_load_balance")).trim() != "0"
}

/// The name of the cpuset of the others, if it is there although there need be none.
pub(super) fn rest_alone(root: &Path) -> Option<String> {
    root.join(REST).is_dir().then(|| REST.to_string())
}

/// Makes a partition of a group that was just made.
pub(super) fn set_apart(root: &Path, group: &Path, cpu: u32) -> Result<(), PartitionError> {
    let mems = text_of(&root.join("cpuset.mems"));
    write(&group.join("cpuset.mems"), mems.trim())?;
    let rest = root.join(REST);
    if !rest.is_dir() {
        fs::create_dir(&rest).map_err(|error| failure(&rest, error))?;
        write(&rest.join("cpuset.mems"), mems.trim())?;
        write(
            &rest.join("cpuset.cpus"),
            text_of(&root.join("cpuset.cpus")).trim(),
        )?;
    }
    let mut left = parse_cpus(&text_of(&rest.join("cpuset.cpus")));
    left.retain(|&other| other != cpu);
    // First these, because an exclusive CPU may be in no other cpuset.
    write(&rest.join("cpuset.cpus"), &format_cpus(&left))?;
    write(&group.join("cpuset.cpus"), &cpu.to_string())?;
    let exclusive = write(&group.join("cpuset.cpu_exclusive"), "1");
    exclusive.map_err(|error| match error {
        PartitionError::File { error, .. } if error.kind() == std::io::ErrorKind::InvalidInput => {
            let reason = "another cpuset has this CPU".to_string();
            PartitionError::Invalid { cpu, reason }
        }
        other => other,
    })?;
    write(&root.join("cpuset.sched_load_balance"), "0")
}

/// Gives the rest all CPUs but `taken`, those of the partitions that are left. `last` gets
/// the last partition: whether the root balanced before there were any.
pub(super) fn settle(root: &Path, taken: &[u32], last: Option<bool>) -> Result<(), PartitionError> {
    let rest = root.join(REST);
    let Some(balanced) = last else {
        let mut left = parse_cpus(&text_of(&root.join("cpuset.cpus")));
        left.retain(|cpu| !taken.contains(cpu));
        return write(&rest.join("cpuset.cpus"), &format_cpus(&left));
    };
    if balanced {
        write(&root.join("cpuset.sched_load_balance"), "1")?;
    }
    match fs::remove_dir(&rest) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failure(&rest, error)),
        _ => Ok(()),
    }
}
