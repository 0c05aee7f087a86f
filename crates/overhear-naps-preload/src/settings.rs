// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the session wants, from environment variables.
//!
//! The library is initialised before the C library has its environment, so the variables are read
//! from the arguments of the constructor.

use core::cell::UnsafeCell;
use core::ffi::{c_char, CStr};

use overhear_naps::{environment, DEFAULT_MIN_SIZE_BYTES};

pub(crate) const PATH_BYTES: usize = 256;

/// The settings of the process, constant after [`read`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) folder: [u8; PATH_BYTES],
    pub(crate) threshold_ns: u64,
    pub(crate) budget: f64,
    pub(crate) min_size: u64,
    pub(crate) backend: &'static str,
}

struct Cell(UnsafeCell<Settings>);

// SAFETY: written once by the constructor, before another thread or hook reads it.
unsafe impl Sync for Cell {}

static SETTINGS: Cell = Cell(UnsafeCell::new(Settings {
    folder: [0; PATH_BYTES],
    threshold_ns: 10_000_000_000,
    budget: 0.05,
    min_size: DEFAULT_MIN_SIZE_BYTES,
    backend: "auto",
}));

/// Part of the budget that is kept for what nobody counts: calls of `malloc` and `free` that are
/// passed on (half of it in a program with a million allocations), because counting them would cost
/// more than they do, and caches that this library uses.
const UNCOUNTED_PART: f64 = 1.0 / 4.0;

/// Share of the program's CPU time for what is counted or measured.
pub(crate) fn counted_budget() -> f64 {
    get().budget * (1.0 - UNCOUNTED_PART)
}

pub(crate) fn get() -> &'static Settings {
    // SAFETY: constant after the constructor.
    unsafe { &*SETTINGS.0.get() }
}

/// Reads the environment. False without a folder: nothing is observed then.
///
/// # Safety
/// `variables` is an environment, and no other thread exists.
pub(crate) unsafe fn read(mut variables: *const *const c_char) -> bool {
    // SAFETY: no other thread exists.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    if variables.is_null() {
        return false;
    }
    let mut found = false;
    loop {
        // SAFETY: an environment ends with a null pointer.
        let variable = unsafe { *variables };
        if variable.is_null() {
            return found;
        }
        // SAFETY: each variable is a C string.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        // SAFETY: the null pointer was not reached.
        variables = unsafe { variables.add(1) };
        let Some(split) = text.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&text[..split], &text[split + 1..]);
        let (Ok(name), Ok(value)) = (core::str::from_utf8(name), core::str::from_utf8(value))
        else {
            continue;
        };
        match name {
            environment::FOLDER if value.len() < PATH_BYTES && !value.is_empty() => {
                settings.folder[..value.len()].copy_from_slice(value.as_bytes());
                found = true;
            }
            environment::THRESHOLD_NS => {
                settings.threshold_ns = value.parse().unwrap_or(settings.threshold_ns);
            }
            environment::BUDGET => settings.budget = value.parse().unwrap_or(settings.budget),
            environment::MIN_SIZE_BYTES => {
                settings.min_size = value.parse().unwrap_or(settings.min_size);
            }
            environment::BACKEND => {
                settings.backend = match value {
                    "rwp" => "rwp",
                    "move" => "move",
                    "accessed" => "accessed",
                    _ => "auto",
                };
            }
            _ => {}
        }
    }
}
