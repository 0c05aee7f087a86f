// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages of Debian, unpacked into folders of their own: nothing is installed, and the system's
//! lists of packages stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};

use crate::shell;

/// The system's archives of packages, with lists and downloads below one folder.
#[derive(Debug)]
pub(crate) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Fetches the lists of the system's archives for x86-64 and arm64, once in a folder.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        ensure!(
            shell::on_path("apt-get").is_some() && shell::on_path("dpkg-deb").is_some(),
            "this system is not Debian"
        );
        let archive = Self {
            folder: folder.to_path_buf(),
        };
        let fetched = folder.join("fetched");
        if !fetched.is_file() {
            fs::create_dir_all(folder.join("lists/partial"))?;
            fs::create_dir_all(folder.join("cache/archives/partial"))?;
            fs::write(folder.join("status"), "")?;
            shell::output(archive.apt("apt-get").arg("update"))
                .context("the list of Debian packages was not fetched")?;
            fs::write(fetched, "")?;
        }
        Ok(archive)
    }

    /// A command of apt on this archive, for a system on which nothing is installed.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let at = |name: &str| self.folder.join(name).display().to_string();
        for option in [
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures::=amd64".to_owned(),
            "APT::Architectures::=arm64".to_owned(),
            "APT::Install-Recommends=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Debug::NoLocking=true".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }

    /// The first package that this one depends on: the kernel behind a package like
    /// `linux-image-amd64`.
    pub(crate) fn first_dependency(&self, package: &str) -> Result<String> {
        let text = shell::output(self.apt("apt-cache").args(["depends", package]))?;
        let found = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: "));
        let found = found.with_context(|| format!("Debian's {package} depends on nothing"))?;
        Ok(found.to_owned())
    }

    /// Unpacks the files of a package that match a pattern of tar into a folder.
    pub(crate) fn unpack(&self, package: &str, pattern: &str, to: &Path) -> Result<()> {
        let downloads = self.folder.join("download").join(package.replace(':', "_"));
        let _ = fs::remove_dir_all(&downloads);
        fs::create_dir_all(&downloads)?;
        let mut download = self.apt("apt-get");
        download
            .current_dir(&downloads)
            .args(["-q", "download", package]);
        shell::output(&mut download)
            .with_context(|| format!("Debian's archive gives no {package}"))?;
        let archives = packages_in(&downloads)?;
        let [archive] = archives.as_slice() else {
            bail!("the download of {package} is not one file");
        };
        extract(archive, pattern, to)?;
        fs::remove_dir_all(&downloads)?;
        Ok(())
    }

    /// Unpacks packages and all that they depend on into a folder, once.
    pub(crate) fn unpack_closure(&self, packages: &[&str], to: &Path) -> Result<()> {
        let mark = to.with_extension("unpacked");
        let wanted = packages.join(" ");
        if fs::read_to_string(&mark).is_ok_and(|text| text == wanted) {
            return Ok(());
        }
        let downloads = self.folder.join("cache/archives");
        for archive in packages_in(&downloads)? {
            fs::remove_file(archive)?;
        }
        let mut download = self.apt("apt-get");
        download.args(["-q", "-y", "--download-only", "install"]);
        shell::output(download.args(packages))
            .with_context(|| format!("Debian's archive gives no {wanted}"))?;
        for archive in packages_in(&downloads)? {
            extract(&archive, ".", to)?;
            fs::remove_file(archive)?;
        }
        fs::write(mark, wanted)?;
        Ok(())
    }
}

/// The archives `*.deb` of a folder.
fn packages_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files
        .filter(|file| file.extension().is_some_and(|it| it == "deb"))
        .collect())
}

/// Extracts the files of an archive that match a pattern.
fn extract(archive: &Path, pattern: &str, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut unpack = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg-deb cannot be started")?;
    let stream = unpack.stdout.take().context("dpkg-deb has no output")?;
    let mut tar = Command::new("tar");
    tar.arg("-x")
        .arg("-C")
        .arg(to)
        .args(["--no-same-owner", "--wildcards", pattern])
        .stdin(stream);
    let extracted = shell::output(&mut tar);
    let status = unpack.wait()?;
    extracted.with_context(|| format!("{} was not unpacked", archive.display()))?;
    ensure!(status.success(), "dpkg-deb failed on {}", archive.display());
    Ok(())
}
