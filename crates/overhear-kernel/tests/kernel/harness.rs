// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts programs that are followed from before their first instruction, and collects the elements
//! of the sensors.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, ptr, thread};

use overhear_event::kernel::{
    Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{GapCause, Inbox, Source, StreamDescriptor, StreamId, Timestamp, Value};
use overhear_kernel::Kernel;

use crate::roles::{ENTRY, ROLE};

/// One test at a time: each needs the machine's few CPUs for its program and its monitor.
pub(crate) fn cpu_lock() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the tests that need all privileges can run.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    unsafe { libc::geteuid() == 0 }
}

fn arguments(role: &str) -> ([&'static str; 4], (&'static str, String)) {
    let arguments = ["--exact", ENTRY, "--nocapture", "--test-threads=1"];
    (arguments, (ROLE, role.to_owned()))
}

/// Runs a role to its end as a user; returns whether it could be executed at all.
///
/// The role makes its own assertions; its output is shown.
pub(crate) fn run_role(role: &str, user: Option<u32>) -> bool {
    let (arguments, (variable, value)) = arguments(role);
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(arguments)
        .env(variable, value)
        .current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: user {user:?} cannot execute the test binary ({error})");
            return false;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{role}: {}", output.status);
    assert!(text.contains("@ played"), "{role} did not play");
    true
}

/// A program under observation.
pub(crate) struct Program {
    pub(crate) pid: u32,
    /// The main thread's voluntary and involuntary switches before it was followed.
    pub(crate) before: (u64, u64),
    /// Its time on a CPU before, in nanoseconds.
    ran_before: u64,
    lines: Receiver<String>,
    input: Option<OwnedFd>,
    /// The lines that it has printed so far.
    pub(crate) printed: Vec<String>,
}

impl Program {
    /// Starts a role, stopped right before exec, calls `follow`, and lets it run.
    pub(crate) fn start(role: &str, follow: impl FnOnce(u32)) -> Self {
        let (arguments, (variable, value)) = arguments(role);
        let path = CString::new(env::current_exe().unwrap().as_os_str().as_bytes()).unwrap();
        let strings: Vec<CString> = arguments
            .iter()
            .map(|argument| CString::new(*argument).unwrap())
            .collect();
        let setting = CString::new(format!("{variable}={value}")).unwrap();
        let mut argv = vec![path.as_ptr()];
        argv.extend(strings.iter().map(|string| string.as_ptr()));
        argv.push(ptr::null());
        let envp = [setting.as_ptr(), ptr::null()];
        let (input_read, input_write) = pipe();
        let (output_read, output_write) = pipe();
        // SAFETY: until exec the child calls only async-signal-safe functions, on memory that
        // was prepared before.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; the pointers are valid and the arrays end with null.
            unsafe {
                libc::dup2(input_read.as_raw_fd(), 0);
                libc::dup2(output_write.as_raw_fd(), 1);
                libc::raise(libc::SIGSTOP);
                libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
                libc::_exit(98);
            }
        }
        let mut status = 0;
        // SAFETY: `status` has room for the result.
        let stopped = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status));
        let pid = pid as u32;
        // The stop is reported a little before the last departure from the CPU.
        let before = settled_switches(pid)[&pid];
        let ran_before = run_times(pid)[&pid];
        follow(pid);
        // SAFETY: sends a signal to our own child.
        unsafe { libc::kill(pid as i32, libc::SIGCONT) };

        let (sender, lines) = channel();
        drop(output_write);
        thread::spawn(move || {
            for line in BufReader::new(File::from(output_read)).lines() {
                let Ok(line) = line else { break };
                // The test harness may have written the beginning of the line.
                if let Some((_, line)) = line.split_once("@ ") {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Self {
            pid,
            before,
            ran_before,
            lines,
            input: Some(input_write),
            printed: Vec::new(),
        }
    }

    /// Calls `meanwhile` repeatedly until the program's threads are parked.
    pub(crate) fn until_parked(&mut self, mut meanwhile: impl FnMut()) {
        loop {
            meanwhile();
            match self.lines.try_recv() {
                Ok(line) if line == "parked" => return,
                Ok(line) => self.printed.push(line),
                Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(1)),
                Err(TryRecvError::Disconnected) => panic!("the program died"),
            }
        }
    }

    /// Switches of each thread since it was followed, once all are parked.
    pub(crate) fn switches(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut all = settled_switches(self.pid);
        let main = all.get_mut(&self.pid).unwrap();
        *main = (main.0 - self.before.0, main.1 - self.before.1);
        all
    }

    /// Nanoseconds on a CPU of each thread since it was followed, by the kernel's account, once
    /// all are parked.
    pub(crate) fn run_times(&self) -> BTreeMap<u32, u64> {
        let mut all = run_times(self.pid);
        *all.get_mut(&self.pid).unwrap() -= self.ran_before;
        all
    }

    /// Lets this many of the program's parked threads go on.
    pub(crate) fn release(&self, threads: usize) {
        let input = self.input.as_ref().unwrap();
        assert_eq!(rustix::io::write(input, &vec![0; threads]), Ok(threads));
    }

    /// Waits for the next `parked`, and discards the earlier lines.
    pub(crate) fn until_parked_again(&mut self, meanwhile: impl FnMut()) {
        self.printed.clear();
        self.until_parked(meanwhile);
    }

    /// Lets the program end, without waiting for it yet.
    pub(crate) fn end(&mut self) {
        self.input = None;
        // SAFETY: zero is a valid siginfo_t, which the call fills.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT;
            let result = libc::waitid(libc::P_PID, self.pid, &raw mut info, flags);
            assert_eq!(result, 0);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: signals and reaps our own child, which nobody has waited for.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            libc::waitpid(self.pid as i32, ptr::null_mut(), 0);
        }
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut fds = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the call succeeded, so both descriptors are new and nobody's.
    fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into()
}

/// Voluntary and involuntary switches of a process' threads, by the kernel, once they rest.
pub(crate) fn settled_switches(pid: u32) -> BTreeMap<u32, (u64, u64)> {
    let mut last = switches_now(pid);
    let mut same = 0;
    while same < 3 {
        thread::sleep(Duration::from_millis(10));
        let now = switches_now(pid);
        // A thread that waits for a CPU is not at rest, independent of the time.
        same = if now == last && !anyone_runs(pid) {
            same + 1
        } else {
            0
        };
        last = now;
    }
    last
}

/// Whether a thread of the process runs or waits for a CPU.
fn anyone_runs(pid: u32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    entries.flatten().any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" R"))
    })
}

/// Nanoseconds on a CPU of a process' threads; `schedstat` shows the account without estimates.
fn run_times(pid: u32) -> BTreeMap<u32, u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(path.join("schedstat")).unwrap();
            let tid = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            (tid, text.split(' ').next().unwrap().parse().unwrap())
        })
        .collect()
}

fn switches_now(pid: u32) -> BTreeMap<u32, (u64, u64)> {
    let number = |status: &str, key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse().unwrap()
    };
    let mut switches = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = entry.unwrap().path();
        let status = fs::read_to_string(path.join("status")).unwrap();
        switches.insert(
            path.file_name().unwrap().to_str().unwrap().parse().unwrap(),
            (
                number(&status, "voluntary_ctxt_switches:"),
                number(&status, "nonvoluntary_ctxt_switches:"),
            ),
        );
    }
    switches
}

/// All items of a source, checked against the contract of [`Inbox`].
#[derive(Default)]
pub(crate) struct Recorder {
    streams: BTreeMap<StreamId, Stream>,
    pub(crate) switches: Vec<(StreamId, Timestamp, Switch)>,
    pub(crate) wakes: Vec<(Timestamp, Wake)>,
    pub(crate) lives: Vec<(Timestamp, Life)>,
    pub(crate) samples: Vec<(Timestamp, SchedStat)>,
    /// Elements of all other sensors, by the sensor's name, field by field.
    pub(crate) others: BTreeMap<String, Vec<BTreeMap<String, i128>>>,
    /// Times of these elements.
    pub(crate) times: BTreeMap<String, Vec<Timestamp>>,
}

struct Stream {
    descriptor: Arc<StreamDescriptor>,
    next: u64,
    last: Timestamp,
    delivered: u64,
    missed: BTreeMap<GapCause, u64>,
    closed: bool,
}

impl Recorder {
    pub(crate) fn poll(&mut self, kernel: &mut impl Source) {
        kernel.poll(self).unwrap();
    }

    /// Number of departures of a thread while it was tracked.
    pub(crate) fn tracked_departures(&self, tid: u32) -> u64 {
        let of =
            |switch: &Switch| switch.prev_tid == tid && switch.flags & Switch::PREV_TRACKED != 0;
        self.switches.iter().filter(|(_, _, s)| of(s)).count() as u64
    }

    /// Number of elements in which the thread is tracked.
    pub(crate) fn mentions(&self, tid: u32) -> usize {
        let switches = self.switches.iter().filter(|(_, _, switch)| {
            switch.prev_tid == tid && switch.flags & Switch::PREV_TRACKED != 0
                || switch.next_tid == tid && switch.flags & Switch::NEXT_TRACKED != 0
        });
        let wakes = self.wakes.iter().filter(|(_, wake)| wake.tid == tid);
        let lives = self.lives.iter().filter(|(_, life)| life.tid == tid);
        switches.count() + wakes.count() + lives.count()
    }

    /// Number of delivered elements.
    pub(crate) fn delivered(&self) -> u64 {
        self.streams.values().map(|stream| stream.delivered).sum()
    }

    /// Number of missed elements of all streams, by cause.
    pub(crate) fn missed(&self, cause: GapCause) -> u64 {
        let of_cause = |stream: &Stream| stream.missed.get(&cause).copied();
        self.streams.values().filter_map(of_cause).sum()
    }

    /// Number of missed elements of one sensor, for all causes.
    pub(crate) fn missed_of(&self, sensor: &str) -> u64 {
        let own = |stream: &&Stream| stream.descriptor.sensor == sensor;
        let streams = self.streams.values().filter(own);
        streams.flat_map(|stream| stream.missed.values()).sum()
    }

    /// The streams with missing elements, and the causes.
    pub(crate) fn gaps(&self) -> Vec<String> {
        let with_gaps = self
            .streams
            .values()
            .filter(|stream| !stream.missed.is_empty());
        with_gaps
            .map(|stream| {
                let label = stream.descriptor.label();
                format!(
                    "{label}: {} delivered, missed {:?}",
                    stream.delivered, stream.missed
                )
            })
            .collect()
    }

    /// Number of departures of a thread: voluntary and involuntary.
    pub(crate) fn departures(&self, tid: u32) -> (u64, u64) {
        let (mut voluntary, mut involuntary) = (0, 0);
        for (_, _, switch) in &self.switches {
            if switch.prev_tid == tid {
                assert_ne!(switch.flags & Switch::PREV_TRACKED, 0);
                if switch.is_voluntary() {
                    voluntary += 1;
                } else {
                    involuntary += 1;
                }
            }
        }
        (voluntary, involuntary)
    }

    /// Asserts that a thread's departures are those that the kernel counted, and that it has as
    /// many arrivals.
    ///
    /// In some virtual machines the tracepoint does not fire when certain threads of the guest's
    /// own agent leave a CPU (ftrace does not show these switches either). Then an arrival is
    /// missing without a gap. The stream of its CPU shows this: there the thread leaves after an
    /// untracked one has arrived. Every missing arrival must show there.
    pub(crate) fn assert_counts(&self, tid: u32, counts: (u64, u64)) {
        assert_eq!(self.departures(tid), counts, "thread {tid}");
        let (arrivals, missing_count) = (self.arrivals(tid), self.missing_arrivals(tid));
        println!(
            "thread {tid}: {counts:?} departures, {arrivals} arrivals, {missing_count} unseen"
        );
        assert_eq!(
            arrivals + missing_count,
            counts.0 + counts.1,
            "thread {tid}"
        );
    }

    /// Asserts that the running times in the departures of a thread add up to the kernel's account,
    /// within 1 % and 20 us: also if arrivals were not recorded.
    pub(crate) fn assert_run_time(&self, tid: u32, account_ns: u64) {
        let departures = self
            .switches
            .iter()
            .filter(|switch| switch.2.prev_tid == tid);
        let recorded: u64 = departures
            .map(|(_, _, switch)| {
                assert_ne!(switch.prev_run_ns, Switch::UNKNOWN, "thread {tid}");
                u64::from(switch.prev_run_ns)
            })
            .sum();
        println!("thread {tid}: {recorded} ns recorded, {account_ns} ns by the account");
        let allowed = account_ns / 100 + 20_000;
        assert!(recorded.abs_diff(account_ns) <= allowed, "thread {tid}");
    }

    /// Number of departures of a thread from a CPU on which it did not arrive, while another thread
    /// had been there.
    pub(crate) fn missing_arrivals(&self, tid: u32) -> u64 {
        let mut on_cpu = BTreeMap::new();
        let mut missing_count = 0;
        for (stream, _, switch) in &self.switches {
            let before = on_cpu.insert(*stream, switch);
            if switch.prev_tid == tid && before.map(|before| before.next_tid) != Some(tid) {
                let tracked = before.map_or(0, |before| before.flags & Switch::NEXT_TRACKED);
                assert_eq!(
                    tracked, 0,
                    "a tracked thread never left: {before:?} {switch:?}"
                );
                missing_count += 1;
            }
        }
        missing_count
    }

    pub(crate) fn arrivals(&self, tid: u32) -> u64 {
        let arrives = |switch: &&(StreamId, Timestamp, Switch)| switch.2.next_tid == tid;
        self.switches.iter().filter(arrives).count() as u64
    }

    /// Asserts that every position of every BPF ring was delivered or counted.
    pub(crate) fn assert_complete(&self, kernel: &Kernel) {
        self.assert_all(|id| kernel.committed(id));
    }

    /// As [`Self::assert_complete`], with the number of committed elements of each stream.
    pub(crate) fn assert_all(&self, committed: impl Fn(StreamId) -> Option<u64>) {
        assert!(!self.streams.is_empty());
        for (&id, stream) in &self.streams {
            assert!(stream.closed, "{} is open", stream.descriptor.label());
            let overwritten = stream.missed.get(&GapCause::Overwritten).copied();
            let accounted = stream.delivered + overwritten.unwrap_or_default();
            assert_eq!(
                Some(accounted),
                committed(id),
                "{}",
                stream.descriptor.label()
            );
        }
    }

    /// Asserts that no element was missed for any other cause.
    pub(crate) fn assert_only_gaps_of(&self, cause: GapCause) {
        for stream in self.streams.values() {
            let label = stream.descriptor.label();
            let known = stream.missed.keys().all(|&missed| missed == cause);
            assert!(known, "{label}: {:?}", stream.missed);
        }
    }
}

impl Inbox for Recorder {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        let stream = Stream {
            next: 0,
            last: Timestamp::ZERO,
            delivered: 0,
            missed: BTreeMap::new(),
            closed: false,
            descriptor,
        };
        let before = self.streams.insert(stream.descriptor.id, stream);
        assert!(before.is_none(), "a stream was opened twice");
    }

    fn element(&mut self, id: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        let stream = self.streams.get_mut(&id).unwrap();
        let label = stream.descriptor.label();
        assert!(!stream.closed, "{label}");
        assert_eq!(sequence, stream.next, "{label}");
        assert!(time >= stream.last, "{label}: time goes back");
        stream.next += 1;
        stream.last = time;
        stream.delivered += 1;
        match stream.descriptor.sensor.as_str() {
            SCHED_SWITCH => {
                let switch = Switch::parse(payload).unwrap();
                self.switches.push((id, time, switch));
            }
            SCHED_WAKE => self.wakes.push((time, Wake::parse(payload).unwrap())),
            TASK_LIFE => self.lives.push((time, Life::parse(payload).unwrap())),
            SCHEDSTAT => self
                .samples
                .push((time, SchedStat::parse(payload).unwrap())),
            other => {
                let schema = &stream.descriptor.schema;
                let fields = schema.fields().iter().enumerate().map(|(index, field)| {
                    let value = match schema.read(index, payload).unwrap() {
                        Value::Unsigned(value) => value.into(),
                        Value::Signed(value) => value.into(),
                        // For texts, only equality matters.
                        Value::Text(text) => text.bytes().map(i128::from).sum(),
                        Value::Float(_) => panic!("no kernel sensor has such a field"),
                    };
                    (field.name.to_string(), value)
                });
                let times = self.times.entry(other.to_owned()).or_default();
                times.push(time);
                let others = self.others.entry(other.to_owned()).or_default();
                others.push(fields.collect());
            }
        }
    }

    fn gap(&mut self, id: StreamId, first: u64, missed: u64, cause: GapCause) {
        let stream = self.streams.get_mut(&id).unwrap();
        assert!(!stream.closed);
        assert_eq!(first, stream.next, "{}", stream.descriptor.label());
        // The place of a gap of a budget may be known better than its number.
        assert!(missed > 0 || cause == GapCause::Budget);
        stream.next += missed;
        *stream.missed.entry(cause).or_default() += missed;
    }

    fn close(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id).unwrap();
        assert!(!stream.closed);
        stream.closed = true;
    }
}
