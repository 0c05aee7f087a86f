// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensor directory as a service; see [`overhear_directory::daemon`].

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    overhear_directory::daemon::main()
}
