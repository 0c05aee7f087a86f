// SPDX-License-Identifier: MIT OR Apache-2.0
//! The items of a run that goes on, shared by the session that fills it and the server that shows
//! it: in recorded time and, if the cost of observing is known, in compensated time, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{Analysis, ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp};
use overhear_metrics::compensation::Compensation;
use overhear_metrics::SensorStatistics;
use overhear_monitor::Losses;
use serde_json::{json, Value as Json};

use crate::picture::{Cursor, Picture};
use overhear_session::calibrate::Calibration;
use overhear_session::report;

/// Maximum number of intervals and elements in one piece of news: the run waits while the piece is
/// built.
const MOST_NEWS: usize = 50_000;
/// Size of the sensors' histograms in bytes. The run itself has others, which are more exact.
const HISTOGRAM_BYTES: usize = 6 << 20;
/// Time between two versions of the tables.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The items of a run so far. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<FeedState>,
    ended: Condvar,
}

/// The picture in compensated time.
#[derive(Debug, Default)]
enum Compensated {
    /// There is none: the cost of observing is unknown.
    #[default]
    Unknown,
    /// No item has come yet. The prices depend on the backend of the kernel sensors, which the
    /// streams reveal.
    Awaited(Box<Calibration>),
    Growing(Box<Compensation<Picture>>),
    Ended(Box<Picture>),
}

impl Compensated {
    /// The pictures for the items. The first item creates them, with the streams that are known by
    /// then.
    fn begun(
        &mut self,
        streams: &BTreeMap<StreamId, Arc<StreamDescriptor>>,
    ) -> Option<&mut Compensation<Picture>> {
        if let Self::Awaited(calibration) = self {
            let by_perf = streams
                .values()
                .any(|stream| stream.origin == Origin::Sampler);
            let active = if by_perf { "perf" } else { "bpf" };
            let costs = calibration.as_ref().clone().for_backend(active).costs();
            let mut growing = Compensation::new(costs, Picture::default());
            for stream in streams.values() {
                growing.open(stream);
            }
            *self = Self::Growing(Box::new(growing));
        }
        match self {
            Self::Growing(growing) => Some(growing),
            Self::Unknown | Self::Awaited(_) | Self::Ended(_) => None,
        }
    }

    fn picture(&self) -> Option<&Picture> {
        match self {
            Self::Growing(growing) => Some(growing.update()),
            Self::Ended(picture) => Some(picture),
            Self::Unknown | Self::Awaited(_) => None,
        }
    }

    /// Ends the pictures: the run has ended at this time.
    fn finish(&mut self, end: Timestamp) {
        *self = match std::mem::take(self) {
            Self::Growing(growing) => {
                let (delays, mut picture) = growing.into_parts();
                picture.end(end.minus(delays.last()));
                Self::Ended(Box::new(picture))
            }
            other => other,
        };
    }
}

#[derive(Debug)]
struct FeedState {
    plain: Picture,
    compensated: Compensated,
    /// The cost of observing, if known.
    calibration: Option<Calibration>,
    statistics: SensorStatistics,
    losses: Losses,
    streams: BTreeMap<StreamId, Arc<StreamDescriptor>>,
    command: Vec<String>,
    begin: Option<Timestamp>,
    /// Number of times that everything was discarded: readers then begin again.
    epoch: u64,
    /// The final report.
    report: Option<Json>,
}

impl Default for FeedState {
    fn default() -> Self {
        Self {
            plain: Picture::default(),
            compensated: Compensated::default(),
            calibration: None,
            statistics: SensorStatistics::default().with_histogram_bytes(HISTOGRAM_BYTES),
            losses: Losses::default(),
            streams: BTreeMap::new(),
            command: Vec::new(),
            begin: None,
            epoch: 0,
            report: None,
        }
    }
}

/// Read position of a reader.
#[derive(Debug, Default)]
pub(super) struct Reader {
    epoch: Option<u64>,
    cursor: Cursor,
    compensated: Cursor,
    reported: Option<Instant>,
}

/// News for a reader.
#[derive(Debug)]
pub(super) enum News {
    /// A piece; `last` if no other piece follows, `more` if another one is available already.
    Piece { json: Json, last: bool, more: bool },
    /// The earlier pieces are not valid any more.
    Again,
}

impl Feed {
    /// A feed for this command; the page shows the name of the program.
    #[must_use]
    pub fn of(command: &[String]) -> Self {
        let feed = Self::default();
        feed.state().command = command.to_vec();
        feed
    }

    /// An empty feed with the cost of observing, so that there is compensated time, too.
    #[must_use]
    pub fn compensated_by(self, calibration: Option<Calibration>) -> Self {
        self.state().expect_costs(calibration);
        self
    }

    /// The update that fills the feed.
    #[must_use]
    pub fn update(&self) -> FeedUpdate {
        FeedUpdate(self.clone())
    }

    /// Ends the feed: the run has ended, and this is its report.
    pub fn finish(&self, end: Option<Timestamp>, report: Json) {
        let mut state = self.state();
        let end = end.unwrap_or(state.plain.now());
        state.plain.end(end);
        state.compensated.finish(end);
        state.report = Some(report);
        drop(state);
        self.0.ended.notify_all();
    }

    /// Discards everything: the earlier items have turned out to be incomplete.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        let (epoch, command) = (state.epoch + 1, std::mem::take(&mut state.command));
        let calibration = state.calibration.take();
        *state = FeedState {
            epoch,
            command,
            ..FeedState::default()
        };
        state.expect_costs(calibration);
    }

    /// Waits until the run ends, at most for `longest`.
    pub(super) fn wait(&self, longest: Duration) {
        let state = self.state();
        if state.report.is_none() {
            let _ = self.0.ended.wait_timeout(state, longest);
        }
    }

    pub(super) fn news(&self, reader: &mut Reader) -> News {
        let state = self.state();
        if *reader.epoch.get_or_insert(state.epoch) != state.epoch {
            return News::Again;
        }
        let begin = state.begin.unwrap_or(state.plain.now());
        let (timeline, more) = state.plain.piece(begin, &mut reader.cursor, MOST_NEWS);
        let compensated = state.compensated.picture();
        let compensated = compensated.map(|it| it.piece(begin, &mut reader.compensated, MOST_NEWS));
        let more = more || compensated.as_ref().is_some_and(|(_, more)| *more);
        let compensated = compensated.map(|(timeline, _)| timeline);
        let last = state.report.is_some() && !more;
        let due = reader
            .reported
            .is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        let report = match &state.report {
            Some(report) if last => Some(report.clone()),
            _ if due => {
                reader.reported = Some(Instant::now());
                Some(state.so_far())
            }
            _ => None,
        };
        News::Piece {
            json: json!({
                "timeline": timeline,
                "compensated": compensated,
                "report": report,
                "ended": last,
            }),
            last,
            more,
        }
    }

    /// A panic of another thread leaves valid data: they only grow.
    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FeedState {
    fn expect_costs(&mut self, calibration: Option<Calibration>) {
        self.compensated = match &calibration {
            Some(known) => Compensated::Awaited(Box::new(known.clone())),
            None => Compensated::Unknown,
        };
        self.calibration = calibration;
    }

    /// The present state of the report; the page shows that the run goes on.
    fn so_far(&self) -> Json {
        json!({
            "overhear_version": env!("CARGO_PKG_VERSION"),
            "goes_on": true,
            "command": self.command,
            "duration_ns": self.plain.now().since(self.begin.unwrap_or(self.plain.now())).as_ns(),
            "threads": report::threads(self.plain.scheduling()),
            "sensors": report::sensors(&self.statistics),
            "samplers": report::samplers(self.plain.scheduling(), &self.statistics),
            "losses": report::losses(&self.losses),
            "missed_total": self.losses.missed(),
            "histograms": report::histograms(self.plain.scheduling(), &self.statistics),
        })
    }

    /// Creates the pictures at the first item.
    fn begin(&mut self, time: Timestamp) -> Option<&mut Compensation<Picture>> {
        self.begin.get_or_insert(time);
        self.compensated.begun(&self.streams)
    }
}

/// Fills a [`Feed`].
#[derive(Debug)]
pub struct FeedUpdate(Feed);

impl Analysis for FeedUpdate {
    fn open(&mut self, stream: &StreamDescriptor) {
        let mut state = self.0.state();
        let stream = Arc::new(stream.clone());
        state.plain.open(&stream);
        state.statistics.announce(&stream);
        state.losses.open(&stream);
        if let Compensated::Growing(growing) = &mut state.compensated {
            growing.open(&stream);
        }
        state.streams.insert(stream.id, stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let mut state = self.0.state();
        if let Some(compensated) = state.begin(element.time) {
            compensated.element(element);
        }
        state.plain.element(element);
        state.statistics.element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let mut state = self.0.state();
        if let Some(compensated) = state.begin(gap.from) {
            compensated.gap(stream, gap);
        }
        state.plain.gap(stream, gap);
        state.statistics.gap(stream, gap);
        state.losses.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        let mut state = self.0.state();
        if state.begin.is_some() {
            state.plain.advance(now);
            if let Compensated::Growing(growing) = &mut state.compensated {
                growing.advance(now);
            }
        }
        state.statistics.advance(now);
    }
}
