// SPDX-License-Identifier: MIT OR Apache-2.0
//! The inherited signal actions and mask of this process, restored in the programs that it runs.
//!
//! `overhear` ignores SIGXFSZ, so that a file beyond RLIMIT_FSIZE is an error with a message and
//! does not end the recording. The runtime of Rust ignores SIGPIPE, and clears the mask of each
//! child. A program must not inherit these changes: a shell, `nohup` or a service manager chooses
//! the signals that it ignores or blocks.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Numbers of signals on Linux, real-time ones included.
const SIGNALS: std::ops::RangeInclusive<libc::c_int> = 1..=64;

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// The ignored and the blocked signals that this process inherited from its parent.
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

/// Sets signals that programs get with the default action although this process ignores them: the
/// runtime of its language ignores them, as Python ignores SIGPIPE, not the user. Later calls have
/// no effect.
pub fn reset_for_programs(signals: &[libc::c_int]) {
    let mask = signals.iter().map(|signal| 1 << (signal - 1));
    let _ = IGNORED_BY_RUNTIME.set(mask.fold(0, std::ops::BitOr::bitor));
}

impl Inherited {
    /// The inherited signals of this process.
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

    /// Restores them in the calling process. It makes only system calls, for a child between fork
    /// and exec.
    pub(crate) fn restore(&self) {
        for signal in SIGNALS {
            let action = match self.ignored & (1 << (signal - 1)) {
                0 => libc::SIG_DFL,
                _ => libc::SIG_IGN,
            };
            // SAFETY: neither action runs code. The call fails for signals that the kernel or libc
            // reserves (SIGKILL, 32).
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

/// Ignores SIGXFSZ: a write beyond RLIMIT_FSIZE then fails with EFBIG and does not end the process.
pub fn ignore_file_size_signal() {
    // Captured before the change, for programs that run later.
    let _ = Inherited::get();
    // SAFETY: the action runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
