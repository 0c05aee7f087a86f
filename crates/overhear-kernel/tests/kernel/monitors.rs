// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel monitors: several at once, over shared threads and over threads that begin and end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use overhear_event::kernel::{Life, Switch};
use overhear_event::{GapCause, StreamId};
use overhear_kernel::{Backend, KernelBuilder, KernelMonitor, SelectError, Sensor};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::owners::links_of;
use crate::roles::CHURN;

pub(crate) fn create(builder: KernelBuilder) -> Option<KernelMonitor> {
    match builder.backend(Backend::Bpf).create() {
        Ok(monitor) => Some(monitor),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

pub(crate) fn resumed(builder: KernelBuilder) -> Option<KernelMonitor> {
    let mut monitor = create(builder)?;
    monitor.resume().unwrap();
    Some(monitor)
}

/// The end: everything is delivered or counted.
pub(crate) fn finish(monitor: &mut KernelMonitor, recorder: &mut Recorder) {
    monitor.finish().unwrap();
    recorder.poll(monitor);
    recorder.assert_all(|id| monitor.committed(id));
}

/// The threads whose ids a chorus has printed.
pub(crate) fn named(program: &Program) -> Vec<u32> {
    program
        .printed
        .iter()
        .map(|tid| tid.parse().unwrap())
        .collect()
}

#[test]
fn eight_monitors_record_only_their_threads() {
    let _cpus = cpu_lock();
    let mut monitors = Vec::new();
    for index in 0..8 {
        let first = StreamId::from_raw(index * 100);
        let Some(monitor) = resumed(KernelMonitor::builder().first_stream(first)) else {
            return;
        };
        monitors.push((monitor, Recorder::default()));
    }
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    assert_eq!(threads.len(), 12);
    // Monitor m tracks the threads i for which bit m of this word is set: every thread has several
    // monitors, every monitor several threads, and no two sets are equal.
    let tracks = |monitor: usize, thread: usize| (0x9e37_79b9_u64 >> thread) >> monitor & 1 == 1;
    let before = program.switches();
    for (m, (monitor, _)) in monitors.iter_mut().enumerate() {
        for (i, &tid) in threads.iter().enumerate().filter(|(i, _)| tracks(m, *i)) {
            monitor
                .thread_monitor(tid, 1000 * m as u32 + i as u32)
                .unwrap();
        }
    }
    program.release(threads.len());
    let poll = |monitors: &mut Vec<(KernelMonitor, Recorder)>| {
        for (monitor, recorder) in monitors {
            recorder.poll(monitor);
        }
    };
    program.until_parked_again(|| poll(&mut monitors));
    let after = program.switches();
    poll(&mut monitors);
    for (m, (_, recorder)) in monitors.iter().enumerate() {
        recorder.assert_only_gaps_of(GapCause::Nested);
        let mut tracked = 0;
        for (i, tid) in threads.iter().enumerate() {
            let (was, is) = (before[tid], after[tid]);
            let expected = (is.0 - was.0) + (is.1 - was.1);
            assert!(expected > 100, "thread {tid} did not work");
            if tracks(m, i) {
                tracked += 1;
                assert_eq!(recorder.tracked_departures(*tid), expected, "{m} of {tid}");
                let id = 1000 * m as u32 + i as u32;
                let named = |life: &Life| life.tid == *tid && life.code == id;
                let lives = recorder.lives.iter().map(|(_, life)| life);
                let lives: Vec<_> = lives.filter(|life| life.kind == Life::TRACKED).collect();
                assert_eq!(lives.iter().filter(|life| named(life)).count(), 1);
            } else {
                assert_eq!(recorder.mentions(*tid), 0, "{m} of {tid}");
            }
        }
        assert!(
            (2..12).contains(&tracked),
            "monitor {m} tracks {tracked} threads"
        );
        // Its streams have its own threads only.
        let tracked = Switch::PREV_TRACKED | Switch::NEXT_TRACKED;
        assert!(recorder.switches.iter().all(|s| s.2.flags & tracked != 0));
    }
    // The end of one does not disturb the others, and its number becomes free for another.
    let (mut first, _) = monitors.remove(0);
    first.terminate().unwrap();
    let Some(mut late) = resumed(KernelMonitor::builder()) else {
        return;
    };
    program.end();
    let mut nothing = Recorder::default();
    recorder_of_stranger(&mut late, &mut nothing);
    for (m, (monitor, recorder)) in monitors.iter_mut().enumerate() {
        finish(monitor, recorder);
        let mine = (0..threads.len()).filter(|thread| tracks(m + 1, *thread));
        assert_eq!(deaths(recorder), mine.count());
    }
}

/// Last departures of tracked threads.
fn deaths(recorder: &Recorder) -> usize {
    let died = |s: &&(StreamId, _, Switch)| {
        s.2.prev_state & 0x80 != 0 && s.2.flags & Switch::PREV_TRACKED != 0
    };
    recorder.switches.iter().filter(died).count()
}

/// A monitor with a number that another one had before records no events of that one's threads.
fn recorder_of_stranger(monitor: &mut KernelMonitor, recorder: &mut Recorder) {
    finish(monitor, recorder);
    assert_eq!(recorder.delivered(), 0);
}

#[test]
fn ten_thousand_short_lives_are_recorded_once() {
    let _cpus = cpu_lock();
    let (Some(mut family), Some(mut main), Some(mut nobody)) = (
        resumed(KernelMonitor::builder().life_elements(32_768)),
        resumed(KernelMonitor::builder()),
        resumed(KernelMonitor::builder()),
    ) else {
        return;
    };
    let mut recorders = [
        Recorder::default(),
        Recorder::default(),
        Recorder::default(),
    ];
    let mut program = Program::start("churn", |_| {});
    program.until_parked(|| {});
    let pid = program.pid;
    let before = program.switches();
    family.process_monitor(pid).unwrap();
    main.thread_monitor(pid, 1).unwrap();
    let [of_family, of_main, of_nobody] = &mut recorders;
    // The test harness parks in a thread of its own; all readers get their byte.
    program.release(1);
    program.until_parked_again(|| {
        of_family.poll(&mut family);
        of_main.poll(&mut main);
        of_nobody.poll(&mut nobody);
    });
    let after = program.switches();
    program.end();
    finish(&mut family, of_family);
    finish(&mut main, of_main);
    finish(&mut nobody, of_nobody);
    let mut lives: BTreeMap<u32, [usize; 2]> = BTreeMap::new();
    for (_, life) in &of_family.lives {
        let counts = lives.entry(life.kind).or_default();
        counts[0] += 1;
    }
    let of_kind = |kind: u32| lives.get(&kind).map_or(0, |counts| counts[0]);
    println!(
        "{} forks, {} exits",
        of_kind(Life::FORK),
        of_kind(Life::EXIT)
    );
    assert_eq!(
        of_family.missed(GapCause::Overwritten),
        0,
        "the rings have room for all"
    );
    // Program calls that the kernel skipped, because another life began or ended on that CPU at
    // that moment, are counted: no more elements are missing than that. There are four more
    // threads, the creators.
    let not_entered = of_family.missed(GapCause::Kernel) as usize;
    println!("{not_entered} calls not entered");
    let complete = |exit_elements: usize, expected: usize| {
        let (least, most) = (expected.saturating_sub(not_entered), expected);
        assert!(
            (least..=most).contains(&exit_elements),
            "{exit_elements} of {expected}"
        );
    };
    complete(of_kind(Life::FORK), CHURN + 4);
    complete(of_kind(Life::EXIT), CHURN + 4 + before.len());
    let deaths = deaths(of_family);
    complete(deaths, CHURN + 4 + before.len());
    // The main thread alone, without the threads that it created.
    let mains = (after[&pid].0 - before[&pid].0) + (after[&pid].1 - before[&pid].1);
    assert!(of_main.tracked_departures(pid) >= mains);
    assert!(of_main.lives.iter().all(|(_, life)| life.tid == pid));
    assert_eq!(of_nobody.delivered(), 0);
}

#[test]
fn reused_thread_id_is_another_thread() {
    let _cpus = cpu_lock();
    let Some(mut monitor) = resumed(KernelMonitor::builder()) else {
        return;
    };
    let child = fork_with_id(0).expect("a process can be created");
    monitor.thread_monitor(child, 5).unwrap();
    end(child);
    let mut recorder = Recorder::default();
    recorder.poll(&mut monitor);
    assert!(recorder.mentions(child) > 0, "the first one is tracked");
    let Some(again) = fork_with_id(child) else {
        println!("skipped: the id cannot be given again (CAP_CHECKPOINT_RESTORE)");
        return;
    };
    assert_eq!(again, child);
    let before = recorder.mentions(child);
    end(again);
    finish(&mut monitor, &mut recorder);
    let exits = recorder
        .lives
        .iter()
        .filter(|(_, life)| life.kind == Life::EXIT);
    assert_eq!(exits.count(), 1);
    // The last departure of the first one may have come after its parent had waited for it.
    let late = recorder.mentions(child) - before;
    assert!(late <= 1, "{late} elements of the second");
}

/// A child with this id (0: any) that sleeps until it is ended; `None` if the kernel refuses.
fn fork_with_id(id: u32) -> Option<u32> {
    let ids = [id];
    // SAFETY: zero is valid for all members.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    if id != 0 {
        arguments.set_tid = ids.as_ptr() as u64;
        arguments.set_tid_size = 1;
    }
    let size = size_of::<libc::clone_args>();
    // SAFETY: a fork; the child calls async-signal-safe functions only.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    if child == 0 {
        loop {
            // SAFETY: waits for the signal that ends this process.
            unsafe { libc::usleep(1_000) };
        }
    }
    u32::try_from(child).ok()
}

/// Ends a child and waits for it.
fn end(child: u32) {
    // SAFETY: signals and reaps our own child.
    unsafe {
        libc::usleep(5_000);
        libc::kill(child as i32, libc::SIGKILL);
        libc::waitpid(child as i32, std::ptr::null_mut(), 0);
    }
}

#[test]
fn monitors_count_losses_separately() {
    let _cpus = cpu_lock();
    let mut monitors = Vec::new();
    for elements in [8, 16, 64, 65_536] {
        let builder = KernelMonitor::builder().elements(elements).life_elements(8);
        let Some(monitor) = resumed(builder) else {
            return;
        };
        monitors.push((elements, monitor, Recorder::default()));
    }
    let mut program = Program::start("flood", |pid| {
        for (_, monitor, _) in &mut monitors {
            monitor.process_monitor(pid).unwrap();
        }
    });
    program.until_parked(|| {
        for (_, monitor, recorder) in &mut monitors {
            recorder.poll(monitor);
        }
    });
    program.end();
    for (elements, monitor, recorder) in &mut monitors {
        finish(monitor, recorder);
        let missed = recorder.missed(GapCause::Overwritten);
        println!("{elements} elements: {missed} overwritten");
        assert!(missed > 0 || *elements > 64);
        for (_, _, switch) in &recorder.switches {
            let tracked = Switch::PREV_TRACKED | Switch::NEXT_TRACKED;
            assert_ne!(switch.flags & tracked, 0);
            assert_eq!(switch.flags >> 4, 0);
        }
        assert!(recorder
            .wakes
            .iter()
            .all(|(_, wake)| wake.pid == program.pid));
    }
}

#[test]
fn monitor_has_specified_life_cycle() {
    let _cpus = cpu_lock();
    let Some(mut monitor) = create(KernelMonitor::builder().buffer_bytes(1 << 20)) else {
        return;
    };
    let granted = monitor.granted_bytes().unwrap();
    assert!((1 << 18..=1 << 20).contains(&granted), "{granted}");
    let mut recorder = Recorder::default();
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    // They rest a moment after they have printed it.
    program.switches();
    // Created suspended: there is an element that a thread is tracked, and no event.
    monitor.thread_monitor(threads[0], 77).unwrap();
    program.release(threads.len());
    program.until_parked_again(|| {});
    recorder.poll(&mut monitor);
    assert_eq!((recorder.switches.len(), recorder.wakes.len()), (0, 0));
    assert_eq!(recorder.lives.len(), 1);
    let tracked = recorder.lives[0].1;
    assert_eq!((tracked.kind, tracked.code), (Life::TRACKED, 77));
    assert_eq!((tracked.tid, tracked.pid), (threads[0], program.pid));
    assert_ne!(tracked.parent_tid, 0, "the thread was asleep");
    // The second call has no effect.
    monitor.thread_monitor(threads[0], 78).unwrap();
    monitor.resume().unwrap();
    monitor.thread_monitor(threads[1], 79).unwrap();
    monitor.thread_unmonitor(threads[1]).unwrap();
    let error = monitor.thread_unmonitor(threads[1]).unwrap_err();
    assert_eq!(error, SelectError::NotMonitored { tid: threads[1] });
    program.end();
    finish(&mut monitor, &mut recorder);
    let kinds = |tid: u32| -> Vec<u32> {
        let lives = recorder.lives.iter().map(|(_, life)| life);
        lives
            .filter(|life| life.tid == tid)
            .map(|life| life.kind)
            .collect()
    };
    if recorder.missed(GapCause::Kernel) == 0 {
        assert_eq!(kinds(threads[0]), [Life::TRACKED, Life::EXIT]);
    }
    assert_eq!(deaths(&recorder), 1);
    assert_eq!(kinds(threads[1]), [Life::TRACKED, Life::UNTRACKED]);
    assert!(recorder.tracked_departures(threads[0]) > 0);
    let gone = monitor.thread_monitor(0x7fff_fff0, 1);
    assert!(gone.is_err());
    monitor.terminate().unwrap();
    let ended = SelectError::Terminated;
    assert_eq!(monitor.resume(), Err(ended.clone()));
    assert_eq!(monitor.suspend(), Err(ended.clone()));
    assert_eq!(monitor.thread_monitor(1, 1), Err(ended.clone()));
    assert_eq!(monitor.thread_unmonitor(1), Err(ended.clone()));
    assert_eq!(monitor.process_monitor(1), Err(ended.clone()));
    assert_eq!(monitor.cgroup_monitor(Path::new("/")), Err(ended.clone()));
    assert_eq!(monitor.all_monitor(), Err(ended.clone()));
    assert_eq!(monitor.granted_bytes(), Err(ended.clone()));
    assert_eq!(monitor.read(&mut recorder), Err(ended.clone()));
    assert_eq!(monitor.terminate(), Err(ended));
}

#[test]
fn thousands_of_threads_are_tracked_one_by_one_and_at_once() {
    let _cpus = cpu_lock();
    let (Some(mut singly), Some(mut together)) = (
        resumed(KernelMonitor::builder().life_elements(16_384)),
        resumed(KernelMonitor::builder().life_elements(16_384)),
    ) else {
        return;
    };
    let mut program = Program::start("crowd", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    for (id, &tid) in threads.iter().enumerate() {
        singly.thread_monitor(tid, id as u32).unwrap();
    }
    together.process_monitor(program.pid).unwrap();
    let (mut one, mut other) = (Recorder::default(), Recorder::default());
    program.release(threads.len());
    program.until_parked_again(|| {
        one.poll(&mut singly);
        other.poll(&mut together);
    });
    program.end();
    finish(&mut singly, &mut one);
    finish(&mut together, &mut other);
    let count = |recorder: &Recorder, kind| {
        let lives = recorder.lives.iter();
        lives.filter(|(_, life)| life.kind == kind).count()
    };
    assert_eq!(count(&one, Life::TRACKED), threads.len());
    // Exits that meet on a CPU are counted as recursion misses; all last departures are there.
    let ended = |recorder: &Recorder, expected: usize| {
        let not_entered = recorder.missed(GapCause::Kernel) as usize;
        let (exit_elements, died) = (count(recorder, Life::EXIT), deaths(recorder));
        assert!(
            exit_elements <= expected && exit_elements + not_entered >= expected,
            "{exit_elements}"
        );
        assert_eq!(died, expected);
    };
    ended(&one, threads.len());
    // The harness of the test has threads of its own.
    assert!(count(&other, Life::TRACKED) > threads.len());
    ended(&other, count(&other, Life::TRACKED));
}

#[test]
fn threads_ending_while_added_are_errors_or_complete() {
    let _cpus = cpu_lock();
    let Some(mut monitor) = resumed(KernelMonitor::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("churn", |_| {});
    program.until_parked(|| {});
    program.release(1);
    let (mut added, mut gone) = (0, 0);
    let pid = program.pid;
    program.until_parked_again(|| {
        for entry in fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let tid: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
            match monitor.thread_monitor(tid, 1) {
                Ok(()) => added += 1,
                Err(SelectError::NoSuchThread { tid: other }) if other == tid => gone += 1,
                Err(error) => panic!("{error}"),
            }
        }
        recorder.poll(&mut monitor);
    });
    println!("{added} added, {gone} had ended");
    program.end();
    finish(&mut monitor, &mut recorder);
    let kinds = |kind| {
        recorder
            .lives
            .iter()
            .filter(move |(_, life)| life.kind == kind)
    };
    assert!(kinds(Life::TRACKED).count() > 0);
    assert_eq!(kinds(Life::FORK).count(), 0, "nothing is inherited");
    assert!(recorder.lives.iter().all(|(_, life)| life.pid == pid));
}

#[test]
fn all_threads_of_the_machine_are_recorded() {
    let _cpus = cpu_lock();
    let Some(mut monitor) = resumed(KernelMonitor::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let threads = named(&program);
    let before = program.switches();
    monitor.all_monitor().unwrap();
    program.release(threads.len());
    program.until_parked_again(|| recorder.poll(&mut monitor));
    let after = program.switches();
    recorder.poll(&mut monitor);
    if recorder.missed(GapCause::Overwritten) == 0 {
        for tid in &threads {
            let (was, is) = (before[tid], after[tid]);
            let expected = (is.0 - was.0) + (is.1 - was.1);
            assert_eq!(recorder.tracked_departures(*tid), expected, "{tid}");
        }
    } else {
        println!("the machine switches more than the rings hold; counts are not compared");
    }
    let processes: std::collections::BTreeSet<u32> =
        recorder.lives.iter().map(|(_, life)| life.pid).collect();
    assert!(processes.len() > 2, "{processes:?}");
    program.end();
    finish(&mut monitor, &mut recorder);
}

/// A cgroup of this test, removed when dropped; `None` if none can be created.
struct Cgroup(PathBuf);

impl Cgroup {
    fn create(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let root = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        let path = root?.join(format!("overhear-{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                println!("skipped: {} cannot be made ({error})", path.display());
                None
            }
        }
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have been reaped; the kernel may still be removing them from the cgroup.
        for _ in 0..1_000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn cgroup_tracks_current_members() {
    let _cpus = cpu_lock();
    let Some(cgroup) = Cgroup::create("monitored") else {
        println!("skipped: no cgroup can be made here");
        return;
    };
    let Some(mut monitor) = resumed(KernelMonitor::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    // One thread is there from its birth, with its children; another comes later.
    let mut native = Program::start("brood", |pid| {
        cgroup.add(pid);
        monitor.cgroup_monitor(&cgroup.0).unwrap();
    });
    let mut guest = Program::start("chorus", |_| {});
    guest.until_parked(|| {});
    native.until_parked(|| recorder.poll(&mut monitor));
    assert_eq!(recorder.mentions(guest.pid), 0);
    let forks = recorder
        .lives
        .iter()
        .filter(|(_, life)| life.kind == Life::FORK);
    assert!(forks.count() >= crate::roles::BROOD as usize);
    cgroup.add(guest.pid);
    recorder.poll(&mut monitor);
    recorder.poll(&mut monitor);
    let threads = named(&guest);
    let announced = |recorder: &Recorder, kind| {
        let lives = recorder.lives.iter().map(|(_, life)| life);
        lives
            .filter(|life| life.kind == kind && threads.contains(&life.tid))
            .count()
    };
    assert_eq!(announced(&recorder, Life::TRACKED), threads.len());
    // Then it leaves again.
    let home = cgroup.0.parent().unwrap().join("cgroup.procs");
    fs::write(home, guest.pid.to_string()).unwrap();
    recorder.poll(&mut monitor);
    recorder.poll(&mut monitor);
    assert_eq!(announced(&recorder, Life::UNTRACKED), threads.len());
    native.end();
    guest.end();
    finish(&mut monitor, &mut recorder);
    assert_eq!(announced(&recorder, Life::EXIT), 0);
    drop((native, guest));
    for place in ["/proc", "/no/such/place"] {
        let mut monitor = create(KernelMonitor::builder().elements(8)).unwrap();
        let error = monitor.cgroup_monitor(Path::new(place)).unwrap_err();
        assert!(matches!(error, SelectError::NoCgroup { .. }), "{error}");
    }
}

/// The names of a monitor's sensors.
fn sensor_names(monitor: &KernelMonitor) -> Vec<&'static str> {
    let sensors = monitor.status().unwrap().sensors.iter();
    sensors.map(|sensor| sensor.name()).collect()
}

fn of_switches() -> KernelBuilder {
    KernelMonitor::builder().sensors(["sched_switch".parse().unwrap()])
}

#[test]
fn switch_monitor_loads_no_wakeup_programs() {
    let _cpus = cpu_lock();
    let me = std::process::id();
    let before = links_of(me);
    let Some(alone) = create(of_switches()) else {
        return;
    };
    assert_eq!(sensor_names(&alone), ["sched_switch", "task_life"]);
    let message = &alone.status().unwrap().message;
    assert!(message.contains("without wake-ups"), "{message}");
    let links_alone = links_of(me) - before;
    // A second monitor with wake-ups loads them, and unloads them at its end.
    let with_wakeups = create(KernelMonitor::builder()).unwrap();
    let message = &with_wakeups.status().unwrap().message;
    assert_eq!(
        sensor_names(&with_wakeups),
        ["sched_switch", "sched_wake", "task_life"],
        "{message}"
    );
    let links = links_of(me) - before;
    assert!(
        (links_alone + 1..=links_alone + 3).contains(&links),
        "{links} and {links_alone}"
    );
    assert!(with_wakeups.granted_bytes().unwrap() > alone.granted_bytes().unwrap());
    drop(with_wakeups);
    assert_eq!(links_of(me) - before, links_alone);
    drop(alone);
    // The first monitor of a process loads them at once.
    let first = create(KernelMonitor::builder()).unwrap();
    assert_eq!(links_of(me) - before, links);
    drop(first);
    assert_eq!(links_of(me), before);
}

#[test]
fn wakeups_do_not_change_recorded_switches() {
    let _cpus = cpu_lock();
    let Some(mut alone) = resumed(of_switches()) else {
        return;
    };
    let Some(mut whole) = resumed(KernelMonitor::builder()) else {
        return;
    };
    let mut program = Program::start("chorus", |_| {});
    program.until_parked(|| {});
    let (mut of_alone, mut of_whole) = (Recorder::default(), Recorder::default());
    let before = program.switches();
    for monitor in [&mut alone, &mut whole] {
        monitor.process_monitor(program.pid).unwrap();
    }
    let threads = named(&program);
    program.release(threads.len());
    program.until_parked_again(|| {
        of_alone.poll(&mut alone);
        of_whole.poll(&mut whole);
    });
    let after = program.switches();
    of_alone.poll(&mut alone);
    of_whole.poll(&mut whole);
    for tid in threads {
        let (was, is) = (before[&tid], after[&tid]);
        let expected = (is.0 - was.0) + (is.1 - was.1);
        for recorder in [&of_alone, &of_whole] {
            assert_eq!(recorder.tracked_departures(tid), expected, "of {tid}");
        }
    }
    program.end();
    finish(&mut alone, &mut of_alone);
    finish(&mut whole, &mut of_whole);
    assert!(of_alone.wakes.is_empty());
    assert!(!of_whole.wakes.is_empty());
}

#[test]
fn only_named_scheduling_is_recorded() {
    let _cpus = cpu_lock();
    let sensors = |names: &[&str]| -> Vec<Sensor> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    };
    for (named, expected) in [
        (&[][..], &["sched_switch", "sched_wake", "task_life"][..]),
        (&["task_life"], &["sched_switch", "task_life"]),
        (
            &["sched_wake"],
            &["sched_switch", "sched_wake", "task_life"],
        ),
        (
            &["cpu_idle"],
            &["sched_switch", "sched_wake", "task_life", "cpu_idle"],
        ),
        (
            &["cpu_idle", "sched_switch"],
            &["sched_switch", "task_life", "cpu_idle"],
        ),
    ] {
        let Some(monitor) = create(KernelMonitor::builder().sensors(sensors(named))) else {
            return;
        };
        let mut found = sensor_names(&monitor);
        // Not every kernel has it.
        if !found.contains(&"cpu_idle") && named.contains(&"cpu_idle") {
            found.push("cpu_idle");
        }
        assert_eq!(found, expected, "{named:?}");
    }
    // perf records always have switches and lives, and never wake-ups.
    if let Ok(perf) = of_switches().backend(Backend::Perf).create() {
        assert_eq!(sensor_names(&perf), ["sched_switch", "task_life"]);
    }
}
