// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear record`: records running processes, by kernel sensors alone.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use overhear_directory::monotonic_now;
use overhear_event::{Analysis, Nanos, StreamIdRange, Timestamp};
use overhear_kernel::{Backend, KernelMonitor, Probe, SelectError, Sensor};
use overhear_metrics::automaton::{events_required_by, Metric};
use overhear_metrics::compensation::Delays;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Finished, Losses, Runner};
use overhear_trace::TraceWriter;

use crate::budget::{
    BudgetController, BudgetOutcome, BudgetSettings, KernelPrices, NoPrograms, OptionalBudget,
    WritePrices,
};
use crate::calibrate::Calibration;
use crate::compensation::{self, Accounts, CompensationReport};
use crate::conclusion::Exit;
use crate::config::probes::check_usable;
use crate::disk_limits::DiskLimits;
use crate::documents;
use crate::error::{ErrorKind, SessionError};
use crate::interrupts::Interrupts;
use crate::metrics::{self, MetricsReport};
use crate::named_sensors::NamedSensors;
use crate::notices::Notices;
use crate::other_threads::{self, OtherThread, OtherThreads};
use crate::overhead::CalibratedOverhead;
use crate::processes;
use crate::progress::BeginProgress;
use crate::quantities::{SourceReport, TraceReport};
use crate::recording::{Ending, Recording};
use crate::report::{self, Report, RunFindings};
use crate::requested_analyses::RequestedAnalyses;
use crate::sampling::{kernel_samplers, Samplers, SamplingRequest, Subjects};
use crate::session::{close_trace, create_trace, Outcome};

/// Options of [`record`]: the observed processes, the sensors, and the end.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// Processes, with all threads and processes that they create.
    pub pids: Vec<u32>,
    /// Single threads.
    pub tids: Vec<u32>,
    /// Cgroups, with all their processes.
    pub cgroups: Vec<PathBuf>,
    /// All threads of the machine.
    pub all: bool,
    /// Kernel sensors. Each named one is required.
    pub sensors: NamedSensors,
    /// Metrics. The kernel sensors that they require are added.
    pub metrics: Vec<Metric>,
    /// Functions and static probes of programs.
    pub probes: Vec<Probe>,
    /// Source of kernel events.
    pub backend: Backend,
    /// Approximate size of the buffers, in bytes.
    pub buffer_bytes: Option<u64>,
    /// Limit of the duration.
    pub duration: Option<Nanos>,
    /// The folder of the recording.
    pub out: Option<PathBuf>,
    /// Limits of the recording on the disk.
    pub limits: DiskLimits,
    /// The command line, for the description of the recording.
    pub command: Vec<OsString>,
    /// Shows the progress of the recording.
    pub progress: Option<BeginProgress>,
    /// Costs of sensors on this machine.
    pub calibration: Option<Calibration>,
    /// Whether these costs are subtracted from the times of the report.
    pub compensate: bool,
    /// The budget to keep.
    pub budget: Option<BudgetSettings>,
    /// Samplers.
    pub samplers: Vec<SamplingRequest>,
}

impl RecordOptions {
    /// Whether all processes and threads that were named by id have ended.
    fn has_ended(&self) -> bool {
        let named = self.pids.iter().chain(&self.tids);
        !self.all && self.cgroups.is_empty() && !named.copied().any(processes::is_alive)
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

    /// The named sensors, those that the metrics require, and all sensors of scheduling, unless the
    /// names include some of these.
    fn kernel_sensors(&self) -> BTreeSet<Sensor> {
        let mut sensors = self.sensors.sensors();
        let names_scheduling = sensors.iter().any(|sensor| sensor.is_scheduling());
        for metric in &self.metrics {
            sensors.extend(Sensor::required_by(&events_required_by(metric)));
        }
        if !names_scheduling {
            sensors.extend(Sensor::scheduling());
        }
        sensors
    }

    /// The file of the program, if one process is recorded and nothing else.
    fn program(&self) -> Option<String> {
        let is_only = self.tids.is_empty() && self.cgroups.is_empty() && !self.all;
        match self.pids[..] {
            [pid] if is_only => Some(format!("/proc/{pid}/exe")),
            _ => None,
        }
    }

    fn create(&self) -> Result<KernelMonitor, SessionError> {
        let mut builder = KernelMonitor::builder()
            .backend(self.backend)
            .sensors(self.kernel_sensors())
            .probes(self.probes.iter().cloned())
            .samplers(kernel_samplers(&self.samplers, self.program().as_deref())?)
            // Each selected thread has one element at the beginning; there may be many.
            .life_elements(16_384)
            .first_stream(StreamIdRange::SESSION.first());
        if let Some(bytes) = self.buffer_bytes {
            builder = builder.buffer_bytes(bytes);
        }
        let created = builder.create();
        created.map_err(|error| SessionError::from(&error))
    }
}

/// Records until an interrupt, the end of the duration, or the end of all that was named by id.
///
/// # Errors
/// [`SessionError`] if no kernel event can be recorded, or a process, thread or cgroup cannot be
/// selected.
pub fn record(options: &RecordOptions) -> Result<Outcome, SessionError> {
    let mut analyses = plan(options)?;
    // Measured before the programs are attached.
    let prices = options.budget.as_ref().map(|_| prices(options));
    let prices = prices.transpose()?;
    let (mut kernel, samplers, sources) = open(options)?;
    let mut interrupts = Interrupts::listen()?;
    let begun = monotonic_now();
    // Resumed first: so the first element of each thread is that of its selection.
    let selected = kernel.resume().and_then(|()| options.select(&mut kernel));
    selected.map_err(|error| SessionError::from(&error))?;
    let (mut writer, mut recording) = begin_trace(options, sources, begun)?;
    let kernel = Rc::new(RefCell::new(kernel));
    let budget = OptionalBudget::new(budget_of(options, &kernel, prices)?);
    let mut new_processes = budget.new_processes();
    let mut scheduling = Scheduling::new(());
    if recording.records_wakeups() {
        scheduling.expect_wakeups();
    }
    let mut statistics = SensorStatistics::default();
    let calibration = options.calibration.clone();
    let mut overhead = calibration
        .map(|known| CalibratedOverhead::new(known.for_backend(recording.kernel_backend())));
    let costs = overhead
        .as_ref()
        .filter(|_| options.compensate)
        .map(CalibratedOverhead::costs);
    let mut others = OtherThreads::new();
    let mut notes = Vec::new();
    let (mut monitor, ended, delays);
    {
        let mut accounts = Accounts::new(&mut scheduling, &mut statistics, costs);
        let mut all: Vec<&mut dyn Analysis> = vec![accounts.analysis(), &mut others];
        all.extend(new_processes.as_mut().map(|it| it as &mut dyn Analysis));
        all.extend(overhead.as_mut().map(CalibratedOverhead::analysis));
        if !analyses.is_empty() {
            all.push(&mut analyses);
        }
        if let Some(writer) = &mut writer {
            all.push(writer);
        }
        let mut runner = Runner::new(Fanout(all)).source(Box::new(Rc::clone(&kernel)));
        samplers.begin(&mut runner.monitor);
        let runner = runner.complaints(|complaint| notes.push(complaint.to_string()));
        let mut progress = options.progress.map(|begin| begin());
        let mut condition = StopCondition {
            options,
            interrupts: &mut interrupts,
            begun,
        };
        let wait = |pause| budget.wait(pause, std::thread::sleep);
        let finished = runner.run(wait, |runner| {
            if let Some(progress) = &mut progress {
                let missed = runner.monitor.losses().missed();
                progress.show(runner.now().since(begun), runner.monitor.elements(), missed);
            }
            let now = runner.now();
            (!condition.goes_on(now)).then(|| {
                budget.end_kernel(now);
                // Finishing fails only for a monitor that was terminated.
                kernel.borrow_mut().finish()
            })
        });
        Finished { monitor, ended, .. } = finished;
        if let Some(progress) = &mut progress {
            progress.clear();
        }
        delays = accounts.finish();
    }
    for stream in monitor.take_opened() {
        statistics.announce(&stream);
        Analysis::open(&mut analyses, &stream);
        if let Some(writer) = &mut writer {
            let _ = writer.open(&stream);
        }
    }
    scheduling.finish(compensation::end(ended, delays.as_ref()));
    let others = others.names(scheduling.threads().iter().map(|thread| thread.tid));
    let threads = other_threads::by_tid(&others).chain(metrics::names_of(&scheduling));
    let (_, measured) = analyses.finish(ended, 0, threads);
    recording.end = Some(Ending {
        end_ns: ended.as_monotonic_ns(),
        exit: Exit::Code(0),
    });
    let (budget, problems) = budget.finish(ended);
    notes.extend(problems);
    recording.notes = notes;
    let accounts = Recorded {
        scheduling,
        statistics,
        overhead,
        delays,
        losses: monitor.losses(),
        metrics: measured,
        others,
        budget,
    };
    let report = accounts.assemble(writer, options.out.as_deref(), recording);
    // The recording is complete: from now on a signal may end the process.
    drop(interrupts);
    Ok(Outcome {
        report,
        exit: Exit::Code(0),
        out: options.out.clone(),
    })
}

/// The first prices of the kernel sensors and probes, and of sensors of programs.
///
/// # Errors
/// [`SessionError`] if perf records are requested, which cannot be switched.
fn prices(options: &RecordOptions) -> Result<(KernelPrices, WritePrices), SessionError> {
    if options.backend == Backend::Perf {
        let message =
            "the budget has no source that can be switched: kernel events that come from \
                       perf records would not follow new threads; take them from BPF, or leave out \
                       the budget";
        return Err(SessionError::new(ErrorKind::Usage, message));
    }
    let known = options.calibration.as_ref();
    let sensors = options.kernel_sensors();
    let probes: Vec<String> = options.probes.iter().map(Probe::sensor).collect();
    let names = sensors.iter().map(|sensor| sensor.name());
    let names = names.chain(probes.iter().map(String::as_str));
    Ok((KernelPrices::new(known, names), WritePrices::new(known)?))
}

/// The controller of the budget, if the options have one. Its base is the CPU time of the recorded
/// processes from now on; those that they create are found by their elements.
fn budget_of(
    options: &RecordOptions,
    kernel: &Rc<RefCell<KernelMonitor>>,
    prices: Option<(KernelPrices, WritePrices)>,
) -> Result<Option<BudgetController>, SessionError> {
    let Some((settings, (of_kernel, of_writes))) = options.budget.clone().zip(prices) else {
        return Ok(None);
    };
    let mut budget = BudgetController::new(settings, of_writes, Box::new(NoPrograms))?;
    for &pid in &options.pids {
        budget.add_process(pid);
    }
    budget.add_kernel(Rc::clone(kernel), of_kernel);
    Ok(Some(budget))
}

/// The metrics of a recording.
fn plan(options: &RecordOptions) -> Result<RequestedAnalyses, SessionError> {
    if options.compensate && options.calibration.is_none() {
        return Err(compensation::no_calibration());
    }
    let analyses = || {
        let metrics = options.metrics.clone();
        RequestedAnalyses::new(Vec::new(), metrics, None, Notices::default())
    };
    check_usable(analyses()?, &options.probes)?;
    analyses()
}

/// Creates the trace, if the options name a folder, and the description of the recording.
fn begin_trace(
    options: &RecordOptions,
    sources: Vec<SourceReport>,
    begun: Timestamp,
) -> Result<(Option<TraceWriter>, Recording), SessionError> {
    let create = |out| create_trace(out, options.limits);
    let mut writer = options.out.as_deref().map(create).transpose()?;
    let recording = Recording::begin(&options.command, sources, begun);
    if let Some(writer) = &mut writer {
        // An error is kept by the writer, whose `finish` returns it.
        let _ = writer.attach_document(documents::RUN, &recording.to_json());
    }
    Ok((writer, recording))
}

/// The kernel monitor and the samplers of a recording, and the reports on them.
fn open(
    options: &RecordOptions,
) -> Result<(KernelMonitor, Samplers, Vec<SourceReport>), SessionError> {
    let kernel = options.create()?;
    let source = source_report(&kernel)?;
    let status = kernel
        .status()
        .map_err(|error| SessionError::from(&error))?;
    options.sensors.check(status)?;
    if source.active == "none" {
        return Err(SessionError::new(ErrorKind::Unavailable, source.message));
    }
    let subjects = Subjects {
        pids: options.pids.clone(),
        on_exec: false,
        newest: Vec::new(),
    };
    let mut free = StreamIdRange::LOCAL;
    let samplers = Samplers::prepare(&options.samplers, &subjects, &mut free)?;
    let sources = [source].into_iter().chain(samplers.report()).collect();
    Ok((kernel, samplers, sources))
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
    budget: Option<BudgetOutcome>,
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
                documents::attach(&mut writer, documents::OTHER_THREADS, others);
                documents::attach(&mut writer, documents::METRICS, self.metrics.as_ref());
                let calibration = self.overhead.as_ref().map(CalibratedOverhead::calibration);
                documents::attach(&mut writer, documents::CALIBRATION, calibration);
                documents::attach(&mut writer, documents::BUDGET, self.budget.as_ref());
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
                .map(|delays| CompensationReport::of(delays, recording.records_wakeups())),
            trace,
        };
        let mut report = report::of(&recording, &found);
        report.metrics = self.metrics;
        report.budget = self.budget;
        report.add_other_threads(self.others);
        report.conclude();
        report
    }
}

/// The condition that ends the recording.
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

fn source_report(kernel: &KernelMonitor) -> Result<SourceReport, SessionError> {
    let status = kernel
        .status()
        .map_err(|error| SessionError::from(&error))?;
    Ok(SourceReport::of_kernel(status))
}
