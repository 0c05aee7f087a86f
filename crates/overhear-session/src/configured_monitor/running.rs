// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor in its thread: attached, watched, run by its executor, and what came of it.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{channel, Receiver, Sender, TryRecvError};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use overhear_admission::DeadlineReservation;
use overhear_directory::{AttachedSource, Begin, MonitorConnection, Query};
use overhear_event::{
    Analysis, GapCause, Origin, Source, StreamDescriptor, StreamId, IN_PLACE_BYTES,
};
use overhear_kernel::Probe;
use overhear_monitor::executor::{
    bandwidth, buffer, copy_reserved, deadline, DeadlineRefusal, SensorIndex, UpdateIndex, Watch,
    Watched,
};
use overhear_monitor::plugin::PluginUpdate;
use overhear_monitor::{
    best_effort, Clock, LatencyWatchdog, Monitor, Partition, QueueMemory, Supervisor, SystemClock,
};

use super::evaluation::Counting;
use super::hearing::{Hearing, KernelHearing};
use super::measuring::Measuring;
use super::report::{suggested, MeasuredUpdate, MonitorReport, MonitoredSensor};
use super::suggestion::{suggest, QuietRounds};
use super::{query, Executor, ExecutorPlan, MonitorPlan};
use crate::admit::{self, MemoryBytes};
use crate::config::{MissedConfig, SensorConfig, UpdateConfig};
use crate::error::{ErrorKind, SessionError};
use crate::place;
use crate::quantities::ValueQuantiles;
use crate::reactions::Deciders;
use crate::run_start::RunStart;
use crate::updates::{stopped_by, Updates};

/// A monitor in its thread.
pub(super) struct Running<'a> {
    plan: &'a MonitorPlan,
    own: &'a ExecutorPlan,
    start: RunStart,
}

impl<'a> Running<'a> {
    pub(super) fn new(plan: &'a MonitorPlan, index: usize, start: RunStart) -> Self {
        let own = &plan.monitors[index];
        Self { plan, own, start }
    }

    pub(super) fn run(
        &self,
        (socket, kernel): (&Path, Option<KernelHearing>),
        deciders: &Deciders,
        told: &Receiver<()>,
        begun: &Sender<()>,
    ) -> Result<MonitorReport, SessionError> {
        let (config, own) = (&self.plan.config, self.own);
        let programs = query(config, &own.selection)?;
        let programs = programs.map(|query| attach(socket, query)).transpose()?;
        let of_kernel = kernel.as_ref().map(KernelHearing::message);
        let hearing = Hearing::new(programs, kernel);
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
        let mut evaluations = self.evaluations(deciders)?;
        let supervisors: Vec<Supervisor> = match own.executor {
            Executor::Deadline => evaluations
                .iter_mut()
                .filter_map(Evaluation::settle)
                .collect(),
            _ => Vec::new(),
        };
        let watched = evaluations.iter_mut().zip(&config.updates).enumerate();
        let watched = watched.map(|(index, (evaluation, update))| Watched {
            update: match evaluation {
                Evaluation::Plugin(updates) => updates.set() as &mut dyn Analysis,
                Evaluation::Counting(counting) => counting,
                Evaluation::Measuring(measuring) => &mut **measuring,
            },
            sensors: match own.selection.has_update(index) {
                true => update.sensors.as_ref().map(|ids| self.indices(ids)),
                // It keeps its place, and another monitor calls it.
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
                let unused = self.buffer(
                    &mut monitor,
                    &mut watch,
                    (hearing, reservation),
                    told,
                    begun,
                )?;
                (QuietRounds::default(), unused)
            }
            _ => {
                let hearing = Rc::new(RefCell::new(hearing));
                monitor.add_source(Box::new(Rc::clone(&hearing)));
                let enforce = || supervisors.iter().for_each(Supervisor::enforce);
                let quiet = self.execute(
                    &mut monitor,
                    &mut watch,
                    (told, begun),
                    enforce,
                    &mut report,
                )?;
                let unused = hearing.borrow().unused_bytes();
                (quiet, unused)
            }
        };
        self.fill(&mut report, &watch, of_kernel.as_deref());
        let streams = monitor.take_opened();
        report.hear_kernel_losses(kernel_losses(&monitor, &streams));
        if self.plan.measures {
            report.suggestion = Some(suggest(&self.plan.path, &report, quiet));
        }
        drop(watch);
        let mapped: u64 = streams.iter().map(|it| admit::mapped_bytes(it)).sum();
        let mut taken = MemoryBytes {
            sensors: mapped + unused_bytes + monitor.memory_bytes() as u64,
            ..MemoryBytes::default()
        };
        self.collect(&mut report, evaluations, &streams, &mut taken);
        report.account(&taken, own.stated.as_ref(), &config.updates);
        Ok(report)
    }

    /// A monitor whose queues are reserved if its executor may not allocate.
    fn monitor(&self) -> Monitor {
        let memory = match self.own.executor {
            Executor::Deadline => QueueMemory::Reserved,
            _ => QueueMemory::Growing,
        };
        Monitor::with_memory(self.own.terms.lateness.hold_back, memory)
    }

    /// Takes the results of the evaluations of this monitor, and the memory that they took.
    fn collect(
        &self,
        report: &mut MonitorReport,
        evaluations: Vec<Evaluation>,
        streams: &[Arc<StreamDescriptor>],
        taken: &mut MemoryBytes,
    ) {
        let own_evaluations = evaluations.into_iter().enumerate();
        let own_evaluations =
            own_evaluations.filter(|(index, _)| self.own.selection.has_update(*index));
        for (update, (index, evaluation)) in report.updates.iter_mut().zip(own_evaluations) {
            match evaluation {
                Evaluation::Plugin(updates) => {
                    taken.mapped.extend(updates.mapped_bytes().clone());
                    // What is of another type, or came when it had failed, did not reach it.
                    update.elements = updates.elements();
                    update.plugin = updates.finish_among(streams);
                    let bytes = update.plugin.iter().map(|it| it.memory_bytes).sum();
                    taken.updates.insert(index, bytes);
                    update.memory_bytes = Some(bytes);
                }
                Evaluation::Measuring(measuring) => {
                    taken.counting += measuring.memory_bytes() as u64;
                    update.elements = measuring.elements;
                    update.complaints = measuring.complaints();
                    update.values = measuring.values().map(ValueQuantiles::from);
                    update.histogram = Some(measuring.histogram(&update.name));
                }
                Evaluation::Counting(counting) => {
                    taken.counting += counting.memory_bytes() as u64;
                    update.elements = counting.elements;
                    update.complaints = counting.complaints();
                    update.values = ValueQuantiles::of(&counting.values);
                    update.histogram = counting.histogram(&update.name);
                }
            }
        }
    }

    /// What each update of the file runs; those of other monitors as well, so that each has its
    /// place.
    fn evaluations(&self, deciders: &Deciders) -> Result<Vec<Evaluation>, SessionError> {
        let updates = self.plan.config.updates.iter().zip(&self.plan.plugins);
        let made = updates.enumerate().map(|(index, (config, plugin))| {
            if !self.own.selection.has_update(index) {
                return Ok(Evaluation::Counting(Counting::new(None)));
            }
            if let Some(metric) = &self.plan.metrics[index] {
                let measuring = Measuring::new(metric.clone());
                return Ok(Evaluation::Measuring(Box::new(measuring)));
            }
            let Some(plugin) = plugin else {
                let counting = Counting::new(config.field.clone());
                return Ok(Evaluation::Counting(counting));
            };
            let number = UpdateIndex(index);
            let missed = config.missed.map(MissedConfig::policy);
            let prepare = |update: &mut PluginUpdate| {
                if let Some(decider) = deciders.of_update(number) {
                    update.reacting(decider, number);
                }
            };
            let plugin = std::slice::from_ref(&plugin.specification);
            Updates::load_with(plugin, missed, prepare).map(Evaluation::Plugin)
        });
        made.collect()
    }

    /// Runs until it is told to stop, and fills in what the executor knows.
    fn execute(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        (told, begun): (&Receiver<()>, &Sender<()>),
        enforce: impl Fn(),
        report: &mut MonitorReport,
    ) -> Result<QuietRounds, SessionError> {
        let mut quiet = QuietRounds::default();
        let goes_on = || told.try_recv() == Err(TryRecvError::Empty);
        let config = &self.plan.config;
        match self.own.executor {
            Executor::Deadline => {
                // Sensors of the program are waited for; the kernel's are there. Where there are no
                // others the program waits, so that the guarantee holds from its first instruction
                // on.
                let awaits_program = query(config, &self.own.selection)?.is_some();
                let tell_begun = || {
                    let _ = begun.send(());
                };
                if awaits_program {
                    tell_begun();
                }
                let begin = || {
                    enforce();
                    tell_begun();
                };
                let terms = &self.own.terms;
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
                        report.of_run(&run, watch.guarantee(), terms, start);
                        report.cpu = partition.map(Partition::cpu);
                    }
                    // Nothing was promised yet, so nothing is broken; but nobody knows what would
                    // have come of it.
                    Err(refusal) => {
                        report.verdict = Some("inconclusive".to_string());
                        report.reasons = vec![refusal.to_string()];
                        begin();
                        go_on(monitor, watch, goes_on, &refusal);
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
            Executor::BestEffort | Executor::Buffered(_) => {
                let _ = begun.send(());
                let now = || SystemClock.now();
                best_effort(monitor, watch, now, std::thread::sleep, |monitor| {
                    quiet.look(monitor.elements(), SystemClock.cpu_time());
                    goes_on()
                });
            }
        }
        Ok(quiet)
    }

    /// Runs until it is told to stop: another thread copies on a reservation, this one evaluates.
    /// Returns the bytes that are mapped of streams that nobody evaluates.
    fn buffer(
        &self,
        monitor: &mut Monitor,
        watch: &mut Watch<'_, SystemClock>,
        (mut hearing, reservation): (Hearing, DeadlineReservation),
        told: &Receiver<()>,
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
        let (stop, stopped) = channel::<()>();
        let begun = begun.clone();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("oh-copies".to_string());
            let copying = thread.spawn_scoped(scope, move || {
                let ran = copy_reserved(&mut hearing, &mut copier, reservation, || {
                    let _ = begun.send(());
                    stopped.try_recv() == Err(TryRecvError::Empty)
                });
                hearing.end();
                copier.copy(&mut hearing, SystemClock.now());
                ran.map(|()| hearing.unused_bytes())
            });
            let copying = copying.map_err(|error| {
                let message = format!("cannot start a thread that copies: {error}");
                SessionError::new(ErrorKind::Unavailable, message)
            })?;
            // What is left is evaluated when everything has been copied.
            let (mut stop, mut copying) = (Some(stop), Some(copying));
            let mut ended = Ok(0);
            best_effort(
                monitor,
                watch,
                || horizon.now(),
                std::thread::sleep,
                |_| {
                    let is_over = copying.as_ref().is_none_or(|it| it.is_finished());
                    if told.try_recv() == Err(TryRecvError::Empty) && !is_over {
                        return true;
                    }
                    drop(stop.take());
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

    fn fill(
        &self,
        report: &mut MonitorReport,
        watch: &Watch<'_, SystemClock>,
        of_kernel: Option<&str>,
    ) {
        let (config, own) = (&self.plan.config, self.own);
        if report.verdict.is_none() {
            let absent = watch.absent().into_iter().map(|(sensor, present)| {
                let id = own.terms.sensor(sensor);
                if config.sensors[sensor.0].is_of_kernel() {
                    let why = of_kernel.unwrap_or("the kernel is not heard");
                    return format!("sensor `{id}` is not heard: {why}");
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
            .map(|(_, ((config, longest), fate))| MeasuredUpdate {
                name: config.name.clone(),
                executor: own.executor.name().to_string(),
                wished_latency_ns: config.latency.map(|latency| latency.0.as_ns()),
                state: match fate.stopped {
                    Some(_) => "stopped".to_string(),
                    None => "finished".to_string(),
                },
                message: fate.stopped.map(|gap| stopped_by(&gap)),
                elements: longest.elements,
                missed: fate.missed,
                overruns: fate.overruns,
                longest_ns: longest.took.as_ns(),
                longest_sensor: longest
                    .sensor
                    .map(|sensor| own.terms.sensor(sensor).to_string()),
                longest_element: longest.sensor.map(|_| longest.element),
                wcet_ns: config.wcet.map(|wcet| wcet.0.as_ns()),
                suggested_wcet_ns: (longest.elements > 0).then(|| suggested(longest.took)),
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

    /// Those whose elements may be evaluated in place.
    fn large_sensors(&self) -> Vec<SensorIndex> {
        let all = self.plan.config.sensors.iter().enumerate();
        let large = all.filter(|(_, sensor)| sensor.payload > IN_PLACE_BYTES);
        large.map(|(index, _)| SensorIndex(index)).collect()
    }
}

fn attach(socket: &Path, query: Query) -> Result<AttachedSource, SessionError> {
    let connection = MonitorConnection::connect(socket).map_err(place::refused)?;
    let source = connection.attach(query, Begin::Now);
    let mut source = source.map_err(place::refused)?;
    source.forget_clock_segments();
    Ok(source)
}

/// Which streams an entry of the file stands for.
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
            None => place::query(&sensor.id, None).map(Self::Programs),
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

/// Elements that the kernel did not record at all. A part of them is told when the kernel is heard
/// no more, and then nobody knows when they were lost.
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

/// A guarantee could not begin: the rest is evaluated by best effort.
fn go_on(
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

/// What an `[[update]]` runs.
enum Evaluation {
    Counting(Counting),
    Measuring(Box<Measuring>),
    Plugin(Updates),
}

impl Evaluation {
    /// Begins with rounds in which missed elements stop nobody; the answer ends that.
    fn settle(&mut self) -> Option<Supervisor> {
        match self {
            Self::Counting(_) | Self::Measuring(_) => None,
            Self::Plugin(updates) => Some(updates.lenient()),
        }
    }
}
