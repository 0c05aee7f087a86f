// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the library's messages to ours.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use overhear_event::Timestamp;

use super::library::{
    text, ClockSnapshot, Event, EventClass, Field, Library, Message, Owned, Stream, StreamClass,
    AVAILABLE, OK,
};
use super::{ForeignEvent, ForeignFields, ForeignLoss, ForeignMessage, ForeignValue};

// `bt_field_class_type`: bits that only one kind of class has.
const BOOL: u64 = 1 << 0;
const BIT_ARRAY: u64 = 1 << 1;
const UNSIGNED: u64 = 1 << 3;
const SIGNED: u64 = 1 << 4;
const SINGLE: u64 = 1 << 7;
const DOUBLE: u64 = 1 << 8;
const STRING: u64 = 1 << 9;
const STRUCTURE: u64 = 1 << 10;
/// `BT_VALUE_TYPE_SIGNED_INTEGER`.
const WHOLE: c_uint = 1 << 4 | 1 << 2;

/// The names of an event's type, read once.
pub(super) struct Types {
    name: Arc<str>,
    specific: Vec<Arc<str>>,
    common: Vec<Arc<str>>,
    payload: Vec<Arc<str>>,
    cpu: Arc<str>,
    process: Arc<str>,
    // While it is held, no other type can have its address.
    _class: Option<Owned<EventClass>>,
}

impl Types {
    /// # Safety
    /// `event` lives, and is of this class.
    unsafe fn new(
        library: &'static Library,
        event: *const Event,
        class: *const EventClass,
    ) -> Self {
        // SAFETY: The class lives with the event; the new reference is the one that `Owned` holds.
        unsafe {
            (library.bt_event_class_get_ref)(class);
            Self {
                name: text((library.bt_event_class_get_name)(class)).into(),
                specific: names(
                    library,
                    (library.bt_event_borrow_specific_context_field_const)(event),
                ),
                common: names(
                    library,
                    (library.bt_event_borrow_common_context_field_const)(event),
                ),
                payload: names(
                    library,
                    (library.bt_event_borrow_payload_field_const)(event),
                ),
                cpu: "cpu_id".into(),
                process: "vpid".into(),
                _class: Owned::new(class, library.bt_event_class_put_ref),
            }
        }
    }
}

/// The names of a structure's members; none if there is no structure.
///
/// # Safety
/// `field` is null or points to a live field.
unsafe fn names(library: &Library, field: *const Field) -> Vec<Arc<str>> {
    if field.is_null() {
        return Vec::new();
    }
    // SAFETY: It lives; its members are read only if it is a structure, with indices below their
    // number.
    unsafe {
        if (library.bt_field_get_class_type)(field) != STRUCTURE {
            return Vec::new();
        }
        let class = (library.bt_field_borrow_class_const)(field);
        let count = (library.bt_field_class_structure_get_member_count)(class);
        let name = |index| {
            let member =
                (library.bt_field_class_structure_borrow_member_by_index_const)(class, index);
            text((library.bt_field_class_structure_member_get_name)(member)).into()
        };
        (0..count).map(name).collect()
    }
}

/// An event.
///
/// # Safety
/// `message` lives and has an event; the keys of `types` are classes of the library.
pub(super) unsafe fn read(
    library: &'static Library,
    message: *const Message,
    types: &mut HashMap<*const EventClass, Types>,
) -> ForeignMessage {
    // SAFETY: Everything is borrowed from the message, which lives. The clock's snapshot exists if
    // the stream's class has a clock, and a packet if the class supports packets; absent fields are
    // null.
    unsafe {
        let clock =
            (library.bt_message_event_borrow_stream_class_default_clock_class_const)(message);
        let time = match clock.is_null() {
            true => None,
            false => time(
                library,
                (library.bt_message_event_borrow_default_clock_snapshot_const)(message),
            ),
        };
        let Some(time) = time else {
            return ForeignMessage::Timeless;
        };
        let event = (library.bt_message_event_borrow_event_const)(message);
        let class = (library.bt_event_borrow_class_const)(event);
        let types = types
            .entry(class)
            .or_insert_with(|| Types::new(library, event, class));

        let mut context = ForeignFields::new();
        let stream = (library.bt_event_borrow_stream_const)(event);
        let stream_class = (library.bt_stream_borrow_class_const)(stream);
        if (library.bt_stream_class_supports_packets)(stream_class) != 0 {
            let packet = (library.bt_event_borrow_packet_const)(event);
            let field = (library.bt_packet_borrow_context_field_const)(packet);
            if !field.is_null() {
                let name = c"cpu_id".as_ptr();
                let cpu =
                    (library.bt_field_structure_borrow_member_field_by_name_const)(field, name);
                let value = (!cpu.is_null()).then(|| value(library, cpu)).flatten();
                context.extend(value.map(|value| (Arc::clone(&types.cpu), value)));
            }
        }
        for (field, names) in [
            (
                (library.bt_event_borrow_common_context_field_const)(event),
                &types.common,
            ),
            (
                (library.bt_event_borrow_specific_context_field_const)(event),
                &types.specific,
            ),
        ] {
            members(library, field, names, &mut context);
        }
        if !context.iter().any(|(name, _)| *name == types.process) {
            // A trace with buffers per process has the process in its environment.
            let trace = (library.bt_stream_borrow_trace_const)(stream);
            let entry = (library.bt_trace_borrow_environment_entry_value_by_name_const)(
                trace,
                c"vpid".as_ptr(),
            );
            if !entry.is_null() && (library.bt_value_get_type)(entry) == WHOLE {
                let process = (library.bt_value_integer_signed_get)(entry);
                let process = ForeignValue::Whole(process.into());
                context.push((Arc::clone(&types.process), process));
            }
        }
        let mut payload = ForeignFields::with_capacity(types.payload.len());
        let field = (library.bt_event_borrow_payload_field_const)(event);
        members(library, field, &types.payload, &mut payload);
        ForeignMessage::Event(ForeignEvent {
            time,
            name: Arc::clone(&types.name),
            context,
            payload,
        })
    }
}

/// The members of a structure with values that we can represent.
///
/// # Safety
/// `field` is null, or lives and is the structure that `names` belong to.
unsafe fn members(
    library: &Library,
    field: *const Field,
    names: &[Arc<str>],
    into: &mut ForeignFields,
) {
    for (index, name) in (0_u64..).zip(names) {
        // SAFETY: There are names only if there is a structure, and one per member.
        let value = unsafe {
            let borrow = library.bt_field_structure_borrow_member_field_by_index_const;
            value(library, borrow(field, index))
        };
        into.extend(value.map(|value| (Arc::clone(name), value)));
    }
}

/// # Safety
/// `field` lives.
unsafe fn value(library: &Library, field: *const Field) -> Option<ForeignValue> {
    // SAFETY: It lives, and the value is read by the function for its class; a text lives as long
    // as the field.
    unsafe {
        let kind = (library.bt_field_get_class_type)(field);
        // A group of kinds is a set of several bits, so each bit is tested.
        Some(if kind & UNSIGNED != 0 {
            ForeignValue::Whole((library.bt_field_integer_unsigned_get_value)(field).into())
        } else if kind & SIGNED != 0 {
            ForeignValue::Whole((library.bt_field_integer_signed_get_value)(field).into())
        } else if kind & STRING != 0 {
            ForeignValue::Text(text((library.bt_field_string_get_value)(field)))
        } else if kind & DOUBLE != 0 {
            ForeignValue::Fraction((library.bt_field_real_double_precision_get_value)(field))
        } else if kind & SINGLE != 0 {
            ForeignValue::Fraction((library.bt_field_real_single_precision_get_value)(field).into())
        } else if kind & BOOL != 0 {
            ForeignValue::Whole(((library.bt_field_bool_get_value)(field) != 0).into())
        } else if kind & BIT_ARRAY != 0 {
            ForeignValue::Whole((library.bt_field_bit_array_get_value_as_integer)(field).into())
        } else {
            return None;
        })
    }
}

/// Nanoseconds of the foreign clock; `None` before its origin, and outside its range.
///
/// # Safety
/// `snapshot` lives.
unsafe fn time(library: &Library, snapshot: *const ClockSnapshot) -> Option<Timestamp> {
    let mut ns = 0_i64;
    // SAFETY: It lives; with status 0 the result is set.
    let status = unsafe { (library.bt_clock_snapshot_get_ns_from_origin)(snapshot, &mut ns) };
    let ns = (status == OK).then(|| u64::try_from(ns).ok()).flatten()?;
    Some(Timestamp::from_monotonic_ns(ns))
}

/// The library's functions for messages about one kind of loss.
struct Discarded {
    stream: unsafe extern "C" fn(*const Message) -> *const Stream,
    have_snapshots: unsafe extern "C" fn(*const StreamClass) -> c_int,
    begin: unsafe extern "C" fn(*const Message) -> *const ClockSnapshot,
    end: unsafe extern "C" fn(*const Message) -> *const ClockSnapshot,
    count: unsafe extern "C" fn(*const Message, *mut u64) -> c_uint,
}

impl Discarded {
    /// Begin and end of the loss, and the number; `None` if unknown.
    ///
    /// # Safety
    /// `message` lives and is of the kind of these functions.
    unsafe fn read(
        &self,
        library: &Library,
        message: *const Message,
    ) -> (Option<Timestamp>, Option<Timestamp>, Option<u64>) {
        // SAFETY: Everything is borrowed from the message; snapshots are read if the class has
        // them.
        unsafe {
            let stream = (self.stream)(message);
            let class = (library.bt_stream_borrow_class_const)(stream);
            let (mut from, mut to) = (None, None);
            if (self.have_snapshots)(class) != 0 {
                from = time(library, (self.begin)(message));
                to = time(library, (self.end)(message));
            }
            let mut count = 0;
            let known = (self.count)(message, &mut count);
            (from, to, (known == AVAILABLE).then_some(count))
        }
    }
}

/// Events that were discarded.
///
/// # Safety
/// `message` lives and is of discarded events.
pub(super) unsafe fn discarded_events(
    library: &Library,
    message: *const Message,
) -> ForeignMessage {
    let events = Discarded {
        stream: library.bt_message_discarded_events_borrow_stream_const,
        have_snapshots: library.bt_stream_class_discarded_events_have_default_clock_snapshots,
        begin: library.bt_message_discarded_events_borrow_beginning_default_clock_snapshot_const,
        end: library.bt_message_discarded_events_borrow_end_default_clock_snapshot_const,
        count: library.bt_message_discarded_events_get_count,
    };
    // SAFETY: The functions are those of such messages.
    let (from, to, count) = unsafe { events.read(library, message) };
    ForeignMessage::Loss(ForeignLoss {
        from,
        to,
        events: count.unwrap_or(1),
        at_least: count.is_none(),
    })
}

/// Packets that were discarded: the number of their events is unknown, but each had at least one.
///
/// # Safety
/// `message` lives and is of discarded packets.
pub(super) unsafe fn discarded_packets(
    library: &Library,
    message: *const Message,
) -> ForeignMessage {
    let packets = Discarded {
        stream: library.bt_message_discarded_packets_borrow_stream_const,
        have_snapshots: library.bt_stream_class_discarded_packets_have_default_clock_snapshots,
        begin: library.bt_message_discarded_packets_borrow_beginning_default_clock_snapshot_const,
        end: library.bt_message_discarded_packets_borrow_end_default_clock_snapshot_const,
        count: library.bt_message_discarded_packets_get_count,
    };
    // SAFETY: The functions are those of such messages.
    let (from, to, count) = unsafe { packets.read(library, message) };
    ForeignMessage::Loss(ForeignLoss {
        from,
        to,
        events: count.unwrap_or(1).max(1),
        at_least: true,
    })
}
