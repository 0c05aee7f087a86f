// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overheard` without permission to lock buffers in memory reports that once, and serves clients.
#![cfg(feature = "daemon")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use overhear_directory::{MonitorConnection, Query};
use rustix::process::{setrlimit, Resource, Rlimit};
use rustix::thread::{remove_capability_from_bounding_set, CapabilitySet};
use support::{eventually, register_patiently};

#[test]
fn unlocked_buffers_are_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_overheard"));
    command.arg("--socket").arg(&socket);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    let nothing = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            // Root's privilege is dropped before the limit. Other users do not have it, and may not
            // drop it.
            let _ = remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK);
            Ok(setrlimit(Resource::Memlock, nothing)?)
        })
    };
    let mut service = command.spawn().unwrap();
    let lines = BufReader::new(service.stderr.take().unwrap()).lines();
    let log = Arc::new(Mutex::new(Vec::new()));
    let reader = {
        let log = Arc::clone(&log);
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| log.lock().unwrap().push(line));
        })
    };
    eventually(
        || MonitorConnection::connect(&socket).is_ok(),
        |listens| *listens,
    );
    let _first = register_patiently(&socket, "first").unwrap();
    let reports = eventually(|| log.lock().unwrap().clone(), |log| !log.is_empty());
    assert!(reports[0].contains("locked in memory"), "{reports:?}");
    assert!(reports[0].contains("RLIMIT_MEMLOCK"), "{reports:?}");
    let _second = register_patiently(&socket, "second").unwrap();
    let mut connection = MonitorConnection::connect(&socket).unwrap();
    assert_eq!(connection.list(&Query::all()).unwrap().len(), 2);
    // Time for a second report, which must not come.
    std::thread::sleep(Duration::from_millis(250));
    let pid = rustix::process::Pid::from_raw(service.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(service.wait().unwrap().success());
    reader.join().unwrap();
    assert_eq!(*log.lock().unwrap(), reports);
}
