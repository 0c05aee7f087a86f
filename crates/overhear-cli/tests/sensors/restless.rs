// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plug-in in Rust that the suite `sensors` loads: an update that panics, and one that requests
//! reactions.

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_monitor::plugin::{react, Exported};

/// Panics at its third element.
struct Panicking(u32);

impl Analysis for Panicking {
    fn element(&mut self, _: &ElementView<'_>) {
        self.0 += 1;
        assert!(self.0 < 3, "the third is too much");
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

impl Exported for Panicking {
    const NAME: &'static str = "panicking";

    fn create(_: &str) -> Result<Self, String> {
        // Outside a call there is no receiver.
        assert!(!react(0, 0));
        Ok(Self(0))
    }
}

/// Requests a reaction at each element, with its position.
struct Requesting;

impl Analysis for Requesting {
    fn element(&mut self, element: &ElementView<'_>) {
        react(3, element.sequence.cast_signed());
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

impl Exported for Requesting {
    const NAME: &'static str = "asking";

    fn create(_: &str) -> Result<Self, String> {
        Ok(Self)
    }
}

overhear_monitor::export_updates!(Panicking, Requesting);
