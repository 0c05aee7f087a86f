// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU that is really set apart: a guarantee on it, and the remains of a killed process.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use overhear_admission::Level;
use overhear_event::Nanos;
use overhear_monitor::executor::{may_guarantee, GuaranteeVerdict, Terms};
use overhear_monitor::scheduler::allowed_cpus;
use overhear_monitor::{Partition, PartitionError};

use crate::admitted::{lasting, run, terms, Sum};
use crate::alone;
use crate::deadline::lateness;
use crate::excuse::{doubt, refused};
use crate::rings::{now, rings, Produced};
use crate::witness::{keeps, Witness};

/// A partition; prints the reason if there is none. It waits until reservations of other programs
/// are over.
fn partition() -> Option<Partition> {
    let begun = now();
    loop {
        match Partition::make(None) {
            Ok(partition) => return Some(partition),
            Err(PartitionError::Reserved { .. }) if now().since(begun) < Nanos::from_ms(10_000) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        }
    }
}

/// The partitions that a process with this number made.
fn groups_of(pid: u32) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let places = mounts.filter_map(|line| line.split(' ').nth(4));
    let entries = places.flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let begin = format!("overhear-{pid}-");
    // A hierarchy may be mounted at several places.
    let names: BTreeSet<_> = names.filter(|name| name.starts_with(&begin)).collect();
    names.into_iter().collect()
}

#[test]
fn guarantee_has_a_cpu_of_its_own_and_gives_it_back() {
    let _alone = alone();
    let before = allowed_cpus();
    let terms = Terms {
        level: Level::Exclusive,
        ..terms(Nanos::from_ms(50), lateness())
    };
    keeps(|| {
        let Some(partition) = partition() else {
            return Ok(());
        };
        let cpu = partition.cpu();
        assert!(before.contains(&cpu));
        assert_eq!(groups_of(std::process::id()).len(), 1);
        match may_guarantee(&terms, Some(&partition)) {
            Ok(()) => {}
            Err(refusal) if refusal.is_lack_of_permission() => {
                println!("skipped: {refusal}");
                return Ok(());
            }
            Err(refusal) => panic!("{refusal}"),
        }
        // On the other CPUs, too: a lateness there is an excuse as well.
        let witness = Witness::start();
        let inside = partition.enter().unwrap();
        assert_eq!(allowed_cpus(), [cpu]);
        let (mut writers, source) = rings(&[("a", 64), ("b", 64)]);
        let mut last = lasting(Nanos::from_ms(100));
        let mut written = 0;
        let ended = run(&terms, source, &mut Sum(0, |_| ()), |monitor, guarantee| {
            if monitor.elements() == 0 && written == 0 {
                writers[0].write(1);
                written += 1;
            }
            last(monitor, guarantee)
        });
        let machine = witness.stop();
        let ended = ended.map_err(|refusal| refused(&refusal, &machine))?;
        assert!(ended.run.rounds > 0);
        drop(inside);
        // Other programs may set CPUs apart meanwhile, but never the last one.
        assert_ne!(allowed_cpus(), [cpu]);
        drop(partition);
        assert_eq!(groups_of(std::process::id()), [""; 0]);
        match ended.guarantee.verdict() {
            GuaranteeVerdict::Violated => panic!("{:?}", ended.messages),
            GuaranteeVerdict::Inconclusive => {
                Err(doubt(&ended, &terms, &machine, Produced::default()))
            }
            GuaranteeVerdict::Held => {
                let figures = &ended.figures;
                assert_eq!(
                    (figures[0].elements, figures[0].missed),
                    (1, 0),
                    "{figures:?}"
                );
                assert!(figures[0].latency <= terms.latency);
                Ok(())
            }
        }
    });
}

/// Not a test: a process that sets a CPU apart and is killed.
#[test]
#[ignore = "started by another test"]
fn killed_with_a_partition() {
    let made = Partition::make(None);
    let inside = made.as_ref().map(Partition::enter);
    println!("made: {inside:?}");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn partition_of_a_killed_process_is_cleared() {
    let _alone = alone();
    // Whether a partition is possible here.
    if partition().is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "exclusive::killed_with_a_partition"])
        .args(["--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let message = lines.find_map(|line| line.ok().filter(|line| line.contains("made: ")));
    let message = message.unwrap();
    // No signal handler runs, no destructor.
    child.kill().unwrap();
    child.wait().unwrap();
    if !message.contains("made: Ok(Ok(") {
        return println!("skipped: {message}");
    }
    assert_eq!(groups_of(child.id()).len(), 1);
    // `overhear doctor` reports it as soon as its threads have gone, unless another program that
    // makes a partition has removed it.
    let begun = now();
    while let [name] = groups_of(child.id()).as_slice() {
        if Partition::leftovers().unwrap().contains(name) {
            break;
        }
        assert!(now().since(begun) < Nanos::from_ms(30_000), "not reported");
        std::thread::yield_now();
    }
    // The kernel may still be removing its threads; another program that makes a partition removes
    // it, too.
    let begun = now();
    while !groups_of(child.id()).is_empty() {
        let _ = Partition::clear_leftovers();
        assert!(now().since(begun) < Nanos::from_ms(30_000), "not cleared");
        std::thread::yield_now();
    }
    // Its CPU is available again.
    assert!(partition().is_some());
}

#[test]
fn impossible_partition_is_refused_with_a_message() {
    let _alone = alone();
    let Some(own) = partition() else { return };
    let before = groups_of(std::process::id());
    // No machine has the first CPU, and the other one is in use.
    for cpu in [1_000_000, own.cpu()] {
        let error = Partition::make(Some(cpu)).unwrap_err();
        assert!(matches!(error, PartitionError::NotFree { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!("CPU {cpu} cannot be set apart: it is not there, or in another partition")
        );
    }
    // It has left nothing, and the existing partition is in use.
    assert_eq!(groups_of(std::process::id()), before);
    let left = Partition::leftovers().unwrap();
    assert!(!left.iter().any(|name| before.contains(name)), "{left:?}");
}
