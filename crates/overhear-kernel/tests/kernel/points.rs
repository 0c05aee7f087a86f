// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracepoints and functions of the kernel as sensors, compared with a program that counts its own
//! actions.

use std::collections::BTreeMap;
use std::ffi::CString;

use overhear_event::GapCause;
use overhear_kernel::{Backend, KernelBuilder, KernelMonitor, Probe, ProbeError, StartError};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::roles::park;

/// Number of repetitions of each action of the program.
const FORKS: usize = 25;
const OPENS: usize = 40;

/// A file that does not exist.
fn file(number: usize) -> String {
    format!("/proc/overhear-test-point-{number}")
}

/// Role: forks, prints the child's id, and opens files that do not exist.
pub(crate) fn pointed() {
    println!("@ parked");
    park();
    for _ in 0..FORKS {
        // SAFETY: the child calls nothing but _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: NULL is permitted: there is no result to store.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
        println!("@ {pid}");
    }
    for number in 0..OPENS {
        let path = CString::new(file(number)).unwrap();
        // SAFETY: the path ends with a zero and lives during the call.
        let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
        assert_eq!(opened, -1);
    }
    println!("@ parked");
    park();
}

type Fields = BTreeMap<String, i128>;

/// The recorded elements of the program at these points, and the children that it printed; `None`
/// after printing "skipped" if this kernel lacks one of the points.
fn recorded(builder: KernelBuilder, probes: &[&Probe]) -> Option<(Recorder, Vec<i128>, Program)> {
    let probes = probes.iter().copied().cloned();
    let mut monitor = match builder.backend(Backend::Bpf).probes(probes).create() {
        Ok(monitor) => monitor,
        Err(
            error @ (StartError::Bpf { .. } | StartError::Probe(ProbeError::NotTraceable { .. })),
        ) => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut program = Program::start("pointed", |_| {});
    program.until_parked(|| {});
    // Another process does the same, untracked.
    let mut stranger = Program::start("pointed", |_| {});
    stranger.until_parked(|| {});
    monitor.process_monitor(program.pid).unwrap();
    monitor.resume().unwrap();
    let mut recorder = Recorder::default();
    stranger.release(1);
    stranger.until_parked_again(|| {});
    program.release(1);
    program.until_parked_again(|| {});
    let children = program
        .printed
        .iter()
        .map(|pid| pid.parse().unwrap())
        .collect();
    recorder.poll(&mut monitor);
    program.end();
    stranger.end();
    monitor.finish().unwrap();
    recorder.poll(&mut monitor);
    recorder.assert_all(|id| monitor.committed(id));
    Some((recorder, children, program))
}

fn of<'a>(recorder: &'a Recorder, probe: &Probe) -> &'a [Fields] {
    recorder
        .others
        .get(&probe.sensor())
        .map_or(&[], Vec::as_slice)
}

/// The names of the files as the recorder stores them.
fn files() -> Vec<i128> {
    let sum = |number| file(number).bytes().map(i128::from).sum();
    (0..OPENS).map(sum).collect()
}

fn sorted(mut values: Vec<i128>) -> Vec<i128> {
    values.sort_unstable();
    values
}

/// The values of a field. Those of several CPUs have no common order.
fn values<'a>(heard: impl IntoIterator<Item = &'a Fields>, field: &str) -> Vec<i128> {
    sorted(heard.into_iter().map(|fields| fields[field]).collect())
}

/// The elements of the files that do not exist: the program opens others, too.
fn opened(heard: &[Fields], pid: u32) -> Vec<&Fields> {
    assert!(heard.iter().all(|fields| fields["pid"] == pid.into()));
    let files = files();
    let own = |fields: &&Fields| files.contains(&fields["filename"]);
    heard.iter().filter(own).collect()
}

fn tracepoints_have_the_fields_of_their_events(builder: KernelBuilder) {
    let _cpus = cpu_lock();
    let fork = Probe::tracepoint("sched:sched_process_fork").unwrap();
    let raw_fork = Probe::tracepoint("sched_process_fork").unwrap();
    let open = Probe::tracepoint("syscalls:sys_enter_openat").unwrap();
    let mut probes = vec![&fork, &raw_fork];
    match open.schema() {
        Ok(_) => probes.push(&open),
        Err(error) => println!("skipped: {error}"),
    }
    let Some((recorder, children, program)) = recorded(builder, &probes) else {
        return;
    };
    assert_eq!(children.len(), FORKS);
    assert_eq!(values(of(&recorder, &fork), "child_pid"), sorted(children));
    for fields in of(&recorder, &fork) {
        assert_eq!(fields["parent_pid"], fields["tid"]);
        assert_eq!(fields["pid"], program.pid.into());
        assert!(fields["child_comm"] > 0 && fields["child_comm"] == fields["parent_comm"]);
    }
    // Addresses of the kernel.
    let raw = of(&recorder, &raw_fork);
    assert_eq!(raw.len(), FORKS);
    for fields in raw {
        assert!(fields["parent"] >> 63 == 1 && fields["child"] >> 63 == 1);
        assert_ne!(fields["parent"], fields["child"]);
    }
    if probes.contains(&&open) {
        let opened = opened(of(&recorder, &open), program.pid);
        assert_eq!(values(opened, "filename"), sorted(files()));
    }
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
}

#[test]
fn tracepoints_have_the_fields_of_their_events_and_arguments() {
    tracepoints_have_the_fields_of_their_events(KernelMonitor::builder());
}

#[test]
fn tracepoints_are_recorded_without_masking_interrupts() {
    let builder = KernelMonitor::builder().without_interrupt_masking();
    tracepoints_have_the_fields_of_their_events(builder);
}

#[test]
fn full_rings_of_tracepoints_are_counted() {
    let _cpus = cpu_lock();
    let fork = Probe::tracepoint("sched:sched_process_fork").unwrap();
    let Some((recorder, children, _)) = recorded(KernelMonitor::builder().elements(8), &[&fork])
    else {
        return;
    };
    let missed = recorder.missed_of(&fork.sensor());
    let forks = of(&recorder, &fork);
    println!(
        "{} of {} recorded, {missed} missed",
        forks.len(),
        children.len()
    );
    assert!(missed > 0, "the rings are smaller");
    assert_eq!(forks.len() as u64 + missed, children.len() as u64);
}

#[test]
fn kernel_functions_have_their_arguments_and_results() {
    let _cpus = cpu_lock();
    let [entry, back] = ["do_sys_openat2", "do_sys_openat2:return"]
        .map(|name| Probe::kernel_function(name).unwrap());
    assert_eq!(Probe::kernel_return("do_sys_openat2").unwrap(), back);
    let builder = KernelMonitor::builder();
    let Some((recorder, _, program)) = recorded(builder, &[&entry, &back]) else {
        return;
    };
    let entries = of(&recorder, &entry);
    let opened = opened(entries, program.pid);
    assert_eq!(values(opened.iter().copied(), "filename"), sorted(files()));
    for fields in opened {
        assert_eq!(fields["dfd"], i128::from(libc::AT_FDCWD));
        assert_eq!(fields["how"] >> 63, 1, "an address of the kernel");
    }
    let backs = of(&recorder, &back);
    assert_eq!(backs.len(), entries.len());
    let failed = |fields: &&Fields| fields["value"] == i128::from(-libc::ENOENT);
    assert!(backs.iter().filter(failed).count() >= OPENS);
}

#[test]
fn untraceable_points_fail_with_message() {
    for text in ["", ":", "sched:", ":sched_switch", "a:b:c", "../x:y", "a b"] {
        let error = Probe::tracepoint(text).unwrap_err();
        assert!(matches!(error, ProbeError::Form { .. }), "{text}: {error}");
    }
    for text in ["", ":return", "a:b", "a b", "f/g"] {
        let error = Probe::kernel_function(text).unwrap_err();
        assert!(matches!(error, ProbeError::Form { .. }), "{text}: {error}");
    }
    let message = |probe: Result<Probe, ProbeError>| {
        let error = probe.unwrap().schema().unwrap_err();
        println!("{error}");
        error
    };
    let misspelt = [
        (
            Probe::tracepoint("sched:sched_proces_fork"),
            "sched_process_fork",
        ),
        (
            Probe::tracepoint("task:sched_process_fork"),
            "sched:sched_process_fork",
        ),
        (Probe::tracepoint("sched_swicth"), "sched_switch"),
        (Probe::kernel_function("vfs_raed"), "vfs_read"),
    ];
    for (probe, part) in misspelt {
        match message(probe) {
            ProbeError::NoPoint { advice, .. } => assert!(advice.contains(part), "{advice}"),
            error @ ProbeError::NotTraceable { .. } => println!("skipped: {error}"),
            error => panic!("{error:?}"),
        }
    }
}
