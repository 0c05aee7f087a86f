// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs whose directory is missing, switched off, or dies: they run on, and get the reason why
//! they are not connected.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::program;
use crate::support::{
    awaited, children, eventually, finish, folder, lives, overhear, path, send, Started,
};

/// Runs the program without `overhear run`, with this value of the variable.
#[track_caller]
fn alone(directory: Option<&str>, message: &str) {
    let mut command = Command::new(program());
    command
        .arg("two")
        .stdin(Stdio::null())
        .env_remove("XDG_RUNTIME_DIR");
    match directory {
        Some(socket) => command.env("OVERHEAR_DIRECTORY", socket),
        None => command.env_remove("OVERHEAR_DIRECTORY"),
    };
    let ended = finish(&mut command);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(ended.stdout.contains("heard-a 0") && ended.stdout.contains("heard-b 0"));
    let why: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("why: "))
        .collect();
    assert_eq!(why.len(), 2, "{ended:#?}");
    assert!(why[0].contains(message), "{why:?}");
    // The library itself prints nothing: a program's output belongs to the program.
    assert_eq!(ended.stderr, "");
}

#[test]
fn program_runs_on_without_a_directory() {
    if std::path::Path::new("/run/overhear/directory.sock").exists() {
        println!("skipped: a directory of the system listens");
        return;
    }
    alone(None, "no directory listens");
    alone(Some(""), "no directory listens");
}

#[test]
fn dead_socket_does_not_disturb_the_program() {
    alone(
        Some("/nonexistent/directory.sock"),
        "cannot connect to the directory at /nonexistent",
    );
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    alone(Some(path(&file)), "cannot connect");
    let long = format!("/{}", "x".repeat(300));
    alone(Some(&long), "cannot address");
}

#[test]
fn silent_directory_is_given_up() {
    let folder = folder();
    let socket = folder.path().join("mute.sock");
    // A stream socket has another protocol; one of the right kind is never accepted.
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    alone(Some(path(&socket)), "cannot connect");
    let mute = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    )
    .unwrap();
    let socket = folder.path().join("silent.sock");
    rustix::net::bind(&mute, &rustix::net::SocketAddrUnix::new(&socket).unwrap()).unwrap();
    rustix::net::listen(&mute, 8).unwrap();
    alone(Some(path(&socket)), "cannot receive from");
}

/// The folders for sockets in a folder.
fn scratch_folders(place: &Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(place).unwrap().flatten();
    let ours = all.filter(|entry| entry.file_name().to_string_lossy().starts_with("overhear-"));
    ours.map(|entry| entry.path()).collect()
}

#[test]
fn leftovers_of_a_killed_command_are_removed_by_the_next() {
    let folder = folder();
    let started = folder.path().join("started");
    let stop = folder.path().join("stop");
    // Files that already exist there.
    let foreign = folder
        .path()
        .join(format!("overhear-{}-0", std::process::id()));
    std::fs::create_dir(&foreign).unwrap();
    let run = |verb: &[&str]| {
        let mut command = overhear(&["run", "--kernel", "off", "--"]);
        command.args(verb).env("XDG_RUNTIME_DIR", folder.path());
        command
    };
    let patient = [path(program()), "patient", path(&started), path(&stop)];
    let killed = Started::spawn(&mut run(&patient));
    let pid: i32 = awaited(&started).trim().parse().unwrap();
    assert_eq!(scratch_folders(folder.path()).len(), 2);
    // A second run keeps its own socket, and does not change that of the other.
    assert_eq!(finish(&mut run(&["true"])).status, 0);
    assert_eq!(scratch_folders(folder.path()).len(), 2);
    killed.signal(libc::SIGKILL);
    assert_eq!(killed.end().status, 128 + libc::SIGKILL);
    assert_eq!(
        scratch_folders(folder.path()).len(),
        2,
        "nobody could remove it"
    );
    assert_eq!(finish(&mut run(&["true"])).status, 0);
    assert_eq!(scratch_folders(folder.path()), [foreign]);
    std::fs::write(&stop, "").unwrap();
    eventually("the program ends", || !lives(pid));
    send(pid, libc::SIGKILL);
}

#[test]
fn unconnected_sensor_is_reported_on_request_and_listed() {
    let folder = folder();
    let socket = folder.path().join("directory.sock");
    let builder = overhear_directory::Directory::builder().standalone();
    let directory = builder.quota_bytes(1000).start(&socket).unwrap();
    let list = |more: &[&str]| {
        let mut command = overhear(&["list", "--not-connected", "--socket", path(&socket)]);
        finish(command.args(more))
    };
    let ended = list(&[]);
    assert_eq!((ended.status, &*ended.stdout), (0, ""), "{ended:#?}");
    assert!(
        ended.stderr.contains("has connected every sensor"),
        "{ended:#?}"
    );
    let mut command = Command::new(program());
    command.arg("two").stdin(Stdio::null());
    command.env("OVERHEAR_DIRECTORY", &socket);
    command.env("OVERHEAR_NOT_CONNECTED", "stderr");
    let ended = finish(&mut command);
    assert_eq!(ended.status, 0, "{ended:#?}");
    // One message, for any number of sensors.
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{ended:#?}");
    assert!(lines[0].starts_with("overhear: sensor `"), "{ended:#?}");
    assert!(lines[0].contains("left of the quota of 1000"), "{ended:#?}");
    let ended = list(&["--json"]);
    let listed: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let sensors = listed["sensors"].as_array().unwrap();
    assert_eq!(sensors.len(), 2, "{ended:#?}");
    assert!(sensors.iter().all(|sensor| sensor["count"] == 1));
    let text = list(&[]).stdout;
    assert!(text.contains("left of the quota of 1000"), "{text}");
    let refused = list(&["--type", "any"]);
    assert_eq!(refused.status, 2, "{refused:#?}");
    drop(directory);
}

#[test]
fn program_outlives_its_directory() {
    let folder = folder();
    let (started, stop) = (folder.path().join("started"), folder.path().join("stop"));
    let mut command = overhear(&["run", "--kernel", "off", "--"]);
    command.args([path(program()), "patient", path(&started), path(&stop)]);
    // The scratch folder of a killed recorder remains; the test removes it here.
    command.env("XDG_RUNTIME_DIR", folder.path());
    let run = Started::spawn(&mut command);
    let pid: i32 = awaited(&started).trim().parse().unwrap();
    assert_eq!(children(run.pid()), [pid]);
    run.signal(libc::SIGKILL);
    assert_eq!(run.end().status, 128 + libc::SIGKILL);
    // It continues to write into memory without a reader, and its next registration fails.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(lives(pid));
    std::fs::write(&stop, "").unwrap();
    let messages = awaited(&stop);
    assert!(messages.starts_with("0 cannot connect"), "{messages}");
    eventually("the program ends", || !lives(pid));
    send(pid, libc::SIGKILL);
}
