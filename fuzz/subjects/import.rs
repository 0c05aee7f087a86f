// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of other tracers (CTF 1.8) with arbitrary metadata or packets, through libbabeltrace2:
//! each ends with a message, the end, or an error that is a message.

use overhear_trace::ForeignTrace;

use crate::recording::Recording;

/// The files that are replaced; the first byte of the input chooses one.
pub(crate) const FILES: [&str; 1] = ["metadata"];

/// More than a small trace has: each message advances.
const MOST_MESSAGES: usize = 100_000;

/// Runs one input over this trace, which is read as CTF by a reader independent of Overhear.
pub(crate) fn run(recording: &Recording, input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    recording.with(FILES[usize::from(*choice) % FILES.len()], bytes);
    let trace = ForeignTrace::open(&recording.dir().join("trace"));
    let mut trace = match trace {
        Ok(trace) => trace,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for _ in 0..MOST_MESSAGES {
        match trace.next_message() {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return assert!(!error.to_string().is_empty()),
        }
    }
}
