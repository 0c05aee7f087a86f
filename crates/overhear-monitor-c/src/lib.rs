// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library `liboverhear_monitor`: monitors and metrics in programs in C and C++.
//!
//! | header | module | what it is for |
//! |---|---|---|
//! | `monitor.h`, `monitor.hpp` | `monitor`, on `application` | a directory and monitors in the program, waiting for an evaluation |
//! | `metric.h` | `metric`, `results` | metrics, and what they measured live and in recordings |
//!
//! `update.h` and `rejoin.h` need no library: they declare what a program implements, or are
//! inline.
//!
//! # One library or two
//!
//! `liboverhear_monitor` contains `liboverhear`: a program with sensors and a monitor links this
//! library alone. Only a program without monitors links `liboverhear`, which contains neither the
//! merge, nor metrics, nor the reader of recordings.
//!
//! A program may be linked with both, for example by a library that has sensors. Then each exported
//! function exists twice, and the dynamic linker takes every call to the library that comes first.
//! Objects of one kind are created and used by functions of the same library, so that each library
//! keeps its own state. The last error is the exception, because functions of both libraries set
//! it: it lives where `oh_last_error` is taken from ([`set_last_error`]).

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

use std::ffi::{c_char, CString};

use overhear_ffi::{c_text, CLibrary};

// The functions of sensor.h, laned.h and concurrent.h.
use overhear as _;

mod application;
mod metric;
mod monitor;
mod results;

const LIBRARY: CLibrary = CLibrary {
    name: "liboverhear_monitor",
    set_last_error,
};

extern "C" {
    /// Of the crate `overhear`.
    fn oh_set_last_error_(message: *const c_char);
}

/// Replaces the calling thread's last error, where `oh_last_error` of this program finds it. An
/// empty message means that there is none.
fn set_last_error(message: &str) {
    let message: CString = c_text(message);
    // SAFETY: a string. The call goes through the exported name, so it reaches the same library as
    // the program's calls of `oh_last_error`.
    unsafe { oh_set_last_error_(message.as_ptr()) };
}
