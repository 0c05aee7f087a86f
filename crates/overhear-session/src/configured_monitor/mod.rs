// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitors that `overhear.toml` describes: one for each executor that its updates name. They
//! run in threads of their own, in parallel with the monitor of the session.
//!
//! [`MonitorPlan::read`] decides before anything runs which executors are used and whether the
//! monitors are admitted. `MonitorPlan::start` attaches to a directory as any other monitor does.
//! The monitors run until [`MonitorHandle::stop`], which returns one report.

mod report;
mod running;
mod source;
mod suggestion;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use overhear_admission::DeadlineReservation;
use overhear_directory::Query;
use overhear_metrics::automaton::Metric;
use overhear_monitor::executor::{may_guarantee, share_of_cpu, DeadlineRefusal, Terms};
use overhear_monitor::scheduler::{query_kernel, KernelVerdict};
use overhear_monitor::Partition;

use crate::admission::{self, terms_without_guarantee, KernelRing, LoadedPlugin, MemoryBytes};
use crate::budget::SensorRule;
use crate::builtin_updates::metrics_of;
use crate::config::selection::{ExecutorKind, Selection};
use crate::config::{Config, ExecutorConfig};
use crate::connect;
use crate::error::{ErrorKind, SessionError};
use crate::reactions::Deciders;

pub use report::{MeasuredUpdate, MonitorReport, MonitoredSensor};
use running::MonitorThread;
use source::MonitorRings;
pub use suggestion::Suggestion;

/// The executor of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    Deadline,
    Bandwidth,
    /// With the reservation of the thread that copies.
    Buffered(DeadlineReservation),
    BestEffort,
    Idle,
}

impl Executor {
    /// Whether it has reserved CPU time.
    const fn is_reserved(self) -> bool {
        !matches!(self, Self::BestEffort | Self::Idle)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Bandwidth => "bandwidth",
            Self::Buffered(_) => "buffered",
            Self::BestEffort => "best_effort",
            Self::Idle => "idle",
        }
    }
}

/// The monitors of a file that may start: one for each executor that its updates name.
#[derive(Clone, Debug)]
pub struct MonitorPlan {
    config: Config,
    path: PathBuf,
    // The guaranteed one comes first.
    monitors: Vec<ExecutorPlan>,
    measures: bool,
    // The plug-in of each update in the file, if it names one.
    plugins: Vec<Option<LoadedPlugin>>,
    // The metric of each update in the file, if it names one.
    metrics: Vec<Option<Metric>>,
    /// The CPU that is set apart for the guaranteed monitor.
    partition: Option<Arc<Partition>>,
    /// Whether the budget of the run may switch the sensors of monitors without a reservation.
    yields_to_budget: bool,
    /// Message about a guarantee that was requested and will not be given.
    pub warning: Option<String>,
}

/// The monitor of one executor.
#[derive(Clone, Debug)]
struct ExecutorPlan {
    selection: Selection,
    terms: Terms,
    executor: Executor,
    // The memory bound that admission stated; `None` without admission.
    stated: Option<MemoryBytes>,
    // The kernel sensors that its updates take.
    rings: Vec<KernelRing>,
}

impl ExecutorPlan {
    /// Creates the rings of its kernel sensors, if it has any.
    fn create_rings(&self) -> Result<Option<MonitorRings>, SessionError> {
        if self.rings.is_empty() {
            return Ok(None);
        }
        let is_reserved = self.executor.is_reserved();
        MonitorRings::create(&self.rings, is_reserved).map(Some)
    }
}

impl MonitorPlan {
    /// Reads the file and decides. With `measures` nothing is guaranteed, and updates need no WCET.
    ///
    /// # Errors
    /// [`SessionError`] of kind [`ErrorKind::Usage`] if the file is invalid, [`ErrorKind::Refused`]
    /// if a monitor is not admitted, and [`ErrorKind::Unavailable`] if the file requires a
    /// guarantee or a reservation and a permission or a feature is absent.
    pub fn read(path: &Path, measures: bool) -> Result<Self, SessionError> {
        let config = Config::read(path)?;
        let plugins = admission::load_plugins(&config, path)?;
        let metrics = metrics_of(&config, path)?;
        let mut plan = Self {
            config,
            path: path.to_path_buf(),
            monitors: Vec::new(),
            measures,
            plugins,
            metrics,
            partition: None,
            yields_to_budget: false,
            warning: None,
        };
        if measures {
            plan.add(plan.config.full_selection(), Executor::BestEffort)?;
            return Ok(plan);
        }
        for kind in ExecutorKind::ALL {
            let Some(selection) = plan.config.selection(kind) else {
                continue;
            };
            match kind {
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
                    let reservation = admission::copying_of(&plan.config, path)?;
                    may_reserve(reservation)?;
                    plan.add(selection, Executor::Buffered(reservation))?;
                }
                ExecutorKind::BestEffort => plan.add(selection, Executor::BestEffort)?,
                ExecutorKind::Idle => plan.add(selection, Executor::Idle)?,
            }
        }
        Ok(plan)
    }

    /// Adds a monitor that guarantees nothing.
    fn add(&mut self, selection: Selection, executor: Executor) -> Result<(), SessionError> {
        // Reports an error in the pattern of a sensor.
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
        let is_required = executors.any(|executor| executor == ExecutorConfig::Deadline);
        let admitted = admission::admit_loaded(&self.config, &self.path, &self.plugins)?;
        let Some(terms) = admitted.terms else {
            return Err(SessionError::new(
                ErrorKind::Refused,
                admitted.report.reason,
            ));
        };
        // The CPU is set apart first: the guarantee is tried on that CPU.
        let dedicated_cpu = self.config.monitor.dedicated_cpu;
        let partition = dedicated_cpu
            .map(|cpu| Partition::make(cpu.number()))
            .transpose();
        let possible = partition.map_err(DeadlineRefusal::from).and_then(|made| {
            may_guarantee(&terms, made.as_ref())?;
            Ok(made)
        });
        let possible = possible.map_err(|refusal| {
            let kind = match refusal.is_lack_of_permission() {
                true => ErrorKind::Unavailable,
                false => ErrorKind::Refused,
            };
            SessionError::new(kind, refusal.to_string())
        });
        let Some(monitor) = self.monitors.last_mut() else {
            return Ok(());
        };
        // The rings are created here as well, so that a missing permission is reported now.
        let guaranteed = ExecutorPlan {
            terms,
            executor: Executor::Deadline,
            stated: Some(admitted.memory),
            ..monitor.clone()
        };
        let possible = possible.and_then(|made| guaranteed.create_rings().map(|_| made));
        match possible {
            Ok(partition) => {
                self.partition = partition.map(Arc::new);
                *monitor = guaranteed;
                Ok(())
            }
            Err(refusal) if refusal.kind != ErrorKind::Unavailable || is_required => Err(refusal),
            Err(refusal) => {
                self.warning = Some(format!(
                    "the monitor runs best effort, nothing is guaranteed: {}",
                    refusal.message
                ));
                Ok(())
            }
        }
    }

    /// Lets a budget switch the sensors of the monitors that have no reservation. Returns rules of
    /// the budget for those that have one: admission has promised all of their elements.
    ///
    /// # Errors
    /// [`SessionError`] if the sensors are not named as a monitor requires.
    pub(crate) fn yield_to_budget(&mut self) -> Result<Vec<SensorRule>, SessionError> {
        self.yields_to_budget = true;
        let reserved = self.monitors.iter();
        let reserved = reserved.filter(|monitor| monitor.executor.is_reserved());
        let rules = reserved.filter_map(|monitor| {
            let query = query(&self.config, &monitor.selection).transpose()?;
            Some(query.and_then(|query| {
                let compiled = query.compile();
                compiled
                    .map(SensorRule::guaranteed)
                    .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))
            }))
        });
        rules.collect()
    }

    /// Creates the rings of all kernel sensors of the file.
    ///
    /// # Errors
    /// [`SessionError`] of kind [`ErrorKind::Unavailable`] if a monitor with a reservation needs
    /// kernel sensors that cannot be recorded, and [`ErrorKind::Refused`] if a ring is smaller than
    /// admission requires.
    pub(crate) fn create_rings(&self) -> Result<KernelRings, SessionError> {
        let all = self.monitors.iter().map(ExecutorPlan::create_rings);
        all.collect::<Result<_, _>>().map(KernelRings)
    }

    /// Attaches the monitors to the directory at `socket`, tracks the process `pid` by their kernel
    /// sensors, and starts them. Returns when all monitors are attached, and those with a
    /// reservation have it.
    ///
    /// # Errors
    /// [`SessionError`] if a thread cannot be started, or the process cannot be tracked.
    pub(crate) fn start(
        self,
        socket: &Path,
        (mut kernel, pid): (KernelRings, u32),
        deciders: &Deciders,
    ) -> Result<MonitorHandle, SessionError> {
        let plan = Arc::new(self);
        let mut threads = Vec::new();
        for rings in kernel.0.iter_mut().flatten() {
            rings.track(pid)?;
        }
        // The guaranteed monitor starts last: it counts all reservations that are present then.
        for index in (0..plan.monitors.len()).rev() {
            let (stop, stopped) = channel();
            let (begun, begin) = channel();
            let (socket, deciders) = (socket.to_path_buf(), deciders.clone());
            let plan = Arc::clone(&plan);
            let kernel = kernel.0.pop().flatten();
            let thread = std::thread::Builder::new()
                .name("oh-monitor".to_string())
                .spawn(move || {
                    let monitor = MonitorThread::new(&plan, index, deciders.start().clone());
                    monitor.run((&socket, kernel), &deciders, &stopped, &begun)
                })
                .map_err(|error| {
                    let message = format!("cannot start a thread for the monitor: {error}");
                    SessionError::new(ErrorKind::Unavailable, message)
                })?;
            // An error means that the thread has failed; `stop` returns its error.
            let _ = begin.recv();
            threads.insert(0, (stop, thread));
        }
        Ok(MonitorHandle { plan, threads })
    }
}

/// The kernel sensors of the monitors of a file, in the order of the plan.
#[derive(Debug)]
pub(crate) struct KernelRings(Vec<Option<MonitorRings>>);

impl KernelRings {
    /// Number of stream ids, from 1 on, that sensors of programs must not have.
    pub(crate) fn stream_ids_used(&self) -> u32 {
        let all = self.0.iter().flatten();
        all.map(MonitorRings::stream_ids_used).max().unwrap_or(0)
    }
}

/// A message about the permission or feature that is absent for the guarantees of a file; `None` if
/// nothing is. Everything is tried, and given back.
///
/// # Errors
/// [`SessionError`] as from [`MonitorPlan::read`], except for the absent permission or feature.
pub(crate) fn missing_for_guarantee(path: &Path) -> Result<Option<String>, SessionError> {
    match MonitorPlan::read(path, false) {
        Ok(plan) => Ok(plan.warning),
        Err(error) if error.kind == ErrorKind::Unavailable => Ok(Some(error.message)),
        Err(error) => Err(error),
    }
}

/// Checks that the kernel accepts a reservation.
fn may_reserve(reservation: DeadlineReservation) -> Result<(), SessionError> {
    match query_kernel(reservation) {
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

/// All sensors of programs of a selection in one query; `None` if it has none. Alternatives are
/// possible for ids only, not for tasks and instances.
fn query(config: &Config, selection: &Selection) -> Result<Option<Query>, SessionError> {
    let sensors = config.sensors.iter().enumerate();
    let selected =
        sensors.filter(|(index, sensor)| selection.has_sensor(*index) && !sensor.is_of_kernel());
    let ids: Vec<&str> = selected.map(|(_, sensor)| sensor.id.as_str()).collect();
    match ids.as_slice() {
        // A file without sensors is refused by admission.
        [] if !config.sensors.is_empty() => Ok(None),
        [one] => connect::query(one, None).map(Some),
        several => {
            for id in several {
                connect::query(id, None)?;
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
            connect::query(&format!("{{{}}}", several.join(",")), None).map(Some)
        }
    }
}

/// The monitors of a file, running.
#[derive(Debug)]
pub struct MonitorHandle {
    plan: Arc<MonitorPlan>,
    // In the order of the plan.
    threads: Vec<(Sender<()>, MonitorJoin)>,
}

type MonitorJoin = JoinHandle<Result<MonitorReport, SessionError>>;

impl MonitorHandle {
    /// Evaluates the elements that were written until now, and ends.
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

fn joined(thread: MonitorJoin) -> Result<MonitorReport, SessionError> {
    thread.join().unwrap_or_else(|_| {
        Err(SessionError::new(
            ErrorKind::Unavailable,
            "the monitor's thread has failed; this is a bug of overhear",
        ))
    })
}
