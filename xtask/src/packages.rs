// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requirements of a verb on the operating system.
//!
//! Each need has a Debian package and a proof that works on any system. On Debian, root's missing
//! packages are installed after one line that names them; everybody else gets one message with the
//! command line to type. If nothing is missing, nothing is printed.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{self, Missing};

/// Something that must be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The Debian package.
    package: &'static str,
    /// Its purpose, as a noun, for systems that call the package differently.
    purpose: &'static str,
    proof: Proof,
}

/// A proof that a need is met although no Debian package of that name is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// A program of this name is on PATH.
    Program(&'static str),
    /// This header is among the system's.
    Header(&'static str),
    /// Python can import this module.
    Module(&'static str),
}

const fn program(package: &'static str, name: &'static str, purpose: &'static str) -> Need {
    Need {
        package,
        purpose,
        proof: Proof::Program(name),
    }
}

const fn header(package: &'static str, name: &'static str, purpose: &'static str) -> Need {
    Need {
        package,
        purpose,
        proof: Proof::Header(name),
    }
}

const fn module(package: &'static str, name: &'static str, purpose: &'static str) -> Need {
    Need {
        package,
        purpose,
        proof: Proof::Module(name),
    }
}

/// Needed to compile the workspace.
pub(crate) const BUILD: &[Need] = &[
    program(
        "clang-19",
        "clang-19",
        "the compiler clang 19 for the BPF programs",
    ),
    header("libelf-dev", "libelf.h", "the headers of libelf"),
    header("zlib1g-dev", "zlib.h", "the headers of zlib"),
    program("pkg-config", "pkg-config", "pkg-config"),
];

/// Needed in addition by the demonstration.
pub(crate) const DEMO: &[Need] = &[program("xz-utils", "xz", "the compressor xz")];

/// Needed in addition by the tests.
pub(crate) const TEST: &[Need] = &[
    program("xz-utils", "xz", "the compressor xz"),
    GXX,
    header(
        "libclang-rt-19-dev",
        "sanitizer/tsan_interface.h",
        "clang's ThreadSanitizer",
    ),
    program("babeltrace2", "babeltrace2", "the trace reader babeltrace2"),
    program("gnat", "gnatmake", "the Ada compiler gnat"),
    BABELTRACE,
    program("chromium", "chromium", "the browser chromium"),
    program("cmake", "cmake", "the build system cmake"),
    program("strace", "strace", "the system call tracer strace"),
    program("linux-perf", "perf", "the kernel's profiler perf"),
    LTTNG_TOOLS,
    LTTNG_UST,
    // Debian's python3 alone cannot make environments: it lacks ensurepip.
    module("python3-venv", "ensurepip", "Python with the module venv"),
];

/// Programs that `make naps` and the tests of the preload library observe.
pub(crate) const OBSERVED: &[Need] = &[
    program("bzip2", "bzip2", "the compressor bzip2"),
    program("redis-server", "redis-server", "the server redis"),
    program(
        "redis-tools",
        "redis-benchmark",
        "the load generator of redis",
    ),
    program("sqlite3", "sqlite3", "the shell of sqlite"),
    program("nginx-light", "nginx", "the server nginx"),
    // A machine may have its client alone.
    program("postgresql", "pg_ctlcluster", "the server postgresql"),
    module(
        "libpython3-testsuite",
        "test.test_list",
        "the tests of Python",
    ),
];

/// Needed besides by the range analysis: the plug-in for clang, and its tests.
pub(crate) const RANGES: &[Need] = &[
    program("llvm-19-dev", "llvm-config-19", "the headers of LLVM 19"),
    program("llvm-19-tools", "FileCheck-19", "the test tools of LLVM 19"),
];

/// Needed besides by the test suites of other projects: to unpack them, and by sqlite.
pub(crate) const SUITES: &[Need] = &[
    program("dpkg-dev", "dpkg-source", "the unpacker of source packages"),
    program("git", "git", "the version control system git"),
    program("make", "make", "the build tool make"),
    header("tcl8.6-dev", "tcl8.6/tcl.h", "the headers of Tcl 8.6"),
    program("tcl8.6", "tclsh8.6", "the interpreter of Tcl 8.6"),
];

/// Needed besides by the fuzz targets: libFuzzer is compiled with them, and one reads traces of
/// other tracers.
pub(crate) const FUZZ: &[Need] = &[GXX, BABELTRACE];

/// What the benches compare with besides what they compile themselves.
pub(crate) const PEERS: &[Need] = &[LTTNG_TOOLS, LTTNG_UST];

/// Needed besides by the tests on other kernels.
pub(crate) const KERNELS: &[Need] = &[
    program(
        "qemu-system-x86",
        "qemu-system-x86_64",
        "the emulator qemu for x86-64",
    ),
    program(
        "qemu-system-arm",
        "qemu-system-aarch64",
        "the emulator qemu for arm64",
    ),
    program("binutils", "readelf", "the reader of programs readelf"),
];

const GXX: Need = program("g++", "g++", "the compiler g++");
const BABELTRACE: Need = header(
    "libbabeltrace2-dev",
    "babeltrace2/babeltrace.h",
    "the headers of libbabeltrace2",
);
const LTTNG_TOOLS: Need = program(
    "lttng-tools",
    "lttng-sessiond",
    "LTTng's session daemon and its commands",
);
const LTTNG_UST: Need = header(
    "liblttng-ust-dev",
    "lttng/tracepoint.h",
    "the headers of LTTng-UST",
);

/// Makes sure that all of these are installed.
pub(crate) fn ensure(needs: &[&[Need]]) -> Result<()> {
    let missing: Vec<Need> = needs
        .concat()
        .into_iter()
        .filter(|need| !installed(need.package) && !proven(need))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let system = match (shell::on_path("apt-get").is_some(), is_root()) {
        (true, true) => System::DebianRoot,
        (true, false) => System::DebianUser,
        (false, _) => System::Other,
    };
    match advice(system, &missing) {
        Advice::Install(message) => {
            println!("{message}");
            install(&missing)
        }
        Advice::Refuse(message) => Err(Missing(message).into()),
    }
}

/// The user that must install the missing packages, and the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    DebianRoot,
    DebianUser,
    Other,
}

#[derive(Debug, PartialEq, Eq)]
enum Advice {
    Install(String),
    Refuse(String),
}

fn advice(system: System, missing: &[Need]) -> Advice {
    let names = names(missing).join(" ");
    match system {
        System::DebianRoot => Advice::Install(format!("Installing from Debian, once: {names}.")),
        System::DebianUser => Advice::Refuse(format!(
            "these Debian packages are missing: {names}; install them with\n  \
             sudo apt-get install --no-install-recommends {names}"
        )),
        System::Other => {
            let mut message = "please install with your system's package manager:".to_owned();
            for need in missing {
                let _ = write!(message, "\n  {} (Debian: {})", need.purpose, need.package);
            }
            Advice::Refuse(message)
        }
    }
}

fn names(needs: &[Need]) -> Vec<&'static str> {
    needs.iter().map(|need| need.package).collect()
}

fn install(missing: &[Need]) -> Result<()> {
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        // Another apt may be at work; a quarter of an hour is more patience than it needs.
        command.args(["-qq", "-o", "DPkg::Lock::Timeout=900"]);
        command
    };
    shell::output(apt_get().arg("update"))
        .context("the list of Debian packages was not fetched")?;
    let mut command = apt_get();
    command
        .args(["install", "-y", "--no-install-recommends"])
        .args(names(missing));
    shell::output(&mut command).context("Debian packages were not installed")?;
    Ok(())
}

/// Whether Debian's own record has this package.
fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${db:Status-Status}", package]);
    shell::output(&mut query).is_ok_and(|status| status == "installed")
}

fn proven(need: &Need) -> bool {
    match need.proof {
        Proof::Program(name) => shell::on_path(name).is_some(),
        Proof::Module(name) => {
            let import = format!("import {name}");
            shell::succeeds(Command::new("python3").args(["-c", &import]))
        }
        Proof::Header(name) => Path::new("/usr/include").join(name).is_file(),
    }
}

/// Whether this process runs as root: the owner of its entry in /proc is its effective user.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::{advice, Advice, System, BUILD};

    #[test]
    fn root_gets_a_line_and_others_get_the_command_line() {
        let missing = &BUILD[..2];
        assert_eq!(
            advice(System::DebianRoot, missing),
            Advice::Install("Installing from Debian, once: clang-19 libelf-dev.".to_owned())
        );
        let Advice::Refuse(message) = advice(System::DebianUser, missing) else {
            panic!()
        };
        assert!(
            message.ends_with("sudo apt-get install --no-install-recommends clang-19 libelf-dev")
        );
        let Advice::Refuse(message) = advice(System::Other, missing) else {
            panic!()
        };
        assert!(message.contains("the headers of libelf (Debian: libelf-dev)"));
    }
}
