// SPDX-License-Identifier: MIT OR Apache-2.0
//! `liboverhear_kernel`, loaded when a stream first needs it: programs that trace no kernel events
//! need neither that library nor libbpf.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::transmute_copy;
use std::path::Path;
use std::sync::OnceLock;

use overhear_ffi::{text, ReadKernelEvents, ResumeKernel};

/// `oh_kernel_monitor_options`.
#[repr(C)]
pub(crate) struct MonitorOptions {
    pub(crate) buffer_bytes: u64,
    pub(crate) sensors: *const c_char,
    pub(crate) backend: u32,
    pub(crate) dedicated_programs: u32,
}

/// `oh_kernel_status`.
#[repr(C)]
pub(crate) struct MonitorStatus {
    pub(crate) granted_bytes: u64,
    pub(crate) max_events: u64,
    pub(crate) message: *const c_char,
    pub(crate) backend: u32,
    pub(crate) reserved: u32,
}

/// A function that acts on a monitor.
type Act = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The functions of `kernel.h` that streams use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLibrary {
    pub(crate) create: unsafe extern "C" fn(
        *mut *mut c_void,
        *const MonitorOptions,
        usize,
        *mut MonitorStatus,
    ) -> c_int,
    pub(crate) track_process: unsafe extern "C" fn(*mut c_void, u32) -> c_int,
    pub(crate) resume: ResumeKernel,
    pub(crate) suspend: Act,
    pub(crate) read: ReadKernelEvents,
    pub(crate) finish: Act,
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    last_error: unsafe extern "C" fn() -> *const c_char,
}

/// A function of the loaded library, by its name.
///
/// # Safety
/// `F` is the type of a pointer to that function.
unsafe fn function<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, String> {
    // SAFETY: the handle is that of a loaded library, and the name a string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        let name = name.to_string_lossy();
        return Err(format!("liboverhear_kernel has no function {name}"));
    }
    // SAFETY: by this function's condition; pointers to functions and to data have one size on
    // Linux.
    Ok(unsafe { transmute_copy(&address) })
}

fn dl_error() -> String {
    // SAFETY: dlerror has no condition, and returns NULL or a string.
    let message = unsafe { text(libc::dlerror()) };
    message.unwrap_or_else(|| "it cannot be loaded".to_owned())
}

/// The folder of the file that contains this code.
fn own_folder() -> Option<String> {
    // SAFETY: zero is a value of this struct of pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let inside = own_folder as *const c_void;
    // SAFETY: the address is in this file, and the place is writable.
    let is_found = unsafe { libc::dladdr(inside, &raw mut found) } != 0;
    // SAFETY: the name of a loaded file is a string.
    let file = unsafe { text(found.dli_fname) }.filter(|_| is_found)?;
    let folder = Path::new(&file).parent()?.to_str()?;
    Some(folder.to_owned()).filter(|folder| !folder.is_empty())
}

impl KernelLibrary {
    /// The library: in the folder of this one, else where the dynamic linker finds it. It stays
    /// loaded.
    ///
    /// # Errors
    /// A message with the reason.
    pub(crate) fn load() -> Result<&'static Self, String> {
        static LOADED: OnceLock<Result<KernelLibrary, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| {
            let name = "liboverhear_kernel.so";
            let soname = concat!("liboverhear_kernel.so.", env!("CARGO_PKG_VERSION_MAJOR"));
            let folders = own_folder().into_iter();
            let own = folders.flat_map(|folder| [soname, name].map(|it| format!("{folder}/{it}")));
            let all = own.chain([soname, name].map(str::to_owned));
            let mut reason = String::new();
            for path in all {
                match Self::load_from(&path) {
                    Ok(library) => return Ok(library),
                    Err(error) => reason = error,
                }
            }
            Err(reason)
        });
        loaded.as_ref().map_err(Clone::clone)
    }

    fn load_from(path: &str) -> Result<Self, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: the path is a string; the library has no constructors with conditions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(dl_error());
        }
        // SAFETY: the types are those of kernel.h; a test calls each function.
        unsafe {
            Ok(Self {
                create: function(handle, c"oh_kernel_monitor_create_sized")?,
                track_process: function(handle, c"oh_kernel_process_monitor")?,
                resume: function(handle, c"oh_kernel_monitor_resume")?,
                suspend: function(handle, c"oh_kernel_monitor_suspend")?,
                read: function(handle, c"oh_kernel_monitor_read")?,
                finish: function(handle, c"oh_kernel_monitor_finish")?,
                free: function(handle, c"oh_kernel_monitor_free")?,
                last_error: function(handle, c"oh_kernel_last_error")?,
            })
        }
    }

    /// The message of the last failed call of this thread.
    pub(crate) fn last_error(&self) -> String {
        // SAFETY: the function has no condition, and its result is a string.
        unsafe { text((self.last_error)()) }.unwrap_or_default()
    }
}
