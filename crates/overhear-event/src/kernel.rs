// SPDX-License-Identifier: MIT OR Apache-2.0
//! The elements of the kernel sensors: scheduling, wake-ups, lives of threads.
//!
//! The BPF programs write these payloads (`crates/overhear-kernel/src/bpf/elements.h` has the
//! same structs and asserts their offsets); the perf fallback writes those it can. All three
//! hooks exist once per CPU, each in a stream of its own.

pub mod events;

use crate::schema::text;
use crate::{FieldKind, TypeSchema};

/// Sensor name of the context switches.
pub const SCHED_SWITCH: &str = "sched_switch";
/// Sensor name of the wake-ups.
pub const SCHED_WAKE: &str = "sched_wake";
/// Sensor name of fork, exec and exit.
pub const TASK_LIFE: &str = "task_life";
/// Sensor name of the sampler that reads `/proc/PID/task/TID/schedstat`.
pub const SCHEDSTAT: &str = "schedstat";

/// Makes the schema of a sensor's elements.
pub type MakeSchema = fn() -> TypeSchema;

/// The kernel sensors with a name of their own, and the schemas of their elements: those of
/// scheduling first. Probes are not among them: users name them ([`is_probe`]).
///
/// ```
/// use overhear_event::kernel::{Switch, SENSORS};
///
/// let (name, schema) = SENSORS[0];
/// assert_eq!((name, schema()), ("sched_switch", Switch::schema()));
/// ```
pub const SENSORS: [(&str, MakeSchema); 18] = [
    (SCHED_SWITCH, Switch::schema),
    (SCHED_WAKE, Wake::schema),
    (TASK_LIFE, Life::schema),
    (events::PAGE_FAULT, events::page_fault_schema),
    (events::BLOCK_IO, events::block_io_schema),
    (events::SYSCALL, events::syscall_schema),
    (events::FUTEX, events::futex_schema),
    (events::SIGNAL, events::signal_schema),
    (events::IRQ, events::irq_schema),
    (events::SOFTIRQ, events::softirq_schema),
    (events::TIMER, events::timer_schema),
    (events::SCHED_MIGRATE, events::sched_migrate_schema),
    (events::CPU_IDLE, events::cpu_idle_schema),
    (events::CPU_FREQUENCY, events::cpu_frequency_schema),
    (events::IPC, events::ipc_schema),
    (events::FLUTTER, events::flutter_schema),
    (events::SCHEDULE, events::schedule_schema),
    (events::LOCK, events::lock_schema),
];

/// A context switch on one CPU. 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The thread that leaves the CPU.
    pub prev_tid: u32,
    /// The thread that enters it. For a perf record of a departure alone this is
    /// [`Switch::UNKNOWN`]; likewise `prev_tid` for an arrival alone.
    pub next_tid: u32,
    /// Process of the leaving thread.
    pub prev_pid: u32,
    /// Process of the entering thread.
    pub next_pid: u32,
    /// The kernel's state bits of the leaving thread: 0 still runnable, 1 interruptible sleep,
    /// 2 uninterruptible sleep, ... . The perf fallback knows only runnable (0) and asleep (1).
    pub prev_state: u16,
    /// See the constants of this type.
    pub flags: u16,
    /// Time of the leaving thread on the CPU since its last departure, by the kernel's account, in
    /// nanoseconds; [`Switch::UNKNOWN`] if it is not known or does not fit. If the thread's arrival
    /// was not recorded, it can be computed from this.
    pub prev_run_ns: u32,
}

impl Switch {
    /// A thread or a time that the record does not have.
    pub const UNKNOWN: u32 = u32::MAX;
    /// The leaving thread was preempted: it did not call the scheduler itself.
    pub const PREEMPTED: u16 = 1;
    /// The leaving thread is one of the monitored ones.
    pub const PREV_TRACKED: u16 = 2;
    /// The entering thread is one of the monitored ones.
    pub const NEXT_TRACKED: u16 = 4;
    /// The kernel counted this departure in `voluntary_ctxt_switches`. It differs from
    /// `prev_state != 0` where a pending signal kept the thread from falling asleep.
    pub const VOLUNTARY: u16 = 8;
    /// The first switch of its stream since the monitor was resumed: the positions of threads do
    /// not follow from the elements before it.
    pub const RESUMED: u16 = 16;

    /// Whether the leaving thread waits, sleeps or ends.
    #[must_use]
    pub const fn is_voluntary(&self) -> bool {
        self.flags & Self::VOLUNTARY != 0
    }

    /// From a payload, `None` if it has another size.
    #[inline]
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let [prev_tid, next_tid, prev_pid, next_pid, state_and_flags, prev_run_ns] =
            words(payload)?;
        let [a, b, c, d] = state_and_flags.to_ne_bytes();
        let (prev_state, flags) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        Some(Self {
            prev_tid,
            next_tid,
            prev_pid,
            next_pid,
            prev_state,
            flags,
            prev_run_ns,
        })
    }

    /// As a payload.
    #[must_use]
    pub fn to_payload(&self) -> [u8; 24] {
        let ([a, b], [c, d]) = (self.prev_state.to_ne_bytes(), self.flags.to_ne_bytes());
        bytes([
            self.prev_tid,
            self.next_tid,
            self.prev_pid,
            self.next_pid,
            u32::from_ne_bytes([a, b, c, d]),
            self.prev_run_ns,
        ])
    }

    /// The schema of these payloads.
    #[must_use]
    pub fn schema() -> TypeSchema {
        checked(
            TypeSchema::builder("sched_switch")
                .field("prev_tid", FieldKind::U32, "")
                .field("next_tid", FieldKind::U32, "")
                .field("prev_pid", FieldKind::U32, "")
                .field("next_pid", FieldKind::U32, "")
                .field("prev_state", FieldKind::U16, "")
                .field("flags", FieldKind::U16, "")
                .field("prev_run_ns", FieldKind::U32, "ns"),
        )
    }
}

/// A wake-up of a monitored thread. 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The thread that is woken.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// The thread that wakes it (or was interrupted by what wakes it).
    pub waker_tid: u32,
    /// The process of the waker.
    pub waker_pid: u32,
    /// The CPU the thread is to run on.
    pub target_cpu: u32,
    /// [`Wake::WAKING`], [`Wake::WAKEUP`] or [`Wake::NEW`].
    pub kind: u32,
}

impl Wake {
    /// The waker begins the wake-up: the latency is counted from here.
    pub const WAKING: u32 = 1;
    /// The thread has become runnable.
    pub const WAKEUP: u32 = 2;
    /// A new thread has become runnable for the first time.
    pub const NEW: u32 = 3;

    /// From a payload, `None` if it has another size.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let [tid, pid, waker_tid, waker_pid, target_cpu, kind] = words(payload)?;
        Some(Self {
            tid,
            pid,
            waker_tid,
            waker_pid,
            target_cpu,
            kind,
        })
    }

    /// As a payload.
    #[must_use]
    pub fn to_payload(&self) -> [u8; 24] {
        bytes([
            self.tid,
            self.pid,
            self.waker_tid,
            self.waker_pid,
            self.target_cpu,
            self.kind,
        ])
    }

    /// The schema of these payloads.
    #[must_use]
    pub fn schema() -> TypeSchema {
        checked(
            TypeSchema::builder("sched_wake")
                .field("tid", FieldKind::U32, "")
                .field("pid", FieldKind::U32, "")
                .field("waker_tid", FieldKind::U32, "")
                .field("waker_pid", FieldKind::U32, "")
                .field("target_cpu", FieldKind::U32, "")
                .field("kind", FieldKind::U32, ""),
        )
    }
}

/// A monitored thread begins, becomes another program, is renamed, or ends. 56 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// With FORK: the thread that created it. With EXEC: the id that the thread had before, if it
    /// was not the leader of its process and has taken over the leader's id, which is `tid`; the
    /// old id ends with this element and gets no EXIT. Else 0, and always 0 with EXEC where the
    /// kernel sensor cannot tell (perf). With TRACKED: the thread's state bits, as
    /// [`Switch::prev_state`]; 0 where the kernel sensor has no value (perf).
    pub parent_tid: u32,
    /// The process of the thread that created it; 0 unless this is a fork.
    pub parent_pid: u32,
    /// [`Life::FORK`], [`Life::EXEC`], [`Life::EXIT`], [`Life::NAME`], [`Life::TRACKED`] or
    /// [`Life::UNTRACKED`].
    pub kind: u32,
    /// With EXIT: the exit code as `wait` reports it; with TRACKED: the unique id that the thread
    /// was given; else 0.
    pub code: u32,
    /// The thread's CPU time so far by the kernel's own account (`sum_exec_runtime`), in
    /// nanoseconds; 0 where the kernel sensor cannot read it.
    pub cpu_ns: u64,
    /// The thread's short name, zero-filled.
    pub comm: [u8; 16],
}

impl Life {
    /// The thread begins.
    pub const FORK: u32 = 1;
    /// The process becomes another program. All its threads but the caller have ended; see
    /// `parent_tid` for the caller's id.
    pub const EXEC: u32 = 2;
    /// The thread ends.
    pub const EXIT: u32 = 3;
    /// The thread has this name; its life is not changed.
    pub const NAME: u32 = 4;
    /// The monitor starts to track the thread, whose life began before. All other elements of the
    /// thread come later.
    pub const TRACKED: u32 = 5;
    /// The monitor stops tracking the thread, which lives on.
    pub const UNTRACKED: u32 = 6;

    /// The thread's short name as text.
    #[must_use]
    pub fn comm(&self) -> &str {
        text(&self.comm)
    }

    /// From a payload, `None` if it has another size.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (head, rest) = payload.split_at_checked(24)?;
        let [tid, pid, parent_tid, parent_pid, kind, code] = words(head)?;
        let (cpu_ns, comm) = rest.split_at_checked(8)?;
        let cpu_ns = u64::from_ne_bytes(cpu_ns.try_into().ok()?);
        let (comm, tail) = comm.split_at_checked(16)?;
        if tail.len() != 8 {
            return None;
        }
        let comm = comm.try_into().ok()?;
        Some(Self {
            tid,
            pid,
            parent_tid,
            parent_pid,
            kind,
            code,
            cpu_ns,
            comm,
        })
    }

    /// As a payload.
    #[must_use]
    pub fn to_payload(&self) -> [u8; 56] {
        let mut payload = [0; 56];
        let head = [
            self.tid,
            self.pid,
            self.parent_tid,
            self.parent_pid,
            self.kind,
            self.code,
        ];
        payload[..24].copy_from_slice(&bytes(head));
        payload[24..32].copy_from_slice(&self.cpu_ns.to_ne_bytes());
        payload[32..48].copy_from_slice(&self.comm);
        payload
    }

    /// The schema of these payloads. `reserved` is zero: it makes element and stamp together a
    /// power of two, so that no element straddles a page of a kernel ring.
    #[must_use]
    pub fn schema() -> TypeSchema {
        checked(
            TypeSchema::builder("task_life")
                .field("tid", FieldKind::U32, "")
                .field("pid", FieldKind::U32, "")
                .field("parent_tid", FieldKind::U32, "")
                .field("parent_pid", FieldKind::U32, "")
                .field("kind", FieldKind::U32, "")
                .field("code", FieldKind::U32, "")
                .field("cpu_ns", FieldKind::U64, "ns")
                .field("comm", FieldKind::Text(16), "")
                .field("reserved", FieldKind::U64, ""),
        )
    }
}

/// A sample of a thread's `/proc/PID/task/TID/schedstat`, for machines where BPF is not permitted.
/// 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedStat {
    /// The thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Time on a CPU since the thread began, in nanoseconds.
    pub run_ns: u64,
    /// Time runnable but waiting for a CPU since the thread began, in nanoseconds.
    pub wait_ns: u64,
}

impl SchedStat {
    /// From a payload, `None` if it has another size.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let [tid, pid, run_low, run_high, wait_low, wait_high] = words(payload)?;
        let (run_ns, wait_ns) = (double(run_low, run_high), double(wait_low, wait_high));
        Some(Self {
            tid,
            pid,
            run_ns,
            wait_ns,
        })
    }

    /// As a payload.
    #[must_use]
    pub fn to_payload(&self) -> [u8; 24] {
        let mut payload = [0; 24];
        payload[..4].copy_from_slice(&self.tid.to_ne_bytes());
        payload[4..8].copy_from_slice(&self.pid.to_ne_bytes());
        payload[8..16].copy_from_slice(&self.run_ns.to_ne_bytes());
        payload[16..].copy_from_slice(&self.wait_ns.to_ne_bytes());
        payload
    }

    /// The schema of these payloads.
    #[must_use]
    pub fn schema() -> TypeSchema {
        checked(
            TypeSchema::builder("schedstat")
                .field("tid", FieldKind::U32, "")
                .field("pid", FieldKind::U32, "")
                .field("run_ns", FieldKind::U64, "ns")
                .field("wait_ns", FieldKind::U64, "ns"),
        )
    }
}

/// Six words of a payload of exactly 24 bytes.
#[inline]
fn words(payload: &[u8]) -> Option<[u32; 6]> {
    let payload: &[u8; 24] = payload.try_into().ok()?;
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(payload.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    Some(words)
}

/// Two neighbouring words as the double word they are in memory.
fn double(first: u32, second: u32) -> u64 {
    let (first, second) = (u64::from(first), u64::from(second));
    if cfg!(target_endian = "little") {
        second << 32 | first
    } else {
        first << 32 | second
    }
}

fn bytes(words: [u32; 6]) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// What the names of sensors begin with that users put at places of programs and of the kernel.
const PROBES: [&str; 4] = ["probe/", "usdt/", "tracepoint/", "kprobe/"];

/// Whether a sensor of the kernel is a probe: a place that a user has named. What its elements
/// consist of is known where it is attached, and from its streams.
///
/// ```
/// use overhear_event::kernel::is_probe;
///
/// assert!(is_probe("probe/handle_request") && is_probe("usdt/app/phase"));
/// assert!(is_probe("tracepoint/sched/sched_process_fork") && is_probe("kprobe/tcp_sendmsg"));
/// assert!(!is_probe("syscall"));
/// ```
#[must_use]
pub fn is_probe(sensor: &str) -> bool {
    PROBES.iter().any(|of| sensor.starts_with(of))
}

fn checked(builder: crate::TypeSchemaBuilder) -> TypeSchema {
    builder
        .build()
        .expect("the built-in schemas are well-formed")
}

#[cfg(test)]
mod tests {
    use super::{Life, SchedStat, Switch, Wake};
    use crate::Value;

    #[test]
    fn payloads_read_back_and_match_their_schemas() {
        let switch = Switch {
            prev_tid: 1,
            next_tid: 2,
            prev_pid: 3,
            next_pid: 4,
            prev_state: 0x2001,
            flags: Switch::PREV_TRACKED | Switch::VOLUNTARY,
            prev_run_ns: 5,
        };
        assert_eq!(Switch::parse(&switch.to_payload()), Some(switch));
        assert_eq!(Switch::schema().size(), 24);
        assert!(switch.is_voluntary());
        assert!(!Switch {
            flags: Switch::PREEMPTED,
            ..switch
        }
        .is_voluntary());

        let wake = Wake {
            tid: 1,
            pid: 2,
            waker_tid: 3,
            waker_pid: 4,
            target_cpu: 1,
            kind: Wake::WAKING,
        };
        assert_eq!(Wake::parse(&wake.to_payload()), Some(wake));
        assert_eq!(Wake::schema().size(), 24);

        let sample = SchedStat {
            tid: 1,
            pid: 2,
            run_ns: 1 << 40 | 7,
            wait_ns: 3 << 33 | 1,
        };
        assert_eq!(SchedStat::parse(&sample.to_payload()), Some(sample));
        assert_eq!(SchedStat::schema().size(), 24);

        let comm = *b"worker\0\0\0\0\0\0\0\0\0\0";
        let life = Life {
            tid: 1,
            pid: 2,
            parent_tid: 3,
            parent_pid: 4,
            kind: Life::EXIT,
            code: 9,
            cpu_ns: 77,
            comm,
        };
        assert_eq!(Life::parse(&life.to_payload()), Some(life));
        let schema = Life::schema();
        assert_eq!(schema.size(), 56);
        let index = schema.index_of("comm").unwrap();
        assert_eq!(
            schema.read(index, &life.to_payload()),
            Some(Value::Text("worker"))
        );
        assert_eq!(Life::parse(&[0; 55]), None);
    }
}
