// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the directory is that a command talks to.

use std::path::{Path, PathBuf};

use overhear_directory::{AttachError, MonitorConnection, Query, SensorRecord, SensorState};

use crate::error::{ErrorKind, SessionError};
use crate::identity::Identity;
use crate::listing::{Listed, State};

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
                        /run/overhear/directory.sock exists; start `overheard`, or name the socket \
                        with --socket";
            SessionError::new(ErrorKind::Unavailable, message)
        })
}

/// Connects to the directory there.
///
/// # Errors
/// [`SessionError`] if nobody answers.
pub fn connect(socket: &Path) -> Result<MonitorConnection, SessionError> {
    MonitorConnection::connect(socket).map_err(|error| {
        let message = format!("{error}; is `overheard` running, or `overhear run --socket`?");
        SessionError::new(ErrorKind::Unavailable, message)
    })
}

/// Which sensors are meant: any of the globs' sensors cannot be asked for at once, so there is one.
///
/// # Errors
/// [`SessionError`] if a glob cannot be understood.
pub fn query(names: &str, type_id: Option<&str>) -> Result<Query, SessionError> {
    let query = Query::parse(names);
    let query = match type_id {
        Some(glob) => query.and_then(|query| query.of_type(glob)),
        None => query,
    };
    query.map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
}

/// An answer that ends the command.
pub fn refused(error: AttachError) -> SessionError {
    SessionError::new(ErrorKind::Unavailable, error.to_string())
}

/// A directory's record as it is shown.
#[must_use]
pub fn listed(record: &SensorRecord) -> Listed {
    Listed {
        identity: Identity::of(&record.descriptor),
        kind: record.kind.name().to_string(),
        lanes: record.lanes,
        capacity: record.descriptor.capacity,
        bytes: record.bytes,
        elements: record.published,
        lost_nested: record.lost_nested,
        lost_full: record.lost_full,
        state: state(record),
        uid: record.uid,
        monitors: record.monitors,
    }
}

/// What a sensor is doing.
#[must_use]
pub const fn state(record: &SensorRecord) -> State {
    match (record.state, record.enabled) {
        (SensorState::Live, true) => State::On,
        (SensorState::Live, false) => State::Off,
        _ => State::Ended,
    }
}

/// Whether a process is there and no zombie. Only a directory can tell that for sure, because
/// process ids are used again; this is for the time when it is gone.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}
