// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with the preload library, and the documents that they leave.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use overhear_naps::{environment, ProcessRecord};

/// The library that cargo built for these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("liboverhear_naps_preload.so"));
    files
        .find(|file| file.is_file())
        .expect("the preload library is built")
}

/// Compiles a program of `tests/programs`.
pub(crate) fn compiled(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = folder.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Werror", "-pthread", "-o"]);
    let status = compiler.arg(&program).arg(source).status().unwrap();
    assert!(status.success());
    program
}

/// Compiles a library of `tests/programs`, for `LD_PRELOAD`.
pub(crate) fn compiled_library(folder: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let library = folder.join(format!("{name}.so"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-fno-builtin", "-o"]);
    let status = compiler.arg(&library).arg(source).status().unwrap();
    assert!(status.success());
    library
}

/// What the library is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) backend: &'static str,
    pub(crate) threshold_ms: u64,
    pub(crate) budget: &'static str,
}

/// The folder that receives the documents of processes.
pub(crate) struct Documents(tempfile::TempDir);

impl Documents {
    /// Programs of root may change their user: all may write, as the session permits it.
    pub(crate) fn create() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o1733);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        Self(folder)
    }

    /// Lets a command load the library.
    pub(crate) fn preload(&self, command: &mut Command, settings: Settings) {
        let threshold_ns = settings.threshold_ms * 1_000_000;
        command
            .env("LD_PRELOAD", library())
            .env(environment::FOLDER, self.0.path())
            .env(environment::THRESHOLD_NS, threshold_ns.to_string())
            .env(environment::BUDGET, settings.budget)
            .env(environment::BACKEND, settings.backend);
    }

    pub(crate) fn records(&self) -> Vec<ProcessRecord> {
        let entries = std::fs::read_dir(self.0.path()).unwrap().flatten();
        let paths = entries.map(|entry| entry.path());
        let documents = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        documents.map(read).collect()
    }
}

pub(crate) struct Observation {
    pub(crate) output: Output,
    pub(crate) records: Vec<ProcessRecord>,
}

/// Runs a command with the library.
pub(crate) fn observe(command: &mut Command, settings: Settings) -> Observation {
    let documents = Documents::create();
    documents.preload(command, settings);
    let output = command.output().unwrap();
    Observation {
        output,
        records: documents.records(),
    }
}

/// Whether a back end works here; prints why not.
pub(crate) fn works(backend: &str, record: &ProcessRecord) -> bool {
    if record.backend == backend {
        return true;
    }
    println!("skipped: back end {backend}: {}", record.backend_reason);
    false
}
