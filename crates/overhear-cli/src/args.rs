// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: verbs, flags and their help.

mod live;
mod naps;
pub(crate) mod ranges;
pub(crate) mod renamed;
mod sampling;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use overhear_event::Nanos;
use overhear_metrics::automaton::Metric;
use overhear_page::TimeRange;
use overhear_session::budget::{parse_target, BudgetSettings, Overhead};
use overhear_session::calibrate::{CalibratedSensor, Calibration};
use overhear_session::config::Execution;
use overhear_session::disk_limits::{parse_rate, parse_size, ByteRate, DiskLimits};
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::metrics::ElementCost;
use overhear_session::record::RecordOptions;
use overhear_session::run_request::RunRequest;
use overhear_session::session::{self, KernelBackend, KernelSensor, NamedSensors, Probe};
use overhear_session::updates::UpdateSpecification;

pub(crate) use live::{
    AttachArguments, DirectoryArguments, ListArguments, PosixArguments, Start, SwitchArguments,
    TopArguments,
};
pub(crate) use naps::NapsArguments;
pub(crate) use sampling::SamplingArguments;

/// Runtime monitoring for Linux that listens without interrupting.
#[derive(Debug, Parser)]
#[command(name = "overhear", version, propagate_version = true)]
#[command(term_width = 80)]
#[command(
    after_help = "Exit status: 0 complete; 1 a constraint is violated; 2 usage; 3 inconclusive, something was missed; \
                        4 admission refused; 5 a permission or kernel feature is missing; 126 or 127 the program \
                        cannot be run. A program's own non-zero status wins over 0, 1 and 3."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a program and reports on it and its children, from its start to its end.
    Run(RunArguments),
    /// Records running processes, threads, cgroups, or the whole machine.
    Record(RecordArguments),
    /// Reports on a recording, without changing it. Half-written packets of a killed recorder are
    /// left out.
    Report(ReportArguments),
    /// Cuts half-written packets of a killed recorder, so that other tools can read the recording.
    /// No other verb changes a recording.
    Repair(RepairArguments),
    /// Shows one recording or two on a local web page, also while the recording is being written.
    /// Ends when it is interrupted.
    View(ViewArguments),
    /// Measures a recording by built-in metrics or by metrics in files.
    Metrics(MetricsArguments),
    /// Judges a recording or a running program by constraints. Exit status: 0 held, 1 violated, 3
    /// inconclusive.
    Check(CheckArguments),
    /// Writes a recording in the format of another tool.
    Export(ExportArguments),
    /// Converts the trace of another tracer (CTF of LTTng, perf, ...) into a recording, by
    /// libbabeltrace2.
    Import(ImportArguments),
    /// Decides before the start whether every element will be evaluated in time. Exit status: 4
    /// refused, 5 not possible for this user or on this machine.
    Admit(AdmitArguments),
    /// Finds the arrival bounds (T, D, tau) that cover the elements of a sensor in a recording.
    FitRate(FitRateArguments),
    /// Computes worst-case response times of periodic tasks. Exit status: 1 if a deadline is
    /// missed.
    ResponseTimes(ResponseTimesArguments),
    /// Finds allocations that a program does not access for a long time, within a budget.
    Naps(NapsArguments),
    /// Runs a program that overhear-clang has compiled, and reports which values its integer
    /// variables take.
    Ranges(ranges::RangesArguments),
    /// Lists the sensors of a directory.
    List(ListArguments),
    /// Prints the elements of sensors as they are written, also of sensors that appear later.
    Attach(AttachArguments),
    /// Shows the current rates, losses and values of sensors, and the current state of threads.
    Top(TopArguments),
    /// Lists the active POSIX trace streams of running programs, or prints their events.
    Posix(PosixArguments),
    /// Switches sensors of running programs on.
    Enable(SwitchArguments),
    /// Switches sensors of running programs off; that costs the program a load and a branch per
    /// write.
    Disable(SwitchArguments),
    /// Measures the cost of sensors on this machine, so that reports contain the cost of observing.
    Calibrate(CalibrateArguments),
    /// Lists the features that work for this user on this machine, and how to enable the others.
    Doctor(DoctorArguments),
    /// Prints the completions for a shell.
    Completions(CompletionsArguments),
    /// Prints the manual page of the command, or writes one per verb into a folder.
    Man(ManArguments),
}

#[derive(Debug, Args)]
#[command(after_help = sensors_help())]
pub(crate) struct RunArguments {
    /// Keeps the trace and report.html in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Writes no report.html; `overhear report DIR --html FILE` writes it later.
    #[arg(long, requires = "out")]
    pub(crate) no_page: bool,
    /// Which events of the kernel to record.
    #[arg(long, value_enum, default_value_t = KernelLevel::Sched)]
    pub(crate) kernel: KernelLevel,
    /// Source of kernel events. If a named one does not work, nothing is run.
    #[arg(long, value_enum, default_value_t = BackendArgument::Auto)]
    pub(crate) backend: BackendArgument,
    /// Kernel sensors besides scheduling; they need BPF. If a named one does not work, nothing is
    /// run. `all` selects every sensor of this kernel. If the list names a scheduling sensor, the
    /// other scheduling sensors are off: `sched_switch` alone has no wake-ups.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = NamedSensors::from_str)]
    pub(crate) kernel_sensors: Vec<NamedSensors>,
    /// A function of programs as a sensor: `FILE:SYMBOL`, or `FILE:SYMBOL:return`; may be repeated.
    /// FILE is a path, a program in PATH or a library like `libc.so.6`, SYMBOL a name, also as in
    /// C++ and Rust, an address like `0x1139`, or a line of source like `server.c@120`.
    #[arg(long, value_name = "PLACE", value_parser = Probe::function)]
    pub(crate) probe: Vec<Probe>,
    /// A static probe (USDT) of programs as a sensor: `FILE:PROVIDER:NAME`; may be repeated.
    #[arg(long, value_name = "PLACE", value_parser = Probe::usdt)]
    pub(crate) usdt: Vec<Probe>,
    #[command(flatten)]
    pub(crate) points: Points,
    /// Shows the run on a local web page and prints its address. The page stays after the run until
    /// you interrupt it.
    #[arg(long)]
    pub(crate) view: bool,
    /// The socket of the run's directory, for `overhear list`, `attach` and `top`. The file must
    /// not exist.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Judges the run by the constraints in this file, while it runs (see docs/verdicts.md). The
    /// exit status is 1 if one is violated. Default: the constraints of `--config`.
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// Writes the verdicts as JUnit XML to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Measures the run: a built-in metric, or a file with one (see docs/metrics.md). The required
    /// kernel sensors are switched on.
    #[arg(long = "metric", value_name = "NAME|FILE")]
    pub(crate) metrics: Vec<String>,
    /// Switches off the sensors of the program that no metric, constraint, update or monitor needs.
    /// A monitor is that of --config, or one that is attached to --socket. Wake-ups are recorded
    /// only if they are needed or if --kernel-sensors names them.
    #[arg(long)]
    pub(crate) disable_unused: bool,
    /// Runs the monitor of this file on the terms of its admission, and its reactions (see
    /// docs/executors.md and docs/reactions.md). Exit status: 4 refused, 5 without the required
    /// privilege. The metrics and constraints of the file apply, with or without a monitor, and so
    /// do its `[[probe]]` entries and those of `--check`.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Runs no program and no plug-in of --config and --check: reactions with `exec` or `function`
    /// are disabled, a file with updates of plug-ins is refused.
    #[arg(long, conflicts_with = "updates")]
    pub(crate) no_exec: bool,
    /// Measures the execution times of the updates of --config, without a guarantee, and suggests
    /// WCETs and a reservation as a file for `overhear admit`.
    #[arg(long, requires = "config")]
    pub(crate) measure_wcet: bool,
    /// Prints the report as JSON to a file or to standard output. In the latter case the program's
    /// output goes to standard error.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// Calls an update of a plug-in; without a name, all of its updates (see docs/monitors.md). May
    /// be repeated.
    #[arg(long = "update", value_name = "FILE.so[:NAME][=ARGUMENT]", value_parser = update)]
    pub(crate) updates: Vec<UpdateSpecification>,
    /// The costs of sensors, a file of `overhear calibrate --output FILE`. Default: the calibration
    /// of this CPU and kernel.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Subtracts the cost of observing from the times of the report (see docs/compensation.md).
    #[arg(long)]
    pub(crate) compensate: bool,
    /// Keeps the cost of observing at this share of the CPU time that the program takes without it,
    /// by switching sensors off and on, and counts what was not observed (see docs/budget.md).
    #[arg(long, value_name = "PER CENT", value_parser = parse_target, allow_hyphen_values = true)]
    pub(crate) budget: Option<Overhead>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    #[command(flatten)]
    pub(crate) disk: DiskArguments,
    /// When the run ends: `ended` with the program, `all-ended` with the last process that the
    /// program has created, for example a daemon. Later signals go to these processes.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Until::Ended)]
    pub(crate) until: Until,
    /// Prints no progress line and no path of the report; tables are printed.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

impl RunArguments {
    const fn backend(&self) -> KernelBackend {
        match self.kernel {
            KernelLevel::Off => KernelBackend::Off,
            KernelLevel::Sched => self.backend.backend(),
        }
    }

    /// # Errors
    /// [`SessionError`] if the options of the sampler do not fit together.
    pub(crate) fn request(&self) -> Result<RunRequest, SessionError> {
        Ok(RunRequest {
            command: self.command.clone(),
            out: self.out.clone(),
            kernel: self.backend(),
            kernel_sensors: NamedSensors::joined(&self.kernel_sensors),
            probes: self.points.with_programs(&self.probe, &self.usdt),
            socket: self.socket.clone(),
            check: self.check.clone(),
            config: self.config.clone(),
            measure_wcet: self.measure_wcet,
            execution: execution(self.no_exec),
            metrics: self.metrics.clone(),
            updates: self.updates.clone(),
            disable_unused: self.disable_unused,
            calibration: self.calibration.clone(),
            compensate: self.compensate,
            budget: self.budget,
            limits: self.disk.limits(),
            until: self.until.of_session(),
            samplers: self.sampling.requests()?,
        })
    }
}

/// Limits of a recording on the disk.
#[derive(Clone, Debug, Args)]
pub(crate) struct DiskArguments {
    /// Bytes that the recording grows by in any second, at most: 10MB/s, 500KiB/s. Elements that
    /// are left out are counted (see docs/trace.md).
    #[arg(long, value_name = "RATE", value_parser = parse_rate, requires = "out", allow_hyphen_values = true)]
    disk_budget: Option<ByteRate>,
    /// Size of the recording, at most: 500MB, 2GiB. The oldest elements are removed and counted.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "out", allow_hyphen_values = true)]
    max_size: Option<u64>,
}

impl DiskArguments {
    pub(crate) const fn limits(&self) -> DiskLimits {
        DiskLimits {
            rate: self.disk_budget,
            max_bytes: self.max_size,
        }
    }
}

/// Tracepoints and functions of the kernel that become sensors.
#[derive(Debug, Args)]
pub(crate) struct Points {
    /// A tracepoint as a sensor: `SYSTEM:NAME` with the fields of its event, or `NAME` alone with
    /// the arguments that the kernel passes; may be repeated.
    #[arg(long, value_name = "TRACEPOINT", value_parser = Probe::tracepoint)]
    pub(crate) tracepoint: Vec<Probe>,
    /// A function of the kernel as a sensor: `FUNCTION` with its arguments, or `FUNCTION:return`
    /// with its result; may be repeated.
    #[arg(long, value_name = "FUNCTION", value_parser = Probe::kernel_function)]
    pub(crate) kprobe: Vec<Probe>,
    /// The return of a function of the kernel, as `--kprobe FUNCTION:return`.
    #[arg(long, value_name = "FUNCTION", value_parser = Probe::kernel_return)]
    pub(crate) kretprobe: Vec<Probe>,
}

impl Points {
    /// All named probes, those of programs first.
    pub(crate) fn with_programs(&self, probes: &[Probe], usdt: &[Probe]) -> Vec<Probe> {
        let own = [&self.tracepoint, &self.kprobe, &self.kretprobe];
        let own = own.into_iter().flatten();
        probes.iter().chain(usdt).chain(own).cloned().collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelLevel {
    /// None: sensors of programs only.
    Off,
    /// Scheduling: context switches, wake-ups, lives of threads.
    Sched,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// The program has ended. Its children are not recorded after that.
    Ended,
    /// The program and all processes that it has created have ended; it needs kernel sensors.
    AllEnded,
}

impl Until {
    pub(crate) const fn of_session(self) -> session::Until {
        match self {
            Self::Ended => session::Until::Ended,
            Self::AllEnded => session::Until::AllEnded,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArgument {
    /// BPF, else perf records, else nothing; the report names the choice and its reason.
    Auto,
    /// BPF programs on the scheduler's tracepoints (needs `CAP_BPF` and `CAP_PERFMON`).
    Bpf,
    /// perf context-switch records (works for a user's own programs; no wake-ups).
    Perf,
}

impl BackendArgument {
    const fn backend(self) -> KernelBackend {
        match self {
            Self::Auto => KernelBackend::Auto,
            Self::Bpf => KernelBackend::Bpf,
            Self::Perf => KernelBackend::Perf,
        }
    }
}

/// The meaning of `--no-exec`.
pub(crate) const fn execution(no_exec: bool) -> Execution {
    match no_exec {
        true => Execution::Disabled,
        false => Execution::Allowed,
    }
}

/// The help about kernel sensors.
fn sensors_help() -> String {
    let lines = KernelSensor::all()
        .map(|sensor| format!("  {:<15}{}\n", sensor.name(), sensor.description()));
    format!(
        "Kernel sensors (docs/kernel-sensors.md):\n{}",
        lines.collect::<String>()
    )
}

#[derive(Debug, Args)]
#[command(after_help = sensors_help())]
#[command(group = clap::ArgGroup::new("whom").required(true).multiple(true))]
pub(crate) struct RecordArguments {
    /// A process, with all that it creates; may be repeated.
    #[arg(long, value_name = "PID", group = "whom")]
    pub(crate) pid: Vec<u32>,
    /// A single thread; may be repeated.
    #[arg(long, value_name = "TID", group = "whom")]
    pub(crate) tid: Vec<u32>,
    /// The processes in this cgroup (of the unified hierarchy) and below it; may be repeated.
    #[arg(long, value_name = "PATH", group = "whom")]
    pub(crate) cgroup: Vec<PathBuf>,
    /// All threads of this machine.
    #[arg(long, group = "whom")]
    pub(crate) all: bool,
    /// Kernel sensors besides scheduling; they need BPF. If a named one does not work, nothing is
    /// recorded. `all` selects every sensor of this kernel. If the list names a scheduling sensor,
    /// the other scheduling sensors are off: `sched_switch` alone has no wake-ups.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = NamedSensors::from_str)]
    pub(crate) kernel_sensors: Vec<NamedSensors>,
    /// A function of programs as a sensor: `FILE:SYMBOL`, or `FILE:SYMBOL:return`; may be repeated.
    /// FILE is a path, a program in PATH or a library like `libc.so.6`, SYMBOL a name, also as in
    /// C++ and Rust, an address like `0x1139`, or a line of source like `server.c@120`.
    #[arg(long, value_name = "PLACE", value_parser = Probe::function)]
    pub(crate) probe: Vec<Probe>,
    /// A static probe (USDT) of programs as a sensor: `FILE:PROVIDER:NAME`; may be repeated.
    #[arg(long, value_name = "PLACE", value_parser = Probe::usdt)]
    pub(crate) usdt: Vec<Probe>,
    #[command(flatten)]
    pub(crate) points: Points,
    /// Measures the recording: a built-in metric, or a file with one (see docs/metrics.md). The
    /// required kernel sensors are switched on.
    #[arg(long = "metric", value_name = "NAME|FILE")]
    pub(crate) metrics: Vec<String>,
    /// Source of kernel events. If a named one does not work, nothing is recorded.
    #[arg(long, value_enum, default_value_t = BackendArgument::Auto)]
    pub(crate) backend: BackendArgument,
    /// Size of all buffers of the kernel together, in bytes. Default: 4.25 MiB per CPU, and 2 MiB
    /// for each further sensor.
    #[arg(long, value_name = "BYTES")]
    pub(crate) buffer: Option<u64>,
    /// Ends after this time: 500ms, 2s, 3m. Default: the end of the named processes and threads, or
    /// an interrupt.
    #[arg(long, value_name = "LENGTH", value_parser = positive)]
    pub(crate) duration: Option<Nanos>,
    /// Keeps the trace and report.html in this directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Writes no report.html; `overhear report DIR --html FILE` writes it later.
    #[arg(long, requires = "out")]
    pub(crate) no_page: bool,
    /// Prints the report as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// The costs of sensors, a file of `overhear calibrate --output FILE`. Default: the calibration
    /// of this CPU and kernel.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Subtracts the cost of observing from the times of the report (see docs/compensation.md).
    #[arg(long)]
    pub(crate) compensate: bool,
    /// Keeps the cost of observing at this share of the CPU time that the recorded processes take
    /// without it, by switching kernel sensors and probes off and on (see docs/budget.md). Needs
    /// BPF.
    #[arg(long, value_name = "PER CENT", value_parser = parse_target, allow_hyphen_values = true)]
    pub(crate) budget: Option<Overhead>,
    /// Reads samplers, the budget and its rules for sensors from this file; `--budget` overrides
    /// its target.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    #[command(flatten)]
    pub(crate) disk: DiskArguments,
    /// Prints no progress line and no path of the report; tables are printed.
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl RecordArguments {
    pub(crate) fn options(
        &self,
        calibration: Option<Calibration>,
        metrics: Vec<Metric>,
        budget: Option<BudgetSettings>,
    ) -> Result<RecordOptions, SessionError> {
        Ok(RecordOptions {
            budget,
            calibration,
            metrics,
            compensate: self.compensate,
            pids: self.pid.clone(),
            tids: self.tid.clone(),
            cgroups: self.cgroup.clone(),
            all: self.all,
            sensors: NamedSensors::joined(&self.kernel_sensors),
            probes: self.points.with_programs(&self.probe, &self.usdt),
            backend: self.backend.backend(),
            buffer_bytes: self.buffer,
            duration: self.duration,
            out: self.out.clone(),
            limits: self.disk.limits(),
            command: std::env::args_os().collect(),
            progress: crate::progress::unless(self.quiet),
            samplers: self.sampling.requests()?,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct RepairArguments {
    /// The folder of `run --out`. It must belong to root or to this user.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// The folder of `run --out`, or a POSIX trace log.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Calls an update of a plug-in with the recorded elements; without a name, all of its updates
    /// (see docs/monitors.md). May be repeated.
    #[arg(long = "update", value_name = "FILE.so[:NAME][=ARGUMENT]", value_parser = update)]
    pub(crate) updates: Vec<UpdateSpecification>,
    /// Writes the page to this file. A link to a file is not followed.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// The costs of sensors, a file of `overhear calibrate --output FILE`. Default: the calibration
    /// in the recording.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Subtracts the cost of observing from all times (see docs/compensation.md).
    #[arg(long)]
    pub(crate) compensate: bool,
    /// A second recording, which the page compares with this one, on the same scale.
    #[arg(long, value_name = "DIR", requires = "html")]
    pub(crate) compare: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: RangeArguments,
    /// Prints the report as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ViewArguments {
    /// The folder of `run --out`, also of a run that has not ended, or a POSIX trace log.
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) directory: PathBuf,
    /// A second recording, which the page compares with the first, on the same scale.
    #[arg(value_name = "OTHER")]
    pub(crate) compare: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: RangeArguments,
}

/// The part of a run that a time-line shows.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RangeArguments {
    /// Begin of the page's time-line, from the begin of the run: 500ms, 2s, 3m. Tables have the
    /// whole run.
    #[arg(long, value_name = "TIME", value_parser = length)]
    from: Option<Nanos>,
    /// End of the page's time-line, from the begin of the run.
    #[arg(long, value_name = "TIME", value_parser = positive)]
    to: Option<Nanos>,
}

impl RangeArguments {
    /// # Errors
    /// [`SessionError`] if it ends before it begins.
    pub(crate) fn range(self) -> Result<TimeRange, SessionError> {
        let from = self.from.unwrap_or(Nanos::ZERO);
        match self.to {
            Some(to) if to <= from => {
                let message = format!("--to {to} is not after --from {from}; name a later time");
                Err(SessionError::new(ErrorKind::Usage, message))
            }
            to => Ok(TimeRange { from, to }),
        }
    }

    pub(crate) const fn is_named(self) -> bool {
        self.from.is_some() || self.to.is_some()
    }
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// The folder of `run --out`, or a POSIX trace log.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    pub(crate) to: ExportFormat,
    /// The file to write; `-` is standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Writes times without the cost of observing (see docs/compensation.md).
    #[arg(long)]
    pub(crate) compensate: bool,
    /// With csv: one sensor, whose fields get columns of their own; also one of the kernel (`ipc`),
    /// or a probe (`probe/SYMBOL`).
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
pub(crate) struct MetricsArguments {
    /// The folder of `run --out`, or a POSIX trace log.
    #[arg(value_name = "DIR", required_unless_present = "dot")]
    pub(crate) directory: Option<PathBuf>,
    /// A built-in metric, or a file with one (see docs/metrics.md). Default: all built-in metrics
    /// whose kernel sensors were on.
    #[arg(long = "metric", value_name = "NAME|FILE")]
    pub(crate) metrics: Vec<String>,
    /// A file whose `[[metric]]` entries are measured as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Subtracts this length for each element of a task in a measurement; `calibrated` subtracts
    /// the calibrated cost of the element's sensor.
    #[arg(long, value_name = "LENGTH|calibrated", value_parser = element_cost, default_value = "0s")]
    pub(crate) element_cost: ElementCost,
    /// Subtracts the cost of observing from all times, also delays by other threads (see
    /// docs/compensation.md).
    #[arg(long, conflicts_with = "element_cost")]
    pub(crate) compensate: bool,
    /// Prints each measurement: its task, length, begin, end, and number of elements.
    #[arg(long)]
    pub(crate) measurements: bool,
    /// Prints the automata of the metrics for `dot` of Graphviz; needs no recording.
    #[arg(long, conflicts_with_all = ["directory", "json", "measurements", "compensate", "element_cost"])]
    pub(crate) dot: bool,
    /// Prints the results as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The folder of `run --out`, or a POSIX trace log.
    #[arg(
        value_name = "DIR",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    pub(crate) directory: Option<PathBuf>,
    /// The file with the constraints (see docs/verdicts.md).
    #[arg(long, value_name = "FILE", default_value = "overhear.toml")]
    pub(crate) config: PathBuf,
    /// Prints the verdicts as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// Writes the verdicts as JUnit XML to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Runs no program and no plug-in of --config: reactions with `exec` or `function` are
    /// disabled, a file with updates of plug-ins is refused.
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Judges this program while it runs, as `run --check FILE` does; --json is then the report of
    /// the run.
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

impl RunArguments {
    /// The run in which a program is checked.
    pub(crate) fn to_check(check: &CheckArguments) -> Self {
        let option = |name: &str, value: &OsStr| {
            let mut option = OsString::from(name);
            option.push("=");
            option.push(value);
            option
        };
        let mut arguments = vec![option("--check", check.config.as_os_str())];
        let junit = check.junit.as_deref();
        arguments.extend(junit.map(|file| option("--junit", file.as_os_str())));
        arguments.extend(check.json.as_deref().map(|file| option("--json", file)));
        arguments.extend(check.no_exec.then(|| "--no-exec".into()));
        arguments.push("--".into());
        arguments.extend(check.command.iter().cloned());
        let command = clap::Command::new("run").no_binary_name(true);
        let matches = Self::augment_args(command).get_matches_from(arguments);
        Self::from_arg_matches(&matches).expect("these are options of a run")
    }
}

#[derive(Debug, Args)]
pub(crate) struct ResponseTimesArguments {
    /// The folder of `run --out`, or a POSIX trace log. Overheads that the file does not give are
    /// measured in it, and response times observed.
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// The tasks; see docs/response-times.md.
    #[arg(long, value_name = "FILE", default_value = "overhear.toml")]
    pub(crate) config: PathBuf,
    /// Subtracts this length for each element of a task in a measurement; `calibrated` subtracts
    /// the calibrated cost of the element's sensor.
    #[arg(long, value_name = "LENGTH|calibrated", value_parser = element_cost, default_value = "0s")]
    pub(crate) element_cost: ElementCost,
    /// Subtracts the cost of observing from all times of the recording first (see
    /// docs/compensation.md).
    #[arg(long, conflicts_with = "element_cost")]
    pub(crate) compensate: bool,
    /// Prints the response times as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// A folder with one trace, or with several in it and in folders below, which are listed and
    /// become one recording; or a POSIX trace log.
    #[arg(value_name = "TRACE")]
    pub(crate) foreign: PathBuf,
    /// The folder of the new recording.
    #[arg(long, short, value_name = "DIR", required_unless_present = "send")]
    pub(crate) out: Option<PathBuf>,
    /// Ends the process that reads TRACE if no event comes from it for this time: 500ms, 2s, 3m;
    /// 60s by default. What was read before is imported.
    #[arg(long, value_name = "LENGTH", value_parser = positive)]
    pub(crate) timeout: Option<Nanos>,
    /// Sends the events of TRACE to standard output: the process that reads it.
    #[arg(long, hide = true, conflicts_with_all = ["out", "timeout"])]
    pub(crate) send: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AdmitArguments {
    /// The monitor, its sensors and updates; see docs/admission.md.
    #[arg(long, value_name = "FILE", default_value = "overhear.toml")]
    pub(crate) config: PathBuf,
    /// Runs no program and no plug-in of --config: reactions with `exec` or `function` are
    /// disabled, a file with updates of plug-ins is refused.
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Prints the answer as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct FitRateArguments {
    /// The folder of `run --out`, or a POSIX trace log.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The sensor: `sensor`, `sensor#instance` or `comm(pid)/sensor#instance`; `kernel:NAME` for
    /// one of the kernel, on all CPUs.
    #[arg(value_name = "SENSOR")]
    pub(crate) sensor: String,
    /// T. Default: nine tenths of the mean distance.
    #[arg(long, value_name = "LENGTH", value_parser = length)]
    pub(crate) period: Option<Nanos>,
    /// Prints the fit as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}

/// An update of a plug-in, with its argument.
fn update(text: &str) -> Result<UpdateSpecification, std::convert::Infallible> {
    Ok(UpdateSpecification::parse(text))
}

/// A length of time with its unit, as in `overhear.toml`.
fn length(text: &str) -> Result<Nanos, String> {
    let length = humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write for example 50ms"))?;
    u64::try_from(length.as_nanos())
        .map(Nanos::from_ns)
        .map_err(|_| "it is longer than 584 years".to_string())
}

fn element_cost(text: &str) -> Result<ElementCost, String> {
    match text {
        "calibrated" => Ok(ElementCost::Calibrated),
        text => length(text).map(ElementCost::Length),
    }
}

/// A length of time that is not zero.
fn positive(text: &str) -> Result<Nanos, String> {
    match length(text)? {
        Nanos::ZERO => Err("it must be more than zero".to_string()),
        length => Ok(length),
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Examines the counters that samplers can count instead: the names that work here, why the
    /// others do not, how many fit at once, and whether programs read them without a system call.
    #[arg(long)]
    pub(crate) counters: bool,
    /// Prints the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArguments {
    /// Number of rounds; each round measures everything once.
    #[arg(long, value_name = "COUNT", default_value_t = 41, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub(crate) rounds: u64,
    /// Keeps the calibration in this file, instead of `overhear/calibration.json` in the user's
    /// cache (`$XDG_CACHE_HOME` or `~/.cache`), where `run`, `record` and `report` find it.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Prints the calibration as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// Measures this sensor of the kernel only; may be repeated. The costs of other sensors are
    /// then unknown.
    #[arg(long = "sensor", value_name = "NAME")]
    pub(crate) sensors: Vec<CalibratedSensor>,
    /// Answers each byte of standard input: the other process of a loop.
    #[arg(long, hide = true)]
    pub(crate) answer: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Writes overhear.1 and a page for each verb into this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
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
    fn command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
