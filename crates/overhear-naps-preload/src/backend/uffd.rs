// SPDX-License-Identifier: MIT OR Apache-2.0
//! A descriptor of userfaultfd: ranges of memory are registered with it, and it has messages of the
//! threads that wait for their pages.
//!
//! A descriptor that handles system calls needs CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd` = 1,
//! or access to /dev/userfaultfd.

use crate::backend::Access;
use crate::sys::{self, PAGE};

const UFFD_API: u64 = 0xaa;
pub(super) const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
pub(super) const FEATURE_THREAD_ID: u64 = 1 << 8;
pub(super) const MODE_MISSING: u64 = 1;
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_UNREGISTER: u64 = 0x8010_aa01;
const IOCTL_WAKE: u64 = 0x8010_aa02;
const IOCTL_NEW: u64 = 0xaa00;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMOVE: u8 = 0x15;
/// Messages read at one time.
const MESSAGES: usize = 16;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Range {
    pub(super) const fn new(address: usize, bytes: usize) -> Self {
        Self {
            start: address as u64,
            len: bytes as u64,
        }
    }
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

/// Error of the last call of this thread.
pub(super) fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// A descriptor, and a page whose first access is a message: the only one that it can carry for a
/// thread that asks for something else.
pub(super) struct Descriptor {
    fd: i32,
    doorbell: usize,
}

impl Descriptor {
    /// Opens a descriptor with these features; `missing` is the reason if the kernel lacks one.
    pub(super) fn open(features: u64, missing: &str) -> Result<Self, String> {
        let mut descriptor = Self {
            fd: open_descriptor()?,
            doorbell: 0,
        };
        let mut api = Api {
            api: UFFD_API,
            features,
            ioctls: 0,
        };
        if !descriptor.ioctl(IOCTL_API, &raw mut api) {
            return Err(format!("{missing} ({})", last_error()));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let doorbell = sys::map(None, PAGE, access, 0).ok_or("no memory is left")?;
        if !descriptor.register(doorbell, PAGE, MODE_MISSING) {
            return Err(format!("memory cannot be registered ({})", last_error()));
        }
        descriptor.doorbell = doorbell;
        Ok(descriptor)
    }

    pub(super) fn ioctl<T>(&self, request: u64, argument: *mut T) -> bool {
        // SAFETY: the request has an argument of this type.
        unsafe { libc::ioctl(self.fd, request as _, argument) == 0 }
    }

    pub(super) fn register(&self, address: usize, bytes: usize, mode: u64) -> bool {
        let mut register = Register {
            range: Range::new(address, bytes),
            mode,
            ioctls: 0,
        };
        self.ioctl(IOCTL_REGISTER, &raw mut register)
    }

    /// Ends a registration. Threads that wait in the range look again.
    pub(super) fn unregister(&self, address: usize, bytes: usize) -> bool {
        let mut range = Range::new(address, bytes);
        self.ioctl(IOCTL_UNREGISTER, &raw mut range)
    }

    pub(super) fn wake(&self, address: usize, bytes: usize) {
        let mut range = Range::new(address & !(PAGE - 1), bytes);
        self.ioctl(IOCTL_WAKE, &raw mut range);
    }

    pub(super) fn doorbell(&self) -> usize {
        self.doorbell
    }

    /// Waits for messages until the timeout. Tells the ranges whose pages the program gave back by
    /// a system call of its own.
    pub(super) fn accesses(
        &self,
        timeout_ns: u64,
        found: &mut Vec<Access>,
        removed: impl Fn(usize, usize),
    ) -> u64 {
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
                    removed(message.first as usize, message.second as usize);
                }
                _ => {}
            }
        }
        now
    }

    /// Maps the doorbell, so that reading it no longer waits.
    fn open_doorbell(&self) {
        sys::map_at(self.doorbell, PAGE, libc::PROT_READ | libc::PROT_WRITE);
        self.wake(self.doorbell, PAGE);
    }
}

impl Drop for Descriptor {
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
