// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client and the server, which are C (`client.c`, `server.c`) and part of this program.
//!
//! The program is one file with three names: called `demo-client` or `demo-server` it is that C
//! program. So one `cargo run` builds everything, and there is no second file to look for.

use std::ffi::{c_char, c_int, CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

// The C objects call the functions of liboverhear, which is this crate.
use overhear as _;

/// The client's name: its file, and what the kernel calls its thread.
pub const CLIENT: &str = "demo-client";
/// The server's name.
pub const SERVER: &str = "demo-server";
/// The call that is measured, as GRTMon measures it.
pub const COMMAND: &str = "probemode 3 \"640x480\"";

type Main = unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int;

extern "C" {
    fn demo_client_main(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn demo_server_main(argc: c_int, argv: *mut *mut c_char) -> c_int;
}

/// Runs the C program that these arguments name, and returns its exit status; `None` if the first
/// argument is the name of neither.
#[must_use]
pub fn run_named(arguments: Vec<OsString>) -> Option<i32> {
    let name = Path::new(arguments.first()?).file_name()?.to_owned();
    let program: Main = match name.to_str()? {
        CLIENT => demo_client_main,
        SERVER => demo_server_main,
        _ => return None,
    };
    // Arguments of a process cannot contain a zero byte.
    let mut arguments: Vec<*mut c_char> = arguments
        .into_iter()
        .filter_map(|argument| CString::new(argument.into_vec()).ok())
        .map(CString::into_raw)
        .collect();
    let count = c_int::try_from(arguments.len()).ok()?;
    arguments.push(std::ptr::null_mut());
    // SAFETY: a C program's main gets what the C standard promises it: `count` strings that it may
    // change and that live until the process ends (`into_raw` gives them up), then a null pointer,
    // in an array that outlives the call. It runs once per process, on the main thread.
    Some(unsafe { program(count, arguments.as_mut_ptr()) })
}

/// The command line that starts both programs: a client that makes `calls` calls, one every
/// `period_us`, and that starts the server itself.
///
/// `program` is this program's file. It is given its other two names, and the socket its place, in
/// `folder`, which must exist, be private to this run, and be removed by the caller.
///
/// # Errors
/// The system's error if the names cannot be set.
pub fn command(
    program: &Path,
    folder: &Path,
    calls: u32,
    period_us: u32,
) -> std::io::Result<Vec<OsString>> {
    for name in [CLIENT, SERVER] {
        std::os::unix::fs::symlink(program, folder.join(name))?;
    }
    let option = |name: &str, value: OsString| [name.into(), value];
    let mut command = vec![folder.join(CLIENT).into_os_string()];
    command.extend(option("-n", calls.to_string().into()));
    command.extend(option("-p", period_us.to_string().into()));
    command.extend(option("-s", folder.join(SERVER).into_os_string()));
    command.push(folder.join("socket").into_os_string());
    command.push(COMMAND.into());
    Ok(command)
}
