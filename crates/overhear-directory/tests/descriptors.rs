// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors. A directory that has none left refuses new sensors with a message, and everything
//! else goes on. Programs and monitors need none: they close what they have mapped.
#![cfg(feature = "daemon")]

mod support;

use std::process::{Child, Command, Stdio};

use std::path::Path;

use overhear_directory::client::{register_at, RegisterError};
use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::WriterKind;

use support::{eventually, register_patiently, request, request_until_granted, Received, Writer};

/// A directory in a process of its own, which ends with the test.
struct Service(Child);

impl Service {
    /// Starts one with this limit of descriptors, and waits until it answers.
    #[track_caller]
    fn start(socket: &Path, descriptors: u32) -> Self {
        let limit = format!("ulimit -n {descriptors} && exec \"$0\" --socket \"$1\"");
        let service = Command::new("/bin/sh")
            .args(["-c", &limit])
            .arg(env!("CARGO_BIN_EXE_overheard"))
            .arg(socket)
            .env("XDG_CONFIG_HOME", socket.parent().unwrap())
            .env_remove("NOTIFY_SOCKET")
            .stdout(Stdio::null())
            .spawn();
        let service = Self(service.unwrap());
        let answers = || MonitorConnection::connect(socket).is_ok();
        eventually(answers, |there| *there);
        service
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn exhausted_descriptors_refuse_new_sensors_only() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let _service = Service::start(&socket, 400);
    let connect = || MonitorConnection::connect(&socket);
    let mut sensors = Vec::new();
    let message = loop {
        let name = format!("sensor {}", sensors.len());
        match register_patiently(&socket, &name) {
            Ok(sensor) => sensors.push(sensor),
            Err(RegisterError::Refused { message, .. }) => break message,
            Err(error) => panic!("{error}"),
        }
        assert!(
            sensors.len() < 400,
            "there are no more than 400 descriptors"
        );
    };
    assert!(message.contains("no file descriptors left"), "{message}");
    assert!(sensors.len() > 50, "{}", sensors.len());
    let all = connect().unwrap().list(&Query::all()).unwrap();
    assert_eq!(all.len(), sensors.len());
    // One sensor ends, another one begins.
    sensors.pop().unwrap().unregister().unwrap();
    register_at(&socket, request("another")).unwrap();
}

/// Memory files of Overhear that this process has open. The directory is another process here.
fn open_memory() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names
        .filter(|name| name.contains("memfd:overhear"))
        .collect()
}

#[test]
fn programs_and_monitors_close_mapped_files() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let _service = Service::start(&socket, 400);
    let mut sensors = Vec::new();
    for kind in [
        WriterKind::Simple,
        WriterKind::Laned,
        WriterKind::Concurrent,
    ] {
        let mut wanted = request(&format!("{kind:?}"));
        (wanted.kind, wanted.lanes) = (kind, 2);
        sensors.push(request_until_granted(&socket, &wanted).unwrap());
    }
    let mut writer = Writer::new(register_patiently(&socket, "written").unwrap());
    // The other test of this process may be in the middle of a registration.
    eventually(open_memory, Vec::is_empty);
    let monitor = MonitorConnection::connect(&socket).unwrap();
    let mut source = monitor.attach(Query::all(), Begin::Now).unwrap();
    let mut received = Received::default();
    writer.write(3);
    received.until(&mut source, |received| received.elements == 3);
    assert_eq!(received.opened.len(), 4);
    eventually(open_memory, Vec::is_empty);
    // The test notices a file that stays open.
    let _kept = rustix::fs::memfd_create("overhear-kept", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(open_memory()
        .iter()
        .any(|name| name.contains("overhear-kept")));
}
