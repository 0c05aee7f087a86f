// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is at the other end of a connection, in the kernel's words.

use std::fs;

use overhear_event::{Task, Timestamp};

/// The process with this id. What cannot be read (it may have ended) stays empty.
pub(crate) fn of_pid(pid: u32) -> Task {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let start = start_time(&stat).unwrap_or(Timestamp::ZERO);
    Task {
        pid,
        start,
        comm: comm.trim_end().to_string(),
    }
}

/// Whether the process still maps the memory file with this inode for writing. Where that cannot be
/// read it is taken to. (A process that embeds the directory also has the directory's own map of
/// its stream, which is for reading alone.)
pub(crate) fn maps_file(pid: u32, inode: u64) -> bool {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else {
        return true;
    };
    // Names of files follow the inode and need not be UTF-8.
    String::from_utf8_lossy(&maps).lines().any(|line| {
        let mut fields = line.split_whitespace();
        let may_write = fields.nth(1).is_some_and(|rights| rights.contains('w'));
        let found = fields.nth(2).and_then(|field| field.parse().ok());
        may_write && found == Some(inode) && line.contains("/memfd:")
    })
}

/// Whether a thread of a process has ended, the process having not. `tid` is the number that the
/// thread knows itself by: in containers it is another one than the directory's.
pub(crate) fn thread_has_ended(pid: u32, tid: u32) -> bool {
    let tasks = format!("/proc/{pid}/task");
    if !fs::exists(&tasks).unwrap_or(false) || own_number(&tasks, pid) == Some(tid) {
        return false;
    }
    if own_number(&tasks, pid) == Some(pid) {
        return !fs::exists(format!("{tasks}/{tid}")).unwrap_or(true);
    }
    let Ok(threads) = fs::read_dir(&tasks) else {
        return false;
    };
    let mut numbers = threads.flatten().map(|thread| {
        let name = thread.file_name().to_string_lossy().parse().ok()?;
        own_number(&tasks, name)
    });
    // Not found, and none that could not be read.
    numbers.all(|number| number.is_some_and(|number| number != tid))
}

/// The number by which a thread knows itself: the last one in `NSpid` of its status.
fn own_number(tasks: &str, tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("{tasks}/{tid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Whether a process was started by another one, directly or through others that still live.
pub(crate) fn descends_from(pid: u32, ancestor: u32) -> bool {
    let mut pid = pid;
    // Bounded, because the tree may change under the walk.
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

/// The parent in a line of `/proc/PID/stat`: field 4, counted behind the last parenthesis.
fn parent(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// The start time in a line of `/proc/PID/stat`: field 22, in hundredths of a second since boot.
/// The name in field 2 may contain anything, so fields are counted behind its last parenthesis.
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
