// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor's half of the border: shared objects, what they export, and updates made from it.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::hash::BuildHasherDefault;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use overhear_event::{
    ElementInPlace, ElementKey, ElementView, Field, FieldKind, Gap, Origin, StreamDescriptor,
    StreamId, Timestamp, TypeSchema, Update, WRITER_TID,
};
use zerocopy::IntoBytes as _;

use super::abi::{
    GetPlugin, RawElement, RawField, RawGap, RawHost, RawInPlace, RawKey, RawPlugin, RawStream,
    RawUpdate, ABI, LEAST_UPDATE, MISSED_STOP, SYMBOL,
};
use super::results::{Results, Told};
use crate::executor::UpdateIndex;
use crate::merge::Spread;
use crate::reaction::{Decider, Occurrence};
use crate::updates::{is_of_type, MissedPolicy};

/// A plug-in cannot be used; the sentence names the file, and the update where it is about one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// It is no shared object, or lacks something it needs.
    #[error("plug-in {file} does not load: {reason}")]
    NotLoaded {
        /// The file.
        file: String,
        /// What the loader says.
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
        /// What was asked for.
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
        /// What was asked for.
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
        /// What it says.
        reason: String,
    },
}

/// A shared object with updates.
#[derive(Clone, Debug)]
pub struct Plugin {
    file: String,
    entries: Vec<Arc<Entry>>,
}

/// One of the updates that a plug-in exports.
#[derive(Debug)]
struct Entry {
    // Copied, so that what a plug-in of an older or newer version has more or less does not matter.
    raw: RawUpdate,
    name: String,
    sensors: Option<String>,
    type_id: Option<String>,
    expected: Option<TypeSchema>,
}

// SAFETY: the entry is read-only data of a loaded shared object and copies of it; its functions may be
// called from any thread by the rules of update.h.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Plugin {
    /// Loads a shared object, with all symbols it needs resolved at once.
    ///
    /// Loading runs code of the file, and calling its updates does: it is trusted as a program trusts
    /// the libraries it is linked with.
    ///
    /// # Errors
    /// [`PluginError`] if it does not load, or what it exports is not as `update.h` says.
    pub fn load(path: &Path) -> Result<Self, PluginError> {
        let file = path.display().to_string();
        let library = open_library(path)?;
        // SAFETY: a plug-in's function of this name is of this type: update.h declares it.
        let symbol = unsafe { library.get::<GetPlugin>(SYMBOL.to_bytes_with_nul()) };
        let function = *symbol.map_err(|_| PluginError::NoSymbol { file: file.clone() })?;
        // SAFETY: as above; it returns a table that stays as long as the library is loaded.
        let table = unsafe { function() };
        // It stays loaded until the process ends: updates hold pointers into it, and what its threads
        // and destructors still want to run is not for us to know.
        std::mem::forget(library);
        let malformed = |update: &str, reason: &str| PluginError::Malformed {
            file: file.clone(),
            update: update.to_string(),
            reason: reason.to_string(),
        };
        // SAFETY: NULL, or a table by the contract of the function; it says its size.
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
            // SAFETY: the table has this many pointers, each to an update that says its size.
            let raw = unsafe { sized(table.updates.add(index).read(), LEAST_UPDATE) };
            let raw = raw.ok_or_else(|| malformed(&number, "it is NULL, or too small"))?;
            let entry = Entry::new(raw);
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
        Ok(Self { file, entries })
    }

    /// The names of its updates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Makes the update of this name, or one of each without a name, with this argument.
    ///
    /// # Errors
    /// [`PluginError`] if there is none of this name, or it says that it cannot be made.
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
    let place = if path.components().count() == 1 {
        Path::new(".").join(path)
    } else {
        path.to_path_buf()
    };
    // SAFETY: the user named this file to be run as a part of this program.
    let library = unsafe { Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL) };
    library.map_err(|error| PluginError::NotLoaded {
        file: path.display().to_string(),
        reason: reason(&error),
    })
}

/// What the loader says, in one line and without the file's name, which the sentence has already.
fn reason(error: &libloading::Error) -> String {
    let said = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    said.replace('\n', " ")
}

/// A struct that begins with its size: what is there of it, the rest zero. `None` if it is NULL or
/// smaller than `least`.
///
/// # Safety
/// `raw` is NULL or points to as many bytes as its first four say. All bytes zero are a `T`.
unsafe fn sized<T>(raw: *const T, least: usize) -> Option<T> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: every such struct has its size first.
    let size = unsafe { raw.cast::<u32>().read() } as usize;
    if size < least {
        return None;
    }
    let mut copy = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both are at least this long, and zero bytes are a value.
    Some(unsafe {
        copy.as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(raw.cast(), size.min(size_of::<T>()));
        copy.assume_init()
    })
}

/// A string of a plug-in, `None` for NULL.
///
/// # Safety
/// `text` is NULL or a string that ends with a zero byte.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

impl Entry {
    /// The error is the update's name, if it has one, and what is wrong.
    fn new(raw: RawUpdate) -> Result<Self, (Option<String>, String)> {
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
                let fields = unsafe { fields(raw.fields, raw.field_count) };
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
        })
    }
}

/// The fields of a payload, in the order of their offsets.
///
/// # Safety
/// `raw` is NULL or has `count` entries whose strings end with a zero byte.
unsafe fn fields(raw: *const RawField, count: u32) -> Result<Vec<Field>, String> {
    if raw.is_null() {
        return Err("`fields` is NULL".to_string());
    }
    let mut fields = Vec::new();
    for index in 0..count as usize {
        // SAFETY: by contract.
        let (field, name, unit) = unsafe {
            let field = raw.add(index).read();
            (field, text(field.name), text(field.unit))
        };
        let name = name.unwrap_or_default();
        let kind = FieldKind::from_raw(field.kind, field.size).ok_or_else(|| {
            format!("field `{name}` has an unknown kind or the wrong size; use the OH_FIELD macros")
        })?;
        fields.push(Field {
            name,
            kind,
            offset: field.offset,
            unit: unit.unwrap_or_default(),
        });
    }
    fields.sort_by_key(|field| field.offset);
    Ok(fields)
}

/// The monitor as an update sees it, and what the update has told it.
#[repr(C)]
#[derive(Debug)]
struct Host {
    // First: an update's pointer to its host is one to this.
    raw: RawHost,
    failed: Option<String>,
    results: Results,
    // Who decides about reactions that the update asks for, and under which number.
    decider: Option<(Decider, UpdateIndex)>,
    // The time of the item of the call that is under way; `None` where it may not ask.
    at: Option<Timestamp>,
}

impl Host {
    fn new(application: *mut c_void) -> Box<Self> {
        Box::new(Self {
            raw: RawHost {
                size: size_of::<RawHost>() as u32,
                abi: ABI,
                fail,
                tell_u64,
                tell_i64,
                tell_f64,
                tell_text,
                tell_json,
                react,
                application,
            },
            failed: None,
            results: Results::default(),
            decider: None,
            at: None,
        })
    }
}

/// # Safety
/// `host` is the pointer that the update was called with, and `sentence` is NULL or a string.
unsafe extern "C" fn fail(host: *mut RawHost, sentence: *const c_char) {
    // SAFETY: by contract; a host begins with its raw part, and nobody else uses it during a call.
    unsafe { (*host.cast::<Host>()).failed = text(sentence) };
}

/// # Safety
/// As for [`fail`]; `key` is NULL or a string.
unsafe fn tell(host: *mut RawHost, key: *const c_char, told: Told) {
    // SAFETY: as for `fail`.
    if let Some(key) = unsafe { text(key) } {
        // SAFETY: as above.
        unsafe { (*host.cast::<Host>()).results.tell(&key, told) };
    }
}

unsafe extern "C" fn tell_u64(host: *mut RawHost, key: *const c_char, value: u64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, Told::Unsigned(value)) };
}

unsafe extern "C" fn tell_i64(host: *mut RawHost, key: *const c_char, value: i64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, Told::Signed(value)) };
}

unsafe extern "C" fn tell_f64(host: *mut RawHost, key: *const c_char, value: f64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, Told::Float(value)) };
}

unsafe extern "C" fn tell_text(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, Told::Text(text(value).unwrap_or_default())) };
}

unsafe extern "C" fn tell_json(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, Told::Json(text(value).unwrap_or_default())) };
}

/// # Safety
/// As for [`fail`].
unsafe extern "C" fn react(host: *mut RawHost, code: u32, value: i64) {
    // SAFETY: as for `fail`.
    let host = unsafe { &mut *host.cast::<Host>() };
    if let (Some(at), Some((decider, update))) = (host.at, &mut host.decider) {
        let update = *update;
        let asked = Occurrence::Asked {
            update,
            code,
            value,
        };
        decider.occurred(at, &asked);
    }
}

/// An update of a plug-in.
///
/// If one of its functions fails it is called no more; [`Update::failure`] has the sentence.
pub struct PluginUpdate {
    entry: Arc<Entry>,
    own: *mut c_void,
    host: Box<Host>,
    // As the plug-in sees them. Boxed: their addresses stay.
    streams: HashMap<StreamId, Box<Stream>, BuildHasherDefault<Spread>>,
    // A payload that does not lie aligned.
    aligned: Vec<u64>,
    failure: Option<String>,
}

// SAFETY: update.h demands that the functions of an update may be called from any one thread at a
// time. All pointers in it are its own or into the loaded library.
unsafe impl Send for PluginUpdate {}

/// A stream as a plug-in sees it, and what the pointers point to.
struct Stream {
    raw: RawStream,
    is_wanted: bool,
    _texts: Vec<CString>,
    _fields: Vec<RawField>,
}

impl Stream {
    fn new(descriptor: &StreamDescriptor, is_wanted: bool) -> Box<Self> {
        let mut texts = Vec::new();
        let mut text = |text: &str| {
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            // What a CString points to stays where it is when the CString is moved.
            let pointer = text.as_ptr();
            texts.push(text);
            pointer
        };
        let (sensor, instance) = (text(&descriptor.sensor), text(&descriptor.instance));
        let (label, type_id) = (text(&descriptor.label()), text(descriptor.schema.id()));
        let names_writers = names_writers(descriptor);
        let (skipped, lead) = if names_writers { (2, 8) } else { (0, 0) };
        let mut fields = Vec::new();
        for field in descriptor.schema.fields().iter().skip(skipped) {
            fields.push(RawField {
                name: text(&field.name),
                kind: field.kind.as_raw(),
                offset: field.offset - lead,
                size: field.kind.size(),
                unit: text(&field.unit),
            });
        }
        let (origin, pid, cpu) = match &descriptor.origin {
            Origin::Program(task) => (1, task.pid, 0),
            Origin::Kernel { cpu } => (2, 0, *cpu),
            Origin::Clerk => (3, 0, 0),
        };
        Box::new(Self {
            raw: RawStream {
                size: size_of::<RawStream>() as u32,
                id: descriptor.id.as_raw(),
                sensor,
                instance,
                label,
                type_id,
                fields: fields.as_ptr(),
                field_count: fields.len() as u32,
                payload_size: descriptor.schema.size() - lead,
                origin,
                pid,
                cpu,
                names_writers: names_writers.into(),
            },
            is_wanted,
            _texts: texts,
            _fields: fields,
        })
    }
}

fn names_writers(descriptor: &StreamDescriptor) -> bool {
    let first = descriptor.schema.fields().first();
    first.is_some_and(|field| field.name == WRITER_TID)
}

impl PluginUpdate {
    /// An update of this very program, which drives a monitor as a library: `oh_monitor_add`.
    ///
    /// # Errors
    /// A sentence: it is not as `update.h` says, or it says that it cannot be made.
    ///
    /// # Safety
    /// `update` is NULL or points to an `oh_update` of `update.h`, which says its own size, whose strings
    /// and fields are readable during the call, and whose functions and `application` may be used for as
    /// long as this lives, by any one thread at a time.
    pub unsafe fn in_process(
        update: *const c_void,
        argument: &str,
        application: *mut c_void,
    ) -> Result<Self, String> {
        // SAFETY: by contract.
        let raw = unsafe { sized::<RawUpdate>(update.cast(), LEAST_UPDATE) };
        let raw = raw.ok_or_else(|| "the update is NULL, or too small".to_string())?;
        let entry = Entry::new(raw).map_err(|(name, reason)| match name {
            Some(name) => format!("update `{name}`: {reason}"),
            None => format!("the update: {reason}"),
        })?;
        let name = entry.name.clone();
        Self::create_for(Arc::new(entry), argument, application)
            .map_err(|reason| format!("update `{name}` cannot be created: {reason}"))
    }

    fn create(entry: Arc<Entry>, argument: &str) -> Result<Self, String> {
        Self::create_for(entry, argument, ptr::null_mut())
    }

    fn create_for(
        entry: Arc<Entry>,
        argument: &str,
        application: *mut c_void,
    ) -> Result<Self, String> {
        let Ok(argument) = CString::new(argument) else {
            return Err("its argument has a zero byte".to_string());
        };
        let mut host = Host::new(application);
        let Some(create) = entry.raw.create else {
            return Err("`create` is missing".to_string());
        };
        // SAFETY: a function of the plug-in, called as update.h says.
        let own = unsafe { create(host_pointer(&mut host), argument.as_ptr()) };
        if own.is_null() {
            let said = host.failed.take();
            return Err(said.unwrap_or_else(|| "`create` returned NULL".to_string()));
        }
        Ok(Self {
            entry,
            own,
            host,
            streams: HashMap::default(),
            // As large as a payload can be.
            aligned: vec![0; 512],
            failure: None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Which sensors it wants, as a pattern `TASK/SENSOR#INSTANCE`; `None` is all of programs.
    #[must_use]
    pub fn sensors(&self) -> Option<&str> {
        self.entry.sensors.as_deref()
    }

    /// What it does about missed elements.
    #[must_use]
    pub fn missed_policy(&self) -> MissedPolicy {
        match self.entry.raw.missed {
            MISSED_STOP => MissedPolicy::Stop,
            _ => MissedPolicy::Continue,
        }
    }

    /// Has this decider called when the update asks for reactions, as the one of this number.
    pub fn reacting(&mut self, decider: Decider, number: UpdateIndex) {
        self.host.decider = Some((decider, number));
    }

    /// What it has to tell. A failed update tells what it can.
    pub fn report(&mut self) -> Results {
        if let Some(report) = self.entry.raw.report {
            // SAFETY: a function of the plug-in, called as update.h says; `own` came from create.
            let code = unsafe { report(self.own, host_pointer(&mut self.host)) };
            self.note("report", code);
        }
        std::mem::take(&mut self.host.results)
    }

    /// Remembers the failure of a function.
    #[inline(always)]
    fn note(&mut self, function: &str, code: c_int) {
        if code != 0 {
            self.fail(function, code);
        }
    }

    #[cold]
    fn fail(&mut self, function: &str, code: c_int) {
        let said = self.host.failed.take();
        let said = said.unwrap_or_else(|| format!("it returned {code}"));
        // The first failure says most; `report` may follow it.
        self.failure
            .get_or_insert_with(|| format!("`{function}` failed: {said}"));
    }

    /// The stream as the plug-in sees it; `None` if it is not called for this one.
    #[inline]
    fn stream(&mut self, descriptor: &StreamDescriptor) -> Option<*const RawStream> {
        if self.failure.is_some() {
            return None;
        }
        if !self.streams.contains_key(&descriptor.id) {
            self.meet(descriptor);
        }
        let stream = self.streams.get(&descriptor.id)?;
        stream.is_wanted.then_some(&raw const stream.raw)
    }

    #[cold]
    fn meet(&mut self, descriptor: &StreamDescriptor) {
        let is_wanted = self.refuses(descriptor).is_none();
        let stream = Stream::new(descriptor, is_wanted);
        let pointer = &raw const stream.raw;
        self.streams.insert(descriptor.id, stream);
        if let Some(open) = self.entry.raw.open.filter(|_| is_wanted) {
            // SAFETY: a function of the plug-in, called as update.h says: the stream is kept in its box
            // until the update is gone.
            let code = unsafe { open(self.own, host_pointer(&mut self.host), pointer) };
            self.note("open", code);
        }
    }
}

fn host_pointer(host: &mut Host) -> *mut RawHost {
    ptr::from_mut(host).cast()
}

/// An element in place as a plug-in sees it, and what it is behind that.
#[repr(C)]
struct InPlace<'a> {
    // First: a plug-in's pointer to its element is one to this.
    raw: RawInPlace,
    element: &'a ElementInPlace<'a>,
    // Bytes that name the writer, which the plug-in does not take for payload.
    lead: usize,
}

/// # Safety
/// `raw` is the pointer that `prepare` was called with, during the call; `to` has room for `bytes`.
unsafe extern "C" fn load(raw: *const RawInPlace, offset: u32, bytes: u32, to: *mut c_void) {
    // SAFETY: by contract. The bytes are written before they are a slice.
    let (this, to) = unsafe {
        let to = to.cast::<u8>();
        to.write_bytes(0, bytes as usize);
        let to = std::slice::from_raw_parts_mut(to, bytes as usize);
        (&*raw.cast::<InPlace<'_>>(), to)
    };
    this.element.load(this.lead + offset as usize, to);
}

impl PluginUpdate {
    /// Whether it has what an evaluation in place needs.
    fn prepares(&self) -> bool {
        self.entry.raw.prepare.is_some() && self.entry.raw.commit.is_some()
    }
}

impl Update for PluginUpdate {
    /// What its pattern of sensors names and is not of its type.
    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        let fits = match (&self.entry.expected, &self.entry.type_id) {
            (Some(expected), _) => is_of_type(stream, expected),
            (None, Some(type_id)) => stream.schema.id() == type_id,
            (None, None) => true,
        };
        if fits {
            return None;
        }
        let evaluated = match (&self.entry.expected, &self.entry.type_id) {
            (Some(expected), _) => crate::updates::describe(expected),
            (None, type_id) => format!("type `{}`", type_id.as_deref().unwrap_or_default()),
        };
        Some(format!(
            "update `{}` evaluates {evaluated}, and {} writes {}: nothing of this sensor is evaluated by it",
            self.entry.name,
            stream.label(),
            crate::updates::describe(&stream.schema)
        ))
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        let _ = self.stream(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let (Some(stream), Some(function)) = (self.stream(element.stream), self.entry.raw.element)
        else {
            return;
        };
        let mut payload = element.payload;
        let (mut writer_tid, mut writer_flags) = (0, 0);
        if names_writers(element.stream) {
            let word = |at: usize| {
                let bytes = payload.get(at..at + 4).and_then(|it| it.try_into().ok());
                bytes.map_or(0, u32::from_ne_bytes)
            };
            (writer_tid, writer_flags) = (word(0), word(4));
            payload = payload.get(8..).unwrap_or_default();
        }
        if payload.as_ptr().align_offset(8) != 0 {
            // In a recorded trace a payload lies anywhere.
            let aligned = &mut self.aligned.as_mut_bytes()[..payload.len()];
            aligned.copy_from_slice(payload);
            payload = aligned;
        }
        let raw = RawElement {
            stream,
            sequence: element.sequence,
            time_ns: element.time.as_monotonic_ns(),
            payload: payload.as_ptr().cast(),
            writer_tid,
            writer_flags,
        };
        self.host.at = Some(element.time);
        // SAFETY: a function of the plug-in, called as update.h says; everything lives until it
        // returns.
        let code = unsafe { function(self.own, host_pointer(&mut self.host), &raw const raw) };
        self.note("element", code);
    }

    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        self.prepares() && self.refuses(stream).is_none()
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let key = element.key();
        let (Some(stream), Some(function)) = (self.stream(key.stream), self.entry.raw.prepare)
        else {
            return false;
        };
        let (mut writer_tid, mut writer_flags, mut lead) = ([0; 4], [0; 4], 0);
        if names_writers(key.stream) {
            element.load(0, &mut writer_tid);
            element.load(4, &mut writer_flags);
            lead = 8;
        }
        let lent = InPlace {
            raw: RawInPlace {
                size: size_of::<RawInPlace>() as u32,
                reserved: 0,
                stream,
                sequence: key.sequence,
                time_ns: key.time.as_monotonic_ns(),
                writer_tid: u32::from_ne_bytes(writer_tid),
                writer_flags: u32::from_ne_bytes(writer_flags),
                load,
            },
            element,
            lead,
        };
        let mut prepared: c_int = 1;
        self.host.at = None;
        // SAFETY: as for an element. The pointer is to the whole, of which `load` uses the rest.
        let code = unsafe {
            let lent = (&raw const lent).cast::<RawInPlace>();
            function(
                self.own,
                host_pointer(&mut self.host),
                lent,
                &raw mut prepared,
            )
        };
        self.note("prepare", code);
        code == 0 && prepared != 0
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let (Some(stream), Some(function)) = (self.stream(element.stream), self.entry.raw.commit)
        else {
            return;
        };
        let raw = RawKey {
            stream,
            sequence: element.sequence,
            time_ns: element.time.as_monotonic_ns(),
        };
        self.host.at = valid.then_some(element.time);
        // SAFETY: as for an element.
        let code = unsafe {
            let host = host_pointer(&mut self.host);
            function(self.own, host, &raw const raw, valid.into())
        };
        self.note("commit", code);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let (Some(stream), Some(function)) = (self.stream(stream), self.entry.raw.gap) else {
            return;
        };
        let raw = RawGap {
            stream,
            first: gap.first,
            missed: gap.missed,
            from_ns: gap.from.as_monotonic_ns(),
            to_ns: gap.to.as_monotonic_ns(),
            cause: gap.cause as u32 + 1,
            reserved: 0,
        };
        self.host.at = Some(gap.to);
        // SAFETY: as for an element.
        let code = unsafe { function(self.own, host_pointer(&mut self.host), &raw const raw) };
        self.note("gap", code);
    }

    fn advance(&mut self, now: Timestamp) {
        let Some(function) = self.entry.raw.advance.filter(|_| self.failure.is_none()) else {
            return;
        };
        self.host.at = Some(now);
        // SAFETY: as for an element.
        let code = unsafe {
            function(
                self.own,
                host_pointer(&mut self.host),
                now.as_monotonic_ns(),
            )
        };
        self.note("advance", code);
    }
}

impl Drop for PluginUpdate {
    fn drop(&mut self) {
        if let Some(destroy) = self.entry.raw.destroy {
            // SAFETY: `own` came from create, and is used no more.
            unsafe { destroy(self.own) };
        }
    }
}

impl std::fmt::Debug for PluginUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginUpdate")
            .field("name", &self.entry.name)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
