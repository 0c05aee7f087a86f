// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private folder for the socket of an embedded directory.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The address of a Unix socket has 108 bytes; our part of the path takes less than 50.
const LONGEST_PLACE: usize = 55;

/// A fresh folder that nobody else can list or change, removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// In the user's runtime folder, or where temporary files go.
    pub(crate) fn create() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        let places = runtime
            .map(PathBuf::from)
            .into_iter()
            .chain([
                std::env::temp_dir(),
                PathBuf::from("/tmp"),
                PathBuf::from("/dev/shm"),
            ])
            .filter(|place| place.as_os_str().len() <= LONGEST_PLACE);
        // Programs of root may drop their privileges and must still find the socket; who may use it
        // is decided by the directory. Nobody can look around in the folder.
        let mode = if rustix::process::geteuid().is_root() {
            0o711
        } else {
            0o700
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            for attempt in 0..16 {
                let path = place.join(format!("overhear-{}-{attempt}", std::process::id()));
                match std::fs::DirBuilder::new().mode(mode).create(&path) {
                    Ok(()) => return Ok(Self(path)),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
