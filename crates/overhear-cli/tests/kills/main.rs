// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorders that are killed at random moments beside a program that knows what it wrote and when: `run`,
//! `record`, and a monitor that records (`attach --out`). What they left is read; nothing is there twice,
//! nothing is missing in between, and what was lost before the kill is young.
//!
//! `OVERHEAR_KILLS=COUNT` chooses another number of kills of each recorder than the few of `make test`;
//! `make kills` has 1,000. The files of a recording survive its recorder, so `cut` and `mended` are not
//! the subject here: `behaviour/kills.rs` looks at them.
#![allow(missing_docs)]

mod counting;
#[path = "../behaviour/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use overhear_event::kernel::events::KIND_BEGIN;
use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
use overhear_trace::TraceReader;

use counting::{now_ns, Account, CALL, SENSOR};
use support::{
    babeltrace, eventually, has_babeltrace, overhear, path, report_json, send, wait, Started,
};

/// Kills of each recorder in the short form.
const FEW: usize = 20;
/// What a recorder may keep in memory, and what a round of it may take on a machine that is not busy.
const PROMISED_NS: u64 = 200_000_000 + 30_000_000;
/// Every so many recordings are read by babeltrace2, too.
const SAMPLED: usize = 10;

/// What the kills of one recorder came to.
#[derive(Debug, Default)]
struct Tally {
    without_trace: usize,
    without_elements: usize,
    heard: u64,
    missed: u64,
    lost: u64,
    /// By how much the oldest element that was lost preceded the kill.
    oldest_ns: u64,
    /// For how long recorders that were ready to run had no CPU: for so long nothing is promised.
    longest_wait_ns: u64,
}

/// Chance, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn kills() -> usize {
    let wanted = std::env::var("OVERHEAR_KILLS").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(FEW)
}

/// How long the threads of a process have waited for a CPU.
fn waited_ns(pid: i32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    waited.sum()
}

/// Kills a recorder after a while. Returns when, and how long it had waited for a CPU.
fn kill(recorder: Started, out: &Path, chance: &mut Chance) -> (u64, u64) {
    let begun = chance.below(2) == 0;
    let delay = Duration::from_micros(chance.below(800_000));
    let mut recorder = recorder;
    if begun {
        eventually("the recording begins", || {
            out.join("trace/overhear/run.json").exists()
                || recorder.child.try_wait().unwrap().is_some()
        });
    }
    thread::sleep(delay);
    let waited = waited_ns(recorder.pid());
    let at = now_ns();
    recorder.signal(libc::SIGKILL);
    recorder.end().does_not_panic();
    (at, waited)
}

/// The elements that count, and the gaps beside them.
#[derive(Default)]
struct Heard {
    /// Sequence and time of each element of the sensor; of system calls the sequence is that of all of them.
    elements: Vec<(u64, u64)>,
    numbers: Vec<u64>,
    missed: u64,
}

impl Update for Heard {
    fn element(&mut self, element: &ElementView<'_>) {
        let number = |field: &str| {
            element
                .field(field)
                .and_then(|it| it.as_f64())
                .unwrap_or(-1.0) as u64
        };
        let time = element.time.as_monotonic_ns();
        if element.stream.sensor == SENSOR {
            self.numbers.push(number("number"));
            self.elements.push((element.sequence, time));
        } else if element.stream.sensor == "syscall"
            && number("number") == CALL as u64
            && number("kind") == u64::from(KIND_BEGIN)
        {
            self.elements.push((element.sequence, time));
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if [SENSOR, "syscall"].contains(&stream.sensor.as_str()) {
            self.missed += gap.missed;
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// Compares what a killed recorder left with what the program knows.
fn examine(
    out: &Path,
    account: Option<&Account>,
    (killed, waited_ns): (u64, u64),
    with_babeltrace: bool,
    tally: &mut Tally,
) {
    let Ok(reader) = TraceReader::open(out) else {
        tally.without_trace += 1;
        return;
    };
    assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
    let mut heard = Heard::default();
    let replayed = reader.replay(&mut [&mut heard]);
    assert_eq!(replayed.corrupt, []);
    let (ended, report) = report_json(out);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert_eq!(report["trace"]["events"].as_u64(), Some(replayed.events));
    if with_babeltrace {
        assert_eq!(babeltrace(out).0, replayed.events);
    }
    let (Some(account), false) = (account, heard.elements.is_empty()) else {
        tally.without_elements += 1;
        return;
    };
    let count = heard.elements.len() as u64;
    // Which of the program's elements each of them is: the last that was begun before it was stamped.
    let place = |time: u64| account.times.partition_point(|written| *written <= time) as u64;
    let places: Vec<u64> = match heard.numbers.is_empty() {
        // System calls have no number of the program's.
        true => heard
            .elements
            .iter()
            .map(|(_, time)| place(*time))
            .collect(),
        false => {
            let sequences = heard.elements.iter().map(|(sequence, _)| *sequence);
            assert!(sequences.eq(heard.numbers.iter().copied()));
            heard.numbers.clone()
        }
    };
    let is_ascending = places.is_sorted_by(|one, next| one < next);
    assert!(is_ascending, "an element is there twice");
    // System calls are counted from one.
    let base = u64::from(heard.numbers.is_empty());
    let (first, last) = (places[0], places[places.len() - 1]);
    assert!(
        last - base < account.times.len() as u64,
        "more than was written"
    );
    if !heard.numbers.is_empty() {
        assert_eq!(count + heard.missed, last - first + 1);
    }
    // Streams are written at different times: the program may have changed from one CPU to the other.
    let written = (first - base..).zip(&account.times[(first - base) as usize..]);
    let written = written.take_while(|(_, time)| **time < killed);
    let there: BTreeSet<u64> = places.iter().map(|place| place - base).collect();
    let missing = written.filter(|(number, _)| !there.contains(number));
    let mut ages: Vec<u64> = missing.map(|(_, time)| killed - time).collect();
    // Gaps stand for the oldest of them.
    let told = usize::try_from(heard.missed).unwrap().min(ages.len());
    let lost = ages.split_off(told);
    let oldest = lost.first().copied().unwrap_or(0);
    let promised = PROMISED_NS + waited_ns;
    assert!(
        oldest <= promised,
        "lost what was {oldest} ns old, with {waited_ns} ns of waiting"
    );
    tally.heard += count;
    tally.missed += heard.missed;
    tally.lost += lost.len() as u64;
    tally.oldest_ns = tally.oldest_ns.max(oldest);
    tally.longest_wait_ns = tally.longest_wait_ns.max(waited_ns);
}

/// Kills recorders, each of which `start` starts beside a counting program of its own.
fn repeat(name: &str, seed: u64, start: impl Fn(&Path, &Counting) -> Option<(Started, Others)>) {
    let has_babeltrace = has_babeltrace();
    let mut chance = Chance(seed);
    let mut tally = Tally::default();
    let kills = kills();
    for number in 0..kills {
        let folder = support::folder();
        let out = folder.path().join("out");
        let counting = Counting::new(folder.path());
        let Some((recorder, others)) = start(&out, &counting) else {
            return;
        };
        let killed = kill(recorder, &out, &mut chance);
        counting.stop();
        let account = counting.account();
        others.end();
        let with_babeltrace = has_babeltrace && number % SAMPLED == 0;
        examine(&out, account.as_ref(), killed, with_babeltrace, &mut tally);
    }
    println!("{kills} kills of {name}: {tally:?}");
    assert!(
        tally.without_trace + tally.without_elements < kills,
        "{tally:?}"
    );
}

/// The counting program: this one, with another test.
struct Counting {
    folder: PathBuf,
}

impl Counting {
    fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
        }
    }

    fn words(&self) -> [String; 5] {
        let own = std::env::current_exe().unwrap();
        let folder = format!("{}={}", counting::FOLDER, path(&self.folder));
        let test = "counting::program".to_owned();
        let own = path(&own).to_owned();
        ["env".to_owned(), folder, own, test, "--ignored".to_owned()]
    }

    fn command(&self) -> Command {
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdout(std::process::Stdio::null());
        command
    }

    fn stop(&self) {
        fs::write(self.folder.join(counting::STOP), "").unwrap();
    }

    /// What the program knows in the end; nothing if it never began.
    fn account(&self) -> Option<Account> {
        let has_begun = self.folder.join(counting::BEGUN).exists();
        has_begun.then(|| Account::awaited(&self.folder))
    }
}

/// Processes besides the recorder, which end by themselves once the program is told to stop.
#[derive(Default)]
struct Others(Vec<std::process::Child>);

impl Others {
    fn end(self) {
        for mut child in self.0 {
            wait(&mut child);
        }
    }
}

#[test]
fn killed_runs_lose_only_what_is_young() {
    repeat("run", 0x1234_5678_9ABC_DEF1, |out, counting| {
        let words = counting.words();
        let words = words.iter().map(String::as_str);
        let options = [
            "run",
            "--kernel",
            "off",
            "--quiet",
            "--out",
            path(out),
            "--",
        ];
        let arguments: Vec<&str> = options.into_iter().chain(words).collect();
        Some((Started::spawn(&mut overhear(&arguments)), Others::default()))
    });
}

#[test]
fn killed_recorders_of_running_programs_lose_only_what_is_young() {
    repeat("record", 0x2345_6789_ABCD_EF12, |out, counting| {
        let child = counting.command().spawn().unwrap();
        let pid = child.id().to_string();
        let begun = counting.folder.join(counting::BEGUN);
        eventually("the program begins", || begun.exists());
        let arguments = ["record", "--pid", &pid, "--out", path(out), "--quiet"];
        let mut recorder = overhear(&arguments);
        let mut recorder = Started::spawn(recorder.args(["--kernel-sensors", "syscall"]));
        // Where the kernel cannot be heard it ends at once, with a sentence.
        let heard = out.join("trace/overhear/run.json");
        eventually("the recorder begins", || {
            heard.exists() || recorder.child.try_wait().unwrap().is_some()
        });
        if !heard.exists() {
            let ended = recorder.end();
            println!("skipped: {}", ended.stderr);
            counting.stop();
            Others(vec![child]).end();
            return None;
        }
        Some((recorder, Others(vec![child])))
    });
}

#[test]
fn killed_monitors_lose_only_what_is_young() {
    repeat("attach", 0x3456_789A_BCDE_F123, |out, counting| {
        let socket = counting.folder.join("directory.sock");
        let words = counting.words();
        let words = words.iter().map(String::as_str);
        let options = [
            "run",
            "--kernel",
            "off",
            "--quiet",
            "--socket",
            path(&socket),
            "--",
        ];
        let arguments: Vec<&str> = options.into_iter().chain(words).collect();
        let run = Started::spawn(&mut overhear(&arguments));
        let begun = counting.folder.join(counting::BEGUN);
        eventually("the program begins", || begun.exists());
        let mut attach = overhear(&["attach", SENSOR, "--quiet", "--out", path(out)]);
        attach.env("OVERHEAR_DIRECTORY", &socket);
        Some((Started::spawn(&mut attach), Others(vec![run.child])))
    });
}

#[test]
fn processes_that_were_started_can_be_killed() {
    // The watchdog of the others relies on it.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    send(child.id().cast_signed(), libc::SIGKILL);
    assert_eq!(wait(&mut child), 128 + libc::SIGKILL);
}
