// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a function in its file: by its name, mangled or as its language writes it, or by its
//! address.
//!
//! A name is searched in the file itself: in its symbols, and in the symbols for the dynamic
//! linker, which a stripped file keeps. Then it is searched in the debug files of the file, which
//! are found by build id or debug link. An address from a debug file is also an address of the file
//! itself, because both have the same layout. Only the segments of the file itself map it to an
//! offset in the file.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use blazesym::inspect::source::{Elf, Source};
use blazesym::inspect::Inspector;
use blazesym::SymType;

use super::elf::ElfFile;
use super::lines::{self, FoundLine, SourceLine};

/// Where systems keep the debug files of their packages.
const DEBUG_FOLDER: &str = "/usr/lib/debug";
/// Maximum number of names in a message.
const MAX_LISTED: usize = 8;

/// Reason why a place cannot be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResolveError {
    /// The phrase after "because".
    File(String),
    /// There is no such function; these have similar names.
    Missing(Vec<String>),
    /// There are several such functions.
    Ambiguous(Vec<String>),
    /// The place is not in an executable part of the file.
    NoCode,
    /// The function only returns the address of the function to call.
    Indirect,
    /// The line of source has no code, or its file is not known: advice for the user.
    NoLine(String),
}

/// A place within a file, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location<'a> {
    /// `0x1234`: an address, as `nm` and `objdump` print it.
    Address(u64),
    /// `+0x1234`: an offset in the file.
    Offset(u64),
    /// `server.c@120`: a line of source.
    Line(SourceLine<'a>),
    Name(&'a str),
}

impl<'a> Location<'a> {
    fn parse(text: &'a str) -> Self {
        let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        if let Some(offset) = text.strip_prefix('+').and_then(number) {
            return Self::Offset(offset);
        }
        if let Some(line) = SourceLine::parse(text) {
            return Self::Line(line);
        }
        number(text).map_or(Self::Name(text), Self::Address)
    }
}

/// The offset of a place in a file.
pub(super) fn offset_of(path: &Path, location: &str) -> Result<u64, ResolveError> {
    let elf = ElfFile::open(path).map_err(ResolveError::File)?;
    let address = match Location::parse(location) {
        Location::Offset(offset) if elf.is_code(offset) => return Ok(offset),
        Location::Offset(_) => return Err(ResolveError::NoCode),
        Location::Address(address) => address,
        Location::Line(line) => address_of_line(path, &elf, line)?,
        Location::Name(name) => address_of(path, &elf, name)?,
    };
    if elf.is_indirect(address) {
        return Err(ResolveError::Indirect);
    }
    elf.code_offset(address).ok_or(ResolveError::NoCode)
}

/// The address of a function by its name.
fn address_of(path: &Path, elf: &ElfFile, name: &str) -> Result<u64, ResolveError> {
    let mut sources = vec![path.to_path_buf()];
    sources.extend(debug_files(path, elf));
    let inspector = Inspector::new();
    let sources: Vec<Source> = sources.into_iter().map(without_debug_information).collect();
    match by_symbol(&inspector, &sources, elf, name)? {
        Some(address) => Ok(address),
        None => by_written_name(&inspector, &sources, elf, name),
    }
}

/// Whether a place is a line of source.
pub(super) fn is_line(location: &str) -> bool {
    matches!(Location::parse(location), Location::Line(_))
}

/// The address of the first instruction of a line, by the debug information of the file or of its
/// debug file.
fn address_of_line(path: &Path, elf: &ElfFile, line: SourceLine<'_>) -> Result<u64, ResolveError> {
    let mut known: Option<FoundLine> = None;
    for file in [path.to_path_buf()]
        .into_iter()
        .chain(debug_files(path, elf))
    {
        let mut found = lines::find(&file, line).map_err(ResolveError::File)?;
        found
            .addresses
            .retain(|address| elf.code_offset(*address).is_some());
        match Vec::from_iter(&found.addresses)[..] {
            [] if found.has_source => known = Some(found),
            [] => {}
            [address] => return Ok(*address),
            _ => {
                let places = found
                    .addresses
                    .iter()
                    .map(|address| format!("{address:#x}"));
                return Err(ResolveError::Ambiguous(places.collect()));
            }
        }
    }
    Err(ResolveError::NoLine(match known {
        None => "compile it with -g, or install its debug information".to_owned(),
        Some(found) => {
            let lines: Vec<String> = found.neighbours.iter().map(u64::to_string).collect();
            format!("the lines next to it with code are {}", lines.join(" and "))
        }
    }))
}

/// The distance of a variable from the begin of the code; the phrase in the error follows
/// "because". It wraps around for variables before the code.
pub(super) fn variable(path: &Path, name: &str) -> Result<u64, String> {
    let elf = ElfFile::open(path)?;
    let code = elf.first_code().ok_or("it has no code")?;
    let mut sources = vec![path.to_path_buf()];
    sources.extend(debug_files(path, &elf));
    let inspector = Inspector::new();
    for source in sources.into_iter().map(without_debug_information) {
        let found = inspector.lookup(&source, &[name]);
        let found = found.map_err(|error| format!("its symbols cannot be read ({error})"))?;
        let variables = found.into_iter().flatten();
        let variables = variables.filter(|symbol| symbol.sym_type == SymType::Variable);
        let mut addresses: Vec<u64> = variables.map(|symbol| symbol.addr).collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses[..] {
            [] => {}
            [address] => return Ok(address.wrapping_sub(code)),
            _ => {
                return Err(format!(
                    "{} has several variables {name}; give the address of one",
                    path.display()
                ))
            }
        }
    }
    Err(format!(
        "{} has no global variable {name}; see `nm`, or give an address",
        path.display()
    ))
}

fn without_debug_information(path: PathBuf) -> Source {
    let mut elf = Elf::new(path);
    elf.debug_syms = false;
    Source::Elf(elf)
}

/// The debug files of a file: those with its build id, or, if it has no build id, those with the
/// checksum in its debug link.
fn debug_files(path: &Path, elf: &ElfFile) -> Vec<PathBuf> {
    let id = elf.build_id();
    let mut candidates = Vec::new();
    if let Some([first, rest @ ..]) = id.as_deref() {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!(".build-id/{first:02x}/{rest}.debug");
        candidates.push(Path::new(DEBUG_FOLDER).join(name));
    }
    let link = elf.debug_link();
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if let (Some((name, _)), Some(folder)) = (&link, whole.parent()) {
        candidates.push(folder.join(name));
        candidates.push(folder.join(".debug").join(name));
        let below = folder.strip_prefix("/").unwrap_or(folder);
        candidates.push(Path::new(DEBUG_FOLDER).join(below).join(name));
    }
    let belongs = |candidate: &PathBuf| {
        let Ok(debug) = ElfFile::open(candidate) else {
            return false;
        };
        match (&id, debug.build_id()) {
            (Some(id), Some(of_debug)) => *id == of_debug,
            _ => link
                .as_ref()
                .is_some_and(|(_, checksum)| debug.checksum().is_ok_and(|it| it == *checksum)),
        }
    };
    candidates.retain(|candidate| *candidate != whole && belongs(candidate));
    candidates
}

fn not_readable(error: &blazesym::Error) -> ResolveError {
    ResolveError::File(format!("its symbols cannot be read ({error})"))
}

/// The address of the symbol with exactly this name, in the first file that has it.
fn by_symbol(
    inspector: &Inspector,
    sources: &[Source],
    elf: &ElfFile,
    name: &str,
) -> Result<Option<u64>, ResolveError> {
    for source in sources {
        let found = inspector.lookup(source, &[name]);
        let found = found.map_err(|error| not_readable(&error))?;
        let mut addresses: Vec<u64> = found
            .into_iter()
            .flatten()
            .filter(|symbol| symbol.sym_type != SymType::Variable)
            .map(|symbol| symbol.addr)
            .filter(|address| elf.code_offset(*address).is_some())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        match addresses[..] {
            [] => {}
            [address] => return Ok(Some(address)),
            // Local functions of several source files, or versions of one function.
            _ => {
                let name = |address: &u64| format!("{name} at {address:#x}");
                let names = addresses.iter().map(name).collect();
                return Err(ResolveError::Ambiguous(names));
            }
        }
    }
    Ok(None)
}

/// The address of the function with this name in its language, with or without parameters.
fn by_written_name(
    inspector: &Inspector,
    sources: &[Source],
    elf: &ElfFile,
    wanted: &str,
) -> Result<u64, ResolveError> {
    let key = last_name(wanted);
    let (mut with_params, mut without_params, mut similar) =
        (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for source in sources {
        let read = inspector.for_each(source, |symbol| {
            let is_candidate = symbol.sym_type == SymType::Function && symbol.name.contains(key);
            if !is_candidate || elf.code_offset(symbol.addr).is_none() {
                return ControlFlow::Continue(());
            }
            let written = DemangledName::of(&symbol.name);
            let (names, mangled) = match &written {
                Some(written) if written.with_params == wanted => (&mut with_params, true),
                Some(written) if written.without_params == wanted => (&mut without_params, true),
                Some(written) if last_name(&written.without_params) == key => (&mut similar, true),
                // Functions that a compiler has derived from it: `name.part.0`, `name.isra.0`.
                None if symbol.name.split('.').next() == Some(wanted) => (&mut similar, false),
                _ => return ControlFlow::Continue(()),
            };
            let text = match (&written, mangled) {
                (Some(written), true) => format!("{} ({})", written.with_params, symbol.name),
                _ => symbol.name.to_string(),
            };
            names.entry(symbol.addr).or_insert(text);
            ControlFlow::Continue(())
        });
        read.map_err(|error| not_readable(&error))?;
    }
    let found = if with_params.is_empty() {
        without_params
    } else {
        with_params
    };
    let mut addresses = found.keys();
    match (addresses.next(), found.len()) {
        (Some(address), 1) => Ok(*address),
        (Some(_), _) => Err(ResolveError::Ambiguous(listed(found))),
        (None, _) => Err(ResolveError::Missing(listed(similar))),
    }
}

/// The names with their addresses, and the number of further names.
fn listed(names: BTreeMap<u64, String>) -> Vec<String> {
    let count = names.len();
    let text = |(address, name): (u64, String)| format!("{name} at {address:#x}");
    let mut listed: Vec<String> = names.into_iter().take(MAX_LISTED).map(text).collect();
    if count > MAX_LISTED {
        listed.push(format!("{} more", count - MAX_LISTED));
    }
    listed
}

/// A mangled name as its language writes it.
struct DemangledName {
    /// The name with parameters.
    with_params: String,
    /// The name without parameters.
    without_params: String,
}

impl DemangledName {
    /// `None` if the name is not mangled.
    fn of(symbol: &str) -> Option<Self> {
        if let Ok(rust) = rustc_demangle::try_demangle(symbol) {
            // The name without the hash.
            let with_params = format!("{rust:#}");
            let without_params = with_params.clone();
            return Some(Self {
                with_params,
                without_params,
            });
        }
        let parsed = cpp_demangle::Symbol::new(symbol).ok()?;
        let options = cpp_demangle::DemangleOptions::new().no_return_type();
        let with_params = parsed.demangle_with_options(&options).ok()?;
        let without_params = parsed.demangle_with_options(&options.no_params()).ok()?;
        Some(Self {
            with_params,
            without_params,
        })
    }
}

/// The last part of a name: a mangled name contains it unchanged. Empty if it is not known, as for
/// operators.
fn last_name(name: &str) -> &str {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    // Parameters and template arguments follow it.
    let end = name.find(['(', '<']).filter(|end| *end > 0);
    let name = &name[..end.unwrap_or(name.len())];
    let begin = name.rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
    match &name[begin..] {
        word if word.starts_with("operator") => "",
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::{last_name, DemangledName, Location};

    #[test]
    fn places_are_names_addresses_and_offsets() {
        assert_eq!(Location::parse("0x12ab"), Location::Address(0x12ab));
        assert_eq!(Location::parse("+0x12ab"), Location::Offset(0x12ab));
        assert!(matches!(Location::parse("server.c@12"), Location::Line(_)));
        let names = [
            "0xmain",
            "x0",
            "12",
            "+12",
            "operator+",
            "0x",
            "memcpy@GLIBC_2.14",
        ];
        for name in names {
            assert_eq!(Location::parse(name), Location::Name(name), "{name}");
        }
    }

    #[test]
    fn mangled_names_are_written_as_their_languages_do() {
        for (symbol, with_params, without_params) in [
            (
                "_ZN4shop5priceEid",
                "shop::price(int, double)",
                "shop::price",
            ),
            (
                "_ZN4shop4ItemC2Ev",
                "shop::Item::Item()",
                "shop::Item::Item",
            ),
            ("_ZN3app4work17h0123456789abcdefE", "app::work", "app::work"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo", "mycrate::foo"),
        ] {
            let written = DemangledName::of(symbol).unwrap();
            assert_eq!(
                (&*written.with_params, &*written.without_params),
                (with_params, without_params)
            );
        }
        assert!(DemangledName::of("main").is_none());
        for (name, last) in [
            ("shop::price(int, shop::Item)", "price"),
            ("shop::list<int>::push(int)", "list"),
            ("main", "main"),
            ("shop::operator+(int)", ""),
            ("(anonymous namespace)::f", "f"),
        ] {
            assert_eq!(last_name(name), last, "{name}");
        }
    }
}
