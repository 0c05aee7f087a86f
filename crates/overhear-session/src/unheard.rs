// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear list --unheard`: the sensors that asked a directory and are not heard.

use overhear_directory::UnheardRecord;
use serde::Serialize;

/// What `overhear list --unheard --format json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct UnheardListing {
    /// Version of the program that made it.
    pub overhear_version: String,
    /// Where the directory listens.
    pub socket: String,
    /// The latest of each user, oldest first.
    pub sensors: Vec<UnheardRecord>,
}
