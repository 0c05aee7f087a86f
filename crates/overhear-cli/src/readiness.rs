// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of descriptors, read by poll(2) without reading or writing them.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Whether the other end is closed: that of a pipe by its reader, or that of a terminal by a
/// hangup.
///
/// A file or a device without another end is never closed.
pub(crate) fn is_closed(descriptor: impl AsFd) -> bool {
    let state = state(&descriptor, PollFlags::empty(), Duration::ZERO);
    state.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
}

/// Waits until a write makes progress or fails at once, but not longer than this. A signal ends the
/// wait.
pub(crate) fn is_writable(descriptor: impl AsFd, longest: Duration) -> bool {
    !state(&descriptor, PollFlags::OUT, longest).is_empty()
}

fn state(descriptor: &impl AsFd, wanted: PollFlags, longest: Duration) -> PollFlags {
    let timeout = Timespec {
        tv_sec: longest.as_secs().cast_signed(),
        tv_nsec: longest.subsec_nanos().into(),
    };
    let mut descriptors = [PollFd::new(descriptor, wanted)];
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) => descriptors[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{pipe, Write};
    use std::time::Duration;

    use super::{is_closed, is_writable};

    #[test]
    fn pipe_is_closed_when_its_reader_is_gone() {
        let (reader, writer) = pipe().unwrap();
        assert!(!is_closed(&writer));
        drop(reader);
        assert!(is_closed(&writer));
        // The error is there at once.
        assert!(is_writable(&writer, Duration::ZERO));
        assert!(!is_closed(tempfile::tempfile().unwrap()));
    }

    #[test]
    fn full_pipe_is_not_writable() {
        let (_reader, mut writer) = pipe().unwrap();
        let page = [0; 4096];
        while is_writable(&writer, Duration::ZERO) {
            writer.write_all(&page).unwrap();
        }
        assert!(!is_closed(&writer));
    }
}
