// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ThreadQuantity`]: a quantity that the kernel knows of each thread.

use overhear_event::is_similar_name;
use overhear_sampling::counters::{CounterError, CounterEvent};
use overhear_sampling::{KernelAccount, Quantity, QuantityKind};

use super::SamplerError;

/// Most quantities of a sampler (`MAX_QUANTITIES` in `samples.h`).
pub(crate) const MAX_QUANTITIES: usize = 28;

/// Most counters of a sampler (`MAX_COUNTERS` in `samples.h`).
pub(crate) const MAX_COUNTERS: usize = 8;
/// The source of the first counter (`COUNTER` in `samples.h`).
const FIRST_COUNTER: u64 = 32;

/// Software events of perf that an account of the thread answers exactly, with the numbers of
/// their sources (`enum source` in `samples.h`).
const EVENTS: [(&str, &str, u64); 4] = [
    ("task-clock", "ns", 1),
    ("context-switches", "", 5),
    ("migrations", "", 6),
    ("page-faults", "", 9),
];

/// A member of a structure of the kernel, which an option of its build adds.
pub(crate) struct AccountNeed {
    pub(crate) structure: &'static str,
    pub(crate) member: &'static str,
    pub(crate) option: &'static str,
}

/// What a sample has of its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ThreadQuantity {
    /// An account of the kernel.
    Account { quantity: Quantity, source: u64 },
    /// A counter of the CPUs; the number is its place among the sampler's counters.
    Counter { event: CounterEvent, number: u64 },
}

impl ThreadQuantity {
    /// The quantities that a user names.
    pub(crate) fn parse_all(names: &[String]) -> Result<Vec<Self>, SamplerError> {
        let mut all = Vec::new();
        let mut counters = 0;
        for name in names {
            let quantity = Self::parse(name, counters)?;
            counters += u64::from(quantity.counter().is_some());
            all.push(quantity);
        }
        match counters as usize {
            0..=MAX_COUNTERS => Ok(all),
            given => Err(SamplerError::TooManyCounters { given }),
        }
    }

    /// The quantity with this name. If it is a counter, it has this number.
    fn parse(name: &str, number: u64) -> Result<Self, SamplerError> {
        if let Some(account) = KernelAccount::of_name(name) {
            return Ok(Self::Account {
                quantity: account.quantity(),
                source: source_of(account),
            });
        }
        if let Some((name, unit, source)) = EVENTS.iter().find(|event| event.0 == name) {
            let quantity = Quantity::new(name.replace('-', "_"), *unit, QuantityKind::Count);
            return Ok(Self::Account {
                quantity,
                source: *source,
            });
        }
        match CounterEvent::parse(name) {
            Ok(event) => Ok(Self::Counter { event, number }),
            Err(CounterError::Unknown { similar, .. }) => Err(SamplerError::Quantity {
                name: name.to_owned(),
                advice: advice(name, similar),
            }),
            Err(error) => Err(SamplerError::Counter(error)),
        }
    }

    /// Its source in the programs (`enum source` in `samples.h`).
    pub(crate) const fn source(&self) -> u64 {
        match self {
            Self::Account { source, .. } => *source,
            Self::Counter { number, .. } => FIRST_COUNTER + *number,
        }
    }

    /// Whether it is the time on a CPU.
    pub(crate) const fn is_cpu_time(&self) -> bool {
        self.source() == 1
    }

    /// What the kernel must have for it; `None` if each kernel has it.
    pub(crate) const fn needs(&self) -> Option<AccountNeed> {
        match self.source() {
            2 => Some(AccountNeed {
                structure: "sched_info",
                member: "run_delay",
                option: "CONFIG_SCHED_INFO",
            }),
            10 | 11 => Some(AccountNeed {
                structure: "task_io_accounting",
                member: "read_bytes",
                option: "CONFIG_TASK_IO_ACCOUNTING",
            }),
            _ => None,
        }
    }

    /// Its field in a sample.
    pub(crate) const fn quantity(&self) -> &Quantity {
        match self {
            Self::Account { quantity, .. } => quantity,
            Self::Counter { event, .. } => event.quantity(),
        }
    }

    /// The event of the CPUs, if it is a counter.
    pub(crate) const fn counter(&self) -> Option<&CounterEvent> {
        match self {
            Self::Account { .. } => None,
            Self::Counter { event, .. } => Some(event),
        }
    }
}

const fn source_of(account: KernelAccount) -> u64 {
    match account {
        KernelAccount::CpuTime => 1,
        KernelAccount::WaitTime => 2,
        KernelAccount::VoluntarySwitches => 3,
        KernelAccount::InvoluntarySwitches => 4,
        KernelAccount::MinorFaults => 7,
        KernelAccount::MajorFaults => 8,
        KernelAccount::ReadBytes => 10,
        KernelAccount::WriteBytes => 11,
        KernelAccount::Resident => 12,
    }
}

/// Similar names; without any, the accounts.
fn advice(name: &str, mut similar: Vec<String>) -> String {
    let accounts = KernelAccount::ALL.map(KernelAccount::name).into_iter();
    let accounts: Vec<&str> = accounts.chain(EVENTS.map(|event| event.0)).collect();
    let near = accounts.iter().filter(|it| is_similar_name(it, name));
    similar.extend(near.map(|it| (*it).to_owned()));
    similar.dedup();
    match similar.is_empty() {
        true => format!(
            "there are {}, and the counters that `overhear doctor --counters` lists",
            accounts.join(", ")
        ),
        false => format!("there is {}", similar.join(", ")),
    }
}
