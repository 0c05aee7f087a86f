// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads and attaches the programs, and turns libbpf's log into one phrase.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::btf::Btf;
use libbpf_rs::{
    set_print, Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel,
};
use overhear_event::ClockId;
use overhear_stream::{Geometry, Header, LayoutError, WriterKind};

use super::layout;
use crate::machine;
use crate::mapping::{Access, Mapping};
use crate::streams::{Hook, Numbering};

/// An ELF file must lie on a word boundary; `include_bytes` alone promises none.
#[repr(C, align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sched.bpf.o")));

/// A program, the tracepoint it needs, and what is missing without it.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Whose ring it writes to.
    pub(crate) hook: Hook,
    tracepoint: &'static str,
    without_it: &'static str,
}

/// The first is mandatory. The first four suffice for the story of a program and use nothing
/// that kernels differ in.
static PROGRAMS: [Program; 8] = [
    Program {
        name: "on_switch",
        hook: Hook::Switch,
        tracepoint: "sched_switch",
        without_it: "nothing",
    },
    Program {
        name: "on_fork",
        hook: Hook::Life,
        tracepoint: "sched_process_fork",
        without_it: "new threads and children are not followed",
    },
    Program {
        name: "on_exec",
        hook: Hook::Life,
        tracepoint: "sched_process_exec",
        without_it: "there are no exec elements",
    },
    Program {
        name: "on_exit",
        hook: Hook::Life,
        tracepoint: "sched_process_exit",
        without_it: "there are no exit elements",
    },
    Program {
        name: "on_waking",
        hook: Hook::Wake,
        tracepoint: "sched_waking",
        without_it: "the beginnings of wake-ups are not seen",
    },
    Program {
        name: "on_wakeup",
        hook: Hook::Wake,
        tracepoint: "sched_wakeup",
        without_it: "the ends of wake-ups are not seen",
    },
    Program {
        name: "on_wakeup_new",
        hook: Hook::Wake,
        tracepoint: "sched_wakeup_new",
        without_it: "first wake-ups are not seen",
    },
    Program {
        name: "on_rename",
        hook: Hook::Life,
        tracepoint: "task_rename",
        without_it: "renamed threads keep their old names",
    },
];

/// What to load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) numbering: Numbering,
    /// Elements per ring of each hook, powers of two.
    pub(crate) capacities: [u32; 3],
    /// Mask interrupts where the kernel can; without, the busy word is used.
    pub(crate) mask_interrupts: bool,
}

impl Settings {
    pub(crate) fn geometry(&self, hook: Hook) -> Result<Geometry, LayoutError> {
        // The stamp takes 8 bytes, the payload all the rest.
        let (stride, capacity) = (hook.stride_bytes(), self.capacities[hook as usize]);
        Geometry::with_stride(stride - 8, stride, capacity.into())
    }
}

/// Programs at work.
pub(crate) struct Loaded {
    /// Keeps programs and maps; the links refer to them.
    pub(crate) object: Object,
    pub(crate) links: Vec<(&'static Program, Link)>,
    pub(crate) tracked: MapHandle,
    /// The rings of each hook, read-only, one behind the other by CPU.
    pub(crate) rings: [Arc<Mapping>; 3],
    /// What is missing, as phrases.
    pub(crate) notes: Vec<&'static str>,
}

/// Loads what this kernel has, or says why nothing can be loaded.
pub(crate) fn load(settings: &Settings) -> Result<Loaded, String> {
    let (result, log) = quietly(|| {
        let available = available_programs()?;
        // A program that this kernel's verifier refuses takes all others with it. So the second
        // attempt leaves out what is not essential, the third all but the switches.
        let attempts = [PROGRAMS.len(), 4, 1];
        let mut first_error = None;
        for attempt in attempts {
            let wanted: Vec<&'static Program> = PROGRAMS[..attempt]
                .iter()
                .filter(|program| available.contains(&program.name))
                .collect();
            match try_load(settings, &wanted) {
                Ok(loaded) => return Ok(loaded),
                Err(error) if is_refusal(&error) => return Err(error),
                Err(error) => first_error.get_or_insert(error),
            };
        }
        Err(first_error.unwrap_or_else(|| io::ErrorKind::Other.into()))
    });
    result.map_err(|error| explain(&error, &log))
}

/// Whether the kernel refused the caller rather than the program.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The programs whose tracepoints this kernel has.
fn available_programs() -> io::Result<Vec<&'static str>> {
    let types = Btf::from_vmlinux().map_err(into_io)?;
    let has = |program: &Program| {
        let name = format!("btf_trace_{}", program.tracepoint);
        types.type_by_name::<Typedef<'_>>(&name).is_some()
    };
    let available: Vec<_> = PROGRAMS
        .iter()
        .filter(|program| has(program))
        .map(|program| program.name)
        .collect();
    if available.first() != Some(&PROGRAMS[0].name) {
        return Err(io::Error::other(
            "this kernel has no tracepoint sched_switch",
        ));
    }
    Ok(available)
}

fn try_load(settings: &Settings, wanted: &[&'static Program]) -> io::Result<Loaded> {
    let mut object = ObjectBuilder::default()
        .name("overhear")
        .map_err(into_io)?
        .open_memory(&OBJECT.0)
        .map_err(into_io)?;
    configure(&mut object, settings, wanted)?;
    let object = object.load().map_err(into_io)?;

    let rings = [
        map_rings(&object, settings, Hook::Switch)?,
        map_rings(&object, settings, Hook::Wake)?,
        map_rings(&object, settings, Hook::Life)?,
    ];
    let tracked = handle(&object, "tracked")?;
    let mut links: Vec<(&Program, Link)> = Vec::new();
    for program in object.progs_mut() {
        let Some(&known) = wanted.iter().find(|known| program.name() == known.name) else {
            continue;
        };
        match program.attach() {
            Ok(link) => links.push((known, link)),
            Err(error) if known.name == PROGRAMS[0].name => return Err(into_io(error)),
            Err(_) => {}
        }
    }
    let notes = PROGRAMS
        .iter()
        .filter(|program| links.iter().all(|(known, _)| known.name != program.name))
        .map(|program| program.without_it)
        .collect();
    Ok(Loaded {
        object,
        links,
        tracked,
        rings,
        notes,
    })
}

/// Sets sizes and constants and leaves out what is not wanted.
fn configure(object: &mut OpenObject, settings: &Settings, wanted: &[&Program]) -> io::Result<()> {
    for mut program in object.progs_mut() {
        let load = wanted.iter().any(|wanted| program.name() == wanted.name);
        program.set_autoload(load);
    }
    let constants = layout::settings(
        settings.capacities.map(|capacity| capacity - 1),
        settings.mask_interrupts,
    );
    for mut map in object.maps_mut() {
        let name = map.name().to_owned();
        if let Some(hook) = Hook::ALL.iter().find(|&&hook| name == rings_name(hook)) {
            let geometry = settings.geometry(*hook).map_err(io::Error::other)?;
            map.set_value_size(geometry.bytes() as u32)
                .map_err(into_io)?;
            map.set_max_entries(settings.numbering.cpus())
                .map_err(into_io)?;
        } else if name.to_string_lossy().ends_with(".rodata") {
            let value = map.initial_value_mut().unwrap_or_default();
            let Some(value) = value.get_mut(..constants.len()) else {
                return Err(io::Error::other(
                    "the BPF object lacks its settings: the build is broken",
                ));
            };
            value.copy_from_slice(&constants);
        }
    }
    Ok(())
}

const fn rings_name(hook: Hook) -> &'static str {
    match hook {
        Hook::Switch => "rings_switch",
        Hook::Wake => "rings_wake",
        Hook::Life => "rings_life",
    }
}

fn handle(object: &Object, name: &str) -> io::Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name));
    let map =
        map.ok_or_else(|| io::Error::other(format!("the BPF object lacks the map {name}")))?;
    MapHandle::try_from(&map).map_err(into_io)
}

/// Writes the headers of a hook's rings, freezes the map and maps it read-only.
fn map_rings(object: &Object, settings: &Settings, hook: Hook) -> io::Result<Arc<Mapping>> {
    let map = handle(object, rings_name(hook))?;
    let geometry = settings.geometry(hook).map_err(io::Error::other)?;
    let bytes = geometry.bytes() * settings.numbering.cpus() as usize;
    // A map can only be frozen while nobody has it mapped writable.
    let writable = Mapping::new(map.as_fd(), bytes, Access::Write)?;
    for cpu in 0..settings.numbering.cpus() {
        let id = settings.numbering.id(hook, cpu).as_raw();
        Header::new(&geometry, WriterKind::Kernel, ClockId::Monotonic, id.into())
            .store(&writable.part(geometry.bytes() * cpu as usize, geometry.bytes()));
    }
    drop(writable);
    map.freeze().map_err(into_io)?;
    Mapping::new(map.as_fd(), bytes, Access::Read)
}

fn into_io(error: libbpf_rs::Error) -> io::Error {
    io::Error::new(io_kind(error.kind()), error)
}

/// Only the kinds that decisions here depend on.
fn io_kind(kind: libbpf_rs::ErrorKind) -> io::ErrorKind {
    match kind {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    }
}

/// The phrase that follows "because".
fn explain(error: &io::Error, log: &[String]) -> String {
    if !machine::has_type_information() {
        return "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing)"
            .to_owned();
    }
    if !machine::has_bpf_capabilities() {
        return "loading BPF needs CAP_BPF and CAP_PERFMON".to_owned();
    }
    if is_refusal(error) {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Neither mutex guards an invariant that a panic could break.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` with libbpf's messages collected instead of printed.
fn quietly<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    fn collect(_: PrintLevel, message: String) {
        let message = message.strip_prefix("libbpf: ").unwrap_or(&message);
        // The first line says what failed; a verifier's log that follows is for developers.
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
    use std::io::ErrorKind;

    use overhear_event::StreamId;
    use overhear_stream::{HeaderUntrusted, Reader};

    use super::{handle, quietly, rings_name, try_load, Settings, PROGRAMS};
    use super::{Access, AsFd, ClockId, Header, Hook, Mapping, Numbering, Program, WriterKind};

    const SETTINGS: Settings = Settings {
        numbering: Numbering::new(StreamId::from_raw(40), 2),
        capacities: [64, 32, 16],
        mask_interrupts: true,
    };

    fn load(wanted: &[&'static Program]) -> Option<super::Loaded> {
        let (result, _) = quietly(|| try_load(&SETTINGS, wanted));
        result.map_err(|error| println!("skipped: {error}")).ok()
    }

    #[test]
    fn a_kernel_with_fewer_tracepoints_gets_notes() {
        let Some(loaded) = load(&[&PROGRAMS[0]]) else {
            return;
        };
        assert_eq!(loaded.links.len(), 1);
        assert_eq!(loaded.notes.len(), PROGRAMS.len() - 1);
        assert!(loaded.notes.iter().any(|note| note.contains("wake-ups")));
    }

    #[test]
    fn rings_have_headers_and_are_frozen() {
        let Some(loaded) = load(&PROGRAMS.iter().collect::<Vec<_>>()) else {
            return;
        };
        assert!(loaded.notes.is_empty());
        for hook in Hook::ALL {
            let geometry = SETTINGS.geometry(hook).unwrap();
            let rings = &loaded.rings[hook as usize];
            for cpu in 0..2 {
                let ring = rings.part(geometry.bytes() * cpu as usize, geometry.bytes());
                let id = SETTINGS.numbering.id(hook, cpu).as_raw().into();
                let header = Header::new(&geometry, WriterKind::Kernel, ClockId::Monotonic, id);
                let found = HeaderUntrusted::load(&ring).unwrap();
                assert_eq!(found.check(&header), Ok(()));
                let reader = Reader::from_start(ring, geometry).unwrap();
                assert_eq!(reader.published(), 0, "nobody is followed");
            }
            let map = handle(&loaded.object, rings_name(hook)).unwrap();
            let writable = Mapping::new(map.as_fd(), geometry.bytes(), Access::Write);
            assert_eq!(writable.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }
}
