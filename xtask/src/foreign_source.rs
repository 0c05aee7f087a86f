// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of other projects, as Debian has them.
//!
//! They are unpacked once, into `target/foreign/NAME`; a folder that is there already is used as it
//! is. Lists and archives of apt lie beside them, so that the system's own stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::shell;

/// The keys with which Debian signs its lists.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The place from which a source comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A source package of Debian.
    Debian(&'static str),
    /// A tag of a repository.
    Git(&'static str, &'static str),
}

/// The folder with a source, which is fetched if it is not there.
pub(crate) fn unpack(target: &Path, name: &str, origin: Origin) -> Result<PathBuf> {
    let foreign = target.join("foreign");
    let folder = foreign.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&foreign)?;
    let fetched = match origin {
        Origin::Debian(package) => debian(&foreign, package, &folder),
        Origin::Git(url, tag) => {
            let mut git = Command::new("git");
            git.args(["clone", "--quiet", "--depth", "1", "--branch", tag, url]);
            shell::output(git.arg(&folder)).map(drop)
        }
    };
    fetched.with_context(|| {
        format!(
            "the source of {name} was not fetched; unpack it yourself into {}",
            folder.display()
        )
    })?;
    Ok(folder)
}

fn debian(foreign: &Path, package: &str, folder: &Path) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let (true, Some(codename)) = (release.contains("ID=debian"), codename) else {
        bail!("this system is not Debian");
    };
    let apt = foreign.join("apt");
    let download = apt.join("download");
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let _ = fs::remove_dir_all(&download);
    fs::create_dir_all(&download)?;
    let list = apt.join("sources.list");
    let line = format!("deb-src [signed-by={KEYS}] http://deb.debian.org/debian {codename} main\n");
    fs::write(&list, line)?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command
            .current_dir(&download)
            .args(["-qq", "-o", "Dir::Etc::SourceParts=-", "-o"])
            .arg(format!("Dir::Etc::SourceList={}", list.display()))
            .arg("-o")
            .arg(format!("Dir::State::Lists={}", apt.join("lists").display()))
            .arg("-o")
            .arg(format!("Dir::Cache={}", apt.join("cache").display()));
        command
    };
    shell::output(apt_get().arg("update"))?;
    shell::output(apt_get().args(["source", package]))?;
    let unpacked = fs::read_dir(&download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.is_dir())
        .context("the package has no folder")?;
    fs::rename(unpacked, folder)?;
    Ok(())
}
