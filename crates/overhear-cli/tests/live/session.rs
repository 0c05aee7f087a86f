// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program under a directory that other processes can find.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::program;
use crate::support::{eventually, finish, folder, overhear, path, send, Ended, Started};

/// `overhear run --socket`, with the C program under it.
pub(crate) struct Live {
    pub(crate) folder: TempDir,
    run: Option<Started>,
}

impl Live {
    /// Runs the C program with these arguments, and waits for its sensors.
    #[track_caller]
    pub(crate) fn program(arguments: &[&str]) -> Self {
        let live = Self::start(&[&[path(program())], arguments].concat());
        eventually("the program registers its sensor", || {
            live.listed().len() == 1
        });
        live
    }

    /// Runs the C program with its paced sensor, for longer than any test takes.
    #[track_caller]
    pub(crate) fn paced() -> Self {
        Self::program(&["paced", "60000"])
    }

    /// Runs a command; `SOCKET` exists when this returns.
    #[track_caller]
    pub(crate) fn start(command: &[&str]) -> Self {
        Self::start_with(&[], command)
    }

    /// The same with further options of `overhear run`.
    #[track_caller]
    pub(crate) fn start_with(more: &[&str], command: &[&str]) -> Self {
        let folder = folder();
        let socket = folder.path().join("directory.sock");
        let options = [
            "run",
            "--kernel",
            "off",
            "--quiet",
            "--socket",
            path(&socket),
        ];
        let words = [&options, more, &["--"], command].concat();
        let run = Started::spawn(&mut overhear(&words));
        eventually("the directory listens", || socket.exists());
        Self {
            folder,
            run: Some(run),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("directory.sock")
    }

    /// A verb with this directory.
    pub(crate) fn verb(&self, arguments: &[&str]) -> Command {
        let mut command = overhear(arguments);
        command.env("OVERHEAR_DIRECTORY", self.socket());
        command
    }

    #[track_caller]
    pub(crate) fn run_verb(&self, arguments: &[&str]) -> Ended {
        let ended = finish(&mut self.verb(arguments));
        ended.does_not_panic();
        ended
    }

    /// The sensors that the directory lists.
    #[track_caller]
    pub(crate) fn listed(&self) -> Vec<Value> {
        let ended = self.run_verb(&["list", "--json"]);
        let listing: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        listing["sensors"].as_array().cloned().unwrap_or_default()
    }

    /// Ends the program in any state.
    pub(crate) fn kill_program(&self) {
        let pid = self.listed()[0]["pid"].as_i64().unwrap();
        send(i32::try_from(pid).unwrap(), libc::SIGKILL);
    }

    /// Waits for the end of the run.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        self.run.take().unwrap().end()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(mut run) = self.run.take() {
            // Its directory answers before the program is started.
            while let Ok(None) = run.child.try_wait() {
                for pid in crate::support::children(run.pid()) {
                    send(pid, libc::SIGKILL);
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

/// Records that `attach --format json` printed.
#[derive(Debug)]
pub(crate) struct AttachOutput {
    pub(crate) ended: Ended,
    pub(crate) elements: Vec<Value>,
    pub(crate) gaps: Vec<Value>,
    pub(crate) summary: Value,
}

impl AttachOutput {
    #[track_caller]
    pub(crate) fn of(ended: Ended) -> Self {
        ended.does_not_panic();
        let mut output = Self {
            elements: Vec::new(),
            gaps: Vec::new(),
            summary: Value::Null,
            ended,
        };
        for line in output.ended.stdout.lines() {
            let record: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            match record["record"].as_str().unwrap() {
                "element" => output.elements.push(record),
                "gap" => output.gaps.push(record),
                "summary" => output.summary = record,
                "stream" | "note" => {}
                other => panic!("{other}"),
            }
        }
        assert!(output.summary.is_object(), "{:#?}", output.ended);
        output
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.summary[key].as_u64().unwrap()
    }

    /// Asserts that the elements of one sensor follow one another, or that a gap explains the
    /// difference; times never go back. The payload of the C program is the element's number.
    #[track_caller]
    pub(crate) fn is_gapless(&self) {
        let sequence = |record: &Value| record["sequence"].as_u64().unwrap();
        let mut next = None;
        let mut time = 0;
        let mut missed = 0;
        let mut gaps = self.gaps.iter().peekable();
        for element in &self.elements {
            let at = sequence(element);
            while let Some(gap) = gaps.next_if(|gap| sequence(gap) < at) {
                assert!(next.is_none_or(|next| next == sequence(gap)), "{gap}");
                let count = gap["missed"].as_u64().unwrap();
                missed += count;
                next = Some(sequence(gap) + count);
            }
            assert!(
                next.is_none_or(|next| next == at),
                "{element} after {next:?}"
            );
            next = Some(at + 1);
            assert_eq!(element["values"]["number"].as_u64(), Some(at), "{element}");
            let now = element["time_ns"].as_u64().unwrap();
            assert!(now >= time, "{element}");
            time = now;
        }
        missed += gaps.map(|gap| gap["missed"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(self.number("elements"), self.elements.len() as u64);
        assert_eq!(self.number("missed"), missed);
    }
}
