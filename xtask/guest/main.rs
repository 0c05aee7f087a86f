// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first process of the guests of `make kernels`: mounts what the tests need, runs the
//! programs of the plan one after the other, and writes a report.
//!
//! The plan (`/plan`) has a line for each program, with tabs between its parts: the limit in
//! seconds, the name, the path, and the arguments. Report, on the device that the kernel's
//! parameter `report=` names:
//!
//! ```text
//! @guest RELEASE             the kernel's release; everything is mounted
//! @begin NAME                a program starts
//! | LINE                     a line of its output
//! @end NAME STATUS           `exit N`, `signal N`, or `limit`: it was ended after its limit
//! @done COUNT MILLISECONDS   number of programs that were run, and the time since the boot
//! ```
//!
//! A guest whose report has no last line has failed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::mount::{mount, MountFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{sendto, socket_with, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{kill_process_group, Pid, Signal};
use rustix::system::{reboot, RebootCommand};

/// File systems: source, type and place.
const MOUNTS: [(&str, &str); 9] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    ("tracefs", "/sys/kernel/tracing"),
    ("bpf", "/sys/fs/bpf"),
    ("cgroup2", "/sys/fs/cgroup"),
];

fn main() {
    let outcome = work();
    if let Err(error) = outcome {
        println!("guest: {error}");
    }
    rustix::fs::sync();
    // The machine runs with `-no-reboot`, so that this ends it.
    let _ = reboot(RebootCommand::Restart);
}

fn work() -> io::Result<()> {
    for (kind, at) in MOUNTS {
        fs::create_dir_all(at)?;
        // The kernel may have mounted /dev itself.
        if let Err(error) = mount(kind, at, kind, MountFlags::empty(), None) {
            println!("guest: {at} is not mounted: {error}");
        }
    }
    if let Err(error) = start_loopback() {
        println!("guest: the loopback interface is down: {error}");
    }
    env::set_current_dir("/tmp")?;
    let parameters = fs::read_to_string("/proc/cmdline")?;
    let device = parameters
        .split_whitespace()
        .find_map(|word| word.strip_prefix("report="))
        .ok_or_else(|| io::Error::other("the kernel's parameters name no device of the report"))?;
    let mut report = Report(OpenOptions::new().write(true).open(device)?);
    report.line(&format!(
        "@guest {}",
        fs::read_to_string("/proc/sys/kernel/osrelease")?.trim()
    ))?;
    let plan = fs::read_to_string("/plan")?;
    let mut count = 0;
    for line in plan.lines() {
        let mut parts = line.split('\t');
        let (Some(limit), Some(name), Some(program)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(io::Error::other(format!("a line of the plan: {line:?}")));
        };
        let limit = Duration::from_secs(limit.parse().map_err(io::Error::other)?);
        let mut command = Command::new(program);
        command.args(parts);
        report.line(&format!("@begin {name}"))?;
        let status = run(&mut command, limit, &mut report)?;
        report.line(&format!("@end {name} {status}"))?;
        count += 1;
    }
    let uptime = fs::read_to_string("/proc/uptime")?;
    let seconds: f64 = uptime
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::other("/proc/uptime has an unknown form"))?;
    report.line(&format!("@done {count} {:.0}", seconds * 1e3))
}

/// The device of the report. Each line is flushed to the other side before the next one begins.
struct Report(File);

impl Report {
    fn line(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(format!("{text}\n").as_bytes())
    }
}

/// Runs a program with its output in the report; returns how it ended.
fn run(command: &mut Command, limit: Duration, report: &mut Report) -> io::Result<String> {
    // One pipe for both outputs keeps their order.
    let (output, input) = io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .process_group(0)
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/tmp")
        .env("TMPDIR", "/tmp");
    let child = command.spawn();
    // The command keeps the writing ends open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ok(format!("cannot be started: {error}")),
    };
    let (lines, received) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|it| it > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if lines.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    let end = Instant::now() + limit;
    loop {
        match received.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => report.line(&format!("| {line}"))?,
            // A program that it has left running may hold the pipe open, or close it.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(name_of(status));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(name_of(status));
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        if Instant::now() > end {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok("limit".to_owned());
        }
    }
}

fn name_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}

/// Sets the flag *up* of the first interface, by a message RTM_NEWLINK.
fn start_loopback() -> io::Result<()> {
    const NLM_F_REQUEST: u16 = 1;
    const RTM_NEWLINK: u16 = 16;
    const IFF_UP: u32 = 1;
    const LOOPBACK: i32 = 1;
    let mut message = Vec::new();
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(32_u32.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg: family, type, index, flags, changed flags.
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // Protocol 0 is NETLINK_ROUTE.
        None,
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &message, SendFlags::empty(), &kernel)?;
    Ok(())
}
