// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[recording]`: the limits of the recording of a run on the disk.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::disk_limits::{parse_rate, parse_size, DiskLimits};
use crate::error::{ErrorKind, SessionError};

/// `[recording]`: limits of the recording of a run. What they leave out is counted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordingConfig {
    /// Bytes that the recording grows by in any second, at most: `"10MB/s"`.
    #[serde(default)]
    pub disk_budget: Option<String>,
    /// Size of the recording, at most: `"2GB"`. The oldest elements are removed.
    #[serde(default)]
    pub max_size: Option<String>,
}

impl RecordingConfig {
    /// The limits, or a message that names the key.
    pub(crate) fn limits(&self) -> Result<DiskLimits, String> {
        let refused = |key: &str, message| format!("[recording] `{key}`: {message}");
        let rate = self.disk_budget.as_deref().map(parse_rate).transpose();
        let size = self.max_size.as_deref().map(parse_size).transpose();
        Ok(DiskLimits {
            rate: rate.map_err(|message| refused("disk_budget", message))?,
            max_bytes: size.map_err(|message| refused("max_size", message))?,
        })
    }
}

/// The limits of a file; none if it has no such entry.
///
/// # Errors
/// [`SessionError`] with a message that names the file and the entry.
pub fn read_any(path: &Path) -> Result<DiskLimits, SessionError> {
    let text = super::text_of(path)?;
    parse_any(&text).map_err(|message| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", path.display()))
    })
}

fn parse_any(text: &str) -> Result<DiskLimits, String> {
    /// The entry of the recording.
    #[derive(Deserialize)]
    struct Entries {
        #[serde(default)]
        recording: RecordingConfig,
    }

    super::reject_unknown_entries(text)?;
    let entries: Entries = super::from_toml(text)?;
    entries.recording.limits()
}

#[cfg(test)]
mod tests {
    use super::parse_any;

    #[test]
    fn limits_are_read_and_impossible_ones_refused_with_the_key() {
        let limits = parse_any("[recording]\nmax_size = \"2GB\"\n").unwrap();
        assert_eq!((limits.rate, limits.max_bytes), (None, Some(2_000_000_000)));
        assert!(parse_any("").unwrap().is_none());
        for (line, message) in [
            (
                "max_size = \"1kB\"",
                "[recording] `max_size`: a recording of at most `1kB` has no room for elements; \
                 give at least 1MiB",
            ),
            (
                "disk_budget = \"0\"",
                "[recording] `disk_budget`: a disk budget of `0` has no room for a packet; \
                 give at least 16KiB/s",
            ),
        ] {
            let text = format!("[recording]\n{line}\n");
            assert_eq!(parse_any(&text).unwrap_err(), message);
        }
        assert!(parse_any("[recording]\nsize = \"2GB\"\n").is_err());
    }
}
