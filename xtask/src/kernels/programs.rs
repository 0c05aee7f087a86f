// SPDX-License-Identifier: MIT OR Apache-2.0
//! What runs in a guest: tests of the workspace, tests in C, and the command line on programs with
//! sensors. All are built here, for the guest's architecture.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::archive::Archive;
use super::initramfs::{Initramfs, System};
use super::machine::Architecture;
use crate::native;
use crate::shell;
use crate::workspace::Workspace;

/// Debian's packages for arm64 with the libraries that the workspace links.
const ARM64_PACKAGES: [&str; 4] = [
    "libc6-dev:arm64",
    "libelf-dev:arm64",
    "zlib1g-dev:arm64",
    "libgcc-s1:arm64",
];
/// The compilers for arm64: of C, and of Rust with the standard libraries of both architectures.
const COMPILER_PACKAGES: [&str; 4] = [
    "gcc-aarch64-linux-gnu",
    "rustc-web",
    "libstd-rust-web-dev:amd64",
    "libstd-rust-web-dev:arm64",
];
const ARM64_TARGET: &str = "aarch64-unknown-linux-gnu";

/// Where a program comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// An integration test of a package.
    Test(&'static str, &'static str),
    /// The tests in the sources of a package.
    UnitTests(&'static str),
    /// A C source, from the root of the repository.
    C(&'static str),
    /// The program `overhear`.
    CommandLine,
}

/// How the output of a program is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// As cargo's tests are.
    Harness,
    /// As tests in C are.
    Tap,
    /// The status is 0, and the output contains all of these.
    Shows(&'static [&'static str]),
}

/// A program of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    origin: Origin,
    arguments: &'static [&'static str],
    pub(crate) judge: Judge,
    /// Whether it belongs to the short form in `make test`.
    pub(crate) is_short: bool,
}

/// The limit of a program in the guest's time: none needs a tenth of it.
const LIMIT_SECONDS: u32 = 1800;

const HARNESS: &[&str] = &["--test-threads=1", "--show-output"];

const fn test(name: &'static str, origin: Origin) -> Program {
    Program {
        name,
        origin,
        arguments: HARNESS,
        judge: Judge::Harness,
        is_short: false,
    }
}

const fn tap(name: &'static str, source: &'static str) -> Program {
    Program {
        name,
        origin: Origin::C(source),
        arguments: &[],
        judge: Judge::Tap,
        is_short: false,
    }
}

const fn short(mut program: Program) -> Program {
    program.is_short = true;
    program
}

const KERNEL_TESTS: Origin = Origin::Test("overhear-kernel", "kernel");

/// Everything that runs in a guest.
pub(crate) const PROGRAMS: &[Program] = &[
    // A subset by name for the short form, and all of them for the long one.
    Program {
        name: "a subset of the kernel tests",
        origin: KERNEL_TESTS,
        arguments: &[
            "--test-threads=1",
            "--show-output",
            "sensors::",
            "points::",
            "probes::",
            "bpf::switches_are_those_the_kernel_counts",
            "bpf::gaps_of_tiny_rings_are_exact",
            "bpf::busy_word_replaces_interrupt_masking",
            "monitors::monitor_has_specified_life_cycle",
            "monitors::monitors_count_losses_separately",
            "perf::counts_agree_for_root",
            "samples::sums_of_samples_are_the_totals_of_each_thread",
        ],
        judge: Judge::Harness,
        is_short: true,
    },
    test("kernel tests", KERNEL_TESTS),
    short(tap("sensors in C", "native/tests/laned.c")),
    short(tap("kernel monitors in C", "native/tests/kernel.c")),
    tap(
        "threads of a sensor in C",
        "native/tests/concurrent_threads.c",
    ),
    tap("monitors in C", "native/tests/monitor.c"),
    short(test("sensors in Rust", Origin::Test("overhear", "lanes"))),
    test("sampling", Origin::UnitTests("overhear-sampling")),
    test("streams", Origin::UnitTests("overhear-stream")),
    test("executors", Origin::Test("overhear-monitor", "executors")),
    Program {
        name: "doctor",
        origin: Origin::CommandLine,
        arguments: &["doctor"],
        judge: Judge::Shows(&["kernel"]),
        is_short: true,
    },
];

/// How much runs in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Short,
    Long,
}

/// What cargo builds. With other packages the shared crates would have other features, and be built
/// again, so `make test` builds here as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Workspace,
    /// The packages of the plan.
    Needed,
}

/// The programs of a form.
pub(crate) fn plan(form: Form) -> Vec<&'static Program> {
    PROGRAMS
        .iter()
        .filter(|program| match form {
            Form::Short => program.is_short,
            // The subset is a part of another program.
            Form::Long => program.arguments == HARNESS || program.judge != Judge::Harness,
        })
        .collect()
}

/// How programs are built for an architecture.
#[derive(Debug)]
pub(crate) struct Toolchain {
    architecture: Architecture,
    system: System,
    compiler: String,
    /// Set for cargo.
    variables: Vec<(String, String)>,
}

impl Toolchain {
    /// The compilers of this machine, or Debian's for arm64 in `folder`.
    pub(crate) fn prepare(
        workspace: &Workspace,
        architecture: Architecture,
        archive: &Archive,
        folder: &Path,
    ) -> Result<Self> {
        let mut toolchain = Self {
            architecture,
            system: System {
                root: "/".into(),
                triple: architecture.triple(),
                built: workspace.target.join("debug"),
            },
            compiler: "gcc".to_owned(),
            variables: Vec::new(),
        };
        if architecture == Architecture::Arm64 {
            let (system, tools) = (folder.join("arm64"), folder.join("compilers"));
            archive.unpack_closure(&ARM64_PACKAGES, &system)?;
            archive.unpack_closure(&COMPILER_PACKAGES, &tools)?;
            toolchain.use_arm64(workspace, &system, &tools)?;
        }
        Ok(toolchain)
    }

    /// Lets cargo and the C compiler build for the system below `system` with the compilers below
    /// `tools`.
    fn use_arm64(&mut self, workspace: &Workspace, system: &Path, tools: &Path) -> Result<()> {
        let wrappers = tools.join("wrappers");
        fs::create_dir_all(&wrappers)?;
        let libraries = tools.join("usr/lib/x86_64-linux-gnu");
        let libraries = format!(
            "{}:{}",
            libraries.display(),
            tools.join("lib/x86_64-linux-gnu").display()
        );
        let bin = tools.join("usr/bin");
        let compiler = wrapper(
            &wrappers.join("aarch64-linux-gnu-gcc"),
            &libraries,
            &bin,
            &format!(
                "{} --sysroot={}",
                bin.join("aarch64-linux-gnu-gcc").display(),
                system.display()
            ),
        )?;
        let archiver = wrapper(
            &wrappers.join("aarch64-linux-gnu-ar"),
            &libraries,
            &bin,
            &bin.join("aarch64-linux-gnu-ar").display().to_string(),
        )?;
        let rustc = wrapper(
            &wrappers.join("rustc"),
            &libraries,
            &bin,
            &bin.join("rustc").display().to_string(),
        )?;
        let packages = system.join("usr/lib/aarch64-linux-gnu/pkgconfig");
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        self.variables = vec![
            variable("RUSTC", &rustc),
            variable("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", &compiler),
            variable("CC_aarch64_unknown_linux_gnu", &compiler),
            variable("AR_aarch64_unknown_linux_gnu", &archiver),
            variable("PKG_CONFIG_ALLOW_CROSS", "1"),
            variable(
                "PKG_CONFIG_LIBDIR_aarch64_unknown_linux_gnu",
                &packages.display().to_string(),
            ),
            variable(
                "PKG_CONFIG_SYSROOT_DIR_aarch64_unknown_linux_gnu",
                &system.display().to_string(),
            ),
        ];
        self.compiler = compiler;
        self.system.root = system.to_path_buf();
        self.system.built = workspace.target.join(ARM64_TARGET).join("debug");
        Ok(())
    }

    fn cargo(&self, workspace: &Workspace, verb: &str) -> Command {
        let mut cargo = shell::cargo(&workspace.root);
        cargo.arg(verb).arg("--message-format=json");
        if self.architecture == Architecture::Arm64 {
            cargo.args(["--target", ARM64_TARGET]);
            cargo.envs(self.variables.iter().map(|(name, value)| (name, value)));
        }
        cargo
    }

    /// Builds the programs of a plan and the guest's first process, and packs them.
    pub(crate) fn pack(
        &self,
        workspace: &Workspace,
        plan: &[&Program],
        scope: Scope,
    ) -> Result<Vec<u8>> {
        let artifacts = self.build(workspace, plan, scope)?;
        let mut archive = Initramfs::new();
        let first = artifacts.get("bin guest-init")?;
        archive.add_program(&self.system, first, Path::new("/init"))?;
        let mut lines = String::new();
        for program in plan {
            let file = match program.origin {
                Origin::Test(package, name) => {
                    artifacts.get(&format!("test {package} {name}"))?.clone()
                }
                Origin::UnitTests(package) => artifacts.get(&format!("lib {package}"))?.clone(),
                Origin::CommandLine => artifacts.get("bin overhear")?.clone(),
                Origin::C(source) => self.compile(workspace, source)?,
            };
            archive.add_program(&self.system, &file, &file)?;
            lines.push_str(&format!(
                "{LIMIT_SECONDS}\t{}\t{}",
                program.name,
                file.display()
            ));
            for argument in program.arguments {
                lines.push('\t');
                lines.push_str(argument);
            }
            lines.push('\n');
        }
        archive.add_text("/plan", &lines);
        Ok(archive.bytes())
    }

    fn build(&self, workspace: &Workspace, plan: &[&Program], scope: Scope) -> Result<Artifacts> {
        let mut build = self.cargo(workspace, "build");
        let mut tests = self.cargo(workspace, "test");
        tests.arg("--no-run");
        if scope == Scope::Workspace {
            build.arg("--workspace");
            tests.arg("--workspace");
        } else {
            let libraries = ["overhear", "overhear-monitor-c", "overhear-kernel"];
            let programs = ["overhear-cli", "xtask"];
            build.args(libraries.iter().chain(&programs).flat_map(|it| ["-p", it]));
            for program in plan {
                match program.origin {
                    Origin::Test(package, name) => tests.args(["-p", package, "--test", name]),
                    Origin::UnitTests(package) => tests.args(["-p", package, "--lib"]),
                    Origin::C(_) | Origin::CommandLine => &mut tests,
                };
            }
        }
        let mut artifacts = Artifacts::default();
        for command in [&mut build, &mut tests] {
            let status = shell::stream(command, |line| {
                artifacts.add(line);
                false
            })?;
            anyhow::ensure!(status.success(), "the programs of the guest do not compile");
        }
        Ok(artifacts)
    }

    fn compile(&self, workspace: &Workspace, source: &str) -> Result<PathBuf> {
        let source = workspace.root.join(source);
        let folder = self.system.built.join("guest");
        native::compile_for_guest(
            workspace,
            &self.compiler,
            &self.system.built,
            &folder,
            &source,
        )
    }
}

/// Writes a program that starts another one with the libraries of a folder; returns its path.
fn wrapper(file: &Path, libraries: &str, path: &Path, command: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let text = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={libraries} PATH={}:$PATH\nexec {command} \"$@\"\n",
        path.display()
    );
    fs::write(file, text)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    Ok(file.display().to_string())
}

/// The programs that cargo has built: `bin NAME`, `test PACKAGE NAME` and `lib PACKAGE`.
#[derive(Debug, Default)]
struct Artifacts {
    files: BTreeMap<String, PathBuf>,
}

impl Artifacts {
    /// Reads a message of cargo.
    fn add(&mut self, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let text = |path: &str| message.pointer(path).and_then(Value::as_str);
        let (Some(file), Some(name), Some(kind), Some(id)) = (
            text("/executable"),
            text("/target/name"),
            text("/target/kind/0"),
            text("/package_id"),
        ) else {
            // The compiler's messages are for the user.
            if let Some(rendered) = text("/message/rendered") {
                eprint!("{rendered}");
            }
            return;
        };
        // `path+file:///FOLDER/NAME#VERSION` or `...#NAME@VERSION`.
        let (folder, version) = id.rsplit_once('#').unwrap_or((id, ""));
        let package = match version.split_once('@') {
            Some((name, _)) => name,
            None => folder.rsplit('/').next().unwrap_or_default(),
        };
        let is_test = message.pointer("/profile/test") == Some(&Value::Bool(true));
        let key = match (kind, is_test) {
            ("bin", false) => format!("bin {name}"),
            ("test", _) => format!("test {package} {name}"),
            (_, true) => format!("lib {package}"),
            _ => return,
        };
        self.files.insert(key, file.into());
    }

    fn get(&self, key: &str) -> Result<&PathBuf> {
        let file = self.files.get(key);
        file.with_context(|| format!("cargo has not built the {key}"))
    }
}
