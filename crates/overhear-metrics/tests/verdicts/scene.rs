// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace as a line of text, and the verdicts on it.
//!
//! Statements are divided by `;`:
//!
//! - `10 a` is an element of the sensor `a` at 10 with value 0; `10 a 5` has the value 5,
//!   `10 a@7 5` is of process 7.
//! - `20 gap a 12 3` is a gap of `a` from 12 to 20 with 3 elements, `30 advance` an advance.
//! - `30 exit 7` is the end of thread 7, `30 name 7 worker` its name.
//! - With `0 open b` the sensor `b` appears, as it does with its first element.

use std::collections::BTreeMap;
use std::sync::Arc;

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
    Timestamp, TypeSchema,
};
use overhear_metrics::automaton::{Catalogue, Pattern};
use overhear_metrics::verdict::{Constraint, Demand, Judge, OffenceView, Verdicts};

/// Records offences, and constraints that became inconclusive.
#[derive(Debug, Default)]
pub(crate) struct Reported(pub(crate) Vec<String>, pub(crate) Vec<u64>);

impl Judge for Reported {
    fn offence(&mut self, case: &OffenceView<'_>, offences: u64) {
        self.0.push(format!("{offences}: {case}"));
    }

    fn retracted(&mut self, constraint: &Constraint) {
        self.0.push(format!("retracted: {}", constraint.name()));
    }

    fn inconclusive(&mut self, _: &Constraint, at: Timestamp) {
        self.1.push(at.as_monotonic_ns());
    }
}

pub(crate) fn pattern(text: &str) -> Pattern {
    Pattern::parse(text, &Catalogue::linux()).unwrap()
}

pub(crate) fn constraint(demand: Demand) -> Constraint {
    Constraint::new("c", demand, &Catalogue::linux()).unwrap()
}

pub(crate) fn ns(ns: u64) -> Nanos {
    Nanos::from_ns(ns)
}

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

pub(crate) fn stream(id: u32, sensor: &str, pid: u32) -> StreamDescriptor {
    let schema = TypeSchema::builder("number")
        .field("value", FieldKind::I64, "")
        .field("wait", FieldKind::U64, "us");
    StreamDescriptor::new(
        StreamId::from_raw(id),
        Origin::program(pid, format!("p{pid}")),
        sensor,
        schema.build().unwrap(),
    )
}

fn lives() -> StreamDescriptor {
    StreamDescriptor {
        origin: Origin::Kernel { cpu: 0 },
        sensor: TASK_LIFE.to_owned(),
        schema: Arc::new(Life::schema()),
        ..stream(1_000_000, TASK_LIFE, 0)
    }
}

/// Judges one constraint over a trace, without ending the observation.
pub(crate) fn play(constraint: Constraint, error: u64, trace: &str) -> Verdicts<Reported> {
    let mut verdicts = Verdicts::new(Reported::default());
    verdicts.add(constraint).unwrap();
    verdicts.clock_error(Timestamp::ZERO, ns(error));
    let mut streams: BTreeMap<(String, u32), (StreamDescriptor, u64)> = BTreeMap::new();
    for statement in trace
        .split(';')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let time = at(number(0));
        let mut named = |word: &str| {
            let (sensor, pid) = word.split_once('@').unwrap_or((word, "1"));
            let key = (sensor.to_owned(), pid.parse().unwrap());
            let next = streams.len() as u32 + 1;
            let entry = streams
                .entry(key.clone())
                .or_insert_with(|| (stream(next, sensor, key.1), 0));
            entry.1 += 1;
            (entry.0.clone(), entry.1 - 1)
        };
        match words[1] {
            "advance" => verdicts.advance(time),
            "open" => {
                let key = (words[2].to_owned(), 1);
                let next = streams.len() as u32 + 1;
                let stream = stream(next, &key.0, key.1);
                verdicts.open(&stream);
                streams.insert(key, (stream, 0));
            }
            "gap" => {
                let (stream, first) = named(words[2]);
                let gap = Gap {
                    stream: stream.id,
                    first,
                    missed: number(4),
                    from: at(number(3)),
                    to: time,
                    cause: match words.get(5) {
                        Some(&"budget") => GapCause::Budget,
                        Some(&"disk") => GapCause::Disk,
                        _ => GapCause::Overwritten,
                    },
                };
                verdicts.gap(&stream, &gap);
            }
            "exit" | "name" => {
                let mut comm = [0; 16];
                let name = words.get(3).map_or(&b""[..], |name| name.as_bytes());
                comm[..name.len()].copy_from_slice(name);
                let life = Life {
                    tid: number(2) as u32,
                    pid: number(2) as u32,
                    parent_tid: 0,
                    parent_pid: 0,
                    kind: if words[1] == "exit" {
                        Life::EXIT
                    } else {
                        Life::NAME
                    },
                    code: 0,
                    cpu_ns: 0,
                    comm,
                };
                verdicts.element(&ElementView {
                    stream: &lives(),
                    sequence: 0,
                    time,
                    payload: &life.to_payload(),
                });
            }
            sensor => {
                let (stream, sequence) = named(sensor);
                let value = words
                    .get(2)
                    .map_or(0, |value| value.parse::<i64>().unwrap());
                let mut payload = value.to_ne_bytes().to_vec();
                payload.extend(value.unsigned_abs().to_ne_bytes());
                verdicts.element(&ElementView {
                    stream: &stream,
                    sequence,
                    time,
                    payload: &payload,
                });
            }
        }
    }
    verdicts
}

/// As [`play`], and the observation ends at `end`. Returns the verdict as text with its numbers and
/// reasons: `violated 2/5: missed 3`.
pub(crate) fn end(mut verdicts: Verdicts<Reported>, end: u64) -> String {
    verdicts.finish(at(end));
    let verdict = verdicts.verdicts().next().unwrap();
    let mut text = format!(
        "{} {}/{}",
        verdict.outcome, verdict.offences, verdict.judged
    );
    for (index, reason) in verdict.reasons.iter().enumerate() {
        text.push_str(if index == 0 { ": " } else { ", " });
        text.push_str(&reason.to_string());
    }
    text
}
