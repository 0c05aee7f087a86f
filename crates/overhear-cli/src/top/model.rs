// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the screen, and the effect of keys.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::snapshot::{SensorRow, Snapshot, TaskRow, ThreadRow};
use overhear_session::listing::State;

/// Maximum length of a filter in characters, so that it fits its line.
const MAX_FILTER_CHARS: usize = 60;

/// A page: one table, or the histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    /// Sensors.
    #[default]
    Sensors,
    /// Threads of the process that is followed, else the processes that own sensors.
    Threads,
    /// The distributions of updates, if there are any.
    Histograms,
    /// The budget, if there is one.
    Budget,
    /// The samples, if there are samplers.
    Samples,
}

/// Sort key of sensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SensorKey {
    /// The order of registration.
    #[default]
    Registration,
    /// Id and instance.
    Name,
    /// Process.
    Task,
    /// Actual rate, highest first.
    Rate,
    /// Ratio of actual and declared rate, lowest first.
    Declared,
    /// Elements, most first.
    Elements,
    /// Missed, most first.
    Missed,
    /// 99th percentile of the intervals, longest first.
    Interval,
}

impl SensorKey {
    const ALL: [Self; 8] = [
        Self::Registration,
        Self::Name,
        Self::Task,
        Self::Rate,
        Self::Declared,
        Self::Elements,
        Self::Missed,
        Self::Interval,
    ];
}

/// Sort key of threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ThreadKey {
    /// Time on a CPU, most first.
    #[default]
    Run,
    /// Name.
    Name,
    /// Thread id.
    Tid,
    /// Time waiting for a CPU, most first.
    Runnable,
    /// Involuntary switches, most first.
    Involuntary,
    /// Largest wake-up latency first.
    Latency,
}

impl ThreadKey {
    const ALL: [Self; 6] = [
        Self::Run,
        Self::Name,
        Self::Tid,
        Self::Runnable,
        Self::Involuntary,
        Self::Latency,
    ];
}

/// A request of the user that the model cannot carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Leave.
    Quit,
    /// Switch a sensor on or off.
    Switch {
        /// The number of its first stream.
        stream: u32,
        /// On or off.
        on: bool,
    },
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// The newest snapshot; while paused, that of the begin of the pause.
    pub(crate) snapshot: Snapshot,
    /// The shown page.
    pub(crate) page: Page,
    /// The order of sensors.
    pub(crate) sensor_key: SensorKey,
    /// The order of threads.
    pub(crate) thread_key: ThreadKey,
    /// Whether the order is reversed.
    pub(crate) reversed: bool,
    /// Only rows whose names contain it are shown. Upper and lower case are equal.
    pub(crate) filter: String,
    /// Whether keys go to the filter.
    pub(crate) typing: bool,
    /// Whether the picture stands still. The observation goes on.
    pub(crate) paused: bool,
    /// Whether the help is shown.
    pub(crate) help: bool,
    /// The drawn course of the selected sensor: 0 is the rate, n is field n - 1.
    pub(crate) track: usize,
    /// A message, shown until the next key.
    pub(crate) message: String,
    /// First stream of the selected sensor. The selection follows the sensor when rows move.
    selected: Option<u32>,
    /// Selected row of the page of threads or tasks.
    row: usize,
    /// Index of the uppermost histogram.
    histogram: usize,
    /// Selected row of the page of the budget.
    budget_row: usize,
    /// First shown line of the page of samples.
    sample_line: usize,
}

impl Model {
    /// Replaces the snapshot, unless the picture is paused.
    pub(crate) fn show(&mut self, snapshot: Snapshot) {
        if !self.paused {
            self.snapshot = snapshot;
        }
    }

    /// Reacts to a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Request> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Request::Quit);
        }
        self.message.clear();
        if self.typing {
            self.type_filter(key.code);
            return None;
        }
        if self.help {
            // Any key closes the help, and has no other effect.
            self.help = false;
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Request::Quit),
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return Some(Request::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('s' | '>') => self.next_key(false),
            KeyCode::Char('S' | '<') => self.next_key(true),
            KeyCode::Char('1') => self.page = Page::Sensors,
            KeyCode::Char('2') => self.page = Page::Threads,
            KeyCode::Char('3') if self.has_histograms() => self.page = Page::Histograms,
            KeyCode::Char('4') if self.snapshot.budget.is_some() => self.page = Page::Budget,
            KeyCode::Char('5') if self.has_samplers() => self.page = Page::Samples,
            KeyCode::Tab => self.page = next(&self.pages(), self.page, false),
            KeyCode::BackTab => self.page = next(&self.pages(), self.page, true),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(10),
            KeyCode::PageUp => self.select(-10),
            KeyCode::Home | KeyCode::Char('g') => self.select(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.select(isize::MAX),
            KeyCode::Right | KeyCode::Char('l') => self.next_track(1),
            KeyCode::Left => self.next_track(-1),
            KeyCode::Char('o') => return self.toggle(),
            _ => {}
        }
        None
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c)
                if !c.is_control() && self.filter.chars().count() < MAX_FILTER_CHARS =>
            {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn next_key(&mut self, backwards: bool) {
        match self.page {
            Page::Sensors => self.sensor_key = next(&SensorKey::ALL, self.sensor_key, backwards),
            Page::Threads => self.thread_key = next(&ThreadKey::ALL, self.thread_key, backwards),
            Page::Histograms | Page::Budget | Page::Samples => {}
        }
    }

    fn select(&mut self, by: isize) {
        let moved = |row: usize, rows: usize| {
            let last = isize::try_from(rows).unwrap_or(isize::MAX) - 1;
            let row = isize::try_from(row).unwrap_or(0).saturating_add(by);
            row.clamp(0, last.max(0)).unsigned_abs()
        };
        match self.page {
            Page::Sensors => {
                let sensors = self.sensors();
                let row = self.selected_row();
                let stream = sensors
                    .get(moved(row, sensors.len()))
                    .map(|sensor| sensor.identity.stream);
                self.selected = stream;
                self.track = 0;
            }
            Page::Threads => {
                let rows = if self.shows_tasks() {
                    self.tasks().len()
                } else {
                    self.threads().len()
                };
                self.row = moved(self.row, rows);
            }
            Page::Histograms => {
                self.histogram = moved(self.histogram, self.snapshot.histograms.len());
            }
            Page::Budget => {
                let budget = self.snapshot.budget.as_ref();
                let sensors = budget.map_or(0, |budget| budget.sensors.len());
                self.budget_row = moved(self.budget_row, sensors);
            }
            Page::Samples => {
                self.sample_line = moved(self.sample_line, self.snapshot.sample_lines());
            }
        }
    }

    fn next_track(&mut self, by: isize) {
        let tracks = 1 + self.selected_sensor().map_or(0, |s| s.values.len());
        let track = isize::try_from(self.track % tracks).unwrap_or(0) + by;
        self.track = track
            .rem_euclid(isize::try_from(tracks).unwrap_or(1))
            .unsigned_abs();
    }

    fn toggle(&mut self) -> Option<Request> {
        let sensor = self
            .selected_sensor()
            .filter(|_| self.page == Page::Sensors)?;
        let (stream, state) = (sensor.identity.stream, sensor.state);
        let on = match state {
            State::On => false,
            State::Off => true,
            State::Ended => {
                self.message = "this sensor has ended".to_string();
                return None;
            }
        };
        Some(Request::Switch { stream, on })
    }

    /// Whether the page shows processes instead of threads, because none is followed.
    #[must_use]
    pub(crate) fn shows_tasks(&self) -> bool {
        self.snapshot.threads.is_empty()
    }

    /// The row of the selected sensor or thread.
    #[must_use]
    pub(crate) fn selected_row(&self) -> usize {
        match self.page {
            Page::Sensors => self
                .sensors()
                .iter()
                .position(|sensor| Some(sensor.identity.stream) == self.selected)
                .unwrap_or(0),
            Page::Threads => self.row,
            Page::Histograms => self.histogram,
            Page::Budget => self.budget_row,
            Page::Samples => self.sample_line,
        }
    }

    /// Whether there is a page of histograms.
    #[must_use]
    pub(crate) fn has_histograms(&self) -> bool {
        !self.snapshot.histograms.is_empty()
    }

    /// Whether there is a page of samples.
    #[must_use]
    pub(crate) fn has_samplers(&self) -> bool {
        !self.snapshot.samplers.is_empty()
    }

    /// The pages with contents, in their order.
    #[must_use]
    pub(crate) fn pages(&self) -> Vec<Page> {
        let mut pages = vec![Page::Sensors, Page::Threads];
        pages.extend(self.has_histograms().then_some(Page::Histograms));
        pages.extend(self.snapshot.budget.is_some().then_some(Page::Budget));
        pages.extend(self.has_samplers().then_some(Page::Samples));
        pages
    }

    /// The selected sensor; the first one unless the user has chosen.
    #[must_use]
    pub(crate) fn selected_sensor(&self) -> Option<&SensorRow> {
        self.sensors().get(self.selected_row()).copied()
    }

    /// The sensors to show, in their order.
    #[must_use]
    pub(crate) fn sensors(&self) -> Vec<&SensorRow> {
        let mut rows: Vec<&SensorRow> = self
            .snapshot
            .sensors
            .iter()
            .filter(|row| self.shows(&[&row.identity.task, "/", &row.identity.name()]))
            .collect();
        rows.sort_by(|a, b| self.ordered(by_key(self.sensor_key, a, b)));
        rows
    }

    /// The threads to show, in their order.
    #[must_use]
    pub(crate) fn threads(&self) -> Vec<&ThreadRow> {
        let mut rows: Vec<&ThreadRow> = self
            .snapshot
            .threads
            .iter()
            .filter(|row| self.shows(&[&row.comm, "(", &row.tid.to_string(), ")"]))
            .collect();
        rows.sort_by(|a, b| self.ordered(by_thread_key(self.thread_key, a, b)));
        rows
    }

    /// The processes to show.
    #[must_use]
    pub(crate) fn tasks(&self) -> Vec<&TaskRow> {
        let rows = self.snapshot.tasks.iter();
        rows.filter(|row| self.shows(&[&row.task])).collect()
    }

    fn shows(&self, name: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        name.concat().to_lowercase().contains(&filter)
    }

    fn ordered(&self, order: Ordering) -> Ordering {
        if self.reversed {
            order.reverse()
        } else {
            order
        }
    }
}

/// The item after or before `key`, in a circle.
fn next<K: Copy + PartialEq>(all: &[K], key: K, backwards: bool) -> K {
    let index = all.iter().position(|&other| other == key).unwrap_or(0);
    let by = if backwards { all.len() - 1 } else { 1 };
    all[(index + by) % all.len()]
}

/// The larger value first, `None` last.
fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    let or_least = |value: Option<f64>| value.unwrap_or(f64::NEG_INFINITY);
    or_least(b).total_cmp(&or_least(a))
}

fn by_key(key: SensorKey, a: &SensorRow, b: &SensorRow) -> Ordering {
    let p99 = |row: &SensorRow| row.interval_ns.map(|q| q.p99 as f64);
    let share = |row: &SensorRow| row.share_of_declared().unwrap_or(f64::INFINITY);
    match key {
        SensorKey::Registration => a.identity.stream.cmp(&b.identity.stream),
        SensorKey::Name => a.identity.name().cmp(&b.identity.name()),
        SensorKey::Task => a.identity.task.cmp(&b.identity.task),
        SensorKey::Rate => descending(a.rate_hz, b.rate_hz),
        SensorKey::Declared => share(a).total_cmp(&share(b)),
        SensorKey::Elements => b.elements.cmp(&a.elements),
        SensorKey::Missed => b.missed.cmp(&a.missed).then(b.gaps.cmp(&a.gaps)),
        SensorKey::Interval => descending(p99(a), p99(b)),
    }
}

fn by_thread_key(key: ThreadKey, a: &ThreadRow, b: &ThreadRow) -> Ordering {
    let latency = |row: &ThreadRow| row.wakeup_latency_ns.map(|q| q.max as f64);
    match key {
        ThreadKey::Run => descending(Some(a.run), Some(b.run)),
        ThreadKey::Name => a.comm.cmp(&b.comm),
        ThreadKey::Tid => a.tid.cmp(&b.tid),
        ThreadKey::Runnable => descending(a.runnable, b.runnable),
        ThreadKey::Involuntary => descending(Some(a.involuntary_hz), Some(b.involuntary_hz)),
        ThreadKey::Latency => descending(latency(a), latency(b)),
    }
}
