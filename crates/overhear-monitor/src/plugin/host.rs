// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host of an update: the functions that it may call, and the results that it has set.

use std::ffi::{c_char, c_void};

use overhear_event::Timestamp;

use super::abi::{RawHost, ABI};
use super::results::{ResultValue, Results};
use crate::executor::UpdateIndex;
use crate::reaction::{Decider, Occurrence};
use overhear_ffi::text;

/// The host of an update, and its results.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Host {
    // First: an update's pointer to its host is one to this.
    raw: RawHost,
    pub(super) failed: Option<String>,
    pub(super) results: Results,
    // The decider of reactions that the update requests, and the index of the update there.
    pub(super) decider: Option<(Decider, UpdateIndex)>,
    // Time of the item of the current call; `None` where requests are not permitted.
    pub(super) at: Option<Timestamp>,
}

impl Host {
    pub(super) fn new(application: *mut c_void) -> Box<Self> {
        Box::new(Self {
            raw: RawHost {
                size: size_of::<RawHost>() as u32,
                abi: ABI,
                fail,
                result_u64,
                result_i64,
                result_f64,
                result_text,
                result_json,
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
/// `host` is the pointer that the update was called with, and `message` is NULL or a string.
unsafe extern "C" fn fail(host: *mut RawHost, message: *const c_char) {
    // SAFETY: by contract; a host begins with its raw part, and no other code uses it during a
    // call.
    unsafe { (*host.cast::<Host>()).failed = text(message) };
}

/// # Safety
/// As for [`fail`]; `key` is NULL or a string.
unsafe fn set(host: *mut RawHost, key: *const c_char, value: ResultValue) {
    // SAFETY: as for `fail`.
    if let Some(key) = unsafe { text(key) } {
        // SAFETY: as above.
        unsafe { (*host.cast::<Host>()).results.set(&key, value) };
    }
}

unsafe extern "C" fn result_u64(host: *mut RawHost, key: *const c_char, value: u64) {
    // SAFETY: by the caller's contract.
    unsafe { set(host, key, ResultValue::Unsigned(value)) };
}

unsafe extern "C" fn result_i64(host: *mut RawHost, key: *const c_char, value: i64) {
    // SAFETY: by the caller's contract.
    unsafe { set(host, key, ResultValue::Signed(value)) };
}

unsafe extern "C" fn result_f64(host: *mut RawHost, key: *const c_char, value: f64) {
    // SAFETY: by the caller's contract.
    unsafe { set(host, key, ResultValue::Float(value)) };
}

unsafe extern "C" fn result_text(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe {
        set(
            host,
            key,
            ResultValue::Text(text(value).unwrap_or_default()),
        )
    };
}

unsafe extern "C" fn result_json(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe {
        set(
            host,
            key,
            ResultValue::Json(text(value).unwrap_or_default()),
        )
    };
}

/// # Safety
/// As for [`fail`].
unsafe extern "C" fn react(host: *mut RawHost, code: u32, value: i64) {
    // SAFETY: as for `fail`.
    let host = unsafe { &mut *host.cast::<Host>() };
    if let (Some(at), Some((decider, update))) = (host.at, &mut host.decider) {
        let update = *update;
        let requested = Occurrence::Requested {
            update,
            code,
            value,
        };
        decider.occurred(at, &requested);
    }
}
