// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear record`: listens to what already runs, by the kernel's sensors alone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use overhear_directory::monotonic_now;
use overhear_event::{Analysis, Nanos, StreamIdRange, Timestamp};
use overhear_kernel::{Backend, KernelMonitor, Probe, ProbeError, SelectError, Sensor, StartError};
use overhear_metrics::automaton::{events_required_by, Metric};
use overhear_metrics::compensation::Delays;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Finished, Losses, Runner};
use overhear_trace::TraceWriter;

use crate::calibrate::Calibration;
use crate::compensation::{self, Accounts, CompensationReport};
use crate::conclusion::Exit;
use crate::config::probes::refuse_unusable;
use crate::error::{ErrorKind, SessionError};
use crate::evaluations::Evaluations;
use crate::interrupts::Interrupts;
use crate::metrics::{self, MetricsReport, METRICS};
use crate::named_sensors::NamedSensors;
use crate::other_threads::{self, OtherThread, OtherThreads, OTHER_THREADS};
use crate::overhead::{CalibratedOverhead, CALIBRATION};
use crate::place;
use crate::progress::BeginProgress;
use crate::quantities::{SourceReport, TraceReport};
use crate::recording::{Ending, Recording};
use crate::report::{self, Report, RunFindings};
use crate::session::{close_trace, create_trace, keep, Outcome};

/// Options of [`record`]: the sources, the sensors, and the end.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// Processes, with what they create.
    pub pids: Vec<u32>,
    /// Single threads.
    pub tids: Vec<u32>,
    /// Cgroups, with what is in them.
    pub cgroups: Vec<PathBuf>,
    /// All threads of the machine.
    pub all: bool,
    /// Kernel sensors, as for [`KernelMonitor`]. Those that are named must be heard.
    pub sensors: NamedSensors,
    /// What is measured. The kernel sensors that this requires are switched on.
    pub metrics: Vec<Metric>,
    /// Functions and static probes of programs.
    pub probes: Vec<Probe>,
    /// How to hear the kernel.
    pub backend: Backend,
    /// About how many bytes the buffers may take.
    pub buffer_bytes: Option<u64>,
    /// At most this long.
    pub duration: Option<Nanos>,
    /// The folder that keeps the trace.
    pub out: Option<PathBuf>,
    /// The command as the recording remembers it.
    pub command: Vec<OsString>,
    /// Shows how the recording goes on.
    pub progress: Option<BeginProgress>,
    /// What sensors cost on this machine.
    pub calibration: Option<Calibration>,
    /// Whether that is subtracted from the times of the report.
    pub compensate: bool,
}

impl RecordOptions {
    /// Whether nobody is left to be heard: all that was named by id has ended.
    fn has_ended(&self) -> bool {
        let named = self.pids.iter().chain(&self.tids);
        !self.all && self.cgroups.is_empty() && !named.copied().any(place::lives)
    }

    fn select(&self, monitor: &mut KernelMonitor) -> Result<(), SelectError> {
        for &pid in &self.pids {
            monitor.process_monitor(pid)?;
        }
        for &tid in &self.tids {
            monitor.thread_monitor(tid, tid)?;
        }
        for cgroup in &self.cgroups {
            monitor.cgroup_monitor(cgroup)?;
        }
        if self.all {
            monitor.all_monitor()?;
        }
        Ok(())
    }

    /// The sensors that are named, and those that the metrics require. Scheduling is heard in any
    /// case, unless it is named in part.
    fn wanted(&self) -> BTreeSet<Sensor> {
        let mut wanted = self.sensors.wanted();
        let names_scheduling = wanted.iter().any(|sensor| sensor.is_scheduling());
        for metric in &self.metrics {
            wanted.extend(Sensor::required_by(&events_required_by(metric)));
        }
        if !names_scheduling {
            wanted.extend(Sensor::scheduling());
        }
        wanted
    }

    fn create(&self) -> Result<KernelMonitor, SessionError> {
        let mut builder = KernelMonitor::builder()
            .backend(self.backend)
            .sensors(self.wanted())
            .probes(self.probes.iter().cloned())
            // Whoever is selected is told once at the beginning; there may be many.
            .life_elements(16_384)
            .first_stream(StreamIdRange::SESSION.first());
        if let Some(bytes) = self.buffer_bytes {
            builder = builder.buffer_bytes(bytes);
        }
        let created = builder.create();
        created.map_err(|error| cannot_start(&error))
    }
}

/// Records until it is interrupted, the time is over, or all that was named by id has ended.
///
/// # Errors
/// [`SessionError`] if nothing can be heard, or what was named cannot be selected.
pub fn record(options: &RecordOptions) -> Result<Outcome, SessionError> {
    let mut evaluations = plan(options)?;
    let (mut kernel, source) = open(options)?;
    let mut interrupts = Interrupts::listen()?;
    let begun = monotonic_now();
    // Resumed first: then everything that is told of a thread follows its beginning.
    kernel.resume().map_err(|error| refused(&error))?;
    options
        .select(&mut kernel)
        .map_err(|error| refused(&error))?;
    let (mut writer, mut recording) = begin_trace(options, source, begun)?;
    let kernel = Rc::new(RefCell::new(kernel));
    let mut scheduling = Scheduling::new(());
    if recording.hears_wakeups() {
        scheduling.expect_wakeups();
    }
    let mut statistics = SensorStatistics::default();
    let calibration = options.calibration.clone();
    let mut overhead =
        calibration.map(|known| CalibratedOverhead::new(known.heard_by(recording.kernel_active())));
    let costs = overhead
        .as_ref()
        .filter(|_| options.compensate)
        .map(CalibratedOverhead::costs);
    let mut others = OtherThreads::new();
    let mut notes = Vec::new();
    let (mut monitor, ended, delays);
    {
        let mut accounts = Accounts::new(&mut scheduling, &mut statistics, costs);
        let mut all: Vec<&mut dyn Analysis> = vec![accounts.update(), &mut others];
        all.extend(overhead.as_mut().map(CalibratedOverhead::update));
        if !evaluations.is_empty() {
            all.push(&mut evaluations);
        }
        if let Some(writer) = &mut writer {
            all.push(writer);
        }
        let runner = Runner::new(Fanout(all))
            .source(Box::new(Rc::clone(&kernel)))
            .complaints(|complaint| notes.push(complaint.to_string()));
        let mut progress = options.progress.map(|begin| begin());
        let mut condition = StopCondition {
            options,
            interrupts: &mut interrupts,
            begun,
        };
        let finished = runner.run(std::thread::sleep, |runner| {
            if let Some(progress) = &mut progress {
                let missed = runner.monitor.losses().missed();
                progress.show(runner.now().since(begun), runner.monitor.elements(), missed);
            }
            // Finishing fails only for a monitor that was terminated.
            (!condition.goes_on(runner.now())).then(|| kernel.borrow_mut().finish())
        });
        Finished { monitor, ended, .. } = finished;
        if let Some(progress) = &mut progress {
            progress.clear();
        }
        delays = accounts.finish();
    }
    for stream in monitor.take_opened() {
        statistics.announce(&stream);
        Analysis::open(&mut evaluations, &stream);
        if let Some(writer) = &mut writer {
            let _ = writer.open(&stream);
        }
    }
    scheduling.finish(compensation::end(ended, delays.as_ref()));
    let others = others.names(scheduling.threads().iter().map(|thread| thread.tid));
    let threads = other_threads::by_tid(&others).chain(metrics::names_of(&scheduling));
    let (_, measured) = evaluations.finish(ended, 0, threads);
    recording.end = Some(Ending {
        end_ns: ended.as_monotonic_ns(),
        exit: Exit::Code(0),
    });
    recording.notes = notes;
    let accounts = Recorded {
        scheduling,
        statistics,
        overhead,
        delays,
        losses: monitor.losses(),
        metrics: measured,
        others,
    };
    let report = accounts.assemble(writer, options.out.as_deref(), recording);
    // The recording is finished, the page can be made again.
    drop(interrupts);
    Ok(Outcome {
        report,
        exit: Exit::Code(0),
        out: options.out.clone(),
    })
}

/// The metrics of a recording.
fn plan(options: &RecordOptions) -> Result<Evaluations, SessionError> {
    if options.compensate && options.calibration.is_none() {
        return Err(compensation::no_calibration());
    }
    let trial = Evaluations::new(Vec::new(), options.metrics.clone(), None)?;
    refuse_unusable(trial, &options.probes)?;
    Evaluations::new(Vec::new(), options.metrics.clone(), None)
}

/// The trace of a recording that begins, if it is kept.
fn begin_trace(
    options: &RecordOptions,
    source: SourceReport,
    begun: Timestamp,
) -> Result<(Option<TraceWriter>, Recording), SessionError> {
    let mut writer = options.out.as_deref().map(create_trace).transpose()?;
    let recording = Recording::begin(&options.command, vec![source], begun);
    if let Some(writer) = &mut writer {
        // Errors are remembered by the writer and come out at the end.
        let _ = writer.attach_document("run", &recording.to_json());
    }
    Ok((writer, recording))
}

/// The kernel monitor of a recording, and what its report says of it.
fn open(options: &RecordOptions) -> Result<(KernelMonitor, SourceReport), SessionError> {
    let kernel = options.create()?;
    let source = source_report(&kernel)?;
    let status = kernel.status().map_err(|error| refused(&error))?;
    options.sensors.check(status)?;
    if source.active == "none" {
        return Err(SessionError::new(ErrorKind::Unavailable, source.message));
    }
    Ok((kernel, source))
}

/// The accounts of a recording that has ended.
struct Recorded<'a> {
    scheduling: Scheduling,
    statistics: SensorStatistics,
    overhead: Option<CalibratedOverhead>,
    delays: Option<Delays>,
    losses: &'a Losses,
    metrics: Option<MetricsReport>,
    others: Vec<OtherThread>,
}

impl Recorded<'_> {
    /// Ends the trace, with the documents that cannot be computed from it; makes the report.
    fn assemble(
        self,
        writer: Option<TraceWriter>,
        out: Option<&Path>,
        mut recording: Recording,
    ) -> Report {
        let trace = match (writer, out) {
            (Some(mut writer), Some(out)) => {
                let others = Some(&self.others).filter(|all| !all.is_empty());
                keep(&mut writer, OTHER_THREADS, others);
                keep(&mut writer, METRICS, self.metrics.as_ref());
                let calibration = self.overhead.as_ref().map(CalibratedOverhead::calibration);
                keep(&mut writer, CALIBRATION, calibration);
                close_trace(writer, out, &mut recording, &[])
            }
            _ => TraceReport::default(),
        };
        let found = RunFindings {
            scheduling: &self.scheduling,
            statistics: &self.statistics,
            losses: self.losses,
            overhead: self.overhead.as_ref(),
            compensation: self
                .delays
                .as_ref()
                .map(|delays| CompensationReport::of(delays, recording.hears_wakeups())),
            trace,
        };
        let mut report = report::of(&recording, &found);
        report.metrics = self.metrics;
        report.add_other_threads(self.others);
        report.conclude();
        report
    }
}

/// When the recording ends.
struct StopCondition<'a> {
    options: &'a RecordOptions,
    interrupts: &'a mut Interrupts,
    begun: Timestamp,
}

impl StopCondition<'_> {
    fn goes_on(&mut self, now: Timestamp) -> bool {
        let over = |most: Nanos| now.since(self.begun) >= most;
        self.interrupts.take().is_empty()
            && !self.options.duration.is_some_and(over)
            && !self.options.has_ended()
    }
}

/// Why the kernel cannot be heard; a mistake in what was asked for is one of usage.
pub(crate) fn cannot_start(error: &StartError) -> SessionError {
    let kind = match error {
        StartError::RingSize { .. }
        | StartError::NoSuchProbeRing { .. }
        | StartError::Probe(
            ProbeError::NoFile { .. }
            | ProbeError::File { .. }
            | ProbeError::Missing { .. }
            | ProbeError::Ambiguous { .. }
            | ProbeError::NoPoint { .. }
            | ProbeError::TooMany { .. },
        ) => ErrorKind::Usage,
        _ => ErrorKind::Unavailable,
    };
    SessionError::new(kind, error.to_string())
}

fn refused(error: &SelectError) -> SessionError {
    let kind = match error {
        SelectError::NoSuchProcess { .. }
        | SelectError::NoSuchThread { .. }
        | SelectError::NoCgroup { .. } => ErrorKind::Usage,
        _ => ErrorKind::Unavailable,
    };
    SessionError::new(kind, error.to_string())
}

fn source_report(kernel: &KernelMonitor) -> Result<SourceReport, SessionError> {
    let status = kernel.status().map_err(|error| refused(&error))?;
    Ok(SourceReport::of_kernel(status))
}
