// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `include/overhear/monitor.h` declares: monitors inside C programs, and waiting for monitors
//! of other processes. The structs mirror that header.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Duration;

use overhear::{NotEvaluated, Waiter};
use overhear_directory::{Directory, Needs, Query};
use overhear_event::{Nanos, StreamIdRange, Timestamp};
use overhear_ffi::{
    release, sized, text, FfiError, KernelEvents, ReadKernelEvents, ResumeKernel,
    STREAMS_PER_SOURCE,
};
use overhear_metrics::automaton::{MeasurementList, Results, SharedMetrics};
use overhear_monitor::plugin::PluginUpdate;
use overhear_monitor::{
    Binding, Subscription, UpdateRef, UpdateState, UpdateStatus, WaitError, HOLD_BACK,
};

use crate::application::{ApplicationMonitor, MonitorOptions, StartError};
use crate::metric::{read_events, RawMetric};
use crate::results::CALIBRATED;
use crate::{set_last_error, LIBRARY};

/// `oh_monitor_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawMonitorOptions {
    sensors: *const c_char,
    announce: *const c_char,
    directory: *const c_char,
    hold_back_ns: u64,
    required: *const *const c_char,
    disable_unused: u32,
    reserved: u32,
}

/// `oh_update_status`.
#[repr(C)]
pub(crate) struct RawUpdateStatus {
    elements: u64,
    missed: u64,
    state: u32,
    refused: u32,
}

const _: () = {
    assert!(offset_of!(RawMonitorOptions, required) == 32);
    assert!(size_of::<RawMonitorOptions>() == 48);
    assert!(offset_of!(RawUpdateStatus, state) == 16);
    assert!(size_of::<RawUpdateStatus>() == 24);
};

/// `oh_monitor`.
pub(crate) struct RawMonitor {
    monitor: ApplicationMonitor,
    // Indexed by the number that C has for an update; `None` for removed ones.
    updates: Vec<Option<AddedUpdate>>,
    // Stream ids for further kernel monitors, which no directory gives out.
    free_streams: StreamIdRange,
}

/// Pause between two looks whether the monitor's thread has ended its round.
const ROUND_POLL: Duration = Duration::from_micros(250);

/// An update or a metric in a monitor.
enum AddedUpdate {
    Update(UpdateRef<PluginUpdate>),
    Metric(UpdateRef<SharedMetrics>, SharedMetrics),
}

impl AddedUpdate {
    fn status(&self) -> UpdateStatus {
        match self {
            Self::Update(update) => update.status(),
            Self::Metric(update, _) => update.status(),
        }
    }

    fn remove(&self) {
        match self {
            Self::Update(update) => update.remove(),
            Self::Metric(update, _) => update.remove(),
        }
    }

    /// Drops it if its removal is complete. Returns whether it was dropped.
    fn is_dropped(&self) -> bool {
        match self {
            Self::Update(update) => update.take().is_some(),
            Self::Metric(update, _) => update.take().is_some(),
        }
    }
}

impl RawMonitor {
    /// Waits until the monitor calls an added update, and returns its number. The update evaluates
    /// what is written from then on.
    ///
    /// # Safety
    /// `monitor` is not NULL, came from `oh_monitor_start`, and no other thread uses it.
    unsafe fn keep(monitor: *mut Self, added: AddedUpdate) -> Result<c_int, FfiError> {
        // The monitor adds it at the end of a round.
        loop {
            match added.status().state {
                UpdateState::Waiting => std::thread::sleep(ROUND_POLL),
                UpdateState::Failed(why) => return Err(FfiError::invalid(why)),
                _ => break,
            }
        }
        // SAFETY: by contract; the caller uses no reference to it any more.
        let updates = unsafe { &mut (*monitor).updates };
        updates.push(Some(added));
        c_int::try_from(updates.len() - 1).map_err(FfiError::invalid)
    }

    /// Fails in the monitor's own thread, in which its updates run: the call would wait for that
    /// thread.
    fn deny_own_thread(&self) -> Result<(), FfiError> {
        if !self.monitor.is_current_thread() {
            return Ok(());
        }
        let message = "an update cannot call this for its own monitor; let another thread do so";
        Err(FfiError::new(-libc::EDEADLK, message))
    }
}

/// `oh_directory`.
pub(crate) struct RawDirectory(
    #[allow(dead_code, reason = "its destructor ends the directory")] Directory,
);

impl From<StartError> for FfiError {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Sensors { .. } => -libc::EINVAL,
            StartError::Thread(_) => -libc::EAGAIN,
            _ => -libc::ENOENT,
        };
        Self::new(code, error)
    }
}

fn time(ns: u64) -> Timestamp {
    Timestamp::ZERO.plus(Nanos::from_ns(ns))
}

/// `oh_directory_start`.
///
/// # Safety
/// `out` is NULL or writable; `socket` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_directory_start(
    out: *mut *mut RawDirectory,
    socket: *const c_char,
) -> c_int {
    LIBRARY.guard("oh_directory_start", || {
        // SAFETY: by contract.
        let socket = unsafe { text(socket) }.filter(|_| !out.is_null());
        let socket = socket.ok_or_else(|| FfiError::invalid("give `out` and `socket`"))?;
        let started = Directory::builder().standalone().start(Path::new(&socket));
        let directory = started.map_err(|error| FfiError::new(-libc::EADDRINUSE, error))?;
        // SAFETY: writable by contract.
        unsafe { out.write(Box::into_raw(Box::new(RawDirectory(directory)))) };
        Ok(0)
    })
}

/// `oh_directory_stop`.
///
/// # Safety
/// `directory` is NULL or came from `oh_directory_start` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_directory_stop(directory: *mut RawDirectory) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(directory) };
}

/// `oh_monitor_start_sized`.
///
/// # Safety
/// `out` is NULL or writable; `options` points to `options_size` readable bytes, whose pointers are
/// NULL or strings.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_start_sized(
    out: *mut *mut RawMonitor,
    options: *const RawMonitorOptions,
    options_size: usize,
) -> c_int {
    LIBRARY.guard("oh_monitor_start", || {
        if out.is_null() || options.is_null() {
            return Err(FfiError::invalid("give `out` and `options`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: readable by contract; zero bytes are a value of every member.
        let options = unsafe { sized(options, options_size) };
        // SAFETY: strings by contract, and a list of them.
        let (sensors, announce, directory, required) = unsafe {
            (
                text(options.sensors),
                text(options.announce),
                text(options.directory).map(PathBuf::from),
                read_events(options.required)?,
            )
        };
        let needs = required.map_or(Needs::all(), Needs::events);
        let needs = match options.disable_unused {
            0 => needs,
            _ => needs.disable_unused(),
        };
        let monitor = ApplicationMonitor::start(&MonitorOptions {
            socket: directory.as_deref(),
            sensors: sensors.as_deref().unwrap_or("*"),
            announce: announce.as_deref(),
            needs,
            hold_back: match options.hold_back_ns {
                0 => HOLD_BACK,
                ns => Nanos::from_ns(ns),
            },
        })?;
        let monitor = RawMonitor {
            monitor,
            updates: Vec::new(),
            free_streams: StreamIdRange::LOCAL,
        };
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(monitor))) };
        Ok(0)
    })
}

/// `oh_monitor_add`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it; `update` is as
/// `update.h` specifies, `argument` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_add(
    monitor: *mut RawMonitor,
    update: *const c_void,
    argument: *const c_char,
    application: *mut c_void,
) -> c_int {
    LIBRARY.guard("oh_monitor_add", || {
        // SAFETY: by contract.
        let outside = unsafe { monitor.as_ref() };
        let outside = outside.ok_or_else(|| FfiError::invalid("the monitor is NULL"))?;
        outside.deny_own_thread()?;
        // SAFETY: by contract.
        let argument = unsafe { text(argument) }.unwrap_or_default();
        // SAFETY: by contract.
        let made = unsafe { PluginUpdate::in_process(update, &argument, application) };
        let update = made.map_err(FfiError::invalid)?;
        let streams = Query::streams(update.sensors().unwrap_or("*"));
        let streams = streams.map_err(FfiError::invalid)?;
        let binding = Binding::new(update.name())
            .subscribe(Subscription::all().matching(streams))
            .on_missed(update.missed_policy());
        let added = outside.monitor.supervisor().add(update, binding);
        let added = added.map_err(FfiError::invalid)?;
        // SAFETY: by contract; the reference above is used no more.
        unsafe { RawMonitor::keep(monitor, AddedUpdate::Update(added)) }
    })
}

/// `oh_monitor_measure`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it; `metric` is NULL
/// or came from a function of `metric.h`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_measure(
    monitor: *mut RawMonitor,
    metric: *const RawMetric,
    element_cost_ns: u64,
) -> c_int {
    const NAME: &str = "oh_monitor_measure";
    LIBRARY.guard(NAME, || {
        // SAFETY: by contract.
        let given = unsafe { (monitor.as_ref(), metric.as_ref()) };
        let (Some(outside), Some(metric)) = given else {
            return Err(FfiError::invalid("give a monitor and a metric"));
        };
        outside.deny_own_thread()?;
        if element_cost_ns == CALIBRATED {
            let message = "only a recording has a calibration; give a length";
            return Err(FfiError::invalid(message));
        }
        let results = Results::default().minus_costs(Nanos::from_ns(element_cost_ns));
        let metrics = SharedMetrics::new([metric.metric().clone()], results);
        // Elements of other streams count as intermediate events.
        let binding = Binding::new(metric.metric().name()).subscribe(Subscription::all());
        let added = outside.monitor.supervisor().add(metrics.clone(), binding);
        let added = added.map_err(FfiError::invalid)?;
        // SAFETY: by contract; the reference above is used no more.
        unsafe { RawMonitor::keep(monitor, AddedUpdate::Metric(added, metrics)) }
    })
}

/// `oh_monitor_results`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_results(
    monitor: *mut RawMonitor,
    number: c_int,
    out: *mut *mut MeasurementList,
) -> c_int {
    const NAME: &str = "oh_monitor_results";
    LIBRARY.guard(NAME, || {
        if out.is_null() {
            return Err(FfiError::invalid("give `out`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let (_, found) = unsafe { update(monitor, number) }?;
        let AddedUpdate::Metric(_, metrics) = found else {
            return Err(FfiError::invalid(format!(
                "the update {number} is no metric"
            )));
        };
        let taken = metrics.take().into_iter().next().unwrap_or_default();
        let not_connected = taken
            .absent_events
            .iter()
            .map(|event| format!("so far no stream of {event}"));
        let messages: Vec<String> = not_connected.chain(metrics.complaints()).collect();
        set_last_error(&messages.join("; "));
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(MeasurementList::from(taken)))) };
        Ok(0)
    })
}

/// `oh_monitor_add_kernel`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it; `kernel` is what
/// `resume` and `read` take, and only used by them from now on, until the monitor has stopped.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_add_kernel(
    monitor: *mut RawMonitor,
    kernel: *mut c_void,
    resume: Option<ResumeKernel>,
    read: Option<ReadKernelEvents>,
    most_events: u64,
) -> c_int {
    const NAME: &str = "oh_monitor_add_kernel";
    LIBRARY.guard(NAME, || {
        // SAFETY: by contract.
        let outside = unsafe { monitor.as_mut() };
        let calls = resume.zip(read).filter(|_| !kernel.is_null());
        let (Some(outside), Some(calls)) = (outside, calls) else {
            return Err(FfiError::invalid(
                "give a monitor, a kernel monitor and the functions that resume and read it",
            ));
        };
        outside.deny_own_thread()?;
        let Some(streams) = outside.free_streams.take(STREAMS_PER_SOURCE) else {
            return Err(FfiError::invalid(
                "the monitor has no stream numbers left for another kernel monitor",
            ));
        };
        // SAFETY: by contract.
        let source =
            unsafe { KernelEvents::new(kernel, calls, most_events, streams.first().as_raw()) };
        outside.monitor.add_source(Box::new(source));
        Ok(0)
    })
}

/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`.
unsafe fn update<'a>(
    monitor: *mut RawMonitor,
    number: c_int,
) -> Result<(&'a RawMonitor, &'a AddedUpdate), FfiError> {
    // SAFETY: by contract.
    let monitor = unsafe { monitor.as_ref() };
    let monitor = monitor.ok_or_else(|| FfiError::invalid("the monitor is NULL"))?;
    monitor.deny_own_thread()?;
    let index = usize::try_from(number).ok();
    let update = index.and_then(|index| monitor.updates.get(index)?.as_ref());
    let update = update.ok_or_else(|| FfiError::invalid(format!("there is no update {number}")))?;
    Ok((monitor, update))
}

/// `oh_monitor_status`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`; `out` is NULL or writable.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_status(
    monitor: *mut RawMonitor,
    number: c_int,
    out: *mut RawUpdateStatus,
) -> c_int {
    LIBRARY.guard("oh_monitor_status", || {
        // SAFETY: by contract.
        let (_, update) = unsafe { update(monitor, number) }?;
        let status = update.status();
        let (state, why) = match status.state {
            UpdateState::Waiting => (0, None),
            UpdateState::Running | UpdateState::Removed => (1, None),
            UpdateState::Stopped(gap) => (2, Some(format!("{} elements were missed", gap.missed))),
            UpdateState::Failed(why) => (3, Some(why)),
        };
        let refused = u32::try_from(status.complaints.len()).unwrap_or(u32::MAX);
        let messages: Vec<String> = why.into_iter().chain(status.complaints).collect();
        set_last_error(&messages.join("; "));
        // SAFETY: by contract.
        if let Some(out) = unsafe { out.as_mut() } {
            *out = RawUpdateStatus {
                elements: status.elements,
                missed: status.missed,
                state,
                refused,
            };
        }
        Ok(0)
    })
}

/// `oh_monitor_remove`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_remove(
    monitor: *mut RawMonitor,
    number: c_int,
) -> c_int {
    LIBRARY.guard("oh_monitor_remove", || {
        // SAFETY: by contract.
        let (_, found) = unsafe { update(monitor, number) }?;
        found.remove();
        // At the end of a round, which comes as long as the thread runs.
        while !found.is_dropped() {
            std::thread::sleep(ROUND_POLL);
        }
        // SAFETY: by contract; the reference above is used no more.
        if let Some(monitor) = unsafe { monitor.as_mut() } {
            monitor.updates[number.unsigned_abs() as usize] = None;
        }
        Ok(0)
    })
}

/// `oh_monitor_wait`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and is not stopped meanwhile.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_wait(
    monitor: *mut RawMonitor,
    until_ns: u64,
    timeout_ns: u64,
) -> c_int {
    LIBRARY.guard("oh_monitor_wait", || {
        // SAFETY: by contract.
        let monitor = unsafe { monitor.as_ref() };
        let monitor = monitor.ok_or_else(|| FfiError::invalid("the monitor is NULL"))?;
        monitor.deny_own_thread()?;
        let timeout = Duration::from_nanos(timeout_ns);
        let waited = monitor
            .monitor
            .supervisor()
            .wait_evaluated(time(until_ns), timeout);
        waited.map(|_| 0).map_err(|error| {
            let code = match error {
                WaitError::TimedOut { .. } => -libc::ETIMEDOUT,
                WaitError::Ended { .. } => -libc::ESRCH,
            };
            FfiError::new(code, error)
        })
    })
}

/// `oh_monitor_stop`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_stop(monitor: *mut RawMonitor) {
    // SAFETY: by contract.
    let Some(borrowed) = (unsafe { monitor.as_ref() }) else {
        return;
    };
    // In its own thread it goes on, because a thread cannot wait for its own end.
    let refused = LIBRARY.guard("oh_monitor_stop", || borrowed.deny_own_thread().map(|()| 0));
    if refused == 0 {
        // SAFETY: made by Box::into_raw; the caller gives it back.
        let monitor = unsafe { Box::from_raw(monitor) };
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let RawMonitor {
                monitor, updates, ..
            } = *monitor;
            // First the thread, so that the updates are destroyed here.
            drop(monitor);
            drop(updates);
        }));
    }
}

/// `oh_waiter_attach`.
///
/// # Safety
/// `out` is NULL or writable; `monitor` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_waiter_attach(
    out: *mut *mut Waiter,
    monitor: *const c_char,
) -> c_int {
    LIBRARY.guard("oh_waiter_attach", || {
        // SAFETY: by contract.
        let monitor = unsafe { text(monitor) }.filter(|_| !out.is_null());
        let monitor = monitor.ok_or_else(|| FfiError::invalid("give `out` and a name"))?;
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        let waiter = Waiter::attach(&monitor);
        let waiter = waiter.map_err(|error| FfiError::new(-libc::ENOENT, error))?;
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(waiter))) };
        Ok(0)
    })
}

/// `oh_waiter_wait`.
///
/// # Safety
/// `waiter` is NULL or came from `oh_waiter_attach`, and no other thread uses it.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_waiter_wait(
    waiter: *mut Waiter,
    until_ns: u64,
    timeout_ns: u64,
) -> c_int {
    LIBRARY.guard("oh_waiter_wait", || {
        // SAFETY: by contract.
        let waiter = unsafe { waiter.as_mut() };
        let waiter = waiter.ok_or_else(|| FfiError::invalid("the waiter is NULL"))?;
        let waited = waiter.wait(time(until_ns), Duration::from_nanos(timeout_ns));
        waited.map(|_| 0).map_err(|error| {
            let code = match error {
                NotEvaluated::NotAnnounced => -libc::ENOENT,
                NotEvaluated::TimedOut { .. } => -libc::ETIMEDOUT,
                NotEvaluated::Ended { .. } => -libc::ESRCH,
            };
            FfiError::new(code, error)
        })
    })
}

/// `oh_waiter_detach`.
///
/// # Safety
/// `waiter` is NULL or came from `oh_waiter_attach` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_waiter_detach(waiter: *mut Waiter) {
    // SAFETY: made by Box::into_raw, and given back by contract.
    unsafe { release(waiter) };
}
