// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Probe`]: a function or a static probe of programs as a kernel sensor.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use overhear_event::kernel::events;
use overhear_event::TypeSchema;

/// How many probes a monitor can have.
pub(crate) const MOST_PROBES: usize = 16;

/// The end of a text that names a function's return.
const RETURN: &str = ":return";
/// What begins the texts by which processes tell each other of probes.
const FUNCTION: &str = "probe ";
const STATIC: &str = "usdt ";

/// A place in programs that becomes a sensor while a monitor runs: the entry of a function, its
/// return, or a static probe (USDT). No program needs to be built for it or started again.
///
/// ```
/// use overhear_kernel::Probe;
///
/// let entry = Probe::function("/bin/server:handle_request")?;
/// assert_eq!(entry.sensor(), "probe/handle_request");
/// let back = Probe::function("/bin/server:handle_request:return")?;
/// assert_eq!(back.sensor(), "probe/handle_request/return");
/// let phase = Probe::usdt("/bin/server:app:phase")?;
/// assert_eq!(phase.sensor(), "usdt/app/phase");
/// assert!(Probe::function("/bin/server").is_err());
/// # Ok::<(), overhear_kernel::ProbeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    path: PathBuf,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Entry(String),
    Return(String),
    Static { provider: String, name: String },
}

/// Why a probe is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The text has not the form that names a probe.
    #[error("{text:?} names no probe; write {form}")]
    Form {
        /// As given.
        text: String,
        /// What it should look like.
        form: &'static str,
    },
    /// The file cannot have probes.
    #[error("{} cannot be probed, because {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The phrase after "because".
        why: String,
    },
    /// The file has no such place.
    #[error("{} has no {what}; see `nm -D --defined-only` or `readelf -n`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The function or static probe.
        what: String,
    },
    /// The kernel does not let us.
    #[error("{what} of {} cannot be probed, because {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The function or static probe.
        what: String,
        /// The phrase after "because".
        why: String,
    },
    /// A monitor has no room for so many.
    #[error("a kernel monitor can have {MOST_PROBES} probes, and {given} are wished for")]
    TooMany {
        /// How many.
        given: usize,
    },
    /// The sensor at work cannot probe.
    #[error("probes need BPF, and so CAP_BPF and CAP_PERFMON: {why}")]
    NeedsBpf {
        /// What is at work instead.
        why: String,
    },
}

impl Probe {
    /// A function: `PATH:SYMBOL` is its entry, `PATH:SYMBOL:return` its return.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn function(text: &str) -> Result<Self, ProbeError> {
        let (rest, returns) = match text.strip_suffix(RETURN) {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        match rest.rsplit_once(':') {
            Some((path, symbol)) if !path.is_empty() && !symbol.is_empty() => Ok(Self {
                path: path.into(),
                place: match returns {
                    true => Place::Return(symbol.to_owned()),
                    false => Place::Entry(symbol.to_owned()),
                },
            }),
            _ => Err(ProbeError::Form {
                text: text.to_owned(),
                form: "PATH:SYMBOL or PATH:SYMBOL:return",
            }),
        }
    }

    /// A static probe: `PATH:PROVIDER:NAME`.
    ///
    /// # Errors
    /// [`ProbeError::Form`].
    pub fn usdt(text: &str) -> Result<Self, ProbeError> {
        let mut parts = text.rsplitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(provider), Some(path))
                if [name, provider, path].iter().all(|part| !part.is_empty()) =>
            {
                Ok(Self {
                    path: path.into(),
                    place: Place::Static {
                        provider: provider.to_owned(),
                        name: name.to_owned(),
                    },
                })
            }
            _ => Err(ProbeError::Form {
                text: text.to_owned(),
                form: "PATH:PROVIDER:NAME",
            }),
        }
    }

    /// A text from which [`Self::of_text`] makes the same.
    pub(crate) fn text(&self) -> String {
        let path = self.path.display();
        match &self.place {
            Place::Entry(symbol) => format!("{FUNCTION}{path}:{symbol}"),
            Place::Return(symbol) => format!("{FUNCTION}{path}:{symbol}{RETURN}"),
            Place::Static { provider, name } => format!("{STATIC}{path}:{provider}:{name}"),
        }
    }

    /// `None` if it is no such text.
    pub(crate) fn of_text(text_untrusted: &str) -> Option<Self> {
        if let Some(text) = text_untrusted.strip_prefix(FUNCTION) {
            return Self::function(text).ok();
        }
        Self::usdt(text_untrusted.strip_prefix(STATIC)?).ok()
    }

    /// The name of its streams.
    #[must_use]
    pub fn sensor(&self) -> String {
        match &self.place {
            Place::Entry(symbol) => format!("probe/{symbol}"),
            Place::Return(symbol) => format!("probe/{symbol}/return"),
            Place::Static { provider, name } => format!("usdt/{provider}/{name}"),
        }
    }

    /// The file's name, which tells equal names of several files apart.
    #[must_use]
    pub fn instance(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// What its elements consist of.
    #[must_use]
    pub fn schema(&self) -> TypeSchema {
        match self.place {
            Place::Entry(_) | Place::Static { .. } => events::probe_schema(),
            Place::Return(_) => events::probe_return_schema(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// The place, for sentences.
    pub(crate) fn what(&self) -> String {
        match &self.place {
            Place::Entry(symbol) | Place::Return(symbol) => format!("function {symbol}"),
            Place::Static { provider, name } => format!("static probe {provider}:{name}"),
        }
    }

    /// Whether the file can have probes at all.
    pub(crate) fn check(&self) -> Result<(), ProbeError> {
        let refuse = |why: String| ProbeError::File {
            path: self.path.clone(),
            why,
        };
        let metadata = std::fs::metadata(&self.path);
        let metadata = metadata.map_err(|error| refuse(crate::machine::error_text(error)))?;
        if !metadata.is_file() {
            return Err(refuse("it is not a file".to_owned()));
        }
        let mut magic = [0; 4];
        let read = File::open(&self.path).and_then(|mut file| file.read_exact(&mut magic));
        match read {
            Ok(()) if magic == *b"\x7fELF" => Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                Err(refuse(crate::machine::error_text(error)))
            }
            _ => Err(refuse("it is no program or library (not ELF)".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Probe;

    #[test]
    fn a_text_names_the_same_probe() {
        for probe in [
            Probe::function("/bin/a server:handle").unwrap(),
            Probe::function("/bin/a:b:handle:return").unwrap(),
            Probe::usdt("/bin/server:app:phase").unwrap(),
        ] {
            assert_eq!(Probe::of_text(&probe.text()), Some(probe));
        }
        for text in ["", "probe", "probe x", "usdt /bin/a:b", "/bin/a:b:c"] {
            assert_eq!(Probe::of_text(text), None, "{text}");
        }
    }
}
