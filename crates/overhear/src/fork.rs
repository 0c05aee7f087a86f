// SPDX-License-Identifier: MIT OR Apache-2.0
//! A forked child never writes into its parent's streams.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use overhear_directory::Mapping;

static STREAMS: Mutex<Vec<Weak<Mapping>>> = Mutex::new(Vec::new());
static HANDLERS: Once = Once::new();

thread_local! {
    /// Held from the prepare handler to the handlers after the fork, all of which run in the
    /// forking thread. So no other thread holds the lock while the process is copied.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<Weak<Mapping>>>>> =
        const { RefCell::new(None) };
}

fn streams() -> MutexGuard<'static, Vec<Weak<Mapping>>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that the handlers run at every `fork`.
pub(crate) fn install() {
    HANDLERS.call_once(|| {
        // SAFETY: the three handlers have the right type and stay loaded as long as the library;
        // they do not unwind. Without memory for the registration (the only error) forked
        // children are not kept out; there is nobody to tell and the program must go on.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Remembers a shared stream so that children made by `fork` are kept out of it.
pub(crate) fn protect(stream: &Arc<Mapping>) {
    install();
    let mut streams = streams();
    streams.retain(|stream| stream.strong_count() > 0);
    streams.push(Arc::downgrade(stream));
}

unsafe extern "C" fn before() {
    let guard = streams();
    // A thread that is being torn down has no thread-locals; then the lock is given back early.
    let _ = HELD.try_with(|held| held.replace(Some(guard)));
}

unsafe extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.take());
}

unsafe extern "C" fn in_child() {
    // The child has another thread id than its copy of the slot says, and no lane.
    crate::thread::forget();
    let _ = HELD.try_with(|held| {
        if let Some(streams) = held.take() {
            // Pointers stay valid: the pages change, the addresses do not.
            for stream in streams.iter().filter_map(Weak::upgrade) {
                stream.make_private();
            }
        }
    });
}
