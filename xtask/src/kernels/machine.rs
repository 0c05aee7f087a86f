// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulated machines: which kernel, which processor, and a run of qemu from the boot to the
//! end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, ensure, Context, Result};

use super::archive::Archive;
use crate::shell;

/// Memory of a guest in MiB.
const MEMORY_MIB: u32 = 2048;
/// Time without a new line in the report or on the console after which a guest is given up. An
/// emulated processor beside load needs minutes for what a real one does in a second.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// A processor architecture of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86,
    Arm64,
}

impl Architecture {
    pub(crate) const fn triple(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// The emulator.
    pub(crate) const fn qemu(self) -> &'static str {
        match self {
            Self::X86 => "qemu-system-x86_64",
            Self::Arm64 => "qemu-system-aarch64",
        }
    }

    /// Machine and processor. The second is the processor of [EPOS, section IV-A].
    const fn hardware(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["-M", "pc", "-cpu", "max"],
            Self::Arm64 => &["-M", "virt", "-cpu", "cortex-a53"],
        }
    }

    /// How time passes. On arm64 virtual time follows the number of executed instructions, and does
    /// not wait while all processors are idle: the guest does not notice the load of the machine
    /// around it, and its counter of instructions counts. Under this regime the second x86-64
    /// processor never starts.
    const fn time(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &["-accel", "tcg,thread=multi"],
            Self::Arm64 => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=1,sleep=off",
            ],
        }
    }

    /// Console and device of the report, as the kernel names them.
    const fn devices(self) -> (&'static str, &'static str) {
        match self {
            Self::X86 => ("ttyS0", "/dev/ttyS1"),
            Self::Arm64 => ("ttyAMA0", "/dev/ttyS0"),
        }
    }
}

/// A kernel of Debian.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// The name by which a user chooses it.
    pub(crate) name: &'static str,
    pub(crate) architecture: Architecture,
    /// The package that depends on the newest kernel of its line.
    package: &'static str,
}

/// All kernels of `make kernels`. The first is the one of `make test`.
pub(crate) const KERNELS: [Kernel; 4] = [
    Kernel {
        name: "6.1",
        architecture: Architecture::X86,
        package: "linux-image-amd64",
    },
    Kernel {
        name: "6.1-rt",
        architecture: Architecture::X86,
        package: "linux-image-rt-amd64",
    },
    Kernel {
        name: "6.12",
        architecture: Architecture::X86,
        package: "linux-image-6.12-amd64",
    },
    Kernel {
        name: "6.1-arm64",
        architecture: Architecture::Arm64,
        package: "linux-image-arm64:arm64",
    },
];

impl Kernel {
    /// The kernel's image, which is fetched and unpacked if it is not there.
    pub(crate) fn image(&self, archive: &Archive, folder: &Path) -> Result<PathBuf> {
        let folder = folder.join(self.name);
        let find = || -> Option<PathBuf> {
            let files = fs::read_dir(folder.join("boot")).ok()?;
            let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
            files.find(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("vmlinuz-")
            })
        };
        if let Some(image) = find() {
            return Ok(image);
        }
        let package = archive.first_dependency(self.package)?;
        archive.unpack(&package, "./boot/*", &folder)?;
        find().with_context(|| format!("Debian's {package} has no kernel"))
    }

    /// Boots it with these files, and returns the report and the console's output. Both are also
    /// kept as files in `logs`.
    pub(crate) fn boot(&self, image: &Path, initramfs: &Path, logs: &Path) -> Result<Output> {
        fs::create_dir_all(logs)?;
        let (console, report) = (logs.join("console.log"), logs.join("report.log"));
        for file in [&console, &report] {
            fs::write(file, "")?;
        }
        let (console_device, report_device) = self.architecture.devices();
        let mut command = emulator(self.architecture.qemu());
        command.args(self.architecture.hardware());
        command
            .args(self.architecture.time())
            .args(["-smp", "2", "-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-m", &MEMORY_MIB.to_string()]);
        command.arg("-kernel").arg(image);
        command.arg("-initrd").arg(initramfs);
        command.arg("-append").arg(format!(
            "console={console_device} report={report_device} rdinit=/init panic=-1 quiet \
             loglevel=4 nokaslr"
        ));
        for (id, file) in [("console", &console), ("report", &report)] {
            command
                .arg("-chardev")
                .arg(format!("file,id={id},path={}", file.display()));
        }
        command.args(["-serial", "chardev:console"]);
        match self.architecture {
            Architecture::X86 => command.args(["-serial", "chardev:report"]),
            // This machine has one serial interface.
            Architecture::Arm64 => command.args(["-device", "pci-serial,chardev=report"]),
        };
        let errors = fs::File::create(logs.join("qemu.log"))?;
        command
            .stdin(Stdio::null())
            .stdout(errors.try_clone()?)
            .stderr(errors);
        let begin = Instant::now();
        let mut qemu = command
            .spawn()
            .with_context(|| format!("{} cannot be started", self.architecture.qemu()))?;
        let changed = |file: &Path| {
            let changed = fs::metadata(file).and_then(|it| it.modified());
            let age = changed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
            age.unwrap_or_default()
        };
        let status = loop {
            if let Some(status) = qemu.try_wait()? {
                break status;
            }
            if changed(&console).min(changed(&report)) > SILENCE {
                qemu.kill()?;
                qemu.wait()?;
                bail!(
                    "the guest was silent for {} minutes; its output is in {}",
                    SILENCE.as_secs() / 60,
                    logs.display()
                );
            }
            thread::sleep(Duration::from_millis(200));
        };
        let text = |file: &Path| -> Result<String> {
            Ok(String::from_utf8_lossy(&fs::read(file)?).replace('\r', ""))
        };
        let errors = text(&logs.join("qemu.log"))?;
        ensure!(status.success(), "qemu failed: {status}\n{errors}");
        Ok(Output {
            report: text(&report)?,
            console: text(&console)?,
            took: begin.elapsed(),
        })
    }
}

/// What a guest has left.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) report: String,
    pub(crate) console: String,
    /// Time outside of the guest.
    pub(crate) took: Duration,
}

/// The emulator, at idle priority where the program `chrt` is installed.
fn emulator(qemu: &str) -> Command {
    if shell::on_path("chrt").is_none() {
        return Command::new(qemu);
    }
    let mut command = Command::new("chrt");
    command.args(["--idle", "0", qemu]);
    command
}
