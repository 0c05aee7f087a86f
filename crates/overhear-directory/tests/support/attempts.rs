// SPDX-License-Identifier: MIT OR Apache-2.0
//! All operations that could be tried with a file that may only be read.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// Maps a file as requested and returns the kernel's answer; a granted map is undone.
fn map(file: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<(), Errno> {
    // SAFETY: a fresh map at an address of the kernel's choice, unmapped before anyone uses it.
    unsafe {
        let base = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )?;
        rustix::mm::munmap(base, bytes)
    }
}

/// Maps a file for reading and requests the right to write afterwards.
fn map_and_raise(file: impl AsFd, bytes: usize) -> Result<(), Errno> {
    // SAFETY: as in `map`; raising the rights of a fresh map changes nothing else.
    unsafe {
        let base = rustix::mm::mmap(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )?;
        let raised = rustix::mm::mprotect(base, bytes, MprotectFlags::READ | MprotectFlags::WRITE);
        rustix::mm::munmap(base, bytes)?;
        raised
    }
}

/// Asserts that every operation fails that would change the stream through this descriptor.
#[track_caller]
pub fn is_sealed(file: &OwnedFd, bytes: usize) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    assert_eq!(
        map(file, bytes, ProtFlags::READ),
        Ok(()),
        "reading is allowed"
    );
    assert_eq!(map(file, bytes, both), Err(Errno::PERM));
    assert_eq!(map(file, bytes, ProtFlags::WRITE), Err(Errno::PERM));
    assert_eq!(map_and_raise(file, bytes), Err(Errno::ACCESS));
    assert_eq!(rustix::io::pwrite(file, &[1; 8], 64), Err(Errno::PERM));
    assert_eq!(rustix::io::write(file, &[1; 8]), Err(Errno::PERM));
    let size = bytes as u64;
    for other in [0, size - 4096, size + 4096] {
        assert_eq!(rustix::fs::ftruncate(file, other), Err(Errno::PERM));
    }
    let keep = FallocateFlags::KEEP_SIZE;
    let hole = keep | FallocateFlags::PUNCH_HOLE;
    assert_eq!(rustix::fs::fallocate(file, hole, 0, 4096), Err(Errno::PERM));
    let grow = FallocateFlags::empty();
    assert_eq!(
        rustix::fs::fallocate(file, grow, 0, size + 4096),
        Err(Errno::PERM)
    );
    assert_eq!(
        rustix::fs::fcntl_add_seals(file, SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

/// Asserts that a page, which its owner goes on writing, can only be read through this descriptor.
#[track_caller]
pub fn can_only_be_read(file: &OwnedFd, bytes: usize) {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    assert_eq!(map(file, bytes, ProtFlags::READ), Ok(()));
    assert!(map(file, bytes, both).is_err());
    assert!(map(file, bytes, ProtFlags::WRITE).is_err());
    assert_eq!(map_and_raise(file, bytes), Err(Errno::ACCESS));
    assert!(rustix::io::pwrite(file, &[1; 8], 4096).is_err());
    for other in [0, bytes as u64 + 4096] {
        assert!(rustix::fs::ftruncate(file, other).is_err());
    }
    let hole = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
    assert!(rustix::fs::fallocate(file, hole, 0, 4096).is_err());
    assert!(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).is_err());
}
