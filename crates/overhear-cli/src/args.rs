// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user types.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use overhear_cli::session::KernelChoice;
use overhear_event::Nanos;

/// Runtime monitoring for Linux that listens without interrupting.
#[derive(Debug, Parser)]
#[command(name = "overhear", version, propagate_version = true)]
#[command(
    after_help = "Exit status: 0 complete; 2 usage; 3 inconclusive, something was missed; \
                        4 admission refused; 5 a permission or kernel feature is missing; 126 or 127 the program \
                        cannot be run. A program's own non-zero status wins over 0 and 3."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Runs a program and reports what it and its children did until the program ended.
    Run(RunArguments),
    /// Reports on a recording; repairs it if its recorder was killed.
    Report(ReportArguments),
    /// Writes a recording in the format of another tool.
    Export(ExportArguments),
    /// Says before the start whether every element will be evaluated in time; 4 if not.
    Admit(AdmitArguments),
    /// Finds the streams (T, D, tau) that cover what a sensor did in a recording.
    Fit(FitArguments),
    /// Says what this machine and user can do, and how to get the rest.
    Doctor(DoctorArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Keeps the trace and report.html in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// What to hear of the kernel.
    #[arg(long, value_enum, default_value_t = KernelLevel::Sched)]
    pub(crate) kernel: KernelLevel,
    /// How to hear the kernel; a way that is named must work, or nothing is run.
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    pub(crate) via: Via,
    /// Prints the report as JSON, to standard output (the program's own output then goes to
    /// standard error) or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// Without progress line and without the place of the report; the tables stay.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

impl RunArguments {
    pub(crate) const fn choice(&self) -> KernelChoice {
        match (self.kernel, self.via) {
            (KernelLevel::Off, _) => KernelChoice::Off,
            (KernelLevel::Sched, Via::Auto) => KernelChoice::Auto,
            (KernelLevel::Sched, Via::Bpf) => KernelChoice::Bpf,
            (KernelLevel::Sched, Via::Perf) => KernelChoice::Perf,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelLevel {
    /// Nothing: program sensors alone.
    Off,
    /// Scheduling: context switches, wake-ups, lives of threads.
    Sched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// BPF, else perf records, else nothing; says which and why.
    Auto,
    /// BPF programs on the scheduler's tracepoints (needs `CAP_BPF` and `CAP_PERFMON`).
    Bpf,
    /// perf context-switch records (works for a user's own programs; no wake-ups).
    Perf,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// What `run --out` kept.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Writes the page to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Prints the report as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// What `run --out` kept.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub(crate) to: ExportFormat,
    /// The file to write; `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// With csv: one sensor, whose fields get columns of their own.
    #[arg(long, value_name = "SENSOR")]
    pub(crate) sensor: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Protobuf for ui.perfetto.dev and trace_processor.
    Perfetto,
    /// A row for each element and each gap.
    Csv,
}

#[derive(Debug, Args)]
pub(crate) struct AdmitArguments {
    /// The monitor, its sensors and updates; see docs/admission.md.
    #[arg(long, value_name = "FILE", default_value = "overhear.toml")]
    pub(crate) config: PathBuf,
    /// Prints the answer as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct FitArguments {
    /// What `run --out` kept.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The sensor: `sensor`, `sensor#instance` or `comm(pid)/sensor#instance`.
    #[arg(value_name = "SENSOR")]
    pub(crate) sensor: String,
    /// T; nine tenths of the mean distance by default.
    #[arg(long, value_name = "LENGTH", value_parser = length)]
    pub(crate) period: Option<Nanos>,
    /// Prints the fit as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

/// A length of time with its unit, as in `overhear.toml`.
fn length(text: &str) -> Result<Nanos, String> {
    let length = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write for example 50ms"))?;
    u64::try_from(length.as_nanos())
        .map(Nanos::from_ns)
        .map_err(|_| "it is longer than 584 years".to_string())
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Prints the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a JSON document goes.
#[derive(Clone, Debug)]
pub(crate) enum JsonTarget {
    Stdout,
    File(PathBuf),
}

impl JsonTarget {
    pub(crate) fn parse(value: &OsString) -> Self {
        if value == "-" {
            Self::Stdout
        } else {
            Self::File(value.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
