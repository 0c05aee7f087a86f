// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties of this machine and process that kernel sensors depend on.

use std::collections::BTreeSet;
use std::{fs, io};

/// Number of possible CPUs, counted from 0 to the highest one; at least 1. It is the number of
/// rings of each kernel sensor.
#[must_use]
pub fn possible_cpus() -> u32 {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    parse_cpu_list(&list).last().map_or(1, |last| last + 1)
}

/// The CPUs that are online, ascending.
pub(crate) fn online_cpus() -> Vec<u32> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = parse_cpu_list(&list);
    if cpus.is_empty() {
        return vec![0];
    }
    cpus
}

/// Parses the kernel's notation `0-3,8`; invalid parts are skipped.
fn parse_cpu_list(list: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last.min(first.saturating_add(65_535)));
        }
    }
    cpus
}

/// Whether the capabilities of this process permit loading tracing programs.
pub(crate) fn has_bpf_capabilities() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    const CAP_PERFMON: u32 = 38;
    const CAP_BPF: u32 = 39;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = field(&status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .unwrap_or(0);
    let has = |capability: u32| effective >> capability & 1 == 1;
    has(CAP_SYS_ADMIN) || has(CAP_BPF) && has(CAP_PERFMON)
}

/// Whether the kernel describes its own types, which the programs' field offsets come from.
pub(crate) fn has_type_information() -> bool {
    fs::metadata("/sys/kernel/btf/vmlinux").is_ok()
}

/// Whether kernel lockdown forbids programs to read kernel memory.
pub(crate) fn is_locked_down() -> bool {
    fs::read_to_string("/sys/kernel/security/lockdown")
        .is_ok_and(|lockdown| lockdown.contains("[confidentiality]"))
}

/// Whether this process is in the initial PID namespace, so that its thread ids are those of the
/// BPF programs.
#[must_use]
pub fn in_initial_pid_namespace() -> bool {
    // The kernel gives the initial namespaces fixed inode numbers; this is PROC_PID_INIT_INO.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// The value of `kernel.perf_event_max_sample_rate`. The kernel lowers it while handlers are slow.
pub(crate) fn most_perf_samples_per_second() -> Option<u64> {
    let value = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?;
    value.trim().parse().ok()
}

/// The operating system's text for an error, without the number.
pub(crate) fn error_text(error: impl Into<io::Error>) -> String {
    let text = error.into().to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// The present threads of a process; empty if it is gone.
pub(crate) fn threads_of(pid: u32) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeSet::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// When a thread started, in the kernel's ticks since boot; `None` if it is gone.
pub(crate) fn thread_start(tid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // Fields are counted after the name, as below; the start is field 22.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// The process of a thread; `None` if it is gone.
pub(crate) fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    field(&status, "Tgid:")?.parse().ok()
}

/// A thread's short name, zero-filled; empty if the thread is gone.
pub(crate) fn thread_name(pid: u32, tid: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let line = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let text = line.strip_suffix(b"\n").unwrap_or(&line);
    // The last byte stays zero, as in the kernel.
    for (to, from) in name.iter_mut().take(15).zip(text) {
        *to = *from;
    }
    name
}

/// The first word after a key at the begin of a line.
pub(crate) fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(key))?
        .split_whitespace()
        .next()
}

#[cfg(test)]
mod tests {
    use super::{field, parse_cpu_list};

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpu_list("5"), [5]);
        assert!(parse_cpu_list("\n").is_empty());
    }

    #[test]
    fn keys_match_whole_line_beginnings() {
        let status = "nonvoluntary_ctxt_switches:\t7\nvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some("3"));
    }
}
