// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verdicts as JUnit XML: one test case per constraint. A violated constraint is a failure, an
//! inconclusive one an error, so that no reader counts it as passed.

use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::check::{CheckReport, VerdictReport};
use crate::error::{ErrorKind, SessionError};

/// The document. `of` names the judged run or recording.
///
/// # Errors
/// [`SessionError`] if it cannot be written as XML.
pub fn render(report: &CheckReport, of: &str) -> Result<String, SessionError> {
    let mut suite = TestSuite::new(of);
    suite.add_test_cases(report.constraints.iter().map(case));
    let mut document = Report::new("overhear check");
    document.add_test_suite(suite);
    document.to_string().map_err(|error| {
        SessionError::new(
            ErrorKind::Usage,
            format!("cannot write the verdicts as XML: {error}"),
        )
    })
}

/// Writes the document to `file`.
///
/// # Errors
/// [`SessionError`] if it cannot be written.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub fn write(report: &CheckReport, of: &str, file: &Path) -> Result<(), SessionError> {
    let xml = render(report, of)?;
    std::fs::write(file, xml).map_err(|error| {
        let message = format!("cannot write {}: {error}", file.display());
        SessionError::new(ErrorKind::Usage, message)
    })
}

fn case(verdict: &VerdictReport) -> TestCase {
    let failed = |kind, message: &str| {
        let mut status = TestCaseStatus::non_success(kind);
        status
            .set_type(verdict.verdict.as_str())
            .set_message(message);
        status
    };
    let reasons = verdict.reasons.join(", ");
    let status = match (verdict.verdict.as_str(), &verdict.first) {
        ("held", _) => TestCaseStatus::success(),
        ("violated", first) => failed(
            NonSuccessKind::Failure,
            first.as_ref().map_or("", |first| first.message.as_str()),
        ),
        _ => failed(NonSuccessKind::Error, &reasons),
    };
    let mut case = TestCase::new(verdict.name.as_str(), status);
    case.set_classname("overhear");
    let judged = format!("{} judged, {} offend", verdict.judged, verdict.offences);
    let output = match reasons.is_empty() {
        true => judged,
        false => format!("{judged}; {reasons}"),
    };
    case.set_system_out(output);
    case
}
