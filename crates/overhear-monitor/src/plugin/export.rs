// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plug-in's half of the border, for plug-ins in Rust.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::{Arc, OnceLock};

use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, Gap, GapCause, InPlaceMemory, Nanos, Origin,
    StreamDescriptor, StreamId, Task, Timestamp, TypeSchema,
};
use overhear_ffi::{c_text, read_fields, text};

use super::abi::{
    RawElement, RawField, RawGap, RawHost, RawInPlace, RawKey, RawPlugin, RawStream, RawUpdate,
    ABI, MISSED_STOP,
};
use super::results::{ResultValue, Results};
use crate::updates::{message_of, MissedPolicy};

/// An update that a plug-in exports.
///
/// What it gets to see is what `update.h` lets through: the payloads are the sensors' own, without
/// the fields that name the writer; rates, lanes and capacities are not known; a program's start is
/// not, either.
pub trait Exported: Analysis + Sized + 'static {
    /// Names it in `--update FILE.so:NAME` and in the report.
    const NAME: &'static str;
    /// Which sensors: `TASK/SENSOR#INSTANCE` with `*`, `?`, `[abc]`, `{a,b}`; all of programs if it
    /// is empty. `kernel/HOOK` selects streams of the kernel, `sampler/SENSOR` those of a sampler.
    const SENSORS: &'static str = "";
    /// What it does when elements of its sensors were missed.
    const MISSED: MissedPolicy = MissedPolicy::Continue;

    /// Whether it evaluates large elements in place: [`Analysis::reads_in_place`] is not called
    /// across this border.
    const READS_IN_PLACE: bool = false;

    /// The only type of elements that it evaluates; `None` for any.
    #[must_use]
    fn expected() -> Option<TypeSchema> {
        None
    }

    /// Makes one. The argument is what stands behind `=` in `--update FILE.so:NAME=ARGUMENT`.
    ///
    /// # Errors
    /// A message for the user, if the argument does not suit it.
    fn create(argument: &str) -> Result<Self, String>;

    /// Sets the results. `overhear top` calls it once per refresh.
    fn report(&self, results: &mut Results) {
        let _ = results;
    }
}

/// An entry of a plug-in's table; made by [`entry`].
#[derive(Debug)]
pub struct ExportedEntry(RawUpdate);

/// The entry of this update.
#[must_use]
pub fn entry<U: Exported>() -> ExportedEntry {
    // Tables of a plug-in live as long as the process: it stays loaded.
    let leak = |text: &str| {
        CString::new(text)
            .unwrap_or_default()
            .into_raw()
            .cast_const()
    };
    let mut raw = RawUpdate {
        size: size_of::<RawUpdate>() as u32,
        missed: match U::MISSED {
            MissedPolicy::Continue => 0,
            MissedPolicy::Stop => MISSED_STOP,
        },
        name: leak(U::NAME),
        sensors: match U::SENSORS {
            "" => ptr::null(),
            sensors => leak(sensors),
        },
        type_id: ptr::null(),
        fields: ptr::null(),
        field_count: 0,
        payload_size: 0,
        create: Some(create::<U>),
        open: Some(open::<U>),
        element: Some(element::<U>),
        gap: Some(gap::<U>),
        advance: Some(advance::<U>),
        report: Some(report::<U>),
        destroy: Some(destroy::<U>),
        prepare: None,
        commit: None,
        warm_up: Some(warm_up::<U>),
    };
    if U::READS_IN_PLACE {
        raw.prepare = Some(prepare::<U>);
        raw.commit = Some(commit::<U>);
    }
    if let Some(schema) = U::expected() {
        let fields = schema.fields().iter().map(|field| RawField {
            name: leak(&field.name),
            kind: field.kind.as_raw(),
            offset: field.offset,
            size: field.kind.size(),
            unit: leak(&field.unit),
        });
        let fields: &[RawField] = Vec::leak(fields.collect());
        raw.type_id = leak(schema.id());
        raw.fields = fields.as_ptr();
        raw.field_count = fields.len() as u32;
        raw.payload_size = schema.size();
    }
    ExportedEntry(raw)
}

/// The table of a plug-in; [`export_updates!`](crate::export_updates) calls this.
#[must_use]
pub fn table(entries: impl FnOnce() -> Vec<ExportedEntry>) -> *const RawPlugin {
    /// Pointers to leaked memory that is never written.
    struct Table(*const RawPlugin);
    // SAFETY: as the type documents.
    unsafe impl Send for Table {}
    // SAFETY: as the type documents.
    unsafe impl Sync for Table {}
    static TABLE: OnceLock<Table> = OnceLock::new();
    let make = || {
        let entries = entries().into_iter();
        let updates = entries.map(|entry| ptr::from_ref(Box::leak(Box::new(entry.0))));
        let updates: &[*const RawUpdate] = Vec::leak(updates.collect());
        Table(Box::leak(Box::new(RawPlugin {
            size: size_of::<RawPlugin>() as u32,
            abi: ABI,
            updates: updates.as_ptr(),
            update_count: updates.len() as u32,
            reserved: 0,
        })))
    };
    // After a panic in the construction of a constant or a schema the plug-in has no table.
    catch_unwind(AssertUnwindSafe(|| TABLE.get_or_init(make).0)).unwrap_or(ptr::null())
}

/// Makes a shared object a plug-in with these updates, each [`Exported`](crate::plugin::Exported).
/// Once in each.
#[macro_export]
macro_rules! export_updates {
    ($($update:ty),+ $(,)?) => {
        #[doc(hidden)]
        #[no_mangle]
        pub extern "C" fn oh_plugin_v1() -> *const $crate::plugin::RawPlugin {
            $crate::plugin::table(|| vec![$($crate::plugin::entry::<$update>()),+])
        }
    };
}

/// An update and the streams that it has opened.
struct Instance<U> {
    update: U,
    streams: Vec<StreamDescriptor>,
    // Index in `streams` by stream number, and the index of the last call.
    index_of: HashMap<u32, usize>,
    last: usize,
}

impl<U> Instance<U> {
    /// Makes the stream the last one, and returns it with the update.
    fn stream(&mut self, raw: &RawStream) -> (&mut U, &StreamDescriptor) {
        let is_it = |stream: &StreamDescriptor| stream.id.as_raw() == raw.id;
        if !self.streams.get(self.last).is_some_and(is_it) {
            self.last = match self.index_of.get(&raw.id) {
                Some(&index) => index,
                None => {
                    // SAFETY: a stream of the host, with strings and fields as update.h specifies.
                    self.streams.push(unsafe { descriptor(raw) });
                    self.index_of.insert(raw.id, self.streams.len() - 1);
                    self.streams.len() - 1
                }
            };
        }
        (&mut self.update, &self.streams[self.last])
    }
}

/// # Safety
/// `raw` is a stream of a host.
unsafe fn descriptor(raw: &RawStream) -> StreamDescriptor {
    // SAFETY: by contract, also below.
    let string = |string: *const c_char| unsafe { text(string) }.unwrap_or_default();
    let (sensor, instance) = (string(raw.sensor), string(raw.instance));
    let (type_id, label) = (string(raw.type_id), string(raw.label));
    // SAFETY: as above.
    let fields = unsafe { read_fields(raw.fields, raw.field_count) };
    let schema = fields.and_then(|fields| {
        TypeSchema::new(type_id, raw.payload_size, fields).map_err(|error| error.to_string())
    });
    StreamDescriptor {
        id: StreamId::from_raw(raw.id),
        origin: match raw.origin {
            1 => Origin::Program(Task {
                pid: raw.pid,
                start: Timestamp::ZERO,
                // The label is comm(pid)/sensor#instance.
                comm: label
                    .split_once(&format!("({})/", raw.pid))
                    .map_or_else(String::new, |(comm, _)| comm.to_string()),
            }),
            2 => Origin::Kernel { cpu: raw.cpu },
            _ => Origin::Sampler,
        },
        sensor,
        instance,
        lane: None,
        schema: Arc::new(schema.unwrap_or_else(|error| {
            // The host has built it from a schema.
            unreachable!("a stream without a sound type: {error}")
        })),
        rate: None,
        capacity: 0,
    }
}

/// Passes the reason of a failed call to the host.
fn fail(host: *mut RawHost, message: &str) {
    let message = c_text(message);
    // SAFETY: the host's own function, with its own pointer.
    unsafe { ((*host).fail)(host, message.as_ptr()) };
}

thread_local! {
    /// The host of the call that is under way in this thread.
    static HOST: Cell<*mut RawHost> = const { Cell::new(ptr::null_mut()) };
}

/// Requests the reactions of `overhear.toml` that are bound to the update of a plug-in that is just
/// being called: `oh_react`. What `code` and `value` mean is between the update and its user.
/// Wait-free. Returns whether there is a monitor for the request: not outside a call, nor under an
/// older one.
#[allow(clippy::must_use_candidate, reason = "most updates do not care")]
pub fn react(code: u32, value: i64) -> bool {
    let host = HOST.get();
    // SAFETY: not null only during a call, and then the host's own pointer; a host states its size
    // first.
    let has_all = !host.is_null() && unsafe { (*host).size } as usize >= size_of::<RawHost>();
    if has_all {
        // SAFETY: as above, and the host is large enough to have the function.
        unsafe { ((*host).react)(host, code, value) };
    }
    has_all
}

/// Calls the update; a panic is a failure, and so is [`Analysis::failure`].
///
/// # Safety
/// `own` came from [`create`] for the same type, and no other code uses it.
unsafe fn call<U: Analysis>(
    own: *mut c_void,
    host: *mut RawHost,
    call: impl FnOnce(&mut Instance<U>),
) -> c_int {
    // SAFETY: by contract.
    let instance = unsafe { &mut *own.cast::<Instance<U>>() };
    HOST.set(host);
    let called = catch_unwind(AssertUnwindSafe(|| {
        call(instance);
        instance.update.failure().map(ToString::to_string)
    }));
    HOST.set(ptr::null_mut());
    match called.unwrap_or_else(|panic| Some(message_of(&*panic))) {
        None => 0,
        Some(message) => {
            fail(host, &message);
            1
        }
    }
}

unsafe extern "C" fn create<U: Exported>(
    host: *mut RawHost,
    argument: *const c_char,
) -> *mut c_void {
    // SAFETY: a string of the host.
    let argument = unsafe { text(argument) }.unwrap_or_default();
    let made = catch_unwind(|| U::create(&argument));
    match made.unwrap_or_else(|panic| Err(message_of(&*panic))) {
        Ok(update) => Box::into_raw(Box::new(Instance {
            update,
            streams: Vec::new(),
            index_of: HashMap::new(),
            last: 0,
        }))
        .cast(),
        Err(message) => {
            fail(host, &message);
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn open<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    stream: *const RawStream,
) -> c_int {
    let opened = |instance: &mut Instance<U>| {
        // SAFETY: a stream of the host.
        let (update, stream) = instance.stream(unsafe { &*stream });
        update.open(stream);
    };
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, opened) }
}

unsafe extern "C" fn warm_up<U: Exported>(own: *mut c_void, host: *mut RawHost) -> c_int {
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, |instance| instance.update.warm_up()) }
}

unsafe extern "C" fn element<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    raw: *const RawElement,
) -> c_int {
    let evaluated = |instance: &mut Instance<U>| {
        // SAFETY: an element of the host, whose payload has the size of its stream.
        let (raw, stream, payload) = unsafe {
            let raw = &*raw;
            let stream = &*raw.stream;
            let payload = raw.payload.cast::<u8>();
            let payload = std::slice::from_raw_parts(payload, stream.payload_size as usize);
            (raw, stream, payload)
        };
        let (update, stream) = instance.stream(stream);
        update.element(&ElementView {
            stream,
            sequence: raw.sequence,
            time: Timestamp::from_monotonic_ns(raw.time_ns),
            payload,
        });
    };
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, evaluated) }
}

/// The payload of an element in place, by the functions of the host.
struct HostInPlace(*const RawInPlace);

// SAFETY: made, used and dropped within one call of the host, in its thread.
unsafe impl Send for HostInPlace {}
// SAFETY: as above.
unsafe impl Sync for HostInPlace {}

impl std::fmt::Debug for HostInPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostInPlace")
    }
}

impl InPlaceMemory for HostInPlace {
    fn load(&self, _: u64, first: usize, to: &mut [u64]) {
        let offset = u32::try_from(first.saturating_mul(8)).ok();
        let bytes = u32::try_from(size_of_val(to)).ok();
        let (Some(offset), Some(bytes)) = (offset, bytes) else {
            return to.fill(0);
        };
        // SAFETY: an element of the host, with its own function; there is room for that many bytes.
        unsafe { ((*self.0).load)(self.0, offset, bytes, to.as_mut_ptr().cast()) };
    }

    /// The host looks, behind the call.
    fn is_whole(&self, _: u64) -> bool {
        true
    }
}

unsafe extern "C" fn prepare<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    raw: *const RawInPlace,
    prepared: *mut c_int,
) -> c_int {
    let mut ready = false;
    let prepares = |instance: &mut Instance<U>| {
        // SAFETY: an element of the host, with its stream.
        let (element, stream) = unsafe { (&*raw, &*(*raw).stream) };
        let (update, stream) = instance.stream(stream);
        let key = ElementKey {
            stream,
            sequence: element.sequence,
            time: Timestamp::from_monotonic_ns(element.time_ns),
        };
        let payload = HostInPlace(raw);
        ready = update.prepare(&ElementInPlace::new(key, &payload));
    };
    // SAFETY: called by the host as update.h specifies.
    let code = unsafe { call::<U>(own, host, prepares) };
    // SAFETY: the host's own place for it.
    unsafe { *prepared = ready.into() };
    code
}

unsafe extern "C" fn commit<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    raw: *const RawKey,
    valid: c_int,
) -> c_int {
    let ended = |instance: &mut Instance<U>| {
        // SAFETY: a key of the host, with its stream.
        let (key, stream) = unsafe { (&*raw, &*(*raw).stream) };
        let (update, stream) = instance.stream(stream);
        let key = ElementKey {
            stream,
            sequence: key.sequence,
            time: Timestamp::from_monotonic_ns(key.time_ns),
        };
        update.commit(&key, valid != 0);
    };
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, ended) }
}

unsafe extern "C" fn gap<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    raw: *const RawGap,
) -> c_int {
    let learned = |instance: &mut Instance<U>| {
        // SAFETY: a gap of the host, with its stream.
        let (raw, stream) = unsafe { (&*raw, &*(*raw).stream) };
        let (update, stream) = instance.stream(stream);
        let cause = GapCause::ALL.get((raw.cause as usize).wrapping_sub(1));
        let gap = Gap {
            stream: stream.id,
            first: raw.first,
            missed: raw.missed,
            from: Timestamp::from_monotonic_ns(raw.from_ns),
            to: Timestamp::from_monotonic_ns(raw.to_ns),
            // A cause of a newer host that this plug-in does not have.
            cause: cause.copied().unwrap_or(GapCause::Corrupt),
        };
        update.gap(stream, &gap);
    };
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, learned) }
}

unsafe extern "C" fn advance<U: Exported>(
    own: *mut c_void,
    host: *mut RawHost,
    now_ns: u64,
) -> c_int {
    let now = Timestamp::ZERO.plus(Nanos::from_ns(now_ns));
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, |instance| instance.update.advance(now)) }
}

unsafe extern "C" fn report<U: Exported>(own: *mut c_void, host: *mut RawHost) -> c_int {
    let write_results = |instance: &mut Instance<U>| {
        let mut results = Results::default();
        instance.update.report(&mut results);
        for (key, value) in results.iter() {
            let text = c_text;
            let key = text(key);
            // SAFETY: the host's own functions, with its own pointer and strings of ours.
            unsafe {
                let functions = &*host;
                match value {
                    ResultValue::Unsigned(value) => {
                        (functions.result_u64)(host, key.as_ptr(), *value)
                    }
                    ResultValue::Signed(value) => {
                        (functions.result_i64)(host, key.as_ptr(), *value)
                    }
                    ResultValue::Float(value) => (functions.result_f64)(host, key.as_ptr(), *value),
                    ResultValue::Text(value) => {
                        (functions.result_text)(host, key.as_ptr(), text(value).as_ptr());
                    }
                    ResultValue::Json(value) => {
                        (functions.result_json)(host, key.as_ptr(), text(value).as_ptr());
                    }
                }
            }
        }
    };
    // SAFETY: called by the host as update.h specifies.
    unsafe { call::<U>(own, host, write_results) }
}

unsafe extern "C" fn destroy<U: Exported>(own: *mut c_void) {
    // SAFETY: made by Box::into_raw in `create`; the host gives it back.
    let instance = unsafe { Box::from_raw(own.cast::<Instance<U>>()) };
    // A panic in a destructor cannot be reported.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(instance)));
}
