// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Rust contenders: the writer of `overhear-stream` and the typed sensor of `overhear`.

use anyhow::{ensure, Result};
use overhear::{ConcurrentSensor, Element, LanedSensor, Nanos, Rate, Sensor};
use overhear_directory::Mapping;
use overhear_event::ClockId;
use overhear_stream::sync::{AtomicU64, Ordering};
use overhear_stream::{
    hardware_clock, read_hardware_ticks, Geometry, Header, SharedWords, SimpleWriter, WriterKind,
};

use crate::cold::Lines;

/// A payload with a number in each of its fields.
pub(crate) trait Numbered: Element + 'static {
    fn new(number: u64) -> Self;
}

macro_rules! payloads {
    ($($name:ident($kind:ty): $($field:ident + $at:literal),*;)*) => {$(
        #[derive(Element)]
        #[repr(C)]
        pub(crate) struct $name {
            $($field: $kind,)*
        }

        impl Numbered for $name {
            #[inline(always)]
            #[allow(unused_variables, reason = "there may be no field")]
            fn new(number: u64) -> Self {
                Self { $($field: (number + $at) as $kind,)* }
            }
        }
    )*};
}

payloads! {
    Bytes0(u64): ;
    Bytes4(u32): a + 0;
    Bytes8(u64): a + 0;
    Bytes64(u64): a + 0, b + 1, c + 2, d + 3, e + 4, f + 5, g + 6, h + 7;
}

/// The rate that every sensor here declares: low, so that the directory grants only the requested
/// number of slots.
pub(crate) fn rate() -> Rate {
    let second = Nanos::from_ms(1_000);
    Rate::new(second, second, Nanos::from_ns(0)).expect("a rate with T = D is well-formed")
}

/// A name that no other sensor of this process has.
pub(crate) fn next_instance() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: a number, nothing else.
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// A sensor that the directory of this process owns.
pub(crate) fn sensor<E: Element>(slots: u64) -> Result<Sensor<E>> {
    let sensor = Sensor::builder("cost")
        .instance(&next_instance())
        .rate(rate())
        .capacity(slots)
        .register()?;
    ensure!(
        sensor.is_connected(),
        "a sensor is not connected: {}",
        sensor.not_connected_reason().unwrap_or_default()
    );
    Ok(sensor)
}

/// Puts the code behind it so many bytes behind the begin of a line: `c/places.h` in Rust.
macro_rules! place {
    ($bytes:ident) => {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instructions do nothing.
        unsafe {
            std::arch::asm!(
                ".balign 64", ".rept {bytes}", "nop", ".endr",
                bytes = const $bytes, options(nomem, nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                ".balign 64", ".rept {bytes} / 4", "nop", ".endr",
                bytes = const $bytes, options(nomem, nostack, preserves_flags),
            );
        }
    };
}

#[inline(never)]
pub(crate) fn sense<E: Numbered, const AT: usize>(sensor: &mut Sensor<E>, elements: u64) {
    place!(AT);
    for element in 0..elements {
        sensor.write(&E::new(element));
    }
}

/// A laned sensor that the directory of this process owns.
pub(crate) fn laned(slots: u64) -> Result<LanedSensor<Bytes8>> {
    let sensor = LanedSensor::builder("crowd")
        .instance(&next_instance())
        .rate(rate())
        .capacity(slots)
        .register()?;
    ensure!(sensor.is_connected(), "a laned sensor is not connected");
    Ok(sensor)
}

#[inline(never)]
pub(crate) fn sense_laned<const AT: usize>(sensor: &LanedSensor<Bytes8>, elements: u64) {
    place!(AT);
    for element in 0..elements {
        let _ = sensor.write(&Bytes8::new(element));
    }
}

/// A concurrent sensor that the directory of this process owns.
pub(crate) fn concurrent<E: Element>(slots: u64) -> Result<ConcurrentSensor<E>> {
    let sensor = ConcurrentSensor::builder("crowd")
        .instance(&next_instance())
        .rate(rate())
        .capacity(slots)
        .register()?;
    ensure!(
        sensor.is_connected(),
        "a concurrent sensor is not connected"
    );
    Ok(sensor)
}

#[inline(never)]
pub(crate) fn sense_concurrent<E: Numbered, const AT: usize>(
    sensor: &ConcurrentSensor<E>,
    elements: u64,
) {
    place!(AT);
    for element in 0..elements {
        let _ = sensor.write(&E::new(element));
    }
}

/// The library's writer over memory of this process.
pub(crate) fn writer(bytes: u32, slots: u64) -> Result<(SimpleWriter<SharedWords>, Lines)> {
    let geometry = Geometry::new(bytes, slots)?;
    let memory = Box::leak(Box::new(Mapping::private(geometry.bytes())?));
    // SAFETY: the map is leaked, so it outlives the words.
    let words = unsafe { memory.words() };
    let clock = hardware_clock().unwrap_or(ClockId::Monotonic);
    Header::new(&geometry, WriterKind::Simple, clock, 0).store(&words);
    let lines = Lines::at(memory.base().as_ptr().cast(), geometry.bytes());
    Ok((SimpleWriter::new(words, geometry)?, lines))
}

#[inline(never)]
pub(crate) fn write<const BYTES: usize>(writer: &mut SimpleWriter<SharedWords>, elements: u64) {
    for element in 0..elements {
        let mut payload = [0; BYTES];
        for (chunk, at) in payload.chunks_mut(8).zip(0..) {
            let word = (element + at).to_ne_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        writer.write(&payload, read_hardware_ticks);
    }
}
