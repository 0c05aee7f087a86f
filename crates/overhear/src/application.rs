// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor inside an application, for languages that do not build one from its parts: a thread of
//! best effort that reads the sensors of a pattern, and updates that come and go (seed 000, section 3.5).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear_directory::client::socket_path;
use overhear_directory::{
    monotonic_now, AttachError, Begin, MonitorConnection, Needs, Query, QueryError,
};
use overhear_event::{Nanos, Source};
use overhear_monitor::{best_effort, Monitor, Supervisor, UpdateSet};

use crate::announce::Announcement;
use crate::sensor::SensorError;

/// Why a monitor cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("no directory listens, so there are no sensors to monitor; start one in this program, start it with `overhear run`, or start `overheard`")]
    NoDirectory,
    #[error("the sensors `{sensors}` cannot be understood: {reason}")]
    Sensors { sensors: String, reason: QueryError },
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("the monitor cannot announce itself as `{name}`: {reason}")]
    Announce { name: String, reason: SensorError },
    #[error("the monitor cannot announce itself as `{name}`: {reason}")]
    Unheard { name: String, reason: String },
    #[error("there is no thread for the monitor: {0}")]
    Thread(std::io::Error),
}

/// What a monitor is started with.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) socket: Option<&'a Path>,
    /// The sensors that it reads: `TASK/SENSOR#INSTANCE`.
    pub(crate) sensors: &'a str,
    /// The name by which other processes wait for it.
    pub(crate) announce: Option<&'a str>,
    /// Which of these its updates evaluate, and whether others are switched off meanwhile.
    pub(crate) needs: Needs,
    pub(crate) hold_back: Nanos,
}

/// A monitor that runs. It ends, having evaluated what was written until then, when it is dropped.
#[derive(Debug)]
pub(crate) struct ApplicationMonitor {
    supervisor: Supervisor,
    // Further sources for it; it ends when this is dropped.
    sources: Option<Sender<Box<dyn Source + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl ApplicationMonitor {
    /// Attaches to the sensors, from what is written next on, and begins.
    pub(crate) fn start(wish: &Wish<'_>) -> Result<Self, StartError> {
        let socket: Option<PathBuf> = wish.socket.map(Path::to_path_buf).or_else(socket_path);
        let socket = socket.ok_or(StartError::NoDirectory)?;
        let query = Query::parse(wish.sensors).map_err(|reason| StartError::Sensors {
            sensors: wish.sensors.to_string(),
            reason,
        })?;
        let mut set = UpdateSet::new();
        let announcement = wish.announce.map(|name| {
            Announcement::register_at(&socket, name).map_err(|reason| StartError::Announce {
                name: name.to_string(),
                reason,
            })
        });
        if let Some(announcement) = announcement.transpose()? {
            if let Some(reason) = announcement.sensor().unheard_because() {
                return Err(StartError::Unheard {
                    name: wish.announce.unwrap_or_default().to_string(),
                    reason: reason.to_string(),
                });
            }
            // The first of an empty set: there is room. Who advances first does not matter, because the
            // elements before an advance have been evaluated by all.
            let _ = set.add(announcement, Announcement::binding());
        }
        let connection = MonitorConnection::connect(&socket)?;
        let mut source = connection.attach_needing(query, Begin::Now, wish.needs.clone())?;
        source.forget_clock_segments();
        let hold_back = wish.hold_back;
        let supervisor = set.supervisor();
        let (sources, further) = channel::<Box<dyn Source + Send>>();
        let thread = std::thread::Builder::new().name("oh-monitor".to_string());
        let thread = thread.spawn(move || {
            let mut monitor = Monitor::new(hold_back);
            monitor.add_source(Box::new(source));
            let go_on = |monitor: &mut Monitor| loop {
                match further.try_recv() {
                    Ok(source) => {
                        monitor.add_source(source);
                    }
                    Err(end) => return end == TryRecvError::Empty,
                }
            };
            // Whoever waits for an evaluation waits for this, too.
            let wait = |pause: Duration| std::thread::sleep(pause.min(Duration::from_millis(1)));
            best_effort(&mut monitor, &mut set, monotonic_now, wait, go_on);
        });
        Ok(Self {
            supervisor,
            sources: Some(sources),
            thread: Some(thread.map_err(StartError::Thread)?),
        })
    }

    /// Whether the caller is the monitor's own thread, in which its updates are called.
    pub(crate) fn is_current_thread(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(std::thread::current().id())
    }

    /// Lets it read another source, from its next round on. The streams of all sources have different
    /// numbers.
    pub(crate) fn add_source(&self, source: Box<dyn Source + Send>) {
        if let Some(sources) = &self.sources {
            // Where the thread has ended, by a panic that was printed, nobody reads.
            let _ = sources.send(source);
        }
    }

    pub(crate) const fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }
}

impl Drop for ApplicationMonitor {
    fn drop(&mut self) {
        drop(self.sources.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; updates have theirs caught.
            let _ = thread.join();
        }
    }
}
