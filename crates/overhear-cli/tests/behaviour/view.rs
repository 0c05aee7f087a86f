// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page on a local address: its access, its updates, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};

use serde_json::Value;

use crate::support::{eventually, overhear, send, wait, WATCHDOG};

/// `overhear` with its printed address.
struct Viewer {
    child: Child,
    address: String,
    path: String,
    // Kept open, so that later output has a reader.
    _output: Box<dyn Read>,
}

impl Viewer {
    /// Reads until a line with an address comes.
    fn of(mut child: Child, output: impl Read + 'static) -> Self {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "{:?}",
                child.wait()
            );
        }
        let url = line.trim().split("http://").nth(1).unwrap();
        let (address, path) = url.split_once('/').unwrap();
        Self {
            child,
            address: address.to_string(),
            path: format!("/{path}"),
            _output: Box::new(output),
        }
    }

    fn request(&self, method: &str, path: &str, host: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        BufReader::new(stream)
    }

    /// Status and body.
    fn get(&self, method: &str, path: &str, host: &str) -> (u16, String) {
        let mut answer = String::new();
        self.request(method, path, host)
            .read_to_string(&mut answer)
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_string())
    }

    fn news(&self) -> BufReader<TcpStream> {
        self.request("GET", &format!("{}events", self.path), &self.address)
    }

    fn interrupt(mut self) -> i32 {
        send(self.child.id().cast_signed(), libc::SIGINT);
        wait(&mut self.child)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last update, after which the server ends the stream.
fn last_of(news: BufReader<TcpStream>) -> Value {
    let mut last = String::new();
    for line in news.lines() {
        let line = line.unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            last = data.to_string();
        }
    }
    serde_json::from_str(&last).unwrap()
}

fn recorded(dir: &Path) {
    let status = overhear(&["run", "--quiet", "--kernel", "off", "--out"])
        .arg(dir)
        .args(["--", "true"])
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

fn view(arguments: &[&Path]) -> Viewer {
    let mut child = overhear(&["view"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    Viewer::of(child, output)
}

/// A program that runs until its input is closed, recorded into `dir`.
fn held_run(dir: &Path, more: &[&str]) -> (Child, ChildStdin) {
    let mut child = overhear(&["run", "--out"])
        .arg(dir)
        .args(more)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

#[test]
fn page_needs_the_token_of_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    recorded(&dir);
    let viewer = view(&[&dir]);
    let (address, path) = (viewer.address.as_str(), viewer.path.as_str());
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert!(path.len() == 34, "a token of 128 bits: {path}");

    let (status, body) = viewer.get("GET", path, address);
    assert_eq!(status, 200);
    assert!(body.contains("<!doctype html>") && body.contains("connect-src 'none'"));
    let local = address.replace("127.0.0.1", "localhost");
    assert_eq!(viewer.get("GET", path, &local).0, 200);

    let wrong = format!("/{}/", "0".repeat(32));
    for (method, requested, host, expected) in [
        ("GET", "/", address, 403),
        ("GET", wrong.as_str(), address, 403),
        ("GET", &path[..33], address, 403),
        ("GET", path, "evil.example", 403),
        ("GET", path, "127.0.0.1", 403),
        ("POST", path, address, 405),
        ("GET", &format!("{path}events"), address, 404),
        ("GET", &format!("{path}../../etc/passwd"), address, 404),
    ] {
        let (status, body) = viewer.get(method, requested, host);
        assert_eq!(status, expected, "{method} {requested} {host}");
        assert!(!body.contains("<html"), "{body}");
    }
    assert_eq!(viewer.interrupt(), 0);
}

#[test]
fn page_compares_two_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    recorded(&one);
    recorded(&other);
    let viewer = view(&[&one, &other]);
    let (status, body) = viewer.get("GET", &viewer.path, &viewer.address);
    assert_eq!(status, 200);
    let label = |dir: &Path| serde_json::to_string(&dir.display().to_string()).unwrap();
    assert!(body.contains(&label(&one)) && body.contains(&label(&other)));
    assert_eq!(viewer.interrupt(), 0);

    let page = folder.path().join("both.html");
    let status = overhear(&["report"])
        .args([
            &one,
            Path::new("--compare"),
            &other,
            Path::new("--html"),
            &page,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let body = std::fs::read_to_string(&page).unwrap();
    assert!(body.contains(&label(&one)) && body.contains(&label(&other)));

    let ended = overhear(&["view", "/nonexistent"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
}

#[test]
fn run_is_shown_from_begin_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let (mut child, stdin) = held_run(&dir, &["--view", "--kernel", "off"]);
    let output = child.stderr.take().unwrap();
    let viewer = Viewer::of(child, output);
    let (status, body) = viewer.get("GET", &viewer.path, &viewer.address);
    assert_eq!(status, 200);
    assert!(
        body.contains("connect-src 'self'"),
        "a page that polls for updates"
    );
    drop(stdin);
    let last = last_of(viewer.news());
    assert_eq!(last["ended"], true);
    assert_eq!(last["report"]["command"][0], "cat");
    assert_eq!(last["report"]["exit"]["code"], 0, "{last}");
    assert_eq!(viewer.interrupt(), 0);
    assert!(dir.join("report.html").is_file());
}

#[test]
fn picture_of_a_run_ends_with_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // With elements of the kernel, if kernel sensors work.
    let (mut child, stdin) = held_run(&folder.path().join("run"), &["--view"]);
    let output = child.stderr.take().unwrap();
    let viewer = Viewer::of(child, output);
    drop(stdin);
    let last = last_of(viewer.news());
    let time = |name: &str| last["timeline"][name].as_u64().unwrap();
    // A time in this run, not the maximum time.
    assert!(time("origin_ns") <= time("end_ns"), "{last}");
    assert!(time("end_ns") < 1 << 62, "{last}");
    assert_eq!(viewer.interrupt(), 0);
}

#[test]
fn growing_recording_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let (mut child, stdin) = held_run(&dir, &["--quiet"]);
    let output = child.stderr.take();
    eventually("the recording begins", || {
        dir.join("trace/overhear/run.json").is_file() && dir.join("trace/metadata").is_file()
    });
    let viewer = view(&[&dir]);
    let (_, body) = viewer.get("GET", &viewer.path, &viewer.address);
    assert!(
        body.contains("connect-src 'self'"),
        "a page that polls for updates"
    );
    let news = viewer.news();
    drop(stdin);
    let news = last_of(news);
    assert_eq!(news["ended"], true);
    assert_eq!(news["report"]["command"][0], "cat");
    assert!(child.wait().unwrap().success());
    drop(output);
    assert_eq!(viewer.interrupt(), 0);

    // Now it is an ordinary recording.
    let viewer = view(&[&dir]);
    let (_, body) = viewer.get("GET", &viewer.path, &viewer.address);
    assert!(body.contains("connect-src 'none'"));
}

/// Connections of another user: the owner of a socket is the file system's user id of the thread
/// that makes it.
fn connections_of(uid: u32, address: &str, number: usize) -> Vec<TcpStream> {
    let connect = || {
        // SAFETY: system calls without memory, which concern this thread alone.
        unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
        let connections = (0..number).map(|_| TcpStream::connect(address).unwrap());
        connections.collect()
    };
    std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

#[test]
fn slow_connections_of_others_do_not_keep_the_owner_out() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    recorded(&dir);
    let viewer = view(&[&dir]);
    if !crate::support::is_root() {
        println!("skipped: only root can connect as another user");
        return;
    }
    // One user has the maximum number of connections, each with half a request; they continue to
    // send, and are renewed when they are closed.
    let address = viewer.address.clone();
    let stop = &std::sync::RwLock::new(false);
    let (began, begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut slow = Vec::new();
            while !*stop.read().unwrap() {
                slow.retain_mut(|it: &mut TcpStream| it.write_all(b"G").is_ok());
                let missing = 64 - slow.len();
                slow.extend(connections_of(65534, &address, missing));
                let _ = began.send(());
            }
        });
        // At least two rounds, so that all 64 are there.
        begun.recv().unwrap();
        begun.recv().unwrap();
        let fetch = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect(&viewer.address)?;
            stream.set_read_timeout(Some(WATCHDOG))?;
            let (path, host) = (&viewer.path, &viewer.address);
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.starts_with("HTTP/1.1 200"))
        };
        let fetched = (0..20).filter(|_| fetch().unwrap_or(false)).count();
        *stop.write().unwrap() = true;
        assert_eq!(fetched, 20);
    });
    assert_eq!(viewer.interrupt(), 0);
}
