// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared objects with updates, and what they export.

use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use overhear_event::TypeSchema;
use overhear_ffi::{read_fields, text};

use super::abi::{GetPlugin, RawPlugin, RawUpdate, ABI, LEAST_UPDATE, SYMBOL};
use super::footprint::open_measured;
use super::tls::ThreadLocals;
use super::update::PluginUpdate;

/// A plug-in cannot be used; the message names the file, and the update where it is about one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// It is no shared object, or lacks something it needs.
    #[error("plug-in {file} does not load: {reason}")]
    NotLoaded {
        /// The file.
        file: String,
        /// The message of the loader.
        reason: String,
    },
    /// It is a shared object, but no plug-in.
    #[error("plug-in {file} lacks the function `oh_plugin_v1`; write OH_EXPORT_UPDATES(&update) into it, or export_updates! in Rust")]
    NoSymbol {
        /// The file.
        file: String,
    },
    /// It lacks the function that a reaction names.
    #[error("plug-in {file} has no function `{function}`; export `void {function}(const oh_reaction *)` from it")]
    NoFunction {
        /// The file.
        file: String,
        /// The requested name.
        function: String,
    },
    /// It was built for another version of the interface.
    #[error("plug-in {file} is of version {found} of the interface for updates, this program has {ABI}; build it against this program's headers")]
    OtherVersion {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
    },
    /// What it exports makes no sense.
    #[error("plug-in {file}: {update}: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// Which of its updates: its name, or its number.
        update: String,
        /// What is wrong.
        reason: String,
    },
    /// It has no update of this name.
    #[error("plug-in {file} has no update `{name}`; it has {known}")]
    NoSuchUpdate {
        /// The file.
        file: String,
        /// The requested name.
        name: String,
        /// The names it has.
        known: String,
    },
    /// The update could not be made.
    #[error("plug-in {file}: update `{update}` cannot be created: {reason}")]
    NotCreated {
        /// The file.
        file: String,
        /// The update.
        update: String,
        /// Its message.
        reason: String,
    },
}

/// A shared object with updates.
#[derive(Clone, Debug)]
pub struct Plugin {
    file: String,
    entries: Vec<Arc<Entry>>,
    mapped_bytes: u64,
}

/// One of the updates that a plug-in exports.
#[derive(Debug)]
pub(super) struct Entry {
    // Copied, so that what a plug-in of an older or newer version has more or less does not matter.
    pub(super) raw: RawUpdate,
    pub(super) name: String,
    pub(super) sensors: Option<String>,
    pub(super) type_id: Option<String>,
    pub(super) expected: Option<TypeSchema>,
    pub(super) locals: ThreadLocals,
}

// SAFETY: the entry is read-only data of a loaded shared object and copies of it; its functions may
// be called from any thread by the rules of update.h.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Plugin {
    /// Loads a shared object, with all symbols it needs resolved at once.
    ///
    /// Loading runs code of the file, and calling its updates does: it is trusted as a program
    /// trusts the libraries it is linked with.
    ///
    /// # Errors
    /// [`PluginError`] if it does not load, or its exports are not as `update.h` specifies.
    pub fn load(path: &Path) -> Result<Self, PluginError> {
        let file = path.display().to_string();
        // It stays loaded until the process ends: updates hold pointers into it, and what its
        // threads and destructors still want to run is not for us to know.
        let (handle, mapped_bytes) = open_measured(path)?;
        // SAFETY: a handle of the loader, which is never closed.
        let library = ManuallyDrop::new(unsafe { Library::from_raw(handle) });
        // SAFETY: a plug-in's function of this name is of this type: update.h declares it.
        let symbol = unsafe { library.get::<GetPlugin>(SYMBOL.to_bytes_with_nul()) };
        let function = *symbol.map_err(|_| PluginError::NoSymbol { file: file.clone() })?;
        // SAFETY: as above; it returns a table that stays as long as the library is loaded.
        let table = unsafe { function() };
        let locals = ThreadLocals::of(handle);
        let malformed = |update: &str, reason: &str| PluginError::Malformed {
            file: file.clone(),
            update: update.to_string(),
            reason: reason.to_string(),
        };
        // SAFETY: NULL, or a table by the contract of the function; it states its size.
        let table = unsafe { sized::<RawPlugin>(table, size_of::<RawPlugin>()) };
        let table = table.ok_or_else(|| malformed("`oh_plugin_v1`", "it returns no table"))?;
        if table.abi != ABI {
            return Err(PluginError::OtherVersion {
                file,
                found: table.abi,
            });
        }
        if table.updates.is_null() || table.update_count == 0 {
            return Err(malformed("`oh_plugin_v1`", "its table has no updates"));
        }
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for index in 0..table.update_count as usize {
            let number = format!("update {}", index + 1);
            // SAFETY: the table has this many pointers, each to an update that states its size.
            let raw = unsafe { sized(table.updates.add(index).read(), LEAST_UPDATE) };
            let raw = raw.ok_or_else(|| malformed(&number, "it is NULL, or too small"))?;
            let entry = Entry::new(raw, locals);
            let entry = entry.map_err(|(name, reason)| {
                malformed(
                    &name.map_or(number, |name| format!("update `{name}`")),
                    &reason,
                )
            })?;
            if entries.iter().any(|known| known.name == entry.name) {
                return Err(malformed(
                    &format!("update `{}`", entry.name),
                    "there are two of this name",
                ));
            }
            entries.push(Arc::new(entry));
        }
        Ok(Self {
            file,
            entries,
            mapped_bytes,
        })
    }

    /// Bytes of memory that were mapped to load it, with the libraries that came with it, in whole
    /// pages.
    #[must_use]
    pub const fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// The names of its updates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Makes the update of this name, or one of each without a name, with this argument.
    ///
    /// # Errors
    /// [`PluginError`] if there is none of this name, or its `create` fails.
    pub fn create(
        &self,
        name: Option<&str>,
        argument: &str,
    ) -> Result<Vec<PluginUpdate>, PluginError> {
        let wanted = |entry: &&Arc<Entry>| name.is_none_or(|name| entry.name == name);
        let entries: Vec<_> = self.entries.iter().filter(wanted).collect();
        if entries.is_empty() {
            let known: Vec<String> = self.names().map(|name| format!("`{name}`")).collect();
            return Err(PluginError::NoSuchUpdate {
                file: self.file.clone(),
                name: name.unwrap_or_default().to_string(),
                known: known.join(", "),
            });
        }
        let make = |entry: &Arc<Entry>| {
            let made = PluginUpdate::create(Arc::clone(entry), argument);
            made.map_err(|reason| PluginError::NotCreated {
                file: self.file.clone(),
                update: entry.name.clone(),
                reason,
            })
        };
        entries.into_iter().map(make).collect()
    }
}

/// Loads a shared object, with all symbols it needs resolved at once. Runs code of the file.
pub(super) fn open_library(path: &Path) -> Result<Library, PluginError> {
    // A bare name would be looked for in the system's folders, not here.
    let file = if path.components().count() == 1 {
        Path::new(".").join(path)
    } else {
        path.to_path_buf()
    };
    // SAFETY: the user named this file to be run as a part of this program.
    let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| PluginError::NotLoaded {
        file: path.display().to_string(),
        reason: reason(&error),
    })
}

/// The message of the loader, in one line and without the file's name, which the message has
/// already.
fn reason(error: &libloading::Error) -> String {
    let message = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    message.replace('\n', " ")
}

/// A struct that begins with its size: what is there of it, the rest zero. `None` if it is NULL or
/// smaller than `least`.
///
/// # Safety
/// `raw` is NULL or points to the number of bytes that its first four contain. All bytes zero are a
/// `T`.
pub(super) unsafe fn sized<T: Copy>(raw: *const T, least: usize) -> Option<T> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: every such struct has its size first.
    let size = unsafe { raw.cast::<u32>().read() } as usize;
    if size < least {
        return None;
    }
    // SAFETY: this many bytes are readable, and zero bytes are a value, by contract.
    Some(unsafe { overhear_ffi::sized(raw, size) })
}

impl Entry {
    /// The error is the update's name, if it has one, and what is wrong.
    pub(super) fn new(
        raw: RawUpdate,
        locals: ThreadLocals,
    ) -> Result<Self, (Option<String>, String)> {
        // SAFETY: strings of the plug-in, by update.h.
        let (name, sensors, type_id) =
            unsafe { (text(raw.name), text(raw.sensors), text(raw.type_id)) };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err((None, "it has no name".to_string()));
        };
        let wrong = |reason: String| (Some(name.clone()), reason);
        if raw.create.is_none() || raw.element.is_none() {
            return Err(wrong("`create` and `element` are required".to_string()));
        }
        let expected = match (raw.field_count, &type_id) {
            (0, _) => None,
            (_, None) => {
                return Err(wrong("it names fields, but not their `type`".to_string()));
            }
            (_, Some(type_id)) => {
                // SAFETY: the array has this many entries, by update.h.
                let fields = unsafe { read_fields(raw.fields, raw.field_count) };
                let schema = fields.and_then(|fields| {
                    TypeSchema::new(type_id.clone(), raw.payload_size, fields)
                        .map_err(|error| error.to_string())
                });
                Some(schema.map_err(wrong)?)
            }
        };
        Ok(Self {
            raw,
            name,
            sensors,
            type_id,
            expected,
            locals,
        })
    }
}
