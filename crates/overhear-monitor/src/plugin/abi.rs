// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of `include/overhear/update.h`, which documents them. The assertions below check that
//! both have the same layout.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

pub(crate) use overhear_ffi::{RawField, RawStream};

/// `OH_UPDATE_ABI`.
pub(crate) const ABI: u32 = 1;

/// The function that a plug-in exports.
pub(crate) const SYMBOL: &std::ffi::CStr = c"oh_plugin_v1";

/// `oh_element_view`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawElement {
    pub(crate) stream: *const RawStream,
    pub(crate) sequence: u64,
    pub(crate) time_ns: u64,
    pub(crate) payload: *const c_void,
    pub(crate) writer_tid: u32,
    pub(crate) writer_flags: u32,
}

/// `oh_element_in_place`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawInPlace {
    pub(crate) size: u32,
    pub(crate) reserved: u32,
    pub(crate) stream: *const RawStream,
    pub(crate) sequence: u64,
    pub(crate) time_ns: u64,
    pub(crate) writer_tid: u32,
    pub(crate) writer_flags: u32,
    pub(crate) load: unsafe extern "C" fn(*const RawInPlace, u32, u32, *mut c_void),
}

/// `oh_element_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawKey {
    pub(crate) stream: *const RawStream,
    pub(crate) sequence: u64,
    pub(crate) time_ns: u64,
}

/// `oh_gap`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawGap {
    pub(crate) stream: *const RawStream,
    pub(crate) first: u64,
    pub(crate) missed: u64,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) cause: u32,
    pub(crate) reserved: u32,
}

/// `oh_host`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawHost {
    pub(crate) size: u32,
    pub(crate) abi: u32,
    pub(crate) fail: unsafe extern "C" fn(*mut RawHost, *const c_char),
    pub(crate) result_u64: unsafe extern "C" fn(*mut RawHost, *const c_char, u64),
    pub(crate) result_i64: unsafe extern "C" fn(*mut RawHost, *const c_char, i64),
    pub(crate) result_f64: unsafe extern "C" fn(*mut RawHost, *const c_char, f64),
    pub(crate) result_text: unsafe extern "C" fn(*mut RawHost, *const c_char, *const c_char),
    pub(crate) result_json: unsafe extern "C" fn(*mut RawHost, *const c_char, *const c_char),
    pub(crate) react: unsafe extern "C" fn(*mut RawHost, u32, i64),
    pub(crate) application: *mut c_void,
}

type Create = unsafe extern "C" fn(*mut RawHost, *const c_char) -> *mut c_void;
type OnOpen = unsafe extern "C" fn(*mut c_void, *mut RawHost, *const RawStream) -> c_int;
type OnElement = unsafe extern "C" fn(*mut c_void, *mut RawHost, *const RawElement) -> c_int;
type OnGap = unsafe extern "C" fn(*mut c_void, *mut RawHost, *const RawGap) -> c_int;
type OnAdvance = unsafe extern "C" fn(*mut c_void, *mut RawHost, u64) -> c_int;
type OnReport = unsafe extern "C" fn(*mut c_void, *mut RawHost) -> c_int;
type OnPrepare =
    unsafe extern "C" fn(*mut c_void, *mut RawHost, *const RawInPlace, *mut c_int) -> c_int;
type OnWarmUp = unsafe extern "C" fn(*mut c_void, *mut RawHost) -> c_int;
type OnCommit = unsafe extern "C" fn(*mut c_void, *mut RawHost, *const RawKey, c_int) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);

/// `oh_update`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawUpdate {
    pub(crate) size: u32,
    pub(crate) missed: u32,
    pub(crate) name: *const c_char,
    pub(crate) sensors: *const c_char,
    pub(crate) type_id: *const c_char,
    pub(crate) fields: *const RawField,
    pub(crate) field_count: u32,
    pub(crate) payload_size: u32,
    pub(crate) create: Option<Create>,
    pub(crate) open: Option<OnOpen>,
    pub(crate) element: Option<OnElement>,
    pub(crate) gap: Option<OnGap>,
    pub(crate) advance: Option<OnAdvance>,
    pub(crate) report: Option<OnReport>,
    pub(crate) destroy: Option<Destroy>,
    pub(crate) prepare: Option<OnPrepare>,
    pub(crate) commit: Option<OnCommit>,
    pub(crate) warm_up: Option<OnWarmUp>,
}

/// Size of `oh_update` in the first release: what plug-ins have at least.
pub(crate) const LEAST_UPDATE: usize = 104;

/// `oh_reaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawReaction {
    pub(crate) size: u32,
    pub(crate) on: u32,
    pub(crate) name: *const c_char,
    pub(crate) of: *const c_char,
    pub(crate) message: *const c_char,
    pub(crate) at_ns: u64,
    pub(crate) count: u64,
    pub(crate) element: u64,
    pub(crate) value: i64,
    pub(crate) code: u32,
    pub(crate) reserved: u32,
    pub(crate) observed: f64,
    pub(crate) bound: f64,
}

/// A function that carries out a reaction.
pub(crate) type React = unsafe extern "C" fn(*const RawReaction);

/// `oh_plugin`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawPlugin {
    pub(crate) size: u32,
    pub(crate) abi: u32,
    pub(crate) updates: *const *const RawUpdate,
    pub(crate) update_count: u32,
    pub(crate) reserved: u32,
}

/// `oh_plugin_v1`.
pub(crate) type GetPlugin = unsafe extern "C" fn() -> *const RawPlugin;

/// `OH_MISSED_STOP`.
pub(crate) const MISSED_STOP: u32 = 1;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(RawElement, payload) == 24);
    assert!(size_of::<RawElement>() == 40);
    assert!(offset_of!(RawGap, cause) == 40);
    assert!(size_of::<RawGap>() == 48);
    assert!(offset_of!(RawHost, fail) == 8);
    assert!(offset_of!(RawHost, react) == 56);
    assert!(offset_of!(RawHost, application) == 64);
    assert!(size_of::<RawHost>() == 72);
    assert!(offset_of!(RawReaction, at_ns) == 32);
    assert!(offset_of!(RawReaction, code) == 64);
    assert!(offset_of!(RawReaction, observed) == 72);
    assert!(size_of::<RawReaction>() == 88);
    assert!(offset_of!(RawUpdate, name) == 8);
    assert!(offset_of!(RawUpdate, create) == 48);
    assert!(offset_of!(RawUpdate, prepare) == LEAST_UPDATE);
    assert!(offset_of!(RawUpdate, warm_up) == 120);
    assert!(size_of::<RawUpdate>() == 128);
    assert!(offset_of!(RawInPlace, load) == 40);
    assert!(size_of::<RawInPlace>() == 48);
    assert!(size_of::<RawKey>() == 24);
    assert!(size_of::<RawPlugin>() == 24);
};
