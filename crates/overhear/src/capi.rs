// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cold half of `include/overhear/sensor.h`. The structs mirror that header; the assertions
//! below pin their sizes and offsets.

mod concurrent;
mod laned;
mod metric;
mod monitor;

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::mem::{offset_of, size_of, MaybeUninit};
use std::panic::{catch_unwind, AssertUnwindSafe};

use overhear_directory::client::SensorRequest;
use overhear_event::{Field, FieldKind, Nanos, Rate, TypeSchema};
use overhear_stream::Switch;

use crate::sensor::{OpenStream, SensorError};

/// `oh_sensor`: the hot part that the inline functions use, then what the library needs.
#[repr(C, align(64))]
pub(crate) struct RawSensor {
    base: *mut u8,
    count: u64,
    mask: u64,
    stride: u32,
    payload_size: u32,
    clock_id: u32,
    reserved0: u32,
    switch: Switch,
    reserved1: [u64; 2],
    // Behind the 64 bytes that C knows.
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
    assert!(offset_of!(RawSensor, stream) == 64);
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
    // SAFETY: the caller's contract is passed on.
    unsafe {
        register(
            out,
            options,
            options_size,
            "oh_sensor_register",
            |options| {
                let sensor = Box::new(RawSensor::of(OpenStream::open(request(options)?)?));
                remember(&sensor.stream.unheard);
                Ok(sensor)
            },
        )
    }
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

impl RawSensor {
    /// The right to write a stream that nobody has written yet.
    fn of(stream: OpenStream) -> Self {
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
            reserved1: [0; 2],
            stream,
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
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_mut() }) else {
        remember("oh_sensor_register_again: the sensor is NULL");
        return -libc::EINVAL;
    };
    // Nothing may unwind into C.
    let heard = catch_unwind(AssertUnwindSafe(|| {
        if let Some(stream) = sensor.stream.again() {
            *sensor = RawSensor::of(stream);
        }
        remember(&sensor.stream.unheard);
        sensor.stream.is_heard()
    }));
    match heard {
        Ok(heard) => heard.into(),
        Err(_) => {
            remember(
                "oh_sensor_register_again failed inside liboverhear; this is a bug of the library",
            );
            -libc::EINVAL
        }
    }
}

/// `oh_sensor_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register`, is still registered, and no other thread uses
/// it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_pace(sensor: *mut RawSensor) -> c_int {
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_mut() }) else {
        remember("oh_sensor_pace: the sensor is NULL");
        return -libc::EINVAL;
    };
    // Nothing may unwind into C.
    let waited = catch_unwind(AssertUnwindSafe(|| sensor.stream.pace(sensor.count)));
    match waited {
        Ok(Ok(_)) => 0,
        Ok(Err(error)) => {
            remember(&format!("oh_sensor_pace: {error}"));
            -libc::EINVAL
        }
        Err(_) => {
            remember("oh_sensor_pace failed inside liboverhear; this is a bug of the library");
            -libc::EINVAL
        }
    }
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
    if !sensor.is_null() {
        // SAFETY: made by Box::into_raw in register; the caller gives it back.
        let sensor = unsafe { Box::from_raw(sensor) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(sensor)));
    }
}

/// `oh_sensor_is_heard`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_is_heard(sensor: *const RawSensor) -> c_int {
    // SAFETY: by contract.
    unsafe { sensor.as_ref() }
        .is_some_and(|sensor| sensor.stream.is_heard())
        .into()
}

/// `oh_last_error`.
#[no_mangle]
pub(crate) extern "C" fn oh_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
