// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Switcher`]: the thread that detaches programs for a budget, and attaches them again.
//!
//! Both wait until the kernel has changed code that CPUs execute: some 10 ms. The thread that reads
//! the rings must not wait that long. So it only switches the bit that the programs test, and
//! orders the rest. A slot is in one of these states:
//!
//! ```text
//!            detach(): bit off                     set_off(false)
//!  ATTACHED -----------------> DETACHING --> DETACHED ------------> ATTACHING --> ATTACHED, bit on
//! ```
//!
//! The last order counts. The thread switches the bit on only if the last order is still "on" when
//! the programs are attached; all changes of bits are made under one lock.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::streams::Hook;

/// Where the programs are.
pub(crate) trait Site: Send + Sync + 'static {
    /// Detaches the programs of a slot, unless another monitor needs them.
    fn detach(&self, slot: u32, hook: Hook);

    /// Attaches them again. The error is a message.
    fn attach(&self, slot: u32, hook: Hook) -> Result<(), String>;

    /// Sets the bit that the programs test.
    fn set_off(&self, slot: u32, is_off: bool);
}

/// What is ordered of a slot, and how far that is carried out.
#[derive(Clone, Copy, Debug)]
struct SlotState {
    hook: Hook,
    /// Whether the last order is "on".
    is_wanted: bool,
    /// False from the begin of a detachment to the end of an attachment.
    is_attached: bool,
}

#[derive(Debug, Default)]
struct Book {
    /// Slots that were detached at least once.
    slots: BTreeMap<u32, SlotState>,
    has_ended: bool,
    problems: Vec<String>,
}

impl Book {
    /// A slot that is not as it is wanted.
    fn next(&self) -> Option<(u32, SlotState)> {
        let mut slots = self.slots.iter();
        let found = slots.find(|(_, state)| state.is_wanted != state.is_attached);
        found.map(|(slot, state)| (*slot, *state))
    }
}

struct Shared {
    book: Mutex<Book>,
    changed: Condvar,
    site: Box<dyn Site>,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, Book> {
        // A panic of the site leaves the book as it was.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out orders until the end.
    fn run(&self) {
        let mut book = self.locked();
        while !book.has_ended {
            let Some((slot, ordered)) = book.next() else {
                let waited = self.changed.wait(book);
                book = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if let Some(state) = book.slots.get_mut(&slot) {
                state.is_attached = false;
            }
            drop(book);
            let done = match ordered.is_wanted {
                true => self.site.attach(slot, ordered.hook),
                false => {
                    self.site.detach(slot, ordered.hook);
                    Ok(())
                }
            };
            book = self.locked();
            let Some(state) = book.slots.get_mut(&slot) else {
                continue;
            };
            match done {
                Ok(()) => state.is_attached = ordered.is_wanted,
                // It stays off until the next order.
                Err(_) => state.is_wanted = false,
            }
            if state.is_wanted && state.is_attached {
                self.site.set_off(slot, false);
            }
            if let Err(problem) = done {
                book.problems.push(problem);
            }
        }
    }
}

/// The thread, with its orders. It ends when the value is dropped.
pub(crate) struct Switcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Switcher {
    /// Starts the thread. All programs are attached.
    pub(crate) fn start(site: impl Site) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            book: Mutex::default(),
            changed: Condvar::new(),
            site: Box::new(site),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new().name("oh-switcher".to_owned());
        let thread = thread.spawn(move || own.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Switches a slot off, and orders that its programs are detached.
    pub(crate) fn detach(&self, slot: u32, hook: Hook) {
        let mut book = self.shared.locked();
        self.shared.site.set_off(slot, true);
        let state = book.slots.entry(slot).or_insert(SlotState {
            hook,
            is_wanted: true,
            is_attached: true,
        });
        state.is_wanted = false;
        self.shared.changed.notify_one();
    }

    /// Switches a slot off, or on: if its programs are detached, when they are attached again.
    pub(crate) fn set_off(&self, slot: u32, is_off: bool) {
        let mut book = self.shared.locked();
        let state = book.slots.get_mut(&slot).filter(|_| !is_off);
        let Some(state) = state else {
            return self.shared.site.set_off(slot, is_off);
        };
        state.is_wanted = true;
        if state.is_attached {
            self.shared.site.set_off(slot, false);
        }
        self.shared.changed.notify_one();
    }

    /// Whether the programs of a slot are attached: not from the begin of a detachment until the
    /// end of the next attachment.
    pub(crate) fn is_attached(&self, slot: u32) -> bool {
        let book = self.shared.locked();
        book.slots.get(&slot).is_none_or(|state| state.is_attached)
    }

    /// What went wrong since the last call.
    pub(crate) fn take_problems(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.locked().problems)
    }
}

impl Drop for Switcher {
    fn drop(&mut self) {
        self.shared.locked().has_ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, Receiver, Sender};
    use std::sync::{Arc, Mutex};

    use super::{Hook, Site, Switcher};

    #[derive(Default)]
    struct Observed {
        is_detached: bool,
        is_off: bool,
        /// Switched on while they were not attached.
        errors: u32,
    }

    /// Programs that are attached and detached when the test permits it.
    struct Slow {
        begun: Mutex<Sender<&'static str>>,
        permits: Mutex<Receiver<()>>,
        observed: Arc<Mutex<Observed>>,
        refuses: bool,
    }

    impl Slow {
        fn work(&self, name: &'static str) {
            self.begun.lock().unwrap().send(name).unwrap();
            self.permits.lock().unwrap().recv().unwrap();
        }
    }

    impl Site for Slow {
        fn detach(&self, _: u32, _: Hook) {
            self.observed.lock().unwrap().is_detached = true;
            self.work("detach");
        }

        fn attach(&self, _: u32, _: Hook) -> Result<(), String> {
            self.work("attach");
            self.observed.lock().unwrap().is_detached = self.refuses;
            match self.refuses {
                true => Err("refused".to_owned()),
                false => Ok(()),
            }
        }

        fn set_off(&self, _: u32, is_off: bool) {
            let mut observed = self.observed.lock().unwrap();
            observed.errors += u32::from(!is_off && observed.is_detached);
            observed.is_off = is_off;
        }
    }

    struct Play {
        switcher: Switcher,
        begun: Receiver<&'static str>,
        permit: Sender<()>,
        observed: Arc<Mutex<Observed>>,
    }

    impl Play {
        fn is_off(&self) -> bool {
            self.observed.lock().unwrap().is_off
        }

        fn errors(&self) -> u32 {
            self.observed.lock().unwrap().errors
        }
    }

    fn play(refuses: bool) -> Play {
        let ((begin, begun), (permit, permits)) = (channel(), channel());
        let observed = Arc::<Mutex<Observed>>::default();
        let site = Slow {
            begun: Mutex::new(begin),
            permits: Mutex::new(permits),
            observed: Arc::clone(&observed),
            refuses,
        };
        Play {
            switcher: Switcher::start(site).unwrap(),
            begun,
            permit,
            observed,
        }
    }

    #[test]
    fn slot_is_on_only_when_its_programs_are_attached() {
        let play = play(false);
        play.switcher.detach(18, Hook::Probe);
        assert!(play.is_off());
        assert_eq!(play.begun.recv(), Ok("detach"));
        // On while it is being detached, then off and on again: one attachment follows.
        play.switcher.set_off(18, false);
        play.switcher.detach(18, Hook::Probe);
        play.switcher.set_off(18, false);
        assert!(play.is_off());
        play.permit.send(()).unwrap();
        assert_eq!(play.begun.recv(), Ok("attach"));
        play.permit.send(()).unwrap();
        while play.is_off() {
            std::thread::yield_now();
        }
        assert_eq!(play.errors(), 0);
        // Other slots are switched at once.
        play.switcher.set_off(19, true);
        assert!(play.is_off());
    }

    #[test]
    fn refused_attachment_is_one_problem_and_the_slot_stays_off() {
        let play = play(true);
        play.switcher.detach(18, Hook::Probe);
        assert_eq!(play.begun.recv(), Ok("detach"));
        play.permit.send(()).unwrap();
        play.switcher.set_off(18, false);
        assert_eq!(play.begun.recv(), Ok("attach"));
        play.permit.send(()).unwrap();
        let mut problems = Vec::new();
        while problems.is_empty() {
            problems = play.switcher.take_problems();
            std::thread::yield_now();
        }
        assert_eq!(problems, ["refused"]);
        assert!(play.is_off());
        assert_eq!(play.errors(), 0);
    }
}
