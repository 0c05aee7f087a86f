// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accessed bits of page tables: cleared by `MADV_COLD`, read from `/proc/self/smaps`.
//!
//! Nothing is taken from the program, and no privilege is needed. The price: accesses have no place
//! and no exact time, and a look costs time in proportion to the memory of the process.
//!
//! What makes an idle range certain: `MADV_COLD` clears the bit of each page and flushes the TLB,
//! so the processor sets it again at the next access. The kernel clears such bits itself when it
//! looks for memory to reclaim; counters show that, and then the time does not count. Pages that
//! only read memory never written (the *zero page*) are not part of `Referenced`; a range that has
//! such pages does not count either.

use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::Access;
use crate::sys::{self, PAGE};
use overhear_stream::sync::{AtomicU32, Ordering};

const MADV_COLD: i32 = 20;
const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// PAGE_IS_PFNZERO of `PAGEMAP_SCAN`.
const ZERO_PAGE: u64 = 1 << 5;

/// The handler sleeps while this word is unchanged.
pub(crate) static BELL: AtomicU32 = AtomicU32::new(0);

#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// What `/proc/self/smaps` shows of a mapping, in KiB.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping {
    start: usize,
    bytes: usize,
    rss: usize,
    swap: usize,
    referenced: usize,
}

pub(crate) struct Accessed {
    pagemap: i32,
    /// Files with counters of reclaim.
    counters: Vec<String>,
    /// Sum of the counters when a range was protected.
    reclaims: BTreeMap<usize, u64>,
    verified_ns: BTreeMap<usize, u64>,
}

impl Accessed {
    pub(crate) fn open() -> Result<Self, String> {
        let counters = counter_files()?;
        // SAFETY: the path is a C string.
        let pagemap = unsafe {
            libc::open(
                c"/proc/self/pagemap".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        let mut backend = Self {
            pagemap,
            counters,
            reclaims: BTreeMap::new(),
            verified_ns: BTreeMap::new(),
        };
        backend.try_out()?;
        Ok(backend)
    }

    /// Checks that a page loses its mark by `MADV_COLD` and gets it back by an access.
    fn try_out(&mut self) -> Result<(), String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = sys::map(None, 3 * PAGE, libc::PROT_NONE, 0).ok_or("no memory is left")?;
        let page = place + PAGE;
        sys::protect(page, PAGE, access);
        // SAFETY: the page is accessible.
        unsafe { core::ptr::write_volatile(page as *mut u64, 1) };
        let cold = sys::advise(page, PAGE, MADV_COLD);
        let look = |backend: &mut Self| {
            let mappings = backend.mappings()?;
            let found = mappings.iter().find(|mapping| mapping.start == page);
            found
                .map(|mapping| mapping.referenced)
                .ok_or_else(|| "/proc/self/smaps does not show the library's memory".to_owned())
        };
        let before = look(self);
        crate::table::touch(page);
        let after = look(self);
        sys::unmap(place, 3 * PAGE);
        if !cold {
            return Err("this kernel has no MADV_COLD".to_owned());
        }
        match (before?, after?) {
            (0, marked) if marked > 0 => Ok(()),
            _ => Err("the kernel does not show accesses in /proc/self/smaps".to_owned()),
        }
    }

    pub(crate) fn protect(&mut self, address: usize, bytes: usize) -> bool {
        let Some(reclaims) = self.reclaim_count() else {
            return false;
        };
        if !sys::advise(address, bytes, MADV_COLD) {
            return false;
        }
        self.reclaims.insert(address, reclaims);
        self.verified_ns.remove(&address);
        true
    }

    /// Sleeps until the timeout or the bell.
    pub(crate) fn accesses(&mut self, timeout_ns: u64) -> u64 {
        wait_for_bell(timeout_ns);
        0
    }

    pub(crate) fn survey(
        &mut self,
        ranges: &BTreeMap<usize, usize>,
        found: &mut Vec<Access>,
    ) -> u64 {
        let start = sys::now_ns();
        let mappings = self.mappings().unwrap_or_default();
        let reclaims = self.reclaim_count();
        let by_start: BTreeMap<usize, &Mapping> = mappings
            .iter()
            .map(|mapping| (mapping.start, mapping))
            .collect();
        for (&address, &bytes) in ranges {
            let idle = by_start.get(&address).is_some_and(|mapping| {
                mapping.bytes == bytes
                    && mapping.referenced == 0
                    && (mapping.rss + mapping.swap == bytes || !self.has_zero_pages(address, bytes))
            });
            let undisturbed =
                reclaims.is_some() && self.reclaims.get(&address).copied() == reclaims;
            if idle && undisturbed {
                self.verified_ns.insert(address, start);
            } else {
                found.push(Access {
                    address,
                    at: None,
                    idle_until_ns: self.verified_ns.remove(&address).unwrap_or(0),
                });
            }
        }
        // Ranges that were freed.
        self.reclaims
            .retain(|address, _| ranges.contains_key(address));
        self.verified_ns
            .retain(|address, _| ranges.contains_key(address));
        start
    }

    /// Whether a range has pages that were read and never written. True if that is unknown.
    fn has_zero_pages(&self, address: usize, bytes: usize) -> bool {
        let mut region = Region::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: address as u64,
            end: (address + bytes) as u64,
            vec: (&raw mut region) as u64,
            vec_len: 1,
            category_mask: ZERO_PAGE,
            return_mask: ZERO_PAGE,
            ..Scan::default()
        };
        // SAFETY: the argument has the type of the request, and room for one region.
        unsafe { libc::ioctl(self.pagemap, PAGEMAP_SCAN as _, &raw mut scan) != 0 }
    }

    fn mappings(&self) -> Result<Vec<Mapping>, String> {
        let text = std::fs::read("/proc/self/smaps")
            .map_err(|error| format!("/proc/self/smaps cannot be read ({error})"))?;
        let mut mappings: Vec<Mapping> = Vec::new();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(first) = line.first() else { continue };
            if first.is_ascii_uppercase() {
                let Some(mapping) = mappings.last_mut() else {
                    continue;
                };
                let field = if line.starts_with(b"Rss:") {
                    &mut mapping.rss
                } else if line.starts_with(b"Swap:") {
                    &mut mapping.swap
                } else if line.starts_with(b"Referenced:") {
                    &mut mapping.referenced
                } else {
                    continue;
                };
                *field = kib(line) * 1024;
            } else if let Some((start, end)) = bounds(line) {
                mappings.push(Mapping {
                    start,
                    bytes: end - start,
                    ..Mapping::default()
                });
            }
        }
        Ok(mappings)
    }

    /// Sum of all counters that change when the kernel may have cleared accessed bits.
    fn reclaim_count(&self) -> Option<u64> {
        let mut sum = 0u64;
        for file in &self.counters {
            let text = std::fs::read_to_string(file).ok()?;
            for line in text.lines() {
                let mut words = line.split_ascii_whitespace();
                let Some(name) = words.next() else { continue };
                let Some(value) = words.next() else {
                    // The whole file is one number.
                    sum = sum.wrapping_add(name.parse::<u64>().ok()?);
                    continue;
                };
                let counts = [
                    "pgrefill",
                    "pgscan",
                    "pageoutrun",
                    "allocstall",
                    "pgmigrate",
                ]
                .iter()
                .any(|prefix| name.starts_with(prefix))
                    || ["high", "max", "low"].contains(&name);
                if counts {
                    sum = sum.wrapping_add(value.parse::<u64>().ok()?);
                }
            }
        }
        Some(sum)
    }
}

/// Sleeps until the timeout or the bell.
pub(crate) fn wait_for_bell(timeout_ns: u64) {
    // Relaxed: the bell carries no data.
    if BELL.load(Ordering::Relaxed) == 0 {
        sys::futex_wait(&BELL, 0, timeout_ns);
    }
    BELL.store(0, Ordering::Relaxed);
}

impl Drop for Accessed {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours; closing -1 fails.
        unsafe { libc::close(self.pagemap) };
    }
}

/// Number of KiB in a line of smaps.
fn kib(line: &[u8]) -> usize {
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

/// The addresses at the beginning of a mapping.
fn bounds(line: &[u8]) -> Option<(usize, usize)> {
    let line = core::str::from_utf8(line.split(|&byte| byte == b' ').next()?).ok()?;
    let (start, end) = line.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

/// The counters of reclaim: of the machine, and of the control groups of the process. Reclaim in a
/// group begins when a charge fails or exceeds a limit.
fn counter_files() -> Result<Vec<String>, String> {
    let mut files = vec!["/proc/vmstat".to_owned()];
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let old = controllers.split(',').any(|name| name == "memory");
        if !old && !controllers.is_empty() {
            continue;
        }
        let (root, names): (_, &[_]) = match old {
            true => ("/sys/fs/cgroup/memory", &["memory.failcnt"]),
            false => ("/sys/fs/cgroup", &["memory.stat", "memory.events"]),
        };
        for group in Path::new(path).ancestors() {
            let folder = Path::new(root).join(group.strip_prefix("/").unwrap_or(group));
            let found: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
            let readable = found.iter().all(|file| std::fs::read(file).is_ok());
            if readable {
                files.extend(found.iter().map(|file| file.display().to_string()));
            } else if group != Path::new("/") && (old || has_memory_controller(&folder)) {
                return Err(format!(
                    "the counters of reclaim of the control group {} cannot be read",
                    group.display()
                ));
            }
        }
    }
    Ok(files)
}

/// Whether the memory of a control group of version 2 may be reclaimed on its own. A group that
/// cannot be read counts as one.
fn has_memory_controller(folder: &Path) -> bool {
    let controllers = std::fs::read_to_string(folder.join("cgroup.controllers"));
    controllers.map_or(true, |names| {
        names.split_ascii_whitespace().any(|name| name == "memory")
    })
}
