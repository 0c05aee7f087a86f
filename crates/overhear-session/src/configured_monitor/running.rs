// SPDX-License-Identifier: MIT OR Apache-2.0
//! One monitor in its thread: it is attached, run by its executor, and makes its report.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use overhear_admission::DeadlineReservation;
use overhear_directory::{AttachedSource, Begin, MonitorConnection, Needs, Query};
use overhear_event::{
    Analysis, GapCause, Origin, Source, StreamDescriptor, StreamId, IN_PLACE_BYTES,
};
use overhear_kernel::Probe;
use overhear_monitor::executor::{
    bandwidth, buffer, copy_reserved, deadline, idle, DeadlineRefusal, SensorIndex, UpdateIndex,
    Watch, Watched,
};
use overhear_monitor::plugin::PluginUpdate;
use overhear_monitor::{
    best_effort, Clock, LatencyWatchdog, Monitor, Partition, QueueMemory, Supervisor, SystemClock,
};

use super::report::{wcet_with_margin, MeasuredUpdate, MonitorReport, MonitoredSensor};
use super::source::{MonitorRings, MonitorSource};
use super::suggestion::{suggest, QuietRounds};
use super::{query, Executor, ExecutorPlan, MonitorPlan};
use crate::admission::{self, MemoryBytes};
use crate::builtin_updates::{CountingUpdate, MetricUpdate};
use crate::config::{MissedConfig, SensorConfig, UpdateConfig};
use crate::connect;
use crate::error::{ErrorKind, SessionError};
use crate::quantities::ValueQuantiles;
use crate::reactions::Deciders;
use crate::run_start::RunStart;
use crate::updates::{stopped_by, Updates};

/// The monitor of one executor, as its thread runs it.
pub(super) struct MonitorThread<'a> {
    plan: &'a MonitorPlan,
    executor_plan: &'a ExecutorPlan,
    start: RunStart,
}

impl<'a> MonitorThread<'a> {
    pub(super) fn new(plan: &'a MonitorPlan, index: usize, start: RunStart) -> Self {
        Self {
            plan,
            executor_plan: &plan.monitors[index],
            start,
        }
    }

    /// Runs the monitor until `stop` is disconnected. Sends to `begun` when the program may start.
    ///
    /// # Errors
    /// [`SessionError`] if the monitor cannot attach or cannot run.
    pub(super) fn run(
        &self,
        (socket, kernel): (&Path, Option<MonitorRings>),
        deciders: &Deciders,
        stop: &Receiver<()>,
        begun: &Sender<()>,
    ) -> Result<MonitorReport, SessionError> {
        let (config, own) = (&self.plan.config, self.executor_plan);
        let programs = query(config, &own.selection)?;
        let yields = self.plan.yields_to_budget && !own.executor.is_reserved();
        let programs = programs.map(|query| attach(socket, query, yields));
        let programs = programs.transpose()?;
        let of_kernel = kernel.as_ref().map(MonitorRings::message);
        let source = MonitorSource::new(programs, kernel);
        let mut monitor = self.monitor();
        let probes = config.probes();
        let probes = probes.map_err(|message| SessionError::new(ErrorKind::Usage, message))?;
        let matchers = config.sensors.iter().map(|it| Matcher::of(it, &probes));
        let matchers: Vec<Matcher> = matchers.collect::<Result<_, _>>()?;
        let sensor_of = |stream: &StreamDescriptor| {
            let mut all = matchers.iter().enumerate();
            let found = all.find(|(index, matcher)| {
                own.selection.has_sensor(*index) && matcher.matches(stream)
            });
            found.map(|(index, _)| SensorIndex(index))
        };
        let mut updates = self.updates(deciders)?;
        let supervisors: Vec<Supervisor> = match own.executor {
            Executor::Deadline => updates
                .iter_mut()
                .filter_map(ConfiguredUpdate::make_lenient)
                .collect(),
            _ => Vec::new(),
        };
        let watched = updates.iter_mut().zip(&config.updates).enumerate();
        let watched = watched.map(|(index, (configured, update))| Watched {
            update: match configured {
                ConfiguredUpdate::Plugin(updates) => updates.set() as &mut dyn Analysis,
                ConfiguredUpdate::Counting(counting) => counting,
                ConfiguredUpdate::Metric(metric) => &mut **metric,
            },
            sensors: match own.selection.has_update(index) {
                true => update.sensors.as_ref().map(|ids| self.indices(ids)),
                // Another monitor calls it; its index stays the same.
                false => Some(Vec::new()),
            },
            in_place: match own.executor {
                Executor::Deadline if update.in_place => Some(self.large_sensors()),
                Executor::Deadline => Some(Vec::new()),
                _ => None,
            },
        });
        let mut watch = Watch::new(&own.terms, watched.collect(), SystemClock, sensor_of);
        if self.plan.measures {
            watch = watch.measuring();
        }
        let policies = config.updates.iter().map(UpdateConfig::missed_policy);
        watch = watch.on_missed(policies);
        if let Some(decider) = deciders.of_monitor() {
            watch = watch.reacting(decider);
        }
        if own.executor != Executor::Deadline {
            watch = watch.judging();
        }
        let mut report = MonitorReport {
            executor: own.executor.name().to_string(),
            ..MonitorReport::default()
        };
        let (quiet, unused_bytes) = match own.executor {
            Executor::Buffered(reservation) => {
                let unused =
                    self.buffer(&mut monitor, &mut watch, (source, reservation), stop, begun)?;
                (QuietRounds::default(), unused)
            }
            _ => {
                let source = Rc::new(RefCell::new(source));
                monitor.add_source(Box::new(Rc::clone(&source)));
                let enforce = || supervisors.iter().for_each(Supervisor::enforce);
                let quiet = self.execute(
                    &mut monitor,
                    &mut watch,
                    (stop, begun),
                    enforce,
                    &mut report,
                )?;
                let unused = source.borrow().unused_bytes();
                (quiet, unused)
            }
        };
        self.fill(&mut report, &watch, of_kernel.as_deref());
        let streams = monitor.take_opened();
        report.add_kernel_losses(kernel_losses(&monitor, &streams));
        if self.plan.measures {
            report.suggestion = Some(suggest(&self.plan.path, &report, quiet));
        }
        drop(watch);
        let mapped: u64 = streams.iter().map(|it| admission::mapped_bytes(it)).sum();
        let mut taken = MemoryBytes {
            sensors: mapped + unused_bytes + monitor.memory_bytes() as u64,
            ..MemoryBytes::default()
        };
        self.collect(&mut report, updates, &streams, &mut taken);
        report.check_memory(&taken, own.stated.as_ref(), &config.updates);
        Ok(report)
    }

    /// A monitor whose queues are reserved if its executor may not allocate.
    fn monitor(&self) -> Monitor {
        let memory = match self.executor_plan.executor {
            Executor::Deadline => QueueMemory::Reserved,
            _ => QueueMemory::Growing,
        };
        Monitor::with_memory(self.executor_plan.terms.lateness.hold_back, memory)
    }

    /// Adds the results of the updates of this monitor to the report, and their memory to `taken`.
    fn collect(
        &self,
        report: &mut MonitorReport,
        updates: Vec<ConfiguredUpdate>,
        streams: &[Arc<StreamDescriptor>],
        taken: &mut MemoryBytes,
    ) {
        let own_updates = updates.into_iter().enumerate();
        let own_updates =
            own_updates.filter(|(index, _)| self.executor_plan.selection.has_update(*index));
        for (update, (index, configured)) in report.updates.iter_mut().zip(own_updates) {
            match configured {
                ConfiguredUpdate::Plugin(updates) => {
                    taken.mapped.extend(updates.mapped_bytes().clone());
                    // Elements of another type, and those after a failure, did not reach it.
                    update.elements = updates.elements();
                    update.plugin = updates.finish_among(streams);
                    let bytes = update.plugin.iter().map(|it| it.memory_bytes).sum();
                    taken.updates.insert(index, bytes);
                    update.memory_bytes = Some(bytes);
                }
                ConfiguredUpdate::Metric(metric) => {
                    taken.counting += metric.memory_bytes() as u64;
                    update.elements = metric.elements;
                    update.complaints = metric.complaints();
                    update.values = metric.values().map(ValueQuantiles::from);
                    update.histogram = Some(metric.histogram(&update.name));
                }
                ConfiguredUpdate::Counting(counting) => {
                    taken.counting += counting.memory_bytes() as u64;
                    update.elements = counting.elements;
                    update.complaints = counting.complaints();
                    update.values = ValueQuantiles::of(&counting.values);
                    update.histogram = counting.histogram(&update.name);
                }
            }
        }
    }

    /// The updates of the file by index. The updates of other monitors are represented by a counter
    /// that is never called.
    fn updates(&self, deciders: &Deciders) -> Result<Vec<ConfiguredUpdate>, SessionError> {
        let updates = self.plan.config.updates.iter().zip(&self.plan.plugins);
        let made = updates.enumerate().map(|(index, (config, plugin))| {
            if !self.executor_plan.selection.has_update(index) {
                return Ok(ConfiguredUpdate::Counting(CountingUpdate::new(None)));
            }
            if let Some(metric) = &self.plan.metrics[index] {
                let update = MetricUpdate::new(metric.clone());
                return Ok(ConfiguredUpdate::Metric(Box::new(update)));
            }
            let Some(plugin) = plugin else {
                let counting = CountingUpdate::new(config.field.clone());
                return Ok(ConfiguredUpdate::Counting(counting));
            };
            let number = UpdateIndex(index);
            let missed = config.missed.map(MissedConfig::policy);
            let prepare = |update: &mut PluginUpdate| {
                if let Some(decider) = deciders.of_update(number) {
                    update.reacting(decider, number);
                }
            };
            let plugin = std::slice::from_ref(&plugin.specification);
            Updates::load_with(plugin, missed, prepare).map(ConfiguredUpdate::Plugin)
        });
        made.collect()
    }

    /// Runs until `stop` is disconnected, and adds the results of the executor to the report.
    fn execute(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        (stop, begun): (&Receiver<()>, &Sender<()>),
        enforce: impl Fn(),
        report: &mut MonitorReport,
    ) -> Result<QuietRounds, SessionError> {
        let mut quiet = QuietRounds::default();
        let goes_on = || stop.try_recv() == Err(TryRecvError::Empty);
        let config = &self.plan.config;
        match self.executor_plan.executor {
            Executor::Deadline => {
                // The guarantee begins when all sensors have appeared. Kernel sensors are present.
                // If there are no others, the program is released after the begin, so that the
                // guarantee holds from its first instruction on.
                let awaits_program = query(config, &self.executor_plan.selection)?.is_some();
                let report_begin = || {
                    let _ = begun.send(());
                };
                if awaits_program {
                    report_begin();
                }
                let begin = || {
                    enforce();
                    report_begin();
                };
                let terms = &self.executor_plan.terms;
                let partition = self.plan.partition.as_deref();
                let inside = partition.map(Partition::enter);
                let _inside = inside.transpose().map_err(|error| {
                    SessionError::new(ErrorKind::Unavailable, error.to_string())
                })?;
                let allowed = terms.lateness.wake_up.plus(terms.reservation.runtime);
                let watchdog = match config.monitor.watchdog {
                    true => Some(LatencyWatchdog::start(allowed)),
                    false => None,
                };
                let watchdog = watchdog.transpose();
                let watchdog = watchdog.map_err(|error| {
                    SessionError::new(ErrorKind::Unavailable, error.to_string())
                })?;
                match deadline(monitor, watch, begin, |_, _| goes_on()) {
                    Ok(run) => {
                        if let Some(watchdog) = watchdog {
                            watch.note_watchdog(&watchdog.stop());
                        }
                        let start = self.start.get().unwrap_or_default();
                        report.add_run(&run, watch.guarantee(), terms, start);
                        report.cpu = partition.map(Partition::cpu);
                    }
                    // No guarantee had begun, so none is violated. The verdict is inconclusive.
                    Err(refusal) => {
                        report.verdict = Some("inconclusive".to_string());
                        report.reasons = vec![refusal.to_string()];
                        begin();
                        run_without_guarantee(monitor, watch, goes_on, &refusal);
                    }
                }
            }
            Executor::Bandwidth => {
                let percent = config.monitor.cpu_percent;
                let ran = bandwidth(monitor, watch, percent, |_| {
                    let _ = begun.send(());
                    goes_on()
                });
                ran.map_err(|refusal| {
                    SessionError::new(ErrorKind::Unavailable, refusal.to_string())
                })?;
            }
            Executor::Idle => {
                let _ = begun.send(());
                let ran = idle(monitor, watch, |monitor| {
                    quiet.record_round(monitor.elements(), SystemClock.cpu_time());
                    goes_on()
                });
                ran.map_err(|verdict| {
                    let message = format!(
                        "the kernel refuses the policy SCHED_IDLE ({verdict:?}); take the executor \
                         \"best_effort\""
                    );
                    SessionError::new(ErrorKind::Unavailable, message)
                })?;
            }
            Executor::BestEffort | Executor::Buffered(_) => {
                let _ = begun.send(());
                let now = || SystemClock.now();
                best_effort(monitor, watch, now, std::thread::sleep, |monitor| {
                    quiet.record_round(monitor.elements(), SystemClock.cpu_time());
                    goes_on()
                });
            }
        }
        Ok(quiet)
    }

    /// Runs until `stop` is disconnected: another thread with a reservation copies the elements,
    /// this one evaluates them. Returns the mapped bytes of the streams that no update reads.
    fn buffer(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        (mut source, reservation): (MonitorSource, DeadlineReservation),
        stop: &Receiver<()>,
        begun: &Sender<()>,
    ) -> Result<u64, SessionError> {
        let capacity = self
            .plan
            .config
            .monitor
            .buffered_elements
            .next_power_of_two();
        let (mut copier, copies) = buffer(capacity);
        let horizon = copies.horizon();
        monitor.add_source(Box::new(copies));
        let (stop_copying, copying_stopped) = channel::<()>();
        let begun = begun.clone();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("oh-copies".to_string());
            let copying = thread.spawn_scoped(scope, move || {
                let ran = copy_reserved(&mut source, &mut copier, reservation, || {
                    let _ = begun.send(());
                    copying_stopped.try_recv() == Err(TryRecvError::Empty)
                });
                source.end();
                copier.copy(&mut source, SystemClock.now());
                ran.map(|()| source.unused_bytes())
            });
            let copying = copying.map_err(|error| {
                let message = format!("cannot start a thread that copies: {error}");
                SessionError::new(ErrorKind::Unavailable, message)
            })?;
            // The last round begins when all elements have been copied.
            let (mut stop_copying, mut copying) = (Some(stop_copying), Some(copying));
            let mut ended = Ok(0);
            best_effort(
                monitor,
                watch,
                || horizon.now(),
                std::thread::sleep,
                |_| {
                    let is_over = copying.as_ref().is_none_or(|it| it.is_finished());
                    if stop.try_recv() == Err(TryRecvError::Empty) && !is_over {
                        return true;
                    }
                    drop(stop_copying.take());
                    ended = copying
                        .take()
                        .map_or(Ok(Ok(0)), ScopedJoinHandle::join)
                        .unwrap_or(Ok(0));
                    false
                },
            );
            ended.map_err(|refusal| SessionError::new(ErrorKind::Unavailable, refusal.to_string()))
        })
    }

    /// Adds the figures of the sensors and updates to the report.
    fn fill(
        &self,
        report: &mut MonitorReport,
        watch: &Watch<'_, SystemClock>,
        of_kernel: Option<&str>,
    ) {
        let (config, own) = (&self.plan.config, self.executor_plan);
        if report.verdict.is_none() {
            let absent = watch.absent().into_iter().map(|(sensor, present)| {
                let id = own.terms.sensor(sensor);
                if config.sensors[sensor.0].is_of_kernel() {
                    let reason = of_kernel.unwrap_or("there are no kernel sensors");
                    return format!("sensor `{id}` is not recorded: {reason}");
                }
                match present {
                    0 => format!(
                        "sensor `{id}` never appeared: no program has registered it; check its id"
                    ),
                    some => format!(
                        "only {some} sensors `{id}` appeared of {}; check its `count`",
                        own.terms.sensors[sensor.0].count
                    ),
                }
            });
            report.reasons = absent.collect();
        }
        let sensors = own.terms.sensors.iter().zip(watch.figures()).enumerate();
        report.sensors = sensors
            .filter(|(index, _)| own.selection.has_sensor(*index))
            .map(|(index, (terms, figures))| MonitoredSensor {
                id: terms.name.clone(),
                sensors: watch.labels(SensorIndex(index)).map(String::from).collect(),
                elements: figures.elements,
                missed: figures.missed,
                latency_ns: figures.latency.as_ns(),
                exceeding: figures.exceeding,
            })
            .collect();
        report.missed = report.sensors.iter().map(|sensor| sensor.missed).sum();
        let updates = config.updates.iter().zip(watch.longest());
        let updates = updates.zip(watch.outcomes()).enumerate();
        report.updates = updates
            .filter(|(index, _)| own.selection.has_update(*index))
            .map(|(_, ((config, longest), outcome))| MeasuredUpdate {
                name: config.name.clone(),
                executor: own.executor.name().to_string(),
                requested_latency_ns: config.latency.map(|latency| latency.0.as_ns()),
                state: match outcome.stopped {
                    Some(_) => "stopped".to_string(),
                    None => "finished".to_string(),
                },
                message: outcome.stopped.map(|gap| stopped_by(&gap)),
                elements: longest.elements,
                missed: outcome.missed,
                overruns: outcome.overruns,
                longest_ns: longest.took.as_ns(),
                longest_sensor: longest
                    .sensor
                    .map(|sensor| own.terms.sensor(sensor).to_string()),
                longest_element: longest.sensor.map(|_| longest.element),
                wcet_ns: config.wcet.map(|wcet| wcet.0.as_ns()),
                suggested_wcet_ns: (longest.elements > 0).then(|| wcet_with_margin(longest.took)),
                values: None,
                histogram: None,
                complaints: Vec::new(),
                memory_bytes: None,
                plugin: Vec::new(),
            })
            .collect();
    }

    fn indices(&self, ids: &[String]) -> Vec<SensorIndex> {
        let all = self.plan.config.sensors.iter().enumerate();
        let taken = all.filter(|(_, sensor)| ids.contains(&sensor.id));
        taken.map(|(index, _)| SensorIndex(index)).collect()
    }

    /// The sensors whose elements may be evaluated in place.
    fn large_sensors(&self) -> Vec<SensorIndex> {
        let all = self.plan.config.sensors.iter().enumerate();
        let large = all.filter(|(_, sensor)| sensor.payload > IN_PLACE_BYTES);
        large.map(|(index, _)| SensorIndex(index)).collect()
    }
}

fn attach(socket: &Path, query: Query, yields: bool) -> Result<AttachedSource, SessionError> {
    let connection = MonitorConnection::connect(socket)?;
    let needs = match yields {
        true => Needs::all().yield_to_budgets(),
        false => Needs::all(),
    };
    let mut source = connection.attach_needing(query, Begin::Now, needs)?;
    source.forget_clock_segments();
    Ok(source)
}

/// Selects the streams of an entry of the file.
enum Matcher {
    Kernel(String),
    Programs(Query),
}

impl Matcher {
    fn of(sensor: &SensorConfig, probes: &[Probe]) -> Result<Self, SessionError> {
        let usage = |message| {
            SessionError::new(
                ErrorKind::Usage,
                format!("sensor `{}`: {message}", sensor.id),
            )
        };
        match sensor.of_kernel(probes).map_err(usage)? {
            Some(source) => Ok(Self::Kernel(source.name())),
            None => connect::query(&sensor.id, None).map(Self::Programs),
        }
    }

    fn matches(&self, stream: &StreamDescriptor) -> bool {
        match self {
            Self::Kernel(sensor) => {
                matches!(stream.origin, Origin::Kernel { .. }) && stream.sensor == *sensor
            }
            Self::Programs(query) => query.matches(stream),
        }
    }
}

/// Number of elements that the kernel did not record. Some losses are known only after the last
/// round, without their times.
fn kernel_losses(monitor: &Monitor, streams: &[Arc<StreamDescriptor>]) -> u64 {
    let of_kernel = |id: StreamId| {
        let stream = streams.iter().find(|stream| stream.id == id);
        stream.is_some_and(|stream| matches!(stream.origin, Origin::Kernel { .. }))
    };
    let all = monitor.losses().iter();
    let lost = all.filter(|(stream, _, cause, _)| {
        let unrecorded = [GapCause::Kernel, GapCause::Nested, GapCause::Inconsistent];
        unrecorded.contains(cause) && of_kernel(*stream)
    });
    lost.map(|(_, _, _, loss)| loss.missed).sum()
}

/// Evaluates by best effort after a guarantee could not begin.
fn run_without_guarantee(
    monitor: &mut Monitor,
    watch: &mut Watch<'_, SystemClock>,
    goes_on: impl Fn() -> bool,
    refusal: &DeadlineRefusal,
) {
    let now = || SystemClock.now();
    // The run has ended already: only the last round is left.
    let ended = matches!(refusal, DeadlineRefusal::Absent(_));
    watch.begin_judging();
    best_effort(monitor, watch, now, std::thread::sleep, |_| {
        !ended && goes_on()
    });
}

/// An `[[update]]` of the file.
enum ConfiguredUpdate {
    Counting(CountingUpdate),
    Metric(Box<MetricUpdate>),
    Plugin(Updates),
}

impl ConfiguredUpdate {
    /// Lets missed elements stop none of its updates, until the returned supervisor enforces their
    /// policies.
    fn make_lenient(&mut self) -> Option<Supervisor> {
        match self {
            Self::Counting(_) | Self::Metric(_) => None,
            Self::Plugin(updates) => Some(updates.lenient()),
        }
    }
}
