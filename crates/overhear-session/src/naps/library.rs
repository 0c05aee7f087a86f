// SPDX-License-Identifier: MIT OR Apache-2.0
//! The preload library, and the programs that can load it.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::child::{found_in_path, not_found};
use crate::error::{ErrorKind, SessionError};

/// Name of the library in an installation, and as cargo builds it.
const NAMES: [&str; 2] = ["liboverhear_naps.so", "liboverhear_naps_preload.so"];
/// Interpreters may have interpreters.
const MAX_INTERPRETERS: usize = 4;

/// The library that the user names, or that of this installation: in `../lib/overhear`, or next to
/// the program.
#[expect(clippy::disallowed_methods, reason = "a file of the installation")]
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, SessionError> {
    if let Some(named) = named {
        return named.canonicalize().map_err(|error| {
            let message = format!("cannot use the library {}: {error}", named.display());
            SessionError::new(ErrorKind::Usage, message)
        });
    }
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    let folders = ["../lib/overhear", ".", ".."].map(|place| folder.join(place));
    let files = folders
        .iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)));
    let found = files
        .into_iter()
        .find(|file| file.is_file())
        .and_then(|file| file.canonicalize().ok());
    found.ok_or_else(|| {
        let message = "the preload library liboverhear_naps.so is not installed; name it by \
                       --library";
        SessionError::new(ErrorKind::Unavailable, message)
    })
}

/// Checks that a program loads libraries of its environment.
pub(super) fn check_program(program: Option<&OsString>) -> Result<(), SessionError> {
    // A missing program is reported when it is started.
    let Some(program) = program else {
        return Ok(());
    };
    let mut file = found_in_path(program).ok_or_else(|| not_found(program))?;
    for _ in 0..MAX_INTERPRETERS {
        let Some(start) = start_of(&file) else {
            return Ok(());
        };
        if let Some(interpreter) = interpreter_of(&start) {
            file = interpreter;
            continue;
        }
        return check_file(&file, &start);
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a program of the user")]
fn start_of(file: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    let opened = std::fs::File::open(file).ok()?;
    opened.take(64 * 1024).read_to_end(&mut start).ok()?;
    Some(start)
}

/// The program of a script's first line.
fn interpreter_of(start: &[u8]) -> Option<PathBuf> {
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split_ascii_whitespace();
    let first = words.next()?;
    let env = Path::new(first)
        .file_name()
        .is_some_and(|name| name == "env");
    match words.find(|word| env && !word.starts_with('-')) {
        Some(name) => found_in_path(name.as_ref()),
        None => Some(first.into()),
    }
}

#[expect(clippy::disallowed_methods, reason = "a program of the user")]
fn check_file(file: &Path, start: &[u8]) -> Result<(), SessionError> {
    let refuse = |reason: &str| {
        let message = format!("cannot observe {}: {reason}", file.display());
        Err(SessionError::new(ErrorKind::Unavailable, message))
    };
    let elf = start.get(..64).filter(|head| head.starts_with(b"\x7fELF"));
    let Some(head) = elf else { return Ok(()) };
    if head[4] != 2 {
        return refuse("it is a 32-bit program, which cannot load the preload library");
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    let own = if cfg!(target_arch = "x86_64") {
        62
    } else {
        183
    };
    if machine != own {
        return refuse("it is a program for another processor");
    }
    if let Ok(about) = file.metadata() {
        let own = rustix::process::geteuid().as_raw();
        let foreign_user = about.mode() & libc::S_ISUID != 0 && about.uid() != own;
        let group = rustix::process::getegid().as_raw();
        let foreign_group = about.mode() & libc::S_ISGID != 0 && about.gid() != group;
        if foreign_user || foreign_group {
            return refuse(
                "it is a setuid program, for which the loader ignores LD_PRELOAD; run overhear \
                 as its owner",
            );
        }
    }
    match has_loader(head, start) {
        Some(false) => {
            refuse("it is a static program, which loads no libraries; link it dynamically")
        }
        _ => Ok(()),
    }
}

/// Whether an ELF file names a loader; none if its headers are elsewhere.
fn has_loader(head: &[u8], start: &[u8]) -> Option<bool> {
    let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]) as usize;
    let offset = u64::from_le_bytes(head[32..40].try_into().ok()?);
    let (size, count) = (word(54), word(56));
    let mut found = false;
    for index in 0..count {
        let at = usize::try_from(offset)
            .ok()?
            .checked_add(index.checked_mul(size)?)?;
        let kind = start.get(at..at.checked_add(4)?)?;
        found |= u32::from_le_bytes(kind.try_into().ok()?) == 3;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::{check_program, interpreter_of};

    #[test]
    fn shell_can_be_observed() {
        check_program(Some(&"/bin/sh".into())).unwrap();
    }

    #[test]
    fn interpreter_is_read_from_the_first_line() {
        let of = |text: &str| interpreter_of(text.as_bytes());
        assert_eq!(of("#!/bin/sh -e\n"), Some("/bin/sh".into()));
        assert_eq!(of("#! /bin/sh\n"), Some("/bin/sh".into()));
        assert!(of("#!/usr/bin/env sh\n").unwrap().ends_with("sh"));
        assert_eq!(of("echo\n"), None);
    }

    #[test]
    fn static_program_is_refused() {
        let mut file = vec![0u8; 128];
        file[..4].copy_from_slice(b"\x7fELF");
        file[4] = 2;
        file[18] = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        // PT_LOAD alone.
        file[64] = 1;
        let place = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(place.path(), &file).unwrap();
        let program = place.path().as_os_str().to_owned();
        let error = check_program(Some(&program)).unwrap_err();
        // The file is not executable, but it is found by its path.
        assert!(error.message.contains("static program"), "{error}");
        // PT_INTERP.
        file[64] = 3;
        std::fs::write(place.path(), &file).unwrap();
        check_program(Some(&program)).unwrap();
    }
}
