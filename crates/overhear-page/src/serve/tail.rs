// SPDX-License-Identifier: MIT OR Apache-2.0
//! Follows a recording that another process is still writing.
//!
//! The streams of a trace reach the disk at different times, so the newest elements of one stream
//! may be there before older ones of another. The part that is older than the newest element by
//! more than [`BEHIND`] is assumed to be complete, and delivered in total order. The next pass
//! checks this: if it finds more elements in the old part than before, everything is delivered
//! again.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_trace::{is_being_written, TraceReader};

use super::feed::FeedUpdate;
use super::Feed;
use overhear_session::replay;

/// The recorder keeps elements for 200 ms, and its rounds take some time.
const BEHIND: Nanos = Nanos::from_ms(600);
/// Minimum time between two passes. A long pass is followed by a pause four times as long.
const PAUSE: Duration = Duration::from_millis(300);

/// Follows until it is dropped. The drop does not wait for a running pass: it changes nothing on
/// disk.
pub(super) struct Tail {
    _end: Sender<()>,
}

impl Tail {
    pub(super) fn follow(dir: &Path, feed: &Feed) -> Self {
        let (end, ended) = channel();
        let mut follower = Follower {
            dir: dir.to_path_buf(),
            feed: feed.clone(),
            delivered_to: None,
            count: 0,
        };
        thread::spawn(move || loop {
            let begin = Instant::now();
            // Tested first: elements that were written before the end are read by the next pass.
            let goes_on = is_being_written(&follower.dir);
            follower.look(!goes_on);
            if !goes_on {
                return;
            }
            let rest = PAUSE.max(begin.elapsed() * 4);
            if ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        });
        Self { _end: end }
    }
}

struct Follower {
    dir: PathBuf,
    feed: Feed,
    /// Time up to which everything was delivered.
    delivered_to: Option<Timestamp>,
    /// Number of items that were delivered.
    count: u64,
}

impl Follower {
    fn look(&mut self, is_over: bool) {
        // A recording that has just begun, or is being repaired, is read again later.
        let Ok(reader) = TraceReader::open(&self.dir) else {
            return self.finish(is_over);
        };
        let newest = reader.times().map(|(_, newest)| newest);
        let until = match newest {
            Some(_) if is_over => Timestamp::MAX,
            Some(newest) => newest.minus(BEHIND),
            None => return self.finish(is_over),
        };
        let mut window = Window::new(&self.feed, &reader, self.delivered_to, until);
        let _ = reader.replay(&mut [&mut window]);
        if window.before != self.count {
            self.feed.forget();
            window = Window::new(&self.feed, &reader, None, until);
            let _ = reader.replay(&mut [&mut window]);
        }
        self.count = window.before + window.within;
        self.delivered_to = Some(until);
        self.finish(is_over);
    }

    fn finish(&self, is_over: bool) {
        if is_over {
            let report = replay::read_report(&self.dir).ok();
            let report = report.and_then(|mut report| {
                report.take_long_metrics();
                serde_json::to_value(report).ok()
            });
            let end = replay::end_of(&self.dir);
            self.feed.finish(end, report.unwrap_or_default());
        }
    }
}

/// Delivers the items after one time and not after another.
struct Window {
    update: FeedUpdate,
    after: Option<Timestamp>,
    until: Timestamp,
    before: u64,
    within: u64,
}

impl Window {
    fn new(feed: &Feed, reader: &TraceReader, after: Option<Timestamp>, until: Timestamp) -> Self {
        let mut update = feed.update();
        for stream in reader.streams() {
            update.open(stream);
        }
        Self {
            update,
            after,
            until,
            before: 0,
            within: 0,
        }
    }

    fn holds(&mut self, time: Timestamp) -> bool {
        if self.after.is_some_and(|after| time <= after) {
            self.before += 1;
            return false;
        }
        self.within += u64::from(time <= self.until);
        time <= self.until
    }
}

impl Analysis for Window {
    fn element(&mut self, element: &ElementView<'_>) {
        if self.holds(element.time) {
            self.update.element(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.holds(gap.to) {
            self.update.gap(stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        if now <= self.until && self.after.is_none_or(|after| now > after) {
            self.update.advance(now);
        }
    }
}
