// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a calibration is kept, and whether it is one of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Calibration;
use crate::exit::{Failure, UNAVAILABLE, USAGE};

/// `overhear/calibration.json` in the user's cache: `$XDG_CACHE_HOME`, else `~/.cache`. `None` if
/// neither is known.
#[must_use]
pub fn default_place() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
    cache
        .is_absolute()
        .then(|| cache.join("overhear/calibration.json"))
}

/// The place of a calibration that is being measured: what cannot be kept is not worth the wait.
#[derive(Debug)]
pub struct Place {
    file: PathBuf,
    // Renamed in the end, so that nobody reads half of it.
    beside: PathBuf,
}

impl Place {
    /// Makes sure that the file can be written; its folder is made if need be.
    ///
    /// # Errors
    /// [`Failure`] if it cannot.
    pub fn claim(file: &Path) -> Result<Self, Failure> {
        let place = Self {
            file: file.to_path_buf(),
            beside: file.with_extension("json.tmp"),
        };
        let folder = file.parent().filter(|folder| *folder != Path::new(""));
        let made = folder.map_or(Ok(()), fs::create_dir_all);
        let claimed = made.and_then(|()| fs::write(&place.beside, b""));
        claimed.map_err(|error| place.failed(&error))?;
        Ok(place)
    }

    /// Keeps the calibration there.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be written.
    pub fn keep(self, calibration: &Calibration) -> Result<(), Failure> {
        let json = serde_json::to_vec_pretty(calibration).unwrap_or_default();
        let written = fs::write(&self.beside, json);
        let kept = written.and_then(|()| fs::rename(&self.beside, &self.file));
        kept.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        let sentence = format!(
            "cannot keep the calibration in {}: {error}; name another file by --output",
            self.file.display()
        );
        Failure::new(UNAVAILABLE, sentence)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.beside);
    }
}

/// The calibration of this machine: from this file, or from where it is kept. `None` if there is
/// none, or if it is one of another CPU or kernel.
///
/// # Errors
/// [`Failure`] if the file that is named cannot be read.
pub fn recall(named: Option<&Path>) -> Result<Option<Calibration>, Failure> {
    match named {
        Some(file) => {
            let usage = |error: &dyn std::fmt::Display| {
                let sentence = format!("{} is no calibration: {error}", file.display());
                Failure::new(USAGE, sentence)
            };
            let json = fs::read(file).map_err(|error| usage(&error))?;
            let read = serde_json::from_slice(&json).map_err(|error| usage(&error))?;
            Ok(Some(read))
        }
        None => Ok(kept()),
    }
}

fn kept() -> Option<Calibration> {
    let json = fs::read(default_place()?).ok()?;
    let calibration: Calibration = serde_json::from_slice(&json).ok()?;
    let is_ours = calibration.cpu == cpu() && calibration.release == release();
    is_ours.then_some(calibration)
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What the kernel calls the CPU: model, family and number of that.
pub(super) fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.trim() == name);
        found.map_or(String::new(), |(_, value)| value.trim().to_string())
    };
    let words = [
        "model name",
        "cpu family",
        "model",
        "CPU implementer",
        "CPU part",
    ];
    let words: Vec<String> = words.map(named).into();
    words.join(" ").trim().to_string()
}

pub(super) fn release() -> String {
    let name = rustix::system::uname();
    name.release().to_string_lossy().into_owned()
}
