// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linker options of the preload library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Code of the standard library that is hardly ever run: it prints panics with their stacks, and
/// numbers that no document has. It is almost half of all code. The kernel makes code resident with
/// its neighbours of the same mapping, so this code gets a mapping of its own, at the end. A name
/// that goes on after the crate is one of that crate; others are instances of generic functions,
/// which all crates share, as all do with the destructor of a vector in `gimli::read::abbrev`.
const RARE_CODE: &str = "\
SECTIONS {
  .text_of_panics : {
    *(.text.*5gimli4read[!6]* .text.*5gimli[!4E]* .text.*9addr2line[0-9]*)
    *(.text.*11miniz_oxide[0-9]*)
    *(.text.*14rustc_demangle[0-9]* .text.*12backtrace_rs[0-9]*)
    *(.text.*7flt2dec* .text.*3fmt5float*)
  }
  .gcc_except_table : { *(.gcc_except_table .gcc_except_table.*) }
}
INSERT AFTER .bss;
";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library is initialised before all others, so that its fork handler is the first to run in
    // a child: it brings protected memory back before another handler can read it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Functions are bound when the library is loaded: the handler must never lock the loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    let Some(folder) = std::env::var_os("OUT_DIR").map(PathBuf::from) else {
        return;
    };
    let script = folder.join("rare-code.ld");
    std::fs::write(&script, RARE_CODE).expect("the linker script can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", script.display());
    if has_static_unwinder() {
        link_static_unwinder(&folder);
    }
}

/// Whether the compiler has the unwinder as a static library.
fn has_static_unwinder() -> bool {
    let mut compiler = Command::new("cc");
    let output = compiler.arg("-print-file-name=libgcc_eh.a").output();
    // A compiler without the file repeats its name.
    output.is_ok_and(|output| {
        let text = String::from_utf8_lossy(&output.stdout);
        Path::new(text.trim()).is_absolute()
    })
}

/// Links the unwinder into the library. Programs in C would otherwise load libgcc_s, 120 KB of
/// memory, for it. The linker finds this script where it looks for libgcc_s.
fn link_static_unwinder(folder: &Path) {
    let script = folder.join("libgcc_s.so");
    std::fs::write(script, "INPUT(-lgcc_eh -lgcc)\n").expect("the linker script can be written");
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
}
