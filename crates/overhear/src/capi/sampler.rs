// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `include/overhear/sampler.h` that are not inlined.

use std::ffi::{c_char, c_int, CString};
use std::mem::{offset_of, size_of};

use overhear_event::{Nanos, Rate};
use overhear_ffi::{c_text, release, sized, text, FfiError};
use overhear_stream::Switch;

use super::{refuse, set_last_error, LIBRARY};
use crate::sampler::{DynamicSampler, RegisterSamplerError, SamplerRequest, SamplerThreadError};

/// `oh_sampler`: what the inline functions use.
#[repr(C)]
pub(crate) struct RawSampler {
    switch: Switch,
    every_ns: u64,
    last_ns: u64,
}

/// What the library needs of a sampler. The handle is its beginning.
#[repr(C)]
struct Registration {
    handle: RawSampler,
    sampler: DynamicSampler,
    // The messages of `oh_sampler_missing`.
    missing: Vec<CString>,
}

/// `oh_sampler_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawSamplerOptions {
    id: *const c_char,
    instance: *const c_char,
    counters: *const *const c_char,
    counter_count: u32,
    flags: u32,
    every_ns: u64,
    period_ns: u64,
    distance_ns: u64,
    jitter_ns: u64,
    capacity: u64,
}

/// `OH_SAMPLER_USER_ONLY`.
const USER_ONLY: u32 = 1;
/// `OH_SAMPLER_SKIP_MISSING`.
const SKIP_MISSING: u32 = 2;

const _: () = {
    assert!(offset_of!(RawSampler, every_ns) == 8);
    assert!(offset_of!(RawSampler, last_ns) == 16);
    assert!(size_of::<RawSampler>() == 24);
    assert!(offset_of!(Registration, handle) == 0);
    assert!(offset_of!(RawSamplerOptions, counters) == 16);
    assert!(offset_of!(RawSamplerOptions, flags) == 28);
    assert!(offset_of!(RawSamplerOptions, every_ns) == 32);
    assert!(size_of::<RawSamplerOptions>() == 72);
};

impl From<RegisterSamplerError> for FfiError {
    fn from(error: RegisterSamplerError) -> Self {
        match error {
            RegisterSamplerError::Sensor(error) => error.into(),
            RegisterSamplerError::Counter(error) if !error.is_usage() => {
                Self::new(-libc::ENODEV, error)
            }
            other => Self::invalid(other),
        }
    }
}

impl Registration {
    /// Copies to the handle what a sample or a registration may have changed.
    fn refresh(&mut self) {
        let (switch, every_ns, last_ns) = self.sampler.condition();
        self.handle = RawSampler {
            switch,
            every_ns,
            last_ns,
        };
    }

    /// The registration of a handle.
    ///
    /// # Safety
    /// `sampler` is NULL, or registered and used by no other thread.
    unsafe fn of<'a>(sampler: *mut RawSampler) -> Option<&'a mut Self> {
        // SAFETY: a handle is the first field of a registration, whose address it has.
        unsafe { sampler.cast::<Self>().as_mut() }
    }
}

/// The result of a sample for C.
fn taken(result: Result<bool, SamplerThreadError>) -> c_int {
    match result {
        Ok(taken) => taken.into(),
        Err(SamplerThreadError) => -libc::EPERM,
    }
}

/// `oh_sampler_register_sized`.
///
/// # Safety
/// As the header specifies: `out` is writable; `options` points to `options_size` readable bytes
/// whose strings end with a zero byte and whose `counters` has `counter_count` entries.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_register_sized(
    out: *mut *mut RawSampler,
    options: *const RawSamplerOptions,
    options_size: usize,
) -> c_int {
    let name = "oh_sampler_register";
    if out.is_null() {
        return refuse(
            name,
            "`out` is NULL; pass the address of a pointer to a sampler",
        );
    }
    // SAFETY: `out` is writable by contract and not NULL.
    unsafe { out.write(std::ptr::null_mut()) };
    if options.is_null() || options_size < size_of::<RawSamplerOptions>() {
        return refuse(name, "`options` is NULL or too small; use OH_SAMPLER");
    }
    // SAFETY: readable by contract; zero bytes are a value of every member.
    let options = unsafe { sized(options, options_size) };
    LIBRARY.guard(name, || {
        // SAFETY: the strings are readable by contract.
        let request = unsafe { request(&options) }?;
        let sampler = DynamicSampler::register(request)?;
        set_last_error(sampler.not_connected_reason().unwrap_or_default());
        let missing = sampler
            .missing()
            .iter()
            .map(|error| c_text(&error.to_string()));
        let (switch, every_ns, last_ns) = sampler.condition();
        let registration = Box::new(Registration {
            handle: RawSampler {
                switch,
                every_ns,
                last_ns,
            },
            missing: missing.collect(),
            sampler,
        });
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(registration).cast()) };
        Ok(0)
    })
}

/// The request that a program's options describe.
///
/// # Safety
/// The strings of `options` are readable, and `counters` has `counter_count` entries.
unsafe fn request(options: &RawSamplerOptions) -> Result<SamplerRequest, FfiError> {
    // SAFETY: readable strings by contract.
    let (id, instance) = unsafe { (text(options.id), text(options.instance)) };
    let id = id.filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| FfiError::invalid("give the sampler an id"))?;
    let count = match options.counters.is_null() {
        true => 0,
        false => options.counter_count,
    };
    let counters = (0..count).map(|index| {
        // SAFETY: the list has `counter_count` strings by contract.
        unsafe { text(options.counters.add(index as usize).read()) }.unwrap_or_default()
    });
    let rate = match options.period_ns {
        0 => None,
        period => {
            let [period, distance, jitter] =
                [period, options.distance_ns, options.jitter_ns].map(Nanos::from_ns);
            let rate = Rate::new(period, distance, jitter);
            Some(rate.map_err(|error| FfiError::invalid(format!("sampler `{id}`: {error}")))?)
        }
    };
    Ok(SamplerRequest {
        sampler: id,
        instance: instance.unwrap_or_default(),
        counters: counters.collect(),
        every: Nanos::from_ns(options.every_ns),
        rate,
        capacity: options.capacity,
        user_only: options.flags & USER_ONLY != 0,
        skip_missing: options.flags & SKIP_MISSING != 0,
    })
}

/// `oh_sampler_take_`: the sample of `oh_sampler_sample`, which has checked that it is due.
///
/// # Safety
/// `sampler` is NULL or registered, and no other thread uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_take_(sampler: *mut RawSampler, now_ns: u64) -> c_int {
    // SAFETY: by contract.
    let Some(registration) = (unsafe { Registration::of(sampler) }) else {
        return -libc::EINVAL;
    };
    let result = registration.sampler.sample_at(now_ns);
    registration.refresh();
    taken(result)
}

/// `oh_sampler_job_begin`.
///
/// # Safety
/// As [`oh_sampler_take_`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_job_begin(sampler: *mut RawSampler) -> c_int {
    // SAFETY: by contract.
    let Some(registration) = (unsafe { Registration::of(sampler) }) else {
        return -libc::EINVAL;
    };
    taken(registration.sampler.begin_job().map(|()| false))
}

/// `oh_sampler_job_end`.
///
/// # Safety
/// As [`oh_sampler_take_`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_job_end(sampler: *mut RawSampler) -> c_int {
    // SAFETY: by contract.
    let Some(registration) = (unsafe { Registration::of(sampler) }) else {
        return -libc::EINVAL;
    };
    let result = registration.sampler.end_job();
    registration.refresh();
    taken(result)
}

/// `oh_sampler_register_again`.
///
/// # Safety
/// As [`oh_sampler_take_`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_register_again(sampler: *mut RawSampler) -> c_int {
    let name = "oh_sampler_register_again";
    // SAFETY: by contract.
    let Some(registration) = (unsafe { Registration::of(sampler) }) else {
        return refuse(name, "the sampler is NULL");
    };
    LIBRARY.guard(name, || {
        let is_connected = registration.sampler.register_again()?;
        registration.refresh();
        let reason = registration.sampler.not_connected_reason();
        set_last_error(reason.unwrap_or_default());
        Ok(is_connected.into())
    })
}

/// `oh_sampler_is_connected`.
///
/// # Safety
/// `sampler` is NULL or registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_is_connected(sampler: *mut RawSampler) -> c_int {
    // SAFETY: by contract.
    let registration = unsafe { Registration::of(sampler) };
    registration
        .is_some_and(|it| it.sampler.is_connected())
        .into()
}

/// `oh_sampler_uses_rdpmc`.
///
/// # Safety
/// `sampler` is NULL or registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_uses_rdpmc(sampler: *mut RawSampler) -> c_int {
    // SAFETY: by contract.
    let registration = unsafe { Registration::of(sampler) };
    registration
        .is_some_and(|it| it.sampler.uses_rdpmc())
        .into()
}

/// `oh_sampler_failed`.
///
/// # Safety
/// `sampler` is NULL or registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_failed(sampler: *mut RawSampler) -> u64 {
    // SAFETY: by contract.
    let registration = unsafe { Registration::of(sampler) };
    registration.map_or(0, |it| it.sampler.failed())
}

/// `oh_sampler_missing`.
///
/// # Safety
/// `sampler` is NULL or registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_missing(
    sampler: *mut RawSampler,
    index: u32,
) -> *const c_char {
    // SAFETY: by contract.
    let registration = unsafe { Registration::of(sampler) };
    let message = registration.and_then(|it| it.missing.get(index as usize));
    message.map_or(std::ptr::null(), |message| message.as_ptr())
}

/// `oh_sampler_unregister`.
///
/// # Safety
/// `sampler` is NULL, or registered and not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_sampler_unregister(sampler: *mut RawSampler) {
    // SAFETY: the registration was made by Box, and the caller gives it back.
    unsafe { release(sampler.cast::<Registration>()) };
}
