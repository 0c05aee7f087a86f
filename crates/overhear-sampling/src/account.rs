// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts: what the kernel counts for each thread, without a counter of the CPU.

use crate::{Quantity, QuantityKind};

/// A quantity that the kernel keeps for each thread or process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelAccount {
    /// Time on a CPU.
    CpuTime,
    /// Time during which it was runnable, and another thread had the CPU.
    WaitTime,
    /// Switches at which it went to sleep.
    VoluntarySwitches,
    /// Switches at which it was preempted.
    InvoluntarySwitches,
    /// Page faults without I/O.
    MinorFaults,
    /// Page faults with I/O.
    MajorFaults,
    /// Bytes that it caused to be read from storage.
    ReadBytes,
    /// Bytes that it caused to be written to storage.
    WriteBytes,
    /// Resident memory of its process.
    Resident,
}

impl KernelAccount {
    /// All accounts.
    pub const ALL: [Self; 9] = [
        Self::CpuTime,
        Self::WaitTime,
        Self::VoluntarySwitches,
        Self::InvoluntarySwitches,
        Self::MinorFaults,
        Self::MajorFaults,
        Self::ReadBytes,
        Self::WriteBytes,
        Self::Resident,
    ];

    /// The name that a user writes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuTime => "cpu-time",
            Self::WaitTime => "wait-time",
            Self::VoluntarySwitches => "voluntary-switches",
            Self::InvoluntarySwitches => "involuntary-switches",
            Self::MinorFaults => "minor-faults",
            Self::MajorFaults => "major-faults",
            Self::ReadBytes => "read-bytes",
            Self::WriteBytes => "write-bytes",
            Self::Resident => "resident",
        }
    }

    /// The account with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|account| account.name() == name)
    }

    /// The unit of its values, empty for a plain number.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::CpuTime | Self::WaitTime => "ns",
            Self::ReadBytes | Self::WriteBytes | Self::Resident => "B",
            _ => "",
        }
    }

    /// Its quantity in a schema.
    #[must_use]
    pub fn quantity(self) -> Quantity {
        let kind = match self {
            Self::Resident => QuantityKind::Level,
            _ => QuantityKind::Count,
        };
        Quantity::new(self.name().replace('-', "_"), self.unit(), kind)
    }
}

#[cfg(test)]
mod tests {
    use super::KernelAccount;

    #[test]
    fn names_are_found_and_become_identifiers() {
        for account in KernelAccount::ALL {
            assert_eq!(KernelAccount::of_name(account.name()), Some(account));
            let name = account.quantity().name;
            assert!(name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
        assert_eq!(KernelAccount::of_name("cpu_time"), None);
    }
}
