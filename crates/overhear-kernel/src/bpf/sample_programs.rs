// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and attaches the programs of one sampler (`samples.bpf.c`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::btf::types::Struct;
use libbpf_rs::btf::Btf;
use libbpf_rs::{MapCore, Object, ProgramAttachType};
use overhear_event::SamplePoint;
use overhear_sampling::counters::{CounterEvent, CounterGroup, CounterOptions, CounterTarget};

use super::load::{self, into_io, Aligned, Attached};
use super::map::Map;
use super::rings::Rings;
use super::sample_layout::{SampleSettings, SamplerWords, SAMPLER_WORDS_BYTES};
use crate::machine;
use crate::mapping::{Access, Mapping};
use crate::perf::clock;
use crate::samples::{ResolvedSampler, SamplerError, MAX_COUNTERS};

static SAMPLES_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/samples.bpf.o")));

/// The constants of a sampler, in their own section.
const SETTINGS: &str = ".rodata.sampler";
/// The program that user space runs over tasks.
const SELECT: &str = "select";
/// Programs of lives and switches, without which no sum of samples would be a total.
const ALWAYS: [&str; 5] = [
    "on_switch",
    "on_fork",
    "on_fork_again",
    "on_exec",
    "on_exit",
];
/// The program of the timer.
const TIMER: &str = "on_timer";
/// Programs of functions.
const FUNCTIONS: [&str; 2] = ["on_probe", "on_probe_return"];

/// Loaded and attached programs of a sampler. Dropping it detaches them.
pub(super) struct SamplePrograms {
    links: Vec<OwnedFd>,
    functions: Vec<Attached>,
    /// One group for each CPU.
    _counters: Vec<CounterGroup>,
    pub(super) select: OwnedFd,
    /// The program of switches, for its count of calls that the kernel skipped.
    pub(super) on_switch: OwnedFd,
    pub(super) words: SamplerWords,
    // Before Linux 6.6 libbpf keeps data of the functions with it. It is dropped last.
    _object: Object,
}

impl SamplePrograms {
    /// Loads the programs that the sampler needs, and attaches them.
    pub(super) fn start(
        sampler: &ResolvedSampler,
        settings: &SampleSettings,
        rings: &Rings,
    ) -> Result<Self, SamplerError> {
        let refused = |why: String| SamplerError::Refused {
            name: sampler.name.clone(),
            why,
        };
        check_accounts(sampler)?;
        check_period(sampler)?;
        let (loaded, log) = load::with_captured_log(|| load(sampler, settings, rings));
        let mut object = loaded.map_err(|error| refused(load::explain(&error, &log)))?;
        let counters = open_counters(sampler, &object)?;
        let attached = attach(sampler, &object);
        let links = attached
            .map_err(|(name, error)| refused(format!("{name} cannot be attached ({error})")))?;
        let functions = functions_of(sampler);
        let functions = functions.map(|(function, point)| {
            load::attach(&mut object, function, point.as_raw().into()).map_err(SamplerError::Probe)
        });
        let functions = functions.collect::<Result<_, _>>()?;
        let finish = || {
            let mapped = map(&object, "words")?;
            let mapping = Mapping::new(mapped.as_fd(), rustix::param::page_size(), Access::Write)?;
            let words = SamplerWords(mapping.part(0, SAMPLER_WORDS_BYTES));
            Ok((
                program(&object, SELECT)?,
                program(&object, ALWAYS[0])?,
                words,
            ))
        };
        let (select, on_switch, words) =
            finish().map_err(|error: io::Error| refused(machine::error_text(error)))?;
        Ok(Self {
            links,
            functions,
            _counters: counters,
            select,
            on_switch,
            words,
            _object: object,
        })
    }

    /// Detaches all programs that take samples.
    pub(super) fn detach(&mut self) {
        self.functions.clear();
        self.links.clear();
    }
}

/// The functions of a sampler, and the points that they are.
fn functions_of(
    sampler: &ResolvedSampler,
) -> impl Iterator<Item = (&crate::probe::ResolvedProbe, SamplePoint)> {
    let points = sampler.functions.iter().map(|it| (it, SamplePoint::Probe));
    let ends = sampler.job_ends.functions.iter();
    points.chain(ends.map(|it| (it, SamplePoint::JobEnd)))
}

/// Refuses accounts that this kernel does not keep; their values would be 0.
fn check_accounts(sampler: &ResolvedSampler) -> Result<(), SamplerError> {
    let Ok(types) = Btf::from_vmlinux() else {
        // Loading fails with a better reason.
        return Ok(());
    };
    for quantity in &sampler.quantities {
        let Some(need) = quantity.needs() else {
            continue;
        };
        let found = types.type_by_name::<Struct<'_>>(need.structure);
        let has = |found: Struct<'_>| {
            let mut members = found.iter();
            members.any(|member| member.name.is_some_and(|name| name == need.member))
        };
        if !found.is_some_and(has) {
            return Err(SamplerError::NoAccount {
                name: quantity.quantity().name.replace('_', "-"),
                option: need.option,
            });
        }
    }
    Ok(())
}

/// Refuses a timer that the kernel would slow down.
fn check_period(sampler: &ResolvedSampler) -> Result<(), SamplerError> {
    /// Periods of the kernel's clock events are never shorter.
    const SHORTEST_NS: u64 = 10_000;
    const NS_PER_SECOND: u64 = 1_000_000_000;
    let Some(period) = sampler.period else {
        return Ok(());
    };
    let asked = NS_PER_SECOND / period.as_ns().max(1);
    let (most, advice) = match machine::most_perf_samples_per_second() {
        Some(most) if most < NS_PER_SECOND / SHORTEST_NS => {
            (most, ", or raise kernel.perf_event_max_sample_rate")
        }
        _ => (NS_PER_SECOND / SHORTEST_NS, ""),
    };
    if asked <= most {
        return Ok(());
    }
    Err(SamplerError::TooFast {
        name: sampler.name.clone(),
        asked,
        most,
        advice,
    })
}

fn load(sampler: &ResolvedSampler, settings: &SampleSettings, rings: &Rings) -> io::Result<Object> {
    let mut object = load::open(&SAMPLES_OBJECT.0)?;
    let wanted = wanted(sampler);
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(name == SELECT || wanted.contains(&name.as_str()));
        if FUNCTIONS.contains(&name.as_str()) && load::has_multi_links() {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
    let broken = || io::Error::other("the BPF object lacks its settings: the build is broken");
    for mut map in object.maps_mut() {
        match map.name().to_string_lossy().as_ref() {
            SETTINGS => {
                let bytes = settings.as_bytes();
                let value = map.initial_value_mut().unwrap_or_default();
                let value = value.get_mut(..bytes.len()).ok_or_else(broken)?;
                value.copy_from_slice(&bytes);
            }
            "counters" => {
                let entries = machine::possible_cpus() * MAX_COUNTERS as u32;
                map.set_max_entries(entries).map_err(into_io)?;
            }
            "rings" => map.reuse_fd(rings.map.as_fd()).map_err(into_io)?,
            _ => {}
        }
    }
    object.load().map_err(into_io)
}

/// Opens the counters of each CPU, and gives them to the programs.
fn open_counters(
    sampler: &ResolvedSampler,
    object: &Object,
) -> Result<Vec<CounterGroup>, SamplerError> {
    let events: Vec<CounterEvent> = sampler.counters().cloned().collect();
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let refused = |error: io::Error| SamplerError::Refused {
        name: sampler.name.clone(),
        why: format!(
            "its programs cannot read counters ({})",
            machine::error_text(error)
        ),
    };
    let map = Map(map(object, "counters").map_err(refused)?);
    let mut groups = Vec::new();
    for cpu in machine::online_cpus() {
        let target = CounterTarget::Cpu(cpu);
        let group = CounterGroup::open(&events, target, CounterOptions::default());
        let group = group.map_err(SamplerError::Counter)?;
        for (number, event) in group.descriptors().enumerate() {
            let key = cpu * MAX_COUNTERS as u32 + number as u32;
            let updated = map.update(key.to_ne_bytes(), event.as_raw_fd().to_ne_bytes());
            updated.map_err(refused)?;
        }
        groups.push(group);
    }
    Ok(groups)
}

/// The programs to attach to tracepoints.
fn tracepoints(sampler: &ResolvedSampler) -> Vec<&'static str> {
    let mut wanted = ALWAYS.to_vec();
    let by_calls = sampler.at_entries || !sampler.job_ends.kinds.is_empty();
    let more = [
        ("on_wakeup", sampler.at_wake_ups),
        ("on_call", by_calls),
        ("on_return", sampler.at_exits),
    ];
    wanted.extend(more.iter().filter(|it| it.1).map(|it| it.0));
    wanted
}

fn wanted(sampler: &ResolvedSampler) -> Vec<&'static str> {
    let mut wanted = tracepoints(sampler);
    if sampler.period.is_some() {
        wanted.push(TIMER);
    }
    if functions_of(sampler).next().is_some() {
        wanted.extend(FUNCTIONS);
    }
    wanted
}

/// The links; an error has the name of the program.
fn attach(
    sampler: &ResolvedSampler,
    object: &Object,
) -> Result<Vec<OwnedFd>, (&'static str, io::Error)> {
    let mut links = Vec::new();
    let missing = || io::Error::other("the build is broken");
    // Lives before switches: no thread may leave the CPU without an account.
    for name in tracepoints(sampler).into_iter().rev() {
        let mut programs = object.progs_mut();
        let program = programs.find(|program| program.name() == name);
        let program = program.ok_or_else(|| (name, missing()))?;
        let link = program.attach().map_err(into_io);
        let link = link.and_then(|link| link.as_fd().try_clone_to_owned());
        links.push(link.map_err(|error| (name, error))?);
    }
    if let Some(period) = sampler.period {
        let mut programs = object.progs_mut();
        let program = programs.find(|program| program.name() == TIMER);
        let program = program.ok_or_else(|| (TIMER, missing()))?;
        for cpu in machine::online_cpus() {
            let link = load::attach_to_event(&program, clock(cpu, period.as_ns()));
            links.push(link.map_err(|error| (TIMER, error))?);
        }
    }
    Ok(links)
}

fn map(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let map = object.maps().find(|map| map.name() == name);
    let map =
        map.ok_or_else(|| io::Error::other(format!("the BPF object lacks the map {name}")))?;
    map.as_fd().try_clone_to_owned()
}

fn program(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let program = object.progs().find(|program| program.name() == name);
    let program =
        program.ok_or_else(|| io::Error::other(format!("the BPF object lacks {name}")))?;
    program.as_fd().try_clone_to_owned()
}
