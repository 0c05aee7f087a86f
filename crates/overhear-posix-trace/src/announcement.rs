// SPDX-License-Identifier: MIT OR Apache-2.0
//! The announcement of this process' area, by which other processes find and create its streams.
//!
//! Without a directory the process is traced by itself alone. That is no error, so it is not
//! reported, except on standard error with `OVERHEAR_NOT_CONNECTED=stderr` in the environment, as
//! for sensors.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use overhear_directory::areas::publish_at;
use overhear_directory::client::{environment, socket_path, RegisterError};

use crate::area::Area;

/// The directory's socket when the library was loaded.
static SOCKET: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Announces the area when the library is loaded. It takes half a second at most.
pub(crate) fn announce(area: &Area) {
    let announced = match SOCKET.get_or_init(socket_path) {
        Some(socket) => publish_at(socket, area.file()),
        None => Err(RegisterError::NoDirectory),
    };
    let is_wanted = || environment("OVERHEAR_NOT_CONNECTED").is_some_and(|it| it == "stderr");
    if let (Err(error), true) = (announced, is_wanted()) {
        // An error of standard error cannot be reported.
        let _ = writeln!(
            std::io::stderr(),
            "overhear: no other process can find the POSIX trace streams of this process: {error}"
        );
    }
}

/// Announces the area in the child of a fork. It does not read the environment: another thread of
/// the parent may have held its lock.
pub(crate) fn announce_child(area: &Area) {
    if let Some(Some(socket)) = SOCKET.get() {
        // Without a directory the child is traced all the same.
        let _ = publish_at(socket, area.file());
    }
}
