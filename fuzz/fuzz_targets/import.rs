// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of other tracers with arbitrary metadata or packets.
//!
//! libbabeltrace2 ends its process on some of them: by an assertion, a signal, or for want of
//! memory. Therefore each input is read in a child process, as `overhear import` does; only a panic
//! of our own code is a finding.
#![no_main]

#[path = "../subjects/recording.rs"]
mod recording;
#[path = "../subjects/import.rs"]
mod subject;

use rustix::process::{waitpid, Pid, WaitOptions};

thread_local! {
    static RECORDING: recording::Recording = recording::Recording::new();
}

/// Status of a child whose own code has panicked.
const PANICKED: i32 = 101;
/// Seconds until a child that hangs is ended.
const LONGEST_S: u32 = 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| RECORDING.with(|recording| {
    // SAFETY: the fuzzer has one thread, so the child has all that it needs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGFPE, libc::SIGBUS, libc::SIGALRM] {
            // SAFETY: the default action takes the place of the fuzzer's handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: without preconditions.
        unsafe { libc::alarm(LONGEST_S) };
        // SAFETY: the child ends without the fuzzer's work at its exit.
        std::panic::set_hook(Box::new(|_| unsafe { libc::_exit(PANICKED) }));
        subject::run(recording, input);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let pid = Pid::from_raw(child).expect("a process for the child");
    let ended = waitpid(Some(pid), WaitOptions::empty()).expect("a child to wait for");
    let status = ended.map(|(_, status)| status);
    assert_ne!(status.and_then(|status| status.exit_status()), Some(PANICKED));
}));
