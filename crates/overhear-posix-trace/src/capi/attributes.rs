// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_trace_attr_*`: the attributes of a stream as an object of C.
//!
//! An object is valid from `posix_trace_attr_init` to `posix_trace_attr_destroy`. A mark in it lets
//! the other functions refuse one that is not.

use std::ffi::{c_char, c_int, CStr};

use super::{call, object, store};
use crate::{
    Attributes, Inheritance, LogFullPolicy, StreamFullPolicy, TraceError, GENERATION_VERSION,
    NAME_MAX,
};

/// In each valid object: "OHTRATTR".
const MARK: u64 = u64::from_le_bytes(*b"OHTRATTR");

const LOOP: c_int = 1;
const UNTIL_FULL: c_int = 2;
const FLUSH: c_int = 3;
const APPEND: c_int = 4;
const CLOSE_FOR_CHILD: c_int = 0;
const INHERITED: c_int = 1;

/// `trace_attr_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawAttributes {
    mark: u64,
    creation_ns: u64,
    clock_resolution_ns: u64,
    max_data_size: u64,
    stream_size: u64,
    log_size: u64,
    /// 0 for the default, which depends on the log.
    stream_full: c_int,
    log_full: c_int,
    inheritance: c_int,
    /// Bytes of the name, less than `NAME_MAX`.
    name_len: u32,
    name: [u8; NAME_MAX],
    reserved: [u64; 16],
}

const _: () = assert!(size_of::<RawAttributes>() == 256);

impl From<&Attributes> for RawAttributes {
    fn from(attributes: &Attributes) -> Self {
        let given = Attributes::fitting_name(&attributes.name);
        let mut name = [0; NAME_MAX];
        name[..given.len()].copy_from_slice(given);
        Self {
            mark: MARK,
            creation_ns: attributes.creation_ns,
            clock_resolution_ns: attributes.clock_resolution_ns,
            max_data_size: attributes.max_data_size as u64,
            stream_size: attributes.stream_size as u64,
            log_size: attributes.log_size as u64,
            stream_full: attributes.stream_full.map_or(0, stream_policy_to_c),
            log_full: match attributes.log_full {
                LogFullPolicy::Loop => LOOP,
                LogFullPolicy::UntilFull => UNTIL_FULL,
                LogFullPolicy::Append => APPEND,
            },
            inheritance: match attributes.inheritance {
                Inheritance::CloseForChild => CLOSE_FOR_CHILD,
                Inheritance::Inherited => INHERITED,
            },
            name_len: given.len() as u32,
            name,
            reserved: [0; 16],
        }
    }
}

/// The attributes in an object.
///
/// # Errors
/// [`TraceError`] `EINVAL` if the object was not initialized, was destroyed, or was overwritten.
pub(crate) fn attributes_of(raw: &RawAttributes) -> Result<Attributes, TraceError> {
    if raw.mark != MARK {
        return Err(TraceError::invalid(
            "the attributes object is not initialized; call posix_trace_attr_init first",
        ));
    }
    let overwritten = || TraceError::invalid("the attributes object was overwritten");
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| overwritten());
    let name = raw.name.get(..raw.name_len as usize);
    let name = name.ok_or_else(overwritten)?;
    Ok(Attributes {
        name: Attributes::fitting_name(name).to_vec(),
        creation_ns: raw.creation_ns,
        clock_resolution_ns: raw.clock_resolution_ns,
        max_data_size: size(raw.max_data_size)?,
        stream_size: size(raw.stream_size)?,
        stream_full: match raw.stream_full {
            0 => None,
            policy => Some(stream_policy(policy).ok_or_else(overwritten)?),
        },
        inheritance: inheritance(raw.inheritance).ok_or_else(overwritten)?,
        log_size: size(raw.log_size)?,
        log_full: log_policy(raw.log_full).ok_or_else(overwritten)?,
    })
}

const fn stream_policy(policy: c_int) -> Option<StreamFullPolicy> {
    match policy {
        LOOP => Some(StreamFullPolicy::Loop),
        UNTIL_FULL => Some(StreamFullPolicy::UntilFull),
        FLUSH => Some(StreamFullPolicy::Flush),
        _ => None,
    }
}

const fn stream_policy_to_c(policy: StreamFullPolicy) -> c_int {
    match policy {
        StreamFullPolicy::Loop => LOOP,
        StreamFullPolicy::UntilFull => UNTIL_FULL,
        StreamFullPolicy::Flush => FLUSH,
    }
}

const fn log_policy(policy: c_int) -> Option<LogFullPolicy> {
    match policy {
        LOOP => Some(LogFullPolicy::Loop),
        UNTIL_FULL => Some(LogFullPolicy::UntilFull),
        APPEND => Some(LogFullPolicy::Append),
        _ => None,
    }
}

const fn inheritance(policy: c_int) -> Option<Inheritance> {
    match policy {
        CLOSE_FOR_CHILD => Some(Inheritance::CloseForChild),
        INHERITED => Some(Inheritance::Inherited),
        _ => None,
    }
}

/// Reads an attribute into a result of C.
///
/// # Safety
/// `attr` is null or points to a `trace_attr_t`, and `result` is null or points to a `T`; nothing
/// else changes them during the call.
unsafe fn get<T>(
    name: &'static str,
    attr: *const RawAttributes,
    result: *mut T,
    read: impl FnOnce(&Attributes) -> Result<T, TraceError>,
) -> c_int {
    call(name, || {
        // SAFETY: by this function's condition.
        let raw = unsafe { object(attr, "the attributes object") }?;
        let value = read(&attributes_of(raw)?)?;
        // SAFETY: by this function's condition.
        unsafe { store(result, value, "the result") }
    })
}

/// Changes an attribute.
///
/// # Safety
/// `attr` is null or points to a `trace_attr_t`, which nothing else changes during the call.
unsafe fn set(
    name: &'static str,
    attr: *mut RawAttributes,
    change: impl FnOnce(&mut Attributes) -> Result<(), TraceError>,
) -> c_int {
    call(name, || {
        // SAFETY: by this function's condition.
        let raw = unsafe { object(attr.cast_const(), "the attributes object") }?;
        let mut attributes = attributes_of(raw)?;
        change(&mut attributes)?;
        // SAFETY: by this function's condition; the borrow of `raw` has ended.
        unsafe {
            store(
                attr,
                RawAttributes::from(&attributes),
                "the attributes object",
            )
        }
    })
}

/// Copies a text with its end to an array of `NAME_MAX` characters.
///
/// # Safety
/// `array` is null or points to that many characters.
unsafe fn store_text(array: *mut c_char, text: &[u8]) -> Result<(), TraceError> {
    let text = Attributes::fitting_name(text);
    if array.is_null() {
        return Err(TraceError::invalid("the array of characters is NULL"));
    }
    // SAFETY: the text and its end fit in `NAME_MAX` characters, which the array has by this
    // function's condition.
    unsafe {
        array.cast::<u8>().copy_from(text.as_ptr(), text.len());
        array.add(text.len()).write(0);
    }
    Ok(())
}

fn timespec(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanoseconds % 1_000_000_000) as libc::c_long,
    }
}

/// # Safety
/// `attr` is null or points to memory of a `trace_attr_t`.
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_init(attr: *mut RawAttributes) -> c_int {
    call("posix_trace_attr_init", || {
        let raw = RawAttributes::from(&Attributes::default());
        // SAFETY: by this function's condition.
        unsafe { store(attr, raw, "the attributes object") }
    })
}

/// # Safety
/// `attr` is null or points to a `trace_attr_t`.
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_destroy(attr: *mut RawAttributes) -> c_int {
    call("posix_trace_attr_destroy", || {
        // SAFETY: by this function's condition.
        let raw = unsafe { object(attr.cast_const(), "the attributes object") }?;
        let destroyed = RawAttributes {
            mark: 0,
            ..RawAttributes::from(&attributes_of(raw)?)
        };
        // SAFETY: by this function's condition; the borrow of `raw` has ended.
        unsafe { store(attr, destroyed, "the attributes object") }
    })
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getclockres(
    attr: *const RawAttributes,
    resolution: *mut libc::timespec,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get("posix_trace_attr_getclockres", attr, resolution, |from| {
            Ok(timespec(from.clock_resolution_ns))
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getcreatetime(
    attr: *const RawAttributes,
    createtime: *mut libc::timespec,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get("posix_trace_attr_getcreatetime", attr, createtime, |from| {
            Ok(timespec(from.creation_ns))
        })
    }
}

/// # Safety
/// `attr` is null or points to a `trace_attr_t`; `genversion` is null or has `NAME_MAX` characters.
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getgenversion(
    attr: *const RawAttributes,
    genversion: *mut c_char,
) -> c_int {
    call("posix_trace_attr_getgenversion", || {
        // SAFETY: by this function's condition.
        attributes_of(unsafe { object(attr, "the attributes object") }?)?;
        // SAFETY: by this function's condition.
        unsafe { store_text(genversion, GENERATION_VERSION.as_bytes()) }
    })
}

/// # Safety
/// `attr` is null or points to a `trace_attr_t`; `tracename` is null or has `NAME_MAX` characters.
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getname(
    attr: *const RawAttributes,
    tracename: *mut c_char,
) -> c_int {
    call("posix_trace_attr_getname", || {
        // SAFETY: by this function's condition.
        let attributes = attributes_of(unsafe { object(attr, "the attributes object") }?)?;
        // SAFETY: by this function's condition.
        unsafe { store_text(tracename, &attributes.name) }
    })
}

/// # Safety
/// As [`set`]; `tracename` is null or a text with its end.
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setname(
    attr: *mut RawAttributes,
    tracename: *const c_char,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setname", attr, |attributes| {
            if tracename.is_null() {
                return Err(TraceError::invalid("the name is NULL"));
            }
            // Safe: not null, so a text with its end by this function's condition.
            let name = CStr::from_ptr(tracename);
            attributes.name = Attributes::fitting_name(name.to_bytes()).to_vec();
            Ok(())
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getinherited(
    attr: *const RawAttributes,
    inheritancepolicy: *mut c_int,
) -> c_int {
    const NAME: &str = "posix_trace_attr_getinherited";
    // SAFETY: by this function's condition.
    unsafe {
        get(NAME, attr, inheritancepolicy, |from| {
            Ok(RawAttributes::from(from).inheritance)
        })
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setinherited(
    attr: *mut RawAttributes,
    inheritancepolicy: c_int,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setinherited", attr, |attributes| {
            attributes.inheritance = inheritance(inheritancepolicy)
                .ok_or_else(|| unknown("inheritance", inheritancepolicy))?;
            Ok(())
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getlogfullpolicy(
    attr: *const RawAttributes,
    logpolicy: *mut c_int,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get(
            "posix_trace_attr_getlogfullpolicy",
            attr,
            logpolicy,
            |from| Ok(RawAttributes::from(from).log_full),
        )
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setlogfullpolicy(
    attr: *mut RawAttributes,
    logpolicy: c_int,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setlogfullpolicy", attr, |attributes| {
            attributes.log_full =
                log_policy(logpolicy).ok_or_else(|| unknown("log-full-policy", logpolicy))?;
            Ok(())
        })
    }
}

/// The default before the creation is that of a stream without log.
///
/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getstreamfullpolicy(
    attr: *const RawAttributes,
    streampolicy: *mut c_int,
) -> c_int {
    const NAME: &str = "posix_trace_attr_getstreamfullpolicy";
    // SAFETY: by this function's condition.
    unsafe {
        get(NAME, attr, streampolicy, |from| {
            Ok(from.stream_full.map_or(LOOP, stream_policy_to_c))
        })
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setstreamfullpolicy(
    attr: *mut RawAttributes,
    streampolicy: c_int,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setstreamfullpolicy", attr, |attributes| {
            let policy = stream_policy(streampolicy);
            attributes.stream_full =
                Some(policy.ok_or_else(|| unknown("stream-full-policy", streampolicy))?);
            Ok(())
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getlogsize(
    attr: *const RawAttributes,
    logsize: *mut usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get("posix_trace_attr_getlogsize", attr, logsize, |from| {
            Ok(from.log_size)
        })
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setlogsize(
    attr: *mut RawAttributes,
    logsize: usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setlogsize", attr, |attributes| {
            attributes.log_size = logsize;
            Ok(())
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getmaxdatasize(
    attr: *const RawAttributes,
    maxdatasize: *mut usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get(
            "posix_trace_attr_getmaxdatasize",
            attr,
            maxdatasize,
            |from| Ok(from.max_data_size),
        )
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setmaxdatasize(
    attr: *mut RawAttributes,
    maxdatasize: usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setmaxdatasize", attr, |attributes| {
            attributes.max_data_size = maxdatasize;
            match attributes.event_bytes() {
                Some(_) => Ok(()),
                None => Err(TraceError::invalid(
                    "an event of this max-data-size exceeds the address space",
                )),
            }
        })
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getmaxsystemeventsize(
    attr: *const RawAttributes,
    eventsize: *mut usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get(
            "posix_trace_attr_getmaxsystemeventsize",
            attr,
            eventsize,
            event_bytes,
        )
    }
}

/// Longer data is cut, so the length does not matter.
///
/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getmaxusereventsize(
    attr: *const RawAttributes,
    _data_len: usize,
    eventsize: *mut usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get(
            "posix_trace_attr_getmaxusereventsize",
            attr,
            eventsize,
            event_bytes,
        )
    }
}

/// # Safety
/// As [`get`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_getstreamsize(
    attr: *const RawAttributes,
    streamsize: *mut usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        get("posix_trace_attr_getstreamsize", attr, streamsize, |from| {
            Ok(from.stream_size)
        })
    }
}

/// # Safety
/// As [`set`].
#[no_mangle]
unsafe extern "C" fn posix_trace_attr_setstreamsize(
    attr: *mut RawAttributes,
    streamsize: usize,
) -> c_int {
    // SAFETY: by this function's condition.
    unsafe {
        set("posix_trace_attr_setstreamsize", attr, |attributes| {
            attributes.stream_size = streamsize;
            Ok(())
        })
    }
}

fn event_bytes(attributes: &Attributes) -> Result<usize, TraceError> {
    let bytes = attributes.event_bytes();
    bytes.ok_or_else(|| TraceError::invalid("an event of max-data-size exceeds the address space"))
}

fn unknown(attribute: &str, value: c_int) -> TraceError {
    TraceError::invalid(format!("{value} is no value of the attribute {attribute}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initialized() -> RawAttributes {
        RawAttributes::from(&Attributes::default())
    }

    #[test]
    fn objects_keep_all_attributes() {
        let attributes = Attributes {
            name: b"requests".to_vec(),
            creation_ns: 1,
            clock_resolution_ns: 2,
            max_data_size: 3,
            stream_size: 4,
            stream_full: Some(StreamFullPolicy::UntilFull),
            inheritance: Inheritance::Inherited,
            log_size: 5,
            log_full: LogFullPolicy::Append,
        };
        let kept = attributes_of(&RawAttributes::from(&attributes)).unwrap();
        assert_eq!(kept, attributes);
        let default = Attributes::default();
        assert_eq!(attributes_of(&initialized()).unwrap(), default);
    }

    #[test]
    fn overwritten_objects_are_refused() {
        let changes: [fn(&mut RawAttributes); 6] = [
            |raw| raw.mark += 1,
            |raw| raw.name_len = NAME_MAX as u32 + 1,
            |raw| raw.stream_full = APPEND,
            |raw| raw.log_full = FLUSH,
            |raw| raw.inheritance = 2,
            |raw| *raw = RawAttributes { mark: 0, ..*raw },
        ];
        for change in changes {
            let mut raw = initialized();
            change(&mut raw);
            assert_eq!(attributes_of(&raw).unwrap_err().errno, libc::EINVAL);
        }
    }

    #[test]
    fn destroyed_objects_are_refused_until_they_are_initialized_again() {
        let mut raw = initialized();
        let mut size = 0;
        // SAFETY: pointers to values of this test.
        unsafe {
            assert_eq!(posix_trace_attr_destroy(&mut raw), 0);
            assert_eq!(posix_trace_attr_destroy(&mut raw), libc::EINVAL);
            assert_eq!(posix_trace_attr_getlogsize(&raw, &mut size), libc::EINVAL);
            assert_eq!(posix_trace_attr_setlogsize(&mut raw, 1), libc::EINVAL);
            assert_eq!(posix_trace_attr_init(&mut raw), 0);
            assert_eq!(posix_trace_attr_setlogsize(&mut raw, 1), 0);
            assert_eq!(posix_trace_attr_getlogsize(&raw, &mut size), 0);
        }
        assert_eq!(size, 1);
    }

    #[test]
    fn refused_values_change_nothing() {
        let mut raw = initialized();
        // SAFETY: pointers to values of this test.
        unsafe {
            let result = posix_trace_attr_setstreamfullpolicy(&mut raw, APPEND);
            assert_eq!(result, libc::EINVAL);
            assert_eq!(
                posix_trace_attr_setlogfullpolicy(&mut raw, FLUSH),
                libc::EINVAL
            );
            assert_eq!(posix_trace_attr_setinherited(&mut raw, 2), libc::EINVAL);
            let result = posix_trace_attr_setmaxdatasize(&mut raw, usize::MAX);
            assert_eq!(result, libc::EINVAL);
            let result = posix_trace_attr_setname(&mut raw, std::ptr::null());
            assert_eq!(result, libc::EINVAL);
        }
        assert_eq!(attributes_of(&raw).unwrap(), Attributes::default());
    }

    #[test]
    fn null_is_no_object() {
        let mut policy = 0;
        // SAFETY: null pointers are permitted.
        unsafe {
            assert_eq!(posix_trace_attr_init(std::ptr::null_mut()), libc::EINVAL);
            assert_eq!(posix_trace_attr_destroy(std::ptr::null_mut()), libc::EINVAL);
            let result = posix_trace_attr_getinherited(std::ptr::null(), &mut policy);
            assert_eq!(result, libc::EINVAL);
            let result = posix_trace_attr_getname(&initialized(), std::ptr::null_mut());
            assert_eq!(result, libc::EINVAL);
            let result = posix_trace_attr_getclockres(&initialized(), std::ptr::null_mut());
            assert_eq!(result, libc::EINVAL);
        }
    }
}
