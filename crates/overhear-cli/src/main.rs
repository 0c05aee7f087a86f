// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `overhear`.

fn main() -> std::process::ExitCode {
    overhear_cli::main()
}
