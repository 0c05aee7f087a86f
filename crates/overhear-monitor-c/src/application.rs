// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor inside an application: a best-effort thread that reads the sensors of a pattern, and
//! updates that are added and removed while it runs [GRTMon, section 3.5].

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear::{Announcement, SensorError};
use overhear_directory::client::socket_path;
use overhear_directory::{AttachError, Begin, MonitorConnection, Needs, Query, QueryError};
use overhear_event::{Nanos, Source};
use overhear_monitor::{Binding, Monitor, Runner, Supervisor, UpdateSet};

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
    NotConnected { name: String, reason: String },
    #[error("there is no thread for the monitor: {0}")]
    Thread(std::io::Error),
}

/// The settings of a monitor.
#[derive(Debug)]
pub(crate) struct MonitorOptions<'a> {
    /// Socket of the directory; `None`: the directory of the environment.
    pub(crate) socket: Option<&'a Path>,
    /// Pattern of the sensors that it reads: `TASK/SENSOR#INSTANCE`.
    pub(crate) sensors: &'a str,
    /// Name under which waiters of other processes find it.
    pub(crate) announce: Option<&'a str>,
    /// Events that its updates require, and whether other sensors are switched off meanwhile.
    pub(crate) needs: Needs,
    /// Age of an element when it is evaluated.
    pub(crate) hold_back: Nanos,
}

/// A running monitor. Dropping it evaluates what was written until then, and ends the thread.
#[derive(Debug)]
pub(crate) struct ApplicationMonitor {
    supervisor: Supervisor,
    // Sends further sources to the thread, which ends when this is dropped.
    sources: Option<Sender<Box<dyn Source + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl ApplicationMonitor {
    /// Attaches to the sensors and starts the thread. Elements that are written from now on are
    /// read.
    pub(crate) fn start(options: &MonitorOptions<'_>) -> Result<Self, StartError> {
        let socket: Option<PathBuf> = options.socket.map(Path::to_path_buf).or_else(socket_path);
        let socket = socket.ok_or(StartError::NoDirectory)?;
        let query = Query::parse(options.sensors).map_err(|reason| StartError::Sensors {
            sensors: options.sensors.to_string(),
            reason,
        })?;
        let mut set = UpdateSet::new();
        let announcement = options.announce.map(|name| {
            Announcement::register_at(&socket, name).map_err(|reason| StartError::Announce {
                name: name.to_string(),
                reason,
            })
        });
        if let Some(announcement) = announcement.transpose()? {
            if let Some(reason) = announcement.sensor().not_connected_reason() {
                return Err(StartError::NotConnected {
                    name: options.announce.unwrap_or_default().to_string(),
                    reason: reason.to_string(),
                });
            }
            // The set is empty, so it has room. The order of updates does not matter here: all of
            // them have evaluated the elements before an advance.
            let _ = set.add(announcement, Binding::without_streams("announcement"));
        }
        let connection = MonitorConnection::connect(&socket)?;
        let mut source = connection.attach_needing(query, Begin::Now, options.needs.clone())?;
        source.forget_clock_segments();
        let hold_back = options.hold_back;
        let supervisor = set.supervisor();
        let (sources, further) = channel::<Box<dyn Source + Send>>();
        let thread = std::thread::Builder::new().name("oh-monitor".to_string());
        let thread = thread.spawn(move || {
            let runner = Runner::over(Monitor::new(hold_back), set).source(Box::new(source));
            // A longer pause would delay callers that wait for an evaluation.
            let wait = |pause: Duration| std::thread::sleep(pause.min(Duration::from_millis(1)));
            runner.run(wait, |runner| loop {
                match further.try_recv() {
                    Ok(source) => {
                        runner.monitor.add_source(source);
                    }
                    Err(end) => return (end == TryRecvError::Disconnected).then_some(()),
                }
            });
        });
        Ok(Self {
            supervisor,
            sources: Some(sources),
            thread: Some(thread.map_err(StartError::Thread)?),
        })
    }

    /// Whether the calling thread is the monitor's, in which its updates run.
    pub(crate) fn is_current_thread(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(std::thread::current().id())
    }

    /// Adds a source, which is read from the next round on. No two sources have a stream id in
    /// common.
    pub(crate) fn add_source(&self, source: Box<dyn Source + Send>) {
        if let Some(sources) = &self.sources {
            // It fails only if the thread has ended by a panic, which was printed.
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
            // A panic of the thread was printed; panics of updates are caught.
            let _ = thread.join();
        }
    }
}
