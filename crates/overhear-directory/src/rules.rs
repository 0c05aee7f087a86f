// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may register, attach and switch.

use crate::peer::Peer;
use crate::registry::Sensor;

/// Who may do what. By default: a sensor's own user and root.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {}

impl Rules {
    /// Whether this peer may read this sensor; the rule that forbids it.
    pub(crate) fn attach(&self, peer: &Peer, sensor: &Sensor) -> Result<(), String> {
        own(peer, sensor.uid, "attach to")
    }

    /// Whether this peer may switch this sensor on and off; the rule that forbids it.
    pub(crate) fn switch(&self, peer: &Peer, sensor: &Sensor) -> Result<(), String> {
        own(peer, sensor.uid, "switch")
    }
}

fn own(peer: &Peer, owner: u32, action: &str) -> Result<(), String> {
    if peer.uid == owner || peer.uid == 0 {
        return Ok(());
    }
    Err(format!(
        "user {} may not {action} sensors of user {owner}: by default only the same user and root \
         may; a rule of the directory can permit it",
        peer.uid
    ))
}
