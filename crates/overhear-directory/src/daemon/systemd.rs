// SPDX-License-Identifier: MIT OR Apache-2.0
//! The service manager: inherited sockets and files, the store of files, readiness.
//!
//! The protocol is that of `sd_listen_fds(3)` and `sd_notify(3)`, which other managers have as
//! well.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use sd_notify::NotifyState;

use crate::journal::Store;
use crate::recovery::Recovered;
use crate::service::{Directory, Inherited};

/// The inherited sockets and files. Called once, before this process has opened anything.
pub(super) fn inherited() -> io::Result<Inherited> {
    let mut listeners = Vec::new();
    let mut kept = Vec::new();
    for (raw, name) in sd_notify::listen_fds_with_names()? {
        // SAFETY: the environment states that the service manager opened it for this process, and
        // this function is called once: nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        if is_listener(&file) {
            rustix::io::ioctl_fionbio(&file, true)?;
            listeners.push(file);
        } else {
            kept.push((name, file));
        }
    }
    let store: Option<Box<dyn Store>> = match std::env::var_os("NOTIFY_SOCKET") {
        Some(_) => Some(Box::new(Manager)),
        None => None,
    };
    Ok(Inherited {
        listeners,
        left: Recovered::new(kept),
        store,
    })
}

fn is_listener(file: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_acceptconn(file).unwrap_or(false)
}

/// The service manager's store of file descriptors.
#[derive(Debug)]
struct Manager;

impl Store for Manager {
    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        // The manager need not poll it: a memory file has no events.
        let states = [
            NotifyState::FdStore,
            NotifyState::FdName(name),
            NotifyState::Custom("FDPOLL=0"),
        ];
        sd_notify::notify_with_fds(&states, &[file.as_fd()])
    }

    fn forget(&self, name: &str) {
        // An error means that the manager is gone, and its store with it.
        let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
}

/// Reports readiness: programs and monitors are served from now on.
pub(super) fn ready(directory: &Directory) {
    let kept = directory.status().sensors;
    let status = format!("{kept} sensors taken over");
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports the end of the service.
pub(super) fn stopping() {
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
}
