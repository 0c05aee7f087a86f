// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handler thread: protects allocations, resolves accesses, keeps the account, and writes the
//! document.
//!
//! It is the only thread that protects and unprotects, so these need no lock between them. It takes
//! no lock of the program and never touches the program's memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use overhear_naps::{
    Allocation, AllocationCounts, AllocationKind, Nap, NapEnd, ProtectionPacer, Site,
};
use overhear_stream::sync::Ordering;

use crate::backend::{Access, Backend};
use crate::document;
use crate::engine::{self, ANSWER, REQUEST, STILL};
use crate::settings;
use crate::sys;
use crate::table::{self, Event, COUNTS, RECORD};

const FIRST_TICK_NS: u64 = 10_000_000;
const TICK_NS: u64 = 50_000_000;
/// Longest tick of a program that sleeps: each wakes a processor.
const IDLE_TICK_NS: u64 = 1_000_000_000;
/// A program with less than this part of a processor sleeps.
const IDLE_PART: u64 = 200;
/// Price of loading the library and of starting this thread, in nanoseconds.
const START_NS: u64 = 400_000;
/// Price of the last document, in all and per allocation, whose mappings the kernel removes when
/// the process ends.
const DOCUMENT_NS: u64 = 300_000;
const DOCUMENT_PER_ALLOCATION_NS: u64 = 20_000;
const MIN_DOCUMENT_PERIOD_NS: u64 = 2_000_000_000;
/// CPU time of the thread that waits for an access, beside that of the handler: the fault, two
/// switches, and the caches that it finds changed. Measured on a virtual machine, where switches
/// are expensive: too high a price leaves budget unspent, too low a price exceeds it.
const FAULT_NS: u64 = 30_000;
/// CPU time of the thread that this one interrupts when it wakes by itself: the interrupt of a
/// timer, and two switches.
const WAKE_NS: u64 = 6_000;
/// This thread sleeps at least so long, or half of the least delay, to protect what is due
/// meanwhile in one turn: each wake is paid by the program.
const MIN_SLEEP_NS: u64 = 2_000_000;
const MAX_SLEEP_NS: u64 = 20_000_000;
/// NAPs in the list of an allocation.
const MAX_NAPS: usize = 256;
/// Freed allocations with NAPs in the document.
const MAX_FINISHED: usize = 10_000;
/// Pages for the measurement of the price of a page.
const MEASURED_PAGES: usize = 32;

/// What the handler knows of a record.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    pub(crate) allocation: Allocation,
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    /// The range is protected since this time.
    pub(crate) since_ns: Option<u64>,
    /// Cost of the last protection.
    protect_ns: u64,
    /// Distinguishes the uses of an index in the queue.
    use_number: u64,
}

pub(crate) struct Handler {
    pub(crate) backend: Option<Backend>,
    pub(crate) backend_reason: String,
    /// By the index of the record.
    pub(crate) tracked: Vec<Option<Box<Tracked>>>,
    /// Bytes of each protected range, by address.
    protected: BTreeMap<usize, usize>,
    by_address: BTreeMap<usize, usize>,
    due: BinaryHeap<Reverse<(u64, usize, u64)>>,
    pub(crate) pacer: ProtectionPacer,
    pub(crate) sites: Vec<Site>,
    pub(crate) finished: Vec<Allocation>,
    pub(crate) omitted: u64,
    pub(crate) started_ns: u64,
    pub(crate) started_cpu_ns: u64,
    pub(crate) protections: u64,
    pub(crate) accesses: u64,
    pub(crate) faults_ns: u64,
    charged_cpu_ns: u64,
    /// CPU time of the process without that of this thread, at the last tick, and its time.
    last_tick: (u64, u64),
    /// Allocations as booked by the last tick.
    allocations: AllocationCounts,
    /// Price of the last document, which is paid in advance.
    document_ns: u64,
    tick_ns: u64,
    next_tick_ns: u64,
    next_survey_ns: u64,
    survey_ns: u64,
    next_document_ns: u64,
    uses: u64,
    /// The account does not cover the next protection before the next tick.
    starved: bool,
    ticks: u64,
    /// Ranges without an access are idle until this time.
    verified_ns: u64,
    folder: i32,
}

/// Least time from an access to the next protection: finer steps would cost much and make NAPs
/// hardly longer.
pub(crate) fn least_delay_ns() -> u64 {
    (settings::get().threshold_ns / 64).clamp(1_000_000, 250_000_000)
}

/// Measures the price of a page: a fault, and a zeroed page, and giving it back.
fn page_price_ns() -> Option<u64> {
    let bytes = MEASURED_PAGES * sys::PAGE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let before = sys::thread_cpu_ns();
    let place = sys::map(None, bytes, access, 0)?;
    for page in 0..MEASURED_PAGES {
        // SAFETY: the page was mapped above, and nothing else uses it.
        unsafe { core::ptr::write_volatile((place + page * sys::PAGE) as *mut u8, 1) };
    }
    sys::unmap(place, bytes);
    Some((sys::thread_cpu_ns() - before) / MEASURED_PAGES as u64)
}

/// The life of the handler thread.
pub(crate) fn run(backend: Option<Backend>, reason: String) {
    let mut handler = Handler::new(backend, reason);
    if let Some(price) = page_price_ns() {
        crate::credit::set_page_price(price);
    }
    handler.pacer.spend_own(START_NS);
    handler.begin_with_live();
    loop {
        handler.drain();
        // SYNC(naps_request)
        match REQUEST.swap(0, Ordering::AcqRel) {
            engine::WRITE => {
                handler.write(true);
                ANSWER.store(engine::WRITE, Ordering::Release);
                sys::futex_wake(&ANSWER);
            }
            engine::STOP => {
                handler.stop();
                return;
            }
            _ => {}
        }
        let now = sys::now_ns();
        handler.protect_due(now);
        if now >= handler.next_survey_ns {
            handler.survey(now);
        }
        if now >= handler.next_tick_ns {
            handler.tick(now);
        }
        if now >= handler.next_document_ns {
            handler.write(false);
        }
        handler.wait();
    }
}

impl Handler {
    fn new(backend: Option<Backend>, backend_reason: String) -> Self {
        let now = sys::now_ns();
        let (started_ns, started_cpu_ns) = engine::observed_since();
        let folder = settings::get().folder;
        // SAFETY: the folder is a C string, because the array is longer than the text.
        let folder = unsafe {
            libc::open(
                folder.as_ptr().cast(),
                libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC,
            )
        };
        Self {
            backend,
            backend_reason,
            tracked: Vec::new(),
            protected: BTreeMap::new(),
            by_address: BTreeMap::new(),
            due: BinaryHeap::new(),
            pacer: ProtectionPacer::new(settings::counted_budget(), now),
            sites: Vec::new(),
            finished: Vec::new(),
            omitted: 0,
            started_ns,
            started_cpu_ns,
            protections: 0,
            accesses: 0,
            faults_ns: 0,
            charged_cpu_ns: sys::thread_cpu_ns(),
            last_tick: (0, now),
            allocations: AllocationCounts::default(),
            document_ns: 0,
            tick_ns: FIRST_TICK_NS,
            next_tick_ns: now,
            next_survey_ns: now,
            survey_ns: 0,
            next_document_ns: now + MIN_DOCUMENT_PERIOD_NS,
            uses: 0,
            starved: false,
            ticks: 0,
            verified_ns: now,
            folder,
        }
    }

    /// Takes over what program threads did.
    fn drain(&mut self) {
        while let Some(event) = table::next_event() {
            match event {
                Event::Allocated(index) => self.begin(index),
                Event::Freed(index) => self.finish(index),
            }
        }
    }

    /// Takes over allocations from before the start: their events may have gone to an earlier
    /// handler. An event that comes later finds them known.
    fn begin_with_live(&mut self) {
        for (index, record) in table::used().iter().enumerate() {
            if record.state() == table::LIVE {
                self.begin(index);
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let record = &RECORD[index];
        // The address of one that is freed already may belong to another allocation.
        if record.state() != table::GONE {
            self.by_address.insert(record.start(), index);
        }
        if self.tracked.len() <= index {
            self.tracked.resize_with(index + 1, || None);
        }
        if self.tracked[index].is_some() {
            return;
        }
        // Relaxed: constant since the event was pushed.
        let size = record.size.load(Ordering::Relaxed);
        let allocated_ns = record.allocated_ns.load(Ordering::Relaxed);
        let site = record.site.load(Ordering::Relaxed);
        self.uses += 1;
        let tracked = Tracked {
            allocation: Allocation {
                site,
                kind: kind_of(record.kind.load(Ordering::Relaxed)),
                address: record.start() as u64,
                size,
                allocated_ns,
                last_access_ns: allocated_ns,
                last_access_before_ns: allocated_ns,
                ..Allocation::default()
            },
            start: record.start(),
            bytes: record.bytes(),
            use_number: self.uses,
            ..Tracked::default()
        };
        let due = allocated_ns + least_delay_ns();
        self.due.push(Reverse((due, index, self.uses)));
        self.tracked[index] = Some(Box::new(tracked));
        let site = self.site(site);
        site.allocations += 1;
        site.bytes += size;
    }

    fn site(&mut self, number: u32) -> &mut Site {
        while self.sites.len() <= number as usize {
            let next = self.sites.len() as u32;
            self.sites.push(Site {
                frames: crate::stack::frames(next).to_vec(),
                ..Site::default()
            });
        }
        &mut self.sites[number as usize]
    }

    fn finish(&mut self, index: usize) {
        let freed_ns = RECORD[index].freed_ns.load(Ordering::Relaxed);
        if let Some(mut tracked) = self.tracked.get_mut(index).and_then(Option::take) {
            self.protected.remove(&tracked.start);
            if self.by_address.get(&tracked.start) == Some(&index) {
                self.by_address.remove(&tracked.start);
            }
            let idle_until = self.verified_ns(freed_ns).min(freed_ns);
            tracked.end_protection(idle_until, NapEnd::Free, None);
            let allocation = &mut tracked.allocation;
            allocation.freed_ns = Some(freed_ns);
            let life = freed_ns.saturating_sub(allocation.allocated_ns);
            let size = allocation.size as f64;
            let allocation = tracked.allocation;
            let site = self.site(allocation.site);
            site.freed += 1;
            site.freed_life_ns += life;
            site.freed_byte_seconds += size * life as f64 / 1e9;
            site.freed_protected_ns += allocation.protected_ns;
            site.freed_accesses += allocation.accesses;
            site.freed_naps += allocation.nap_count;
            site.freed_nap_byte_seconds += size * allocation.nap_ns as f64 / 1e9;
            if allocation.nap_count > 0 {
                if self.finished.len() < MAX_FINISHED {
                    self.finished.push(allocation);
                } else {
                    self.omitted += 1;
                }
            }
        }
        table::recycle(index);
    }

    /// Protects what is due, as far as the account covers it.
    fn protect_due(&mut self, now: u64) {
        if self.backend.is_none() {
            return;
        }
        while let Some(&Reverse((due, index, use_number))) = self.due.peek() {
            if due > now || !STILL.try_enter() {
                return;
            }
            let result = self.protect(index, use_number);
            STILL.leave();
            match result {
                Protected::No => {
                    self.due.pop();
                }
                Protected::Yes => {
                    self.due.pop();
                    self.charge_protection();
                }
                Protected::Later => {
                    self.starved = true;
                    return;
                }
            }
        }
    }

    fn protect(&mut self, index: usize, use_number: u64) -> Protected {
        let Some(tracked) = self.tracked[index].as_mut() else {
            return Protected::No;
        };
        if tracked.use_number != use_number || tracked.since_ns.is_some() {
            return Protected::No;
        }
        // The access that ends the protection is paid in advance.
        if !self.pacer.affords(tracked.protect_ns + 2 * FAULT_NS) {
            return Protected::Later;
        }
        let Some(backend) = self.backend.as_mut() else {
            return Protected::No;
        };
        let record = &RECORD[index];
        let protected = backend.protected_state();
        if protected.is_some() && !record.transition(table::LIVE, table::MOVING) {
            // Freed, excluded, or held for a moment: in the last case it is tried again.
            let again = record.state() == table::BUSY;
            return if again {
                Protected::Later
            } else {
                Protected::No
            };
        }
        if protected.is_none() && record.state() != table::LIVE {
            return Protected::No;
        }
        let before = sys::now_ns();
        let done = backend.protect(tracked.start, tracked.bytes);
        let after = sys::now_ns();
        if let Some(protected) = protected {
            record.enter(if done { protected } else { table::EXCLUDED });
        }
        if !done {
            table::add(&COUNTS.excluded, 1);
            tracked.allocation.excluded = true;
            return Protected::No;
        }
        tracked.protect_ns = after - before;
        tracked.since_ns = Some(after);
        tracked.allocation.last_access_before_ns = after;
        self.protections += 1;
        self.protected.insert(tracked.start, tracked.bytes);
        Protected::Yes
    }

    fn wait(&mut self) {
        let now = sys::now_ns();
        let mut until = self.next_tick_ns.min(self.next_document_ns);
        if let Some(Reverse((due, ..))) = self.due.peek().filter(|_| !self.starved) {
            let sleep = (least_delay_ns() / 2).clamp(MIN_SLEEP_NS, MAX_SLEEP_NS);
            until = until.min((*due).max(now + sleep));
        }
        let timeout = until.saturating_sub(now);
        let mut found = Vec::new();
        match self.backend.as_mut() {
            None => sys::futex_wait(&REQUEST, 0, timeout),
            Some(backend) => {
                backend.accesses(timeout, &mut found);
            }
        }
        if found.is_empty() {
            self.faults_ns += WAKE_NS;
            self.pacer.spend_own(WAKE_NS);
        }
        // Before accesses: an address may belong to another allocation now.
        self.drain();
        for access in found {
            self.access(&access);
        }
    }

    fn survey(&mut self, now: u64) {
        let threshold = settings::get().threshold_ns;
        let period = (threshold / 4).clamp(20_000_000, 10_000_000_000);
        let Some(backend) = self.backend.as_mut() else {
            self.next_survey_ns = u64::MAX;
            return;
        };
        if !self.pacer.affords(self.survey_ns) {
            self.next_survey_ns = now + period / 8;
            return;
        }
        let mut found = Vec::new();
        let before = sys::thread_cpu_ns();
        let Some(verified) = backend.survey(&self.protected, &mut found) else {
            self.next_survey_ns = u64::MAX;
            return;
        };
        self.verified_ns = verified;
        self.drain();
        for access in &found {
            self.access(access);
        }
        self.survey_ns = sys::thread_cpu_ns() - before;
        self.next_survey_ns = now + period;
        self.charge_protection();
    }

    /// Resolves an access.
    fn access(&mut self, access: &Access) {
        let Some(backend) = self.backend.as_mut() else {
            return;
        };
        let range = self.by_address.range(..=access.address).next_back();
        let index = range.map(|(_, &index)| index).filter(|&index| {
            self.tracked[index]
                .as_ref()
                .is_some_and(|tracked| access.address < tracked.start + tracked.bytes)
        });
        let Some(index) = index else {
            backend.wake(access.address, sys::PAGE);
            return;
        };
        let record = &RECORD[index];
        let protected = backend.protected_state();
        if let Some(protected) = protected {
            if !record.transition(protected, table::RETURNING) {
                // Resolved already, or freed: the thread finds out by itself.
                backend.wake(access.address, sys::PAGE);
                return;
            }
            let (start, bytes) = (record.start(), record.bytes());
            backend.unprotect(start, bytes);
            record.enter(table::LIVE);
            self.faults_ns += FAULT_NS;
            self.pacer.spend(FAULT_NS);
        }
        let Some(tracked) = self.tracked[index].as_mut() else {
            return;
        };
        self.protected.remove(&tracked.start);
        self.accesses += 1;
        let protected_ns = tracked.end_protection(access.idle_until_ns, NapEnd::Access, access.at);
        let now = sys::now_ns();
        let allocation = &mut tracked.allocation;
        allocation.accesses += 1;
        allocation.last_access_ns = access.idle_until_ns.max(allocation.last_access_ns);
        allocation.last_access_before_ns = now;
        allocation.last_access_at = access.at;
        let (least, resolved_ns) = match protected {
            Some(_) => (least_delay_ns(), now - access.idle_until_ns + FAULT_NS),
            None => (0, 0),
        };
        let cost = tracked.protect_ns + resolved_ns;
        let delay = self.pacer.delay_ns(cost, protected_ns, least);
        self.due
            .push(Reverse((now + delay, index, tracked.use_number)));
        self.charge_protection();
    }

    /// CPU time of this thread since the last charge.
    fn uncharged_ns(&mut self) -> u64 {
        let cpu = sys::thread_cpu_ns();
        let uncharged = cpu - self.charged_cpu_ns;
        self.charged_cpu_ns = cpu;
        uncharged
    }

    /// Charges the CPU time of this thread since the last charge to protections.
    fn charge_protection(&mut self) {
        let cost = self.uncharged_ns();
        self.pacer.spend(cost);
    }

    /// Charges the CPU time of this thread since the last charge to control.
    fn charge_own(&mut self) {
        let cost = self.uncharged_ns();
        self.pacer.spend_own(cost);
    }

    fn tick(&mut self, now: u64) {
        self.charge_own();
        self.save_for_document();
        let cpu = sys::process_cpu_ns().saturating_sub(self.started_cpu_ns);
        let watched = table::get(&COUNTS.allocations);
        let before = self.allocations;
        self.allocations = AllocationCounts {
            cost_ns: crate::credit::cost_ns().max(before.cost_ns),
            watched: watched.max(before.watched),
            all: (watched + crate::credit::passed_over()).max(before.all),
        };
        self.pacer.tick(now, cpu, self.allocations);
        self.starved = false;
        self.ticks += 1;
        crate::credit::grant(self.pacer.grant());
        let is_idle = self.is_idle(now);
        let most = if is_idle { IDLE_TICK_NS } else { TICK_NS };
        self.tick_ns = self.tick_ns.min(most);
        self.next_tick_ns = now + self.tick_ns;
        self.tick_ns *= 2;
        if (is_idle || self.ticks.is_multiple_of(5)) && Self::is_alone() {
            // The last thread of the program has ended. The C library waits for this one.
            self.write(true);
            engine::leave_process();
            // SAFETY: as the last thread of a program does.
            unsafe { libc::exit(0) };
        }
    }

    /// Whether the program slept since the last tick.
    fn is_idle(&mut self, now: u64) -> bool {
        let plain = sys::process_cpu_ns().saturating_sub(sys::thread_cpu_ns());
        let (before, then) = std::mem::replace(&mut self.last_tick, (plain, now));
        plain.saturating_sub(before) < now.saturating_sub(then) / IDLE_PART
    }

    /// Whether this is the last thread: the first one has ended by `pthread_exit`, and the others.
    fn is_alone() -> bool {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
            return false;
        };
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim_start)
        };
        let has_ended = field("State:").is_some_and(|state| state.starts_with('Z'));
        // The first thread and this one.
        has_ended && field("Threads:") == Some("2")
    }

    /// Charges the last document before it is due: a program that ends cannot pay for it any more.
    fn save_for_document(&mut self) {
        let entries = self.by_address.len() + self.finished.len();
        let price = DOCUMENT_NS + entries as u64 * DOCUMENT_PER_ALLOCATION_NS;
        self.pacer.spend_own(price.saturating_sub(self.document_ns));
        self.document_ns = self.document_ns.max(price);
    }

    /// Cost of this thread in a document: that of the document itself is an estimate.
    pub(crate) fn handler_ns(&self) -> u64 {
        sys::thread_cpu_ns() + self.document_ns.max(DOCUMENT_NS) + START_NS
    }

    pub(crate) fn verified_ns(&self, now: u64) -> u64 {
        match &self.backend {
            Some(backend) if backend.protected_state().is_some() => now,
            _ => self.verified_ns,
        }
    }

    fn write(&mut self, ended: bool) {
        let before = sys::thread_cpu_ns();
        self.drain();
        document::write(self, ended, self.folder);
        let cost = sys::thread_cpu_ns() - before;
        let period = (cost * 200).max(MIN_DOCUMENT_PERIOD_NS);
        self.next_document_ns = sys::now_ns() + period;
        self.charge_own();
    }

    /// Makes all memory accessible and leaves.
    fn stop(&mut self) {
        self.write(true);
        // Threads that fork meanwhile touch protected memory, and wait for this.
        let state = self.backend.as_ref().and_then(Backend::protected_state);
        if let (Some(backend), Some(protected)) = (self.backend.as_mut(), state) {
            for record in table::used() {
                if record.transition(protected, table::RETURNING) {
                    backend.unprotect(record.start(), record.bytes());
                    record.enter(table::LIVE);
                }
            }
        }
        self.backend = None;
    }
}

enum Protected {
    Yes,
    No,
    Later,
}

impl Tracked {
    /// Ends a protection that was idle until a time. Returns its length.
    fn end_protection(&mut self, idle_until_ns: u64, end: NapEnd, at: Option<u64>) -> u64 {
        let Some(since) = self.since_ns.take() else {
            return 0;
        };
        let length = idle_until_ns.saturating_sub(since);
        let allocation = &mut self.allocation;
        allocation.protected_ns += length;
        if length >= settings::get().threshold_ns {
            allocation.nap_count += 1;
            allocation.nap_ns += length;
            if allocation.naps.len() < MAX_NAPS {
                allocation.naps.push(Nap {
                    start_ns: since,
                    end_ns: idle_until_ns,
                    end,
                    at,
                });
            }
        }
        length
    }
}

fn kind_of(number: u32) -> AllocationKind {
    match number {
        1 => AllocationKind::Calloc,
        2 => AllocationKind::Realloc,
        3 => AllocationKind::Aligned,
        4 => AllocationKind::Mmap,
        _ => AllocationKind::Malloc,
    }
}
