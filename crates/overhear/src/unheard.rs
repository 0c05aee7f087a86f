// SPDX-License-Identifier: MIT OR Apache-2.0
//! The line on standard error about a sensor that nobody hears.
//!
//! A program's standard error is the program's, so the line comes only if the environment asks for it,
//! `OVERHEAR_UNHEARD=stderr`, and once per process: the first sensor says what is wrong, and
//! `overhear list --unheard` lists all that a directory knows of.

use std::io::Write;
use std::sync::Once;

use overhear_directory::client::environment;

/// The variable, and the value that asks for the line.
const VARIABLE: &str = "OVERHEAR_UNHEARD";
const WANTED: &str = "stderr";

/// Reports a sensor, if it is the first and somebody wants to know. Cold, like registration.
pub(crate) fn report(sensor: &str, reason: &str) {
    static REPORTED: Once = Once::new();
    if environment(VARIABLE).is_some_and(|value| value == WANTED) {
        REPORTED.call_once(|| {
            // Nobody can be told of an error here.
            let _ = writeln!(
                std::io::stderr(),
                "overhear: sensor `{}` is not heard: {reason}",
                sensor.escape_debug()
            );
        });
    }
}
