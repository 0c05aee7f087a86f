// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory whose descriptors are used up: new sensors are refused with a sentence, and everything
//! else goes on.
#![cfg(feature = "daemon")]

mod support;

use std::process::{Child, Command, Stdio};

use overhear_directory::client::{register_at, RegisterError};
use overhear_directory::{MonitorConnection, Query};

use support::{eventually, register_patiently, request};

/// Ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn without_descriptors_new_sensors_are_refused_and_the_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let service = Command::new("/bin/sh")
        .args(["-c", "ulimit -n 400 && exec \"$0\" --socket \"$1\""])
        .arg(env!("CARGO_BIN_EXE_overheard"))
        .arg(&socket)
        .env("XDG_CONFIG_HOME", folder.path())
        .env_remove("NOTIFY_SOCKET")
        .stdout(Stdio::null())
        .spawn();
    let _service = Service(service.unwrap());
    let connect = || MonitorConnection::connect(&socket);
    eventually(|| connect().is_ok(), |there| *there);
    let mut sensors = Vec::new();
    let sentence = loop {
        let name = format!("sensor {}", sensors.len());
        match register_patiently(&socket, &name) {
            Ok(sensor) => sensors.push(sensor),
            Err(RegisterError::Refused { sentence, .. }) => break sentence,
            Err(error) => panic!("{error}"),
        }
        assert!(
            sensors.len() < 400,
            "there are no more than 400 descriptors"
        );
    };
    assert!(sentence.contains("no file descriptors left"), "{sentence}");
    assert!(sensors.len() > 50, "{}", sensors.len());
    let all = connect().unwrap().list(&Query::all()).unwrap();
    assert_eq!(all.len(), sensors.len());
    // One goes, one comes.
    sensors.pop().unwrap().unregister().unwrap();
    register_at(&socket, request("another")).unwrap();
}
