// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access of another user: the actions that the rules of a directory permit, and its refusals.
#![cfg(feature = "daemon")]

mod support;

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use overhear_directory::client::{register_at, RegisterError};
use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::Source;
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use support::attempts::is_sealed;
use support::manager::Manager;
use support::{eventually, register_patiently, request, Raw, Received, Writer};

const NOBODY: u32 = 65_534;

const RULES: &str = r#"
[quota.user.65534]
sensors = 2

[[rule]]
title = "secrets stay where they are"
forbid = ["attach", "register"]
users = [65534]
sensors = "*/secret*"

[[rule]]
title = "nobody may read what root permits"
permit = ["attach"]
users = [65534]
owners = [0]
sensors = "*/open*"
"#;

/// Rules by group, and a quota of bytes.
const GROUPS_AND_BYTES: &str = r#"
[quota.user.65534]
bytes = 20_000

[[rule]]
title = "the group may read what is shared"
permit = ["attach"]
groups = [65534]
owners = [0]
sensors = "*/shared*"

[[rule]]
title = "another group may read this"
permit = ["attach"]
groups = [4, 65533]
owners = [0]
sensors = "*/of others*"
"#;

/// A directory of root with these rules, which all users can reach.
fn manager(text: &str) -> Manager {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("directory.toml");
    std::fs::write(&rules, text).unwrap();
    let mut manager = Manager::new(&["--config", rules.to_str().unwrap()]);
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(manager.folder.path(), everybody).unwrap();
    let everybody = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&manager.socket, everybody).unwrap();
    manager.start();
    manager
}

/// Runs a test of this file as another user, with the socket of a directory; returns false if that
/// is not possible here.
fn as_nobody(test: &str, socket: &Path) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env("OPEN_TO_NOBODY", socket)
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY);
    let Ok(output) = command.output() else {
        println!("skipped: another user may not run this test");
        return false;
    };
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    true
}

#[test]
fn another_user_may_do_what_the_rules_permit_and_no_more() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root to be two users");
        return;
    }
    let manager = manager(RULES);
    let register = |name| Writer::new(register_patiently(&manager.socket, name).unwrap());
    let mut open = register("open");
    let mut private = register("private");
    let _secret = register("secret");
    open.write(5);
    private.write(5);
    if !as_nobody("child_as_nobody", &manager.socket) {
        return;
    }
    // Root reads the sensors of all users.
    let mut root = MonitorConnection::connect(&manager.socket).unwrap();
    let all = root.list(&Query::all()).unwrap();
    let owners: Vec<u32> = all.iter().map(|sensor| sensor.uid).collect();
    assert!(owners.contains(&0), "{owners:?}");
    assert!(all.iter().all(|sensor| sensor.enabled));
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn child_as_nobody() {
    let Some(socket) = std::env::var_os("OPEN_TO_NOBODY") else {
        return;
    };
    let socket = Path::new(&socket);
    let connect = || MonitorConnection::connect(socket).unwrap();
    let names = |query: &Query| -> Vec<String> {
        let found = connect().list(query).unwrap();
        found
            .into_iter()
            .map(|sensor| sensor.descriptor.sensor)
            .collect()
    };
    assert_eq!(names(&Query::all()), ["open"]);
    let mut source = connect().attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| received.elements == 5);
    assert_eq!(received.opened.len(), 1);
    assert_eq!(received.complaints, [""; 0]);
    // It learns nothing about sensors that it may not read, not even that one with such a name
    // exists.
    for names in ["private", "secret", "absent", "pri*"] {
        let query = Query::parse(names).unwrap();
        let mut source = connect().attach(query.clone(), Begin::Now).unwrap();
        let mut received = Received::default();
        source.poll(&mut received).unwrap();
        assert!(received.opened.is_empty() && received.complaints.is_empty());
        assert_eq!(connect().set_enabled(&query, false).unwrap(), 0, "{names}");
    }
    let error = connect().set_enabled(&Query::parse("open").unwrap(), false);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("user 65534 may not switch"), "{error}");

    // Its own sensors: only names that the rules permit, and up to its quota.
    let register = |name: &str| match register_at(socket, request(name)) {
        Err(RegisterError::Refused { message, .. }) => Err(message),
        other => Ok(other.unwrap()),
    };
    let message = register("secret of mine").unwrap_err();
    assert!(message.contains("may not register"), "{message}");
    assert!(
        message.contains("the rule \"secrets stay where they are\""),
        "{message}"
    );
    let _own = [register("mine").unwrap(), register("open of mine").unwrap()];
    let too_many = register("one too many").unwrap();
    let message = too_many.deferred.clone().unwrap_or_default();
    assert!(too_many.is_deferred());
    assert!(
        message.contains("user 65534 has 2 sensors already"),
        "{message}"
    );
    assert_eq!(names(&Query::all()), ["open", "mine", "open of mine"]);
    assert_eq!(
        connect()
            .set_enabled(&Query::parse("mine").unwrap(), false)
            .unwrap(),
        1
    );
    assert_eq!(
        connect()
            .set_enabled(&Query::parse("mine").unwrap(), true)
            .unwrap(),
        1
    );

    // Files of root's sensors can only be read.
    let raw = Raw::connect(socket);
    assert!(raw.send(&json!({ "attach": { "version": 1, "query": { "names": "open" } } })));
    let (_, clock) = raw.receive();
    let (opened, file) = raw.receive();
    let file = file.unwrap_or_else(|| panic!("{opened}"));
    let bytes = opened["opened"]["sensor"]["bytes"].as_u64().unwrap() as usize;
    is_sealed(&file, bytes);
    for file in [Some(&file), clock.as_ref()].into_iter().flatten() {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // Memory files are accessible to all users unless their mode forbids it.
        if let Ok(again) = rustix::fs::open(&path, OFlags::RDWR, Mode::empty()) {
            is_sealed(&again, bytes);
        }
    }
    if let Some(clock) = clock {
        support::attempts::can_only_be_read(&clock, 4096);
    }
}

#[test]
fn groups_and_bytes_decide_as_well() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: it takes root to be two users");
        return;
    }
    let manager = manager(GROUPS_AND_BYTES);
    let register = |name: &str| Writer::new(register_patiently(&manager.socket, name).unwrap());
    let (mut shared, mut of_others) = (register("shared"), register("of others"));
    shared.write(5);
    of_others.write(5);
    // Root itself has the quota of other users.
    let _more: Vec<_> = (0..8).map(|n| register(&format!("root's {n}"))).collect();
    as_nobody("child_as_member", &manager.socket);
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn child_as_member() {
    let Some(socket) = std::env::var_os("OPEN_TO_NOBODY") else {
        return;
    };
    let socket = Path::new(&socket);
    let connect = || MonitorConnection::connect(socket).unwrap();
    let found = connect().list(&Query::all()).unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|sensor| &sensor.descriptor.sensor)
        .collect();
    assert_eq!(names, ["shared"]);
    let mut source = connect().attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| received.elements == 5);
    let of_others = Query::parse("of others").unwrap();
    let of_others = connect().attach(of_others, Begin::Now).unwrap();
    assert_eq!(of_others.sensors(), 0, "it is no member");

    // Sensors up to its quota of bytes, and one more for each that is unregistered.
    let mut own = Vec::new();
    let message = loop {
        match register_at(socket, request(&format!("mine {}", own.len()))) {
            Ok(registration) => match registration.deferred.clone() {
                None => own.push(registration),
                Some(message) => {
                    registration.unregister().unwrap();
                    break message;
                }
            },
            Err(RegisterError::Refused { message, .. }) => break message,
            Err(RegisterError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(
        message.contains("left of the quota of 20000 of user 65534"),
        "{message}"
    );
    let bytes = |name: &str| {
        let found = connect().list(&Query::parse(name).unwrap()).unwrap();
        found.iter().map(|sensor| sensor.bytes).sum::<u64>()
    };
    let (each, all) = (bytes("mine 0"), bytes("mine *"));
    assert!(all <= 20_000 && all + each > 20_000, "{all} of {each} each");
    own.remove(0).unregister().unwrap();
    // Its monitor reads it to the end first.
    let another = || {
        source.poll(&mut received).unwrap();
        let another = register_at(socket, request("another"));
        another.is_ok_and(|registration| !registration.is_deferred())
    };
    eventually(another, |registered| *registered);
}
