// SPDX-License-Identifier: MIT OR Apache-2.0
//! The whole machine: how much physical memory is idle, as DAMON of the kernel estimates it.
//!
//! DAMON samples one page per region, so these are estimates, and no figure belongs to an
//! allocation. It is switched on by files of `/sys/kernel/mm/damon/admin`, which root may write,
//! and switched off again at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use overhear_event::Nanos;
use serde::{Deserialize, Serialize};

use crate::error::{ErrorKind, SessionError};
use crate::interrupts::Requests;

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Microseconds between two samples, and per aggregation.
const SAMPLE_US: u64 = 5_000;
const AGGREGATION_US: u64 = 100_000;

/// What to estimate.
#[derive(Clone, Copy, Debug)]
pub struct MachineRequest {
    /// Memory counts as idle if it was not accessed for this time.
    pub threshold: Nanos,
    /// Length of the observation.
    pub duration: Nanos,
}

/// An estimate of the machine's idle memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineReport {
    /// Always true: DAMON samples.
    pub estimate: bool,
    /// Least idle time.
    pub threshold_ns: u64,
    /// Length of the observation. No region can be known to be idle for longer.
    pub duration_ns: u64,
    /// Bytes of all regions.
    pub bytes: u64,
    /// Bytes of regions that were idle for at least the threshold.
    pub idle_bytes: u64,
    /// Regions, by address.
    pub regions: Vec<Region>,
}

/// Physical memory that DAMON takes for equally often accessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// First physical address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Samples with an access in the last aggregation, of 20.
    pub accesses: u64,
    /// Time since the access pattern changed.
    pub age_ns: u64,
}

/// DAMON as this command set it up. Dropping it switches DAMON off.
struct Damon(());

impl Drop for Damon {
    fn drop(&mut self) {
        let _ = write("0/state", "off");
        let _ = write("nr_kdamonds", "0");
    }
}

/// Estimates the idle memory of the machine.
///
/// # Errors
/// DAMON is missing, used by another program, or not permitted.
pub fn machine(request: &MachineRequest) -> Result<MachineReport, SessionError> {
    if request.duration < request.threshold {
        let message = "the duration is shorter than the threshold";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let _damon = start()?;
    let mut interrupts = Requests::listen(None)?;
    let started = std::time::Instant::now();
    let duration = Duration::from_nanos(request.duration.as_ns());
    while started.elapsed() < duration && interrupts.take().is_empty() {
        std::thread::sleep(Duration::from_millis(50).min(duration));
    }
    set("0/state", "update_schemes_tried_regions")?;
    let regions = regions();
    let elapsed = started.elapsed().as_nanos() as u64;
    let bytes = |region: &Region| region.end.saturating_sub(region.start);
    let idle =
        |region: &&Region| region.accesses == 0 && region.age_ns >= request.threshold.as_ns();
    Ok(MachineReport {
        estimate: true,
        threshold_ns: request.threshold.as_ns(),
        duration_ns: elapsed,
        bytes: regions.iter().map(bytes).sum(),
        idle_bytes: regions.iter().filter(idle).map(bytes).sum(),
        regions,
    })
}

fn start() -> Result<Damon, SessionError> {
    let unavailable = |message: &str| SessionError::new(ErrorKind::Unavailable, message);
    if !exists(Path::new(ADMIN)) {
        return Err(unavailable(
            "this kernel has no DAMON with a sysfs interface (CONFIG_DAMON_SYSFS)",
        ));
    }
    match read("nr_kdamonds").as_deref() {
        None => return Err(unavailable("DAMON is for root only; run as root")),
        Some("0") => {}
        Some(_) => return Err(unavailable("DAMON is in use by another program")),
    }
    set("nr_kdamonds", "1")?;
    let damon = Damon(());
    set("0/contexts/nr_contexts", "1")?;
    let operations = read("0/contexts/0/avail_operations").unwrap_or_default();
    if !operations
        .split_ascii_whitespace()
        .any(|name| name == "paddr")
    {
        return Err(unavailable(
            "DAMON of this kernel does not observe physical memory (CONFIG_DAMON_PADDR)",
        ));
    }
    set("0/contexts/0/operations", "paddr")?;
    let intervals = "0/contexts/0/monitoring_attrs/intervals";
    set(&format!("{intervals}/sample_us"), &SAMPLE_US.to_string())?;
    set(&format!("{intervals}/aggr_us"), &AGGREGATION_US.to_string())?;
    set("0/contexts/0/targets/nr_targets", "1")?;
    let memory = "0/contexts/0/targets/0/regions";
    let ranges = system_memory();
    set(&format!("{memory}/nr_regions"), &ranges.len().to_string())?;
    for (index, (start, end)) in ranges.iter().enumerate() {
        set(&format!("{memory}/{index}/start"), &start.to_string())?;
        set(&format!("{memory}/{index}/end"), &end.to_string())?;
    }
    // A scheme that only counts, for all regions, makes the regions readable.
    set("0/contexts/0/schemes/nr_schemes", "1")?;
    let scheme = "0/contexts/0/schemes/0";
    set(&format!("{scheme}/action"), "stat")?;
    for part in ["sz", "nr_accesses", "age"] {
        let max = if part == "sz" {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        set(&format!("{scheme}/access_pattern/{part}/min"), "0")?;
        set(
            &format!("{scheme}/access_pattern/{part}/max"),
            &max.to_string(),
        )?;
    }
    set("0/state", "on")?;
    Ok(damon)
}

/// The memory of the machine, without that of devices.
fn system_memory() -> Vec<(u64, u64)> {
    let text = read_file(Path::new("/proc/iomem")).unwrap_or_default();
    let range = |line: &str| {
        let (range, name) = line.split_once(" : ")?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        // Parts of a range are indented.
        let whole = name == "System RAM" && !line.starts_with(' ');
        whole.then_some((number(start)?, number(end)? + 1))
    };
    let all = text.lines().filter_map(range);
    all.filter(|(start, end)| end - start > 1 << 20).collect()
}

fn regions() -> Vec<Region> {
    let folder = path("0/contexts/0/schemes/0/tried_regions");
    let mut regions: Vec<Region> = (0..)
        .map_while(|index: usize| {
            let number = |name: &str| {
                let text = read_file(&folder.join(format!("{index}/{name}")))?;
                text.trim().parse::<u64>().ok()
            };
            Some(Region {
                start: number("start")?,
                end: number("end")?,
                accesses: number("nr_accesses")?,
                age_ns: number("age")?.saturating_mul(AGGREGATION_US * 1_000),
            })
        })
        .collect();
    regions.sort_by_key(|region| region.start);
    regions
}

fn path(name: &str) -> PathBuf {
    Path::new(ADMIN).join(name)
}

fn read(name: &str) -> Option<String> {
    read_file(&path(name)).map(|text| text.trim().to_owned())
}

#[expect(clippy::disallowed_methods, reason = "of /sys and /proc")]
fn read_file(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[expect(clippy::disallowed_methods, reason = "of /sys")]
fn exists(path: &Path) -> bool {
    path.exists()
}

#[expect(clippy::disallowed_methods, reason = "of /sys")]
fn write(name: &str, value: &str) -> std::io::Result<()> {
    std::fs::write(path(name), value)
}

fn set(name: &str, value: &str) -> Result<(), SessionError> {
    write(name, value).map_err(|error| {
        let message = format!("DAMON refuses {value} in {}: {error}", path(name).display());
        SessionError::new(ErrorKind::Unavailable, message)
    })
}
