// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ProcessAccounts`]: accounts of a process, with all of its threads.
//!
//! CPU time comes from the process's CPU clock, page faults and memory from `/proc/PID/stat`,
//! storage from `/proc/PID/io`: these contain threads that have ended. The kernel keeps waiting
//! time and switches per thread only, so these are sums over the living threads; what a thread
//! does between its last sample and its end is not counted.

use std::ffi::CStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{openat, Mode, OFlags, RawDir};

use crate::{CostClass, DataSource, KernelAccount, Quantity, QuantityKind, SourceReadError};

/// A quantity of a process: an account, or the sum of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessQuantity {
    Account(KernelAccount),
    /// `page-faults`: minor and major ones.
    PageFaults,
    /// `context-switches`: voluntary and involuntary ones.
    ContextSwitches,
    /// `task-clock`: as `cpu-time`.
    TaskClock,
}

impl ProcessQuantity {
    /// Quantities besides the accounts.
    pub(crate) const OTHERS: [(&'static str, Self); 3] = [
        ("page-faults", Self::PageFaults),
        ("context-switches", Self::ContextSwitches),
        ("task-clock", Self::TaskClock),
    ];

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let other = Self::OTHERS.into_iter().find(|(other, _)| *other == name);
        let account = || KernelAccount::of_name(name).map(Self::Account);
        other.map(|(_, quantity)| quantity).or_else(account)
    }

    pub(crate) fn quantity(self) -> Quantity {
        match self {
            Self::Account(account) => account.quantity(),
            Self::PageFaults => Quantity::new("page_faults", "", QuantityKind::Count),
            Self::ContextSwitches => Quantity::new("context_switches", "", QuantityKind::Count),
            Self::TaskClock => Quantity::new("task_clock", "ns", QuantityKind::Count),
        }
    }

    const fn needs(self, account: KernelAccount) -> bool {
        use KernelAccount::{
            CpuTime, InvoluntarySwitches, MajorFaults, MinorFaults, VoluntarySwitches,
        };
        match self {
            Self::Account(own) => own as u8 == account as u8,
            Self::PageFaults => matches!(account, MinorFaults | MajorFaults),
            Self::ContextSwitches => matches!(account, VoluntarySwitches | InvoluntarySwitches),
            Self::TaskClock => matches!(account, CpuTime),
        }
    }

    fn value(self, accounts: &[u64; KernelAccount::ALL.len()]) -> u64 {
        let all = KernelAccount::ALL.into_iter().zip(accounts);
        all.filter(|(account, _)| self.needs(*account))
            .map(|(_, value)| value)
            .sum()
    }
}

/// The accounts of one process.
pub(crate) struct ProcessAccounts {
    pid: u32,
    // Whether the process is a live one of this machine, and not a fixture.
    clock: Option<libc::clockid_t>,
    stat: Option<File>,
    io: Option<File>,
    threads: Option<Threads>,
    page_bytes: u64,
    wanted: Vec<ProcessQuantity>,
    quantities: Vec<Quantity>,
    text: Box<[u8; 4096]>,
    has_ended: bool,
}

impl ProcessAccounts {
    /// Opens the accounts of a process below the root folder.
    pub(crate) fn open(
        root: &Path,
        pid: u32,
        wanted: Vec<ProcessQuantity>,
    ) -> Result<Self, SourceReadError> {
        let needs = |accounts: &[KernelAccount]| {
            let mut all = wanted.iter();
            all.any(|it| accounts.iter().any(|account| it.needs(*account)))
        };
        let folder = root.join(format!("proc/{pid}"));
        let open = |name: &str| {
            File::open(folder.join(name)).map_err(|error| SourceReadError {
                source_name: format!("/proc/{pid}/{name}"),
                reason: error.to_string(),
            })
        };
        let of_stat = [
            KernelAccount::MinorFaults,
            KernelAccount::MajorFaults,
            KernelAccount::Resident,
        ];
        let of_threads = [
            KernelAccount::WaitTime,
            KernelAccount::VoluntarySwitches,
            KernelAccount::InvoluntarySwitches,
        ];
        let stat = needs(&of_stat).then(|| open("stat")).transpose()?;
        let io = needs(&[KernelAccount::ReadBytes, KernelAccount::WriteBytes]);
        let io = io.then(|| open("io")).transpose()?;
        let threads = needs(&of_threads).then(|| open("task")).transpose()?;
        let threads = threads.map(|folder| Threads {
            switches: needs(&of_threads[1..]),
            wait: needs(&of_threads[..1]),
            folder: folder.into(),
            known: Vec::with_capacity(1024),
            round: 0,
            totals: [0; 3],
            entries: vec![MaybeUninit::uninit(); 16 << 10],
        });
        let clock = needs(&[KernelAccount::CpuTime]).then(|| cpu_clock(pid));
        let mut accounts = Self {
            pid,
            clock,
            stat,
            io,
            threads,
            page_bytes: rustix::param::page_size() as u64,
            quantities: wanted.iter().map(|it| it.quantity()).collect(),
            wanted,
            text: Box::new([0; 4096]),
            has_ended: false,
        };
        // A missing permission is reported before the start.
        let mut values = vec![0; accounts.wanted.len()];
        accounts.read(&mut values)?;
        Ok(accounts)
    }

    fn gone(&self) -> SourceReadError {
        SourceReadError {
            source_name: format!("process {}", self.pid),
            reason: "it has ended".to_owned(),
        }
    }
}

impl DataSource for ProcessAccounts {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        match self.stat.is_none() && self.io.is_none() && self.threads.is_none() {
            true => CostClass::SystemCall,
            false => CostClass::File,
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        let read = self.accounts();
        self.has_ended = read.is_none();
        let accounts = read.ok_or_else(|| self.gone())?;
        for (value, wanted) in values.iter_mut().zip(&self.wanted) {
            *value = wanted.value(&accounts);
        }
        Ok(())
    }
}

impl ProcessAccounts {
    /// All accounts that are wanted; `None` if the process has ended.
    fn accounts(&mut self) -> Option<[u64; KernelAccount::ALL.len()]> {
        let mut accounts = [0; KernelAccount::ALL.len()];
        let mut set = |account: KernelAccount, value| accounts[account as usize] = value;
        if let Some(clock) = self.clock {
            set(KernelAccount::CpuTime, read_clock(clock)?);
        }
        if let Some(stat) = &self.stat {
            let text = read_text(stat, &mut self.text);
            let fields = text.and_then(stat_fields)?;
            set(KernelAccount::MinorFaults, fields[0]);
            set(KernelAccount::MajorFaults, fields[1]);
            set(KernelAccount::Resident, fields[2] * self.page_bytes);
        }
        if let Some(io) = &self.io {
            let text = read_text(io, &mut self.text);
            let field = |key| text.and_then(|text| field_of(text, key));
            let both = field("read_bytes:").zip(field("write_bytes:"));
            // The file of a process that has ended is not readable by others any more.
            let (read, written) = both?;
            set(KernelAccount::ReadBytes, read);
            set(KernelAccount::WriteBytes, written);
        }
        if let Some(threads) = &mut self.threads {
            threads.read(&mut self.text);
            let [wait, voluntary, involuntary] = threads.totals;
            set(KernelAccount::WaitTime, wait);
            set(KernelAccount::VoluntarySwitches, voluntary);
            set(KernelAccount::InvoluntarySwitches, involuntary);
        }
        Some(accounts)
    }
}

/// The threads of a process, with what they had at the previous read.
struct Threads {
    folder: OwnedFd,
    wait: bool,
    switches: bool,
    // Sorted by tid.
    known: Vec<Thread>,
    round: u64,
    // Waiting time, voluntary and involuntary switches of all threads.
    totals: [u64; 3],
    entries: Vec<MaybeUninit<u8>>,
}

#[derive(Clone, Copy)]
struct Thread {
    tid: u32,
    round: u64,
    counts: [u64; 3],
}

impl Threads {
    fn read(&mut self, text: &mut [u8; 4096]) {
        self.round += 1;
        let _ = rustix::fs::seek(&self.folder, rustix::fs::SeekFrom::Start(0));
        let mut entries = RawDir::new(&self.folder, &mut self.entries);
        while let Some(Ok(entry)) = entries.next() {
            let Some(tid) = entry
                .file_name()
                .to_str()
                .ok()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let mut counts = [0; 3];
            if self.wait {
                let found = read_of(&self.folder, tid, "schedstat", text);
                counts[0] = found.and_then(|text| nth_number(text, 1)).unwrap_or(0);
            }
            if self.switches {
                let found = read_of(&self.folder, tid, "status", text);
                let field = |key| found.and_then(|text| field_of(text, key)).unwrap_or(0);
                counts[1] = field("voluntary_ctxt_switches:");
                counts[2] = field("nonvoluntary_ctxt_switches:");
            }
            let place = self.known.binary_search_by_key(&tid, |thread| thread.tid);
            let round = self.round;
            let thread = match place {
                Ok(index) => &mut self.known[index],
                Err(index) => {
                    let counts = [0; 3];
                    self.known.insert(index, Thread { tid, round, counts });
                    &mut self.known[index]
                }
            };
            thread.round = round;
            let each = self.totals.iter_mut().zip(&mut thread.counts).zip(counts);
            for ((total, before), now) in each {
                // A file that could not be read any more has zero.
                *total += now.saturating_sub(*before);
                *before = now.max(*before);
            }
        }
        // The kernel gives the number of an ended thread to another one.
        let round = self.round;
        self.known.retain(|thread| thread.round == round);
    }
}

/// The text of a file of a thread.
fn read_of<'a>(
    folder: &OwnedFd,
    tid: u32,
    name: &str,
    text: &'a mut [u8; 4096],
) -> Option<&'a [u8]> {
    use std::io::Write as _;
    let mut path = [0_u8; 32];
    write!(&mut path[..], "{tid}/{name}\0").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = openat(
        folder,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    read_text(&File::from(file), text)
}

fn read_text<'a>(file: &File, text: &'a mut [u8; 4096]) -> Option<&'a [u8]> {
    let read = file.read_at(&mut text[..], 0).ok()?;
    (read > 0).then_some(&text[..read])
}

fn nth_number(text: &[u8], index: usize) -> Option<u64> {
    let word = text
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .nth(index)?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The number in the line that begins with the key.
fn field_of(text: &[u8], key: &str) -> Option<u64> {
    let mut lines = text.split(|&byte| byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(key.as_bytes()))?;
    nth_number(rest, 0)
}

/// Minor faults, major faults and resident pages of `/proc/PID/stat`. The name of the program
/// stands in parentheses and may contain anything.
fn stat_fields(text: &[u8]) -> Option<[u64; 3]> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = &text[end + 1..];
    Some([
        nth_number(rest, 7)?,
        nth_number(rest, 9)?,
        nth_number(rest, 21)?,
    ])
}

/// The CPU clock of a process; see `clock_getcpuclockid`.
const fn cpu_clock(pid: u32) -> libc::clockid_t {
    const CPUCLOCK_SCHED: libc::clockid_t = 2;
    (!pid.cast_signed()) << 3 | CPUCLOCK_SCHED
}

/// The time of a clock in nanoseconds; `None` if its process is gone.
#[allow(unsafe_code)]
fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the time to a valid structure, or returns an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
    (result == 0).then_some(ns)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{stat_fields, ProcessAccounts, ProcessQuantity};
    use crate::{DataSource, KernelAccount};

    #[test]
    fn name_of_a_program_may_contain_anything() {
        let text = b"7 (a ) b) S 1 2 3 4 5 6 107 8 109 10 11 12 13 14 15 16 17 18 19 20 121 22";
        assert_eq!(stat_fields(text), Some([107, 109, 121]));
    }

    #[test]
    fn own_process_has_the_accounts_of_getrusage() {
        let wanted: Vec<_> = KernelAccount::ALL
            .into_iter()
            .map(ProcessQuantity::Account)
            .collect();
        let pid = std::process::id();
        let mut accounts = ProcessAccounts::open(Path::new("/"), pid, wanted).unwrap();
        let mut values = vec![0; KernelAccount::ALL.len()];
        let clock = rustix::time::ClockId::ProcessCPUTime;
        let before = rustix::time::clock_gettime(clock);
        let before = before.tv_sec.cast_unsigned() * 1_000_000_000 + before.tv_nsec.cast_unsigned();
        accounts.read(&mut values).unwrap();
        let value = |account: KernelAccount| values[account as usize];
        assert!(
            value(KernelAccount::CpuTime) >= before,
            "{} {before}",
            value(KernelAccount::CpuTime)
        );
        assert!(value(KernelAccount::MinorFaults) > 0 && value(KernelAccount::Resident) > 1 << 20);
        let first = value(KernelAccount::MinorFaults);
        // Each page that is touched for the first time is a fault.
        let memory: Vec<u8> = vec![1; 8 << 20];
        assert_eq!(
            memory.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
            8 << 20
        );
        accounts.read(&mut values).unwrap();
        assert!(values[KernelAccount::MinorFaults as usize] > first);
    }
}
