// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader processes of foreign traces that fail for other reasons than a trace: each failure is a
//! message, and no process is left.

use std::process::Command;
use std::time::Duration;

use overhear_trace::{
    import_trace, ForeignError, ForeignMessage, ForeignReader, ImportError, IsolatedTrace,
};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The messages, and the error after them.
fn read(mut command: Command, patience: Duration) -> (Vec<ForeignMessage>, String) {
    let dir = tempfile::tempdir().unwrap();
    let opened = IsolatedTrace::open(dir.path(), &mut command, patience);
    let mut trace = match opened {
        Ok(trace) => trace,
        Err(error) => return (Vec::new(), error.to_string()),
    };
    let mut messages = Vec::new();
    loop {
        match trace.next_message() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, String::new()),
            Err(error) => {
                // After an error the trace ends.
                assert!(matches!(trace.next_message(), Ok(None)));
                return (messages, error.to_string());
            }
        }
    }
}

/// An event without a time, in the format of the process.
const TIMELESS: &str = r"printf '\001\000\000\000\004'";

#[test]
fn failed_reader_is_a_message_after_what_it_has_sent() {
    let patience = Duration::from_secs(300);
    for (script, expected) in [
        ("exit 7", "it ended with status 7"),
        ("kill -ABRT $$", "signal 6 (abort"),
        ("kill -SEGV $$", "signal 11 (segmentation fault) ended it"),
        ("kill -KILL $$", "signal 9 (kill) ended it"),
        ("printf 'no frames at all'", "it sent no valid events"),
        (r"printf '\377\377\377\377\002'", "it sent no valid events"),
        // A frame that is cut off.
        (r"printf '\100\000\000\000\002'", "it ended with status 0"),
    ] {
        let (messages, error) = read(shell(script), patience);
        assert_eq!(messages, [], "{script}");
        assert!(error.contains(expected), "{script}: {error}");
        assert!(error.starts_with("the process that reads "), "{error}");
        let after = format!("{TIMELESS}; {TIMELESS}; {script}");
        let (messages, error) = read(shell(&after), patience);
        assert_eq!(
            messages,
            [ForeignMessage::Timeless, ForeignMessage::Timeless]
        );
        assert!(error.contains(expected), "{after}: {error}");
    }
    let (_, error) = read(Command::new("/nonexistent"), patience);
    assert!(error.contains("it cannot be started"), "{error}");
}

#[test]
fn silent_reader_is_ended() {
    let script = format!("{TIMELESS}; exec sleep 100000");
    let (messages, error) = read(shell(&script), Duration::from_millis(500));
    assert_eq!(messages, [ForeignMessage::Timeless]);
    assert!(error.contains("no event came from it for 0.5 s"), "{error}");
}

#[test]
fn reader_that_never_ends_is_ended() {
    let script = format!("while :; do {TIMELESS}; done");
    let (messages, error) = read(shell(&script), Duration::from_secs(300));
    // The trace has no files; a fixed number of losses is permitted.
    assert_eq!(messages.len(), 8 * 4096);
    assert!(
        error.contains("more events than the trace has bits"),
        "{error}"
    );
}

#[test]
fn import_without_an_event_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for script in [
        "kill -ABRT $$".to_owned(),
        format!("{TIMELESS}; kill -ABRT $$"),
    ] {
        let command = || shell(&script);
        let reader = ForeignReader::Isolated {
            command: &command,
            patience: Duration::from_secs(300),
        };
        let error = import_trace(dir.path(), &out, &reader).unwrap_err();
        let ImportError::Foreign(ForeignError::Reader { reason, .. }) = error else {
            panic!("{error}");
        };
        assert!(reason.contains("signal 6"), "{reason}");
        assert!(!out.exists());
    }
}
