// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are replaced atomically, such as the page: no reader sees a partial file, and no
//! symbolic link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use overhear_trace::{Folder, FolderError};
use rustix::fs::FileType;

use crate::error::{ErrorKind, SessionError};

/// Writes a file in the folder `out` of a recording.
///
/// # Errors
/// [`SessionError`] if the folder belongs neither to the caller nor to root, if the name is that of
/// a link or of anything but a regular file or a FIFO of the caller, or if it cannot be written.
pub fn write_inside(
    out: &Path,
    name: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), SessionError> {
    let folder = Folder::create(out).map_err(|error| refused(&error))?;
    let file = out.join(name);
    match folder.kind(name) {
        Ok(None | Some(FileType::RegularFile)) => {}
        Ok(Some(FileType::Symlink)) => return Err(is_link(&file)),
        // Only the owner of the folder can have created it.
        Ok(Some(FileType::Fifo)) => {
            let written = folder.own_fifo(name).and_then(|fifo| {
                let mut out = BufWriter::new(fifo);
                write(&mut out)?;
                out.flush()
            });
            return written.map_err(|error| unwritten(&file, &error));
        }
        Ok(Some(_)) => {
            let message = format!(
                "cannot write {}: it is no regular file; remove it",
                file.display()
            );
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
        Err(error) => return Err(unwritten(&file, &error)),
    }
    replace(&folder, OsStr::new(name), write).map_err(|error| unwritten(&file, &error))
}

/// Writes a file that the user named, and replaces an existing one. A device or a pipe is written
/// to, also through a link (`/dev/stdout`).
///
/// # Errors
/// [`SessionError`] if it is a link to a regular file, or cannot be written.
pub fn write(
    file: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), SessionError> {
    let failed = |error: io::Error| unwritten(file, &error);
    let (folder, name) = Folder::above(file).map_err(failed)?;
    match folder.kind(&name).map_err(failed)? {
        None | Some(FileType::RegularFile) => replace(&folder, &name, write).map_err(failed),
        Some(_) => {
            let mut device = device(file).map_err(failed)?.ok_or_else(|| is_link(file))?;
            let written = write(&mut device).and_then(|()| device.flush());
            written.map_err(failed)
        }
    }
}

/// Opens a file that is not regular; `None` if it is regular, or does not exist.
#[expect(
    clippy::disallowed_methods,
    reason = "the user named it, and nothing is written if it is a regular file"
)]
fn device(file: &Path) -> io::Result<Option<BufWriter<File>>> {
    if !std::fs::metadata(file).is_ok_and(|about| !about.is_file()) {
        return Ok(None);
    }
    // It may have been replaced since: this does not create or truncate it.
    let device = File::options().write(true).open(file)?;
    let is_file = device.metadata()?.is_file();
    Ok((!is_file).then(|| BufWriter::new(device)))
}

fn replace(
    folder: &Folder,
    name: &OsStr,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(folder.replace(name)?);
    write(&mut out)?;
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .commit()
}

fn is_link(file: &Path) -> SessionError {
    let message = format!(
        "cannot write {}: it is a symbolic link, which is not followed; name the file itself, or remove the link",
        file.display()
    );
    SessionError::new(ErrorKind::Usage, message)
}

fn unwritten(file: &Path, error: &io::Error) -> SessionError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull => ErrorKind::Incomplete,
        io::ErrorKind::PermissionDenied => ErrorKind::Unavailable,
        _ => ErrorKind::Usage,
    };
    SessionError::new(kind, format!("cannot write {}: {error}", file.display()))
}

/// The error of a folder that cannot be used.
pub(crate) fn refused(error: &FolderError) -> SessionError {
    let kind = match error {
        FolderError::Foreign { .. } | FolderError::Shared { .. } => ErrorKind::Unavailable,
        FolderError::Create { .. } => ErrorKind::Usage,
    };
    SessionError::new(kind, error.to_string())
}
