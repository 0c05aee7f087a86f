// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running other programs.

use std::env;
use std::error::Error;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{bail, Context, Result};

/// A requirement that the user must install: exit status 5.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// Runs a program with our own input and output, after a line with the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", line_of(command));
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line_of(command));
    }
    Ok(())
}

/// Runs a program and captures its output; an error contains all of it.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| cannot_start(command))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` failed: {}\n{text}{errors}",
            line_of(command),
            output.status
        );
    }
    Ok(text)
}

/// Whether a program can be started and succeeds; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs a program, shows each line of its standard output that `show` approves of, and returns how
/// it ended. Its standard error stays ours.
pub(crate) fn stream(
    command: &mut Command,
    mut show: impl FnMut(&str) -> bool,
) -> Result<ExitStatus> {
    println!("$ {}", line_of(command));
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| cannot_start(command))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if show(&line) {
                println!("{line}");
            }
        }
    }
    Ok(child.wait()?)
}

/// The path of a program on PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A cargo command in the folder of the workspace.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// A cargo command of the nightly toolchain: rustup's `cargo` proxy chooses it.
pub(crate) fn nightly_cargo(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    // Under `cargo run` these name the stable toolchain and would win over `+nightly`.
    command
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC");
    command.arg("+nightly").current_dir(root);
    command
}

/// The command as a user types it: the program by its name alone.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let mut line = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

fn cannot_start(command: &Command) -> String {
    format!(
        "`{}` cannot be started",
        command.get_program().to_string_lossy()
    )
}
