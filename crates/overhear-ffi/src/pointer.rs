// SPDX-License-Identifier: MIT OR Apache-2.0
//! Strings, options and objects behind pointers of C.

use std::ffi::{c_char, CStr, CString};
use std::mem::{size_of, MaybeUninit};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The string of C at `text`, with U+FFFD for bytes that are not UTF-8; `None` for NULL.
///
/// # Safety
/// `text` is NULL, or a string that ends with a zero byte.
#[must_use]
pub unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract, and not NULL.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// The text as a string of C, with spaces for zero bytes.
#[must_use]
pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// A struct of C that may grow at its end: the first `size` bytes are read, and the rest is zero.
/// Members that an older program does not have are zero; those that only a newer program has are
/// ignored.
///
/// # Safety
/// `from` points to `size` readable bytes. Zero bytes, and what these bytes contain, are a value of
/// `T`.
pub unsafe fn sized<T: Copy>(from: *const T, size: usize) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    let size = size.min(size_of::<T>());
    // SAFETY: both sides have at least `size` bytes; the result is a value of `T` by contract.
    unsafe {
        let to = value.as_mut_ptr().cast::<u8>();
        to.copy_from_nonoverlapping(from.cast(), size);
        value.assume_init()
    }
}

/// Drops an object that was handed out by `Box::into_raw`. NULL is allowed, and a panic of its
/// destructor ends here.
///
/// # Safety
/// `object` is NULL, or came from `Box::into_raw` and is not used any more.
pub unsafe fn release<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: by contract.
        let object = unsafe { Box::from_raw(object) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(object)));
    }
}

#[cfg(test)]
mod tests {
    use super::{c_text, release, sized, text};

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Options {
        old: u32,
        new: u32,
    }

    #[test]
    fn text_of_null_is_none_and_invalid_bytes_are_replaced() {
        // SAFETY: NULL, and strings that live.
        unsafe {
            assert_eq!(text(std::ptr::null()), None);
            assert_eq!(text(c"queue".as_ptr()), Some("queue".to_owned()));
            assert_eq!(text(c"\xff".as_ptr()), Some("\u{fffd}".to_owned()));
        }
        assert_eq!(c_text("a\0b").as_bytes(), b"a b");
    }

    #[test]
    fn options_of_an_older_program_are_zero_beyond_their_size() {
        let given = [Options { old: 1, new: 2 }, Options { old: 3, new: 4 }];
        // SAFETY: two structs of two integers are readable.
        let (old, same, newer) = unsafe {
            (
                sized(given.as_ptr(), 4),
                sized(given.as_ptr(), 8),
                sized(given.as_ptr(), 16),
            )
        };
        assert_eq!(old, Options { old: 1, new: 0 });
        assert_eq!([same, newer], [given[0]; 2]);
    }

    #[test]
    fn released_object_is_dropped_and_its_panic_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        let object = std::rc::Rc::new(());
        // SAFETY: NULL, or just made by Box::into_raw.
        unsafe {
            release(std::ptr::null_mut::<Bomb>());
            release(Box::into_raw(Box::new(object.clone())));
            release(Box::into_raw(Box::new(Bomb)));
        }
        assert_eq!(std::rc::Rc::strong_count(&object), 1);
    }
}
