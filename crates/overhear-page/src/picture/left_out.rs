// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts that a picture leaves out, in messages, and the ways to see them.

use overhear_event::{Nanos, Timestamp};

use super::Picture;
use overhear_session::format::{counted, quoted};

/// A way to see the parts that are left out.
#[derive(Clone, Debug)]
pub(crate) enum Remedy {
    /// Nothing was recorded.
    None,
    /// The recording is in this folder.
    Recording(String),
}

/// Maximum number of sensors that are named individually.
const NAMED_SENSORS: usize = 3;

/// The parts that `picture` leaves out of a run that began at `begin`; empty if it shows
/// everything.
pub(super) fn messages(picture: &Picture, begin: Timestamp, remedy: &Remedy) -> Vec<String> {
    let since = |time: Timestamp| time.since(begin);
    let mut messages = Vec::new();
    if picture.from > begin {
        let (from, end) = (since(picture.from), since(picture.end_of_shown()));
        messages.push(format!(
            "The time-line shows {from} to {end} of the run; its times count from {from}."
        ));
    }
    let mut first: Option<Timestamp> = None;
    let mut parts = Vec::new();
    let timeline = picture.scheduling.observer();
    if let Some(at) = timeline.cut_at() {
        first = Some(at);
        let intervals = counted(timeline.dropped(), "interval", "intervals");
        parts.push(format!(
            "states of threads from {} on ({intervals})",
            since(at)
        ));
    }
    let sensors = picture.columns.cuts();
    first = sensors.iter().map(|cut| cut.at).chain(first).min();
    if sensors.len() <= NAMED_SENSORS {
        parts.extend(sensors.iter().map(|cut| {
            let elements = counted(cut.dropped, "element", "elements");
            format!("{elements} of {} from {} on", cut.label, since(cut.at))
        }));
    } else {
        let dropped = sensors.iter().map(|cut| cut.dropped).sum();
        let elements = counted(dropped, "element", "elements");
        parts.push(format!("{elements} of {} sensors", sensors.len()));
    }
    if let Some((at, dropped)) = picture.gaps.cut() {
        first = first.into_iter().chain([at]).min();
        let gaps = counted(dropped, "gap", "gaps");
        parts.push(format!("{gaps}, and all else, from {} on", since(at)));
    }
    let Some(first) = first else {
        return messages;
    };
    let parts = parts.join("; ");
    let remedy = match remedy {
        Remedy::None => String::new(),
        Remedy::Recording(directory) => {
            let (directory, from) = (quoted(directory), argument(since(first)));
            format!(
                " `overhear report {directory} --html FILE --from {from}` shows what follows; \
                 `overhear export {directory} --to perfetto --output FILE` writes all of it for ui.perfetto.dev."
            )
        }
    };
    messages.push(format!(
        "The time-line has no room for {parts}. Tables and histograms count all of it.{remedy}"
    ));
    messages
}

/// A duration as an argument of the command line, rounded down to a short number.
fn argument(length: Nanos) -> String {
    let us = length.as_ns() / 1_000;
    match us {
        ..10_000 => format!("{us}us"),
        us => format!("{}ms", us / 1_000),
    }
}
