// SPDX-License-Identifier: MIT OR Apache-2.0
//! The analysis of `overhear attach`: counts items and writes them, up to a number of elements.

use std::collections::BTreeMap;
use std::io::{self, Write};

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, StreamId, Timestamp};
use overhear_session::budget::BudgetOutcome;
use serde::Serialize;

use super::Layout;

/// Size of the buffer at which it is written.
const BATCH_BYTES: usize = 64 << 10;

/// Result of an observation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Elements written to the output.
    pub(crate) elements: u64,
    /// Elements in the buffer when the output failed that were not completely written.
    #[serde(skip)]
    pub(crate) unwritten: u64,
    /// Elements missed.
    pub(crate) missed: u64,
    /// Gaps; a gap of 0 elements is a damage of unknown extent.
    pub(crate) gaps: u64,
    /// Whether there was a sensor, and no gap and no complaint about one.
    pub(crate) complete: bool,
    /// From the beginning of the observation to its end.
    pub(crate) duration_ns: u64,
    /// Cause of the end: `interrupted`, `count`, `duration`, `ended` (all sensors), `directory` (it
    /// is gone), `closed` (the output has no reader), `failed` (the output cannot be written).
    pub(crate) ended_by: &'static str,
    /// The sensors that were attached.
    pub(crate) sensors: Vec<SensorSummary>,
    /// The budget; a record of its own in the output.
    #[serde(skip)]
    pub(crate) budget: Option<BudgetOutcome>,
}

/// Result of one sensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SensorSummary {
    /// `comm(pid)/id#instance`.
    pub(crate) sensor: String,
    /// Elements written to the output.
    pub(crate) elements: u64,
    /// Elements missed.
    pub(crate) missed: u64,
}

/// Writes items by a layout, and counts them.
pub(crate) struct Feed<W> {
    layout: Box<dyn Layout>,
    out: W,
    buffer: Vec<u8>,
    /// Elements in the buffer: the end of each, and the first stream of its sensor.
    pending: Vec<(usize, StreamId)>,
    left: Option<u64>,
    elements: u64,
    unwritten: u64,
    missed: u64,
    gaps: u64,
    notes: u64,
    /// Key: the first stream. It is the same for all lanes, and needs no string per element.
    sensors: BTreeMap<StreamId, SensorSummary>,
    failed: Option<io::Error>,
}

impl<W: Write> Feed<W> {
    /// Writes to `out`, at most `count` elements.
    pub(crate) fn new(layout: Box<dyn Layout>, out: W, count: Option<u64>) -> Self {
        Self {
            layout,
            out,
            buffer: Vec::new(),
            pending: Vec::new(),
            left: count,
            elements: 0,
            unwritten: 0,
            missed: 0,
            gaps: 0,
            notes: 0,
            sensors: BTreeMap::new(),
            failed: None,
        }
    }

    /// Whether no more elements will be written: their number is reached, or the output has failed.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.left == Some(0) || self.failed.is_some()
    }

    /// Error of the output.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// A sensor is attached, whether it writes or not.
    pub(crate) fn announce(&mut self, stream: &StreamDescriptor) {
        self.sensor(stream);
        self.layout.stream(stream, &mut self.buffer);
    }

    /// Writes a message about an error that makes the observation incomplete, and does not end it.
    pub(crate) fn note(&mut self, message: &str) {
        self.notes += 1;
        self.layout.note(message, &mut self.buffer);
    }

    /// Writes a message that does not make the observation incomplete.
    pub(crate) fn remark(&mut self, message: &str) {
        self.layout.note(message, &mut self.buffer);
    }

    /// Number of sensors that were attached so far.
    #[must_use]
    pub(crate) fn sensors(&self) -> usize {
        self.sensors.len()
    }

    /// Writes the buffer to the output.
    pub(crate) fn flush(&mut self) {
        let mut written = 0;
        while self.failed.is_none() && written < self.buffer.len() {
            match self.out.write(&self.buffer[written..]) {
                Ok(0) => self.failed = Some(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
        for (end, sensor) in self.pending.drain(..) {
            if end > written {
                self.unwritten += 1;
                continue;
            }
            self.elements += 1;
            if let Some(sensor) = self.sensors.get_mut(&sensor) {
                sensor.elements += 1;
            }
        }
        self.buffer.clear();
    }

    /// Writes the state of the budget at the end.
    pub(crate) fn budget(&mut self, budget: &BudgetOutcome) {
        self.layout.budget(budget, &mut self.buffer);
    }

    /// Writes the summary, and returns it.
    pub(crate) fn finish(&mut self, duration_ns: u64, ended_by: &'static str) -> Summary {
        self.flush();
        let summary = Summary {
            elements: self.elements,
            unwritten: self.unwritten,
            missed: self.missed,
            gaps: self.gaps,
            complete: self.gaps == 0 && self.notes == 0 && !self.sensors.is_empty(),
            duration_ns,
            ended_by,
            sensors: self.sensors.values().cloned().collect(),
            budget: None,
        };
        self.layout.summary(&summary, &mut self.buffer);
        self.flush();
        summary
    }

    fn sensor(&mut self, stream: &StreamDescriptor) -> &mut SensorSummary {
        self.sensors
            .entry(stream.first_stream())
            .or_insert_with(|| SensorSummary {
                sensor: stream.sensor_label(),
                ..SensorSummary::default()
            })
    }

    fn flush_if_full(&mut self) {
        if self.buffer.len() >= BATCH_BYTES {
            self.flush();
        }
    }
}

impl<W: Write> Analysis for Feed<W> {
    fn element(&mut self, element: &ElementView<'_>) {
        if self.is_full() {
            return;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        self.sensor(element.stream);
        self.layout.element(element, &mut self.buffer);
        let sensor = element.stream.first_stream();
        self.pending.push((self.buffer.len(), sensor));
        self.flush_if_full();
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.is_full() {
            return;
        }
        self.gaps += 1;
        self.missed = self.missed.saturating_add(gap.missed);
        let sensor = self.sensor(stream);
        sensor.missed = sensor.missed.saturating_add(gap.missed);
        self.layout.gap(stream, gap, &mut self.buffer);
        self.flush_if_full();
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use overhear_event::{Analysis, ElementView};

    use super::{Feed, SensorSummary, Summary};
    use crate::attach::Text;
    use crate::testing::{at, gap, plain_stream};

    fn write<W: Write>(feed: &mut Feed<W>, sequence: u64, ns: u64) {
        feed.element(&ElementView {
            stream: &plain_stream(),
            sequence,
            time: at(ns),
            payload: &5_i64.to_ne_bytes(),
        });
    }

    #[test]
    fn count_is_exact_and_later_elements_do_not_count() {
        let mut out = Vec::new();
        let mut feed = Feed::new(Box::new(Text::new(false)), &mut out, Some(2));
        write(&mut feed, 0, 10);
        assert!(!feed.is_full());
        write(&mut feed, 1, 20);
        assert!(feed.is_full());
        write(&mut feed, 2, 30);
        feed.gap(&plain_stream(), &gap(&plain_stream(), 3, 9, 30, 40));
        let summary = feed.finish(7, "count");
        let expected = Summary {
            elements: 2,
            unwritten: 0,
            missed: 0,
            gaps: 0,
            complete: true,
            duration_ns: 7,
            ended_by: "count",
            sensors: vec![SensorSummary {
                sensor: "server(4711)/job".to_string(),
                elements: 2,
                missed: 0,
            }],
            budget: None,
        };
        assert_eq!(summary, expected);
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
    }

    #[test]
    fn empty_feed_and_gaps_of_unknown_extent_are_incomplete() {
        let nothing = Feed::new(Box::new(Text::new(false)), io::sink(), None).finish(1, "count");
        assert!(!nothing.complete);
        let mut feed = Feed::new(Box::new(Text::new(false)), io::sink(), None);
        write(&mut feed, 0, 10);
        feed.gap(&plain_stream(), &gap(&plain_stream(), 1, 0, 10, 40));
        let summary = feed.finish(1, "count");
        assert_eq!((summary.missed, summary.complete), (0, false));
        let mut feed = Feed::new(Box::new(Text::new(false)), io::sink(), None);
        write(&mut feed, 0, 10);
        feed.note("a header is damaged");
        assert!(!feed.finish(1, "count").complete);
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes this number of bytes, then fails.
    struct Takes(usize);

    impl Write for Takes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            match taken {
                0 => Err(io::ErrorKind::BrokenPipe.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn elements_count_when_they_are_wholly_written() {
        let mut line = Vec::new();
        let mut feed = Feed::new(Box::new(Text::new(false)), &mut line, None);
        write(&mut feed, 0, 10);
        feed.finish(1, "count");
        // All of the same length: the fourth is cut.
        let out = Takes(3 * line.len() + 5);
        let mut feed = Feed::new(Box::new(Text::new(false)), out, None);
        for sequence in 0..7 {
            write(&mut feed, sequence, 10);
        }
        let summary = feed.finish(1, "closed");
        assert_eq!((summary.elements, summary.unwritten), (3, 4));
        assert_eq!(summary.sensors[0].elements, 3);
    }

    #[test]
    fn closed_output_ends_the_feed_and_costs_no_memory() {
        let mut feed = Feed::new(Box::new(Text::new(false)), Closed, None);
        for sequence in 0..10_000 {
            write(&mut feed, sequence, sequence);
        }
        assert!(feed.is_full());
        assert_eq!(feed.failure().unwrap().kind(), io::ErrorKind::BrokenPipe);
        assert!(feed.buffer.len() < super::BATCH_BYTES);
    }
}
