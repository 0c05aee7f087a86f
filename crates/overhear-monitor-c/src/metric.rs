// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of `include/overhear/metric.h` that create and describe metrics.

use std::ffi::{c_char, c_int, CString};
use std::ptr;

use overhear_event::kernel::TASK_LIFE;
use overhear_event::{EventName, EventSet};
use overhear_ffi::{release, text, FfiError};
use overhear_metrics::automaton::{
    events_required_by, new_user_metric, system_metric, Catalogue, Metric, Pattern,
};

use crate::LIBRARY;

/// `oh_metric`.
pub(crate) struct RawMetric {
    metric: Metric,
    /// The strings that `events` points to.
    _names: Vec<CString>,
    events: Vec<*const c_char>,
    kernel_sensors: CString,
}

impl RawMetric {
    fn new(metric: Metric) -> Self {
        let names: Vec<CString> = events_required_by(&metric)
            .iter()
            .map(|event| CString::new(event.as_str()).unwrap_or_default())
            .collect();
        let mut events: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        events.push(ptr::null());
        let kernel = metric.sources().iter();
        let mut kernel: Vec<&str> = kernel
            .filter_map(|event| event.as_str().strip_prefix("kernel:"))
            .collect();
        // It is always observed. Its name keeps the other sensors of scheduling disabled.
        if !kernel.is_empty() && !kernel.contains(&TASK_LIFE) {
            kernel.push(TASK_LIFE);
        }
        let kernel_sensors = CString::new(kernel.join(","));
        Self {
            metric,
            _names: names,
            events,
            kernel_sensors: kernel_sensors.unwrap_or_default(),
        }
    }

    pub(crate) const fn metric(&self) -> &Metric {
        &self.metric
    }
}

/// The events that a list names; `None` if the list is NULL.
///
/// # Safety
/// It is NULL, or a list of strings that ends with NULL.
pub(crate) unsafe fn read_events(list: *const *const c_char) -> Result<Option<EventSet>, FfiError> {
    if list.is_null() {
        return Ok(None);
    }
    let mut all = EventSet::new();
    for index in 0.. {
        // SAFETY: by contract; no earlier entry was NULL.
        let Some(name) = (unsafe { text(*list.add(index)) }) else {
            break;
        };
        all.insert(match name.split_once(':') {
            Some(("user", sensor)) => EventName::user(sensor),
            Some(("kernel", hook)) => EventName::kernel(hook),
            Some(("sampler" | "clerk", sensor)) => EventName::sampler(sensor),
            _ => {
                return Err(FfiError::invalid(format!(
                    "`{name}` names no event; write user:SENSOR, kernel:HOOK or sampler:SENSOR"
                )));
            }
        });
    }
    Ok(Some(all))
}

/// Creates the metric that `make` returns, and stores it in `out`.
///
/// # Safety
/// `out` is NULL or writable.
unsafe fn create(
    name: &str,
    out: *mut *mut RawMetric,
    make: impl FnOnce() -> Result<Metric, FfiError>,
) -> c_int {
    LIBRARY.guard(name, || {
        if out.is_null() {
            return Err(FfiError::invalid("give `out`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(ptr::null_mut()) };
        let metric = RawMetric::new(make()?);
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(metric))) };
        Ok(0)
    })
}

/// `oh_metric_system`.
///
/// # Safety
/// `out` is NULL or writable; `name` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_system(
    out: *mut *mut RawMetric,
    name: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let name = unsafe { text(name) };
    let make = || {
        let name = name.ok_or_else(|| FfiError::invalid("give a name"))?;
        system_metric(&name).map_err(|error| FfiError::new(-libc::ENOENT, error))
    };
    // SAFETY: by contract.
    unsafe { create("oh_metric_system", out, make) }
}

/// `oh_metric_user`.
///
/// # Safety
/// `out` is NULL or writable; the others are NULL or strings.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_user(
    out: *mut *mut RawMetric,
    name: *const c_char,
    initial: *const c_char,
    r#final: *const c_char,
    include_system: bool,
) -> c_int {
    // SAFETY: by contract.
    let words = unsafe { (text(name), text(initial), text(r#final)) };
    let make = || {
        let (Some(name), Some(initial), Some(last)) = words else {
            return Err(FfiError::invalid("give a name and both events"));
        };
        let linux = Catalogue::linux();
        let event = |text: &str| {
            let event = Pattern::parse_user_event(text, &linux);
            event.map_err(|error| FfiError::invalid(format!("`{text}` is no event: {error}")))
        };
        let events = (event(&initial)?, event(&last)?);
        new_user_metric(&name, &events.0, &events.1, include_system, &linux)
            .map_err(FfiError::invalid)
    };
    // SAFETY: by contract.
    unsafe { create("oh_metric_user", out, make) }
}

/// `oh_metric_parse`.
///
/// # Safety
/// `out` is NULL or writable; `written` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_parse(
    out: *mut *mut RawMetric,
    written: *const c_char,
) -> c_int {
    // SAFETY: by contract.
    let written = unsafe { text(written) };
    let make = || {
        let written = written.ok_or_else(|| FfiError::invalid("give a text"))?;
        written.parse().map_err(FfiError::invalid)
    };
    // SAFETY: by contract.
    unsafe { create("oh_metric_parse", out, make) }
}

/// `oh_metric_free`.
///
/// # Safety
/// `metric` is NULL or came from one of the functions above, and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_free(metric: *mut RawMetric) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(metric) };
}

/// `oh_metric_events`.
///
/// # Safety
/// `metric` is NULL or came from one of the functions above.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_events(metric: *const RawMetric) -> *const *const c_char {
    // SAFETY: by contract.
    let metric = unsafe { metric.as_ref() };
    metric.map_or(ptr::null(), |metric| metric.events.as_ptr())
}

/// `oh_metric_kernel_sensors`.
///
/// # Safety
/// `metric` is NULL or came from one of the functions above.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_metric_kernel_sensors(
    metric: *const RawMetric,
) -> *const c_char {
    // SAFETY: by contract.
    let metric = unsafe { metric.as_ref() };
    metric.map_or(ptr::null(), |metric| metric.kernel_sensors.as_ptr())
}
