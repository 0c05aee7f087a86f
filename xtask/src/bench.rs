// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verb `bench`: builds the package `benches` with the peers that build here, and runs it.
//!
//! The package is a workspace of its own, so that nobody else compiles the peers. One that does not
//! build, or whose Debian package is missing, is left out with a sentence.

use std::process::Command;

use anyhow::Result;

use crate::packages::{self, BUILD, PEERS};
use crate::shell;
use crate::workspace::Workspace;

/// Peers that cargo fetches and builds: features of the package.
const CRATES: [&str; 3] = ["tracy", "perfetto", "iceoryx2"];
/// The peer that Debian has.
const LTTNG: &str = "lttng";

/// Measures, and prints the figures. With a page as argument, keeps the tables in it.
pub(crate) fn bench(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut peers = CRATES.to_vec();
    match packages::ensure(&[PEERS]) {
        Ok(()) => peers.push(LTTNG),
        Err(reason) => println!("LTTng-UST is left out: {reason:#}"),
    }
    if !builds(workspace, &peers) {
        // Each alone, to find out which one it is.
        peers.retain(|peer| {
            let built = builds(workspace, &[peer]);
            if !built {
                println!("{peer} is left out: it does not build here (cargo says why above).");
            }
            built
        });
    }
    let mut command = cargo(workspace, "run", &peers);
    let json = workspace.target.join("benchmarks.json");
    command.arg("--").arg("--json").arg(&json);
    if let Some(page) = arguments.first() {
        command.arg("--keep").arg(workspace.root.join(page));
    }
    shell::run(&mut command)?;
    println!("\nThe figures for programs are in {}.", json.display());
    Ok(())
}

fn builds(workspace: &Workspace, peers: &[&str]) -> bool {
    shell::run(&mut cargo(workspace, "build", peers)).is_ok()
}

fn cargo(workspace: &Workspace, verb: &str, peers: &[&str]) -> Command {
    let mut command = shell::cargo(&workspace.root.join("benches"));
    command
        .env("CARGO_TARGET_DIR", workspace.target.join("benches"))
        .args([verb, "--release", "--features", &peers.join(",")]);
    command
}
