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
    /// /run/overhear/directory.sock for root and $XDG_RUNTIME_DIR/overhear/directory.sock for
    /// others
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Quotas, retention and rules, a TOML file. Without it: /etc/overhear/directory.toml for root
    /// and $XDG_CONFIG_HOME/overhear/directory.toml for others, if that is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Checks the configuration, prints its errors, and exits
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
    #[error("there is no default socket, because XDG_RUNTIME_DIR is not set; give --socket PATH")]
    NoSocketFolder,
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
    // First: later descriptors could have the numbers of inherited ones.
    let mut inherited = systemd::inherited().map_err(DaemonError::Inherited)?;
    raise_limits();
    let builder = settings.apply(Directory::builder().standalone());
    // From now on a signal stays pending until it is waited for, in every thread.
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
        prepare_socket_path(socket)?;
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

/// Raises the limits of descriptors and of locked memory: every sensor takes some of both.
fn raise_limits() {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let Rlimit { maximum, .. } = getrlimit(resource);
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // With lower limits the directory refuses sensors earlier, and reports buffers that are not
        // locked.
        let _ = setrlimit(resource, raised);
    }
}

fn usual_socket() -> Result<PathBuf, DaemonError> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/run/overhear/directory.sock"));
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let folder = folder.ok_or(DaemonError::NoSocketFolder)?;
    Ok(Path::new(&folder).join("overhear/directory.sock"))
}

/// Makes the folder, and removes the socket of a directory that is gone.
fn prepare_socket_path(socket: &Path) -> Result<(), DaemonError> {
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
