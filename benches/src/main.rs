// SPDX-License-Identifier: MIT OR Apache-2.0
//! What sensors and readers cost.
//!
//! Everything that is compared runs in one process (some of it in several, one after the other:
//! [`processes`]) and alternates in short batches ([`race`]): a hand-written floor, Overhear's
//! writers in C, C++ and Rust, registered with a directory of this process as a program's sensors
//! are, and other tools. The measured thread has a CPU of its own ([`machine`]); directories,
//! daemons, drains and readers run on another. Ratios are those of medians of the same race. If a
//! target exists, the tables show whether it is met; a missed target is no failure.
//!
//! `--only` runs one part (steady, off, posix, pairs, sleep, cold, first, reader, drain, evaluate),
//! for work on that part; `one-sleep` and `one-drain` are the parts that [`processes`] runs several
//! times.
#![allow(
    clippy::disallowed_types,
    reason = "the floor and the start lines of threads use shared words by hand"
)]

// Provides the C functions that the contenders call.
extern crate overhear as _;

mod cold;
mod evaluate;
mod figures;
mod floor;
mod hot;
mod machine;
mod native;
mod off;
mod pairs;
mod peers;
mod posix;
mod processes;
mod race;
mod reader;
mod sensors;

use std::fs;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use overhear_directory::{Directory, SOCKET_VARIABLE};
use overhear_stream::hardware_clock;

use crate::figures::Figures;
use crate::race::Outcome;

/// Enough batches for quartiles that are stable from run to run.
const ROUNDS: usize = 1001;

const USAGE: &str = "use [--rounds N] [--only PART] [--json FILE] [--keep PAGE]";

/// A race, or several of one kind.
type Part<'a> = &'a dyn Fn() -> Result<Vec<Outcome>>;

struct Arguments {
    rounds: usize,
    json: Option<PathBuf>,
    page: Option<PathBuf>,
    only: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut parsed = Self {
            rounds: ROUNDS,
            json: None,
            page: None,
            only: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--rounds" => parsed.rounds = value()?.parse().context("--rounds N")?,
                "--json" => parsed.json = Some(value()?.into()),
                "--keep" => parsed.page = Some(value()?.into()),
                "--only" => parsed.only = Some(value()?),
                _ => bail!("{word} is unknown; {USAGE}"),
            }
        }
        Ok(parsed)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    if hardware_clock().is_none() {
        println!("skipped: this CPU has no counter to stamp with, so there is nothing to compare");
        return Ok(());
    }
    let rounds = arguments.rounds;
    // Long races are repeated less, races with a large variance more.
    let (more, few) = (2 * rounds, rounds / 10 + 1);
    let only = arguments.only.as_deref();
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    let in_processes = |name: &str, part: &str, section, rounds| match wanted(name) {
        true => processes::race(part, section, rounds),
        false => Ok(Vec::new()),
    };
    let sleep = in_processes("sleep", "one-sleep", hot::AFTER_SLEEP, more)?;
    let drain = in_processes("drain", "one-drain", reader::DRAIN, 2 * few)?;

    let cpus = machine::settle()?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("directory.sock");
    let _directory = Directory::builder().start(&socket)?;
    std::env::set_var(SOCKET_VARIABLE, &socket);
    let off = off::switched_off(&socket)?;
    let (peers, skipped) = peers::start();
    let fifo = machine::occupy(cpus.measured)?;

    let parts: [(&str, Part<'_>); 10] = [
        ("steady", &|| hot::steady(rounds, &peers)),
        ("off", &|| Ok(off::off(rounds, &peers, &off))),
        ("posix", &|| posix::posix(rounds, &peers)),
        ("pairs", &|| pairs::pairs(rounds, cpus.others)),
        ("sleep", &|| Ok(sleep.clone())),
        ("cold", &|| hot::flushed(rounds)),
        ("first", &|| hot::first(few)),
        ("reader", &|| reader::copies(rounds)),
        ("drain", &|| Ok(drain.clone())),
        ("evaluate", &|| evaluate::evaluate(few, &socket)),
    ];
    let outcomes = match only {
        Some("one-sleep") => hot::after_sleep(rounds, &peers)?,
        Some("one-drain") => reader::drain(rounds, cpus.others)?,
        _ => {
            let mut outcomes = Vec::new();
            for (name, part) in parts {
                if wanted(name) {
                    outcomes.extend(part()?);
                }
            }
            outcomes
        }
    };
    let figures = Figures {
        machine: machine::describe(cpus, fifo)?,
        rounds,
        skipped,
        rows: figures::rows(&outcomes),
    };
    let tables = figures.tables();
    print!("{tables}");
    if let Some(file) = arguments.json {
        fs::write(file, serde_json::to_string_pretty(&figures)?)?;
    }
    if let Some(page) = arguments.page {
        let text = fs::read_to_string(&page).with_context(|| {
            format!(
                "cannot keep the tables in {}: give a page that exists and has the marks of figures",
                page.display()
            )
        })?;
        fs::write(page, figures::keep(&text, &tables)?)?;
    }
    Ok(())
}
