// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tests may be skipped where.
//!
//! A test that cannot run prints the reason ("skipped: REASON"). For an ordinary user, in a
//! container or on an older kernel there are many good reasons. On a machine with all permissions
//! there are few, and they are listed here: any other skip is a failure of `make test`, so that a
//! test that stops running is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::tally::GUEST;

/// The oldest kernel with all features of the tests.
const KERNEL: (u32, u32) = (6, 18);

/// Numbers of the capabilities that tests use: to own files of others, to end and to become others,
/// to lock memory, to trace, to mount, to take priorities, to make devices, and to record the
/// kernel.
const CAPABILITIES: [u32; 12] = [0, 1, 5, 6, 7, 14, 19, 21, 23, 27, 38, 39];

/// What a reason contains that is good on any machine, and why it is.
const PERMITTED: [(&str, &str); 29] = [
    (GUEST, "the list of reasons in guests has judged it"),
    ("qemu is not installed", "an emulator is the user's choice"),
    ("there is no kernel: ", "there is no network"),
    ("machine lateness: ", "a witness beside the test saw it"),
    ("groff is not installed", "mandoc checks the same pages"),
    ("mandoc is not installed", "groff checks the same pages"),
    (
        "no <trace.h> of another project is installed",
        "Frama-C is the user's choice",
    ),
    ("the kernel moved pages meanwhile", "the kernel counts them"),
    (
        "no block device is behind the test's files",
        "a property of the file system",
    ),
    (
        "on a file system that allows it",
        "a property of the file system",
    ),
    ("one CPU", "a property of the machine"),
    ("the task set needs 4 CPUs", "a property of the machine"),
    (
        "this kernel permits no programs at its functions",
        "a property of the kernel",
    ),
    (
        "is little-endian, this machine is not",
        "a property of the machine",
    ),
    (
        "this CPU has no counter to stamp with",
        "a property of the machine",
    ),
    (
        "this kernel has no read-write protection by userfaultfd",
        "a property of the kernel: Linux 7.3 has it",
    ),
    (
        "this machine has no hardware counters",
        "a property of the machine; software events are counted there",
    ),
    (
        "the kernel does not permit rdpmc",
        "a property of the machine; counters are read by a system call there",
    ),
    ("this program has no shared libc", "a property of the build"),
    (
        "may not run this test",
        "the sources lie where only their owner may look",
    ),
    (
        "the test binary",
        "the sources lie where only their owner may look",
    ),
    (
        "must be able to run the binary",
        "the sources lie where only their owner may look",
    ),
    (
        "a binary that others may run",
        "the sources lie where only their owner may look",
    ),
    (
        "cannot execute",
        "the sources lie where only their owner may look",
    ),
    (
        "cannot change root filesystem propagation",
        "the root folder of this container is no mount",
    ),
    (
        "a directory of the system listens",
        "the machine uses Overhear itself",
    ),
    (
        "this machine has a directory",
        "the machine uses Overhear itself",
    ),
    ("PyPI gives no ", "there is no network"),
    (
        "type `rustup component add",
        "the toolchain is the user's choice",
    ),
];

/// Whether unexpected skips are failures here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Everything is permitted and installed: only listed skips are allowed.
    Strict,
    /// Something is missing, so tests may be skipped.
    Lenient,
}

impl Policy {
    /// The strictness for this machine and user.
    pub(crate) fn here() -> Self {
        let read = |position: &str| fs::read_to_string(position).unwrap_or_default();
        let is_root = fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0);
        let has_btf = Path::new("/sys/kernel/btf/vmlinux").exists();
        Self::of(
            is_root && has_btf,
            &read("/proc/self/status"),
            &read("/proc/sys/kernel/osrelease"),
        )
    }

    /// Strict if every used capability is there, no filter refuses system calls, and the kernel is
    /// new enough.
    fn of(is_whole: bool, status: &str, release: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        let own = field("CapEff:").and_then(|it| u64::from_str_radix(&it, 16).ok());
        let has = |number: u32| own.is_some_and(|own| own >> number & 1 == 1);
        let has_all = CAPABILITIES.into_iter().all(has);
        let is_filtered = field("Seccomp:").is_some_and(|mode| mode != "0");
        match is_whole && has_all && !is_filtered && version(release) >= Some(KERNEL) {
            true => Self::Strict,
            false => Self::Lenient,
        }
    }

    /// Whether a test may be skipped for this reason.
    pub(crate) fn permits(self, reason: &str) -> bool {
        let is_listed = PERMITTED.iter().any(|(words, _)| reason.contains(words));
        is_listed || self == Self::Lenient
    }
}

/// `MAJOR.MINOR...`
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{version, Policy};

    #[test]
    fn machine_with_all_permissions_allows_only_listed_skips() {
        let status = "Uid:\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n";
        let of = |status: &str, release| Policy::of(true, status, release);
        let here = of(status, "6.18.44-fc");
        assert_eq!(here, Policy::Strict);
        assert!(here.permits("machine lateness: woke 30 ms late"));
        assert!(!here.permits("perf is not installed"));
        let lenient = [
            of(status, "6.17.9"),
            // Without the one to load BPF programs.
            of(&status.replace("1ff", "17f"), "7.0"),
            of(&status.replace("Seccomp:\t0", "Seccomp:\t2"), "7.0"),
            Policy::of(false, status, "7.0"),
            of("", "7.0"),
        ];
        for policy in lenient {
            assert_eq!(policy, Policy::Lenient);
            assert!(policy.permits("perf is not installed"));
        }
    }

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("10.0-rc1"), Some((10, 0)));
        assert_eq!(version("next"), None);
    }
}
