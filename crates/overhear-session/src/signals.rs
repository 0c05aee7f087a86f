// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals as the caller of `overhear` gave them, for the programs that it runs.
//!
//! `overhear` ignores SIGXFSZ, so that a file beyond RLIMIT_FSIZE is an error with a message and
//! not the end of the recording. The runtime of Rust ignores SIGPIPE, and clears the mask of each
//! child. A program that is run must see none of this: which signals a shell, `nohup` or a service
//! manager has it ignore or block is theirs to choose.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Numbers of signals on Linux, real-time ones included.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// What this process got from its parent: which signals it ignores, and which it blocks.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    // Bit N-1 for signal N.
    ignored: u64,
    mask: libc::sigset_t,
}

/// Runs before the runtime of Rust, which changes SIGPIPE.
#[used]
#[link_section = ".init_array"]
static CAPTURE: extern "C" fn() = {
    extern "C" fn capture() {
        let _ = INHERITED.set(Inherited::now());
    }
    capture
};

/// Signals that the runtime of a language ignores in this process, as a mask; see
/// [`reset_for_programs`].
static IGNORED_BY_RUNTIME: OnceLock<u64> = OnceLock::new();

/// Programs that this process runs get the default action of these signals, although this process
/// ignores them: the runtime of its language does, as Python ignores SIGPIPE, not the user. The
/// first call counts.
pub fn reset_for_programs(signals: &[libc::c_int]) {
    let mask = signals.iter().map(|signal| 1 << (signal - 1));
    let _ = IGNORED_BY_RUNTIME.set(mask.fold(0, std::ops::BitOr::bitor));
}

impl Inherited {
    /// What the parent gave to this process.
    pub(crate) fn get() -> Self {
        let mut inherited = *INHERITED.get_or_init(Self::now);
        inherited.ignored &= !IGNORED_BY_RUNTIME.get().copied().unwrap_or(0);
        inherited
    }

    fn now() -> Self {
        let mut ignored = 0;
        for signal in SIGNALS {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: only reads the action, into memory of its type. Zeroes are a valid action:
            // the default one.
            let action = unsafe {
                libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
                action.assume_init()
            };
            if action.sa_sigaction == libc::SIG_IGN {
                ignored |= 1 << (signal - 1);
            }
        }
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: only reads the mask, into memory of its type. Zeroes are a valid mask: the empty
        // one.
        let mask = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        Self { ignored, mask }
    }

    /// Gives it to the calling process. Only system calls: for a child between fork and exec.
    pub(crate) fn restore(&self) {
        for signal in SIGNALS {
            let action = match self.ignored & (1 << (signal - 1)) {
                0 => libc::SIG_DFL,
                _ => libc::SIG_IGN,
            };
            // SAFETY: neither action runs code. What the kernel or libc keeps for itself (SIGKILL,
            // 32) is refused.
            unsafe { libc::signal(signal, action) };
        }
        // SAFETY: the mask is one that was read.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.mask,
                std::ptr::null_mut(),
            )
        };
    }
}

/// From here on a write beyond RLIMIT_FSIZE fails with EFBIG instead of ending the process.
pub fn ignore_file_size_signal() {
    // Before anything changes: for whoever runs programs later.
    let _ = Inherited::get();
    // SAFETY: the action runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
