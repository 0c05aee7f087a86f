// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control thread: counts in, prices and shares out, 100 times per second.
//!
//! It is the only clock of the runtime. It does its rounds under the lock and allocates outside of
//! it: the program's own allocator may be instrumented, too.

use std::ffi::c_void;
use std::ptr::null_mut;

use overhear_budget::{
    EventPrice, Overhead, PairSums, PricePool, PriceSlope, MAX_COVARIATES as COVARIATES,
};

use crate::function_budget::{FunctionBudget, Observation, Usage};
use crate::layout::{Account, FunctionPrice, FunctionWords, STATE_UNLOADED, WORDS_BYTES};
use crate::memory::{field, get, set};
use crate::runtime::{
    clock_ns, close_stratum, registry, ticks, Hot, Record, Registry, LOCK, MAX_MODULES,
};

/// Length of a round.
const ROUND_NS: f64 = 10e6;
/// Part of a round for which the program must have worked since the last one.
const LEAST_BUSY: f64 = 0.5;
/// Length of the first round; the following ones grow by half up to `ROUND_NS`.
const FIRST_ROUND_NS: f64 = 1e6;
/// Tokens of each long function for each round, and updates for each token.
const TOKENS: i64 = 100;
const TOKEN_UPDATES: i64 = 200;
/// CPU time before there are hot functions.
const HOT_NS: u64 = 20_000_000;
/// Rounds between two looks for hot functions: after a change, and else.
const HOT_ROUNDS: [u32; 2] = [50, 20];
/// Advantage of functions that are hot already.
const HOT_BONUS: f64 = 1.5;
/// What the check of a pass costs, if the user has not set the base: the base of bzip2, 2.3 % or
/// 34 ms, divided by its 38 million passes. In tight loops it costs more, beside other work less.
const PASS_CHECK_NS: f64 = 0.9;
/// Most that checks are taken to cost, as part of the CPU time: a processor does those of short
/// functions beside other work.
const MOST_CHECKS: f64 = 0.015;
/// Functions that run in one round whose pairs may follow each other without a pause. With more of
/// them stretches are longer in proportion, or the calls of the slow path would be the largest
/// cost.
const FREQUENT_FUNCTIONS: f64 = 8.0;
/// Functions whose prices are fitted in one round at most, about.
const FITS: usize = 50;
/// Spread of the calibrated price, relative to it.
const CALIBRATED_SPREAD: f64 = 0.5;

/// Starts the control thread. All signals are blocked in it: handlers of the program run in
/// threads of the program.
pub(crate) fn start() {
    // SAFETY: the sets are written before they are read; the thread gets no argument.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), mask.as_mut_ptr());
        let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
        if libc::pthread_create(thread.as_mut_ptr(), null_mut(), run, null_mut()) == 0 {
            libc::pthread_detach(thread.assume_init());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), null_mut());
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends with a zero and is short enough.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"overhear-ranges".as_ptr()) };
    // A clock that yields no numbers controls nothing: the first bursts are all that is recorded.
    let Some(mut control) = Control::new() else {
        return null_mut();
    };
    let mut round_ns = FIRST_ROUND_NS;
    let mut last_busy_ns = 0.0;
    let mut next = clock_ns(libc::CLOCK_MONOTONIC);
    loop {
        next = (next + round_ns).max(clock_ns(libc::CLOCK_MONOTONIC));
        sleep_until(next);
        // A program that waits records nothing, so there is nothing to decide.
        let busy_ns = program_cpu_ns();
        if control.rounds > 0 && busy_ns - last_busy_ns < LEAST_BUSY * round_ns {
            continue;
        }
        last_busy_ns = busy_ns;
        control.round();
        round_ns = (round_ns * 1.5).min(ROUND_NS);
    }
}

/// CPU time of the process without that of the calling control thread.
fn program_cpu_ns() -> f64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) - clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn sleep_until(time_ns: f64) {
    let time = libc::timespec {
        tv_sec: (time_ns / 1e9) as libc::time_t,
        tv_nsec: (time_ns % 1e9) as libc::c_long,
    };
    // SAFETY: `time` is valid; without a place for the remainder none is written.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            null_mut(),
        );
    }
}

/// What control remembers of a function.
#[derive(Clone, Copy)]
struct Known {
    /// Pairs at the last fit.
    fitted_pairs: f64,
    slope: Option<PriceSlope>,
    price: EventPrice,
    /// Passes that ran plain at a burst cap: at the last round, and now.
    capped: [i64; 2],
    /// Passes of running threads since the last round.
    round_passes: f64,
    /// Threads that have run it.
    threads: f64,
    /// Place of its words in the image; known once it has run.
    offset: Option<usize>,
    module: usize,
}

struct Control {
    budget: FunctionBudget,
    calibrated: EventPrice,
    pool: PricePool,
    start: (f64, u64),
    known: Vec<Known>,
    observations: Vec<Observation>,
    merged: Vec<PairSums>,
    is_stale: Vec<bool>,
    slow_ticks: f64,
    rounds_to_hot: u32,
    rounds: u64,
}

impl Control {
    fn new() -> Option<Self> {
        let registry = registry();
        // SAFETY: target and base do not change after the start.
        let (target, base) = unsafe { ((*registry).target, (*registry).base) };
        let calibrated = calibrate()?;
        let [target, base] = [target, base].map(Overhead::from_overhead);
        Some(Self {
            budget: FunctionBudget::new(target.ok()?, base.ok()?).ok()?,
            calibrated,
            pool: PricePool::new(calibrated),
            start: (clock_ns(libc::CLOCK_MONOTONIC), ticks()),
            known: Vec::new(),
            observations: Vec::new(),
            merged: Vec::new(),
            is_stale: Vec::new(),
            slow_ticks: 0.0,
            rounds_to_hot: 0,
            rounds: 0,
        })
    }

    fn round(&mut self) {
        let registry = registry();
        // SAFETY: a volatile read of a number that only grows.
        let functions = unsafe { get(field!(registry, functions)) };
        let empty = Known {
            fitted_pairs: 0.0,
            slope: None,
            price: self.calibrated,
            capped: [0; 2],
            round_passes: 0.0,
            threads: 0.0,
            offset: None,
            module: 0,
        };
        self.known.resize(functions, empty);
        self.observations.resize(functions, Observation::default());
        self.merged.resize(functions, PairSums::default());
        self.is_stale.resize(functions, false);

        let elapsed_ns = clock_ns(libc::CLOCK_MONOTONIC) - self.start.0;
        let elapsed_ticks = ticks().wrapping_sub(self.start.1) as f64;
        let ns_per_tick = if elapsed_ticks > 0.0 {
            elapsed_ns / elapsed_ticks
        } else {
            1.0
        };
        let held = LOCK.lock();
        // SAFETY: the lock is held; of what program threads write, only copies are used.
        unsafe {
            set(field!(registry, ns_per_tick), ns_per_tick);
            self.count(registry);
            self.collect_pairs(registry);
        }
        drop(held);
        self.fit();
        let cpu_ns = clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID);
        // SAFETY: it does not change after the start.
        let checks_ns = if unsafe { (*registry).base_is_measured } {
            0.0
        } else {
            let passes: u64 = self.observations.iter().map(|seen| seen.passes).sum();
            (passes as f64 * PASS_CHECK_NS).min(cpu_ns * MOST_CHECKS)
        };
        let control_ns = clock_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let usage = Usage {
            now_ns: clock_ns(libc::CLOCK_MONOTONIC) as u64,
            cpu_ns: cpu_ns as u64,
            own_ns: (control_ns + self.slow_ticks * ns_per_tick + checks_ns) as u64,
        };
        self.budget.round(usage, &self.observations);
        let _held = LOCK.lock();
        // SAFETY: the lock is held.
        unsafe {
            self.choose_hot(registry, usage.cpu_ns);
            self.publish(registry, usage.cpu_ns);
        }
    }

    /// Sums the counts of all threads.
    unsafe fn count(&mut self, registry: *mut Registry) {
        self.observations.fill(Observation::default());
        for known in &mut self.known {
            known.capped = [known.capped[1], 0];
            (known.round_passes, known.threads) = (0.0, 0.0);
        }
        // SAFETY: the lock is held.
        unsafe {
            self.slow_ticks = (*registry).slow_ticks_of_ended;
            let mut block = (*registry).blocks;
            while !block.is_null() {
                let slot = &(&(*registry).slots)[(*block).module % MAX_MODULES];
                let first = slot.first;
                let image = (*block).image();
                let mut record = (*block).records;
                while !record.is_null() {
                    let index = first + (*record).function;
                    if let (Some(seen), Some(known)) =
                        (self.observations.get_mut(index), self.known.get_mut(index))
                    {
                        let words = get((*record).words);
                        let account = get((*record).account);
                        let (passes, monitored) = account.passes_now(&words);
                        let tokens = token_passes(&mut *record, &words, &account, monitored);
                        seen.updates += words.recorded.max(0).unsigned_abs();
                        seen.passes += passes.max(0).unsigned_abs();
                        seen.monitored += monitored.unsigned_abs() + tokens;
                        seen.pairs += (*record).pairs.pairs();
                        let since = passes.saturating_sub((*record).round_start).max(0);
                        (*record).round_start = passes;
                        (*record).round_passes = since as f64;
                        known.round_passes += since as f64;
                        known.threads += 1.0;
                        known.capped[1] += words.capped;
                        close_stratum(slot, block, (*record).function, &words, false);
                        known.offset = Some((*record).words as usize - image as usize);
                        known.module = (*block).module;
                    }
                    self.slow_ticks += (*record).slow_ticks;
                    record = (*record).next;
                }
                if !(*block).is_running {
                    self.count_ended(registry, block, first);
                }
                block = (*block).next;
            }
            for slot in &(&(*registry).slots)[..(*registry).modules.min(MAX_MODULES)] {
                if slot.ended.is_null() {
                    continue;
                }
                for function in 0..slot.functions {
                    if let Some(seen) = self.observations.get_mut(slot.first + function) {
                        seen.pairs += (*slot.ended_pairs.add(function)).pairs();
                    }
                }
            }
        }
        for (known, seen) in self.known.iter().zip(&mut self.observations) {
            seen.is_capped = known.capped[1] > known.capped[0];
        }
    }

    /// Counts of threads that have ended.
    unsafe fn count_ended(
        &mut self,
        registry: *mut Registry,
        block: *mut crate::runtime::Block,
        first: usize,
    ) {
        // SAFETY: the lock is held. Offsets are those of words in this image.
        unsafe {
            let slot = &(&(*registry).slots)[(*block).module % MAX_MODULES];
            for function in 0..slot.functions {
                let Some(seen) = self.observations.get_mut(first + function) else {
                    continue;
                };
                let account = *(*block).accounts().add(function);
                seen.passes += account.passes.max(0).unsigned_abs();
                seen.monitored += account.monitored.max(0).unsigned_abs();
                let offset = self
                    .known
                    .get(first + function)
                    .and_then(|known| known.offset);
                if let Some(offset) = offset.filter(|o| o + WORDS_BYTES <= slot.image_bytes) {
                    let words: *const FunctionWords = (*block).image().add(offset).cast();
                    seen.updates += (*words).recorded.max(0).unsigned_abs();
                }
            }
        }
    }

    /// Takes in the pairs of functions that have new ones.
    unsafe fn collect_pairs(&mut self, registry: *mut Registry) {
        let mut is_any = false;
        let turns = self.known.len().div_ceil(FITS).max(1);
        let turn = self.rounds as usize % turns;
        let places = self.known.iter().zip(&self.observations);
        for (index, ((known, seen), is_stale)) in places.zip(&mut self.is_stale).enumerate() {
            let has_news = seen.pairs >= known.fitted_pairs * 1.05 + 1.0
                || seen.pairs < known.fitted_pairs * 0.9;
            *is_stale = has_news && index % turns == turn;
            is_any |= *is_stale;
        }
        if is_any {
            // SAFETY: the lock is held.
            unsafe { self.merge(registry, (*registry).hot_version) };
        }
    }

    /// Estimates the prices of functions with new pairs, and combines all with the pooled price.
    fn fit(&mut self) {
        for (index, known) in self.known.iter_mut().enumerate() {
            if self.is_stale[index] {
                known.fitted_pairs = self.observations[index].pairs;
                known.slope = self.merged[index].slope();
            }
        }
        self.pool
            .pool(self.known.iter().filter_map(|known| known.slope));
        for (index, known) in self.known.iter_mut().enumerate() {
            known.price = self.pool.price(known.slope, None);
            self.budget.set_price(index, known.price);
        }
    }

    unsafe fn merge(&mut self, registry: *mut Registry, version: u32) {
        for (merged, is_stale) in self.merged.iter_mut().zip(&self.is_stale) {
            if *is_stale {
                *merged = PairSums::default();
            }
        }
        // SAFETY: the lock is held. A pair that is added at this moment may be seen in part; the
        // next fit sees all of it.
        unsafe {
            let mut block = (*registry).blocks;
            while !block.is_null() {
                let first = (&(*registry).slots)[(*block).module % MAX_MODULES].first;
                let mut record = (*block).records;
                while !record.is_null() {
                    let index = first + (*record).function;
                    if self.is_stale.get(index) == Some(&true) {
                        let pairs = get(field!(record, pairs));
                        if (*record).covariates_version == version {
                            self.merged[index].merge(&pairs);
                        } else {
                            self.merged[index].merge(&pairs.without_passes());
                        }
                    }
                    record = (*record).next;
                }
                block = (*block).next;
            }
            for slot in &(&(*registry).slots)[..(*registry).modules.min(MAX_MODULES)] {
                if slot.ended.is_null() {
                    continue;
                }
                for function in 0..slot.functions {
                    if self.is_stale.get(slot.first + function) == Some(&true) {
                        let pairs = &*slot.ended_pairs.add(function);
                        self.merged[slot.first + function].merge(pairs);
                    }
                }
            }
        }
    }

    /// Chooses the functions whose passes are covariates: those with the largest demands.
    unsafe fn choose_hot(&mut self, registry: *mut Registry, cpu_ns: u64) {
        if self.rounds_to_hot > 0 || cpu_ns < HOT_NS {
            self.rounds_to_hot = self.rounds_to_hot.saturating_sub(1);
            return;
        }
        // SAFETY: the lock is held.
        unsafe {
            let hot_now = &(&(*registry).hot)[..(*registry).hot_count.min(COVARIATES)];
            let is_hot = |known: &Known| {
                let words = known.offset;
                hot_now
                    .iter()
                    .any(|hot| hot.module == known.module && Some(hot.offset) == words)
            };
            let mut best = [(0.0_f64, usize::MAX); COVARIATES];
            for (index, known) in self.known.iter().enumerate() {
                if known.offset.is_none() || self.budget.demand(index) <= 0.0 {
                    continue;
                }
                let bonus = if is_hot(known) { HOT_BONUS } else { 1.0 };
                let mut entry = (self.budget.demand(index) * bonus, index);
                for place in &mut best {
                    if entry.0 > place.0 {
                        std::mem::swap(place, &mut entry);
                    }
                }
            }
            let mut chosen = [Hot {
                module: 0,
                function: 0,
                offset: 0,
            }; COVARIATES];
            let mut count = 0;
            for (_, index) in best.iter().filter(|(_, index)| *index != usize::MAX) {
                let known = &self.known[*index];
                let first = (&(*registry).slots)[known.module % MAX_MODULES].first;
                chosen[count] = Hot {
                    module: known.module,
                    function: index - first,
                    offset: known.offset.unwrap_or(0),
                };
                count += 1;
            }
            let is_same = count == hot_now.len()
                && best[..count]
                    .iter()
                    .all(|(_, index)| is_hot(&self.known[*index]));
            self.rounds_to_hot = HOT_ROUNDS[usize::from(is_same)];
            if is_same {
                return;
            }
            set(field!(registry, hot_count), 0);
            (*registry).hot = chosen;
            set(
                field!(registry, hot_version),
                (*registry).hot_version.wrapping_add(1),
            );
            set(field!(registry, hot_count), count);
            for slot in &(&(*registry).slots)[..(*registry).modules.min(MAX_MODULES)] {
                for function in 0..slot.functions {
                    let pairs = slot.ended_pairs.add(function);
                    *pairs = (*pairs).without_passes();
                }
            }
        }
    }

    /// Writes shares and bursts for the slow path, and prices for the reader.
    unsafe fn publish(&mut self, registry: *mut Registry, cpu_ns: u64) {
        self.rounds += 1;
        let active = self.known.iter().filter(|it| it.round_passes > 0.0).count();
        let stretch_factor = (active as f64 / FREQUENT_FUNCTIONS).max(1.0);
        // SAFETY: the lock is held. Rule 1 of the runtime names the words of blocks that may be
        // written here.
        unsafe {
            for (index, slot) in (&(*registry).slots)[..(*registry).modules.min(MAX_MODULES)]
                .iter()
                .enumerate()
            {
                let orders = (*registry).orders[index];
                for function in 0..slot.functions {
                    let number = slot.first + function;
                    let (Some(known), Some(seen), Some(allowance)) = (
                        self.known.get(number),
                        self.observations.get(number),
                        self.budget.allowance(number),
                    ) else {
                        continue;
                    };
                    let order = orders.add(function);
                    set(field!(order, share), allowance.share);
                    set(field!(order, stretch_factor), stretch_factor);
                    set(field!(order, monitored_gap), allowance.monitored_gap);
                    set(field!(order, price_ns), known.price.as_ns());
                    let burst = i64::try_from(allowance.burst).unwrap_or(i64::MAX);
                    set(field!(order, burst), burst);
                    if !slot.chunk.is_null() {
                        let prices = slot
                            .chunk
                            .cast::<u8>()
                            .add(crate::layout::CHUNK_HEADER_BYTES);
                        let price = FunctionPrice {
                            price_ns: known.price.as_ns(),
                            error_ns: known.price.error_ns(),
                            pairs: seen.pairs,
                            share: allowance.share,
                        };
                        prices.cast::<FunctionPrice>().add(function).write(price);
                    }
                }
                if !slot.is_loaded && !slot.chunk.is_null() && !(*registry).is_exiting {
                    set(field!(slot.chunk, state), STATE_UNLOADED);
                }
            }
            let mut block = (*registry).blocks;
            while !block.is_null() {
                self.refill(registry, block);
                block = (*block).next;
            }
            let header = (*registry).file.header();
            if !header.is_null() {
                let costs = self.budget.costs();
                (*header).cpu_ns = cpu_ns as f64;
                (*header).updates_ns = costs.events_ns;
                (*header).machinery_ns = costs.own.as_ns() as f64 + costs.base_ns;
                (*header).calibrated_price_ns = self.calibrated.as_ns();
                (*header).rounds = self.rounds;
            }
        }
    }

    /// Gives each running thread its tokens, and its part of each function's updates until the next
    /// round: in proportion to the passes of the last one.
    unsafe fn refill(&self, registry: *mut Registry, block: *mut crate::runtime::Block) {
        // SAFETY: as in `publish`.
        unsafe {
            if !(*block).is_running {
                return;
            }
            let first = (&(*registry).slots)[(*block).module % MAX_MODULES].first;
            let mut record = (*block).records;
            while !record.is_null() {
                let words = (*record).words;
                set(field!(words, token_updates), TOKEN_UPDATES);
                set(field!(words, tokens), TOKENS);
                let number = first + (*record).function;
                if let (Some(known), Some(allowance)) =
                    (self.known.get(number), self.budget.allowance(number))
                {
                    let part =
                        ((*record).round_passes + 1.0) / (known.round_passes + known.threads);
                    let most = (allowance.burst as f64 * part) as i64;
                    let stop = get(field!(words, recorded)).saturating_add(most);
                    set(field!(record, stop), stop);
                    if get(field!((*record).account, is_monitored)) == 1 {
                        set(field!(words, stop), stop);
                    }
                }
                record = (*record).next;
            }
        }
    }
}

/// The passes in which monitored stretches record as many updates as tokens have. A token is an
/// entry and an allowance of updates, so its own passes are no measure of what it records.
fn token_passes(
    record: &mut Record,
    words: &FunctionWords,
    account: &Account,
    monitored: i64,
) -> u64 {
    let in_stretches = account.updates_now(words);
    let by_tokens = words.recorded.saturating_sub(in_stretches);
    let new = by_tokens.saturating_sub(record.token_updates);
    if new > 0 && in_stretches > 0 && monitored > 0 {
        record.token_updates = by_tokens;
        record.token_passes += new as f64 * monitored as f64 / in_stretches as f64;
    }
    record.token_passes as u64
}

/// The time of one recorded update on this machine, as the difference of the fastest runs of two
/// loops: one that adds numbers only, and one that also does what instrumented code does.
fn calibrate() -> Option<EventPrice> {
    const VALUES: usize = 4096;
    /// Updates of one block, which share one count.
    const VARIABLES: usize = 2;
    let mut values = [0_u64; VALUES];
    for (index, value) in values.iter_mut().enumerate() {
        *value = (index as u64).wrapping_mul(2_654_435_761) % 1000;
    }
    let (mut plain, mut monitored) = (f64::INFINITY, f64::INFINITY);
    let mut ranges = [[0_u64, 1000]; VARIABLES];
    let (mut count, mut recorded) = (0_u64, 0_u64);
    for _ in 0..16 {
        plain = plain.min(timed(&values, u64::wrapping_add));
        let time = timed(&values, |sum, value| {
            // SAFETY: local words. They are volatile, so that the loop keeps their accesses.
            unsafe {
                for range in &mut ranges {
                    let [low, width] = range;
                    let minimum = std::ptr::read_volatile(low);
                    if value.wrapping_sub(minimum) > std::ptr::read_volatile(width) {
                        std::ptr::write_volatile(low, minimum.min(value));
                        std::ptr::write_volatile(width, value);
                    }
                }
                for word in [&mut count, &mut recorded] {
                    let seen = std::ptr::read_volatile(word);
                    std::ptr::write_volatile(word, seen + 1);
                }
            }
            sum.wrapping_add(value)
        });
        monitored = monitored.min(time);
    }
    // In a program the processor overlaps a part of it with other work, and misses caches more
    // often: prices of functions are a tenth of this one to many times as high.
    let price = ((monitored - plain) / (VALUES * VARIABLES) as f64).clamp(0.05, 5.0);
    EventPrice::from_ns(price, CALIBRATED_SPREAD * price).ok()
}

fn timed(values: &[u64], mut step: impl FnMut(u64, u64) -> u64) -> f64 {
    let before = clock_ns(libc::CLOCK_MONOTONIC);
    let mut sum = 0;
    for value in values {
        sum = step(sum, std::hint::black_box(*value));
    }
    std::hint::black_box(sum);
    clock_ns(libc::CLOCK_MONOTONIC) - before
}
