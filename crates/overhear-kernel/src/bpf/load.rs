// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and attaches the programs, and turns libbpf's log into one phrase.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use libbpf_rs::btf::types::{Func, Struct, Typedef};
use libbpf_rs::btf::Btf;
use rustix::io::Errno;

use libbpf_rs::{
    libbpf_sys, set_print, Link, MapCore, Object, ObjectBuilder, OpenObject, PrintLevel,
    ProgramAttachType, ProgramMut, UprobeMultiOpts, UprobeOpts, UsdtOpts,
};

use super::layout;
use super::map::Map;
use super::programs::{
    Program, ESSENTIAL, FAULTS, MASKING, OPTIONAL, PROBES, SCHED, SELECT, SERVED_FAULTS,
};
use crate::machine;
use crate::perf::{faults, served_faults, tracepoint};
use crate::probe::{KernelPoint, PointProgram, ProbeTarget, ResolvedProbe};
use crate::streams::Hook;
use crate::ProbeError;

/// An ELF file must begin at a word boundary; `include_bytes` alone does not guarantee this.
#[repr(C, align(8))]
pub(super) struct Aligned<Bytes: ?Sized>(pub(super) Bytes);

static SCHED_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sched.bpf.o")));

static SENSORS_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sensors.bpf.o")));

static POINTS_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/points.bpf.o")));

static PROBES_OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/probes.bpf.o")));

/// The constants of a point, in their own section.
const POINT_SETTINGS: &str = ".rodata.point";

/// Maps that all objects share.
pub(crate) struct Maps {
    pub(crate) shared: Map,
    pub(crate) rings: Map,
    pub(crate) tracked: Map,
    pub(crate) cgroups: Map,
}

/// Attached programs: descriptors of kernel objects, which exist as long as a process has one.
pub(crate) struct Loaded {
    /// Links that keep the programs attached, with the hooks of the programs.
    pub(crate) links: Vec<(Option<Hook>, OwnedFd)>,
    /// The attached programs that write, with the hook of the rings that they write to.
    pub(crate) writers: Vec<(Hook, OwnedFd)>,
    /// The wanted programs that could not be attached.
    pub(crate) missing: Vec<&'static Program>,
}

impl Loaded {
    /// The effects of missing programs, as phrases.
    pub(crate) fn notes(&self) -> Vec<&'static str> {
        self.missing
            .iter()
            .map(|program| program.effect_if_missing)
            .collect()
    }

    /// Its programs, to attach them again.
    pub(crate) fn programs(&self) -> io::Result<Vec<(Hook, OwnedFd)>> {
        let copy = |(hook, program): &(Hook, OwnedFd)| Ok((*hook, program.try_clone()?));
        self.writers.iter().map(copy).collect()
    }

    /// Removes the programs of a hook, so that they can end separately.
    pub(crate) fn split_off(&mut self, hook: Hook) -> Self {
        let links = self.links.extract_if(.., |(of, _)| *of == Some(hook));
        let links = links.collect();
        let writers = self.writers.extract_if(.., |(of, _)| *of == hook);
        let writers = writers.collect();
        let missing = self.missing.extract_if(.., |it| it.hook == Some(hook));
        Self {
            links,
            writers,
            missing: missing.collect(),
        }
    }
}

/// Loads the scheduling programs that this kernel supports, those of wake-ups only with `wakeups`,
/// and `select`. The error is the reason why nothing can be loaded.
pub(crate) fn load_sched(
    mask_interrupts: bool,
    wakeups: bool,
) -> Result<(Loaded, OwnedFd, Maps), String> {
    let wanted_hook = |program: &&Program| wakeups || program.hook != Some(Hook::Wake);
    let all: Vec<&'static Program> = SCHED.iter().filter(wanted_hook).collect();
    let (result, log) = with_captured_log(|| {
        let available = available(&SCHED)?;
        if available.first().map(|program| program.name) != Some(SCHED[0].name) {
            return Err(io::Error::other(
                "this kernel has no tracepoint sched_switch",
            ));
        }
        // If the kernel's verifier refuses one program, the whole object fails to load. So the
        // second attempt leaves out what is not essential, and the third all but the switches.
        let attempts = [SCHED.len(), ESSENTIAL, 1];
        let mut first_error = None;
        for attempt in attempts {
            let wanted: Vec<&'static Program> = SCHED[..attempt]
                .iter()
                .filter(wanted_hook)
                .filter(|program| available.iter().any(|known| known.name == program.name))
                .collect();
            match try_load_sched(mask_interrupts, &wanted, &all) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => first_error.get_or_insert(error),
            };
        }
        Err(first_error.unwrap_or_else(|| io::ErrorKind::Other.into()))
    });
    result.map_err(|error| explain(&error, &log))
}

/// Loads the programs of one optional hook; the phrase in the error follows
/// "because".
pub(crate) fn load_hook(hook: Hook, mask_interrupts: bool, maps: &Maps) -> Result<Loaded, String> {
    let (programs, bytes): (&'static [Program], _) = if hook == Hook::Wake {
        (&SCHED, &SCHED_OBJECT.0)
    } else {
        (&OPTIONAL, &SENSORS_OBJECT.0)
    };
    let all: Vec<&'static Program> = of_hook(programs, hook).collect();
    let (result, log) = with_captured_log(|| {
        let available = available(programs)?;
        let wanted = |program: &&Program| available.iter().any(|known| known.name == program.name);
        let wanted: Vec<_> = all.iter().copied().filter(wanted).collect();
        let writes_nothing = wanted.iter().all(|program| program.is_helper);
        let Some(first) = all.first().filter(|_| writes_nothing) else {
            return try_load(bytes, mask_interrupts, &wanted, &all, &[], Some(maps))
                .map(|(loaded, _)| loaded);
        };
        let missing = format!("this kernel has no tracepoint {}", first.tracepoint);
        Err(io::Error::new(io::ErrorKind::Unsupported, missing))
    });
    let loaded = result.map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => error.to_string(),
        _ => explain(&error, &log),
    })?;
    if loaded.links.is_empty() {
        return Err("none of its tracepoints can be used".to_owned());
    }
    Ok(loaded)
}

/// Loads the programs of probes; the phrase in the error follows "because".
pub(crate) fn load_probes(mask_interrupts: bool, maps: &Maps) -> Result<Object, String> {
    let load = || {
        try_load(
            &PROBES_OBJECT.0,
            mask_interrupts,
            &[],
            &[],
            &PROBES,
            Some(maps),
        )
        .map(|(_, object)| object)
    };
    let (result, log) = with_captured_log(load);
    result.map_err(|error| explain(&error, &log))
}

/// An attached probe; it is detached when this value is dropped.
pub(crate) struct Attached {
    /// Links, if they alone keep the probe attached: each process that has descriptors of them has
    /// the probe. Empty before Linux 6.6: there the probe is a perf event that libbpf keeps, and
    /// disables when it is dropped.
    pub(crate) links: Vec<OwnedFd>,
    /// For a point of the kernel: the number of the rings that its program writes to, and the
    /// program.
    pub(crate) point: Option<(u32, OwnedFd)>,
    /// The link that libbpf keeps.
    _link: Option<Link>,
}

impl Attached {
    /// A point that another process has attached. Its links are among those of the monitor's
    /// programs.
    pub(crate) fn received(point: (u32, OwnedFd)) -> Self {
        Self {
            links: Vec::new(),
            point: Some(point),
            _link: None,
        }
    }

    /// Detaches the probe. The program of a point is returned, because its counts are still
    /// readable.
    pub(crate) fn detach(self) -> Option<(u32, OwnedFd)> {
        self.point
    }

    /// Whether the probe ends with the process that attached it.
    pub(crate) fn is_bound(&self) -> bool {
        self.links.is_empty()
    }
}

/// Loads and attaches the program of a point; the phrase in the error follows "because".
pub(crate) fn attach_point(
    point: &KernelPoint,
    settings: &[u8],
    slot: u32,
    mask_interrupts: bool,
    maps: &Maps,
) -> Result<Attached, String> {
    let (result, log) =
        with_captured_log(|| try_attach_point(point, settings, mask_interrupts, maps));
    let (link, program) = result.map_err(|failed| match failed {
        // This process may use the kernel's tracepoints, or there would be no monitor here.
        NotAttached::Load(error)
            if point.program.is_of_function()
                && is_refusal(&error)
                && machine::has_bpf_capabilities() =>
        {
            "this kernel permits no programs at its functions, although it permits others".to_owned()
        }
        NotAttached::Load(error) => explain(&error, &log),
        // A tracer could not replace its first instruction.
        NotAttached::Attach(error) if point.program.is_of_function() => format!(
            "the kernel's tracer does not reach it: it is marked notrace, or begins in another way ({error})"
        ),
        NotAttached::Attach(error) => format!("the kernel refused to attach to it ({error})"),
    })?;
    Ok(Attached {
        links: vec![link],
        point: Some((slot, program)),
        _link: None,
    })
}

/// The step that failed.
enum NotAttached {
    Load(io::Error),
    Attach(io::Error),
}

impl From<io::Error> for NotAttached {
    fn from(error: io::Error) -> Self {
        Self::Load(error)
    }
}

fn try_attach_point(
    point: &KernelPoint,
    settings: &[u8],
    mask_interrupts: bool,
    maps: &Maps,
) -> Result<(OwnedFd, OwnedFd), NotAttached> {
    let mut object = open(&POINTS_OBJECT.0)?;
    let wanted = point.program.name();
    for mut program in object.progs_mut() {
        let is_wanted = program.name() == wanted;
        program.set_autoload(is_wanted);
        if let (true, PointProgram::Entry { function } | PointProgram::Return { function }) =
            (is_wanted, &point.program)
        {
            let target = program.set_attach_target(0, Some(function.clone()));
            target.map_err(into_io)?;
        }
    }
    configure_maps(&mut object, mask_interrupts, Some(maps))?;
    let own = object.maps_mut().find(|map| map.name() == POINT_SETTINGS);
    let broken = || io::Error::other("the BPF object lacks its settings: the build is broken");
    let mut own = own.ok_or_else(broken)?;
    let value = own.initial_value_mut().unwrap_or_default();
    let value = value.get_mut(..settings.len()).ok_or_else(broken)?;
    value.copy_from_slice(settings);
    let object = object.load().map_err(into_io)?;
    let program = object.progs_mut().find(|program| program.name() == wanted);
    let program = program.ok_or_else(broken)?;
    let attached = match &point.program {
        PointProgram::Tracepoint { id } => attach_to_event(&program, tracepoint(*id)),
        PointProgram::RawTracepoint { name, .. } => {
            let link = program.attach_raw_tracepoint(name).map_err(into_io);
            link.and_then(|link| link.as_fd().try_clone_to_owned())
        }
        PointProgram::Entry { .. } | PointProgram::Return { .. } => {
            let link = program.attach().map_err(into_io);
            link.and_then(|link| link.as_fd().try_clone_to_owned())
        }
    };
    let link = attached.map_err(NotAttached::Attach)?;
    Ok((link, program.as_fd().try_clone_to_owned()?))
}

/// Attaches a program to the place of a probe.
pub(crate) fn attach(
    object: &mut Object,
    resolved: &ResolvedProbe,
    cookie: u64,
) -> Result<Attached, ProbeError> {
    attach_and(object, resolved, cookie, true)
}

/// As [`attach`], for a probe that was detached for a while. It cannot be handed over: finding its
/// links takes longer than attaching it.
pub(crate) fn attach_again(
    object: &mut Object,
    resolved: &ResolvedProbe,
    cookie: u64,
) -> Result<Attached, ProbeError> {
    attach_and(object, resolved, cookie, false)
}

fn attach_and(
    object: &mut Object,
    resolved: &ResolvedProbe,
    cookie: u64,
    with_links: bool,
) -> Result<Attached, ProbeError> {
    const ALL_PROCESSES: i32 = -1;
    let (number, path) = match &resolved.target {
        ProbeTarget::Function { path, returns, .. } => (usize::from(*returns), path.clone()),
        ProbeTarget::Static { path, .. } => (2, path.clone()),
        ProbeTarget::Point(_) => (0, PathBuf::new()),
    };
    let refuse = |why: String| ProbeError::Refused {
        path: path.clone(),
        what: resolved.probe.what(),
        why,
    };
    let program = object
        .progs_mut()
        .find(|program| program.name() == PROBES[number]);
    let program = program.ok_or_else(|| refuse("the build is broken".to_owned()))?;
    let links = |program| match with_links {
        true => multi_links(program),
        false => BTreeMap::new(),
    };
    let known = links(&program);
    let (result, log) = with_captured_log(|| match &resolved.target {
        ProbeTarget::Point(_) => Err(io::Error::other("it is no place of a program").into()),
        ProbeTarget::Static { provider, name, .. } => {
            let options = UsdtOpts {
                cookie,
                ..UsdtOpts::default()
            };
            program.attach_usdt_with_opts(ALL_PROCESSES, &path, provider, name, options)
        }
        ProbeTarget::Function {
            offset, returns, ..
        } if matches!(program.attach_type(), ProgramAttachType::TraceUprobeMulti) => {
            let options = UprobeMultiOpts {
                offsets: vec![*offset as usize],
                cookies: vec![cookie],
                retprobe: *returns,
                ..UprobeMultiOpts::default()
            };
            program.attach_uprobe_multi_with_opts(ALL_PROCESSES, &path, "", options)
        }
        ProbeTarget::Function {
            offset, returns, ..
        } => {
            let options = UprobeOpts {
                cookie,
                retprobe: *returns,
                ..UprobeOpts::default()
            };
            program.attach_uprobe_with_opts(ALL_PROCESSES, &path, *offset as usize, options)
        }
    });
    let link = result.map_err(|error| {
        let first = log.into_iter().find(|line| !line.trim().is_empty());
        refuse(first.unwrap_or_else(|| error.to_string()))
    })?;
    let mut links = links(&program);
    links.retain(|id, _| !known.contains_key(id));
    Ok(Attached {
        links: links.into_values().collect(),
        point: None,
        _link: Some(link),
    })
}

/// Descriptors of this process' links of a program to many places, by the kernel's number of the
/// link. libbpf returns none for those of a static probe, but creates them for this program, and no
/// other code attaches it.
fn multi_links(program: &ProgramMut<'_>) -> BTreeMap<u32, OwnedFd> {
    let info = |fd: RawFd| fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
    let own = info(program.as_fd().as_raw_fd()).unwrap_or_default();
    let Some(own) = machine::field(&own, "prog_id:") else {
        return BTreeMap::new();
    };
    let descriptors = fs::read_dir("/proc/self/fdinfo").into_iter().flatten();
    let descriptors =
        descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let link = |fd: RawFd| {
        let info = info(fd).ok()?;
        let kind = machine::field(&info, "link_type:")?;
        let is_ours = machine::field(&info, "prog_id:") == Some(own);
        // Present kernels use another name for links to returns.
        if !["uprobe_multi", "uretprobe_multi"].contains(&kind) || !is_ours {
            return None;
        }
        let id = machine::field(&info, "link_id:")?.parse().ok()?;
        // SAFETY: it is one of libbpf's links of this program. Only the owner of `program` closes
        // them, and `program` is borrowed from it here.
        let link = unsafe { BorrowedFd::borrow_raw(fd) };
        Some((id, link.try_clone_to_owned().ok()?))
    };
    descriptors.filter_map(link).collect()
}

fn of_hook(programs: &'static [Program], hook: Hook) -> impl Iterator<Item = &'static Program> {
    programs
        .iter()
        .filter(move |program| program.hook == Some(hook))
}

/// Whether the kernel has links of a program to places in files (Linux 6.6 and later).
pub(super) fn has_multi_links() -> bool {
    let types = Btf::from_vmlinux();
    types.is_ok_and(|types| {
        types
            .type_by_name::<Struct<'_>>("bpf_uprobe_multi_link")
            .is_some()
    })
}

/// Whether the kernel refused the caller rather than the program.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The programs whose tracepoints this kernel has.
fn available(programs: &'static [Program]) -> io::Result<Vec<&'static Program>> {
    let types = Btf::from_vmlinux().map_err(into_io)?;
    let has = |program: &&Program| {
        let name = format!("btf_trace_{}", program.tracepoint);
        [FAULTS, SERVED_FAULTS].contains(&program.tracepoint)
            || types.type_by_name::<Typedef<'_>>(&name).is_some()
    };
    // Since Linux 6.14. Without it this program does nothing.
    let can_mask = types
        .type_by_name::<Func<'_>>("bpf_local_irq_save")
        .is_some();
    let works = |program: &&Program| can_mask || program.name != MASKING;
    let known: Vec<&'static Program> = programs.iter().filter(has).filter(works).collect();
    let is_known = |name: &&str| known.iter().any(|program| program.name == *name);
    let is_needed = |program: &&&Program| !program.replaces.iter().any(&is_known);
    Ok(known.iter().filter(is_needed).copied().collect())
}

fn try_load_sched(
    mask_interrupts: bool,
    wanted: &[&'static Program],
    all: &[&'static Program],
) -> io::Result<(Loaded, OwnedFd, Maps)> {
    let (loaded, object) = try_load(
        &SCHED_OBJECT.0,
        mask_interrupts,
        wanted,
        all,
        &[SELECT],
        None,
    )?;
    if loaded.writers.first().map(|(hook, _)| *hook) != Some(Hook::Switch) {
        return Err(io::Error::other("the tracepoint sched_switch is refused"));
    }
    let select = object.progs().find(|program| program.name() == SELECT);
    let select = select.ok_or_else(|| io::Error::other("the BPF object lacks `select`"))?;
    let select = select.as_fd().try_clone_to_owned()?;
    let maps = Maps {
        shared: map(&object, "shared")?,
        rings: map(&object, "rings")?,
        tracked: map(&object, "tracked")?,
        cgroups: map(&object, "cgroups")?,
    };
    Ok((loaded, select, maps))
}

/// Loads the wanted programs and those without a tracepoint, and attaches the former. A program
/// that cannot be attached is left out; it counts as missing, like programs of `all` that are not
/// wanted. The object may be dropped: its programs stay attached.
fn try_load(
    bytes: &[u8],
    mask_interrupts: bool,
    wanted: &[&'static Program],
    all: &[&'static Program],
    unattached: &[&str],
    maps: Option<&Maps>,
) -> io::Result<(Loaded, Object)> {
    let mut object = open(bytes)?;
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let load = wanted.iter().any(|wanted| wanted.name == name);
        program.set_autoload(load || unattached.contains(&name.as_str()));
        // libbpf sets the type of a static probe's program itself.
        if PROBES[..2].contains(&name.as_str()) && has_multi_links() {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
    configure_maps(&mut object, mask_interrupts, maps)?;
    let object = object.load().map_err(into_io)?;
    let mut attached: Vec<&'static Program> = Vec::new();
    let (mut links, mut writers) = (Vec::new(), Vec::new());
    // In the order of the table: without the first one the others are useless.
    for &known in wanted {
        let program = object
            .progs_mut()
            .find(|program| program.name() == known.name);
        let Some(program) = program else { continue };
        let made = match known.tracepoint {
            FAULTS => attach_to_events(&program, |cpu| Ok(vec![faults(cpu)?])),
            SERVED_FAULTS => attach_to_events(&program, |cpu| Ok(served_faults(cpu)?.into())),
            _ => attach_to_tracepoint(&program),
        };
        if let Ok(made) = made {
            links.extend(made.into_iter().map(|link| (known.hook, link)));
            if let Some(hook) = known.hook {
                writers.push((hook, program.as_fd().try_clone_to_owned()?));
            }
            attached.push(known);
        }
    }
    // A substitute stands for the programs that it replaces.
    let is_lacking = |program: &&&Program| {
        program.replaces.is_empty()
            && attached
                .iter()
                .all(|known| known.name != program.name && !known.replaces.contains(&program.name))
    };
    let missing = all.iter().filter(is_lacking).copied().collect();
    let loaded = Loaded {
        links,
        writers,
        missing,
    };
    Ok((loaded, object))
}

pub(super) fn open(bytes: &[u8]) -> io::Result<OpenObject> {
    let mut builder = ObjectBuilder::default();
    let builder = builder.name("overhear").map_err(into_io)?;
    builder.open_memory(bytes).map_err(into_io)
}

fn attach_to_tracepoint(program: &ProgramMut<'_>) -> io::Result<Vec<OwnedFd>> {
    let link = program.attach().map_err(into_io)?;
    Ok(vec![link.as_fd().try_clone_to_owned()?])
}

/// Attaches detached programs to their tracepoints again; the result is [`Loaded::links`].
pub(super) fn attach_again_to_tracepoints(
    programs: &[(Hook, OwnedFd)],
) -> io::Result<Vec<(Option<Hook>, OwnedFd)>> {
    let attach = |(hook, program): &(Hook, OwnedFd)| {
        Ok((Some(*hook), attach_again_to_tracepoint(program.as_fd())?))
    };
    programs.iter().map(attach).collect()
}

/// Attaches a loaded program to the tracepoint that it was loaded for.
fn attach_again_to_tracepoint(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open during the call. Without a name the kernel takes the
    // tracepoint from the program.
    let link =
        unsafe { libbpf_sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Attaches a program to software events of all online CPUs. libbpf's own link would disable an
/// event when the object is dropped, although its file still exists.
fn attach_to_events(
    program: &ProgramMut<'_>,
    events_of: impl Fn(u32) -> Result<Vec<OwnedFd>, Errno>,
) -> io::Result<Vec<OwnedFd>> {
    let mut links = Vec::new();
    for cpu in machine::online_cpus() {
        for event in events_of(cpu)? {
            links.push(attach_to_event(program, Ok(event))?);
        }
    }
    Ok(links)
}

/// Attaches a program to a perf event. libbpf's own link would disable the event when the object is
/// dropped.
pub(super) fn attach_to_event(
    program: &ProgramMut<'_>,
    event: Result<OwnedFd, Errno>,
) -> io::Result<OwnedFd> {
    let event = event?;
    // SAFETY: both descriptors are open during the call, and no options are given; the kernel's
    // link keeps the event.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_fd().as_raw_fd(),
            event.as_raw_fd(),
            libbpf_sys::BPF_PERF_EVENT,
            std::ptr::null(),
        )
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the call succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Sets the constants, and makes an object use the maps of another one.
fn configure_maps(
    object: &mut OpenObject,
    mask_interrupts: bool,
    maps: Option<&Maps>,
) -> io::Result<()> {
    let constants = layout::settings(mask_interrupts);
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata") {
            let value = map.initial_value_mut().unwrap_or_default();
            let Some(value) = value.get_mut(..constants.len()) else {
                return Err(io::Error::other(
                    "the BPF object lacks its settings: the build is broken",
                ));
            };
            value.copy_from_slice(&constants);
        }
        let Some(maps) = maps else { continue };
        let known = match name.as_str() {
            "shared" => &maps.shared,
            "rings" => &maps.rings,
            "tracked" => &maps.tracked,
            "cgroups" => &maps.cgroups,
            _ => continue,
        };
        map.reuse_fd(known.as_fd()).map_err(into_io)?;
    }
    Ok(())
}

fn map(object: &Object, name: &str) -> io::Result<Map> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name));
    let map =
        map.ok_or_else(|| io::Error::other(format!("the BPF object lacks the map {name}")))?;
    Ok(Map(map.as_fd().try_clone_to_owned()?))
}

pub(super) fn into_io(error: libbpf_rs::Error) -> io::Error {
    io::Error::new(io_kind(error.kind()), error)
}

/// Maps only the kinds that code here distinguishes.
fn io_kind(kind: libbpf_rs::ErrorKind) -> io::ErrorKind {
    match kind {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    }
}

/// The phrase that follows "because".
pub(super) fn explain(error: &io::Error, log: &[String]) -> String {
    if !machine::has_type_information() {
        return "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing)"
            .to_owned();
    }
    if !machine::has_bpf_capabilities() {
        return "loading BPF needs CAP_BPF and CAP_PERFMON".to_owned();
    }
    // The verifier refuses programs with the same error; then libbpf's log names a program.
    if is_refusal(error) && !log.iter().any(|line| line.starts_with("prog '")) {
        if machine::is_locked_down() {
            return "kernel lockdown (confidentiality) forbids BPF programs to read the kernel"
                .to_owned();
        }
        return "the kernel refused the bpf system call in spite of the capabilities, as it does \
                in a user namespace or under a seccomp filter"
            .to_owned();
    }
    let mut phrase = format!("loading BPF failed ({error}");
    if let Some(line) = log.iter().find(|line| !line.trim().is_empty()) {
        // Writing to a String cannot fail.
        let _ = write!(phrase, "; libbpf: {}", line.trim());
    }
    phrase.push(')');
    phrase
}

/// libbpf's warnings since the last load began.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// libbpf has one print function for the whole process, so loads take turns.
static LOADING: Mutex<()> = Mutex::new(());

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Neither mutex guards an invariant that a panic could break.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`; libbpf's messages are collected instead of printed.
pub(super) fn with_captured_log<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    fn collect(_: PrintLevel, message: String) {
        let message = message.strip_prefix("libbpf: ").unwrap_or(&message);
        // The first line names the failure; the verifier's log after it is for developers.
        let line = message.lines().next().unwrap_or_default();
        locked(&LOG).push(line.to_owned());
    }
    let _turn = locked(&LOADING);
    locked(&LOG).clear();
    let before = set_print(Some((PrintLevel::Warn, collect)));
    let result = work();
    set_print(before);
    let log = std::mem::take(&mut *locked(&LOG));
    (result, log)
}

#[cfg(test)]
mod tests {
    use super::{try_load_sched, with_captured_log, SCHED};

    #[test]
    fn missing_tracepoints_give_notes() {
        let (result, _) = with_captured_log(|| {
            let all: Vec<_> = SCHED.iter().collect();
            try_load_sched(true, &[&SCHED[0]], &all)
        });
        let Ok((loaded, ..)) = result.map_err(|error| println!("skipped: {error}")) else {
            return;
        };
        assert_eq!(loaded.links.len(), 1);
        let notes = loaded.notes();
        assert_eq!(notes.len(), SCHED.len() - 1);
        assert!(notes.iter().any(|note| note.contains("wake-ups")));
    }
}
