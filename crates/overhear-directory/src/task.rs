// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes and threads in `/proc`.

use std::collections::BTreeSet;
use std::{fs, io};

use overhear_event::{Task, Timestamp};

/// The process with this id. Fields that cannot be read, because it has ended, stay empty.
pub(crate) fn of_pid(pid: u32) -> Task {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Task {
        pid,
        start: start_of(pid).unwrap_or(Timestamp::ZERO),
        comm: comm.trim_end().to_string(),
    }
}

/// Start time of the process with this id; `None` if there is none.
pub(crate) fn start_of(pid: u32) -> Option<Timestamp> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    start_time(&stat)
}

/// The threads of a process, looked up on demand.
#[derive(Debug)]
pub(crate) struct Threads {
    folder: String,
    pid: u32,
    view: View,
}

/// How the threads of a process are looked up.
#[derive(Debug)]
enum View {
    /// The process has ended or cannot be read: its threads are not known.
    Unknown,
    /// Its threads have the same ids in its PID namespace as here.
    Same,
    /// It is in another PID namespace: the ids of its threads there. `None` before the first
    /// look-up.
    Other(Option<BTreeSet<u32>>),
}

impl Threads {
    pub(crate) fn of(pid: u32) -> Self {
        let folder = format!("/proc/{pid}/task");
        let view = match own_number(&folder, pid) {
            Err(_) => View::Unknown,
            Ok(number) if number == pid => View::Same,
            Ok(_) => View::Other(None),
        };
        Self { folder, pid, view }
    }

    /// Whether a thread has ended while its process is alive. `tid` is the thread's id in its own
    /// PID namespace, which differs from the directory's in containers.
    pub(crate) fn has_ended(&mut self, tid: u32) -> bool {
        let folder = &self.folder;
        match &mut self.view {
            View::Unknown => false,
            View::Same => {
                tid != self.pid && !fs::exists(format!("{folder}/{tid}")).unwrap_or(true) && {
                    // The process may have ended between the two look-ups.
                    fs::exists(folder).unwrap_or(false)
                }
            }
            View::Other(known) => {
                let known = known.get_or_insert_with(|| own_numbers(folder));
                !known.is_empty() && !known.contains(&tid)
            }
        }
    }
}

/// The ids of a process' threads in their own PID namespace; empty if one cannot be read.
///
/// The folder is listed twice: if threads end during a listing, the kernel may skip living ones.
fn own_numbers(folder: &str) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for _ in 0..2 {
        let Ok(threads) = fs::read_dir(folder) else {
            return BTreeSet::new();
        };
        for thread in threads.flatten() {
            let Ok(tid) = thread.file_name().to_string_lossy().parse() else {
                continue;
            };
            match own_number(folder, tid) {
                Ok(number) => all.insert(number),
                Err(error) if has_gone(&error) => continue,
                Err(_) => return BTreeSet::new(),
            };
        }
    }
    all
}

/// Whether the error means that the thread has ended.
fn has_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// A thread's id in its own PID namespace: the last one in `NSpid` of its status.
fn own_number(folder: &str, tid: u32) -> io::Result<u32> {
    let status = fs::read_to_string(format!("{folder}/{tid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("NSpid:"));
    let number = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
    number.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Whether a process is a descendant of another one. The processes between them must be alive.
pub(crate) fn descends_from(pid: u32, ancestor: u32) -> bool {
    let mut pid = pid;
    // Bounded, because the tree may change during the walk.
    for _ in 0..64 {
        if pid == ancestor {
            return true;
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        match parent(&stat) {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// The parent of a process.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The parent in a line of `/proc/PID/stat`: field 4, counted after the last parenthesis.
fn parent(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// The start time in a line of `/proc/PID/stat`: field 22, in hundredths of a second since boot.
/// The name in field 2 may contain anything, so fields are counted after its last parenthesis.
fn start_time(stat: &str) -> Option<Timestamp> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    Some(Timestamp::from_monotonic_ns(ticks.checked_mul(10_000_000)?))
}

#[cfg(test)]
mod tests {
    use super::{descends_from, of_pid, parent, start_time};

    #[test]
    fn descent_goes_through_parents() {
        assert_eq!(parent("42 (a) b) S 7 2 3"), Some(7));
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(descends_from(own, own) && descends_from(own, parent));
        assert!(!descends_from(parent, own));
    }

    #[test]
    fn names_may_contain_anything() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20";
        let stat = format!("42 (a) b (c) {fields}");
        assert_eq!(
            start_time(&stat).map(|t| t.as_monotonic_ns()),
            Some(2_500_000_000)
        );
        assert_eq!(start_time("42 nonsense"), None);
        assert!(!of_pid(std::process::id()).comm.is_empty());
    }
}
