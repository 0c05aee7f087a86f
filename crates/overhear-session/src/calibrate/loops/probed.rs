// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function and a static probe of this program, for probes.

use overhear_kernel::Probe;

/// The function that has probes at its entry and at its return. It begins as most do: with the
/// saving of a register, which the kernel need not execute for it step by step.
const FUNCTION: &str = "overhear_calibration_probed";

fn target(name: &str) -> Option<String> {
    let path = std::env::current_exe().ok()?;
    Some(format!("{}:{name}", path.display()))
}

/// The probe at the function's entry; `None` if this architecture has no such function.
pub(super) fn entry_probe() -> Option<Probe> {
    imp::EXISTS
        .then(|| Probe::function(&target(FUNCTION)?).ok())
        .flatten()
}

/// The probe at its return.
pub(super) fn return_probe() -> Option<Probe> {
    imp::EXISTS
        .then(|| Probe::function(&target(&format!("{FUNCTION}:return"))?).ok())
        .flatten()
}

/// The static probe.
pub(super) fn static_probe() -> Option<Probe> {
    imp::EXISTS
        .then(|| Probe::usdt(&target("overhear:calibration")?).ok())
        .flatten()
}

pub(super) use imp::{pass, pass_static};

#[cfg(target_arch = "x86_64")]
mod imp {
    pub(super) const EXISTS: bool = true;

    std::arch::global_asm!(
        ".pushsection .text.overhear_calibration_probed,\"ax\",@progbits",
        ".globl overhear_calibration_probed",
        ".type overhear_calibration_probed,@function",
        "overhear_calibration_probed:",
        "push %rbp",
        "pop %rbp",
        "ret",
        ".size overhear_calibration_probed, . - overhear_calibration_probed",
        ".popsection",
        options(att_syntax)
    );

    extern "C" {
        fn overhear_calibration_probed();
    }

    /// Executes the function.
    pub(in super::super) fn pass() {
        // SAFETY: it takes nothing, returns nothing, and leaves all registers as they were.
        unsafe { overhear_calibration_probed() }
    }

    /// Executes the static probe, which has one argument.
    #[inline(never)]
    pub(in super::super) fn pass_static() {
        // SAFETY: executes one nop; the rest is a note in the file, as <sys/sdt.h> writes it.
        unsafe {
            std::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                ".asciz \"overhear\"",
                ".asciz \"calibration\"",
                ".asciz \"8@%rdi\"",
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base,1",
                ".popsection",
                ".endif",
                in("rdi") 1_u64,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    pub(super) const EXISTS: bool = false;

    pub(in super::super) fn pass() {}

    pub(in super::super) fn pass_static() {}
}
