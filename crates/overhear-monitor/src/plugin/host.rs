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
    // Who decides about reactions that the update asks for, and under which number.
    pub(super) decider: Option<(Decider, UpdateIndex)>,
    // The time of the item of the call that is under way; `None` where it may not ask.
    pub(super) at: Option<Timestamp>,
}

impl Host {
    pub(super) fn new(application: *mut c_void) -> Box<Self> {
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
/// `host` is the pointer that the update was called with, and `message` is NULL or a string.
unsafe extern "C" fn fail(host: *mut RawHost, message: *const c_char) {
    // SAFETY: by contract; a host begins with its raw part, and nobody else uses it during a call.
    unsafe { (*host.cast::<Host>()).failed = text(message) };
}

/// # Safety
/// As for [`fail`]; `key` is NULL or a string.
unsafe fn tell(host: *mut RawHost, key: *const c_char, told: ResultValue) {
    // SAFETY: as for `fail`.
    if let Some(key) = unsafe { text(key) } {
        // SAFETY: as above.
        unsafe { (*host.cast::<Host>()).results.tell(&key, told) };
    }
}

unsafe extern "C" fn tell_u64(host: *mut RawHost, key: *const c_char, value: u64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, ResultValue::Unsigned(value)) };
}

unsafe extern "C" fn tell_i64(host: *mut RawHost, key: *const c_char, value: i64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, ResultValue::Signed(value)) };
}

unsafe extern "C" fn tell_f64(host: *mut RawHost, key: *const c_char, value: f64) {
    // SAFETY: by the caller's contract.
    unsafe { tell(host, key, ResultValue::Float(value)) };
}

unsafe extern "C" fn tell_text(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe {
        tell(
            host,
            key,
            ResultValue::Text(text(value).unwrap_or_default()),
        )
    };
}

unsafe extern "C" fn tell_json(host: *mut RawHost, key: *const c_char, value: *const c_char) {
    // SAFETY: by the caller's contract.
    unsafe {
        tell(
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
        let asked = Occurrence::Asked {
            update,
            code,
            value,
        };
        decider.occurred(at, &asked);
    }
}
