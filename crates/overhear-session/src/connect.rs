// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a directory: its socket, and the query for its sensors.

use std::path::{Path, PathBuf};

use overhear_directory::{MonitorConnection, Query};

use crate::error::{ErrorKind, SessionError, Setting};

/// The socket that was named, or the one of this environment.
///
/// # Errors
/// [`SessionError`] if none was named and none is found.
pub fn socket(named: Option<PathBuf>) -> Result<PathBuf, SessionError> {
    named
        .or_else(overhear_directory::client::socket_path)
        .ok_or_else(|| {
            let message = "no directory is found: OVERHEAR_DIRECTORY is not set, and neither \
                           $XDG_RUNTIME_DIR/overhear/directory.sock nor \
                           /run/overhear/directory.sock exists; start `overheard`, or name the \
                           socket";
            SessionError::new(ErrorKind::Unavailable, message).about(Setting::Socket)
        })
}

/// Connects to the directory at this socket.
///
/// # Errors
/// [`SessionError`] if no directory answers.
pub fn connect(socket: &Path) -> Result<MonitorConnection, SessionError> {
    MonitorConnection::connect(socket).map_err(|error| {
        let message = format!("{error}; start `overheard`, or `overhear run` with this socket");
        SessionError::new(ErrorKind::Unavailable, message).about(Setting::Socket)
    })
}

/// The query for a pattern of sensor names. The directory takes one pattern per request.
///
/// # Errors
/// [`SessionError`] if a glob is invalid.
pub fn query(names: &str, type_id: Option<&str>) -> Result<Query, SessionError> {
    let query = Query::parse(names);
    let query = match type_id {
        Some(glob) => query.and_then(|query| query.of_type(glob)),
        None => query,
    };
    query.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}
