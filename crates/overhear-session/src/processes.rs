// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a process or thread is alive, by `/proc`.

/// Whether a process or thread with this id exists and is not a zombie. Ids are reused, so only a
/// directory can identify a process; this is for the time after the directory has gone.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !ENDED.contains(&state))
}

/// Whether it is known to be a zombie.
pub(crate) fn is_zombie(pid: u32) -> bool {
    state(pid).is_some_and(|state| ENDED.contains(&state))
}

/// Letters of the state of a zombie and of a dead process.
const ENDED: [char; 2] = ['Z', 'X'];

/// The letter of the state; `None` if there is no such process, or `/proc` hides it.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
}
