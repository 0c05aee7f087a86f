// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cold half of `include/overhear/concurrent.h`.

use std::ffi::c_int;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::{guard, invalid, refuse, register, remember, request, RawOptions};
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
            remember(&sensor.stream.unheard);
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
    if !sensor.is_null() {
        // SAFETY: made by Box::into_raw in register; the caller gives it back.
        let sensor = unsafe { Box::from_raw(sensor) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(sensor)));
    }
}

/// `oh_concurrent_register_again`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register`, is still registered, and no other thread
/// uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_register_again(sensor: *mut OpenQueue) -> c_int {
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_mut() }) else {
        remember("oh_concurrent_register_again: the sensor is NULL");
        return -libc::EINVAL;
    };
    // Nothing may unwind into C.
    match catch_unwind(AssertUnwindSafe(|| sensor.register_again())) {
        Ok(Ok(heard)) => {
            remember(&sensor.stream.unheard);
            heard.into()
        }
        Ok(Err(error)) => {
            remember(&error.to_string());
            -libc::ENOMEM
        }
        Err(_) => {
            remember(
                "oh_concurrent_register_again failed inside liboverhear; this is a bug of the library",
            );
            -libc::EINVAL
        }
    }
}

/// `oh_concurrent_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_pace(sensor: *const OpenQueue) -> c_int {
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_ref() }) else {
        return refuse("oh_concurrent_pace: the sensor is NULL");
    };
    guard("oh_concurrent_pace", || match sensor.pace() {
        Ok(_) => Ok(0),
        Err(error) => Err(invalid(&format!("oh_concurrent_pace: {error}"))),
    })
}

/// `oh_concurrent_is_heard`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_concurrent_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_concurrent_is_heard(sensor: *const OpenQueue) -> c_int {
    // SAFETY: by contract.
    unsafe { sensor.as_ref() }
        .is_some_and(|sensor| sensor.stream.is_heard())
        .into()
}

/// `oh_thread_id_`. Does not unwind: it only asks and remembers.
#[no_mangle]
pub(crate) extern "C" fn oh_thread_id_() -> u32 {
    thread::identify().tid
}
