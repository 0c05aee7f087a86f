// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changed recordings, each read by every verb within 1 GiB of address space and 15 s of CPU: no
//! panic, no hang, no abort, and memory that does not follow the numbers in the files.
//!
//! `OVERHEAR_MUTATIONS=COUNT`, and `OVERHEAR_MUTATIONS_FROM=NUMBER` to go on, choose another number
//! of recordings than the few of `make test`; `make mutations` has 10,000. The same number is
//! always the same change; `OVERHEAR_MUTATIONS_KEEP=DIR` keeps the changed recordings there.
#![allow(missing_docs)]

mod mutation;
mod recordings;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use mutation::Mutated;
use recordings::Files;

/// Recordings of the short form.
const FEW: u64 = 120;
const ADDRESS_SPACE: u64 = 1 << 30;
const CPU_SECONDS: u64 = 15;
/// Memory of a verb in addition to the files, which it maps.
const MOST_MEMORY: u64 = 128 << 20;
/// A command that blocks instead of computing hangs.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The end of a command, and its maximum memory.
struct Ended {
    /// The status that a shell would show.
    status: i32,
    memory: u64,
}

/// Results of a verb over all recordings.
#[derive(Debug, Default)]
struct Tally {
    statuses: BTreeMap<i32, u64>,
    most_memory: u64,
}

/// The arguments of each verb that reads a recording. The repair comes last: it changes the
/// recording.
fn verbs<'a>(recording: &'a str, folder: &'a str) -> [(&'static str, Vec<String>); 7] {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let in_folder = |name: &str| format!("{folder}/{name}");
    let json = format!("--json={}", in_folder("report.json"));
    [
        ("metrics", words(&["metrics", recording])),
        (
            "check",
            words(&["check", recording, "--config", &in_folder("overhear.toml")]),
        ),
        (
            "csv",
            words(&["export", recording, "--to", "csv", "-o", &in_folder("csv")]),
        ),
        (
            "perfetto",
            words(&[
                "export",
                recording,
                "--to",
                "perfetto",
                "-o",
                &in_folder("pb"),
            ]),
        ),
        (
            "html",
            words(&["report", recording, "--html", &in_folder("html"), &json]),
        ),
        ("report", words(&["report", recording])),
        ("repair", words(&["repair", recording])),
    ]
}

fn limited(command: &mut Command) {
    use rustix::process::{setrlimit, Resource, Rlimit};
    let limit = |resource, most| {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(io::Error::from)
    };
    // SAFETY: between fork and exec only two system calls are made.
    unsafe {
        command.pre_exec(move || {
            limit(Resource::As, ADDRESS_SPACE)?;
            limit(Resource::Cpu, CPU_SECONDS)
        });
    }
}

/// Waits for the end, and returns the kernel's accounts of it.
fn wait(child: &Child) -> Ended {
    let begun = Instant::now();
    let pid = child.id().cast_signed();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    loop {
        // SAFETY: both places are valid, and the child is ours and not waited for elsewhere.
        let ended = unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, usage.as_mut_ptr()) };
        assert!(ended >= 0, "{}", io::Error::last_os_error());
        if ended == pid {
            break;
        }
        if begun.elapsed() > WATCHDOG {
            // SAFETY: the child has not been waited for, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: zeroed, and written by the kernel.
    let usage = unsafe { usage.assume_init() };
    Ended {
        status: match libc::WIFEXITED(status) {
            true => libc::WEXITSTATUS(status),
            false => 128 + libc::WTERMSIG(status),
        },
        memory: usage.ru_maxrss.cast_unsigned() << 10,
    }
}

/// Runs every verb on one recording. Returns messages about forbidden results.
fn read(
    recordings: &[Files],
    number: u64,
    folder: &Path,
    tallies: &Mutex<BTreeMap<&'static str, Tally>>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let mutated = Mutated::new(recordings, number);
    let recording = folder.join("recording");
    mutated.write(&recording);
    if let Some(kept) = std::env::var_os("OVERHEAR_MUTATIONS_KEEP") {
        mutated.write(&Path::new(&kept).join(number.to_string()));
    }
    let [recording_name, folder_name] = [&recording, folder].map(|it| it.to_str().unwrap());
    for (verb, arguments) in verbs(recording_name, folder_name) {
        let errors = folder.join("errors");
        let mut command = Command::new(env!("CARGO_BIN_EXE_overhear"));
        command.args(&arguments).stdin(Stdio::null());
        command.stdout(Stdio::null());
        command.stderr(fs::File::create(&errors).unwrap());
        command.env("RUST_BACKTRACE", "0");
        limited(&mut command);
        let ended = wait(&command.spawn().unwrap());
        let messages = String::from_utf8_lossy(&fs::read(&errors).unwrap()).into_owned();
        let has_message = ended.status != 2 || !messages.trim().is_empty();
        let is_expected = [0, 1, 2, 3, 5].contains(&ended.status);
        if !is_expected || !has_message || messages.contains("panicked") {
            let messages: String = messages.chars().take(400).collect();
            complaints.push(format!(
                "{number} {verb}: status {}: {messages}",
                ended.status
            ));
        } else if ended.memory > MOST_MEMORY + mutated.bytes() {
            let (memory, bytes) = (ended.memory >> 20, mutated.bytes() >> 20);
            complaints.push(format!("{number} {verb}: {memory} MiB for {bytes} MiB"));
        }
        let mut tallies = tallies.lock().unwrap();
        let tally = tallies.entry(verb).or_default();
        *tally.statuses.entry(ended.status).or_default() += 1;
        tally.most_memory = tally.most_memory.max(ended.memory);
    }
    fs::remove_dir_all(&recording).unwrap();
    complaints
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn changed_recordings_are_read_by_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let recordings = recordings::all(folder.path());
    let constraints =
        "[[constraint]]\nname = \"woken\"\nmetric = \"wakeup_latency\"\nmax = \"1ms\"\n\
         [[constraint]]\nname = \"often\"\nof = \"kernel:sched_wake [kind == 1] task tid\"\n\
         each = \"task\"\nperiod = \"100us\"\njitter = \"1us\"\n";
    let from = number_of("OVERHEAR_MUTATIONS_FROM").unwrap_or(0);
    let count = number_of("OVERHEAR_MUTATIONS").unwrap_or(FEW);
    let next = Mutex::new(from..from + count);
    let (tallies, complaints) = (Mutex::default(), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for worker in 0..2 {
            let (recordings, tallies, complaints, next) =
                (&recordings, &tallies, &complaints, &next);
            let folder = folder.path().join(format!("worker-{worker}"));
            scope.spawn(move || {
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("overhear.toml"), constraints).unwrap();
                let take = || next.lock().unwrap().next();
                while let Some(number) = take() {
                    let found = read(recordings, number, &folder, tallies);
                    for complaint in &found {
                        eprintln!("{complaint}");
                    }
                    complaints.lock().unwrap().extend(found);
                }
            });
        }
    });
    println!("{count} recordings from {from} on");
    for (verb, tally) in tallies.into_inner().unwrap() {
        let memory = tally.most_memory >> 20;
        println!(
            "{verb}: statuses {:?}, at most {memory} MiB",
            tally.statuses
        );
    }
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
