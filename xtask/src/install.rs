// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting what was built where programs and their builds find it.
//!
//! ```text
//! PREFIX/bin/overhear                        and overheard, if it is built
//! PREFIX/bin/overhear-clang                  and overhear-clang++, if llvm-19-dev was there
//! PREFIX/lib/overhear/ranges/                what they need
//! PREFIX/include/overhear/                   the headers; <trace.h> is in the folder posix/
//! PREFIX/lib/liboverhear.a
//! PREFIX/lib/liboverhear.so.VERSION          sensors; with links .so.MAJOR, its soname, and .so
//! PREFIX/lib/liboverhear_monitor.a
//! PREFIX/lib/liboverhear_monitor.so.VERSION  sensors, monitors and metrics; with the same links
//! PREFIX/lib/liboverhear_kernel.so.VERSION   kernel monitors, with libbpf; with the same links
//! PREFIX/lib/liboverhear_posixtrace.a
//! PREFIX/lib/liboverhear_posixtrace.so.VERSION  the POSIX trace interface; with the same links
//! PREFIX/lib/overhear/liboverhear_naps.so    the preload library of `overhear naps`
//! PREFIX/lib/pkgconfig/                      overhear.pc, and with -monitor, -kernel, -posixtrace
//! PREFIX/lib/cmake/Overhear/                 for find_package(Overhear)
//! PREFIX/lib/systemd/{system,user}/          units of overheard
//! PREFIX/share/doc/overhear/                 THIRD_PARTY_NOTICES.txt, licences of what is linked
//! PREFIX/share/                              manual pages, completions for bash, zsh and fish
//! ```
//!
//! Only the units contain the prefix, so the folder may be moved. The shared libraries of sensors
//! and of monitors are linked here from the static ones: cargo's have no soname, and tests inside
//! the repository would not find one that had a soname. The library of kernel monitors is cargo's,
//! built with a soname by [`kernel_library`].

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{manual, notices, shell};

/// The source and the target of an installation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installation<'a> {
    /// The repository.
    pub(crate) root: &'a Path,
    /// The folder of the built libraries and programs.
    pub(crate) built: &'a Path,
    /// The target folder.
    pub(crate) prefix: &'a Path,
    /// The prefix at run time: without the folder in which a package is assembled.
    pub(crate) called: &'a str,
}

/// The library of programs with sensors, built by the crate `overhear`.
pub(crate) const SENSORS: &str = "liboverhear";
/// The library of programs with monitors, built by the crate `overhear-monitor-c`.
pub(crate) const MONITORS: &str = "liboverhear_monitor";
/// The library of the POSIX trace interface, built by the crate `overhear-posix-trace`.
pub(crate) const POSIX_TRACE: &str = "liboverhear_posixtrace";
/// The library of programs with kernel monitors, built by the crate `overhear-kernel`.
const KERNEL: &str = "liboverhear_kernel";
/// The preload library of `overhear naps`, and its name as cargo builds it.
const NAPS: &str = "liboverhear_naps.so";
const NAPS_BUILT: &str = "liboverhear_naps_preload.so";

/// The version of all crates, and the numbers derived from it.
struct Version {
    full: &'static str,
    major: &'static str,
    minor: &'static str,
}

const VERSION: Version = Version {
    full: env!("CARGO_PKG_VERSION"),
    major: env!("CARGO_PKG_VERSION_MAJOR"),
    minor: env!("CARGO_PKG_VERSION_MINOR"),
};

impl Version {
    /// The soname of a library, `NAME.so.MAJOR`.
    fn soname(&self, library: &str) -> String {
        format!("{library}.so.{}", self.major)
    }

    fn fill(&self, template: &str) -> String {
        template
            .replace("@VERSION@", self.full)
            .replace("@MAJOR@", self.major)
            .replace("@MINOR@", self.minor)
    }
}

impl Installation<'_> {
    /// Installs everything; existing files are replaced.
    pub(crate) fn perform(&self) -> Result<()> {
        self.headers()?;
        self.libraries()?;
        self.descriptions()?;
        self.notices()?;
        self.range_analysis()?;
        self.programs()
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.prefix.join(name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(folder)
    }

    fn headers(&self) -> Result<()> {
        for name in ["include/overhear", "include/overhear/posix"] {
            let folder = self.folder(name)?;
            for entry in fs::read_dir(self.root.join(name))? {
                let file = entry?;
                if file.file_type()?.is_file() {
                    put(&file.path(), &folder.join(file.file_name()))?;
                }
            }
        }
        Ok(())
    }

    fn libraries(&self) -> Result<()> {
        let folder = self.folder("lib")?;
        for name in [SENSORS, MONITORS, POSIX_TRACE] {
            let archive = folder.join(format!("{name}.a"));
            put(&self.built.join(format!("{name}.a")), &archive)?;
            link_shared(&archive, name, &folder.join(file_of(name)))?;
            links(&folder, name)?;
        }
        put(
            &self.built.join(format!("{KERNEL}.so")),
            &folder.join(file_of(KERNEL)),
        )?;
        links(&folder, KERNEL)?;
        // No program links it, so it has no version in its name.
        put(
            &self.built.join(NAPS_BUILT),
            &self.folder("lib/overhear")?.join(NAPS),
        )
    }

    /// The compiler wrapper and its parts, if the plug-in was built.
    fn range_analysis(&self) -> Result<()> {
        let parts = self.built.join("ranges");
        if !parts.join("overhear_ranges_pass.so").is_file() {
            return Ok(());
        }
        let folder = self.folder("lib/overhear/ranges")?;
        for entry in fs::read_dir(parts)? {
            let file = entry?;
            put(&file.path(), &folder.join(file.file_name()))?;
        }
        let programs = self.folder("bin")?;
        put(
            &self.built.join("overhear-clang"),
            &programs.join("overhear-clang"),
        )?;
        let link = programs.join("overhear-clang++");
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink("overhear-clang", &link)?;
        Ok(())
    }

    fn descriptions(&self) -> Result<()> {
        let cmake = "lib/cmake/Overhear";
        for (folder, name) in [
            ("lib/pkgconfig", "overhear.pc"),
            ("lib/pkgconfig", "overhear-monitor.pc"),
            ("lib/pkgconfig", "overhear-kernel.pc"),
            ("lib/pkgconfig", "overhear-posixtrace.pc"),
            (cmake, "OverhearConfig.cmake"),
            (cmake, "OverhearConfigVersion.cmake"),
        ] {
            let to = self.folder(folder)?.join(name);
            fs::write(to, self.template(name)?)?;
        }
        Ok(())
    }

    fn notices(&self) -> Result<()> {
        let folder = self.folder("share/doc/overhear")?;
        for name in [notices::FILE, "LICENSE-MIT", "LICENSE-APACHE"] {
            put(&self.root.join(name), &folder.join(name))?;
        }
        Ok(())
    }

    fn template(&self, name: &str) -> Result<String> {
        let file = self.root.join("packaging").join(format!("{name}.in"));
        let text = fs::read_to_string(&file);
        Ok(VERSION.fill(&text.with_context(|| format!("cannot read {}", file.display()))?))
    }

    fn programs(&self) -> Result<()> {
        let folder = self.folder("bin")?;
        let program = folder.join("overhear");
        put(&self.built.join("overhear"), &program)?;
        self.documents(&program)?;
        let service = self.built.join("overheard");
        if !service.is_file() {
            return Ok(());
        }
        put(&service, &folder.join("overheard"))?;
        for kind in ["system", "user"] {
            let units = self.folder(&format!("lib/systemd/{kind}"))?;
            for entry in fs::read_dir(self.root.join("systemd").join(kind))? {
                let file = entry?;
                let unit = fs::read_to_string(file.path())?;
                let program = format!("ExecStart={}/bin/overheard", self.called);
                let unit = unit.replace("ExecStart=/usr/bin/overheard", &program);
                fs::write(units.join(file.file_name()), unit)?;
            }
        }
        Ok(())
    }
}

impl Installation<'_> {
    /// The generated files of the program: its manual pages and completions.
    fn documents(&self, program: &Path) -> Result<()> {
        let pages = self.folder("share/man/man1")?;
        shell::output(Command::new(program).arg("man").arg("--out").arg(&pages))?;
        manual::install(self.root, &self.folder("share/man/man3")?)?;
        for (name, folder, file) in [
            ("bash", "share/bash-completion/completions", "overhear"),
            ("zsh", "share/zsh/site-functions", "_overhear"),
            ("fish", "share/fish/vendor_completions.d", "overhear.fish"),
        ] {
            let text = shell::output(Command::new(program).args(["completions", name]))?;
            fs::write(self.folder(folder)?.join(file), text)?;
        }
        Ok(())
    }
}

/// The file of a shared library.
fn file_of(library: &str) -> String {
    format!("{library}.so.{}", VERSION.full)
}

/// Functions between the C and the Rust part of [`POSIX_TRACE`]: no header declares them. The names
/// in full, because a linker prefers these to patterns.
const INTERNAL: [&str; 8] = [
    "oh_posix_trace_event_",
    "oh_posix_trace_forget_thread_",
    "oh_posix_trace_load_",
    "oh_posix_trace_observer_",
    "oh_posix_trace_record_",
    "oh_posix_trace_set_local_",
    "oh_posix_trace_thread_id_",
    "oh_posix_trace_unload_",
];

/// Links a shared library from a static one. It exports the functions of the headers, and no symbol
/// of Rust.
pub(crate) fn link_shared(archive: &Path, library: &str, file: &Path) -> Result<()> {
    let exports = file.with_file_name(format!("{library}.map"));
    let internal = if library == POSIX_TRACE {
        INTERNAL.join("; ") + ";"
    } else {
        String::new()
    };
    let text = format!("{{ global: oh_*; posix_trace_*; local: {internal} *; }};\n");
    fs::write(&exports, text)?;
    let mut link = Command::new("cc");
    link.args(["-shared", "-Wl,--gc-sections", "-o"])
        .arg(file)
        .arg(format!("-Wl,-soname,{}", VERSION.soname(library)))
        .arg(format!("-Wl,--version-script={}", exports.display()))
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .args(["-Wl,--no-whole-archive", "-lm", "-ldl", "-lpthread"]);
    let linked = shell::output(&mut link);
    fs::remove_file(&exports)?;
    linked.with_context(|| format!("the shared library {library} was not linked"))?;
    Ok(())
}

/// The links of a shared library: from its soname to the file, and from its name to the soname.
fn links(folder: &Path, library: &str) -> Result<()> {
    let (soname, name) = (VERSION.soname(library), format!("{library}.so"));
    for (link, target) in [(&soname, &file_of(library)), (&name, &soname)] {
        let link = folder.join(link);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link)?;
        }
        symlink(target, &link)?;
    }
    Ok(())
}

/// The arguments of cargo for the library of kernel monitors. It cannot be linked from a static
/// one, which would lack libbpf, so its soname is given to the linker here.
pub(crate) fn kernel_library() -> Vec<String> {
    let soname = format!("link-arg=-Wl,-soname,{}", VERSION.soname(KERNEL));
    let arguments = "rustc --release -p overhear-kernel --lib --crate-type cdylib -- -C";
    let arguments = arguments.split(' ').map(str::to_owned);
    arguments.chain([soname]).collect()
}

/// Copies a file to a new one: a running program, or a library in use, keeps the old one.
fn put(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| format!("cannot install {} as {}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::{file_of, Installation, KERNEL, MONITORS, POSIX_TRACE, SENSORS, VERSION};
    use crate::shell;

    /// Installs the results of `make test` into a folder that is moved afterwards; `None` if there
    /// are none.
    fn installed() -> Option<(PathBuf, PathBuf)> {
        let here = std::env::current_exe().unwrap();
        let built = here.parent().unwrap().parent().unwrap();
        let needed = [
            "liboverhear.a",
            "liboverhear_monitor.a",
            "liboverhear_posixtrace.a",
            "liboverhear_kernel.so",
            super::NAPS_BUILT,
            "overhear",
        ];
        if needed.iter().any(|name| !built.join(name).is_file()) {
            println!("skipped: nothing is built to be installed; type `cargo build --workspace`");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = built.join("install-test");
        let _ = fs::remove_dir_all(&folder);
        let (first, prefix) = (folder.join("first"), folder.join("prefix"));
        let installation = Installation {
            root: &root,
            built,
            prefix: &first,
            called: "/opt/overhear",
        };
        installation.perform().unwrap();
        // A second time, over the existing files.
        installation.perform().unwrap();
        fs::rename(&first, &prefix).unwrap();
        Some((root, prefix))
    }

    /// A program that was built against the installation runs with its library, not connected.
    #[track_caller]
    fn runs(program: &Path, prefix: &Path) {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", prefix.join("lib"))
            .env("OVERHEAR_DIRECTORY", "");
        shell::output(&mut command).unwrap();
    }

    #[track_caller]
    fn needs(program: &Path, library: &str) -> bool {
        let mut objdump = Command::new("objdump");
        let text = shell::output(objdump.arg("-p").arg(program)).unwrap();
        let mut needed = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("NEEDED"));
        needed.any(|name| name.trim() == library)
    }

    #[test]
    fn programs_are_built_against_an_installation() {
        let Some((root, prefix)) = installed() else {
            return;
        };
        the_thread_slot_needs_no_call(&prefix);
        with_pkg_config(&root, &prefix);
        documents_and_units_are_installed(&prefix);
        if shell::on_path("cmake").is_none() {
            println!("skipped: cmake is not installed");
        } else {
            with_cmake(&root, &prefix);
        }
        fs::remove_dir_all(prefix.parent().unwrap()).unwrap();
    }

    /// The variable that each thread has is in the static block, of the model initial-exec: reached
    /// from the thread pointer, without `__tls_get_addr`, which may allocate.
    fn the_thread_slot_needs_no_call(prefix: &Path) {
        let library = prefix.join("lib/liboverhear.so");
        let read = |what| shell::output(Command::new("readelf").args(["-W", what]).arg(&library));
        let flags = read("-d").unwrap();
        assert!(flags.contains("STATIC_TLS"), "{flags}");
        // Its name is not exported.
        let exported = read("--dyn-syms").unwrap();
        assert!(!exported.contains("overhear_thread_slot"), "{exported}");
        assert!(exported.contains("oh_sensor_register_sized"), "{exported}");
    }

    /// The flags that pkg-config returns for a package of the installation.
    #[track_caller]
    fn flags(prefix: &Path, package: &str) -> Vec<String> {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
            .args(["--cflags", "--libs", package]);
        let flags = shell::output(&mut pkg_config).unwrap();
        flags.split_whitespace().map(str::to_owned).collect()
    }

    fn with_pkg_config(root: &Path, prefix: &Path) {
        for (compiler, source, package, library) in [
            ("gcc", "examples/c/hello_sensor.c", "overhear", SENSORS),
            ("g++", "examples/cpp/hello_sensor.cpp", "overhear", SENSORS),
            (
                "gcc",
                "examples/c/interceptor.c",
                "overhear-monitor",
                MONITORS,
            ),
            (
                "gcc",
                "examples/c/hello_sensor.c",
                "overhear-monitor",
                MONITORS,
            ),
            (
                "gcc",
                "examples/c/kernel_monitor.c",
                "overhear-kernel",
                KERNEL,
            ),
            (
                "gcc",
                "examples/c/posix_analyser.c",
                "overhear-posixtrace",
                POSIX_TRACE,
            ),
        ] {
            let program = prefix.join(format!("{library}-{compiler}"));
            let mut compile = Command::new(compiler);
            compile
                .arg(root.join(source))
                .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
                .arg(&program)
                .args(flags(prefix, package));
            shell::output(&mut compile).unwrap();
            // The library of kernel monitors gets its soname in a release alone.
            for other in [SENSORS, MONITORS, POSIX_TRACE] {
                let soname = VERSION.soname(other);
                assert_eq!(
                    needs(&program, &soname),
                    other == library,
                    "{source}: {soname}"
                );
            }
            match library {
                KERNEL => check_kernel_example(&program, prefix),
                _ => runs(&program, prefix),
            }
        }
        let library = prefix.join("lib").join(file_of(POSIX_TRACE));
        let mut nm = Command::new("nm");
        let exported = shell::output(nm.args(["-D", "--defined-only"]).arg(library)).unwrap();
        let names = exported
            .lines()
            .filter_map(|line| line.split(' ').next_back());
        let names: Vec<&str> = names.collect();
        assert!(names.contains(&"posix_trace_event"), "{names:?}");
        let internal = names.iter().find(|name| name.ends_with('_'));
        assert_eq!(internal, None, "{names:?}");
        // The linker names what a program with a monitor misses in the library of sensors.
        let mut compile = Command::new("gcc");
        compile
            .arg(root.join("examples/c/interceptor.c"))
            .arg("-o")
            .arg(prefix.join("unlinked"))
            .args(flags(prefix, "overhear"));
        let message = shell::output(&mut compile).unwrap_err().to_string();
        assert!(message.contains("oh_monitor_start_sized"), "{message}");
    }

    fn documents_and_units_are_installed(prefix: &Path) {
        let mut overhear = Command::new(prefix.join("bin/overhear"));
        let printed = shell::output(overhear.arg("--version")).unwrap();
        assert!(printed.contains(VERSION.full), "{printed}");
        assert!(prefix.join("share/man/man1/overhear.1").is_file());
        for page in ["posix_trace_create.3", "posix_trace_flush.3", "trace.h.3"] {
            assert!(prefix.join("share/man/man3").join(page).is_file(), "{page}");
        }
        let notices = prefix.join("share/doc/overhear").join(super::notices::FILE);
        assert!(notices.is_file());
        let completions = prefix.join("share/bash-completion/completions/overhear");
        assert!(fs::read_to_string(completions)
            .unwrap()
            .contains("_overhear"));
        if prefix.join("bin/overheard").is_file() {
            for kind in ["system", "user"] {
                units_are_understood(&prefix.join(format!("lib/systemd/{kind}")), prefix, kind);
            }
        }
    }

    /// The units name the installed program, and systemd reports no error.
    fn units_are_understood(units: &Path, prefix: &Path, kind: &str) {
        let service = units.join("overheard.service");
        let text = fs::read_to_string(&service).unwrap();
        let installed = "ExecStart=/opt/overhear/bin/overheard\n";
        assert!(text.contains(installed), "{text}");
        // A unit that gives up loses the files that are kept, in either kind.
        let unit = text.split("[Service]").next().unwrap();
        assert!(unit.contains("\nStartLimitIntervalSec=0\n"), "{text}");
        assert!(text.contains("\nLimitMEMLOCK=infinity\n"), "{text}");
        if shell::on_path("systemd-analyze").is_none() {
            println!("skipped: systemd-analyze is not installed");
            return;
        }
        // It looks for the program.
        let here = format!("ExecStart={}/bin/overheard\n", prefix.display());
        fs::write(&service, text.replace(installed, &here)).unwrap();
        let mut analyze = Command::new("systemd-analyze");
        analyze
            .arg(format!("--{kind}"))
            .args(["--man=no", "verify"])
            .args([&service, &units.join("overheard.socket")])
            .env("XDG_RUNTIME_DIR", prefix);
        let output = analyze.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        if printed.contains("Failed to initialize manager") {
            println!("skipped: systemd-analyze does not run here");
            return;
        }
        assert!(!printed.contains("overheard"), "{printed}");
    }

    /// The example of kernel monitors runs with the installed library, or prints the missing
    /// permission.
    #[track_caller]
    fn check_kernel_example(program: &Path, prefix: &Path) {
        let mut command = Command::new(program);
        let output = command
            .env("LD_LIBRARY_PATH", prefix.join("lib"))
            .output()
            .unwrap();
        assert!(matches!(output.status.code(), Some(0 | 77)), "{output:?}");
    }

    fn with_cmake(root: &Path, prefix: &Path) {
        let (project, build) = (prefix.join("consumer"), prefix.join("build"));
        fs::create_dir_all(&project).unwrap();
        let installation = Installation {
            root,
            built: Path::new(""),
            prefix,
            called: "",
        };
        let lists = installation.template("consumer/CMakeLists.txt").unwrap();
        fs::write(project.join("CMakeLists.txt"), &lists).unwrap();
        let configure = |project: &Path| {
            let mut cmake = Command::new("cmake");
            cmake
                .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
                .arg(format!("-DEXAMPLES={}", root.join("examples").display()))
                .arg("-S")
                .arg(project)
                .arg("-B")
                .arg(&build);
            shell::output(&mut cmake)
        };
        configure(&project).unwrap();
        shell::output(Command::new("cmake").arg("--build").arg(&build)).unwrap();
        assert!(needs(&build.join("in_c"), &VERSION.soname(SENSORS)));
        assert!(!needs(&build.join("in_cxx"), &VERSION.soname(SENSORS)));
        runs(&build.join("in_c"), prefix);
        runs(&build.join("in_cxx"), prefix);
        for (name, is_shared) in [("monitor_in_c", true), ("monitor_static", false)] {
            let program = build.join(name);
            assert_eq!(needs(&program, &VERSION.soname(MONITORS)), is_shared);
            assert!(!needs(&program, &VERSION.soname(SENSORS)));
            runs(&program, prefix);
        }
        for (name, is_shared) in [("posixtrace", true), ("posixtrace_static", false)] {
            let program = build.join(name);
            assert_eq!(needs(&program, &VERSION.soname(POSIX_TRACE)), is_shared);
            runs(&program, prefix);
        }
        check_kernel_example(&build.join("of_kernel"), prefix);
        // Another version is refused.
        let old = format!("Overhear {}.{}", VERSION.major, VERSION.minor);
        fs::write(
            project.join("CMakeLists.txt"),
            lists.replace(&old, "Overhear 99.0"),
        )
        .unwrap();
        let printed = configure(&project).unwrap_err().to_string();
        assert!(printed.contains("99.0"), "{printed}");
    }
}
