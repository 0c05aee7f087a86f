// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the code of a line of source in the debug information of a file (DWARF, from the first to
//! the fifth version).
//!
//! The table of lines has a row for each place where a statement begins. A line can have several:
//! the parts of a `for` loop, or copies in other functions where the compiler inlined it. The first
//! place of the line in each contiguous piece of code counts. Several pieces are ambiguous, as in
//! functions that a template made several times.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use gimli::{EndianSlice, RunTimeEndian, SectionId};
use object::{Object as _, ObjectSection as _, ReadCache};

use crate::machine;

/// Upper bound of the bytes of one section of debug information.
const MAX_SECTION_BYTES: u64 = 1 << 30;
/// Maximum number of neighbouring lines in a message.
const MAX_NEIGHBOURS: usize = 2;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// A line of source, `FILE@LINE`: the file is the end of its path, as `io/read.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceLine<'a> {
    file: &'a str,
    line: u64,
}

impl<'a> SourceLine<'a> {
    /// `None` if the text is no line: a symbol may have a version, `memcpy@GLIBC_2.14`.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (file, line) = text.rsplit_once('@')?;
        let line = line.parse().ok().filter(|line| *line > 0)?;
        (!file.is_empty()).then_some(Self { file, line })
    }

    /// Whether the path of a file of source ends with this one's, at a border of names.
    fn is_in(&self, path: &str) -> bool {
        let rest = path.strip_suffix(self.file);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.ends_with('/') || self.file.starts_with('/')
        })
    }
}

/// What the debug information of a file has about a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundLine {
    /// The first place of the line in each piece of code that has it.
    pub(super) addresses: BTreeSet<u64>,
    /// Whether the file of source is there at all.
    pub(super) has_source: bool,
    /// Lines with code on both sides, if the line itself has none.
    pub(super) neighbours: Vec<u64>,
}

/// Searches the debug information of one file; the phrase in the error follows "because".
pub(super) fn find(path: &Path, wanted: SourceLine<'_>) -> Result<FoundLine, String> {
    let file = File::open(path).map_err(machine::error_text)?;
    let cache = ReadCache::new(file);
    let damaged =
        |error: &dyn std::fmt::Display| format!("its debug information cannot be read ({error})");
    let object = object::File::parse(&cache).map_err(|error| damaged(&error))?;
    let endian = match object.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let load = |id: SectionId| -> Result<Vec<u8>, String> {
        let Some(section) = object.section_by_name(id.name()) else {
            return Ok(Vec::new());
        };
        if section.size() > MAX_SECTION_BYTES {
            return Err(format!("its section {} is too large", id.name()));
        }
        let bytes = section.uncompressed_data();
        Ok(bytes.map_err(|error| damaged(&error))?.into_owned())
    };
    let sections = gimli::DwarfSections::load(load)?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    search(&dwarf, wanted).map_err(|error| damaged(&error))
}

fn search(dwarf: &gimli::Dwarf<Slice<'_>>, wanted: SourceLine<'_>) -> gimli::Result<FoundLine> {
    let mut found = FoundLine::default();
    let (mut below, mut above) = (None, None);
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let Some(program) = unit.line_program.clone() else {
            continue;
        };
        let files = files_of(dwarf, &unit, program.header(), wanted)?;
        if files.is_empty() {
            continue;
        }
        found.has_source = true;
        let mut rows = program.rows();
        let mut first_of_piece: Option<u64> = None;
        while let Some((_, row)) = rows.next_row()? {
            if row.end_sequence() {
                // The linker gives code that it removed the address 0.
                found
                    .addresses
                    .extend(first_of_piece.take().filter(|address| *address != 0));
                continue;
            }
            let line = row.line().map_or(0, |line| line.get());
            if line == 0 || !files.contains(&row.file_index()) {
                continue;
            }
            if line == wanted.line && row.is_stmt() {
                let address = row.address();
                let first = first_of_piece.get_or_insert(address);
                *first = address.min(*first);
            } else if line < wanted.line {
                below = below.max(Some(line));
            } else if line > wanted.line {
                above = Some(above.map_or(line, |above: u64| above.min(line)));
            }
        }
    }
    if found.addresses.is_empty() {
        found.neighbours = below
            .into_iter()
            .chain(above)
            .take(MAX_NEIGHBOURS)
            .collect();
    }
    Ok(found)
}

/// The numbers of the files in a table of lines whose paths end with the wanted one.
fn files_of(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    header: &gimli::LineProgramHeader<Slice<'_>>,
    wanted: SourceLine<'_>,
) -> gimli::Result<BTreeSet<u64>> {
    // Before the fifth version the numbers begin with 1.
    let first = u64::from(header.version() < 5);
    let text = |value| -> gimli::Result<String> {
        let bytes = dwarf.attr_string(unit, value)?;
        Ok(String::from_utf8_lossy(bytes.slice()).into_owned())
    };
    let mut files = BTreeSet::new();
    for (number, file) in (first..).zip(header.file_names()) {
        let name = text(file.path_name())?;
        let folder = match file.directory(header) {
            Some(folder) => text(folder)?,
            None => String::new(),
        };
        let path = match name.starts_with('/') || folder.is_empty() {
            true => name,
            false => format!("{folder}/{name}"),
        };
        if wanted.is_in(&path) {
            files.insert(number);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::{find, SourceLine};

    const SOURCE: &str =
        "int step(int a)\n{\n    /* nothing */\n    a += 3;\n    return a * a;\n}\n\
                          int main(void)\n{\n    return step(2);\n}\n";

    fn program(folder: &tempfile::TempDir, options: &[&str]) -> PathBuf {
        let source = folder.path().join("steps.c");
        std::fs::write(&source, SOURCE).unwrap();
        let program = folder.path().join("steps");
        let mut compiler = Command::new("gcc");
        compiler.args(options).arg(&source).arg("-o").arg(&program);
        assert!(compiler.status().unwrap().success());
        program
    }

    fn line(number: u64) -> String {
        format!("steps.c@{number}")
    }

    #[test]
    fn lines_are_told_from_versions_of_symbols() {
        assert!(SourceLine::parse("memcpy@GLIBC_2.14").is_none());
        assert!(SourceLine::parse("@12").is_none());
        assert!(SourceLine::parse("a.c@0").is_none());
        let found = SourceLine::parse("io/a.c@12").unwrap();
        assert_eq!((found.file, found.line), ("io/a.c", 12));
        for (path, is_in) in [("/x/io/a.c", true), ("io/a.c", true), ("/x/bio/a.c", false)] {
            assert_eq!(found.is_in(path), is_in, "{path}");
        }
    }

    #[test]
    fn line_is_found_where_the_symbols_say() {
        for options in [
            ["-gdwarf-4", "-O0"],
            ["-gdwarf-5", "-O0"],
            ["-gz=zlib", "-g"],
        ] {
            let folder = tempfile::tempdir().unwrap();
            let program = program(&folder, &options);
            let symbols = Command::new("nm").arg(&program).output().unwrap();
            let symbols = String::from_utf8(symbols.stdout).unwrap();
            let step = symbols
                .lines()
                .find(|line| line.ends_with(" step"))
                .unwrap();
            let step = u64::from_str_radix(step.split(' ').next().unwrap(), 16).unwrap();
            let at = |number| {
                let text = line(number);
                find(&program, SourceLine::parse(&text).unwrap()).unwrap()
            };
            assert_eq!(Vec::from_iter(at(2).addresses), [step], "{options:?}");
            let body = Vec::from_iter(at(4).addresses);
            assert!(
                body.len() == 1 && (step + 1..step + 32).contains(&body[0]),
                "{body:?}"
            );
            let comment = at(3);
            assert!(comment.addresses.is_empty() && comment.has_source);
            assert_eq!(comment.neighbours, [2, 4], "{options:?}");
        }
    }

    #[test]
    fn file_without_debug_information_has_no_source() {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&folder, &["-O1", "-s"]);
        let text = line(4);
        let found = find(&program, SourceLine::parse(&text).unwrap()).unwrap();
        assert!(!found.has_source && found.addresses.is_empty());
    }

    #[test]
    fn damaged_files_are_errors_at_worst() {
        let folder = tempfile::tempdir().unwrap();
        let program = program(&folder, &["-g", "-O1"]);
        let whole = std::fs::read(&program).unwrap();
        let text = line(4);
        let damaged = folder.path().join("damaged");
        for step in 1..200 {
            let mut bytes = whole.clone();
            for at in (step * 7..bytes.len()).step_by(step * 61) {
                bytes[at] ^= step as u8;
            }
            std::fs::write(&damaged, bytes).unwrap();
            let _ = find(&damaged, SourceLine::parse(&text).unwrap());
        }
    }
}
