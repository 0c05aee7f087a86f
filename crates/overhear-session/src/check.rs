// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear check`: the verdicts on the constraints of a recording. A live run has the same
//! report.

use std::collections::HashMap;
use std::path::Path;

use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, StreamId, Timestamp};
use overhear_metrics::verdict::{Constraint, Judge, Outcome, Verdict, Verdicts};
use overhear_trace::{ReplaySummary, TraceReader};
use serde::{Deserialize, Serialize};

use crate::conclusion::Conclusion;
use crate::config::constraints;
use crate::documents;
use crate::error::{ErrorKind, SessionError};
use crate::recording::{self, Recording};

/// Upper bound of the time before its death from which a killed recorder has not written elements.
/// It writes elements that are older than 200 ms, stream by stream.
const MAX_UNWRITTEN: Nanos = Nanos::from_ms(1_000);

/// The verdicts on a recording or a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckReport {
    /// `held`, `violated` or `inconclusive`: the worst of all verdicts.
    pub verdict: String,
    /// One per constraint, in the order of the file.
    pub constraints: Vec<VerdictReport>,
}

/// One verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerdictReport {
    /// The constraint.
    pub name: String,
    /// `held`, `violated` or `inconclusive`.
    pub verdict: String,
    /// Number of judged cases: values, distances, windows or answers.
    pub judged: u64,
    /// Number of offences among them.
    pub offences: u64,
    /// The first offence.
    pub first: Option<OffenceReport>,
    /// Messages about the limits of its certainty.
    pub reasons: Vec<String>,
}

/// One offence.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OffenceReport {
    /// The offence in words, with place and time.
    #[serde(alias = "sentence")]
    pub message: String,
    /// Its begin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// Its end, or the time at which it was decided.
    pub end_ns: u64,
    /// The thread or process, if it is known.
    pub task: Option<u32>,
    /// The elements that prove it.
    pub elements: Vec<ElementReport>,
}

/// The position of an element.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ElementReport {
    /// The name of its stream.
    pub stream: String,
    /// Its sequence in the stream.
    pub sequence: u64,
}

/// Judges the recording `dir` by the constraints in the file `config`.
///
/// # Errors
/// [`SessionError`] if there is no such recording or file, or if the file is invalid.
pub fn check(dir: &Path, config: &Path) -> Result<CheckReport, SessionError> {
    let mut verdicts = prepare(constraints::read(config)?, ()).map_err(|message| {
        SessionError::new(ErrorKind::Usage, format!("{}: {message}", config.display()))
    })?;
    replay(dir, &mut verdicts)?;
    Ok(report(&verdicts))
}

/// Verdicts on these constraints.
pub fn prepare<J: Judge>(constraints: Vec<Constraint>, judge: J) -> Result<Verdicts<J>, String> {
    let mut verdicts = Verdicts::new(judge);
    for constraint in constraints {
        let name = constraint.name().to_owned();
        verdicts
            .add(constraint)
            .map_err(|error| format!("constraint `{name}`: {error}"))?;
    }
    Ok(verdicts)
}

/// The time of the last item of each stream.
#[derive(Debug, Default)]
struct LastTimes(HashMap<StreamId, Timestamp>);

impl LastTimes {
    /// Cuts torn streams at their last item.
    fn cut<J: Judge>(&self, reader: &TraceReader, verdicts: &mut Verdicts<J>) {
        for tail in recording::lost_tails(reader) {
            let last = self.0.get(&tail.stream).copied();
            let mut streams = reader.streams();
            if let Some(stream) = streams.find(|stream| stream.id == tail.stream) {
                verdicts.cut(stream, last.unwrap_or(Timestamp::ZERO));
            }
        }
    }
}

/// Cuts streams at damage that no gap represents. A damaged document may concern all streams.
fn cut_damaged<J: Judge>(
    reader: &TraceReader,
    replayed: &ReplaySummary,
    verdicts: &mut Verdicts<J>,
) {
    let damages = reader.corrupt().iter().chain(&replayed.corrupt);
    for damage in damages.filter(|damage| damage.missed.is_none()) {
        for stream in reader.streams() {
            match damage.stream {
                None => verdicts.cut(stream, Timestamp::ZERO),
                Some(id) if id == stream.id => verdicts.cut(stream, damage.after),
                Some(_) => {}
            }
        }
    }
}

impl Analysis for LastTimes {
    fn element(&mut self, element: &ElementView<'_>) {
        self.0.insert(element.stream.id, element.time);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.insert(stream.id, gap.to);
    }

    fn advance(&mut self, _: Timestamp) {}
}

fn replay<J: Judge>(dir: &Path, verdicts: &mut Verdicts<J>) -> Result<(), SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let clock = reader
        .document(documents::CLOCK)
        .map_err(usage)?
        .unwrap_or_default();
    for segment in clock["segments"].as_array().into_iter().flatten() {
        let number = |key: &str| segment[key].as_u64().unwrap_or(0);
        let from = Timestamp::from_monotonic_ns(number("ns"));
        verdicts.clock_error(from, Nanos::from_ns(number("error_ns")));
    }
    let run = Recording::read(&reader).map_err(usage)?;
    if let Some(start) = recording::origin_of(&reader, run.as_ref()) {
        verdicts.count_from(start);
    }
    let replayed = match !reader.torn().is_empty() {
        false => reader.replay(&mut [&mut *verdicts]),
        true => {
            let mut ends = LastTimes::default();
            let replayed = reader.replay(&mut [&mut *verdicts, &mut ends]);
            ends.cut(&reader, verdicts);
            replayed
        }
    };
    cut_damaged(&reader, &replayed, verdicts);
    let last = reader.times().map_or(Timestamp::ZERO, |(_, last)| last);
    let ending = run.as_ref().and_then(|run| run.end.as_ref());
    let end = ending.map_or(last, |ending| {
        last.max(Timestamp::from_monotonic_ns(ending.end_ns))
    });
    if !recording::is_finished(&reader, run.as_ref()) {
        for stream in reader.streams() {
            verdicts.cut(stream, last.minus(MAX_UNWRITTEN));
        }
    }
    for message in recording::damage(&reader, run.as_ref(), &replayed) {
        verdicts.distrust(message);
    }
    if let Some(message) = run.and_then(|run| not_connected(run.not_connected)) {
        verdicts.distrust(message);
    }
    verdicts.finish(end);
    Ok(())
}

/// The reason that sensors without a connection add to verdicts.
pub fn not_connected(sensors: u64) -> Option<String> {
    match sensors {
        0 => None,
        1 => Some("1 sensor was not connected".to_owned()),
        more => Some(format!("{more} sensors were not connected")),
    }
}

/// The report on verdicts after the end of the observation.
pub fn report<J: Judge>(verdicts: &Verdicts<J>) -> CheckReport {
    let worst = verdicts.verdicts().map(|verdict| verdict.outcome).max();
    CheckReport {
        verdict: worst.unwrap_or(Outcome::Held).name().to_owned(),
        constraints: verdicts.verdicts().map(|verdict| entry(&verdict)).collect(),
    }
}

fn entry(verdict: &Verdict<'_>) -> VerdictReport {
    VerdictReport {
        name: verdict.constraint.name().to_owned(),
        verdict: verdict.outcome.name().to_owned(),
        judged: verdict.judged,
        offences: verdict.offences,
        first: verdict.first.as_ref().map(|case| OffenceReport {
            message: case.to_string(),
            begin_ns: case.offence.begin.as_monotonic_ns(),
            end_ns: case.offence.end.as_monotonic_ns(),
            task: case.offence.task,
            elements: case
                .elements()
                .map(|(stream, sequence)| ElementReport { stream, sequence })
                .collect(),
        }),
        reasons: verdict.reasons.iter().map(ToString::to_string).collect(),
    }
}

impl CheckReport {
    /// Complete if all held, violated if one is, else inconclusive.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        match self.verdict.as_str() {
            "held" => Conclusion::Complete,
            "violated" => Conclusion::Violated,
            _ => Conclusion::Inconclusive,
        }
    }
}
