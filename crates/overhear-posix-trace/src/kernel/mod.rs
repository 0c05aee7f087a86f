// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the kernel in trace streams: context switches, system calls, interrupts, timers.
//!
//! ```text
//!  kernel monitor of liboverhear_kernel     in the controller, loaded when a filter first lets
//!      | streams per sensor and CPU         an event type of Linux through
//!      v
//!  KernelQueue     events in the order of time; event types 16 to 63
//!      v
//!  MergedEvents -> reader of the stream, which merges them with the ring
//! ```
//!
//! [`KernelRecorder`] is the kernel side of one stream. The events stay in the buffers of the
//! kernel monitor until the stream is read or flushed. A stream that is not read loses the oldest
//! ones, which are counted.
//!
//! An event's data is the payload of the kernel sensor, followed by the number of the CPU as a
//! `uint32_t`.

mod library;
mod merged;
mod queue;

use std::ffi::{c_void, CString};
use std::ptr;

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{Source, Timestamp};
use overhear_ffi::KernelEvents;

pub use merged::{MergedEvents, MergedItem};
pub use queue::CPU_BYTES;

use crate::{EventId, EventTypeSet, Inheritance, TraceError};
use library::{KernelLibrary, MonitorOptions, MonitorStatus};
use queue::KernelQueue;

/// `OH_KERNEL_PERF`: the kernel permits this user no BPF programs.
const PERF: u32 = 2;

/// Approximate default size of a kernel monitor's buffers in bytes.
const DEFAULT_BUFFER_BYTES: u64 = 4 << 20;

/// A kernel monitor of the loaded library. It is freed when dropped.
struct Monitor {
    library: &'static KernelLibrary,
    kernel: *mut c_void,
    events: KernelEvents,
    /// The types whose sensors it records.
    selected: EventTypeSet,
    /// Message about its backend and missing sensors.
    message: String,
    backend: u32,
}

// SAFETY: one thread at a time uses a monitor, which is what its library requires.
unsafe impl Send for Monitor {}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing uses it any more.
        unsafe { (self.library.free)(self.kernel) };
    }
}

/// Names of sensors for `oh_kernel_monitor_options`. It always has the lives of threads: then other
/// sensors of scheduling stay disabled.
fn sensors(events: EventTypeSet) -> String {
    let mut names: Vec<&str> = events
        .iter()
        .filter_map(|event| event.kernel_name())
        .collect();
    if !names.contains(&TASK_LIFE) {
        names.push(TASK_LIFE);
    }
    names.join(",")
}

/// The sensors of selected types that a monitor does not record, by its backend and its message:
/// perf records are switches and lives only, and a kernel may lack the hook of a sensor.
fn lacking(selected: EventTypeSet, is_perf: bool, message: &str) -> Vec<&'static str> {
    let names = selected.iter().filter_map(|event| event.kernel_name());
    names
        .filter(|name| match is_perf {
            true => ![SCHED_SWITCH, TASK_LIFE].contains(name),
            false => message.contains(&format!("there is no sensor {name},")),
        })
        .collect()
}

impl Monitor {
    /// A suspended monitor of a process and of the processes that it creates.
    fn new(process: u32, selected: EventTypeSet, buffer_bytes: u64) -> Result<Self, TraceError> {
        let library = KernelLibrary::load().map_err(|error| {
            let message =
                format!("events of the kernel need liboverhear_kernel; install it: {error}");
            TraceError::new(libc::ENOSYS, message)
        })?;
        let failed = |code: i32| TraceError::new(-code, library.last_error());
        let names = CString::new(sensors(selected)).unwrap_or_default();
        let options = MonitorOptions {
            buffer_bytes,
            sensors: names.as_ptr(),
            backend: 0,
            dedicated_programs: 0,
        };
        let mut status = MonitorStatus {
            granted_bytes: 0,
            max_events: 0,
            message: ptr::null(),
            backend: 0,
            reserved: 0,
        };
        let mut kernel = ptr::null_mut();
        // SAFETY: the options and places are those of kernel.h, and live during the call.
        let code = unsafe {
            (library.create)(
                &raw mut kernel,
                &raw const options,
                size_of::<MonitorOptions>(),
                &raw mut status,
            )
        };
        if code != 0 {
            return Err(failed(code));
        }
        // SAFETY: this value alone uses the monitor, which it frees when it is dropped.
        let events = unsafe {
            KernelEvents::new(kernel, (library.resume, library.read), status.max_events, 0)
        };
        let monitor = Self {
            library,
            kernel,
            events,
            selected,
            // SAFETY: the message lives as long as the monitor.
            message: unsafe { overhear_ffi::text(status.message) }.unwrap_or_default(),
            backend: status.backend,
        };
        // SAFETY: the monitor was created just now.
        match unsafe { (library.track_process)(kernel, process) } {
            0 => Ok(monitor),
            code => Err(failed(code)),
        }
    }
}

/// The events of the kernel of one stream.
///
/// It has no kernel monitor until a type is selected and the stream is started. Then it holds one
/// until it is dropped, suspended while the stream is stopped.
pub struct KernelRecorder {
    process: u32,
    buffer_bytes: u64,
    queue: KernelQueue,
    monitor: Option<Monitor>,
    selected: EventTypeSet,
    is_running: bool,
}

impl std::fmt::Debug for KernelRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelRecorder")
            .field("process", &self.process)
            .field("is_running", &self.is_running)
            .finish_non_exhaustive()
    }
}

impl KernelRecorder {
    /// The recorder of a stream of a process. If `stream_bytes` is more than the default size of
    /// the kernel monitor's buffers, it is the approximate size of all of them.
    #[must_use]
    pub fn new(process: u32, inheritance: Inheritance, stream_bytes: u64) -> Self {
        let buffer_bytes = match stream_bytes {
            bytes if bytes > DEFAULT_BUFFER_BYTES => bytes,
            _ => 0,
        };
        Self {
            process,
            buffer_bytes,
            queue: KernelQueue::new(match inheritance {
                Inheritance::CloseForChild => Some(process),
                Inheritance::Inherited => None,
            }),
            monitor: None,
            selected: EventTypeSet::EMPTY,
            is_running: false,
        }
    }

    /// The types that a stream records after its filter was changed: those that were recorded
    /// before, and those that the change removes from the filter.
    #[must_use]
    pub fn selection(
        selected: EventTypeSet,
        old_filter: EventTypeSet,
        filter: EventTypeSet,
    ) -> EventTypeSet {
        let removed = old_filter.difference(filter);
        let mut recordable = EventTypeSet::EMPTY;
        EventId::kernel_events().for_each(|event| recordable.insert(event));
        selected
            .union(removed)
            .difference(filter)
            .intersection(recordable)
    }

    /// The filter of the stream was changed.
    ///
    /// # Errors
    /// Those of [`KernelRecorder::start`], if the stream runs.
    pub fn change_filter(
        &mut self,
        old: EventTypeSet,
        new: EventTypeSet,
    ) -> Result<(), TraceError> {
        self.selected = Self::selection(self.selected, old, new);
        self.queue.select(self.selected);
        match self.is_running {
            true => self.start(),
            false => Ok(()),
        }
    }

    /// Whether events of the kernel may come: the reader has to poll for them.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.monitor.is_some()
    }

    /// The stream was started.
    ///
    /// # Errors
    /// [`TraceError`] if not all selected types are recorded: `ENOSYS` without the library or where
    /// the kernel has no such event, `EPERM` without permission. The others are recorded.
    pub fn start(&mut self) -> Result<(), TraceError> {
        self.is_running = true;
        if self.selected.is_empty() {
            return Ok(());
        }
        let has_all = |monitor: &Monitor| self.selected.difference(monitor.selected).is_empty();
        if !self.monitor.as_ref().is_some_and(has_all) {
            self.end_monitor();
            let monitor = Monitor::new(self.process, self.selected, self.buffer_bytes)?;
            self.monitor = Some(monitor);
        }
        let Some(monitor) = &mut self.monitor else {
            return Ok(());
        };
        // SAFETY: the monitor lives, and this value alone uses it.
        unsafe { (monitor.library.resume)(monitor.kernel) };
        let lacking = lacking(self.selected, monitor.backend == PERF, &monitor.message);
        if lacking.is_empty() {
            return Ok(());
        }
        let errno = match monitor.backend {
            PERF => libc::EPERM,
            _ => libc::ENOSYS,
        };
        let message = format!(
            "events {} of the kernel cannot be recorded: {}",
            lacking.join(", "),
            monitor.message
        );
        Err(TraceError::new(errno, message))
    }

    /// The stream was stopped.
    pub fn stop(&mut self) {
        self.is_running = false;
        if let Some(monitor) = &self.monitor {
            // SAFETY: the monitor lives, and this value alone uses it.
            unsafe { (monitor.library.suspend)(monitor.kernel) };
        }
    }

    /// The stream is shut down. All remaining events can be taken.
    pub fn end(&mut self) {
        self.is_running = false;
        self.end_monitor();
        self.queue.release_until(Timestamp::MAX);
    }

    /// Discards the events so far, and the selection: the filter of the stream is empty then, as
    /// that of a new one.
    pub fn clear(&mut self, now: Timestamp) {
        self.queue.clear(now);
        self.selected = EventTypeSet::EMPTY;
        self.queue.select(EventTypeSet::EMPTY);
        self.monitor = None;
        self.queue.close_streams();
    }

    fn end_monitor(&mut self) {
        if let Some(mut monitor) = self.monitor.take() {
            // SAFETY: the monitor lives, and this value alone uses it.
            unsafe { (monitor.library.finish)(monitor.kernel) };
            let _ = monitor.events.poll(&mut self.queue);
            self.queue.close_streams();
        }
    }

    /// The message of a damaged stream or a lost kernel monitor since the last call.
    pub fn take_complaint(&mut self) -> Option<String> {
        self.queue.take_complaint()
    }
}

impl MergedEvents for KernelRecorder {
    fn poll(&mut self, now: Timestamp) -> Timestamp {
        let Some(monitor) = &mut self.monitor else {
            // A monitor that starts later records later events.
            self.queue.release_until(now);
            return Timestamp::MAX;
        };
        if let Err(error) = monitor.events.poll(&mut self.queue) {
            overhear_event::Inbox::complain(&mut self.queue, error);
        }
        self.queue.advance(now)
    }

    fn next_time(&self) -> Option<Timestamp> {
        self.queue.next_time()
    }

    fn take(&mut self) -> Option<MergedItem<'_>> {
        self.queue.take()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use overhear_event::Timestamp;

    use super::{lacking, KernelRecorder, MergedEvents, MergedItem};
    use crate::{EventId, EventTypeSet, Inheritance};

    fn set(names: &[&str]) -> EventTypeSet {
        let mut set = EventTypeSet::EMPTY;
        for name in names {
            set.insert(EventId::kernel(name).unwrap());
        }
        set
    }

    fn now() -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Timestamp::from_monotonic_ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    #[test]
    fn types_are_recorded_from_their_removal_from_the_filter_on() {
        let select = KernelRecorder::selection;
        let (call, both) = (set(&["syscall"]), set(&["syscall", "timer"]));
        // A new stream has an empty filter, and records nothing of the kernel.
        let selected = select(
            EventTypeSet::EMPTY,
            EventTypeSet::EMPTY,
            EventTypeSet::EMPTY,
        );
        assert_eq!(selected, EventTypeSet::EMPTY);
        let selected = select(selected, EventTypeSet::EMPTY, EventTypeSet::ALL);
        assert_eq!(selected, EventTypeSet::EMPTY);
        let without = EventTypeSet::ALL.difference(call);
        let selected = select(selected, EventTypeSet::ALL, without);
        assert_eq!(selected, call);
        let selected = select(selected, without, EventTypeSet::ALL.difference(both));
        assert_eq!(selected, both);
        // Removing user event types changes nothing; adding a type ends its recording.
        let filter = EventTypeSet::SYSTEM.difference(both);
        let selected = select(selected, EventTypeSet::ALL.difference(both), filter);
        assert_eq!(selected, both);
        assert_eq!(
            select(selected, filter, filter.union(call)),
            set(&["timer"])
        );
    }

    #[test]
    fn lacking_sensors_follow_from_the_backend_and_its_message() {
        let selected = set(&["sched_switch", "schedule", "irq"]);
        assert_eq!(lacking(selected, true, ""), ["irq", "schedule"]);
        let message = "BPF programs; there is no sensor schedule, because the kernel lacks it";
        assert_eq!(lacking(selected, false, message), ["schedule"]);
        assert!(lacking(selected, false, "BPF programs").is_empty());
    }

    /// The system calls of this process come out in order, with their data.
    #[test]
    fn recorder_delivers_events_of_the_process() {
        let pid = std::process::id();
        let mut recorder = KernelRecorder::new(pid, Inheritance::CloseForChild, 0);
        let call = EventId::kernel("syscall").unwrap();
        let filter = EventTypeSet::ALL.difference(set(&["syscall"]));
        recorder.change_filter(EventTypeSet::ALL, filter).unwrap();
        assert!(!recorder.is_active());
        let began = now();
        if let Err(error) = recorder.start() {
            assert!(
                [libc::EPERM, libc::ENOSYS].contains(&error.errno),
                "{error}"
            );
            return println!("skipped: {error}");
        }
        let mut count = 0;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut last = Timestamp::ZERO;
        while count < 10 && Instant::now() < deadline {
            // SAFETY: getppid has no condition.
            unsafe { libc::syscall(libc::SYS_getppid) };
            recorder.poll(now());
            while let Some(item) = recorder.take() {
                let MergedItem::Event(event) = item else {
                    continue;
                };
                assert_eq!((event.event, event.pid), (call, pid));
                assert!(event.time >= last && event.time >= began);
                last = event.time;
                let schema = call.kernel_schema().unwrap();
                assert_eq!(event.data.len(), schema.size() as usize + super::CPU_BYTES);
                let number = schema.index_of("number").unwrap();
                let number = schema.read(number, &event.data[..schema.size() as usize]);
                let expected = overhear_event::Value::Unsigned(libc::SYS_getppid as u64);
                count += u32::from(number == Some(expected));
            }
        }
        assert!(count >= 10, "{count}");
        recorder.stop();
        recorder.end();
        assert!(!recorder.is_active());
    }
}
