// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a directory's sensors until something ends it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use overhear_directory::{monotonic_now, AttachedSource, Begin, MonitorConnection, Needs, Query};
use overhear_event::{Analysis, ElementView, Gap, Nanos, Origin, StreamDescriptor, Timestamp};
use overhear_monitor::{Finished, Monitor, Runner};
use overhear_posixtrace::{LiveStreams, ObserveFrom, StreamSelection};
use overhear_trace::TraceWriter;

use super::outlet::{Outlet, Requests};
use super::{Feed, Layout, Summary};
use crate::directory_link::DirectoryLink;
use crate::readiness::is_closed;
use crate::text::report::left_out_message;
use overhear_session::budget::{BudgetController, BudgetSettings, OptionalBudget, WritePrices};
use overhear_session::conclusion::Exit;
use overhear_session::disk_limits::DiskLimits;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::interrupts::Interrupts;
use overhear_session::limits;
use overhear_session::listing::{self, State};
use overhear_session::posix;
use overhear_session::processes;
use overhear_session::quantities::SourceReport;
use overhear_session::recording::{Ending, Recording};
use overhear_session::session::{close_trace, create_trace};
use overhear_session::{calibrate, documents};

/// Time without a directory after which a monitor without writers ends. A service manager restarts
/// a directory within this time.
const PATIENCE: Nanos = Nanos::from_ms(2_000);

/// Settings of an [`Attachment`].
#[derive(Clone, Debug)]
pub(crate) struct AttachOptions {
    /// The sensors.
    pub(crate) query: Query,
    /// First element of sensors that exist already.
    pub(crate) begin: Begin,
    /// Maximum number of elements.
    pub(crate) count: Option<u64>,
    /// Maximum duration.
    pub(crate) duration: Option<Nanos>,
    /// Whether the end of all matching sensors ends the observation.
    pub(crate) until_ended: bool,
    /// Whether sensors that no monitor needs are off meanwhile.
    pub(crate) disable_unused: bool,
    /// The budget to keep.
    pub(crate) budget: Option<BudgetSettings>,
    /// Folder of a recording.
    pub(crate) out: Option<PathBuf>,
    /// Limits of the recording on the disk.
    pub(crate) limits: DiskLimits,
    /// The command line, for the recording.
    pub(crate) command: Vec<String>,
    /// The trace streams.
    pub(crate) traces: TraceOptions,
}

/// The POSIX trace streams that an [`Attachment`] reads besides sensors.
#[derive(Clone, Debug)]
pub(crate) enum TraceOptions {
    /// Those with event types that match the query.
    Matching,
    /// The streams of a selection, or all, and no sensors. They are read from the oldest event on,
    /// and later ones only if `follow` is set.
    Selected {
        selection: Option<StreamSelection>,
        follow: bool,
    },
}

impl AttachOptions {
    /// Whether the sensors or streams that were to be read to their end have ended.
    fn has_ended(&self, fed: usize, source: &AttachedSource, traces: &LiveStreams) -> bool {
        let all = self.until_ended && fed > 0 && source.sensors() == 0 && traces.active() == 0;
        all || self.traces.has_ended(traces)
    }
}

impl TraceOptions {
    /// Attaches to the trace streams of the directory at `socket`.
    ///
    /// # Errors
    /// [`SessionError`] if the directory does not answer.
    fn connect(
        &self,
        socket: &Path,
        query: &Query,
        begin: Begin,
    ) -> Result<LiveStreams, SessionError> {
        let Self::Selected { selection, follow } = self else {
            return posix::source(socket, query, begin);
        };
        let traces = LiveStreams::connect(socket, ObserveFrom::Oldest, None, selection.clone());
        let mut traces =
            traces.map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))?;
        traces.take_new(*follow);
        Ok(traces)
    }

    /// Whether nothing can follow.
    fn has_ended(&self, traces: &LiveStreams) -> bool {
        let is_read = traces.active() == 0;
        match self {
            Self::Matching => false,
            Self::Selected { follow: false, .. } => is_read,
            Self::Selected {
                selection: Some(selection),
                ..
            } => is_read && !processes::is_alive(selection.pid),
            Self::Selected { .. } => false,
        }
    }
}

/// An attached monitor. Each element that is written from now on is printed, or counted as missed.
pub(crate) struct Attachment<'a> {
    options: &'a AttachOptions,
    interrupts: Interrupts,
    writer: Option<TraceWriter>,
    source: AttachedSource,
    traces: LiveStreams,
    budget: Option<(BudgetSettings, WritePrices)>,
    off: usize,
    begun: Timestamp,
}

impl<'a> Attachment<'a> {
    /// Attaches to the sensors that exist.
    ///
    /// # Errors
    /// [`SessionError`] if the directory refuses, or the recording cannot be created.
    pub(crate) fn begin(
        mut connection: MonitorConnection,
        socket: &Path,
        options: &'a AttachOptions,
    ) -> Result<Self, SessionError> {
        // Measured before the observation begins: that takes some milliseconds.
        let prices = options.budget.as_ref().map(|_| prices()).transpose()?;
        let budget = options.budget.clone().zip(prices);
        let interrupts = Interrupts::listen()?;
        let begun = monotonic_now();
        let existing = connection.list(&options.query)?;
        let off = existing
            .iter()
            .filter(|sensor| listing::state_of(sensor) == State::Off)
            .count();
        let needs = match options.disable_unused {
            true => Needs::all().disable_unused(),
            false => Needs::all(),
        };
        let needs = match &budget {
            Some(_) => needs.yield_to_budgets(),
            None => needs,
        };
        let source = connection.attach_needing(options.query.clone(), options.begin, needs)?;
        let traces = options
            .traces
            .connect(socket, &options.query, options.begin)?;
        let create = |out| create_trace(out, options.limits);
        let mut writer = options.out.as_deref().map(create).transpose()?;
        if let Some(writer) = &mut writer {
            // The writer keeps errors until it is closed.
            let _ = writer.attach_document("run", &recording(options, begun).to_json());
        }
        Ok(Self {
            options,
            interrupts,
            writer,
            source,
            traces,
            budget,
            off,
            begun,
        })
    }

    /// Number of trace streams that are read.
    #[must_use]
    pub(crate) fn trace_streams(&self) -> usize {
        self.traces.active()
    }

    /// Number of sensors that are attached.
    #[must_use]
    pub(crate) fn sensors(&self) -> usize {
        self.source.sensors()
    }

    /// Number of them that were switched off before: these write nothing.
    #[must_use]
    pub(crate) const fn switched_off(&self) -> usize {
        self.off
    }

    /// Prints the elements until a condition ends the observation. `out` must not have a buffer of
    /// its own. Messages for the user go to `report`.
    ///
    /// # Errors
    /// [`SessionError`] if the budget cannot be kept.
    pub(crate) fn run(
        self,
        layout: Box<dyn Layout>,
        out: impl AsFd + Copy,
        mut report: impl FnMut(&str),
    ) -> Result<Summary, SessionError> {
        let Self {
            options,
            interrupts,
            writer,
            source,
            traces,
            budget,
            begun,
            ..
        } = self;
        let source = Rc::new(RefCell::new(source));
        let traces = Rc::new(RefCell::new(traces));
        let budget = budget.map(|(settings, prices)| {
            BudgetController::new(settings, prices, Box::new(Rc::clone(&source)))
        });
        let budget = OptionalBudget::new(budget.transpose()?);
        let requests = Requests::listen(interrupts);
        let outlet = Outlet {
            file: out,
            requests: Rc::clone(&requests),
        };
        let sink = Sink {
            feed: Feed::new(layout, outlet, options.count),
            writer,
            pids: BTreeSet::new(),
        };

        let mut link = DirectoryLink::new();
        let mut connected_at = begun;
        let runner = Runner::new(sink)
            .source(Box::new(Rc::clone(&source)))
            .source(Box::new(Rc::clone(&traces)));
        let wait = |pause| budget.wait(pause, std::thread::sleep);
        let finished = runner.run(wait, |runner| {
            let (now, sink) = (runner.now(), &mut runner.update);
            let (source, traces) = (&source.borrow(), &traces.borrow());
            link.update(source.is_connected());
            sink.take_news(&mut runner.monitor, &mut link, &mut report);
            sink.feed.flush();
            if let Some(error) = sink.feed.failure() {
                Some(ended_by_failure(error))
            } else if is_closed(out) {
                Some("closed")
            } else if sink.feed.is_full() {
                Some("count")
            } else if requests.borrow_mut().have_come() {
                Some("interrupted")
            } else if options
                .duration
                .is_some_and(|most| now.since(begun) >= most)
            {
                Some("duration")
            } else if options.has_ended(sink.feed.sensors(), source, traces) {
                Some("ended")
            } else {
                if source.is_connected() {
                    connected_at = now;
                }
                let alone = now.since(connected_at) >= PATIENCE;
                (alone && sink.has_no_writer(source, traces)).then_some("directory")
            }
        });
        let ended = monotonic_now();
        let Finished {
            mut ended_by,
            update: mut sink,
            mut monitor,
            ..
        } = finished;
        link.update(source.borrow().is_connected());
        sink.take_news(&mut monitor, &mut link, &mut report);
        sink.feed.flush();
        if let Some(error) = sink.feed.failure() {
            ended_by = ended_by_failure(error);
            if ended_by == "failed" {
                let message = format!("cannot write to standard output: {error}");
                report(&limits::explained(message));
            }
        }
        let (budget, problems) = budget.finish(ended);
        problems.iter().for_each(|problem| report(problem));
        if let Some(budget) = &budget {
            sink.feed.budget(budget);
        }
        let mut summary = sink.feed.finish(ended.since(begun).as_ns(), ended_by);
        // A reader that closes the output early has all that it needs.
        summary.complete &= sink.feed.failure().is_none() || ended_by == "closed";
        if let Some(mut writer) = sink.writer.take() {
            if let Some(budget) = &budget {
                // The writer keeps errors until it is closed.
                let _ = writer.attach_document(documents::BUDGET, budget);
            }
            let mut recording = recording(options, begun);
            recording.end = Some(Ending {
                end_ns: ended.as_monotonic_ns(),
                exit: Exit::Code(0),
            });
            summary.complete &= close(writer, options, recording, &source.borrow(), &mut report);
        }
        summary.budget = budget;
        Ok(summary)
    }
}

/// Ends the trace; false if something is missing in it.
fn close(
    writer: TraceWriter,
    options: &AttachOptions,
    mut recording: Recording,
    source: &AttachedSource,
    report: &mut impl FnMut(&str),
) -> bool {
    let Some(out) = &options.out else {
        return true;
    };
    let trace = close_trace(writer, out, &mut recording, source.clock_segments());
    recording.notes.iter().for_each(|note| report(note));
    if trace.left_out > 0 {
        report(&left_out_message(trace.left_out));
    }
    recording.notes.is_empty() && trace.unrecorded == 0
}

/// The prices of sensors of programs on this machine.
fn prices() -> Result<WritePrices, SessionError> {
    WritePrices::new(calibrate::load_calibration(None)?.as_ref())
}

/// The end of an observation whose output cannot be written.
fn ended_by_failure(error: &io::Error) -> &'static str {
    let has_hung_up = error.raw_os_error() == Some(libc::EIO);
    match error.kind() {
        io::ErrorKind::TimedOut => "interrupted",
        io::ErrorKind::BrokenPipe => "closed",
        _ if has_hung_up => "closed",
        _ => "failed",
    }
}

fn recording(options: &AttachOptions, begun: Timestamp) -> Recording {
    let source = SourceReport {
        name: "programs".to_string(),
        active: "directory".to_string(),
        message: format!("program sensors: attached to `{}`", options.query),
        sensors: Vec::new(),
    };
    let command: Vec<_> = options.command.iter().map(Into::into).collect();
    Recording::begin(&command, vec![source], begun)
}

/// Passes items to the output, and to a trace if there is one. Both end with the same element: the
/// trace has no elements above the maximum number either.
struct Sink<W> {
    feed: Feed<W>,
    writer: Option<TraceWriter>,
    /// Processes whose sensors were attached.
    pids: BTreeSet<u32>,
}

impl<W: Write> Sink<W> {
    /// Whether all writers have ended.
    ///
    /// This is the condition while there is no directory. A directory that ends with its program,
    /// like that of `overhear run`, may have had no time to report the end of the sensors.
    fn has_no_writer(&self, source: &AttachedSource, traces: &LiveStreams) -> bool {
        let is_unread = source.sensors() > 0 || traces.active() > 0;
        !is_unread || !self.pids.iter().any(|&pid| processes::is_alive(pid))
    }

    /// Passes new streams and complaints of the monitor on.
    fn take_news(
        &mut self,
        monitor: &mut Monitor,
        link: &mut DirectoryLink,
        report: &mut impl FnMut(&str),
    ) {
        for stream in monitor.take_opened() {
            self.feed.announce(&stream);
            if let Origin::Program(task) = &stream.origin {
                let _ = self.pids.insert(task.pid);
            }
            if let Some(writer) = &mut self.writer {
                // The writer keeps errors until it is closed.
                let _ = writer.open(&stream);
            }
        }
        for complaint in monitor.take_complaints() {
            let message = complaint.to_string();
            report(&message);
            if link.is_loss() {
                self.feed.remark(&message);
            } else {
                self.feed.note(&message);
            }
        }
    }
}

impl<W: Write> Analysis for Sink<W> {
    fn element(&mut self, element: &ElementView<'_>) {
        if self.feed.is_full() {
            return;
        }
        self.feed.element(element);
        if let Some(writer) = &mut self.writer {
            Analysis::element(writer, element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.feed.is_full() {
            return;
        }
        self.feed.gap(stream, gap);
        if let Some(writer) = &mut self.writer {
            Analysis::gap(writer, stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        if let Some(writer) = &mut self.writer {
            Analysis::advance(writer, now);
        }
    }
}
