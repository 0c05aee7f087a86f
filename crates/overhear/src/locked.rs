// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value in memory of its own that is locked, so that its use causes no page fault.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use overhear_directory::{MapError, Mapping};

/// A value in locked pages.
#[derive(Debug)]
pub(crate) struct Locked<T> {
    value: NonNull<T>,
    mapping: Mapping,
    is_locked: bool,
}

impl<T> Locked<T> {
    /// Moves the value to fresh pages and locks them, if the limit of locked memory allows it.
    pub(crate) fn new(value: T) -> Result<Self, MapError> {
        const { assert!(align_of::<T>() <= 4096, "pages are aligned to 4096 bytes") };
        let mapping = Mapping::private(size_of::<T>().max(1))?;
        let is_locked = mapping.lock().is_ok();
        let place = mapping.base().cast();
        // SAFETY: the pages are writable, large enough, aligned, and used by this value alone.
        unsafe { place.write(value) };
        Ok(Self {
            value: place,
            mapping,
            is_locked,
        })
    }

    /// Whether the pages are locked.
    pub(crate) const fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Bytes of the pages.
    pub(crate) const fn bytes(&self) -> usize {
        self.mapping.bytes()
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `new` has stored a value, and the pages are mapped as long as `self`.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the borrow of `self` is unique.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: stored by `new`, and not used afterwards. The pages are unmapped later.
        unsafe { self.value.drop_in_place() };
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::Locked;

    #[test]
    fn value_is_dropped_once() {
        let counted = Rc::new(());
        let mut locked = Locked::new((Rc::clone(&counted), [7_u64; 1000])).unwrap();
        locked.1[999] += 1;
        assert_eq!((Rc::strong_count(&counted), locked.1[999]), (2, 8));
        drop(locked);
        assert_eq!(Rc::strong_count(&counted), 1);
    }
}
