// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contenders in C and C++: one table per compiler, made by `c/contenders.h`.

use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr;

use anyhow::{ensure, Result};

use crate::cold::Lines;
use crate::sensors;

/// A sensor of the C library.
#[repr(C)]
pub(crate) struct OhSensor {
    base: *mut c_void,
    rest: [u64; 7],
}

/// Number of offsets in a line at which each put is compiled; `c/places.h`.
pub(crate) const PLACES: usize = 8;

type Put = unsafe extern "C" fn(*mut c_void, u64);
type Enlist = unsafe extern "C" fn(*const c_char, u64, *mut *mut OhSensor) -> *mut c_void;

/// One size of payload and ring; `struct contender` of `c/contenders.h`.
#[repr(C)]
pub(crate) struct Native {
    pub(crate) payload_bytes: u32,
    pub(crate) slots: u32,
    enlist: Option<Enlist>,
    floor: Option<unsafe extern "C" fn(u64)>,
    put: [Option<Put>; PLACES],
    fill: Option<Put>,
    ring: *const c_void,
    ring_bytes: u64,
    counter: *const c_void,
}

extern "C" {
    fn oh_last_error() -> *const c_char;
    #[cfg(has_gcc)]
    static contenders_gcc: Native;
    #[cfg(has_gcc)]
    static contenders_gcc_crowd: Crowd;
    #[cfg(has_clang)]
    static contenders_clang: Native;
    #[cfg(has_clang)]
    static contenders_clang_crowd: Crowd;
    #[cfg(has_gxx)]
    static contenders_gxx: Native;
    #[cfg(has_clangxx)]
    static contenders_clangxx: Native;
}

/// Sensors that several threads write, 8 bytes each; `struct crowd` of `c/contenders.h`.
#[repr(C)]
pub(crate) struct Crowd {
    laned: CrowdKind,
    concurrent: CrowdKind,
}

/// A kind of such sensors.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CrowdKind {
    enlist: unsafe extern "C" fn(*const c_char, u64) -> *mut c_void,
    put: [Put; PLACES],
}

/// A sensor of that kind, which lives until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct CrowdSensor {
    kind: CrowdKind,
    sensor: *mut c_void,
}

// SAFETY: sensors of these kinds may be written by any thread at any time.
unsafe impl Send for CrowdSensor {}
// SAFETY: as for Send.
unsafe impl Sync for CrowdSensor {}

impl CrowdKind {
    pub(crate) fn enlist(self, slots: u64) -> Result<CrowdSensor> {
        let name = CString::new(sensors::next_instance())?;
        // SAFETY: the name is a string that outlives the call.
        let sensor = unsafe { (self.enlist)(name.as_ptr(), slots) };
        ensure!(
            !sensor.is_null(),
            "a C sensor is not connected: {}",
            last_error()
        );
        Ok(CrowdSensor { kind: self, sensor })
    }
}

impl CrowdSensor {
    pub(crate) fn put(&self, elements: u64) {
        self.put_from(0, elements);
    }

    /// The same by the code at another offset.
    pub(crate) fn put_from(&self, place: usize, elements: u64) {
        // SAFETY: the sensor is registered and never unregistered.
        unsafe { (self.kind.put[place])(self.sensor, elements) }
    }
}

/// Laned and concurrent sensors of each C compiler.
pub(crate) fn crowds() -> Vec<(&'static str, CrowdKind, CrowdKind)> {
    vec![
        // SAFETY: the tables are constant.
        #[cfg(has_gcc)]
        unsafe {
            (
                "C (gcc)",
                contenders_gcc_crowd.laned,
                contenders_gcc_crowd.concurrent,
            )
        },
        // SAFETY: as above.
        #[cfg(has_clang)]
        unsafe {
            (
                "C (clang)",
                contenders_clang_crowd.laned,
                contenders_clang_crowd.concurrent,
            )
        },
    ]
}

/// The message for this thread's last registration.
fn last_error() -> String {
    // SAFETY: the message is a string that stays until this thread's next registration.
    let reason = unsafe { CStr::from_ptr(oh_last_error()) };
    reason.to_string_lossy().into_owned()
}

/// The contenders of one compiler.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    pub(crate) compiler: &'static str,
    /// The names of the two write methods for users.
    pub(crate) put: &'static str,
    pub(crate) fill: &'static str,
    /// The largest good ratio of an inlined write of 8 bytes.
    pub(crate) target: f64,
    table: *const Native,
}

/// Every compiler that was installed when this program was built.
pub(crate) fn units() -> Vec<Unit> {
    vec![
        #[cfg(has_gcc)]
        Unit {
            compiler: "C (gcc)",
            put: "oh_sensor_put",
            fill: "oh_sensor_write, commit",
            target: 1.10,
            table: &raw const contenders_gcc,
        },
        #[cfg(has_clang)]
        Unit {
            compiler: "C (clang)",
            put: "oh_sensor_put",
            fill: "oh_sensor_write, commit",
            target: 1.10,
            table: &raw const contenders_clang,
        },
        #[cfg(has_gxx)]
        Unit {
            compiler: "C++ (g++)",
            put: "sensor<T>::write",
            fill: "sensor<T>::begin, commit",
            target: 1.30,
            table: &raw const contenders_gxx,
        },
        #[cfg(has_clangxx)]
        Unit {
            compiler: "C++ (clang++)",
            put: "sensor<T>::write",
            fill: "sensor<T>::begin, commit",
            target: 1.30,
            table: &raw const contenders_clangxx,
        },
    ]
}

impl Unit {
    /// Its sizes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static Native> {
        let table = self.table;
        (0..)
            // SAFETY: the table is static and ends with a row without functions, behind which
            // `map_while` does not look.
            .map(move |at| unsafe { &*table.add(at) })
            .take_while(|row| row.floor.is_some())
    }

    /// The row of this size.
    pub(crate) fn row(&self, bytes: u32, slots: u64) -> &'static Native {
        self.rows()
            .find(|row| row.payload_bytes == bytes && u64::from(row.slots) == slots)
            .expect("every size that is compared has a row")
    }
}

impl Native {
    /// Registers a sensor of this size, which lives until the process ends.
    pub(crate) fn enlist(&self) -> Result<Handle> {
        let instance = sensors::next_instance();
        let name = CString::new(instance.as_str())?;
        let enlist = self.enlist.expect("a row has functions");
        let mut behind = ptr::null_mut();
        // SAFETY: the name is a string that outlives the call.
        let sensor = unsafe { enlist(name.as_ptr(), self.slots.into(), &mut behind) };
        ensure!(
            !sensor.is_null(),
            "the sensor {instance} is not connected: {}",
            last_error()
        );
        Ok(Handle { sensor, behind })
    }

    pub(crate) fn floor(&self, elements: u64) {
        // SAFETY: the function writes memory of its own; only the measured thread calls it.
        unsafe { self.floor.expect("a row has functions")(elements) }
    }

    /// The memory of the floor.
    pub(crate) fn floor_lines(&self) -> Lines {
        Lines::at(self.ring, self.ring_bytes as usize).and(self.counter, 64)
    }

    /// Copies whole payloads.
    pub(crate) fn put(&self, sensor: Handle, elements: u64) {
        self.put_from(0, sensor, elements);
    }

    /// The same by the code at another offset.
    pub(crate) fn put_from(&self, place: usize, sensor: Handle, elements: u64) {
        // SAFETY: the sensor is registered with this row's size and never unregistered; only the
        // measured thread writes it.
        unsafe { self.put[place].expect("a row has functions")(sensor.sensor, elements) }
    }

    /// Fills slots in place.
    pub(crate) fn fill(&self, sensor: Handle, elements: u64) {
        // SAFETY: as for `put`.
        unsafe { self.fill.expect("a row has functions")(sensor.sensor, elements) }
    }

    /// The memory of a sensor of this size.
    pub(crate) fn sensor_lines(&self, sensor: Handle) -> Lines {
        // SAFETY: the sensor lives until the process ends.
        let base = unsafe { (*sensor.behind).base };
        let stride = 8 + self.payload_bytes.next_multiple_of(8) as usize;
        let stream = 4096 + stride * self.slots as usize;
        Lines::at(base, stream).and(sensor.behind.cast(), 64)
    }
}

/// A registered sensor.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    sensor: *mut c_void,
    behind: *mut OhSensor,
}
