// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files with code in the address space, for the symbols of addresses.
//!
//! A process with thousands of allocations of its own mappings has a list that takes milliseconds
//! to print. Linux 6.11 answers for those with code alone.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use overhear_naps::CodeMapping;

const PROCMAP_QUERY: u64 = 0xc068_6611;
/// Mappings with code, of files, from an address on.
const QUERY_FLAGS: u64 = 0x04 | 0x20 | 0x10;
const PATH_BYTES: usize = 4096;
/// Room for the list of most programs. What is not used takes no memory.
const LIST_BYTES: usize = 256 * 1024;

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

/// The mappings of files with code. Without them the report has addresses in place of names.
pub(crate) fn with_code() -> Vec<CodeMapping> {
    let Ok(mut file) = std::fs::File::open("/proc/self/maps") else {
        return Vec::new();
    };
    queried(file.as_raw_fd()).unwrap_or_else(|| {
        let mut text = String::with_capacity(LIST_BYTES);
        let _ = file.read_to_string(&mut text);
        listed(&text)
    })
}

/// None: the kernel has no such request.
fn queried(fd: i32) -> Option<Vec<CodeMapping>> {
    let mut path = vec![0u8; PATH_BYTES];
    let mut mappings = Vec::new();
    let mut address = 0;
    loop {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: QUERY_FLAGS,
            address,
            name_bytes: PATH_BYTES as u32,
            name: path.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the argument has the type of the request, and room for the path.
        if unsafe { libc::ioctl(fd, PROCMAP_QUERY as _, &raw mut query) } != 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            return (error == Some(libc::ENOENT)).then_some(mappings);
        }
        address = query.end;
        // The length contains the NUL.
        let name = path.get(..(query.name_bytes as usize).saturating_sub(1))?;
        if name.starts_with(b"/") {
            mappings.push(CodeMapping {
                start: query.start,
                end: query.end,
                offset: query.offset,
                path: String::from_utf8_lossy(name).into_owned(),
            });
        }
    }
}

/// The mappings in the text of `/proc/self/maps`.
fn listed(text: &str) -> Vec<CodeMapping> {
    let mapping = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let offset = words.next()?;
        let path = line.get(line.find('/')?..)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        access.contains('x').then_some(())?;
        Some(CodeMapping {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            path: path.to_owned(),
        })
    };
    text.lines().filter_map(mapping).collect()
}
