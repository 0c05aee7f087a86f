// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time at which the program of a run was released: the origin of times in messages and on the
//! page.

use std::sync::{Arc, OnceLock};

use overhear_event::Timestamp;

/// The time of the release. Set once by the session, read by the threads that write messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunStart(Arc<OnceLock<Timestamp>>);

impl RunStart {
    /// Sets the time of the release. Later calls have no effect.
    pub(crate) fn set(&self, at: Timestamp) {
        let _ = self.0.set(at);
    }

    /// The time of the release; `None` before it.
    pub(crate) fn get(&self) -> Option<Timestamp> {
        self.0.get().copied()
    }
}
