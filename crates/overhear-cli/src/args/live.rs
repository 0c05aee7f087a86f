// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of verbs that connect to a running directory.

use std::path::PathBuf;

use crate::format::Format;
use clap::{Args, ValueEnum};
use overhear_event::Nanos;
use overhear_posixtrace::StreamSelection;
use overhear_session::budget::{parse_target, Overhead};

use super::{positive, DiskArguments};

/// The help about globs.
const GLOBS: &str = "\
GLOB is TASK/SENSOR#INSTANCE; each part may hold `*`, `?`, `[abc]` and `{this,that}`. TASK is a \
process' name, its id, or name(id). Parts that are left out match anything: `queue` is every \
sensor `queue`, `server/` every sensor of all processes `server`, `4711/queue#in` is one sensor.";

#[derive(Debug, Args)]
pub(crate) struct DirectoryArguments {
    /// The socket of the directory. Default: that of OVERHEAR_DIRECTORY, of this user, or of the
    /// system.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Only sensors whose type matches this glob.
    #[arg(long = "type", value_name = "GLOB")]
    pub(crate) type_id: Option<String>,
}

/// The form of a verb's output.
#[derive(Debug, Args)]
pub(crate) struct FormArguments {
    /// The form of the output; JSON of `attach` is one document per line (see docs/live.md).
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Short for `--format json`.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormArguments {
    pub(crate) const fn format(&self) -> Format {
        form(self.format, self.json)
    }
}

impl TopArguments {
    /// Whether sensors of programs are required, and so a directory.
    pub(crate) const fn wants_sensors(&self) -> bool {
        self.names.is_some()
            || self.pid.is_none()
            || self.config.is_some()
            || self.budget.is_some()
            || self.directory.type_id.is_some()
            || self.directory.socket.is_some()
    }

    pub(crate) const fn format(&self) -> Format {
        form(self.format, self.json)
    }
}

const fn form(format: Format, json: bool) -> Format {
    if json {
        Format::Json
    } else {
        format
    }
}

#[derive(Debug, Args)]
#[command(after_help = GLOBS)]
pub(crate) struct ListArguments {
    /// A glob of sensors. Default: all.
    #[arg(value_name = "GLOB", default_value = "*")]
    pub(crate) names: String,
    /// Lists the sensors that the directory refused or deferred, with the reason. Those of other
    /// users are shown to root and to the directory's own user.
    #[arg(long, conflicts_with_all = ["names", "type_id"])]
    pub(crate) not_connected: bool,
    /// Lists what can be sampled on this machine (see docs/sampling.md); needs no directory.
    #[arg(long, conflicts_with_all = ["names", "type_id", "not_connected", "socket"])]
    pub(crate) data_sources: bool,
    #[command(flatten)]
    pub(crate) form: FormArguments,
    #[command(flatten)]
    pub(crate) directory: DirectoryArguments,
}

#[derive(Debug, Args)]
#[command(after_help = GLOBS)]
pub(crate) struct AttachArguments {
    /// A glob of sensors.
    #[arg(value_name = "GLOB")]
    pub(crate) names: String,
    #[command(flatten)]
    pub(crate) form: FormArguments,
    /// The first element of existing sensors. Later sensors are read from their first element.
    #[arg(long, value_enum, default_value_t = Start::Now)]
    pub(crate) start: Start,
    /// Ends after this many elements.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Ends after this time: 500ms, 2s, 3m.
    #[arg(long, value_name = "LENGTH", value_parser = positive)]
    pub(crate) duration: Option<Nanos>,
    /// Ends when all matching sensors have ended.
    #[arg(long)]
    pub(crate) until_ended: bool,
    /// Switches off the sensors that no monitor needs, as far as this user may. At the end they are
    /// switched back.
    #[arg(long)]
    pub(crate) disable_unused: bool,
    /// Keeps the cost of the attached sensors at this share of the CPU time that their processes
    /// take without it, from now on, by switching sensors off and on. Counts what was not observed
    /// (see docs/budget.md).
    #[arg(long, value_name = "PER CENT", value_parser = parse_target, allow_hyphen_values = true)]
    pub(crate) budget: Option<Overhead>,
    /// Reads the budget and its rules for sensors from this file; `--budget` overrides its target.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// In CSV, only these fields, as one table for all types.
    #[arg(long, value_name = "FIELD,...", value_delimiter = ',')]
    pub(crate) fields: Option<Vec<String>>,
    /// Also writes a recording to this folder, for `overhear report`.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) disk: DiskArguments,
    /// Prints nothing but errors on standard error.
    #[arg(long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArguments,
}

/// The first element of sensors that exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Start {
    /// From the next element.
    Now,
    /// From the oldest element in the buffer.
    Oldest,
}

#[derive(Debug, Args)]
#[command(after_help = GLOBS)]
pub(crate) struct TopArguments {
    /// A glob of sensors. Default: all.
    #[arg(value_name = "GLOB")]
    pub(crate) names: Option<String>,
    /// Interval of the picture.
    #[arg(long, value_name = "LENGTH", default_value = "1s", value_parser = positive)]
    pub(crate) interval: Nanos,
    /// Time over which rates and intervals are computed.
    #[arg(long, value_name = "LENGTH", default_value = "5s", value_parser = positive)]
    pub(crate) window: Nanos,
    /// Tracks the threads of this running process by kernel sensors. Without GLOB, --type, --socket
    /// and --config it needs no directory.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Draws the distributions of the updates in this file: of a field's values, and of plug-ins
    /// (see docs/displays.md). The budget of the file is kept.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Loads no plug-in of --config: a file with updates of plug-ins is refused.
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Keeps the cost of the shown sensors at this share of the CPU time that their processes take
    /// without it, from now on, by switching sensors off and on (see docs/budget.md). Default: the
    /// budget of `--config`.
    #[arg(long, value_name = "PER CENT", value_parser = parse_target, allow_hyphen_values = true)]
    pub(crate) budget: Option<Overhead>,
    /// Reads for one window, prints the picture once, and ends.
    #[arg(long)]
    pub(crate) once: bool,
    /// The form of the picture of `--once`.
    #[arg(long, value_enum, requires = "once", default_value_t)]
    format: Format,
    /// Short for `--format json`.
    #[arg(long, requires = "once", conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArguments,
}

/// The help about the selection of trace streams.
const STREAMS: &str = "\
Without STREAM, lists the active trace streams of all processes whose trace areas this user may read. With STREAM, \
prints the events of existing streams, from the oldest one in the buffer on, until the streams end. Reading takes no \
event away from the stream's own readers. Exit status: 3 if events were lost, or there is no such process or stream; \
5 if no directory answers, or it refuses.";

#[derive(Debug, Args)]
#[command(after_help = STREAMS)]
pub(crate) struct PosixArguments {
    /// The streams of a process, PID, or those with a name, PID/NAME.
    #[arg(value_name = "STREAM", value_parser = selection)]
    pub(crate) streams: Option<StreamSelection>,
    /// Also prints the events of streams that appear later, until the process ends; without STREAM,
    /// of all processes, until interrupted.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Ends after this many events.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Ends after this time: 500ms, 2s, 3m.
    #[arg(long, value_name = "LENGTH", value_parser = positive)]
    pub(crate) duration: Option<Nanos>,
    #[command(flatten)]
    pub(crate) form: FormArguments,
    /// Prints nothing but errors on standard error.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The socket of the directory. Default: that of OVERHEAR_DIRECTORY, of this user, or of the
    /// system.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

fn selection(text: &str) -> Result<StreamSelection, String> {
    text.parse()
}

#[derive(Debug, Args)]
#[command(after_help = GLOBS)]
pub(crate) struct SwitchArguments {
    /// A glob of sensors.
    #[arg(value_name = "GLOB")]
    pub(crate) names: String,
    #[command(flatten)]
    pub(crate) directory: DirectoryArguments,
}
