// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners of kernel monitors: processes that are killed, in a PID namespace, without privileges.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libbpf_rs::{MapHandle, Program as BpfProgram};
use overhear_event::kernel::Life;
use overhear_event::GapCause;
use overhear_kernel::{ActiveBackend, Backend, KernelMonitor, SelectError, Sensor};

use crate::hand_over::{threads, THREADS};
use crate::harness::{cpu_lock, is_root, run_role, Program, Recorder};
use crate::monitors::{finish, named, resumed};
use crate::perf::NOBODY;
use crate::probes::probes;
use crate::roles::{ENTRY, ROLE};

/// Role: a process with monitors that is killed. It has monitors of BPF programs with every sensor
/// and with probes, and of perf records of the named threads.
pub(crate) fn monitor_and_wait() {
    let builder = KernelMonitor::builder().elements(1024);
    let builder = builder.sensors(Sensor::all()).probes(probes());
    let Some(mut monitor) = resumed(builder) else {
        println!("@ skipped");
        return;
    };
    monitor.all_monitor().unwrap();
    let mut perf = KernelMonitor::builder()
        .backend(Backend::Perf)
        .create()
        .ok();
    if let Some(perf) = &mut perf {
        perf.process_monitor(threads()[0]).unwrap();
        perf.resume().unwrap();
    }
    println!("@ ready");
    let mut byte = 0_u8;
    // SAFETY: `byte` has room for the one requested byte.
    unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
}

/// An object of the kernel, by its kind and the id that the kernel gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held(String, u32);

impl Held {
    /// Whether it still exists, as far as this user can see.
    pub(crate) fn exists(&self) -> bool {
        match self.0.as_str() {
            "prog_id:" => BpfProgram::fd_from_id(self.1).is_ok_and(|fd| fd.as_raw_fd() >= 0),
            "map_id:" => MapHandle::from_map_id(self.1).is_ok(),
            _ => {
                // SAFETY: the call takes a number and returns a descriptor or an error.
                let fd = unsafe { libbpf_rs::libbpf_sys::bpf_link_get_fd_by_id(self.1) };
                if fd >= 0 {
                    // SAFETY: the descriptor is new and ours.
                    drop(unsafe { OwnedFd::from_raw_fd(fd) });
                }
                fd >= 0
            }
        }
    }

    /// The kernel frees them later, after grace periods.
    pub(crate) fn until_gone(held: &[Self]) {
        while held.iter().any(Self::exists) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// The BPF programs, maps and links that a process holds.
pub(crate) fn held_by(pid: u32) -> Vec<Held> {
    let mut held = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .flatten()
    {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        // A link's program is one of the others.
        let keys = match info.contains("link_id:") {
            true => ["link_id:", "link_id:"],
            false => ["prog_id:", "map_id:"],
        };
        for line in info.lines() {
            let mut words = line.split_whitespace();
            if let (Some(key), Some(id)) = (words.next(), words.next()) {
                if keys.contains(&key) {
                    held.push(Held(key.to_owned(), id.parse().unwrap()));
                }
            }
        }
    }
    held
}

/// Number of links of a process: places where its programs are attached.
pub(crate) fn links_of(pid: u32) -> usize {
    let held = held_by(pid);
    let ids = held.iter().filter(|held| held.0 == "link_id:");
    ids.map(|held| held.1).collect::<BTreeSet<u32>>().len()
}

/// Number of perf events of a process.
fn perf_events_of(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let names = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let is_event = |name: &PathBuf| name.as_os_str() == "anon_inode:[perf_event]";
    names.filter(is_event).count()
}

/// The instruction at an address of another process, as it is in memory: a probe replaces it.
fn instruction(pid: u32, address: u64) -> Vec<u8> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut bytes = vec![0; 8];
    memory.read_exact_at(&mut bytes, address).unwrap();
    bytes
}

#[test]
fn killed_process_leaves_no_kernel_objects() {
    let _cpus = cpu_lock();
    let mut program = Program::start("probed", |_| {});
    program.until_parked(|| {});
    let address: u64 = program.printed[0].parse().unwrap();
    let untouched = instruction(program.pid, address);
    let mut monitoring = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", ENTRY, "--nocapture", "--test-threads=1"])
        .env(ROLE, "monitor_and_wait")
        .env(THREADS, program.pid.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(monitoring.stdout.take().unwrap()).lines();
    let mut printed = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("@ "));
    let ready = printed.next().is_some_and(|line| line.contains("ready"));
    let held = held_by(monitoring.id());
    let seen = held.iter().filter(|held| held.exists()).count();
    let events = perf_events_of(monitoring.id());
    let probed = instruction(program.pid, address);
    monitoring.kill().unwrap();
    monitoring.wait().unwrap();
    if !ready || seen == 0 {
        println!("skipped: no BPF here, or no right to look at it");
        return;
    }
    println!(
        "{} programs, maps and links, {events} perf events",
        held.len()
    );
    assert_ne!(probed, untouched, "nothing was probed");
    // Events that count page faults are links by now; those that record switches have descriptors.
    assert!(held.iter().any(|held| held.0 == "link_id:"));
    if fs::metadata("/proc/sys/kernel/perf_event_paranoid").is_ok() {
        assert!(events > 0, "it holds no perf event");
    }
    Held::until_gone(&held);
    // The probe's event ends with its link: the program has its old instruction, and runs on.
    while instruction(program.pid, address) != untouched {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // No process has inherited an event.
    for pid in [std::process::id(), program.pid] {
        assert_eq!(perf_events_of(pid), 0, "process {pid}");
    }
    for place in [
        "/sys/kernel/tracing/uprobe_events",
        "/sys/kernel/debug/tracing/uprobe_events",
    ] {
        let named = fs::read_to_string(place).unwrap_or_default();
        let own = std::env::current_exe().unwrap();
        assert!(!named.contains(&own.display().to_string()), "{named}");
    }
    program.release(1);
    program.until_parked_again(|| {});
    program.end();
}

/// A monitor inside a PID namespace, where this process has another id than outside.
pub(crate) fn inside_a_namespace() {
    // SAFETY: gettid only returns a number.
    let own = unsafe { libc::gettid() }.unsigned_abs();
    let Some(mut monitor) = resumed(KernelMonitor::builder()) else {
        return;
    };
    println!("{}", monitor.status().unwrap().message);
    monitor.thread_monitor(own, 9).unwrap();
    monitor.process_monitor(std::process::id()).unwrap();
    let foreign = monitor.thread_monitor(0x7fff_fff0, 1).unwrap_err();
    assert!(
        matches!(foreign, SelectError::NoSuchThread { .. }),
        "{foreign}"
    );
    std::thread::sleep(std::time::Duration::from_millis(1));
    let mut recorder = Recorder::default();
    finish(&mut monitor, &mut recorder);
    let tracked = recorder.lives.iter().map(|(_, life)| life);
    let tracked: Vec<_> = tracked.filter(|life| life.code == 9).collect();
    assert_eq!(
        tracked.len(),
        1,
        "the id was understood as this namespace has it"
    );
    // The element has the id of the initial namespace.
    let outer = tracked[0].tid;
    assert!(recorder.tracked_departures(outer) > 0);
    println!("{own} inside is {outer} outside");
}

#[test]
fn ids_are_those_of_the_namespace() {
    let _cpus = cpu_lock();
    if !is_root() {
        return println!("skipped: a PID namespace of one's own takes root");
    }
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", ENTRY, "--nocapture", "--test-threads=1"])
        .env(ROLE, "inside_a_namespace")
        .stdin(Stdio::null())
        .output();
    match output {
        Err(error) => println!("skipped: unshare cannot be run ({error})"),
        Ok(output) => {
            let (printed, errors) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            print!("{printed}");
            if errors.contains("unshare") && !printed.contains("running") {
                return println!("skipped: {errors}");
            }
            assert!(output.status.success(), "{printed}\n{errors}");
        }
    }
}

/// The perf monitor of an ordinary user.
pub(crate) fn perf_monitor() {
    let monitor = KernelMonitor::builder().backend(Backend::Perf).create();
    let mut monitor = match monitor {
        Ok(monitor) => monitor,
        Err(error) => return println!("skipped: {error}"),
    };
    assert_eq!(monitor.status().unwrap().active, ActiveBackend::Perf);
    assert!(monitor.granted_bytes().unwrap() > 0);
    let mut recorder = Recorder::default();
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    monitor.thread_monitor(threads[0], 40).unwrap();
    monitor.thread_monitor(threads[1], 41).unwrap();
    monitor.thread_monitor(threads[2], 42).unwrap();
    monitor.thread_unmonitor(threads[2]).unwrap();
    let again = monitor.thread_unmonitor(threads[2]).unwrap_err();
    assert_eq!(again, SelectError::NotMonitored { tid: threads[2] });
    let before = program.switches();
    recorder.poll(&mut monitor);
    assert_eq!(recorder.switches.len(), 0, "created suspended");
    monitor.resume().unwrap();
    program.release(threads.len());
    program.until_parked_again(|| recorder.poll(&mut monitor));
    let after = program.switches();
    monitor.suspend().unwrap();
    recorder.poll(&mut monitor);
    for tid in &threads[..2] {
        let (was, is) = (before[tid], after[tid]);
        let expected = (is.0 - was.0) + (is.1 - was.1);
        assert_eq!(recorder.tracked_departures(*tid), expected, "{tid}");
    }
    for tid in &threads[3..] {
        assert_eq!(recorder.mentions(*tid), 0);
    }
    let recorded = recorder.switches.len();
    program.end();
    recorder.poll(&mut monitor);
    assert_eq!(recorder.switches.len(), recorded, "suspended");
    for refused in [
        monitor.all_monitor(),
        monitor.cgroup_monitor(Path::new("/")),
    ] {
        let error = refused.unwrap_err();
        println!("{error}");
        assert!(matches!(error, SelectError::NeedsBpf { .. }));
    }
    monitor.terminate().unwrap();
    assert_eq!(monitor.resume(), Err(SelectError::Terminated));
}

/// The threads of a process, by the kernel.
fn threads_of(pid: u32) -> BTreeSet<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).to_str().unwrap().parse().unwrap())
        .collect()
}

/// A perf monitor of single threads records no event of the threads that these create. A monitor of
/// a process has the names of the threads that exist already. A thread that is tracked in both ways
/// is recorded once.
pub(crate) fn perf_selections() {
    let create = || {
        let builder = KernelMonitor::builder().backend(Backend::Perf);
        builder
            .create()
            .map_err(|error| println!("skipped: {error}"))
    };
    let Ok(mut singly) = create() else { return };
    let mut recorder = Recorder::default();
    let mut program = Program::start("churn", |_| {});
    program.until_parked(|| {});
    let threads = threads_of(program.pid);
    for &tid in &threads {
        singly.thread_monitor(tid, tid).unwrap();
    }
    singly.resume().unwrap();
    program.release(1);
    program.until_parked_again(|| recorder.poll(&mut singly));
    singly.finish().unwrap();
    recorder.poll(&mut singly);
    for (_, life) in &recorder.lives {
        assert!(threads.contains(&life.tid), "{life:?}");
    }
    let sampled: BTreeSet<u32> = recorder.samples.iter().map(|sample| sample.1.tid).collect();
    assert_eq!(sampled, threads);
    program.end();
    drop(singly);

    let Ok(mut both) = create() else { return };
    let mut recorder = Recorder::default();
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    both.thread_monitor(threads[0], 40).unwrap();
    both.process_monitor(program.pid).unwrap();
    both.thread_monitor(threads[1], 41).unwrap();
    let before = program.switches();
    both.resume().unwrap();
    program.release(threads.len());
    program.until_parked_again(|| recorder.poll(&mut both));
    let after = program.switches();
    both.suspend().unwrap();
    recorder.poll(&mut both);
    if recorder.missed(GapCause::Kernel) > 0 {
        return println!("skipped: the rings that this user may have were too small");
    }
    for tid in &threads {
        let (was, is) = (before[tid], after[tid]);
        let expected = (is.0 - was.0) + (is.1 - was.1);
        assert_eq!(recorder.tracked_departures(*tid), expected, "{tid}");
        let mut thread_lives = recorder.lives.iter().filter(|(_, life)| life.tid == *tid);
        let tracked =
            thread_lives.any(|(_, life)| life.kind == Life::TRACKED && !life.comm().is_empty());
        assert!(tracked, "{tid} has no name");
    }
    program.end();
}

#[test]
fn perf_monitors_record_selected_threads_and_processes() {
    let _cpus = cpu_lock();
    run_role("perf_selections", is_root().then_some(NOBODY));
}

#[test]
fn ordinary_user_gets_perf_monitors() {
    let _cpus = cpu_lock();
    run_role("perf_monitor", is_root().then_some(NOBODY));
}
