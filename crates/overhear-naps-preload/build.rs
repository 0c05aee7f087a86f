// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linker options of the preload library.

fn main() {
    // The library is initialised before all others, so that its fork handler is the first to run in
    // a child: it brings protected memory back before another handler can read it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Functions are bound when the library is loaded: the handler must never lock the loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    println!("cargo:rerun-if-changed=build.rs");
}
