// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates that a shared object, or this program, exports.

use std::collections::HashMap;
use std::ffi::{c_int, c_void, CString};
use std::hash::BuildHasherDefault;
use std::ptr;
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, Gap, StreamDescriptor, StreamId, Timestamp,
    WRITER_TID,
};
use overhear_ffi::CStream;
use zerocopy::IntoBytes as _;

use super::abi::{
    RawElement, RawGap, RawHost, RawInPlace, RawKey, RawStream, RawUpdate, LEAST_UPDATE,
    MISSED_STOP,
};
use super::footprint::allocated_in;
use super::host::Host;
use super::library::{sized, Entry};
use super::results::Results;
use super::tls::ThreadLocals;
use crate::executor::UpdateIndex;
use crate::merge::StreamIdHasher;
use crate::reaction::Decider;
use crate::updates::{is_of_type, MissedPolicy};

/// An update of a plug-in.
///
/// If one of its functions fails, it is not called any more; [`Analysis::failure`] has the reason.
pub struct PluginUpdate {
    entry: Arc<Entry>,
    own: *mut c_void,
    host: Box<Host>,
    // The streams in the plug-in's format. Boxed, so that their addresses stay.
    streams: HashMap<StreamId, Box<Stream>, BuildHasherDefault<StreamIdHasher>>,
    // Buffer for a payload that is not aligned.
    aligned: Vec<u64>,
    failure: Option<String>,
    // What it has taken of the allocator's memory, and whether that is still measured: not once it
    // is warm.
    allocated: i64,
    is_warm: bool,
}

// SAFETY: update.h demands that the functions of an update may be called from any one thread at a
// time. All pointers in it are its own or into the loaded library.
unsafe impl Send for PluginUpdate {}

/// A stream as a plug-in sees it.
struct Stream {
    c: CStream,
    is_wanted: bool,
}

impl Stream {
    fn new(descriptor: &StreamDescriptor, is_wanted: bool) -> Box<Self> {
        let (lead_fields, lead_bytes) = if names_writers(descriptor) {
            (2, 8)
        } else {
            (0, 0)
        };
        Box::new(Self {
            c: CStream::new(descriptor, lead_fields, lead_bytes),
            is_wanted,
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
    /// A message: it is not as `update.h` specifies, or its `create` fails.
    ///
    /// # Safety
    /// `update` is NULL or points to an `oh_update` of `update.h`, which states its own size, whose
    /// strings and fields are readable during the call, and whose functions and `application` may
    /// be used for as long as this lives, by any one thread at a time.
    pub unsafe fn in_process(
        update: *const c_void,
        argument: &str,
        application: *mut c_void,
    ) -> Result<Self, String> {
        // SAFETY: by contract.
        let raw = unsafe { sized::<RawUpdate>(update.cast(), LEAST_UPDATE) };
        let raw = raw.ok_or_else(|| "the update is NULL, or too small".to_string())?;
        // Those of this program have their place from the thread's begin on.
        let entry = Entry::new(raw, ThreadLocals::none());
        let entry = entry.map_err(|(name, reason)| match name {
            Some(name) => format!("update `{name}`: {reason}"),
            None => format!("the update: {reason}"),
        })?;
        let name = entry.name.clone();
        Self::create_for(Arc::new(entry), argument, application)
            .map_err(|reason| format!("update `{name}` cannot be created: {reason}"))
    }

    pub(super) fn create(entry: Arc<Entry>, argument: &str) -> Result<Self, String> {
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
        // SAFETY: a function of the plug-in, called as update.h specifies.
        let create = || unsafe { create(host_pointer(&mut host), argument.as_ptr()) };
        let (own, allocated) = allocated_in(create);
        if own.is_null() {
            let message = host.failed.take();
            return Err(message.unwrap_or_else(|| "`create` returned NULL".to_string()));
        }
        Ok(Self {
            entry,
            own,
            host,
            streams: HashMap::default(),
            // As large as a payload can be.
            aligned: vec![0; 512],
            failure: None,
            allocated,
            is_warm: false,
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

    /// Bytes that it has taken from the allocator when it was created, met streams, and was warmed
    /// up.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        u64::try_from(self.allocated).unwrap_or(0)
    }

    /// Destroys it, and returns the number of bytes that it gave back to the allocator: what it had
    /// in the end, if it forgets nothing.
    #[must_use]
    pub fn destroy(self) -> u64 {
        let ((), grown) = allocated_in(|| drop(self));
        u64::try_from(-grown).unwrap_or(0)
    }

    /// Sets the decider that is called when the update requests reactions, and its index there.
    pub fn reacting(&mut self, decider: Decider, number: UpdateIndex) {
        self.host.decider = Some((decider, number));
    }

    /// Its results. A failed update returns those that it can.
    pub fn report(&mut self) -> Results {
        if let Some(report) = self.entry.raw.report {
            // SAFETY: a function of the plug-in, called as update.h specifies; `own` came from
            // create.
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
        let message = self.host.failed.take();
        let message = message.unwrap_or_else(|| format!("it returned {code}"));
        // The first failure is kept; that of `report` may follow from it.
        self.failure
            .get_or_insert_with(|| format!("`{function}` failed: {message}"));
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
        stream.is_wanted.then(|| ptr::from_ref(stream.c.raw()))
    }

    #[cold]
    fn meet(&mut self, descriptor: &StreamDescriptor) {
        match self.is_warm {
            true => self.open_stream(descriptor),
            false => self.measured(|update| update.open_stream(descriptor)),
        }
    }

    /// Calls, and counts what is allocated meanwhile.
    fn measured(&mut self, call: impl FnOnce(&mut Self)) {
        let ((), grown) = allocated_in(|| call(self));
        self.allocated = self.allocated.saturating_add(grown);
    }

    fn open_stream(&mut self, descriptor: &StreamDescriptor) {
        let is_wanted = self.refuses(descriptor).is_none();
        let stream = Stream::new(descriptor, is_wanted);
        let pointer = ptr::from_ref(stream.c.raw());
        self.streams.insert(descriptor.id, stream);
        if let Some(open) = self.entry.raw.open.filter(|_| is_wanted) {
            // SAFETY: a function of the plug-in, called as update.h specifies: the stream is kept
            // in its box until the update is gone.
            let code = unsafe { open(self.own, host_pointer(&mut self.host), pointer) };
            self.note("open", code);
        }
    }
}

impl PluginUpdate {
    fn become_warm(&mut self) {
        self.entry.locals.touch();
        let Some(function) = self.entry.raw.warm_up.filter(|_| self.failure.is_none()) else {
            return;
        };
        self.host.at = None;
        // SAFETY: a function of the plug-in, called as update.h specifies; `own` came from create.
        let code = unsafe { function(self.own, host_pointer(&mut self.host)) };
        self.note("warm_up", code);
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

impl Analysis for PluginUpdate {
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

    fn warm_up(&mut self) {
        self.measured(Self::become_warm);
        // From now on nothing is allocated, and the allocator's account is not read.
        self.is_warm = true;
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
        // SAFETY: a function of the plug-in, called as update.h specifies; everything lives until
        // it returns.
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
            cause: gap.cause.number(),
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
