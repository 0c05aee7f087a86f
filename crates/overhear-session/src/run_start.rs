// SPDX-License-Identifier: MIT OR Apache-2.0
//! When the program of a run was released: from then on messages and the page count times.

use std::sync::{Arc, OnceLock};

use overhear_event::Timestamp;

/// Set once by the session, read by the threads that say when something happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunStart(Arc<OnceLock<Timestamp>>);

impl RunStart {
    /// The program is released at this time. Later calls change nothing.
    pub(crate) fn set(&self, at: Timestamp) {
        let _ = self.0.set(at);
    }

    /// `None` before the release.
    pub(crate) fn get(&self) -> Option<Timestamp> {
        self.0.get().copied()
    }
}
