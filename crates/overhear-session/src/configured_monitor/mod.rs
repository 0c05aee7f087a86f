// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitors that `overhear.toml` describes, one for each executor that its updates name, run
//! beside the session in threads of their own.
//!
//! [`MonitorPlan::read`] decides before anything runs: whether they are admitted, and who runs
//! them. `MonitorPlan::start` attaches to a directory like any other monitor and runs until
//! [`MonitorHandle::stop`], which makes one report of them.

pub(crate) mod evaluation;
mod hearing;
mod measuring;
mod report;
mod running;
mod suggestion;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use overhear_admission::DeadlineReservation;
use overhear_directory::Query;
use overhear_metrics::automaton::Metric;
use overhear_monitor::executor::{may_guarantee, share_of_cpu, DeadlineRefusal, Terms};
use overhear_monitor::scheduler::{ask_kernel, KernelVerdict};
use overhear_monitor::Partition;

use crate::admit::{self, terms_without_guarantee, KernelRing, LoadedPlugin, MemoryBytes};
use crate::config::selection::{ExecutorKind, Selection};
use crate::config::{Config, ExecutorConfig};
use crate::error::{ErrorKind, SessionError};
use crate::place;
use crate::reactions::Deciders;

pub use evaluation::Counting;
use hearing::KernelHearing;
pub(crate) use measuring::{metrics_of, Measuring};
pub use report::{MeasuredUpdate, MonitorReport, MonitoredSensor};
use running::Running;
pub use suggestion::Suggestion;

/// The document of a recording in which its report is kept.
pub(crate) const GUARANTEE: &str = "guarantee";

/// Who runs a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    Deadline,
    Bandwidth,
    /// The reservation is that of the thread that copies.
    Buffered(DeadlineReservation),
    BestEffort,
}

impl Executor {
    const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Bandwidth => "bandwidth",
            Self::Buffered(_) => "buffered",
            Self::BestEffort => "best_effort",
        }
    }
}

/// The monitors of a file that may start: one for each executor that its updates name.
#[derive(Clone, Debug)]
pub struct MonitorPlan {
    config: Config,
    path: PathBuf,
    // What is guaranteed comes first.
    monitors: Vec<ExecutorPlan>,
    measures: bool,
    // Of each update in the file, the plug-in that it names.
    plugins: Vec<Option<LoadedPlugin>>,
    // Likewise, the metric that it measures.
    metrics: Vec<Option<Metric>>,
    /// The CPU that was set apart for the guaranteed one.
    partition: Option<Arc<Partition>>,
    /// Why there will be no guarantee although one was wished for.
    pub warning: Option<String>,
}

/// The monitor of one executor.
#[derive(Clone, Debug)]
struct ExecutorPlan {
    selection: Selection,
    terms: Terms,
    executor: Executor,
    // What admission said of its memory.
    stated: Option<MemoryBytes>,
    // The kernel sensors that it hears.
    rings: Vec<KernelRing>,
}

impl ExecutorPlan {
    /// Makes the rings of its kernel sensors, if it has any.
    fn hear_kernel(&self) -> Result<Option<KernelHearing>, SessionError> {
        if self.rings.is_empty() {
            return Ok(None);
        }
        let demanded = self.executor != Executor::BestEffort;
        KernelHearing::prepare(&self.rings, demanded).map(Some)
    }
}

impl MonitorPlan {
    /// Reads the file and decides. With `measures` nothing is guaranteed, and updates need no WCET.
    ///
    /// # Errors
    /// [`SessionError`]: the file makes no sense (2), a monitor is not admitted (4), a guarantee or
    /// a reservation was demanded and this user or machine cannot give one (5).
    pub fn read(path: &Path, measures: bool) -> Result<Self, SessionError> {
        let config = Config::read(path)?;
        let plugins = admit::load_plugins(&config, path)?;
        let metrics = metrics_of(&config, path)?;
        let mut plan = Self {
            config,
            path: path.to_path_buf(),
            monitors: Vec::new(),
            measures,
            plugins,
            metrics,
            partition: None,
            warning: None,
        };
        if measures {
            plan.add(plan.config.whole(), Executor::BestEffort)?;
            return Ok(plan);
        }
        for runner in ExecutorKind::ALL {
            let Some(selection) = plan.config.selection(runner) else {
                continue;
            };
            match runner {
                ExecutorKind::Guaranteed => plan.add_guaranteed(selection)?,
                ExecutorKind::Bandwidth => {
                    let percent = plan.config.monitor.cpu_percent;
                    let refusal = DeadlineRefusal::Share { percent }.to_string();
                    may_reserve(
                        share_of_cpu(percent)
                            .ok_or(SessionError::new(ErrorKind::Usage, refusal))?,
                    )?;
                    plan.add(selection, Executor::Bandwidth)?;
                }
                ExecutorKind::Buffered => {
                    let reservation = admit::copying_of(&plan.config, path)?;
                    may_reserve(reservation)?;
                    plan.add(selection, Executor::Buffered(reservation))?;
                }
                ExecutorKind::BestEffort => plan.add(selection, Executor::BestEffort)?,
            }
        }
        Ok(plan)
    }

    /// Adds a monitor that guarantees nothing.
    fn add(&mut self, selection: Selection, executor: Executor) -> Result<(), SessionError> {
        // The directory is asked for all its sensors at once.
        query(&self.config, &selection)?;
        let (terms, rings) = terms_without_guarantee(&self.config, &self.path, &selection)?;
        self.monitors.push(ExecutorPlan {
            terms,
            selection,
            executor,
            stated: None,
            rings,
        });
        Ok(())
    }

    fn add_guaranteed(&mut self, selection: Selection) -> Result<(), SessionError> {
        self.add(selection.clone(), Executor::BestEffort)?;
        let updates = self.config.updates.iter().enumerate();
        let mut executors = updates
            .filter(|(index, _)| selection.has_update(*index))
            .map(|(_, update)| self.config.executor_of(update));
        let is_demanded = executors.any(|executor| executor == ExecutorConfig::Deadline);
        let admitted = admit::admit_loaded(&self.config, &self.path, &self.plugins)?;
        let Some(terms) = admitted.terms else {
            return Err(SessionError::new(
                ErrorKind::Refused,
                admitted.report.reason,
            ));
        };
        // Set apart before it is asked whether the guarantee could begin there.
        let dedicated_cpu = self.config.monitor.dedicated_cpu;
        let partition = dedicated_cpu
            .map(|cpu| Partition::make(cpu.number()))
            .transpose();
        let possible = partition.map_err(DeadlineRefusal::from).and_then(|made| {
            may_guarantee(&terms, made.as_ref())?;
            Ok(made)
        });
        let possible = possible.map_err(|refusal| {
            let status = match refusal.is_lack_of_permission() {
                true => ErrorKind::Unavailable,
                false => ErrorKind::Refused,
            };
            SessionError::new(status, refusal.to_string())
        });
        let Some(monitor) = self.monitors.last_mut() else {
            return Ok(());
        };
        // The rings of kernel sensors are made twice, because what this user lacks is to be told
        // now.
        let guaranteed = ExecutorPlan {
            terms,
            executor: Executor::Deadline,
            stated: Some(admitted.memory),
            ..monitor.clone()
        };
        let possible = possible.and_then(|made| guaranteed.hear_kernel().map(|_| made));
        match possible {
            Ok(partition) => {
                self.partition = partition.map(Arc::new);
                *monitor = guaranteed;
                Ok(())
            }
            Err(refusal) if refusal.kind != ErrorKind::Unavailable || is_demanded => Err(refusal),
            Err(refusal) => {
                self.warning = Some(format!(
                    "the monitor runs best effort, nothing is guaranteed: {}",
                    refusal.message
                ));
                Ok(())
            }
        }
    }

    /// Makes the rings of all kernel sensors of the file.
    ///
    /// # Errors
    /// [`SessionError`]: the kernel cannot be heard, and something that is reserved needs it (5),
    /// or it grants less than was admitted (4).
    pub(crate) fn hear_kernel(&self) -> Result<KernelRings, SessionError> {
        let all = self.monitors.iter().map(ExecutorPlan::hear_kernel);
        all.collect::<Result<_, _>>().map(KernelRings)
    }

    /// Attaches to the directory at `socket`, tracks the process `pid` in the kernel, where kernel
    /// sensors are heard, and begins. Returns once all monitors are attached, and those that
    /// reserve CPU time beside a guarantee have it.
    ///
    /// # Errors
    /// [`SessionError`] if a thread cannot be started, or the process not be tracked.
    pub(crate) fn start(
        self,
        socket: &Path,
        (mut kernel, pid): (KernelRings, u32),
        deciders: &Deciders,
    ) -> Result<MonitorHandle, SessionError> {
        let plan = Arc::new(self);
        let mut threads = Vec::new();
        for hearing in kernel.0.iter_mut().flatten() {
            hearing.track(pid)?;
        }
        // What is guaranteed comes last: it looks at the reservations that are there, and every
        // other one is foreign to it.
        for index in (0..plan.monitors.len()).rev() {
            let (stop, told) = channel();
            let (begun, answer) = channel();
            let (socket, deciders) = (socket.to_path_buf(), deciders.clone());
            let plan = Arc::clone(&plan);
            let kernel = kernel.0.pop().flatten();
            let thread = std::thread::Builder::new()
                .name("oh-monitor".to_string())
                .spawn(move || {
                    let running = Running::new(&plan, index, deciders.start().clone());
                    running.run((&socket, kernel), &deciders, &told, &begun)
                })
                .map_err(|error| {
                    let message = format!("cannot start a thread for the monitor: {error}");
                    SessionError::new(ErrorKind::Unavailable, message)
                })?;
            // Dropped without an answer: the thread has failed, and says why when it is joined.
            let _ = answer.recv();
            threads.insert(0, (stop, thread));
        }
        Ok(MonitorHandle { plan, threads })
    }
}

/// The kernel sensors of the monitors of a file, in the order of the plan.
#[derive(Debug)]
pub(crate) struct KernelRings(Vec<Option<KernelHearing>>);

impl KernelRings {
    /// How many stream numbers, from 1 on, no sensor of a program may have.
    pub(crate) fn stream_ids_used(&self) -> u32 {
        let all = self.0.iter().flatten();
        all.map(KernelHearing::stream_ids_used).max().unwrap_or(0)
    }
}

/// What this user or machine lacks to run the monitors of a file as it asks, in a message; `None`
/// if nothing. Everything is tried, and given back.
///
/// # Errors
/// [`SessionError`] as from [`MonitorPlan::read`], but for what is lacking.
pub(crate) fn lacking(path: &Path) -> Result<Option<String>, SessionError> {
    match MonitorPlan::read(path, false) {
        Ok(plan) => Ok(plan.warning),
        Err(error) if error.kind == ErrorKind::Unavailable => Ok(Some(error.message)),
        Err(error) => Err(error),
    }
}

/// Whether the kernel takes a reservation.
fn may_reserve(reservation: DeadlineReservation) -> Result<(), SessionError> {
    match ask_kernel(reservation) {
        KernelVerdict::Accepted => Ok(()),
        verdict => {
            let refusal = DeadlineRefusal::of(verdict);
            Err(SessionError::new(
                ErrorKind::Unavailable,
                refusal.to_string(),
            ))
        }
    }
}

/// All sensors of programs of a selection in one question; none if there are none. Alternatives
/// stand for ids; of tasks and instances there can be only one.
fn query(config: &Config, selection: &Selection) -> Result<Option<Query>, SessionError> {
    let sensors = config.sensors.iter().enumerate();
    let own =
        sensors.filter(|(index, sensor)| selection.has_sensor(*index) && !sensor.is_of_kernel());
    let ids: Vec<&str> = own.map(|(_, sensor)| sensor.id.as_str()).collect();
    match ids.as_slice() {
        // A file without sensors is refused elsewhere.
        [] if !config.sensors.is_empty() => Ok(None),
        [one] => place::query(one, None).map(Some),
        several => {
            for id in several {
                place::query(id, None)?;
                if id.contains(['/', '#', '{', '}', ',']) {
                    return Err(SessionError::new(
                        ErrorKind::Usage,
                        format!(
                            "sensor `{id}`: where a monitor has several sensors, each is named by its id \
                             alone, without task, instance and alternatives"
                        ),
                    ));
                }
            }
            place::query(&format!("{{{}}}", several.join(",")), None).map(Some)
        }
    }
}

/// The monitors of a file, running.
#[derive(Debug)]
pub struct MonitorHandle {
    plan: Arc<MonitorPlan>,
    // In the order of the plan.
    threads: Vec<(Sender<()>, MonitorThread)>,
}

type MonitorThread = JoinHandle<Result<MonitorReport, SessionError>>;

impl MonitorHandle {
    /// Evaluates what has been written until now, and ends.
    ///
    /// # Errors
    /// [`SessionError`] if a monitor could not run.
    pub fn stop(self) -> Result<MonitorReport, SessionError> {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.into_iter().unzip();
        drop(stops);
        let ended: Vec<_> = threads.into_iter().map(joined).collect();
        let reports: Vec<MonitorReport> = ended.into_iter().collect::<Result<_, _>>()?;
        let selections = self.plan.monitors.iter().map(|monitor| &monitor.selection);
        Ok(report::merged(&self.plan.config, selections.zip(reports)))
    }
}

fn joined(thread: MonitorThread) -> Result<MonitorReport, SessionError> {
    thread.join().unwrap_or_else(|_| {
        Err(SessionError::new(
            ErrorKind::Unavailable,
            "the monitor's thread has failed; this is a bug of overhear",
        ))
    })
}
