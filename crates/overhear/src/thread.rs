// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's slot: one thread-local variable, without a call, an allocation or a kernel.
//!
//! A slot must be reachable from signal handlers, at a thread's first write as at any other, and
//! from the inline functions of `laned.h`. `thread_local!` does not do: in a library that is loaded
//! by `dlopen` the compiler reaches it through `__tls_get_addr`, which allocates a thread's first
//! copy under the loader's lock. What is wanted is the *initial-exec* model: the variable lies in
//! the static block of every thread, at a distance from the thread pointer that the loader fixes
//! once. Stable Rust cannot ask for it, so the variable is defined in assembly on the architectures
//! named here: in a section of thread-local zeros, with a relocation for its distance.
//! The price is 144 bytes of the static block, of which glibc keeps enough in reserve for libraries
//! that are loaded late.
//!
//! The distance is the same for all threads. A sensor keeps it, added to the place of its entry,
//! and so does C, whose header needs no symbol of the library for it: a write reads the thread
//! pointer and loads one word. The assembly is not called pure, so the compiler reads the thread
//! pointer anew for each write: a coroutine may have moved to another thread in between.
//!
//! On other architectures the variable is an ordinary `thread_local!`, and `laned.h` calls a
//! function for its address: right, but slower, and a thread's first write is not async-signal safe
//! there.

use overhear_stream::{Claimant, SensorKey, ThreadSlot};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod fixed {
    use overhear_stream::ThreadSlot;

    /// The variable's name carries the version: two of them may be linked into one program.
    macro_rules! variable {
        () => {
            concat!(
                "overhear_thread_slot_",
                env!("CARGO_PKG_VERSION_MAJOR"),
                "_",
                env!("CARGO_PKG_VERSION_MINOR")
            )
        };
    }

    std::arch::global_asm!(
        concat!(".pushsection .tbss.", variable!(), ",\"awT\",@nobits"),
        ".balign 64",
        concat!(".globl ", variable!()),
        concat!(".hidden ", variable!()),
        concat!(".type ", variable!(), ",@object"),
        concat!(".size ", variable!(), ",{bytes}"),
        concat!(variable!(), ":"),
        ".zero {bytes}",
        ".popsection",
        bytes = const size_of::<ThreadSlot>(),
    );

    /// The thread pointer.
    #[inline(always)]
    pub(crate) fn pointer() -> *mut u8 {
        let pointer;
        // SAFETY: the ABI keeps the thread pointer's own value where it points to (x86-64), or the
        // register holds it (AArch64); nothing is changed.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, readonly));
        }
        pointer
    }

    /// Distance from the thread pointer to the variable, the same in every thread.
    pub(crate) fn distance() -> usize {
        let distance;
        // SAFETY: loads a word that the loader, or the linker, has put there for this purpose.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(
                concat!("mov {}, qword ptr [rip + ", variable!(), "@gottpoff]"),
                out(reg) distance,
                options(nostack, preserves_flags, readonly)
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!(
                concat!("adrp {0}, :gottprel:", variable!()),
                concat!("ldr {0}, [{0}, :gottprel_lo12:", variable!(), "]"),
                out(reg) distance,
                options(nostack, preserves_flags, readonly)
            );
        }
        distance
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fixed {
    use overhear_stream::ThreadSlot;

    thread_local! {
        static SLOT: ThreadSlot = const { ThreadSlot::new() };
    }

    /// The slot itself stands in for the thread pointer.
    pub(crate) fn pointer() -> *mut u8 {
        // It has no destructor, so it is there as long as the thread is.
        SLOT.with(|slot| std::ptr::from_ref(slot).cast_mut().cast())
    }

    pub(crate) fn distance() -> usize {
        0
    }
}

/// Distance from the thread pointer to the entry of a sensor, the same in every thread.
pub(crate) fn entry_distance(key: SensorKey) -> usize {
    fixed::distance().wrapping_add(key.entry_offset())
}

/// The lane of the calling thread in the sensor with this key, or a number that no lane has.
///
/// # Safety
/// `distance` is [`entry_distance`] of the key.
#[inline(always)]
pub(crate) unsafe fn lane(distance: usize, key: SensorKey) -> u64 {
    let entry = fixed::pointer().wrapping_add(distance).cast();
    // SAFETY: by contract the distance leads to the key's entry in this thread's slot.
    unsafe { ThreadSlot::lane_at(entry, key) }
}

/// The slot of the calling thread.
///
/// The reference must not leave the thread, nor live until its end; no caller keeps it.
pub(crate) fn slot<'a>() -> &'a ThreadSlot {
    let slot = fixed::pointer().wrapping_add(fixed::distance());
    // SAFETY: the distance leads to this thread's variable, which has the slot's size and an
    // alignment of 64, begins as zeros, which are a slot, and is there as long as the thread is.
    unsafe { &*slot.cast() }
}

/// The identity of the calling thread: one `gettid` per thread, and one more after a fork.
pub(crate) fn identify() -> Claimant {
    slot().identify(|| {
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        u32::try_from(tid).unwrap_or(u32::MAX)
    })
}

/// Where the id of any thread lies behind its thread pointer: the first word of its slot, 0 until
/// it is known. For C, which calls [`identify`] then.
pub(crate) fn tid_distance() -> usize {
    fixed::distance()
}

/// Reads the calling thread's id from the kernel, so that no later write has to.
///
/// This alone is enough for sensors of which a thread needs no part of its own. To get a lane as
/// well, see [`LanedSensor::prepare_thread`](crate::LanedSensor::prepare_thread).
pub fn prepare_thread() {
    identify();
}

/// The slot's content is invalid in a forked child, which is another thread.
pub(crate) fn forget() {
    slot().forget();
}

/// Where C finds the entry on architectures that the header does not support.
#[no_mangle]
pub(crate) extern "C" fn oh_thread_pointer_() -> *mut u8 {
    fixed::pointer()
}
