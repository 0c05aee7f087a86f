// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a sample in a program costs: six counters, the ids and a stamp. The floor is one plain read
//! of the same group. PAPI takes part if its library can be loaded.
//!
//! Contenders take turns; a turn is a batch of calls. The table has the median of a contender's
//! batches, and the median of its ratios to the floor of the same round with their quartiles. Then
//! single calls are timed, for the jitter.
//!
//! `cargo bench -p overhear --bench samplers -- [ROUNDS]`; on a quiet CPU (`taskset -c 3`). The
//! targets are judged here and asserted by no test.
#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_longlong, c_void, CString};
use std::hint::black_box;
use std::os::fd::AsFd;
use std::time::Instant;

use overhear::{RegisterSamplerError, Sampler};
use overhear_sampling::counters::{CounterEvent, CounterGroup, CounterOptions, CounterTarget};

/// Counters of the CPU if there are any, else of the kernel.
const HARDWARE: [&str; 6] = [
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
    "cache-references",
    "llc-misses",
];
const SOFTWARE: [&str; 6] = [
    "task-clock",
    "cpu-clock",
    "page-faults",
    "minor-faults",
    "major-faults",
    "context-switches",
];
/// The same for PAPI.
const SOFTWARE_OF_PAPI: [&str; 6] = [
    "perf::TASK-CLOCK",
    "perf::CPU-CLOCK",
    "perf::PAGE-FAULTS",
    "perf::MINOR-FAULTS",
    "perf::MAJOR-FAULTS",
    "perf::CONTEXT-SWITCHES",
];
const HARDWARE_OF_PAPI: [&str; 6] = [
    "perf::CYCLES",
    "perf::INSTRUCTIONS",
    "perf::BRANCHES",
    "perf::BRANCH-MISSES",
    "perf::CACHE-REFERENCES",
    "perf::CACHE-MISSES",
];

/// Calls of a batch: so few that most batches are not interrupted.
const BATCH: u32 = 100;
/// Single calls that are timed for the jitter.
const SINGLE: usize = 200_000;
const TARGET_NS: f64 = 600.0;
const TARGET_DEVIATION_NS: f64 = 200.0;

/// A contender and its batches.
struct Contender {
    name: &'static str,
    call: Box<dyn FnMut()>,
    batches: Vec<f64>,
}

impl Contender {
    fn new(name: &'static str, call: impl FnMut() + 'static) -> Self {
        Self {
            name,
            call: Box::new(call),
            batches: Vec::new(),
        }
    }

    fn batch(&mut self) {
        let begin = Instant::now();
        for _ in 0..BATCH {
            (self.call)();
        }
        let ns = begin.elapsed().as_nanos() as f64 / f64::from(BATCH);
        self.batches.push(ns);
    }
}

/// The quartiles of values.
fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
}

fn main() -> Result<(), RegisterSamplerError> {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let rounds: usize = rounds.unwrap_or(5_000);
    let has_hardware = Sampler::builder("bench")
        .counters(HARDWARE)
        .register()
        .is_ok();
    let (names, of_papi) = match has_hardware {
        true => (HARDWARE, HARDWARE_OF_PAPI),
        false => (SOFTWARE, SOFTWARE_OF_PAPI),
    };
    println!("counters: {}", names.join(", "));

    let mut sampler = Sampler::builder("bench").counters(names).register()?;
    let mut other = Sampler::builder("bench")
        .instance("other")
        .counters(names)
        .register()?;
    println!(
        "read by {}; {}; memory {}",
        match sampler.uses_rdpmc() {
            true => "rdpmc",
            false => "one system call",
        },
        match sampler.is_connected() {
            true => "connected",
            false => "not connected",
        },
        match sampler.is_locked() {
            true => "locked",
            false => "not locked",
        }
    );
    let floor = floor(&names)?;
    let mut contenders = vec![
        Contender::new("plain group read (floor)", floor),
        Contender::new("sample", move || {
            black_box(sampler.sample());
        }),
        Contender::new("end of a job", move || {
            black_box(other.job_end());
        }),
        Contender::new("system call getppid", || {
            // SAFETY: no preconditions.
            black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        }),
        Contender::new("clock and CPU", || {
            // SAFETY: no preconditions.
            black_box((Instant::now(), unsafe { libc::sched_getcpu() }));
        }),
    ];
    match Papi::start(&of_papi) {
        Ok(mut papi) => contenders.push(Contender::new("PAPI_read", move || papi.read())),
        Err(reason) => println!("PAPI is left out: {reason}"),
    }
    if !has_hardware {
        println!("LIKWID is left out: it needs hardware counters");
    }

    for round in 0..rounds {
        let count = contenders.len();
        // Each round begins with another contender.
        for place in 0..count {
            contenders[(round + place) % count].batch();
        }
    }
    println!("\n{:<26} {:>9} {:>22}", "", "ns", "ratio to the floor");
    let floor = contenders[0].batches.clone();
    for contender in &contenders {
        let ratios = contender.batches.iter().zip(&floor);
        let ratios: Vec<f64> = ratios.map(|(own, floor)| own / floor).collect();
        let [_, median, _] = quartiles(&contender.batches);
        let [low, middle, high] = quartiles(&ratios);
        println!(
            "{:<26} {median:>9.1} {middle:>8.3} ({low:.3}-{high:.3})",
            contender.name
        );
    }
    let [_, sample, _] = quartiles(&contenders[1].batches);
    judge("a sample", sample, TARGET_NS);

    println!("\njitter of single calls (the pair of clock readings around each is subtracted):");
    let clock = single(&mut || {});
    let [_, clock, _] = quartiles(&clock);
    for index in [0, 1] {
        let contender = &mut contenders[index];
        let times: Vec<f64> = single(&mut contender.call)
            .into_iter()
            .map(|ns| ns - clock)
            .collect();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize];
        // One call in a thousand may contain an interrupt, which is not the sampler's.
        let calm: Vec<f64> = sorted[..sorted.len() * 999 / 1000].to_vec();
        println!(
            "{:<26} median {:.0}, 99 % {:.0}, 99.9 % {:.0}, largest {:.0} ns; standard deviation \
             {:.0}, without the largest 0.1 % {:.0} ns",
            contender.name,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            deviation(&times),
            deviation(&calm)
        );
        if index == 1 {
            judge(
                "the standard deviation without the largest 0.1 %",
                deviation(&calm),
                TARGET_DEVIATION_NS,
            );
        }
    }
    Ok(())
}

fn judge(what: &str, ns: f64, target: f64) {
    let verdict = if ns <= target { "met" } else { "missed" };
    println!("target: {what} at most {target:.0} ns: {ns:.0} ns, {verdict}");
}

/// The times of single calls, with those of the clock.
fn single(call: &mut dyn FnMut()) -> Vec<f64> {
    let mut times = Vec::with_capacity(SINGLE);
    for _ in 0..SINGLE {
        let begin = Instant::now();
        call();
        times.push(begin.elapsed().as_nanos() as f64);
    }
    times
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (squares.sum::<f64>() / count).sqrt()
}

/// One read of a group of the same counters, and nothing else.
fn floor(names: &[&str]) -> Result<impl FnMut(), RegisterSamplerError> {
    let events: Result<Vec<_>, _> = names.iter().map(|name| CounterEvent::parse(name)).collect();
    let target = CounterTarget::CallingThread;
    let group = CounterGroup::open(&events?, target, CounterOptions::default())?;
    let mut buffer = [0_u8; 8 * 7];
    Ok(move || {
        let leader = group.descriptors().next().expect("it has counters");
        let read = rustix::io::read(leader.as_fd(), &mut buffer);
        assert_eq!(read, Ok(8 * 7));
        black_box(&buffer);
    })
}

/// An event set of PAPI, whose library is loaded.
struct Papi {
    read: unsafe extern "C" fn(c_int, *mut c_longlong) -> c_int,
    set: c_int,
    values: [c_longlong; 6],
}

impl Papi {
    fn start(names: &[&str; 6]) -> Result<Self, String> {
        // SAFETY: the library's initialisers have no preconditions.
        let library = unsafe { libc::dlopen(c"libpapi.so.7.0".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("libpapi.so.7.0 cannot be loaded (Debian: libpapi7.0)".to_owned());
        }
        let symbol = |name: &str| -> Result<*mut c_void, String> {
            let name = CString::new(name).map_err(|error| error.to_string())?;
            // SAFETY: the library stays loaded.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            match address.is_null() {
                true => Err(format!("it has no {name:?}")),
                false => Ok(address),
            }
        };
        // SAFETY: the types are those of papi.h, version 7.0.
        unsafe {
            use std::mem::transmute;
            let init: unsafe extern "C" fn(c_int) -> c_int =
                transmute(symbol("PAPI_library_init")?);
            let create: unsafe extern "C" fn(*mut c_int) -> c_int =
                transmute(symbol("PAPI_create_eventset")?);
            let add: unsafe extern "C" fn(c_int, *const c_char) -> c_int =
                transmute(symbol("PAPI_add_named_event")?);
            let start: unsafe extern "C" fn(c_int) -> c_int = transmute(symbol("PAPI_start")?);
            let read = transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, *mut c_longlong) -> c_int,
            >(symbol("PAPI_read")?);
            let version = 7 << 24;
            if init(version) != version {
                return Err("PAPI_library_init refuses".to_owned());
            }
            let mut set = -1;
            if create(&mut set) != 0 {
                return Err("PAPI_create_eventset fails".to_owned());
            }
            for name in names {
                let name = CString::new(*name).map_err(|error| error.to_string())?;
                let code = add(set, name.as_ptr());
                if code != 0 {
                    return Err(format!("PAPI_add_named_event({name:?}) returns {code}"));
                }
            }
            match start(set) {
                0 => Ok(Self {
                    read,
                    set,
                    values: [0; 6],
                }),
                code => Err(format!("PAPI_start returns {code}")),
            }
        }
    }

    fn read(&mut self) {
        // SAFETY: the set was started, and `values` has a word for each of its events.
        let code = unsafe { (self.read)(self.set, self.values.as_mut_ptr()) };
        assert_eq!(code, 0);
        black_box(&self.values);
    }
}
