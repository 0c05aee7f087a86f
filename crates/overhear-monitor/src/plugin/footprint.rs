// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of plug-ins: segments mapped by the loader, and allocations.
//!
//! Both are differences: of the segments of all loaded objects around the loading of a plug-in,
//! which counts the libraries that came with it, and of the allocator's account around a call. The
//! account is that of the process, so what other threads allocate or free during the call is in it;
//! calls that are measured are short and come before a guarantee begins, or after its end. What a
//! plug-in maps itself, without the allocator, is not seen.

use std::ffi::c_void;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::Library;

use super::library::{open_library, PluginError};

/// Loads a shared object that stays loaded until the process ends. Returns the loader's handle, and
/// how many bytes were mapped when it was loaded first.
pub(super) fn open_measured(path: &Path) -> Result<(*mut c_void, u64), PluginError> {
    // By handle, as a number: the loader gives the same one for the same object.
    static KNOWN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());
    // Locked, so that objects of other threads are not counted.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = mapped_bytes();
    let handle = open_library(path).map(Library::into_raw)?;
    let brought = mapped_bytes().saturating_sub(before);
    let number = handle as usize;
    let bytes = match known.iter().find(|(it, _)| *it == number) {
        Some((_, bytes)) => *bytes,
        None => {
            known.push((number, brought));
            brought
        }
    };
    Ok((handle, bytes))
}

/// Bytes of the segments of all loaded objects, in whole pages.
fn mapped_bytes() -> u64 {
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        sum: *mut c_void,
    ) -> libc::c_int {
        let page = rustix::param::page_size() as u64;
        // SAFETY: the loader's description of an object, valid during the call; the sum is the
        // caller's.
        let (info, sum) = unsafe { (&*info, &mut *sum.cast::<u64>()) };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the loader's description has this number of headers.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            if header.p_type == libc::PT_LOAD {
                let end = header.p_vaddr.saturating_add(header.p_memsz);
                let begin = header.p_vaddr - header.p_vaddr % page;
                *sum += end.next_multiple_of(page) - begin;
            }
        }
        0
    }
    let mut sum = 0_u64;
    // SAFETY: the function is of the type that is called, and gets the pointer that it expects.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

/// Calls, and returns the bytes by which the memory grew that is in use by the allocator's account;
/// negative where more was given back.
pub(super) fn allocated_in<T>(call: impl FnOnce() -> T) -> (T, i64) {
    let before = in_use();
    let answer = call();
    (answer, in_use() - before)
}

/// Bytes that the allocator has given away, in all threads.
#[cfg(target_env = "gnu")]
fn in_use() -> i64 {
    // SAFETY: it reads the allocator's account, under the allocator's own locks.
    let account = unsafe { libc::mallinfo2() };
    i64::try_from(account.uordblks.saturating_add(account.hblkhd)).unwrap_or(i64::MAX)
}

/// Other allocators keep no account.
#[cfg(not(target_env = "gnu"))]
fn in_use() -> i64 {
    0
}

#[cfg(test)]
mod tests {
    use super::{allocated_in, mapped_bytes};

    #[test]
    fn mapped_and_allocated_bytes_are_counted() {
        // This program alone has more.
        assert!(mapped_bytes() > 100_000);
        if cfg!(not(target_env = "gnu")) {
            return;
        }
        // So much that other tests, which run meanwhile, do not matter. Zeros take no memory until
        // they are touched.
        let (memory, taken) = allocated_in(|| vec![0_u8; 1 << 30]);
        let half = 512 << 20;
        assert!(taken > half, "{taken}");
        let ((), given_back) = allocated_in(|| drop(memory));
        assert!(given_back < -half, "{given_back}");
    }
}
