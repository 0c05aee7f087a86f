// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was heard so far of a run that goes on, shared by who hears it and who shows it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
use overhear_metrics::{Scheduling, SensorStatistics, Timeline};
use overhear_monitor::Losses;
use serde_json::{json, Value as Json};

use crate::picture::{self, Cursor, Parts, PicturedGap, SensorColumns};
use crate::report;

/// Intervals and elements in one piece of news: the run waits while it is put together.
const MOST_NEWS: usize = 50_000;
/// How often the tables change.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// What was heard so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Heard>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    scheduling: Scheduling<Timeline>,
    statistics: SensorStatistics,
    losses: Losses,
    columns: SensorColumns,
    gaps: Vec<PicturedGap>,
    command: Vec<String>,
    begin: Option<Timestamp>,
    now: Timestamp,
    /// Counts how often everything was forgotten: readers begin again.
    epoch: u64,
    /// The final report.
    report: Option<Json>,
}

/// How far a reader is.
#[derive(Debug, Default)]
pub(super) struct Reader {
    epoch: Option<u64>,
    cursor: Cursor,
    reported: Option<Instant>,
}

/// What there is for a reader.
#[derive(Debug)]
pub(super) enum News {
    /// A piece, and whether it is the last, and whether more waits already.
    Piece { json: Json, last: bool, more: bool },
    /// What was told does not hold any more.
    Again,
}

impl Feed {
    /// Names the program.
    #[must_use]
    pub fn of(command: &[String]) -> Self {
        let feed = Self::default();
        feed.heard().command = command.to_vec();
        feed
    }

    /// The update that fills it.
    #[must_use]
    pub fn update(&self) -> FeedUpdate {
        FeedUpdate(self.clone())
    }

    /// The run has ended, and this is its report.
    pub fn finish(&self, end: Option<Timestamp>, report: Json) {
        let mut heard = self.heard();
        let end = end.unwrap_or(heard.now);
        heard.now = heard.now.max(end);
        heard.scheduling.finish(end);
        heard.report = Some(report);
        drop(heard);
        self.0.ended.notify_all();
    }

    /// Forgets everything: what was told has turned out to be incomplete.
    pub(super) fn forget(&self) {
        let mut heard = self.heard();
        let (epoch, command) = (heard.epoch + 1, std::mem::take(&mut heard.command));
        *heard = Heard {
            epoch,
            command,
            ..Heard::default()
        };
    }

    /// Waits for at most so long, or until the run ends.
    pub(super) fn wait(&self, longest: Duration) {
        let heard = self.heard();
        if heard.report.is_none() {
            let _ = self.0.ended.wait_timeout(heard, longest);
        }
    }

    pub(super) fn news(&self, reader: &mut Reader) -> News {
        let heard = self.heard();
        if *reader.epoch.get_or_insert(heard.epoch) != heard.epoch {
            return News::Again;
        }
        let begin = heard.begin.unwrap_or(heard.now);
        let parts = Parts {
            scheduling: &heard.scheduling,
            columns: &heard.columns,
            gaps: &heard.gaps,
            begin,
            end: heard.now.max(begin),
        };
        let (timeline, more) = picture::piece(&parts, &mut reader.cursor, MOST_NEWS);
        let last = heard.report.is_some() && !more;
        let due = reader
            .reported
            .is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        let report = match &heard.report {
            Some(report) if last => Some(report.clone()),
            _ if due => {
                reader.reported = Some(Instant::now());
                Some(heard.so_far())
            }
            _ => None,
        };
        News::Piece {
            json: json!({ "timeline": timeline, "report": report, "ended": last }),
            last,
            more,
        }
    }

    /// A panic elsewhere leaves what was heard as it was: it only grows.
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    /// The report as far as it is known; the page says that the run goes on.
    fn so_far(&self) -> Json {
        json!({
            "overhear_version": env!("CARGO_PKG_VERSION"),
            "goes_on": true,
            "command": self.command,
            "duration_ns": self.now.since(self.begin.unwrap_or(self.now)).as_ns(),
            "threads": report::threads(&self.scheduling),
            "sensors": report::sensors(&self.statistics),
            "losses": report::losses(&self.losses),
            "missed_total": self.losses.missed(),
            "histograms": report::histograms(&self.scheduling, &self.statistics),
        })
    }

    fn at(&mut self, time: Timestamp) {
        self.begin.get_or_insert(time);
        self.now = self.now.max(time);
    }
}

/// Fills a [`Feed`].
#[derive(Debug)]
pub struct FeedUpdate(Feed);

impl Update for FeedUpdate {
    fn open(&mut self, stream: &StreamDescriptor) {
        let stream = Arc::new(stream.clone());
        let mut heard = self.0.heard();
        heard.columns.announce(&stream);
        heard.statistics.announce(&stream);
        heard.losses.open(&stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let mut heard = self.0.heard();
        heard.at(element.time);
        heard.scheduling.element(element);
        heard.statistics.element(element);
        heard.columns.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let mut heard = self.0.heard();
        heard.at(gap.from);
        heard.scheduling.gap(stream, gap);
        heard.statistics.gap(stream, gap);
        heard.losses.gap(stream, gap);
        heard.gaps.push(PicturedGap {
            stream: Arc::new(stream.clone()),
            gap: *gap,
            moved: None,
        });
    }

    fn advance(&mut self, now: Timestamp) {
        let mut heard = self.0.heard();
        if heard.begin.is_some() {
            heard.now = heard.now.max(now);
        }
        heard.scheduling.advance(now);
        heard.statistics.advance(now);
    }
}
