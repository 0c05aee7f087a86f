// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PlacedProbe`]: a probe of a monitor, which a budget may detach for a while.
//!
//! A probe of a program is a breakpoint in the program's code. While it is there, each pass costs
//! an exception, also if no element is written. So a budget detaches it: then a pass costs nothing,
//! and nobody counts it. Points of the kernel stay attached: their programs count the passes.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::Object;

use super::load::{self, Attached};
use crate::probe::{ProbeTarget, ResolvedProbe};
use crate::ProbeError;

/// A probe, and the rings that it writes to.
pub(crate) struct PlacedProbe {
    pub(crate) slot: u32,
    /// `None` while it is detached.
    attached: Option<Attached>,
    /// `None` for points of the kernel.
    place: Option<Place>,
}

/// What is needed to attach a probe again.
struct Place {
    probe: ResolvedProbe,
    cookie: u64,
    /// The file of the probe. Its path may belong to another file meanwhile.
    file: Option<File>,
}

impl PlacedProbe {
    /// An attached point of the kernel.
    pub(crate) const fn of_kernel(slot: u32, attached: Attached) -> Self {
        Self {
            slot,
            attached: Some(attached),
            place: None,
        }
    }

    /// A point of the kernel that another process has attached.
    pub(crate) fn received(point: (u32, OwnedFd)) -> Self {
        Self::of_kernel(point.0, Attached::received(point))
    }

    /// Attaches a probe of a program.
    pub(crate) fn of_program(
        object: &mut Object,
        probe: &ResolvedProbe,
        slot: u32,
        cookie: u64,
    ) -> Result<Self, ProbeError> {
        let file = match &probe.target {
            ProbeTarget::Function { path, .. } | ProbeTarget::Static { path, .. } => Some(path),
            ProbeTarget::Point(_) => None,
        };
        let place = Place {
            probe: probe.clone(),
            cookie,
            file: file.and_then(|path| File::open(path).ok()),
        };
        Ok(Self {
            slot,
            attached: Some(load::attach(object, probe, cookie)?),
            place: Some(place),
        })
    }

    pub(crate) const fn attached(&self) -> Option<&Attached> {
        self.attached.as_ref()
    }

    /// Whether it cannot be handed over: it ends with the process that attached it, or is detached.
    pub(crate) fn is_bound(&self) -> bool {
        self.attached.as_ref().is_none_or(Attached::is_bound)
    }

    /// Takes the attachment of a probe of a program; dropping it detaches the probe, which takes
    /// time.
    pub(crate) fn detach(&mut self) -> Option<Attached> {
        self.place.as_ref()?;
        self.attached.take()
    }

    /// Attaches it again, if it is detached.
    pub(crate) fn attach(&mut self, object: &mut Object) -> Result<(), ProbeError> {
        let (None, Some(place)) = (&self.attached, &self.place) else {
            return Ok(());
        };
        let mut probe = place.probe.clone();
        if let (Some(file), ProbeTarget::Function { path, .. } | ProbeTarget::Static { path, .. }) =
            (&place.file, &mut probe.target)
        {
            *path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        }
        self.attached = Some(load::attach_again(object, &probe, place.cookie)?);
        Ok(())
    }

    /// Detaches the probe for ever. The program of a point is returned, because its counts are
    /// still readable.
    pub(crate) fn end(self) -> Option<(u32, OwnedFd)> {
        self.attached.and_then(Attached::detach)
    }
}
