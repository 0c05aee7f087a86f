// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime inside an instrumented program.
//!
//! ```text
//! instrumented code --pass--> slow path: ends a stretch, begins the next one
//!                                |  accounts, pairs                       ^ shares
//!                                v                                        |
//!                             control thread, 100 rounds per second: prices, budget
//! ```
//!
//! Rules:
//! 1. A block (memory of one thread and module) is written by its thread; the control thread writes
//!    only the words `stop`, `tokens` and `token_updates`.
//! 2. The lists of modules, threads, blocks and records change under the lock, with all signals of
//!    the thread blocked. The control thread walks them under the lock.
//! 3. The slow path allocates from the kernel alone, changes no errno, and is not entered again by
//!    a signal handler that interrupts it: the handler's functions run plain for that moment.
//! 4. Nothing here unwinds into the program: no index is unchecked, nothing is unwrapped.

use std::ffi::{c_int, c_long, c_void};
use std::ptr::{copy_nonoverlapping, null_mut};

use overhear_budget::{PairSums, StretchPair, MAX_COVARIATES as COVARIATES};

use crate::control;
use crate::estimate::{SegmentEstimate, Stratum};
use crate::layout::{
    pages, Account, ChunkHeader, FileHeader, FunctionPrice, FunctionWords, Mode, Module, Object,
    CHUNK_BLOCK, CHUNK_HEADER_BYTES, CHUNK_MODULE, FILE_MAGIC, FILE_VERSION, LAYOUT_VERSION,
    STATE_FREE, STATE_LIVE, WORDS_BYTES,
};
use crate::memory::{
    anonymous, errno, field, get, read_start, set, set_errno, Arena, Held, ResultFile,
    SignalSafeLock,
};

/// Programs and libraries of one process that can be observed.
pub(crate) const MAX_MODULES: usize = 256;
/// Passes with which each function begins: monitored, so that what runs once is seen.
const FIRST_PASSES: i64 = 256;
/// Cost that a function may cause before the first round of control, and that all of a module may
/// cause together.
const FIRST_BURST_NS: f64 = 100e3;
const FIRST_BURSTS_NS: f64 = 5e6;
/// A price to begin with, until the control thread has measured one.
const FIRST_PRICE_NS: f64 = 0.3;
/// Intended length of a stretch of a pair, and the one after many pairs: then fewer calls of the
/// slow path keep the price.
const STRETCH_NS: f64 = 24e3;
const LONG_STRETCH_NS: f64 = 96e3;
/// Pairs after which stretches are long.
const MANY_PAIRS: f64 = 1000.0;
/// Longest stretch in passes.
const MOST_PASSES: f64 = 1e7;
/// A pair is dropped if one of its times is so many times the expected one of its longer stretch:
/// the thread was preempted, or waited.
const OUTLIER: f64 = 6.0;
/// Longest time that a call of the slow path is taken to have.
const MOST_SLOW_NS: f64 = 2e3;
/// Time of a call of the slow path outside of its own two readings of the clock: saving registers,
/// finding the thread, and the readings themselves.
const CALL_NS: f64 = 30.0;
/// Longest gap between pairs.
const LONGEST_GAP_NS: f64 = 100e6;

/// The estimator of one function in one thread.
pub(crate) struct Record {
    pub(crate) next: *mut Self,
    pub(crate) words: *mut FunctionWords,
    pub(crate) account: *mut Account,
    /// Index of the function in the module.
    pub(crate) function: usize,
    /// Ticks in the slow path.
    pub(crate) slow_ticks: f64,
    /// Total of recorded updates at which this thread stops until the next round of control.
    /// Written by the control thread.
    pub(crate) stop: i64,
    /// Updates of tokens at the last round of control, and the passes in which monitored stretches
    /// have as many. Of the control thread.
    pub(crate) token_updates: i64,
    pub(crate) token_passes: f64,
    /// Passes at the last round of control, and in the round before it. Of the control thread.
    pub(crate) round_start: i64,
    pub(crate) round_passes: f64,
    pub(crate) pairs: PairSums,
    phase: Phase,
    monitored_first: bool,
    /// Passes of the stretches of the next pair.
    pair_passes: f64,
    /// Ticks for each plain pass, averaged.
    pass_ticks: f64,
    /// Ticks for each monitored pass, averaged.
    monitored_pass_ticks: f64,
    start_ticks: u64,
    start_recorded: i64,
    /// The pair under way: plain, monitored.
    stretches: [Stretch; 2],
    hot_passes: [i64; COVARIATES],
    hot_recorded: [i64; COVARIATES],
    hot_version: u32,
    /// Version of the hot functions whose passes are the covariates of `pairs`.
    pub(crate) covariates_version: u32,
    pair_is_spoiled: bool,
}

#[derive(Clone, Copy, Default)]
struct Stretch {
    ticks: f64,
    updates: f64,
    hot_passes: [f64; COVARIATES],
    hot_ticks: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Gap,
    First,
    Second,
}

/// The memory of one thread for one module.
pub(crate) struct Block {
    pub(crate) next: *mut Self,
    pub(crate) module: usize,
    pub(crate) chunk: *mut ChunkHeader,
    pub(crate) records: *mut Record,
    /// Whether it is a thread's, and not what ended threads have left.
    pub(crate) is_running: bool,
}

/// A program or library.
pub(crate) struct Slot {
    pub(crate) module: *mut Module,
    pub(crate) image_bytes: usize,
    pub(crate) functions: usize,
    segments: usize,
    /// Place of each segment's counter in the image, and the segments of each function.
    counters: *mut usize,
    function_segments: *mut [usize; 2],
    /// Index of its first function among those of all modules.
    pub(crate) first: usize,
    pub(crate) chunk: *mut ChunkHeader,
    /// Sum of the text, by which a library that is loaded again is recognised.
    text_sum: u64,
    pub(crate) is_loaded: bool,
    /// Pairs of ended threads: one for each function, or null.
    pub(crate) ended_pairs: *mut PairSums,
    /// What ended threads have left, or null.
    pub(crate) ended: *mut Block,
    free: *mut Block,
}

/// A thread that has run instrumented code.
pub(crate) struct Thread {
    pub(crate) next: *mut Self,
    blocks: [*mut Block; MAX_MODULES],
    is_inside: bool,
    rounds_of_destructors: u32,
    random: u64,
}

/// A function whose passes are covariates.
#[derive(Clone, Copy)]
pub(crate) struct Hot {
    pub(crate) module: usize,
    pub(crate) function: usize,
    /// Place of its words in the image.
    pub(crate) offset: usize,
}

/// What the control thread and the slow path share for each function.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub(crate) share: f64,
    pub(crate) monitored_gap: f64,
    /// Length of stretches, in intended ones.
    pub(crate) stretch_factor: f64,
    pub(crate) price_ns: f64,
    pub(crate) burst: i64,
}

pub(crate) struct Registry {
    pub(crate) slots: [Slot; MAX_MODULES],
    pub(crate) modules: usize,
    pub(crate) functions: usize,
    pub(crate) blocks: *mut Block,
    threads: *mut Thread,
    free_records: *mut Record,
    arena: Arena,
    pub(crate) file: ResultFile,
    pub(crate) mode: Mode,
    pub(crate) target: f64,
    pub(crate) base: f64,
    /// Whether the user has set the base: then it includes the checks of passes.
    pub(crate) base_is_measured: bool,
    folder: [u8; 3900],
    folder_bytes: usize,
    is_started: bool,
    /// Libraries that are unloaded from now on are not worth mentioning.
    pub(crate) is_exiting: bool,
    key: libc::pthread_key_t,
    pub(crate) hot: [Hot; COVARIATES],
    pub(crate) hot_count: usize,
    pub(crate) hot_version: u32,
    pub(crate) ns_per_tick: f64,
    pub(crate) slow_ticks_of_ended: f64,
    /// One [`Order`] for each function of each module: `orders[module]`.
    pub(crate) orders: [*mut Order; MAX_MODULES],
}

const NO_SLOT: Slot = Slot {
    module: null_mut(),
    image_bytes: 0,
    functions: 0,
    segments: 0,
    counters: null_mut(),
    function_segments: null_mut(),
    first: 0,
    chunk: null_mut(),
    text_sum: 0,
    is_loaded: false,
    ended_pairs: null_mut(),
    ended: null_mut(),
    free: null_mut(),
};

pub(crate) static LOCK: SignalSafeLock = SignalSafeLock::new();
static mut REGISTRY: Registry = Registry {
    slots: [NO_SLOT; MAX_MODULES],
    modules: 0,
    functions: 0,
    blocks: null_mut(),
    threads: null_mut(),
    free_records: null_mut(),
    arena: Arena::new(),
    file: ResultFile::none(),
    mode: Mode::Off,
    target: 0.0,
    base: 0.0,
    base_is_measured: false,
    folder: [0; 3900],
    folder_bytes: 0,
    is_started: false,
    is_exiting: false,
    key: 0,
    hot: [Hot {
        module: 0,
        function: 0,
        offset: 0,
    }; COVARIATES],
    hot_count: 0,
    hot_version: 1,
    ns_per_tick: 0.0,
    slow_ticks_of_ended: 0.0,
    orders: [null_mut(); MAX_MODULES],
};

/// The registry. Rule 2 says what may be read without the lock: mode, key, orders, and what belongs
/// to the calling thread.
pub(crate) fn registry() -> *mut Registry {
    std::ptr::addr_of_mut!(REGISTRY)
}

/// A counter of the processor that runs at a constant rate.
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is valid.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        (time.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(time.tv_nsec as u64)
    }
}

impl Block {
    /// The copy of the image.
    pub(crate) fn image(&self) -> *mut u8 {
        // SAFETY: a chunk is longer than its header.
        unsafe { self.chunk.cast::<u8>().add(CHUNK_HEADER_BYTES) }
    }

    /// The accounts, one for each function.
    pub(crate) fn accounts(&self) -> *mut Account {
        // SAFETY: the chunk has its image and then the accounts: see `new_block`.
        unsafe {
            let image_bytes = get(field!(self.chunk, first_bytes)) as usize;
            self.image().add(image_bytes).cast()
        }
    }

    /// The estimates, one for each segment.
    pub(crate) fn estimates(&self) -> *mut SegmentEstimate {
        // SAFETY: as in `accounts`.
        unsafe {
            let accounts = get(field!(self.chunk, second)) as usize;
            self.accounts().add(accounts).cast()
        }
    }
}

/// Registers a program or library.
///
/// # Safety
/// The module describes memory that stays valid until it is unregistered.
#[no_mangle]
pub(crate) unsafe extern "C" fn overhear_ranges_register(module: *mut Module) {
    // SAFETY: the caller's promise; the registry changes under the lock.
    unsafe {
        let start_control = {
            let _held = LOCK.lock();
            let registry = registry();
            let is_first = !(*registry).is_started;
            if is_first {
                start(registry);
            }
            (*module).slot = -1;
            if (*module).version == LAYOUT_VERSION && !(*module).image_start.is_null() {
                add_module(registry, module);
            }
            is_first && (*registry).mode == Mode::Budget
        };
        if start_control {
            control::start();
        }
    }
}

/// Forgets the code of a library that is unloaded. Its results stay.
///
/// # Safety
/// The module was registered.
#[no_mangle]
pub(crate) unsafe extern "C" fn overhear_ranges_unregister(module: *mut Module) {
    // SAFETY: the caller's promise; the registry changes under the lock.
    unsafe {
        let _held = LOCK.lock();
        let registry = registry();
        let Ok(slot) = usize::try_from((*module).slot) else {
            return;
        };
        let slots = &mut (*registry).slots;
        if let Some(slot) = slots.get_mut(slot) {
            slot.is_loaded = false;
            slot.module = null_mut();
        }
        (*module).slot = -1;
    }
}

/// The slow path: called at the pass that has used up a function's credit. Returns 1 if the
/// function is to go on in its monitored copy.
///
/// # Safety
/// The module is registered, `delta` is its thread-local word, and the object is one of its own.
#[no_mangle]
pub(crate) unsafe extern "C" fn overhear_ranges_pass(
    module: *const Module,
    delta: *mut isize,
    object: *const Object,
    function: u32,
) -> c_int {
    let error = errno();
    // SAFETY: the caller's promise.
    let is_monitored = unsafe { pass(module, delta, object, function as usize) };
    set_errno(error);
    c_int::from(is_monitored)
}

unsafe fn start(registry: *mut Registry) {
    // SAFETY: the lock is held, and no other thread has used the registry yet.
    unsafe {
        (*registry).is_started = true;
        let key = field!(registry, key);
        if libc::pthread_key_create(key, Some(thread_ended)) != 0 {
            return;
        }
        let folder = variable(c"OVERHEAR_RANGES");
        let budget = variable(c"OVERHEAR_RANGES_BUDGET");
        let base = number(variable(c"OVERHEAR_RANGES_BASE")).filter(|base| base.is_finite());
        (*registry).base_is_measured = base.is_some();
        (*registry).base = base.unwrap_or(0.0).clamp(0.0, 1.0);
        let Some(folder) = folder.filter(|folder| folder.len() <= 3900 && !folder.is_empty())
        else {
            return;
        };
        let copy = &mut (*registry).folder;
        copy[..folder.len()].copy_from_slice(folder);
        (*registry).folder_bytes = folder.len();
        (*registry).mode = match budget {
            Some(b"full") => Mode::Full,
            Some(b"off") => Mode::Off,
            other => match number(other) {
                Some(target) if target > 0.0 && target.is_finite() => {
                    (*registry).target = target;
                    Mode::Budget
                }
                _ => Mode::Off,
            },
        };
        libc::atexit(exiting);
        open_file(registry);
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork),
        );
    }
}

extern "C" fn exiting() {
    let _held = LOCK.lock();
    // SAFETY: the lock is held.
    unsafe { (*registry()).is_exiting = true };
}

extern "C" {
    // Of the C library; the crate `libc` does not declare it.
    fn secure_getenv(name: *const std::ffi::c_char) -> *const std::ffi::c_char;
}

fn variable(name: &std::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a zero; the runtime reads its variables before `main`.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value).to_bytes())
    }
}

fn number(text: Option<&[u8]>) -> Option<f64> {
    std::str::from_utf8(text?).ok()?.trim().parse().ok()
}

/// Creates the results file of this process, and writes its header.
unsafe fn open_file(registry: *mut Registry) {
    // SAFETY: the lock is held.
    unsafe {
        let folder: *const [u8] = &(&(*registry).folder)[..(*registry).folder_bytes];
        (*registry).file.create(&*folder);
        let header: *mut FileHeader = (*registry).file.header();
        if header.is_null() {
            return;
        }
        (*header).version = FILE_VERSION;
        (*header).pid = libc::getpid().unsigned_abs();
        (*header).start_ticks = start_ticks();
        (*header).pid_namespace = pid_namespace();
        (*header).mode = (*registry).mode as u32;
        (*header).target = (*registry).target;
        (*header).base = (*registry).base;
        let command: &mut [u8; 64] = &mut (*header).command;
        let length = read_start(b"/proc/self/comm\0", &mut command[..63]);
        if let Some(last) = command[..length].last_mut().filter(|last| **last == b'\n') {
            *last = 0;
        }
        set(field!(header, magic), FILE_MAGIC);
    }
}

/// When this process started: the 22nd field of its stat file.
fn start_ticks() -> u64 {
    let mut buffer = [0; 1024];
    let length = read_start(b"/proc/self/stat\0", &mut buffer);
    let text = &buffer[..length];
    let after_name = text
        .iter()
        .rposition(|byte| *byte == b')')
        .map_or(0, |place| place + 1);
    let mut fields = text[after_name..]
        .split(|byte| *byte == b' ')
        .filter(|f| !f.is_empty());
    let field = fields
        .nth(19)
        .and_then(|field| std::str::from_utf8(field).ok());
    field.and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn pid_namespace() -> u64 {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path ends with a zero, and the status is initialised to zeros.
    unsafe {
        libc::stat(c"/proc/self/ns/pid".as_ptr(), status.as_mut_ptr());
        status.assume_init().st_ino
    }
}

unsafe fn objects<'a>(module: *const Module) -> &'a [Object] {
    // SAFETY: the module's own linker symbols enclose an array of objects.
    unsafe {
        let start = (*module).objects_start;
        let count = ((*module).objects_end as usize - start as usize) / size_of::<Object>();
        std::slice::from_raw_parts(start, count)
    }
}

unsafe fn add_module(registry: *mut Registry, module: *mut Module) {
    // SAFETY: the lock is held, and the module describes valid memory.
    unsafe {
        let image_bytes = (*module).image_end as usize - (*module).image_start as usize;
        let objects = objects(module);
        let (mut functions, mut segments) = (0, 0);
        let (mut text_bytes, mut sum) = (0, 0_u64);
        for object in objects {
            if object.version != LAYOUT_VERSION {
                return;
            }
            functions += object.functions as usize;
            segments += object.segments as usize;
            text_bytes += 1 + 32 + object.text_bytes as usize;
            let text = std::slice::from_raw_parts(object.text, object.text_bytes as usize);
            for byte in text {
                sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
            }
        }
        let known = (*registry).modules;
        let again = (&(*registry).slots)[..known].iter().position(|slot| {
            !slot.is_loaded
                && (slot.text_sum, slot.image_bytes, slot.functions)
                    == (sum, image_bytes, functions)
        });
        if let Some(index) = again {
            let slot = &mut (&mut (*registry).slots)[index];
            slot.module = module;
            slot.is_loaded = true;
            (*module).slot = index as i64;
            return;
        }
        if known == MAX_MODULES {
            let header = (*registry).file.header();
            if !header.is_null() {
                (*header).modules_refused += 1;
            }
            return;
        }
        let orders: *mut Order = (*registry)
            .arena
            .take(functions * size_of::<Order>())
            .cast();
        let ended_pairs: *mut PairSums = if (*registry).mode == Mode::Budget {
            (*registry)
                .arena
                .take(functions * size_of::<PairSums>())
                .cast()
        } else {
            null_mut()
        };
        let counters: *mut usize = (*registry).arena.take(segments * size_of::<usize>()).cast();
        let function_segments: *mut [usize; 2] = (*registry)
            .arena
            .take(functions * size_of::<[usize; 2]>())
            .cast();
        if orders.is_null()
            || counters.is_null()
            || function_segments.is_null()
            || ((*registry).mode == Mode::Budget && ended_pairs.is_null())
        {
            return;
        }
        place_segments(module, counters, function_segments);
        let burst_ns = FIRST_BURST_NS.min(FIRST_BURSTS_NS / functions.max(1) as f64);
        for function in 0..functions {
            let order = Order {
                share: 0.5,
                monitored_gap: 1.0,
                stretch_factor: 1.0,
                price_ns: FIRST_PRICE_NS,
                burst: (burst_ns / FIRST_PRICE_NS) as i64,
            };
            orders.add(function).write(order);
        }
        let slot = &mut (&mut (*registry).slots)[known];
        *slot = Slot {
            module,
            image_bytes,
            functions,
            segments,
            counters,
            function_segments,
            first: (*registry).functions,
            text_sum: sum,
            is_loaded: true,
            ended_pairs,
            ..NO_SLOT
        };
        (*registry).orders[known] = orders;
        describe_module(registry, known, text_bytes);
        (*registry).functions += functions;
        (*registry).modules += 1;
        (*module).slot = known as i64;
    }
}

/// Finds the counters of all segments, and the segments of each function, which are neighbours in
/// the text.
unsafe fn place_segments(
    module: *const Module,
    counters: *mut usize,
    function_segments: *mut [usize; 2],
) {
    // SAFETY: both arrays have a place for each segment and function of the module's objects.
    unsafe {
        let (mut first_function, mut first_segment) = (0, 0);
        for object in objects(module) {
            let offset = object.block as usize - (*module).image_start as usize;
            let [functions, variables, segments] =
                [object.functions, object.variables, object.segments].map(|n| n as usize);
            for function in 0..functions {
                function_segments
                    .add(first_function + function)
                    .write([first_segment; 2]);
            }
            let start = offset + functions * WORDS_BYTES + variables * crate::layout::RANGE_BYTES;
            let text = std::slice::from_raw_parts(object.text, object.text_bytes as usize);
            let lines = text.split(|byte| *byte == b'\n');
            let of_segments = lines.filter_map(|line| line.strip_prefix(b"C\t"));
            for (segment, line) in of_segments.take(segments).enumerate() {
                counters
                    .add(first_segment + segment)
                    .write(start + segment * 8);
                let digits = line.iter().take_while(|byte| byte.is_ascii_digit());
                let function = digits.fold(0_usize, |number, digit| {
                    number
                        .wrapping_mul(10)
                        .wrapping_add(usize::from(digit - b'0'))
                });
                if function < functions {
                    let range = function_segments.add(first_function + function);
                    if (*range)[0] == (*range)[1] {
                        (*range)[0] = first_segment + segment;
                    }
                    (*range)[1] = first_segment + segment + 1;
                }
            }
            first_function += functions;
            first_segment += segments;
        }
    }
}

/// Ends the stratum of a function in a block, if it is long enough or the last one.
///
/// # Safety
/// The lock is held. The block is one of the slot's module, and the function one of its functions.
pub(crate) unsafe fn close_stratum(
    slot: &Slot,
    block: *mut Block,
    function: usize,
    words: &FunctionWords,
    is_last: bool,
) {
    // SAFETY: the caller's promise. Counters are in the image: see `place_segments`.
    unsafe {
        let account = (*block).accounts().add(function);
        let until = (*account).counts_now(words);
        let since = (*account).stratum_start;
        if !is_last && !Stratum::is_long_enough(&since, &until) {
            return;
        }
        let Some(stratum) = Stratum::between(&since, &until) else {
            return;
        };
        (*account).stratum_start = until;
        let [first, end] = *slot.function_segments.add(function);
        for segment in first..end {
            let counter = (*block)
                .image()
                .add(*slot.counters.add(segment))
                .cast::<u64>();
            (*(*block).estimates().add(segment)).add(get(counter), &stratum);
        }
    }
}

/// Writes path and text of a module into the file. The text of each object file begins with a line
/// of its place in the image and of its numbers.
unsafe fn describe_module(registry: *mut Registry, index: usize, text_bytes: usize) {
    // SAFETY: the lock is held; lengths are those of the chunk.
    unsafe {
        let slot: *mut Slot = &mut (&mut (*registry).slots)[index];
        let module = (*slot).module;
        let mut path = [0; 4096];
        let path_bytes = module_path(module, &mut path);
        let prices_bytes = (*slot).functions * size_of::<FunctionPrice>();
        // Numbers of the first lines: at most five of 20 digits for each object file.
        let most_text = text_bytes + objects(module).len() * 120;
        let bytes = CHUNK_HEADER_BYTES + prices_bytes + path_bytes + most_text;
        let chunk: *mut ChunkHeader = (*registry).file.append(bytes).cast();
        (*slot).chunk = chunk;
        if chunk.is_null() {
            return;
        }
        let mut place = chunk.cast::<u8>().add(CHUNK_HEADER_BYTES + prices_bytes);
        copy_nonoverlapping(path.as_ptr(), place, path_bytes);
        place = place.add(path_bytes);
        let text_start = place;
        for object in objects(module) {
            let offset = object.block as usize - (*module).image_start as usize;
            let mut line = Line {
                bytes: [0; 160],
                length: 0,
            };
            line.text(b"O");
            let numbers = [
                offset as u64,
                object.functions,
                object.variables,
                object.segments,
            ];
            for value in numbers {
                line.text(b"\t");
                line.number(value);
            }
            line.text(b"\n");
            copy_nonoverlapping(line.bytes.as_ptr(), place, line.length);
            place = place.add(line.length);
            copy_nonoverlapping(object.text, place, object.text_bytes as usize);
            place = place.add(object.text_bytes as usize);
        }
        (*chunk).bytes = pages(bytes) as u64;
        (*chunk).module = index as u32;
        (*chunk).first_bytes = path_bytes as u64;
        (*chunk).second = place as u64 - text_start as u64;
        (*chunk).functions = (*slot).functions as u64;
        (*chunk).state = STATE_LIVE;
        set(field!(chunk, kind), CHUNK_MODULE);
    }
}

struct Line {
    bytes: [u8; 160],
    length: usize,
}

impl Line {
    fn text(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }

    fn number(&mut self, number: u64) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.text(&[b'0' + u8::try_from(number % 10).unwrap_or(0)]);
    }
}

/// The path of the file from which a module was loaded; of the program itself, where its link in
/// /proc leads.
unsafe fn module_path(module: *const Module, path: &mut [u8; 4096]) -> usize {
    // SAFETY: `info` is written by dladdr if it returns a value other than 0.
    unsafe {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        let mut name: &[u8] = b"";
        if libc::dladdr(module.cast::<c_void>(), info.as_mut_ptr()) != 0 {
            let file = info.assume_init().dli_fname;
            if !file.is_null() {
                name = std::ffi::CStr::from_ptr(file).to_bytes();
            }
        }
        if name.contains(&b'/') && name.starts_with(b"/") {
            let length = name.len().min(path.len());
            path[..length].copy_from_slice(&name[..length]);
            return length;
        }
        let link = c"/proc/self/exe".as_ptr();
        let length = libc::readlink(link, path.as_mut_ptr().cast(), path.len());
        usize::try_from(length).unwrap_or(0)
    }
}

/// The thread that calls, which is made known at its first slow call.
unsafe fn current(registry: *mut Registry) -> *mut Thread {
    // SAFETY: the key was created before any module had a slot.
    unsafe {
        let thread: *mut Thread = libc::pthread_getspecific((*registry).key).cast();
        if !thread.is_null() {
            return thread;
        }
        let _held = LOCK.lock();
        let thread: *mut Thread = (*registry).arena.take(size_of::<Thread>()).cast();
        if thread.is_null() || libc::pthread_setspecific((*registry).key, thread.cast()) != 0 {
            return null_mut();
        }
        (*thread).random = ticks().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (*thread).next = (*registry).threads;
        (*registry).threads = thread;
        thread
    }
}

unsafe fn pass(
    module: *const Module,
    delta: *mut isize,
    object: *const Object,
    function: usize,
) -> bool {
    // SAFETY: the caller's promise. The words that are used belong to this thread (rule 1).
    unsafe {
        let registry = registry();
        let Ok(index) = usize::try_from((*module).slot) else {
            return without_memory(*delta, object, function);
        };
        let thread = current(registry);
        if thread.is_null() || (*thread).is_inside {
            return false;
        }
        set(field!(thread, is_inside), true);
        let is_monitored = match block_of(registry, thread, index) {
            Some(block) => {
                let image = (*block).image();
                *delta = (image as isize).wrapping_sub((*module).image_start as isize);
                let offset = (*object).block as usize - (*module).image_start as usize;
                let words: *mut FunctionWords = image.add(offset + function * WORDS_BYTES).cast();
                let number = number_of(module, object, function);
                turn(registry, thread, block, words, index, number)
            }
            None => without_memory(*delta, object, function),
        };
        set(field!(thread, is_inside), false);
        is_monitored
    }
}

/// Without memory of its own, a thread runs plain code.
unsafe fn without_memory(delta: isize, object: *const Object, function: usize) -> bool {
    // SAFETY: the words are in the image, or in the block that `delta` leads to.
    unsafe {
        let place = (*object)
            .block
            .wrapping_offset(delta)
            .add(function * WORDS_BYTES);
        let words: *mut FunctionWords = place.cast_mut().cast();
        (*words).credit_limit = -1;
        (*words).credit = i64::MAX;
        (*words).stop = i64::MIN;
    }
    false
}

/// Index of a function in its module: functions of earlier object files come first.
unsafe fn number_of(module: *const Module, object: *const Object, function: usize) -> usize {
    // SAFETY: the object is one of the module's array.
    unsafe {
        let mut number = function;
        let mut other = (*module).objects_start;
        while other < object {
            number += (*other).functions as usize;
            other = other.add(1);
        }
        number
    }
}

unsafe fn block_of(
    registry: *mut Registry,
    thread: *mut Thread,
    index: usize,
) -> Option<*mut Block> {
    // SAFETY: the thread is the calling one; the registry changes under the lock.
    unsafe {
        let place = (&raw mut (*thread).blocks[index % MAX_MODULES]).cast::<*mut Block>();
        if (*place).is_null() {
            let _held = LOCK.lock();
            *place = new_block(registry, index, thread_id());
        }
        (!(*place).is_null()).then_some(*place)
    }
}

fn thread_id() -> u32 {
    // SAFETY: gettid has no conditions.
    unsafe { libc::gettid().unsigned_abs() }
}

/// A block with a fresh copy of the image: a free one, or a new one.
unsafe fn new_block(registry: *mut Registry, index: usize, thread: u32) -> *mut Block {
    // SAFETY: the lock is held.
    unsafe {
        let slot: *mut Slot = &mut (&mut (*registry).slots)[index];
        if (*slot).module.is_null() {
            return null_mut();
        }
        let mut block = (*slot).free;
        if !block.is_null() {
            (*slot).free = (*block).next;
            fill(slot, (*block).chunk, thread, index);
        } else {
            block = (*registry).arena.take(size_of::<Block>()).cast();
            if block.is_null() {
                return null_mut();
            }
            let bytes = block_bytes(slot);
            let mut chunk: *mut ChunkHeader = (*registry).file.append(bytes).cast();
            if chunk.is_null() {
                chunk = anonymous(bytes).cast();
                let header = (*registry).file.header();
                if !header.is_null() {
                    (*header).blocks_lost += 1;
                }
            }
            if chunk.is_null() {
                return null_mut();
            }
            fill(slot, chunk, thread, index);
            (*block).chunk = chunk;
            (*block).module = index;
        }
        (*block).is_running = thread != 0;
        (*block).records = null_mut();
        (*block).next = (*registry).blocks;
        (*registry).blocks = block;
        block
    }
}

unsafe fn block_bytes(slot: *const Slot) -> usize {
    // SAFETY: the slot is one of the registry's.
    unsafe { CHUNK_HEADER_BYTES + (*slot).image_bytes + tables_bytes(slot) }
}

/// Bytes of the accounts and estimates of a block.
unsafe fn tables_bytes(slot: *const Slot) -> usize {
    // SAFETY: the slot is one of the registry's.
    unsafe {
        (*slot).functions * size_of::<Account>() + (*slot).segments * size_of::<SegmentEstimate>()
    }
}

/// Makes a chunk the fresh block of a thread.
unsafe fn fill(slot: *const Slot, chunk: *mut ChunkHeader, thread: u32, index: usize) {
    // SAFETY: the chunk has the bytes of a block of this module, and the image is loaded.
    unsafe {
        let bytes = block_bytes(slot);
        let image = chunk.cast::<u8>().add(CHUNK_HEADER_BYTES);
        let image_bytes = (*slot).image_bytes;
        copy_nonoverlapping((*(*slot).module).image_start, image, image_bytes);
        image.add(image_bytes).write_bytes(0, tables_bytes(slot));
        // Passes of other threads may have counted in the image before they had a block.
        for object in objects((*slot).module) {
            let offset = object.block as usize - (*(*slot).module).image_start as usize;
            image
                .add(offset)
                .write_bytes(0, object.functions as usize * WORDS_BYTES);
        }
        (*chunk).bytes = pages(bytes) as u64;
        (*chunk).module = index as u32;
        (*chunk).thread = thread;
        (*chunk).first_bytes = image_bytes as u64;
        (*chunk).second = (*slot).functions as u64;
        (*chunk).segments = (*slot).segments as u64;
        (*chunk).state = STATE_LIVE;
        set(field!(chunk, kind), CHUNK_BLOCK);
    }
}

/// Ends the stretch of a function, and begins the next one.
unsafe fn turn(
    registry: *mut Registry,
    thread: *mut Thread,
    block: *mut Block,
    words: *mut FunctionWords,
    module: usize,
    function: usize,
) -> bool {
    // SAFETY: words and account belong to this thread; the function is one of the module's.
    unsafe {
        let account = (*block).accounts().add(function);
        match (*registry).mode {
            Mode::Off => {
                (*words).credit_limit = -1;
                (*words).credit = i64::MAX;
                (*words).stop = i64::MIN;
                return false;
            }
            Mode::Full => {
                begin(words, account, true, i64::MAX, i64::MAX);
                (*words).credit_limit = i64::MIN;
                (*account).passes = 1;
                (*account).monitored = 1;
                return true;
            }
            Mode::Budget => {}
        }
        let now = ticks();
        let mut record = (*words).record as *mut Record;
        let order: *mut Order = (*registry).orders[module % MAX_MODULES].add(function);
        if record.is_null() {
            record = new_record(registry, block, words, account, function);
            if record.is_null() {
                begin(words, account, false, i64::MAX, i64::MIN);
                return false;
            }
            (*words).record = record as u64;
            (*account).passes = 1;
            (*account).monitored = 1;
            let stop = (*words).recorded.saturating_add(get(field!(order, burst)));
            begin(words, account, true, FIRST_PASSES, stop);
            set(field!(record, stop), stop);
            (*record).start_ticks = ticks();
            (*record).start_recorded = (*words).recorded;
            return true;
        }
        let record = &mut *record;
        ((*account).passes, (*account).monitored) = (*account).stretches_now(&*words);
        if (*account).is_monitored == 1 {
            (*account).stretch_updates = (*account).updates_now(&*words);
        }
        end_stretch(registry, thread, record, now, module);
        let next = next_stretch(record, thread, *order, (*registry).ns_per_tick);
        let stop = get(field!(record, stop));
        begin(
            words,
            account,
            next.0,
            next.1,
            if next.0 { stop } else { i64::MIN },
        );
        record.start_recorded = (*words).recorded;
        if record.phase != Phase::Gap {
            note_hot(registry, thread, record);
        }
        record.start_ticks = ticks();
        let inside = record.start_ticks.wrapping_sub(now) as f64;
        // A longer call was preempted: what another thread did is no cost of this one.
        record.slow_ticks += inside.min(MOST_SLOW_NS / (*registry).ns_per_tick.max(1e-3));
        record.slow_ticks += CALL_NS / (*registry).ns_per_tick.max(1e-3);
        next.0 && (*words).recorded < stop
    }
}

unsafe fn begin(
    words: *mut FunctionWords,
    account: *mut Account,
    monitored: bool,
    length: i64,
    stop: i64,
) {
    // SAFETY: both belong to the calling thread.
    unsafe {
        (*account).length = length;
        (*account).stretch_start = (*words).recorded;
        (*account).is_monitored = u64::from(monitored);
        if monitored {
            (*words).credit = -1;
            (*words).credit_limit = (-1_i64).saturating_sub(length);
        } else {
            (*words).credit = length - 1;
            (*words).credit_limit = -1;
        }
        set(field!(words, stop), stop);
    }
}

unsafe fn new_record(
    registry: *mut Registry,
    block: *mut Block,
    words: *mut FunctionWords,
    account: *mut Account,
    function: usize,
) -> *mut Record {
    // SAFETY: the registry changes under the lock.
    unsafe {
        let _held = LOCK.lock();
        let mut record = (*registry).free_records;
        if record.is_null() {
            record = (*registry).arena.take(size_of::<Record>()).cast();
        } else {
            (*registry).free_records = (*record).next;
        }
        if record.is_null() {
            return null_mut();
        }
        record.write(Record {
            next: (*block).records,
            words,
            account,
            function,
            slow_ticks: 0.0,
            stop: 0,
            token_updates: 0,
            token_passes: 0.0,
            round_start: 0,
            round_passes: 0.0,
            pairs: PairSums::default(),
            phase: Phase::Gap,
            monitored_first: false,
            pair_passes: 1.0,
            pass_ticks: 0.0,
            monitored_pass_ticks: 0.0,
            start_ticks: 0,
            start_recorded: 0,
            stretches: [Stretch::default(); 2],
            hot_passes: [0; COVARIATES],
            hot_recorded: [0; COVARIATES],
            hot_version: 0,
            covariates_version: 0,
            pair_is_spoiled: false,
        });
        (*block).records = record;
        record
    }
}

/// Account and words of a hot function in this thread.
unsafe fn hot_state(thread: *const Thread, hot: Hot) -> Option<(i64, i64)> {
    // SAFETY: blocks and records of the calling thread.
    unsafe {
        let block = (*thread).blocks[hot.module % MAX_MODULES];
        if block.is_null() {
            return None;
        }
        let account = (*block).accounts().add(hot.function);
        if (*account).length == 0 {
            return None;
        }
        let words: *const FunctionWords = (*block).image().add(hot.offset).cast();
        Some(((*account).passes_now(&*words).0, (*words).recorded))
    }
}

unsafe fn note_hot(registry: *mut Registry, thread: *mut Thread, record: &mut Record) {
    // SAFETY: the list of hot functions changes rarely; a torn list spoils one pair, which the
    // version shows.
    unsafe {
        record.hot_version = get(field!(registry, hot_version));
        for index in 0..get(field!(registry, hot_count)).min(COVARIATES) {
            let hot = (*registry).hot[index];
            let (passes, recorded) = hot_state(thread, hot).unwrap_or((0, 0));
            record.hot_passes[index] = passes;
            record.hot_recorded[index] = recorded;
        }
    }
}

unsafe fn end_stretch(
    registry: *mut Registry,
    thread: *mut Thread,
    record: &mut Record,
    now: u64,
    module: usize,
) {
    // SAFETY: as in `note_hot`.
    unsafe {
        let is_monitored = match record.phase {
            Phase::Gap => return,
            Phase::First => record.monitored_first,
            Phase::Second => !record.monitored_first,
        };
        let version = get(field!(registry, hot_version));
        let count = get(field!(registry, hot_count)).min(COVARIATES);
        let recorded = (*record.words).recorded;
        let mut stretch = Stretch {
            ticks: now.wrapping_sub(record.start_ticks) as f64,
            updates: recorded.wrapping_sub(record.start_recorded) as f64,
            ..Stretch::default()
        };
        if record.hot_version == version {
            let ns_per_tick = (*registry).ns_per_tick;
            for index in 0..count {
                let hot = (*registry).hot[index];
                let Some((passes, recorded)) = hot_state(thread, hot) else {
                    continue;
                };
                stretch.hot_passes[index] = passes.wrapping_sub(record.hot_passes[index]) as f64;
                if (hot.module, hot.function) != (module, record.function) && ns_per_tick > 0.0 {
                    let order = (*registry).orders[hot.module % MAX_MODULES].add(hot.function);
                    let updates = recorded.wrapping_sub(record.hot_recorded[index]) as f64;
                    stretch.hot_ticks += updates * get(field!(order, price_ns)) / ns_per_tick;
                }
            }
        } else {
            record.pair_is_spoiled = true;
        }
        record.stretches[usize::from(is_monitored)] = stretch;
        if is_monitored && record.pair_passes > 0.0 {
            let rate = stretch.updates / record.pair_passes;
            (*record.account).stretches += 1.0;
            (*record.account).rate_sum += rate;
            (*record.account).rate_squares += rate * rate;
        }
        if record.covariates_version != version {
            record.covariates_version = version;
            record.pairs = record.pairs.without_passes();
        }
        if record.phase == Phase::Second {
            let order: *mut Order = (*registry).orders[module % MAX_MODULES].add(record.function);
            let factor = get(field!(order, stretch_factor));
            end_pair(record, (*registry).ns_per_tick, factor);
        }
    }
}

fn end_pair(record: &mut Record, ns_per_tick: f64, stretch_factor: f64) {
    let [plain, monitored] = record.stretches;
    let passes = record.pair_passes;
    let longest = OUTLIER * record.pass_ticks.max(record.monitored_pass_ticks) * passes;
    let is_first = record.pass_ticks == 0.0;
    // One threshold for both, or the choice of pairs would depend on monitoring.
    if !is_first && plain.ticks <= longest && monitored.ticks <= longest && !record.pair_is_spoiled
    {
        let mut others = [0.0; COVARIATES];
        for (index, other) in others.iter_mut().enumerate() {
            *other = monitored.hot_passes[index] - plain.hot_passes[index];
        }
        let time = monitored.ticks - plain.ticks - (monitored.hot_ticks - plain.hot_ticks);
        let updates = monitored.updates - plain.updates;
        // Before the first round of control, the length of a tick is not known.
        if ns_per_tick > 0.0 {
            record.pairs.push(&StretchPair {
                time_ns: time * ns_per_tick,
                events: updates,
                passes: others,
            });
        }
    }
    record.pair_is_spoiled = false;
    let count = record.pairs.pairs();
    let weight = if count < 16.0 {
        (count + 1.0).recip()
    } else {
        0.06
    };
    for (mean, stretch) in [
        (&mut record.pass_ticks, plain),
        (&mut record.monitored_pass_ticks, monitored),
    ] {
        let mut ticks = stretch.ticks / passes;
        if !is_first {
            ticks = ticks.min(8.0 * *mean);
        }
        *mean += weight * (ticks - *mean);
    }
    let stretch_ns = if count < MANY_PAIRS {
        STRETCH_NS * stretch_factor
    } else {
        (STRETCH_NS * stretch_factor).max(LONG_STRETCH_NS)
    };
    let stretch_ticks = stretch_ns / if ns_per_tick > 0.0 { ns_per_tick } else { 1.0 };
    let wanted = stretch_ticks / (record.pass_ticks + 1.0);
    record.pair_passes = wanted.min(4.0 * passes).clamp(1.0, MOST_PASSES).floor();
}

/// Whether the next stretch is monitored, and its passes.
unsafe fn next_stretch(
    record: &mut Record,
    thread: *mut Thread,
    order: Order,
    ns_per_tick: f64,
) -> (bool, i64) {
    let passes = record.pair_passes as i64;
    match record.phase {
        Phase::First => {
            record.phase = Phase::Second;
            (!record.monitored_first, passes)
        }
        Phase::Gap => {
            record.phase = Phase::First;
            // SAFETY: the thread is the calling one.
            record.monitored_first = unsafe { random(thread) } & 1 == 1;
            (record.monitored_first, passes)
        }
        Phase::Second => {
            // SAFETY: the thread is the calling one.
            let uniform =
                0.25 + 1.5 * (unsafe { random(thread) } >> 11) as f64 / (1_u64 << 53) as f64;
            let share = order.share.clamp(1e-5, 1.0);
            let is_monitored = share > 0.5;
            let lengths = if is_monitored {
                ((2.0 * share - 1.0) / (1.0 - share + 1.0 / 64.0)).min(order.monitored_gap)
            } else {
                share.recip() - 2.0
            };
            let longest_ns = record.pass_ticks * ns_per_tick.max(1e-3) + 1e-3;
            let gap = (lengths * uniform * record.pair_passes).min(LONGEST_GAP_NS / longest_ns);
            if gap < 1.0 {
                record.phase = Phase::First;
                // SAFETY: the thread is the calling one.
                record.monitored_first = unsafe { random(thread) } & 1 == 1;
                (record.monitored_first, passes)
            } else {
                record.phase = Phase::Gap;
                (is_monitored, gap as i64)
            }
        }
    }
}

unsafe fn random(thread: *mut Thread) -> u64 {
    // SAFETY: the thread is the calling one.
    unsafe {
        let mut state = (*thread).random;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (*thread).random = state;
        state
    }
}

/// Destructor of the thread's key: keeps the results of a thread that ends, and its memory for the
/// next one.
unsafe extern "C" fn thread_ended(value: *mut c_void) {
    let thread: *mut Thread = value.cast();
    // SAFETY: the C library passes the value that this thread has set.
    unsafe {
        let registry = registry();
        // Other destructors may be instrumented and run later: wait for the last round.
        (*thread).rounds_of_destructors += 1;
        if (*thread).rounds_of_destructors < 4 {
            libc::pthread_setspecific((*registry).key, value);
            return;
        }
        let _held = LOCK.lock();
        set(field!(thread, is_inside), true);
        for index in 0..(*registry).modules.min(MAX_MODULES) {
            let block = (*thread).blocks[index];
            if !block.is_null() {
                (*thread).blocks[index] = null_mut();
                keep_results(registry, index, block);
            }
        }
        let mut place = field!(registry, threads);
        while !(*place).is_null() && *place != thread {
            place = field!(*place, next);
        }
        if !(*place).is_null() {
            *place = (*thread).next;
        }
    }
}

/// Adds the results of a block to those of ended threads.
unsafe fn keep_results(registry: *mut Registry, index: usize, block: *mut Block) {
    // SAFETY: the lock is held, and the block's thread runs no instrumented code any more.
    unsafe {
        let slot: *mut Slot = &mut (&mut (*registry).slots)[index];
        if (*slot).ended.is_null() {
            (*slot).ended = new_block(registry, index, 0);
        }
        let ended = (*slot).ended;
        if ended.is_null() || (*slot).module.is_null() {
            // The block itself stays the place of its results.
            (*block).is_running = false;
            return;
        }
        close_strata(&*slot, block);
        for segment in 0..(*slot).segments {
            let from = *(*block).estimates().add(segment);
            (*(*ended).estimates().add(segment)).merge(&from);
        }
        add_image(slot, (*ended).image(), (*block).image());
        for function in 0..(*slot).functions {
            let (to, from) = (
                (*ended).accounts().add(function),
                (*block).accounts().add(function),
            );
            (*to).stretches += (*from).stretches;
            (*to).rate_sum += (*from).rate_sum;
            (*to).rate_squares += (*from).rate_squares;
        }
        add_passes(slot, ended, block);
        let mut record = (*block).records;
        while !record.is_null() {
            let next = (*record).next;
            if !(*slot).ended_pairs.is_null() {
                (*(*slot).ended_pairs.add((*record).function)).merge(&(*record).pairs);
            }
            (*registry).slow_ticks_of_ended += (*record).slow_ticks;
            (*record).next = (*registry).free_records;
            (*registry).free_records = record;
            record = next;
        }
        (*block).records = null_mut();
        set(field!((*block).chunk, state), STATE_FREE);
        let mut place = field!(registry, blocks);
        while !(*place).is_null() && *place != block {
            place = field!(*place, next);
        }
        if !(*place).is_null() {
            *place = (*block).next;
        }
        (*block).next = (*slot).free;
        (*slot).free = block;
    }
}

/// Ends the last stratum of each function of a block.
unsafe fn close_strata(slot: &Slot, block: *mut Block) {
    // SAFETY: the lock is held, and the block's thread runs no instrumented code any more.
    unsafe {
        let mut number = 0;
        for object in objects(slot.module) {
            let offset = object.block as usize - (*slot.module).image_start as usize;
            for function in 0..object.functions as usize {
                let place = offset + function * WORDS_BYTES;
                let words = *(*block).image().add(place).cast::<FunctionWords>();
                if (*(*block).accounts().add(number)).length != 0 {
                    close_stratum(slot, block, number, &words, true);
                }
                number += 1;
            }
        }
    }
}

/// Adds ranges, counters and recorded updates of one image to another one.
unsafe fn add_image(slot: *const Slot, to: *mut u8, from: *mut u8) {
    // SAFETY: both are images of the slot's module.
    unsafe {
        let module = (*slot).module;
        for object in objects(module) {
            let offset = object.block as usize - (*module).image_start as usize;
            let (to, from) = (to.add(offset), from.add(offset));
            let functions = object.functions as usize;
            for function in 0..functions {
                let place = function * WORDS_BYTES;
                let to: *mut FunctionWords = to.add(place).cast();
                (*to).recorded += (*from.add(place).cast::<FunctionWords>()).recorded;
            }
            let mut widths = Widths::new(object);
            let ranges = functions * WORDS_BYTES;
            for variable in 0..object.variables as usize {
                let place = ranges + variable * crate::layout::RANGE_BYTES;
                let (to, from) = (to.add(place).cast::<[u64; 2]>(), from.add(place).cast());
                *to = widths.next().merge(*to, *from);
            }
            let counters = ranges + object.variables as usize * crate::layout::RANGE_BYTES;
            for segment in 0..object.segments as usize {
                let place = counters + segment * 8;
                *to.add(place).cast::<u64>() += *from.add(place).cast::<u64>();
            }
        }
    }
}

/// Walks the types of an object file's variables, as its text states them.
struct Widths<'a> {
    lines: std::slice::Split<'a, u8, fn(&u8) -> bool>,
}

impl<'a> Widths<'a> {
    unsafe fn new(object: &'a Object) -> Self {
        // SAFETY: the text has this length.
        let text = unsafe { std::slice::from_raw_parts(object.text, object.text_bytes as usize) };
        let is_end: fn(&u8) -> bool = |byte| *byte == b'\n';
        Self {
            lines: text.split(is_end),
        }
    }

    fn next(&mut self) -> Storage {
        for line in self.lines.by_ref() {
            if line.starts_with(b"V\t") {
                return match (line.ends_with(b"\t64\tu"), line.ends_with(b"\t64\ts")) {
                    (true, _) => Storage::Unsigned,
                    (_, true) => Storage::Signed,
                    _ => Storage::Width,
                };
            }
        }
        Storage::Width
    }
}

/// How the range of a variable is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Minimum and width: types of less than 64 bits.
    Width,
    /// Signed minimum and maximum.
    Signed,
    /// Unsigned minimum and maximum.
    Unsigned,
}

impl Storage {
    /// Minimum and maximum as they are stored; `None` if there is no value.
    pub(crate) const fn range(self, [low, high]: [u64; 2]) -> Option<(i128, i128)> {
        let (low, high) = match self {
            Self::Width if low == i64::MAX as u64 => return None,
            Self::Width => {
                let minimum = low as i64 as i128;
                (minimum, minimum + high as i128)
            }
            Self::Signed => (low as i64 as i128, high as i64 as i128),
            Self::Unsigned => (low as i128, high as i128),
        };
        if low > high {
            None
        } else {
            Some((low, high))
        }
    }

    const fn stored(self, (low, high): (i128, i128)) -> [u64; 2] {
        match self {
            Self::Width => [low as i64 as u64, (high - low) as u64],
            Self::Signed | Self::Unsigned => [low as u64, high as u64],
        }
    }

    fn merge(self, one: [u64; 2], other: [u64; 2]) -> [u64; 2] {
        match (self.range(one), self.range(other)) {
            (_, None) => one,
            (None, _) => other,
            (Some(a), Some(b)) => self.stored((a.0.min(b.0), a.1.max(b.1))),
        }
    }
}

unsafe fn add_passes(slot: *const Slot, to: *mut Block, from: *mut Block) {
    // SAFETY: both are blocks of the slot's module.
    unsafe {
        let module = (*slot).module;
        let mut number = 0;
        for object in objects(module) {
            let offset = object.block as usize - (*module).image_start as usize;
            for function in 0..object.functions as usize {
                let place = offset + function * WORDS_BYTES;
                let words = (*from).image().add(place).cast::<FunctionWords>();
                let account = (*from).accounts().add(number);
                if (*account).length != 0 {
                    let (passes, monitored) = (*account).passes_now(&*words);
                    (*(*to).accounts().add(number)).passes += passes;
                    (*(*to).accounts().add(number)).monitored += monitored;
                }
                number += 1;
            }
        }
    }
}

/// The lock while a fork is under way. Guarded by the lock itself.
static mut FORK: Option<Held<'static>> = None;

extern "C" fn before_fork() {
    let held = LOCK.lock();
    // SAFETY: the lock is held.
    unsafe { *std::ptr::addr_of_mut!(FORK) = Some(held) };
}

extern "C" fn after_fork_in_parent() {
    // SAFETY: `before_fork` of this thread has taken the lock.
    drop(unsafe { (*std::ptr::addr_of_mut!(FORK)).take() });
}

/// The child goes on with fresh blocks in a file of its own, at the same addresses.
extern "C" fn after_fork() {
    // SAFETY: the child has one thread, and it is here.
    unsafe {
        LOCK.renew();
        let held = (*std::ptr::addr_of_mut!(FORK)).take();
        let registry = registry();
        let thread: *mut Thread = libc::pthread_getspecific((*registry).key).cast();
        open_file(registry);
        (*registry).hot_count = 0;
        (*registry).slow_ticks_of_ended = 0.0;
        (*registry).blocks = null_mut();
        (*registry).threads = thread;
        if !thread.is_null() {
            (*thread).next = null_mut();
        }
        for index in 0..(*registry).modules.min(MAX_MODULES) {
            let slot: *mut Slot = &mut (&mut (*registry).slots)[index];
            (*slot).ended = null_mut();
            (*slot).free = null_mut();
            (*slot).chunk = null_mut();
            if (*slot).module.is_null() {
                continue;
            }
            if !(*slot).ended_pairs.is_null() {
                (*slot)
                    .ended_pairs
                    .cast::<u8>()
                    .write_bytes(0, (*slot).functions * size_of::<PairSums>());
            }
            let text: usize = objects((*slot).module)
                .iter()
                .map(|o| 33 + o.text_bytes as usize)
                .sum();
            describe_module(registry, index, text);
            if thread.is_null() || (*thread).blocks[index].is_null() {
                continue;
            }
            let block = (*thread).blocks[index];
            let bytes = block_bytes(slot);
            let chunk = (*block).chunk.cast::<u8>();
            if (*registry).file.append_at(chunk, bytes).is_null() {
                private_again(chunk, bytes);
            }
            fill(slot, (*block).chunk, thread_id(), index);
            (*block).records = null_mut();
            (*block).next = (*registry).blocks;
            (*registry).blocks = block;
        }
        if let Some(held) = held {
            held.restore_mask();
        }
        if (*registry).mode == Mode::Budget {
            control::start();
        }
    }
}

/// Replaces a mapping that parent and child share by private memory.
unsafe fn private_again(chunk: *mut u8, bytes: usize) {
    // SAFETY: the address and length are those of a chunk.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(chunk.cast(), pages(bytes), protection, flags, -1, 0);
    }
}

/// Nanoseconds of a clock of this process.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as c_long as f64
}
