// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`ElfFile`]: the parts of a program or library that locate a probe.
//!
//! Names of functions come from blazesym (`symbols.rs`). This module reads the rest:
//!
//! - segments, which map an address to an offset in the file;
//! - notes, which describe static probes and contain the build id;
//! - the link to a separate debug file.
//!
//! Nothing is mapped: a file may be rewritten at any time, and a mapping of it would then end this
//! process. A damaged or hostile file leads to an error at worst.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::machine;

/// The first bytes of every ELF file.
const MAGIC: &[u8] = b"\x7fELF";
/// Bytes of the header of a 32-bit file.
const LEAST_HEADER: usize = 52;
const WIDE: u8 = 2;
const NATIVE: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
const SEGMENT_LOAD: u64 = 1;
const SEGMENT_EXECUTABLE: u64 = 1;
const SECTION_SYMBOLS: u64 = 2;
const SECTION_NOTES: u64 = 7;
const SECTION_DYNAMIC_SYMBOLS: u64 = 11;
const SYMBOL_INDIRECT: u8 = 10;
const NOTE_BUILD_ID: u32 = 3;
/// Upper bound of the bytes that are read of one table.
const MAX_BYTES: u64 = 1 << 30;

/// A part of the file that the loader maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
    is_code: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    name: String,
    kind: u64,
    offset: u64,
    bytes: u64,
    entry_bytes: u64,
}

/// An ELF file of this machine's byte order. Holding one proves that its tables of segments and
/// sections lie in the file.
#[derive(Debug)]
pub(super) struct ElfFile {
    file: File,
    is_wide: bool,
    machine: u64,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

/// A note of a section of notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) owner: Vec<u8>,
    pub(super) kind: u32,
    pub(super) body: Vec<u8>,
}

/// Reads words of a table: they have 4 or 8 bytes, by the file's class.
struct Fields<'a> {
    bytes: &'a [u8],
    is_wide: bool,
}

impl Fields<'_> {
    /// The number at one of two offsets, of one of two sizes: the first is for 32-bit files, the
    /// second for 64-bit files.
    fn get(&self, narrow: (usize, usize), wide: (usize, usize)) -> Option<u64> {
        let (offset, size) = if self.is_wide { wide } else { narrow };
        number(self.bytes, offset, size)
    }
}

/// The number of `size` bytes at an offset.
fn number(bytes: &[u8], offset: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(size)?)?;
    Some(match size {
        2 => u16::from_ne_bytes(bytes.try_into().ok()?).into(),
        4 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
        _ => u64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

fn damaged() -> String {
    "its tables are damaged".to_owned()
}

impl ElfFile {
    /// Opens a file; the phrase in the error follows "because".
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let metadata = std::fs::metadata(path).map_err(machine::error_text)?;
        if !metadata.is_file() {
            return Err("it is not a file".to_owned());
        }
        let file = File::open(path).map_err(machine::error_text)?;
        let mut header = [0; 64];
        let mut filled = 0;
        while filled < header.len() {
            match file.read_at(&mut header[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(machine::error_text(error)),
            }
        }
        if !header.starts_with(MAGIC) {
            return Err("it is no program or library (not ELF)".to_owned());
        }
        if filled < LEAST_HEADER {
            return Err(damaged());
        }
        if header[5] != NATIVE {
            return Err("it is of another machine (its byte order is not ours)".to_owned());
        }
        let is_wide = header[4] == WIDE;
        let mut elf = Self {
            file,
            is_wide,
            machine: 0,
            segments: Vec::new(),
            sections: Vec::new(),
        };
        elf.read_tables(&header[..filled]).ok_or_else(damaged)?;
        Ok(elf)
    }

    fn read_tables(&mut self, header: &[u8]) -> Option<()> {
        let is_wide = self.is_wide;
        let header = Fields {
            bytes: header,
            is_wide,
        };
        self.machine = header.get((18, 2), (18, 2))?;
        let offset = header.get((28, 4), (32, 8))?;
        let (size, count) = (header.get((42, 2), (54, 2))?, header.get((44, 2), (56, 2))?);
        let table = self.read(offset, size.checked_mul(count)?)?;
        for bytes in table.chunks_exact((size as usize).max(1)) {
            let fields = Fields { bytes, is_wide };
            if fields.get((0, 4), (0, 4))? == SEGMENT_LOAD {
                self.segments.push(Segment {
                    offset: fields.get((4, 4), (8, 8))?,
                    address: fields.get((8, 4), (16, 8))?,
                    bytes: fields.get((16, 4), (32, 8))?,
                    is_code: fields.get((24, 4), (4, 4))? & SEGMENT_EXECUTABLE != 0,
                });
            }
        }
        let offset = header.get((32, 4), (40, 8))?;
        if offset == 0 {
            return Some(());
        }
        let size = header.get((46, 2), (58, 2))?;
        let first = self.read(offset, size)?;
        let first = Fields {
            bytes: &first,
            is_wide,
        };
        // If the counts do not fit into the header, the first section has them.
        let count = match header.get((48, 2), (60, 2))? {
            0 => first.get((20, 4), (32, 8))?,
            count => count,
        };
        let names = match header.get((50, 2), (62, 2))? {
            0xffff => first.get((24, 4), (40, 4))?,
            names => names,
        };
        let table = self.read(offset, size.checked_mul(count)?)?;
        let mut found = Vec::new();
        for bytes in table.chunks_exact((size as usize).max(1)) {
            let fields = Fields { bytes, is_wide };
            let name = fields.get((0, 4), (0, 4))?;
            found.push((
                name as usize,
                Section {
                    name: String::new(),
                    kind: fields.get((4, 4), (4, 4))?,
                    offset: fields.get((16, 4), (24, 8))?,
                    bytes: fields.get((20, 4), (32, 8))?,
                    entry_bytes: fields.get((36, 4), (56, 8))?,
                },
            ));
        }
        let names = found
            .get(names as usize)
            .map(|(_, section)| section.clone());
        let names = names.and_then(|names| self.read(names.offset, names.bytes));
        let names = names.unwrap_or_default();
        self.sections = found
            .into_iter()
            .map(|(at, section)| Section {
                name: text_at(&names, at),
                ..section
            })
            .collect();
        Some(())
    }

    /// `bytes` bytes from an offset on; `None` if the file ends before.
    fn read(&self, offset: u64, bytes: u64) -> Option<Vec<u8>> {
        if bytes > MAX_BYTES || self.file.metadata().ok()?.len() < offset.checked_add(bytes)? {
            return None;
        }
        let mut all = vec![0; bytes as usize];
        self.file.read_exact_at(&mut all, offset).ok()?;
        Some(all)
    }

    /// Size of an address in bytes.
    pub(super) const fn word_bytes(&self) -> usize {
        if self.is_wide {
            8
        } else {
            4
        }
    }

    /// Whether the other file has the same class and machine, so that one process could load both.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.is_wide, self.machine) == (other.is_wide, other.machine)
    }

    /// The offset in the file of the code at an address; `None` if there is no code.
    pub(super) fn code_offset(&self, address: u64) -> Option<u64> {
        let code = |segment: &&Segment| {
            let within = address.checked_sub(segment.address);
            segment.is_code && within.is_some_and(|within| within < segment.bytes)
        };
        let segment = self.segments.iter().find(code)?;
        Some(address - segment.address + segment.offset)
    }

    /// The lowest address of code; the kernel maps it at `start_code` of a process.
    pub(super) fn first_code(&self) -> Option<u64> {
        let code = self.segments.iter().filter(|segment| segment.is_code);
        code.map(|segment| segment.address).min()
    }

    /// Whether there is code at an offset in the file.
    pub(super) fn is_code(&self, offset: u64) -> bool {
        let mut segments = self.segments.iter().filter(|segment| segment.is_code);
        segments.any(|segment| {
            let within = offset.checked_sub(segment.offset);
            within.is_some_and(|within| within < segment.bytes)
        })
    }

    /// Whether the function at this address only returns the address of the function to call
    /// (`STT_GNU_IFUNC`).
    pub(super) fn is_indirect(&self, address: u64) -> bool {
        let tables = self
            .sections
            .iter()
            .filter(|section| [SECTION_SYMBOLS, SECTION_DYNAMIC_SYMBOLS].contains(&section.kind));
        let is_wide = self.is_wide;
        tables.into_iter().any(|table| {
            let bytes = self.read(table.offset, table.bytes).unwrap_or_default();
            let mut symbols = bytes.chunks_exact((table.entry_bytes as usize).max(1));
            symbols.any(|bytes| {
                let kind = bytes.get(if is_wide { 4 } else { 12 });
                let fields = Fields { bytes, is_wide };
                kind.is_some_and(|kind| kind & 0xf == SYMBOL_INDIRECT)
                    && fields.get((4, 4), (8, 8)) == Some(address)
            })
        })
    }

    /// The notes of the sections with this name, or of all.
    pub(super) fn notes(&self, name: Option<&str>) -> Vec<Note> {
        let wanted = |section: &&Section| {
            section.kind == SECTION_NOTES && name.is_none_or(|name| section.name == name)
        };
        let mut notes = Vec::new();
        for section in self.sections.iter().filter(wanted) {
            let bytes = self.read(section.offset, section.bytes).unwrap_or_default();
            notes.extend(notes_in(&bytes));
        }
        notes
    }

    /// The build id, which differs between builds of the same program.
    pub(super) fn build_id(&self) -> Option<Vec<u8>> {
        let notes = self.notes(None).into_iter();
        let mut ids = notes.filter(|note| note.kind == NOTE_BUILD_ID && note.owner == b"GNU");
        ids.next().map(|note| note.body)
    }

    /// The name of the separate debug file, and its checksum.
    pub(super) fn debug_link(&self) -> Option<(String, u32)> {
        let mut sections = self.sections.iter();
        let section = sections.find(|section| section.name == ".gnu_debuglink")?;
        let bytes = self.read(section.offset, section.bytes)?;
        let name = text_at(&bytes, 0);
        // The checksum follows the name's zero, at a multiple of 4.
        let at = (name.len() + 1).next_multiple_of(4);
        let checksum = number(&bytes, at, 4)?;
        (!name.is_empty()).then_some((name, checksum as u32))
    }

    /// The checksum of the whole file, computed as for debug links.
    pub(super) fn checksum(&self) -> io::Result<u32> {
        let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
        let mut file = &self.file;
        loop {
            match file.read(&mut bytes)? {
                0 => return Ok(hasher.finalize()),
                count => hasher.update(&bytes[..count]),
            }
        }
    }
}

/// The text up to the next zero.
pub(super) fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The notes of a section, up to the first that does not fit.
fn notes_in(bytes: &[u8]) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut at = 0_usize;
    let mut next = || {
        let [owner, body, kind] = [0, 4, 8].map(|field| number(bytes, at + field, 4));
        let (owner_bytes, body_bytes) = (owner? as usize, body? as usize);
        let owner_at = at.checked_add(12)?;
        let body_at = owner_at.checked_add(owner_bytes.checked_next_multiple_of(4)?)?;
        let owner = bytes.get(owner_at..owner_at.checked_add(owner_bytes)?)?;
        let body = bytes.get(body_at..body_at.checked_add(body_bytes)?)?;
        at = body_at.checked_add(body_bytes.checked_next_multiple_of(4)?)?;
        Some(Note {
            owner: owner.strip_suffix(&[0]).unwrap_or(owner).to_vec(),
            kind: kind? as u32,
            body: body.to_vec(),
        })
    };
    while let Some(note) = next() {
        notes.push(note);
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::{notes_in, ElfFile, Note, Path};

    #[test]
    fn own_program_has_code_where_its_functions_are() {
        let own = std::env::current_exe().unwrap();
        let elf = ElfFile::open(&own).unwrap();
        assert!(elf.is_like(&ElfFile::open(&own).unwrap()));
        assert_eq!(elf.code_offset(u64::MAX), None);
        assert!(!elf.is_code(0) && !elf.is_code(u64::MAX));
        let code = elf.segments.iter().find(|segment| segment.is_code).unwrap();
        assert_eq!(elf.code_offset(code.address), Some(code.offset));
        assert!(elf.is_code(code.offset));
        assert!(!elf.is_code(code.offset + code.bytes) || elf.segments.len() > 4);
        assert_eq!(elf.debug_link(), None);
    }

    #[test]
    fn files_other_than_programs_are_refused() {
        for (path, part) in [
            ("/no/such/file", "No such file"),
            ("/proc", "not a file"),
            ("/etc/passwd", "not ELF"),
            ("/dev/null", "not a file"),
        ] {
            let error = ElfFile::open(Path::new(path)).unwrap_err();
            assert!(error.contains(part), "{path}: {error}");
        }
        // Every prefix of a program, and a program with an invalid header.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let folder = std::env::temp_dir().join(format!("oh-elf-{}", std::process::id()));
        for bytes in [0, 4, 16, 52, 63, 64, 65, 200, 4096] {
            std::fs::write(&folder, &own[..bytes]).unwrap();
            let error = ElfFile::open(&folder).unwrap_err();
            assert!(
                error.contains("ELF") || error.contains("damaged"),
                "{error}"
            );
        }
        let mut nonsense = own[..4096].to_vec();
        nonsense[32..64].fill(0xff);
        std::fs::write(&folder, &nonsense).unwrap();
        assert!(ElfFile::open(&folder).is_err());
        std::fs::remove_file(&folder).unwrap();
    }

    #[test]
    fn notes_end_with_the_first_that_does_not_fit() {
        let word = |word: u32| word.to_ne_bytes().to_vec();
        let mut bytes = [word(4), word(5), word(3), b"GNU\0".to_vec()].concat();
        bytes.extend(*b"12345\0\0\0");
        let note = Note {
            owner: b"GNU".to_vec(),
            kind: 3,
            body: b"12345".to_vec(),
        };
        assert_eq!(notes_in(&bytes), std::slice::from_ref(&note));
        let whole = bytes.len();
        bytes.extend([word(u32::MAX), word(u32::MAX), word(3)].concat());
        assert_eq!(notes_in(&bytes), [note]);
        for bytes in (0..whole).map(|end| &bytes[..end]) {
            assert!(notes_in(bytes).len() <= 1);
        }
    }
}
