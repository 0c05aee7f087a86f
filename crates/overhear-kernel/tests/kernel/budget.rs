// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors and probes that a budget switches off: what is counted, and where the gaps are.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use overhear_event::{GapCause, Inbox, Source, StreamDescriptor, StreamId, Timestamp, Value};
use overhear_kernel::{Backend, BudgetState, Kernel, KernelBuilder, KernelWrites, Probe, Sensor};

use crate::harness::{cpu_lock, settled_switches, Program};
use crate::roles::park;

/// Number of calls in each phase of the program.
const CALLS: u64 = 4_000;
const PHASES: usize = 3;

/// The breakpoint of x86-64.
const INT3: u8 = 0xcc;

/// A function that only this module probes.
#[no_mangle]
#[inline(never)]
extern "C" fn overhear_test_switched(value: u64) -> u64 {
    black_box(value + 1)
}

/// Role: passes a system call and a function [`CALLS`] times in each of its phases, on one CPU.
pub(crate) fn phases() {
    // SAFETY: the set is valid and lives during the call; zero is an empty set.
    unsafe {
        let mut first: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut first);
        let size = std::mem::size_of_val(&first);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const first), 0);
    }
    let function = overhear_test_switched as extern "C" fn(u64) -> u64;
    println!("@ {}", function as usize);
    for _ in 0..PHASES {
        println!("@ parked");
        park();
        for call in 0..CALLS {
            // SAFETY: only returns a number.
            unsafe { libc::syscall(libc::SYS_getppid) };
            black_box(function(call));
        }
    }
    println!("@ parked");
    park();
}

/// The items of the streams of one sensor, in their order.
struct Items {
    sensor: String,
    streams: Vec<StreamId>,
    /// The number of a system call, 0 for other elements, or a gap.
    found: Vec<Result<u64, u64>>,
    schema: Option<Arc<StreamDescriptor>>,
}

impl Items {
    fn of(sensor: &str) -> Self {
        Self {
            sensor: sensor.to_owned(),
            streams: Vec::new(),
            found: Vec::new(),
            schema: None,
        }
    }

    fn skipped(&self) -> u64 {
        self.found.iter().filter_map(|item| item.err()).sum()
    }

    /// Numbers of elements that `is_counted` accepts, between the gaps.
    fn between_gaps(&self, is_counted: impl Fn(u64) -> bool) -> Vec<u64> {
        let parts = self.found.split(Result::is_err);
        let count = |part: &[Result<u64, u64>]| {
            let elements = part.iter().filter(|it| it.is_ok_and(&is_counted));
            elements.count() as u64
        };
        parts.map(count).filter(|count| *count > 0).collect()
    }
}

impl Inbox for Items {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        if stream.sensor == self.sensor {
            self.streams.push(stream.id);
            self.schema = Some(stream);
        }
    }

    fn element(&mut self, id: StreamId, _: u64, _: Timestamp, payload: &[u8]) {
        let Some(stream) = self.schema.as_ref().filter(|_| self.streams.contains(&id)) else {
            return;
        };
        let schema = &stream.schema;
        let number = schema.index_of("number").map(|at| schema.read(at, payload));
        self.found.push(Ok(match number {
            Some(Some(Value::Unsigned(number))) => number,
            _ => 0,
        }));
    }

    fn gap(&mut self, id: StreamId, _: u64, missed: u64, cause: GapCause) {
        if self.streams.contains(&id) {
            assert_eq!(cause, GapCause::Budget);
            self.found.push(Err(missed));
        }
    }

    fn close(&mut self, _: StreamId) {}
}

fn start(builder: KernelBuilder) -> Option<Kernel> {
    match builder.backend(Backend::Bpf).build() {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn writes(kernel: &Kernel, sensor: &str) -> KernelWrites {
    let all = kernel.writes();
    let found = all.into_iter().find(|it| it.descriptor.sensor == sensor);
    found.unwrap_or_else(|| panic!("no {sensor}"))
}

/// Waits until the state of a sensor's programs is the ordered one, as far as the program shows it.
fn settle(kernel: &Kernel, sensor: &str, is_attached: bool) {
    while writes(kernel, sensor).is_attached != is_attached {
        std::thread::yield_now();
    }
}

/// Lets the program pass its phases; the sensors are in the state `off` in the second one. Calls
/// `at_switch` while they are off, and after they are on again.
fn run_phases(
    kernel: &mut Kernel,
    sensors: &[&str],
    off: BudgetState,
    items: &mut Items,
    mut at_switch: impl FnMut(&Program),
) {
    let mut program = Program::start("phases", |pid| kernel.follow(pid).unwrap());
    for phase in 0..PHASES {
        program.until_parked(|| kernel.poll(items).unwrap());
        if phase > 0 {
            for sensor in sensors {
                let stream = writes(kernel, sensor).descriptor.id;
                let to = if phase == 1 { off } else { BudgetState::On };
                kernel.switch_for_budget(stream, to).unwrap();
                settle(kernel, sensor, to != BudgetState::Detached);
            }
            at_switch(&program);
        }
        program.release(1);
    }
    program.until_parked(|| kernel.poll(items).unwrap());
    program.end();
    kernel.finish();
    kernel.poll(items).unwrap();
}

#[test]
fn sensor_that_is_off_counts_its_events() {
    let _cpus = cpu_lock();
    let syscall: Sensor = "syscall".parse().unwrap();
    let Some(mut kernel) = start(Kernel::builder().sensors([syscall])) else {
        return;
    };
    let mut items = Items::of("syscall");
    run_phases(
        &mut kernel,
        &["syscall"],
        BudgetState::Counted,
        &mut items,
        |_| {},
    );
    // Entry and exit of each call, and those of the few other calls of the phase.
    let skipped = items.skipped();
    assert!((2 * CALLS..2 * CALLS + 50).contains(&skipped), "{skipped}");
    let is_getppid = |number| number == libc::SYS_getppid as u64;
    assert_eq!(items.between_gaps(is_getppid), [2 * CALLS, 2 * CALLS]);
}

#[test]
fn counts_of_written_and_skipped_events_are_those_of_the_streams() {
    let _cpus = cpu_lock();
    let syscall: Sensor = "syscall".parse().unwrap();
    let Some(mut kernel) = start(Kernel::builder().sensors([syscall])) else {
        return;
    };
    let mut items = Items::of("syscall");
    let mut program = Program::start("phases", |pid| kernel.follow(pid).unwrap());
    let mut rounds = 0_u64;
    for phase in 0..=PHASES {
        program.until_parked(|| {
            rounds += 1;
            // Several times between two polls, sometimes: then the places of gaps are not known.
            for turn in 0..[1, 2, 5][rounds as usize % 3] {
                let stream = writes(&kernel, "syscall").descriptor.id;
                let to = [BudgetState::On, BudgetState::Counted][(rounds + turn) as usize % 2];
                kernel.switch_for_budget(stream, to).unwrap();
                std::thread::yield_now();
            }
            kernel.poll(&mut items).unwrap();
        });
        if phase < PHASES {
            program.release(1);
        }
    }
    program.end();
    let totals = writes(&kernel, "syscall");
    kernel.finish();
    kernel.poll(&mut items).unwrap();
    let delivered = items.found.iter().filter(|item| item.is_ok()).count() as u64;
    let (written, skipped) = (totals.written, totals.skipped);
    println!("{rounds} rounds: {written} written, {skipped} skipped");
    assert_eq!((delivered, items.skipped()), (written, skipped));
    assert!(written > 0 && skipped > 0);
}

#[test]
fn life_sensor_is_not_among_those_that_a_budget_switches() {
    let Some(kernel) = start(Kernel::builder()) else {
        return;
    };
    let names: Vec<String> = kernel
        .writes()
        .iter()
        .map(|it| it.descriptor.sensor.clone())
        .collect();
    assert_eq!(names, ["sched_switch", "sched_wake"]);
}

/// A detached probe leaves no breakpoint in the program. Both ends are attached again.
#[test]
fn probe_that_is_off_leaves_the_code_of_the_program() {
    let _cpus = cpu_lock();
    let path = std::env::current_exe().unwrap();
    let place = |suffix: &str| format!("{}:overhear_test_switched{suffix}", path.display());
    let probes = ["", ":return"].map(|suffix| Probe::function(&place(suffix)).unwrap());
    let sensors = [
        "probe/overhear_test_switched",
        "probe/overhear_test_switched/return",
    ];
    for watched in sensors {
        let Some(mut kernel) = start(Kernel::builder().probes(probes.clone())) else {
            return;
        };
        assert!(writes(&kernel, watched).is_detachable);
        let mut items = Items::of(watched);
        let mut code = Vec::new();
        run_phases(
            &mut kernel,
            &sensors,
            BudgetState::Detached,
            &mut items,
            |program| {
                let address: u64 = program.printed[0].parse().unwrap();
                let memory = File::open(format!("/proc/{}/mem", program.pid)).unwrap();
                let mut byte = [INT3];
                // The first time it is being detached.
                while byte == [INT3] {
                    memory.read_exact_at(&mut byte, address).unwrap();
                    if !code.is_empty() {
                        break;
                    }
                    std::thread::yield_now();
                }
                code.push(byte[0]);
            },
        );
        if cfg!(target_arch = "x86_64") {
            assert!(code[0] != INT3 && code[1] == INT3, "{code:x?}");
        }
        // Nobody counts what passed meanwhile: one for the CPU of the program, and one for each of
        // the others, whose streams have the gap at their end.
        assert_eq!(items.between_gaps(|_| true), [CALLS, CALLS]);
        assert_eq!(items.skipped(), items.streams.len() as u64);
    }
}

/// The number of a tracepoint, from tracefs, which a mount namespace has if the machine has not.
fn tracepoint_id(tracepoint: &str) -> Option<u64> {
    const TRACEFS: &str = "/sys/kernel/tracing";
    let script = format!(
        "test -e {TRACEFS}/events || mount -t tracefs nodev {TRACEFS} || exit 77
        cat {TRACEFS}/events/{tracepoint}/id"
    );
    let mut namespace = Command::new("unshare");
    let output = namespace.args(["--mount", "sh", "-c", &script]).output();
    let id = String::from_utf8(output.ok()?.stdout).ok()?;
    id.trim().parse().ok()
}

/// A counter of a tracepoint in one thread, by perf: independent of BPF programs and budgets.
struct TracepointCount(File);

impl TracepointCount {
    /// `None` if the machine does not permit it.
    fn open(tracepoint: &str, tid: u32) -> Option<Self> {
        const TYPE_TRACEPOINT: u64 = 2;
        const ATTRIBUTE_BYTES: u64 = 128;
        let id = tracepoint_id(tracepoint)?;
        let mut attribute = [0_u64; 16];
        attribute[0] = ATTRIBUTE_BYTES << 32 | TYPE_TRACEPOINT;
        attribute[1] = id;
        // SAFETY: the attribute has the size that it names, and lives during the call.
        let file = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attribute.as_ptr(),
                tid,
                -1,
                -1,
                0,
            )
        };
        // SAFETY: the call succeeded, so this is a new descriptor without another owner.
        (file >= 0).then(|| Self(File::from(unsafe { OwnedFd::from_raw_fd(file as i32) })))
    }

    fn read(&self) -> u64 {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count).unwrap();
        u64::from_ne_bytes(count)
    }
}

/// The kernel's own counts between two points at which the program is blocked.
#[test]
fn written_and_skipped_events_are_all_that_the_kernel_counts() {
    let _cpus = cpu_lock();
    let syscall: Sensor = "syscall".parse().unwrap();
    let path = std::env::current_exe().unwrap();
    let place = format!("{}:overhear_test_switched", path.display());
    let probe = Probe::function(&place).unwrap();
    let Some(mut kernel) = start(Kernel::builder().sensors([syscall]).probes([probe])) else {
        return;
    };
    let names = ["syscall", "probe/overhear_test_switched"];
    let [mut calls, mut passes] = names.map(Items::of);
    let mut program = Program::start("phases", |pid| kernel.follow(pid).unwrap());
    let all = |kernel: &Kernel| {
        names.map(|name| {
            let totals = writes(kernel, name);
            totals.written + totals.skipped
        })
    };
    let (mut counters, mut before) = (Vec::new(), [0; 2]);
    let mut rounds = 0_usize;
    for phase in 0..=PHASES {
        program.until_parked(|| {
            rounds += 1;
            for name in names {
                let to = [BudgetState::On, BudgetState::Counted][rounds % 2];
                let stream = writes(&kernel, name).descriptor.id;
                kernel.switch_for_budget(stream, to).unwrap();
            }
            kernel.poll(&mut Fork(&mut calls, &mut passes)).unwrap();
        });
        let threads = settled_switches(program.pid).into_keys();
        if phase == 0 {
            let places = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"];
            for (tid, tracepoint) in threads.flat_map(|tid| places.map(|place| (tid, place))) {
                let Some(counter) = TracepointCount::open(tracepoint, tid) else {
                    println!("skipped: the machine does not permit to count tracepoints");
                    return;
                };
                counters.push(counter);
            }
            before = all(&kernel);
        }
        if phase < PHASES {
            program.release(1);
        }
    }
    let counted: u64 = counters.iter().map(TracepointCount::read).sum();
    let [all_calls, all_passes] = all(&kernel);
    assert_eq!(all_calls - before[0], counted);
    assert_eq!(all_passes - before[1], CALLS * PHASES as u64);
    assert!(counted >= 2 * CALLS * PHASES as u64);
    program.end();
    let totals = names.map(|name| writes(&kernel, name));
    kernel.finish();
    kernel.poll(&mut Fork(&mut calls, &mut passes)).unwrap();
    for (items, totals) in [calls, passes].iter().zip(totals) {
        let delivered = items.found.iter().filter(|item| item.is_ok()).count() as u64;
        assert_eq!(
            (delivered, items.skipped()),
            (totals.written, totals.skipped)
        );
        assert!(delivered > 0 && totals.skipped > 0, "{}", items.sensor);
    }
}

/// Gives every item to two inboxes.
struct Fork<'a>(&'a mut Items, &'a mut Items);

impl Inbox for Fork<'_> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        self.0.open(Arc::clone(&stream));
        self.1.open(stream);
    }

    fn element(&mut self, id: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.0.element(id, sequence, time, payload);
        self.1.element(id, sequence, time, payload);
    }

    fn gap(&mut self, id: StreamId, first: u64, missed: u64, cause: GapCause) {
        self.0.gap(id, first, missed, cause);
        self.1.gap(id, first, missed, cause);
    }

    fn close(&mut self, _: StreamId) {}
}
