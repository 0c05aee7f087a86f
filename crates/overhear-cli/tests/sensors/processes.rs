// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks, execs, closed descriptors and crashes: the effects of the life of a process on its
//! sensors.

use crate::program::{evaluated, number, only_sensor, run_program};

#[test]
fn forked_child_does_not_write_to_its_parents_stream() {
    let (ended, report) = run_program(&["fork"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    // 1,000 elements of the child are not among them, and its unregistering closed nothing.
    assert_eq!(number(only_sensor(&report), "elements"), 200);
    assert_eq!(report["complete"], true);
}

#[test]
fn forks_while_another_thread_registers_neither_hang_nor_mix() {
    let (ended, report) = run_program(&["fork-storm"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(evaluated(&report, "storm"), [200]);
    let churn = evaluated(&report, "churn");
    assert!(
        !churn.is_empty() && churn.iter().all(|&elements| elements == 10),
        "{churn:?}"
    );
    assert_eq!(evaluated(&report, "own").len(), 20);
    assert_eq!(report["complete"], true, "{:#}", report["losses"]);
}

#[test]
fn vfork_and_posix_spawn_leave_the_stream_alone() {
    let (ended, report) = run_program(&["spawn"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(number(only_sensor(&report), "elements"), 300);
}

#[test]
fn child_with_own_sensor_has_its_own_pid() {
    let (ended, report) = run_program(&["family"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let pid = |name: &str| -> u64 {
        let lines = ended.stdout.lines();
        let mut pids = lines.filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        pids.next().unwrap_or_else(|| panic!("{ended:#?}"))
    };
    let sensors = report["sensors"].as_array().unwrap();
    let found: Vec<(u64, u64)> = sensors
        .iter()
        .map(|sensor| (number(sensor, "pid"), number(sensor, "elements")))
        .collect();
    assert_eq!(found, [(pid("parent "), 40), (pid("child "), 20)]);
}

#[test]
fn forked_workers_register_copies_under_their_own_pids() {
    let (ended, report) = run_program(&["workers"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(evaluated(&report, "work"), [40, 20, 40]);
    let sensors = report["sensors"].as_array().unwrap().iter();
    let pids: std::collections::BTreeSet<u64> =
        sensors.map(|sensor| number(sensor, "pid")).collect();
    assert_eq!(pids.len(), 3);
    assert_eq!(report["complete"], true);
}

#[test]
fn closing_all_descriptors_costs_no_sensor() {
    let (ended, report) = run_program(&["close"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(
        (evaluated(&report, "closes"), evaluated(&report, "reopens")),
        (vec![200], vec![50])
    );
    assert_eq!(report["complete"], true);
}

#[test]
fn elements_before_a_crash_are_read() {
    for (how, signal) in [("abort", 6), ("segv", 11)] {
        let (ended, report) = run_program(&[how]);
        assert_eq!(ended.status, 128 + signal, "{ended:#?}");
        assert_eq!(report["exit"]["signal"], signal);
        assert_eq!(number(only_sensor(&report), "elements"), 500);
        assert_eq!(report["complete"], true);
    }
}

#[test]
fn process_after_execve_can_reuse_names() {
    let (ended, report) = run_program(&["exec", "2"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(evaluated(&report, "reborn"), [100, 100, 100]);
    let pids = report["sensors"].as_array().unwrap().iter();
    let pids: std::collections::BTreeSet<u64> = pids.map(|sensor| number(sensor, "pid")).collect();
    assert_eq!(pids.len(), 1);
    assert_eq!(
        report["notes"].as_array().unwrap().len(),
        0,
        "{:#}",
        report["notes"]
    );
}
