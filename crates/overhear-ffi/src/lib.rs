// SPDX-License-Identifier: MIT OR Apache-2.0
//! The border between C and Rust, for all C libraries of Overhear.
//!
//! Each library (`liboverhear`, `liboverhear_monitor`, `liboverhear_kernel`) exports functions in
//! the same way:
//!
//! 1. The exported function converts what C passes: [`text`] for strings, [`sized`] for option
//!    structs that grow at their end, [`RawField`] and [`RawStream`] for descriptions of types and
//!    streams.
//! 2. It runs its body in [`CLibrary::guard`]. An error or a panic becomes a negative errno, and
//!    its message is the last error of the calling thread ([`LastError`]). Nothing unwinds into C.
//! 3. Objects are handed out by `Box::into_raw`, and [`release`] drops them.
//!
//! [`KernelEvents`] reads a kernel monitor of `liboverhear_kernel` for the other libraries, which
//! do not link with it.
//!
//! A library is a constant that names itself and its store of last errors:
//!
//! ```
//! use std::ffi::c_int;
//! use std::thread::LocalKey;
//!
//! use overhear_ffi::{CLibrary, FfiError, LastError};
//!
//! thread_local! {
//!     static LAST_ERROR: LastError = LastError::default();
//! }
//!
//! const LIBRARY: CLibrary = CLibrary {
//!     name: "libexample",
//!     set_last_error: |message| LastError::set(&LAST_ERROR, message),
//! };
//!
//! extern "C" fn example_half(number: c_int) -> c_int {
//!     LIBRARY.guard("example_half", || match number % 2 {
//!         0 => Ok(number / 2),
//!         _ => Err(FfiError::invalid("the number is odd")),
//!     })
//! }
//!
//! assert_eq!(example_half(6), 3);
//! assert_eq!(example_half(7), -libc::EINVAL);
//! assert_eq!(LastError::read(&LAST_ERROR), "example_half: the number is odd");
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod error;
mod kernel_event;
mod kernel_source;
mod pointer;
mod stream;

pub use error::{CLibrary, FfiError, LastError};
pub use kernel_event::{RawKernelEvent, KERNEL_PAYLOAD_WORDS};
pub use kernel_source::{KernelEvents, ReadKernelEvents, ResumeKernel, STREAMS_PER_SOURCE};
pub use pointer::{c_text, release, sized, text};
pub use stream::{read_fields, CStream, RawField, RawStream};
