// SPDX-License-Identifier: MIT OR Apache-2.0
//! LTTng-UST: a tracepoint with one u64, recorded into a flight recorder.
//!
//! In that mode the tracer laps its buffer as a sensor laps its ring, so nothing is written to disk
//! and no event is dropped. The buffers are small enough for the caches.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use tempfile::TempDir;

use super::Peer;
use crate::native::PLACES;

const SESSION: &str = "overhear-bench";
const PATIENCE: Duration = Duration::from_secs(10);

extern "C" {
    fn lttng_on(elements: u64);
    fn lttng_tracef(elements: u64);
    static lttng_off: [unsafe extern "C" fn(u64); PLACES];
    fn lttng_is_on() -> i32;
}

/// The session, and the daemon if this process started it.
struct Session {
    home: TempDir,
    daemon: Option<Child>,
}

impl Session {
    fn command(&self) -> Command {
        let mut command = Command::new("lttng");
        command.env("LTTNG_HOME", self.home.path());
        command.arg("--no-sessiond");
        command
    }

    fn lttng(&self, arguments: &[&str]) -> Result<()> {
        let output = self.command().args(arguments).output()?;
        ensure!(
            output.status.success(),
            "`lttng {}` failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    fn answers(&self) -> bool {
        self.lttng(&["list"]).is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.lttng(&["destroy", "--no-wait", SESSION]);
        if let Some(daemon) = &mut self.daemon {
            // The daemon ends its consumers if it is terminated, but not if it is killed.
            let pid = daemon.id().to_string();
            let _ = Command::new("kill").arg(pid).status();
            let _ = daemon.wait();
        }
    }
}

pub(super) fn start() -> Result<Peer> {
    let mut session = Session {
        home: TempDir::new()?,
        daemon: None,
    };
    if !session.answers() {
        let daemon = Command::new("lttng-sessiond")
            .arg("--no-kernel")
            .env("LTTNG_HOME", session.home.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("lttng-sessiond does not start")?;
        session.daemon = Some(daemon);
        wait("the session daemon does not answer", || session.answers())?;
    }
    let output = format!("--output={}", session.home.path().join("trace").display());
    session.lttng(&["create", SESSION, "--snapshot", &output])?;
    let in_session = ["-s", SESSION, "-u"];
    let channel = ["enable-channel", "events", "--overwrite"];
    let sizes = ["--subbuf-size=64k", "--num-subbuf=4"];
    session.lttng(&[&channel[..], &sizes[..], &in_session[..]].concat())?;
    let event = ["enable-event", "overhear_bench:on", "-c", "events"];
    session.lttng(&[&event[..], &in_session[..]].concat())?;
    let event = ["enable-event", "lttng_ust_tracef:*", "-c", "events"];
    session.lttng(&[&event[..], &in_session[..]].concat())?;
    session.lttng(&["start", SESSION])?;
    wait("the tracepoint is not enabled", || {
        // SAFETY: reads the tracepoint's state.
        unsafe { lttng_is_on() != 0 }
    })?;
    // SAFETY: the provider is linked in; tracepoints may be called from any thread.
    let on = |elements| unsafe { lttng_on(elements) };
    let mut peer = Peer::new("LTTng-UST tracepoint", 200, session, on);
    // SAFETY: as above.
    peer.formatted = Some(("LTTng-UST tracef", |elements| unsafe {
        lttng_tracef(elements)
    }));
    // SAFETY: as above.
    peer.off = Some(|place, elements| unsafe { lttng_off[place](elements) });
    Ok(peer)
}

fn wait(otherwise: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > end {
            bail!("{otherwise} within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
