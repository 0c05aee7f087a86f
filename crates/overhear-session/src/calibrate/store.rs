// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of a calibration, and whether it is of this machine.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use overhear_trace::Folder;

use super::Calibration;
use crate::error::{ErrorKind, SessionError, Setting};

/// Limit of the size of a stored calibration, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// `overhear/calibration.json` in the user's cache: `$XDG_CACHE_HOME`, else `~/.cache`. `None` if
/// neither is known.
#[must_use]
pub fn default_file() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
    cache
        .is_absolute()
        .then(|| cache.join("overhear/calibration.json"))
}

/// The file of a calibration that is being measured. It is opened before the measurement, so that
/// an error is reported at once.
#[derive(Debug)]
pub struct CalibrationFile {
    file: PathBuf,
    folder: Folder,
    name: OsString,
}

impl CalibrationFile {
    /// Checks that the file can be written. Its folder is created if it does not exist.
    ///
    /// # Errors
    /// [`SessionError`] if it cannot.
    pub fn claim(file: &Path) -> Result<Self, SessionError> {
        let opened = match Folder::above(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let above = file.parent().unwrap_or(Path::new(""));
                Folder::create(above).map_err(|error| failed(file, &error))?;
                Folder::above(file)
            }
            opened => opened,
        };
        let (folder, name) = opened.map_err(|error| failed(file, &error))?;
        // The temporary file is removed; `save` creates it again.
        folder
            .replace(&name)
            .map_err(|error| failed(file, &error))?;
        Ok(Self {
            file: file.to_path_buf(),
            folder,
            name,
        })
    }

    /// Writes the calibration.
    ///
    /// # Errors
    /// [`SessionError`] if it cannot be written.
    pub fn save(self, calibration: &Calibration) -> Result<(), SessionError> {
        let json = serde_json::to_vec_pretty(calibration).unwrap_or_default();
        let kept = self.folder.replace(&self.name).and_then(|mut file| {
            file.write_all(&json)?;
            file.commit()
        });
        kept.map_err(|error| failed(&self.file, &error))
    }
}

fn failed(file: &Path, error: &dyn std::fmt::Display) -> SessionError {
    let message = format!(
        "cannot keep the calibration in {}: {error}; name another file",
        file.display()
    );
    SessionError::new(ErrorKind::Unavailable, message).about(Setting::Output)
}

/// Reads a calibration: from the named file, or from the default file if that is of this CPU and
/// kernel. `None` without one.
///
/// # Errors
/// [`SessionError`] if the file that is named cannot be read.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub fn load_calibration(named: Option<&Path>) -> Result<Option<Calibration>, SessionError> {
    match named {
        Some(file) => {
            let usage = |error: &dyn std::fmt::Display| {
                let message = format!("{} is no calibration: {error}", file.display());
                SessionError::new(ErrorKind::Usage, message)
            };
            let json = fs::read(file).map_err(|error| usage(&error))?;
            let read = serde_json::from_slice(&json).map_err(|error| usage(&error))?;
            Ok(Some(read))
        }
        None => Ok(stored()),
    }
}

fn stored() -> Option<Calibration> {
    let (folder, name) = Folder::above(&default_file()?).ok()?;
    let json = folder.read(name, MAX_BYTES).ok()?;
    let calibration: Calibration = serde_json::from_slice(&json).ok()?;
    let is_ours = calibration.cpu == cpu() && calibration.release == release();
    is_ours.then_some(calibration)
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The CPU by the kernel's names: model name, family and model number.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
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
