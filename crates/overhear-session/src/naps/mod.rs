// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear naps`: runs a program with the preload library and reports its non-accessed periods.
//!
//! ```text
//! request --> program with LD_PRELOAD --> a document of each process --> NapsReport
//! ```

mod library;
mod machine;
mod report;
mod symbols;

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use overhear_event::Nanos;
use overhear_naps::{environment, ProcessRecord, FORMAT, LOADED};
use rustix::fs::{FileType, Mode, OFlags};

use crate::child::{Held, Output};
use crate::error::{ErrorKind, SessionError};
use crate::interrupts::Requests;
use crate::scratch::Scratch;
use crate::session::signal_forwarder::SignalForwarder;

pub use machine::{machine, MachineReport, MachineRequest, Region};
pub use report::{AllocationReport, FrameReport, NapReport, NapsReport, ProcessReport, SiteReport};

/// How accesses are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NapsBackend {
    /// The best one that works.
    #[default]
    Auto,
    /// Pages are protected in place, and userfaultfd reports accesses.
    Rwp,
    /// Pages move aside, and userfaultfd reports accesses.
    Move,
    /// The accessed bits of page tables.
    Accessed,
}

impl NapsBackend {
    /// The word of the command line and of documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rwp => "rwp",
            Self::Move => "move",
            Self::Accessed => "accessed",
        }
    }
}

/// What to run and how to watch it.
#[derive(Clone, Debug)]
pub struct NapsRequest {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Least length of a NAP.
    pub threshold: Nanos,
    /// Budget as a share of the program's CPU time: 0.05.
    pub budget: f64,
    /// Size of the smallest allocation that is watched, in bytes.
    pub min_size_bytes: u64,
    /// How accesses are found.
    pub backend: NapsBackend,
    /// The preload library; none: that of this installation.
    pub library: Option<PathBuf>,
    /// The program's standard output goes to standard error, because a document goes to ours.
    pub stdout_to_stderr: bool,
}

/// Runs a program and reports the NAPs of its allocations.
///
/// # Errors
/// A request that cannot be used, a program that cannot be observed or run.
pub fn run(request: &NapsRequest) -> Result<NapsReport, SessionError> {
    let least = Nanos::from_ns(10_000_000);
    if request.threshold < least {
        return Err(SessionError::new(
            ErrorKind::Usage,
            format!("the threshold {} is less than {least}", request.threshold),
        ));
    }
    if !(request.budget > 0.0 && request.budget <= 10.0) {
        return Err(SessionError::new(
            ErrorKind::Usage,
            "the budget must be more than 0% and at most 1000%",
        ));
    }
    let library = library::find(request.library.as_deref())?;
    library::check_program(request.command.first())?;
    let folder = Documents::create()?;
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let variables = [
        ("LD_PRELOAD", preload),
        (environment::FOLDER, folder.path.clone().into_os_string()),
        (
            environment::THRESHOLD_NS,
            request.threshold.as_ns().to_string().into(),
        ),
        (environment::BUDGET, request.budget.to_string().into()),
        (
            environment::MIN_SIZE_BYTES,
            request.min_size_bytes.to_string().into(),
        ),
        (environment::BACKEND, request.backend.name().into()),
    ];
    let output = match request.stdout_to_stderr {
        true => Output::ToStderr,
        false => Output::Inherited,
    };
    let mut interrupts = Requests::listen(None)?;
    let running = Held::start(&request.command, &variables, output)?.release()?;
    let mut signals = SignalForwarder::new(&running, &mut interrupts, None);
    while !running.has_ended() {
        running.wait(Duration::from_millis(100));
        signals.forward();
    }
    let exit = running.reap()?;
    let records = folder.records();
    let loaded = folder.is_loaded();
    drop(folder);
    if !loaded {
        let message = "the program did not load the preload library, because it or its first \
                       program clears LD_PRELOAD; nothing was observed";
        return Err(SessionError::new(ErrorKind::Unavailable, message));
    }
    Ok(report::report(request, exit, records))
}

/// The folder that receives the documents of processes.
struct Documents {
    path: PathBuf,
    // Removed after the folder in it.
    _scratch: Scratch,
}

impl Documents {
    fn create() -> Result<Self, SessionError> {
        let fail = |error: std::io::Error| {
            let message = format!("no folder for the observation can be made: {error}");
            SessionError::new(ErrorKind::Unavailable, message)
        };
        let scratch = Scratch::create().map_err(fail)?;
        let path = scratch.path().join("documents");
        let mode = match rustix::process::geteuid().is_root() {
            // Programs of root may drop their privileges; they cannot list the folder, nor change
            // the files of others.
            true => Mode::from_raw_mode(0o1733),
            false => Mode::RWXU,
        };
        let made = rustix::fs::mkdir(&path, Mode::RWXU);
        made.and_then(|()| rustix::fs::chmod(&path, mode))
            .map_err(|errno| fail(errno.into()))?;
        Ok(Self {
            path,
            _scratch: scratch,
        })
    }

    /// Whether a program loaded the library.
    fn is_loaded(&self) -> bool {
        rustix::fs::lstat(self.path.join(LOADED)).is_ok()
    }

    /// The documents that can be read. A process that was killed while it wrote one left the one
    /// before.
    #[expect(clippy::disallowed_methods, reason = "the folder is our own")]
    fn records(&self) -> Vec<ProcessRecord> {
        let entries = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten();
        let paths = entries.map(|entry| entry.path());
        let documents = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        let mut records: Vec<ProcessRecord> = documents.filter_map(|path| read(&path)).collect();
        records.sort_by_key(|record| (record.started_ns, record.pid));
        records
    }
}

impl Drop for Documents {
    #[expect(clippy::disallowed_methods, reason = "the folder is our own")]
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A document that a process wrote. Another process may have put something else there: what is no
/// regular file, too long or no document is left out.
fn read(path: &Path) -> Option<ProcessRecord> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let about = rustix::fs::fstat(&file).ok()?;
    if !FileType::from_raw_mode(about.st_mode).is_file() {
        return None;
    }
    let mut text = Vec::new();
    std::fs::File::from(file)
        .take(MAX_DOCUMENT_BYTES)
        .read_to_end(&mut text)
        .ok()?;
    let record: ProcessRecord = serde_json::from_slice(&text).ok()?;
    (record.format == FORMAT).then_some(record)
}

/// Documents have at most about 500 bytes per allocation, and 10,000 freed and 12,288 live ones.
const MAX_DOCUMENT_BYTES: u64 = 256 << 20;
