// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values that the child of a fork replaces.
//!
//! Another thread of the parent may hold a lock while the process is copied, and in the child
//! no thread releases it. So the child takes no lock: it replaces the value, and leaves the copy of
//! the parent's value as it is.

use std::marker::PhantomData;

use overhear_stream::sync::{AtomicU64, Ordering};

/// A value of the process, made at the first use.
pub(crate) struct PerProcess<T> {
    /// The address of the value, which lives until the process ends; 0 before the first use.
    address: AtomicU64,
    value: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self {
            address: AtomicU64::new(0),
            value: PhantomData,
        }
    }

    /// The value, if there is one.
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SYNC(value)
        let address = self.address.load(Ordering::Acquire) as *const T;
        // SAFETY: null, or the address of a leaked box that `set` or `get_or_init` published.
        unsafe { address.as_ref() }
    }

    /// The value; the first caller makes it. Two threads may both make one, of which one is
    /// dropped.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let made = Box::into_raw(Box::new(make()));
        // SYNC(value): a thread that loads the address also sees the value.
        let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
        match self.address.compare_exchange(0, made as u64, won, lost) {
            // SAFETY: the box is leaked, and nothing changes the value.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: no other thread has this address.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: published by the winner; values are never freed.
                unsafe { &*(other as *const T) }
            }
        }
    }

    /// Replaces the value. The one before stays in memory: others may still use it.
    pub(crate) fn set(&self, value: T) {
        let made = Box::into_raw(Box::new(value));
        // SYNC(value)
        self.address.store(made as u64, Ordering::Release);
    }

    /// Forgets the value, in the child of a fork. The next use makes a new one.
    pub(crate) fn forget(&self) {
        // SYNC(value)
        self.address.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::PerProcess;

    #[test]
    fn value_is_made_once_until_it_is_forgotten() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(VALUE.get(), None);
        assert_eq!(*VALUE.get_or_init(|| 1), 1);
        assert_eq!(*VALUE.get_or_init(|| 2), 1);
        VALUE.set(3);
        assert_eq!(VALUE.get(), Some(&3));
        VALUE.forget();
        assert_eq!(VALUE.get(), None);
        assert_eq!(*VALUE.get_or_init(|| 4), 4);
    }
}
