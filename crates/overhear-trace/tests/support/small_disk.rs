// SPDX-License-Identifier: MIT OR Apache-2.0
//! A disk that is full soon, for tests of several crates.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system, unmounted at the end.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one with these options of tmpfs; `None` if this user may not.
    pub(crate) fn mount(at: &Path, options: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "overhear-test"])
            .arg(at)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
