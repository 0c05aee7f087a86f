// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the contenders in C and C++ once per compiler, and LTTng's provider. If a compiler is
//! not installed, the bench omits it and prints a message.

use std::process::Command;

/// Compiler, source, and the cfg that is set if the compiler is installed.
const UNITS: [(&str, &str, &str, &str); 4] = [
    ("gcc", "-std=gnu11", "c/contenders_gcc.c", "has_gcc"),
    (
        "clang-19",
        "-std=gnu11",
        "c/contenders_clang.c",
        "has_clang",
    ),
    ("g++", "-std=gnu++17", "c/contenders_gxx.cpp", "has_gxx"),
    (
        "clang++-19",
        "-std=gnu++17",
        "c/contenders_clangxx.cpp",
        "has_clangxx",
    ),
];

fn main() {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=../include");
    for (compiler, standard, source, cfg) in UNITS {
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        let there = Command::new(compiler).arg("--version").output();
        if !there.is_ok_and(|output| output.status.success()) {
            continue;
        }
        unit(compiler, standard).file(source).compile(cfg);
        println!("cargo::rustc-cfg={cfg}");
    }
    unit("gcc", "-std=gnu11").file("c/posix.c").compile("posix");
    if std::env::var_os("CARGO_FEATURE_LTTNG").is_some() {
        unit("gcc", "-std=gnu11")
            .include("c")
            .file("c/lttng_provider.c")
            .file("c/lttng_tracef.c")
            .compile("lttng_provider");
        // Tracepoints are found only by the ends of their section; lld would discard these.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,nostart-stop-gc");
        println!("cargo::rustc-link-lib=lttng-ust");
        println!("cargo::rustc-link-lib=dl");
    }
}

/// The flags of CMake's `RelWithDebInfo`.
fn unit(compiler: &str, standard: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .compiler(compiler)
        .include("../include")
        .cpp(standard.contains("++"))
        .flag(standard)
        .flag("-pthread")
        .opt_level(2)
        .define("NDEBUG", None)
        .debug(true)
        .force_frame_pointer(false)
        .warnings(true);
    build
}
