// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Map`]: a map of the kernel by its descriptor alone, wherever that came from.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// An open map. That keys and values have the sizes that the calls below are given is up to their callers:
/// libbpf-rs has no handle that begins with a descriptor.
pub(crate) struct Map(pub(crate) OwnedFd);

impl Map {
    /// Sets a value of 4 or 8 bytes; the map's keys and values must be of these sizes.
    pub(crate) fn update<const K: usize, const V: usize>(
        &self,
        key: [u8; K],
        value: [u8; V],
    ) -> io::Result<()> {
        // SAFETY: the descriptor is open. The kernel reads as many bytes as the map's keys and values have;
        // both are given in arrays of that size by the callers, which know the map by its member of `Maps`,
        // and a map that was received has been compared with what such a member is.
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

    /// Takes a value out.
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
