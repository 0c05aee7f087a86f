// SPDX-License-Identifier: MIT OR Apache-2.0
//! `make kernels`: the tests on other kernels and processors, in emulated machines.
//!
//! ```text
//!   Debian's archive          the workspace, built for the guest's architecture
//!     kernel image              tests, tests in C, the command line
//!          \                       |
//!           \                  INITRAMFS  with all libraries, the plan and the first process
//!            v                     v
//!            MACHINE    qemu, software emulation
//!                |
//!            REPORT     output and status of each program, and a last line
//!                |
//!            verdict for each kernel
//! ```
//!
//! Nothing but qemu is installed: packages are unpacked below the target folder. Times
//! in a guest mean nothing; counts and orders do.

mod archive;
mod initramfs;
mod machine;
mod programs;
mod report;

use std::fs;

use anyhow::{ensure, Result};

use crate::packages::{self, BUILD, KERNELS as PACKAGES};
use crate::shell;
use crate::tally::Tally;
use crate::workspace::Workspace;

use archive::Archive;
use machine::{Kernel, KERNELS};
use programs::{Form, Scope, Toolchain};
use report::Report;

/// Boots all kernels, or those that `arguments` name; with the word `short` for the short form.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<Tally> {
    packages::ensure(&[BUILD, PACKAGES])?;
    let mut names: Vec<&str> = arguments
        .iter()
        .flat_map(|text| text.split_whitespace())
        .collect();
    let is_short = names.contains(&SHORT);
    names.retain(|&name| name != SHORT);
    let form = if is_short { Form::Short } else { Form::Long };
    for name in &names {
        let known: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
        ensure!(
            known.contains(name),
            "there is no kernel {name:?}; the kernels are {}",
            known.join(", ")
        );
    }
    let mut tally = Tally::default();
    for kernel in KERNELS
        .iter()
        .filter(|kernel| names.is_empty() || names.contains(&kernel.name))
    {
        match boot(workspace, kernel, form, Scope::Needed) {
            Ok(result) => tally.add(result),
            Err(error) => tally.fail(format!("{}: {error:#}", kernel.name)),
        }
    }
    Ok(tally)
}

/// The short form in `make test`: a part of the tests on the first kernel, where qemu is
/// installed.
pub(crate) fn short(workspace: &Workspace) -> Tally {
    const NAME: &str = "kernels, short form";
    let kernel = &KERNELS[0];
    let mut tally = Tally::default();
    if shell::on_path(kernel.architecture.qemu()).is_none() {
        tally.skip(NAME, "qemu is not installed; `make kernels` installs it");
        return tally;
    }
    match boot(workspace, kernel, Form::Short, Scope::Workspace) {
        Ok(result) => tally.add(result),
        Err(error) if error.to_string().contains("Debian") => {
            tally.skip(NAME, &format!("there is no kernel: {error:#}"));
        }
        Err(error) => tally.fail(format!("{NAME}: {error:#}")),
    }
    tally
}

/// The argument that chooses the short form.
const SHORT: &str = "short";

fn boot(workspace: &Workspace, kernel: &Kernel, form: Form, scope: Scope) -> Result<Tally> {
    let folder = workspace.target.join("kernels");
    let archive = Archive::open(&folder.join("apt"))?;
    let image = kernel.image(&archive, &folder)?;
    let toolchain = Toolchain::prepare(workspace, kernel.architecture, &archive, &folder)?;
    let plan = programs::plan(form);
    let initramfs = folder.join(format!("{}.cpio", kernel.name));
    fs::write(&initramfs, toolchain.pack(workspace, &plan, scope)?)?;
    println!("kernels: booting {}", kernel.name);
    let logs = folder.join("logs").join(kernel.name);
    let output = kernel.boot(&image, &initramfs, &logs);
    fs::remove_file(&initramfs)?;
    let output = output?;
    let report = Report::parse(&output.report);
    let mut tally = report.judge(kernel.name, &plan, &output.console);
    tally.clear_summaries();
    tally.summarize(format!(
        "kernel {} ({}): {tally}; {:.0} s in the guest, {:.0} s outside; logs in {}",
        kernel.name,
        report.release,
        report.guest_time().as_secs_f64(),
        output.took.as_secs_f64(),
        logs.display()
    ));
    Ok(tally)
}
