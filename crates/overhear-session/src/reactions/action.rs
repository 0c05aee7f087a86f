// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actions of a reaction.

use std::path::{Path, PathBuf};

use overhear_monitor::plugin::ReactionFunction;
use rustix::process::Signal;

use crate::config::reactions::ReactionConfig;
use crate::trust;

/// One action of a reaction.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Shows a message ([`crate::notices`]).
    Notify,
    /// Appends a line to a file.
    Append(PathBuf),
    /// Starts a program.
    Run(Program),
    /// Sends a signal to the observed program.
    Signal(Signal, String),
    /// Calls a function of a shared object.
    Call(ReactionFunction),
    /// Writes an element to the sensor of this id.
    Write(String),
}

/// A program that a reaction starts.
#[derive(Clone, Debug)]
pub(super) struct Program {
    /// Absolute path.
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
    /// Its working directory: the folder of `overhear.toml`.
    pub(super) folder: PathBuf,
}

/// Signals by their names without `SIG`.
const SIGNALS: [(&str, Signal); 13] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("PIPE", Signal::PIPE),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("WINCH", Signal::WINCH),
];

impl Action {
    /// The actions of an entry, in the order log, exec, signal, function, sensor. `base` is the
    /// folder of relative names.
    ///
    /// # Errors
    /// A message about the key.
    #[expect(
        clippy::disallowed_methods,
        reason = "a log that the configuration names"
    )]
    pub(super) fn all_of(config: &ReactionConfig, base: &Path) -> Result<Vec<Self>, String> {
        let mut actions = Vec::new();
        match &config.log {
            Some(file) if file == Path::new("-") => actions.push(Self::Notify),
            Some(file) => {
                let file = base.join(file);
                let opened = std::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&file);
                opened.map_err(|error| {
                    format!("its log {} cannot be written: {error}", file.display())
                })?;
                actions.push(Self::Append(file));
            }
            None => {}
        }
        if let Some(command) = &config.exec {
            let [program, arguments @ ..] = command.as_slice() else {
                return Err("`exec` is empty; name a program and its arguments".to_string());
            };
            let found = find(program, base).ok_or_else(|| {
                let path = trust::search_path();
                let path = path.display();
                format!("`exec`: there is no program `{program}`; check the name and PATH ({path})")
            })?;
            let cannot = |error: &dyn std::fmt::Display| format!("`exec` of `{program}`: {error}");
            let path = trust::checked_path(&found).map_err(|error| cannot(&error))?;
            let absolute = |path: &Path| std::path::absolute(path).map_err(|error| cannot(&error));
            let folder = match base.as_os_str().is_empty() {
                true => Path::new("."),
                false => base,
            };
            actions.push(Self::Run(Program {
                path: absolute(&path)?,
                arguments: arguments.to_vec(),
                folder: absolute(folder)?,
            }));
        }
        if let Some(name) = &config.signal {
            let short = name.strip_prefix("SIG").unwrap_or(name);
            let Some((_, signal)) = SIGNALS.iter().find(|(known, _)| *known == short) else {
                let known = SIGNALS.map(|(name, _)| name).join(", ");
                return Err(format!("there is no signal `{name}`; there is {known}"));
            };
            actions.push(Self::Signal(*signal, short.to_string()));
        }
        if let Some(text) = &config.function {
            let Some((file, function)) = text.rsplit_once(':') else {
                return Err(format!(
                    "`function` is `{text}`; write FILE.so:FUNCTION, for example \"./mine.so:alarm\""
                ));
            };
            let file = trust::plugin(&base.join(file))?;
            let loaded = ReactionFunction::load(&file, function);
            let loaded = loaded.map_err(|error| error.to_string())?;
            actions.push(Self::Call(loaded));
        }
        if let Some(sensor) = &config.sensor {
            if sensor.is_empty() || sensor.contains(['/', '#']) {
                return Err(format!(
                    "`sensor` is `{sensor}`; give an id without `/` and `#`"
                ));
            }
            actions.push(Self::Write(sensor.clone()));
        }
        match actions.is_empty() {
            true => Err(
                "it does nothing; give log, exec, signal, function or sensor, or several of them"
                    .to_string(),
            ),
            false => Ok(actions),
        }
    }
}

/// The file of a program: below `base` if its name has a `/`, else in PATH.
#[expect(clippy::disallowed_methods, reason = "the file of a program")]
fn find(program: &str, base: &Path) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_file();
    if program.contains('/') {
        return Some(base.join(program)).filter(is_file);
    }
    let path = trust::search_path();
    let folders = std::env::split_paths(&path);
    folders.map(|folder| folder.join(program)).find(is_file)
}
