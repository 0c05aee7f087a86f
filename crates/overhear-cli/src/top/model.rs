// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is shown, and what keys do to it.

use std::cmp::Ordering;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::snapshot::{SensorRow, Snapshot, TaskRow, ThreadRow};
use overhear_session::listing::State;

/// Longer filters do not fit the line they are typed in.
const LONGEST_FILTER: usize = 60;

/// Which table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    /// Sensors.
    #[default]
    Sensors,
    /// Threads of the process that is followed, else the processes that own sensors.
    Threads,
    /// The distributions that updates find, where there are some.
    Histograms,
}

/// What sensors are sorted by.
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
    /// Actual against declared rate, lowest first: who is behind.
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

/// What threads are sorted by.
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

/// What the user wants of the world outside the model.
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

/// All that decides what is drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// What is shown; while paused, an old one.
    pub(crate) snapshot: Snapshot,
    /// Which table.
    pub(crate) page: Page,
    /// The order of sensors.
    pub(crate) sensor_key: SensorKey,
    /// The order of threads.
    pub(crate) thread_key: ThreadKey,
    /// Against that order.
    pub(crate) reversed: bool,
    /// Rows whose names contain it are shown; upper and lower case are the same.
    pub(crate) filter: String,
    /// The filter is being typed.
    pub(crate) typing: bool,
    /// The picture stands still; counting goes on.
    pub(crate) paused: bool,
    /// The help is shown.
    pub(crate) help: bool,
    /// Which course of the selected sensor is drawn: 0 its rate, else the field with this number
    /// less one.
    pub(crate) track: usize,
    /// A message, shown until the next key.
    pub(crate) message: String,
    // The stream of the selected sensor: rows move, the selection stays with its sensor.
    selected: Option<u32>,
    // Of threads and tasks, the selected row.
    row: usize,
    // The uppermost histogram.
    histogram: usize,
}

impl Model {
    /// Shows this, unless the picture stands still.
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
            // Whatever was pressed, it closes the help; what it else does is not known to
            // somebody who needs help.
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
            KeyCode::Tab | KeyCode::BackTab => {
                self.page = match (self.page, key.code == KeyCode::Tab) {
                    (Page::Sensors, false) if self.has_histograms() => Page::Histograms,
                    (Page::Threads, true) if self.has_histograms() => Page::Histograms,
                    (Page::Sensors, _) | (Page::Histograms, false) => Page::Threads,
                    (Page::Threads, _) | (Page::Histograms, true) => Page::Sensors,
                };
            }
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
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn next_key(&mut self, backwards: bool) {
        fn next<K: Copy + PartialEq>(all: &[K], key: K, backwards: bool) -> K {
            let place = all.iter().position(|&other| other == key).unwrap_or(0);
            let by = if backwards { all.len() - 1 } else { 1 };
            all[(place + by) % all.len()]
        }
        match self.page {
            Page::Sensors => self.sensor_key = next(&SensorKey::ALL, self.sensor_key, backwards),
            Page::Threads => self.thread_key = next(&ThreadKey::ALL, self.thread_key, backwards),
            Page::Histograms => {}
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

    /// Whether processes are shown in place of threads, because none is followed.
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
        }
    }

    /// Whether there is a third page.
    #[must_use]
    pub(crate) fn has_histograms(&self) -> bool {
        !self.snapshot.histograms.is_empty()
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
        rows.sort_by(|a, b| self.turned(by_key(self.sensor_key, a, b)));
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
        rows.sort_by(|a, b| self.turned(by_thread_key(self.thread_key, a, b)));
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

    fn turned(&self, order: Ordering) -> Ordering {
        if self.reversed {
            order.reverse()
        } else {
            order
        }
    }
}

/// The larger first, what is not known last.
fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    let known = |value: Option<f64>| value.unwrap_or(f64::NEG_INFINITY);
    known(b).total_cmp(&known(a))
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
