// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions and structs that `include/overhear/kernel.h` declares: kernel monitors for C.

mod events;

use std::ffi::{c_char, c_int, CString};
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr;

use overhear_ffi::{c_text, release, sized, text, CLibrary, FfiError, LastError, RawKernelEvent};

use crate::{
    ActiveBackend, Backend, GiveError, KernelMonitor, ReceiveError, SamplerError, SelectError,
    Sensor, StartError,
};
use events::Events;

/// `oh_kernel_monitor_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawOptions {
    buffer_bytes: u64,
    sensors: *const c_char,
    backend: u32,
    dedicated_programs: u32,
}

/// `oh_kernel_status`.
#[repr(C)]
pub(crate) struct RawStatus {
    granted_bytes: u64,
    max_events: u64,
    message: *const c_char,
    backend: u32,
    reserved: u32,
}

const _: () = {
    assert!(offset_of!(RawOptions, backend) == 16);
    assert!(size_of::<RawOptions>() == 24);
    assert!(offset_of!(RawStatus, message) == 16);
    assert!(size_of::<RawStatus>() == 32);
};

/// `oh_kernel_monitor`.
pub(crate) struct RawMonitor {
    monitor: KernelMonitor,
    events: Events,
    granted_bytes: u64,
    message: CString,
    backend: u32,
}

thread_local! {
    static LAST_ERROR: LastError = LastError::default();
}

const LIBRARY: CLibrary = CLibrary {
    name: "liboverhear_kernel",
    set_last_error: |message| LastError::set(&LAST_ERROR, message),
};

impl From<SelectError> for FfiError {
    fn from(error: SelectError) -> Self {
        let code = match error {
            SelectError::NoSuchProcess { .. } | SelectError::NoSuchThread { .. } => -libc::ESRCH,
            SelectError::NotMonitored { .. } | SelectError::NoCgroup { .. } => -libc::ENOENT,
            SelectError::NeedsBpf { .. } | SelectError::Refused { .. } => -libc::EPERM,
            SelectError::Terminated | SelectError::HandedOver => -libc::EINVAL,
        };
        Self::new(code, error)
    }
}

impl From<StartError> for FfiError {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Bpf { .. } | StartError::Perf { .. } => -libc::EPERM,
            StartError::Sampler(SamplerError::NeedsBpf { .. }) => -libc::EPERM,
            StartError::RingSize { .. }
            | StartError::NoSuchRing { .. }
            | StartError::NoSuchProbeRing { .. }
            | StartError::Probe(_)
            | StartError::Sampler(_) => -libc::EINVAL,
        };
        Self::new(code, error)
    }
}

impl From<GiveError> for FfiError {
    fn from(error: GiveError) -> Self {
        let code = match error {
            GiveError::Unavailable(_) | GiveError::Finished => -libc::EINVAL,
            GiveError::Shared { .. } => -libc::EBUSY,
            GiveError::NoSensors | GiveError::Probes | GiveError::Samplers => -libc::ENOTSUP,
            GiveError::Send { .. } => -libc::EPIPE,
        };
        Self::new(code, error)
    }
}

impl From<ReceiveError> for FfiError {
    fn from(error: ReceiveError) -> Self {
        let code = match error {
            ReceiveError::Closed => -libc::EPIPE,
            ReceiveError::InvalidMessage => -libc::EPROTO,
            ReceiveError::Refused { .. } => -libc::EPERM,
        };
        Self::new(code, error)
    }
}

/// Runs the body of an exported function that returns 0 or a negative errno.
fn guard(name: &str, call: impl FnOnce() -> Result<(), FfiError>) -> c_int {
    LIBRARY.guard(name, || call().map(|()| 0))
}

/// Calls `call` with a monitor, which must not be NULL.
///
/// # Safety
/// `monitor` is NULL or came from `oh_kernel_monitor_create`, and no other thread uses it.
unsafe fn with(
    name: &str,
    monitor: *mut RawMonitor,
    call: impl FnOnce(&mut RawMonitor) -> Result<(), FfiError>,
) -> c_int {
    guard(name, || {
        // SAFETY: by contract.
        let monitor = unsafe { monitor.as_mut() };
        call(monitor.ok_or_else(|| FfiError::invalid("the monitor is NULL"))?)
    })
}

fn sensors(names: &str) -> Result<Vec<Sensor>, FfiError> {
    if names == "all" {
        return Ok(Sensor::all().collect());
    }
    let names = names.split(',').map(str::trim);
    let sensor = |name: &str| name.parse::<Sensor>();
    let found: Result<_, _> = names.filter(|name| !name.is_empty()).map(sensor).collect();
    found.map_err(FfiError::invalid)
}

impl RawMonitor {
    fn create(options: &RawOptions, names: &str) -> Result<Self, FfiError> {
        let backend = match options.backend {
            0 => Backend::Auto,
            1 => Backend::Bpf,
            2 => Backend::Perf,
            _ => return Err(FfiError::invalid("`backend` is none of OH_KERNEL_*")),
        };
        let mut builder = KernelMonitor::builder()
            .backend(backend)
            .sensors(sensors(names)?);
        if options.buffer_bytes > 0 {
            builder = builder.buffer_bytes(options.buffer_bytes);
        }
        if options.dedicated_programs != 0 {
            builder = builder.dedicated_programs();
        }
        Self::of(builder.create()?)
    }

    fn of(mut monitor: KernelMonitor) -> Result<Self, FfiError> {
        let status = monitor.status()?;
        let backend = match status.active {
            ActiveBackend::Bpf => 1,
            ActiveBackend::Perf => 2,
            ActiveBackend::None => return Err(FfiError::new(-libc::EPERM, status.message.clone())),
        };
        let message = c_text(&status.message);
        let granted_bytes = monitor.granted_bytes()?;
        let mut events = Events::default();
        // This opens the streams, so that no later read has to. The monitor was just created and
        // has recorded nothing yet.
        monitor.read(&mut events)?;
        if let Some(message) = events.too_large() {
            return Err(FfiError::new(-libc::ENOTSUP, message));
        }
        events.order();
        events.reserve(events.max_events());
        Ok(Self {
            monitor,
            events,
            granted_bytes,
            message,
            backend,
        })
    }

    fn status(&self) -> RawStatus {
        RawStatus {
            granted_bytes: self.granted_bytes,
            max_events: self.events.max_events(),
            message: self.message.as_ptr(),
            backend: self.backend,
            reserved: 0,
        }
    }

    fn read(&mut self, most: u64) -> Result<&[RawKernelEvent], FfiError> {
        // A terminated monitor has nothing more to read.
        self.monitor.status()?;
        if self.events.is_empty() {
            self.events.begin();
            self.monitor.read(&mut self.events)?;
            self.events.order();
        }
        Ok(self.events.take(most))
    }
}

/// `oh_kernel_monitor_create_sized`.
///
/// # Safety
/// `out` is NULL or writable, `status` likewise; `options` points to `options_size` readable bytes,
/// whose pointers are NULL or strings.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_create_sized(
    out: *mut *mut RawMonitor,
    options: *const RawOptions,
    options_size: usize,
    status: *mut RawStatus,
) -> c_int {
    guard("oh_kernel_monitor_create", || {
        if out.is_null() || options.is_null() {
            return Err(FfiError::invalid("give `out` and `options`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(ptr::null_mut()) };
        // SAFETY: readable by contract; zero bytes are a value of every member.
        let options = unsafe { sized(options, options_size) };
        // SAFETY: a string by contract.
        let names = unsafe { text(options.sensors) }.unwrap_or_default();
        let monitor = Box::new(RawMonitor::create(&options, &names)?);
        // SAFETY: NULL or writable by contract.
        if let Some(status) = unsafe { status.as_mut() } {
            *status = monitor.status();
        }
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(monitor)) };
        Ok(())
    })
}

/// `oh_kernel_monitor_status`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_kernel_monitor_create`; `status` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_status(
    monitor: *const RawMonitor,
    status: *mut RawStatus,
) -> c_int {
    guard("oh_kernel_monitor_status", || {
        // SAFETY: by contract.
        let (monitor, status) = unsafe { (monitor.as_ref(), status.as_mut()) };
        let (Some(monitor), Some(status)) = (monitor, status) else {
            return Err(FfiError::invalid("give a monitor and `status`"));
        };
        monitor.monitor.status()?;
        *status = monitor.status();
        Ok(())
    })
}

/// `oh_kernel_monitor_resume`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_resume(monitor: *mut RawMonitor) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_monitor_resume", monitor, |it| {
            Ok(it.monitor.resume()?)
        })
    }
}

/// `oh_kernel_monitor_suspend`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_suspend(monitor: *mut RawMonitor) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_monitor_suspend", monitor, |it| {
            Ok(it.monitor.suspend()?)
        })
    }
}

/// `oh_kernel_monitor_read`.
///
/// # Safety
/// As for [`with`]; `events` has room for `capacity` of them, `count` is writable or NULL.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_read(
    monitor: *mut RawMonitor,
    events: *mut RawKernelEvent,
    capacity: u64,
    count: *mut u64,
) -> c_int {
    let read = |it: &mut RawMonitor| {
        // SAFETY: by contract.
        let Some(count) = (unsafe { count.as_mut() }) else {
            return Err(FfiError::invalid("give `count`"));
        };
        *count = 0;
        if events.is_null() && capacity > 0 {
            return Err(FfiError::invalid(
                "give `events`, with room for `capacity` of them",
            ));
        }
        let taken = it.read(capacity)?;
        if !taken.is_empty() {
            // SAFETY: `taken` has at most `capacity` elements, for which `events` has room by
            // contract; the caller's array is no part of the monitor.
            unsafe { events.copy_from_nonoverlapping(taken.as_ptr(), taken.len()) };
        }
        *count = taken.len() as u64;
        match it.events.take_complaint() {
            Some(message) => Err(FfiError::new(-libc::EIO, message)),
            None => Ok(()),
        }
    };
    // SAFETY: the contract is passed on.
    unsafe { with("oh_kernel_monitor_read", monitor, read) }
}

/// `oh_kernel_monitor_finish`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_finish(monitor: *mut RawMonitor) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_monitor_finish", monitor, |it| {
            Ok(it.monitor.finish()?)
        })
    }
}

/// `oh_kernel_monitor_terminate`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_terminate(monitor: *mut RawMonitor) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_monitor_terminate", monitor, |it| {
            Ok(it.monitor.terminate()?)
        })
    }
}

/// `oh_kernel_monitor_free`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_kernel_monitor_create` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_free(monitor: *mut RawMonitor) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(monitor) };
}

/// `oh_kernel_thread_monitor`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_thread_monitor(
    monitor: *mut RawMonitor,
    thread: u32,
    unique_id: u32,
) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_thread_monitor", monitor, |it| {
            Ok(it.monitor.thread_monitor(thread, unique_id)?)
        })
    }
}

/// `oh_kernel_thread_unmonitor`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_thread_unmonitor(
    monitor: *mut RawMonitor,
    thread: u32,
) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_thread_unmonitor", monitor, |it| {
            Ok(it.monitor.thread_unmonitor(thread)?)
        })
    }
}

/// `oh_kernel_process_monitor`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_process_monitor(
    monitor: *mut RawMonitor,
    process: u32,
) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_process_monitor", monitor, |it| {
            Ok(it.monitor.process_monitor(process)?)
        })
    }
}

/// `oh_kernel_cgroup_monitor`.
///
/// # Safety
/// As for [`with`]; `path` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_cgroup_monitor(
    monitor: *mut RawMonitor,
    path: *const c_char,
) -> c_int {
    let select = |it: &mut RawMonitor| {
        // SAFETY: by contract.
        let path = unsafe { text(path) }.ok_or_else(|| FfiError::invalid("give a path"))?;
        Ok(it.monitor.cgroup_monitor(Path::new(&path))?)
    };
    // SAFETY: the contract is passed on.
    unsafe { with("oh_kernel_cgroup_monitor", monitor, select) }
}

/// `oh_kernel_all_monitor`.
///
/// # Safety
/// As for [`with`].
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_all_monitor(monitor: *mut RawMonitor) -> c_int {
    // SAFETY: the contract is passed on.
    unsafe {
        with("oh_kernel_all_monitor", monitor, |it| {
            Ok(it.monitor.all_monitor()?)
        })
    }
}

/// A descriptor of C.
///
/// # Safety
/// It is negative, or open and stays so while it is used.
unsafe fn socket<'a>(fd: c_int) -> Result<BorrowedFd<'a>, FfiError> {
    if fd < 0 {
        return Err(FfiError::invalid("give a connected socket"));
    }
    // SAFETY: open by contract, and not negative.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// `oh_kernel_monitor_give`.
///
/// # Safety
/// As for [`with`]; `to` is negative, or open during the call.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_give(
    monitor: *mut RawMonitor,
    to: c_int,
) -> c_int {
    // SAFETY: by contract.
    let give = |it: &mut RawMonitor| Ok(it.monitor.give(unsafe { socket(to) }?)?);
    // SAFETY: the contract is passed on.
    unsafe { with("oh_kernel_monitor_give", monitor, give) }
}

/// `oh_kernel_monitor_receive`.
///
/// # Safety
/// `out` is NULL or writable, `status` likewise; `from` is negative, or open during the call.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_kernel_monitor_receive(
    out: *mut *mut RawMonitor,
    from: c_int,
    status: *mut RawStatus,
) -> c_int {
    guard("oh_kernel_monitor_receive", || {
        // SAFETY: NULL or writable by contract.
        let (Some(out), status) = (unsafe { out.as_mut() }, unsafe { status.as_mut() }) else {
            return Err(FfiError::invalid("give `out`"));
        };
        *out = ptr::null_mut();
        // SAFETY: by contract.
        let from = unsafe { socket(from) }?;
        let monitor = Box::new(RawMonitor::of(KernelMonitor::receive(from)?)?);
        if let Some(status) = status {
            *status = monitor.status();
        }
        *out = Box::into_raw(monitor);
        Ok(())
    })
}

/// `oh_kernel_last_error`.
#[no_mangle]
pub(crate) extern "C" fn oh_kernel_last_error() -> *const c_char {
    LastError::as_ptr(&LAST_ERROR)
}
