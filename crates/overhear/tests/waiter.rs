// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a monitor that announces its progress, in Rust.

use std::time::Duration;

use overhear::{Announcement, NotEvaluated, Waiter, WaiterError};
use overhear_directory::{monotonic_now, Directory, SOCKET_VARIABLE};
use overhear_event::{Analysis, Timestamp};

/// Waits end by conditions; they take this long only if something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn waiter_returns_progress_and_end_of_a_monitor() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("directory.sock");
    let at = Timestamp::from_monotonic_ns;
    let short = Duration::from_nanos(1);
    let missing = Waiter::attach_at(&socket, "judge").unwrap_err();
    assert!(matches!(missing, WaiterError::Attach(_)), "{missing}");
    let _directory = Directory::builder().start(&socket).unwrap();
    let nonsense = Waiter::attach_at(&socket, "[").unwrap_err();
    assert!(
        nonsense
            .to_string()
            .starts_with("`[` is no name of a monitor"),
        "{nonsense}"
    );
    // No other test of this process registers a sensor.
    std::env::set_var(SOCKET_VARIABLE, &socket);
    let mut waiter = Waiter::attach("judge").unwrap();
    assert_eq!(waiter.wait(at(1), short), Err(NotEvaluated::NotAnnounced));

    let mut one = Announcement::register("judge").unwrap();
    assert_eq!(one.sensor().not_connected_reason(), None);
    one.advance(at(70));
    one.advance(at(100));
    assert_eq!(waiter.wait(at(70), PATIENCE), Ok(at(100)));
    let expected = NotEvaluated::TimedOut {
        until: at(101),
        reached: at(100),
    };
    assert_eq!(waiter.wait(at(101), short), Err(expected));
    // A process announces a name once.
    let two = Announcement::register("judge").unwrap();
    assert!(two.sensor().not_connected_reason().is_some());
    drop(two);
    let now = monotonic_now();
    one.advance(now);
    drop(one);
    assert_eq!(waiter.wait(now, PATIENCE), Ok(now));
    let ended = waiter.wait(Timestamp::MAX, PATIENCE);
    assert_eq!(ended, Err(NotEvaluated::Ended { reached: now }));
}
