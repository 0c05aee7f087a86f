// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts foreign events to elements: events of the kernel to elements of kernel sensors, all
//! others to elements of sensors with the names of the events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use overhear_event::kernel::{Life, Switch, Wake, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    FieldKind, Origin, SchemaError, StreamDescriptor, StreamId, TypeSchema, WRITER_TID,
};

use super::hook::Hook;
use super::kernel::{number, Kernel, Thread, TimerWakeUps};
use super::order::SwitchOrder;
use crate::foreign::{ForeignEvent as Event, ForeignValue as Foreign};

/// Size limit of a text field. Longer texts are cut.
const MAX_TEXT_BYTES: usize = 256;

/// An element to be written: index of its stream in [`Converter::streams`], and payload.
pub(super) type Converted = (usize, Vec<u8>);

/// Results of the first pass that the conversion needs: the fields of programs' events, the first
/// thread of each CPU, and the threads that timers wake.
#[derive(Debug, Default)]
pub(super) struct EventShapes {
    hooks: Hooks,
    sensors: BTreeMap<String, Shape>,
    running: HashMap<u32, u32>,
    wake_ups: TimerWakeUps,
}

/// Cache: hook by name of the event.
#[derive(Debug, Default)]
struct Hooks(HashMap<Arc<str>, Option<Hook>>);

impl Hooks {
    fn of(&mut self, event: &Event) -> Option<Hook> {
        if let Some(hook) = self.0.get(&event.name) {
            return *hook;
        }
        let hook = Hook::of(&event.name);
        self.0.insert(Arc::clone(&event.name), hook);
        hook
    }
}

#[derive(Debug, Default)]
struct Shape {
    fields: Vec<(Arc<str>, Kind)>,
    names_threads: bool,
}

impl Shape {
    /// # Errors
    /// [`SchemaError`] if a field has a name that a schema cannot have.
    fn schema(&self, sensor: &str) -> Result<TypeSchema, SchemaError> {
        let mut builder =
            TypeSchema::builder(&sensor.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        if self.names_threads {
            builder = builder.field(WRITER_TID, FieldKind::U32, "").field(
                overhear_event::WRITER_FLAGS,
                FieldKind::U32,
                "",
            );
        }
        for (name, kind) in &self.fields {
            builder = builder.field(name, kind.field(), "");
        }
        builder.build()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Unsigned,
    Signed,
    Fraction,
    Text(usize),
}

impl Kind {
    fn of(value: &Foreign) -> Self {
        match value {
            Foreign::Whole(whole) if *whole < 0 => Self::Signed,
            Foreign::Whole(_) => Self::Unsigned,
            Foreign::Fraction(_) => Self::Fraction,
            Foreign::Text(text) => Self::Text(text.len().clamp(1, MAX_TEXT_BYTES)),
        }
    }

    /// The kind that can hold values of both.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => Self::Text(a.max(b)),
            (Self::Text(a), _) | (_, Self::Text(a)) => Self::Text(a.max(24)),
            (Self::Fraction, _) | (_, Self::Fraction) => Self::Fraction,
            (Self::Signed, _) | (_, Self::Signed) => Self::Signed,
            (Self::Unsigned, Self::Unsigned) => Self::Unsigned,
        }
    }

    fn field(self) -> FieldKind {
        match self {
            Self::Unsigned => FieldKind::U64,
            Self::Signed => FieldKind::I64,
            Self::Fraction => FieldKind::F64,
            // A multiple of the alignment, so that numbers after it need no padding.
            Self::Text(bytes) => {
                FieldKind::Text(u16::try_from(bytes.next_multiple_of(8)).unwrap_or(8))
            }
        }
    }
}

/// A context switch. The processes of its threads are not known here.
fn switch_of(event: &Event) -> Switch {
    let prev = number(event, &["prev_tid", "prev_pid"]);
    let next = number(event, &["next_tid", "next_pid"]);
    // The bits from 8 on state how the thread was preempted; they differ between kernels.
    let prev_state = (number(event, &["prev_state"]) & 0xff) as u16;
    let how = match prev_state {
        0 => Switch::PREEMPTED,
        _ => Switch::VOLUNTARY,
    };
    let tracked = |tid, flag| if tid == 0 { 0 } else { flag };
    Switch {
        prev_tid: prev,
        next_tid: next,
        prev_pid: prev,
        next_pid: next,
        prev_state,
        flags: how | tracked(prev, Switch::PREV_TRACKED) | tracked(next, Switch::NEXT_TRACKED),
        prev_run_ns: Switch::UNKNOWN,
    }
}

/// CPU of an event.
fn cpu(event: &Event) -> u32 {
    let cpu = context_number(event, &["cpu_id", "perf_cpu"]);
    cpu.unwrap_or_else(|| number(event, &["cpu_id"]))
}

/// Thread of a program's event, by the contexts of LTTng-UST and perf.
fn writer(event: &Event) -> Option<u32> {
    context_number(event, &["vtid", "perf_tid"])
}

/// Value of the first of these fields in the context. The event's own fields may be about another
/// thread.
fn context_number(event: &Event, names: &[&str]) -> Option<u32> {
    let mut fields = event.context.iter();
    fields.find_map(|(name, value)| match value {
        Foreign::Whole(whole) if names.contains(&&**name) => u32::try_from(*whole).ok(),
        _ => None,
    })
}

impl EventShapes {
    /// Processes an event of the first pass: its fields, and the order of switches.
    pub(super) fn push(&mut self, event: &Event, order: &mut SwitchOrder) {
        if let Some(hook) = self.hooks.of(event) {
            let cpu = cpu(event);
            if hook == Hook::Switch {
                let switch = switch_of(event);
                self.running.entry(cpu).or_insert(switch.prev_tid);
                order.push_switch(cpu, &switch);
            }
            self.wake_ups.push(hook, event, cpu);
            return;
        }
        let shape = match self.sensors.get_mut(&*event.name) {
            Some(shape) => shape,
            None => self.sensors.entry(event.name.to_string()).or_default(),
        };
        shape.names_threads |= writer(event).is_some();
        for (name, value) in &event.payload {
            let kind = Kind::of(value);
            match shape.fields.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = known.join(kind),
                None => shape.fields.push((Arc::clone(name), kind)),
            }
        }
    }
}

/// Converts events to elements, and creates their streams.
#[derive(Debug)]
pub(super) struct Converter {
    hooks: Hooks,
    sensors: BTreeMap<String, Shape>,
    kernel: Kernel,
    /// Events of the kernel whose thread is not known. They are left out.
    pub(super) without_thread: u64,
    /// Events that the first pass has not seen. They are left out.
    pub(super) without_shape: u64,
    pub(super) streams: Vec<Arc<StreamDescriptor>>,
    // Indices of streams: of kernel sensors by CPU, of programs' events by process.
    hooks_at: HashMap<(&'static str, u32), usize>,
    sensors_at: HashMap<(Arc<str>, u32), usize>,
    // Running thread by CPU; process and name by thread.
    running: HashMap<u32, u32>,
    processes: HashMap<u32, u32>,
    names: HashMap<u32, String>,
}

impl Converter {
    pub(super) fn new(shapes: EventShapes) -> Self {
        Self {
            hooks: shapes.hooks,
            sensors: shapes.sensors,
            kernel: Kernel::new(shapes.wake_ups),
            without_thread: 0,
            without_shape: 0,
            streams: Vec::new(),
            hooks_at: HashMap::new(),
            sensors_at: HashMap::new(),
            running: shapes.running,
            processes: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// The elements of an event, in their order.
    ///
    /// # Errors
    /// [`SchemaError`] if a schema cannot have the names of its fields.
    pub(super) fn convert(&mut self, event: &Event) -> Result<Vec<Converted>, SchemaError> {
        let Some(hook) = self.hooks.of(event) else {
            if !self.sensors.contains_key(&*event.name) {
                self.without_shape += 1;
                return Ok(Vec::new());
            }
            return Ok(vec![self.sensor(event)?]);
        };
        let cpu = cpu(event);
        let (tid, pid) = (
            context_number(event, &["tid", "perf_tid"]),
            context_number(event, &["pid", "perf_pid"]),
        );
        if let (Some(tid), Some(pid)) = (tid, pid) {
            self.processes.insert(tid, pid);
        }
        Ok(match hook {
            Hook::Switch => self.switch(event, cpu),
            Hook::Wake(kind) => self.wake(event, cpu, kind),
            Hook::Fork => {
                let (tid, comm) = (
                    number(event, &["child_tid", "child_pid"]),
                    text(event, "child_comm"),
                );
                let parent = number(event, &["parent_tid", "parent_pid"]);
                if event.whole("child_tid").is_some() {
                    // LTTng records thread and process; in ftrace's events `pid` is the thread.
                    self.processes.insert(tid, number(event, &["child_pid"]));
                }
                let life = self.life(Life::FORK, tid, parent, &comm);
                vec![self.kernel(TASK_LIFE, Life::schema, cpu, life.to_payload().to_vec())]
            }
            Hook::Exec => {
                let (tid, old) = (
                    number(event, &["tid", "pid"]),
                    number(event, &["old_tid", "old_pid"]),
                );
                let file = text(event, "filename");
                let comm = file.rsplit('/').next().unwrap_or_default().to_owned();
                let life = self.life(Life::EXEC, tid, if old == tid { 0 } else { old }, &comm);
                vec![self.kernel(TASK_LIFE, Life::schema, cpu, life.to_payload().to_vec())]
            }
            Hook::Exit => {
                let (tid, comm) = (number(event, &["tid", "pid"]), text(event, "comm"));
                let life = self.life(Life::EXIT, tid, 0, &comm);
                vec![self.kernel(TASK_LIFE, Life::schema, cpu, life.to_payload().to_vec())]
            }
            Hook::StateDump => {
                let (tid, comm) = (number(event, &["tid"]), text(event, "name"));
                self.processes.insert(tid, number(event, &["pid"]));
                self.name(tid, &comm, cpu).into_iter().collect()
            }
            hook => {
                // These belong to a CPU, not to a thread.
                let of_cpu = matches!(
                    hook,
                    Hook::Idle | Hook::Frequency | Hook::HrtimerStart | Hook::BlockComplete
                );
                let tid = tid.or_else(|| self.running.get(&cpu).copied());
                let Some(tid) = tid.or(of_cpu.then_some(0)) else {
                    self.without_thread += 1;
                    return Ok(Vec::new());
                };
                let process = |tid| self.processes.get(&tid).copied().unwrap_or(tid);
                let thread = Thread {
                    tid,
                    pid: process(tid),
                };
                let elements = self.kernel.convert(hook, event, cpu, thread, process);
                let elements = elements.into_iter();
                elements
                    .map(|(hook, schema, payload)| self.kernel(hook, schema, cpu, payload))
                    .collect()
            }
        })
    }

    fn process(&self, tid: u32) -> u32 {
        self.processes.get(&tid).copied().unwrap_or(tid)
    }

    fn switch(&mut self, event: &Event, cpu: u32) -> Vec<Converted> {
        let switch = switch_of(event);
        let (prev, next) = (switch.prev_tid, switch.next_tid);
        let mut elements = Vec::new();
        for (tid, comm) in [(prev, "prev_comm"), (next, "next_comm")] {
            elements.extend(self.name(tid, &text(event, comm), cpu));
        }
        self.running.insert(cpu, next);
        let switch = Switch {
            prev_pid: self.process(prev),
            next_pid: self.process(next),
            ..switch
        };
        elements.push(self.kernel(
            SCHED_SWITCH,
            Switch::schema,
            cpu,
            switch.to_payload().to_vec(),
        ));
        elements
    }

    fn wake(&mut self, event: &Event, cpu: u32, kind: u32) -> Vec<Converted> {
        let tid = number(event, &["tid", "pid"]);
        let waker = self.running.get(&cpu).copied().unwrap_or(0);
        let wake = Wake {
            tid,
            pid: self.process(tid),
            waker_tid: waker,
            waker_pid: self.process(waker),
            target_cpu: number(event, &["target_cpu"]),
            kind,
        };
        let mut elements: Vec<Converted> = self
            .name(tid, &text(event, "comm"), cpu)
            .into_iter()
            .collect();
        elements.push(self.kernel(SCHED_WAKE, Wake::schema, cpu, wake.to_payload().to_vec()));
        elements
    }

    /// The element with a thread's name, if the name is new.
    fn name(&mut self, tid: u32, comm: &str, cpu: u32) -> Option<Converted> {
        if tid == 0 || comm.is_empty() || self.names.get(&tid).is_some_and(|known| known == comm) {
            return None;
        }
        let life = self.life(Life::NAME, tid, 0, comm);
        Some(self.kernel(TASK_LIFE, Life::schema, cpu, life.to_payload().to_vec()))
    }

    fn life(&mut self, kind: u32, tid: u32, parent: u32, name: &str) -> Life {
        self.names.insert(tid, name.to_owned());
        let mut comm = [0; 16];
        let bytes = name.as_bytes();
        let length = bytes.len().min(15);
        comm[..length].copy_from_slice(&bytes[..length]);
        let parent_pid = match kind {
            Life::FORK => self.process(parent),
            _ => 0,
        };
        Life {
            tid,
            pid: self.process(tid),
            parent_tid: parent,
            parent_pid,
            kind,
            code: 0,
            cpu_ns: 0,
            comm,
        }
    }

    fn kernel(
        &mut self,
        hook: &'static str,
        schema: fn() -> TypeSchema,
        cpu: u32,
        payload: Vec<u8>,
    ) -> Converted {
        if let Some(&index) = self.hooks_at.get(&(hook, cpu)) {
            return (index, payload);
        }
        let index = self.add(Origin::Kernel { cpu }, hook.to_owned(), schema());
        self.hooks_at.insert((hook, cpu), index);
        (index, payload)
    }

    /// An event of a program: an element of the sensor with its name, one sensor per process.
    fn sensor(&mut self, event: &Event) -> Result<Converted, SchemaError> {
        let pid = context_number(event, &["vpid", "perf_pid"]);
        let pid = pid.unwrap_or_else(|| number(event, &["vpid", "pid"]));
        let key = (Arc::clone(&event.name), pid);
        let index = match self.sensors_at.get(&key) {
            Some(&index) => index,
            None => {
                let sensor = event.name.replace(':', ".");
                let schema = self.sensors[&*event.name].schema(&sensor)?;
                let process = Origin::program(pid, text(event, "procname"));
                let index = self.add(process, sensor, schema);
                self.sensors_at.insert(key, index);
                index
            }
        };
        let shape = &self.sensors[&*event.name];
        let mut payload = Vec::with_capacity(self.streams[index].schema.size() as usize);
        if shape.names_threads {
            payload.extend(writer(event).unwrap_or(0).to_ne_bytes());
            payload.extend([0; 4]);
        }
        for (name, kind) in &shape.fields {
            let found = event.payload.iter().find(|(known, _)| known == name);
            encode(*kind, found.map(|(_, value)| value), &mut payload);
        }
        Ok((index, payload))
    }

    /// Index of the stream with a CPU's switches.
    pub(super) fn switches_of(&self, cpu: u32) -> Option<usize> {
        self.hooks_at.get(&(SCHED_SWITCH, cpu)).copied()
    }

    /// Adds a stream. Returns its index.
    fn add(&mut self, origin: Origin, sensor: String, schema: TypeSchema) -> usize {
        let index = self.streams.len();
        self.streams.push(Arc::new(StreamDescriptor::new(
            StreamId::from_raw(u32::try_from(index + 1).unwrap_or(u32::MAX)),
            origin,
            sensor,
            schema,
        )));
        index
    }
}

fn encode(kind: Kind, value: Option<&Foreign>, payload: &mut Vec<u8>) {
    let whole = match value {
        Some(Foreign::Whole(whole)) => *whole,
        _ => 0,
    };
    match kind {
        Kind::Unsigned => payload.extend(u64::try_from(whole).unwrap_or(u64::MAX).to_ne_bytes()),
        Kind::Signed => {
            let bound = i128::from(i64::MIN)..=i128::from(i64::MAX);
            let clamped = whole.clamp(*bound.start(), *bound.end());
            payload.extend(i64::try_from(clamped).unwrap_or(0).to_ne_bytes());
        }
        Kind::Fraction => {
            let fraction = match value {
                Some(Foreign::Fraction(fraction)) => *fraction,
                _ => whole as f64,
            };
            payload.extend(fraction.to_ne_bytes());
        }
        Kind::Text(_) => {
            let text = match value {
                Some(Foreign::Text(text)) => text.clone(),
                Some(Foreign::Whole(whole)) => whole.to_string(),
                Some(Foreign::Fraction(fraction)) => fraction.to_string(),
                None => String::new(),
            };
            let mut bytes = text.into_bytes();
            bytes.resize(kind.field().size() as usize, 0);
            payload.extend(bytes);
        }
    }
}

fn text(event: &Event, name: &str) -> String {
    event.text(name).unwrap_or_default().to_owned()
}
