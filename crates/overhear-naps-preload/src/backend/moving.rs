// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages move aside, and userfaultfd reports who misses them.
//!
//! *Protect*: the range is registered for missing pages, then `mremap` with `MREMAP_DONTUNMAP`
//! moves its pages to the shadow. The kernel does so in one step for all threads. *Access*: the
//! thread, in the program or inside a system call, waits in the kernel; this thread reads a
//! message, moves the pages back by `mremap`, which also ends the registration, and wakes the
//! thread. Both ranges stay mapped all the time, so no other thread gets their addresses. Pages are
//! never copied. Pages pinned for direct I/O keep their frames.
//!
//! A file descriptor of userfaultfd that handles system calls needs CAP_SYS_PTRACE,
//! `vm.unprivileged_userfaultfd` = 1, or access to /dev/userfaultfd.

use crate::backend::Access;
use crate::sys::{self, PAGE};
use crate::table;

const UFFD_API: u64 = 0xaa;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const MODE_MISSING: u64 = 1;
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_WAKE: u64 = 0x8010_aa02;
const IOCTL_NEW: u64 = 0xaa00;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMOVE: u8 = 0x15;
/// Messages read at one time.
const MESSAGES: usize = 16;
/// How often moving back is tried if the kernel lacks memory.
const MAX_TRIES: usize = 1000;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    _reserved: [u8; 7],
    /// Flags of a page fault; the start of a removed range.
    first: u64,
    /// Address of a page fault; the end of a removed range.
    second: u64,
    /// Thread of a page fault.
    third: u64,
}

pub(crate) struct Moving {
    fd: i32,
    doorbell: usize,
}

fn ioctl<T>(fd: i32, request: u64, argument: *mut T) -> i32 {
    // SAFETY: the request has an argument of this type.
    unsafe { libc::ioctl(fd, request as _, argument) }
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

impl Moving {
    pub(crate) fn open() -> Result<Self, String> {
        let fd = open_descriptor()?;
        let mut backend = Self { fd, doorbell: 0 };
        match backend.prepare() {
            Ok(()) => Ok(backend),
            Err(reason) => {
                // SAFETY: the descriptor is ours.
                unsafe { libc::close(fd) };
                Err(reason)
            }
        }
    }

    fn prepare(&mut self) -> Result<(), String> {
        let mut api = Api {
            api: UFFD_API,
            features: FEATURE_EVENT_REMOVE | FEATURE_THREAD_ID,
            ioctls: 0,
        };
        if ioctl(self.fd, IOCTL_API, &raw mut api) != 0 {
            return Err(format!("userfaultfd lacks a feature ({})", last_error()));
        }
        self.try_out()?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let doorbell = sys::map(None, PAGE, access, 0).ok_or("no memory is left")?;
        if !self.register(doorbell, PAGE) {
            return Err(format!("memory cannot be registered ({})", last_error()));
        }
        self.doorbell = doorbell;
        Ok(())
    }

    /// Moves a page away and back.
    fn try_out(&mut self) -> Result<(), String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = sys::map(None, 2 * PAGE, access, 0).ok_or("no memory is left")?;
        // SAFETY: the page was mapped above.
        unsafe { core::ptr::write_volatile(place as *mut u64, 0x5a5a) };
        let shadow = place + PAGE;
        let moved = self.register(place, PAGE)
            && sys::move_pages(place, PAGE, shadow, PAGE, libc::MREMAP_DONTUNMAP);
        let returned = moved && sys::move_pages(shadow, PAGE, place, PAGE, libc::MREMAP_DONTUNMAP);
        let error = last_error();
        // SAFETY: if the page moved back, it is mapped again.
        let kept = returned && unsafe { core::ptr::read_volatile(place as *const u64) } == 0x5a5a;
        sys::unmap(place, 2 * PAGE);
        if kept {
            return Ok(());
        }
        Err(format!("pages cannot be moved aside ({error})"))
    }

    fn register(&self, address: usize, bytes: usize) -> bool {
        let mut register = Register {
            range: Range {
                start: address as u64,
                len: bytes as u64,
            },
            mode: MODE_MISSING,
            ioctls: 0,
        };
        ioctl(self.fd, IOCTL_REGISTER, &raw mut register) == 0
    }

    pub(crate) fn doorbell(&self) -> usize {
        self.doorbell
    }

    pub(crate) fn protect(&mut self, address: usize, bytes: usize) -> bool {
        let shadow = table::shadow_of(address);
        if !self.register(address, bytes) {
            return false;
        }
        if sys::move_pages(address, bytes, shadow, bytes, libc::MREMAP_DONTUNMAP) {
            return true;
        }
        // The call may have unmapped the shadow. If another thread got its addresses, that does not
        // matter: an allocation whose protection failed is excluded, and its range not used again.
        sys::reserve_at(shadow, bytes);
        // Without pages of its own the registered range would miss the untouched ones.
        let mut range = Range {
            start: address as u64,
            len: bytes as u64,
        };
        const IOCTL_UNREGISTER: u64 = 0x8010_aa01;
        ioctl(self.fd, IOCTL_UNREGISTER, &raw mut range);
        self.wake(address, bytes);
        false
    }

    pub(crate) fn unprotect(&mut self, address: usize, bytes: usize) {
        let shadow = table::shadow_of(address);
        let mut tries = 0;
        while !sys::move_pages(shadow, bytes, address, bytes, libc::MREMAP_DONTUNMAP) {
            tries += 1;
            if tries == MAX_TRIES {
                sys::fatal("the kernel refuses to move protected memory back: too many mappings?");
            }
            sys::yield_now();
        }
        self.wake(address, bytes);
    }

    pub(crate) fn wake(&mut self, address: usize, bytes: usize) {
        let mut range = Range {
            start: (address & !(PAGE - 1)) as u64,
            len: bytes as u64,
        };
        ioctl(self.fd, IOCTL_WAKE, &raw mut range);
    }

    pub(crate) fn accesses(&mut self, timeout_ns: u64, found: &mut Vec<Access>) -> u64 {
        let mut poll = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        // SAFETY: one descriptor, and a timeout that outlives the call.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, core::ptr::null()) };
        let now = sys::now_ns();
        if ready <= 0 {
            return now;
        }
        let mut messages = [Message {
            event: 0,
            _reserved: [0; 7],
            first: 0,
            second: 0,
            third: 0,
        }; MESSAGES];
        let bytes = size_of_val(&messages);
        // SAFETY: the buffer has this size, and any bytes are messages.
        let read = unsafe { libc::read(self.fd, messages.as_mut_ptr().cast(), bytes) };
        let count = usize::try_from(read).unwrap_or(0) / size_of::<Message>();
        for message in &messages[..count] {
            match message.event {
                EVENT_PAGEFAULT => {
                    let address = message.second as usize;
                    if address & !(PAGE - 1) == self.doorbell {
                        self.open_doorbell();
                        continue;
                    }
                    found.push(Access {
                        address,
                        at: instruction(message.third as u32),
                        // The access is complete only after the pages are back.
                        idle_until_ns: now,
                    });
                }
                EVENT_REMOVE => {
                    // MADV_DONTNEED by a system call of the program's own: its pages are in the
                    // shadow.
                    let (start, end) = (message.first as usize, message.second as usize);
                    let shadow = table::shadow_of(start);
                    if table::is_inside(start) {
                        sys::advise(shadow, end - start, libc::MADV_DONTNEED);
                    }
                }
                _ => {}
            }
        }
        now
    }

    /// Maps the doorbell, so that reading it no longer waits.
    fn open_doorbell(&mut self) {
        sys::map_at(self.doorbell, PAGE, libc::PROT_READ | libc::PROT_WRITE);
        self.wake(self.doorbell, PAGE);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // The doorbell stays mapped: a thread may be about to read it.
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.fd) };
    }
}

fn open_descriptor() -> Result<i32, String> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the system call takes flags.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
    if fd >= 0 {
        return Ok(fd);
    }
    let error = last_error();
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return Err("this kernel has no userfaultfd".to_owned());
    }
    // SAFETY: the path is a C string.
    let device =
        unsafe { libc::open(c"/dev/userfaultfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if device >= 0 {
        // SAFETY: the request takes flags.
        let fd = unsafe { libc::ioctl(device, IOCTL_NEW as _, flags) };
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(device) };
        if fd >= 0 {
            return Ok(fd);
        }
    }
    Err(
        "userfaultfd for system calls needs root, vm.unprivileged_userfaultfd=1, or read and \
         write permission for /dev/userfaultfd"
            .to_owned(),
    )
}

/// The instruction of a thread that waits in the kernel: the last number of its line in `syscall`.
fn instruction(tid: u32) -> Option<u64> {
    use std::io::Write as _;

    let mut path = [0u8; 48];
    let mut rest = &mut path[..];
    write!(rest, "/proc/self/task/{tid}/syscall\0").ok()?;
    let mut line = [0u8; 256];
    // SAFETY: the path is a C string, the buffer has its size.
    let count = unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let count = libc::read(fd, line.as_mut_ptr().cast(), line.len());
        libc::close(fd);
        count
    };
    let line = core::str::from_utf8(line.get(..usize::try_from(count).ok()?)?).ok()?;
    let last = line.trim_end().rsplit(' ').next()?;
    u64::from_str_radix(last.strip_prefix("0x")?, 16).ok()
}
