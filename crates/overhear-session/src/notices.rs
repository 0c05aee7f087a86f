// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages for the user while a run goes on: violated constraints, and reactions with `log = "-"`.
//!
//! The caller decides where they are shown, for example on standard error. They come from threads
//! of the session.

use std::fmt;
use std::sync::Arc;

/// Where messages are shown. Without a function they are dropped; the report has the same facts.
#[derive(Clone, Default)]
pub struct Notices(Option<Arc<Show>>);

type Show = dyn Fn(&str) + Send + Sync;

impl Notices {
    /// Calls `show` with each message, a line without its end.
    #[must_use]
    pub fn new(show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(show)))
    }

    pub(crate) fn show(&self, message: &str) {
        if let Some(show) = &self.0 {
            show(message);
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            Some(_) => "shown",
            None => "dropped",
        };
        write!(f, "Notices({state})")
    }
}
