// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the part of `posix_trace_event` that is in C.

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    println!("cargo::rerun-if-changed=../../include/overhear/trace.h");
    cc::Build::new()
        .file("src/shim.c")
        .include("../../include")
        .std("gnu11")
        // Also in debug builds: the tests count its instructions' effects, and not its speed.
        .opt_level(2)
        .pic(true)
        .force_frame_pointer(false)
        .warnings(true)
        .extra_warnings(true)
        .compile("overhear_posixtrace_shim");
}
