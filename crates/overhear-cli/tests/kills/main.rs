// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorders that are killed at random moments while a program writes elements and keeps account of
//! them: `run`, `record`, and a monitor that records (`attach --out`). Their recordings are read:
//! no element is there twice, none is missing in between, and those lost before the kill are young.
//!
//! `OVERHEAR_KILLS=COUNT` chooses another number of kills of each recorder than the few of
//! `make test`; `make kills` has 1,000. The files of a recording survive its recorder, so `cut` and
//! `mended` are not the subject here: `behaviour/kills.rs` tests them.
#![allow(missing_docs)]

mod counting;
mod stalls;
#[path = "../behaviour/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use overhear_event::kernel::events::KIND_BEGIN;
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_trace::TraceReader;

use counting::{now_ns, Account, CALL, SENSOR};
use stalls::{total_ns, Stalls, Witness};
use support::{
    babeltrace, eventually, has_babeltrace, overhear, path, report_json, send, wait, Started,
};

/// Kills of each recorder in the short form.
const FEW: usize = 20;
/// Time that a recorder may keep elements in memory, and the maximum time of its rounds on a
/// machine that is not busy.
const PROMISED_NS: u64 = 200_000_000 + 30_000_000;
/// One inconclusive kill is permitted for each of this number.
const KILLS_PER_INCONCLUSIVE: usize = 4;
/// Number of recordings of which one is read by babeltrace2, too.
const SAMPLED: usize = 10;

/// A kind of recorder.
struct Recorder {
    name: &'static str,
    seed: u64,
    /// Whether it records the counting program from its first element on.
    records_all: bool,
}

/// Counts over the kills of one recorder.
#[derive(Debug, Default)]
struct Tally {
    without_trace: usize,
    without_elements: usize,
    recorded: u64,
    missed: u64,
    lost: u64,
    /// Kills that lost elements older than permitted. The stalls of the recorder explain the
    /// excess.
    inconclusive: usize,
    /// Inconclusive kills that waits for a CPU alone do not explain: the recorder slept
    /// uninterruptibly, too.
    inconclusive_by_sleep: usize,
    /// Age of the oldest lost element at the kill, without inconclusive kills.
    oldest_ns: u64,
    /// Longest stall between the oldest lost element of a kill and the kill.
    longest_stall_ns: u64,
}

impl Tally {
    /// Judges a kill by the age of the oldest element that it lost.
    fn judge(&mut self, oldest_ns: u64, killed: &Killed) {
        let from_ns = killed.at_ns - oldest_ns;
        let [stalled_ns, waited_ns] = [Stalls::all, Stalls::waits]
            .map(|stalls| total_ns(stalls(&killed.stalls), from_ns, killed.at_ns));
        assert!(
            oldest_ns <= PROMISED_NS + stalled_ns,
            "lost what was {oldest_ns} ns old, of which the machine stalled the recorder for {stalled_ns} ns"
        );
        self.longest_stall_ns = self.longest_stall_ns.max(stalled_ns);
        if oldest_ns <= PROMISED_NS {
            self.oldest_ns = self.oldest_ns.max(oldest_ns);
        } else {
            self.inconclusive += 1;
            self.inconclusive_by_sleep += usize::from(oldest_ns > PROMISED_NS + waited_ns);
        }
    }

    /// Judges all kills. Returns false if too many are inconclusive.
    fn conclude(&self, kills: usize) -> bool {
        assert!(
            self.without_trace + self.without_elements < kills,
            "{self:?}"
        );
        let most = kills / KILLS_PER_INCONCLUSIVE;
        // A recorder that waits for the disk at each write does so on a calm machine as well.
        assert!(self.inconclusive_by_sleep <= most, "{self:?}");
        self.inconclusive <= most
    }
}

/// Pseudo-random numbers, the same in every run.
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

/// The time of a kill, and the stalls of the recorder until then.
struct Killed {
    at_ns: u64,
    stalls: Stalls,
}

/// Kills a recorder after a while.
fn kill((recorder, witness): (Started, Witness), out: &Path, chance: &mut Chance) -> Killed {
    let begun = chance.below(2) == 0;
    let delay = Duration::from_micros(chance.below(800_000));
    if begun {
        eventually("the recording begins", || {
            out.join("trace/overhear/run.json").exists() || witness.has_ended()
        });
    }
    thread::sleep(delay);
    let at_ns = now_ns();
    recorder.signal(libc::SIGKILL);
    let stalls = witness.after_death();
    recorder.end().does_not_panic();
    Killed { at_ns, stalls }
}

/// The elements that count, and the gaps between them.
#[derive(Default)]
struct RecordedElements {
    /// Sequence and time of each element of the sensor; of system calls the sequence is that of all
    /// of them.
    elements: Vec<(u64, u64)>,
    numbers: Vec<u64>,
    missed: u64,
}

impl RecordedElements {
    /// Index of each of them among the program's elements.
    fn places(&self, account: &Account) -> Vec<u64> {
        if self.numbers.is_empty() {
            // System calls have no number of the program's: each is the last that was begun before
            // it was stamped.
            let sequence_at =
                |time: u64| account.times.partition_point(|begun| *begun <= time) as u64;
            let times = self.elements.iter().map(|(_, time)| *time);
            return times.map(|time| sequence_at(time) - 1).collect();
        }
        let sequences = self.elements.iter().map(|(sequence, _)| *sequence);
        assert!(sequences.eq(self.numbers.iter().copied()));
        self.numbers.clone()
    }
}

impl Analysis for RecordedElements {
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

/// Compares the recording of a killed recorder with the account of the program.
fn examine(
    out: &Path,
    account: Option<&Account>,
    killed: &Killed,
    (records_all, with_babeltrace): (bool, bool),
    tally: &mut Tally,
) {
    let Ok(reader) = TraceReader::open(out) else {
        tally.without_trace += 1;
        return;
    };
    assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
    let mut recorded = RecordedElements::default();
    let replayed = reader.replay(&mut [&mut recorded]);
    assert_eq!(replayed.corrupt, []);
    let (ended, report) = report_json(out);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert_eq!(report["trace"]["events"].as_u64(), Some(replayed.events));
    if with_babeltrace {
        assert_eq!(babeltrace(out).0, replayed.events);
    }
    let (Some(account), false) = (account, recorded.elements.is_empty()) else {
        tally.without_elements += 1;
        if let (Some(account), true) = (account, records_all) {
            let oldest = account.times.first();
            let age = oldest.map_or(0, |oldest| killed.at_ns.saturating_sub(*oldest));
            tally.judge(age, killed);
        }
        return;
    };
    let count = recorded.elements.len() as u64;
    let places = recorded.places(account);
    let is_ascending = places.is_sorted_by(|one, next| one < next);
    assert!(is_ascending, "an element is there twice");
    let (first, last) = (places[0], places[places.len() - 1]);
    assert!(last < account.times.len() as u64, "more than was written");
    if !recorded.numbers.is_empty() {
        assert_eq!(count + recorded.missed, last - first + 1);
    }
    let first = if records_all { 0 } else { first };
    // Streams are written at different times: the program may have moved from one CPU to another.
    let written = (first..).zip(&account.times[first as usize..]);
    let written = written.take_while(|(_, time)| **time < killed.at_ns);
    let there: BTreeSet<u64> = places.into_iter().collect();
    let missing = written.filter(|(number, _)| !there.contains(number));
    let mut ages: Vec<u64> = missing.map(|(_, time)| killed.at_ns - time).collect();
    // Gaps stand for the oldest of them.
    let counted = usize::try_from(recorded.missed).unwrap().min(ages.len());
    let lost = ages.split_off(counted);
    tally.judge(lost.first().copied().unwrap_or(0), killed);
    tally.recorded += count;
    tally.missed += recorded.missed;
    tally.lost += lost.len() as u64;
}

/// Kills recorders. `start` starts each of them with a counting program of its own.
fn repeat(
    recorder: &Recorder,
    start: impl Fn(&Path, &Counting) -> Option<((Started, Witness), Others)>,
) {
    let has_babeltrace = has_babeltrace();
    let mut chance = Chance(recorder.seed);
    let mut tally = Tally::default();
    let (name, kills) = (recorder.name, kills());
    for number in 0..kills {
        let folder = support::folder();
        let out = folder.path().join("out");
        let counting = Counting::new(folder.path());
        let Some((started, others)) = start(&out, &counting) else {
            return;
        };
        let killed = kill(started, &out, &mut chance);
        counting.stop();
        let account = counting.account();
        others.end();
        let with_babeltrace = has_babeltrace && number % SAMPLED == 0;
        let how = (recorder.records_all, with_babeltrace);
        examine(&out, account.as_ref(), &killed, how, &mut tally);
    }
    println!("{kills} kills of {name}: {tally:?}");
    if !tally.conclude(kills) {
        let inconclusive = tally.inconclusive;
        println!("skipped: machine lateness: {inconclusive} of {kills} kills of {name} are inconclusive, because the recorder waited for a CPU");
    }
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

    /// The account of the program; `None` if it never began.
    fn account(&self) -> Option<Account> {
        let has_begun = self.folder.join(counting::BEGUN).exists();
        has_begun.then(|| Account::awaited(&self.folder))
    }
}

/// Starts a recorder, and its witness with it.
fn spawn(command: &mut Command) -> (Started, Witness) {
    let recorder = Started::spawn(command);
    let witness = Witness::of(recorder.pid());
    (recorder, witness)
}

/// Runs the counting program under a monitor.
fn run(options: &[&str], counting: &Counting) -> Command {
    let mut run = overhear(&["run", "--kernel", "off", "--quiet"]);
    run.args(options).arg("--").args(counting.words());
    run
}

/// Processes in addition to the recorder, which end by themselves with the program.
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
fn killed_runs_lose_young_elements_only() {
    let kind = Recorder {
        name: "run",
        seed: 0x1234_5678_9ABC_DEF1,
        records_all: true,
    };
    repeat(&kind, |out, counting| {
        let mut recorder = run(&["--out", path(out)], counting);
        Some((spawn(&mut recorder), Others::default()))
    });
}

#[test]
fn killed_recorders_of_running_programs_lose_young_elements_only() {
    let kind = Recorder {
        name: "record",
        seed: 0x2345_6789_ABCD_EF12,
        records_all: false,
    };
    repeat(&kind, |out, counting| {
        let child = counting.command().spawn().unwrap();
        let pid = child.id().to_string();
        let begun = counting.folder.join(counting::BEGUN);
        eventually("the program begins", || begun.exists());
        let arguments = ["record", "--pid", &pid, "--out", path(out), "--quiet"];
        let mut recorder = overhear(&arguments);
        let (recorder, witness) = spawn(recorder.args(["--kernel-sensors", "syscall"]));
        // If kernel sensors do not work, it ends at once, with a message.
        let recorded = out.join("trace/overhear/run.json");
        eventually("the recorder begins", || {
            recorded.exists() || witness.has_ended()
        });
        if !recorded.exists() {
            let ended = recorder.end();
            println!("skipped: {}", ended.stderr);
            counting.stop();
            Others(vec![child]).end();
            return None;
        }
        Some(((recorder, witness), Others(vec![child])))
    });
}

#[test]
fn killed_monitors_lose_young_elements_only() {
    let kind = Recorder {
        name: "attach",
        seed: 0x3456_789A_BCDE_F123,
        records_all: false,
    };
    repeat(&kind, |out, counting| {
        let socket = counting.folder.join("directory.sock");
        let run = Started::spawn(&mut run(&["--socket", path(&socket)], counting));
        let begun = counting.folder.join(counting::BEGUN);
        eventually("the program begins", || begun.exists());
        let mut attach = overhear(&["attach", SENSOR, "--quiet", "--out", path(out)]);
        attach.env("OVERHEAR_DIRECTORY", &socket);
        Some((spawn(&mut attach), Others(vec![run.child])))
    });
}

#[test]
fn processes_that_were_started_can_be_killed() {
    // The watchdog of the other tests relies on it.
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    send(child.id().cast_signed(), libc::SIGKILL);
    assert_eq!(wait(&mut child), 128 + libc::SIGKILL);
}
