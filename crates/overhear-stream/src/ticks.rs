// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware counters that sensors stamp with.

use overhear_event::{ClockId, Ticks};

/// The hardware counter of this CPU that may be used as a clock, `None` where there is none.
///
/// On x86 the time stamp counter must be invariant (CPUID leaf 0x8000_0007, EDX bit 8): then all
/// CPUs count at one rate, also while idle. That they also agree in value is the kernel's
/// judgement, which the directory reads (`clocksource` is `tsc`, or a paravirtual clock on top
/// of it) before it hands out this clock.
#[must_use]
pub fn hardware_clock() -> Option<ClockId> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // `__cpuid` is safe to call from Rust 1.90 on and unsafe before; every x86-64 CPU has it.
        // SAFETY: CPUID exists on every x86-64 CPU and only writes registers.
        #[allow(unused_unsafe)]
        let (largest, power) = unsafe {
            let largest = core::arch::x86_64::__cpuid(0x8000_0000).eax;
            let power = if largest >= 0x8000_0007 {
                core::arch::x86_64::__cpuid(0x8000_0007).edx
            } else {
                0
            };
            (largest, power)
        };
        (largest >= 0x8000_0007 && power & (1 << 8) != 0).then_some(ClockId::X86Tsc)
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        Some(ClockId::ArmCntvct)
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        None
    }
}

/// Reads the hardware counter; zero on machines without one.
///
/// The read is not ordered with the instructions around it: a few nanoseconds of blur for half
/// the cost of `rdtscp`. The order of a stream's own stamps is kept by the CPU.
#[inline(always)]
#[must_use]
pub fn read_hardware_ticks() -> Ticks {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: RDTSC exists on every x86-64 CPU and only writes registers. A process that had
        // it disabled for itself (PR_SET_TSC) is killed by the kernel, not corrupted.
        Ticks::from_raw(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: Linux lets user space read the virtual counter; the instruction has no effects.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        Ticks::from_raw(ticks)
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        Ticks::from_raw(0)
    }
}

/// Reads the hardware counter after all loads before it in the program are done; zero on machines
/// without one.
///
/// Where stamps of several threads must ascend in an order that the threads find out by loads, the
/// counter must not be read early. `lfence` waits for the loads (on AMD since Linux sets it up so);
/// on ARM `isb` does, behind a branch that depends on them.
#[inline(always)]
#[must_use]
pub fn read_hardware_ticks_ordered() -> Ticks {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let (low, high): (u32, u32);
        // SAFETY: as for RDTSC above; LFENCE exists on every x86-64 CPU. Without `nomem`, so that
        // the compiler keeps loads and stores on their sides, too.
        unsafe {
            core::arch::asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
        }
        Ticks::from_raw(u64::from(high) << 32 | u64::from(low))
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let ticks: u64;
        // SAFETY: as for the read above; ISB only waits. Without `nomem`, as on x86.
        unsafe {
            core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags));
        }
        Ticks::from_raw(ticks)
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        Ticks::from_raw(0)
    }
}
