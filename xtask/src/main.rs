// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs behind `make`.
//!
//! A verb goes in; what it needs from the operating system is installed ([`packages`]); cargo, the
//! C compilers and Overhear itself are run ([`verbs`], [`native`], [`ada`], [`python`]); what their
//! tests say is counted ([`tally`]) and printed as one last line. The Makefile holds the names of
//! the verbs only.
//!
//! Exit status: 0 done; 1 something failed; 2 no such verb; 5 something is missing on this machine
//! that the verb cannot install itself, named in the last message.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod ada;
mod bench;
mod circles;
mod examples;
mod exceptions;
mod foreign_source;
mod install;
mod kernels;
mod layers;
mod manifests;
mod manual;
mod mutants;
mod names;
mod native;
mod notices;
mod packages;
mod posix;
mod python;
mod ranges;
mod references;
mod shell;
mod site;
mod sizes;
mod skips;
mod smco;
mod sources;
mod suites;
mod tally;
mod tools;
mod verbs;
mod workspace;

use std::env;
use std::process::ExitCode;

use crate::shell::Missing;
use crate::verbs::Verb;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let Some(verb) = Verb::from_name(&name) else {
        let names: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
        eprintln!(
            "xtask: there is no verb {name:?}; the verbs are {}.",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    let arguments: Vec<_> = arguments.collect();
    match verb.perform(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", verb.name());
            ExitCode::from(if error.is::<Missing>() { 5 } else { 1 })
        }
    }
}
