// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Map`]: a BPF map, known by its descriptor alone; and the check of received maps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{fs, io};

use libbpf_rs::libbpf_sys;

use crate::machine;

/// An open map. The caller of the functions below passes keys and values of the map's sizes.
/// libbpf-rs has no type for a map of which only the descriptor is known.
pub(crate) struct Map(pub(crate) OwnedFd);

impl Map {
    /// Sets a value of 4 or 8 bytes; the map's keys and values must be of these sizes.
    pub(crate) fn update<const K: usize, const V: usize>(
        &self,
        key: [u8; K],
        value: [u8; V],
    ) -> io::Result<()> {
        // SAFETY: the descriptor is open. The kernel reads the sizes of the map's keys and values
        // from two arrays. The callers pass arrays of these sizes: they know the map by its member
        // of `Maps`, and the shape of a received map has been compared with that of such a member.
        let result = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.0.as_raw_fd(),
                key.as_ptr().cast(),
                value.as_ptr().cast(),
                0,
            )
        };
        done(result)
    }

    /// Deletes an entry.
    pub(crate) fn delete<const K: usize>(&self, key: [u8; K]) -> io::Result<()> {
        // SAFETY: as above.
        let result =
            unsafe { libbpf_sys::bpf_map_delete_elem(self.0.as_raw_fd(), key.as_ptr().cast()) };
        done(result)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// libbpf returns the negative number of an error.
fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    Ok(())
}

/// Type and sizes of a map, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapShape {
    pub(crate) kind: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) entries: u32,
}

/// Shape of the map of a descriptor, and the text it was read from; `None` if the descriptor is not
/// a map.
pub(crate) fn shape(fd: BorrowedFd<'_>) -> Option<(MapShape, String)> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let number = |key| machine::field(&info, key)?.parse().ok();
    let shape = MapShape {
        kind: number("map_type:")?,
        key_bytes: number("key_size:")?,
        value_bytes: number("value_size:")?,
        entries: number("max_entries:")?,
    };
    Some((shape, info))
}

pub(crate) const ARRAY: u32 = 2;
pub(crate) const ARRAY_OF_MAPS: u32 = 12;
pub(crate) const HASH: u32 = 1;

/// Whether the descriptor is a frozen ring map with `pages` values of `page_bytes` bytes
/// (`hand_over.rs`, rule 2).
pub(crate) fn is_ring_map(fd: BorrowedFd<'_>, page_bytes: u32, pages: u32) -> bool {
    let wanted = MapShape {
        kind: ARRAY,
        key_bytes: 4,
        value_bytes: page_bytes,
        entries: pages,
    };
    let frozen = |info: &str| machine::field(info, "frozen:") == Some("1");
    shape(fd).is_some_and(|(shape, info)| shape == wanted && frozen(&info))
}
