// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's report: what it ran, and a verdict on each program. The form is described in
//! `xtask/guest/main.rs`.

use std::time::Duration;

use crate::tally::{read_tap, CargoReader, Tally};

use super::programs::{Judge, Program};

/// A word of the name of the kernels on which a skip is permitted, words of its reason, and why it
/// is. Other skips are failures, so that a test that stops running on a kernel is noticed.
const PERMITTED: [(&str, &str, &str); 5] = [
    ("", "machine lateness: ", "a witness beside the test saw it"),
    ("", "no block device is behind", "a guest has no disk"),
    ("", "this kernel has no flutter", "it needs Linux 6.16"),
    ("", "this kernel has no schedule", "it needs Linux 6.16"),
    (
        "6.1-arm64",
        "the kernel's tracer does not reach it",
        "BPF programs at functions need Linux 6.4 on arm64",
    ),
];

/// Words on the console that show a fault of the kernel.
const FAULTS: [&str; 5] = ["BUG:", "Oops", "Kernel panic", "WARNING:", "rcu: INFO"];

/// A program's part of the report.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    name: String,
    output: String,
    /// As the guest writes it, empty while the program runs.
    status: String,
}

/// A report, read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The guest's kernel.
    pub(crate) release: String,
    runs: Vec<Run>,
    /// Number of programs, and time since the boot, from the last line.
    done: Option<(usize, Duration)>,
}

impl Report {
    pub(crate) fn parse(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            if let Some(output) = line.strip_prefix("| ").or(line.strip_prefix('|')) {
                if let Some(run) = report.runs.last_mut() {
                    run.output.push_str(output);
                    run.output.push('\n');
                }
            } else if let Some(release) = line.strip_prefix("@guest ") {
                release.clone_into(&mut report.release);
            } else if let Some(name) = line.strip_prefix("@begin ") {
                report.runs.push(Run {
                    name: name.to_owned(),
                    ..Run::default()
                });
            } else if let Some(end) = line.strip_prefix("@end ") {
                if let Some(run) = report.runs.last_mut() {
                    end.strip_prefix(run.name.as_str())
                        .unwrap_or(end)
                        .trim()
                        .clone_into(&mut run.status);
                }
            } else if let Some(done) = line.strip_prefix("@done ") {
                let numbers = done.split_once(' ').and_then(|(count, milliseconds)| {
                    let time = Duration::from_millis(milliseconds.parse().ok()?);
                    Some((count.parse().ok()?, time))
                });
                report.done = numbers;
            }
        }
        report
    }

    /// Time between the boot and the end of the last program.
    pub(crate) fn guest_time(&self) -> Duration {
        self.done.map_or(Duration::ZERO, |(_, time)| time)
    }

    /// The verdict: every program of the plan has run, and its output satisfies its judge. Names
    /// begin with the kernel's.
    pub(crate) fn judge(&self, kernel: &str, plan: &[&Program], console: &str) -> Tally {
        let mut tally = Tally::default();
        for fault in console
            .lines()
            .filter(|line| FAULTS.iter().any(|word| line.contains(word)))
        {
            tally.fail(format!("{kernel}: the kernel reports `{}`", fault.trim()));
        }
        for program in plan {
            let Some(run) = self.runs.iter().find(|run| run.name == program.name) else {
                tally.fail(format!("{kernel}: {} has not run", program.name));
                continue;
            };
            let mut own = run.judge(program.judge);
            own.judge_guest_skips(|reason| {
                PERMITTED
                    .iter()
                    .any(|(of, words, _)| kernel.contains(of) && reason.contains(words))
            });
            tally.add(own.with_prefix(&format!("{kernel}, {}: ", run.name)));
        }
        match self.done {
            None => tally.fail(format!("{kernel}: the guest did not finish its report")),
            Some((count, _)) if count != plan.len() => tally.fail(format!(
                "{kernel}: the guest ran {count} of {} programs",
                plan.len()
            )),
            Some(_) => {}
        }
        tally
    }
}

impl Run {
    fn judge(&self, judge: Judge) -> Tally {
        let code = self.status.strip_prefix("exit ");
        let code: Option<i32> = code.and_then(|code| code.parse().ok());
        let mut tally = match judge {
            Judge::Harness => {
                let mut reader = CargoReader::default();
                for line in self.output.lines() {
                    reader.line(line);
                }
                reader.finish(&self.status, code == Some(0))
            }
            Judge::Tap => read_tap(&self.status, &self.output, code),
            Judge::Shows(words) => {
                let mut tally = Tally::default();
                let missing = words.iter().find(|&&word| !self.output.contains(word));
                match missing {
                    _ if code != Some(0) => tally.fail(self.status.as_str()),
                    Some(word) => tally.fail(format!("the output does not contain `{word}`")),
                    None => tally.pass(),
                }
                tally
            }
        };
        // A runner that ran no test has shown nothing.
        if tally.is_empty() {
            tally.fail(format!("no test ran ({})", self.status));
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::super::programs::{plan, Form, Program};
    use super::Report;
    use std::time::Duration;

    fn program(name: &str) -> &'static Program {
        let all = plan(Form::Long);
        all.into_iter().find(|it| it.name == name).unwrap()
    }

    const GOOD: &str = "@guest 6.1.0-1\n@begin doctor\n| ok       kernel\n@end doctor exit 0\n\
        @begin kernel tests\n| test a ... ok\n| test result: ok. 1 passed; 0 failed; 0 ignored\n\
        @end kernel tests exit 0\n@done 2 1500\n";

    #[test]
    fn complete_report_is_judged_by_its_programs() {
        let plan = [program("doctor"), program("kernel tests")];
        let report = Report::parse(GOOD);
        assert_eq!(report.release, "6.1.0-1");
        assert_eq!(report.guest_time(), Duration::from_millis(1500));
        let verdict = |text: &str, console| Report::parse(text).judge("k", &plan, console);
        assert_eq!(
            verdict(GOOD, "").to_string(),
            "2 passed, 0 failed, 0 skipped"
        );
        assert!(verdict(GOOD, "[ 1.0] BUG: unable to handle").has_failures());
        let failing = GOOD.replace("tests exit 0", "tests exit 101");
        assert!(verdict(&failing, "").has_failures());
        let ended = GOOD.replace("doctor exit 0", "doctor limit");
        assert!(verdict(&ended, "").has_failures());
        let other = GOOD.replace("| ok       kernel", "| nothing");
        assert!(verdict(&other, "").has_failures());
    }

    #[test]
    fn silent_guest_has_failed() {
        let plan = [program("doctor"), program("kernel tests")];
        assert!(Report::parse("").judge("k", &plan, "").has_failures());
        for cut in ["@done", "@end kernel", "@begin kernel", "| test result"] {
            let text = &GOOD[..GOOD.find(cut).unwrap()];
            let tally = Report::parse(text).judge("k", &plan, "");
            assert!(tally.has_failures(), "{cut}");
        }
    }

    #[test]
    fn skips_of_guests_need_a_listed_reason() {
        let plan = [program("kernel tests")];
        let with = |reason: &str| {
            let text = format!(
                "@begin kernel tests\n| test a ... ok\n| successes:\n| ---- a stdout ----\n\
                 | skipped: {reason}\n| test result: ok. 1 passed; 0 failed; 0 ignored\n\
                 @end kernel tests exit 0\n@done 1 1\n"
            );
            Report::parse(&text).judge("k", &plan, "")
        };
        let good = with("machine lateness: 5 ms");
        assert_eq!(good.to_string(), "0 passed, 0 failed, 1 skipped");
        assert!(with("perf is not installed").has_failures());
    }
}
