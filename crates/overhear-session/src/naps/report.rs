// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of `overhear naps` as plain data. Times are in nanoseconds since the start of the
//! observation of the first process.

use overhear_naps::{
    Allocation, AllocationKind, NapEnd, NapsCost, ProcessRecord, Site, Unwatched, WatchedSums,
};
use serde::{Deserialize, Serialize};

use super::symbols::Symbols;
use super::NapsRequest;
use crate::conclusion::Exit;

/// MemProf calls an allocation cold with fewer accesses per byte and second, and a longer life,
/// than these [MemProf].
const COLD_DENSITY: f64 = 0.05;
const COLD_LIFE_NS: u64 = 200_000_000_000;
/// Least share of a lifetime under protection for that judgement: other accesses are not counted.
const COLD_PROTECTED: f64 = 0.99;

/// What `overhear naps` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NapsReport {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How the program ended.
    pub exit: Exit,
    /// Least length of a NAP.
    pub threshold_ns: u64,
    /// Budget as a share of the program's CPU time.
    pub budget: f64,
    /// Size of the smallest allocation that is watched.
    pub min_size_bytes: u64,
    /// Observed processes, in the order of their starts.
    pub processes: Vec<ProcessReport>,
}

/// What one process did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Process id.
    pub pid: u32,
    /// Process id of the parent.
    pub parent: u32,
    /// Name of the process.
    pub comm: String,
    /// Back end: `rwp`, `move`, `accessed`, or `none`.
    pub backend: String,
    /// Reason why a better back end was not used; empty without one.
    pub backend_reason: String,
    /// Start of the observation.
    pub started_ns: u64,
    /// End of the observation.
    pub ended_ns: u64,
    /// False: the process was killed, and what it did after `ended_ns` is not known.
    pub complete: bool,
    /// Reason why the observation ended before the process; empty without one.
    pub stopped: String,
    /// CPU time, with the cost of the observation.
    pub cpu_ns: u64,
    /// Cost of the observation by part.
    pub cost: NapsCost,
    /// NapsCost as a share of the CPU time without it.
    pub overhead: f64,
    /// Largest share of watched memory that whole pages and records took in addition.
    pub space_overhead: f64,
    /// Sums over watched allocations.
    pub watched: WatchedSums,
    /// Allocations of at least the least size that were not watched, by cause.
    pub unwatched: Unwatched,
    /// Stacks that allocated, those with most bytes x seconds of NAPs first.
    pub sites: Vec<SiteReport>,
    /// Live allocations, and freed ones with NAPs; those with most bytes x seconds first.
    pub allocations: Vec<AllocationReport>,
    /// Freed allocations with NAPs that are in the sums of their sites alone.
    pub allocations_omitted: u64,
}

/// A place in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameReport {
    /// Address in the process; of a caller, the address after the call.
    pub address: u64,
    /// Function, if the file has its symbol.
    pub function: Option<String>,
    /// Distance from the start of the function.
    pub offset: Option<u64>,
    /// File.
    pub file: Option<String>,
    /// Offset in the file.
    pub file_offset: Option<u64>,
}

/// Sums over the allocations of a stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteReport {
    /// Index of the site in `allocations`.
    pub site: u32,
    /// Calls, innermost first.
    pub stack: Vec<FrameReport>,
    /// Watched allocations.
    pub allocations: u64,
    /// Their sizes.
    pub bytes: u64,
    /// Those that are live at the end.
    pub live: u64,
    /// NAPs.
    pub naps: u64,
    /// Size x length of the NAPs, in bytes x seconds.
    pub nap_byte_seconds: f64,
    /// Size x lifetime, in bytes x seconds.
    pub life_byte_seconds: f64,
    /// Mean lifetime.
    pub mean_life_ns: u64,
    /// Cold by MemProf's rule.
    pub cold: bool,
}

/// An allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocationReport {
    /// Index of its site.
    pub site: u32,
    /// The call that made it.
    pub kind: AllocationKind,
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the allocation; negative if a child inherited it from before the observation.
    pub allocated_ns: i64,
    /// Time of `free`; none for a live allocation.
    pub freed_ns: Option<u64>,
    /// Sum of the times under protection.
    pub protected_ns: u64,
    /// Observed accesses: each ended a protection.
    pub accesses: u64,
    /// Time of the last observed access, or of the allocation.
    pub last_access_ns: i64,
    /// The last access, observed or not, was no later than this.
    pub last_access_before_ns: i64,
    /// Place of the last observed access, if known.
    pub last_access_at: Option<FrameReport>,
    /// Number of NAPs.
    pub nap_count: u64,
    /// Sum of their lengths.
    pub nap_ns: u64,
    /// Size x length of the NAPs, in bytes x seconds.
    pub nap_byte_seconds: f64,
    /// NAPs, oldest first; a long list has only the first ones.
    pub naps: Vec<NapReport>,
    /// The program changes the mapping itself, so it was watched until then only.
    pub excluded: bool,
    /// Cold by MemProf's rule.
    pub cold: bool,
}

/// A NAP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapReport {
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// What ended it.
    pub end: NapEnd,
    /// Place of the access that ended it, if known.
    pub at: Option<FrameReport>,
}

pub(super) fn report(request: &NapsRequest, exit: Exit, records: Vec<ProcessRecord>) -> NapsReport {
    let origin = records.iter().map(|record| record.started_ns).min();
    let mut symbols = Symbols::new();
    let processes = records
        .iter()
        .map(|record| process(record, origin.unwrap_or_default(), &mut symbols))
        .collect();
    let words = request.command.iter();
    NapsReport {
        command: words.map(|word| word.display().to_string()).collect(),
        exit,
        threshold_ns: request.threshold.as_ns(),
        budget: request.budget,
        min_size_bytes: request.min_size_bytes,
        processes,
    }
}

fn process(record: &ProcessRecord, origin: u64, symbols: &mut Symbols) -> ProcessReport {
    let cost = record.cost.total_ns();
    let plain = record.cpu_ns.saturating_sub(cost).max(1);
    let mut allocations: Vec<AllocationReport> = record
        .allocations
        .iter()
        .map(|one| allocation(one, record, origin, symbols))
        .collect();
    allocations.sort_by(|a, b| b.nap_byte_seconds.total_cmp(&a.nap_byte_seconds));
    let mut sites: Vec<SiteReport> = (0..record.sites.len())
        .map(|index| site(index, record, symbols))
        .filter(|site| site.allocations > 0)
        .collect();
    sites.sort_by(|a, b| b.nap_byte_seconds.total_cmp(&a.nap_byte_seconds));
    let watched = record.watched;
    ProcessReport {
        pid: record.pid,
        parent: record.parent,
        comm: record.comm.clone(),
        backend: record.backend.clone(),
        backend_reason: record.backend_reason.clone(),
        started_ns: record.started_ns.saturating_sub(origin),
        ended_ns: record.written_ns.saturating_sub(origin),
        complete: record.ended,
        stopped: record.stopped.clone(),
        cpu_ns: record.cpu_ns,
        cost: record.cost,
        overhead: cost as f64 / plain as f64,
        space_overhead: watched.peak_extra_bytes as f64 / watched.peak_bytes.max(1) as f64,
        watched,
        unwatched: record.unwatched,
        sites,
        allocations,
        allocations_omitted: record.allocations_omitted,
    }
}

/// The time since the origin, negative before it.
fn since(origin: u64, time: u64) -> i64 {
    time.wrapping_sub(origin).cast_signed()
}

fn allocation(
    one: &Allocation,
    record: &ProcessRecord,
    origin: u64,
    symbols: &mut Symbols,
) -> AllocationReport {
    let mut place = |address| symbols.frame(&record.mappings, address, false);
    let naps = one.naps.iter().map(|nap| NapReport {
        start_ns: nap.start_ns.saturating_sub(origin),
        end_ns: nap.end_ns.saturating_sub(origin),
        end: nap.end,
        at: nap.at.map(&mut place),
    });
    let naps = naps.collect();
    let end = one.freed_ns.unwrap_or(record.written_ns);
    let life_ns = end.saturating_sub(one.allocated_ns);
    AllocationReport {
        site: one.site,
        kind: one.kind,
        address: one.address,
        size: one.size,
        allocated_ns: since(origin, one.allocated_ns),
        freed_ns: one.freed_ns.map(|time| time.saturating_sub(origin)),
        protected_ns: one.protected_ns,
        accesses: one.accesses,
        last_access_ns: since(origin, one.last_access_ns),
        last_access_before_ns: since(origin, one.last_access_before_ns),
        last_access_at: one.last_access_at.map(place),
        nap_count: one.nap_count,
        nap_ns: one.nap_ns,
        nap_byte_seconds: one.size as f64 * one.nap_ns as f64 / 1e9,
        naps,
        excluded: one.excluded,
        cold: is_cold(
            one.accesses,
            one.size as f64 * life_ns as f64 / 1e9,
            life_ns,
            one.protected_ns,
            life_ns,
        ),
    }
}

/// MemProf's rule, where nearly the whole life was under protection, so that the observed accesses
/// are nearly all.
fn is_cold(
    accesses: u64,
    byte_seconds: f64,
    mean_life_ns: u64,
    protected_ns: u64,
    life_ns: u64,
) -> bool {
    mean_life_ns >= COLD_LIFE_NS
        && protected_ns as f64 >= COLD_PROTECTED * life_ns as f64
        && (accesses as f64) < COLD_DENSITY * byte_seconds
}

fn site(index: usize, record: &ProcessRecord, symbols: &mut Symbols) -> SiteReport {
    let known: &Site = &record.sites[index];
    let is_live = |one: &&Allocation| one.site as usize == index && one.freed_ns.is_none();
    let mut sums = SiteSums {
        naps: known.freed_naps,
        nap_byte_seconds: known.freed_nap_byte_seconds,
        byte_seconds: known.freed_byte_seconds,
        life_ns: known.freed_life_ns,
        protected_ns: known.freed_protected_ns,
        accesses: known.freed_accesses,
        live: 0,
    };
    for one in record.allocations.iter().filter(is_live) {
        sums.add_live(one, record.written_ns);
    }
    let frames = known.frames.iter();
    let mean_life_ns = sums.life_ns / (known.freed + sums.live).max(1);
    SiteReport {
        site: index as u32,
        stack: frames
            .map(|&address| symbols.frame(&record.mappings, address, true))
            .collect(),
        allocations: known.allocations,
        bytes: known.bytes,
        live: sums.live,
        naps: sums.naps,
        nap_byte_seconds: sums.nap_byte_seconds,
        life_byte_seconds: sums.byte_seconds,
        mean_life_ns,
        cold: is_cold(
            sums.accesses,
            sums.byte_seconds,
            mean_life_ns,
            sums.protected_ns,
            sums.life_ns,
        ),
    }
}

struct SiteSums {
    naps: u64,
    nap_byte_seconds: f64,
    byte_seconds: f64,
    life_ns: u64,
    protected_ns: u64,
    accesses: u64,
    live: u64,
}

impl SiteSums {
    fn add_live(&mut self, one: &Allocation, now_ns: u64) {
        let life_ns = now_ns.saturating_sub(one.allocated_ns);
        let size = one.size as f64;
        self.live += 1;
        self.naps += one.nap_count;
        self.nap_byte_seconds += size * one.nap_ns as f64 / 1e9;
        self.byte_seconds += size * life_ns as f64 / 1e9;
        self.life_ns += life_ns;
        self.protected_ns += one.protected_ns;
        self.accesses += one.accesses;
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;
    use overhear_naps::{Allocation, Nap, NapEnd, ProcessRecord, Site};

    use super::report;
    use crate::conclusion::Exit;
    use crate::naps::{NapsBackend, NapsRequest};

    const SECOND: u64 = 1_000_000_000;

    fn request() -> NapsRequest {
        NapsRequest {
            command: vec!["program".into()],
            threshold: Nanos::from_ns(10 * SECOND),
            budget: 0.05,
            min_size_bytes: 16384,
            backend: NapsBackend::Auto,
            library: None,
            stdout_to_stderr: false,
        }
    }

    fn idle(life_s: u64, protected_s: u64, accesses: u64) -> ProcessRecord {
        let allocation = Allocation {
            size: 100_000,
            allocated_ns: 5 * SECOND,
            protected_ns: protected_s * SECOND,
            accesses,
            naps: vec![Nap {
                start_ns: 6 * SECOND,
                end_ns: (6 + protected_s) * SECOND,
                end: NapEnd::Open,
                at: None,
            }],
            nap_count: 1,
            nap_ns: protected_s * SECOND,
            ..Allocation::default()
        };
        ProcessRecord {
            started_ns: 5 * SECOND,
            written_ns: (5 + life_s) * SECOND,
            ended: true,
            sites: vec![Site {
                allocations: 1,
                bytes: 100_000,
                ..Site::default()
            }],
            allocations: vec![allocation],
            ..ProcessRecord::default()
        }
    }

    #[test]
    fn times_begin_with_the_observation() {
        let report = report(&request(), Exit::Code(0), vec![idle(300, 299, 1)]);
        let allocation = &report.processes[0].allocations[0];
        assert_eq!(allocation.allocated_ns, 0);
        assert_eq!(allocation.naps[0].start_ns, SECOND);
        assert_eq!(allocation.nap_byte_seconds, 299.0 * 100_000.0);
        let site = &report.processes[0].sites[0];
        assert_eq!((site.live, site.naps), (1, 1));
        assert_eq!(site.nap_byte_seconds, 299.0 * 100_000.0);
        assert_eq!(site.life_byte_seconds, 300.0 * 100_000.0);
    }

    #[test]
    fn cold_needs_a_long_life_under_protection_and_few_accesses() {
        let cold =
            |record| report(&request(), Exit::Code(0), vec![record]).processes[0].sites[0].cold;
        assert!(cold(idle(300, 299, 1)));
        // MemProf's mean life is 200 s.
        assert!(!cold(idle(199, 199, 1)));
        // Accesses in the other half of the life are not known.
        assert!(!cold(idle(300, 150, 1)));
        // 0.05 x 100,000 bytes x 300 s.
        assert!(!cold(idle(300, 299, 1_500_001)));
        assert!(cold(idle(300, 299, 1_499_000)));
    }
}
