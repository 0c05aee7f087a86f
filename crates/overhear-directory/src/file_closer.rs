// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing of files that a program has sent.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum number of threads that close refused files at the same time.
const MAX_CLOSERS: usize = 3;

/// Closes refused files. To close a file of a file system in user space is a request to its server,
/// which may never reply: so other threads close the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileCloser(Arc<()>);

impl FileCloser {
    /// Whether files may be accepted: a thread to close them must be free.
    pub(crate) fn is_available(&self) -> bool {
        // Each of the threads has a reference.
        Arc::strong_count(&self.0) <= MAX_CLOSERS
    }

    pub(crate) fn close(&self, files: Vec<OwnedFd>) {
        if files.is_empty() {
            return;
        }
        let held = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("oh-dir-closer".to_string());
        // Without a thread the files have been closed here.
        let _ = thread.spawn(move || drop((files, held)));
    }
}

#[cfg(test)]
mod tests {
    use super::{FileCloser, MAX_CLOSERS};

    #[test]
    fn closers_that_hang_are_bounded() {
        let closer = FileCloser::default();
        let hanging: Vec<_> = (0..MAX_CLOSERS).map(|_| closer.0.clone()).collect();
        assert!(!closer.is_available());
        drop(hanging);
        assert!(closer.is_available());
        let (read, write) = rustix::pipe::pipe().unwrap();
        closer.close(vec![write]);
        // The end of the pipe comes when the other thread has closed it.
        assert_eq!(rustix::io::read(&read, &mut [0; 1]), Ok(0));
    }
}
