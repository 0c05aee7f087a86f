// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors that a directory refused or deferred.

use overhear_directory::NotConnectedRecord;
use serde::Serialize;

/// The sensors of a directory that are not connected, as a JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct NotConnectedListing {
    /// Version of the program that made the document.
    pub overhear_version: String,
    /// The socket of the directory.
    pub socket: String,
    /// The latest sensors of each user, oldest first.
    pub sensors: Vec<NotConnectedRecord>,
}
