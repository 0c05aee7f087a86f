// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects that loops use: a page, a socket, a timer, a file on a device.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A page of memory that is touched and given back.
pub(super) struct Page {
    memory: Vec<u8>,
    offset: usize,
}

const PAGE_BYTES: usize = 4096;

impl Page {
    pub(super) fn new() -> Self {
        let memory = vec![0; 2 * PAGE_BYTES];
        let offset = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, offset }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..self.offset + PAGE_BYTES]
    }

    pub(super) fn fault(&mut self) {
        let page = self.bytes();
        // SAFETY: a whole page of our own vector; its bytes become zero, which a vector of bytes
        // may hold at any time.
        let given =
            unsafe { libc::madvise(page.as_mut_ptr().cast(), page.len(), libc::MADV_DONTNEED) };
        debug_assert_eq!(given, 0);
        // SAFETY: a byte of the same slice; volatile, so that it is touched.
        unsafe { page.as_mut_ptr().write_volatile(1) };
    }
}

/// A socket of the loopback network that is connected to itself.
pub(super) fn datagrams() -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    // A datagram can be lost if memory is short.
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// A timer with a descriptor that does not block.
pub(super) fn timer() -> std::io::Result<OwnedFd> {
    // SAFETY: it takes no pointers.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sets the timer to expire at once, and polls until it has.
pub(super) fn expire(timer: &OwnedFd) {
    let nothing = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let soon = libc::itimerspec {
        it_interval: nothing,
        it_value: libc::timespec {
            tv_sec: 0,
            tv_nsec: 1,
        },
    };
    let old_times = std::ptr::null_mut();
    // SAFETY: the kernel reads the times, which are alive, and returns no old ones.
    let armed = unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const soon, old_times) };
    while armed == 0 && rustix::io::read(timer, &mut [0; 8]) == Err(Errno::AGAIN) {}
}

/// Waits for a value that the word does not have: the kernel returns at once.
pub(super) fn wait_for_other_value(word: &u32) {
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the kernel reads the word, which is alive, and nothing else.
    unsafe {
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word, wait, *word ^ 1, no_timeout);
    }
}

/// A page of an unnamed file. Each read transfers it from the device.
pub(super) struct Disk {
    file: OwnedFd,
    page: Page,
}

impl Disk {
    /// Creates the file in the folder for temporary files, in `/var/tmp` or in the user's home.
    ///
    /// # Errors
    /// A phrase with the reason that no such file can be created.
    pub(super) fn find() -> Result<Self, String> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let folders = [
            Some(std::env::temp_dir()),
            Some(PathBuf::from("/var/tmp")),
            variable("HOME").map(PathBuf::from),
        ];
        let mut refusals = Vec::new();
        for folder in folders.into_iter().flatten() {
            match Self::create(&folder) {
                Ok(disk) => return Ok(disk),
                Err(reason) => refusals.push(format!("{} ({reason})", folder.display())),
            }
        }
        refusals.dedup();
        let refusals = refusals.join(", ");
        Err(format!("no file can be read past the cache in {refusals}"))
    }

    fn create(folder: &std::path::Path) -> Result<Self, String> {
        /// Types of file systems in memory, of `statfs`.
        const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
        let text = |errno: Errno| std::io::Error::from(errno).to_string();
        let system = rustix::fs::statfs(folder).map_err(text)?;
        if IN_MEMORY.contains(&(system.f_type as u64)) {
            return Err("it is in memory".to_string());
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(text)?;
        let mut page = Page::new();
        rustix::io::pwrite(&file, page.bytes(), 0).map_err(text)?;
        rustix::fs::fsync(&file).map_err(text)?;
        let mut disk = Self { file, page };
        match disk.read() {
            Ok(PAGE_BYTES) => Ok(disk),
            Ok(_) => Err("it reads less than it has written".to_string()),
            Err(errno) => Err(text(errno)),
        }
    }

    pub(super) fn read(&mut self) -> Result<usize, Errno> {
        rustix::io::pread(&self.file, self.page.bytes(), 0)
    }
}
