// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list --not-connected`: the sensors that a directory refused or deferred.

use overhear_directory::NotConnectedRecord;
use serde::Serialize;

/// What `overhear list --not-connected --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct NotConnectedListing {
    /// Version of the program that made it.
    pub overhear_version: String,
    /// Where the directory listens.
    pub socket: String,
    /// The latest of each user, oldest first.
    pub sensors: Vec<NotConnectedRecord>,
}
