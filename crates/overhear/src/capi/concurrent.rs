// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `include/overhear/concurrent.h` declares and does not inline.

use std::ffi::c_int;

use overhear_ffi::{release, FfiError};

use super::{refuse, register, request, set_last_error, RawOptions, LIBRARY};
use crate::concurrent::OpenQueue;
use crate::thread;

/// `oh_concurrent_register_sized`.
///
/// # Safety
/// As `oh_sensor_register_sized`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_register_sized(
    out: *mut *mut OpenQueue,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let name = "oh_concurrent_register";
    // SAFETY: the caller's contract is passed on.
    unsafe {
        register(out, options, options_size, name, |options| {
            let sensor = Box::new(OpenQueue::open(request(options)?, options.writers)?);
            set_last_error(&sensor.stream.not_connected);
            Ok(sensor)
        })
    }
}

/// `oh_concurrent_unregister`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_unregister(sensor: *mut OpenQueue) {
    // SAFETY: made by Box::into_raw in `register`, and given back by contract.
    unsafe { release(sensor) };
}

/// `oh_concurrent_register_again`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register`, is still registered, and no other thread
/// uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_register_again(sensor: *mut OpenQueue) -> c_int {
    const NAME: &str = "oh_concurrent_register_again";
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_mut() }) else {
        return refuse(NAME, "the sensor is NULL");
    };
    LIBRARY.guard(NAME, || {
        let again = sensor.register_again();
        let connected = again.map_err(|error| FfiError::new(-libc::ENOMEM, error))?;
        set_last_error(&sensor.stream.not_connected);
        Ok(connected.into())
    })
}

/// `oh_concurrent_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_pace(sensor: *const OpenQueue) -> c_int {
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_ref() }) else {
        return refuse("oh_concurrent_pace", "the sensor is NULL");
    };
    LIBRARY.guard("oh_concurrent_pace", || {
        sensor.pace().map_err(FfiError::invalid)?;
        Ok(0)
    })
}

/// `oh_concurrent_is_connected`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_is_connected(sensor: *const OpenQueue) -> c_int {
    // SAFETY: by contract.
    unsafe { sensor.as_ref() }
        .is_some_and(|sensor| sensor.stream.is_connected())
        .into()
}

/// `oh_thread_id_`. Does not unwind: it only reads and stores.
#[no_mangle]
pub(crate) extern "C" fn oh_thread_id_() -> u32 {
    thread::identify().tid
}
