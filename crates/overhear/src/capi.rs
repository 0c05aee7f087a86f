// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cold half of `include/overhear/sensor.h`. The structs mirror that header; the assertions
//! below pin their sizes and offsets.

mod concurrent;
mod laned;
mod metric;
mod monitor;
mod results;
mod source;

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::mem::{offset_of, size_of, MaybeUninit};
use std::panic::{catch_unwind, AssertUnwindSafe};

use overhear_directory::client::SensorRequest;
use overhear_event::{Field, FieldKind, Nanos, Rate, TypeSchema};
use overhear_stream::Switch;

use crate::sensor::{OpenStream, SensorError};

/// `oh_sensor`: what the inline functions use. Lies in memory of the caller's or in [`Kept`].
#[repr(C)]
pub(crate) struct RawSensor {
    base: *mut u8,
    count: u64,
    mask: u64,
    stride: u32,
    payload_size: u32,
    clock_id: u32,
    reserved0: u32,
    switch: Switch,
    kept: *mut Kept,
    reserved1: u64,
}

/// What the library needs of a sensor.
#[repr(C, align(64))]
struct Kept {
    // Of a sensor for which the caller has no place.
    place: MaybeUninit<RawSensor>,
    stream: OpenStream,
}

const _: () = {
    assert!(offset_of!(RawSensor, base) == 0);
    assert!(offset_of!(RawSensor, count) == 8);
    assert!(offset_of!(RawSensor, mask) == 16);
    assert!(offset_of!(RawSensor, stride) == 24);
    assert!(offset_of!(RawSensor, payload_size) == 28);
    assert!(offset_of!(RawSensor, clock_id) == 32);
    assert!(offset_of!(RawSensor, switch) == 40);
    assert!(offset_of!(RawSensor, kept) == 48);
    assert!(size_of::<RawSensor>() == 64);
    assert!(offset_of!(Kept, place) == 0);
};

/// `oh_field`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawField {
    name: *const c_char,
    kind: u32,
    offset: u32,
    size: u32,
    unit: *const c_char,
}

/// `oh_sensor_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawOptions {
    id: *const c_char,
    instance: *const c_char,
    type_id: *const c_char,
    fields: *const RawField,
    field_count: u32,
    size: u32,
    period_ns: u64,
    distance_ns: u64,
    jitter_ns: u64,
    capacity: u64,
    lanes: u32,
    writers: u32,
}

/// What `oh_sensor_options` was in its first version.
const OPTIONS_V1_BYTES: usize = 72;

const _: () = {
    assert!(offset_of!(RawOptions, lanes) == OPTIONS_V1_BYTES);
    assert!(size_of::<RawOptions>() == 80);
};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

pub(crate) fn remember(sentence: &str) {
    // A thread that is being torn down has nowhere to remember it.
    let _ = LAST_ERROR.try_with(|last| {
        let text = CString::new(sentence.replace('\0', " ")).unwrap_or_default();
        *last.borrow_mut() = text;
    });
}

/// `oh_sensor_register_sized`.
///
/// # Safety
/// As the header says: `out` is writable; `options` points to `options_size` readable bytes whose
/// strings end with a zero byte and whose `fields` has `field_count` entries.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_sized(
    out: *mut *mut RawSensor,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let mut kept = std::ptr::null_mut();
    // SAFETY: the caller's contract is passed on; `kept` is writable, unless `out` is NULL, which is refused.
    let code = unsafe {
        let kept = if out.is_null() {
            std::ptr::null_mut()
        } else {
            &raw mut kept
        };
        register(kept, options, options_size, "oh_sensor_register", keep)
    };
    if !out.is_null() {
        // SAFETY: `out` is writable by contract; what was made is a `Kept`, which begins with its place.
        unsafe { out.write(Kept::begin_at(kept, kept.cast())) };
    }
    code
}

/// `oh_sensor_register_at_sized`.
///
/// # Safety
/// As the header says: `place` is writable; the rest as of [`oh_sensor_register_sized`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_at_sized(
    place: *mut RawSensor,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let name = "oh_sensor_register_at";
    if place.is_null() {
        return refuse(&format!(
            "{name}: `place` is NULL; pass the address of a sensor"
        ));
    }
    let mut kept = std::ptr::null_mut();
    // SAFETY: the caller's contract is passed on; `kept` and `place` are writable.
    unsafe {
        place.write_bytes(0, 1);
        let code = register(&raw mut kept, options, options_size, name, keep);
        let _ = Kept::begin_at(kept, place);
        code
    }
}

/// Opens the stream of a sensor of C or C++.
fn keep(options: &RawOptions) -> Result<Box<Kept>, Failure> {
    // SAFETY: the strings and fields are readable: `register` has them from its caller, who promised it.
    let request = unsafe { request(options) }?;
    let stream = OpenStream::open(request)?;
    remember(&stream.unheard);
    let place = MaybeUninit::uninit();
    Ok(Box::new(Kept { place, stream }))
}

/// Why a registration failed: the code, and the sentence for it.
pub(crate) struct Failure(pub(crate) c_int, pub(crate) String);

/// Calls; a failure is remembered and returned as a negative code. Nothing unwinds into C.
fn guard(name: &str, call: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => code,
        Ok(Err(Failure(code, sentence))) => {
            remember(&sentence);
            code
        }
        Err(_) => {
            remember(&format!(
                "{name} failed inside liboverhear; this is a bug of the library"
            ));
            -libc::EINVAL
        }
    }
}

/// A call that cannot be answered.
fn refuse(sentence: &str) -> c_int {
    remember(sentence);
    -libc::EINVAL
}

fn invalid(sentence: &str) -> Failure {
    Failure(-libc::EINVAL, sentence.to_string())
}

impl From<SensorError> for Failure {
    fn from(error: SensorError) -> Self {
        let code = match error {
            SensorError::Map(_) => -libc::ENOMEM,
            _ => -libc::EINVAL,
        };
        Self(code, error.to_string())
    }
}

/// Registers a sensor of any kind: `open` makes it.
///
/// # Safety
/// As [`oh_sensor_register_sized`].
pub(crate) unsafe fn register<S>(
    out: *mut *mut S,
    options: *const RawOptions,
    options_size: usize,
    name: &str,
    open: impl FnOnce(&RawOptions) -> Result<Box<S>, Failure>,
) -> c_int {
    if out.is_null() {
        remember(&format!(
            "{name}: `out` is NULL; pass the address of a pointer to a sensor"
        ));
        return -libc::EINVAL;
    }
    // SAFETY: `out` is writable by contract and not NULL.
    unsafe { out.write(std::ptr::null_mut()) };
    if options.is_null() || options_size < OPTIONS_V1_BYTES {
        remember(&format!(
            "{name}: `options` is NULL or too small; zero-initialise the struct"
        ));
        return -libc::EINVAL;
    }
    // Members are added at the end alone: what an older program does not have is zero, and what a
    // newer one has beyond is not known here.
    let mut known = MaybeUninit::<RawOptions>::zeroed();
    let options = unsafe {
        // SAFETY: both are at least this long; zero bytes are a value of every member.
        known
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(options.cast(), options_size.min(size_of::<RawOptions>()));
        known.assume_init()
    };
    // Nothing may unwind into C.
    match catch_unwind(AssertUnwindSafe(|| open(&options))) {
        Ok(Ok(sensor)) => {
            // SAFETY: as above.
            unsafe { out.write(Box::into_raw(sensor)) };
            0
        }
        Ok(Err(Failure(code, sentence))) => {
            remember(&sentence);
            code
        }
        Err(_) => {
            remember(&format!(
                "{name} failed inside liboverhear; this is a bug of the library"
            ));
            -libc::EINVAL
        }
    }
}

impl Kept {
    /// Begins to write: the place says from here on how. Returns it; NULL if nothing is kept.
    ///
    /// # Safety
    /// `kept` is NULL or came from `keep`; `place` is writable, or nothing is kept.
    unsafe fn begin_at(kept: *mut Self, place: *mut RawSensor) -> *mut RawSensor {
        if kept.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: by contract. The stream is borrowed alone: the place may lie beside it.
        unsafe { place.write(RawSensor::of(&(*kept).stream, kept)) };
        place
    }
}

impl RawSensor {
    /// The right to write a stream that nobody has written yet.
    fn of(stream: &OpenStream, kept: *mut Kept) -> Self {
        let geometry = *stream.shape.elements();
        Self {
            base: stream.mapping.base().as_ptr(),
            count: 0,
            mask: geometry.capacity() - 1,
            stride: u32::try_from(geometry.stride_bytes()).unwrap_or(u32::MAX),
            payload_size: u32::try_from(geometry.payload_bytes()).unwrap_or(u32::MAX),
            clock_id: stream.clock.as_raw(),
            reserved0: 0,
            switch: stream.switch,
            kept,
            reserved1: 0,
        }
    }

    /// The stream that this sensor writes; NULL if there is none.
    ///
    /// # Safety
    /// `sensor` is NULL, or registered, or all zero, as a place is that was given back.
    unsafe fn stream(sensor: *const Self) -> *mut OpenStream {
        if sensor.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: readable by contract; what is kept came from `keep`. No reference is made: the place may
        // lie beside the stream, and the switch of a place that was given back is none.
        unsafe {
            let kept = (&raw const (*sensor).kept).read();
            if kept.is_null() {
                return std::ptr::null_mut();
            }
            &raw mut (*kept).stream
        }
    }
}

/// `oh_sensor_register_again`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register`, is still registered, and no other thread uses
/// it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_again(sensor: *mut RawSensor) -> c_int {
    // SAFETY: by contract; no other thread uses the sensor, so nobody else borrows its stream.
    let Some(stream) = (unsafe { RawSensor::stream(sensor).as_mut() }) else {
        return refuse("oh_sensor_register_again: the sensor is NULL or was given back");
    };
    guard("oh_sensor_register_again", || {
        if let Some(again) = stream.again() {
            *stream = again;
            // SAFETY: registered by contract, so the place says what is kept; it is written as a whole,
            // beside the stream that is borrowed.
            unsafe {
                let kept = (*sensor).kept;
                sensor.write(RawSensor::of(stream, kept));
            }
        }
        remember(&stream.unheard);
        Ok(stream.is_heard().into())
    })
}

/// `oh_sensor_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register`, is still registered, and no other thread uses
/// it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_pace(sensor: *mut RawSensor) -> c_int {
    // SAFETY: by contract; no other thread uses the sensor, so nobody else borrows its stream.
    let Some(stream) = (unsafe { RawSensor::stream(sensor).as_mut() }) else {
        return refuse("oh_sensor_pace: the sensor is NULL or was given back");
    };
    // SAFETY: registered, so readable.
    let count = unsafe { (*sensor).count };
    guard("oh_sensor_pace", || match stream.pace(count) {
        Ok(_) => Ok(0),
        Err(error) => Err(invalid(&format!("oh_sensor_pace: {error}"))),
    })
}

/// # Safety
/// The strings and fields of `options` are readable.
pub(crate) unsafe fn request(options: &RawOptions) -> Result<SensorRequest, Failure> {
    let invalid = |sentence: String| Failure(-libc::EINVAL, sentence);
    // SAFETY: a readable string by contract.
    let sensor = unsafe { text(options.id) }
        .filter(|id| !id.is_empty())
        .ok_or_else(|| invalid("oh_sensor_register: give the sensor an id".to_string()))?;
    // SAFETY: as above.
    let instance = unsafe { text(options.instance) }.unwrap_or_default();
    // SAFETY: as above.
    let type_id = unsafe { text(options.type_id) }.unwrap_or_default();
    let mut fields = Vec::new();
    for index in 0..options.field_count as usize {
        if options.fields.is_null() {
            return Err(invalid(format!("sensor `{sensor}`: `fields` is NULL")));
        }
        // SAFETY: the array has `field_count` entries by contract.
        let raw = unsafe { options.fields.add(index).read() };
        // SAFETY: readable strings by contract.
        let (name, unit) = unsafe { (text(raw.name), text(raw.unit)) };
        let name = name.unwrap_or_default();
        let kind = FieldKind::from_raw(raw.kind, raw.size).ok_or_else(|| {
            invalid(format!(
                "sensor `{sensor}`: field `{name}` has the unknown kind {} or the wrong size {}; \
                 use the OH_FIELD macros",
                raw.kind, raw.size
            ))
        })?;
        fields.push(Field {
            name,
            kind,
            offset: raw.offset,
            unit: unit.unwrap_or_default(),
        });
    }
    fields.sort_by_key(|field| field.offset);
    let schema = TypeSchema::new(type_id, options.size, fields)
        .map_err(|error| invalid(format!("sensor `{sensor}`: {error}")))?;
    let rate = match options.period_ns {
        0 => None,
        period => Some(
            Rate::new(
                Nanos::from_ns(period),
                Nanos::from_ns(options.distance_ns),
                Nanos::from_ns(options.jitter_ns),
            )
            .map_err(|error| invalid(format!("sensor `{sensor}`: {error}")))?,
        ),
    };
    Ok(SensorRequest {
        sensor,
        instance,
        schema,
        rate,
        capacity: options.capacity,
        kind: overhear_stream::WriterKind::Simple,
        lanes: options.lanes,
    })
}

/// # Safety
/// `text` is NULL or a string that ends with a zero byte.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

/// `oh_sensor_unregister`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_unregister(sensor: *mut RawSensor) {
    // SAFETY: by contract.
    if unsafe { RawSensor::stream(sensor).is_null() } {
        return;
    }
    let kept = unsafe {
        // SAFETY: registered by contract; what is kept was made by Box in `keep`, and the caller gives it
        // back. A place of the caller's says from here on that it holds none.
        let kept = (*sensor).kept;
        sensor.write_bytes(0, 1);
        Box::from_raw(kept)
    };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(kept)));
}

/// `oh_sensor_is_heard`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_is_heard(sensor: *const RawSensor) -> c_int {
    // SAFETY: by contract; shared: while it is written, others may ask.
    unsafe { RawSensor::stream(sensor).as_ref() }
        .is_some_and(OpenStream::is_heard)
        .into()
}

/// `oh_last_error`.
#[no_mangle]
pub(crate) extern "C" fn oh_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
