// SPDX-License-Identifier: MIT OR Apache-2.0
//! The graph of components that reads traces, and our sink in it.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{c_int, c_void, CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::event::{self, Types};
use super::library::{
    take_error, text, EventClass, FilterClass, Graph, Library, Message, MessageIterator, Owned,
    Plugin, SourceClass, Value, END, OK, SILENT,
};
use super::ForeignMessage;

/// `BT_VALUE_TYPE_STRING`, and of a map.
const STRING: u32 = 1 << 6;
const MAP: u32 = 1 << 8;
/// `BT_MESSAGE_TYPE_EVENT`, and of what was discarded.
const EVENT: u32 = 1 << 2;
const DISCARDED_EVENTS: u32 = 1 << 5;
const DISCARDED_PACKETS: u32 = 1 << 6;

/// The plug-ins of the components that are used here. They are loaded from files; a trace needs no
/// further files except its own.
pub(super) struct Plugins {
    /// `source.ctf.fs`, which lives as long as the first plug-in.
    fs: *const SourceClass,
    /// `filter.utils.muxer`, which lives as long as the second one.
    muxer: *const FilterClass,
    _loaded: [Owned<Plugin>; 2],
}

impl Plugins {
    /// # Errors
    /// Finds the plug-ins; the error is a message about the missing one.
    pub(super) fn find(library: &'static Library) -> Result<Self, String> {
        let (ctf, utils) = (plugin(library, c"ctf")?, plugin(library, c"utils")?);
        // SAFETY: The plug-ins live, and names are texts that end with zero.
        let (fs, muxer) = unsafe {
            (
                (library.bt_plugin_borrow_source_component_class_by_name_const)(
                    ctf.as_ptr(),
                    c"fs".as_ptr(),
                ),
                (library.bt_plugin_borrow_filter_component_class_by_name_const)(
                    utils.as_ptr(),
                    c"muxer".as_ptr(),
                ),
            )
        };
        if fs.is_null() || muxer.is_null() {
            return Err("its plug-ins have no source.ctf.fs or no filter.utils.muxer".to_owned());
        }
        Ok(Self {
            fs,
            muxer,
            _loaded: [ctf, utils],
        })
    }
}

/// Messages that the sink has received and the reader has not yet read.
struct Queue {
    library: &'static Library,
    messages: VecDeque<Owned<Message>>,
}

/// A [`Queue`] at an address of its own: the graph holds a pointer to it.
struct SinkQueue(*mut Queue);

impl SinkQueue {
    fn is_empty(&self) -> bool {
        // SAFETY: As in `queue`: the sink does not run while this borrow lasts.
        unsafe { &*self.0 }.messages.is_empty()
    }

    fn queue(&mut self) -> &mut Queue {
        // SAFETY: The pointer comes from a box that only `drop` frees. The only other access is the
        // sink's, inside `bt_graph_run_once`, which is never called while this borrow lasts: its
        // caller has the graph and this value in one `&mut GraphReader`.
        unsafe { &mut *self.0 }
    }
}

impl Drop for SinkQueue {
    fn drop(&mut self) {
        // SAFETY: It was made by `Box::into_raw`, and `GraphReader` drops its graph, which knows
        // the pointer, before it drops this.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A graph that runs.
pub(super) struct GraphReader {
    library: &'static Library,
    types: HashMap<*const EventClass, Types>,
    graph: Owned<Graph>,
    sink_queue: SinkQueue,
    has_ended: bool,
}

impl GraphReader {
    /// A graph with a source for each of these traces.
    pub(super) fn new(
        library: &'static Library,
        plugins: &Plugins,
        traces: &[PathBuf],
    ) -> Result<Self, String> {
        let refused = || take_error(library);
        // The plug-ins live during this call; components keep their classes.
        let (fs, muxer) = (plugins.fs, plugins.muxer);
        // SAFETY: Every library of this soname supports version 0; the reference is ours.
        let graph = unsafe { Owned::new((library.bt_graph_create)(0), library.bt_graph_put_ref) };
        let graph = graph.ok_or_else(refused)?;
        let sink_queue = SinkQueue(Box::into_raw(Box::new(Queue {
            library,
            messages: VecDeque::new(),
        })));
        let reading = Self {
            library,
            types: HashMap::new(),
            graph,
            sink_queue,
            has_ended: false,
        };

        let mut merged = ptr::null();
        // SAFETY: The graph and the class live; no parameters is null; components belong to the
        // graph and live as long as it does, which is as long as `reading`.
        let added = unsafe {
            (library.bt_graph_add_filter_component)(
                reading.graph.as_ptr(),
                muxer,
                c"muxer".as_ptr(),
                ptr::null(),
                SILENT,
                &mut merged,
            )
        };
        if added != OK {
            return Err(refused());
        }
        for (number, group) in groups(library, fs, traces).iter().enumerate() {
            let name = CString::new(format!("trace-{number}")).unwrap_or_default();
            let parameters = inputs(library, group).ok_or_else(refused)?;
            let mut source = ptr::null();
            // SAFETY: As above; the source keeps what it needs of the parameters.
            let added = unsafe {
                (library.bt_graph_add_source_component)(
                    reading.graph.as_ptr(),
                    fs,
                    name.as_ptr(),
                    parameters.as_ptr(),
                    SILENT,
                    &mut source,
                )
            };
            if added != OK {
                return Err(refused());
            }
            // SAFETY: The source was added, so it exists, and has this many ports. The muxer always
            // has a free port after the connected ones: it adds one with each connection.
            let connected = unsafe {
                (0..(library.bt_component_source_get_output_port_count)(source)).all(|index| {
                    let from = (library.bt_component_source_borrow_output_port_by_index_const)(
                        source, index,
                    );
                    let free = (library.bt_component_filter_get_input_port_count)(merged) - 1;
                    let to = (library.bt_component_filter_borrow_input_port_by_index_const)(
                        merged, free,
                    );
                    let graph = reading.graph.as_ptr();
                    (library.bt_graph_connect_ports)(graph, from, to, ptr::null_mut()) == OK
                })
            };
            if !connected {
                return Err(refused());
            }
        }

        let mut sink = ptr::null();
        // SAFETY: The sink's data is the queue, which outlives the graph (see `GraphReader`);
        // `consume` is the only one of the three callbacks, and the muxer has exactly one output
        // port, a simple sink one input port.
        let connected = unsafe {
            (library.bt_graph_add_simple_sink_component)(
                reading.graph.as_ptr(),
                c"import".as_ptr(),
                None,
                Some(consume),
                None,
                reading.sink_queue.0.cast(),
                &mut sink,
            ) == OK
                && (library.bt_graph_connect_ports)(
                    reading.graph.as_ptr(),
                    (library.bt_component_filter_borrow_output_port_by_index_const)(merged, 0),
                    (library.bt_component_sink_borrow_input_port_by_index_const)(sink, 0),
                    ptr::null_mut(),
                ) == OK
        };
        match connected {
            true => Ok(reading),
            false => Err(refused()),
        }
    }

    /// Whether the sink has messages that were not read.
    pub(super) fn has_pending(&self) -> bool {
        !self.sink_queue.is_empty()
    }

    /// The next event or loss; `None` at the end.
    pub(super) fn next_message(&mut self) -> Result<Option<ForeignMessage>, String> {
        loop {
            let Some(message) = self.sink_queue.queue().messages.pop_front() else {
                if self.has_ended {
                    return Ok(None);
                }
                // SAFETY: The graph lives, is connected, and has not failed: after a failure it is
                // never run again. The queue, which the sink fills meanwhile, is not borrowed.
                match unsafe { (self.library.bt_graph_run_once)(self.graph.as_ptr()) } {
                    OK => continue,
                    END => self.has_ended = true,
                    _ => {
                        self.has_ended = true;
                        return Err(take_error(self.library));
                    }
                }
                continue;
            };
            let (library, message) = (self.library, message.as_ptr().cast_const());
            // SAFETY: The message's reference is held until the end of the iteration. The functions
            // that are called for it are those of its type, as the library requires.
            let read = unsafe {
                match (library.bt_message_get_type)(message) {
                    EVENT => Some(event::read(library, message, &mut self.types)),
                    DISCARDED_EVENTS => Some(event::discarded_events(library, message)),
                    DISCARDED_PACKETS => Some(event::discarded_packets(library, message)),
                    _ => None,
                }
            };
            if read.is_some() {
                return Ok(read);
            }
        }
    }
}

impl Drop for GraphReader {
    fn drop(&mut self) {
        // Messages go back to the graph that created them; then types, graph and queue are dropped,
        // in the order of declaration.
        self.sink_queue.queue().messages.clear();
    }
}

/// Called by the graph: moves one batch of messages into the queue. Returns the status of the
/// library.
///
/// # Safety
/// As the graph calls it: `iterator` is that of our sink, `data` what the sink was added with.
unsafe extern "C" fn consume(iterator: *mut MessageIterator, data: *mut c_void) -> c_int {
    // SAFETY: The data is the pointer of a `SinkQueue`, and its queue is not borrowed while the
    // graph runs.
    let queue = unsafe { &mut *data.cast::<Queue>() };
    let library = queue.library;
    let (mut messages, mut count) = (ptr::null_mut(), 0_u64);
    // SAFETY: The iterator lives during the call. With status 0 it has set both results, and the
    // array has `count` messages until the next call; a reference to each of them is ours. If there
    // is no memory for the queue, the process aborts: nothing unwinds from here.
    unsafe {
        let status = (library.bt_message_iterator_next)(iterator, &mut messages, &mut count);
        if status == OK {
            for index in 0..usize::try_from(count).unwrap_or(0) {
                let message = Owned::new(*messages.add(index), library.bt_message_put_ref);
                queue.messages.extend(message);
            }
        }
        status
    }
}

/// A plug-in of the library, from the system's folder or from `BABELTRACE_PLUGIN_PATH`.
fn plugin(library: &'static Library, name: &CStr) -> Result<Owned<Plugin>, String> {
    let mut plugin = ptr::null();
    // SAFETY: The name ends with zero; with status 0 the result is set, and its reference is ours.
    let found = unsafe {
        let status = (library.bt_plugin_find)(name.as_ptr(), 1, 0, 1, 1, 0, &mut plugin);
        match status {
            OK => Owned::new(plugin, library.bt_plugin_put_ref),
            _ => None,
        }
    };
    found.ok_or_else(|| {
        format!(
            "it has no plug-in {} ({})",
            name.to_string_lossy(),
            take_error(library)
        )
    })
}

/// Groups the folders that are pieces of one trace, as the source reports them: those that LTTng
/// has rotated.
fn groups(
    library: &'static Library,
    fs: *const SourceClass,
    traces: &[PathBuf],
) -> Vec<Vec<PathBuf>> {
    let mut groups: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for trace in traces {
        // A folder without a result is a trace of its own; the source then reports its defects.
        let name = group(library, fs, trace);
        let name = name.unwrap_or_else(|| trace.to_string_lossy().into_owned());
        groups.entry(name).or_default().push(trace.clone());
    }
    groups.into_values().collect()
}

/// Group of a folder; `None` if it has none, or the source cannot read it.
fn group(library: &'static Library, fs: *const SourceClass, trace: &Path) -> Option<String> {
    let input = CString::new(trace.as_os_str().as_bytes()).ok()?;
    // SAFETY: Each created object's reference is ours and held until it is no longer used. A
    // source's class is a component class, which the executor requires. Values borrowed from the
    // result are read while it lives, by the functions of their types.
    unsafe {
        let parameters = Owned::new((library.bt_value_map_create)(), library.bt_value_put_ref)?;
        for (key, value) in [(c"input", input.as_c_str()), (c"type", c"directory")] {
            let insert = library.bt_value_map_insert_string_entry;
            if insert(parameters.as_ptr(), key.as_ptr(), value.as_ptr()) != OK {
                return None;
            }
        }
        let question = c"babeltrace.support-info".as_ptr();
        // A class of sources is a class of components: the header's own cast.
        let fs = fs.cast();
        let executor = (library.bt_query_executor_create)(fs, question, parameters.as_ptr());
        let executor = Owned::new(executor, library.bt_query_executor_put_ref)?;
        let mut answer = ptr::null();
        if (library.bt_query_executor_query)(executor.as_ptr(), &mut answer) != OK {
            take_error(library);
            return None;
        }
        let answer = Owned::new(answer, library.bt_value_put_ref)?;
        // A bare number is the confidence of the source: there is no group.
        if (library.bt_value_get_type)(answer.as_ptr()) != MAP {
            return None;
        }
        let key = c"group".as_ptr();
        let group = (library.bt_value_map_borrow_entry_value_const)(answer.as_ptr(), key);
        if group.is_null() || (library.bt_value_get_type)(group) != STRING {
            return None;
        }
        Some(text((library.bt_value_string_get)(group)))
    }
}

/// The parameters of a source: the folders that it reads. `None` if they cannot be made.
fn inputs(library: &'static Library, folders: &[PathBuf]) -> Option<Owned<Value>> {
    // SAFETY: As in `group`; the array is borrowed from the map, which lives.
    unsafe {
        let map = Owned::new((library.bt_value_map_create)(), library.bt_value_put_ref)?;
        let mut array = ptr::null_mut();
        let key = c"inputs".as_ptr();
        if (library.bt_value_map_insert_empty_array_entry)(map.as_ptr(), key, &mut array) != OK {
            return None;
        }
        for folder in folders {
            let folder = CString::new(folder.as_os_str().as_bytes()).ok()?;
            if (library.bt_value_array_append_string_element)(array, folder.as_ptr()) != OK {
                return None;
            }
        }
        Some(map)
    }
}
