// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel monitor of `kernel.h` reads, as a source of a monitor here. The two libraries know each other
//! only by the structs of their headers, which those here mirror.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use overhear_event::{
    FieldKind, GapCause, Inbox, Origin, Source, SourceError, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};

use super::{text, RawField};

/// Words of the payload of `oh_kernel_event`.
const PAYLOAD_WORDS: usize = 7;
/// Events that are read at once, at most.
const MOST_EVENTS: u64 = 1 << 20;
/// How many numbers are set aside for the streams of one source.
pub(crate) const STREAMS_OF_SOURCE: u32 = 1 << 20;

/// `oh_stream` of update.h.
#[repr(C)]
pub(crate) struct RawStream {
    size: u32,
    id: u32,
    sensor: *const c_char,
    instance: *const c_char,
    label: *const c_char,
    type_id: *const c_char,
    fields: *const RawField,
    field_count: u32,
    payload_size: u32,
    origin: u32,
    pid: u32,
    cpu: u32,
    names_writers: u32,
}

/// `oh_kernel_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawEvent {
    stream: *const RawStream,
    sequence: u64,
    time_ns: u64,
    missed: u64,
    cause: u32,
    reserved: u32,
    payload: [u64; PAYLOAD_WORDS],
}

const _: () = {
    assert!(offset_of!(RawStream, fields) == 40);
    assert!(size_of::<RawStream>() == 72);
    assert!(offset_of!(RawEvent, cause) == 32);
    assert!(offset_of!(RawEvent, payload) == 40);
    assert!(size_of::<RawEvent>() == 96);
};

/// `oh_kernel_monitor_resume`.
pub(crate) type Resume = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `oh_kernel_monitor_read`.
pub(crate) type ReadEvents =
    unsafe extern "C" fn(*mut c_void, *mut RawEvent, u64, *mut u64) -> c_int;

/// A kernel monitor that is read by the function of its library.
pub(crate) struct KernelEvents {
    kernel: *mut c_void,
    // Until it was resumed, which is when it is first read: what was recorded before could be too late.
    resume: Option<Resume>,
    read: ReadEvents,
    events: Vec<RawEvent>,
    // The numbers of its streams are those that it gives, from here on.
    first: u32,
    // By the numbers that it gives; `None` of a stream that makes no sense.
    streams: BTreeMap<u32, Option<StreamId>>,
    has_failed: bool,
}

// SAFETY: who makes one leaves the kernel monitor to it alone, which one thread at a time may use.
unsafe impl Send for KernelEvents {}

impl KernelEvents {
    /// # Safety
    /// Both functions may be called with `kernel`, by one thread at a time, as long as this lives, and nobody else
    /// uses it meanwhile.
    pub(crate) unsafe fn new(
        kernel: *mut c_void,
        (resume, read): (Resume, ReadEvents),
        most_events: u64,
        first: u32,
    ) -> Self {
        let room = most_events.clamp(1, MOST_EVENTS);
        let nothing = RawEvent {
            stream: std::ptr::null(),
            sequence: 0,
            time_ns: 0,
            missed: 0,
            cause: 0,
            reserved: 0,
            payload: [0; PAYLOAD_WORDS],
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
            let sentence = "a stream of the kernel monitor has a type that is not understood; its library is of another version";
            inbox.complain(SourceError(sentence.to_owned()));
        }
        let known = described.map(|descriptor| {
            inbox.open(Arc::new(descriptor));
            id
        });
        self.streams.insert(raw.id, known);
        known
    }

    fn deliver(&mut self, event: &RawEvent, inbox: &mut dyn Inbox) {
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

/// What a stream is, as its library says.
fn describe(raw: &RawStream, id: StreamId) -> Option<StreamDescriptor> {
    // SAFETY: its texts and fields live as long as itself.
    let (sensor, instance, type_id) =
        unsafe { (text(raw.sensor)?, text(raw.instance)?, text(raw.type_id)?) };
    let mut schema = TypeSchema::builder(&type_id);
    for index in 0..raw.field_count as usize {
        // SAFETY: as above; there are so many.
        let field = unsafe { &*raw.fields.add(index) };
        // SAFETY: as above.
        let (name, unit) = unsafe { (text(field.name)?, text(field.unit).unwrap_or_default()) };
        let kind = FieldKind::from_raw(field.kind, field.size)?;
        schema = schema.field(&name, kind, &unit);
    }
    let schema = schema.build().ok()?;
    let fits = schema.size() == raw.payload_size && raw.payload_size as usize <= PAYLOAD_WORDS * 8;
    fits.then(|| StreamDescriptor {
        id,
        origin: match raw.origin {
            2 => Origin::Kernel { cpu: raw.cpu },
            _ => Origin::Clerk,
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
            // SAFETY: by the contract of `new`. Of a failure the first reading tells.
            unsafe { resume(self.kernel) };
        }
        loop {
            let mut count = 0;
            let room = self.events.len() as u64;
            // SAFETY: by the contract of `new`; there is room for so many.
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
                // Of one damaged stream the rest is good, and it says so once.
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
