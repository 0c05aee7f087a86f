// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions of libbabeltrace2 that are used here, found when the first foreign trace is
//! opened.
//!
//! The library is loaded at run time, so that a program that imports nothing does not need it. Its
//! declarations are those of `babeltrace2/babeltrace.h`, version 2.0: soname `libbabeltrace2.so.0`,
//! within which the project keeps its binary interface. All of its objects are opaque, and counted:
//! `..._put_ref` gives back the result of a function that creates; a *borrowed* object lives as
//! long as its owner.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

/// File name of the library.
const FILE: &str = "libbabeltrace2.so.0";

/// Declares objects whose content only the library accesses.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            pub(super) struct $name([u8; 0]);
        )*
    };
}

opaque! {
    ClockClass ClockSnapshot ComponentClass ComponentFilter ComponentSink ComponentSource Connection Error ErrorCause Event
    EventClass Field FieldClass FilterClass Graph Message MessageIterator Packet Plugin PortInput PortOutput
    QueryExecutor SourceClass Stream StreamClass StructureMember Trace Value
}

/// The graph calls it when the sink has to take messages.
pub(super) type Consume = unsafe extern "C" fn(*mut MessageIterator, *mut c_void) -> c_int;

/// Declares a table of functions, and the code that fills it.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their names in the library.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            // The functions are valid while it is loaded.
            _loaded: Loaded,
        }

        impl Library {
            fn find(loaded: Loaded) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: The type is that of the library's header for this name, in the
                        // version of the soname, and the library stays loaded as long as the table
                        // exists.
                        $name: *unsafe {
                            loaded.get(concat!(stringify!($name), "\0").as_bytes())
                        }?,
                    )*
                    _loaded: loaded,
                })
            }
        }

        /// The same list for the comparison with the headers: names, and the Rust names of their
        /// types.
        #[cfg(test)]
        fn declared() -> Vec<(&'static str, &'static str)> {
            use std::any::type_name;
            vec![$((
                stringify!($name),
                type_name::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(),
            )),*]
        }
    };
}

functions! {
    // Graphs.
    bt_graph_create: fn(u64) -> *mut Graph;
    bt_graph_put_ref: fn(*const Graph);
    bt_graph_run_once: fn(*mut Graph) -> c_int;
    bt_graph_add_source_component: fn(*mut Graph, *const SourceClass, *const c_char, *const Value, c_uint, *mut *const ComponentSource) -> c_int;
    bt_graph_add_filter_component: fn(*mut Graph, *const FilterClass, *const c_char, *const Value, c_uint, *mut *const ComponentFilter) -> c_int;
    bt_graph_add_simple_sink_component: fn(*mut Graph, *const c_char, Option<Consume>, Option<Consume>, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void, *mut *const ComponentSink) -> c_int;
    bt_graph_connect_ports: fn(*mut Graph, *const PortOutput, *const PortInput, *mut *const Connection) -> c_int;
    bt_component_source_get_output_port_count: fn(*const ComponentSource) -> u64;
    bt_component_source_borrow_output_port_by_index_const: fn(*const ComponentSource, u64) -> *const PortOutput;
    bt_component_filter_get_input_port_count: fn(*const ComponentFilter) -> u64;
    bt_component_filter_borrow_input_port_by_index_const: fn(*const ComponentFilter, u64) -> *const PortInput;
    bt_component_filter_borrow_output_port_by_index_const: fn(*const ComponentFilter, u64) -> *const PortOutput;
    bt_component_sink_borrow_input_port_by_index_const: fn(*const ComponentSink, u64) -> *const PortInput;
    // Plug-ins, queries, and values for them.
    bt_plugin_find: fn(*const c_char, c_int, c_int, c_int, c_int, c_int, *mut *const Plugin) -> c_int;
    bt_plugin_put_ref: fn(*const Plugin);
    bt_plugin_borrow_source_component_class_by_name_const: fn(*const Plugin, *const c_char) -> *const SourceClass;
    bt_plugin_borrow_filter_component_class_by_name_const: fn(*const Plugin, *const c_char) -> *const FilterClass;
    bt_query_executor_create: fn(*const ComponentClass, *const c_char, *const Value) -> *mut QueryExecutor;
    bt_query_executor_put_ref: fn(*const QueryExecutor);
    bt_query_executor_query: fn(*mut QueryExecutor, *mut *const Value) -> c_int;
    bt_value_map_create: fn() -> *mut Value;
    bt_value_put_ref: fn(*const Value);
    bt_value_map_insert_string_entry: fn(*mut Value, *const c_char, *const c_char) -> c_int;
    bt_value_map_insert_empty_array_entry: fn(*mut Value, *const c_char, *mut *mut Value) -> c_int;
    bt_value_map_borrow_entry_value_const: fn(*const Value, *const c_char) -> *const Value;
    bt_value_array_append_string_element: fn(*mut Value, *const c_char) -> c_int;
    bt_value_get_type: fn(*const Value) -> c_uint;
    bt_value_string_get: fn(*const Value) -> *const c_char;
    bt_value_integer_signed_get: fn(*const Value) -> i64;
    // Messages.
    bt_message_iterator_next: fn(*mut MessageIterator, *mut *mut *const Message, *mut u64) -> c_int;
    bt_message_get_type: fn(*const Message) -> c_uint;
    bt_message_put_ref: fn(*const Message);
    bt_message_event_borrow_event_const: fn(*const Message) -> *const Event;
    bt_message_event_borrow_stream_class_default_clock_class_const: fn(*const Message) -> *const ClockClass;
    bt_message_event_borrow_default_clock_snapshot_const: fn(*const Message) -> *const ClockSnapshot;
    bt_message_discarded_events_borrow_stream_const: fn(*const Message) -> *const Stream;
    bt_message_discarded_events_borrow_beginning_default_clock_snapshot_const: fn(*const Message) -> *const ClockSnapshot;
    bt_message_discarded_events_borrow_end_default_clock_snapshot_const: fn(*const Message) -> *const ClockSnapshot;
    bt_message_discarded_events_get_count: fn(*const Message, *mut u64) -> c_uint;
    bt_message_discarded_packets_borrow_stream_const: fn(*const Message) -> *const Stream;
    bt_message_discarded_packets_borrow_beginning_default_clock_snapshot_const: fn(*const Message) -> *const ClockSnapshot;
    bt_message_discarded_packets_borrow_end_default_clock_snapshot_const: fn(*const Message) -> *const ClockSnapshot;
    bt_message_discarded_packets_get_count: fn(*const Message, *mut u64) -> c_uint;
    bt_clock_snapshot_get_ns_from_origin: fn(*const ClockSnapshot, *mut i64) -> c_int;
    // Events and their fields.
    bt_stream_borrow_class_const: fn(*const Stream) -> *const StreamClass;
    bt_stream_borrow_trace_const: fn(*const Stream) -> *const Trace;
    bt_stream_class_discarded_events_have_default_clock_snapshots: fn(*const StreamClass) -> c_int;
    bt_stream_class_discarded_packets_have_default_clock_snapshots: fn(*const StreamClass) -> c_int;
    bt_trace_borrow_environment_entry_value_by_name_const: fn(*const Trace, *const c_char) -> *const Value;
    bt_event_borrow_class_const: fn(*const Event) -> *const EventClass;
    bt_event_borrow_stream_const: fn(*const Event) -> *const Stream;
    bt_event_borrow_packet_const: fn(*const Event) -> *const Packet;
    bt_event_borrow_payload_field_const: fn(*const Event) -> *const Field;
    bt_event_borrow_specific_context_field_const: fn(*const Event) -> *const Field;
    bt_event_borrow_common_context_field_const: fn(*const Event) -> *const Field;
    bt_event_class_get_name: fn(*const EventClass) -> *const c_char;
    bt_event_class_get_ref: fn(*const EventClass);
    bt_event_class_put_ref: fn(*const EventClass);
    bt_stream_class_supports_packets: fn(*const StreamClass) -> c_int;
    bt_packet_borrow_context_field_const: fn(*const Packet) -> *const Field;
    bt_field_borrow_class_const: fn(*const Field) -> *const FieldClass;
    bt_field_get_class_type: fn(*const Field) -> u64;
    bt_field_class_structure_get_member_count: fn(*const FieldClass) -> u64;
    bt_field_class_structure_borrow_member_by_index_const: fn(*const FieldClass, u64) -> *const StructureMember;
    bt_field_class_structure_member_get_name: fn(*const StructureMember) -> *const c_char;
    bt_field_structure_borrow_member_field_by_index_const: fn(*const Field, u64) -> *const Field;
    bt_field_structure_borrow_member_field_by_name_const: fn(*const Field, *const c_char) -> *const Field;
    bt_field_bool_get_value: fn(*const Field) -> c_int;
    bt_field_bit_array_get_value_as_integer: fn(*const Field) -> u64;
    bt_field_integer_unsigned_get_value: fn(*const Field) -> u64;
    bt_field_integer_signed_get_value: fn(*const Field) -> i64;
    bt_field_real_single_precision_get_value: fn(*const Field) -> f32;
    bt_field_real_double_precision_get_value: fn(*const Field) -> f64;
    bt_field_string_get_value: fn(*const Field) -> *const c_char;
    // Errors of the calling thread.
    bt_current_thread_take_error: fn() -> *const Error;
    bt_error_get_cause_count: fn(*const Error) -> u64;
    bt_error_borrow_cause_by_index: fn(*const Error, u64) -> *const ErrorCause;
    bt_error_cause_get_message: fn(*const ErrorCause) -> *const c_char;
    bt_error_release: fn(*const Error);
}

/// `__BT_FUNC_STATUS_OK`.
pub(super) const OK: c_int = 0;
/// `__BT_FUNC_STATUS_END`.
pub(super) const END: c_int = 1;
/// `BT_LOGGING_LEVEL_NONE`: errors come as objects, nothing is printed.
pub(super) const SILENT: c_uint = 0xff;
/// `BT_PROPERTY_AVAILABILITY_AVAILABLE`.
pub(super) const AVAILABLE: c_uint = 1;

/// The library, loaded once and never unloaded: its plug-ins and GLib below it leave state in the
/// process.
///
/// # Errors
/// The reason why it cannot be loaded.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: Loading runs the initialisers of libbabeltrace2 and GLib, which set up their own
        // state and change none of ours. It is loaded by name, as the system's linker would do.
        let loaded = unsafe { Loaded::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) };
        let library = loaded.and_then(Library::find);
        library.map_err(|error| crate::foreign::one_line(&super::error_chain(&error)))
    });
    library.as_ref().map_err(String::as_str)
}

/// A reference that is given back when it is dropped. Holding one proves that the object lives.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    put: unsafe extern "C" fn(*const T),
}

impl<T> Owned<T> {
    /// Takes over a reference; `None` if there is no object.
    ///
    /// # Safety
    /// A pointer that is not null is to an object of the library of which one reference is the
    /// caller's and becomes this value's; `put` is the function that gives back references to such
    /// objects.
    pub(super) unsafe fn new(
        object: *const T,
        put: unsafe extern "C" fn(*const T),
    ) -> Option<Self> {
        let object = NonNull::new(object.cast_mut())?;
        Some(Self { object, put })
    }

    pub(super) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `new` received one reference, and only this place gives it back.
        unsafe { (self.put)(self.object.as_ptr()) }
    }
}

/// A text of the library as ours; bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` is null or points to a text that ends with zero and lives during the call.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: It is not null, and the caller guarantees the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Takes the library's error of this thread. Returns the message of its first cause.
pub(super) fn take_error(library: &Library) -> String {
    // SAFETY: Taking moves the thread's error to us; null means that there is none. Causes and
    // their messages are borrowed from it, and it is released after their last use.
    unsafe {
        let error = (library.bt_current_thread_take_error)();
        if error.is_null() {
            return "it gives no reason".to_owned();
        }
        let mut message = String::new();
        if (library.bt_error_get_cause_count)(error) > 0 {
            let cause = (library.bt_error_borrow_cause_by_index)(error, 0);
            message = text((library.bt_error_cause_get_message)(cause));
        }
        (library.bt_error_release)(error);
        super::one_line(without_details(&message))
    }
}

/// The message of an error without its details, `: name=value, ...`, which are mostly addresses.
fn without_details(message: &str) -> &str {
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    let mut breaks = message.match_indices(": ").map(|(at, _)| at);
    let end = breaks.find(|at| {
        message[at + 2..]
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(is_name))
    });
    &message[..end.unwrap_or(message.len())]
}

#[cfg(test)]
mod declared;

#[cfg(test)]
mod tests {
    use super::without_details;

    #[test]
    fn messages_have_no_addresses() {
        let message = "Invalid magic number: msg-it-addr=0x56, magic=0";
        assert_eq!(without_details(message), "Invalid magic number");
        for whole in ["", "Cannot open: No such file", "a: b c=1", "ends: "] {
            assert_eq!(without_details(whole), whole);
        }
    }
}
