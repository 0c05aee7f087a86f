// SPDX-License-Identifier: MIT OR Apache-2.0
//! From requests to running samplers.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use overhear_event::{Nanos, Origin, Rate, StreamDescriptor, StreamId, StreamIdRange};
use overhear_monitor::Monitor;
use overhear_sampling::sources::{NewestValue, SourceFinder, SourceNameError, PLUGIN};
use overhear_sampling::{
    sample_ring, PeriodicSampler, PeriodicSamplers, PeriodicSource, RingSize, SampleForm,
    SampleSource, SampleSubject, SampleTarget,
};

use super::{SamplingPolicy, SamplingRequest};
use crate::error::{ErrorKind, SessionError, Setting};
use crate::quantities::SourceReport;
use crate::trust;

/// The processes that samplers read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subjects {
    /// Processes, each with all of its threads.
    pub(crate) pids: Vec<u32>,
    /// Whether they execute their programs later.
    pub(crate) on_exec: bool,
    /// Fields of sensors, by name.
    pub(crate) newest: Vec<(String, NewestValue)>,
}

/// The samplers of a session that the monitor reads as a source.
#[derive(Debug, Default)]
pub(crate) struct Samplers {
    /// The periodic samplers; `None` if there are none.
    periodic: Option<Rc<RefCell<PeriodicSource>>>,
    names: Vec<String>,
    notes: Vec<String>,
}

/// The part of a sampler that becomes one stream.
struct Part<'a> {
    request: &'a SamplingRequest,
    names: Vec<&'a str>,
    // Empty: the machine.
    pids: Vec<u32>,
    suffix: &'static str,
    on_exec: bool,
    newest: &'a [(String, NewestValue)],
}

impl Samplers {
    /// Opens all sources, and allocates and locks all buffers. `free` are the numbers of streams
    /// that no other source uses.
    ///
    /// # Errors
    /// [`SessionError`] if a quantity cannot be sampled, or the periods do not fit together.
    pub(crate) fn prepare(
        requests: &[SamplingRequest],
        subjects: &Subjects,
        free: &mut StreamIdRange,
    ) -> Result<Self, SessionError> {
        let mut samplers = Vec::new();
        let mut sources = Vec::new();
        let mut notes = Vec::new();
        for part in requests
            .iter()
            .map(|it| parts(it, subjects))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .flatten()
        {
            let (sampler, source) = part.prepare(free)?;
            let readings = sampler.targets.iter().map(|target| &target.reading);
            for note in readings.flat_map(|reading| reading.notes()) {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
            samplers.push(sampler);
            sources.push(source);
        }
        if samplers.is_empty() {
            return Ok(Self::default());
        }
        let names = requests.iter().filter(|it| it.policy.point().is_none());
        let names = names.map(|request| request.name.clone()).collect();
        let thread =
            PeriodicSamplers::prepare(samplers).map_err(|error| usage(&error.to_string()))?;
        let source = PeriodicSource::new(sources, thread);
        Ok(Self {
            periodic: Some(Rc::new(RefCell::new(source))),
            names,
            notes,
        })
    }

    /// Adds them to a monitor, and begins the first period of all.
    pub(crate) fn begin(&self, monitor: &mut Monitor) {
        self.add_to(monitor);
        self.release();
    }

    /// Adds them to a monitor.
    pub(crate) fn add_to(&self, monitor: &mut Monitor) {
        if let Some(source) = &self.periodic {
            monitor.add_source(Box::new(Rc::clone(source)));
        }
    }

    /// Begins the first period of all.
    pub(crate) fn release(&self) {
        if let Some(source) = &self.periodic {
            source.borrow().release();
        }
    }

    /// The report on them; `None` if there are none.
    pub(crate) fn report(&self) -> Option<SourceReport> {
        SourceReport::of_samplers(&self.names, &self.notes)
    }
}

/// Names with the files of shared objects that this user trusts.
pub(super) fn trusted_names(names: &[impl AsRef<str>]) -> Result<Vec<String>, SessionError> {
    let trusted = names.iter().map(|name| {
        let name = name.as_ref();
        let Some(plugin) = name.strip_prefix(PLUGIN) else {
            return Ok(name.to_owned());
        };
        let (file, argument) = plugin.split_once('=').unwrap_or((plugin, ""));
        // Without a slash the loader would look in the folders of libraries.
        let path = Path::new(".").join(file);
        let path = trust::plugin(&path).map_err(|message| usage(&message))?;
        Ok(format!("{PLUGIN}{}={argument}", path.display()))
    });
    trusted.collect()
}

/// The error for a quantity that cannot be sampled.
pub(super) fn source_error(error: SourceNameError) -> SessionError {
    let kind = match error.is_of_machine() {
        true => ErrorKind::Unavailable,
        false => ErrorKind::Usage,
    };
    SessionError::new(kind, error.to_string()).about(Setting::Sampling)
}

pub(super) fn usage(message: &str) -> SessionError {
    SessionError::new(ErrorKind::Usage, message).about(Setting::Sampling)
}

/// The streams of a periodic sampler: one, or two if there are several processes and quantities of
/// the machine, which would otherwise be sampled for each.
fn parts<'a>(
    request: &'a SamplingRequest,
    subjects: &'a Subjects,
) -> Result<Vec<Part<'a>>, SessionError> {
    if !matches!(request.policy, SamplingPolicy::Periodic { .. }) {
        return Ok(Vec::new());
    }
    let names = || request.sample.iter().map(String::as_str);
    let part = |names: Vec<&'a str>, pids: &[u32], suffix| Part {
        request,
        names,
        pids: pids.to_vec(),
        suffix,
        on_exec: subjects.on_exec,
        newest: &subjects.newest,
    };
    let of_process: Vec<&str> = names()
        .filter(|name| SourceFinder::is_of_process(name))
        .collect();
    let of_machine: Vec<&str> = names()
        .filter(|name| !SourceFinder::is_of_process(name))
        .collect();
    let needed = names().find(|name| SourceFinder::needs_process(name));
    match (subjects.pids.as_slice(), of_process.first()) {
        ([], _) if needed.is_some() => Err(usage(
            &SourceNameError::NoProcess(needed.unwrap_or_default().to_owned()).to_string(),
        )),
        ([], _) => Ok(vec![part(names().collect(), &[], "")]),
        (_, None) => Ok(vec![part(of_machine, &[], "")]),
        ([pid], _) => Ok(vec![part(names().collect(), &[*pid], "")]),
        (several, _) => {
            let machine =
                (!of_machine.is_empty()).then(|| part(of_machine.clone(), &[], "/machine"));
            let all = [part(of_process.clone(), several, "")].into_iter();
            Ok(all.chain(machine).collect())
        }
    }
}

impl Part<'_> {
    fn prepare(
        &self,
        free: &mut StreamIdRange,
    ) -> Result<(PeriodicSampler, SampleSource), SessionError> {
        let Some(period) = self.request.policy.period() else {
            return Err(usage("a periodic sampler has no period"));
        };
        let targets = match self.pids.as_slice() {
            [] => vec![self.target(None)?],
            pids => pids
                .iter()
                .map(|pid| self.target(Some(*pid)))
                .collect::<Result<_, _>>()?,
        };
        let form = &targets[0].form;
        let size = RingSize::of(form.payload_bytes(), period, targets.len());
        let size = size.map_err(|error| usage(&error.to_string()))?;
        let ids = free.take(1);
        let ids = ids.ok_or_else(|| usage("there are too many samplers"))?;
        let stream = self.stream(ids.first(), form, size);
        let ring = sample_ring(Arc::new(stream), size);
        let (writer, source) = ring.map_err(|error| usage(&error.to_string()))?;
        let sampler = PeriodicSampler {
            period,
            targets,
            writer,
        };
        Ok((sampler, source))
    }

    /// The sources of a process, or of the machine.
    fn target(&self, pid: Option<u32>) -> Result<SampleTarget, SessionError> {
        let newest = self.newest.iter();
        let finder = newest.fold(SourceFinder::default(), |finder, (name, value)| {
            finder.newest(name, value.clone())
        });
        let finder = match pid {
            Some(pid) if self.on_exec => finder.of_process(pid).on_exec(),
            Some(pid) => finder.of_process(pid),
            None => finder,
        };
        let names = trusted_names(&self.names)?;
        let reading = finder.find(&names).map_err(source_error)?;
        let form = SampleForm::new(reading.quantities().iter());
        Ok(SampleTarget {
            form: form.map_err(|error| usage(&error.to_string()))?,
            reading,
            subject: SampleSubject {
                tid: 0,
                pid: pid.unwrap_or(0),
            },
        })
    }

    fn stream(&self, id: StreamId, form: &SampleForm, size: RingSize) -> StreamDescriptor {
        let name = format!("{}{}", self.request.name, self.suffix);
        // Samples of several processes come at the same time.
        let period = self.request.policy.period().filter(|_| self.pids.len() < 2);
        StreamDescriptor {
            rate: period.and_then(|period| Rate::new(period, Nanos::ZERO, Nanos::ZERO).ok()),
            capacity: size.samples(),
            ..StreamDescriptor::new(id, Origin::Sampler, name, form.schema())
        }
    }
}
