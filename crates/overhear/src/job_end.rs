// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a job, for probes.

/// Marks the end of a job of the calling thread. It does nothing: kernel samplers with the rule
/// `call` (`overhear run --sample LIST --per job=call`) observe the call with a probe.
///
/// [`Sampler::job_end`](crate::Sampler::job_end) contains this call. The function is exported by
/// the C library as `oh_job_end`. Without a probe a call costs about a nanosecond.
#[inline(always)]
pub fn job_end() {
    if !cfg!(feature = "disable") {
        oh_job_end();
    }
}

/// `oh_job_end`: a no-operation that a probe replaces.
///
/// On x86-64 the instruction has five bytes: Linux 6.18 and later replace it by a call, so that a
/// probe costs no exception. The function has no other content and is never inlined, so its address
/// is the place of each job's end.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
#[no_mangle]
pub(crate) extern "C" fn oh_job_end() {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret");
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("nop", "ret");
}

/// As above, with a function of the compiler.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(never)]
#[no_mangle]
pub(crate) extern "C" fn oh_job_end() {
    std::hint::black_box(());
}
