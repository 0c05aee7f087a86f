// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plays the service manager for `overheard`: passes sockets and kept files, keeps files, waits for
//! readiness.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Files that `overheard` has stored with the manager, by name.
type Shelf = Arc<Mutex<BTreeMap<String, OwnedFd>>>;

/// A service manager with one service.
pub struct Manager {
    pub socket: PathBuf,
    pub shelf: Shelf,
    listener: OwnedFd,
    notify: PathBuf,
    ready: Arc<Mutex<u32>>,
    barrier: Arc<Mutex<u32>>,
    stop: Arc<Mutex<bool>>,
    receiver: Option<std::thread::JoinHandle<()>>,
    service: Option<Child>,
    pub arguments: Vec<String>,
    pub folder: tempfile::TempDir,
}

impl Manager {
    /// A manager whose service has not been started.
    pub fn new(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("directory.sock");
        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 256).unwrap();
        let notify = folder.path().join("notify.sock");
        let datagrams = UnixDatagram::bind(&notify).unwrap();
        datagrams
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let shelf = Shelf::default();
        let (ready, stop) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(false)));
        let barrier = Arc::new(Mutex::new(0));
        let receiver = {
            let (shelf, ready, stop) = (Arc::clone(&shelf), Arc::clone(&ready), Arc::clone(&stop));
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                while !*stop.lock().unwrap() {
                    receive(&datagrams, &shelf, &ready, &barrier);
                }
            })
        };
        Self {
            socket,
            shelf,
            listener,
            notify,
            ready,
            barrier,
            stop,
            receiver: Some(receiver),
            service: None,
            arguments: arguments.iter().map(ToString::to_string).collect(),
            folder,
        }
    }

    /// Starts the service with all kept files, and waits until it is ready.
    #[track_caller]
    pub fn start(&mut self) -> u32 {
        assert!(self.service.is_none());
        let before = *self.ready.lock().unwrap();
        let shelf = self.shelf.lock().unwrap();
        let mut files = vec![self.listener.as_raw_fd()];
        let mut names = vec!["directory".to_string()];
        for (name, file) in shelf.iter() {
            files.push(file.as_raw_fd());
            names.push(name.clone());
        }
        // The shell knows its own process id before it becomes the service.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_overheard"))
            .args(&self.arguments)
            .env("NOTIFY_SOCKET", &self.notify)
            .env("LISTEN_FDS", files.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdin(Stdio::null());
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.pre_exec(move || hand_over(&mut files)) };
        let service = command.spawn().unwrap();
        drop(shelf);
        let pid = service.id();
        self.service = Some(service);
        let begun = Instant::now();
        while *self.ready.lock().unwrap() == before {
            let ended = self.service.as_mut().unwrap().try_wait().unwrap();
            assert_eq!(ended, None, "overheard ended before it was ready");
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "overheard is not ready"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        pid
    }

    /// Kills the service with SIGKILL, which cannot be caught.
    pub fn kill(&mut self) {
        let mut service = self.service.take().unwrap();
        service.kill().unwrap();
        service.wait().unwrap();
        // Its last message may still be on its way.
        self.pass_barrier();
    }

    /// Waits until all earlier messages have been received.
    fn pass_barrier(&self) {
        let before = *self.barrier.lock().unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(b"BARRIER=1", &self.notify).unwrap();
        let begun = Instant::now();
        while *self.barrier.lock().unwrap() == before {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "nothing is received"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends the service as service managers do.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let mut service = self.service.take().unwrap();
        let pid = rustix::process::Pid::from_raw(service.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        service.wait().unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.service.as_ref().unwrap().id()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.service.is_some() {
            self.kill();
        }
        *self.stop.lock().unwrap() = true;
        let _ = self.receiver.take().unwrap().join();
    }
}

/// Puts the files where the service expects them: from descriptor 3 on. `files` are overwritten.
fn hand_over(files: &mut [i32]) -> std::io::Result<()> {
    let first = 3;
    let above = first + i32::try_from(files.len()).unwrap_or(i32::MAX);
    let check = |result: i32| match result {
        -1 => Err(std::io::Error::last_os_error()),
        descriptor => Ok(descriptor),
    };
    // First moves the files away from the target descriptors.
    for file in &mut *files {
        // SAFETY: a system call on a descriptor of this process, without memory.
        *file = check(unsafe { libc::fcntl(*file, libc::F_DUPFD_CLOEXEC, above) })?;
    }
    for (place, file) in (first..).zip(files) {
        // SAFETY: as above.
        check(unsafe { libc::dup2(*file, place) })?;
    }
    Ok(())
}

fn receive(datagrams: &UnixDatagram, shelf: &Shelf, ready: &Mutex<u32>, barrier: &Mutex<u32>) {
    let mut packet = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let slices = &mut [IoSliceMut::new(&mut packet)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let Ok(message) = rustix::net::recvmsg(datagrams, slices, &mut ancillary, flags) else {
        return;
    };
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let text = String::from_utf8_lossy(&packet[..message.bytes]).into_owned();
    let has = |line: &str| text.lines().any(|other| other == line);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    if has("BARRIER=1") {
        *barrier.lock().unwrap() += 1;
    }
    if has("READY=1") {
        *ready.lock().unwrap() += 1;
    }
    let mut shelf = shelf.lock().unwrap();
    match (name, file) {
        (Some(name), Some(file)) if has("FDSTORE=1") => {
            shelf.insert(name.to_string(), file);
        }
        (Some(name), None) if has("FDSTOREREMOVE=1") => {
            shelf.remove(name);
        }
        _ => {}
    }
}
