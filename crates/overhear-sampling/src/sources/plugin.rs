// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PluginSource`]: a data source in a shared object, by `include/overhear/data_source.h`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{CostClass, DataSource, Quantity, QuantityKind, SourceReadError};

/// Maximum number of quantities.
const MAX_QUANTITIES: u32 = 64;

/// Bytes for the message of a failed `create`.
const ERROR_BYTES: usize = 256;

/// `oh_quantity`.
#[repr(C)]
struct RawQuantity {
    name: *const c_char,
    unit: *const c_char,
    kind: u32,
    reserved: u32,
}

/// `oh_data_source`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawSource {
    size: u32,
    cost: u32,
    quantities: *const RawQuantity,
    quantity_count: u32,
    reserved: u32,
    create: Option<unsafe extern "C" fn(*const c_char, u32, *mut c_char, usize) -> *mut c_void>,
    read: Option<unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int>,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

const _: () = assert!(size_of::<RawQuantity>() == 24 && size_of::<RawSource>() == 48);

/// An object of a data source in a shared object.
pub(crate) struct PluginSource {
    name: String,
    read: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    object: *mut c_void,
    cost: CostClass,
    quantities: Vec<Quantity>,
}

// SAFETY: by the rules of data_source.h an object is read from another thread than the one that
// made it, and calls never overlap: `read` takes `&mut self`.
unsafe impl Send for PluginSource {}

impl PluginSource {
    /// Loads a shared object and makes an object of its data source.
    ///
    /// Loading runs code of the file: it is trusted as a program trusts its libraries. It stays
    /// loaded until the process ends.
    ///
    /// # Errors
    /// A message, without the name of the file.
    pub(crate) fn load(path: &Path, argument: &str, pid: u32) -> Result<Self, String> {
        // SAFETY: the user names the file, and trusts its initialisers.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| format!("it does not load: {error}"))?;
        let library = ManuallyDrop::new(library);
        type GetSource = unsafe extern "C" fn() -> *const RawSource;
        // SAFETY: data_source.h declares the function of this name with this type.
        let symbol = unsafe { library.get::<GetSource>(b"oh_data_source_v1\0") };
        let symbol = symbol.map_err(|_| {
            "it lacks the function `oh_data_source_v1`; write OH_EXPORT_DATA_SOURCE(&source) into it"
        })?;
        // SAFETY: as above.
        let source = unsafe { (*symbol)() };
        if source.is_null() {
            return Err("`oh_data_source_v1` returns NULL".to_owned());
        }
        // SAFETY: not NULL; every version of the struct begins with its size.
        let size = unsafe { source.cast::<u32>().read() };
        if (size as usize) < size_of::<RawSource>() {
            return Err(format!(
                "its data source has a size of {size} bytes, which is too small"
            ));
        }
        // SAFETY: it has at least this size.
        let raw = unsafe { source.read() };
        let quantities = quantities_of(&raw)?;
        let (Some(create), Some(read)) = (raw.create, raw.read) else {
            return Err("its data source has no `create` or no `read`".to_owned());
        };
        let cost = match raw.cost {
            1 => CostClass::Instruction,
            2 => CostClass::SystemCall,
            _ => CostClass::File,
        };
        let argument = CString::new(argument).map_err(|_| "its argument has a zero byte")?;
        let mut message: [c_char; ERROR_BYTES] = [0; ERROR_BYTES];
        // SAFETY: the argument ends with zero, and the message has room for the stated size. The
        // last byte is not given away, so that the message ends.
        let object = unsafe {
            create(
                argument.as_ptr(),
                pid,
                message.as_mut_ptr(),
                ERROR_BYTES - 1,
            )
        };
        if object.is_null() {
            // SAFETY: the array ends with zero.
            let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy();
            return Err(match message.as_ref() {
                "" => "its data source cannot be created".to_owned(),
                message => format!("its data source cannot be created: {message}"),
            });
        }
        Ok(Self {
            name: path.display().to_string(),
            read,
            destroy: raw.destroy,
            object,
            cost,
            quantities,
        })
    }
}

fn quantities_of(raw: &RawSource) -> Result<Vec<Quantity>, String> {
    if raw.quantities.is_null() || !(1..=MAX_QUANTITIES).contains(&raw.quantity_count) {
        let count = raw.quantity_count;
        return Err(format!(
            "it has {count} quantities; give 1 to {MAX_QUANTITIES}"
        ));
    }
    let quantity = |index: usize| {
        // SAFETY: the table has this many entries, by the contract of the header.
        let raw = unsafe { &*raw.quantities.add(index) };
        let text = |text: *const c_char| {
            // SAFETY: NULL, or a string that stays as long as the library is loaded.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        let name = text(raw.name).unwrap_or_default().into_owned();
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
        if !begins || !name.chars().all(is_word) {
            return Err(format!(
                "the name of its quantity {} is no C identifier",
                index + 1
            ));
        }
        let kind = match raw.kind {
            1 => QuantityKind::Count,
            2 => QuantityKind::Level,
            3 => QuantityKind::RealLevel,
            kind => return Err(format!("its quantity `{name}` has the unknown kind {kind}")),
        };
        Ok(Quantity::new(
            name,
            text(raw.unit).unwrap_or_default(),
            kind,
        ))
    };
    (0..raw.quantity_count as usize).map(quantity).collect()
}

impl DataSource for PluginSource {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        self.cost
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        assert_eq!(
            values.len(),
            self.quantities.len(),
            "one word for each quantity"
        );
        // SAFETY: the object is that of `create`, and the values are as many as the quantities;
        // each value is a union of eight bytes.
        match unsafe { (self.read)(self.object, values.as_mut_ptr()) } {
            0 => Ok(()),
            errno => Err(SourceReadError {
                source_name: self.name.clone(),
                reason: std::io::Error::from_raw_os_error(errno).to_string(),
            }),
        }
    }
}

impl Drop for PluginSource {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the object is that of `create`, and is not used any more.
            unsafe { destroy(self.object) };
        }
    }
}
