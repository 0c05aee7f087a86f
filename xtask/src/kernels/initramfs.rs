// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's files: a `cpio` archive (format *newc*) of programs, the libraries that they need,
//! and the plan.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::shell;

/// A file of the archive: mode, number of the device, and contents.
type Node = (u32, (u32, u32), Vec<u8>);

const FOLDER: u32 = 0o040_755;
const DEVICE: u32 = 0o020_600;
const FILE: u32 = 0o100_644;

/// The archive under construction, with the guest's paths as keys.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Initramfs {
    /// An archive with the device that the kernel opens for the first process.
    pub(crate) fn new() -> Self {
        let mut archive = Self::default();
        archive.insert(Path::new("/dev/console"), (DEVICE, (5, 1), Vec::new()));
        archive
    }

    fn insert(&mut self, at: &Path, node: Node) {
        for parent in at.ancestors().skip(1) {
            let is_root = parent == Path::new("/");
            if !is_root && !self.nodes.contains_key(parent) {
                let folder = (FOLDER, (0, 0), Vec::new());
                self.nodes.insert(parent.to_path_buf(), folder);
            }
        }
        self.nodes.insert(at.to_path_buf(), node);
    }

    /// Adds a text.
    pub(crate) fn add_text(&mut self, at: &str, text: &str) {
        self.insert(Path::new(at), (FILE, (0, 0), text.as_bytes().to_vec()));
    }

    /// Adds a program as `at`, with its interpreter and all libraries.
    pub(crate) fn add_program(&mut self, system: &System, file: &Path, at: &Path) -> Result<()> {
        self.add_file(file, at)?;
        let mut unread = vec![file.to_path_buf()];
        while let Some(file) = unread.pop() {
            let needs = Needs::of(&file)?;
            for name in needs.libraries {
                let library = system.library(&name, &file)?;
                let place = system.place(&library);
                if !self.nodes.contains_key(&place) {
                    self.add_file(&library, &place)?;
                    unread.push(library);
                }
            }
            if let Some(interpreter) = needs.interpreter {
                let place = PathBuf::from(&interpreter);
                if !self.nodes.contains_key(&place) {
                    let name = place.file_name().unwrap_or_default().to_string_lossy();
                    let library = system.library(&name, &file)?;
                    self.add_file(&library, &place)?;
                }
            }
        }
        Ok(())
    }

    fn add_file(&mut self, file: &Path, at: &Path) -> Result<()> {
        let content = fs::read(file).with_context(|| format!("{} is missing", file.display()))?;
        let is_executable = fs::metadata(file)?.permissions().mode() & 0o111 != 0;
        let mode = if is_executable { FILE | 0o111 } else { FILE };
        self.insert(at, (mode, (0, 0), content));
        Ok(())
    }

    /// The bytes of the archive.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, (at, node)) in (1_u32..).zip(&self.nodes) {
            let name = at.strip_prefix("/").unwrap_or(at);
            entry(&mut bytes, number, &name.to_string_lossy(), node);
        }
        entry(&mut bytes, 0, "TRAILER!!!", &(0, (0, 0), Vec::new()));
        bytes
    }
}

/// Appends a file: the header of 13 hexadecimal numbers, the name and the contents, both padded to
/// four bytes.
fn entry(bytes: &mut Vec<u8>, number: u32, name: &str, (mode, device, content): &Node) {
    let length = u32::try_from(content.len()).expect("files of the guest are below 4 GiB");
    let name_length = u32::try_from(name.len() + 1).expect("names are short");
    let numbers = [
        number,
        *mode,
        0,
        0,
        1,
        0,
        length,
        0,
        0,
        device.0,
        device.1,
        name_length,
        0,
    ];
    bytes.extend(b"070701");
    for number in numbers {
        bytes.extend(format!("{number:08X}").bytes());
    }
    bytes.extend(name.bytes());
    bytes.push(0);
    pad(bytes);
    bytes.extend(content);
    pad(bytes);
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The folders with libraries of an architecture.
#[derive(Clone, Debug)]
pub(crate) struct System {
    /// `/`, or the folder into which its packages are unpacked.
    pub(crate) root: PathBuf,
    /// `x86_64-linux-gnu`.
    pub(crate) triple: &'static str,
    /// The folder of the libraries that cargo has built.
    pub(crate) built: PathBuf,
}

impl System {
    /// The file of a library: among those that cargo has built, or those of the system.
    fn library(&self, name: &str, needed_by: &Path) -> Result<PathBuf> {
        let own = std::iter::once(self.built.join(name));
        let system = ["lib", "usr/lib", "lib64"].into_iter().flat_map(|folder| {
            let folder = self.root.join(folder);
            [folder.join(self.triple).join(name), folder.join(name)]
        });
        let found = own.chain(system).find(|file| file.is_file());
        found.with_context(|| {
            let (file, root) = (needed_by.display(), self.root.display());
            format!("{file} needs {name}, which is not in {root}")
        })
    }

    /// The path of a library in the guest.
    fn place(&self, library: &Path) -> PathBuf {
        match library.strip_prefix(&self.root) {
            Ok(rest) if !library.starts_with(&self.built) => Path::new("/").join(rest),
            _ => library.to_path_buf(),
        }
    }
}

/// What an ELF file states about the files that it needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    libraries: Vec<String>,
    interpreter: Option<String>,
}

impl Needs {
    fn of(file: &Path) -> Result<Self> {
        let mut readelf = Command::new("readelf");
        let text = shell::output(readelf.args(["-W", "-d", "-l"]).arg(file))?;
        if text.is_empty() {
            bail!("{} is no program", file.display());
        }
        Ok(Self::parse(&text))
    }

    /// Reads the output of readelf.
    fn parse(text: &str) -> Self {
        let within = |line: &str, before: &str, after: char| {
            let (_, rest) = line.split_once(before)?;
            Some(rest.split_once(after)?.0.to_owned())
        };
        Self {
            libraries: text
                .lines()
                .filter_map(|line| within(line, "Shared library: [", ']'))
                .collect(),
            interpreter: text
                .lines()
                .find_map(|line| within(line, "Requesting program interpreter: ", ']')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Initramfs, Needs};

    #[test]
    fn needs_are_read_from_readelf() {
        let text = "      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n \
             0x1 (NEEDED)             Shared library: [libelf.so.1]\n \
             0x1 (NEEDED)             Shared library: [libc.so.6]\n";
        let needs = Needs::parse(text);
        assert_eq!(needs.libraries, ["libelf.so.1", "libc.so.6"]);
        assert_eq!(
            needs.interpreter.as_deref(),
            Some("/lib/ld-linux-aarch64.so.1")
        );
        assert_eq!(Needs::parse(""), Needs::default());
    }

    #[test]
    fn entries_are_aligned_and_folders_come_first() {
        let mut archive = Initramfs::new();
        archive.add_text("/a/b", "hello");
        let bytes = archive.bytes();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let order = ["a\0", "a/b\0", "hello", "dev/console\0", "TRAILER!!!"];
        let mut from = 0;
        for part in order {
            let at = text[from..].find(part);
            from += at.unwrap_or_else(|| panic!("{part:?} is missing or not in order"));
        }
        // The mode, and the number of the device, of the console.
        assert!(text.contains("00002180") && text.contains("0000000500000001"));
    }
}
