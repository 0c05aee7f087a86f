// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `overheard`: a directory that serves a user or a whole machine.
//!
//! It reads its rules (`settings`), takes what the service manager hands over
//! (`systemd`), starts the directory and waits for the end.

mod settings;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::service::{Directory, DirectoryError, Inherited};

pub use settings::SettingsError;

/// The sensor directory: programs register their sensors here, monitors find and read them.
#[derive(Debug, Parser)]
#[command(name = "overheard", version, about, long_about = None)]
struct Arguments {
    /// Where to listen. Without it: the sockets of the service manager, or else
    /// /run/overhear/directory.sock for root and $XDG_RUNTIME_DIR/overhear/directory.sock for others
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Quotas, retention and rules, a TOML file. Without it: /etc/overhear/directory.toml for root
    /// and $XDG_CONFIG_HOME/overhear/directory.toml for others, if that is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Reads the configuration, says what is wrong with it, and ends
    #[arg(long)]
    check: bool,
}

/// Why `overheard` cannot serve.
#[derive(Debug, thiserror::Error)]
enum DaemonError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot tell where to listen: XDG_RUNTIME_DIR is not set; give --socket PATH")]
    NoPlace,
    #[error("cannot make the folder {}: {source}", .folder.display())]
    Folder {
        folder: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is in use: another directory listens there", .0.display())]
    InUse(PathBuf),
    #[error("cannot take what the service manager hands over: {0}")]
    Inherited(std::io::Error),
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
}

/// Runs `overheard` with the arguments of this process until a signal ends it.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "overheard: {}",
                overhear_event::printable(&error.to_string())
            );
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), DaemonError> {
    let settings = settings::load(arguments.config.as_deref())?;
    if arguments.check {
        println!("overheard: the configuration is good");
        return Ok(());
    }
    // First of all: descriptors that are handed over must not be taken for others.
    let mut inherited = systemd::inherited().map_err(DaemonError::Inherited)?;
    raise_limits();
    let builder = settings.apply(Directory::builder().standalone());
    // A signal that comes from now on is waited for, in whichever thread.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])
    .map_err(DaemonError::Signals)?;
    let own = match (&arguments.socket, inherited.listeners.is_empty()) {
        (None, false) => None,
        (Some(socket), _) => Some(socket.clone()),
        (None, true) => Some(usual_socket()?),
    };
    if let Some(socket) = &own {
        make_place(socket)?;
        inherited.listeners.push(builder.listen(socket)?);
    }
    let directory = start(builder, inherited)?;
    systemd::ready(&directory);
    if let Some(socket) = &own {
        println!("overheard: listening at {}", socket.display());
    }
    let _ = signals.forever().next();
    systemd::stopping();
    drop(directory);
    if let Some(socket) = own {
        let _ = std::fs::remove_file(socket);
    }
    Ok(())
}

fn start(
    builder: crate::service::DirectoryBuilder,
    inherited: Inherited,
) -> Result<Directory, DirectoryError> {
    builder.start_with(inherited)
}

/// Every sensor takes a descriptor and locked memory, so as much of both as this process may have.
fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let Rlimit { maximum, .. } = getrlimit(resource);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // Without it the directory refuses sensors earlier, with a sentence, and tells that buffers
        // are not locked.
        let _ = setrlimit(resource, raised);
    }
}

fn usual_socket() -> Result<PathBuf, DaemonError> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/run/overhear/directory.sock"));
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.ok_or(DaemonError::NoPlace)?;
    Ok(Path::new(&folder).join("overhear/directory.sock"))
}

/// Makes the folder, and removes the socket of a directory that is gone.
fn make_place(socket: &Path) -> Result<(), DaemonError> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(|source| DaemonError::Folder {
            folder: folder.to_path_buf(),
            source,
        })?;
    }
    if crate::MonitorConnection::connect(socket).is_ok() {
        return Err(DaemonError::InUse(socket.to_path_buf()));
    }
    let is_socket = std::fs::symlink_metadata(socket)
        .is_ok_and(|about| std::os::unix::fs::FileTypeExt::is_socket(&about.file_type()));
    if is_socket {
        let _ = std::fs::remove_file(socket);
    }
    Ok(())
}
