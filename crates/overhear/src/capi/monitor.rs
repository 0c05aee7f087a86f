// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `include/overhear/monitor.h` declares: monitors inside C programs, and waiting for those of
//! others. The structs mirror that header.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of, MaybeUninit};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Duration;

use overhear_directory::{Directory, Needs, Query};
use overhear_event::{Nanos, Timestamp};
use overhear_metrics::automaton::{Results, SharedMetrics};
use overhear_monitor::plugin::PluginUpdate;
use overhear_monitor::{
    Binding, Subscription, UpdateRef, UpdateState, UpdateStatus, WaitError, HOLD_BACK,
};

use super::metric::{events, RawMetric};
use super::results::{RawResults, CALIBRATED};
use super::source::{KernelEvents, ReadEvents, Resume, STREAMS_OF_SOURCE};
use super::{guard, invalid, remember, text, Failure};
use crate::announce::{NotEvaluated, Waiter};
use crate::application::{ApplicationMonitor, StartError, Wish};

/// `oh_monitor_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawMonitorOptions {
    sensors: *const c_char,
    announce: *const c_char,
    directory: *const c_char,
    hold_back_ns: u64,
    required: *const *const c_char,
    only_needed: u32,
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
    // By their numbers; those that were removed leave their place.
    updates: Vec<Option<Evaluation>>,
    // Numbers for the streams of further sources, which the directory does not give.
    next_stream: u32,
}

/// Numbers from here on are no directory's: it would have to give out so many first.
const FURTHER_STREAMS: u32 = 1 << 30;

/// What a monitor calls.
enum Evaluation {
    Update(UpdateRef<PluginUpdate>),
    Metric(UpdateRef<SharedMetrics>, SharedMetrics),
}

impl Evaluation {
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

    /// Drops it once it was removed; says whether it was.
    fn is_dropped(&self) -> bool {
        match self {
            Self::Update(update) => update.take().is_some(),
            Self::Metric(update, _) => update.take().is_some(),
        }
    }
}

impl RawMonitor {
    /// Keeps what was added, once it has got its place; what is written from then on is evaluated by it.
    ///
    /// # Safety
    /// `monitor` is not NULL, came from `oh_monitor_start`, and no other thread uses it.
    unsafe fn keep(monitor: *mut Self, added: Evaluation, name: &str) -> Result<c_int, Failure> {
        let wrong = |error: &dyn std::fmt::Display| invalid(&format!("{name}: {error}"));
        // It gets its place at the end of a round.
        loop {
            match added.status().state {
                UpdateState::Waiting => std::thread::sleep(Duration::from_micros(250)),
                UpdateState::Failed(why) => return Err(wrong(&why)),
                _ => break,
            }
        }
        // SAFETY: by contract; who has borrowed it uses the reference no more.
        let updates = unsafe { &mut (*monitor).updates };
        updates.push(Some(added));
        c_int::try_from(updates.len() - 1).map_err(|error| wrong(&error))
    }

    /// Refuses a call of one of the monitor's own updates: it would wait for the thread that it is in.
    fn ask_from_outside(&self, name: &str) -> Result<(), Failure> {
        if !self.monitor.is_current_thread() {
            return Ok(());
        }
        let sentence = format!(
            "{name}: an update cannot ask this of the monitor that it is called by; let another thread do so"
        );
        Err(Failure(-libc::EDEADLK, sentence))
    }
}

/// `oh_directory`.
pub(crate) struct RawDirectory(
    // Held for its end.
    #[allow(dead_code, reason = "its destructor ends it")] Directory,
);

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match error {
            StartError::Sensors { .. } => -libc::EINVAL,
            StartError::Thread(_) => -libc::EAGAIN,
            _ => -libc::ENOENT,
        };
        Self(code, format!("oh_monitor_start: {error}"))
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
    guard("oh_directory_start", || {
        // SAFETY: by contract.
        let socket = unsafe { text(socket) }.filter(|_| !out.is_null());
        let socket =
            socket.ok_or_else(|| invalid("oh_directory_start: give `out` and `socket`"))?;
        let started = Directory::builder().standalone().start(Path::new(&socket));
        let directory = started
            .map_err(|error| Failure(-libc::EADDRINUSE, format!("oh_directory_start: {error}")))?;
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
    if !directory.is_null() {
        // SAFETY: made by Box::into_raw; the caller gives it back.
        let directory = unsafe { Box::from_raw(directory) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(directory)));
    }
}

/// `oh_monitor_start_sized`.
///
/// # Safety
/// `out` is NULL or writable; `options` points to `options_size` readable bytes, whose pointers are NULL
/// or strings.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_start_sized(
    out: *mut *mut RawMonitor,
    options: *const RawMonitorOptions,
    options_size: usize,
) -> c_int {
    guard("oh_monitor_start", || {
        if out.is_null() || options.is_null() {
            return Err(invalid("oh_monitor_start: give `out` and `options`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        // Members are added at the end alone: what an older program does not have is zero.
        let mut known = MaybeUninit::<RawMonitorOptions>::zeroed();
        let size = options_size.min(size_of::<RawMonitorOptions>());
        let options = unsafe {
            // SAFETY: both are at least this long; zero bytes are a value of every member.
            known
                .as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping(options.cast(), size);
            known.assume_init()
        };
        // SAFETY: strings by contract, and a list of them.
        let (sensors, announce, directory, required) = unsafe {
            (
                text(options.sensors),
                text(options.announce),
                text(options.directory).map(PathBuf::from),
                events(options.required)?,
            )
        };
        let needs = required.map_or(Needs::all(), Needs::events);
        let needs = match options.only_needed {
            0 => needs,
            _ => needs.only(),
        };
        let monitor = ApplicationMonitor::start(&Wish {
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
            next_stream: FURTHER_STREAMS,
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
/// `update.h` says, `argument` is NULL or a string.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_add(
    monitor: *mut RawMonitor,
    update: *const c_void,
    argument: *const c_char,
    application: *mut c_void,
) -> c_int {
    guard("oh_monitor_add", || {
        // SAFETY: by contract.
        let outside = unsafe { monitor.as_ref() };
        let outside = outside.ok_or_else(|| invalid("oh_monitor_add: the monitor is NULL"))?;
        outside.ask_from_outside("oh_monitor_add")?;
        // SAFETY: by contract.
        let argument = unsafe { text(argument) }.unwrap_or_default();
        let wrong = |error: &dyn std::fmt::Display| invalid(&format!("oh_monitor_add: {error}"));
        // SAFETY: by contract.
        let made = unsafe { PluginUpdate::in_process(update, &argument, application) };
        let update = made.map_err(|error| wrong(&error))?;
        let streams = Query::streams(update.sensors().unwrap_or("*"));
        let streams = streams.map_err(|error| wrong(&error))?;
        let binding = Binding::new(update.name())
            .subscribe(Subscription::all().matching(streams))
            .on_missed(update.missed_policy());
        let added = outside.monitor.supervisor().add(update, binding);
        let added = added.map_err(|error| wrong(&error))?;
        // SAFETY: by contract; the reference above is used no more.
        unsafe { RawMonitor::keep(monitor, Evaluation::Update(added), "oh_monitor_add") }
    })
}

/// `oh_monitor_measure`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it; `metric` is NULL or came
/// from a function of `metric.h`.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_measure(
    monitor: *mut RawMonitor,
    metric: *const RawMetric,
    element_cost_ns: u64,
) -> c_int {
    const NAME: &str = "oh_monitor_measure";
    guard(NAME, || {
        // SAFETY: by contract.
        let given = unsafe { (monitor.as_ref(), metric.as_ref()) };
        let (Some(outside), Some(metric)) = given else {
            return Err(invalid("oh_monitor_measure: give a monitor and a metric"));
        };
        outside.ask_from_outside(NAME)?;
        if element_cost_ns == CALIBRATED {
            let sentence = "a calibration is kept by a recording; give a length";
            return Err(invalid(&format!("{NAME}: {sentence}")));
        }
        let results = Results::default().less(Nanos::from_ns(element_cost_ns));
        let metrics = SharedMetrics::new([metric.metric().clone()], results);
        // Elements of other streams count as intermediate events.
        let binding = Binding::new(metric.metric().name()).subscribe(Subscription::all());
        let added = outside.monitor.supervisor().add(metrics.clone(), binding);
        let added = added.map_err(|error| invalid(&format!("{NAME}: {error}")))?;
        // SAFETY: by contract; the reference above is used no more.
        unsafe { RawMonitor::keep(monitor, Evaluation::Metric(added, metrics), NAME) }
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
    out: *mut *mut RawResults,
) -> c_int {
    const NAME: &str = "oh_monitor_results";
    guard(NAME, || {
        if out.is_null() {
            return Err(invalid("oh_monitor_results: give `out`"));
        }
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        // SAFETY: by contract.
        let (_, found) = unsafe { update(monitor, number, NAME) }?;
        let Evaluation::Metric(_, metrics) = found else {
            return Err(invalid(&format!(
                "{NAME}: the update {number} is no metric"
            )));
        };
        let taken = metrics.take().into_iter().next().unwrap_or_default();
        let unheard = taken
            .unheard
            .iter()
            .map(|event| format!("{event} was not heard so far"));
        let sentences: Vec<String> = unheard.chain(metrics.complaints()).collect();
        remember(&sentences.join("; "));
        // SAFETY: as above.
        unsafe { out.write(Box::into_raw(Box::new(RawResults::from(taken)))) };
        Ok(0)
    })
}

/// `oh_monitor_hear`.
///
/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`, and no other thread uses it; `kernel` is what `resume` and
/// `read` take, and only used by them from now on, until the monitor has stopped.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_monitor_hear(
    monitor: *mut RawMonitor,
    kernel: *mut c_void,
    resume: Option<Resume>,
    read: Option<ReadEvents>,
    most_events: u64,
) -> c_int {
    const NAME: &str = "oh_monitor_hear";
    guard(NAME, || {
        // SAFETY: by contract.
        let outside = unsafe { monitor.as_mut() };
        let calls = resume.zip(read).filter(|_| !kernel.is_null());
        let (Some(outside), Some(calls)) = (outside, calls) else {
            return Err(invalid(
                "oh_monitor_hear: give a monitor, a kernel monitor and how it is read",
            ));
        };
        outside.ask_from_outside(NAME)?;
        let first = outside.next_stream;
        outside.next_stream = first.saturating_add(STREAMS_OF_SOURCE);
        // SAFETY: by contract.
        let source = unsafe { KernelEvents::new(kernel, calls, most_events, first) };
        outside.monitor.add_source(Box::new(source));
        Ok(0)
    })
}

/// # Safety
/// `monitor` is NULL or came from `oh_monitor_start`.
unsafe fn update<'a>(
    monitor: *mut RawMonitor,
    number: c_int,
    name: &str,
) -> Result<(&'a RawMonitor, &'a Evaluation), Failure> {
    // SAFETY: by contract.
    let monitor = unsafe { monitor.as_ref() };
    let monitor = monitor.ok_or_else(|| invalid(&format!("{name}: the monitor is NULL")))?;
    monitor.ask_from_outside(name)?;
    let place = usize::try_from(number).ok();
    let update = place.and_then(|place| monitor.updates.get(place)?.as_ref());
    let update = update.ok_or_else(|| invalid(&format!("{name}: there is no update {number}")))?;
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
    guard("oh_monitor_status", || {
        // SAFETY: by contract.
        let (_, update) = unsafe { update(monitor, number, "oh_monitor_status") }?;
        let status = update.status();
        let (state, why) = match status.state {
            UpdateState::Waiting => (0, None),
            UpdateState::Running | UpdateState::Removed => (1, None),
            UpdateState::Stopped(gap) => (2, Some(format!("{} elements were missed", gap.missed))),
            UpdateState::Failed(why) => (3, Some(why)),
        };
        let refused = u32::try_from(status.complaints.len()).unwrap_or(u32::MAX);
        let sentences: Vec<String> = why.into_iter().chain(status.complaints).collect();
        remember(&sentences.join("; "));
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
    guard("oh_monitor_remove", || {
        // SAFETY: by contract.
        let (_, found) = unsafe { update(monitor, number, "oh_monitor_remove") }?;
        found.remove();
        // At the end of a round, which comes as long as the thread runs.
        while !found.is_dropped() {
            std::thread::sleep(Duration::from_micros(250));
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
    guard("oh_monitor_wait", || {
        // SAFETY: by contract.
        let monitor = unsafe { monitor.as_ref() };
        let monitor = monitor.ok_or_else(|| invalid("oh_monitor_wait: the monitor is NULL"))?;
        monitor.ask_from_outside("oh_monitor_wait")?;
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
            Failure(code, format!("oh_monitor_wait: {error}"))
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
    // It goes on: its thread cannot wait for its own end.
    let refused = guard("oh_monitor_stop", || {
        borrowed.ask_from_outside("oh_monitor_stop").map(|()| 0)
    });
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
    guard("oh_waiter_attach", || {
        // SAFETY: by contract.
        let monitor = unsafe { text(monitor) }.filter(|_| !out.is_null());
        let monitor = monitor.ok_or_else(|| invalid("oh_waiter_attach: give `out` and a name"))?;
        // SAFETY: writable by contract.
        unsafe { out.write(std::ptr::null_mut()) };
        let waiter = Waiter::attach(&monitor);
        let waiter =
            waiter.map_err(|error| Failure(-libc::ENOENT, format!("oh_waiter_attach: {error}")))?;
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
    guard("oh_waiter_wait", || {
        // SAFETY: by contract.
        let waiter = unsafe { waiter.as_mut() };
        let waiter = waiter.ok_or_else(|| invalid("oh_waiter_wait: the waiter is NULL"))?;
        let waited = waiter.wait(time(until_ns), Duration::from_nanos(timeout_ns));
        waited.map(|_| 0).map_err(|error| {
            let code = match error {
                NotEvaluated::Nobody => -libc::ENOENT,
                NotEvaluated::TimedOut { .. } => -libc::ETIMEDOUT,
                NotEvaluated::Ended { .. } => -libc::ESRCH,
            };
            Failure(code, format!("oh_waiter_wait: {error}"))
        })
    })
}

/// `oh_waiter_detach`.
///
/// # Safety
/// `waiter` is NULL or came from `oh_waiter_attach` and is not used any more.
#[no_mangle]
pub(crate) unsafe extern "C" fn oh_waiter_detach(waiter: *mut Waiter) {
    if !waiter.is_null() {
        // SAFETY: made by Box::into_raw; the caller gives it back.
        let waiter = unsafe { Box::from_raw(waiter) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(waiter)));
    }
}
