// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of threads that are not tracked, but appear in elements: they displaced a tracked thread,
//! or woke it.
//!
//! The elements have only the ids of such threads. Their names are read from `/proc` when they
//! first appear, some milliseconds after the element. A thread that has ended by then has no name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use overhear_event::kernel::{Life, Switch, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Value,
};
use overhear_trace::TraceReader;
use serde::{Deserialize, Serialize};

use crate::documents;
use crate::error::SessionError;
use crate::labels::THREAD_FIELDS;

/// Limit of the threads that are looked up. Later ones have no names.
const MAX_THREADS: usize = 65_536;

/// A thread that is not tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherThread {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub comm: String,
}

/// Looks up the names when the ids appear in elements.
#[derive(Debug, Default)]
pub(crate) struct OtherThreads {
    // Tracked threads, and threads that were looked up.
    known: HashSet<u32>,
    names: BTreeMap<u32, String>,
    // Indices of the fields that hold thread ids, for kernel streams other than scheduling.
    fields: HashMap<StreamId, Vec<usize>>,
    // Whether the ids in elements are those of `/proc`.
    has_proc_ids: bool,
}

impl OtherThreads {
    pub(crate) fn new() -> Self {
        Self {
            has_proc_ids: overhear_kernel::in_initial_pid_namespace(),
            ..Self::default()
        }
    }

    /// The names, except those of threads that were tracked later.
    pub(crate) fn names(self, tracked: impl Iterator<Item = u32>) -> Vec<OtherThread> {
        let mut names = self.names;
        for tid in tracked {
            names.remove(&tid);
        }
        let names = names.into_iter();
        names.map(|(tid, comm)| OtherThread { tid, comm }).collect()
    }

    #[expect(clippy::disallowed_methods, reason = "of /proc")]
    fn look_up(&mut self, tid: u32) {
        if tid == 0
            || tid == Switch::UNKNOWN
            || self.known.len() >= MAX_THREADS
            || !self.known.insert(tid)
        {
            return;
        }
        let comm = fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
        let comm = comm.trim_end_matches('\n');
        if !comm.is_empty() {
            self.names.insert(tid, comm.to_string());
        }
    }
}

impl Analysis for OtherThreads {
    fn open(&mut self, stream: &StreamDescriptor) {
        let is_scheduling = [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE].contains(&stream.sensor.as_str());
        if is_scheduling || !matches!(stream.origin, Origin::Kernel { .. }) {
            return;
        }
        let fields = stream.schema.fields().iter().enumerate();
        let fields = fields.filter(|(_, field)| THREAD_FIELDS.contains(&field.name.as_str()));
        let fields: Vec<usize> = fields.map(|(index, _)| index).collect();
        if !fields.is_empty() {
            self.fields.insert(stream.id, fields);
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if !self.has_proc_ids || !matches!(element.stream.origin, Origin::Kernel { .. }) {
            return;
        }
        match element.stream.sensor.as_str() {
            SCHED_SWITCH => {
                let Some(switch) = Switch::parse(element.payload) else {
                    return;
                };
                if switch.flags & Switch::PREV_TRACKED == 0 {
                    self.look_up(switch.prev_tid);
                }
                if switch.flags & Switch::NEXT_TRACKED == 0 {
                    self.look_up(switch.next_tid);
                }
            }
            SCHED_WAKE => {
                if let Some(wake) = overhear_event::kernel::Wake::parse(element.payload) {
                    self.look_up(wake.waker_tid);
                }
            }
            TASK_LIFE => {
                if let Some(life) = Life::parse(element.payload) {
                    self.known.insert(life.tid);
                }
            }
            _ => {
                let Some(fields) = self.fields.get(&element.stream.id).cloned() else {
                    return;
                };
                for field in fields {
                    let value = element.stream.schema.read(field, element.payload);
                    if let Some(Value::Unsigned(tid)) = value {
                        self.look_up(u32::try_from(tid).unwrap_or(Switch::UNKNOWN));
                    }
                }
            }
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

/// The names in a recording. Recordings of older versions have none.
///
/// # Errors
/// [`SessionError`] if the document cannot be read.
pub(crate) fn read(reader: &TraceReader) -> Result<Vec<OtherThread>, SessionError> {
    Ok(documents::read(reader, documents::OTHER_THREADS)?.unwrap_or_default())
}

/// The names by their threads.
pub(crate) fn by_tid(threads: &[OtherThread]) -> impl Iterator<Item = (u32, String)> + '_ {
    threads
        .iter()
        .map(|thread| (thread.tid, thread.comm.clone()))
}
