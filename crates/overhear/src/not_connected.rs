// SPDX-License-Identifier: MIT OR Apache-2.0
//! The line on standard error about a sensor that is not connected.
//!
//! Standard error belongs to the program, so the line is printed only with
//! `OVERHEAR_NOT_CONNECTED=stderr` in the environment, and once per process.
//! `overhear list --not-connected` lists all sensors that a directory had to refuse.

use std::io::Write;
use std::sync::Once;

use overhear_directory::client::environment;

/// The variable, and the value that enables the line.
const VARIABLE: &str = "OVERHEAR_NOT_CONNECTED";
const WANTED: &str = "stderr";

/// Prints the line for the first sensor that is not connected, if the environment requests it.
/// Cold, like registration.
pub(crate) fn report(sensor: &str, reason: &str) {
    static REPORTED: Once = Once::new();
    if environment(VARIABLE).is_some_and(|value| value == WANTED) {
        REPORTED.call_once(|| {
            // An error of standard error cannot be reported.
            let _ = writeln!(
                std::io::stderr(),
                "overhear: sensor `{}` is not connected: {reason}",
                sensor.escape_debug()
            );
        });
    }
}
