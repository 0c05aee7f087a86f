// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts from the output of test runners.
//!
//! A test that cannot run here prints a line that begins with `skipped:` and returns. Cargo's
//! runner would call it passed and hide the line; it is run with `--show-output`, and the reader
//! below counts such tests as skipped, keeps their reasons, and hides all other output of tests
//! that passed.

use std::fmt;

use crate::skips::Policy;

const SKIPPED: &str = "skipped:";
/// The verdict on a function that tests start as another process: `#[ignore = "started by ..."]`.
const HELPER: &str = "ignored, started by";

/// The beginning of the reason of a skip in an emulated machine.
pub(crate) const GUEST: &str = "in a guest: ";

/// Results of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Number of passed tests.
    passed: usize,
    /// Those that failed, by name.
    failed: Vec<String>,
    /// Those that did not run, by name and reason.
    skipped: Vec<Skip>,
    /// The summaries of the runners at the end of each run.
    summaries: Vec<String>,
}

/// A test that did not run, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Skip {
    name: String,
    reason: String,
    /// The test has printed another reason before, and is counted.
    is_another: bool,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed.push(name.into());
    }

    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(Skip {
            name: name.to_owned(),
            reason: reason.trim().to_owned(),
            is_another: false,
        });
    }

    /// Another reason of a test that was skipped already.
    fn skip_for_more(&mut self, name: &str, reason: &str) {
        self.skip(name, reason);
        self.skipped.last_mut().expect("one was added").is_another = true;
    }

    /// Unexpected skips on this machine become failures.
    pub(crate) fn judge_skips(&mut self, policy: Policy) {
        let unexpected = self
            .skipped
            .iter()
            .filter(|skip| !policy.permits(&skip.reason));
        let messages = unexpected.map(|skip| {
            format!(
                "{skip} (a skip that is not listed in xtask/src/skips.rs, with all permissions)"
            )
        });
        let messages: Vec<String> = messages.collect();
        self.failed.extend(messages);
    }

    /// Skips for other reasons become failures; the others are marked as judged, because they
    /// happened on another machine than this one.
    pub(crate) fn judge_guest_skips(&mut self, is_permitted: impl Fn(&str) -> bool) {
        for skip in std::mem::take(&mut self.skipped) {
            if is_permitted(&skip.reason) {
                let reason = format!("{GUEST}{}", skip.reason);
                self.skipped.push(Skip { reason, ..skip });
            } else {
                self.fail(format!("{skip} (a skip that is not listed for guests)"));
            }
        }
    }

    /// Puts a prefix before the name of each failed or skipped test.
    pub(crate) fn with_prefix(mut self, prefix: &str) -> Self {
        for name in &mut self.failed {
            name.insert_str(0, prefix);
        }
        for skip in &mut self.skipped {
            skip.name.insert_str(0, prefix);
        }
        self
    }

    /// Whether no test passed, failed or was skipped.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed == 0 && self.failed.is_empty() && self.skipped.is_empty()
    }

    /// Drops the runners' summaries.
    pub(crate) fn clear_summaries(&mut self) {
        self.summaries.clear();
    }

    /// Keeps the last line of a runner.
    pub(crate) fn summarize(&mut self, line: impl Into<String>) {
        self.summaries.push(line.into());
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.summaries.extend(other.summaries);
    }

    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Repeats the runners' summaries and names what was skipped and what failed; the caller
    /// prints the tally itself last.
    pub(crate) fn list(&self) {
        for line in &self.summaries {
            println!("{line}");
        }
        for name in &self.skipped {
            println!("skipped: {name}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skips = self.skipped.iter().filter(|skip| !skip.is_another);
        let (failed, skipped) = (self.failed.len(), skips.count());
        write!(
            f,
            "{} passed, {failed} failed, {skipped} skipped",
            self.passed
        )
    }
}

/// Reads the output of `cargo test -- --show-output` line by line.
#[derive(Debug, Default)]
pub(crate) struct CargoReader {
    tally: Tally,
    /// Between `successes:` and the next section: output of tests that passed.
    in_successes: bool,
    /// The test of the current output.
    test: String,
    /// Whether it has printed a skip.
    is_skipped: bool,
    /// Tests of this binary that have printed a skip.
    self_skipped: usize,
}

impl CargoReader {
    /// Reads a line and returns whether to show it.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            let passed = number_before(result, " passed");
            if !result.starts_with("ok. 0 passed; 0 failed; 0 ignored") {
                self.tally.summarize(line);
            }
            self.tally.passed += passed.saturating_sub(self.self_skipped);
            self.self_skipped = 0;
            self.test.clear();
            return true;
        }
        if let Some((name, verdict)) = test_line(line) {
            if verdict == "FAILED" {
                self.tally.fail(name);
            } else if verdict.starts_with(HELPER) {
                // Not a test that is left out: the other tests run it, as a process of its own.
            } else if let Some(reason) = verdict.strip_prefix("ignored") {
                self.tally
                    .skip(name, reason.strip_prefix(", ").unwrap_or("ignored"));
            }
            return true;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if !self.in_successes {
            return true;
        }
        if let Some(name) = output_of(line) {
            name.clone_into(&mut self.test);
            self.is_skipped = false;
        } else if let Some(reason) = line.strip_prefix(SKIPPED) {
            // A test may give several reasons; it is one skipped test.
            if self.test.is_empty() {
                return false;
            }
            if std::mem::replace(&mut self.is_skipped, true) {
                self.tally.skip_for_more(&self.test, reason);
            } else {
                self.tally.skip(&self.test, reason);
                self.self_skipped += 1;
            }
        }
        false
    }

    /// The results, once the run has ended. A run that fails without naming a test (it did not
    /// compile, or a test ended the whole process) counts as one failure of its own.
    pub(crate) fn finish(mut self, run: &str, success: bool) -> Tally {
        if !success && !self.tally.has_failures() {
            self.tally.fail(run);
        }
        self.tally
    }
}

/// Counts the output of a C test: TAP lines where it prints a plan, else its exit status as one
/// test, where 77 stands for skipped.
pub(crate) fn read_tap(test: &str, output: &str, code: Option<i32>) -> Tally {
    let mut tally = Tally::default();
    let plan: Option<usize> = output
        .lines()
        .find_map(|line| line.strip_prefix("1..")?.trim().parse().ok());
    let Some(plan) = plan else {
        let reason = output.lines().find_map(|line| line.strip_prefix(SKIPPED));
        match (code, reason) {
            (Some(77), reason) => tally.skip(test, reason.unwrap_or("exit status 77")),
            (Some(0), Some(reason)) => tally.skip(test, reason),
            (Some(0), None) => tally.pass(),
            _ => tally.fail(test),
        }
        return tally;
    };
    let mut seen = 0;
    for line in output.lines() {
        // A part of the test, which has no number.
        if let Some(reason) = line.strip_prefix("# skipped:") {
            tally.skip_for_more(test, reason);
        }
        let (good, rest) = match (line.strip_prefix("ok"), line.strip_prefix("not ok")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        seen += 1;
        let name = format!("{test}{rest}");
        match name.split_once("# SKIP") {
            Some((name, reason)) => tally.skip(name.trim_end(), reason),
            None if good => tally.pass(),
            None => tally.fail(name),
        }
    }
    if seen != plan {
        tally.fail(format!("{test}: planned {plan} tests and ran {seen}"));
    } else if code != Some(0) && !tally.has_failures() {
        tally.fail(test);
    }
    tally
}

/// Reads the output of `pytest -q -rfEs` line by line.
#[derive(Debug, Default)]
pub(crate) struct PytestReader {
    tally: Tally,
    /// Whether the last line with the counts came.
    has_ended: bool,
}

impl PytestReader {
    /// Processes a line.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(failed) = prefixed(line, &["FAILED ", "ERROR "]) {
            let name = failed.split_once(" - ").map_or(failed, |(name, _)| name);
            self.tally.fail(name);
        } else if let Some(skipped) = line.strip_prefix("SKIPPED [") {
            // SKIPPED [2] FILE:LINE: REASON, once for all tests with that reason at that place.
            let (count, position) = skipped.split_once("] ").unwrap_or(("1", skipped));
            let (position, reason) = position.split_once(": ").unwrap_or((position, ""));
            for _ in 0..count.parse().unwrap_or(1) {
                self.tally.skip(position, reason);
            }
        } else if line.contains(" in ") && line.ends_with(['s', ')']) && counts_tests(line) {
            // From a minute on the line has the time again: `in 62.08s (0:01:02)`.
            self.tally.passed += number_before(line, " passed");
            self.tally.summarize(format!("pytest: {line}"));
            self.has_ended = true;
        }
    }

    /// The results, once the run has ended.
    pub(crate) fn finish(mut self, run: &str, success: bool) -> Tally {
        let whole = success && self.has_ended;
        if !whole && !self.tally.has_failures() {
            self.tally.fail(run);
        }
        self.tally
    }
}

fn prefixed<'a>(line: &'a str, prefixes: &[&str]) -> Option<&'a str> {
    prefixes.iter().find_map(|prefix| line.strip_prefix(prefix))
}

/// Whether the line begins with a number and what that many tests did.
fn counts_tests(line: &str) -> bool {
    let Some((number, rest)) = line.split_once(' ') else {
        return false;
    };
    let verdicts = [
        "passed",
        "failed",
        "skipped",
        "error",
        "deselected",
        "xfailed",
    ];
    number.bytes().all(|byte| byte.is_ascii_digit())
        && verdicts.iter().any(|verdict| rest.starts_with(verdict))
}

/// `test NAME ... VERDICT`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ")
}

/// `---- NAME stdout ----`.
fn output_of(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

fn number_before(text: &str, word: &str) -> usize {
    let before = text.find(word).map_or("", |at| &text[..at]);
    before
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{read_tap, CargoReader, PytestReader};
    use crate::skips::Policy;

    const RUN: &str = "
running 4 tests
test a::works ... ok
test a::needs_perf ... ok
test a::slow ... ignored, takes an hour
test a::child ... ignored, started by the other tests
test a::broken ... FAILED

successes:

---- a::needs_perf stdout ----
working on it
skipped: perf is not installed
skipped: nor is it permitted


successes:
    a::needs_perf
    a::works

failures:

---- a::broken stdout ----
it broke

failures:
    a::broken

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn run_of_cargo_is_counted_and_output_of_successes_is_hidden() {
        let mut reader = CargoReader::default();
        let shown: Vec<_> = RUN.lines().filter(|line| reader.line(line)).collect();
        assert!(shown.contains(&"it broke") && shown.contains(&"test a::works ... ok"));
        assert!(!shown.contains(&"working on it"));
        let tally = reader.finish("cargo test", false);
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(tally.failed, ["a::broken"]);
        let skipped: Vec<String> = tally.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(
            skipped,
            [
                "a::slow: takes an hour",
                "a::needs_perf: perf is not installed",
                "a::needs_perf: nor is it permitted"
            ]
        );
    }

    #[test]
    fn skips_without_good_reason_are_failures_where_everything_is_permitted() {
        let read = || {
            let mut reader = CargoReader::default();
            let run = RUN.replace("nor is it permitted", "machine lateness: 5 ms");
            for line in run.lines() {
                reader.line(line);
            }
            reader.finish("cargo test", false)
        };
        let mut lenient = read();
        lenient.judge_skips(Policy::Lenient);
        assert_eq!(lenient.failed.len(), 1);
        let mut strict = read();
        strict.judge_skips(Policy::Strict);
        assert_eq!(strict.to_string(), "1 passed, 3 failed, 2 skipped");
        assert!(strict.failed[1].starts_with("a::slow: takes an hour ("));
        assert!(strict.failed[2].starts_with("a::needs_perf: perf is not installed ("));
    }

    #[test]
    fn run_that_fails_without_a_failed_test_is_a_failure() {
        let tally = CargoReader::default().finish("cargo test", false);
        assert_eq!(tally.to_string(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn run_of_pytest_is_counted() {
        let read = |text: &str, success| {
            let mut reader = PytestReader::default();
            text.lines().for_each(|line| reader.line(line));
            reader.finish("pytest", success)
        };
        let text = "...FsE [100%]\n\
            ==== short test summary info ====\n\
            SKIPPED [2] tests/test_a.py:7: no numpy: none\n\
            FAILED tests/test_a.py::b[1] - assert 1 == 2\n\
            ERROR tests/test_c.py\n\
            1 failed, 3 passed, 2 skipped, 1 error in 1.44s\n";
        let tally = read(text, false);
        assert_eq!(tally.to_string(), "3 passed, 2 failed, 2 skipped");
        assert_eq!(tally.failed, ["tests/test_a.py::b[1]", "tests/test_c.py"]);
        assert_eq!(
            tally.skipped[0].to_string(),
            "tests/test_a.py:7: no numpy: none"
        );
        assert_eq!(
            tally.summaries,
            ["pytest: 1 failed, 3 passed, 2 skipped, 1 error in 1.44s"]
        );
        let good = read("58 passed in 1.44s", true);
        assert_eq!(good.to_string(), "58 passed, 0 failed, 0 skipped");
        let slow = read("114 passed in 62.08s (0:01:02)", true);
        assert_eq!(slow.to_string(), "114 passed, 0 failed, 0 skipped");
        // An interpreter that died prints nothing.
        assert!(read("....", true).has_failures());
        assert!(read("58 passed in 1.44s", false).has_failures());
    }

    #[test]
    fn c_tests_count_by_plan_or_by_exit_status() {
        let count = |output, code| read_tap("t", output, code).to_string();
        let plan = "1..3\nok 1 - a\nnot ok 2 - b\nok 3 - c # SKIP no perf\n";
        assert_eq!(count(plan, Some(1)), "1 passed, 1 failed, 1 skipped");
        let mut part = read_tap("t", "ok 1\n# skipped: no perf\n1..1\n", Some(0));
        assert_eq!(part.to_string(), "1 passed, 0 failed, 0 skipped");
        part.judge_skips(Policy::Strict);
        assert!(part.has_failures());
        assert_eq!(
            count("1..2\nok 1\n", Some(0)),
            "1 passed, 1 failed, 0 skipped"
        );
        assert_eq!(count("1..1\nok 1\n", None), "1 passed, 1 failed, 0 skipped");
        assert_eq!(count("hello\n", Some(0)), "1 passed, 0 failed, 0 skipped");
        assert_eq!(
            count("skipped: no perf\n", Some(0)),
            "0 passed, 0 failed, 1 skipped"
        );
        assert_eq!(count("", Some(77)), "0 passed, 0 failed, 1 skipped");
        assert_eq!(count("", None), "0 passed, 1 failed, 0 skipped");
    }
}
