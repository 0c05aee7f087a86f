// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `include/overhear/laned.h` declares and does not inline: registration, and the rare paths
//! of a write.

use std::ffi::c_int;

use overhear_ffi::{release, FfiError};
use overhear_stream::{Frame, Lane, SharedWords};

use super::{refuse, register, request, set_last_error, RawOptions, LIBRARY};
use crate::laned::OpenLanes;
use crate::thread;

/// `oh_laned_register_sized`.
///
/// # Safety
/// As `oh_sensor_register_sized`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_register_sized(
    out: *mut *mut OpenLanes,
    options: *const RawOptions,
    options_size: usize,
) -> c_int {
    let (options_size, lane_size) = (options_size & 0xffff, options_size >> 16);
    // SAFETY: the caller's contract is passed on.
    unsafe {
        register(out, options, options_size, "oh_laned_register", |options| {
            check_lane_size(lane_size)?;
            let sensor = Box::new(OpenLanes::open(request(options)?)?);
            set_last_error(&sensor.stream.not_connected);
            Ok(sensor)
        })
    }
}

/// The inlined functions of the header step through the pool by the size of a lane that they know.
fn check_lane_size(compiled: usize) -> Result<(), FfiError> {
    let expected = size_of::<Lane<SharedWords>>();
    if compiled == expected {
        return Ok(());
    }
    Err(FfiError::invalid(format!(
        "the program was compiled with another version of `overhear/laned.h` than this \
         liboverhear (lanes of {compiled} bytes instead of {expected}); compile it again"
    )))
}

/// `oh_laned_unregister`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_laned_register` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_unregister(sensor: *mut OpenLanes) {
    // SAFETY: made by Box::into_raw in `register`, and given back by contract.
    unsafe { release(sensor) };
}

/// `oh_laned_register_again`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_laned_register`, is still registered, and no other thread uses
/// it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_register_again(sensor: *mut OpenLanes) -> c_int {
    const NAME: &str = "oh_laned_register_again";
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

/// `oh_laned_pace`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_laned_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_pace(sensor: *const OpenLanes) -> c_int {
    // SAFETY: by contract.
    let Some(sensor) = (unsafe { sensor.as_ref() }) else {
        return refuse("oh_laned_pace", "the sensor is NULL");
    };
    LIBRARY.guard("oh_laned_pace", || {
        sensor.pace().map_err(FfiError::invalid)?;
        Ok(0)
    })
}

/// `oh_laned_is_connected`.
///
/// # Safety
/// `sensor` is NULL or came from `oh_laned_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_is_connected(sensor: *const OpenLanes) -> c_int {
    // SAFETY: by contract.
    unsafe { sensor.as_ref() }
        .is_some_and(|sensor| sensor.stream.is_connected())
        .into()
}

/// `oh_laned_prepare_thread`.
///
/// # Safety
/// `sensor` came from `oh_laned_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_laned_prepare_thread(sensor: *const OpenLanes) -> c_int {
    // SAFETY: by contract.
    unsafe { &*sensor }.prepare_thread().is_ok().into()
}

/// `oh_prepare_thread`.
#[no_mangle]
pub(crate) extern "C" fn oh_prepare_thread() {
    thread::prepare_thread();
}

/// `oh_lane_claim_`. Does not unwind: it indexes with lanes of the pool alone.
///
/// # Safety
/// `sensor` came from `oh_laned_register` and is still registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_lane_claim_(
    sensor: *const OpenLanes,
) -> *const Lane<SharedWords> {
    // SAFETY: by contract.
    let lane = unsafe { &*sensor }.claim();
    lane.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// `oh_lane_interrupt_`.
///
/// # Safety
/// Both came from the same registered sensor, and the lane is the calling thread's.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_lane_interrupt_(
    sensor: *const OpenLanes,
    lane: *const Lane<SharedWords>,
    frame: u64,
    mark: u32,
) -> c_int {
    // SAFETY: by contract.
    let (sensor, lane) = unsafe { (&*sensor, &*lane) };
    sensor
        .begin_in(lane, Frame::from_raw(frame, mark))
        .is_ok()
        .into()
}

/// `oh_lane_refuse_`.
///
/// # Safety
/// The lane is that of a registered sensor.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_lane_refuse_(lane: *const Lane<SharedWords>) {
    // SAFETY: by contract.
    unsafe { &*lane }.refuse();
}
