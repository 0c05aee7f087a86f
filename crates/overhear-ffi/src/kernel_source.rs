// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel monitor of `kernel.h` as a [`Source`]. The library `liboverhear_kernel` is reached only
//! through its functions, which the caller passes.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::{read_fields, text, RawKernelEvent, RawStream, KERNEL_PAYLOAD_WORDS};
use overhear_event::{
    GapCause, Inbox, Origin, Source, SourceError, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};

/// Maximum of events per call of `oh_kernel_monitor_read`.
const MAX_EVENTS_PER_READ: u64 = 1 << 20;
/// Stream ids that are reserved for one kernel monitor.
pub const STREAMS_PER_SOURCE: u32 = 1 << 20;

/// `oh_kernel_monitor_resume`.
pub type ResumeKernel = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `oh_kernel_monitor_read`.
pub type ReadKernelEvents =
    unsafe extern "C" fn(*mut c_void, *mut RawKernelEvent, u64, *mut u64) -> c_int;

/// A kernel monitor that is read by the function of its library.
#[derive(Debug)]
pub struct KernelEvents {
    kernel: *mut c_void,
    // `None` once it was called. The first poll resumes the kernel monitor: earlier elements could
    // be too late.
    resume: Option<ResumeKernel>,
    read: ReadKernelEvents,
    events: Vec<RawKernelEvent>,
    // Added to the stream ids of the kernel monitor.
    first: u32,
    // Key: stream id of the kernel monitor. Value: `None` if the stream's type is not understood.
    streams: BTreeMap<u32, Option<StreamId>>,
    has_failed: bool,
}

// SAFETY: by the contract of `new` no other code uses the kernel monitor, which one thread at a
// time may use.
unsafe impl Send for KernelEvents {}

impl KernelEvents {
    /// A source that reads `kernel` by these functions, at most `most_events` events per call. Its
    /// streams have the ids of the kernel monitor plus `first`.
    ///
    /// # Safety
    /// Both functions may be called with `kernel`, by one thread at a time, as long as this value
    /// exists, and no other code uses it at the same time.
    pub unsafe fn new(
        kernel: *mut c_void,
        (resume, read): (ResumeKernel, ReadKernelEvents),
        most_events: u64,
        first: u32,
    ) -> Self {
        let room = most_events.clamp(1, MAX_EVENTS_PER_READ);
        let nothing = RawKernelEvent {
            stream: std::ptr::null(),
            sequence: 0,
            time_ns: 0,
            missed: 0,
            cause: 0,
            reserved: 0,
            payload: [0; KERNEL_PAYLOAD_WORDS],
        };
        Self {
            kernel,
            resume: Some(resume),
            read,
            events: vec![nothing; usize::try_from(room).unwrap_or(1)],
            first,
            streams: BTreeMap::new(),
            has_failed: false,
        }
    }

    /// The stream of an event, announced if it is new.
    fn stream(&mut self, raw: &RawStream, inbox: &mut dyn Inbox) -> Option<StreamId> {
        if let Some(known) = self.streams.get(&raw.id) {
            return *known;
        }
        let id = StreamId::from_raw(self.first.saturating_add(raw.id));
        let described = describe(raw, id);
        if described.is_none() {
            let message = "a stream of the kernel monitor has a type that is not understood; its library is of another version";
            inbox.complain(SourceError(message.to_owned()));
        }
        let known = described.map(|descriptor| {
            inbox.open(Arc::new(descriptor));
            id
        });
        self.streams.insert(raw.id, known);
        known
    }

    fn deliver(&mut self, event: &RawKernelEvent, inbox: &mut dyn Inbox) {
        // SAFETY: streams live as long as their kernel monitor.
        let Some(raw) = (unsafe { event.stream.as_ref() }) else {
            return;
        };
        let Some(id) = self.stream(raw, inbox) else {
            return;
        };
        let Some(cause) = event.cause.checked_sub(1) else {
            let bytes = event.payload.map(u64::to_ne_bytes);
            let bytes = bytes.as_flattened();
            let size = usize::try_from(raw.payload_size).unwrap_or(usize::MAX);
            let time = Timestamp::from_monotonic_ns(event.time_ns);
            inbox.element(id, event.sequence, time, &bytes[..size.min(bytes.len())]);
            return;
        };
        let cause = GapCause::ALL.get(cause as usize).copied();
        let cause = cause.unwrap_or(GapCause::Corrupt);
        inbox.gap(id, event.sequence, event.missed, cause);
    }
}

/// The descriptor of a stream, with this id; `None` if its type is not understood.
fn describe(raw: &RawStream, id: StreamId) -> Option<StreamDescriptor> {
    // SAFETY: the strings and fields of a stream live as long as the stream.
    let (sensor, instance, type_id, fields) = unsafe {
        (
            text(raw.sensor)?,
            text(raw.instance)?,
            text(raw.type_id)?,
            read_fields(raw.fields, raw.field_count).ok()?,
        )
    };
    let schema = TypeSchema::new(type_id, raw.payload_size, fields).ok()?;
    let fits = raw.payload_size as usize <= KERNEL_PAYLOAD_WORDS * 8;
    fits.then(|| StreamDescriptor {
        id,
        origin: match raw.origin {
            2 => Origin::Kernel { cpu: raw.cpu },
            _ => Origin::Sampler,
        },
        sensor,
        instance,
        lane: None,
        schema: Arc::new(schema),
        rate: None,
        capacity: 0,
    })
}

impl Source for KernelEvents {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if self.has_failed {
            return Ok(());
        }
        if let Some(resume) = self.resume.take() {
            // SAFETY: by the contract of `new`. After a failure the first read fails, too.
            unsafe { resume(self.kernel) };
        }
        loop {
            let mut count = 0;
            let room = self.events.len() as u64;
            // SAFETY: by the contract of `new`; `events` has `room` entries.
            let code =
                unsafe { (self.read)(self.kernel, self.events.as_mut_ptr(), room, &raw mut count) };
            let count = usize::try_from(count).unwrap_or(0).min(self.events.len());
            for index in 0..count {
                let event = self.events[index];
                self.deliver(&event, inbox);
            }
            match code {
                0 if count == self.events.len() => {}
                0 => return Ok(()),
                // One stream is damaged, which is reported once; the other streams go on.
                code if code == -libc::EIO => {
                    return Err(SourceError(
                        "a stream of the kernel monitor is damaged".to_owned(),
                    ))
                }
                _ => {
                    self.has_failed = true;
                    return Err(SourceError("the kernel monitor was terminated or handed over: nothing more is read of it".to_owned()));
                }
            }
        }
    }
}
