// SPDX-License-Identifier: MIT OR Apache-2.0
//! Partitions of control groups version 2 (`Documentation/admin-guide/cgroup-v2.rst`, "Cpuset").

use std::path::Path;

use super::{text_of, write, PartitionError};

/// Makes a partition of a group that was just made below the root, where every other group loses
/// the CPU.
pub(super) fn set_apart(group: &Path, cpu: u32, threaded: bool) -> Result<(), PartitionError> {
    if threaded {
        write(&group.join("cgroup.type"), "threaded")?;
    }
    write(&group.join("cpuset.cpus"), &cpu.to_string())?;
    let file = group.join("cpuset.cpus.partition");
    write(&file, "root")?;
    // The kernel accepts the word and shows afterwards whether it took effect.
    match text_of(&file).trim() {
        "root" => Ok(()),
        other => Err(PartitionError::Invalid {
            cpu,
            reason: other.to_string(),
        }),
    }
}
