// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings of one hook of a monitor: a map of pages, frozen, and mapped for reading.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::{libbpf_sys, MapHandle, MapType};
use overhear_event::ClockId;
use overhear_stream::{Geometry, Header, WriterKind};
use rustix::param::page_size;

use super::load::into_io;
use super::map::is_ring_map;
use crate::mapping::{Access, MappedWords, Mapping};
use crate::streams::{Feed, Numbering, PAGE_BYTES};

/// The rings of all CPUs, consecutive in one map.
pub(crate) struct Rings {
    pub(crate) map: OwnedFd,
    mapping: Arc<Mapping>,
    geometry: Geometry,
    /// Values per ring: the header, and the pages of the elements.
    pub(crate) pages: u32,
    cpus: u32,
}

impl Rings {
    /// Creates the map, writes the headers, and freezes it: from then on only programs write.
    pub(crate) fn create(number: u32, feed: &Feed, numbering: Numbering) -> io::Result<Self> {
        let geometry = feed.geometry().map_err(io::Error::other)?;
        let cpus = numbering.cpus();
        let pages = geometry.bytes().div_ceil(PAGE_BYTES as usize) as u32;
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE | libbpf_sys::BPF_F_INNER_MAP,
            ..Default::default()
        };
        let map = MapHandle::create(
            MapType::Array,
            Some("oh_rings"),
            4,
            PAGE_BYTES,
            pages * cpus,
            &options,
        );
        let map = map.map_err(into_io)?;
        let bytes = (PAGE_BYTES * pages * cpus) as usize;
        let bytes = bytes.next_multiple_of(page_size());
        // A map can only be frozen while no process has it mapped writable.
        let writable = Mapping::new(map.as_fd(), bytes, Access::Write)?;
        for cpu in 0..cpus {
            let id = numbering.id(number, cpu).as_raw();
            let ring = writable.part(offset(pages, cpu), geometry.bytes());
            Header::new(&geometry, WriterKind::Kernel, ClockId::Monotonic, id.into()).store(&ring);
        }
        drop(writable);
        map.freeze().map_err(into_io)?;
        let mapping = Mapping::new(map.as_fd(), bytes, Access::Read)?;
        Ok(Self {
            map: map.as_fd().try_clone_to_owned()?,
            mapping,
            geometry,
            pages,
            cpus,
        })
    }

    /// Maps rings of another process; `None` if the descriptor is not a frozen map of the shape
    /// that the feed needs.
    pub(crate) fn received(
        map_untrusted: OwnedFd,
        feed: &Feed,
        numbering: Numbering,
    ) -> Option<Self> {
        let geometry = feed.geometry().ok()?;
        let cpus = numbering.cpus();
        let pages = geometry.bytes().div_ceil(PAGE_BYTES as usize) as u32;
        let entries = pages.checked_mul(cpus)?;
        if !is_ring_map(map_untrusted.as_fd(), PAGE_BYTES, entries) {
            return None;
        }
        let bytes = PAGE_BYTES as usize * entries as usize;
        let bytes = bytes.next_multiple_of(page_size());
        let mapping = Mapping::new(map_untrusted.as_fd(), bytes, Access::Read).ok()?;
        Some(Self {
            map: map_untrusted,
            mapping,
            geometry,
            pages,
            cpus,
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The ring of a CPU.
    pub(crate) fn of_cpu(&self, cpu: u32) -> MappedWords {
        self.mapping
            .part(offset(self.pages, cpu), self.geometry.bytes())
    }

    /// Size of the elements of all CPUs in bytes.
    pub(crate) fn element_bytes(&self) -> u64 {
        let ring = self.geometry.capacity() * self.geometry.stride_bytes() as u64;
        ring * u64::from(self.cpus)
    }
}

const fn offset(pages: u32, cpu: u32) -> usize {
    (PAGE_BYTES * pages) as usize * cpu as usize
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::fd::AsFd;

    use overhear_event::{ClockId, StreamId};
    use overhear_stream::{Header, HeaderUntrusted, Reader, WriterKind};

    use super::{Access, Mapping, Numbering, Rings};
    use crate::streams::Hook;

    #[test]
    fn rings_have_headers_and_are_frozen() {
        let numbering = Numbering::new(StreamId::from_raw(40), 2, 3);
        for (number, hook) in Hook::SCHED.into_iter().enumerate() {
            for capacity in [8, 256, 1024] {
                let number = number as u32;
                let rings = match Rings::create(number, &hook.feed(capacity), numbering) {
                    Ok(rings) => rings,
                    Err(error) => return println!("skipped: {error}"),
                };
                for cpu in 0..2 {
                    let ring = rings.of_cpu(cpu);
                    let id = numbering.id(number, cpu).as_raw().into();
                    let geometry = rings.geometry();
                    let header = Header::new(&geometry, WriterKind::Kernel, ClockId::Monotonic, id);
                    let found = HeaderUntrusted::load(&ring).unwrap();
                    assert_eq!(found.check(&header), Ok(()));
                    let reader = Reader::from_start(ring, geometry).unwrap();
                    assert_eq!(reader.published(), 0, "no process is followed");
                }
                let writable = Mapping::new(rings.map.as_fd(), 4096, Access::Write);
                assert_eq!(writable.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        }
    }
}
