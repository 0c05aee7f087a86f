// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exported functions of `liboverhear`: what `include/overhear/sensor.h` declares and does not
//! inline. The structs mirror that header; the assertions below hold both to the same sizes and
//! offsets.

mod concurrent;
mod laned;
mod sampler;

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of, MaybeUninit};

use overhear_directory::client::SensorRequest;
use overhear_event::{Nanos, Rate, TypeSchema};
use overhear_ffi::{read_fields, release, sized, text, CLibrary, FfiError, LastError, RawField};
use overhear_stream::Switch;

use crate::sensor::{OpenStream, SensorError};

thread_local! {
    static LAST_ERROR: LastError = LastError::default();
}

pub(crate) const LIBRARY: CLibrary = CLibrary {
    name: "liboverhear",
    set_last_error,
};

/// Replaces the calling thread's last error. An empty message means that there is none.
pub(crate) fn set_last_error(message: &str) {
    LastError::set(&LAST_ERROR, message);
}

/// `oh_sensor`: what the inline functions use. It lies in memory of the caller, or in
/// [`Registration::handle`].
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
    registration: *mut Registration,
    reserved1: u64,
}

/// What the library needs of a sensor.
#[repr(C, align(64))]
struct Registration {
    // Used if the caller provides no memory for the handle.
    handle: MaybeUninit<RawSensor>,
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
    assert!(offset_of!(RawSensor, registration) == 48);
    assert!(size_of::<RawSensor>() == 64);
    assert!(offset_of!(Registration, handle) == 0);
};

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

/// Bytes of `oh_sensor_options` in its first version.
const OPTIONS_V1_BYTES: usize = 72;

/// Why a function refuses a handle.
const UNREGISTERED: &str = "the sensor is NULL or was unregistered";

const _: () = {
    assert!(offset_of!(RawOptions, lanes) == OPTIONS_V1_BYTES);
    assert!(size_of::<RawOptions>() == 80);
};

/// `oh_sensor_register_sized`.
///
/// # Safety
/// As the header specifies: `out` is writable; `options` points to `options_size` readable bytes
/// whose strings end with a zero byte and whose `fields` has `field_count` entries.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_sized(
    out: *mut *mut RawSensor,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let mut registration = std::ptr::null_mut();
    // SAFETY: the caller's contract is passed on; `registration` is writable, unless `out` is NULL,
    // which is refused.
    let code = unsafe {
        let registration = if out.is_null() {
            std::ptr::null_mut()
        } else {
            &raw mut registration
        };
        register(
            registration,
            options,
            options_size,
            "oh_sensor_register",
            open_simple,
        )
    };
    if !out.is_null() {
        // SAFETY: `out` is writable by contract; a registration begins with memory for a handle.
        unsafe {
            out.write(Registration::write_handle(
                registration,
                registration.cast(),
            ))
        };
    }
    code
}

/// `oh_sensor_register_at_sized`.
///
/// # Safety
/// As the header specifies: `sensor` is writable; the rest as for [`oh_sensor_register_sized`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_at_sized(
    sensor: *mut RawSensor,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let name = "oh_sensor_register_at";
    if sensor.is_null() {
        return refuse(name, "`place` is NULL; pass the address of a sensor");
    }
    let mut registration = std::ptr::null_mut();
    // SAFETY: the caller's contract is passed on; `registration` and `sensor` are writable.
    unsafe {
        sensor.write_bytes(0, 1);
        let code = register(
            &raw mut registration,
            options,
            options_size,
            name,
            open_simple,
        );
        let _ = Registration::write_handle(registration, sensor);
        code
    }
}

/// Opens the stream of a simple sensor.
fn open_simple(options: &RawOptions) -> Result<Box<Registration>, FfiError> {
    // SAFETY: the strings and fields are readable by the contract of `register`'s caller.
    let request = unsafe { request(options) }?;
    let stream = OpenStream::open(request)?;
    set_last_error(&stream.not_connected);
    let handle = MaybeUninit::uninit();
    Ok(Box::new(Registration { handle, stream }))
}

/// Ends a call whose arguments are wrong.
fn refuse(function: &str, message: &str) -> c_int {
    LIBRARY.fail(function, &FfiError::invalid(message))
}

impl From<SensorError> for FfiError {
    fn from(error: SensorError) -> Self {
        let code = match error {
            SensorError::Map(_) => -libc::ENOMEM,
            _ => -libc::EINVAL,
        };
        Self::new(code, error)
    }
}

/// Registers a sensor of any kind: `open` makes it from the options.
///
/// # Safety
/// As [`oh_sensor_register_sized`].
pub(crate) unsafe fn register<S>(
    out: *mut *mut S,
    options: *const RawOptions,
    options_size: usize,
    function: &str,
    open: impl FnOnce(&RawOptions) -> Result<Box<S>, FfiError>,
) -> c_int {
    if out.is_null() {
        return refuse(
            function,
            "`out` is NULL; pass the address of a pointer to a sensor",
        );
    }
    // SAFETY: `out` is writable by contract and not NULL.
    unsafe { out.write(std::ptr::null_mut()) };
    if options.is_null() || options_size < OPTIONS_V1_BYTES {
        let message = "`options` is NULL or too small; zero-initialise the struct";
        return refuse(function, message);
    }
    // SAFETY: readable by contract; zero bytes are a value of every member.
    let options = unsafe { sized(options, options_size) };
    LIBRARY.guard(function, || {
        let sensor = Box::into_raw(open(&options)?);
        // SAFETY: as above.
        unsafe { out.write(sensor) };
        Ok(0)
    })
}

impl Registration {
    /// Writes the handle of a new registration into `handle`, and returns it; NULL if there is no
    /// registration.
    ///
    /// # Safety
    /// `registration` is NULL or came from `open_simple`; then `handle` is writable.
    unsafe fn write_handle(registration: *mut Self, handle: *mut RawSensor) -> *mut RawSensor {
        if registration.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: by contract. Only the stream is borrowed: the handle may be another field of the
        // registration.
        unsafe { handle.write(RawSensor::new(&(*registration).stream, registration)) };
        handle
    }
}

impl RawSensor {
    /// The handle of a stream to which nothing was written.
    fn new(stream: &OpenStream, registration: *mut Registration) -> Self {
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
            registration,
            reserved1: 0,
        }
    }

    /// The stream of this sensor; NULL if it has none.
    ///
    /// # Safety
    /// `sensor` is NULL, or registered, or all zero, as `oh_sensor_unregister` leaves it.
    unsafe fn stream(sensor: *const Self) -> *mut OpenStream {
        if sensor.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: readable by contract; the registration came from `open_simple`. No reference is
        // made, because the handle may be a field of the registration, and a handle of zeros has no
        // valid switch.
        unsafe {
            let registration = (&raw const (*sensor).registration).read();
            if registration.is_null() {
                return std::ptr::null_mut();
            }
            &raw mut (*registration).stream
        }
    }
}

/// `oh_sensor_register_again`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register`, is still registered, and no other thread
/// uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_register_again(sensor: *mut RawSensor) -> c_int {
    // SAFETY: by contract; no other thread uses the sensor, so no other code borrows its stream.
    let Some(stream) = (unsafe { RawSensor::stream(sensor).as_mut() }) else {
        return refuse("oh_sensor_register_again", UNREGISTERED);
    };
    LIBRARY.guard("oh_sensor_register_again", || {
        if let Some(again) = stream.again() {
            *stream = again;
            // SAFETY: registered by contract. The handle does not overlap the stream, which is
            // borrowed.
            unsafe {
                let registration = (*sensor).registration;
                sensor.write(RawSensor::new(stream, registration));
            }
        }
        set_last_error(&stream.not_connected);
        Ok(stream.is_connected().into())
    })
}

/// `oh_sensor_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register`, is still registered, and no other thread
/// uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_pace(sensor: *mut RawSensor) -> c_int {
    // SAFETY: by contract; no other thread uses the sensor, so no other code borrows its stream.
    let Some(stream) = (unsafe { RawSensor::stream(sensor).as_mut() }) else {
        return refuse("oh_sensor_pace", UNREGISTERED);
    };
    // SAFETY: registered, so readable.
    let count = unsafe { (*sensor).count };
    LIBRARY.guard("oh_sensor_pace", || {
        stream.pace(count).map_err(FfiError::invalid)?;
        Ok(0)
    })
}

/// The request that a program's options describe.
///
/// # Safety
/// The strings and fields of `options` are readable.
pub(crate) unsafe fn request(options: &RawOptions) -> Result<SensorRequest, FfiError> {
    // SAFETY: a readable string by contract.
    let sensor = unsafe { text(options.id) }.filter(|id| !id.is_empty());
    let sensor = sensor.ok_or_else(|| FfiError::invalid("give the sensor an id"))?;
    let invalid =
        |error: &dyn std::fmt::Display| FfiError::invalid(format!("sensor `{sensor}`: {error}"));
    // SAFETY: readable strings, and `field_count` fields, by contract.
    let (instance, type_id, fields) = unsafe {
        (
            text(options.instance).unwrap_or_default(),
            text(options.type_id).unwrap_or_default(),
            read_fields(options.fields, options.field_count),
        )
    };
    let fields = fields.map_err(|error| invalid(&error))?;
    let schema = TypeSchema::new(type_id, options.size, fields);
    let schema = schema.map_err(|error| invalid(&error))?;
    let rate = match options.period_ns {
        0 => None,
        period => {
            let [period, distance, jitter] =
                [period, options.distance_ns, options.jitter_ns].map(Nanos::from_ns);
            Some(Rate::new(period, distance, jitter).map_err(|error| invalid(&error))?)
        }
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
    // SAFETY: registered by contract; the registration was made by Box in `open_simple`, and the
    // caller gives it back. Memory of the caller's is zero from here on: it holds no sensor.
    unsafe {
        let registration = (*sensor).registration;
        sensor.write_bytes(0, 1);
        release(registration);
    }
}

/// `oh_sensor_is_connected`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_sensor_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sensor_is_connected(sensor: *const RawSensor) -> c_int {
    // SAFETY: by contract; the reference is shared, because other threads may write or ask
    // meanwhile.
    unsafe { RawSensor::stream(sensor).as_ref() }
        .is_some_and(OpenStream::is_connected)
        .into()
}

/// `oh_last_error`.
#[no_mangle]
pub(crate) extern "C" fn oh_last_error() -> *const c_char {
    LastError::as_ptr(&LAST_ERROR)
}

/// `oh_set_last_error_`: how `liboverhear_monitor` sets the error that `oh_last_error` returns. A
/// program may be linked with both libraries, and each contains both functions; the dynamic linker
/// picks one pair for the whole program, because both are called through their exported names.
///
/// # Safety
/// `message` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_set_last_error_(message: *const c_char) {
    // SAFETY: by contract.
    set_last_error(&unsafe { text(message) }.unwrap_or_default());
}
