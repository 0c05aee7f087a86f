// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor that `overhear.toml` describes, run beside the session in a thread of its own.
//!
//! [`Plan::read`] decides before anything runs: whether the monitor is admitted, and who runs it.
//! `Plan::start` attaches to a directory like any other monitor and runs until [`Guard::stop`].

mod evaluation;
mod report;
mod suggestion;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::JoinHandle;

use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::{StreamDescriptor, Update};
use overhear_monitor::executor::{
    bandwidth, deadline, may_guarantee, share_of_cpu, DeadlineRefusal, SensorIndex, Terms,
    UpdateIndex, Watch, Watched,
};
use overhear_monitor::plugin::PluginUpdate;
use overhear_monitor::scheduler::{ask_kernel, KernelVerdict};
use overhear_monitor::{best_effort, Clock, Monitor, Partition, Room, Sentinel, SystemClock};

use crate::admit::{self, terms_without_guarantee};
use crate::config::{Config, ExecutorConfig, MissedConfig, UpdateConfig};
use crate::exit::{Failure, REFUSED, UNAVAILABLE, USAGE};
use crate::place;
use crate::reactions::Deciders;
use crate::report::Quantiles;
use crate::updates::{stopped_by, UpdateSpecification, Updates};

pub(crate) use evaluation::Counting;
use report::suggested;
pub use report::{render, GuaranteeReport, GuaranteedSensor, MeasuredUpdate};
pub use suggestion::Suggestion;
use suggestion::{suggest, QuietRounds};

/// The document of a recording in which its report is kept.
pub(crate) const GUARANTEE: &str = "guarantee";

/// Who runs a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    Deadline,
    Bandwidth,
    BestEffort,
}

impl Executor {
    const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Bandwidth => "bandwidth",
            Self::BestEffort => "best_effort",
        }
    }
}

/// A monitor that may start.
#[derive(Clone, Debug)]
pub struct Plan {
    config: Config,
    path: PathBuf,
    terms: Terms,
    executor: Executor,
    measures: bool,
    /// Of each update in the file, the plug-in that it names.
    plugins: Vec<Option<UpdateSpecification>>,
    /// The CPU that was set apart for it.
    partition: Option<Arc<Partition>>,
    /// Why there will be no guarantee although one was wished for.
    pub warning: Option<String>,
}

impl Plan {
    /// Reads the file and decides. With `measures` nothing is guaranteed, and updates need no WCET.
    ///
    /// # Errors
    /// [`Failure`]: the file makes no sense (2), the monitor is not admitted (4), a guarantee was
    /// demanded and this user or machine cannot give one (5).
    pub fn read(path: &Path, measures: bool) -> Result<Self, Failure> {
        let config = Config::read(path)?;
        let wished = match config.monitor.executor {
            _ if measures => ExecutorConfig::BestEffort,
            wished => wished,
        };
        let mut plan = Self {
            terms: terms_without_guarantee(&config, path)?,
            config,
            path: path.to_path_buf(),
            executor: Executor::BestEffort,
            measures,
            plugins: Vec::new(),
            partition: None,
            warning: None,
        };
        plan.plugins = plugins(&plan.config, path)?;
        // The directory is asked for all sensors at once.
        query(&plan.config)?;
        match wished {
            ExecutorConfig::BestEffort => return Ok(plan),
            ExecutorConfig::Bandwidth => {
                plan.executor = Executor::Bandwidth;
                let share = share_of_cpu(plan.config.monitor.cpu_percent);
                return match ask_kernel(share) {
                    KernelVerdict::Accepted => Ok(plan),
                    verdict => {
                        let refusal = DeadlineRefusal::of(verdict);
                        Err(Failure::new(UNAVAILABLE, refusal.to_string()))
                    }
                };
            }
            ExecutorConfig::Auto | ExecutorConfig::Deadline => {}
        }
        let admitted = admit::admit_config(&plan.config, path)?;
        let Some(terms) = admitted.terms else {
            return Err(Failure::new(REFUSED, admitted.report.reason));
        };
        // Set apart before it is asked whether the guarantee could begin there.
        let own_cpu = plan.config.monitor.own_cpu;
        let partition = own_cpu.map(|cpu| Partition::make(cpu.number())).transpose();
        let possible = partition.map_err(DeadlineRefusal::from).and_then(|made| {
            may_guarantee(&terms, made.as_ref())?;
            Ok(made)
        });
        match possible {
            Ok(partition) => {
                plan.partition = partition.map(Arc::new);
                plan.terms = terms;
                plan.executor = Executor::Deadline;
                Ok(plan)
            }
            Err(refusal) if !refusal.is_lack_of_permission() => {
                Err(Failure::new(REFUSED, refusal.to_string()))
            }
            Err(refusal) if wished == ExecutorConfig::Deadline => {
                Err(Failure::new(UNAVAILABLE, refusal.to_string()))
            }
            Err(refusal) => {
                plan.warning = Some(format!(
                    "the monitor runs best effort, nothing is guaranteed: {refusal}"
                ));
                Ok(plan)
            }
        }
    }

    /// Attaches to the directory at `socket` and begins. Returns once it is attached.
    ///
    /// # Errors
    /// [`Failure`] if the directory cannot be attached to.
    pub(crate) fn start(self, socket: &Path, deciders: Deciders) -> Result<Guard, Failure> {
        let (stop, told) = channel();
        let (attached, answer) = channel();
        let socket: PathBuf = socket.to_path_buf();
        let thread = std::thread::Builder::new()
            .name("oh-monitor".to_string())
            .spawn(move || self.run(&socket, &deciders, &told, &attached))
            .map_err(|error| {
                let sentence = format!("cannot start a thread for the monitor: {error}");
                Failure::new(UNAVAILABLE, sentence)
            })?;
        // Dropped without an answer: the thread has failed, and says why when it is joined.
        let _ = answer.recv();
        Ok(Guard { stop, thread })
    }

    fn run(
        self,
        socket: &Path,
        deciders: &Deciders,
        told: &Receiver<()>,
        attached: &Sender<()>,
    ) -> Result<GuaranteeReport, Failure> {
        let connection = MonitorConnection::connect(socket).map_err(place::refused)?;
        let source = connection.attach(query(&self.config)?, Begin::Now);
        let mut source = source.map_err(place::refused)?;
        source.forget_clock_segments();
        let room = match self.executor {
            Executor::Deadline => Room::Reserved,
            Executor::Bandwidth | Executor::BestEffort => Room::Growing,
        };
        let mut monitor = Monitor::with_room(self.terms.lateness.hold_back, room);
        monitor.add_source(Box::new(source));
        let _ = attached.send(());

        let queries = self
            .config
            .sensors
            .iter()
            .map(|sensor| place::query(&sensor.id, None));
        let queries: Vec<Query> = queries.collect::<Result<_, _>>()?;
        let sensor_of = |stream: &StreamDescriptor| {
            let found = queries.iter().position(|query| query.matches(stream));
            found.map(SensorIndex)
        };
        let updates = self.config.updates.iter().zip(&self.plugins).enumerate();
        let evaluations: Result<Vec<Evaluation>, Failure> = updates
            .map(|(index, (config, plugin))| match plugin {
                Some(plugin) => {
                    let number = UpdateIndex(index);
                    let missed = config.missed.map(MissedConfig::policy);
                    let prepare = |update: &mut PluginUpdate| {
                        if let Some(decider) = deciders.of_update(number) {
                            update.reacting(decider, number);
                        }
                    };
                    let plugin = std::slice::from_ref(plugin);
                    Updates::load_with(plugin, missed, prepare).map(Evaluation::Plugin)
                }
                None => {
                    let counting = Counting::new(config.field.clone());
                    Ok(Evaluation::Counting(counting))
                }
            })
            .collect();
        let mut evaluations = evaluations?;
        let watched = evaluations.iter_mut().zip(&self.config.updates);
        let watched = watched.map(|(evaluation, config)| Watched {
            update: match evaluation {
                Evaluation::Plugin(updates) => updates.set() as &mut dyn Update,
                Evaluation::Counting(counting) => counting,
            },
            sensors: config.sensors.as_ref().map(|ids| self.indices(ids)),
        });
        let mut watch = Watch::new(&self.terms, watched.collect(), SystemClock, sensor_of);
        if self.measures {
            watch = watch.measuring();
        }
        let policies = self.config.updates.iter().map(UpdateConfig::missed_policy);
        watch = watch.on_missed(policies);
        if let Some(decider) = deciders.of_monitor() {
            watch = watch.reacting(decider);
        }
        if self.executor != Executor::Deadline {
            watch = watch.judging();
        }
        let mut report = GuaranteeReport::default();
        let quiet = self.execute(&mut monitor, &mut watch, told, &mut report)?;
        self.fill(&mut report, &watch);
        if self.measures {
            report.suggestion = Some(suggest(&self.path, &report, quiet));
        }
        drop(watch);
        for (update, evaluation) in report.updates.iter_mut().zip(evaluations) {
            match evaluation {
                Evaluation::Plugin(updates) => {
                    // What is of another type, or came when it had failed, did not reach it.
                    update.elements = updates.elements();
                    update.plugin = updates.finish();
                }
                Evaluation::Counting(counting) => {
                    update.elements = counting.elements;
                    update.complaints = counting.complaints();
                    update.values = Quantiles::of(&counting.values);
                    update.histogram = counting.histogram(&update.name);
                }
            }
        }
        Ok(report)
    }

    /// Runs until it is told to stop, and fills in what the executor knows.
    fn execute(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        told: &Receiver<()>,
        report: &mut GuaranteeReport,
    ) -> Result<QuietRounds, Failure> {
        let mut quiet = QuietRounds::default();
        let goes_on = || told.try_recv() == Err(TryRecvError::Empty);
        report.executor = self.executor.name().to_string();
        match self.executor {
            Executor::Deadline => {
                let terms = &self.terms;
                let inside = self.partition.as_deref().map(Partition::enter);
                let _inside = inside
                    .transpose()
                    .map_err(|error| Failure::new(UNAVAILABLE, error.to_string()))?;
                let allowed = terms.lateness.wake_up.plus(terms.reservation.runtime);
                let sentinel = match self.config.monitor.sentinel {
                    true => Some(Sentinel::start(allowed)),
                    false => None,
                };
                let sentinel = sentinel.transpose();
                let sentinel =
                    sentinel.map_err(|error| Failure::new(UNAVAILABLE, error.to_string()))?;
                match deadline(monitor, watch, || (), |_, _| goes_on()) {
                    Ok(run) => {
                        if let Some(sentinel) = sentinel {
                            watch.hear(&sentinel.stop());
                        }
                        let guarantee = watch.guarantee();
                        report.verdict = Some(guarantee.verdict().to_string());
                        report.since_ns = guarantee.since().map(|at| at.as_monotonic_ns());
                        report.reasons = guarantee.sentences(terms);
                        report.level = Some(admit::level_name(terms.level).to_string());
                        report.cpu = self.partition.as_deref().map(Partition::cpu);
                        report.latency_ns = Some(terms.latency.as_ns());
                        report.period_ns = Some(terms.reservation.period.as_ns());
                        report.runtime_ns = Some(terms.reservation.runtime.as_ns());
                        report.begun_ns = Some(run.begun.as_monotonic_ns());
                        report.ended_ns = Some(run.ended.as_monotonic_ns());
                        report.rounds = run.rounds;
                        report.left_out = run.left_out;
                        report.wake_up_ns = run.wake_up.as_ns();
                        report.longest_period_ns = run.longest_job.as_ns();
                        report.page_faults = run.faults.minor + run.faults.major;
                        report.kernel_overruns = run.kernel_overruns;
                    }
                    // Nothing was promised yet, so nothing is broken; but nobody knows what would have
                    // come of it.
                    Err(refusal) => {
                        report.verdict = Some("inconclusive".to_string());
                        report.reasons = vec![refusal.to_string()];
                        self.go_on(monitor, watch, goes_on, &refusal);
                    }
                }
            }
            Executor::Bandwidth => {
                let percent = self.config.monitor.cpu_percent;
                let ran = bandwidth(monitor, watch, percent, |_| goes_on());
                ran.map_err(|refusal| Failure::new(UNAVAILABLE, refusal.to_string()))?;
            }
            Executor::BestEffort => {
                let now = || SystemClock.now();
                best_effort(monitor, watch, now, std::thread::sleep, |monitor| {
                    quiet.look(monitor.elements(), SystemClock.cpu_time());
                    goes_on()
                });
            }
        }
        Ok(quiet)
    }

    /// A guarantee could not begin: the rest is evaluated by best effort.
    fn go_on(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        goes_on: impl Fn() -> bool,
        refusal: &DeadlineRefusal,
    ) {
        let now = || SystemClock.now();
        // After an end nothing is left to wait for.
        let ended = matches!(refusal, DeadlineRefusal::Absent(_));
        watch.begin_judging();
        best_effort(monitor, watch, now, std::thread::sleep, |_| {
            !ended && goes_on()
        });
    }

    fn fill(&self, report: &mut GuaranteeReport, watch: &Watch<'_, SystemClock>) {
        if report.verdict.is_none() {
            let absent = watch.absent().map(|sensor| self.terms.sensor(sensor));
            let absent = absent.map(|id| {
                format!("sensor `{id}` never appeared: no program has registered it; check its id")
            });
            report.reasons = absent.collect();
        }
        let sensors = self.terms.sensors.iter().zip(watch.figures());
        report.sensors = sensors
            .map(|(terms, figures)| GuaranteedSensor {
                id: terms.name.clone(),
                elements: figures.elements,
                missed: figures.missed,
                latency_ns: figures.latency.as_ns(),
                exceeding: figures.exceeding,
            })
            .collect();
        report.missed = report.sensors.iter().map(|sensor| sensor.missed).sum();
        let updates = self.config.updates.iter().zip(watch.longest());
        report.updates = updates
            .zip(watch.fates())
            .map(|((config, longest), fate)| MeasuredUpdate {
                name: config.name.clone(),
                state: match fate.stopped {
                    Some(_) => "stopped".to_string(),
                    None => "finished".to_string(),
                },
                sentence: fate.stopped.map(|gap| stopped_by(&gap)),
                elements: longest.elements,
                missed: fate.missed,
                overruns: fate.overruns,
                longest_ns: longest.took.as_ns(),
                longest_sensor: longest
                    .sensor
                    .map(|sensor| self.terms.sensor(sensor).to_string()),
                longest_element: longest.sensor.map(|_| longest.element),
                wcet_ns: config.wcet.map(|wcet| wcet.0.as_ns()),
                suggested_wcet_ns: (longest.elements > 0).then(|| suggested(longest.took)),
                values: None,
                histogram: None,
                complaints: Vec::new(),
                plugin: Vec::new(),
            })
            .collect();
    }

    fn indices(&self, ids: &[String]) -> Vec<SensorIndex> {
        let all = self.config.sensors.iter().enumerate();
        let taken = all.filter(|(_, sensor)| ids.contains(&sensor.id));
        taken.map(|(index, _)| SensorIndex(index)).collect()
    }
}

/// What an `[[update]]` runs.
enum Evaluation {
    Counting(Counting),
    Plugin(Updates),
}

/// The plug-ins that the file names, each loaded once, so that one that cannot be used is told before
/// anything runs.
fn plugins(config: &Config, path: &Path) -> Result<Vec<Option<UpdateSpecification>>, Failure> {
    let base = path.parent().unwrap_or(Path::new(""));
    let updates = config.updates.iter().map(|update| {
        let Some(plugin) = &update.plugin else {
            return Ok(None);
        };
        let specification = UpdateSpecification::parse(&base.join(plugin).to_string_lossy());
        Updates::load(std::slice::from_ref(&specification)).map_err(|failure| {
            let sentence = format!("update `{}`: {}", update.name, failure.sentence);
            Failure::new(failure.status, sentence)
        })?;
        Ok(Some(specification))
    });
    updates.collect()
}

/// All sensors of the file in one question. Alternatives stand for ids; of tasks and instances there can
/// be only one.
fn query(config: &Config) -> Result<Query, Failure> {
    let ids: Vec<&str> = config
        .sensors
        .iter()
        .map(|sensor| sensor.id.as_str())
        .collect();
    match ids.as_slice() {
        [one] => place::query(one, None),
        several => {
            for id in several {
                place::query(id, None)?;
                if id.contains(['/', '#', '{', '}', ',']) {
                    return Err(Failure::new(
                        USAGE,
                        format!(
                            "sensor `{id}`: where a monitor has several sensors, each is named by its id \
                             alone, without task, instance and alternatives"
                        ),
                    ));
                }
            }
            place::query(&format!("{{{}}}", several.join(",")), None)
        }
    }
}

/// A monitor that runs.
#[derive(Debug)]
pub struct Guard {
    stop: Sender<()>,
    thread: JoinHandle<Result<GuaranteeReport, Failure>>,
}

impl Guard {
    /// Evaluates what has been written until now, and ends.
    ///
    /// # Errors
    /// [`Failure`] if the monitor could not run.
    pub fn stop(self) -> Result<GuaranteeReport, Failure> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|_| {
            Err(Failure::new(
                UNAVAILABLE,
                "the monitor's thread has failed; this is a bug of overhear",
            ))
        })
    }
}
