// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thread-local variables of a plug-in.
//!
//! A shared object that is loaded at run time gets the memory of its thread-local variables in a
//! thread at the first use, from the allocator, within the evaluation that uses them. Plug-ins in
//! Rust have at least one such variable, that of [`react`](super::react).

use std::ffi::c_void;

/// The number of a module whose variables are made on first use; `None` where it has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadLocals(Option<usize>);

impl ThreadLocals {
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Those of the module that the loader gave this handle for.
    pub(super) fn of(handle: *mut c_void) -> Self {
        let module = module_of(handle);
        Self(module.filter(|&module| module != 0))
    }

    /// Has the memory made, for the calling thread.
    pub(super) fn touch(self) {
        if let Some(module) = self.0 {
            make(module);
        }
    }
}

#[cfg(target_env = "gnu")]
fn module_of(handle: *mut c_void) -> Option<usize> {
    let mut module: usize = 0;
    // SAFETY: a handle of the loader; for this request it writes one size_t.
    let result = unsafe { libc::dlinfo(handle, libc::RTLD_DI_TLS_MODID, (&raw mut module).cast()) };
    (result == 0).then_some(module)
}

#[cfg(target_env = "gnu")]
fn make(module: usize) {
    /// `tls_index` of the ELF specification for thread-local storage.
    #[repr(C)]
    struct TlsIndex {
        module: usize,
        offset: usize,
    }
    extern "C" {
        fn __tls_get_addr(index: *const TlsIndex) -> *mut c_void;
    }
    let index = TlsIndex { module, offset: 0 };
    // SAFETY: the loader named this module, which stays loaded until the process ends; it is the
    // function that compiled code calls before it uses such a variable.
    let begin = unsafe { __tls_get_addr(&raw const index) };
    std::hint::black_box(begin);
}

/// Other loaders give each thread all such memory when they load an object.
#[cfg(not(target_env = "gnu"))]
fn module_of(_: *mut c_void) -> Option<usize> {
    None
}

#[cfg(not(target_env = "gnu"))]
fn make(_: usize) {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::path::Path;

    use super::super::library::open_library;
    use super::ThreadLocals;

    #[test]
    fn memory_is_there_before_an_evaluation_uses_it() {
        let here = std::env::current_exe().unwrap();
        let built = here.parent().unwrap().parent().unwrap();
        let plugin = built.join("examples/libfragile.so");
        if !Path::new(&plugin).exists() {
            println!("skipped: the examples are not built; type `cargo build --examples`");
            return;
        }
        let handle = open_library(&plugin).unwrap().into_raw();
        let made = || {
            let mut address: usize = 0;
            // SAFETY: a handle of the loader; for this request it writes one pointer, or NULL where
            // the thread has none yet.
            let result =
                unsafe { libc::dlinfo(handle, libc::RTLD_DI_TLS_DATA, (&raw mut address).cast()) };
            (result, address != 0)
        };
        assert_eq!(made(), (0, false));
        ThreadLocals::of(handle).touch();
        assert_eq!(made(), (0, true));
        // Nothing of its own, nothing to make.
        ThreadLocals::none().touch();
    }
}
