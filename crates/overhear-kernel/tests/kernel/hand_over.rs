// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel monitors that are handed over to another process.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use overhear_event::kernel::{Switch, SCHED_SWITCH};
use overhear_event::{GapCause, Inbox, StreamDescriptor, StreamId, Timestamp};
use overhear_kernel::{
    ActiveBackend, Backend, GiveError, KernelMonitor, Probe, ReceiveError, SelectError, Sensor,
};

use crate::harness::{cpu_lock, is_root, Program, Recorder};
use crate::monitors::{create, named};
use crate::owners::{held_by, Held};
use crate::perf::NOBODY;
use crate::probes::probes;
use crate::roles::{ENTRY, ROLE};

/// The variable with the threads that a role tracks or counts.
pub(crate) const THREADS: &str = "OVERHEAR_KERNEL_TEST_THREADS";

/// Departures of tracked threads, and missed elements, from the begin of reading.
#[derive(Default)]
struct Departures {
    switches: BTreeMap<StreamId, Arc<StreamDescriptor>>,
    by_thread: BTreeMap<u32, u64>,
    missed: u64,
    last: BTreeMap<StreamId, u64>,
}

impl Departures {
    fn all(&self) -> u64 {
        self.by_thread.values().sum()
    }

    fn of(&self, tid: u32) -> u64 {
        self.by_thread.get(&tid).copied().unwrap_or(0)
    }

    fn read(&mut self, monitor: &mut KernelMonitor) {
        monitor.read(self).unwrap();
    }
}

impl Inbox for Departures {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        if stream.sensor == SCHED_SWITCH {
            self.switches.insert(stream.id, stream);
        }
    }

    fn element(&mut self, id: StreamId, sequence: u64, _: Timestamp, payload: &[u8]) {
        if let Some(before) = self.last.insert(id, sequence) {
            assert_eq!(sequence, before + 1);
        }
        if self.switches.contains_key(&id) {
            let switch = Switch::parse(payload).unwrap();
            if switch.flags & Switch::PREV_TRACKED != 0 {
                *self.by_thread.entry(switch.prev_tid).or_default() += 1;
            }
        }
    }

    fn gap(&mut self, _: StreamId, _: u64, missed: u64, _: GapCause) {
        self.missed += missed;
    }

    fn close(&mut self, _: StreamId) {}
}

/// A process with a role, at the other end of a socket that is its standard input.
struct Peer {
    child: Child,
    socket: UnixStream,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, user: Option<u32>, threads: &[u32]) -> Option<Self> {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let threads: Vec<String> = threads.iter().map(u32::to_string).collect();
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", ENTRY, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(THREADS, threads.join(","))
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("skipped: user {user:?} cannot execute the test binary ({error})");
                return None;
            }
        };
        let lines = BufReader::new(child.stdout.take().unwrap());
        Some(Self {
            child,
            socket,
            lines,
        })
    }

    /// The next line from the peer.
    fn line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some((_, reply)) = line.split_once("@ ") {
                return reply.trim().to_owned();
            }
            line.clear();
        }
        panic!("the peer died");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn threads() -> Vec<u32> {
    let text = env::var(THREADS).unwrap();
    text.split(',').map(|tid| tid.parse().unwrap()).collect()
}

/// Standard input, which is the socket.
fn socket() -> UnixStream {
    UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
}

/// Role: a process that tracks the first thread, reads on demand, and hands the monitor over.
pub(crate) fn giver() {
    let mut socket = socket();
    let builder = || KernelMonitor::builder().elements(4096);
    // It has another monitor, which the receiver does not get.
    let (Some(_other), Some(mut monitor)) =
        (create(builder()), create(builder().dedicated_programs()))
    else {
        return println!("@ skipped");
    };
    let threads = threads();
    monitor.thread_monitor(threads[0], 70).unwrap();
    monitor.resume().unwrap();
    println!("@ ready");
    socket.read_exact(&mut [0]).unwrap();
    let mut received = Departures::default();
    received.read(&mut monitor);
    monitor.give(&socket).unwrap();
    assert_eq!(monitor.resume(), Err(SelectError::HandedOver));
    assert_eq!(
        monitor.give(&socket),
        Err(GiveError::Unavailable(SelectError::HandedOver))
    );
    println!("@ {} {}", received.of(threads[0]), received.missed);
    // It runs until it is killed.
    let _ = socket.read_exact(&mut [0]);
}

#[test]
fn given_monitor_survives_giver() {
    let _cpus = cpu_lock();
    let mut program = Program::start("refrain", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    let begin = program.switches();
    let mut giver = Peer::start("giver", None, &threads[..2]).unwrap();
    if giver.line() == "skipped" {
        return println!("skipped: no BPF here");
    }
    // Events before the hand-over, which the giver reads.
    program.release(threads.len());
    program.until_parked_again(|| {});
    let middle = program.switches();
    giver.socket.write_all(&[0]).unwrap();
    let mut monitor = KernelMonitor::receive(&giver.socket).unwrap();
    let reply = giver.line();
    let (received, missed) = reply.split_once(' ').unwrap();
    let sum = |counts: (u64, u64)| counts.0 + counts.1;
    let first = threads[0];
    let before: u64 = sum(middle[&first]) - sum(begin[&first]);
    assert_eq!(
        (received.parse(), missed),
        (Ok(before), "0"),
        "what the giver has read"
    );
    println!("{}", monitor.status().unwrap().message);
    assert!(monitor.granted_bytes().unwrap() > 0);
    drop(giver);

    // Events after it, which are read here.
    program.release(threads.len());
    program.until_parked_again(|| {});
    let end = program.switches();
    let mut departures = Departures::default();
    departures.read(&mut monitor);
    assert_eq!(departures.missed, 0);
    let after = sum(end[&first]) - sum(middle[&first]);
    assert_eq!(departures.of(first), after, "nothing twice, nothing lost");
    assert_eq!(departures.of(threads[1]), 0);

    // The monitor is controlled here, too.
    monitor.thread_unmonitor(first).unwrap();
    let error = monitor.thread_unmonitor(first).unwrap_err();
    assert_eq!(error, SelectError::NotMonitored { tid: first });
    let begin = end[&threads[1]];
    monitor.suspend().unwrap();
    monitor.thread_monitor(threads[1], 71).unwrap();
    monitor.resume().unwrap();
    program.release(threads.len());
    program.until_parked_again(|| {});
    let counted = sum(program.switches()[&threads[1]]) - sum(begin);
    monitor.finish().unwrap();
    departures.read(&mut monitor);
    assert_eq!(departures.of(first), after);
    assert_eq!((departures.of(threads[1]), departures.missed), (counted, 0));
    let error = monitor.give(UnixStream::pair().unwrap().0).unwrap_err();
    assert_eq!(error, GiveError::Finished);
    monitor.terminate().unwrap();
}

/// Role: a process without privileges that receives a monitor, reads it, and ends.
pub(crate) fn receiver() {
    let mut socket = socket();
    let mut monitor = KernelMonitor::receive(&socket).unwrap();
    let threads = threads();
    println!("@ received");
    socket.read_exact(&mut [0]).unwrap();
    let mut departures = Departures::default();
    departures.read(&mut monitor);
    // The receiver controls it as its owner.
    let untracked = monitor.thread_unmonitor(threads[0]);
    let received = departures.of(threads[0]);
    println!("@ {received} {} {untracked:?}", departures.missed);
    let _ = socket.read_exact(&mut [0]);
}

#[test]
fn receiver_needs_no_privilege_and_leaves_nothing() {
    let _cpus = cpu_lock();
    if !is_root() {
        return println!("skipped: another user takes root");
    }
    let Some(mut monitor) = create(KernelMonitor::builder().elements(4096).dedicated_programs())
    else {
        return;
    };
    let mut program = Program::start("refrain", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    let Some(mut receiver) = Peer::start("receiver", Some(NOBODY), &threads[..1]) else {
        return;
    };
    // Counted while the program rests, before recording begins.
    let begin = program.switches()[&threads[0]];
    monitor.thread_monitor(threads[0], 1).unwrap();
    monitor.resume().unwrap();
    monitor.give(&receiver.socket).unwrap();
    drop(monitor);
    assert_eq!(receiver.line(), "received");
    let held = held_by(receiver.child.id());
    assert!(held.iter().any(Held::exists), "nobody can look at it");
    program.release(threads.len());
    program.until_parked_again(|| {});
    let end = program.switches()[&threads[0]];
    receiver.socket.write_all(&[0]).unwrap();
    let counted = end.0 + end.1 - begin.0 - begin.1;
    assert_eq!(receiver.line(), format!("{counted} 0 Ok(())"));
    drop(receiver);
    Held::until_gone(&held);
}

#[test]
fn unreceived_monitor_ends() {
    let _cpus = cpu_lock();
    let Some(mut monitor) = create(KernelMonitor::builder().elements(8).dedicated_programs())
    else {
        return;
    };
    monitor.resume().unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    // Objects of the new monitor alone; this process may have other monitors.
    let held = held_by(std::process::id());
    monitor.give(&here).unwrap();
    let kept = held_by(std::process::id());
    let given: Vec<Held> = held.into_iter().filter(|it| !kept.contains(it)).collect();
    if given.is_empty() {
        return println!("skipped: the kernel does not say what a process holds");
    }
    if is_root() {
        assert!(given.iter().any(Held::exists), "the socket has it");
    }
    drop((here, there));
    Held::until_gone(&given);
}

#[test]
fn refused_monitor_stays_with_giver() {
    let _cpus = cpu_lock();
    let (here, there) = UnixStream::pair().unwrap();
    let small = || KernelMonitor::builder().elements(8);
    let (Some(mut monitor), Some(mut other)) = (create(small()), create(small())) else {
        return;
    };
    let error = monitor.give(&here).unwrap_err();
    println!("{error}");
    assert_eq!(error, GiveError::Shared { others: 1 });
    monitor.resume().unwrap();
    other.terminate().unwrap();
    // The socket is closed: the monitor stays here, and others may join it again.
    drop(there);
    let error = monitor.give(&here).unwrap_err();
    assert!(matches!(error, GiveError::Send { .. }), "{error}");
    monitor.suspend().unwrap();
    let third = create(small()).unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let error = monitor.give(&here).unwrap_err();
    assert_eq!(error, GiveError::Shared { others: 1 });
    drop(third);
    // Now it is the only one and can be given; here the receiver is this process itself.
    monitor.give(&here).unwrap();
    let mut monitor = KernelMonitor::receive(&there).unwrap();
    monitor.resume().unwrap();
    monitor.terminate().unwrap();

    let mut nothing = small().backend(Backend::Off).create().unwrap();
    assert_eq!(nothing.give(&here), Err(GiveError::NoSensors));
    (&here).write_all(&[1; 64]).unwrap();
    let error = KernelMonitor::receive(&there).unwrap_err();
    assert_eq!(error, ReceiveError::InvalidMessage);
    drop(here);
    let (here, there) = UnixStream::pair().unwrap();
    drop(here);
    let error = KernelMonitor::receive(&there).unwrap_err();
    assert_eq!(error, ReceiveError::Closed);
}

/// Role: an owner of a monitor of perf records, which gives it away and is killed.
pub(crate) fn perf_giver() {
    let mut socket = socket();
    let created = KernelMonitor::builder().backend(Backend::Perf).create();
    let Ok(mut monitor) = created.map_err(|error| println!("@ skipped: {error}")) else {
        return;
    };
    let threads = threads();
    if let Err(error) = monitor.process_monitor(threads[0]) {
        return println!("@ skipped: {error}");
    }
    monitor.resume().unwrap();
    println!("@ ready");
    socket.read_exact(&mut [0]).unwrap();
    let mut received = Departures::default();
    received.read(&mut monitor);
    // The records that exist at the hand-over go with it, delivered or not.
    socket.read_exact(&mut [0]).unwrap();
    monitor.give(&socket).unwrap();
    assert_eq!(monitor.resume(), Err(SelectError::HandedOver));
    println!("@ {} {}", received.all(), received.missed);
    let _ = socket.read_exact(&mut [0]);
}

#[test]
fn perf_monitor_is_given_with_all_events() {
    let _cpus = cpu_lock();
    let mut program = Program::start("choir", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    let begin = program.switches();
    let mut giver = Peer::start("perf_giver", None, &[program.pid]).unwrap();
    let reply = giver.line();
    if reply != "ready" {
        return println!("{reply}");
    }
    let sing = |program: &mut Program| {
        program.release(threads.len());
        program.until_parked_again(|| {});
        program.switches()
    };
    // The giver reads the first verse, the second is still in the rings, and the third is read
    // here.
    let first = sing(&mut program);
    giver.socket.write_all(&[0]).unwrap();
    let second = sing(&mut program);
    giver.socket.write_all(&[0]).unwrap();
    let mut monitor = KernelMonitor::receive(&giver.socket).unwrap();
    let reply = giver.line();
    assert_eq!(monitor.status().unwrap().active, ActiveBackend::Perf);
    println!("{}", monitor.status().unwrap().message);
    drop(giver);
    let third = sing(&mut program);
    let mut departures = Departures::default();
    departures.read(&mut monitor);
    let between = |from: &BTreeMap<u32, (u64, u64)>, to: &BTreeMap<u32, (u64, u64)>| -> u64 {
        let sum =
            |counts: &BTreeMap<u32, (u64, u64)>| counts.values().map(|c| c.0 + c.1).sum::<u64>();
        sum(to) - sum(from)
    };
    // The giver reads while the second verse may have begun, so only the sum of both is known.
    let (received, missed) = reply.split_once(' ').unwrap();
    let received: u64 = received.parse().unwrap();
    assert_eq!((missed, departures.missed), ("0", 0));
    assert!(
        received >= between(&begin, &first),
        "{received} in the first verse"
    );
    assert!(departures.all() >= between(&second, &third));
    assert_eq!(received + departures.all(), between(&begin, &third));
    monitor.suspend().unwrap();
    sing(&mut program);
    departures.read(&mut monitor);
    assert_eq!(
        received + departures.all(),
        between(&begin, &third),
        "suspended"
    );
    let error = monitor.process_monitor(u32::MAX - 1).unwrap_err();
    assert!(
        matches!(error, SelectError::NoSuchProcess { .. }),
        "{error}"
    );
    program.end();
    monitor.finish().unwrap();
    departures.read(&mut monitor);
    monitor.terminate().unwrap();
}

#[test]
fn unreceived_perf_monitor_stays() {
    let _cpus = cpu_lock();
    let Ok(mut monitor) = KernelMonitor::builder().backend(Backend::Perf).create() else {
        return println!("skipped: no perf records here");
    };
    monitor.process_monitor(std::process::id()).unwrap();
    monitor.resume().unwrap();
    let (here, there) = UnixStream::pair().unwrap();
    let taking = std::thread::spawn(move || {
        // It reads a part of the message, and ends.
        let mut some = [0; 8];
        (&there).read_exact(&mut some).unwrap();
    });
    let error = monitor.give(&here).unwrap_err();
    println!("{error}");
    assert!(matches!(error, GiveError::Send { .. }), "{error}");
    taking.join().unwrap();
    let mut departures = Departures::default();
    departures.read(&mut monitor);
    assert!(
        departures.all() > 0,
        "it has recorded the begin and end of that thread"
    );
}

/// A tracepoint that every program passes, if this kernel has it.
fn tracepoint() -> Option<Probe> {
    let probe = Probe::tracepoint("raw_syscalls:sys_enter").unwrap();
    probe.schema().is_ok().then_some(probe)
}

/// Role: an owner of a monitor with every sensor and with probes, which gives it away and is
/// killed.
pub(crate) fn probing_giver() {
    let mut socket = socket();
    let builder = KernelMonitor::builder().elements(1024).dedicated_programs();
    let points = tracepoint().into_iter();
    let builder = builder
        .sensors(Sensor::all())
        .probes(probes().into_iter().chain(points));
    let Some(mut monitor) = create(builder) else {
        return println!("@ skipped");
    };
    monitor.process_monitor(threads()[0]).unwrap();
    monitor.resume().unwrap();
    match monitor.give(&socket) {
        Ok(()) => println!("@ given"),
        // This is so before Linux 6.6.
        Err(GiveError::Probes) => println!("@ skipped: {}", GiveError::Probes),
        Err(error) => panic!("{error}"),
    }
    let _ = socket.read_exact(&mut [0]);
}

#[test]
fn probes_are_given_with_their_monitor() {
    let _cpus = cpu_lock();
    let mut program = Program::start("probed", |_| {});
    program.until_parked(|| {});
    let mut giver = Peer::start("probing_giver", None, &[program.pid]).unwrap();
    let (there, result) = std::sync::mpsc::channel();
    let socket = giver.socket.try_clone().unwrap();
    let receiving = std::thread::spawn(move || there.send(KernelMonitor::receive(&socket)));
    let reply = giver.line();
    if reply != "given" {
        giver.socket.shutdown(std::net::Shutdown::Both).unwrap();
        receiving.join().unwrap().unwrap();
        return println!("{reply}");
    }
    let mut monitor = result.recv().unwrap().unwrap();
    receiving.join().unwrap().unwrap();
    let held = held_by(std::process::id());
    drop(giver);
    program.release(1);
    let mut recorder = Recorder::default();
    program.until_parked_again(|| recorder.poll(&mut monitor));
    recorder.poll(&mut monitor);
    let names: Vec<String> = probes().iter().map(Probe::sensor).collect();
    for name in &names {
        let received = recorder.others.get(name).map_or(0, Vec::len);
        assert_eq!(received, crate::probes::TURNS as usize, "{name}");
    }
    assert_eq!(
        recorder.others[&names[0]][7]["argument_2"], -7,
        "a function's arguments"
    );
    assert!(recorder.others.contains_key("syscall"));
    if let Some(point) = tracepoint() {
        let received = &recorder.others[&point.sensor()];
        assert!(
            received.iter().all(|fields| fields.contains_key("id")),
            "a schema came along"
        );
    }
    monitor.terminate().unwrap();
    // The probes have ended, too.
    let kept = held_by(std::process::id());
    let given: Vec<Held> = held.into_iter().filter(|it| !kept.contains(it)).collect();
    Held::until_gone(&given);
    program.end();
}
