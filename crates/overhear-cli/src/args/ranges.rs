// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arguments of `overhear ranges`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use overhear_session::ranges::RangesBudget;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct RangesArguments {
    #[command(subcommand)]
    pub(crate) verb: Option<RangesCommand>,
    /// Overhead that observation may cost, in per cent of the program's own CPU time: `10%`. `full`
    /// records every update, `off` none.
    #[arg(long, value_name = "BUDGET", default_value = "full", value_parser = RangesBudget::from_str, allow_hyphen_values = true)]
    pub(crate) budget: RangesBudget,
    /// Observes instrumented libraries of programs that are not instrumented themselves: the
    /// runtime is preloaded.
    #[arg(long)]
    pub(crate) libraries: bool,
    /// Shows variables that were never updated, too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Prints the report as JSON to a file or to standard output. In the latter case the program's
    /// output goes to standard error.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RangesCommand {
    /// Compares the ranges of two runs, from reports that `--json=FILE` has written.
    Diff(DiffArguments),
}

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// The report of the first run.
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,
    /// The report of the second run.
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,
    /// Prints the differences as JSON, to standard output or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<OsString>,
}
