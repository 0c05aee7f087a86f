// SPDX-License-Identifier: MIT OR Apache-2.0
//! A forked child never writes into its parent's streams.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use overhear_directory::{Control, Mapping};
use overhear_sampling::counters::CounterPages;
use overhear_stream::SwitchState;

/// The memory that a child must not share with its parent.
enum Inherited {
    Stream {
        stream: Weak<Mapping>,
        /// Where the directory switches the parent's sensor, which is not the child's.
        control: Option<Control>,
    },
    /// Pages of the parent's counters, which are not mapped in the child.
    Counters(Weak<CounterPages>),
}

impl Inherited {
    fn is_used(&self) -> bool {
        match self {
            Self::Stream { stream, .. } => stream.strong_count() > 0,
            Self::Counters(pages) => pages.strong_count() > 0,
        }
    }

    fn control(&self) -> Option<&Control> {
        match self {
            Self::Stream { control, .. } => control.as_ref(),
            Self::Counters(_) => None,
        }
    }
}

static STREAMS: Mutex<Vec<Inherited>> = Mutex::new(Vec::new());
static HANDLERS: Once = Once::new();

/// Held from the prepare handler to the handlers after the fork, all of which run in the forking
/// thread. So no other thread holds the lock while the process is copied.
///
/// Not thread-local: a thread that is being torn down has no thread-locals any more, and may fork
/// all the same, in a destructor of `pthread_key_create`.
struct Held(UnsafeCell<Option<MutexGuard<'static, Vec<Inherited>>>>);

// SAFETY: it is touched by the thread alone that holds the lock, between taking it and giving it
// back.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

fn streams() -> MutexGuard<'static, Vec<Inherited>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes sure that the handlers run at every `fork`.
pub(crate) fn install() {
    HANDLERS.call_once(|| {
        // SAFETY: the three handlers have the right type and stay loaded as long as the library;
        // they do not unwind. Without memory for the registration (the only error) forked
        // children share the memory; the error cannot be reported and the program must go on.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Remembers a shared stream so that children made by `fork` are kept out of it.
pub(crate) fn protect(stream: &Arc<Mapping>, control: Option<&Control>) {
    remember(Inherited::Stream {
        stream: Arc::downgrade(stream),
        control: control.cloned(),
    });
}

/// Remembers pages of counters so that children made by `fork` do not read them.
pub(crate) fn protect_counters(pages: &Arc<CounterPages>) {
    remember(Inherited::Counters(Arc::downgrade(pages)));
}

fn remember(inherited: Inherited) {
    install();
    let mut streams = streams();
    streams.retain(Inherited::is_used);
    streams.push(inherited);
}

/// Replaces memory that is shared with the parent by private memory at the same addresses. Streams
/// are empty then, and sensors are on: the parent's switches do not apply to the child.
fn make_private(streams: &[Inherited]) {
    for inherited in streams {
        match inherited {
            Inherited::Stream { stream, control } => {
                if let Some(stream) = stream.upgrade() {
                    stream.make_private();
                }
                if let Some(control) = control {
                    control.mapping().make_private();
                }
            }
            Inherited::Counters(pages) => {
                if let Some(pages) = pages.upgrade() {
                    pages.retire();
                }
            }
        }
    }
    // Several sensors share a page, so all pages come before the first line.
    for control in streams.iter().filter_map(Inherited::control) {
        // A line outside of its page has no switch either.
        if let Ok(line) = control.line() {
            line.switch(SwitchState::On);
        }
    }
}

unsafe extern "C" fn before() {
    let guard = streams();
    // SAFETY: this thread holds the lock; see `Held`.
    unsafe { *HELD.0.get() = Some(guard) };
}

/// Takes the lock that the prepare handler took, in the same thread or in its copy.
fn held() -> Option<MutexGuard<'static, Vec<Inherited>>> {
    // SAFETY: this thread holds the lock since the prepare handler; in a child it is the only one.
    unsafe { (*HELD.0.get()).take() }
}

unsafe extern "C" fn in_parent() {
    drop(held());
}

unsafe extern "C" fn in_child() {
    // The child's thread id is not the one in its copy of the slot, and it has no lane.
    crate::thread::forget();
    if let Some(streams) = held() {
        make_private(&streams);
    }
}
