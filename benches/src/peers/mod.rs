// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other tools, each as one contender: the cheapest event with one number that it offers, with its
//! reader on the other CPU.
//!
//! A peer that is not compiled in or cannot start is left out with a message.

#[cfg(feature = "iceoryx2")]
mod iceoryx2;
#[cfg(feature = "lttng")]
mod lttng;
#[cfg(feature = "perfetto")]
mod perfetto;
#[cfg(feature = "tracy")]
mod tracy;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// A tool that has started.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Produces this number of events.
    pub(crate) run: Rc<RefCell<dyn FnMut(u64)>>,
    /// Events in a batch: fewer for expensive events, so that all batches take about the same time.
    pub(crate) elements: u64,
    /// The same tool, switched off, by the code at this offset in a line.
    pub(crate) off: Option<fn(usize, u64)>,
    /// The tool's event without a declaration, with the number as text: its name and code.
    pub(crate) formatted: Option<(&'static str, fn(u64))>,
    /// Objects that must live until the last event.
    pub(crate) _keeper: Box<dyn Any>,
}

impl Peer {
    #[cfg_attr(
        not(any(
            feature = "lttng",
            feature = "tracy",
            feature = "perfetto",
            feature = "iceoryx2"
        )),
        expect(dead_code, reason = "no peer is built in")
    )]
    fn new(
        name: &'static str,
        elements: u64,
        keeper: impl Any,
        run: impl FnMut(u64) + 'static,
    ) -> Self {
        Self {
            name,
            run: Rc::new(RefCell::new(run)),
            elements,
            off: None,
            formatted: None,
            _keeper: Box::new(keeper),
        }
    }
}

/// Starts every available tool. Their threads inherit the CPU of the caller.
pub(crate) fn start() -> (Vec<Peer>, Vec<String>) {
    let mut peers = Vec::new();
    let mut skipped = Vec::new();
    let mut add = |name: &str, started: anyhow::Result<Peer>| match started {
        Ok(peer) => peers.push(peer),
        Err(reason) => skipped.push(format!("{name}: {reason:#}")),
    };
    let _absent = || anyhow::anyhow!("not built into this program; `make bench` prints the reason");
    #[cfg(feature = "lttng")]
    add("LTTng-UST", lttng::start());
    #[cfg(not(feature = "lttng"))]
    add("LTTng-UST", Err(_absent()));
    #[cfg(feature = "tracy")]
    add("Tracy", tracy::start());
    #[cfg(not(feature = "tracy"))]
    add("Tracy", Err(_absent()));
    #[cfg(feature = "perfetto")]
    add("perfetto-sdk", perfetto::start());
    #[cfg(not(feature = "perfetto"))]
    add("perfetto-sdk", Err(_absent()));
    #[cfg(feature = "iceoryx2")]
    add("iceoryx2", iceoryx2::start());
    #[cfg(not(feature = "iceoryx2"))]
    add("iceoryx2", Err(_absent()));
    (peers, skipped)
}
